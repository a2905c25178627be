"""Determines the pages that an update touches: those of its keys, and the oldest ones, which are moved.

Compaction: each update also rewrites the pages with the lowest offsets, so that the bytes before them can be truncated.
Source: segment-store R5.9.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.segmentstore.container.btree.footer import Footer
from penstock.segmentstore.container.btree.pages import (
    POINTER_LENGTH,
    Pointer,
    count_of,
    divide,
    key_at,
    pointer_at,
)
from penstock.segmentstore.container_settings import IndexSettings

#: Steps of planning, a few microseconds each, before yielding to the event loop.
_SLICE_STEPS = 256


class LoadPages(Protocol):
    """Loads pages of one level from the cache or from storage."""

    def __call__(self, pointers: Sequence[Pointer], level: int, *, keeps: bool) -> Awaitable[Sequence[bytes]]:
        """Return verified pages, in order; with `keeps` the pages read are cached if there is room."""


@dataclass(slots=True)
class Node:
    """A page that will be rewritten.

    Attributes:
        pointer: its current location.
        level: 0 for a leaf.
        lower: lower bound of its keys.
        is_last: whether it is the rightmost page of its level.
        parent: None for the root.
        index: index of this child in its parent.
        low, high: the changed keys below it are keys[low:high].
        page: its bytes.
        is_moved: a leaf that must be moved, even if the values of its keys turn out to be unchanged.
        children: the children that will be rewritten as well.
    """

    pointer: Pointer
    level: int
    lower: bytes
    is_last: bool
    parent: Node | None = None
    index: int = 0
    low: int = 0
    high: int = 0
    page: bytes = b""
    is_moved: bool = False
    children: dict[int, Node] = field(default_factory=dict)

    def child(self, index: int) -> Node:
        """Return a new node for a child that is not in `children` yet."""
        is_last = self.is_last and index == count_of(self.page) - 1
        lower = key_at(self.page, index, POINTER_LENGTH) if index else self.lower
        return Node(pointer_at(self.page, index), self.level - 1, lower, is_last, self, index)


@dataclass(slots=True)
class Plan:
    """The pages that an update rewrites.

    Attributes:
        root: None for an index without entries.
        touched_bytes: length of the pages that have changed keys, and of their ancestors.
        moved_bytes: length of the leaves that are moved.
    """

    root: Node | None
    touched_bytes: int = 0
    moved_bytes: int = 0


async def plan_update(footer: Footer, keys: Sequence[bytes], load: LoadPages) -> Plan:
    """Find and load the pages of the changed `keys`, which are in ascending order; none are touched if it is empty."""
    if not footer.height:
        return Plan(None)
    root = Node(footer.root, footer.height - 1, b"", is_last=True, high=len(keys))
    plan = Plan(root)
    frontier = [root] if keys else []
    steps = 0
    while frontier:
        level = frontier[0].level
        pages = await load([node.pointer for node in frontier], level, keeps=True)
        below: list[Node] = []
        for node, page in zip(frontier, pages, strict=True):
            node.page = page
            plan.touched_bytes += len(page)
            if not level:
                continue
            for index, low, high in divide(page, keys, node.low, node.high):
                child = node.child(index)
                child.low, child.high = low, high
                node.children[index] = child
                below.append(child)
                steps += 1
                if steps % _SLICE_STEPS == 0:
                    await asyncio.sleep(0)
        frontier = below
    return plan


async def add_moves(
    plan: Plan, footer: Footer, load: LoadPages, *, written_bytes: int, stored_end: int, settings: IndexSettings
) -> None:
    """Add the leaves with the lowest offsets to `plan` until stored bytes are in proportion to live bytes.

    `written_bytes`: approximate bytes written by the update without moves, at `stored_end`. Bounded by the settings.
    """
    root = plan.root
    limit = footer.live_bytes * settings.compact_percent // 100 + settings.compact_slack_bytes
    end = stored_end + written_bytes
    if root is None or end - footer.lowest <= limit:
        return
    budget = (
        max(plan.touched_bytes, written_bytes) * settings.move_percent // 100
        + settings.move_pages_min * settings.page_bytes
    )
    moved: list[Node] = []
    serial = 0
    heap: list[tuple[int, int, Node]] = [(root.pointer.lowest, serial, root)]
    steps = 0
    while heap:
        lowest, _, node = heapq.heappop(heap)
        steps += 1
        if steps % _SLICE_STEPS == 0:
            await asyncio.sleep(0)
        if end + plan.moved_bytes - lowest <= limit:
            break
        if node.level:
            if not node.page:
                (node.page,) = await load([node.pointer], node.level, keeps=True)
            for index in range(count_of(node.page)):
                child = node.children.get(index) or node.child(index)
                serial += 1
                heapq.heappush(heap, (child.pointer.lowest, serial, child))
            await asyncio.sleep(0)
        elif node.page:
            # Rewritten anyway, if any of its values change.
            node.is_moved = True
        else:
            if plan.moved_bytes >= budget:
                break
            node.is_moved = True
            plan.moved_bytes += node.pointer.length
            moved.append(node)
    pages = await load([node.pointer for node in moved], 0, keeps=False)
    for node, page in zip(moved, pages, strict=True):
        node.page = page
        child = node
        while child.parent is not None and child.index not in child.parent.children:
            child.parent.children[child.index] = child
            child = child.parent

"""Requests about many segments of one store: those in memory are processed in one pass, with one wait for the log.

A single request costs a task, a log operation and a wait; here a segment costs a few steps of a loop, and everything
accepted between two turns of the event loop is logged together. Segments that must be looked up, and all refusals, are
processed as single requests (`store.segment_info`, `store.truncate_segment`), which raise the appropriate error.

All containers get their part before any of them is awaited; each name has a separate result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from penstock.model.errors import PenstockError
from penstock.model.names import SYSTEM_SCOPE
from penstock.model.segments import SegmentInfo
from penstock.runtime.bulk import for_each
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment

T = TypeVar("T")
Name = TypeVar("Name")

#: Segments read or changed before other tasks run: a millisecond of work. Changes of one turn are logged together,
#: without waiting for a second sync.
SEGMENTS_PER_TURN = 256


class BulkHost(Protocol):
    """The required part of the store."""

    def find(self, segment: str) -> tuple[SegmentContainer, Segment]:
        """See `SegmentStore.find`."""

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""


class BulkRequests:
    """See the module. `singles_max`: concurrent single requests."""

    def __init__(self, store: BulkHost, singles_max: int) -> None:
        self._store = store
        self._singles_max = singles_max

    async def infos(self, segments: Sequence[str]) -> list[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        answers: dict[int, SegmentInfo | PenstockError] = {}
        found: dict[SegmentContainer, list[tuple[int, Segment]]] = {}
        for turn in _turns(len(segments)):
            await _yield_to_loop(turn)
            for at in turn:
                try:
                    container, segment = self._store.find(segments[at])
                except PenstockError:
                    continue
                found.setdefault(container, []).append((at, segment))
        for container, members in found.items():
            try:
                await container.pipeline.barrier()
                for turn in _turns(len(members)):
                    await _yield_to_loop(turn)
                    told = _infos(container, [members[index] for index in turn])
                    await container.ownership.confirmed()
                    answers.update(told)
            except PenstockError:
                continue  # Those without a result are requested individually, which gives the error.
        return await self._complete(segments, answers, self._store.segment_info)

    async def truncate(self, offsets: Sequence[tuple[str, int]]) -> list[PenstockError | None]:
        """See `Segments.truncate_segments`."""
        accepted: dict[SegmentContainer, list[int]] = {}
        indexed: list[tuple[SegmentContainer, Segment]] = []
        answers: dict[int, PenstockError | None] = {}
        with ExitStack() as in_use:
            for turn in _turns(len(offsets)):
                await _yield_to_loop(turn)
                wanted: dict[SegmentContainer, dict[Segment, int]] = {}
                for at in turn:
                    name, offset = offsets[at]
                    try:
                        container, segment = self._store.find(name)
                        batch = wanted.setdefault(container, {})
                        if segment in batch:
                            container.acceptor.truncate_all(list(batch.items()))
                            batch.clear()
                        if not _is_callers(segment) or not container.acceptor.can_truncate(segment, offset):
                            continue
                    except PenstockError:
                        continue
                    batch[segment] = offset
                    accepted.setdefault(container, []).append(at)
                    if container.offset_indexes.may_have_one(segment):
                        in_use.enter_context(segment.in_use())
                        indexed.append((container, segment))
                for container, batch in wanted.items():
                    container.acceptor.truncate_all(list(batch.items()))
            for container, members in accepted.items():
                error: PenstockError | None = None
                try:
                    await container.pipeline.barrier()
                except PenstockError as failure:
                    error = failure
                answers.update(dict.fromkeys(members, error))
            await for_each(indexed, lambda one: one[0].offset_indexes.truncated(one[1]), self._singles_max)
        return await self._complete(offsets, answers, lambda one: self._store.truncate_segment(*one))

    async def _complete(
        self, names: Sequence[Name], answers: dict[int, T | PenstockError], single: Callable[[Name], Awaitable[T]]
    ) -> list[T | PenstockError]:
        """Return the results in order; missing ones are requested individually."""
        left = [at for at in range(len(names)) if at not in answers]
        answers.update(zip(left, await for_each([names[at] for at in left], single, self._singles_max), strict=True))
        return [answers[at] for at in range(len(names))]


def _turns(count: int) -> list[range]:
    """Return the ranges of `count` items that are processed in each turn of the event loop."""
    return [range(start, min(count, start + SEGMENTS_PER_TURN)) for start in range(0, count, SEGMENTS_PER_TURN)]


async def _yield_to_loop(turn: range) -> None:
    """Yield to other tasks before every turn but the first."""
    if turn.start:
        await asyncio.sleep(0)


def _infos(container: SegmentContainer, members: Sequence[tuple[int, Segment]]) -> dict[int, SegmentInfo]:
    """Return the infos of segments found before; one may have been deleted, or unloaded."""
    told: dict[int, SegmentInfo] = {}
    for at, segment in members:
        try:
            told[at] = container.durable_info(segment)
        except PenstockError:
            continue
    return told


def _is_callers(segment: Segment) -> bool:
    """Return whether a caller may change the bytes of a segment; other errors are left to the single request."""
    return not (
        segment.is_system
        or segment.is_table
        or segment.is_offset_index
        or segment.name.startswith(f"{SYSTEM_SCOPE}/containers/")
    )

"""Lookups and scans of one state of a tree. Stateless; pages come from a loader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.segmentstore.container.btree.footer import Footer
from penstock.segmentstore.container.btree.page_cache import PageCache
from penstock.segmentstore.container.btree.pages import (
    POINTER_LENGTH,
    Pointer,
    child_index,
    count_of,
    divide,
    entries_between,
    find,
    key_at,
    pointer_at,
    value_at,
)
from penstock.segmentstore.container.btree.plan import LoadPages

#: Lookups, a few microseconds each, before yielding to the event loop.
_SLICE_KEYS: Final = 256
#: Entries taken from leaves before yielding to the event loop.
_SLICE_ENTRIES: Final = 4096


def find_cached(footer: Footer, key: bytes, cache: PageCache) -> tuple[bool, bytes | None]:
    """Return (True, value or None if absent) from pages in memory; (False, None) if one must be read."""
    pointer = footer.root
    for level in range(footer.height - 1, -1, -1):
        page = cache.get(pointer.offset, pointer.length)
        if page is None:
            return False, None
        if level:
            pointer = pointer_at(page, child_index(page, key))
        else:
            index, is_found = find(page, key, footer.value_length)
            return True, value_at(page, index, footer.value_length) if is_found else None
    return True, None


async def find_values(footer: Footer, keys: Sequence[bytes], load: LoadPages) -> dict[bytes, bytes]:
    """Return the values of those of `keys`, in ascending order, that exist. Each page is loaded once."""
    found: dict[bytes, bytes] = {}
    frontier: list[tuple[Pointer, int, int]] = [(footer.root, 0, len(keys))] if footer.height and keys else []
    value_length = footer.value_length
    steps = 0
    for level in range(footer.height - 1, -1, -1):
        pages = await load([pointer for pointer, _, _ in frontier], level, keeps=True)
        below: list[tuple[Pointer, int, int]] = []
        for (_, low, high), page in zip(frontier, pages, strict=True):
            if level:
                below += [(pointer_at(page, index), start, end) for index, start, end in divide(page, keys, low, high)]
                continue
            at = 0
            for key in keys[low:high]:
                at, is_found = find(page, key, value_length, at)
                if is_found:
                    found[key] = value_at(page, at, value_length)
            steps += high - low
            if steps >= _SLICE_KEYS:
                steps = 0
                await asyncio.sleep(0)
        frontier = below
    return found


async def scan(
    footer: Footer, start: bytes, last: bytes | None, limit: int, load: LoadPages, *, is_after: bool, reads_max: int
) -> list[tuple[bytes, bytes]]:
    """Return up to `limit` entries from `start` (with `is_after`: after it) to `last`, both inclusive, in order.

    Leaves are loaded one, then two, four, ... up to `reads_max` at a time.
    """
    entries: list[tuple[bytes, bytes]] = []
    if not footer.height or limit <= 0:
        return entries
    (page,) = await load([footer.root], footer.height - 1, keeps=True)
    if footer.height == 1:
        _take(entries, page, start, last, limit, footer.value_length, is_after=is_after)
        return entries
    # Inner pages from the root down, each with the index of its next child.
    path = [(page, child_index(page, start))]
    batch = 1
    is_first = True
    paused_at = 0
    while path:
        page, index = path.pop()
        level = footer.height - 1 - len(path)
        if index == count_of(page):
            continue
        if index and last is not None and key_at(page, index, POINTER_LENGTH) > last:
            break
        if level > 1:
            path.append((page, index + 1))
            (child,) = await load([pointer_at(page, index)], level - 1, keeps=True)
            path.append((child, child_index(child, start) if is_first else 0))
            continue
        end = min(index + batch, count_of(page))
        while last is not None and end > index + 1 and key_at(page, end - 1, POINTER_LENGTH) > last:
            end -= 1
        path.append((page, end))
        for leaf in await load([pointer_at(page, child) for child in range(index, end)], 0, keeps=True):
            lower, is_first = (start, False) if is_first else (b"", False)
            if not _take(entries, leaf, lower, last, limit, footer.value_length, is_after=is_after):
                return entries
        batch = min(2 * batch, reads_max)
        if len(entries) - paused_at >= _SLICE_ENTRIES:
            paused_at = len(entries)
            await asyncio.sleep(0)
    return entries


def _take(
    entries: list[tuple[bytes, bytes]],
    leaf: bytes,
    start: bytes,
    last: bytes | None,
    limit: int,
    value_length: int,
    *,
    is_after: bool,
) -> bool:
    """Append the requested entries of a leaf; return whether there may be more in the next one."""
    first, end = 0, count_of(leaf)
    if start:
        first, is_found = find(leaf, start, value_length)
        first += is_found and is_after
    is_more = True
    if last is not None:
        end, is_found = find(leaf, last, value_length)
        end += is_found
        is_more = end == count_of(leaf)
    wanted = limit - len(entries)
    if end - first >= wanted:
        end, is_more = first + wanted, False
    if end > first:
        entries += entries_between(leaf, first, end, value_length)
    return is_more

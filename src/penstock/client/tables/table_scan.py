"""Scans of a key-value table: pages of entries, or of keys with their versions, in the order of the keys' bytes.

Each partition is sorted by itself; here they are merged. Keys put or removed during a scan are seen or not; keys that
exist throughout are seen once.

From its second page on, a scan requests the next page of a partition before it returns the current one, so that the
server works while the application does. At most one page per partition is read ahead, and `table_scan_ahead_bytes_max`
over all partitions together. A read-ahead that fails is repeated when its page is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Generic, TypeVar

from penstock.client.tables.table_segments import TableSegments
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.segments import TableEntry, next_fixed_key

Item = TypeVar("Item")

_log = logging.getLogger(__name__)

_LOWEST, _HIGHEST = b"\x00", b"\xff"


@dataclass(frozen=True, slots=True)
class KeySpan:
    """The keys from `first` to `last`, both included. `segment`: their single segment, None if any may hold them."""

    first: bytes
    last: bytes
    segment: str | None


def span_of(
    table: TableSegments,
    *,
    primary: bytes | None = None,
    prefix: bytes | None = None,
    start: bytes | None = None,
    end: bytes | None = None,
) -> KeySpan | None:
    """Return the span of a scan, None if it is empty.

    Args:
        primary: the whole first part of the keys.
        prefix: the beginning of the keys, after `primary` if that is given.
        start, end: the first key, and the first key after the span.
    """
    config = table.config
    begin = (primary or b"") + (prefix or b"")
    if len(begin) > config.key_length:
        raise InvalidArgumentError(
            f"table {table.name}: no key begins with {begin!r}: keys have {config.key_length} bytes"
        )
    first = begin.ljust(config.key_length, _LOWEST)
    last = begin.ljust(config.key_length, _HIGHEST)
    if start is not None:
        first = max(first, start)
    if end is not None:
        before = int.from_bytes(end, "big") - 1
        if before < 0:
            return None
        last = min(last, before.to_bytes(config.key_length, "big"))
    if first > last:
        return None
    length = config.primary_key_length
    is_one = len(table.names) == 1 or first[:length] == last[:length]
    return KeySpan(first, last, table.segment_of(first) if is_one else None)


@dataclass(slots=True)
class _Part(Generic[Item]):
    """The rest of one partition.

    Attributes:
        next_key: where the next page starts; None at the end.
        items: read, and not returned yet.
        page_count: pages read so far.
        page_bytes: size of the last page.
        coming: the next page, being read ahead.
    """

    segment: str
    next_key: bytes | None
    items: list[Item] = field(default_factory=list)
    page_count: int = 0
    page_bytes: int = 0
    coming: asyncio.Task[Sequence[Item]] | None = None


class _Merge(Generic[Item]):
    """Reads partitions a page at a time, and returns their items in the order of all keys.

    Args:
        read: reads a page of a segment, from a key on.
        key_of: the key of an item.
        bytes_of: the size of a page of items in bytes.
        ahead_bytes_max: total size of the pages that are read ahead, estimated from the page before each.
    """

    def __init__(
        self,
        read: Callable[[str, bytes], Awaitable[Sequence[Item]]],
        key_of: Callable[[Item], bytes],
        bytes_of: Callable[[Sequence[Item]], int],
        parts: Sequence[_Part[Item]],
        ahead_bytes_max: int,
    ) -> None:
        self._read = read
        self._key_of = key_of
        self._bytes_of = bytes_of
        self._parts = list(parts)
        self._ahead_bytes_max = ahead_bytes_max
        self._has_begun_ahead = False

    async def pages(self) -> AsyncIterator[Sequence[Item]]:
        parts = list(self._parts)
        try:
            while self._parts:
                await self._refill()
                if self._has_begun_ahead:
                    # The application may block the loop while it processes the page. Yield once, so that the tasks
                    # created just now send their requests first.
                    self._has_begun_ahead = False
                    await asyncio.sleep(0)
                if len(self._parts) == 1:
                    page, self._parts[0].items = self._parts[0].items, []
                else:
                    page = self._merged()
                if page:
                    yield page
        finally:
            # Cancel the read-ahead of an iteration that stops early.
            for part in parts:
                if part.coming is not None:
                    part.coming.cancel()

    async def _refill(self) -> None:
        empty = [part for part in self._parts if not part.items and part.next_key is not None]
        if len(empty) == 1:
            await self._fill(empty[0])
        elif empty:
            await asyncio.gather(*map(self._fill, empty))
        self._parts = [part for part in self._parts if part.items or part.next_key is not None]

    async def _fill(self, part: _Part[Item]) -> None:
        assert part.next_key is not None, "the scan of keys has not reached its end"
        part.items = list(await self._next_page(part, part.next_key))
        part.next_key = next_fixed_key(self._key_of(part.items[-1])) if part.items else None
        part.page_count += 1
        part.page_bytes = self._bytes_of(part.items)
        if part.page_count > 1 and part.next_key is not None and self._has_room_ahead(part):
            part.coming = asyncio.get_running_loop().create_task(
                self._page(part.segment, part.next_key), name=f"scan {part.segment}"
            )
            # It may fail after its last awaiter is gone; retrieve the exception.
            part.coming.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            self._has_begun_ahead = True

    async def _next_page(self, part: _Part[Item], first: bytes) -> Sequence[Item]:
        """Return the page that was read ahead, or read it now."""
        coming, part.coming = part.coming, None
        if coming is None:
            return await self._page(part.segment, first)
        was_waited_for = not coming.done()
        try:
            return await coming
        except PenstockError as error:
            if was_waited_for:
                raise
            _log.debug("%s: the page from key %r on failed in read-ahead, retrying: %s", part.segment, first, error)
        return await self._page(part.segment, first)

    def _has_room_ahead(self, part: _Part[Item]) -> bool:
        ahead_bytes = sum(other.page_bytes for other in self._parts if other.coming is not None)
        return ahead_bytes + part.page_bytes <= self._ahead_bytes_max

    async def _page(self, segment: str, first: bytes) -> Sequence[Item]:
        return await self._read(segment, first)

    def _merged(self) -> list[Item]:
        """Take the items whose order is final: up to the least of the last keys. After it, that part may have more."""
        if not self._parts:
            return []
        key_of = self._key_of
        border = min(key_of(part.items[-1]) for part in self._parts)
        page: list[Item] = []
        for part in self._parts:
            taken = _count_up_to(part.items, border, key_of)
            page += part.items[:taken]
            del part.items[:taken]
        # A concatenation of sorted runs, which the sort merges fast.
        page.sort(key=key_of)
        return page


def _count_up_to(items: Sequence[Item], border: bytes, key_of: Callable[[Item], bytes]) -> int:
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if key_of(items[middle]) <= border:
            low = middle + 1
        else:
            high = middle
    return low


def _bytes_of_entries(entries: Sequence[TableEntry]) -> int:
    return sum([len(entry.key) + len(entry.value) for entry in entries])


def _bytes_of_keys(keys: Sequence[tuple[bytes, int]]) -> int:
    return sum([len(key) for key, _ in keys])


def entry_pages(
    cluster: Cluster, table: TableSegments, span: KeySpan, page_entry_count: int
) -> AsyncIterator[Sequence[TableEntry]]:
    """Read the entries of a span, page by page."""

    async def read(segment: str, first: bytes) -> Sequence[TableEntry]:
        if first > span.last:
            return ()
        with table.of_table():
            page = await cluster.segments.table_entries(segment, limit=page_entry_count, first=first, last=span.last)
        return page.entries

    parts: list[_Part[TableEntry]] = [_Part(segment, span.first) for segment in _segments(table, span)]
    ahead_bytes_max = cluster.settings.table_scan_ahead_bytes_max
    return _Merge(read, attrgetter("key"), _bytes_of_entries, parts, ahead_bytes_max).pages()


def key_pages(
    cluster: Cluster, table: TableSegments, span: KeySpan, page_entry_count: int, segments: Sequence[str] | None = None
) -> AsyncIterator[Sequence[tuple[bytes, int]]]:
    """Read the keys of a span with their versions, page by page; only from `segments` if they are given."""

    async def read(segment: str, first: bytes) -> Sequence[tuple[bytes, int]]:
        if first > span.last:
            return ()
        with table.of_table():
            page = await cluster.segments.table_keys(segment, limit=page_entry_count, first=first, last=span.last)
        return page.keys

    names = _segments(table, span) if segments is None else segments
    parts: list[_Part[tuple[bytes, int]]] = [_Part(segment, span.first) for segment in names]
    ahead_bytes_max = cluster.settings.table_scan_ahead_bytes_max
    return _Merge(read, itemgetter(0), _bytes_of_keys, parts, ahead_bytes_max).pages()


def _segments(table: TableSegments, span: KeySpan) -> Sequence[str]:
    return table.names if span.segment is None else [span.segment]

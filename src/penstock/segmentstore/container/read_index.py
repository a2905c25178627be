"""`ReadIndex`: which bytes of one segment are in memory.

Entries are ordered by offset and never overlap. Small appends are gathered into blocks; a block that still grows is
copied out on reads, everything else is handed out as views. A merged source stays in its own index, behind a
redirect, until long-term storage has merged it too.

Source: segment store specification, section 4.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.segments import Buffer
from penstock.segmentstore.container.cache import Cache

if TYPE_CHECKING:
    from penstock.segmentstore.container.segment import Segment


@dataclass(slots=True)
class _Block:
    """Bytes from `start`. `data` is a bytearray exactly while the block may still grow (`is_open`)."""

    start: int
    data: Buffer
    is_open: bool

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class _Redirect:
    """Bytes `[start, end)` are those of the whole of `source`."""

    start: int
    end: int
    source: Segment


@dataclass(frozen=True, slots=True)
class Found:
    """Bytes in memory, in order."""

    data: list[Buffer]
    length: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing in memory before `end`: ask long-term storage."""

    end: int


@dataclass(frozen=True, slots=True)
class Redirected:
    """Ask `source` at `offset`, for at most `length` bytes."""

    source: Segment
    offset: int
    length: int


class ReadIndex:
    """Cached bytes of one segment."""

    __slots__ = ("_cache", "_entries", "_segment", "_starts", "cached_bytes")

    def __init__(self, cache: Cache, segment: Segment) -> None:
        self._cache = cache
        self._segment = segment
        self._starts: list[int] = []
        self._entries: list[_Block | _Redirect] = []
        self.cached_bytes = 0

    def append(self, offset: int, data: Buffer) -> None:
        """Take in appended bytes. `offset` is the end of what was appended before."""
        length = len(data)
        if not length:
            return
        settings = self._cache.settings
        last = self._entries[-1] if self._entries else None
        if (
            type(last) is _Block
            and last.is_open
            and last.end == offset
            and len(last.data) + length <= settings.block_length
        ):
            assert isinstance(last.data, bytearray)
            last.data += data
        elif length < settings.small_append_length:
            if type(last) is _Block:
                last.is_open = False
            self._push(_Block(offset, bytearray(data), True))
        else:
            if type(last) is _Block:
                last.is_open = False
            self._push(_Block(offset, data, False))
        self.cached_bytes += length
        self._cache.grow(self, length)

    def _push(self, entry: _Block | _Redirect) -> None:
        self._starts.append(entry.start)
        self._entries.append(entry)

    def add_redirect(self, start: int, end: int, source: Segment) -> None:
        """Lead reads of `[start, end)` to a merged source. Nothing for an empty source."""
        if end > start:
            last = self._entries[-1] if self._entries else None
            if type(last) is _Block:
                last.is_open = False
            self._push(_Redirect(start, end, source))

    def complete_merge(self, source: Segment) -> None:
        """Take over what is left in memory of a source that storage has merged, and drop the redirect."""
        at = next((i for i, e in enumerate(self._entries) if type(e) is _Redirect and e.source is source), -1)
        if at < 0:
            return
        entry = self._entries[at]
        moved: list[_Block | _Redirect] = []
        moved_bytes = 0
        for other in source.index._entries:
            assert type(other) is _Block
            moved.append(_Block(entry.start + other.start, other.data, False))
            moved_bytes += len(other.data)
        source.index._entries = []
        source.index._starts = []
        source.index.cached_bytes = 0
        self._cache.remove(source.index)
        self._entries[at : at + 1] = moved
        self._starts[at : at + 1] = [block.start for block in moved]
        self.cached_bytes += moved_bytes
        if moved_bytes:
            self._cache.shrink(moved_bytes)
            self._cache.grow(self, moved_bytes)

    def insert_stored(self, offset: int, data: bytes) -> None:
        """Take in bytes read from long-term storage, where there are gaps; nothing when the cache is full."""
        if self._cache.is_full:
            return
        view = memoryview(data)
        end = offset + len(data)
        taken = 0
        while offset < end:
            at = bisect_right(self._starts, offset)
            if at:
                covered = self._entries[at - 1].end
                if covered > offset:
                    offset = covered
                    continue
            stop = min(end, self._starts[at]) if at < len(self._starts) else end
            piece: Buffer = view[len(data) - (end - offset) : len(data) - (end - stop)]
            if len(piece) != len(data):
                piece = bytes(piece)  # A view would keep the whole of `data` alive and uncounted.
            else:
                piece = data
            self._starts.insert(at, offset)
            self._entries.insert(at, _Block(offset, piece, False))
            taken += stop - offset
            offset = stop
        if taken:
            self.cached_bytes += taken
            self._cache.grow(self, taken)

    def lookup(self, offset: int, length: int) -> Found | Missing | Redirected:
        """Find up to `length` (> 0) bytes from `offset`; contiguous cached entries are joined."""
        entries = self._entries
        at = bisect_right(self._starts, offset) - 1
        entry = entries[at] if at >= 0 else None
        if entry is None or entry.end <= offset:
            following = self._starts[at + 1] if at + 1 < len(entries) else offset + length
            return Missing(min(following, offset + length))
        if type(entry) is _Redirect:
            return Redirected(entry.source, offset - entry.start, min(length, entry.end - offset))
        self._cache.touch(self)
        parts: list[Buffer] = []
        found = 0
        position = offset
        while type(entry) is _Block and entry.start <= position < entry.end:
            inside = position - entry.start
            count = min(len(entry.data) - inside, length - found)
            if entry.is_open:
                # A view would forbid the block to grow.
                parts.append(bytes(memoryview(entry.data)[inside : inside + count]))
            elif count == len(entry.data):
                parts.append(entry.data)
            else:
                parts.append(memoryview(entry.data)[inside : inside + count])
            found += count
            position += count
            at += 1
            if found == length or at == len(entries):
                break
            entry = entries[at]
        return Found(parts, found)

    def freeze_tail(self) -> None:
        """Let the last block grow no more, so that views of it may be held."""
        if self._entries:
            last = self._entries[-1]
            if type(last) is _Block:
                last.is_open = False

    def evict(self, bytes_wanted: int) -> int:
        """See `Evictable.evict`. Bytes go only when long-term storage has all of their block."""
        limit = self._segment.storage_length
        freed = 0
        keep_from = 0
        kept: list[_Block | _Redirect] = []
        for at, entry in enumerate(self._entries):
            if freed >= bytes_wanted or entry.start >= limit:
                keep_from = at
                break
            if type(entry) is _Block and entry.end <= limit and not entry.is_open:
                freed += len(entry.data)
            else:
                kept.append(entry)
        else:
            keep_from = len(self._entries)
        if freed:
            self._entries = kept + self._entries[keep_from:]
            self._starts = [entry.start for entry in self._entries]
            self.cached_bytes -= freed
        return freed

    def truncate(self, start_offset: int) -> None:
        """Drop blocks that lie wholly before `start_offset` and are not waited for by the storage writer."""
        limit = min(start_offset, self._segment.storage_length)
        count = 0
        freed = 0
        for entry in self._entries:
            if type(entry) is not _Block or entry.end > limit or entry.is_open:
                break
            freed += len(entry.data)
            count += 1
        if count:
            del self._entries[:count], self._starts[:count]
            self.cached_bytes -= freed
            self._cache.shrink(freed)

    def clear(self) -> None:
        """Drop everything: the segment is gone, or the container stops."""
        freed, self.cached_bytes = self.cached_bytes, 0
        self._entries = []
        self._starts = []
        self._cache.remove(self)
        if freed:
            self._cache.shrink(freed)

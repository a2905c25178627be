"""`ReadIndex`: the bytes of one segment that are in memory.

Entries are ordered by offset and never overlap. Small appends are gathered into blocks. A block that is still growing
is copied on reads, and so are small parts of large blocks, which a view would keep alive; everything else is returned
as views. A merged source stays in its own index, behind a redirect, until long-term storage has merged it too.

Bytes that long-term storage does not have carry the checksum that they arrived with, per block. It is verified when
they are written to another durable place, and when they are returned to a reader (docs/checksums.md).

Source: segment-store 4.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from penstock.model.checksum import crc32c_at_once
from penstock.model.errors import InconsistentStateError
from penstock.model.segments import Buffer
from penstock.segmentstore.container.reads.cache import Cache, CacheEntry

#: A view may keep this multiple of its own length of memory alive; larger multiples are copied.
VIEW_SHARE_MAX: int = 4
#: Blocks up to this length are verified whenever a part of them is used: about 3 us.
_SHORT_BLOCK_BYTES = 64 * 1024


class IndexedSegment(Protocol):
    """The interface of its segment that an index needs."""

    name: str

    @property
    def storage_length(self) -> int:
        """Number of bytes that long-term storage has."""
        ...

    @property
    def index(self) -> ReadIndex[Self]:
        """The segment's own index."""
        ...


S = TypeVar("S", bound=IndexedSegment)


class ReadEvents(Protocol[S]):
    """What read indexes report: see `ContainerEvents`. Handlers must not block or change the index."""

    on_evicted: Callable[[S, int, Buffer], None] | None
    on_damage: Callable[[InconsistentStateError], None] | None


class _Block(CacheEntry, Generic[S]):
    """Bytes from `start`. `data` is a bytearray exactly while the block may still grow (`is_open`).

    `checksum` covers the whole block, computed from the arriving bytes; None for bytes that storage has verified.
    """

    __slots__ = ("checksum", "data", "index", "is_open", "start")

    def __init__(self, index: ReadIndex[S], start: int, data: Buffer, is_open: bool, checksum: int | None) -> None:
        self.index = index
        self.start = start
        self.data = data
        self.is_open = is_open
        self.checksum = checksum

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def byte_count(self) -> int:
        return len(self.data)

    def damage(self) -> InconsistentStateError | None:
        """Return, and report, an error if the bytes differ from those that arrived; None if equal or unknown."""
        if self.checksum is None or (checksum := crc32c_at_once(self.data, 0)) == self.checksum:
            return None
        error = InconsistentStateError(
            self.index._segment.name,
            self.start,
            f"{len(self.data)} bytes in memory have checksum {checksum:08x}, they arrived with {self.checksum:08x}: "
            "the memory of this process is not sound",
        )
        events = self.index._events
        if events is not None and events.on_damage is not None:
            events.on_damage(error)
        return error

    def may_go(self) -> bool:
        # The last byte is below the storage length. Allowing one byte more would lose unwritten data; one less, and a
        # cache full of segment ends would stall the store.
        return self.start + len(self.data) <= self.index._segment.storage_length

    def leave(self) -> None:
        self.index._evicted(self)


@dataclass(slots=True)
class _Redirect(Generic[S]):
    """Bytes `[start, end)` are the whole of `source`."""

    start: int
    end: int
    source: S


@dataclass(frozen=True, slots=True)
class Found:
    """Bytes in memory, in order."""

    data: list[Buffer]
    length: int


@dataclass(frozen=True, slots=True)
class UnflushedBytes:
    """Bytes in memory that long-term storage does not have, in order.

    `checksummed_blocks`: the blocks that they are (parts of), each with the checksum that it arrived with.
    """

    data: list[Buffer]
    length: int
    checksummed_blocks: list[tuple[Buffer, int]]


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing in memory before `end`: read from long-term storage."""

    end: int


@dataclass(frozen=True, slots=True)
class Redirected(Generic[S]):
    """Read from `source` at `offset`, at most `length` bytes."""

    source: S
    offset: int
    length: int


class ReadIndex(Generic[S]):
    """Cached bytes of one segment."""

    __slots__ = ("_cache", "_entries", "_events", "_is_closed", "_segment", "_starts", "cached_bytes")

    def __init__(self, cache: Cache, segment: S, events: ReadEvents[S] | None = None) -> None:
        self._cache = cache
        self._segment = segment
        self._events = events
        self._starts: list[int] = []
        self._entries: list[_Block[S] | _Redirect[S]] = []
        self._is_closed = False
        self.cached_bytes: int = 0

    def append(self, offset: int, data: Buffer) -> None:
        """Add appended bytes. `offset` is the end of the previous append."""
        length = len(data)
        if not length:
            return
        cache = self._cache
        settings = cache.settings
        last = self._entries[-1] if self._entries else None
        if (
            type(last) is _Block
            and last.is_open
            and last.start + len(last.data) == offset
            and len(last.data) + length <= settings.block_length
        ):
            last.data += data  # type: ignore[operator]  # A bytearray while it is open.
            # Computed from the arriving bytes, not from their copy.
            last.checksum = crc32c_at_once(data, last.checksum)  # type: ignore[arg-type]  # It has one while open.
            self.cached_bytes += length
            cache.count(length)
            return
        if type(last) is _Block and last.is_open:
            last.is_open = False
            last.generation = cache.generation
        checksum = crc32c_at_once(data, 0)
        block = (
            _Block(self, offset, bytearray(data), True, checksum)
            if length < settings.small_append_length
            else _Block(self, offset, data, False, checksum)
        )
        self._starts.append(offset)
        self._entries.append(block)
        self.cached_bytes += length
        cache.file(block, length)

    def add_redirect(self, start: int, end: int, source: S) -> None:
        """Redirect reads of `[start, end)` to a merged source. Does nothing for an empty source."""
        if end > start:
            self.freeze_tail()
            self._starts.append(start)
            self._entries.append(_Redirect(start, end, source))

    def restore_redirect(self, start: int, end: int, source: S) -> None:
        """Redirect reads of `[start, end)`, of which nothing is in memory, to a merged source. Used in recovery."""
        if end > start:
            self.freeze_tail()
            at = bisect_left(self._starts, start)
            self._starts.insert(at, start)
            self._entries.insert(at, _Redirect(start, end, source))

    def complete_merge(self, source: S) -> None:
        """Take over the cached bytes of a source that storage has merged, and drop the redirect.

        The age of the cached bytes does not change.
        """
        at = next((i for i, e in enumerate(self._entries) if type(e) is _Redirect and e.source is source), -1)
        if at < 0:
            return
        shift = self._entries[at].start
        moved: list[_Block[S] | _Redirect[S]] = []
        for block in source.index._entries:
            assert type(block) is _Block
            block.start += shift
            block.index = self
            block.is_open = False
            moved.append(block)
        self.cached_bytes += source.index.cached_bytes
        source.index._entries = []
        source.index._starts = []
        source.index.cached_bytes = 0
        self._entries[at : at + 1] = moved
        self._starts[at : at + 1] = [block.start for block in moved]
        self.stored(shift)

    @property
    def takes_stored(self) -> bool:
        """Whether bytes of long-term storage are admitted: not in essential-only mode, nor after `clear`."""
        return not (self._is_closed or self._cache.is_essential_only)

    def insert_stored(self, offset: int, data: bytes) -> bool:
        """Add bytes read from long-term storage where there are gaps; return the value of `takes_stored`."""
        if not self.takes_stored:
            return False
        self._fill(offset, data, is_stored=True)
        return True

    def restore(self, offset: int, data: bytes) -> None:
        """Add bytes not in storage where there are gaps. Used in recovery: the log has them after later bytes."""
        self.freeze_tail()
        self._fill(offset, data, is_stored=False)

    def _fill(self, offset: int, data: bytes, *, is_stored: bool) -> None:
        cache = self._cache
        view = memoryview(data)
        end = offset + len(data)
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
            block = _Block(self, offset, piece, False, None if is_stored else crc32c_at_once(piece, 0))
            self._starts.insert(at, offset)
            self._entries.insert(at, block)
            self.cached_bytes += stop - offset
            try:
                cache.file(block, stop - offset)  # May evict other entries.
            except BaseException:
                at = self._entries.index(block)
                del self._starts[at], self._entries[at]
                self.cached_bytes -= stop - offset
                raise
            offset = stop

    def gap_end(self, offset: int, limit: int) -> int:
        """Return where the next entry after `offset` begins, at most `limit`."""
        at = bisect_right(self._starts, offset)
        return min(limit, self._starts[at]) if at < len(self._starts) else limit

    def lookup(self, offset: int, length: int, *, is_use: bool = True) -> Found | Missing | Redirected[S]:
        """Find up to `length` (> 0) bytes from `offset`; contiguous cached entries are joined.

        With `is_use` the entries found count as used now; the storage writer's lookups do not set it.

        Raises `InconsistentStateError` if a used block differs from what arrived. A short part of a long block is not
        verified, because that would cost more than its read.
        """
        entries = self._entries
        at = bisect_right(self._starts, offset) - 1
        entry = entries[at] if at >= 0 else None
        if entry is None or entry.end <= offset:
            following = self._starts[at + 1] if at + 1 < len(entries) else offset + length
            return Missing(min(following, offset + length))
        if type(entry) is _Redirect:
            return Redirected(entry.source, offset - entry.start, min(length, entry.end - offset))
        cache = self._cache
        generation = cache.generation
        if is_use:
            cache.is_touched = True
        parts: list[Buffer] = []
        found = 0
        position = offset
        while type(entry) is _Block and entry.start <= position:
            data = entry.data
            inside = position - entry.start
            count = min(len(data) - inside, length - found)
            if is_use:
                entry.generation = generation
                is_compared = len(data) <= _SHORT_BLOCK_BYTES or count * VIEW_SHARE_MAX >= len(data)
                if is_compared and (damage := entry.damage()) is not None:
                    raise damage
            if count == len(data) and not entry.is_open:
                parts.append(data)
            elif entry.is_open or count * VIEW_SHARE_MAX < len(data):
                # A view would prevent an open block from growing, and keep a large block alive and uncounted.
                parts.append(bytes(memoryview(data)[inside : inside + count]))
            else:
                parts.append(memoryview(data)[inside : inside + count])
            found += count
            position += count
            at += 1
            if found == length or at == len(entries):
                break
            entry = entries[at]
        return Found(parts, found)

    def pieces(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return a copy of the bytes of each range (offset, length) that is in one block; None for any other.

        Equivalent to one `lookup` per range, but each block is verified only once. The blocks found count as used now.
        Raises `InconsistentStateError` as `lookup` does.
        """
        starts, entries = self._starts, self._entries
        cache = self._cache
        generation = cache.generation
        cache.is_touched = True
        compared: set[int] = set()
        found: list[bytes | None] = []
        for offset, length in ranges:
            at = bisect_right(starts, offset) - 1
            entry = entries[at] if at >= 0 else None
            if type(entry) is not _Block or (inside := offset - entry.start) + length > len(entry.data):
                found.append(None)
                continue
            data = entry.data
            if at not in compared:
                entry.generation = generation
                is_compared = len(data) <= _SHORT_BLOCK_BYTES or length * VIEW_SHARE_MAX >= len(data)
                if is_compared:
                    if (damage := entry.damage()) is not None:
                        raise damage
                    compared.add(at)
            found.append(bytes(data[inside : inside + length]))
        return found

    def arrived(self, offset: int, length: int) -> UnflushedBytes | None:
        """Find up to `length` (> 0) unstored bytes from `offset`, as views; None if they are not in memory.

        Does not count as a use. Stops the last block from growing.
        """
        self.freeze_tail()
        entries = self._entries
        at = bisect_right(self._starts, offset) - 1
        data: list[Buffer] = []
        checksummed_blocks: list[tuple[Buffer, int]] = []
        position, end = offset, offset + length
        while 0 <= at < len(entries) and position < end:
            block = entries[at]
            if type(block) is not _Block or block.checksum is None:
                break
            whole, block_start = block.data, block.start
            block_end = block_start + len(whole)
            if not block_start <= position < block_end:
                break
            stop = min(block_end, end)
            is_all = position == block_start and stop == block_end
            data.append(whole if is_all else memoryview(whole)[position - block_start : stop - block_start])
            checksummed_blocks.append((whole, block.checksum))
            position = stop
            at += 1
        return UnflushedBytes(data, position - offset, checksummed_blocks) if data else None

    def freeze_tail(self) -> None:
        """Stop the last block from growing, so that views of it may be held."""
        if self._entries:
            last = self._entries[-1]
            if type(last) is _Block and last.is_open:
                last.is_open = False
                last.generation = self._cache.generation

    def stored(self, start: int) -> None:
        """Note that storage now has the bytes from `start` to the segment's storage length: they may be evicted."""
        length = self._segment.storage_length
        entries = self._entries
        blocks: list[_Block[S]] = []
        for at in range(max(bisect_right(self._starts, start) - 1, 0), len(entries)):
            entry = entries[at]
            if type(entry) is _Block:
                if entry.start + len(entry.data) > length:
                    break  # Entries do not overlap: storage has none of the following ones.
                blocks.append(entry)
            elif entry.start >= length:
                break
        self._cache.stored(blocks)

    def _evicted(self, block: _Block[S]) -> None:
        """Remove a block that the cache evicts."""
        at = bisect_left(self._starts, block.start)
        assert self._entries[at] is block
        del self._entries[at], self._starts[at]
        self.cached_bytes -= len(block.data)
        if self._events is not None and (keep := self._events.on_evicted) is not None and block.damage() is None:
            keep(self._segment, block.start, block.data)

    def evict(self, bytes_wanted: int) -> int:
        """Free about `bytes_wanted` stored bytes, lowest offsets first, regardless of age; return the number freed."""
        freed = 0
        for entry in list(self._entries):
            if freed >= bytes_wanted:
                break
            if type(entry) is _Block and entry.may_go():
                freed += len(entry.data)
                entry.leave()
                self._cache.unfile(entry)
        return freed

    def truncate(self, start_offset: int) -> None:
        """Drop blocks that lie wholly before `start_offset` and that the storage writer does not need."""
        limit = min(start_offset, self._segment.storage_length)
        if not self._starts or self._starts[0] >= limit:
            return
        count = 0
        for entry in self._entries:
            if type(entry) is not _Block or entry.end > limit:
                break
            self.cached_bytes -= len(entry.data)
            count += 1
        dropped = self._entries[:count]
        del self._entries[:count], self._starts[:count]
        self._unfile(dropped)

    def clear(self) -> None:
        """Drop everything and admit nothing more: the segment is gone, or the container is stopping."""
        dropped = self._entries.copy()
        # Clear in place: a stopping container has very many of these lists.
        self._entries.clear()
        self._starts.clear()
        self._is_closed = True
        self.cached_bytes = 0
        self._unfile(dropped)

    def _unfile(self, entries: list[_Block[S] | _Redirect[S]]) -> None:
        for entry in entries:
            if type(entry) is _Block:
                self._cache.unfile(entry)

"""`RetentionTables`: the recorded stream cuts of one stream: append, search, remove from the beginning.

| Crash, or lost reply | State afterwards |
|---|---|
| in an addition, which is one conditional write | the cut with its time and size, or nothing |
| between the update of the set and the end of the removal of the oldest cuts' records | unreferenced records; |
| | the next removal begins with them |
| between a restamp, which is one conditional write, and the removal of the replaced records | unreferenced records, |
| | until the stream is deleted |

Nothing here is retried: a conditional write that lost against another controller's, or whose reply was lost, raises an
error; the caller reads again. Keys are not reused while clocks go forward: a late duplicate of a removal does nothing.
After a clock went back it can remove the record of a cut, and the cut is then skipped.
Source: PDP-32; controller-internals 2 and 8.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.records import RETENTION_CHUNK_CUTS
from penstock.controller.metadata.retention_records import (
    TIME_NONE,
    RetentionChunk,
    RetentionEntry,
    RetentionSet,
    StreamCutRecord,
)
from penstock.model.errors import CorruptionError, InvalidArgumentError, MetadataConflictError, NoSuchStreamError
from penstock.model.segments import VERSION_ABSENT


class RetentionTables:
    """The recorded cuts of the stream whose records are in `table`. The reads of each operation do not grow with the
    stream's age, except for the logarithm of the number of chunks.
    """

    def __init__(self, records: RecordStore, table: str) -> None:
        self._records = records
        self._table = table

    async def _set(self) -> Versioned[RetentionSet]:
        found = await self._records.get(self._table, layout.RETENTION, RetentionSet)
        if found is None:
            raise NoSuchStreamError(f"table {self._table} has no record {layout.RETENTION}: its stream is not complete")
        return found

    async def _chunk(self, found: Versioned[RetentionSet], cut: int) -> Versioned[RetentionChunk]:
        """Return the chunk of a cut in a set. Raises `MetadataConflictError` if the set has changed since."""
        key = layout.retention_chunk_key(cut)
        chunk = await self._records.get(self._table, key, RetentionChunk)
        if chunk is not None:
            return chunk
        if (await self._set()).version != found.version:
            raise MetadataConflictError(f"table {self._table}: recorded cuts were removed while they were read")
        raise CorruptionError(f"table {self._table}, key {key!r}", 0, f"it is missing, and has cut {cut}")

    async def newest(self) -> RetentionEntry | None:
        """Return the newest cut; None if there is none. 1 read."""
        record = (await self._set()).record
        return record.newest if record.first < record.next_cut else None

    async def count(self) -> int:
        """Return the number of cuts. 1 read."""
        record = (await self._set()).record
        return record.next_cut - record.first

    async def entries(self, *, newest: int | None = None) -> AsyncIterator[list[RetentionEntry]]:
        """Yield all cuts, or the given number of `newest` ones, oldest first, one page per chunk. 1 read, 1 per chunk.

        Raises `MetadataConflictError` if cuts are removed meanwhile.
        """
        found = await self._set()
        first, until = found.record.first, found.record.next_cut
        if newest is not None:
            first = max(first, until - newest)
        while first < until:
            chunk = await self._chunk(found, first)
            yield chunk.record.entries(first, until)
            first = _chunk_after(first)

    async def last_recorded_until(self, time_ms: int) -> RetentionEntry | None:
        """Return the last cut that was not recorded after a time; None if there is none."""
        found = await self._set()
        return await self._before(found, await self._count_until(found, time_ms=time_ms))

    async def last_with_at_most(self, size_bytes: int) -> RetentionEntry | None:
        """Return the last cut with at most `size_bytes` of the stream's life before it; None if there is none."""
        found = await self._set()
        return await self._before(found, await self._count_until(found, size_bytes=size_bytes))

    async def first_behind(self, *, time_ms: int | None = None, size_bytes: int | None = None) -> RetentionEntry | None:
        """Return the first cut that was recorded after a time, or that has more than `size_bytes` before it."""
        found = await self._set()
        cut = await self._count_until(found, time_ms=time_ms, size_bytes=size_bytes)
        if cut >= found.record.next_cut:
            return None
        (entry,) = (await self._chunk(found, cut)).record.entries(cut, cut + 1)
        return entry

    async def last_that(self, holds: Callable[[StreamCutRecord], Awaitable[bool]]) -> StreamCutRecord | None:
        """Return the last cut that satisfies a monotonic condition, one true for all cuts before it; None if none does.

        2 reads for each halving. A cut whose record is missing counts as not satisfying it.
        """
        found = await self._set()
        low, high = found.record.first, found.record.next_cut
        last: StreamCutRecord | None = None
        while low < high:
            middle = (low + high) // 2
            (entry,) = (await self._chunk(found, middle)).record.entries(middle, middle + 1)
            cut = await self.cut_of(entry)
            if cut is not None and await holds(cut):
                low, last = middle + 1, cut
            else:
                high = middle
        return last

    async def _before(self, found: Versioned[RetentionSet], cut: int) -> RetentionEntry | None:
        if cut <= found.record.first:
            return None
        (entry,) = (await self._chunk(found, cut - 1)).record.entries(cut - 1, cut)
        return entry

    async def _count_until(
        self, found: Versioned[RetentionSet], *, time_ms: int | None = None, size_bytes: int | None = None
    ) -> int:
        """Return the number of the first cut after a time, or above a size; `next_cut` if there is none."""
        low, high = found.record.first, found.record.next_cut
        while low < high:
            middle = (low + high - 1) // 2
            chunk = (await self._chunk(found, middle)).record
            count = chunk.count_until(found.record.first, time_ms=time_ms, size_bytes=size_bytes)
            if count <= chunk.first:
                high = max(low, chunk.first)
            elif count < min(chunk.next_cut, high):
                return max(low, count)
            else:
                low = min(chunk.next_cut, high)
        return low

    async def cut_of(self, entry: RetentionEntry) -> StreamCutRecord | None:
        """Return the cut itself; None if it was removed. 1 read."""
        key = layout.retention_cut_key(entry.recorded_ms)
        found = await self._records.get(self._table, key, StreamCutRecord)
        return None if found is None else found.record

    async def add(self, cut: StreamCutRecord, *, goes_by_size: bool = False) -> bool:
        """Record a cut; return whether it was recorded. 2 reads, 1 write.

        A cut that is not later than the newest is skipped, as is one that is recorded again because its reply was
        lost. With `goes_by_size` times do not matter, and a clock that went back must not prevent recording: then a cut
        without new data before it is skipped, and one that is not later gets the time directly after the newest one's.

        Raises `InvalidArgumentError` for a size below the newest one's, which is impossible for a stream;
        `MetadataConflictError` when another controller has added or removed a cut meanwhile: read again.
        """
        found = await self._set()
        record = found.record
        if goes_by_size and record.newest.recorded_ms != TIME_NONE:
            if cut.size_bytes == record.newest.size_bytes:
                return False
            cut = replace(cut, recorded_ms=max(cut.recorded_ms, record.newest.recorded_ms + 1))
        if cut.recorded_ms <= record.newest.recorded_ms:
            return False
        if cut.size_bytes < record.newest.size_bytes:
            before = record.newest.size_bytes
            raise InvalidArgumentError(
                f"table {self._table}: {cut.size_bytes} bytes before a cut, {before} before an earlier one"
            )
        number = record.next_cut
        chunk = await self._chunk(found, number - 1) if number % RETENTION_CHUNK_CUTS else None
        if chunk is not None and chunk.record.next_cut != number:
            raise MetadataConflictError(f"table {self._table}: another cut was recorded as number {number} meanwhile")
        added = RetentionChunk.of(number, [cut.entry]) if chunk is None else chunk.record.followed_by(cut.entry)
        await self._records.put_all(
            self._table,
            [
                (layout.RETENTION, RetentionSet(record.first, number + 1, record.cleared, cut.entry), found.version),
                (layout.retention_chunk_key(number), added, VERSION_ABSENT if chunk is None else chunk.version),
                (layout.retention_cut_key(cut.recorded_ms), cut, VERSION_ABSENT),
            ],
        )
        return True

    async def restamp(self, now_ms: int) -> bool:
        """Set the time of cuts that were recorded after `now_ms` to `now_ms`; return whether there were any. 1 read.

        They were recorded by a fast clock: all that is known of the data before them is that it was written by now. All
        of them take the content of the newest one. Costs 1 more read for each chunk with such cuts, 1 write, and 1
        removal per chunk. Raises `MetadataConflictError` as `add` does.
        """
        found = await self._set()
        record = found.record
        if record.newest.recorded_ms <= now_ms:
            return False
        newest = RetentionEntry(now_ms, record.newest.size_bytes)
        first = await self._count_until(found, time_ms=now_ms)
        before = await self._before(found, first)
        if before is not None and before.recorded_ms == now_ms:
            return False  # Its key is in use: the next attempt has another time.
        moved = RetentionSet(record.first, record.next_cut, record.cleared, newest)
        writes: list[tuple[str, object, int]] = [(layout.RETENTION, moved, found.version)]
        replaced: list[RetentionEntry] = []
        if first < record.next_cut:
            cut = await self.cut_of(record.newest)
            if cut is not None:
                cut_key = layout.retention_cut_key(now_ms)
                writes.append((cut_key, replace(cut, recorded_ms=now_ms), VERSION_ABSENT))
        at = first
        while at < record.next_cut:
            chunk = await self._chunk(found, at)
            kept, future = chunk.record.entries(0, at), chunk.record.entries(at, record.next_cut)
            replaced += future
            same = [newest] * len(future)
            key = layout.retention_chunk_key(at)
            writes.append((key, RetentionChunk.of(chunk.record.first, kept + same), chunk.version))
            at = _chunk_after(at)
        await self._records.put_all(self._table, writes)
        await self._remove_replaced([layout.retention_cut_key(one.recorded_ms) for one in replaced])
        return True

    async def _remove_replaced(self, keys: Sequence[str]) -> None:
        """Remove the records of cuts that have a new time, unless they were rewritten since."""
        for start in range(0, len(keys), RETENTION_CHUNK_CUTS):
            rows = await self._records.get_rows(self._table, keys[start : start + RETENTION_CHUNK_CUTS])
            left = [row for row in rows if row is not None]
            if left:
                await self._records.remove_versions(self._table, *left)

    async def remove_until(self, time_ms: int) -> int:
        """Remove the cuts recorded at a time or before; return their number. 2 writes, 1 removal per chunk.

        Also removes leftovers of an earlier removal. Raises `MetadataConflictError` when another controller has added
        or removed a cut meanwhile; cuts already out of the set stay out, and the next removal continues.
        """
        found = await self._set()
        record = found.record
        first = await self._count_until(found, time_ms=time_ms)
        if first > record.first:
            left = RetentionSet(first, record.next_cut, record.cleared, record.newest)
            found = Versioned(left, await self._records.put(self._table, layout.RETENTION, left, version=found.version))
        if found.record.cleared < first:
            await self._clear(found.record.cleared, first)
            left = RetentionSet(first, record.next_cut, first, record.newest)
            await self._records.put(self._table, layout.RETENTION, left, version=found.version)
        return first - record.first

    async def _clear(self, first: int, until: int) -> None:
        """Remove the records of cuts with numbers in `[first, until)`, and the chunks that have no other cuts."""
        while first < until:
            key = layout.retention_chunk_key(first)
            chunk = await self._records.get(self._table, key, RetentionChunk)
            if chunk is not None:  # If it is missing, an interrupted removal has removed it.
                # Restamped cuts share one record.
                keys = [layout.retention_cut_key(one.recorded_ms) for one in chunk.record.entries(first, until)]
                await self._records.remove(self._table, *dict.fromkeys(keys))
                if _chunk_after(first) <= until:
                    await self._records.remove(self._table, key)
            first = _chunk_after(first)


def _chunk_after(cut: int) -> int:
    """Return the number of the first cut of the next chunk."""
    return (cut // RETENTION_CHUNK_CUTS + 1) * RETENTION_CHUNK_CUTS

"""`EpochTables`: the records of a stream's epochs: its current and past segments, and the scale in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.controller.metadata import layout
from penstock.controller.metadata.history_records import HistoryChunk, HistoryEntry, SealedSizes
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    EpochRecord,
    EpochTransition,
    SealedEpoch,
    SegmentRecord,
    StateRecord,
    StreamState,
)
from penstock.controller.metadata.scale_plan import epoch_after
from penstock.controller.metadata.store import Row as StoredRow
from penstock.controller.metadata.time_index import TimeIndex
from penstock.controller.metadata.transaction_tables import TransactionTables
from penstock.controller.steps import pages
from penstock.controller.stream_cuts import Change
from penstock.model.errors import MetadataConflictError, NoSuchStreamError
from penstock.model.segments import VERSION_ABSENT

R = TypeVar("R")

#: Approximate number of segments in a page of changes: some milliseconds of work.
_CHANGED_SEGMENTS_PER_PAGE = 2000
#: Ends of segments that are read in one request.
_ENDS_PER_READ = 500
#: Shards of sealed sizes that are read in one request: 8 MB at most.
_SHARDS_PER_READ = 32

#: Key, record, and the version that it replaces.
Row = tuple[str, object, int]


class EpochTables(TransactionTables):
    """Reads and writes epochs. See `StreamTables`."""

    def __init__(self, records: RecordStore, scope: str, stream: str, stream_id: str) -> None:
        super().__init__(records, scope, stream, stream_id)
        self.metadata: str = layout.stream_metadata(scope, stream, stream_id)
        self._time_index = TimeIndex(records, self.metadata)
        #: The epoch last read: an epoch never changes, and one with very many segments takes long to read.
        self._last_read: EpochRecord | None = None

    async def need(self, key: str, kind: type[R]) -> Versioned[R]:
        """Read a record that every stream has. 1 read."""
        found = await self.records.get(self.metadata, key, kind)
        if found is None:
            raise NoSuchStreamError(f"stream {self.name} has no record {key}: it is not completely created")
        return found

    async def state_and_current_epoch(self) -> tuple[StreamState, EpochRecord]:
        """Read state and current epoch. 2 reads in one request."""
        keys = [layout.STATE, layout.CURRENT_EPOCH]
        state_row, epoch_row = await self.records.get_rows(self.metadata, keys)
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        epoch = self.records.decoded(self.metadata, epoch_row, EpochRecord)
        if state is None or epoch is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return state.record.state, epoch.record

    async def current_epoch(self) -> EpochRecord:
        """Read the current epoch. 1 read."""
        self._last_read = (await self.need(layout.CURRENT_EPOCH, EpochRecord)).record
        return self._last_read

    async def epoch(self, epoch: int) -> EpochRecord | None:
        """Read one epoch's record; None if there is none. 1 read, none if it is the one that was last read."""
        known = self._last_read
        if known is not None and known.epoch == epoch:
            return known
        found = await self.records.get(self.metadata, layout.epoch_key(epoch), EpochRecord)
        if found is None:
            return None
        self._last_read = found.record
        return found.record

    async def need_epoch(self, epoch: int) -> EpochRecord:
        """As `epoch`. Raises `NoSuchStreamError` when there is none."""
        found = await self.epoch(epoch)
        if found is None:
            raise NoSuchStreamError(f"stream {self.name} has no epoch {epoch}")
        return found

    async def epoch_pair(self, epoch: int) -> tuple[EpochRecord | None, EpochRecord | None]:
        """Read `epoch` and the one before it. 2 reads in one request."""
        rows = await self._epoch_pair_rows(epoch)
        this, before = (self.records.decoded(self.metadata, row, EpochRecord) for row in rows)
        return None if this is None else this.record, None if before is None else before.record

    async def _epoch_pair_rows(self, epoch: int) -> Sequence[StoredRow | None]:
        return await self.records.get_rows(self.metadata, [layout.epoch_key(epoch), layout.epoch_key(epoch - 1)])

    async def sealed_epoch(self, segment: int) -> int | None:
        """Return the first epoch without this segment; None while it is active. 1 read."""
        found = await self.records.get(self.metadata, layout.sealed_epoch_key(segment), SealedEpoch)
        return None if found is None else found.record.epoch

    async def history(self, first: int, last: int) -> AsyncIterator[HistoryEntry]:
        """Yield the history entries of epochs `first` to `last`, both included. 1 read per chunk."""
        for number in range(first // HISTORY_CHUNK_EPOCHS, last // HISTORY_CHUNK_EPOCHS + 1):
            key = layout.history_chunk_key(number * HISTORY_CHUNK_EPOCHS)
            for entry in (await self.need(key, HistoryChunk)).record.entries():
                if first <= entry.epoch <= last:
                    yield entry

    async def changes(self, first: int, last: int) -> AsyncIterator[Sequence[Change]]:
        """Yield the changes of each epoch after `first`, up to `last`, in pages; other tasks run between pages.

        1 read per history chunk, 2 in one request for each duplicate or large change.
        """
        if first >= last:
            return
        page: list[Change] = []
        segments = 0
        async for entry in self.history(first + 1, last):
            if entry.created:
                page.append(Change(entry.epoch, entry.sealed, entry.created))
            else:
                page.append(await self._change(entry.epoch))
                await asyncio.sleep(0)
            segments += len(page[-1].sealed) + len(page[-1].created)
            if segments >= _CHANGED_SEGMENTS_PER_PAGE:
                yield page
                await asyncio.sleep(0)
                page, segments = [], 0
        if page:
            yield page

    async def _change(self, epoch: int) -> Change:
        """Return the change of an epoch, from its own record and the previous one. Other tasks run meanwhile."""
        this_row, before_row = await self._epoch_pair_rows(epoch)
        this = self.records.decoded(self.metadata, this_row, EpochRecord)
        await asyncio.sleep(0)
        before = self.records.decoded(self.metadata, before_row, EpochRecord)
        await asyncio.sleep(0)
        if this is None or before is None:
            raise NoSuchStreamError(f"stream {self.name} has no record of epoch {epoch}, or of the one before it")
        kept: set[int] = set()
        created: list[SegmentRecord] = []
        for page in pages(this.record.segments):
            kept.update(segment.id for segment in page)
            created += [segment for segment in page if segment.creation_epoch == epoch]
            await asyncio.sleep(0)
        sealed: list[int] = []
        for page in pages(before.record.segments):
            sealed += [segment.id for segment in page if segment.id not in kept]
            await asyncio.sleep(0)
        return Change(epoch, sealed, created)

    async def sealed_epochs(self, segments: Sequence[int]) -> dict[int, int]:
        """Return, for each of the segments that is not active, the first epoch without it. 1 read each."""
        result: dict[int, int] = {}
        for start in range(0, len(segments), _ENDS_PER_READ):
            page = segments[start : start + _ENDS_PER_READ]
            rows = await self.records.get_rows(self.metadata, [layout.sealed_epoch_key(segment) for segment in page])
            for segment, row in zip(page, rows, strict=True):
                found = self.records.decoded(self.metadata, row, SealedEpoch)
                if found is not None:
                    result[segment] = found.record.epoch
        return result

    async def epochs(self, first: int, last: int) -> list[EpochRecord]:
        """Return the records of epochs `first` to `last`, both included.

        1 read of an epoch record, 1 per history chunk, 1 per duplicate epoch or large change in between.
        """
        result = [await self.need_epoch(first)]
        async for entry in self.history(first, last):
            if entry.epoch == first:
                continue
            before = result[-1]
            if not entry.created:  # A duplicate, or a large change: its segments are only in its own record.
                result.append(await self.need_epoch(entry.epoch))
                continue
            change = EpochTransition(before.epoch, entry.created_ms, entry.sealed, entry.created)
            result.append(epoch_after(before, change))
        return result

    async def sealed_sizes(self, segments: Iterable[int]) -> dict[int, int]:
        """Return the lengths in bytes of sealed segments, as far as they are recorded. 1 read per shard."""
        wanted = list(segments)
        found = await self._sizes_in(wanted, layout.sealed_sizes_key)
        early = [segment for segment in wanted if segment not in found]
        return {**found, **await self._sizes_in(early, layout.early_sealed_sizes_key)}

    async def _sizes_in(self, segments: Iterable[int], key_of: Callable[[int], str]) -> dict[int, int]:
        shards: dict[str, list[int]] = {}
        for segment in segments:
            shards.setdefault(key_of(segment), []).append(segment)
        result: dict[int, int] = {}
        keys = list(shards)
        for start in range(0, len(keys), _SHARDS_PER_READ):
            page = keys[start : start + _SHARDS_PER_READ]
            for key, row in zip(page, await self.records.get_rows(self.metadata, page), strict=True):
                shard = self.records.decoded(self.metadata, row, SealedSizes)
                sizes = {} if shard is None else shard.record.sizes
                result.update((segment, sizes[segment]) for segment in shards[key] if segment in sizes)
        return result

    async def epoch_at(self, time_ms: int) -> int:
        """Return the epoch that was current at a time; 0 for a time before the stream. 4 reads at most."""
        return await self._time_index.epoch_at(await self.current_epoch(), time_ms)

    # Changes.

    async def transition(self) -> Versioned[EpochTransition]:
        """Read the scale in progress. 1 read."""
        return await self.need(layout.EPOCH_TRANSITION, EpochTransition)

    async def put_transition(self, record: EpochTransition, version: int) -> int:
        """Replace the scale in progress, read at `version`."""
        return await self.records.put(self.metadata, layout.EPOCH_TRANSITION, record, version=version)

    async def add_epochs(
        self,
        added: Sequence[tuple[EpochRecord, HistoryEntry]],
        ended: Mapping[int, int],
        sizes: Mapping[int, int],
        fence: Row,
    ) -> int:
        """Write successive epochs, the first epoch without it for each ended segment (`ended`), and sealed sizes.

        Atomic; writes `fence` alone if the epochs exist already. The current epoch does not change.
        Return the new version of `fence`: only the owner of the work has its expected version.
        """
        key, record, version = fence
        present = await self.epoch(added[0][0].epoch)
        if present is not None:
            if present != added[0][0]:
                raise MetadataConflictError(
                    f"stream {self.name}: epoch {present.epoch} is recorded already, with other segments"
                )
            return await self.records.put(self.metadata, key, record, version=version)
        rows: list[Row] = [fence]
        rows.extend((layout.epoch_key(epoch.epoch), epoch, VERSION_ABSENT) for epoch, _ in added)
        rows.extend(await self._history_rows([entry for _, entry in added]))
        rows.extend(
            (layout.sealed_epoch_key(segment), SealedEpoch(epoch), VERSION_ABSENT)
            for segment, epoch in sorted(ended.items())
        )
        rows.extend(await self._size_rows(sizes))
        return (await self.records.put_all(self.metadata, rows))[0]

    async def _history_rows(self, entries: Sequence[HistoryEntry]) -> list[Row]:
        """Return the chunks with these entries added, and for each chunk that becomes full the time index rows."""
        chunks: dict[str, list[HistoryEntry]] = {}
        for entry in entries:
            chunks.setdefault(layout.history_chunk_key(entry.epoch), []).append(entry)
        result: list[Row] = []
        for key, new in chunks.items():
            found = await self.records.get(self.metadata, key, HistoryChunk)
            if found is not None and found.record.next_epoch > new[0].epoch:
                # They were not there at the first read: a controller that has taken over this work was faster.
                raise MetadataConflictError(f"stream {self.name}: epoch {new[0].epoch} has just been written")
            chunk = HistoryChunk.of(new) if found is None else found.record.followed_by(new)
            result.append((key, chunk, VERSION_ABSENT if found is None else found.version))
            if chunk.next_epoch % HISTORY_CHUNK_EPOCHS == 0:
                result.extend(await self._time_index.rows_of_chunk(chunk))
        return result

    async def _size_rows(self, sizes: Mapping[int, int]) -> list[Row]:
        """Return the shards with these sizes added; the first value written for a segment is kept."""
        shards: dict[str, dict[int, int]] = {}
        for segment, size_bytes in sorted(sizes.items()):
            shards.setdefault(layout.sealed_sizes_key(segment), {})[segment] = size_bytes
        result: list[Row] = []
        for key, new in shards.items():
            found = await self.records.get(self.metadata, key, SealedSizes)
            if found is None:
                result.append((key, SealedSizes(new), VERSION_ABSENT))
            else:
                result.append((key, SealedSizes({**new, **found.record.sizes}), found.version))
        return result

    async def enter_epoch(self, epoch: EpochRecord, sizes: Mapping[int, int], others: Sequence[Row]) -> Sequence[int]:
        """Make `epoch` current, with the sealed sizes of earlier segments and with `others`, in one atomic write.

        Return the new versions of `others`.
        """
        current = await self.need(layout.CURRENT_EPOCH, EpochRecord)
        rows = [*others, *await self._size_rows(sizes)]
        if current.record.epoch < epoch.epoch:
            rows.append((layout.CURRENT_EPOCH, epoch, current.version))
        return (await self.records.put_all(self.metadata, rows))[: len(others)]

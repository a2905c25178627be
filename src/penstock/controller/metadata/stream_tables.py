"""`StreamTables`: the records of one life of a stream.

Reads cost what the controller internals specification, section 2 "Cost of operations", says; records that are needed
together are read in one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller.metadata import layout
from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    STATE_TRANSITIONS,
    CommitCounter,
    CommitPosition,
    CommittingTransactions,
    ConfigurationRecord,
    CreationTime,
    EpochRecord,
    EpochTransition,
    HistoryChunk,
    HistoryEntry,
    RetentionSet,
    SealedEpoch,
    SealedSizes,
    SegmentRecord,
    StateRecord,
    StreamState,
    SubscriberSet,
    TruncationRecord,
)
from penstock.controller.metadata.transaction_tables import TransactionTables
from penstock.controller.metadata.typed import Tables, Versioned
from penstock.model.errors import MetadataConflictError, NoSuchStreamError
from penstock.model.key_ranges import initial_ranges
from penstock.model.policies import StreamConfig
from penstock.model.segments import VERSION_ABSENT

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StreamBirth:
    """What is on record of a stream that is being created."""

    created_ms: int
    configuration: StreamConfig
    state: StreamState


class StreamTables(TransactionTables):
    """All records of the stream `scope`/`stream` with id `stream_id`.

    `NoSuchSegmentError` naming a table means that the stream was deleted, or never completely created.
    """

    def __init__(self, tables: Tables, scope: str, stream: str, stream_id: str) -> None:
        super().__init__(tables, scope, stream, stream_id)
        self.metadata: str = layout.stream_metadata(scope, stream, stream_id)

    def __repr__(self) -> str:
        return f"StreamTables({self.name}, {self.stream_id})"

    async def _need(self, key: str, kind: type[R]) -> Versioned[R]:
        found = await self.tables.get(self.metadata, key, kind)
        if found is None:
            raise NoSuchStreamError(f"stream {self.name} has no record {key}: it is not completely created")
        return found

    # Birth and death.

    async def create_tables(self) -> None:
        """Create the tables that every stream has; those that exist stay as they are."""
        for table in (layout.epochs_with_transactions(*self.key), layout.commit_order(*self.key), self.metadata):
            await self.tables.store.create_table(table)

    async def create_records(self, configuration: StreamConfig, created_ms: int, first_segment: int) -> bool:
        """Write all records of a new stream in state CREATING, or none if some exist; say whether they were written."""
        segments = tuple(
            SegmentRecord(first_segment + index, 0, created_ms, keys.start, keys.end)
            for index, keys in enumerate(initial_ranges(configuration.scaling.min_segments))
        )
        epoch = EpochRecord(0, 0, segments, created_ms)
        records: list[tuple[str, object]] = [
            (layout.CREATION_TIME, CreationTime(created_ms)),
            (layout.CONFIGURATION, ConfigurationRecord(self.scope, self.stream, configuration)),
            (layout.EPOCH_TRANSITION, EpochTransition()),
            (layout.TRUNCATION, TruncationRecord()),
            (layout.COMMITTING_TRANSACTIONS, CommittingTransactions()),
            (layout.STATE, StateRecord(StreamState.CREATING)),
            (layout.epoch_key(0), epoch),
            (layout.history_chunk_key(0), HistoryChunk((HistoryEntry(0, 0, (), segments, created_ms),))),
            (layout.sealed_sizes_key(0), SealedSizes()),
            (layout.RETENTION, RetentionSet()),
            (layout.CURRENT_EPOCH, epoch),
            (layout.SUBSCRIBER_SET, SubscriberSet()),
        ]
        try:
            await self.tables.put_all(self.metadata, [(key, record, VERSION_ABSENT) for key, record in records])
        except MetadataConflictError:
            return False
        return True

    async def birth(self) -> StreamBirth | None:
        """Return what is on record of the stream's creation; None when there are no records yet."""
        keys = [layout.CREATION_TIME, layout.CONFIGURATION, layout.STATE]
        creation_row, configuration_row, state_row = await self.tables.get_rows(self.metadata, keys)
        creation = self.tables.decoded(self.metadata, creation_row, CreationTime)
        configuration = self.tables.decoded(self.metadata, configuration_row, ConfigurationRecord)
        state = self.tables.decoded(self.metadata, state_row, StateRecord)
        if creation is None or configuration is None or state is None:
            return None
        return StreamBirth(creation.record.created_ms, configuration.record.configuration, state.record.state)

    async def drop_tables(self) -> None:
        """Delete all tables of the stream. The metadata table goes last: it leads to the others."""
        async for epoch in self.epochs_with_transactions():
            await self.tables.store.drop_table(layout.transactions_in_epoch(*self.key, epoch))
        for table in (
            layout.writer_marks(*self.key),
            layout.epochs_with_transactions(*self.key),
            layout.commit_order(*self.key),
            self.metadata,
        ):
            await self.tables.store.drop_table(table)

    # Configuration and state.

    async def configuration(self) -> Versioned[ConfigurationRecord]:
        """Read the configuration. 1 read."""
        return await self._need(layout.CONFIGURATION, ConfigurationRecord)

    async def put_configuration(self, record: ConfigurationRecord, version: int) -> int:
        """Replace the configuration read at `version`."""
        return await self.tables.put(self.metadata, layout.CONFIGURATION, record, version=version)

    async def state(self) -> Versioned[StateRecord]:
        """Read the state. 1 read."""
        return await self._need(layout.STATE, StateRecord)

    async def set_state(
        self, state: StreamState, *, of: Versioned[StateRecord] | None = None
    ) -> Versioned[StateRecord]:
        """Move to `state` from the one read as `of` (read now if not given); return it with its version.

        A state that is there already is written again: whoever has read it before cannot move on from it any more.
        Raises `MetadataConflictError` when the move is not allowed, or the state has changed since.
        """
        current = of or await self.state()
        if state is not current.record.state and state not in STATE_TRANSITIONS[current.record.state]:
            raise MetadataConflictError(
                f"stream {self.name} is {current.record.state.value} and cannot become {state.value} now"
            )
        record = StateRecord(state)
        return Versioned(record, await self.tables.put(self.metadata, layout.STATE, record, version=current.version))

    # Epochs.

    async def state_and_current_epoch(self) -> tuple[StreamState, EpochRecord]:
        """Read state and current epoch. 2 reads in one request."""
        keys = [layout.STATE, layout.CURRENT_EPOCH]
        state_row, epoch_row = await self.tables.get_rows(self.metadata, keys)
        state = self.tables.decoded(self.metadata, state_row, StateRecord)
        epoch = self.tables.decoded(self.metadata, epoch_row, EpochRecord)
        if state is None or epoch is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return state.record.state, epoch.record

    async def current_epoch(self) -> EpochRecord:
        """Read the current epoch. 1 read."""
        return (await self._need(layout.CURRENT_EPOCH, EpochRecord)).record

    async def epoch(self, epoch: int) -> EpochRecord | None:
        """Read one epoch's record; None when there is none. 1 read."""
        found = await self.tables.get(self.metadata, layout.epoch_key(epoch), EpochRecord)
        return None if found is None else found.record

    async def epoch_pair(self, epoch: int) -> tuple[EpochRecord | None, EpochRecord | None]:
        """Read `epoch` and the one before it. 2 reads in one request."""
        keys = [layout.epoch_key(epoch), layout.epoch_key(epoch - 1)]
        rows = await self.tables.get_rows(self.metadata, keys)
        this, before = (self.tables.decoded(self.metadata, row, EpochRecord) for row in rows)
        return None if this is None else this.record, None if before is None else before.record

    async def sealed_epoch(self, segment: int) -> int | None:
        """Return the first epoch without this segment; None while it is active. 1 read."""
        found = await self.tables.get(self.metadata, layout.sealed_epoch_key(segment), SealedEpoch)
        return None if found is None else found.record.epoch

    async def history(self, first: int, last: int) -> AsyncIterator[HistoryEntry]:
        """Yield the history entries of epochs `first` to `last`, both included. 1 read per chunk."""
        for number in range(first // HISTORY_CHUNK_EPOCHS, last // HISTORY_CHUNK_EPOCHS + 1):
            key = layout.history_chunk_key(number * HISTORY_CHUNK_EPOCHS)
            for entry in (await self._need(key, HistoryChunk)).record.entries:
                if first <= entry.epoch <= last:
                    yield entry

    async def epochs(self, first: int, last: int) -> list[EpochRecord]:
        """Return the records of epochs `first` to `last`, both included.

        1 read of an epoch record, 1 per history chunk, 1 per duplicate epoch inside.
        """
        start = await self.epoch(first)
        if start is None:
            raise NoSuchStreamError(f"stream {self.name} has no epoch {first}")
        result = [start]
        async for entry in self.history(first, last):
            if entry.epoch == first:
                continue
            before = result[-1]
            if not entry.created:  # A duplicate: its segments are in its own record alone.
                duplicate = await self.epoch(entry.epoch)
                if duplicate is None:
                    raise NoSuchStreamError(f"stream {self.name} has no epoch {entry.epoch}")
                result.append(duplicate)
                continue
            sealed = {segment.id for segment in entry.sealed}
            kept = [segment for segment in before.segments if segment.id not in sealed]
            segments = tuple(sorted([*kept, *entry.created], key=lambda segment: segment.key_start))
            result.append(EpochRecord(entry.epoch, entry.reference_epoch, segments, entry.created_ms))
        return result

    async def sealed_sizes(self, segment: int) -> SealedSizes | None:
        """Read the shard that holds the sealed size of a segment. 1 read."""
        found = await self.tables.get(self.metadata, layout.sealed_sizes_key(segment), SealedSizes)
        return None if found is None else found.record

    # Truncation.

    async def truncation(self) -> Versioned[TruncationRecord]:
        """Read where the stream begins. 1 read."""
        return await self._need(layout.TRUNCATION, TruncationRecord)

    async def put_truncation(self, record: TruncationRecord, version: int) -> int:
        """Replace the truncation record read at `version`."""
        return await self.tables.put(self.metadata, layout.TRUNCATION, record, version=version)

    # Commits.

    async def committing(self) -> Versioned[CommittingTransactions]:
        """Read which transactions are being merged. 1 read."""
        return await self._need(layout.COMMITTING_TRANSACTIONS, CommittingTransactions)

    async def put_committing(self, record: CommittingTransactions, version: int) -> int:
        """Replace the record of the commit in progress, read at `version`."""
        return await self.tables.put(self.metadata, layout.COMMITTING_TRANSACTIONS, record, version=version)

    async def take_commit_positions(self, transactions: Sequence[str], attempts_max: int) -> int:
        """Take the next positions in the stream's commit order, one per transaction; return the first. 1 read, 1 write.

        Raises `MetadataConflictError` when other controllers were faster `attempts_max` times.
        """
        table = layout.commit_order(*self.key)
        for attempt in range(attempts_max):
            found = await self.tables.get(table, layout.NEXT_POSITION, CommitCounter)
            first, version = (0, VERSION_ABSENT) if found is None else (found.record.next_position, found.version)
            taken: list[tuple[str, object, int]] = [
                (str(first + index), CommitPosition(transaction), VERSION_ABSENT)
                for index, transaction in enumerate(transactions)
            ]
            counter = CommitCounter(first + len(transactions))
            try:
                await self.tables.put_all(table, [(layout.NEXT_POSITION, counter, version), *taken])
            except MetadataConflictError:
                if attempt + 1 == attempts_max:
                    raise
                await asyncio.sleep(0)
            else:
                return first
        raise AssertionError("attempts_max is positive")

    async def commit_positions(self) -> list[tuple[int, str]]:
        """Return the positions that are taken and their transactions, in order."""
        table = layout.commit_order(*self.key)
        result = []
        async for row in self.tables.walk_rows(table):
            if row.key != layout.NEXT_POSITION:
                found = self.tables.decoded(table, row, CommitPosition)
                if found is not None:
                    result.append((int(row.key), found.record.transaction))
        return sorted(result)

    async def remove_commit_positions(self, positions: list[int]) -> None:
        """Give positions up."""
        if positions:
            await self.tables.remove(layout.commit_order(*self.key), *(str(position) for position in positions))

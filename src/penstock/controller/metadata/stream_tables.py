"""`StreamTables`: the records of one incarnation of a stream.

Reads cost as specified in controller-internals 2 "Cost of operations"; records that are
needed together are read in one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller.metadata import layout
from penstock.controller.metadata.epoch_tables import EpochTables
from penstock.controller.metadata.history_records import HistoryChunk
from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import (
    STATE_TRANSITIONS,
    CommitCounter,
    CommitPosition,
    CommittingTransactions,
    ConfigurationRecord,
    CreationTime,
    EpochRecord,
    EpochTransition,
    SegmentRecord,
    StateRecord,
    StreamState,
    SubscriberSet,
    TruncationRecord,
)
from penstock.controller.metadata.retention_records import RetentionSet
from penstock.controller.metadata.retention_tables import RetentionTables
from penstock.controller.metadata.scale_plan import first_entry
from penstock.model.errors import MetadataConflictError, NoSuchStreamError
from penstock.model.key_ranges import initial_ranges
from penstock.model.policies import StreamConfig
from penstock.model.segments import VERSION_ABSENT

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StreamBirth:
    """The records of a stream that is being created."""

    created_ms: int
    configuration: StreamConfig
    state: StreamState


@dataclass(frozen=True, slots=True)
class CommitView:
    """The initial state of a commit: the stream's state, the batch being merged, the current epoch."""

    state: Versioned[StateRecord]
    committing: Versioned[CommittingTransactions]
    current: EpochRecord


@dataclass(frozen=True, slots=True)
class TruncationView:
    """The initial state of a truncation: the stream's state, and its start."""

    state: Versioned[StateRecord]
    truncation: Versioned[TruncationRecord]


class StreamTables(EpochTables):
    """All records of the stream `scope`/`stream` with id `stream_id`.

    `NoSuchSegmentError` for a table means that the stream was deleted, or never completely created.
    """

    def __repr__(self) -> str:
        return f"StreamTables({self.name}, {self.stream_id})"

    @property
    def subject(self) -> Subject:
        """The subject under which work on the stream is announced."""
        return Subject(SubjectKind.STREAM, self.scope, self.stream)

    @property
    def retention(self) -> RetentionTables:
        """The recorded stream cuts of the stream."""
        return RetentionTables(self.records, self.metadata)

    # Creation and deletion.

    async def create_tables(self) -> None:
        """Create the tables that every stream has; existing ones are not changed."""
        for table in (layout.epochs_with_transactions(*self.key), layout.commit_order(*self.key), self.metadata):
            await self.records.store.create_table(table)

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
            (layout.history_chunk_key(0), HistoryChunk.of([first_entry(epoch)])),
            (layout.RETENTION, RetentionSet()),
            (layout.CURRENT_EPOCH, epoch),
            (layout.SUBSCRIBER_SET, SubscriberSet()),
        ]
        try:
            await self.records.put_all(self.metadata, [(key, record, VERSION_ABSENT) for key, record in records])
        except MetadataConflictError:
            return False
        return True

    async def birth(self) -> StreamBirth | None:
        """Return the records of the stream's creation; None if there are no records yet."""
        keys = [layout.CREATION_TIME, layout.CONFIGURATION, layout.STATE]
        creation_row, configuration_row, state_row = await self.records.get_rows(self.metadata, keys)
        creation = self.records.decoded(self.metadata, creation_row, CreationTime)
        configuration = self.records.decoded(self.metadata, configuration_row, ConfigurationRecord)
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        if creation is None or configuration is None or state is None:
            return None
        return StreamBirth(creation.record.created_ms, configuration.record.configuration, state.record.state)

    async def drop_tables(self) -> None:
        """Delete all tables of the stream. The metadata table goes last, since the others are found through it."""
        async for epoch in self.epochs_with_transactions():
            await self.records.store.drop_table(layout.transactions_in_epoch(*self.key, epoch))
        for table in (
            layout.writer_marks(*self.key),
            layout.epochs_with_transactions(*self.key),
            layout.commit_order(*self.key),
            self.metadata,
        ):
            await self.records.store.drop_table(table)

    # Configuration and state.

    async def configuration(self) -> Versioned[ConfigurationRecord]:
        """Read the configuration. 1 read."""
        return await self.need(layout.CONFIGURATION, ConfigurationRecord)

    async def state_epoch_and_configuration(self) -> tuple[StreamState, EpochRecord, StreamConfig]:
        """Read state, current epoch and configuration. 3 reads in one request."""
        keys = [layout.STATE, layout.CURRENT_EPOCH, layout.CONFIGURATION]
        state_row, epoch_row, configuration_row = await self.records.get_rows(self.metadata, keys)
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        epoch = self.records.decoded(self.metadata, epoch_row, EpochRecord)
        configuration = self.records.decoded(self.metadata, configuration_row, ConfigurationRecord)
        if state is None or epoch is None or configuration is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return state.record.state, epoch.record, configuration.record.configuration

    async def put_configuration(self, record: ConfigurationRecord, version: int) -> int:
        """Replace the configuration read at `version`."""
        return await self.records.put(self.metadata, layout.CONFIGURATION, record, version=version)

    async def state_epoch_and_transition(self) -> tuple[StreamState, EpochRecord, Versioned[EpochTransition]]:
        """Read state, current epoch and the scale in progress. 3 reads in one request."""
        keys = [layout.STATE, layout.CURRENT_EPOCH, layout.EPOCH_TRANSITION]
        state_row, epoch_row, transition_row = await self.records.get_rows(self.metadata, keys)
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        epoch = self.records.decoded(self.metadata, epoch_row, EpochRecord)
        transition = self.records.decoded(self.metadata, transition_row, EpochTransition)
        if state is None or epoch is None or transition is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return state.record.state, epoch.record, transition

    async def state(self) -> Versioned[StateRecord]:
        """Read the state. 1 read."""
        return await self.need(layout.STATE, StateRecord)

    async def set_state(
        self, state: StreamState, *, of: Versioned[StateRecord] | None = None
    ) -> Versioned[StateRecord]:
        """Move to `state` from the one read as `of` (read now if not given); return it with its version.

        An unchanged state is rewritten, so that workflows that have read it before cannot move on from it.
        Raises `MetadataConflictError` when the transition is not allowed, or the state has changed since.
        """
        current = of or await self.state()
        self._check_transition(current.record.state, state)
        record = StateRecord(state)
        return Versioned(record, await self.records.put(self.metadata, layout.STATE, record, version=current.version))

    def _check_transition(self, current: StreamState, following: StreamState) -> None:
        if following is not current and following not in STATE_TRANSITIONS[current]:
            raise MetadataConflictError(
                f"stream {self.name} is {current.value} and cannot become {following.value} now"
            )

    # Truncation.

    async def beginning(self) -> tuple[StreamState, TruncationRecord, EpochRecord]:
        """Read the records that determine the stream's start: state, truncation, first epoch. 3 reads in one request.

        Raises `NoSuchStreamError` if one of them is missing.
        """
        keys = [layout.STATE, layout.TRUNCATION, layout.epoch_key(0)]
        state_row, truncation_row, epoch_row = await self.records.get_rows(self.metadata, keys)
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        truncation = self.records.decoded(self.metadata, truncation_row, TruncationRecord)
        epoch = self.records.decoded(self.metadata, epoch_row, EpochRecord)
        if state is None or truncation is None or epoch is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return state.record.state, truncation.record, epoch.record

    async def truncation(self) -> Versioned[TruncationRecord]:
        """Read the start of the stream. 1 read."""
        return await self.need(layout.TRUNCATION, TruncationRecord)

    async def truncation_view(self) -> TruncationView:
        """Read the initial state of a truncation. 2 reads in one request."""
        state_row, truncation_row = await self.records.get_rows(self.metadata, [layout.STATE, layout.TRUNCATION])
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        truncation = self.records.decoded(self.metadata, truncation_row, TruncationRecord)
        if state is None or truncation is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return TruncationView(state, truncation)

    async def put_truncation(self, record: TruncationRecord, view: TruncationView) -> TruncationView:
        """Write the start of the stream and the corresponding state, at the versions of `view`. 1 write.

        A record with `is_updating` begins or continues a truncation; any other ends it, with state ACTIVE. Returns the
        new view. Raises `MetadataConflictError` when the state does not allow it, or something has changed.
        """
        following = StreamState.TRUNCATING if record.is_updating else StreamState.ACTIVE
        self._check_transition(view.state.record.state, following)
        rows: list[tuple[str, object, int]] = [
            (layout.TRUNCATION, record, view.truncation.version),
            (layout.STATE, StateRecord(following), view.state.version),
        ]
        truncation, state = await self.records.put_all(self.metadata, rows)
        return TruncationView(Versioned(StateRecord(following), state), Versioned(record, truncation))

    # Commits.

    async def commit_view(self) -> CommitView:
        """Read the initial state of a commit. 3 reads in one request."""
        keys = [layout.STATE, layout.COMMITTING_TRANSACTIONS, layout.CURRENT_EPOCH]
        state_row, committing_row, epoch_row = await self.records.get_rows(self.metadata, keys)
        state = self.records.decoded(self.metadata, state_row, StateRecord)
        committing = self.records.decoded(self.metadata, committing_row, CommittingTransactions)
        epoch = self.records.decoded(self.metadata, epoch_row, EpochRecord)
        if state is None or committing is None or epoch is None:
            raise NoSuchStreamError(f"stream {self.name} is not completely created")
        return CommitView(state, committing, epoch.record)

    async def put_commit(self, batch: CommittingTransactions, view: CommitView) -> CommitView:
        """Write the batch being merged and the corresponding state, at the versions of `view`. 1 write.

        An empty batch ends a commit, with state ACTIVE; any other begins or continues it. State SEALING is kept.
        Returns the new view. Raises `MetadataConflictError` when the state does not allow it, or something has changed.
        """
        rows: list[tuple[str, object, int]] = [(layout.COMMITTING_TRANSACTIONS, batch, view.committing.version)]
        state = view.state
        if state.record.state is not StreamState.SEALING:
            following = StreamState.ACTIVE if batch.is_empty else StreamState.COMMITTING_TXN
            self._check_transition(state.record.state, following)
            rows.append((layout.STATE, StateRecord(following), state.version))
            state = Versioned(StateRecord(following), state.version)
        versions = await self.records.put_all(self.metadata, rows)
        return CommitView(
            Versioned(state.record, versions[-1] if len(rows) > 1 else state.version),
            Versioned(batch, versions[0]),
            view.current,
        )

    async def put_committing(self, record: CommittingTransactions, version: int) -> int:
        """Replace the record of the commit in progress, read at `version`."""
        return await self.records.put(self.metadata, layout.COMMITTING_TRANSACTIONS, record, version=version)

    async def check_committing(self, version: int) -> None:
        """Check that the record of the commit in progress is still at `version`. 1 read.

        Raises `MetadataConflictError` if not: another controller has taken over the commit.
        """
        found = await self.need(layout.COMMITTING_TRANSACTIONS, CommittingTransactions)
        if found.version != version:
            raise MetadataConflictError(f"stream {self.name}: another controller continues this commit")

    async def take_commit_positions(
        self, transactions: Sequence[str], attempts_max: int, counter: Versioned[CommitCounter] | None = None
    ) -> tuple[int, Versioned[CommitCounter]]:
        """Take the next positions in the stream's commit order, one per transaction; return the first, and the counter.

        1 write; 1 read unless the current `counter` is given. Raises `MetadataConflictError` after losing against other
        controllers `attempts_max` times.
        """
        table = layout.commit_order(*self.key)
        found = counter
        for attempt in range(attempts_max):
            if found is None:
                found = await self.records.get(table, layout.NEXT_POSITION, CommitCounter)
            first, version = (0, VERSION_ABSENT) if found is None else (found.record.next_position, found.version)
            taken: list[tuple[str, object, int]] = [
                (str(first + index), CommitPosition(transaction), VERSION_ABSENT)
                for index, transaction in enumerate(transactions)
            ]
            following = CommitCounter(first + len(transactions))
            try:
                versions = await self.records.put_all(table, [(layout.NEXT_POSITION, following, version), *taken])
            except MetadataConflictError:
                if attempt + 1 == attempts_max:
                    raise
                found = None
                await asyncio.sleep(0)
            else:
                return first, Versioned(following, versions[0])
        raise AssertionError("attempts_max is positive")

    async def commit_positions(self) -> list[tuple[int, str]]:
        """Return the positions taken and their transactions, in order."""
        table = layout.commit_order(*self.key)
        result = []
        async for row in self.records.walk_rows(table):
            if row.key != layout.NEXT_POSITION:
                found = self.records.decoded(table, row, CommitPosition)
                if found is not None:
                    result.append((int(row.key), found.record.transaction))
        return sorted(result)

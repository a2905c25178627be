"""The blocking `Client`. Generated from `penstock.client.client`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast, overload

from penstock.client.client import Key, State, Update, Value
from penstock.client.common.opening import Opening
from penstock.client.common.serializers import Serializer
from penstock.client.controller.group_overview import GroupOverview
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.reading.batch_reads import BatchRange
from penstock.client.state.revisioned_stream import RevisionedStream as AsyncRevisionedStream
from penstock.client.state.shared_state import SharedState as AsyncSharedState
from penstock.client.streams.start_positions import Start
from penstock.client.sync.batch_reads import BatchReader
from penstock.client.sync.byte_stream import ByteReader, ByteWriter
from penstock.client.sync.event_writer import EventWriter
from penstock.client.sync.reader_group import ReaderGroup
from penstock.client.sync.revisioned_stream import RevisionedStream
from penstock.client.sync.segment_reader import SegmentReader
from penstock.client.sync.shared_state import SharedState
from penstock.client.sync.stream_calls import StreamCalls
from penstock.client.sync.tables import Table
from penstock.client.sync.transaction import Transaction
from penstock.client.sync.value_transaction import ValueTransaction
from penstock.client.sync.value_writer import ValueWriter
from penstock.client.tables.table_keys import TableKeys
from penstock.client.tables.tables import Table as AsyncTable
from penstock.client.transactions.transaction import Transaction as AsyncTransaction
from penstock.client.transactions.value_transaction import ValueTransaction as AsyncValueTransaction
from penstock.client.writing.event_writer import EventWriter as AsyncEventWriter
from penstock.client.writing.value_writer import ValueWriter as AsyncValueWriter
from penstock.model.policies import GroupRetention
from penstock.model.tables import TableConfig
from penstock.model.times import NotedTime


class Client(StreamCalls):
    """Scopes, streams, writers and readers of one Penstock or Pravega cluster. Use as a context manager.

    Streams are named ``scope/stream``. All methods raise `ControllerUnavailableError` when the controller cannot be
    reached, and `OutcomeUnknownError` when a change received no reply.

    The client owns the objects it opens: closing it first closes its writers, transactions, readers and groups.
    It owns a thread until it is closed or dropped, and belongs to one process.

    At the end of the program it flushes what its writers have taken, for `exit_timeout_s`, and says on the log what
    it could not.
    """

    @overload
    def event_writer(self, stream: str, *, serializer: None = None) -> EventWriter: ...

    @overload
    def event_writer(self, stream: str, *, serializer: Serializer[Value]) -> ValueWriter[Value]: ...

    def event_writer(
        self, stream: str, *, serializer: Serializer[Value] | None = None
    ) -> EventWriter | ValueWriter[Value]:
        """Return a writer of events, or with a serializer of values. Use it as a context manager.

        Opening raises `NoSuchStreamError`, `StreamSealedError`. Raises `InvalidNameError`, also for a stream that holds
        watermarks or the state of a reader group.
        """
        async def opening() -> AsyncEventWriter | AsyncValueWriter[Value]:
            return await self._part.event_writer(stream, serializer=serializer)

        opened = self._portal.call(opening())
        if isinstance(opened, AsyncValueWriter):
            return ValueWriter(self, self._portal, opened)
        return EventWriter(self, self._portal, opened)

    @overload
    def begin_transaction(
        self, stream: str, *, lease_s: float | None = None, serializer: None = None
    ) -> Transaction: ...

    @overload
    def begin_transaction(
        self, stream: str, *, lease_s: float | None = None, serializer: Serializer[Value]
    ) -> ValueTransaction[Value]: ...

    def begin_transaction(
        self, stream: str, *, lease_s: float | None = None, serializer: Serializer[Value] | None = None
    ) -> Transaction | ValueTransaction[Value]:
        """Begin a transaction: its events become readable all at once, or never. Use it as a context manager.

        The lease is renewed while the transaction is open. Leaving the context manager commits the transaction, or
        aborts it after an exception. With a serializer, the transaction takes values.

        Raises `NoSuchStreamError`, `InvalidArgumentError` for a lease outside the server's bounds.
        """
        async def opening() -> AsyncTransaction | AsyncValueTransaction[Value]:
            return await self._part.begin_transaction(
            stream, lease_s=lease_s, serializer=serializer
        )

        opened = self._portal.call(opening())
        if isinstance(opened, AsyncValueTransaction):
            return ValueTransaction(self, self._portal, opened)
        return Transaction(self, self._portal, opened)

    @overload
    def transaction(
        self, stream: str, transaction_id: str, *, lease_s: float | None = None, serializer: None = None
    ) -> Transaction: ...

    @overload
    def transaction(
        self, stream: str, transaction_id: str, *, lease_s: float | None = None, serializer: Serializer[Value]
    ) -> ValueTransaction[Value]: ...

    def transaction(
        self,
        stream: str,
        transaction_id: str,
        *,
        lease_s: float | None = None,
        serializer: Serializer[Value] | None = None,
    ) -> Transaction | ValueTransaction[Value]:
        """Resume an open transaction by its id, from any process. Use it as a context manager.

        The result behaves like a transaction begun here: it can be written to, committed and aborted, and leaving it
        undecided aborts it. Events that the previous writer had not flushed are not in it: see `Transaction.detach`.

        Raises:
            TransactionCommittedError, TransactionAbortedError: the transaction is decided; see `transaction_state`.
            TransactionExpiredError, TransactionStreamSealedError: it was aborted because its lease expired, or because
                the stream was sealed. The first is also raised for a transaction that reached the server's maximum age.
            TransactionPreparedError: it takes no more events. Decide it with `commit_transaction` or
                `abort_transaction`.
            NoSuchTransactionError: the stream has no transaction of this id, or it ended long ago.
            InvalidArgumentError: `transaction_id` is not an id, or the lease is outside the server's bounds.
            NoSuchStreamError: the stream does not exist.
        """
        async def opening() -> AsyncTransaction | AsyncValueTransaction[Value]:
            return await self._part.transaction(
            stream, transaction_id, lease_s=lease_s, serializer=serializer
        )

        opened = self._portal.call(opening())
        if isinstance(opened, AsyncValueTransaction):
            return ValueTransaction(self, self._portal, opened)
        return Transaction(self, self._portal, opened)

    def transaction_state(self, stream: str, transaction_id: str) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``.

        A transaction that ended long ago is ``UNKNOWN``. Raises `InvalidArgumentError` for a malformed id.
        """
        return self._portal.call(self._part.transaction_state(stream, transaction_id))

    def open_transactions(self, stream: str) -> Iterator[TransactionInfo]:
        """Iterate over a stream's unfinished transactions, each with its age, lease and size, in order of epoch.

        Open and prepared transactions wait for a decision. A committing or aborting transaction is listed until it has
        ended. A transaction that begins or ends during the iteration may be listed or not. Stopping early costs at most
        one page more than was used.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` if the controller is Pravega's own.
        """
        return self._portal.iterate(self._part.open_transactions(stream))

    def prepare_transaction(self, stream: str, transaction_id: str, *, limit_s: float | None = None) -> None:
        """Prepare a transaction by its id: it takes no more events and waits for a decision; see `Transaction.prepare`.

        For coordinators that decide transactions written by other processes. The writers flush and `detach`, or prepare
        the transaction themselves. Events that they had not flushed are not in it.

        Raises:
            InvalidArgumentError: `transaction_id` is not an id, or the limit is outside the server's bounds.
            TransactionCommittedError, TransactionAbortedError: the transaction is decided.
            NoSuchTransactionError: the stream has no transaction of this id, or it ended long ago.
            OutcomeUnknownError: no reply; retry.
            NoSuchStreamError: the stream does not exist.
            UnsupportedOperationError: the controller is Pravega's own.
        """
        self._portal.call(self._part.prepare_transaction(stream, transaction_id, limit_s=limit_s))

    def commit_transaction(self, stream: str, transaction_id: str, *, time: NotedTime | None = None) -> None:
        """Commit a transaction by its id: a prepared one, or one whose events were all flushed.

        Safe to repeat, from any process. Once this returns, the transaction stays committed.

        Args:
            time: noted with the transaction's end, as by `Transaction.commit`. All transactions that this client
                commits count as one writer's, regardless of which process wrote them. If a transaction is committed
                repeatedly, the first commit's time counts.

        Raises:
            TransactionAbortedError: the transaction was aborted. None of its events will ever be read.
            NoSuchTransactionError: the stream has no transaction of this id, or it ended long ago.
            OutcomeUnknownError: no reply; retry.
            InvalidArgumentError: `transaction_id` is not an id, or `time` is not a time of 0 or more.
            NoSuchStreamError: the stream does not exist.
        """
        self._portal.call(self._part.commit_transaction(stream, transaction_id, time=time))

    def abort_transaction(self, stream: str, transaction_id: str) -> None:
        """Abort a transaction by its id: none of its events are ever read. Safe to repeat, from any process.

        Raises `TransactionCommittedError`; otherwise as `commit_transaction`.
        """
        self._portal.call(self._part.abort_transaction(stream, transaction_id))

    def segment_reader(self, segment: str, start_offset: int, end_offset: int | None = None) -> SegmentReader:
        """Read the bytes `[start_offset, end_offset)` of a segment, given by its full name, block by block.

        Without `end_offset`, the reader follows the segment until it is sealed.
        """
        opened = self._opened(lambda: self._part.segment_reader(segment, start_offset, end_offset))
        return SegmentReader(self, self._portal, opened)

    def reader_group(
        self,
        group: str,
        streams: Sequence[str] | None = None,
        *,
        start: Start = None,
        until: Start = None,
        scope: str | None = None,
        reader_timeout_s: float | None = None,
        processing_time_max_s: float | None = None,
        retention: GroupRetention | str = GroupRetention.NONE,
        checkpoint_interval_s: float | None = None,
    ) -> ReaderGroup:
        """Create a reader group, or join the existing group of that name. Use it as a context manager.

        If the group exists, its stored positions and times apply.

        Args:
            group: the group's name, or ``scope/group``.
            streams: the streams to read, ``scope/stream`` each, or name patterns (``scope/orders-*``). Streams created
                later that match a pattern, the first included, are found within `reader_group_stream_refresh_s` and
                read from their beginning. None: the streams of the existing group of that name.
            start: "earliest" (also None, "head"), "latest" (also "tail"), a time, a stream cut, or one for each stream.
                Times are `datetime` with a time zone, or text in ISO 8601; cuts may be given as text. A time: every
                event stored at that time or later is read, and possibly a few earlier ones, see `cut_at_time`.
            until: the group's end, in the same forms. Its readers return the events before it and then finish. None:
                the group follows its streams until they are sealed.
            scope: the scope that the group lives in, by default the scope of the first stream. A scope with a group
                cannot be deleted.
            reader_timeout_s, processing_time_max_s: of the group, by default those of `ClientSettings`.
            retention: which data the group retains in its streams. "none": the streams' retention policies apply,
                whether the data was read or not. "automatic": the group subscribes to its streams, and they retain the
                data after its last checkpoint, up to the maximum of their policies. "manual": likewise, but for data
                that is not acknowledged, see `ReaderGroup.acknowledge`. See `GroupRetention`.
            checkpoint_interval_s: interval at which one of the readers takes a checkpoint, 0.001 to 1e9; 0: never. By
                default that of `ClientSettings`.

        Raises:
            InvalidArgumentError: the group reads other streams; or `start` is invalid, or lies beyond the end of a
                stream; or `until` is invalid, or lies before the start; or no stream matches.
            NoSuchScopeError, NoSuchStreamError, NoSuchReaderGroupError: the named object does not exist.
        """
        opened = self._opened(lambda: self._part.reader_group(
            group,
            streams,
            start=start,
            until=until,
            scope=scope,
            reader_timeout_s=reader_timeout_s,
            processing_time_max_s=processing_time_max_s,
            retention=retention,
            checkpoint_interval_s=checkpoint_interval_s,
        ))
        return ReaderGroup(self, self._portal, opened)

    def reader_groups(self, scope: str) -> Iterator[str]:
        """Iterate over the names of the reader groups of `scope`, of all clients. Raises `NoSuchScopeError`."""
        return self._portal.iterate(self._part.reader_groups(scope))

    def group_overviews(self, scope: str) -> Iterator[GroupOverview]:
        """Iterate over all reader groups of `scope`, with the data that each retains in its streams.

        Groups of Pravega's Rust and PyPI clients come last, without streams: their tables are in segment stores, and no
        controller has a record of what they read. Such a group is distinct from a registered group of the same name.
        Raises `NoSuchScopeError`; `UnsupportedOperationError` if the controller is not Penstock's.
        """
        return self._portal.iterate(self._part.group_overviews(scope))

    def delete_reader_group(self, group: str, *, scope: str | None = None) -> None:
        """Delete a reader group: ``scope/group``, or `group` and `scope`. Raises `NoSuchReaderGroupError`."""
        self._portal.call(self._part.delete_reader_group(group, scope=scope))

    def byte_writer(self, stream: str) -> ByteWriter:
        """Open a writer of raw bytes to a stream of one segment. Use it as a context manager.

        Raises `InvalidNameError` as `event_writer` does.
        """
        opened = self._opened(lambda: self._part.byte_writer(stream))
        return ByteWriter(self, self._portal, opened)

    def byte_reader(self, stream: str) -> ByteReader:
        """Open a reader of the raw bytes of a stream of one segment. Use it as a context manager."""
        opened = self._opened(lambda: self._part.byte_reader(stream))
        return ByteReader(self, self._portal, opened)

    def create_table(
        self,
        table: str,
        *,
        key_length: int,
        secondary_key_length: int = 0,
        partition_count: int = 1,
        rollover_bytes: int = 0,
        exist_ok: bool = False,
    ) -> None:
        """Create a key-value table (``scope/table``), and its scope if it is missing. Its shape is permanent.

        Args:
            key_length: bytes of the first part of each key. This part selects the partition.
            secondary_key_length: bytes of the second part, 0 for keys of one part. See `TableConfig`.
            partition_count: number of segments that share the keys.
            rollover_bytes: see `TableConfig`.
            exist_ok: accept an existing table of the same shape.

        Raises `TableExistsError`, `InvalidNameError`, `InvalidArgumentError`.
        """
        self._portal.call(self._part.create_table(
            table,
            key_length=key_length,
            secondary_key_length=secondary_key_length,
            partition_count=partition_count,
            rollover_bytes=rollover_bytes,
            exist_ok=exist_ok,
        ))

    def delete_table(self, table: str) -> None:
        """Delete a key-value table and its entries. Raises `NoSuchTableError`."""
        self._portal.call(self._part.delete_table(table))

    def tables(self, scope: str) -> Iterator[str]:
        """Iterate over the names of the key-value tables of `scope`. Raises `NoSuchScopeError`."""
        return self._portal.iterate(self._part.tables(scope))

    def table_config(self, table: str) -> TableConfig:
        """Return the shape of a key-value table. Raises `NoSuchTableError`."""
        return self._portal.call(self._part.table_config(table))

    @overload
    def table(self, table: str, *, keys: None = None, values: None = None) -> Table[bytes, bytes]: ...

    @overload
    def table(self, table: str, *, keys: TableKeys[Key], values: None = None) -> Table[Key, bytes]: ...

    @overload
    def table(self, table: str, *, keys: None = None, values: Serializer[Value]) -> Table[bytes, Value]: ...

    @overload
    def table(self, table: str, *, keys: TableKeys[Key], values: Serializer[Value]) -> Table[Key, Value]: ...

    def table(
        self, table: str, *, keys: TableKeys[Key] | None = None, values: Serializer[Value] | None = None
    ) -> Table[Key, Value]:
        """Open a key-value table (``scope/table``). Use it as a context manager.

        `keys`: the type of the keys: `TextKeys`, `TextPairKeys`, or by default bytes of the exact length. `values`: a
        serializer, as for events; by default values are bytes. Raises `NoSuchTableError`.
        """
        opened = self._opened(
            lambda: cast(Opening[AsyncTable[Key, Value]], self._part.table(table, keys=keys, values=values))
        )
        return Table(self, self._portal, opened)

    @overload
    def revisioned_stream(self, stream: str, *, serializer: None = None) -> RevisionedStream[bytes]: ...

    @overload
    def revisioned_stream(self, stream: str, *, serializer: Serializer[Value]) -> RevisionedStream[Value]: ...

    def revisioned_stream(self, stream: str, *, serializer: Serializer[Value] | None = None) -> RevisionedStream[Value]:
        """Open a stream of one segment for conditional writes: a write can require that no newer entry exists.

        Use it as a context manager. Entries are bytes, or values of `serializer`. Raises `NoSuchStreamError`, and
        `UnsupportedOperationError` for a stream of more than one segment.
        """
        opened = self._opened(
            lambda: cast(
                Opening[AsyncRevisionedStream[Value]],
                self._part.revisioned_stream(stream, serializer=serializer),
            )
        )
        return RevisionedStream(self, self._portal, opened)

    @overload
    def shared_state(
        self, stream: str, *, initial: State, states: Serializer[State], updates: None = None, apply: None = None
    ) -> SharedState[State, object]: ...

    @overload
    def shared_state(
        self,
        stream: str,
        *,
        initial: State,
        states: Serializer[State],
        updates: Serializer[Update],
        apply: Callable[[State, Update], State],
    ) -> SharedState[State, Update]: ...

    def shared_state(
        self,
        stream: str,
        *,
        initial: State,
        states: Serializer[State],
        updates: Serializer[Update] | None = None,
        apply: Callable[[State, Update], State] | None = None,
    ) -> SharedState[State, Update]:
        """Open a value that several clients replicate and update; it is stored in a stream of one segment.

        Use it as a context manager.

        Args:
            initial: the state that is written if the stream is empty.
            states: serializer of whole states.
            updates: serializer of updates, for states that are not written whole with each change.
            apply: returns the state after an update; it must return the same state in every client.

        Raises `NoSuchStreamError`, and `UnsupportedOperationError` for a stream of more than one segment.
        """
        async def opening() -> AsyncSharedState[State, Update]:
            if updates is None or apply is None:
                made = self._part.shared_state(stream, initial=initial, states=states)
                return cast(AsyncSharedState[State, Update], await made)
            return await self._part.shared_state(
                stream, initial=initial, states=states, updates=updates, apply=apply
            )

        return SharedState(self, self._portal, self._portal.call(opening()))

    def batch(
        self,
        stream: str,
        *,
        start: Start = None,
        end: Start = None,
        range_bytes: int | None = None,
        ranges: Sequence[BatchRange] | None = None,
    ) -> BatchReader:
        """Open the data between two cuts of a stream, as ranges readable in any order. Use it as a context manager.

        Args:
            start, end: as for reader groups: by default the head of the stream and its present end; a cut, or a time.
            range_bytes: split longer ranges into parts of about this size, to read one segment in parallel.
            ranges: used instead: some ranges of another batch reader of the stream, for example from another process.

        Raises `NoSuchStreamError`, `InvalidArgumentError`; `SegmentTruncatedError` if the first events were truncated.
        """
        opened = self._opened(lambda: self._part.batch(
            stream, start=start, end=end, range_bytes=range_bytes, ranges=ranges
        ))
        return BatchReader(self, self._portal, opened)

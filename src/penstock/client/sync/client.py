"""The blocking `Client`. Generated from `penstock.client.client`: do not edit.

`python -m penstock.client.generate_sync` makes it anew; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast, overload

from penstock.client.batch_reads import BatchRange
from penstock.client.client import Key, State, Update, Value
from penstock.client.event_writer import EventWriter as AsyncEventWriter
from penstock.client.group_overview import GroupOverview
from penstock.client.opening import Opening
from penstock.client.revisioned_stream import RevisionedStream as AsyncRevisionedStream
from penstock.client.serializers import Serializer
from penstock.client.shared_state import SharedState as AsyncSharedState
from penstock.client.starts import Start
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
from penstock.client.table_keys import TableKeys
from penstock.client.tables import Table as AsyncTable
from penstock.client.transaction import Transaction as AsyncTransaction
from penstock.client.transaction_endings import TransactionInfo
from penstock.client.value_transaction import ValueTransaction as AsyncValueTransaction
from penstock.client.value_writer import ValueWriter as AsyncValueWriter
from penstock.model.policies import GroupRetention
from penstock.model.tables import TableConfig
from penstock.model.times import NotedTime


class Client(StreamCalls):
    """Scopes, streams, writers and readers of one Penstock or Pravega cluster. Use as a context manager.

    Streams are named ``scope/stream``. All methods raise `ControllerUnavailableError` when the controller cannot be
    reached, and `OutcomeUnknownError` when a change got no answer.

    It owns what it opens: closing it closes writers, transactions, readers and groups first.
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
        """Begin a transaction: events that become readable all at once, or never. Use it as a context manager.

        Its lease is renewed while the transaction is open. Leaving it as a context manager commits, or aborts
        after an exception. With a serializer it takes values.

        Raises `NoSuchStreamError`, `InvalidArgumentError` for a lease out of the server's bounds.
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
        """Go on with an open transaction that somebody else began, by its id. Use it as a context manager.

        From then on it is as one begun here: it can be written to, committed and aborted; leaving it undecided aborts
        it. What the one who began it had not flushed is not in it: see `Transaction.detach`.

        Raises:
            TransactionCommittedError, TransactionAbortedError: it is decided; `transaction_state` tells more.
            TransactionExpiredError, TransactionStreamSealedError: it was aborted, as its lease had run out, or as the
                stream was sealed; the first also if it has been open for as long as the server allows.
            TransactionPreparedError: it takes no more events: decide it by `commit_transaction`, `abort_transaction`.
            NoSuchTransactionError: the id is none of this stream, or it ended long ago.
            InvalidArgumentError: what was given is no id, or the lease is out of the server's bounds.
            NoSuchStreamError: there is no such stream.
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

        Unknown is also what ended long ago. Raises `InvalidArgumentError` for what is no id.
        """
        return self._portal.call(self._part.transaction_state(stream, transaction_id))

    def open_transactions(self, stream: str) -> Iterator[TransactionInfo]:
        """Iterate over the transactions of a stream that have not ended, each with its age, lease and size, by epoch.

        Open and prepared ones wait for a decision; what is committing or aborting is listed until that is done. One
        that begins or ends meanwhile may be listed or not. Whoever stops early has asked for a page at most.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` where the controller is Pravega's own.
        """
        return self._portal.iterate(self._part.open_transactions(stream))

    def prepare_transaction(self, stream: str, transaction_id: str, *, limit_s: float | None = None) -> None:
        """Let nothing more be written into a transaction, by its id, and have it wait; see `Transaction.prepare`.

        For who decides upon what others have written: they flush and `detach`, or prepare it themselves. What they had
        not flushed is not in it.

        Raises:
            InvalidArgumentError: what was given is no id, or the limit is out of the server's bounds.
            TransactionCommittedError, TransactionAbortedError: it is decided.
            NoSuchTransactionError: the id is none of this stream, or it ended long ago.
            OutcomeUnknownError: no answer; ask again.
            NoSuchStreamError: there is no such stream.
            UnsupportedOperationError: the controller is Pravega's own.
        """
        self._portal.call(self._part.prepare_transaction(stream, transaction_id, limit_s=limit_s))

    def commit_transaction(self, stream: str, transaction_id: str, *, time: NotedTime | None = None) -> None:
        """Decide that a transaction commits, by its id: one that was prepared, or all of whose events were flushed.

        Safe to repeat, from any process. Once this returns it stays committed.

        Args:
            time: noted with where the transaction ends, as by `Transaction.commit`: all that this client commits is one
                writer's, whoever has written it. Of several commits of one transaction the first one's time counts.

        Raises:
            TransactionAbortedError: it was aborted. None of its events will ever be read.
            NoSuchTransactionError: the id is none of this stream, or it ended long ago.
            OutcomeUnknownError: no answer; ask again.
            InvalidArgumentError: what was given is no id, or no time of 0 or more.
            NoSuchStreamError: there is no such stream.
        """
        self._portal.call(self._part.commit_transaction(stream, transaction_id, time=time))

    def abort_transaction(self, stream: str, transaction_id: str) -> None:
        """Decide that none of a transaction's events are ever read, by its id. Safe to repeat, from any process.

        Raises `TransactionCommittedError`; else as `commit_transaction`.
        """
        self._portal.call(self._part.abort_transaction(stream, transaction_id))

    def segment_reader(self, segment: str, start_offset: int, end_offset: int | None = None) -> SegmentReader:
        """Read the bytes `[start_offset, end_offset)` of a segment, given by its full name, block by block.

        Without `end_offset` it follows the segment until it is sealed.
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
        """Create a reader group, or join the one of that name. Use it as a context manager.

        Of a group that exists, its own positions and times count.

        Args:
            group: its name, or ``scope/group``.
            streams: what it reads, ``scope/stream`` each, or patterns of their names (``scope/orders-*``): streams that
                come later, also the first, are found within `reader_group_stream_refresh_s`, and read from their
                beginning. None: what the group of that name reads, which then has to exist.
            start: "earliest" (also None, "head"), "latest" (also "tail"), a time, a stream cut, or one for each stream.
                Times are `datetime` with a time zone, or text in ISO 8601; cuts may be given as text. At a time:
                nothing of then or later is left out, a little from before may come, see `cut_at_time`.
            until: where the group ends, likewise: its readers hand out what is before, and then no more ever. None: it
                follows its streams until they are sealed.
            scope: where the group lives, by default the scope of the first stream. It cannot be deleted meanwhile.
            reader_timeout_s, processing_time_max_s: of the group, by default those of `ClientSettings`.
            retention: what it holds of its streams. "none": data go as the streams' retention policies say, read or
                not. "automatic": it subscribes to its streams, and they keep what lies behind its last checkpoint, up
                to the maximum of their policies. "manual": likewise, what is not acknowledged, see
                `ReaderGroup.acknowledge`. See `GroupRetention`.
            checkpoint_interval_s: how often one of its readers takes a checkpoint, 0.001 to 1e9; 0: never. By default
                that of `ClientSettings`.

        Raises:
            InvalidArgumentError: the group reads other streams; or `start` is none, or lies beyond the end of a stream;
                or `until` does, or lies before the start; or no stream matches.
            NoSuchScopeError, NoSuchStreamError, NoSuchReaderGroupError: what is missing.
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
        """Iterate over the names of the reader groups of `scope`, other clients' too. Raises `NoSuchScopeError`."""
        return self._portal.iterate(self._part.reader_groups(scope))

    def group_overviews(self, scope: str) -> Iterator[GroupOverview]:
        """Iterate over the reader groups of `scope`, whoever made them: what each holds of its streams.

        Those of Pravega's Rust and PyPI clients come last, without streams: segment stores have their tables, and no
        controller is told what they read. One of theirs is another than one of the same name that is registered.
        Raises `NoSuchScopeError`; `UnsupportedOperationError` where the controller is not Penstock's.
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
        """Create a key-value table (``scope/table``), and its scope if that is missing. Its shape is for good.

        Args:
            key_length: bytes of the first part of each key. It decides on the partition.
            secondary_key_length: bytes of the second part, 0 for keys of one part. See `TableConfig`.
            partition_count: segments that share the keys.
            rollover_bytes: see `TableConfig`.
            exist_ok: it is fine if there is one of the same shape.

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
        """Delete a key-value table and what it holds. Raises `NoSuchTableError`."""
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

        `keys`: what keys are: `TextKeys`, `TextPairKeys`, or by default bytes of the exact length. `values`: a
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
        """Open a stream of one segment that clients write in turn, each knowing what is there.

        Use it as a context manager. Entries are bytes, or what `serializer` makes of them. Raises `NoSuchStreamError`,
        `UnsupportedOperationError` for a stream of more segments than one.
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
        """Open a value that several clients hold a copy of, and change in turn; it lives in a stream of one segment.

        Use it as a context manager.

        Args:
            initial: what is written if the stream holds nothing.
            states: makes bytes of whole states.
            updates: makes bytes of updates, for states that are not written whole with each change.
            apply: returns the state after an update; it must return the same in every client.

        Raises `NoSuchStreamError`, `UnsupportedOperationError` for a stream of more segments than one.
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
        """Open what lies between two cuts of a stream, as ranges to be read in any order. Use it as a context manager.

        Args:
            start, end: as for reader groups: by default the head of the stream and its present end; a cut, or a time.
            range_bytes: cut longer ranges into parts of about so many bytes, to read one segment in parallel.
            ranges: instead: some of the ranges of another batch reader of the stream, as in another process.

        Raises `NoSuchStreamError`, `InvalidArgumentError`; `SegmentTruncatedError` if the first events are gone.
        """
        opened = self._opened(lambda: self._part.batch(
            stream, start=start, end=end, range_bytes=range_bytes, ranges=ranges
        ))
        return BatchReader(self, self._portal, opened)

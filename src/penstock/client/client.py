"""`Client`: the async client. The blocking one in `penstock.client.sync` is generated from it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar, cast, overload

from penstock.client import creation
from penstock.client.batch_reads import BatchRange, BatchReader
from penstock.client.byte_stream import ByteReader, ByteWriter
from penstock.client.event_writer import EventWriter
from penstock.client.group_overview import GroupOverview
from penstock.client.open_transactions import open_transactions
from penstock.client.opening import Opening
from penstock.client.reader_group import ReaderGroup
from penstock.client.revisioned_stream import RevisionedStream
from penstock.client.segment_reader import SegmentReader
from penstock.client.serializers import BytesSerializer, Serializer
from penstock.client.settings import ClientSettings
from penstock.client.shared_state import SharedState
from penstock.client.sources import StreamSource
from penstock.client.starts import Start
from penstock.client.state_entries import StateEntrySerializer
from penstock.client.stream_calls import StreamCalls
from penstock.client.table_keys import BytesKeys, TableKeys
from penstock.client.tables import Table, split_table_name
from penstock.client.transaction import Transaction
from penstock.client.transaction_calls import NO_TIME
from penstock.client.transaction_endings import TransactionInfo
from penstock.client.transaction_ids import id_of
from penstock.client.transaction_times import commit_time
from penstock.client.value_transaction import ValueTransaction
from penstock.client.value_writer import ValueWriter
from penstock.client.writer_times import WriterTimes
from penstock.model.names import check_written_stream_name, split_scoped_name
from penstock.model.policies import GroupRetention
from penstock.model.tables import TableConfig
from penstock.model.times import NotedTime
from penstock.runtime.runtime import Runtime
from penstock.runtime.settings import default_uri

Key = TypeVar("Key")
Value = TypeVar("Value")
State = TypeVar("State")
Update = TypeVar("Update")


class Client(StreamCalls):
    """Scopes, streams, writers and readers of one Penstock or Pravega cluster. Use as an async context manager.

    Streams are named ``scope/stream``. All methods raise `ControllerUnavailableError` when the controller cannot be
    reached, and `OutcomeUnknownError` when a change got no answer.

    It owns what it opens: closing it closes writers, transactions, readers and groups first.
    It belongs to one event loop and one process.
    """

    # -- events -------------------------------------------------------------------------------------------------

    @overload
    def event_writer(self, stream: str, *, serializer: None = None) -> EventWriter: ...

    @overload
    def event_writer(self, stream: str, *, serializer: Serializer[Value]) -> ValueWriter[Value]: ...

    def event_writer(
        self, stream: str, *, serializer: Serializer[Value] | None = None
    ) -> EventWriter | ValueWriter[Value]:
        """Return a writer of events, or with a serializer of values. By `await` or `async with`.

        Opening raises `NoSuchStreamError`, `StreamSealedError`. Raises `InvalidNameError`, also for a stream that holds
        watermarks or the state of a reader group.
        """
        scope, name = split_scoped_name(stream)
        source = StreamSource(self._controller_client, scope, check_written_stream_name(name))
        writer = EventWriter(
            source, self._open_pool(), self._settings, self._runtime.rng,
            owner=self, ack_factory=self._ack_factory, is_threaded=self._is_threaded,
            times=WriterTimes(self._open_cluster(), stream),
        )  # fmt: skip
        return writer if serializer is None else ValueWriter(writer, serializer)

    @overload
    def begin_transaction(
        self, stream: str, *, lease_s: float | None = None, serializer: None = None
    ) -> Opening[Transaction]: ...

    @overload
    def begin_transaction(
        self, stream: str, *, lease_s: float | None = None, serializer: Serializer[Value]
    ) -> Opening[ValueTransaction[Value]]: ...

    def begin_transaction(
        self, stream: str, *, lease_s: float | None = None, serializer: Serializer[Value] | None = None
    ) -> Opening[Transaction | ValueTransaction[Value]]:
        """Begin a transaction: events that become readable all at once, or never. By `await` or `async with`.

        Its lease is renewed while the transaction is open. Leaving it as a context manager commits, or aborts
        after an exception. With a serializer it takes values.

        Raises `NoSuchStreamError`, `InvalidArgumentError` for a lease out of the server's bounds.
        """

        async def begin() -> Transaction | ValueTransaction[Value]:
            transaction = self._new_transaction(stream, lease_s)
            with self._deadline(f"begin a transaction on {stream}"):
                await transaction._begin()
            return transaction if serializer is None else ValueTransaction(transaction, serializer)

        return Opening(begin)

    @overload
    def transaction(
        self, stream: str, transaction_id: str, *, lease_s: float | None = None, serializer: None = None
    ) -> Opening[Transaction]: ...

    @overload
    def transaction(
        self, stream: str, transaction_id: str, *, lease_s: float | None = None, serializer: Serializer[Value]
    ) -> Opening[ValueTransaction[Value]]: ...

    def transaction(
        self,
        stream: str,
        transaction_id: str,
        *,
        lease_s: float | None = None,
        serializer: Serializer[Value] | None = None,
    ) -> Opening[Transaction | ValueTransaction[Value]]:
        """Go on with an open transaction that somebody else began, by its id. By `await` or `async with`.

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

        async def resume() -> Transaction | ValueTransaction[Value]:
            transaction = self._new_transaction(stream, lease_s)
            with self._deadline(f"go on with transaction {transaction_id} on {stream}"):
                await transaction._resume(transaction_id)
            return transaction if serializer is None else ValueTransaction(transaction, serializer)

        return Opening(resume)

    async def transaction_state(self, stream: str, transaction_id: str) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``.

        Unknown is also what ended long ago. Raises `InvalidArgumentError` for what is no id.
        """
        return await self._controller_client.transaction_state(*split_scoped_name(stream), id_of(transaction_id))

    def open_transactions(self, stream: str) -> AsyncIterator[TransactionInfo]:
        """Iterate over the transactions of a stream that have not ended, each with its age, lease and size, by epoch.

        Open and prepared ones wait for a decision; what is committing or aborting is listed until that is done. One
        that begins or ends meanwhile may be listed or not. Whoever stops early has asked for a page at most.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` where the controller is Pravega's own.
        """
        return open_transactions(self._open_cluster(), stream)

    async def prepare_transaction(
        self, stream: str, transaction_id: str, *, limit_s: float | None = None
    ) -> None:
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
        limit_ms = round((self._settings.prepared_limit_s if limit_s is None else limit_s) * 1000)
        await self._controller_client.prepare_transaction(
            *split_scoped_name(stream), id_of(transaction_id), limit_ms=limit_ms
        )

    async def commit_transaction(self, stream: str, transaction_id: str, *, time: NotedTime | None = None) -> None:
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
        scope, name = split_scoped_name(stream)
        transaction = id_of(transaction_id)
        calls, writer, noted = self._controller_client, "", NO_TIME
        if time is not None:
            noted = commit_time(time, f"transaction {transaction_id} on stream {stream}")
            assert self._transaction_times is not None
            writer = self._transaction_times.writer(scope, name)
        await calls.commit_transaction(scope, name, transaction, writer_id=writer, timestamp=noted)

    async def abort_transaction(self, stream: str, transaction_id: str) -> None:
        """Decide that none of a transaction's events are ever read, by its id. Safe to repeat, from any process.

        Raises `TransactionCommittedError`; else as `commit_transaction`.
        """
        await self._controller_client.abort_transaction(*split_scoped_name(stream), id_of(transaction_id))

    def _new_transaction(self, stream: str, lease_s: float | None) -> Transaction:
        scope, name = split_scoped_name(stream)
        check_written_stream_name(name)
        pool = self._open_pool()
        assert self._transaction_times is not None
        return Transaction(
            self._controller_client, pool, self._settings, self._runtime.rng, self._transaction_times, scope, name,
            lease_s=self._settings.transaction_lease_s if lease_s is None else lease_s,
            owner=self, ack_factory=self._ack_factory, is_threaded=self._is_threaded,
        )  # fmt: skip

    def segment_reader(self, segment: str, start_offset: int, end_offset: int | None = None) -> SegmentReader:
        """Read the bytes `[start_offset, end_offset)` of a segment, given by its full name, block by block.

        Without `end_offset` it follows the segment until it is sealed.
        """
        reader = self._open_cluster().segment_reader(segment, start_offset, end_offset)
        self._segment_readers.add(reader)
        return reader

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
    ) -> Opening[ReaderGroup]:
        """Create a reader group, or join the one of that name. By `await` or `async with`.

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

        async def join() -> ReaderGroup:
            readers = ReaderGroup(self._open_cluster(), group, streams, scope=scope)
            with self._deadline(f"join reader group {group}"):
                await readers._open(
                    start,
                    until=until,
                    reader_timeout_s=reader_timeout_s,
                    processing_time_max_s=processing_time_max_s,
                    retention=retention,
                    checkpoint_interval_s=checkpoint_interval_s,
                    owner=self,
                )
            return readers

        return Opening(join)

    def reader_groups(self, scope: str) -> AsyncIterator[str]:
        """Iterate over the names of the reader groups of `scope`, other clients' too. Raises `NoSuchScopeError`."""
        return self._controller_client.reader_groups(scope)

    async def group_overviews(self, scope: str) -> AsyncIterator[GroupOverview]:
        """Iterate over the reader groups of `scope`, whoever made them: what each holds of its streams.

        Those of Pravega's Rust and PyPI clients come last, without streams: segment stores have their tables, and no
        controller is told what they read. One of theirs is another than one of the same name that is registered.
        Raises `NoSuchScopeError`; `UnsupportedOperationError` where the controller is not Penstock's.
        """
        async for found in self._controller_client.group_overviews(scope):
            yield found
        for name in await self._foreign_groups.names(scope):
            yield GroupOverview(f"{scope}/{name}", "rust", GroupRetention.NONE, 0, {})

    async def delete_reader_group(self, group: str, *, scope: str | None = None) -> None:
        """Delete a reader group: ``scope/group``, or `group` and `scope`. Raises `NoSuchReaderGroupError`."""
        await ReaderGroup._delete(self._open_cluster(), group, scope=scope)

    # -- bytes --------------------------------------------------------------------------------------------------

    def byte_writer(self, stream: str) -> Opening[ByteWriter]:
        """Open a writer of raw bytes to a stream of one segment. By `await` or `async with`.

        Raises `InvalidNameError` as `event_writer` does.
        """
        check_written_stream_name(split_scoped_name(stream)[1])
        return Opening(lambda: ByteWriter._open(self._open_cluster(), self._open_pool(), stream, self))

    def byte_reader(self, stream: str) -> Opening[ByteReader]:
        """Open a reader of the raw bytes of a stream of one segment. By `await` or `async with`."""
        return Opening(lambda: ByteReader._open(self._open_cluster(), stream, self))

    # -- key-value tables ---------------------------------------------------------------------------------------

    async def create_table(
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
        scope, name = split_table_name(table)
        config = TableConfig(key_length, secondary_key_length, partition_count, rollover_bytes).checked()
        with self._deadline(f"create table {table}"):
            await creation.create_table(self._controller_client, scope, name, config, exist_ok=exist_ok)

    async def delete_table(self, table: str) -> None:
        """Delete a key-value table and what it holds. Raises `NoSuchTableError`."""
        await self._controller_client.delete_table(*split_table_name(table))

    def tables(self, scope: str) -> AsyncIterator[str]:
        """Iterate over the names of the key-value tables of `scope`. Raises `NoSuchScopeError`."""
        return self._controller_client.tables(scope)

    async def table_config(self, table: str) -> TableConfig:
        """Return the shape of a key-value table. Raises `NoSuchTableError`."""
        return await self._controller_client.table_config(*split_table_name(table))

    @overload
    def table(self, table: str, *, keys: None = None, values: None = None) -> Opening[Table[bytes, bytes]]: ...

    @overload
    def table(self, table: str, *, keys: TableKeys[Key], values: None = None) -> Opening[Table[Key, bytes]]: ...

    @overload
    def table(self, table: str, *, keys: None = None, values: Serializer[Value]) -> Opening[Table[bytes, Value]]: ...

    @overload
    def table(self, table: str, *, keys: TableKeys[Key], values: Serializer[Value]) -> Opening[Table[Key, Value]]: ...

    def table(
        self, table: str, *, keys: TableKeys[Key] | None = None, values: Serializer[Value] | None = None
    ) -> Opening[Table[Key, Value]]:
        """Open a key-value table (``scope/table``). By `await` or `async with`.

        `keys`: what keys are: `TextKeys`, `TextPairKeys`, or by default bytes of the exact length. `values`: a
        serializer, as for events; by default values are bytes. Raises `NoSuchTableError`.
        """
        # Each default goes with the type that its overload names.
        chosen_keys = cast(TableKeys[Key], keys or BytesKeys())
        chosen_values = cast(Serializer[Value], values or BytesSerializer())
        return Opening(lambda: Table._open(self._open_cluster(), table, chosen_keys, chosen_values, self))

    # -- shared state -------------------------------------------------------------------------------------------

    @overload
    def revisioned_stream(self, stream: str, *, serializer: None = None) -> Opening[RevisionedStream[bytes]]: ...

    @overload
    def revisioned_stream(
        self, stream: str, *, serializer: Serializer[Value]
    ) -> Opening[RevisionedStream[Value]]: ...

    def revisioned_stream(
        self, stream: str, *, serializer: Serializer[Value] | None = None
    ) -> Opening[RevisionedStream[Value]]:
        """Open a stream of one segment that clients write in turn, each knowing what is there.

        By `await` or `async with`. Entries are bytes, or what `serializer` makes of them. Raises `NoSuchStreamError`,
        `UnsupportedOperationError` for a stream of more segments than one.
        """
        # The default goes with the type that its overload names.
        chosen = cast(Serializer[Value], serializer or BytesSerializer())
        return Opening(lambda: RevisionedStream._open(self._open_cluster(), self._open_pool(), stream, chosen, self))

    @overload
    def shared_state(
        self, stream: str, *, initial: State, states: Serializer[State], updates: None = None, apply: None = None
    ) -> Opening[SharedState[State, object]]: ...

    @overload
    def shared_state(
        self,
        stream: str,
        *,
        initial: State,
        states: Serializer[State],
        updates: Serializer[Update],
        apply: Callable[[State, Update], State],
    ) -> Opening[SharedState[State, Update]]: ...

    def shared_state(
        self,
        stream: str,
        *,
        initial: State,
        states: Serializer[State],
        updates: Serializer[Update] | None = None,
        apply: Callable[[State, Update], State] | None = None,
    ) -> Opening[SharedState[State, Update]]:
        """Open a value that several clients hold a copy of, and change in turn; it lives in a stream of one segment.

        By `await` or `async with`.

        Args:
            initial: what is written if the stream holds nothing.
            states: makes bytes of whole states.
            updates: makes bytes of updates, for states that are not written whole with each change.
            apply: returns the state after an update; it must return the same in every client.

        Raises `NoSuchStreamError`, `UnsupportedOperationError` for a stream of more segments than one.
        """

        async def open_state() -> SharedState[State, Update]:
            entries = await self.revisioned_stream(stream, serializer=StateEntrySerializer())
            return await SharedState._open(self._open_cluster(), entries, initial, states, updates, apply, self)

        return Opening(open_state)

    def batch(
        self,
        stream: str,
        *,
        start: Start = None,
        end: Start = None,
        range_bytes: int | None = None,
        ranges: Sequence[BatchRange] | None = None,
    ) -> Opening[BatchReader]:
        """Open what lies between two cuts of a stream, as ranges to be read in any order. By `await` or `async with`.

        Args:
            start, end: as for reader groups: by default the head of the stream and its present end; a cut, or a time.
            range_bytes: cut longer ranges into parts of about so many bytes, to read one segment in parallel.
            ranges: instead: some of the ranges of another batch reader of the stream, as in another process.

        Raises `NoSuchStreamError`, `InvalidArgumentError`; `SegmentTruncatedError` if the first events are gone.
        """
        return Opening(lambda: BatchReader._open(self._open_cluster(), stream, start, end, range_bytes, ranges, self))


def connect(
    controller_uri: str | None = None,
    settings: ClientSettings | None = None,
    *,
    runtime: Runtime | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Client:
    """Return an async client of the cluster whose controller is at `controller_uri`, as ``tcp://localhost:9090``.

    Open it with `await`, or with `async with`, which also closes it.

    Without it, `PENSTOCK_URI` of the environment counts, then ``tcp://localhost:9090``.
    """
    return Client(controller_uri or default_uri(), settings, runtime=runtime, ssl_context=ssl_context)

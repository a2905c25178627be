"""`Client`: the async client. The blocking one in `penstock.client.sync` is generated from it."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar, cast, overload

from penstock.client.common.opening import Opening
from penstock.client.common.serializers import BytesSerializer, Serializer
from penstock.client.controller.group_overview import GroupOverview
from penstock.client.controller.sources import StreamSource
from penstock.client.controller.transaction_calls import NO_TIME
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.controller.transaction_ids import id_of
from penstock.client.controller.transaction_times import commit_time
from penstock.client.groups.reader_group import ReaderGroup, delete_reader_group, open_reader_group
from penstock.client.reading.batch_reads import BatchRange, BatchReader, open_batch
from penstock.client.settings import ClientSettings
from penstock.client.state.revisioned_stream import RevisionedStream, open_revisioned_stream
from penstock.client.state.shared_state import SharedState, open_shared_state
from penstock.client.state.state_entries import StateEntrySerializer
from penstock.client.stream_calls import StreamCalls
from penstock.client.streams import creation
from penstock.client.streams.start_positions import Start
from penstock.client.tables.table_keys import BytesKeys, TableKeys
from penstock.client.tables.tables import Table, open_table, split_table_name
from penstock.client.transactions.open_transactions import open_transactions
from penstock.client.transactions.transaction import Transaction, begin_transaction, resume_transaction
from penstock.client.transactions.value_transaction import ValueTransaction
from penstock.client.transport.segment_reader import SegmentReader
from penstock.client.writing.byte_stream import ByteReader, ByteWriter, open_byte_reader, open_byte_writer
from penstock.client.writing.event_writer import EventWriter
from penstock.client.writing.value_writer import ValueWriter
from penstock.client.writing.writer_times import WriterTimes
from penstock.model.names import check_written_stream_name, split_scoped_name
from penstock.model.policies import GroupRetention
from penstock.model.tables import TableConfig
from penstock.model.times import NotedTime
from penstock.runtime.client_security import Credentials, client_security
from penstock.runtime.runtime import Runtime
from penstock.runtime.settings import default_uri

Key = TypeVar("Key")
Value = TypeVar("Value")
State = TypeVar("State")
Update = TypeVar("Update")


class Client(StreamCalls):
    """Scopes, streams, writers and readers of one Penstock or Pravega cluster. Use as an async context manager.

    Streams are named ``scope/stream``. All methods raise `ControllerUnavailableError` when the controller cannot be
    reached, and `OutcomeUnknownError` when a change received no reply.

    The client owns the objects it opens: closing it first closes its writers, transactions, readers and groups.
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
        """Begin a transaction: its events become readable all at once, or never. By `await` or `async with`.

        The lease is renewed while the transaction is open. Leaving the context manager commits the transaction, or
        aborts it after an exception. With a serializer, the transaction takes values.

        Raises `NoSuchStreamError`, `InvalidArgumentError` for a lease outside the server's bounds.
        """

        async def begin() -> Transaction | ValueTransaction[Value]:
            transaction = self._new_transaction(stream, lease_s)
            with self._deadline(f"begin a transaction on {stream}"):
                await begin_transaction(transaction)
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
        """Resume an open transaction by its id, from any process. By `await` or `async with`.

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

        async def resume() -> Transaction | ValueTransaction[Value]:
            transaction = self._new_transaction(stream, lease_s)
            with self._deadline(f"resume transaction {transaction_id} on {stream}"):
                await resume_transaction(transaction, transaction_id)
            return transaction if serializer is None else ValueTransaction(transaction, serializer)

        return Opening(resume)

    async def transaction_state(self, stream: str, transaction_id: str) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``.

        A transaction that ended long ago is ``UNKNOWN``. Raises `InvalidArgumentError` for a malformed id.
        """
        return await self._controller_client.transaction_state(*split_scoped_name(stream), id_of(transaction_id))

    def open_transactions(self, stream: str) -> AsyncIterator[TransactionInfo]:
        """Iterate over a stream's unfinished transactions, each with its age, lease and size, in order of epoch.

        Open and prepared transactions wait for a decision. A committing or aborting transaction is listed until it has
        ended. A transaction that begins or ends during the iteration may be listed or not. Stopping early costs at most
        one page more than was used.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` if the controller is Pravega's own.
        """
        return open_transactions(self._open_cluster(), stream)

    async def prepare_transaction(self, stream: str, transaction_id: str, *, limit_s: float | None = None) -> None:
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
        limit_ms = round((self._settings.prepared_limit_s if limit_s is None else limit_s) * 1000)
        await self._controller_client.prepare_transaction(
            *split_scoped_name(stream), id_of(transaction_id), limit_ms=limit_ms
        )

    async def commit_transaction(self, stream: str, transaction_id: str, *, time: NotedTime | None = None) -> None:
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
        scope, name = split_scoped_name(stream)
        transaction = id_of(transaction_id)
        calls, writer, noted = self._controller_client, "", NO_TIME
        if time is not None:
            noted = commit_time(time, f"transaction {transaction_id} on stream {stream}")
            assert self._transaction_times is not None
            writer = self._transaction_times.writer(scope, name)
        await calls.commit_transaction(scope, name, transaction, writer_id=writer, timestamp=noted)

    async def abort_transaction(self, stream: str, transaction_id: str) -> None:
        """Abort a transaction by its id: none of its events are ever read. Safe to repeat, from any process.

        Raises `TransactionCommittedError`; otherwise as `commit_transaction`.
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

        Without `end_offset`, the reader follows the segment until it is sealed.
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
        """Create a reader group, or join the existing group of that name. By `await` or `async with`.

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

        async def join() -> ReaderGroup:
            readers = ReaderGroup(self._open_cluster(), group, streams, scope=scope)
            with self._deadline(f"join reader group {group}"):
                await open_reader_group(
                    readers,
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
        """Iterate over the names of the reader groups of `scope`, of all clients. Raises `NoSuchScopeError`."""
        return self._controller_client.reader_groups(scope)

    async def group_overviews(self, scope: str) -> AsyncIterator[GroupOverview]:
        """Iterate over all reader groups of `scope`, with the data that each retains in its streams.

        Groups of Pravega's Rust and PyPI clients come last, without streams: their tables are in segment stores, and no
        controller has a record of what they read. Such a group is distinct from a registered group of the same name.
        Raises `NoSuchScopeError`; `UnsupportedOperationError` if the controller is not Penstock's.
        """
        async for found in self._controller_client.group_overviews(scope):
            yield found
        for name in await self._foreign_groups.names(scope):
            yield GroupOverview(f"{scope}/{name}", "rust", GroupRetention.NONE, 0, {})

    async def delete_reader_group(self, group: str, *, scope: str | None = None) -> None:
        """Delete a reader group: ``scope/group``, or `group` and `scope`. Raises `NoSuchReaderGroupError`."""
        await delete_reader_group(self._open_cluster(), group, scope=scope)

    # -- bytes --------------------------------------------------------------------------------------------------

    def byte_writer(self, stream: str) -> Opening[ByteWriter]:
        """Open a writer of raw bytes to a stream of one segment. By `await` or `async with`.

        Raises `InvalidNameError` as `event_writer` does.
        """
        check_written_stream_name(split_scoped_name(stream)[1])
        return Opening(lambda: open_byte_writer(self._open_cluster(), self._open_pool(), stream, self))

    def byte_reader(self, stream: str) -> Opening[ByteReader]:
        """Open a reader of the raw bytes of a stream of one segment. By `await` or `async with`."""
        return Opening(lambda: open_byte_reader(self._open_cluster(), stream, self))

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
        """Create a key-value table (``scope/table``), and its scope if it is missing. Its shape is permanent.

        Args:
            key_length: bytes of the first part of each key. This part selects the partition.
            secondary_key_length: bytes of the second part, 0 for keys of one part. See `TableConfig`.
            partition_count: number of segments that share the keys.
            rollover_bytes: see `TableConfig`.
            exist_ok: accept an existing table of the same shape.

        Raises `TableExistsError`, `InvalidNameError`, `InvalidArgumentError`.
        """
        scope, name = split_table_name(table)
        config = TableConfig(key_length, secondary_key_length, partition_count, rollover_bytes).checked()
        with self._deadline(f"create table {table}"):
            await creation.create_table(self._controller_client, scope, name, config, exist_ok=exist_ok)

    async def delete_table(self, table: str) -> None:
        """Delete a key-value table and its entries. Raises `NoSuchTableError`."""
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

        `keys`: the type of the keys: `TextKeys`, `TextPairKeys`, or by default bytes of the exact length. `values`: a
        serializer, as for events; by default values are bytes. Raises `NoSuchTableError`.
        """
        # Each default goes with the type that its overload names.
        chosen_keys = cast(TableKeys[Key], keys or BytesKeys())
        chosen_values = cast(Serializer[Value], values or BytesSerializer())
        return Opening(lambda: open_table(self._open_cluster(), table, chosen_keys, chosen_values, self))

    # -- shared state -------------------------------------------------------------------------------------------

    @overload
    def revisioned_stream(self, stream: str, *, serializer: None = None) -> Opening[RevisionedStream[bytes]]: ...

    @overload
    def revisioned_stream(self, stream: str, *, serializer: Serializer[Value]) -> Opening[RevisionedStream[Value]]: ...

    def revisioned_stream(
        self, stream: str, *, serializer: Serializer[Value] | None = None
    ) -> Opening[RevisionedStream[Value]]:
        """Open a stream of one segment for conditional writes: a write can require that no newer entry exists.

        By `await` or `async with`. Entries are bytes, or values of `serializer`. Raises `NoSuchStreamError`, and
        `UnsupportedOperationError` for a stream of more than one segment.
        """
        # The default goes with the type that its overload names.
        chosen = cast(Serializer[Value], serializer or BytesSerializer())
        return Opening(lambda: open_revisioned_stream(self._open_cluster(), self._open_pool(), stream, chosen, self))

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
        """Open a value that several clients replicate and update; it is stored in a stream of one segment.

        By `await` or `async with`.

        Args:
            initial: the state that is written if the stream is empty.
            states: serializer of whole states.
            updates: serializer of updates, for states that are not written whole with each change.
            apply: returns the state after an update; it must return the same state in every client.

        Raises `NoSuchStreamError`, and `UnsupportedOperationError` for a stream of more than one segment.
        """

        async def open_state() -> SharedState[State, Update]:
            entries = await self.revisioned_stream(stream, serializer=StateEntrySerializer())
            return await open_shared_state(self._open_cluster(), entries, initial, states, updates, apply, self)

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
        """Open the data between two cuts of a stream, as ranges readable in any order. By `await` or `async with`.

        Args:
            start, end: as for reader groups: by default the head of the stream and its present end; a cut, or a time.
            range_bytes: split longer ranges into parts of about this size, to read one segment in parallel.
            ranges: used instead: some ranges of another batch reader of the stream, for example from another process.

        Raises `NoSuchStreamError`, `InvalidArgumentError`; `SegmentTruncatedError` if the first events were truncated.
        """
        return Opening(lambda: open_batch(self._open_cluster(), stream, start, end, range_bytes, ranges, self))


def connect(
    controller_uri: str | None = None,
    settings: ClientSettings | None = None,
    *,
    runtime: Runtime | None = None,
    ssl_context: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    private_key: str | os.PathLike[str] | None = None,
) -> Client:
    """Return an async client of the cluster whose controller is at `controller_uri`, as ``tcp://localhost:9090``.

    Open it with `await`, or with `async with`, which also closes it.

    Without `controller_uri`, the environment variable `PENSTOCK_URI` applies, then ``tcp://localhost:9090``. ``tls://``
    connects to a server with TLS; `ca`: a PEM file with the certificates of the authorities that are trusted, by
    default those of the system. `credentials`: the account; or `certificate` and `private_key`: PEM files of a client
    certificate that represents the account. Without them, the variables `PENSTOCK_CA`, `PENSTOCK_USER`,
    `PENSTOCK_PASSWORD_FILE`, `PENSTOCK_CERTIFICATE` and `PENSTOCK_PRIVATE_KEY` apply.
    """
    return Client(
        controller_uri or default_uri(),
        settings,
        runtime=runtime,
        ssl_context=ssl_context,
        security=client_security(credentials, ca, certificate=certificate, private_key=private_key),
    )

"""`Client`: the async client. The blocking one in `penstock.client.sync` is generated from it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar, cast, overload
from weakref import WeakSet

from penstock.client import creation
from penstock.client.ack import Ack, AckState
from penstock.client.batch_reads import BatchRange, BatchReader
from penstock.client.byte_stream import ByteReader, ByteWriter
from penstock.client.cluster import Cluster
from penstock.client.connection_pool import ConnectionPool, Resolver
from penstock.client.controller import ControllerClient
from penstock.client.deadline import Deadline, within
from penstock.client.event_writer import EventWriter
from penstock.client.life_cycle import LifeCycle
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
from penstock.client.statistics import ClusterStatistics
from penstock.client.statistics_calls import Groups, StatisticsCalls
from penstock.client.stream_segments import SegmentRange
from penstock.client.table_keys import BytesKeys, TableKeys
from penstock.client.tables import Table, split_table_name
from penstock.client.times import cut_at_time
from penstock.client.transaction import Transaction
from penstock.client.transaction_by_id import id_of
from penstock.client.value_transaction import ValueTransaction
from penstock.client.value_writer import ValueWriter
from penstock.client.wire_segments import WireSegments
from penstock.model.errors import (
    InvalidArgumentError,
)
from penstock.model.names import SegmentId, split_scoped_name
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut
from penstock.model.tables import TableConfig
from penstock.model.times import Time, time_ms
from penstock.runtime.program import WatchProgram
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.settings import default_uri

Key = TypeVar("Key")
Value = TypeVar("Value")
State = TypeVar("State")
Update = TypeVar("Update")


class Client(LifeCycle):
    """Scopes, streams, writers and readers of one Penstock or Pravega cluster. Use as an async context manager.

    Streams are named ``scope/stream``. All methods raise `ControllerUnavailableError` when the controller cannot be
    reached, and `OutcomeUnknownError` when a change got no answer.

    It owns what it opens: closing it closes writers, transactions, readers and groups first.
    It belongs to one event loop and one process.
    """

    def __init__(
        self,
        controller_uri: str,
        settings: ClientSettings | None = None,
        *,
        runtime: Runtime | None = None,
        ssl_context: ssl.SSLContext | None = None,
        controller: ControllerClient | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        super().__init__(f"client of {controller_uri}", close_timeout_s=self._settings.close_timeout_s)
        self._uri = controller_uri
        self._runtime = runtime or real_runtime(1)
        self._ssl_context = ssl_context
        self._controller = controller
        self._resolver = resolver
        self._pool: ConnectionPool | None = None
        self._cluster: Cluster | None = None
        self._statistics_calls: StatisticsCalls
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Those that somebody still holds. They are many and short-lived, and have nothing to finish: no children.
        self._segment_readers: WeakSet[SegmentReader] = WeakSet()
        self._ack_factory: Callable[[], AckState] = Ack
        self._is_threaded = False

    async def __aenter__(self) -> Client:
        self.open()
        return self

    def open(
        self, *, watch_program: WatchProgram | None = None, ack_factory: Callable[[], AckState] | None = None
    ) -> None:
        """Make the client usable in the running event loop. Nothing is connected before the first request.

        For front ends: with `watch_program` they look after the program's fork and exit themselves; with `ack_factory`
        writers give out acks of theirs, and take events from other threads.
        """
        if self.is_open:
            return
        if ack_factory is not None:
            self._ack_factory = ack_factory
            self._is_threaded = True
        if self._controller is None and not self.is_closed:
            self._controller = ControllerClient.connect(self._uri, self._settings, self._runtime.rng)
        self._open_life(None, watch_program or self._runtime.watch_program)
        assert self._controller is not None
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(
            self._resolver or self._controller.endpoint_of, self._settings, ssl_context=self._ssl_context
        )
        segments = WireSegments(self._pool, self._settings, self._runtime.rng)
        self._cluster = Cluster(
            self._controller, segments, self._settings, self._runtime.rng, self._runtime.wall_clock_ms
        )
        self._statistics_calls = StatisticsCalls(self._cluster, self._pool)

    async def _release(self) -> None:
        await asyncio.gather(*(reader.close() for reader in list(self._segment_readers)))
        if self._pool is not None:
            await self._pool.close()
        if self._controller is not None:
            await self._controller.close()

    @property
    def uri(self) -> str:
        """The address of the controller."""
        return self._uri

    @property
    def settings(self) -> ClientSettings:
        """The settings in force."""
        return self._settings

    @property
    def controller(self) -> ControllerClient:
        """The controller's calls, for what this class does not offer."""
        return self._open_cluster().controller

    @property
    def segments(self) -> WireSegments:
        """The segment stores behind the `Segments` seam."""
        return self._open_cluster().segments

    # -- scopes and streams -------------------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `ScopeExistsError`, `InvalidNameError`."""
        await self.controller.create_scope(scope)

    async def delete_scope(self, scope: str) -> None:
        """Delete an empty scope. Raises `NoSuchScopeError`, `ScopeNotEmptyError`."""
        await self.controller.delete_scope(scope)

    def scopes(self) -> AsyncIterator[str]:
        """Iterate over the names of all scopes."""
        return self.controller.scopes()

    async def create_stream(
        self,
        stream: str,
        *,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] = (),
        rollover_bytes: int = 0,
        exist_ok: bool = False,
    ) -> None:
        """Create a stream, and its scope if that is missing. The default is one segment that keeps everything.

        Raises `StreamExistsError` unless `exist_ok`; the policies of an existing stream are not compared.
        """
        scope, name = split_scoped_name(stream)
        config = StreamConfig(scaling or Scaling.fixed(1), retention, tuple(tags), rollover_bytes=rollover_bytes)
        config = config.checked()
        with self._deadline(f"create stream {stream}"):
            await creation.create_stream(self.controller, scope, name, config, exist_ok=exist_ok)

    async def update_stream(
        self,
        stream: str,
        *,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] | None = None,
    ) -> None:
        """Change a stream's policies or tags; what is None stays. Raises `NoSuchStreamError`, `StreamSealedError`.

        To drop a retention policy, use `penstock.aio`, whose `Client.controller` takes a whole `StreamConfig`.
        """
        scope, name = split_scoped_name(stream)
        with self._deadline(f"update stream {stream}"):
            old = await self.controller.stream_config(scope, name)
            config = StreamConfig(
                scaling or old.scaling,
                retention or old.retention,
                old.tags if tags is None else tuple(tags),
                old.timestamp_aggregation_timeout_ms,
                old.rollover_bytes,
            )
            await self.controller.update_stream(scope, name, config.checked())

    async def segments_of(self, stream: str) -> Sequence[SegmentRange]:
        """Return the segments that take events now, by the keys they take; none of a sealed stream.

        Raises `NoSuchStreamError`.
        """
        return await self.controller.current_segments(*split_scoped_name(stream))

    async def scale_stream(
        self, stream: str, *, seal: Sequence[int], key_ranges: Sequence[tuple[float, float]], timeout_s: float = 60.0
    ) -> None:
        """Replace the segments `seal`, given by id, by one new segment per key range, and wait until that is done.

        Ranges are (low, high) with 0.0 <= low < high <= 1.0; together they are those of the segments they replace.
        To get a number of equal segments, set `Scaling.fixed` with `update_stream`. Writers and readers follow by
        themselves, and events of one routing key stay in order.

        Raises `NoSuchStreamError`; `InvalidArgumentError`, `MetadataConflictError` for what does not fit or while
        another scale is under way; `OutcomeUnknownError` when it is not done within `timeout_s` seconds: it goes on.
        """
        scope, name = split_scoped_name(stream)
        await self.controller.scale_stream(
            scope, name, seal=[SegmentId(segment) for segment in seal], key_ranges=key_ranges, timeout_s=timeout_s
        )

    async def seal_stream(self, stream: str) -> None:
        """Let a stream take no more events. Raises `NoSuchStreamError`."""
        await self.controller.seal_stream(*split_scoped_name(stream))

    async def delete_stream(self, stream: str) -> None:
        """Delete a sealed stream and its data. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        await self.controller.delete_stream(*split_scoped_name(stream))

    async def truncate_stream(self, cut: StreamCut) -> None:
        """Forget the events of a stream before `cut`. Raises `NoSuchStreamError`, `MetadataConflictError`."""
        await self.controller.truncate_stream(cut)

    async def streams(self, scope: str, *, tag: str | None = None) -> AsyncIterator[str]:
        """Iterate over the names of the streams of `scope`, all or those with `tag`. Raises `NoSuchScopeError`.

        Streams that Pravega keeps for itself, whose names begin with ``_``, are left out.
        """
        async for stream in self.controller.streams(scope, tag=tag):
            if not stream.startswith("_"):
                yield stream

    async def stream_exists(self, stream: str) -> bool:
        """Say whether a stream exists."""
        return await self.controller.stream_exists(*split_scoped_name(stream))

    async def stream_config(self, stream: str) -> StreamConfig:
        """Return a stream's policies and tags. Raises `NoSuchStreamError`."""
        return await self.controller.stream_config(*split_scoped_name(stream))

    async def head(self, stream: str) -> StreamCut:
        """Return the cut of the oldest events that still exist. Raises `NoSuchStreamError`."""
        return await self._open_cluster().head(stream)

    async def tail(self, stream: str) -> StreamCut:
        """Return a cut after everything acknowledged so far. Raises `NoSuchStreamError`."""
        return await self._open_cluster().tail(stream)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """Return start, length and state of a segment, given by its full name. Raises `NoSuchSegmentError`."""
        return await self.segments.segment_info(segment)

    async def successors(self, stream: str, segment: int) -> dict[int, Sequence[int]]:
        """Return the segments that follow a sealed one (by its id), each with all that it replaces.

        None: the stream ends there. A follower may be read once all that it replaces are read to their end.
        """
        scope, name = split_scoped_name(stream)
        following = await self.controller.successors(scope, name, SegmentId(segment))
        return {int(each.segment.segment_id): each.predecessors for each in following}

    async def cut_at_time(self, stream: str, time: Time, *, is_end: bool = False) -> StreamCut:
        """Return a cut of a stream with nothing before it that was stored at `time` or later.

        With `is_end` one with nothing behind it that was stored before `time`. Stores know times of about every MiB of
        a segment, and of its last change; so the cut lies up to so much earlier, with `is_end` later, than the time. A
        time is that of the segment stores' clocks; an event of a transaction has that of the commit.

        Raises `NoSuchStreamError`; `InvalidArgumentError` for a time without a zone, or one that is still to come.
        """
        return await cut_at_time(self._open_cluster(), stream, time_ms(time, "time"), is_end=is_end)

    # -- events -------------------------------------------------------------------------------------------------

    @overload
    def event_writer(self, stream: str, *, serializer: None = None) -> EventWriter: ...

    @overload
    def event_writer(self, stream: str, *, serializer: Serializer[Value]) -> ValueWriter[Value]: ...

    def event_writer(
        self, stream: str, *, serializer: Serializer[Value] | None = None
    ) -> EventWriter | ValueWriter[Value]:
        """Return a writer of events, or with a serializer of values. By `await` or `async with`.

        Opening raises `NoSuchStreamError`, `StreamSealedError`.
        """
        source = StreamSource(self.controller, *split_scoped_name(stream))
        writer = EventWriter(
            source, self._open_pool(), self._settings, self._runtime.rng,
            owner=self, ack_factory=self._ack_factory, is_threaded=self._is_threaded,
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
            TransactionExpiredError: it has been open for as long as the server allows.
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
        return await self.controller.transaction_state(*split_scoped_name(stream), id_of(transaction_id))

    def _new_transaction(self, stream: str, lease_s: float | None) -> Transaction:
        scope, name = split_scoped_name(stream)
        return Transaction(
            self.controller, self._open_pool(), self._settings, self._runtime.rng, scope, name,
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
        holds_data: bool = False,
    ) -> Opening[ReaderGroup]:
        """Create a reader group, or join the one of that name. By `await` or `async with`.

        Of a group that exists, its own positions and times count.

        Args:
            group: its name, or ``scope/group``.
            streams: what it reads, ``scope/stream`` each, or patterns of their names (``scope/orders-*``): streams that
                come later are found within `reader_group_stream_refresh_s`, and read from their beginning. None: what
                the group of that name reads, which then has to exist.
            start: "earliest" (also None, "head"), "latest" (also "tail"), a time, a stream cut, or one for each stream.
                Times are `datetime` with a time zone, or text in ISO 8601; cuts may be given as text. At a time:
                nothing of then or later is left out, a little from before may come, see `cut_at_time`.
            until: where the group ends, likewise: its readers hand out what is before, and then no more ever. None: it
                follows its streams until they are sealed.
            scope: where the group lives, by default the scope of the first stream. It cannot be deleted meanwhile.
            reader_timeout_s, processing_time_max_s: of the group, by default those of `ClientSettings`.
            holds_data: the group subscribes to its streams: retention keeps what it has not read, up to the maximum of
                the stream's retention policy.

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
                    holds_data=holds_data,
                    owner=self,
                )
            return readers

        return Opening(join)

    def reader_groups(self, scope: str) -> AsyncIterator[str]:
        """Iterate over the names of the reader groups of `scope`, other clients' too. Raises `NoSuchScopeError`."""
        return self.controller.reader_groups(scope)

    async def delete_reader_group(self, group: str, *, scope: str | None = None) -> None:
        """Delete a reader group: ``scope/group``, or `group` and `scope`. Raises `NoSuchReaderGroupError`."""
        await ReaderGroup._delete(self._open_cluster(), group, scope=scope)

    # -- looking after the cluster ------------------------------------------------------------------------------

    async def statistics(self, since: ClusterStatistics | None = None, *, groups: Groups = ()) -> ClusterStatistics:
        """Return what the cluster is doing: loads of segments, streams and containers, memory, cache, log, backlog.

        Cheap enough to be asked every second: give the last answer as `since`, and only news are asked for.

        Args:
            since: an earlier answer, of this cluster. Rates are then those in between, else those of the last second.
            groups: reader groups, ``scope/group`` each, whose lag is wanted; or "all".

        A segment store that does not answer within `statistics_timeout_s` is named with its problem, and its containers
        are missing; the rest is complete.

        Raises:
            NoSuchReaderGroupError: one of `groups` does not exist.
            ControllerUnavailableError: the controller was to say where the stores are, and cannot be reached.
        """
        self._open_cluster()
        return await self._statistics_calls.ask(since, groups)

    # -- bytes --------------------------------------------------------------------------------------------------

    def byte_writer(self, stream: str) -> Opening[ByteWriter]:
        """Open a writer of raw bytes to a stream of one segment. By `await` or `async with`."""
        return Opening(lambda: ByteWriter.open(self._open_cluster(), stream, self))

    def byte_reader(self, stream: str) -> Opening[ByteReader]:
        """Open a reader of the raw bytes of a stream of one segment. By `await` or `async with`."""
        return Opening(lambda: ByteReader.open(self._open_cluster(), stream, self))

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
            await creation.create_table(self.controller, scope, name, config, exist_ok=exist_ok)

    async def delete_table(self, table: str) -> None:
        """Delete a key-value table and what it holds. Raises `NoSuchTableError`."""
        await self.controller.delete_table(*split_table_name(table))

    def tables(self, scope: str) -> AsyncIterator[str]:
        """Iterate over the names of the key-value tables of `scope`. Raises `NoSuchScopeError`."""
        return self.controller.tables(scope)

    async def table_config(self, table: str) -> TableConfig:
        """Return the shape of a key-value table. Raises `NoSuchTableError`."""
        return await self.controller.table_config(*split_table_name(table))

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
        return Opening(lambda: Table.open(self._open_cluster(), table, chosen_keys, chosen_values, self))

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
        return Opening(lambda: RevisionedStream.open(self._open_cluster(), self._open_pool(), stream, chosen, self))

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
            return await SharedState.open(self._open_cluster(), entries, initial, states, updates, apply, self)

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
        return Opening(lambda: BatchReader.open(self._open_cluster(), stream, start, end, range_bytes, ranges, self))

    # -- inside -------------------------------------------------------------------------------------------------

    def _deadline(self, what: str) -> AbstractContextManager[Deadline]:
        """Bound a call that is made of several; those that are one request are bounded where it is sent."""
        return within(what, self._settings.retry_time_max_s, "retry_time_max_s")

    def _open_cluster(self) -> Cluster:
        self._check_open()
        assert self._cluster is not None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._cluster  # A front end that makes something here, and uses it in the loop.
        if loop is not self._loop:
            raise InvalidArgumentError(
                f"the {self._what} belongs to the event loop it was opened in, and this is another one: connect in each"
            )
        return self._cluster

    def _open_pool(self) -> ConnectionPool:
        self._open_cluster()
        assert self._pool is not None
        return self._pool


def connect(
    controller_uri: str | None = None,
    settings: ClientSettings | None = None,
    *,
    runtime: Runtime | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Client:
    """Return an async client of the cluster whose controller is at `controller_uri`, as ``tcp://localhost:9090``.

    Without it, `PENSTOCK_URI` of the environment counts, then ``tcp://localhost:9090``.
    """
    return Client(controller_uri or default_uri(), settings, runtime=runtime, ssl_context=ssl_context)

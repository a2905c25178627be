"""`ClientCore`: a client's connections, from opening to closing; base of the classes that use them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Self
from weakref import WeakSet

from penstock.client.common.deadline import Deadline, within
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.waits import Waits
from penstock.client.controller.controller import ControllerClient, parse_controller_uri
from penstock.client.controller.transaction_times import TransactionTimes
from penstock.client.reading.chunk_places import ChunkPlaces
from penstock.client.reading.direct_reads import DirectReads
from penstock.client.settings import ClientSettings
from penstock.client.statistics.statistics_calls import StatisticsCalls
from penstock.client.statistics.unregistered_groups import UnregisteredGroups
from penstock.client.transport.chunk_layouts import ChunkLayouts, SegmentLayout
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.connection_pool import ConnectionPool, Resolver
from penstock.client.transport.delegation_tokens import DelegationTokens
from penstock.client.transport.segment_reader import SegmentReader
from penstock.client.transport.wire_segments import WireSegments
from penstock.client.writing.ack import Ack, AckState
from penstock.model.errors import (
    InvalidArgumentError,
)
from penstock.runtime.client_security import ClientSecurity
from penstock.runtime.program import WatchProgram
from penstock.runtime.runtime import Runtime, real_runtime


class ClientCore(LifeCycle):
    """The common base of a `Client`: the controller, the segment stores, the settings."""

    def __init__(
        self,
        controller_uri: str,
        settings: ClientSettings | None = None,
        *,
        runtime: Runtime | None = None,
        ssl_context: ssl.SSLContext | None = None,
        security: ClientSecurity | None = None,
        controller: ControllerClient | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        super().__init__(f"client of {controller_uri}", close_timeout_s=self._settings.close_timeout_s)
        self._uri = controller_uri
        self._runtime = runtime or real_runtime(1)
        self._ssl_context = ssl_context
        self._security = security or ClientSecurity()
        self._controller = controller
        self._resolver = resolver
        self._pool: ConnectionPool | None = None
        self._waits = Waits(self._settings)
        self._cluster: Cluster | None = None
        self._chunk_places = ChunkPlaces(self._runtime, self._settings)
        self._statistics_calls: StatisticsCalls
        self._foreign_groups: UnregisteredGroups
        self._transaction_times: TransactionTimes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Those that are still referenced. They are many and short-lived, and have nothing to finish: no children.
        self._segment_readers: WeakSet[SegmentReader] = WeakSet()
        self._ack_factory: Callable[[], AckState] = Ack
        self._is_threaded = False

    async def __aenter__(self) -> Self:
        self._open()
        return self

    def __await__(self) -> Generator[object, None, Self]:
        """Open the client, as `async with` does, for programs that close it themselves."""
        return self.__aenter__().__await__()

    def _open(
        self, *, watch_program: WatchProgram | None = None, ack_factory: Callable[[], AckState] | None = None
    ) -> None:
        """See `ClientParts.open`."""
        if self.is_open:
            return
        if ack_factory is not None:
            self._ack_factory = ack_factory
            self._is_threaded = True
        if self._controller is None and not self.is_closed:
            self._controller = ControllerClient.connect(self._uri, self._settings, self._runtime.rng, self._security)
            if self._ssl_context is None and parse_controller_uri(self._uri)[1]:
                # A cluster encrypts all of its ports, or none.
                self._ssl_context = self._security.tls_context()
        self.open_life(None, watch_program or self._runtime.watch_program)
        assert self._controller is not None
        self._controller.waits = self._waits
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(
            self._resolver or self._controller.endpoint_of,
            self._settings,
            ssl_context=self._ssl_context,
            waits=self._waits,
            tokens=DelegationTokens(self._controller.delegation_token) if self._security.has_account else None,
            controller=self._uri,
        )
        segments = WireSegments(self._pool, self._settings, self._runtime.rng)
        self._cluster = Cluster(
            self._controller, segments, self._settings, self._runtime.rng, self._runtime.wall_clock_ms
        )
        self._statistics_calls = StatisticsCalls(self._cluster, self._pool)
        self._foreign_groups = UnregisteredGroups(self._cluster, self._pool)
        self._transaction_times = TransactionTimes(self._controller, self._runtime.rng)

    async def _finish(self) -> None:
        if self._transaction_times is not None:
            await self._transaction_times.leave()

    async def _release(self) -> None:
        await asyncio.gather(*(reader.close() for reader in list(self._segment_readers)))
        await self._chunk_places.close()
        if self._pool is not None:
            await self._pool.close()
        if self._controller is not None:
            await self._controller.close()
        self._waits.close()

    @property
    def uri(self) -> str:
        """The address of the controller."""
        return self._uri

    @property
    def settings(self) -> ClientSettings:
        """The client's settings."""
        return self._settings

    @property
    def _controller_client(self) -> ControllerClient:
        """The controller's calls, for operations that this class does not offer."""
        return self._open_cluster().controller

    @property
    def _segment_client(self) -> WireSegments:
        """The segment stores behind the `Segments` seam."""
        return self._open_cluster().segments

    @property
    def parts(self) -> ClientParts:
        """The client's parts, for connectors, jobs and commands; see `penstock.client.low_level`."""
        return ClientParts(self)

    # -- inside -------------------------------------------------------------------------------------------------

    def _deadline(self, what: str) -> AbstractContextManager[Deadline]:
        """Bound a call that consists of several requests; single requests are bounded where they are sent."""
        return within(what, self._settings.retry_time_max_s, "retry_time_max_s")

    def _open_cluster(self) -> Cluster:
        self._check_open()
        assert self._cluster is not None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._cluster  # For a front end that creates objects outside the loop, and uses them in it.
        if loop is not self._loop:
            raise InvalidArgumentError(
                f"the {self._what} belongs to the event loop in which it was opened: connect in each event loop"
            )
        return self._cluster

    def _open_pool(self) -> ConnectionPool:
        self._open_cluster()
        assert self._pool is not None
        return self._pool


class ClientParts:
    """What other packages of Penstock use of a client. The parts belong to the client: they are closed with it.

    All raise `ClosedError` unless the client is open, except `open` and `chunk_places`.
    """

    def __init__(self, client: ClientCore) -> None:
        self._client = client

    def open(
        self, *, watch_program: WatchProgram | None = None, ack_factory: Callable[[], AckState] | None = None
    ) -> None:
        """Make the client usable in the running event loop. Nothing is connected before the first request.

        For front ends: with `watch_program` they handle the program's fork and exit themselves; with `ack_factory`
        writers return acks of that kind, and take events from other threads.
        """
        self._client._open(watch_program=watch_program, ack_factory=ack_factory)

    @property
    def cluster(self) -> Cluster:
        """The controller and the segment stores, as the client's own parts use them."""
        return self._client._open_cluster()

    @property
    def controller(self) -> ControllerClient:
        """The calls of the controller."""
        return self._client._controller_client

    @property
    def segments(self) -> WireSegments:
        """The requests to segment stores."""
        return self._client._segment_client

    @property
    def chunk_layouts(self) -> ChunkLayouts:
        """The requests for layouts of chunks; see docs/direct-reads.md."""
        client = self._client
        return ChunkLayouts(client._open_pool(), client._settings, client._runtime.rng)

    @property
    def chunk_places(self) -> ChunkPlaces:
        """The places of chunks that the client has found."""
        return self._client._chunk_places

    def direct_reads(self, layout: SegmentLayout, *, place: str = "", is_required: bool = False) -> DirectReads:
        """Return reads by a layout, with a fallback to the store; see `DirectReads`."""
        return DirectReads(self.segments, layout, self.chunk_places, place=place, is_required=is_required)

    def direct_reader(self, reads: DirectReads, layout: SegmentLayout, start: int, end: int) -> SegmentReader:
        """Read `[start, end)` of the segment of a layout by `reads`, ahead of the consumer."""
        reader = SegmentReader(reads, layout.segment, start, end, self._client._settings)
        self._client._segment_readers.add(reader)
        return reader

"""`SimulatedStack`: a segment store and a controller over logs and chunks in memory, and a client, in virtual time.

The code is that of production, from the client's socket calls to the operation log; the loop and the network are the
simulation's, so a time-out costs nothing and a seed fixes everything. Called step by step from tests that are not
coroutines, as state machines are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

from hypothesis import HealthCheck, settings

from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.service import ControllerService
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock_simulation.simulated.controller_calls import serve_controller, simulated_stub
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.simulation import Simulation
from support.containers import FaultyChunks, memory_runtime

T = TypeVar("T")

STORE_PORT, CONTROLLER_PORT = 6000, 9090
CONTAINER_COUNT = 2
#: Until a client has heard of a lost connection. A change sent before that has no known outcome.
_NEWS_TAKE_S = 0.1

#: So small that a few events roll, flush, evict, compact and checkpoint.
STORE_SETTINGS = SegmentStoreSettings(
    container_count=CONTAINER_COUNT,
    cache=CacheSettings(bytes_max=64 * 1024, target_percent=30, block_length=256, small_append_length=64),
    container=replace(
        ContainerSettings(),
        checkpoint_log_bytes=4000,
        checkpoint_log_bytes_idle=1000,
        flush_bytes=500,
        flush_age_s=0.5,
        flush_write_bytes_max=400,
        read_ahead_bytes=512,
        read_small_bytes=128,
        whole_read_bytes=512,
        writer_interval_s=0.1,
        table_compact_bytes=1500,
        table_compact_step_bytes=300,
    ),
)


def state_machine_settings(*, max_examples: int, stateful_step_count: int) -> settings:
    """Return the settings of a state machine: few examples, always the same; many new ones when it is night.

    ``PENSTOCK_TEST_PROFILE=nightly`` or ``--hypothesis-profile=nightly`` makes it night.
    """
    if "nightly" in (settings.get_current_profile_name(), os.environ.get("PENSTOCK_TEST_PROFILE")):
        return settings.get_profile("nightly")
    return settings(
        max_examples=max_examples,
        stateful_step_count=stateful_step_count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class SimulatedStack:
    """See the module. Close it at the end.

    Attributes:
        client: the production client, on a host of its own, for the functions given to `call`.
    """

    client: Client

    def __init__(
        self,
        seed: int = 0,
        store_settings: SegmentStoreSettings = STORE_SETTINGS,
        client_settings: ClientSettings | None = None,
    ) -> None:
        self.simulation = Simulation(seed)
        self._store_settings = store_settings
        self._client_settings = client_settings or ClientSettings()
        self._logs: DurableLogFactory = MemoryLogFactory(memory_runtime(), frame_length_max_bytes=2000)
        self._chunks: ChunkStorage = FaultyChunks()
        self._is_ready = False
        self.server = self.simulation.host("server", self._serve)
        self._client_host = self.simulation.host("client")
        self.simulation.run(self._until_ready)
        self.call(self._open_client)

    async def _open_client(self) -> None:
        client_settings = self._client_settings
        rng = self._client_host.runtime.rng
        controller = ControllerClient(simulated_stub("server", CONTROLLER_PORT), client_settings, rng)
        self.client = Client(
            "tcp://server:9090", client_settings, runtime=self._client_host.runtime, controller=controller
        )
        self.client._open()

    async def _serve(self, host: Host) -> None:
        store = SegmentStore(logs=self._logs, chunks=self._chunks, runtime=host.runtime, settings=self._store_settings)
        await store.start()
        await SegmentStoreServer(store).start("0.0.0.0", STORE_PORT)
        service = ControllerService(
            metadata=SegmentsMetadataStore(store),
            segments=store,
            locator=SingleStoreLocator("server", STORE_PORT, CONTAINER_COUNT),
            runtime=host.runtime,
        )
        await service.start()
        listener = await serve_controller(service, "server", CONTROLLER_PORT)
        self._is_ready = True
        await asyncio.get_running_loop().create_future()
        listener.close()

    async def _until_ready(self) -> None:
        while not self._is_ready:
            assert not self.server.failures, self.server.failures
            await asyncio.sleep(0.001)

    def call(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run `work` on the client's host and return its result."""
        return self.simulation.run(lambda: self._client_host.run(work()))

    def pass_time(self, seconds: float) -> None:
        """Let virtual time pass, so that background work runs when it is due."""
        self.simulation.run(lambda: asyncio.sleep(seconds))

    def crash(self) -> None:
        """Kill store and controller where they are, start new ones, wait until they serve and the client knows."""
        self._kill()
        self.pass_time(_NEWS_TAKE_S)
        self.server.restart()
        self.simulation.run(self._until_ready)

    def _kill(self) -> None:
        self._is_ready = False
        self.server.crash(Death.KILL)

    def call_and_crash(self, work: Callable[[], Coroutine[object, object, T]], after_s: float) -> T:
        """As `call`, with a crash `after_s` after the beginning and a new start shortly after that."""
        loop = self.simulation.loop

        def crash() -> None:
            self._kill()
            loop.at(loop.time() + _NEWS_TAKE_S, self.server.restart)

        loop.at(loop.time() + after_s, crash)

        async def both() -> T:
            try:
                return await self._client_host.run(work())
            finally:
                # The crash may be still to come, if the work was fast.
                await asyncio.sleep(after_s + 2 * _NEWS_TAKE_S)
                await self._until_ready()

        return self.simulation.run(both)

    def close(self) -> None:
        """End everything."""
        self.simulation.close()


async def outcome_of(call: Awaitable[T], *errors: type[BaseException]) -> T | type[BaseException]:
    """Return what a call returned, or the class of what it raised if that is one of `errors`."""
    try:
        return await call
    except errors as error:
        return type(error)

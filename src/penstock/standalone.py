"""`Standalone`: segment store and controller assembled in one process, with local or in-memory tiers.

The controller asks the store by direct calls; clients come over TCP. Start to stop:

1. lock the data directory, recover every container, listen for segment store clients;
2. start the controller (its metadata are in the store), then listen for its clients;
3. stop in the opposite order, so that whatever was accepted is finished while what it needs still runs.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from types import TracebackType

from penstock.controller.grpc_server import GrpcServer
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.layout import SYSTEM_TABLES
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.service import ControllerService
from penstock.data_directory import DataDirectory
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock.model.routing import container_of
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier1.local_log import LocalLogFactory
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.settings import StandaloneSettings


class PortInUseError(InvalidArgumentError):
    """A port to listen on is taken, or not ours to take."""


class Standalone:
    """One server. Start it once; after `stop` make a new one.

    `runtime`: the outside world, the real one by default; it is closed by `stop`.
    """

    def __init__(self, settings: StandaloneSettings, runtime: Runtime | None = None) -> None:
        self.settings = settings
        self.runtime = runtime if runtime is not None else real_runtime(settings.blocking_thread_count_max)
        self.store: SegmentStore
        self.segment_store_port = 0
        self.controller_port = 0
        # The stops of what was started; run backwards, each whether or not the one before failed.
        self._stops = AsyncExitStack()

    @property
    def controller_uri(self) -> str:
        """What clients connect to."""
        return f"tcp://{_authority(self.settings.advertised_host, self.controller_port)}"

    @property
    def segment_store_address(self) -> str:
        """``host:port`` that the controller tells clients."""
        return _authority(self.settings.advertised_host, self.segment_store_port)

    @property
    def data_description(self) -> str:
        """Where the data are, for people."""
        return "memory" if self.settings.is_memory else self.settings.data_dir

    async def start(self) -> None:
        """Start everything; return when clients are served.

        A container with corrupt data stays offline and is reported in `store.failures`; the rest serves, if the
        controller's own tables are not in it. Whatever goes wrong, nothing is left running.

        Raises:
            DataDirectoryInUseError, DataDirectoryError: see `DataDirectory.open`.
            PortInUseError: a port cannot be listened on.
            CorruptionError, LogDisabledError: a container that holds tables of the controller cannot be served.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self.settings
        self._stops.push_async_callback(self.runtime.work.close)
        logs, chunks = await self._open_tiers()
        self.store = SegmentStore(logs=logs, chunks=chunks, runtime=self.runtime, settings=settings.segment_store)
        await self.store.start()
        self._stops.push_async_callback(self.store.stop)

        server = SegmentStoreServer(self.store)
        await _listen(
            "segment store",
            settings.host,
            settings.segment_store_port,
            server.start(settings.host, settings.segment_store_port),
        )
        self._stops.push_async_callback(server.stop)
        self.segment_store_port = server.port

        self._check_controller_tables()
        locator = SingleStoreLocator(
            settings.advertised_host, server.port, container_count=settings.segment_store.container_count
        )
        service = ControllerService(
            metadata=SegmentsMetadataStore(self.store, settings.controller),
            segments=self.store,
            locator=locator,
            runtime=self.runtime,
            settings=settings.controller,
        )
        await service.start()
        self._stops.push_async_callback(service.stop)
        front = GrpcServer(
            service,
            settings.host,
            settings.controller_port,
            published_host=settings.advertised_host,
            settings=settings.controller,
        )
        await _listen("controller", settings.host, settings.controller_port, front.start())
        self._stops.push_async_callback(front.stop)
        self.controller_port = front.port

    def _check_controller_tables(self) -> None:
        """Give up at once, instead of after many retries, when tables of the controller can't be served."""
        for table in SYSTEM_TABLES:
            failure = self.store.failures.get(container_of(table, self.settings.segment_store.container_count))
            if failure is not None:
                raise failure

    async def _open_tiers(self) -> tuple[DurableLogFactory, ChunkStorage]:
        if self.settings.is_memory:
            return MemoryLogFactory(self.runtime), MemoryChunkStorage()
        directory = DataDirectory(self.settings.data_dir, self.runtime)
        await self.runtime.work.run(directory.open, self.settings.segment_store.container_count)
        self._stops.callback(directory.close)
        return (
            LocalLogFactory(directory.tier1, self.runtime, self.settings.durable_log),
            DirectoryChunkStorage(directory.tier2, self.runtime, self.settings.long_term_storage),
        )

    async def stop(self) -> None:
        """Stop accepting, finish what was accepted, stop all. Fine to call again.

        Every part is stopped, also when the one before could not stop in order; then its error is raised.
        """
        await self._stops.aclose()

    async def __aenter__(self) -> Standalone:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def _listen(what: str, host: str, port: int, start: Awaitable[None]) -> None:
    try:
        await start
    except (OSError, ControllerUnavailableError) as error:
        raise PortInUseError(
            f"the {what} cannot listen on {_authority(host, port)}: {error}; stop what uses the port, or choose "
            f"another with --{what.replace(' ', '-')}-port (0: any free one)"
        ) from error


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

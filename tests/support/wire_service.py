"""`WireService`: a segment store in memory, served over a real socket and driven by raw frames."""

from __future__ import annotations

from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import CacheSettings, ConnectionSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.commands import AppendSetup, SetupAppend
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, memory_runtime, memory_store
from support.raw_wire import RawWire

#: The segment that there is, and a writer.
A = "s/t/0.#epoch.0"
W = b"w" * 16
CONNECTION = ConnectionSettings(drain_timeout_s=0.2)


class WireService:
    """A store and its server."""

    def __init__(
        self,
        connection: ConnectionSettings = CONNECTION,
        cache: CacheSettings = SMALL_CACHE,
        container: ContainerSettings = QUIET,
    ) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.settings = SegmentStoreSettings(
            container_count=1, cache=cache, container=container, connection=connection, restart_delay_s=0.01
        )
        self.store: SegmentStore = memory_store(self.logs, self.chunks, self.runtime, self.settings)
        self.server = SegmentStoreServer(self.store)
        self.wires: list[RawWire] = []

    async def start(self) -> None:
        """Start the store, listen, and make the segment `A`."""
        await self.store.start()
        await self.server.start("127.0.0.1", 0)
        await self.store.create_segment(A)

    async def connect(self, *, greet: bool = True) -> RawWire:
        """Connect, and send the greeting unless it is switched off."""
        self.wires.append(await RawWire.open(self.server.port, greet=greet))
        return self.wires[-1]

    async def stop(self) -> None:
        """End all faults, stop, and close the connections."""
        self.logs.release_appends(0)
        self.chunks.heal()
        await self.server.stop()
        await self.store.stop()
        for wire in self.wires:
            await wire.close()
        await self.runtime.work.close()


async def set_up(wire: RawWire, writer_id: bytes = W, segment: str = A) -> int:
    """Set a writer up; return its last event number."""
    reply = await wire.ask(SetupAppend(1, writer_id, segment, ""), AppendSetup)
    return reply.last_event_number

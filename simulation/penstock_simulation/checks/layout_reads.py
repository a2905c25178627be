"""`LayoutReads`: readers who lease layouts of chunks, and read by them although the segments change or go.

Of streams' segments they ask over the wire, as programs do; of those that containers keep to themselves, in place.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.client.client import Client
from penstock.client.transport.chunk_layouts import ChunkLayouts
from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import CorruptionError, NoSuchChunkError, PenstockError
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.wire.chunk_layouts import ChunkRow
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import World

_LEASE_S = 12.0
_READ_INTERVAL_S = 1.5
#: How many give their leases back; the others just end.
_RETURNED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a chunk from `begin` on, whole blocks, and what they must be."""

    chunk: str
    begin: int
    length: int
    block_length: int
    checksums: tuple[int, ...]


class LayoutReads:
    """Begins to read by a layout at intervals; `found` is called with each chunk that is gone, or another, in a lease.

    `client` belongs to a workload, on `client_host`.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        world: World,
        found: Callable[[str], None],
        *,
        gap_s: float,
        client: Client,
        client_host: Host,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._found = found
        self._gap_s = gap_s
        self._client = client
        self._client_host = client_host
        self._rng = cluster.simulation.rng("layout reads")

    async def run(self) -> None:
        """Begin reads, for as long as workloads write; end when all of them have."""
        readers: set[asyncio.Task[None]] = set()
        while self._world.is_writing:
            await asyncio.sleep(self._rng.expovariate(1.0 / self._gap_s))
            chosen = self._choose()
            if chosen is not None:
                readers.add(asyncio.create_task(self._read(*chosen)))
        if readers:
            await asyncio.wait(readers)

    def _choose(self) -> tuple[Host, SegmentContainer, Segment] | None:
        host = self._rng.choice(self._cluster.stores)
        store = self._cluster.store(host)
        containers = [each for each in store.containers if each.status is ContainerStatus.RUNNING] if store else []
        segments = [
            (container, segment)
            for container in containers
            for segment in container.segments()
            if segment.storage_length > segment.start_offset
        ]
        return (host, *self._rng.choice(segments)) if segments else None

    async def _read(self, host: Host, container: SegmentContainer, segment: Segment) -> None:
        loop = asyncio.get_running_loop()
        # It lasts from some moment behind this one on, or longer with another owner.
        end_s = loop.time() + _LEASE_S
        is_told = not segment.is_system and not segment.is_table
        layouts = ChunkLayouts(self._client._open_pool(), self._client.settings, self._rng)
        try:
            if is_told:
                answer = await self._client_host.run(
                    layouts.ask(segment.name, segment.start_offset, 1 << 60, lease_s=_LEASE_S, holder="a simulated job")
                )
                layout = [_told(chunk) for chunk in answer.chunks]
                self._world.counts["layouts told"] += 1
            else:
                _, chunks = await host.run(container.storage.leased_layout(segment, _LEASE_S, holder="a simulated job"))
                layout = [_Piece(each.name, 0, each.length, each.block_length, each.block_checksums) for each in chunks]
        except (HostDownError, PenstockError, AssertionError):
            return  # Nothing was promised.
        while loop.time() + _READ_INTERVAL_S < end_s:
            await asyncio.sleep(_READ_INTERVAL_S)
            try:
                await self._inspect(host, segment, layout, end_s)
            except (HostDownError, PenstockError):
                continue
            if is_told and self._rng.random() < _RETURNED_SHARE:
                try:
                    return await self._client_host.run(layouts.give_back(answer))
                except (HostDownError, PenstockError):
                    return  # It ends by itself.

    async def _inspect(self, host: Host, segment: Segment, layout: Sequence[_Piece], end_s: float) -> None:
        store = self._cluster.store(host)
        if store is None:
            return
        for piece in layout:
            problem = "is gone"
            try:
                data = await host.run(store._chunks.read(piece.chunk, piece.begin, piece.length))
                if len(data) == piece.length:
                    verify_blocks(
                        piece.chunk, piece.begin, data, piece.checksums,
                        block_length=piece.block_length, first_block=piece.begin // piece.block_length,
                    )  # fmt: skip
                    continue
                problem = f"has {len(data)} bytes from {piece.begin} on, not {piece.length}"
            except NoSuchChunkError:
                pass
            except CorruptionError as error:
                problem = f"is another: {error}"
            if asyncio.get_running_loop().time() < end_s:
                self._found(f"chunk {piece.chunk} of {segment.name} {problem}, and was leased")


def _told(chunk: ChunkRow) -> _Piece:
    count = len(chunk.checksums) // 4
    begin = chunk.first_block * chunk.block_length
    end = min(begin + count * chunk.block_length, chunk.length)
    return _Piece(chunk.name, begin, end - begin, chunk.block_length, struct.unpack(f">{count}I", chunk.checksums))

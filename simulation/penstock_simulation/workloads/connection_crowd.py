"""Many connections that keep sending while the log stalls, so that the data has to be buffered."""

from __future__ import annotations

import asyncio
import random

from penstock.model.errors import ConnectionLostError, PenstockError, SegmentExistsError
from penstock.model.routing import container_of
from penstock.wire.commands import AppendBlockEnd, AppendSetup, DataAppended, SetupAppend, WireCommand
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

#: Bytes that each connection sends during one stall, and the block size. The store's budget is far less than the sum.
PUSHED_BYTES = 48 * 1024
_BLOCK_BYTES = 4 * 1024
_SETTINGS = ConnectionSettings(connect_timeout_s=2.0, request_timeout_s=2.0, close_timeout_s=0.1)
#: Most stalls per run during which the connections send.
_PUSH_COUNT_MAX = 3
_CHECK_INTERVAL_S = 0.25


class _Pusher:
    """One connection and its writer; counts the acknowledged appends."""

    def __init__(self) -> None:
        self.acknowledged_bytes = 0

    def on_reply(self, reply: WireCommand) -> None:
        """See `ReplyHandler`."""
        if isinstance(reply, DataAppended):
            self.acknowledged_bytes = (reply.event_number + 1) * _BLOCK_BYTES

    def on_connection_lost(self, error: ConnectionLostError) -> None:
        """See `ReplyHandler`. Acknowledged data must stay."""

    def on_writable(self) -> None:
        """See `ReplyHandler`. All blocks are sent immediately."""


class ConnectionCrowd(Workload):
    """Opens many connections to a store whose log stalls, and sends on all of them until the log resumes.

    At the end the segment must contain all acknowledged data. `penstock_simulation/checks/progress.py` checks how much
    memory the store used for the connections.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, segment: str, connection_count: int
    ) -> None:
        super().__init__(world, host, name, rng)
        self._segment = segment
        self._connection_count = connection_count
        self._acknowledged_bytes = 0

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_segment(self._segment)
        except SegmentExistsError:
            pass  # The reply to the first attempt was lost.

    async def run(self) -> None:
        """See `Workload.run`."""
        for _ in range(_PUSH_COUNT_MAX):
            while not self._is_stalled():
                if not self.world.is_writing:
                    return
                await asyncio.sleep(_CHECK_INTERVAL_S)
            pushers = [_Pusher() for _ in range(self._connection_count)]
            await asyncio.gather(*map(self._push, pushers))
            self._acknowledged_bytes += sum(pusher.acknowledged_bytes for pusher in pushers)
            self.world.counts["crowds of connections to a log that stood still"] += 1

    async def verify(self) -> None:
        """See `Workload.verify`."""
        segments = self.client._segment_client
        info = await self.world.insist(f"info of {self._segment}", lambda: segments.segment_info(self._segment))
        if info.length < self._acknowledged_bytes:
            self.world.problem(
                f"{self._segment}: {self._acknowledged_bytes} bytes were acknowledged, it has {info.length}"
            )

    def _is_stalled(self) -> bool:
        simulation = self.world.cluster.simulation
        return simulation.hosts[self._owner()].stalls.until_s("/data/tier1/") is not None

    def _owner(self) -> str:
        locator = self.world.cluster.locator
        return locator.owner(container_of(self._segment, locator.container_count))

    async def _push(self, pusher: _Pusher) -> None:
        host, port = await self.world.cluster.locator.endpoint_of_segment(self._segment)
        try:
            connection = await open_connection(host, port, settings=_SETTINGS)
        except (PenstockError, OSError):
            return  # Another fault is active.
        try:
            await self._send(connection, pusher)
        except PenstockError:
            pass  # Refused or disconnected.
        finally:
            await connection.close()

    async def _send(self, connection: WireConnection, pusher: _Pusher) -> None:
        request_id = connection.next_request_id()
        writer_id = self.rng.randbytes(16)
        reply = await connection.request(request_id, SetupAppend(request_id, writer_id, self._segment, ""))
        if not isinstance(reply, AppendSetup):
            return
        connection.subscribe(request_id, pusher)
        block = bytes([self.rng.randrange(33, 127)]) * _BLOCK_BYTES
        for number in range(PUSHED_BYTES // _BLOCK_BYTES):
            connection.send(AppendBlockEnd(writer_id, _BLOCK_BYTES, block, 1, number, request_id))
        while self._is_stalled() and connection.is_open and self.world.is_writing:  # noqa: ASYNC110  # no event
            await asyncio.sleep(_CHECK_INTERVAL_S)
        await asyncio.sleep(_CHECK_INTERVAL_S)

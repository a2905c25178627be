"""A client that creates transient segments without limit, merges none of them, and disconnects or stays silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from penstock.model.errors import NoSuchSegmentError, PenstockError, SegmentExistsError
from penstock.model.routing import container_of
from penstock.wire.commands import (
    BUSY,
    AppendSetup,
    ConditionalBlockEnd,
    CreateTransientSegment,
    NoSuchSegment,
    SegmentCreated,
    SetupAppend,
    WrongHost,
)
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_SETTINGS = ConnectionSettings(connect_timeout_s=2.0, request_timeout_s=2.0, close_timeout_s=0.1)
#: Segments per connection while faults strike: more than any container of a simulation has slots.
_FLOOD_COUNT = 60
#: Time limits at the end: until a flood is refused, and until the segments of a broken connection are deleted.
_PATIENCE_S = 30.0
_PAUSE_S = 0.2


class TransientFlood(Workload):
    """Fills a container with transient segments, over connections that it drops or leaves open.

    At the end, without faults: a flood is refused before all slots are used; then another segment of the same container
    can be created; and the connection's segments are deleted with it.
    """

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, parent: str) -> None:
        super().__init__(world, host, name, rng)
        self._parent = parent
        self._left: list[WireConnection] = []
        self._others = self._names_beside(parent)

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_segment(self._parent)
        except SegmentExistsError:
            pass  # The reply to the first attempt was lost.

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            connection = await self._connect()
            if connection is not None:
                try:
                    await self._flood(connection, _FLOOD_COUNT)
                except PenstockError:
                    pass  # A fault broke the connection.
                self._left.append(connection)
            # Some stay open and silent, like half-open connections.
            if self._left and (len(self._left) > 2 or self.rng.random() < 0.5):
                await self._left.pop(0).close()
            await self.rest(2.0)
        await self._close_all()

    async def verify(self) -> None:
        """See `Workload.verify`."""
        slot_count = self.world.cluster.settings.segment_store.container.active_segments_max
        end_s = self.world.now_s + _PATIENCE_S
        while True:
            names: list[str] = []
            connection = await self._connect()
            if connection is not None and await self._reaches_limit(connection, slot_count, names):
                break
            if len(names) >= slot_count:
                self.world.problem(f"{self._parent}: a client has {len(names)} transient segments, all slots there are")
                break
            if self.world.now_s > end_s:
                self.world.problem(f"{self._parent}: {len(names)} transient segments, and no limit of them was named")
                break
            await self._close_all(connection)
            await asyncio.sleep(_PAUSE_S)
        other = next(self._others)
        await self._make_beside(other)
        await self._close_all(connection)
        await self._see_them_go(names)

    async def _make_beside(self, other: str) -> None:
        segments, begun_s = self.client._segment_client, self.world.now_s
        with suppress(SegmentExistsError):  # The reply to an earlier attempt was lost.
            await self.world.insist(f"creation of {other}", lambda: segments.create_segment(other))
        if (took_s := self.world.now_s - begun_s) > _PATIENCE_S:
            self.world.problem(f"{other}: its creation beside a flood took {took_s:.0f} s")
        with suppress(NoSuchSegmentError):
            await self.world.insist(f"deletion of {other}", lambda: segments.delete_segment(other))
        self.world.counts["floods of transient segments that were refused"] += 1

    async def _see_them_go(self, names: list[str]) -> None:
        end_s = self.world.now_s + _PATIENCE_S
        for name in names:
            while await self._exists(name):
                if self.world.now_s > end_s:
                    self.world.problem(f"{name}: there {_PATIENCE_S:g} s after its connection was closed")
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _exists(self, segment: str) -> bool:
        try:
            await self.world.insist(f"info of {segment}", lambda: self.client._segment_client.segment_info(segment))
        except NoSuchSegmentError:
            return False
        return True

    async def _connect(self) -> WireConnection | None:
        host, port = await self.world.cluster.locator.endpoint_of_segment(self._parent)
        try:
            return await open_connection(host, port, settings=_SETTINGS)
        except (PenstockError, OSError):
            return None

    async def _close_all(self, *more: WireConnection | None) -> None:
        left, self._left = self._left, []
        for connection in (*left, *more):
            if connection is not None:
                await connection.close()

    async def _reaches_limit(self, connection: WireConnection, slot_count: int, names: list[str]) -> bool:
        """Create up to `slot_count` segments, listed in `names`; return whether the limit of transients ended it."""
        try:
            return await self._flood(connection, slot_count, names)
        except PenstockError:
            return False

    async def _flood(self, connection: WireConnection, up_to: int, names: list[str] | None = None) -> bool:
        """Create transient segments until one is refused; return whether a limit was the cause. Raises when cut off."""
        for _ in range(up_to):
            request_id, writer_id = connection.next_request_id(), self.rng.randbytes(16)
            reply = await connection.request(
                request_id, CreateTransientSegment(request_id, writer_id, self._parent, "")
            )
            if isinstance(reply, WrongHost):
                return reply.stack.startswith(BUSY) and "transient segments" in reply.stack
            if not isinstance(reply, SegmentCreated):
                if not isinstance(reply, NoSuchSegment):
                    self.world.problem(f"{self._parent}: a transient segment was answered by {reply}")
                return False
            if names is not None:
                names.append(reply.segment)
            self.world.counts["transient segments made"] += 1
            if self.rng.random() < 0.3:
                await self._begin_event(connection, writer_id, reply.segment)
        return False

    async def _begin_event(self, connection: WireConnection, writer_id: bytes, segment: str) -> None:
        request_id = connection.next_request_id()
        reply = await connection.request(request_id, SetupAppend(request_id, writer_id, segment, ""))
        if isinstance(reply, AppendSetup):
            piece = bytes([self.rng.randrange(33, 127)]) * self.rng.randrange(1, 2000)
            await connection.request(request_id, ConditionalBlockEnd(writer_id, 0, 0, piece, request_id))

    def _names_beside(self, segment: str) -> Iterator[str]:
        """Yield names of segments that live in the same container."""
        container_count = self.world.cluster.locator.container_count
        home = container_of(segment, container_count)
        prefix = segment.partition("/")[0]
        for number in count():
            name = f"{prefix}/beside-{number}/0.#epoch.0"
            if container_of(name, container_count) == home:
                yield name

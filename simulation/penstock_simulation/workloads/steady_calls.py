"""`SteadyCalls`: a writer, a reader and controller calls whose connections are silently dropped now and then.

New connections work immediately, and there are no other faults. So each call must be answered within a bound, counted
from its start or from the last drop of connections, whichever is later. The client's settings are the defaults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import OutcomeUnknownError, PenstockError
from penstock.model.policies import Scaling
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import SCOPE, Workload, World

T = TypeVar("T")

_STREAM, _GROUP = f"{SCOPE}/steady", "steady"
#: The client's promise: silent connections are replaced within twice its keepalive interval.
CONTINUES_WITHIN_S = 15.0
#: The longest pause between two controller calls: the connection is idle when it is dropped.
_PAUSE_S_MAX = 8.0
_READ_TIMEOUT_S = 1.0


class SteadyCalls(Workload):
    """See the module."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        super().__init__(world, host, name, rng)
        #: Write time of each event that has not been read yet.
        self._unread: dict[bytes, float] = {}

    def make_client(self) -> Client:
        """See `Workload.make_client`."""
        return self.world.cluster.client(self.host, ClientSettings())

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        make = partial(self.client.create_stream, _STREAM, scaling=Scaling.fixed(2), exist_ok=True)
        await self.world.insist(f"create {_STREAM}", make)
        await self.world.insist("create a group", partial(self.client.reader_group, _GROUP, [_STREAM]))

    async def run(self) -> None:
        """See `Workload.run`."""
        written = asyncio.Event()
        reading = asyncio.create_task(self._read(written))
        await asyncio.gather(self._write(), self._ask())
        written.set()
        await reading
        for event in self._unread:
            self.world.problem(f"{self.name}: {event!r} was acknowledged and never read")

    async def _write(self) -> None:
        writer = await self.client.event_writer(_STREAM)
        number = 0
        while self.world.is_writing:
            number += 1
            event = b"%d" % number
            self._unread[event] = self.world.now_s
            await self._within(f"the write of event {number}", self._written(writer.write(event, str(number))))
            self.world.counts["steady writes"] += 1
            await self.rest(0.5)
        await self._within("the close of the writer", writer.close())

    async def _written(self, write: Awaitable[Awaitable[object]]) -> None:
        await (await write)

    async def _read(self, written: asyncio.Event) -> None:
        group = await self.client.reader_group(_GROUP, scope=SCOPE)
        reader = await group.reader("r")
        while True:
            is_last = written.is_set()
            event = await self._within("a read", reader.read(_READ_TIMEOUT_S))
            if event is not None:
                self._check(f"event {event.data!r} came to its reader", self._unread.pop(bytes(event.data)))
                self.world.counts["steady reads"] += 1
            elif is_last and (not self._unread or self._is_late(min(self._unread.values()))):
                break
        await self._within("the close of the reader", reader.close())

    async def _ask(self) -> None:
        number = 0
        while self.world.is_writing:
            await asyncio.sleep(self.rng.random() ** 2 * _PAUSE_S_MAX)
            number += 1
            stream = f"{SCOPE}/steady-{number}"
            await self._within(f"the creation of {stream}", self._created(stream))
            await self._within("a listing", self._listed())
            await self._within(f"the update of {stream}", self.client.update_stream(stream, tags=["a"]))
            self.world.counts["steady calls of the controller"] += 1

    async def _created(self, stream: str) -> None:
        try:
            await self.client.create_stream(stream)
        except OutcomeUnknownError:
            self.world.counts["steady creations whose first answer was lost"] += 1  # It exists; the answer was in time.

    async def _listed(self) -> None:
        assert [stream async for stream in self.client.streams(SCOPE)]

    async def _within(self, what: str, call: Awaitable[T]) -> T | None:
        """Return the answer of a call, which must not fail and must arrive within the bound."""
        began_s = self.world.now_s
        try:
            answer = await call
        except PenstockError as error:
            self.world.problem(f"{self.name}: {what} failed after {self.world.now_s - began_s:.1f} s: {error!r}")
            return None
        self._check(f"{what} ended", began_s)
        return answer

    def _check(self, what: str, began_s: float) -> None:
        if self._is_late(began_s):
            since_s = max(began_s, self.world.cluster.simulation.network.flows_forgotten_s)
            self.world.problem(
                f"{self.name}: {what} {self.world.now_s - since_s:.1f} s after connections were forgotten last, and "
                f"{self.world.now_s - began_s:.1f} s after it began: at most {CONTINUES_WITHIN_S:g} s are promised"
            )

    def _is_late(self, began_s: float) -> bool:
        since_s = max(began_s, self.world.cluster.simulation.network.flows_forgotten_s)
        return self.world.now_s - since_s > CONTINUES_WITHIN_S

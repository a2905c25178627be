"""Users whose calls are refused or bounded, independently of the servers' faults.

An event that is too large is refused by every write call. A writer that writes without a pause lets other tasks run. A
reader's read-ahead is bounded. Closing twice is allowed. A lease that no server grants raises an error immediately, as
the caller's mistake.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial

from penstock.client.client import Client
from penstock.model.errors import EventTooLargeError, InvalidArgumentError, PenstockError
from penstock.model.policies import Scaling
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, close_client, draw_user_settings
from penstock_simulation.workloads.world import SCOPE, Workload, World

_STREAM = f"{SCOPE}/bounded"
_SEGMENT_COUNT = 4
_EVENT_BYTES = 200
_EVENT_BYTES_MAX = 1000
_READ_AHEAD_BYTES_MAX = 2000
#: Events of one turn, and of all writes without a pause.
_TURN_EVENT_COUNT, _WRITTEN_COUNT = 20, 200
_LEASE_S = 1e7


class UserCalls(Workload):
    """See the module."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._habits = habits

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        make = partial(self.client.create_stream, _STREAM, scaling=Scaling.fixed(_SEGMENT_COUNT), exist_ok=True)
        await self.world.insist(f"create {_STREAM}", make)
        join = partial(self.client.reader_group, "bounded", [_STREAM])
        await self.world.insist("create group bounded", join)

    async def run(self) -> None:
        """See `Workload.run`."""
        world, rng = self.world, self.rng
        while world.is_writing:
            await self.rest(0.3)
            drawn = draw_user_settings(rng, world.cluster.settings.client, self._habits)
            settings = replace(
                drawn, large_event_bytes_max=_EVENT_BYTES_MAX, write_turn_event_count_max=_TURN_EVENT_COUNT,
                max_unacknowledged_bytes=1 << 20, reader_read_ahead_bytes_max=_READ_AHEAD_BYTES_MAX, read_bytes=1000,
            )  # fmt: skip
            client = world.cluster.client(self.host, settings)
            client._open()
            try:
                await self._write(client)
                await self._read(client)
            except PenstockError as error:
                if not world.is_passing(error):
                    world.problem(f"{self.name}: {error!r}")
            await close_client(world, self.host, client)
            await self._close_again(client)

    async def verify(self) -> None:
        """See `Workload.verify`: without faults, nothing else explains a failure."""
        for _ in range(3):
            try:
                await self.client.begin_transaction(_STREAM, lease_s=_LEASE_S)
                self.world.problem(f"a transaction was given a lease of {_LEASE_S:g} s")
                return
            except InvalidArgumentError:
                self.world.counts["leases refused"] += 1
                return
            except PenstockError as error:
                found = error
                await self.rest(1.0)
        self.world.problem(f"a lease of {_LEASE_S:g} s is answered by {found!r}")

    async def _write(self, client: Client) -> None:
        world = self.world
        writer = await client.event_writer(_STREAM)
        for too_large in (writer.write(bytes(_EVENT_BYTES_MAX + 1), "k"), writer.write_many([bytes(2000)] * 2, "k")):
            try:
                await too_large
                world.problem(f"{self.name}: an event larger than {_EVENT_BYTES_MAX} bytes was taken")
            except EventTooLargeError:
                world.counts["events refused"] += 1
        turns = _Turns()
        for number in range(_WRITTEN_COUNT):
            await writer.write(bytes(_EVENT_BYTES), str(number))
        if turns.count < _WRITTEN_COUNT // _TURN_EVENT_COUNT - 1:
            world.problem(f"{self.name}: others had {turns.count} turns while {_WRITTEN_COUNT} events were written")
        turns.stop()
        world.counts["turns beside a writer"] += turns.count
        await writer.close()
        await writer.close()

    async def _read(self, client: Client) -> None:
        world = self.world
        group = await client.reader_group("bounded", scope=SCOPE)
        async with group.reader("r") as reader:
            for _ in range(self.rng.randrange(20, 100)):
                if await reader.read(1.0) is None:
                    break
                if reader.read_ahead_bytes > _READ_AHEAD_BYTES_MAX:
                    world.problem(f"{self.name}: {reader.read_ahead_bytes} bytes are held ahead of the application")
                world.counts["inspections of data read ahead"] += 1
                if self.rng.random() < 0.05:
                    await self.rest(0.2)

    async def _close_again(self, client: Client) -> None:
        try:
            await client.close()
        except PenstockError as error:
            self.world.problem(f"{self.name}: closing a client again raised {error!r}")


class _Turns:
    """Counts the turns of other tasks in the event loop, up to a bound, so that the loop becomes idle."""

    def __init__(self) -> None:
        self.count = 0
        self._is_stopped = False
        self._next()

    def stop(self) -> None:
        """Stop counting."""
        self._is_stopped = True

    def _next(self) -> None:
        if not self._is_stopped and self.count < _WRITTEN_COUNT:
            asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.count += 1
        self._next()

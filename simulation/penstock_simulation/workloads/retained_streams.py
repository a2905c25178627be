"""Streams that keep little, by size and by time, while the clocks of controllers jump: both are truncated always."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from penstock.model.errors import PenstockError
from penstock.model.policies import Retention, RetentionKind, Scaling
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import SCOPE, Workload, World

_POLICIES = {
    "clocked-by-size": Retention(RetentionKind.BY_SIZE, 2_000),
    "clocked-by-time": Retention(RetentionKind.BY_TIME, 2_000),
}
_EVENT_BYTES_MAX = 400
#: Bytes that may be kept beyond the limit: a stream is truncated at recorded cuts, which are at ends of writes.
_SLACK_BYTES = 2_000
#: Time for a truncation without faults: the controller inspects a stream each half second.
_LIMIT_S = 30.0


class RetainedStreams(Workload):
    """See the module. Which events are kept depends on the clocks; that the streams do not grow does not."""

    verifies_again = True

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        super().__init__(world, host, name, rng)
        self._streams = [f"{SCOPE}/{stream}" for stream in _POLICIES]

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        for stream, policy in zip(self._streams, _POLICIES.values(), strict=True):
            make = partial(self.client.create_stream, stream, scaling=Scaling.fixed(1), retention=policy, exist_ok=True)
            await self.world.insist(f"create {stream}", make)

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(0.4)
            for stream in self._streams:
                try:
                    await self._write(stream)
                except PenstockError as error:
                    if not self.world.is_passing(error):
                        self.world.problem(f"{self.name} writes: {error!r}")

    async def verify(self) -> None:
        """See `Workload.verify`: what is there now must go, while events are still written."""
        for stream in self._streams:
            await self._see_it_go(stream)

    async def _write(self, stream: str) -> None:
        events = [bytes(self.rng.randrange(1, _EVENT_BYTES_MAX)) for _ in range(self.rng.randrange(1, 4))]
        async with self.client.event_writer(stream) as writer:
            await writer.write_many(events, "k")

    async def _see_it_go(self, stream: str) -> None:
        world = self.world
        tail = (await world.insist("find the tail", partial(self.client.tail, stream))).positions[0]
        until_s = world.now_s + _LIMIT_S
        while world.now_s < until_s:
            await world.insist("write an event", partial(self._write, stream))
            await asyncio.sleep(1.0)
            if (await world.insist("find the head", partial(self.client.head, stream))).positions[0] >= tail:
                world.counts["streams truncated in spite of clocks"] += 1
                return
        head = (await world.insist("find the head", partial(self.client.head, stream))).positions[0]
        world.problem(
            f"{stream} begins at {head}, and {_LIMIT_S:g} s ago it was {tail} bytes long: its policy truncates nothing"
        )

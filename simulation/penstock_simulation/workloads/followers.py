"""Readers that wait at the tails of many segments, most of which are idle for long."""

from __future__ import annotations

import asyncio
import random

from penstock.model.errors import PenstockError, SegmentExistsError
from penstock.runtime.waits import cancel_and_wait
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

#: More segments than fit into memory, where memory is small.
_SEGMENT_COUNT = 16
_READ_BYTES = 4096
#: Longest time until a reader gets an append, at the end.
_PATIENCE_S = 60.0
_PAUSE_S = 0.2


class Followers(Workload):
    """Follows more segments than a container with little memory may hold, and appends to one of them now and then.

    All bytes of a segment are equal, so an append whose answer was lost may be repeated. At the end, without faults,
    each segment gets one more byte, and each reader must reach the tail of its segment.
    """

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, prefix: str) -> None:
        super().__init__(world, host, name, rng)
        self._names = [f"{prefix}-{number}/0.#epoch.0" for number in range(_SEGMENT_COUNT)]
        #: Offset of each reader.
        self._offsets = dict.fromkeys(self._names, 0)
        self._readers: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        for name in self._names:
            try:
                await self.client._segment_client.create_segment(name)
            except SegmentExistsError:
                pass  # The reply to the first attempt was lost.

    async def run(self) -> None:
        """See `Workload.run`."""
        self._readers = [asyncio.create_task(self._follow(name)) for name in self._names]
        while self.world.is_writing:
            await self.rest(1.0)
            try:
                await self._append(self.rng.choice(self._names), self.rng.randrange(1, 200))
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {error!r}")

    async def verify(self) -> None:
        """See `Workload.verify`."""
        try:
            for name in self._names:
                await self.world.insist(f"append to {name}", lambda name=name: self._append(name, 1))  # type: ignore[misc]
            end_s = self.world.now_s + _PATIENCE_S
            for name in self._names:
                length = (await self.client._segment_client.segment_info(name)).length
                while self._offsets[name] < length:
                    if self.world.now_s > end_s:
                        self.world.problem(
                            f"{name}: a reader that waited at its end has {self._offsets[name]} of {length} bytes"
                        )
                        break
                    await asyncio.sleep(_PAUSE_S)
                self.world.counts["segments followed to their ends"] += 1
        finally:
            await cancel_and_wait(*self._readers)

    async def _append(self, name: str, length: int) -> None:
        await self.client._segment_client.append(name, self._byte(name) * length)

    def _byte(self, name: str) -> bytes:
        return bytes([65 + self._names.index(name)])

    async def _follow(self, name: str) -> None:
        while True:
            offset = self._offsets[name]
            try:
                data = await self.client._segment_client.read(name, offset, _READ_BYTES, wait=True)
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: read of {name} at {offset}: {error!r}")
                    return
                await asyncio.sleep(_PAUSE_S)
                continue
            block = data.joined()
            if block != self._byte(name) * len(block):
                self.world.problem(f"{name}: bytes of another segment from {offset}: {block[:40]!r}")
            self._offsets[name] = offset + len(block)

"""A client that makes segments of one name again and again, while reads of the last one are still under way."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from penstock.model.errors import NoSuchSegmentError, OutcomeUnknownError, PenstockError, SegmentExistsError
from penstock.model.segments import SegmentData
from penstock.testing.simulation.host import Host
from penstock.testing.workloads.world import Workload, World

_READ_BYTES = 8 * 1024
_READS_MAX = 4
_READ_TIMEOUT_S = 20.0


@dataclass(slots=True)
class _Life:
    """One segment of the name. It gets all its bytes in one append, so it has none of them or all."""

    data: bytes
    is_sealed: bool = False


class Reincarnations(Workload):
    """See the module. Nobody else touches these names; a name that a lost reply leaves in doubt is not used again.

    A read that other calls overlap may be answered from any life it overlaps, but from one alone: bytes and flags
    together.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, prefix: str, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        self._prefix = prefix
        self._mean_gap_s = mean_gap_s
        self._name_count = 0
        self._lives: list[_Life] = []
        self._is_there = False
        self._reads: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """See `Workload.run`."""
        self._take_new_name()
        while self.world.is_writing:
            try:
                await self._live()
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {self._segment}: {error!r}")
                if isinstance(error, OutcomeUnknownError):
                    await self._end_reads()
                    self._take_new_name()
            await self.rest(self._mean_gap_s / 4)
        await self._end_reads()

    async def verify(self) -> None:
        """See `Workload.verify`."""
        if self._is_there:
            await self.world.insist(f"read of {self._segment}", lambda: self._read(len(self._lives), 0))

    @property
    def _segment(self) -> str:
        return f"{self._prefix}{self._name_count}/0.#epoch.0"

    def _take_new_name(self) -> None:
        self._name_count += 1
        self._lives = []
        self._is_there = False

    async def _live(self) -> None:
        """Create, fill, perhaps seal, wait until it is stored, begin to read, and delete in the midst of that."""
        segments, rng, segment = self.client.segments, self.rng, self._segment
        if not self._is_there:
            try:
                await segments.create_segment(segment)
            except SegmentExistsError:
                self.world.problem(f"{segment} was deleted, and is there again")
                self._take_new_name()
                return
            self._is_there = True
            # Mostly longer than the last one, so that it reaches wherever that one did.
            filling = (f"<life {len(self._lives) + 1} ".encode() * (1 + rng.randrange(40)))[: rng.choice((40, 300))]
            life = _Life(filling + self.world.padding(rng) + b">")
            self._lives.append(life)
            await segments.append(segment, life.data)
            if rng.random() < 0.6:
                await segments.seal_segment(segment)
                life.is_sealed = True
        number = len(self._lives)
        if rng.random() < 0.7:
            await self.rest(2 * self._mean_gap_s)
        for _ in range(rng.randint(0, _READS_MAX - len(self._reads))):
            length = len(self._lives[-1].data)
            start = 0 if rng.random() < 0.5 else rng.randrange(length)
            task = asyncio.create_task(self._try_read(number, start))
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
        await self.rest(0.002)
        await segments.delete_segment(segment)
        self._is_there = False
        self.world.counts["reincarnations"] += 1

    async def _try_read(self, number: int, start: int) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await self._read(number, start)
        except TimeoutError:
            return
        except PenstockError as error:
            if not isinstance(error, NoSuchSegmentError) and not self.world.is_passing(error):
                self.world.problem(f"{self.name}: read of {self._segment} at {start}: {error!r}")

    async def _read(self, number: int, start: int) -> None:
        """Read from `start` on, what began in life `number` (from 1)."""
        segment, lives = self._segment, self._lives
        answer = await self.client.segments.read(segment, start, _READ_BYTES)
        if not any(_explains(life, start, answer) for life in lives[number - 1 :]):
            self.world.problem(
                f"{segment}: {answer.joined()!r} at {start} (tail: {answer.is_at_tail}, end: "
                f"{answer.is_end_of_segment}), read in lives {number} to {len(lives)}, is what none of them has"
            )
        self.world.counts["reads of reincarnations"] += 1

    async def _end_reads(self) -> None:
        if self._reads:
            await asyncio.wait(self._reads)


def _explains(life: _Life, start: int, answer: SegmentData) -> bool:
    data = answer.joined()
    end = start + len(data)
    if not data:
        # Before its bytes came; or, of one that is sealed, behind them.
        return not answer.is_end_of_segment or (life.is_sealed and start == len(life.data))
    if life.data[start:end] != data:
        return False
    if answer.is_end_of_segment:
        return life.is_sealed and end == len(life.data)
    return not answer.is_at_tail or end == len(life.data)

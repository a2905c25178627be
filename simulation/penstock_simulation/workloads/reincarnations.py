"""A client that recreates segments under the same name while reads of the previous segment are in progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
)
from penstock.model.segments import SegmentData
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_READ_BYTES = 8 * 1024
_READS_MAX = 4
#: Names used at the same time.
_NAME_COUNT = 3
_READ_TIMEOUT_S = 20.0


@dataclass(slots=True)
class _Life:
    """One segment of the name. It gets all its bytes in one append, so it has either none or all of them."""

    data: bytes
    may_be_sealed: bool = False


@dataclass(slots=True)
class _Name:
    """A name and its lives so far. `is_there`: the last one has not been deleted."""

    segment: str
    is_there: bool = False
    lives: list[_Life] = field(default_factory=list)
    reads: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, read: Coroutine[None, None, None]) -> None:
        """Start a read in the background."""
        if len(self.reads) >= _READS_MAX:
            read.close()
            return
        task = asyncio.create_task(read)
        self.reads.add(task)
        task.add_done_callback(self.reads.discard)

    async def end_reads(self) -> None:
        """Wait for the reads in progress."""
        if self.reads:
            await asyncio.wait(self.reads)


class Reincarnations(Workload):
    """See the module. No other client uses these names; a name whose state is unknown after a lost reply is not reused.

    A read that overlaps other calls may be answered from any life that it overlaps, but from a single one: bytes and
    flags together.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, prefix: str, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        self._prefix = prefix
        self._mean_gap_s = mean_gap_s
        self._name_count = 0
        self._names: list[_Name] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        await asyncio.gather(*(self._use_names() for _ in range(_NAME_COUNT)))

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for name in self._names:
            if name.is_there:
                read = partial(self._read, name, len(name.lives), 0)
                await self.world.insist(f"read of {name.segment}", read)

    async def _use_names(self) -> None:
        name = self._new_name()
        while self.world.is_writing:
            try:
                await self._live(name)
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {name.segment}: {error!r}")
                if isinstance(error, OutcomeUnknownError):
                    self._names.remove(name)
                    await name.end_reads()
                    name = self._new_name()
            await self.rest(self._mean_gap_s / 4)
        await name.end_reads()

    def _new_name(self) -> _Name:
        self._name_count += 1
        name = _Name(f"{self._prefix}{self._name_count}/0.#epoch.0")
        self._names.append(name)
        return name

    async def _live(self, name: _Name) -> None:
        """Create, fill, perhaps seal, wait until it is stored, start reads, and delete during those."""
        segments, rng, segment = self.client._segment_client, self.rng, name.segment
        if not name.is_there:
            await self._create(name)
        await self.rest(self._mean_gap_s * rng.choice((0.2, 2.0)))
        number = len(name.lives)
        length = len(name.lives[-1].data)
        for _ in range(rng.randint(0, _READS_MAX)):
            start = 0 if rng.random() < 0.5 else rng.randrange(length)
            name.begin(self._try_read(name, number, start))
        await self.rest(0.002)
        await segments.delete_segment(segment)
        name.is_there = False
        self.world.counts["reincarnations"] += 1

    async def _create(self, name: _Name) -> None:
        segments, rng = self.client._segment_client, self.rng
        try:
            await segments.create_segment(name.segment)
        except SegmentExistsError:
            self.world.problem(f"{name.segment} was deleted, and is there again")
            raise
        name.is_there = True
        filling = f"<life {len(name.lives) + 1} ".encode() * 40
        life = _Life(filling[: rng.choice((40, 300))] + self.world.padding(rng) + b">")
        name.lives.append(life)
        await segments.append(name.segment, life.data)
        if rng.random() < 0.6:
            life.may_be_sealed = True
            await segments.seal_segment(name.segment)

    async def _try_read(self, name: _Name, number: int, start: int) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await self._read(name, number, start)
        except TimeoutError:
            return
        except PenstockError as error:
            # The next life may be shorter, and sealed.
            is_behind = isinstance(error, InvalidArgumentError) and len(name.lives) > number
            if not is_behind and not isinstance(error, NoSuchSegmentError) and not self.world.is_passing(error):
                self.world.problem(f"{self.name}: read of {name.segment} at {start}: {error!r}")

    async def _read(self, name: _Name, number: int, start: int) -> None:
        """Read from `start`, beginning in life `number` (from 1)."""
        answer = await self.client._segment_client.read(name.segment, start, _READ_BYTES)
        if not any(_explains(life, start, answer) for life in name.lives[number - 1 :]):
            self.world.problem(
                f"{name.segment}: {answer.joined()!r} at {start} (tail: {answer.is_at_tail}, end: "
                f"{answer.is_end_of_segment}), read in lives {number} to {len(name.lives)}, is what none of them has"
            )
        self.world.counts["reads of reincarnations"] += 1


def _explains(life: _Life, start: int, answer: SegmentData) -> bool:
    data = answer.joined()
    end = start + len(data)
    if not data:
        # Before its append; or after the end of a sealed life, which may be shorter than the previous one.
        return not answer.is_end_of_segment or (life.may_be_sealed and start >= len(life.data))
    if life.data[start:end] != data:
        return False
    if answer.is_end_of_segment:
        return life.may_be_sealed and end == len(life.data)
    return not answer.is_at_tail or end == len(life.data)

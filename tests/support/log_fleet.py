"""`LogFleet`: processes that open, write, truncate, trim, suspend and kill logs in one place, and what they have seen.

Time is virtual, all choices come from a seed. Each frame has a text of its own: ``container/epoch/number``. Afterwards
`LogFleet.check` compares what each incarnation has read with what earlier ones were acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

from penstock.model.errors import LogRefusedError, PenstockError, UnreadableDataError
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.durable_log import DurableLog, LogAddress
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.simulation import Simulation
from support.inline_work import InlineWork

T = TypeVar("T")

SETTINGS = ObjectLogSettings(
    batch_interval_s=0.05,
    gather_s=0.005,
    batch_bytes_max=400,
    frame_length_max_bytes=200,
    hedge_s=0.2,
    hedge_percent_max=20,
    retry_delay_s_first=0.02,
    retry_delay_s_max=0.5,
    read_slots_max=4,
    truncate_interval_s=0.0,
    truncate_bytes=600,
    trim_interval_s=1.0,
    close_wait_s=2.0,
    slots_max=60,
    reserve_bytes=1600,
)
#: Everything that a bucket may do, often.
FAULTS = ObjectFaults(
    latency_s_min=0.005,
    latency_s_max=0.05,
    slow_s=1.0,
    late_s_max=40.0,
    hang_s=3.0,
    rates=tuple(
        (fault, rate)
        for fault, rate in (
            (ObjectFault.SLOW, 0.03),
            (ObjectFault.THROTTLE, 0.03),
            (ObjectFault.LOST_REQUEST, 0.03),
            (ObjectFault.LOST_REPLY, 0.03),
            (ObjectFault.SENT_TWICE, 0.03),
            (ObjectFault.LATE, 0.03),
            (ObjectFault.LATE_COPY, 0.05),
            (ObjectFault.CONFLICT, 0.03),
            (ObjectFault.HANG, 0.01),
            (ObjectFault.STALE_LIST, 0.1),
        )
    ),
)


class MortalObjects(SimulatedObjects):
    """The bucket's client of a process, which may be suspended before and after each request, or be dead."""

    paused_until_s = 0.0
    is_dead = False

    async def _attempt(self, call: str, effect: Callable[[], T]) -> T:
        await self._wait_while_paused()
        try:
            return await super()._attempt(call, effect)
        finally:
            await self._wait_while_paused()

    async def _wait_while_paused(self) -> None:
        loop = asyncio.get_running_loop()
        if self.is_dead:
            await loop.create_future()
        while self.paused_until_s > loop.time():
            await asyncio.sleep(self.paused_until_s - loop.time())
            if self.is_dead:
                await loop.create_future()


@dataclass
class Seen:
    """What an incarnation has read: the texts in order, and when its open had returned."""

    epoch: int
    texts: Sequence[str]
    opened_s: float


@dataclass
class ContainerHistory:
    """What happened to one container's log."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    forgotten_s: dict[str, float] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)


class FleetLog(DurableLog, Protocol):
    """A log of the fleet."""

    container_id: int


class FleetLogFactory(Protocol):
    """Makes the logs of one process."""

    def create(self, container_id: int) -> FleetLog:
        """See `DurableLogFactory.create`."""


class Mortal(Protocol):
    """What a process reaches the place of the logs by."""

    is_dead: bool
    paused_until_s: float

    def heal(self) -> None:
        """End its faults."""


class LogFleet:
    """See the module. The logs are in a bucket; subclasses have them elsewhere.

    Attributes:
        histories: by container.
        damage: errors that say that stored data are damaged, which none are.
    """

    def __init__(
        self, seed: int, *, process_count: int = 3, container_count: int = 2, duration_s: float = 60.0
    ) -> None:
        self.histories: dict[int, ContainerHistory] = {number: ContainerHistory() for number in range(container_count)}
        self.damage: list[PenstockError] = []
        self._simulation = Simulation(seed)
        self._rng = random.Random(f"fleet {seed}")
        self._bucket = SimulatedBucket()
        self._duration_s = duration_s
        self._process_count = process_count
        self._runtime = Runtime(
            disk=LocalDisk(), work=InlineWork(), rng=random.Random(f"ids {seed}"), wall_clock_ms=lambda: 0
        )
        self._clients = 0

    def run(self) -> LogFleet:
        """Run everything to its end. One container is opened last, without faults, and its log is read."""
        with self._simulation as simulation:
            simulation.run(self._scenario)
        return self

    async def _scenario(self) -> None:
        tasks = [asyncio.ensure_future(self._process()) for _ in range(self._process_count)]
        await asyncio.sleep(self._duration_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(2 * FAULTS.late_s_max)
        self._heal()
        factory, client = self._begin()
        client.heal()
        for container_id in self.histories:
            log = factory.create(container_id)
            try:
                await self._open(log)
            except (UnreadableDataError, LogRefusedError) as error:
                self.damage.append(error)
        own = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not own]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _heal(self) -> None:
        """End the faults of the place."""

    def _begin(self) -> tuple[FleetLogFactory, Mortal]:
        """Begin a process."""
        self._clients += 1
        client = MortalObjects(self._bucket, random.Random(self._rng.random()), FAULTS)
        factory = ObjectLogFactory(
            client, self._runtime, SETTINGS, prefix="log", cluster_id="a", container_count=len(self.histories)
        )
        return factory, client

    async def _process(self) -> None:
        """Run a process, and another one when it dies."""
        rng = self._rng
        while True:
            factory, client = self._begin()
            users = [asyncio.ensure_future(self._use(factory)) for _ in range(2)]
            try:
                for _ in range(rng.randint(1, 6)):
                    await asyncio.sleep(rng.expovariate(0.3))
                    if rng.random() < 0.7:
                        client.paused_until_s = asyncio.get_running_loop().time() + rng.choice([0.1, 1.0, 10.0])
            finally:
                client.is_dead = rng.random() < 0.7
                for user in users:
                    user.cancel()
            if not client.is_dead:
                # It is idle from now on: its logs stay open until another process opens them.
                await asyncio.sleep(rng.expovariate(1.0))

    async def _use(self, factory: FleetLogFactory) -> None:
        """Open logs of one process one after the other, and write to each until it is closed or lost."""
        rng = self._rng
        while True:
            log = factory.create(rng.choice(list(self.histories)))
            try:
                await self._open(log)
                await self._write(log)
                if rng.random() < 0.5:
                    await log.close()
            except (UnreadableDataError, LogRefusedError) as error:
                self.damage.append(error)
                return
            except PenstockError:
                pass  # Another incarnation has the log.
            await asyncio.sleep(rng.expovariate(1.0))

    async def _open(self, log: FleetLog) -> None:
        history = self.histories[log.container_id]
        await log.open()
        opened_s = asyncio.get_running_loop().time()
        frames = [frame async for frame in log.frames()]
        addresses = [frame.address for frame in frames]
        assert addresses == sorted(set(addresses))
        history.seen.append(Seen(log.epoch, [frame.data.decode() for frame in frames], opened_s))

    async def _write(self, log: FleetLog) -> None:
        rng, history = self._rng, self.histories[log.container_id]
        known: list[tuple[LogAddress, str]] = []
        number = 0
        for _ in range(rng.randint(1, 12)):
            futures = []
            for _ in range(rng.randint(1, 4)):
                text = f"{log.container_id}/{log.epoch}/{number}"
                number += 1
                future = log.append([text.encode()], len(text))
                future.add_done_callback(partial(self._acknowledge, history, log.epoch, text, known))
                futures.append(future)
            if rng.random() < 0.5:
                await asyncio.gather(*futures, return_exceptions=True)
            else:
                await asyncio.sleep(rng.expovariate(10.0))
            if known and rng.random() < 0.1:
                await self._truncate(log, history, known)
            if rng.random() < 0.1:
                await log.confirm_ownership()
        await asyncio.gather(*futures, return_exceptions=True)

    def _acknowledge(
        self,
        history: ContainerHistory,
        epoch: int,
        text: str,
        known: list[tuple[LogAddress, str]],
        done: asyncio.Future[LogAddress],
    ) -> None:
        if not done.cancelled() and done.exception() is None:
            history.acknowledged[text] = epoch
            known.append((done.result(), text))

    async def _truncate(self, log: FleetLog, history: ContainerHistory, known: list[tuple[LogAddress, str]]) -> None:
        address, _ = self._rng.choice(known)
        now_s = asyncio.get_running_loop().time()
        # What earlier incarnations wrote is before it.
        texts = [*history.seen[-1].texts, *history.acknowledged]
        gone = {text for at, text in known if at <= address}
        for text in texts:
            if text in gone or int(text.split("/")[1]) < log.epoch:
                history.forgotten_s.setdefault(text, now_s)
        await log.truncate(address)

    # -- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Return what is wrong."""
        problems = [f"damage is reported: {error}" for error in self.damage]
        for container_id, history in self.histories.items():
            epochs = [seen.epoch for seen in history.seen]
            if len(set(epochs)) != len(epochs):
                problems.append(f"container {container_id}: an epoch was opened twice: {epochs}")
            for seen in history.seen:
                problems += [f"container {container_id}, epoch {seen.epoch}: {each}" for each in _wrong(history, seen)]
        return problems


def _wrong(history: ContainerHistory, seen: Seen) -> list[str]:
    problems = []
    found = set(seen.texts)
    if len(found) != len(seen.texts):
        problems.append("it has read a frame twice")
    order = [tuple(map(int, text.split("/")[1:])) for text in seen.texts]
    if order != sorted(order):
        problems.append(f"it has read frames out of order: {order}")
    for text, epoch in history.acknowledged.items():
        is_gone = history.forgotten_s.get(text, float("inf")) <= seen.opened_s
        if epoch < seen.epoch and text not in found and not is_gone:
            problems.append(f"{text} was acknowledged and was not read")
    for (epoch, number), (next_epoch, next_number) in pairwise(order):
        if epoch == next_epoch and next_number != number + 1:
            problems.append(f"a frame is missing between {epoch}/{number} and {next_number}")
        if epoch != next_epoch and next_number != 0 and f"{next_epoch}/0" not in found:
            problems.append(f"the first frames of epoch {next_epoch} are missing")
    return problems

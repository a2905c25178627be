"""`play_load_ramp`: a stream scales with its load, in simulated time and through crashes, without loss or reordering.

A run: a stream with a target of one event per second per segment gets several, until it has split; then almost none,
until it has merged again. Meanwhile servers crash and restart. A reader follows. The run is judged by the times within
which the policy promises a split and a merge, counted from the load's change or the last crash, and by the events
read. It takes most of an hour of simulated time. The faults of ordinary seeds, one every few seconds, are not used
here: no store would observe a load for long enough. See ``docs/auto-scaling.md``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from penstock.client.client import Client
from penstock.model.policies import Scaling
from penstock_simulation.checks.controller import check_controller
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.trace import Trace

STREAM = "scope/ramp"
_TARGET_RATE = 1
_KEY_COUNT = 16
_MINUTE_S = 60.0
#: Time for which a load is observed before a split, the controller's polling interval, and an allowance.
_SPLIT_WITHIN_S = 600.0 + 120.0 + 60.0
#: The average of 20 minutes falls from twice the target to half of it in 28; then a poll, and one that was muted.
_MERGE_WITHIN_S = 30 * _MINUTE_S + 600.0 + 2 * 120.0 + 60.0
_POLL_S = 10.0
_READ_TIMEOUT_S = 30.0


@dataclass(slots=True)
class LoadRamp:
    """Result of a run.

    Attributes:
            violations: broken promises; empty on success.
        digest: of the whole trace.
        split_s, merged_s: seconds from the load's change, or the last crash, to the split and to the merge.
            segment_counts: numbers of segments, in order of time.
        crashes: hosts that crashed, in order.
        event_count: events written.
    """

    violations: list[str] = field(default_factory=list)
    digest: str = ""
    split_s: float = 0.0
    merged_s: float = 0.0
    segment_counts: list[int] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    event_count: int = 0


def play_load_ramp(seed: int) -> LoadRamp:
    """Play a seed: one store or two, the controller combined with them or separate, with drawn crashes.

    Must not be called from a running event loop.
    """
    rng = random.Random(f"{seed}/load ramp")
    settings = ClusterSettings(store_count=rng.choice((1, 2)), is_combined=rng.random() < 0.5, is_scaling_by_load=True)
    trace = Trace()
    with Simulation(seed, trace=trace) as simulation:
        played = _Ramp(simulation, SimulatedCluster(simulation, settings), rng)
        simulation.run(played.play)
        played.outcome.violations += [f"unhandled: {context}" for context in simulation.loop.unhandled]
    played.outcome.digest = trace.digest
    return played.outcome


class _Ramp:
    def __init__(self, simulation: Simulation, cluster: SimulatedCluster, rng: random.Random) -> None:
        self.outcome = LoadRamp()
        self._simulation = simulation
        self._cluster = cluster
        self._rng = rng
        self._hosts = {name: cluster.add_client(name) for name in ("writer", "reader", "observer")}
        self._hot_rate = rng.uniform(2.0, 3.5)
        self._rate = self._hot_rate
        self._is_over = False
        self._changed_s = 0.0
        #: By key, the numbers of its events, as written and as read.
        self._written: dict[str, list[int]] = {}
        self._read: dict[str, list[int]] = {}

    @property
    def _now_s(self) -> float:
        return self._simulation.loop.time()

    async def play(self) -> None:
        """Run the driver."""
        await self._cluster.ready()
        await self._on("observer", self._create)
        work = [
            asyncio.ensure_future(self._on("writer", self._write)),
            asyncio.ensure_future(self._on("reader", self._follow)),
        ]
        await self._stage("split", _SPLIT_WITHIN_S, lambda count: count > 1)
        self.outcome.split_s = self._now_s - self._changed_s
        self._rate = 0.02
        await self._stage("merge", _MERGE_WITHIN_S, lambda count: count == 1)
        self.outcome.merged_s = self._now_s - self._changed_s
        self._is_over = True
        await asyncio.gather(*work)
        self._judge()
        service = self._cluster.controller_service()
        assert service is not None
        self.outcome.violations += await self._cluster.controller.run(check_controller(service))

    async def _on(self, name: str, work: Callable[[Client], Awaitable[None]]) -> None:
        host: Host = self._hosts[name]

        async def run() -> None:
            async with self._cluster.client(host) as client:
                await work(client)

        await host.run(run())

    async def _create(self, client: Client) -> None:
        await client.create_stream(STREAM, scaling=Scaling.by_event_rate(_TARGET_RATE))

    async def _stage(self, what: str, within_s: float, is_reached: Callable[[int], bool]) -> None:
        """Wait until the stream has changed as expected; a server may crash meanwhile."""
        self._changed_s = self._now_s
        crash_s = self._now_s + self._rng.uniform(30.0, 900.0) if self._rng.random() < 0.7 else float("inf")
        while not is_reached(await self._segment_count()):
            if self._now_s >= crash_s:
                crash_s = float("inf")
                await self._crash()
            if self._now_s > self._changed_s + within_s:
                self.outcome.violations.append(
                    f"no {what} within {within_s:g} s; segments: {self.outcome.segment_counts}"
                )
                return
            await asyncio.sleep(_POLL_S)

    async def _crash(self) -> None:
        hosts = list(dict.fromkeys([*self._cluster.stores, self._cluster.controller]))
        host = self._rng.choice(hosts)
        host.crash(self._rng.choice(list(Death)))
        await asyncio.sleep(self._rng.uniform(0.1, 20.0))
        host.restart()
        await self._cluster.ready()
        self.outcome.crashes.append(host.name)
        # A server that observed a load, or was about to poll it, starts over.
        self._changed_s = self._now_s

    async def _segment_count(self) -> int:
        found: list[int] = []

        async def observe(client: Client) -> None:
            found.append(len(await client.segments_of(STREAM)))

        await self._on("observer", observe)
        if self.outcome.segment_counts[-1:] != found:
            self.outcome.segment_counts += found
        return found[0]

    async def _write(self, client: Client) -> None:
        rng = random.Random(self._rng.random())
        async with client.event_writer(STREAM) as writer:
            while not self._is_over:
                key = f"key {rng.randrange(_KEY_COUNT)}"
                numbers = self._written.setdefault(key, [])
                numbers.append(len(numbers))
                await writer.write(f"{key}|{numbers[-1]}".encode(), key)
                self.outcome.event_count += 1
                await self._until_next(rng)

    async def _until_next(self, rng: random.Random) -> None:
        due_s = self._now_s + rng.expovariate(self._rate)
        while self._now_s < due_s and not self._is_over:  # noqa: ASYNC110  # the driver, elsewhere, ends it
            await asyncio.sleep(min(due_s - self._now_s, _POLL_S))

    async def _follow(self, client: Client) -> None:
        async with await client.reader_group("group", [STREAM]) as group:
            reader = await group.reader("reader")
            while not (self._is_over and self._has_read_all()):
                event = await reader.read(timeout_s=_READ_TIMEOUT_S)
                if event is None:
                    if self._is_over:
                        return
                    continue
                key, number = bytes(event.data).decode().split("|")
                self._read.setdefault(key, []).append(int(number))

    def _has_read_all(self) -> bool:
        return sum(map(len, self._read.values())) >= sum(map(len, self._written.values()))

    def _judge(self) -> None:
        for key, numbers in self._written.items():
            if (read := self._read.get(key, [])) != numbers:
                self.outcome.violations.append(f"{key}: {len(numbers)} events written, read: {read[:50]}...")


def describe(outcome: LoadRamp) -> str:
    """Return a line about a run."""
    return (
        f"split after {outcome.split_s:.0f} s, merged after {outcome.merged_s:.0f} s; segments "
        f"{outcome.segment_counts}; {outcome.event_count} events; crashes: {', '.join(outcome.crashes) or 'none'}"
    )

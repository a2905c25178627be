"""`World`: shared by the workloads of one run: the cluster, the history, the times, and the problems found."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.client import Client
from penstock.model.errors import ControllerUnavailableError, OutcomeUnknownError, PenstockError
from penstock_simulation.checks.history import History, Invocation, Outcome
from penstock_simulation.checks.history_events import Call, Observation, Result
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.host import Host

T = TypeVar("T")

SCOPE = "sim"
#: Prefix that long-term storage refuses in some clusters: the segment of the workload "bytes".
REFUSED_PREFIX = f"{SCOPE}/bytes/"
#: Most problems recorded.
_PROBLEMS_MAX = 50


class TracedHistory(History):
    """A history that is also written to the trace, so that a failure can be read in one place."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        loop, trace = cluster.simulation.loop, cluster.simulation.trace
        super().__init__(loop.time)
        self._loop = loop
        self._trace = trace

    def invoke(self, client: str, call: Call) -> Invocation:
        """See `History.invoke`."""
        invocation = super().invoke(client, call)
        self._trace.add(self._loop.time(), f"history {client}: #{invocation.index} {_short(call)}")
        return invocation

    def see(self, client: str, observation: Observation) -> None:
        """See `History.see`."""
        super().see(client, observation)
        self._trace.add(self._loop.time(), f"history {client}: saw {_short(observation)}")

    def _end(self, invocation: Invocation, outcome: Outcome, result: Result, error: str) -> None:
        super()._end(invocation, outcome, result, error)
        text = f"{outcome.value} {_short(result) if outcome is Outcome.OK else error}"
        self._trace.add(self._loop.time(), f"history {invocation.client}: #{invocation.index} -> {text}")


class World:
    """See the module.

    Attributes:
        stop_s: time after which workloads start no new work, on the loop's clock.
        give_up_s: time after which a failing call means that the cluster has not healed.
        problems: problems found by the workloads; each is a violation.
        counts: numbers of actions, for the totals.
        payload_bytes_max: longest padding of events and values.
        full_reads: full reads begun so far, for their names.
        broken_groups: reader groups with a reader that ended with an error. It is later declared dead, and events after
            its last stored positions are read again, so the group is not checked further.
    """

    def __init__(
        self, cluster: SimulatedCluster, rng: random.Random, *, stop_s: float, give_up_s: float, payload_bytes_max: int
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.history: TracedHistory = TracedHistory(cluster)
        self.stop_s = stop_s
        self.give_up_s = give_up_s
        self.payload_bytes_max = payload_bytes_max
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.full_reads = 0
        self.broken_groups: dict[str, None] = {}

    @property
    def now_s(self) -> float:
        """The loop's time."""
        return self.cluster.simulation.loop.time()

    @property
    def is_writing(self) -> bool:
        """Whether new work may begin."""
        return self.now_s < self.stop_s

    def problem(self, text: str) -> None:
        """Record a violation."""
        self.cluster.simulation.trace.add(self.now_s, f"problem {text}")
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(f"at {self.now_s:.6f} s: {text}")

    def is_passing(self, error: PenstockError) -> bool:
        """Return whether faults explain an error: no answer, a retriable error, or a disk that failed a read."""
        is_unnamed = type(error) is PenstockError and "[Errno 5] simulated" in str(error)
        return error.is_retriable or is_unnamed or isinstance(error, OutcomeUnknownError)

    def padding(self, rng: random.Random) -> bytes:
        """Return filler: mostly short, rarely long."""
        length = int(self.payload_bytes_max * rng.random() ** 4)
        return bytes([rng.randrange(33, 127)]) * length

    async def insist(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent call until it has an answer. Raises the error once `give_up_s` is past."""
        while True:
            try:
                return await attempt()
            except (OutcomeUnknownError, ControllerUnavailableError) as error:
                if self.now_s > self.give_up_s:
                    self.problem(f"{what}: no answer long after all was healed: {error!r}")
                    raise
            except PenstockError as error:
                if not self.is_passing(error) or self.now_s > self.give_up_s:
                    raise
            await asyncio.sleep(0.2)


class Workload:
    """The work of one client. A scenario creates subclasses; each runs on a host and has its own generator.

    Order of the calls: `prepare` (before any fault), `run` (until `World.stop_s`, then come to rest), `verify` (without
    faults: read everything back; again after a power failure if `verifies_again`).
    """

    verifies_again = True

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.rng = rng
        self.client: Client

    def make_client(self) -> Client:
        """Return the client of the workload, not open yet."""
        return self.world.cluster.client(self.host)

    async def prepare(self) -> None:
        """Create what the workload needs."""

    async def run(self) -> None:
        """Work until `World.stop_s`, then finish the open work."""

    async def verify(self) -> None:
        """Read everything back."""

    async def rest(self, mean_s: float) -> None:
        """Pause between two calls."""
        await asyncio.sleep(min(self.rng.expovariate(1.0 / mean_s), 10 * mean_s))

    async def meet(self, interval_s: float = 5.0) -> None:
        """Wait until the next multiple of `interval_s`, like other workloads; shared resources may be idle by then."""
        await asyncio.sleep(interval_s - self.world.now_s % interval_s)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:200]}... {text[-60:]}"

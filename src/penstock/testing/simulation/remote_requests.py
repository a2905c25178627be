"""`RemoteClient`: what befalls the requests of one client of a service that is simulated in memory.

A request takes a while there and a while back. It may be lost on either way, or be given up by its client and arrive
all the same. Each fault is a named value of an enum of the service, with a rate; all are drawn from one generator.
`inject` lets a given call fail in a given way. The whole service stands still, or is away, for a client whose host says
so (`WayToService`), as a disk does. Time is the running loop's.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from penstock.model.errors import (
    InvalidArgumentError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageUnreachableError,
)
from penstock.testing.simulation.loop import SimulatedLoop
from penstock.testing.simulation.stalls import DiskStalls

F = TypeVar("F", bound=StrEnum)

#: How long a request is waited for while the service stands still.
_ANSWER_S_MAX = 4.0


@dataclass(frozen=True, slots=True)
class RequestFaults(Generic[F]):
    """Rates are probabilities per request.

    Attributes:
        latency_s_min: every request takes at least this ...
        latency_s_max: ... and at most this, drawn evenly.
        slow_s: what a slow request takes on top.
        late_s_max: how long after it was given up a late one has its effect, at most.
        rates: of each fault.
        is_reachable: whether any request arrives.
        is_full: whether nothing more is taken.
    """

    latency_s_min: float = 0.001
    latency_s_max: float = 0.01
    slow_s: float = 2.0
    late_s_max: float = 20.0
    rates: tuple[tuple[F, float], ...] = ()
    is_reachable: bool = True
    is_full: bool = False

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        if not 0 <= self.latency_s_min <= self.latency_s_max:
            raise InvalidArgumentError(f"latency_s_min {self.latency_s_min} is above latency_s_max")
        if not all(0 <= rate <= 1 for _, rate in self.rates):
            raise InvalidArgumentError(f"a rate is a probability: {self.rates}")


@dataclass(frozen=True, slots=True)
class WayToService:
    """What is between a simulated host and a service that it uses as long-term storage.

    Attributes:
        loop: has the effects of requests whose client is dead by then.
        stalls: what of the host's disks stands still; under `path` it is the service.
        losses: what of the host's disks is not mounted; under `path` the service cannot be reached.
        path: where the service would be mounted.
    """

    loop: SimulatedLoop
    stalls: DiskStalls
    losses: DiskStalls
    path: str = "/data/tier2/"


class RemoteClient(Generic[F]):
    """See the module. `kind`: the faults of the service; ``slow``, ``lost request`` and ``late`` are among them.

    Attributes:
        faults: may be replaced at any time; see `heal`.
        fault_counts: faults so far.
    """

    def __init__(
        self, kind: type[F], rng: random.Random, faults: RequestFaults[F], way: WayToService | None = None
    ) -> None:
        self.faults: RequestFaults[F] = faults
        self.fault_counts: Counter[F] = Counter()
        self._rng = rng
        self._slow, self._lost_request, self._late = kind("slow"), kind("lost request"), kind("late")
        self._way = way
        self._injected: dict[str, deque[F]] = {}

    def heal(self) -> None:
        """Let nothing go wrong any more, but for what was injected."""
        self.faults = type(self.faults)()

    def inject(self, call: str, *faults: F) -> None:
        """Let the next requests named `call` (``"delete"``...) meet these faults, one each, in this order."""
        self._injected.setdefault(call, deque()).extend(faults)

    async def _travel(self, call: str, effect: Callable[[], object]) -> float:
        """Bring a request to the service, and return how long its answer takes.

        Raises `StorageUnreachableError` if it is lost, `StorageNotRespondingError` if it is given up. Then it may have
        its effect all the same.
        """
        faults = self.faults
        half_s = self._rng.uniform(faults.latency_s_min, faults.latency_s_max) / 2
        await asyncio.sleep(half_s + (faults.slow_s if self._strikes(call, self._slow) else 0.0))
        await self._wait_out_stall(call, effect)
        is_lost = self._way is not None and self._way.losses.until_s(self._way.path) is not None
        if is_lost or not self.faults.is_reachable or self._strikes(call, self._lost_request):
            raise StorageUnreachableError(f"simulated: {call} did not arrive")
        return half_s

    def _give_up(self, call: str, effect: Callable[[], object]) -> None:
        """Perhaps let a request have its effect after its client has given it up: `StorageNotRespondingError`."""
        if self._strikes(call, self._late):
            self._have_late(self._rng.uniform(0, self.faults.late_s_max), effect)
            raise StorageNotRespondingError(f"simulated: {call} was not answered in time")

    def _demand_room(self) -> None:
        if self.faults.is_full:
            raise StorageFullError("simulated: no space is left")

    async def _wait_out_stall(self, call: str, effect: Callable[[], object]) -> None:
        if self._way is None or (until_s := self._way.stalls.until_s(self._way.path)) is None:
            return
        left_s = until_s - self._way.loop.time()
        await asyncio.sleep(min(left_s, _ANSWER_S_MAX))
        if left_s > _ANSWER_S_MAX:
            self._have_late(left_s - _ANSWER_S_MAX, effect)
            raise StorageNotRespondingError(f"simulated: {call} was not answered within {_ANSWER_S_MAX:g} s")

    def _have_late(self, delay_s: float, effect: Callable[[], object]) -> None:
        """Let a request have its effect later, be its client alive or not."""
        if self._way is None:
            asyncio.get_running_loop().call_later(delay_s, _have_effect, effect)
        else:
            self._way.loop.at(self._way.loop.time() + delay_s, lambda: _have_effect(effect))

    def _strikes(self, call: str, fault: F) -> bool:
        injected = self._injected.get(call)
        if injected and injected[0] is fault:
            injected.popleft()
        else:
            rate = dict(self.faults.rates).get(fault, 0.0)
            if not rate or self._rng.random() >= rate:
                return False
        self.fault_counts[fault] += 1
        return True


def _have_effect(effect: Callable[[], object]) -> None:
    try:
        effect()
    except StorageError:
        pass  # Refused, and nobody hears of it.

"""`RemoteClient`: faults of the requests of one client of a service that is simulated in memory.

A request takes time in both directions. It may be lost in either direction, or be given up by its client and arrive
anyway. Each fault is a named value of an enum of the service, with a rate; all are drawn from one generator. `inject`
makes a given call fail in a given way. The whole service stalls, or is unreachable, for a client whose host says so
(`WayToService`), as a disk does. Time is the running loop's.
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
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.stalls import DiskStalls

F = TypeVar("F", bound=StrEnum)

#: Timeout of a request while the service is stalled.
_ANSWER_S_MAX = 4.0


@dataclass(frozen=True, slots=True)
class RequestFaults(Generic[F]):
    """Rates are probabilities per request.

    Attributes:
        latency_s_min: every request takes at least this ...
        latency_s_max: ... and at most this, drawn evenly.
            slow_s: additional duration of a slow request.
            late_s_max: longest time from giving up a late request to its effect.
            rates: rate of each fault.
            is_reachable: whether any request arrives.
            is_full: whether writes are refused because the service is full.
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
    """The path between a simulated host and a service that it uses as long-term storage.

    Attributes:
            loop: runs the effects of requests whose client has died.
            stalls: stalled parts of the host's disks; the service is at `path`.
            losses: unmounted parts of the host's disks; if `path` is among them the service cannot be reached.
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
        """End all faults, except injected ones."""
        self.faults = type(self.faults)()

    def inject(self, call: str, *faults: F) -> None:
        """Make the next requests named `call` (``"delete"``...) meet these faults, one each, in this order."""
        self._injected.setdefault(call, deque()).extend(faults)

    async def _travel(self, call: str, effect: Callable[[], object]) -> float:
        """Bring a request to the service, and return the delay of its answer.

        Raises `StorageUnreachableError` if it is lost, `StorageNotRespondingError` if it is given up. In that case
        it may still have its effect.
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
        """Draw whether a request has its effect after its client has given it up: `StorageNotRespondingError`."""
        if self._strikes(call, self._late):
            self._have_late(self._rng.uniform(0, self.faults.late_s_max), effect)
            raise StorageNotRespondingError(f"simulated: {call} was not answered in time")

    def _demand_room(self) -> None:
        if self.faults.is_full:
            raise StorageFullError("simulated: no space is left")

    async def _wait_out_stall(self, call: str, effect: Callable[[], object]) -> None:
        if self._way is None or (until_s := self._way.stalls.until_s(self._way.path)) is None:
            return
        left_s = until_s - self._way.loop.now_s
        await asyncio.sleep(min(left_s, _ANSWER_S_MAX))
        if left_s > _ANSWER_S_MAX:
            self._have_late(left_s - _ANSWER_S_MAX, effect)
            raise StorageNotRespondingError(f"simulated: {call} was not answered within {_ANSWER_S_MAX:g} s")

    def _have_late(self, delay_s: float, effect: Callable[[], object]) -> None:
        """Execute a request later, whether its client is alive or not."""
        if self._way is None:
            asyncio.get_running_loop().call_later(delay_s, _have_effect, effect)
        else:
            self._way.loop.at(self._way.loop.now_s + delay_s, lambda: _have_effect(effect))

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
        pass  # Refused; the error is not reported.

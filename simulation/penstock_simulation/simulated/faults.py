"""`FaultPlan`: faults and their times, as data that can be printed, parsed, replayed and shrunk.

One line per fault: seconds after the plan's start, the kind, and its fields::

    1.250000 Crash host=store-1 death=power down_s=2.5
    3.100000 Partition one=client-1 other=store-1 duration_s=4.0 is_one_way=False

Every fault ends by itself, so after `FaultPlan.end_s` there are no faults left. Faults may overlap; a crash of a host
that is down has no effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import get_args, get_type_hints

from penstock.model.errors import InvalidArgumentError
from penstock_simulation.simulated.hangs import Hang
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.lock_faults import LockGone
from penstock_simulation.simulated.log_faults import WRONG_LOG_KINDS, WrongLogs
from penstock_simulation.simulated.member_faults import MemberFault
from penstock_simulation.simulated.owner_faults import Move, Reassignment, Takeover
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.storage_faults import DiskErrors, DiskFull, DiskStall, NoDescriptors, StorageMissing


@dataclass(frozen=True, slots=True)
class Partition:
    """No packet passes between two hosts, or none from `one` to `other` (`is_one_way`)."""

    one: str
    other: str
    duration_s: float
    is_one_way: bool = False

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        network, loop = simulation.network, simulation.loop
        network.block(self.one, self.other)
        loop.at(loop.now_s + self.duration_s, partial(network.unblock, self.one, self.other))
        if not self.is_one_way:
            network.block(self.other, self.one)
            loop.at(loop.now_s + self.duration_s, partial(network.unblock, self.other, self.one))

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class Reset:
    """Every connection between two hosts is reset."""

    one: str
    other: str

    def strike(self, simulation: Simulation) -> None:
        """Apply the fault."""
        simulation.network.reset(self.one, self.other)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return 0.0


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """Every connection between two hosts is silently forgotten, or only the direction from `one` to `other`.

    New connections work immediately.
    """

    one: str
    other: str
    is_one_way: bool = False

    def strike(self, simulation: Simulation) -> None:
        """Apply the fault."""
        simulation.network.forget_flows(self.one, self.other)
        if not self.is_one_way:
            simulation.network.forget_flows(self.other, self.one)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault: 0, as both ends must detect it themselves."""
        return 0.0


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Packets from `source` to `target` take up to `delay_s` longer, and the bandwidth is divided by `factor`."""

    source: str
    target: str
    delay_s: float
    factor: float
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        network, loop = simulation.network, simulation.loop
        network.slow_down(self.source, self.target, delay_s=self.delay_s, factor=self.factor)
        loop.at(loop.now_s + self.duration_s, partial(network.slow_down, self.source, self.target))

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class Pause:
    """A host's process is paused; its kernel is not."""

    host: str
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        host, loop = simulation.hosts[self.host], simulation.loop
        host.pause()
        loop.at(loop.now_s + self.duration_s, host.resume)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class Crash:
    """A host dies and restarts after `down_s`."""

    host: str
    death: Death
    down_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        host, loop = simulation.hosts[self.host], simulation.loop
        if host.is_up:
            host.crash(self.death)
            loop.at(loop.now_s + self.down_s, host.restart)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.down_s


@dataclass(frozen=True, slots=True)
class CrashAtDiskCall:
    """A host dies at its `call_count`-th disk call from now, and restarts after `down_s`."""

    host: str
    call_count: int
    death: Death
    down_s: float

    def strike(self, simulation: Simulation) -> None:
        """Arm the fault."""
        simulation.hosts[self.host].crash_at_disk_call(self.call_count, self.death, down_s=self.down_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault, once it has struck."""
        return self.down_s


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A host's wall clock jumps forward or backward."""

    host: str
    by_ms: int

    def strike(self, simulation: Simulation) -> None:
        """Apply the fault."""
        simulation.hosts[self.host].jump_clock(self.by_ms)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault: 0; the jump remains."""
        return 0.0


Fault = (
    Partition
    | Reset
    | HalfOpen
    | SlowLink
    | Pause
    | Crash
    | CrashAtDiskCall
    | DiskErrors
    | ClockJump
    | DiskFull
    | NoDescriptors
    | DiskStall
    | StorageMissing
    | Takeover
    | Reassignment
    | Move
    | WrongLogs
    | LockGone
    | Hang
    | MemberFault
)
_KINDS: dict[str, type[Fault]] = {kind.__name__: kind for kind in get_args(Fault)}
#: Faults that are planned for a cluster, not drawn for any host: see `workloads.plans`.
_CLUSTER_KINDS = ("Takeover", "Reassignment", "Move", *(kind.__name__ for kind in get_args(MemberFault)))
_LINK_KINDS = ("Partition", "Reset", "HalfOpen", "SlowLink")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault and its time, in seconds after the plan's start."""

    at_s: float
    fault: Fault

    def __str__(self) -> str:
        """Return the line that `FaultPlan.parse` reads. Floats round-trip exactly."""
        values = ((entry.name, getattr(self.fault, entry.name)) for entry in fields(self.fault))
        words = [f"{name}={value.value if isinstance(value, Death) else value}" for name, value in values]
        return f"{self.at_s!r} {type(self.fault).__name__} {' '.join(words)}"


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Parameters of `FaultPlan.draw`.

    Attributes:
        duration_s: faults strike within this time.
            mean_gap_s: mean time between two faults.
            lasts_s_max: longest outage, pause, partition.
            clock_jump_ms_max: largest jump of a clock, in either direction.
            disk_error_rate_max: highest error rate of a failing disk.
            stall_places: places that a `DiskStall` is drawn from.
            mount: the mount that `StorageMissing` removes.
            wrong_logs: kinds that a `WrongLogs` is drawn from.
            kinds: names of the kinds to draw from; a name given twice is drawn twice as often.
    """

    duration_s: float = 60.0
    mean_gap_s: float = 5.0
    lasts_s_max: float = 10.0
    clock_jump_ms_max: int = 60_000
    disk_error_rate_max: float = 0.05
    stall_places: tuple[str, ...] = ("/tier1/", "/tier2/", "/")
    mount: str = "/data/tier2"
    wrong_logs: tuple[str, ...] = WRONG_LOG_KINDS
    kinds: tuple[str, ...] = ("Partition", "Reset", "SlowLink", "Pause", "Crash", "CrashAtDiskCall", "ClockJump")

    def __post_init__(self) -> None:
        """Check the kinds. Raises `InvalidArgumentError`."""
        known = [kind for kind in _KINDS if kind not in _CLUSTER_KINDS]
        unknown = [kind for kind in self.kinds if kind not in known]
        if unknown or not self.kinds:
            raise InvalidArgumentError(f"kinds of faults: {unknown or 'none'}; known are {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """See the module."""

    faults: tuple[PlannedFault, ...] = ()

    @property
    def end_s(self) -> float:
        """End of the last fault, in seconds after the start; crashes at a disk call may come later."""
        return max((planned.at_s + planned.fault.lasts_s for planned in self.faults), default=0.0)

    def start(self, simulation: Simulation) -> None:
        """Schedule the faults, relative to now."""
        loop = simulation.loop
        for planned in self.faults:
            loop.at(loop.now_s + planned.at_s, partial(_strike, planned.fault, simulation))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return "".join(f"{planned}\n" for planned in self.faults)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Parse the output of `str`; empty lines and comments (#) are skipped. Raises `InvalidArgumentError`."""
        lines = [line.strip() for line in text.splitlines()]
        return cls(tuple(_parse_line(line) for line in lines if line and not line.startswith("#")))

    @classmethod
    def draw(
        cls,
        rng: random.Random,
        *,
        servers: Sequence[str],
        clients: Sequence[str] = (),
        settings: FaultSettings | None = None,
    ) -> FaultPlan:
        """Draw a plan. Servers get every kind of fault; clients only faults of their links to servers."""
        settings = settings or FaultSettings()
        planned: list[PlannedFault] = []
        at_s = 0.0
        while True:
            at_s += rng.expovariate(1.0 / settings.mean_gap_s)
            if at_s >= settings.duration_s:
                return cls(tuple(planned))
            planned.append(PlannedFault(round(at_s, 6), _draw_fault(rng, servers, clients, settings)))

    def with_faults(self, more: Sequence[PlannedFault]) -> FaultPlan:
        """Return the plan with additional faults, ordered by time."""
        return FaultPlan(tuple(sorted((*self.faults, *more), key=lambda planned: planned.at_s)))

    def without(self, indexes: Sequence[int]) -> FaultPlan:
        """Return the plan without the faults at these indexes."""
        return FaultPlan(tuple(planned for index, planned in enumerate(self.faults) if index not in indexes))


def shrink(plan: FaultPlan, fails: Callable[[FaultPlan], bool]) -> FaultPlan:
    """Return a plan from which no single fault can be removed without `fails` returning False.

    `fails` must be True for `plan` itself; it is called about n log n times for n faults. After Zeller's delta
    debugging.
    """
    chunk_count = 2
    while len(plan.faults) > 1:
        size = -(-len(plan.faults) // chunk_count)
        chunks = [range(start, min(start + size, len(plan.faults))) for start in range(0, len(plan.faults), size)]
        smaller = next((candidate for chunk in chunks if fails(candidate := plan.without(chunk))), None)
        if smaller is not None:
            plan, chunk_count = smaller, max(2, chunk_count - 1)
        elif size == 1:
            return plan
        else:
            chunk_count = min(len(plan.faults), 2 * chunk_count)
    return plan


def _strike(fault: Fault, simulation: Simulation) -> None:
    simulation.trace.add(simulation.loop.now_s, f"fault {PlannedFault(0.0, fault)}")
    fault.strike(simulation)


def _draw_fault(rng: random.Random, servers: Sequence[str], clients: Sequence[str], settings: FaultSettings) -> Fault:
    everybody = [*servers, *clients]
    # A single host has no links to break.
    kind = rng.choice([kind for kind in settings.kinds if len(everybody) > 1 or kind not in _LINK_KINDS])
    host = rng.choice(servers)
    other = rng.choice([name for name in everybody if name != host] or [host])
    lasts_s = round(rng.uniform(0.001, 1.0) ** 2 * settings.lasts_s_max, 6)
    one, two = (host, other) if rng.random() < 0.5 else (other, host)
    death = rng.choice(list(Death))
    match kind:
        case "Partition":
            return Partition(one, two, lasts_s, is_one_way=rng.random() < 0.5)
        case "Reset":
            return Reset(one, two)
        case "HalfOpen":
            return HalfOpen(one, two, is_one_way=rng.random() < 0.5)
        case "SlowLink":
            return SlowLink(one, two, round(rng.uniform(0.0, 0.5), 6), float(rng.choice((1, 10, 1000))), lasts_s)
        case "Pause":
            return Pause(host, lasts_s)
        case "Crash":
            return Crash(host, death, lasts_s)
        case "CrashAtDiskCall":
            return CrashAtDiskCall(host, rng.randint(1, 200), death, lasts_s)
        case "DiskErrors":
            rates = [round(rng.uniform(0.0, settings.disk_error_rate_max), 6) for _ in range(3)]
            return DiskErrors(host, rates[0], rates[1], rates[2], lasts_s)
        case "DiskFull":
            return DiskFull(host, rng.choice((0, 4096, 65536)), lasts_s)
        case "NoDescriptors":
            return NoDescriptors(host, lasts_s)
        case "DiskStall":
            return DiskStall(host, rng.choice(settings.stall_places), lasts_s)
        case "StorageMissing":
            return StorageMissing(host, settings.mount, lasts_s, rng.random() < 0.3)
        case "WrongLogs":
            age_s, down_s = round(rng.uniform(1.0, settings.lasts_s_max), 6), round(rng.uniform(0.01, 0.5), 6)
            return WrongLogs(host, rng.choice(settings.wrong_logs), age_s, down_s, 0.5 + lasts_s)
        case "LockGone":
            return LockGone(host, rng.random() < 0.7, 6.0 + lasts_s)
        case "Hang":
            return Hang(host, lasts_s, rng.random() < 0.3)
        case _:
            return ClockJump(host, rng.randint(-settings.clock_jump_ms_max, settings.clock_jump_ms_max))


def _parse_line(line: str) -> PlannedFault:
    words = line.split()
    try:
        kind = _KINDS[words[1]]
        texts = dict(word.split("=", 1) for word in words[2:])
        hints = get_type_hints(kind)
        if texts.keys() - {entry.name for entry in fields(kind)}:
            raise ValueError("unknown field")
        values = {name: _parse_value(hints[name], text) for name, text in texts.items()}
        # The type of each value was derived from its field.
        return PlannedFault(float(words[0]), kind(**values))  # type: ignore[arg-type]  # see above
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"not a planned fault: {line!r} ({error}); kinds are {', '.join(_KINDS)}") from error


def _parse_value(kind: object, text: str) -> str | int | float | bool | Death:
    if kind is bool:
        return {"True": True, "False": False}[text]
    if kind is int:
        return int(text)
    if kind is float:
        return float(text)
    if kind is Death:
        return Death(text)
    return text

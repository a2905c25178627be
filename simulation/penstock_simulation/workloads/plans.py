"""Fault plans of several faults: swizzled links, crash loops, zombies, ownership changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_simulation.simulated.faults import (
    Crash,
    CrashAtDiskCall,
    Fault,
    FaultPlan,
    FaultSettings,
    Partition,
    Pause,
    PlannedFault,
    SlowLink,
)
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.log_faults import WRONG_LOG_KINDS
from penstock_simulation.simulated.owner_faults import Move, Reassignment, Takeover

#: Kinds of a plan unless a profile has others.
ALL_KINDS = (
    "Partition", "Reset", "HalfOpen", "SlowLink", "Pause", "Crash", "CrashAtDiskCall", "DiskErrors", "ClockJump",
    "DiskFull", "NoDescriptors", "DiskStall", "StorageMissing",
)  # fmt: skip
#: Fewest kinds of a drawn plan, if that many are allowed.
KIND_COUNT_MIN = 3
#: Share of clean reassignments among ownership changes that are not moves.
_REASSIGNMENT_SHARE = 0.3
#: Approximate lifetime of a patient second incarnation: it waits for the lease of the first.
_TAKEOVER_S = 2.5


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of `draw_plan`.

    Attributes:
        duration_s: faults strike within this time.
        lasts_s_max: longest single fault.
        mean_gap_s_min, mean_gap_s_max: bounds of the mean time between two faults, drawn per plan.
        kinds: see `FaultSettings`.
        wrong_logs: see `FaultSettings`.
        clock_jump_ms_max: largest jump of a wall clock, in either direction.
        swizzle_rate, crash_loop_rate, zombie_rate: probability that a plan has one.
    """

    duration_s: float = 46.0
    lasts_s_max: float = 8.0
    mean_gap_s_min: float = 2.0
    mean_gap_s_max: float = 12.0
    kinds: tuple[str, ...] = ALL_KINDS
    wrong_logs: tuple[str, ...] = WRONG_LOG_KINDS
    clock_jump_ms_max: int = 60_000
    swizzle_rate: float = 0.25
    crash_loop_rate: float = 0.2
    zombie_rate: float = 0.2


def draw_plan(rng: random.Random, servers: Sequence[str], clients: Sequence[str], settings: PlanSettings) -> FaultPlan:
    """Draw a plan of at least `KIND_COUNT_MIN` kinds, in order of time."""
    drawn: list[PlannedFault] = []
    kinds = list(dict.fromkeys(settings.kinds))
    chosen = tuple(rng.sample(kinds, rng.randint(min(KIND_COUNT_MIN, len(kinds)), len(kinds))))
    mean_gap_s = rng.uniform(settings.mean_gap_s_min, settings.mean_gap_s_max)
    drawn += _draw(rng, servers, clients, settings, chosen, mean_gap_s)
    # At least one of each chosen kind.
    struck = {type(planned.fault).__name__ for planned in drawn}
    for kind in chosen:
        missing: Sequence[PlannedFault] = ()
        while kind not in struck and not missing:
            missing = _draw(rng, servers, clients, settings, (kind,), settings.duration_s / 2)[:1]
        drawn += missing
    if rng.random() < settings.swizzle_rate:
        drawn += swizzle(rng, servers, clients, settings)
    if rng.random() < settings.crash_loop_rate:
        drawn += crash_loop(rng, servers, settings)
    if rng.random() < settings.zombie_rate:
        drawn += sleep(rng, servers, settings)
    return FaultPlan().with_faults(drawn)


def _draw(
    rng: random.Random, servers: Sequence[str], clients: Sequence[str], settings: PlanSettings,
    kinds: tuple[str, ...], mean_gap_s: float,
) -> Sequence[PlannedFault]:  # fmt: skip
    drawing = FaultSettings(
        duration_s=settings.duration_s, mean_gap_s=mean_gap_s, lasts_s_max=settings.lasts_s_max, kinds=kinds,
        clock_jump_ms_max=settings.clock_jump_ms_max, wrong_logs=settings.wrong_logs,
    )  # fmt: skip
    return FaultPlan.draw(rng, servers=servers, clients=clients, settings=drawing).faults


def swizzle(
    rng: random.Random, servers: Sequence[str], clients: Sequence[str], settings: PlanSettings
) -> list[PlannedFault]:
    """Stop links one by one, and restore them one by one in a different order."""
    everybody = [*servers, *clients]
    links = [(one, other) for at, one in enumerate(everybody) for other in everybody[at + 1 :] if one in servers]
    links = rng.sample(links, rng.randint(1, len(links))) if links else []
    start_s = rng.uniform(0.0, settings.duration_s * 0.6)
    step_s = settings.lasts_s_max / (2.0 * max(len(links), 1))
    restored = rng.sample(range(len(links)), len(links))
    faults: list[PlannedFault] = []
    for at, (one, other) in enumerate(links):
        stop_s = round(start_s + at * step_s, 6)
        end_s = start_s + (len(links) + restored[at] + rng.random()) * step_s
        faults.append(PlannedFault(stop_s, Partition(one, other, round(end_s - stop_s, 6))))
    return faults


def crash_loop(rng: random.Random, servers: Sequence[str], settings: PlanSettings) -> list[PlannedFault]:
    """Crash one server repeatedly, mostly before its start is complete."""
    host = rng.choice(servers)
    at_s = rng.uniform(0.0, settings.duration_s * 0.7)
    faults: list[PlannedFault] = []
    for _ in range(rng.randint(3, 8)):
        death = rng.choice(list(Death))
        down_s = round(rng.uniform(0.01, 0.5), 6)
        fault: Fault = Crash(host, death, down_s)
        if rng.random() < 0.6:
            fault = CrashAtDiskCall(host, rng.randint(1, 60), death, down_s)
        faults.append(PlannedFault(round(at_s, 6), fault))
        at_s = min(at_s + down_s + rng.uniform(0.01, 1.0), settings.duration_s)
    return faults


def sleep(rng: random.Random, servers: Sequence[str], settings: PlanSettings) -> list[PlannedFault]:
    """Pause a server for longer than a restart takes, so that its peers have given up on it when it resumes."""
    at_s = rng.uniform(0.0, settings.duration_s * 0.7)
    lasts_s = rng.uniform(settings.lasts_s_max, 1.5 * settings.lasts_s_max)
    return [PlannedFault(round(at_s, 6), Pause(rng.choice(servers), round(lasts_s, 6)))]


def draw_owner_changes(
    rng: random.Random,
    stores: Sequence[str],
    container_count: int,
    *,
    move_share: float,
    mean_gap_s: float,
    duration_s: float,
) -> list[PlannedFault]:
    """Take over, reassign and move containers; `move_share` is the share of moves."""
    owners = [stores[container % len(stores)] for container in range(container_count)]
    changes: list[PlannedFault] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1.0 / mean_gap_s)) < duration_s:
        container = rng.randrange(container_count)
        fault: Fault
        if move_share and rng.random() < move_share:
            target = owners[container] = rng.choice([store for store in stores if store != owners[container]])
            fault = Move(container, target, rng.choice((0.0, 0.01, 0.5, 3.0)), rng.choice((0.0, 0.0, 0.05, 0.5)))
        elif rng.random() < _REASSIGNMENT_SHARE:
            # Mostly long enough for it to stop; sometimes it is assigned again while it stops.
            fault = Reassignment(container, rng.choice((0.0, 0.01, 0.5, 2.0)))
        else:
            fault = Takeover(container, is_patient=rng.random() < 0.5)
        changes.append(PlannedFault(round(at_s, 6), fault))
        # Mostly sequential, so that containers also serve.
        at_s += _TAKEOVER_S if isinstance(fault, Takeover) and fault.is_patient else fault.lasts_s
    return changes


def draw_controller_faults(
    rng: random.Random,
    controllers: Sequence[str],
    coordinator: str,
    stores: Sequence[str],
    *,
    session_timeout_s: float,
    mean_gap_s: float,
    duration_s: float,
) -> list[PlannedFault]:
    """Crash, pause or partition controllers, mostly for longer than their session timeout."""
    faults: list[PlannedFault] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1.0 / mean_gap_s)) < duration_s:
        controller = rng.choice(controllers)
        long_s = round(rng.uniform(1.1, 2.5) * session_timeout_s, 6)
        short_s = round(rng.uniform(0.05, 1.0) * session_timeout_s, 6)
        is_one_way = rng.random() < 0.3
        store = rng.choice(stores)
        ends = [controller, coordinator if rng.random() < 0.6 else store]
        rng.shuffle(ends)
        fault: Fault
        match rng.choice(("crash", "pause", "slow pause", "partition", "partition", "coordinator")):
            case "crash":
                fault = Crash(controller, rng.choice(list(Death)), rng.choice((short_s, long_s)))
            case "pause":
                fault = Pause(controller, long_s)
            case "slow pause":
                # A slow link first prolongs its work, so that it pauses between two steps and later continues with the
                # next.
                slow = SlowLink(controller, store, round(rng.uniform(0.05, 0.5), 6), 1.0, short_s)
                faults.append(PlannedFault(round(max(at_s - short_s, 0.0), 6), slow))
                fault = Pause(controller, long_s)
            case "partition":
                fault = Partition(ends[0], ends[1], long_s, is_one_way=is_one_way)
            case _:
                fault = Crash(coordinator, Death.KILL, short_s)
        faults.append(PlannedFault(round(at_s, 6), fault))
    return faults

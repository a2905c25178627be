"""`draw_member_faults`: faults of a cluster of several machines, and what its operators do."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock_simulation.simulated.faults import Crash, Fault, Partition, Pause, PlannedFault
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.member_faults import (
    ALL,
    ALL_SERVERS,
    AdministratorMove,
    AnswersLost,
    CoordinationCut,
    CoordinationDown,
    CoordinationLag,
    Drain,
    MachineLost,
    MachinePause,
    OrderlyStop,
    SessionsEnd,
    SessionsEndForClient,
    StoreKilled,
)
from penstock_simulation.simulated.storage_faults import DiskStall

#: After a fault that has the cluster to itself, until the next one: everything must be served again before.
QUIET_S = 26.0
#: Servers of the coordination service.
_SERVER_COUNT = 3


@dataclass(frozen=True, slots=True)
class MemberHosts:
    """What faults strike: names of hosts, and the number of containers. The parent of ``store-1`` is ``parent-1``."""

    stores: Sequence[str]
    controllers: Sequence[str]
    clients: Sequence[str]
    container_count: int
    session_timeout_s: float


def draw_member_faults(
    rng: random.Random, hosts: MemberHosts, *, kinds: Sequence[str], mean_gap_s: float, duration_s: float
) -> list[PlannedFault]:
    """Draw faults of some kinds within `duration_s`. A kind that is named twice is drawn twice as often.

    In half of the plans each fault has the cluster to itself (`QUIET_S`).
    """
    is_alone = rng.random() < 0.5
    faults: list[PlannedFault] = []
    at_s = 0.0
    while (at_s := at_s + (rng.uniform(0.5, 2.0) if is_alone else rng.expovariate(1.0 / mean_gap_s))) < duration_s:
        drawn = _DRAWS[rng.choice(kinds)](rng, hosts)
        faults += [PlannedFault(round(at_s, 6), fault) for fault in drawn]
        if is_alone:
            at_s += QUIET_S + max(fault.lasts_s for fault in drawn)
    return faults


def _long_s(rng: random.Random, hosts: MemberHosts) -> float:
    return round(rng.uniform(1.1, 2.5) * hosts.session_timeout_s, 6)


def _any_s(rng: random.Random, hosts: MemberHosts) -> float:
    return round(rng.uniform(0.05, 2.5) * hosts.session_timeout_s, 6)


def _parent(store: str) -> str:
    return store.replace("store", "parent")


def _kill_store(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [StoreKilled(rng.choice(hosts.stores))]


def _kill_with_parent(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [StoreKilled(rng.choice(hosts.stores), round(rng.uniform(0.1, 20.0), 6))]


def _lose_machine(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [MachineLost(rng.choice(hosts.stores), round(rng.uniform(0.5, 25.0), 6))]


def _pause(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    store = rng.choice(hosts.stores)
    match rng.choice(("store", "store", "parent", "machine", "controller")):
        case "store":
            return [Pause(store, _any_s(rng, hosts))]
        case "parent":
            return [Pause(_parent(store), _any_s(rng, hosts))]
        case "machine":
            return [MachinePause(store, _long_s(rng, hosts))]
        case _:
            return [Pause(rng.choice(hosts.controllers), _any_s(rng, hosts))]


def _fail_controller(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    controller = rng.choice(hosts.controllers)
    if rng.random() < 0.3:
        return [OrderlyStop(controller, round(rng.uniform(0.1, 3.0), 6))]
    return [Crash(controller, rng.choice(list(Death)), _any_s(rng, hosts))]


def _cut(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    duration_s = _any_s(rng, hosts)
    to_server, from_server = rng.choice(((True, True), (True, True), (True, False), (False, True)))
    store = rng.choice(hosts.stores)
    cut = rng.choice(([store], [store, _parent(store)], [_parent(store)], [rng.choice(hosts.controllers)]))
    return [CoordinationCut(host, duration_s, to_server, from_server) for host in cut]


def _cut_store(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [CoordinationCut(rng.choice(hosts.stores), _long_s(rng, hosts))]


def _fail_server(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    server = rng.randrange(_SERVER_COUNT)
    match rng.choice(("one", "lag", "all", "all")):
        case "one":
            return [CoordinationDown(server, _any_s(rng, hosts))]
        case "lag":
            return [CoordinationLag(server, _any_s(rng, hosts))]
        case _:
            return [CoordinationDown(ALL_SERVERS, _any_s(rng, hosts))]


def _end_sessions(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    one = rng.choice([*hosts.stores, *hosts.controllers, *map(_parent, hosts.stores)])
    share = rng.random()
    if share < 0.5:
        return [SessionsEnd(ALL)]
    return [SessionsEnd(one) if share < 0.75 else SessionsEndForClient(one)]


def _lose_answers(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [AnswersLost(rng.choice([*hosts.stores, *hosts.controllers]), rng.randint(1, 3))]


def _drain(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [Drain(rng.choice(hosts.stores), round(rng.uniform(0.5, 15.0), 6))]


def _stop_store(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [OrderlyStop(_parent(rng.choice(hosts.stores)), round(rng.uniform(0.1, 5.0), 6))]


def _move(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [AdministratorMove(rng.randrange(hosts.container_count), rng.choice(hosts.stores))]


def _partition(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    ends = [rng.choice(hosts.stores), rng.choice([*hosts.controllers, *hosts.clients])]
    if rng.random() < 0.2:
        ends[0] = rng.choice(hosts.controllers)
        ends[1] = rng.choice(hosts.clients)
    rng.shuffle(ends)
    return [Partition(ends[0], ends[1], _any_s(rng, hosts), is_one_way=rng.random() < 0.5)]


def _stall_log(rng: random.Random, hosts: MemberHosts) -> list[Fault]:
    return [DiskStall(rng.choice(hosts.stores), "/tier1/", _any_s(rng, hosts))]


_DRAWS: Mapping[str, Callable[[random.Random, MemberHosts], list[Fault]]] = {
    "store killed": _kill_store,
    "store killed with its parent": _kill_with_parent,
    "machine lost": _lose_machine,
    "pause": _pause,
    "controller": _fail_controller,
    "store cut off": _cut_store,
    "process cut off": _cut,
    "coordination": _fail_server,
    "sessions": _end_sessions,
    "answers": _lose_answers,
    "drain": _drain,
    "store stopped": _stop_store,
    "move": _move,
    "partition": _partition,
    "log stalled": _stall_log,
}
ALL_MEMBER_KINDS: tuple[str, ...] = (*_DRAWS, "pause", "process cut off")
"""Names of all kinds of draws. Pauses and cuts are of several kinds, so they are drawn twice as often."""

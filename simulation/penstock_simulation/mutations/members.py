"""Planted bugs of a cluster of several machines, and the profile that finds them. See `catalog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.controller.cluster.leader import ClusterLeader
from penstock.controller.cluster.view import ClusterView
from penstock.controller.errors import MembershipLostError
from penstock.controller.ownership.zookeeper_coordinator import ZooKeeperMembership
from penstock.model.assignment_plan import Move, MoveReason, _Draft
from penstock.model.errors import ControllerUnavailableError
from penstock.runtime.coordination import ANY_VERSION, Children, CoordinationStore, Session
from penstock.segmentstore.cluster.ends import KnownEnds
from penstock.segmentstore.cluster.hold import ContainerHold
from penstock.segmentstore.cluster.member import ClusterMember
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

CLUSTER = Profile(
    name="cluster", member_fault_gap_s=3.0, object_log_rate=1.0, log_fault_rates=(0.0, 0.01), storage="bucket",
    store_count_min=2, store_count_max=4, controller_count_min=2, controller_count_max=3,
    workloads=("events", "readers", "transactions", "tables", "bytes", "streams"), share=0.5,
    plan=PlanSettings(kinds=(), swizzle_rate=0.0, crash_loop_rate=0.0, zombie_rate=0.0),
    takeover_gap_s=0.0, memory_flip_rate=0.0, refused_rate=0.0,
)  # fmt: skip
"""Stores and controllers that find each other in a coordination service, with its sessions, leader and drains."""


LOADED = replace(
    CLUSTER, name="loaded cluster", has_load_moves=True, store_count_max=2, container_count=4, member_fault_gap_s=20.0,
)  # fmt: skip
"""The same; the leader moves containers from stores that work more than others."""


def _of(name: str, *kinds: str, workloads: tuple[str, ...] = ("events",), gap_s: float = 2.0) -> Profile:
    """Return a short profile with few workloads, a sound bucket, and some kinds of faults."""
    return replace(
        CLUSTER, name=name, member_kinds=kinds, member_fault_gap_s=gap_s, workloads=workloads, share=1.0,
        log_fault_rates=(0.0,), plan=replace(CLUSTER.plan, duration_s=30.0), writing_s=34.0, scale_rate=0.0,
    )  # fmt: skip


def _delete_the_node_first() -> AbstractContextManager[None]:
    release = ContainerHold._release

    async def release_late(self: ContainerHold) -> None:
        await self._delete()
        await release(self)

    return patched(ContainerHold, "_release", release_late)


def _write_on_any_version() -> AbstractContextManager[None]:
    write = ClusterLeader._write

    async def write_always(
        self: ClusterLeader,
        store: CoordinationStore,
        view: ClusterView,
        owners: tuple[str, ...],
        moves: tuple[Move, ...],
    ) -> None:
        await write(self, store, replace(view, version=ANY_VERSION), owners, moves)

    return patched(ClusterLeader, "_write", write_always)


def _take_any_end_for_the_predecessors() -> AbstractContextManager[None]:
    return patched(KnownEnds, "may_live", lambda self, token: not self._ended)


@contextmanager
def _remain_a_member() -> Iterator[None]:
    """An expired controller takes the members that it has read last for those of now."""
    read = ZooKeeperMembership._read
    last: dict[ZooKeeperMembership, Children] = {}

    async def read_or_remember(self: ZooKeeperMembership) -> Children:
        try:
            last[self] = await read(self)
        except (MembershipLostError, ControllerUnavailableError):
            if self not in last:
                raise
        return last[self]

    with (
        patched(ZooKeeperMembership, "_read", read_or_remember),
        patched(ZooKeeperMembership, "is_over", property(lambda self: False)),
    ):
        yield


def _place_at_the_first_store() -> AbstractContextManager[None]:
    def placed(self: _Draft, container_id: int, reason: MoveReason) -> Move:
        self._add(0, container_id)
        return Move(container_id, self._previous[container_id], self.targets[0], reason)

    return patched(_Draft, "_placed", placed)


def _place_at_drained_stores() -> AbstractContextManager[None]:
    place_drained = _Draft.place_drained

    def place(self: _Draft) -> list[Move]:
        moves = place_drained(self)
        drained = sorted(self._stores.keys() - set(self.targets))
        others = [name for name in drained if moves and name != moves[-1].source]
        return [*moves[:-1], replace(moves[-1], target=others[0])] if others else moves

    return patched(_Draft, "place_drained", place)


def _open_without_the_cluster() -> AbstractContextManager[None]:
    before_open = ClusterMember._before_open

    async def before_open_if_reached(self: ClusterMember, container_id: int) -> None:
        store = self._sessions.store
        if store is not None and store.session is Session.CONNECTED:
            await before_open(self, container_id)

    return patched(ClusterMember, "_before_open", before_open_if_reached)


def _move_what_has_just_moved() -> AbstractContextManager[None]:
    return patched(_Draft, "_rested", lambda self, number, settings: list(self._held[number]))


def _planted(name: str, breaks: str, apply: Callable[[], AbstractContextManager[None]], profile: Profile) -> Mutation:
    return Mutation(name, breaks, profile, apply)


MEMBER_MUTATIONS: Sequence[Mutation] = (
    _planted(
        "delete the node of a container before its log is closed", "a store that finds a container free may open it",
        _delete_the_node_first, _of("hand-overs of members", "drain", "store stopped"),
    ),
    _planted(
        "take any proof of an end for that of the predecessor", "a lease is waited for unless its end is proven",
        _take_any_end_for_the_predecessors,
        _of("ends of others", "store killed", "store cut off", workloads=("events", "tables")),
    ),
    _planted(
        "remain a member after the end of the session", "work of a live controller is finished by no other",
        _remain_a_member,
        _of("expired controllers", "controller", "sessions", workloads=("events", "streams"), gap_s=1.0),
    ),
    _planted(
        "write the assignment on any version", "of two that assign containers, one succeeds",
        _write_on_any_version, _of("late leaders", "move", "drain", "coordination", gap_s=1.0),
    ),
    _planted(
        "give lost containers to the first store", "nothing moves that need not",
        _place_at_the_first_store, _of("lost members", "machine lost"),
    ),
    _planted(
        "give the last drained container to a drained store", "a drained store gets no container",
        _place_at_drained_stores, replace(_of("drained members", "drain"), store_count_min=4),
    ),
    _planted(
        "move a container for load that has just moved", "a container rests after a move before it moves for load",
        _move_what_has_just_moved, replace(_of("loaded members"), has_load_moves=True, member_fault_gap_s=20.0),
    ),
    _planted(
        "open a container while suspended", "a store opens only what it holds",
        _open_without_the_cluster, _of("suspended members", "store cut off"),
    ),
)  # fmt: skip
"""Bugs of this kind. Profiles without `member_fault_gap_s` do not find them."""

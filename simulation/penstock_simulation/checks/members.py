"""A cluster of several machines: who serves what, how long nothing does, and what is left over.

`watch_members` knows from inside the processes when an incarnation may serve and which moves a leader makes.
`MemberMonitor` polls from outside, several times in a second. When a fault has the cluster to itself, each container
is served again within the bound of that fault (docs/cluster.md, "Bounds").
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.controller.cluster.leader import ClusterLeader
from penstock.controller.cluster.view import ClusterView
from penstock.model.assignment_plan import Move, MoveReason
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    DRAINS_PATH,
    ELECTION_PATH,
    ENDS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    LOG_PROBLEM_S_MAX,
    AssignmentNode,
    HeldNode,
    HeldPhase,
    HostState,
    decode_node,
    host_node_name,
)
from penstock.runtime.coordination import CoordinationStore, NodeChange, SetNode
from penstock.segmentstore.cluster.hold import ContainerHold
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.server.cluster.store import ClusterStore
from penstock_simulation.checks.load_moves import LoadMoves
from penstock_simulation.mutations.mutation import watched_in_simulation
from penstock_simulation.simulated.faults import Crash, Fault, FaultPlan, Partition, PlannedFault
from penstock_simulation.simulated.member_cluster import MemberCluster
from penstock_simulation.simulated.member_faults import (
    ALL,
    AdministratorMove,
    AnswersLost,
    CoordinationDown,
    CoordinationLag,
    Drain,
    OrderlyStop,
    SessionsEnd,
    SessionsEndForClient,
    StoreKilled,
)
from penstock_simulation.simulated.storage_faults import DiskStall
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper

#: Time between two polls.
_POLL_S = 0.1
#: Longest time in which a container is served by no store, by fault; see `docs/cluster.md`.
_LOST_S = 20.0
_KILLED_S = 3.0
_MOVED_S = 2.0
#: A fault has the cluster to itself if no other one was active for this long before it.
_ALONE_S = 20.0
#: Added to these bounds for requests to a bucket without faults.
_REQUESTS_S = 0.5
#: The same with its faults. A request hangs, and a container that stops waits for it; then it is not released, and
#: the next store waits for its lease.
_FAULTY_BUCKET_S = 14.0
#: Added if a store reads the log of another one slot by slot, as some clusters do (`read_slots_max`).
_SLOT_BY_SLOT_S = 6.0
#: How long nodes of processes that have ended may stay: their sessions, and a poll of those that replace them.
_NODES_S = 25.0
#: A store that opens a log has confirmed shortly before that it holds the container.
_CONFIRMED_S = 1.0
#: Sessions of a controller: as a candidate, as a member, and that of its directory.
_CONTROLLER_SESSIONS = 3
#: Length of an object of the log besides its frames, at most.
_OBJECT_OVERHEAD = 4096


def moves_to_balance(owners: Sequence[str], targets: Collection[str]) -> int:
    """Return the fewest moves after which `targets` have all containers, and differ by at most one."""
    counts = sorted((Counter(owners)[name] for name in targets), reverse=True)
    low, more = divmod(len(owners), len(counts))
    lost = sum(owner not in targets for owner in owners)
    return lost + sum(max(count - low - (number < more), 0) for number, count in enumerate(counts))


class MemberWatch:
    """What `watch_members` knows. `is_watching`: `held` is called all the time."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self.found: Callable[[str], None] = found
        self.is_watching: bool = False
        #: Returns the running incarnations of a container.
        self.running: Callable[[int], Sequence[SegmentContainer]] = lambda container_id: ()
        #: Calls `held` with the present holder of a container.
        self.poll: Callable[[int], None] = lambda container_id: None
        self.load_moves: LoadMoves = LoadMoves()
        #: By container: the incarnation that holds it, and since when.
        self._serving: defaultdict[int, int] = defaultdict(int)
        self._holders: dict[int, tuple[str, float]] = {}
        self._number = -1

    def may_serve(self, container_id: int, epoch: int) -> None:
        """Note that an incarnation of a container may answer from now on: no earlier one may by its lease."""
        for container in self.running(container_id):
            lease, log = container.ownership, container.log
            age_s = lease._now_s() - log.ownership_confirmed_s
            if log.epoch < epoch and not lease._is_ended and age_s <= lease.lease_s:
                self.found(f"container {container_id}: epoch {epoch} may serve, and so may epoch {log.epoch}")
        self._serving[container_id] = max(self._serving[container_id], epoch)

    def answers(self, container_id: int, epoch: int) -> None:
        """Note that an incarnation answers."""
        if epoch < (later := self._serving[container_id]):
            self.found(f"container {container_id}: epoch {epoch} answers, and epoch {later} may serve already")

    def held(self, container_id: int, incarnation: str, now_s: float) -> None:
        """Note who holds a container; an empty `incarnation`: none does."""
        if self._holders.get(container_id, ("", 0.0))[0] != incarnation:
            self._holders[container_id] = incarnation, now_s

    def opens(self, container_id: int, incarnation: str, now_s: float) -> None:
        """Note that a store opens a container's log."""
        self.poll(container_id)
        holder, since_s = self._holders.get(container_id, ("", 0.0))
        if self.is_watching and holder != incarnation and now_s - since_s > _CONFIRMED_S:
            self.found(
                f"{incarnation} opens container {container_id}, which {holder or 'none'} has held for "
                f"{now_s - since_s:.2f} s"
            )

    def assigns(self, number: int) -> None:
        """Note the number of an assignment that the coordination service has."""
        if self._number >= 0 and number != self._number + 1:
            self.found(f"assignment {number} has replaced assignment {self._number}")
        self._number = number


@contextmanager
def watch_members(found: Callable[[str], None]) -> Iterator[MemberWatch]:
    """Tell `found` of each violation inside the processes of one cluster."""
    watch = MemberWatch(found)
    delete_original, change_original, start_original = (
        ContainerHold._delete, SimulatedZooKeeper.change, SegmentStore._start_container
    )  # fmt: skip
    wait_original, check_original, write_original = (
        OwnershipLease.wait_out_predecessor, OwnershipLease._check, ClusterLeader._write
    )  # fmt: skip

    @functools.wraps(wait_original)
    async def wait_out(self: OwnershipLease, opened_s: float, drift_percent: int) -> None:
        await wait_original(self, opened_s, drift_percent)
        watch.may_serve(self._container_id, self._log.epoch)

    @functools.wraps(check_original)
    def check(self: OwnershipLease) -> None:
        check_original(self)
        watch.answers(self._container_id, self._log.epoch)

    @functools.wraps(delete_original)
    async def delete(self: ContainerHold) -> None:
        # If the log is silent, the close would wait for it; the next owner waits for the lease.
        is_open = self.container_id in self._containers.held
        if is_open and not self._is_lost and not self.is_log_silent:
            found(f"the node of container {self.container_id} is deleted while its log is open")
        await delete_original(self)

    @functools.wraps(change_original)
    def change(
        self: SimulatedZooKeeper, session_id: int, changes: Sequence[NodeChange], is_sequential: bool = False
    ) -> tuple[int, str]:
        made = change_original(self, session_id, changes, is_sequential)
        for each in changes:
            if isinstance(each, SetNode) and each.path == ASSIGNMENT_PATH:
                watch.assigns(decode_node(AssignmentNode, ASSIGNMENT_PATH, each.content).number)
        return made

    @functools.wraps(start_original)
    async def start(self: SegmentStore, container_id: int, steps: ContainerStart) -> SegmentContainer:
        if isinstance(self._logs, ObjectLogFactory):
            now_s = asyncio.get_running_loop().time()
            watch.opens(container_id, self._logs.process.owner.token.hex(), now_s)
        return await start_original(self, container_id, steps)

    @functools.wraps(write_original)
    async def write(
        self: ClusterLeader, store: CoordinationStore, view: ClusterView, owners: tuple[str, ...],
        moves: tuple[Move, ...],
    ) -> None:  # fmt: skip
        for wrong in needless_moves(view, owners, moves):
            found(wrong)
        loop, count = asyncio.get_running_loop(), self.assignment_count
        planned_s = loop.time()
        await write_original(self, store, view, owners, moves)
        if self.assignment_count > count:
            for wrong in watch.load_moves.written(owners, moves, self._settings.moves, planned_s, loop.time()):
                found(wrong)

    with (
        watched_in_simulation(OwnershipLease, "wait_out_predecessor", wait_out),
        watched_in_simulation(OwnershipLease, "_check", check),
        watched_in_simulation(ClusterLeader, "_write", write),
        watched_in_simulation(ContainerHold, "_delete", delete),
        watched_in_simulation(SimulatedZooKeeper, "change", change),
        watched_in_simulation(SegmentStore, "_start_container", start),
    ):
        yield watch


def needless_moves(view: ClusterView, owners: tuple[str, ...], moves: tuple[Move, ...]) -> Iterator[str]:
    """Yield what is wrong with an assignment that a leader is about to write."""
    before = view.assignment.owners
    changed = sum(one != other for one, other in zip(before, owners, strict=True))
    if changed != len(moves):
        yield f"a leader changes {changed} owners by {len(moves)} moves"
    if any(move.reason is MoveReason.LOAD for move in moves):
        return
    draining = view.drains | {name for name, host in view.hosts.items() if host.state is HostState.DRAINING}
    names = view.hosts.keys() - draining
    impaired = {name for name in names if view.hosts[name].state is HostState.IMPAIRED}
    silent = {
        name
        for name, load in view.loads.items()
        if name in names and name not in impaired and load.log_problem_s > LOG_PROBLEM_S_MAX
    }
    targets = names - impaired - silent or names
    # A store keeps what it has if its log may answer again, or if it is missing and may announce itself again.
    moved = {move.container_id for move in moves}
    kept = {
        number
        for number, owner in enumerate(before)
        if number not in moved and owner not in targets and owner not in draining
    }
    needed, left = (
        moves_to_balance([owner for number, owner in enumerate(each) if number not in kept], targets)
        for each in (before, owners)
    )
    if needed - left != len(moves):
        yield f"a leader makes {len(moves)} moves: {needed} are needed before them, and {left} after them ({owners})"
    for move in moves:
        if move.source in silent - targets:
            yield f"a leader takes container {move.container_id} from {move.source}, whose log may answer again"
        if move.target not in targets:
            yield f"a leader gives container {move.container_id} to {move.target}, which is drained or has no log"


@dataclass(frozen=True, slots=True)
class _Gap:
    """A time in which a container was not served."""

    container_id: int
    begin_s: float
    end_s: float


class MemberMonitor:
    """See the module. `started_s`: the loop's time at which `plan` started."""

    def __init__(self, cluster: MemberCluster, plan: FaultPlan, started_s: float, watch: MemberWatch) -> None:
        found = watch.found
        self._watch = watch
        self._cluster = cluster
        self._plan = plan
        self._started_s = started_s
        self._found = found
        self._gone_s: dict[int, float] = {}
        self._gaps: list[_Gap] = []
        #: By the loop's time: number of the assignment, when it changed.
        self._assignments: list[tuple[float, int]] = []
        self.counts: Counter[str] = Counter()
        self._bucket_s = _FAULTY_BUCKET_S if cluster.has_faulty_buckets else _REQUESTS_S
        bucket_log = cluster.settings.bucket_log
        if bucket_log is not None and bucket_log.log.read_slots_max == 1:
            self._bucket_s += _SLOT_BY_SLOT_S

    async def run(self) -> None:
        """Poll until cancelled."""
        self._poll()
        self._watch.poll, self._watch.running, self._watch.is_watching = self._note_holder, self._running, True
        while True:
            self._poll()
            await asyncio.sleep(_POLL_S)

    def _poll(self) -> None:
        cluster, now_s = self._cluster, self._cluster.simulation.loop.now_s
        serving = set()
        for host in cluster.stores:
            store = cluster.store(host)
            if store is None or host.is_paused:
                continue
            self._check_memory(host.name, store)
            serving |= {
                container_id
                for container_id, container in store.monitor.running.items()
                if container.status is ContainerStatus.RUNNING
            }
        for container_id in range(cluster.locator.container_count):
            self._note_holder(container_id)
            if container_id not in serving:
                self._gone_s.setdefault(container_id, now_s)
            elif container_id in self._gone_s:
                self._gaps.append(_Gap(container_id, self._gone_s.pop(container_id), now_s))
        assignment = cluster.assignment
        if assignment is not None and (not self._assignments or self._assignments[-1][1] != assignment.number):
            self._assignments.append((now_s, assignment.number))

    def _note_holder(self, container_id: int) -> None:
        held = self._cluster.content(HeldNode, f"{HELD_PATH}/{container_id}")
        incarnation = "" if held is None else held.incarnation
        self._watch.held(container_id, incarnation, self._cluster.simulation.loop.now_s)

    def _running(self, container_id: int) -> list[SegmentContainer]:
        stores = [store for host in self._cluster.stores if (store := self._cluster.store(host)) is not None]
        running = [store.monitor.running.get(container_id) for store in stores]
        return [container for container in running if container is not None]

    def _check_memory(self, name: str, store: SegmentStore) -> None:
        logs = store._logs
        assert isinstance(logs, ObjectLogFactory)
        writer, settings = logs.process.writer, self._cluster.settings.bucket_log
        assert settings is not None
        count, length_bytes = len(writer._slots), writer._in_flight_bytes
        if count > settings.log.in_flight_max or length_bytes > in_flight_bound(settings.log, count):
            self._found(f"{name} has {length_bytes} bytes of the log in flight, in {count} slots")

    # -- after the faults ---------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check the gaps of faults that had the cluster to themselves, now that all faults are over."""
        self._watch.is_watching = False
        now_s = self._cluster.simulation.loop.now_s
        gaps = [*self._gaps, *(_Gap(number, begin_s, now_s) for number, begin_s in self._gone_s.items())]
        for struck in self._alone():
            begin_s = self._started_s + struck[0].at_s
            until_s = begin_s + max(planned.fault.lasts_s for planned in struck) + _ALONE_S
            bound_s = max(bound_of(planned.fault) for planned in struck) + self._bucket_s
            self.counts[f"members: {type(struck[0].fault).__name__} alone"] += 1
            for gap in gaps:
                if begin_s - _POLL_S <= gap.begin_s < until_s and gap.end_s - gap.begin_s > bound_s:
                    self._found(
                        f"container {gap.container_id} was away for {gap.end_s - gap.begin_s:.2f} s, from "
                        f"{gap.begin_s - begin_s:.2f} s after: {', '.join(map(str, struck))}"
                    )
            if isinstance(struck[0].fault, SessionsEnd) and struck[0].fault.host == ALL:
                moved = [number for at_s, number in self._assignments if begin_s < at_s < begin_s + _ALONE_S]
                if moved:
                    self._found(f"the assignment changed {len(moved)} times after all sessions had ended")

        self.counts["members: moves for load"] = len(self._watch.load_moves.made)
        for moved_s, container_id in self._watch.load_moves.made:
            if any(self._is_near(planned, moved_s) for planned in self._plan.faults):
                continue
            for gap in gaps:
                length_s = gap.end_s - gap.begin_s
                is_of_move = gap.container_id == container_id and 0 <= gap.begin_s - moved_s < _MOVED_S + _POLL_S
                if is_of_move and length_s > _MOVED_S + self._bucket_s:
                    self._found(f"container {container_id} was away for {length_s:.2f} s by a move for load")

    def _is_near(self, planned: PlannedFault, at_s: float) -> bool:
        """Return whether a fault has an effect at a time of the loop."""
        begin_s = self._started_s + planned.at_s
        return begin_s - _ALONE_S < at_s < begin_s + planned.fault.lasts_s + _ALONE_S

    def _alone(self) -> Iterator[Sequence[PlannedFault]]:
        """Yield faults of one moment, before which the cluster was whole, and during which nothing else struck."""
        quiet_s = 0.0
        moments = [list(faults) for _, faults in itertools.groupby(self._plan.faults, key=lambda planned: planned.at_s)]
        for number, struck in enumerate(moments):
            next_s = moments[number + 1][0].at_s if number + 1 < len(moments) else float("inf")
            end_s = max(planned.at_s + planned.fault.lasts_s for planned in struck) + _ALONE_S
            if struck[0].at_s >= quiet_s and next_s > end_s:
                yield struck
            quiet_s = max(quiet_s, end_s)

    async def nothing_is_left(self) -> None:
        """Check the nodes, sessions and records of a whole cluster that has settled."""
        problems: list[str] = []
        for _ in range(round(_NODES_S / _POLL_S)):
            problems = list(self._left_over())
            if not problems:
                return
            await asyncio.sleep(_POLL_S)
        for problem in problems:
            self._found(problem)

    def _left_over(self) -> Iterator[str]:
        cluster = self._cluster
        members: dict[str, ClusterStore] = {}
        for host in cluster.stores:
            if (member := cluster.member(host)) is not None:
                members[host.name] = member
        hosts = {host_node_name(name, member.order.incarnation) for name, member in members.items()}
        if cluster.names(HOSTS_PATH) != hosts:
            yield f"hosts are {sorted(cluster.names(HOSTS_PATH))}, the live stores {sorted(hosts)}"
        if cluster.names(HELD_PATH) != {str(number) for number in range(cluster.locator.container_count)}:
            yield f"held containers are {sorted(cluster.names(HELD_PATH))}"
        for number in sorted(cluster.names(HELD_PATH)):
            held = cluster.content(HeldNode, f"{HELD_PATH}/{number}")
            if held is not None and held.phase is not HeldPhase.SERVING:
                yield f"container {number} is announced as {held.phase} by {held.owner}"
            if held is not None and held.owner != cluster.locator.owner(int(number)):
                yield f"container {number} is held by {held.owner} and belongs to {cluster.locator.owner(int(number))}"
        if cluster.names(DRAINS_PATH):
            yield f"drains are left: {sorted(cluster.names(DRAINS_PATH))}"
        if len(cluster.names(CONTROLLERS_PATH)) != len(cluster.controllers):
            yield f"controllers are {sorted(cluster.names(CONTROLLERS_PATH))}"
        if len(cluster.names(ELECTION_PATH)) < len(cluster.controllers):
            yield f"candidates are {sorted(cluster.names(ELECTION_PATH))}"
        kept = cluster.member_settings.cluster.leader.ends_max
        if len(cluster.names(ENDS_PATH)) > kept + kept // 10 + len(cluster.stores):
            yield f"{len(cluster.names(ENDS_PATH))} proofs of ends are kept, not {kept}"
        expected = len(cluster.stores) + len(cluster.parents) + _CONTROLLER_SESSIONS * len(cluster.controllers)
        if len(cluster.ensemble.sessions) != expected:
            yield f"{len(cluster.ensemble.sessions)} sessions are open, not {expected}"


def in_flight_bound(settings: ObjectLogSettings, count: int) -> int:
    """Return how many bytes `count` objects of a log may have together while they are created.

    One alone may be longer than `in_flight_bytes_max`, and a single frame may be longer than `batch_bytes_max`.
    """
    alone = max(settings.batch_bytes_max, settings.frame_length_max_bytes)
    return (settings.in_flight_bytes_max if count > 1 else alone) + count * _OBJECT_OVERHEAD


def bound_of(fault: Fault) -> float:
    """Return the longest time for which a container may be away after a fault."""
    match fault:
        case StoreKilled():
            return _LOST_S if fault.down_s else _KILLED_S
        case Drain() | OrderlyStop() | AdministratorMove():
            return _MOVED_S
        case SessionsEnd():  # One store's: a leader cannot know that it lives.
            return _MOVED_S if fault.host == ALL else _LOST_S
        case SessionsEndForClient() | AnswersLost() | CoordinationDown() | CoordinationLag() | Partition():
            return _MOVED_S
        case Crash():  # Of controllers only.
            return _MOVED_S
        case DiskStall():
            return fault.duration_s + _LOST_S
        case _:
            return _LOST_S

"""`ClusterLeader`: runs for the leadership of its cluster and, while it leads, assigns containers to stores.

It is a thin shell around `penstock.model.assignment_plan.plan`: it reads the cluster, plans, and writes the assignment
on the version that it read. So of two that believe to lead, one succeeds. What it knows besides (since when a store is
live, hot or gone) is lost with it; its successor begins carefully, as if everything had just happened.

A leader writes nothing while its session is SUSPENDED, and stops when its session may have ended by its own clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Coroutine

from penstock.controller.cluster.election import Election
from penstock.controller.cluster.settings import LeaderSettings
from penstock.controller.cluster.view import ClusterView, make_cluster_nodes, read_cluster
from penstock.model.assignment_plan import UNASSIGNED, Departures, LiveStore, Loads, Move, MoveReason, plan
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    DRAINS_PATH,
    ENDS_PATH,
    HOSTS_PATH,
    LOG_PROBLEM_S_MAX,
    WHY_MAX,
    AssignmentNode,
    CandidateNode,
    ContainerLoad,
    HeldPhase,
    HostNode,
    HostState,
    MovedContainer,
    encode_node,
)
from penstock.model.errors.coordination import (
    CoordinationError,
    NodeFormatError,
    NodeVersionError,
    SessionExpiredError,
)
from penstock.model.move_settings import MoveSettings
from penstock.runtime.coordination import CoordinationService, CoordinationStore, may_have_ended
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.cluster.ends import prune_ends

_log = logging.getLogger(__name__)

#: An outage of the log ends for all stores within this time. A log that has answered for longer says nothing about one
#: that does not. A store whose log answers keeps its containers for this time after another store has recovered.
_RECOVERY_WAIT_S = 10.0
#: An impaired store whose log has a problem for no longer than this is about to recover.
_PROBLEM_S = 5.0
#: Stores that join one after the other delay a plan by at most this many times the delay after one of them.
_JOIN_DELAYS_MAX = 2
#: Bytes that cost a store as much as one operation.
_BYTES_PER_OPERATION = 10_000


class ClusterLeader:
    """See the module. `name`: of the controller; `rng`: for nonces.

    Attributes:
        is_leading: whether it leads, as far as it knows.
        assignment_count: assignments written.
    """

    def __init__(
        self, service: CoordinationService, name: str, rng: random.Random, settings: LeaderSettings | None = None
    ) -> None:
        self.is_leading: bool = False
        self.assignment_count: int = 0
        self._service = service
        self._name = name
        self._rng = rng
        self._settings = settings or LeaderSettings()

    async def run(self) -> None:
        """Run for the leadership and lead, until cancelled. A session that ends is replaced by another one."""
        while True:
            try:
                store = await self._service.open_session()
            except CoordinationError as error:
                _log.warning("controller %s cannot run for the leadership: %s", self._name, error)
                await asyncio.sleep(self._settings.retry_s)
                continue
            try:
                await self._campaign(store)
            except SessionExpiredError:
                _log.info("controller %s leads no more: its session has ended", self._name)
            finally:
                self.is_leading = False
                await store.close()

    async def _campaign(self, store: CoordinationStore) -> None:
        election = Election(store, encode_node(CandidateNode(name=self._name)))
        while True:
            try:
                await make_cluster_nodes(store)
                await election.win()
                self.is_leading = True
                _log.info("controller %s leads the cluster", self._name)
                await self._lead(store)
            except SessionExpiredError:
                raise
            except NodeFormatError as error:
                self.is_leading = False
                _log.warning("controller %s does not lead for %g s: %s", self._name, self._settings.unreadable_s, error)
                await self._withdraw(election)
                await asyncio.sleep(self._settings.unreadable_s)
            except CoordinationError as error:
                _log.warning("controller %s: %s", self._name, error)
                await asyncio.sleep(self._settings.retry_s)
            finally:
                self.is_leading = False

    async def _withdraw(self, election: Election) -> None:
        try:
            await election.withdraw()
        except SessionExpiredError:
            raise
        except CoordinationError as error:
            # It leads again after the pause, and then gives up again.
            _log.warning("controller %s is still a candidate: %s", self._name, error)

    async def _lead(self, store: CoordinationStore) -> None:
        loop = asyncio.get_running_loop()
        memory = _Memory(loop.time)
        prune_s = loop.time()
        while not may_have_ended(store, loop.time()):
            if loop.time() >= prune_s:
                await prune_ends(store, self._settings.ends_max)
                prune_s = loop.time() + self._settings.ends_interval_s
            view = await read_cluster(store)
            pause_s = await self._assign(store, view, memory)
            # While a server answers, `heard_s` moves on; otherwise it leads no longer than its session may last.
            left_s = store.heard_s + store.session_timeout_s - loop.time()
            await self._wait(store, view, min(pause_s, max(left_s, 0.0)))

    async def _assign(self, store: CoordinationStore, view: ClusterView, memory: _Memory) -> float:
        """Plan and write. Return the time until the next scan."""
        settings = self._settings
        memory.note(view, store.session_timeout_s, settings)
        owners = view.assignment.owners
        absent = await self._absent(store, view, memory)
        # Those that are absent for a moment count as live: their containers stay.
        hosts = {**absent, **view.hosts}
        has_lost = any(owner != UNASSIGNED and owner not in hosts for owner in owners)
        if absent and not has_lost:
            return settings.moving_poll_s
        wait_s = memory.first_wait_s(settings.first_wait_s) if has_lost else memory.join_wait_s(settings.join_delay_s)
        if wait_s > 0:
            return min(wait_s, settings.poll_s)
        memory.joins_planned()
        moving = memory.moving(view, settings.stuck_s)
        impaired = memory.impaired(settings)
        doubtful = memory.doubtful(settings)
        # Those that are absent keep their containers, and get no others: they may be lost as well.
        stores = {
            name: LiveStore(host.weight, host.zone, name in impaired, name in doubtful or name in absent)
            for name, host in hosts.items()
        }
        drains = view.drains | {name for name, host in hosts.items() if host.state is HostState.DRAINING}
        planned, moves = plan(
            owners, stores, memory.loads(view), drains, settings.moves,
            moving=moving, departures=memory.departures(view),
        )  # fmt: skip
        if not moves:
            # A departure of most is planned again when the wait is over.
            is_soon = moving or has_lost or doubtful
            return settings.moving_poll_s if is_soon else settings.poll_s
        await self._write(store, view, planned, moves)
        memory.moved(moves)
        return settings.moving_poll_s

    async def _absent(self, store: CoordinationStore, view: ClusterView, memory: _Memory) -> dict[str, HostNode]:
        """Return the stores that are missing, and may announce themselves again soon."""
        if not any(owner != UNASSIGNED and owner not in view.hosts for owner in view.assignment.owners):
            return {}
        # The node in `hosts` is deleted in the step that writes the proof.
        ended = (await store.children(ENDS_PATH)).names
        return memory.absent(ended, self._settings.absence_wait_s)

    async def _write(
        self, store: CoordinationStore, view: ClusterView, owners: tuple[str, ...], moves: tuple[Move, ...]
    ) -> None:
        why = [MovedContainer(move.container_id, move.source, move.target, move.reason) for move in moves]
        content = AssignmentNode(
            number=view.assignment.number + 1,
            nonce=self._rng.randbytes(8).hex(),
            owners=owners,
            why=tuple([*view.assignment.why, *why][-WHY_MAX:]),
            extra=view.assignment.extra,
        )
        try:
            await store.set(ASSIGNMENT_PATH, encode_node(content), view.version)
        except NodeVersionError:
            _log.warning("controller %s: another leader has written the assignment", self._name)
            return
        self.assignment_count += 1
        _log.info("assignment %d: %d containers move", content.number, len(moves))

    async def _wait(self, store: CoordinationStore, view: ClusterView, pause_s: float) -> None:
        """Wait for a change of the stores, of what they announce, or of the drains; or for a time."""
        waits: list[Coroutine[object, object, None]] = [
            store.changed(HOSTS_PATH, view.host_list),
            store.changed(DRAINS_PATH, view.drain_list),
            *(store.changed(path, node) for path, node in view.host_nodes.items()),
        ]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            done, _ = await asyncio.wait(tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*tasks)
        for task in done:
            task.result()


class _Memory:
    """What a leader knows of the past; from the moment on at which it began to lead."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self._joined_s: dict[str, float] = {}
        #: When the first store joined since the last plan.
        self._first_join_s: float | None = None
        #: What live stores announced last, with their incarnations.
        self._announced: dict[str, tuple[str, HostNode]] = {}
        self._weights: dict[str, int] = {}
        #: When stores left that owned containers, and their weights.
        self._left: dict[str, tuple[float, int]] = {}
        self._window_s = 0.0
        self._hot_since_s: dict[str, float] = {}
        self._store_count = 0
        self._impaired_since_s: dict[str, float] = {}
        #: Since when the log of some of them answers again, by their reports.
        self._recovering_since_s: dict[str, float] = {}
        #: The others whose log does not answer, by their last report.
        self._silent: set[str] = set()
        #: When a store was last found to be impaired no more.
        self._recovered_s = -math.inf
        self._unserved_since_s: dict[int, float] = {}
        self._moved_s: dict[int, float] = {}
        self._load_moved_s = self._began_s

    def note(self, view: ClusterView, session_timeout_s: float, settings: LeaderSettings) -> None:
        """Take note of a view."""
        now_s = self._clock()
        self._window_s = session_timeout_s
        self._store_count = len(view.hosts)
        for name, host in view.hosts.items():
            if name not in self._joined_s:
                self._joined_s[name] = now_s
                if self._first_join_s is None:
                    self._first_join_s = now_s
            self._weights[name] = host.weight
            self._announced[name] = view.incarnations[name], host
            self._left.pop(name, None)
        for name in set(view.assignment.owners) - view.hosts.keys() - {UNASSIGNED}:
            self._left.setdefault(name, (now_s, self._weights.get(name, 1)))
            self._joined_s.pop(name, None)
        for name in self._left.keys() - set(view.assignment.owners):
            # Another one that leaves within the timeout counts with it, and waits for this long.
            if now_s - self._left[name][0] > session_timeout_s + settings.moves.mass_wait_s:
                del self._left[name]
                self._announced.pop(name, None)
        if any(name in view.hosts and view.hosts[name].state is HostState.UP for name in self._impaired_since_s):
            self._recovered_s = now_s
        self._impaired_since_s = {
            name: self._impaired_since_s.get(name, now_s)
            for name, host in view.hosts.items()
            if host.state is HostState.IMPAIRED
        }
        self._note_logs(view)
        mean = sum(load.busy for load in view.loads.values()) / max(len(view.loads), 1)
        limits = settings.moves
        for name in view.hosts:
            busy = view.loads[name].busy if name in view.loads else 0.0
            if 100 * busy > limits.hot_busy_percent and 100 * busy > limits.hot_ratio_percent * mean:
                self._hot_since_s.setdefault(name, now_s)
            else:
                self._hot_since_s.pop(name, None)

    def _note_logs(self, view: ClusterView) -> None:
        """Take note of the stores whose log answers, or does not, by their last reports."""
        now_s = self._clock()
        self._recovering_since_s = {
            name: self._recovering_since_s.get(name, now_s)
            for name in self._impaired_since_s
            if name in view.loads and view.loads[name].log_problem_s <= _PROBLEM_S
        }
        self._silent = {
            name
            for name, load in view.loads.items()
            if load.log_problem_s > LOG_PROBLEM_S_MAX and name in view.hosts and name not in self._impaired_since_s
        }

    def absent(self, ended: Collection[str], wait_s: float) -> dict[str, HostNode]:
        """Return the stores that left less than `wait_s` ago, and whose processes are not known to have ended."""
        found: dict[str, HostNode] = {}
        for name, (left_s, _) in self._left.items():
            incarnation, host = self._announced.get(name, ("", None))
            if host is not None and incarnation not in ended and self._clock() - left_s < wait_s:
                found[name] = host
        return found

    def impaired(self, settings: LeaderSettings) -> set[str]:
        """Return the stores that have been impaired for long enough, and do not recover from an outage of the log."""
        now_s, wait_s, moves = self._clock(), settings.impaired_wait_s, settings.moves
        affected = self._impaired_since_s.keys() | self._silent
        over = {name for name, since_s in self._recovering_since_s.items() if now_s - since_s >= _RECOVERY_WAIT_S}
        is_of_most = self._are_most(affected, moves)
        if is_of_most and self._are_most(affected - over, moves):
            # Rather the log than the stores; they may not all have noticed it, or not yet that it is over.
            wait_s = max(wait_s, moves.mass_wait_s)
        found = {name for name, since_s in self._impaired_since_s.items() if now_s - since_s >= wait_s}
        if is_of_most or now_s - self._recovered_s < _RECOVERY_WAIT_S:
            return found - self._recovering_since_s.keys()
        return found

    def _are_most(self, names: Collection[str], moves: MoveSettings) -> bool:
        return 100 * len(names) > moves.mass_percent * self._store_count

    def doubtful(self, settings: LeaderSettings) -> set[str]:
        """Return the stores that keep their containers and get no others.

        They are not impaired for long enough, or may become impaired soon: their log does not answer now.
        """
        return (self._impaired_since_s.keys() | self._silent) - self.impaired(settings)

    def first_wait_s(self, delay_s: float) -> float:
        """Return the time until containers of missing stores may be moved."""
        return self._began_s + delay_s - self._clock()

    def join_wait_s(self, delay_s: float) -> float:
        """Return the time until stores that have joined may get containers."""
        now_s = self._clock()
        end_s = max(self._joined_s.values(), default=now_s) + delay_s
        if self._first_join_s is not None:
            end_s = min(end_s, self._first_join_s + _JOIN_DELAYS_MAX * delay_s)
        return end_s - now_s

    def joins_planned(self) -> None:
        """Take note that all stores that have joined are part of a plan."""
        self._first_join_s = None

    def departures(self, view: ClusterView) -> Departures | None:
        """Return the stores that left together with the last one, moved already or not; None: no containers wait."""
        if not any(name in self._left for name in view.assignment.owners):
            return None
        last_s = max(time_s for time_s, _ in self._left.values())
        weight = sum(weight for time_s, weight in self._left.values() if last_s - time_s <= self._window_s)
        return Departures(weight, self._clock() - last_s)

    def moving(self, view: ClusterView, stuck_s: float) -> dict[int, str]:
        """Return the containers that their stores do not serve yet, with the stores that hold them."""
        found: dict[int, str] = {}
        now_s = self._clock()
        for container_id, owner in enumerate(view.assignment.owners):
            held = view.held.get(container_id)
            is_served = held is not None and held.owner == owner and held.phase is HeldPhase.SERVING
            if owner not in view.hosts or is_served or (held is not None and held.error):
                self._unserved_since_s.pop(container_id, None)
            elif now_s - self._unserved_since_s.setdefault(container_id, now_s) < stuck_s:
                found[container_id] = UNASSIGNED if held is None else held.owner
        return found

    def loads(self, view: ClusterView) -> Loads:
        """Return what is known about load. A store's time is attributed to its containers by what they do."""
        now_s = self._clock()
        containers: dict[int, float] = {}
        for load in view.loads.values():
            costs = {container_id: _cost(each) for container_id, each in load.containers.items()}
            whole = sum(costs.values()) or 1.0
            containers |= {container_id: load.busy * cost / whole for container_id, cost in costs.items()}
        return Loads(
            busy={name: load.busy for name, load in view.loads.items()},
            hot_for_s={name: now_s - since_s for name, since_s in self._hot_since_s.items()},
            containers=containers,
            rested_s={
                number: now_s - self._moved_s.get(number, self._began_s)
                for number in range(len(view.assignment.owners))
            },
            since_load_move_s=now_s - self._load_moved_s,
        )

    def moved(self, moves: tuple[Move, ...]) -> None:
        """Take note of moves that were written."""
        for move in moves:
            self._moved_s[move.container_id] = self._clock()
            if move.reason is MoveReason.LOAD:
                self._load_moved_s = self._clock()


def _cost(load: ContainerLoad) -> float:
    operations = load.operations_in + load.operations_out
    return operations + (load.bytes_in + load.bytes_out) / _BYTES_PER_OPERATION

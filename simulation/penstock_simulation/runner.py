"""`run`: play one seed and judge it. `shrink_failure`: find the smallest fault plan that still fails.

A run: the cluster starts, clients prepare, then faults strike while workloads run. After the last fault the workloads
finish and read everything back; then every server loses power and restarts, and everything is read again. During the
run the state of every container is checked each simulated second (`invariants`); at the end the history is judged
(`history`). One seed gives one trace.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TextIO

from penstock.model.errors import CorruptionError, InconsistentStateError, PenstockError, StorageFullError
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.log_records import EPOCH_FILE
from penstock_simulation.checks.controller import check_controller
from penstock_simulation.checks.expulsions import expulsions
from penstock_simulation.checks.history import EpochStarted, check_history
from penstock_simulation.checks.invariants import InvariantMonitor, check_storage, check_store, check_tables
from penstock_simulation.checks.invariants_indexes import check_catalog, check_indexes
from penstock_simulation.checks.late_chunks import LateChunks
from penstock_simulation.checks.layout_reads import LayoutReads
from penstock_simulation.checks.mechanisms import counted
from penstock_simulation.checks.member_buckets import sweep_bucket
from penstock_simulation.checks.members import MemberMonitor, MemberWatch, watch_members
from penstock_simulation.checks.moments import watched
from penstock_simulation.checks.object_logs import watch_logs
from penstock_simulation.checks.orphans import check_orphans
from penstock_simulation.checks.progress import ProgressMonitor
from penstock_simulation.checks.rescues import Rescues
from penstock_simulation.checks.work_journal import WorkJournal, kept
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.errors import HostDownError, SimulationError
from penstock_simulation.simulated.faults import FaultPlan, shrink
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.log_faults import WrongLogs
from penstock_simulation.simulated.loop import LoopSettings
from penstock_simulation.simulated.member_cluster import MemberCluster, make_cluster
from penstock_simulation.simulated.member_steering import MemberSteering
from penstock_simulation.simulated.rescuer import replace_machines
from penstock_simulation.simulated.simulation import Simulation, SimulationSettings
from penstock_simulation.simulated.trace import Trace
from penstock_simulation.simulated.versions import Versions, mixed_versions
from penstock_simulation.simulated.work import WorkSettings
from penstock_simulation.workloads.events import StreamKeeper
from penstock_simulation.workloads.memory_flips import flip_memory
from penstock_simulation.workloads.profile import Profile
from penstock_simulation.workloads.scenario import Scenario, draw_workload_world
from penstock_simulation.workloads.segments import ByteReader
from penstock_simulation.workloads.tables import TableClient
from penstock_simulation.workloads.takeover import ContainerMoves
from penstock_simulation.workloads.world import Workload, World

#: A run that takes longer is considered hung.
_TIME_S_MAX = 900.0
_VIOLATIONS_MAX = 40
#: Longest stall of blocking work.
_STALL_S_MAX = 0.2
#: Timeout for answers that corruption may have made impossible.
_TOLERANT_S = 15.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run.

    Attributes:
            violations: broken promises; empty on success.
        digest: of the whole trace.
        fault_counts: faults that struck, by kind.
            counts: operations of clients, by name, and events inside the servers.
        simulated_s: virtual time.
        elapsed_s: real time; the only part that differs between two runs of a seed.
    """

    seed: int
    violations: tuple[str, ...]
    digest: str
    plan: FaultPlan
    fault_counts: Counter[str]
    counts: Counter[str]
    simulated_s: float
    elapsed_s: float

    @property
    def is_ok(self) -> bool:
        """Whether there were no violations."""
        return not self.violations


def run(
    seed: int, profile: Profile | None = None, *, plan: FaultPlan | None = None, sink: TextIO | None = None
) -> Outcome:
    """Play a seed. `plan` replaces the drawn faults; `sink` gets every line of the trace.

    Must not be called from a running event loop.
    """
    scenario = Scenario.draw(seed, profile)
    if plan is not None:
        scenario = replace(scenario, plan=plan)
    started_s = time.perf_counter()
    trace = Trace(sink=sink)
    settings = SimulationSettings(
        loop=LoopSettings(time_s_max=_TIME_S_MAX + 2.0 * scenario.profile.writing_s),
        work=WorkSettings(
            stall_rate=scenario.profile.work_stall_rate,
            stall_s_max=_STALL_S_MAX,
            cut_rate=scenario.profile.work_cut_rate,
        ),
    )
    play = _Play(scenario)
    inside: Counter[str] = Counter()
    with (
        _errors_logged() as logged,
        _quiet_ends(),
        counted(inside),
        watched(play.found),
        expulsions(play.found) if scenario.profile.habits.loses_no_reader else nullcontext(),
        watch_logs(play.found) if scenario.cluster.bucket_log is not None else nullcontext(),
        watch_members(play.found) if scenario.cluster.members is not None else nullcontext() as play.member_watch,
        kept(play.journal) if scenario.cluster.controller_count > 1 else nullcontext(),
        mixed_versions(seed, play.found) if scenario.profile.has_versions else nullcontext() as play.versions,
        Simulation(seed, settings, trace=trace) as simulation,
    ):
        try:
            play.play(simulation)
        except SimulationError as error:
            play.violations.append(f"the simulation ended: {error}")
        play.judge(simulation, logged)
        if play.versions is not None:
            inside += play.versions.counts
        simulated_s = simulation.loop.time() - play.started_s
    return Outcome(
        seed=seed,
        violations=tuple(play.violations[:_VIOLATIONS_MAX]),
        digest=trace.digest,
        plan=scenario.plan,
        fault_counts=Counter(type(planned.fault).__name__ for planned in scenario.plan.faults) + play.fault_counts,
        counts=inside + play.journal.counts + (play.world.counts if play.world is not None else Counter()),
        simulated_s=simulated_s,
        elapsed_s=time.perf_counter() - started_s,
    )


def shrink_failure(outcome: Outcome, profile: Profile | None = None, *, run_count_max: int = 60) -> FaultPlan:
    """Return the smallest plan found with which the seed still fails. At most `run_count_max` runs."""
    runs_left = run_count_max

    def fails(candidate: FaultPlan) -> bool:
        nonlocal runs_left
        if not runs_left:
            return False
        runs_left -= 1
        return not run(outcome.seed, profile, plan=candidate).is_ok

    if fails(FaultPlan()):
        return FaultPlan()
    return shrink(outcome.plan, fails)


class _Play:
    """One run in progress."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.violations: list[str] = []
        self.fault_counts: Counter[str] = Counter()
        self.world: World | None = None
        self.started_s = 0.0
        self.journal = WorkJournal(self.found)
        self.member_watch: MemberWatch | None = None
        self.versions: Versions | None = None
        self._monitor = InvariantMonitor()
        self._progress = ProgressMonitor()
        self._epochs: dict[int, int] = {}
        self._workloads: list[Workload] = []
        self._seen: set[str] = set()
        #: Bits were flipped: from now on only wrong answers count as violations.
        self._is_damaged = False

    def play(self, simulation: Simulation) -> None:
        self.started_s = simulation.loop.time()
        cluster = make_cluster(simulation, self.scenario.cluster)
        self.journal.sessions = cluster.member_names
        hosts = [cluster.add_client("client-1"), cluster.add_client("client-2")]
        simulation.run(lambda: self._play(simulation, cluster, hosts))
        for chunks in cluster.faulty_chunks:
            for fault, count in chunks.fault_counts.items():
                self.fault_counts[f"chunk {fault}"] += count
        for remote in cluster.remote_clients:
            for trouble, count in remote.fault_counts.items():
                self.fault_counts[f"remote {trouble}"] += count
        for client in cluster.log_place.clients if cluster.log_place is not None else ():
            for trouble, count in client.fault_counts.items():
                self.fault_counts[f"log {trouble}"] += count
        self.fault_counts["stall in a turn"] += sum(host.stall_count for host in cluster.servers)
        self.fault_counts += cluster.late_request_counts

    async def _play(self, simulation: Simulation, cluster: SimulatedCluster, hosts: list[Host]) -> None:
        await cluster.ready()
        await cluster.settled()
        scenario = self.scenario
        self.world = world = draw_workload_world(scenario, cluster)
        if scenario.profile.callback_cost_s:
            for host in cluster.servers:
                rng = simulation.rng(f"{host.name} callbacks")
                host.set_costs(partial(rng.expovariate, 1.0 / scenario.profile.callback_cost_s))
        self._workloads = workloads = scenario.make_workloads(world, hosts)
        for workload in workloads:
            workload.client = workload.make_client()
            await self._step(workload, "open", self._open(workload))
            await self._step(workload, "prepare", workload.prepare())
        simulation.loop.trace.add(simulation.loop.time(), f"driver: {scenario}")
        moves = ContainerMoves(cluster, self.found)
        simulation.owner_changes = moves
        steering = MemberSteering(cluster) if isinstance(cluster, MemberCluster) else None
        simulation.cluster_faults = steering
        simulation.problem = self.found
        scenario.plan.start(simulation)
        plan_end_s = simulation.loop.time() + scenario.plan.end_s
        nuisances = [asyncio.create_task(self._watch(cluster))]
        members: MemberMonitor | None = None
        if isinstance(cluster, MemberCluster) and self.member_watch is not None:
            members = MemberMonitor(cluster, scenario.plan, simulation.loop.time(), self.member_watch)
            polls = asyncio.create_task(members.run())
        if scenario.has_memory_flips:
            nuisances.append(asyncio.create_task(self._flip_memory(cluster)))
        if scenario.profile.layout_gap_s:
            first = workloads[0]
            layouts = LayoutReads(
                cluster, world, self.found,
                gap_s=scenario.profile.layout_gap_s, client=first.client, client_host=first.host,
            )  # fmt: skip
            nuisances.append(asyncio.create_task(layouts.run()))
        if scenario.profile.late_chunk_gap_s:
            late_chunks = LateChunks(cluster, world, self.found, gap_s=scenario.profile.late_chunk_gap_s)
            nuisances.append(asyncio.create_task(late_chunks.run()))
        rescues: Rescues | None = None
        if scenario.profile.rescue_gap_s:
            rescues = Rescues(
                cluster, world, self.found, gap_s=scenario.profile.rescue_gap_s, streams=self._checked_streams
            )
            nuisances.append(asyncio.create_task(rescues.run()))
        running = [asyncio.create_task(self._step(workload, "run", workload.run())) for workload in workloads]
        _, late = await asyncio.wait(running, timeout=max(world.give_up_s - 60.0 - world.now_s, 0.0))
        if late:
            # A write to a segment that storage refuses permanently may wait that long; all others had their time.
            cluster.refuse_no_longer()
            _, late = await asyncio.wait(late, timeout=120.0)
        if late:
            self.found(f"{len(late)} workloads do not come to rest: {simulation.loop.waiting_summary()}")
            for task in [*late, *nuisances]:
                task.cancel()
            moves.cancel()
            return
        if simulation.loop.time() < plan_end_s:
            await asyncio.sleep(plan_end_s - simulation.loop.time())
        cluster.heal()
        await moves.settled()
        if steering is not None:
            await steering.settled()
        if len(nuisances) > 1:
            ended, _ = await asyncio.wait(nuisances[1:])
            for error in [task.exception() for task in ended if not task.cancelled()]:
                if error is not None:
                    self.found(f"a check ended with {error!r}")
        await self._all_serve(cluster)
        if members is not None:
            members.judge()
            polls.cancel()
            self.fault_counts += members.counts
            await members.nothing_is_left()
            assert isinstance(cluster, MemberCluster)
            for problem in await sweep_bucket(cluster):
                self.found(problem)
        await self._verify(workloads)
        await self._inspect(cluster)
        if self.violations or world.problems:
            for task in nuisances:
                task.cancel()
            return
        if rescues is not None:
            await rescues.flush_all()
        simulation.loop.trace.add(simulation.loop.time(), "driver: all servers lose their power")
        is_tolerant = bool(scenario.profile.bit_flip_count)
        servers = cluster.servers
        for host in servers:
            host.crash(Death.POWER)
        if cluster.shared_disk is not None:
            cluster.shared_disk.crash()
        for host in cluster.stores:
            self._flip_bits(host, simulation)
        await asyncio.sleep(0.5)
        if rescues is not None and (rescuer := await rescues.lost()) is not None:
            replace_machines(cluster, rescuer)
            # The containers' own writes since the flush are lost, which is allowed.
            self._monitor = InvariantMonitor()
        for host in servers:
            host.restart()
        if is_tolerant:
            self._is_damaged = True
            await self._verify_what_is_left(cluster, workloads)
        else:
            await self._all_serve(cluster)
            await self._verify([workload for workload in workloads if workload.verifies_again])
            await self._inspect(cluster)
        for task in nuisances:
            task.cancel()

    async def _open(self, workload: Workload) -> None:
        workload.client._open()

    async def _step(self, workload: Workload, what: str, coroutine: object) -> None:
        """Run a step of a workload on its host; its errors are violations."""
        assert asyncio.iscoroutine(coroutine)
        try:
            await workload.host.run(coroutine)
        except SimulationError:
            raise
        except Exception as error:  # noqa: BLE001  # becomes a violation
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.found(f"{what} of {workload.name} failed ({where.filename}:{where.lineno}): {error!r}")

    async def _verify(self, workloads: Sequence[Workload]) -> None:
        for workload in workloads:
            await self._step(workload, "verify", workload.verify())

    async def _verify_what_is_left(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        """Read back after bits were flipped: missing answers are ignored, wrong answers are violations."""
        try:
            await cluster.ready(_TOLERANT_S)
        except HostDownError:
            pass  # The controller's own tables may be damaged.
        for workload in workloads:
            if workload.verifies_again and isinstance(workload, (ByteReader, TableClient)):
                try:
                    async with asyncio.timeout(_TOLERANT_S):
                        await workload.host.run(workload.verify())
                except (PenstockError, TimeoutError):
                    continue
        assert self.world is not None
        self.world.problems.clear()  # Failed requests; wrong answers are in the history.

    async def _all_serve(self, cluster: SimulatedCluster) -> None:
        """Wait until every container serves: they must, because all faults are over."""
        try:
            await cluster.ready()
        except HostDownError as error:
            self.found(f"the cluster does not come up: {error}")
            return
        if problem := await cluster.settled():
            self.found(f"the cluster does not settle: {problem}")
            return
        for host in cluster.stores:
            for _ in range(600):
                store = cluster.store(host)
                if store is not None and store.is_ready and store._chunks.is_available:
                    break
                await asyncio.sleep(0.1)
            else:
                store = cluster.store(host)
                self.found(f"{host.name} does not serve all its containers: {store and store.failures}")

    # -- inspection ---------------------------------------------------------------------------------------------

    async def _watch(self, cluster: SimulatedCluster) -> None:
        while True:
            await asyncio.sleep(self.scenario.profile.check_interval_s)
            for host in cluster.stores:
                store = cluster.store(host)
                if store is not None:
                    self._observe(host, store)

    def _observe(self, host: Host, store: SegmentStore) -> None:
        if self._is_damaged:
            return
        assert self.world is not None
        cluster = self.world.cluster
        progress = self._progress.observe(host, store, cluster.server(host), self.world.now_s)
        for violation in [*check_store(store), *self._monitor.observe(store.containers), *progress]:
            self.found(f"{host.name}: {violation}")
        for container in store.containers:
            epoch = container.log.epoch
            # A zombie with an older epoch than its successor was recorded before.
            if self._epochs.get(container.id, 0) < epoch and self.world is not None:
                self._epochs[container.id] = epoch
                self.world.history.see(host.name, EpochStarted(container.id, epoch))
        for container in store.containers if not self.scenario.profile.bit_flip_count else ():
            for damage in container.storage.damages.values():
                if self.fault_counts["MemoryFlip"] and "the memory of this process is not sound" in damage:
                    continue
                self.found(f"{host.name}: container {container.id} met damage: {damage}")
        for container_id, failure in store.failures.items():
            if isinstance(failure, StorageFullError) and self.scenario.profile.reserve_file_count:
                self.found(f"{host.name}: container {container_id} is offline for want of room: {failure}")
            if isinstance(failure, InconsistentStateError) and self.fault_counts["MemoryFlip"]:
                continue  # It restarts, as it should.
            if isinstance(failure, CorruptionError) and self._is_wrong_log(failure):
                continue
            if isinstance(failure, CorruptionError) and not self.scenario.profile.bit_flip_count:
                self.found(f"{host.name}: container {container_id} met corruption: {failure}")

    def _is_wrong_log(self, failure: CorruptionError) -> bool:
        """Return whether a fault explains the failure: records of the epoch were exchanged, or are old copies."""
        faults = (planned.fault for planned in self.scenario.plan.faults)
        return failure.path.endswith(f"/{EPOCH_FILE}") and any(isinstance(fault, WrongLogs) for fault in faults)

    async def _inspect(self, cluster: SimulatedCluster) -> None:
        """Read everything that the controller and every container have stored."""
        for controller in cluster.controllers:
            service = cluster.controller_service(controller)
            if service is None:
                continue
            try:
                for violation in await controller.run(check_controller(service)):
                    self.found(f"controller: {violation}")
            except HostDownError:
                pass  # As below.
        stores = [(host, store) for host in cluster.stores if (store := cluster.store(host)) is not None]
        for host, store in stores:
            self._observe(host, store)
        for host, store in stores:
            for container in store.containers:
                if cluster.store(host) is not store or container.log.epoch < self._epochs.get(container.id, 0):
                    continue  # Removed meanwhile, or a zombie besides its successor, whose counts are outdated.
                for check in (check_tables, check_indexes, check_catalog, check_storage, check_orphans):
                    try:
                        violations = await host.run(check(container))
                    except (HostDownError, PenstockError):
                        # A crash armed earlier may strike only now, and end the operations in progress.
                        violations = []
                    except AssertionError as error:
                        # The check called the store, which detected it itself.
                        violations = [f"container {container.id}: {error}"]
                    for violation in violations:
                        self.found(f"{host.name}: {violation}")

    def found(self, violation: str) -> None:
        """Record a violation, once."""
        if violation not in self._seen and len(self.violations) < _VIOLATIONS_MAX:
            self._seen.add(violation)
            self.violations.append(violation)
            if self.world is not None:
                self.world.cluster.simulation.trace.add(self.world.now_s, f"violation {violation}")

    # -- faults outside of the plan -----------------------------------------------------------------------------

    async def _flip_memory(self, cluster: SimulatedCluster) -> None:
        assert self.world is not None
        rng = cluster.simulation.rng("memory flips")
        while True:
            await asyncio.sleep(rng.expovariate(1.0 / self.scenario.profile.memory_flip_gap_s))
            if not self.world.is_writing:
                return
            host = rng.choice(cluster.stores)
            store = cluster.store(host)
            what = flip_memory(store, rng) if store is not None else None
            if what is not None:
                self.fault_counts["MemoryFlip"] += 1
                cluster.simulation.trace.add(self.world.now_s, f"fault MemoryFlip at {host.name}: {what}")

    def _flip_bits(self, host: Host, simulation: Simulation) -> None:
        rng = simulation.rng(f"{host.name} bit flips")
        files = [
            (path, content)
            for path, content in sorted(host.disk.files().items())
            if self.scenario.profile.bit_flip_place in path
        ]
        for _ in range(self.scenario.profile.bit_flip_count if files else 0):
            path, content = rng.choice(files)
            # Where data is written: flips in the zeros after it have no effect.
            used = len(content.rstrip(b"\0"))
            if used:
                offset = rng.randrange(used)
                host.disk.flip(path, offset, rng.randrange(8))
                self.fault_counts["BitFlip"] += 1
                simulation.trace.add(simulation.loop.time(), f"fault {host.name}: bit flip in {path} at {offset}")

    # -- judging ------------------------------------------------------------------------------------------------

    def judge(self, simulation: Simulation, logged: Sequence[str]) -> None:
        if self.world is not None:
            self.violations += self.world.problems
            truncated = [keeper.stream for keeper in self._keepers() if keeper.is_truncated]
            self.violations += check_history(self.world.history, truncated_streams=truncated)
        self.violations += logged
        for context in simulation.loop.unhandled:
            self.violations.append(f"unhandled: {context.get('message')}: {context.get('exception')!r}")
        for host in simulation.hosts.values():
            for failure in host.failures:
                if not isinstance(failure, (PenstockError, OSError)):
                    self.violations.append(f"{host.name} ended with {failure!r}")

    def _checked_streams(self) -> tuple[list[str], list[str]]:
        keepers = self._keepers()
        return [keeper.stream for keeper in keepers], [keeper.stream for keeper in keepers if keeper.is_truncated]

    def _keepers(self) -> list[StreamKeeper]:
        return [workload for workload in self._workloads if isinstance(workload, StreamKeeper)]


@contextmanager
def _quiet_ends() -> Iterator[None]:
    """Silence errors of coroutines of dead processes in their clean-up: a process that died runs none."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = before


@contextmanager
def _errors_logged() -> Iterator[list[str]]:
    """Collects errors logged by the code under test that are not of its own types: bugs that were caught."""
    found: list[str] = []

    class _Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if error is None or isinstance(error, (PenstockError, OSError)):
                return
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"logged: {record.getMessage()}: {error!r} ({where.filename}:{where.lineno})")

    loggers = [logging.getLogger("penstock"), logging.getLogger("penstock_simulation")]
    handler = _Collect()
    states = [(logger.level, logger.propagate) for logger in loggers]
    quiet = [logging.getLogger("asyncio")]
    levels = [other.level for other in quiet]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    for other in quiet:
        other.setLevel(logging.CRITICAL)
    try:
        yield found
    finally:
        for logger, (level, propagate) in zip(loggers, states, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        for other, before in zip(quiet, levels, strict=True):
            other.setLevel(before)

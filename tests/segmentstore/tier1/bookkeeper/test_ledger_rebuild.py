"""Records of logs in BookKeeper are made again from their ledgers: docs/bookkeeper-log.md, "Rebuild"."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from penstock.administration import bookkeeper_administration
from penstock.administration.ledger_adoption import LedgerAdoption
from penstock.administration.ledger_rebuild import ClusterLogs, LedgerRebuild, RebuildState, RebuiltLog
from penstock.model.errors import InvalidArgumentError, LogDamagedError, LogFencedError, StorageError
from penstock.model.errors.coordination import NoSuchNodeError
from penstock.runtime.coordination import CoordinationStore
from penstock.runtime.disk import LocalDisk
from penstock.runtime.ledgers import LedgerQuorum
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.frames import ENTRY_HEADER, FIRST, LAST
from penstock.segmentstore.container.log.operations import FORMAT_VERSION, RECORD_HEADER
from penstock.segmentstore.tier1.bookkeeper.bookkeeper_log import BookKeeperLog
from penstock.segmentstore.tier1.bookkeeper.entry_format import FrameEntry
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.ledger_chain import OpenLedger
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, record_path
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.server.cluster.identity import read_identity
from penstock.server.cluster.initialisation import MadeCluster, init_cluster
from penstock.server.cluster.machine import LocalMachine
from penstock.server.cluster_settings import ClusterSettings
from penstock.server.errors import ClusterMismatchError, UnknownClusterError
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.bookies import BookieSettings, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.inline_work import InlineWork

SETTINGS = BookKeeperSettings(ledger_bytes=600, truncate_interval_s=0.0)
CONTAINERS = 3


def operation(number: int, body: bytes = bytes(100)) -> bytes:
    """Return a frame with one operation of a container."""
    record = RECORD_HEADER.pack(1, number) + body
    return bytes((FORMAT_VERSION,)) + ENTRY_HEADER.pack(FIRST | LAST, len(record)) + record


def beginning(number: int) -> bytes:
    """Return a frame in which an operation begins, and does not end."""
    record = RECORD_HEADER.pack(1, number)
    return bytes((FORMAT_VERSION,)) + ENTRY_HEADER.pack(FIRST, len(record)) + record


def end() -> bytes:
    """Return a frame in which an operation ends that began in another one."""
    return bytes((FORMAT_VERSION,)) + ENTRY_HEADER.pack(LAST, 3) + b"end"


class World:
    """Bookies, a coordination service, and processes with logs in them."""

    def __init__(self) -> None:
        self.cluster: SimulatedBookies = SimulatedBookies(random.Random(1), 4, BookieSettings())
        self.zookeeper: SimulatedZooKeeper = SimulatedZooKeeper(random.Random(2), ZooKeeperSettings(server_count=1))
        self.runtime: Runtime = Runtime(
            disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0
        )
        self.factories: list[BookKeeperLogFactory] = []

    def service(self) -> SimulatedCoordination:
        """Return a client of the coordination service."""
        return SimulatedCoordination(self.zookeeper, f"host {len(self.factories)}", random.Random(4))

    def process(self) -> BookKeeperLogFactory:
        """Begin a process."""
        client = SimulatedLedgers(self.cluster, random.Random(len(self.factories)))
        self.factories.append(
            BookKeeperLogFactory(
                client, self.service(), self.runtime, SETTINGS, cluster_id="a", container_count=CONTAINERS
            )
        )
        return self.factories[-1]

    async def opened(self, container_id: int = 0) -> BookKeeperLog:
        """Open a log in a process of its own."""
        log = self.process().create(container_id)
        await log.open()
        return log

    async def lose(self, *containers: int) -> None:
        """Delete records."""
        session: CoordinationStore = await self.service().open_session()
        for container_id in containers or range(CONTAINERS):
            try:
                await session.delete(record_path(container_id))
            except NoSuchNodeError:
                continue
        await session.close()

    async def rebuild(self, *, is_dry_run: bool = False) -> Sequence[RebuiltLog]:
        """Rebuild the records, in a process of its own."""
        factory = self.process()
        process = factory.process
        logs = ClusterLogs(process.ledgers, process.records, SETTINGS, self.runtime, CONTAINERS)
        return await LedgerRebuild(logs).run(is_dry_run=is_dry_run)

    async def ledger(self, container_id: int, ordinal: int, epoch: int, *frames: bytes) -> int:
        """Create a ledger of a log, without a record, that has entries of these frames."""
        client = self.process().process.ledgers
        writer = await client.create(
            LedgerQuorum(), LedgerLabels("a", container_id, ordinal, epoch).encode(), OpenLedger(ordinal)
        )
        for frame in frames:
            writer.append(FrameEntry([frame], len(frame)))
        await asyncio.sleep(1)
        await writer.close()
        return writer.ledger_id


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        world = World()
        await scenario(world)
        for factory in world.factories:
            await factory.close()

    with Simulation(1) as simulation:
        simulation.run(play)


async def fill(log: BookKeeperLog, numbers: range) -> None:
    """Append an operation for each number."""
    for number in numbers:
        await log.append([operation(number)], len(operation(number)))


async def frames(log: BookKeeperLog) -> list[bytes]:
    """Return the frames that an open has found."""
    return [frame.data async for frame in log.frames()]


def test_lost_records_are_made_again_and_the_logs_have_all_their_frames() -> None:
    """Several ledgers of two processes, a log without ledgers, and one whose record was not lost."""

    async def scenario(world: World) -> None:
        await fill(await world.opened(), range(1, 13))
        await fill(await world.opened(), range(13, 20))
        kept = await world.opened(1)
        await fill(kept, range(1, 4))
        before = await world.factories[0].process.records.read(0)
        assert before is not None
        await world.lose(0, 2)
        dry = await world.rebuild(is_dry_run=True)
        assert [each.state for each in dry] == [RebuildState.REBUILT, RebuildState.KEPT, RebuildState.NEW]
        assert await world.factories[0].process.records.read(0) is None
        found = await world.rebuild()
        assert [each.state for each in found] == [RebuildState.REBUILT, RebuildState.KEPT, RebuildState.NEW]
        assert found[0].left_out == ()
        assert set(found[0].ledgers) <= {each.ledger_id for each in before.record.ledgers}
        after = await world.opened()
        assert await frames(after) == [operation(number) for number in range(1, 20)]
        assert after.epoch == before.record.epoch + 1
        assert after.may_predecessor_answer
        assert not after.is_truncated
        await fill(kept, range(4, 6))

    run(scenario)


def test_a_process_that_still_runs_is_fenced() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await fill(log, range(1, 3))
        await world.lose()
        await world.rebuild()
        with pytest.raises(LogFencedError):
            await fill(log, range(3, 4))
        assert await frames(await world.opened()) == [operation(1), operation(2)]

    run(scenario)


def test_a_truncated_log_begins_where_no_ledger_is_missing() -> None:
    """A ledger whose deletion failed is left over before ledgers that were deleted: what it has was forgotten."""

    async def scenario(world: World) -> None:
        left_over = await world.ledger(0, 1, 1, operation(1), operation(2))
        second = await world.ledger(0, 4, 1, operation(8), operation(9))
        third = await world.ledger(0, 5, 2, operation(10))
        (found, _, _) = await world.rebuild()
        assert (found.left_out, found.ledgers) == ((left_over,), (second, third))
        log = await world.opened()
        assert log.is_truncated
        assert await frames(log) == [operation(number) for number in (8, 9, 10)]

    run(scenario)


def test_ledgers_without_frames_may_be_missing_in_the_middle() -> None:
    """Also the first: a log that begins with operation 1 was not truncated."""

    async def scenario(world: World) -> None:
        first = await world.ledger(0, 2, 2, operation(1), operation(2))
        second = await world.ledger(0, 5, 4, operation(3))
        (found, _, _) = await world.rebuild()
        assert (list(found.left_out), list(found.ledgers)) == ([], [first, second])
        log = await world.opened()
        assert not log.is_truncated
        assert await frames(log) == [operation(number) for number in (1, 2, 3)]

    run(scenario)


def test_of_ledgers_with_one_number_the_one_with_entries_was_recorded() -> None:
    """A process that ended before the change of the record has left an empty one. Two with entries are damage."""

    async def scenario(world: World) -> None:
        first = await world.ledger(0, 1, 1, operation(1))
        await world.ledger(0, 2, 1)
        second = await world.ledger(0, 2, 2, operation(2))
        await world.ledger(0, 3, 7)
        await world.ledger(1, 1, 1, operation(1))
        await world.ledger(1, 1, 2, operation(1))
        found = await world.rebuild()
        assert list(found[0].ledgers) == [first, second]
        assert found[1].state is RebuildState.DAMAGED
        assert "both are number 1" in found[1].problem
        log = await world.opened()
        assert log.epoch == 8
        stored = await world.factories[-1].process.records.read(0)
        assert stored is not None
        assert stored.record.next_ordinal == 5
        assert await world.factories[-1].process.records.read(1) is None

    run(scenario)


def test_an_operation_that_may_have_begun_in_a_missing_ledger_is_damage() -> None:
    async def scenario(world: World) -> None:
        await world.ledger(0, 1, 1, operation(1), beginning(2))
        await world.ledger(0, 3, 1, end(), operation(3))
        assert "is not known" in (await world.rebuild())[0].problem

    run(scenario)


def test_ledgers_of_more_containers_than_the_cluster_has_are_refused() -> None:
    async def scenario(world: World) -> None:
        await world.ledger(CONTAINERS, 1, 1, operation(1))
        with pytest.raises(InvalidArgumentError, match="ledgers of containers 3"):
            await world.rebuild()

    run(scenario)


class CrashError(Exception):
    """The process ends here."""


class CrashingLedgers(SimulatedLedgers):
    """A client whose process ends after some requests."""

    def __init__(self, cluster: SimulatedBookies, rng: random.Random, left: list[int]) -> None:
        super().__init__(cluster, rng)
        self._left = left

    async def wait_while_paused(self) -> None:
        """Count one step of each request; end at the last."""
        self._left[0] -= 1
        if self._left[0] < 0:
            raise CrashError
        await super().wait_while_paused()


def test_a_rebuild_that_ends_at_any_step_is_completed_by_the_next_one() -> None:
    """After each number of steps of requests to BookKeeper, with two logs of which one has a left-over ledger."""
    steps = 0
    is_complete = False

    async def scenario(world: World) -> None:
        nonlocal is_complete
        await fill(await world.opened(), range(1, 13))
        await world.ledger(1, 1, 1, operation(1))
        needed = await world.ledger(1, 3, 1, operation(5), operation(6))
        await world.lose()
        factory = world.process()
        crashing = CrashingLedgers(world.cluster, random.Random(9), [steps])
        rebuild = LedgerRebuild(ClusterLogs(crashing, factory.process.records, SETTINGS, world.runtime, CONTAINERS))
        try:
            await rebuild.run(is_dry_run=False)
            is_complete = True
        except (CrashError, StorageError):
            pass
        await world.rebuild()
        assert await frames(await world.opened()) == [operation(number) for number in range(1, 13)]
        stored = await factory.process.records.read(1)
        assert stored is not None
        assert [each.ledger_id for each in stored.record.ledgers] == [needed]
        assert await frames(await world.opened(1)) == [operation(5), operation(6)]

    while not is_complete:
        run(scenario)
        steps += 1
    assert steps > 20


class OneMachine(LocalMachine):
    """A machine that reaches the coordination service of a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def coordination(self, settings: ClusterSettings) -> SimulatedCoordination:
        """See `Machine.coordination`."""
        return self._world.service()


async def adopted(world: World) -> MadeCluster:
    """Do what ``penstock cluster init --adopt`` does."""
    runtime = Runtime(
        disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0,
        open_ledgers=lambda place, settings, work: SimulatedLedgers(world.cluster, random.Random(5)),
    )  # fmt: skip
    return await init_cluster(
        StandaloneSettings(cluster=ClusterSettings(zookeeper="zk:2181/penstock")),
        containers=CONTAINERS, log="bookkeeper://zk:2181/ledgers", tier2="s3://bucket/data",
        lease_s=4.0, adopts=True, is_dry=False, adoption=LedgerAdoption(), runtime=runtime, machine=OneMachine(world),
    )  # fmt: skip


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no virtual machine: bookies are simulated."""
    monkeypatch.setattr(bookkeeper_administration, "start_java", lambda what, jars, *, heap_mb, direct_mb: None)


@pytest.mark.usefixtures("no_java")
def test_a_cluster_that_zookeeper_has_lost_is_adopted_from_its_ledgers() -> None:
    """With its id; its records are there before stores can start. Without a ledger there is nothing to adopt."""

    async def scenario(world: World) -> None:
        with pytest.raises(ClusterMismatchError, match="there is no log"):
            await adopted(world)
        await fill(await world.opened(), range(1, 4))
        await world.lose()
        made = await adopted(world)
        assert (made.identity.cluster_id, made.is_new) == ("a", True)
        assert await frames(await world.opened()) == [operation(number) for number in range(1, 4)]
        assert not (await adopted(world)).is_new

    run(scenario)


@pytest.mark.usefixtures("no_java")
def test_an_adoption_of_one_of_several_clusters_or_of_a_damaged_log_makes_no_cluster() -> None:
    async def scenario(world: World) -> None:
        await world.ledger(0, 1, 1, operation(1))
        await world.ledger(0, 1, 2, operation(1))
        with pytest.raises(LogDamagedError, match="The cluster was not made"):
            await adopted(world)
        client = world.factories[-1].process.ledgers
        await client.create(LedgerQuorum(), LedgerLabels("b", 0, 1, 1).encode(), OpenLedger(1))
        with pytest.raises(ClusterMismatchError, match="clusters a, b have ledgers"):
            await adopted(world)
        session = await world.service().open_session()
        with pytest.raises(UnknownClusterError):
            await read_identity(session, "here")
        await session.close()

    run(scenario)

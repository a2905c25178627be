"""A segment store in a cluster, on the simulated ZooKeeper with a real leader; its containers are doubles.

A double's log knows who has opened it last, as a real one does: the earlier owner is shut out, and finds that out a
second later.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

import pytest

from penstock.controller.cluster.leader import ClusterLeader
from penstock.controller.cluster.view import read_cluster
from penstock.model.cluster_nodes import (
    DRAINS_PATH,
    IDENTITY_PATH,
    ClusterIdentity,
    DrainNode,
    HeldNode,
    HeldPhase,
    HostNode,
    SecurityMark,
    encode_node,
)
from penstock.model.errors import ContainerOfflineError, PenstockError
from penstock.model.errors.coordination import CoordinationError, NodeVersionError, NoSuchNodeError
from penstock.runtime.coordination import CoordinationSettings, CreateNode, DeleteNode
from penstock.segmentstore.cluster.containers import ContainerCondition
from penstock.segmentstore.cluster.ends import KnownEnds, write_end
from penstock.segmentstore.cluster.loads import LoadSource
from penstock.segmentstore.cluster.member import ClusterMember
from penstock.segmentstore.cluster.settings import MemberSettings
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession

CONTAINERS = 6
SETTINGS = CoordinationSettings(session_timeout_s=8.0, request_timeout_s=3.0)
#: A close takes longer than the next store needs to open the log.
OPEN_S, CLOSE_S, FENCED_S, RETRY_S = 0.1, 0.5, 1.0, 0.5


class Logs:
    """Who has opened each container's log last, and who has it open."""

    def __init__(self) -> None:
        self.epochs: Counter[int] = Counter()
        self.owners: dict[int, Containers] = {}
        #: Opens of logs that another store had open, by container.
        self.fenced: list[int] = []
        #: Closes by stores that had not been shut out.
        self.closed: list[int] = []
        #: Opens whose former owner was known to have ended, by container.
        self.proven: list[int] = []


class Containers:
    """`MemberContainers` of one store."""

    def __init__(self, logs: Logs, ends: KnownEnds, token: bytes) -> None:
        self.logs = logs
        self.ends = ends
        self.token = token
        self.running: dict[int, int] = {}
        self.prepared: list[int] = []
        self.ended_waits: list[float] = []
        self.hangs_in_closing = False
        self._assigned: frozenset[int] = frozenset()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def observe(self, before_open: Callable[[int], Awaitable[None]], on_changed: Callable[[], None]) -> None:
        self.before_open, self._on_changed = before_open, on_changed

    def assign(self, container_ids: Collection[int]) -> None:
        self._assigned = frozenset(container_ids)
        for number in sorted(self._assigned - self._tasks.keys()):
            task = self._tasks[number] = asyncio.ensure_future(self._run(number))
            task.add_done_callback(lambda _, number=number: self._ended(number))  # type: ignore[misc]

    def _ended(self, number: int) -> None:
        del self._tasks[number]
        self._on_changed()
        if number in self._assigned:
            self.assign(self._assigned)

    @property
    def held(self) -> Collection[int]:
        return sorted(self._tasks)

    def condition(self, container_id: int) -> ContainerCondition:
        if container_id in self.running:
            return ContainerCondition(HeldPhase.SERVING, self.running[container_id])
        return ContainerCondition(HeldPhase.OPENING)

    async def prepare(self, container_id: int) -> None:
        self.prepared.append(container_id)

    def end_waits(self) -> None:
        self.ended_waits.append(asyncio.get_running_loop().time())

    async def _run(self, number: int) -> None:
        try:
            await self.before_open(number)
        except PenstockError:
            await asyncio.sleep(RETRY_S)
            return
        await asyncio.sleep(OPEN_S)
        logs, before = self.logs, self.logs.owners.get(number)
        if before is not None:
            if self.ends.may_live(before.token):
                logs.fenced.append(number)
            else:
                logs.proven.append(number)
        logs.epochs[number] += 1
        epoch = self.running[number] = logs.epochs[number]
        logs.owners[number] = self
        self._on_changed()
        while number in self._assigned and logs.epochs[number] == epoch:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.05)
        if logs.epochs[number] != epoch:
            await asyncio.sleep(FENCED_S)
        del self.running[number]
        self._on_changed()
        await asyncio.sleep(1000.0 if self.hangs_in_closing else CLOSE_S)
        if logs.epochs[number] == epoch:
            logs.closed.append(number)
            del logs.owners[number]

    def kill(self) -> None:
        for task in self._tasks.values():
            task.cancel()


class World:
    """A cluster that was made, with a leader and stores by the names of their hosts."""

    def __init__(self, seed: int) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(seed))
        self.rng = random.Random(seed + 1)
        self.logs = Logs()
        self.members: dict[str, ClusterMember] = {}
        self.containers: dict[str, Containers] = {}
        self.tokens: dict[str, bytes] = {}
        self.leader: asyncio.Task[None]
        self.admin: SimulatedSession

    def service(self, host: str) -> SimulatedCoordination:
        return SimulatedCoordination(self.zookeeper, host, self.rng, SETTINGS)

    async def make(self) -> None:
        self.admin = await self.service("admin").open_session()
        identity = ClusterIdentity(
            cluster_id="0" * 32, container_count=CONTAINERS, log="l", tier2="t", ownership_lease_s_max=4.0
        )
        await self.admin.create(IDENTITY_PATH, encode_node(identity))
        self.leader = asyncio.ensure_future(ClusterLeader(self.service("c1"), "c1", random.Random(3)).run())

    def start(
        self,
        host: str,
        name: str = "",
        settings: MemberSettings | None = None,
        loads: Callable[[Containers], LoadSource] | None = None,
    ) -> ClusterMember:
        """Start a store on a host. `loads` makes what it reports of its load; None: it reports nothing."""
        ends = KnownEnds()
        token = self.tokens[host] = self.rng.randbytes(16)
        containers = self.containers[host] = Containers(self.logs, ends, token)
        member = self.members[host] = ClusterMember(
            self.service(host), containers, name=name or host, incarnation=token.hex(),
            host=HostNode(endpoints={}), ends=ends, settings=settings,
            loads=None if loads is None else loads(containers),
        )  # fmt: skip
        member.start()
        return member

    async def kill(self, host: str) -> None:
        """End a store as kill -9 does: nothing is sent any more, and its session times out."""
        self.zookeeper.cut(host)
        self.containers[host].kill()
        member = self.members.pop(host)
        for task in [*member._background, *member._tasks.values()]:
            task.cancel()

    def served(self) -> Counter[str]:
        """Count the containers that serve, by host."""
        return Counter({host: len(self.containers[host].running) for host in self.members})

    async def until(self, condition: Callable[[Counter[str]], bool], within_s: float = 120.0) -> float:
        """Wait until the counts of serving containers meet a condition; return the time that it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(within_s):
            while not condition(self.served()):  # noqa: ASYNC110  # virtual time
                await asyncio.sleep(0.05)
        return loop.time() - began_s

    async def started(self, *hosts: str) -> None:
        """Start stores, and wait until all serve their parts."""
        for host in hosts:
            self.start(host)
        await self.until(lambda served: sorted(served.values()) == [CONTAINERS // len(hosts)] * len(hosts))
        # Until the leader has seen it.
        await asyncio.sleep(15.0)


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    """Run a scenario in virtual time."""
    with Simulation(seed) as simulation:

        async def whole() -> None:
            world = World(seed)
            await world.make()
            await scenario(world)
            world.leader.cancel()
            for host in list(world.members):
                await world.kill(host)

        simulation.run(whole)


@pytest.mark.parametrize("seed", range(3))
def test_stores_serve_what_is_assigned_and_say_so(seed: int) -> None:
    """Each container is opened once; the nodes name its store, phase and epoch."""

    async def scenario(world: World) -> None:
        await world.started("a", "b", "c")
        assert set(world.logs.epochs.values()) == {1}
        view = await read_cluster(world.admin)
        assert sorted(view.hosts) == ["a", "b", "c"]
        assert {number: (held.owner, held.phase, held.epoch) for number, held in view.held.items()} == {
            number: (view.assignment.owners[number], HeldPhase.SERVING, 1) for number in range(CONTAINERS)
        }

    run(scenario, seed)


@pytest.mark.parametrize("lost_count", [2, 4])
def test_a_store_is_announced_although_an_answer_was_lost(lost_count: int) -> None:
    """The last of the lost answers is that to the creation of the store's node: it was made."""

    async def scenario(world: World) -> None:
        world.zookeeper.lose_replies("a", lost_count)
        member = world.start("a")
        async with asyncio.timeout(60.0):
            await member.announced.wait()
        assert sorted((await read_cluster(world.admin)).hosts) == ["a"]

    run(scenario)


def test_a_drained_store_hands_its_containers_over() -> None:
    """Each is prepared, closed, and then opened by another one: none is shut out."""

    async def scenario(world: World) -> None:
        await world.started("a", "b")
        parts = set(world.containers["a"].running)
        await world.admin.create(f"{DRAINS_PATH}/a", encode_node(DrainNode(by="test", since_ms=0)))
        await world.until(lambda served: served["b"] == CONTAINERS)
        assert world.logs.fenced == []
        assert sorted(world.logs.closed) == sorted(world.containers["a"].prepared) == sorted(parts)
        await asyncio.sleep(5.0)
        assert list(world.members["a"].held) == []

    run(scenario)


def test_a_store_that_stops_hands_over_and_proves_its_end() -> None:
    """After `drain` and `stop` nothing of it is left but the proof."""

    async def scenario(world: World) -> None:
        await world.started("a", "b")
        member = world.members.pop("a")
        assert await member.drain()
        await member.stop()
        await world.until(lambda served: served["b"] == CONTAINERS)
        assert world.logs.fenced == []
        view = await read_cluster(world.admin)
        assert sorted(view.hosts) == ["b"]
        assert not view.drains
        assert (await world.admin.children("/ends")).names == {world.tokens["a"].hex()}

    run(scenario)


def test_the_last_store_stops_without_a_wait() -> None:
    """Nothing can take its containers: they are closed, and its session ends."""

    async def scenario(world: World) -> None:
        await world.started("a")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        member = world.members.pop("a")
        assert not await member.drain()
        await member.stop()
        assert loop.time() - began_s < 5.0
        assert sorted(world.logs.closed) == list(range(CONTAINERS))

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_is_cut_off_serves_until_another_one_has_its_containers(seed: int) -> None:
    """They move after its session has ended; when it is back it stops what others hold, and gets its part again."""

    async def scenario(world: World) -> None:
        await world.started("a", "b", "c")
        world.zookeeper.cut("a")
        await asyncio.sleep(5.0)
        assert world.served()["a"] == 2
        assert await world.until(lambda served: served["b"] + served["c"] == CONTAINERS) < 20.0
        assert len(world.logs.fenced) == 2
        await asyncio.sleep(30.0)
        assert world.served()["a"] == 0
        world.zookeeper.mend("a")
        await world.until(lambda served: set(served.values()) == {2})
        assert len(world.logs.fenced) == 2

    run(scenario, seed)


def test_no_container_stops_while_zookeeper_is_away() -> None:
    """And none is opened again: what fails meanwhile is served again when ZooKeeper is back."""

    async def scenario(world: World) -> None:
        await world.started("a", "b")
        for number in range(3):
            world.zookeeper.stop(number)
        await asyncio.sleep(120.0)
        assert world.served() == {"a": 3, "b": 3}
        failed = min(world.containers["a"].running)
        world.logs.epochs[failed] += 1
        await asyncio.sleep(60.0)
        assert world.served() == {"a": 2, "b": 3}
        for number in range(3):
            world.zookeeper.start(number)
        await world.until(lambda served: set(served.values()) == {3})
        assert world.logs.closed == []

    run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_the_end_of_one_session_moves_no_container(seed: int) -> None:
    """The store announces itself again, and the leader waits for that: its process is not known to have ended."""

    async def scenario(world: World) -> None:
        await world.started("a", "b", "c")
        number = (await read_cluster(world.admin)).assignment.number
        for _ in range(5):
            session = world.members["a"]._sessions.store
            assert isinstance(session, SimulatedSession)
            world.zookeeper.expire(session.session_id)
            await asyncio.sleep(20.0 + world.rng.random())
        view = await read_cluster(world.admin)
        assert view.assignment.number == number
        assert sorted(view.hosts) == ["a", "b", "c"]
        assert world.logs.closed == world.logs.fenced == []
        assert set(world.logs.epochs.values()) == {1}

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_session_that_ends_for_its_store_only_leaves_its_containers_serving(seed: int) -> None:
    """A server that loses its leadership ends the session. The next leader keeps it, and its nodes, for its timeout.

    The nodes of containers were replaced by ones that stayed "opening", so no container was moved any more.
    """

    async def scenario(world: World) -> None:
        await world.started("a", "b")
        session = world.members["a"]._sessions.store
        assert isinstance(session, SimulatedSession)
        session.expired_by_server()
        assert session.session_id in world.zookeeper.sessions
        await asyncio.sleep(30.0)
        view = await read_cluster(world.admin)
        assert sorted(view.hosts) == ["a", "b"]
        assert {(held.phase, held.epoch) for held in view.held.values()} == {(HeldPhase.SERVING, 1)}
        assert world.logs.closed == world.logs.fenced == []

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_end_of_all_sessions_stops_no_container(seed: int) -> None:
    """Every store announces itself and its containers again, under the same incarnation."""

    async def scenario(world: World) -> None:
        await world.started("a", "b", "c")
        world.zookeeper.expire_all()
        await asyncio.sleep(60.0)
        assert set(world.served().values()) == {2}
        world.admin = await world.service("admin").open_session()
        view = await read_cluster(world.admin)
        assert sorted(view.hosts) == ["a", "b", "c"]
        assert sorted(view.held) == list(range(CONTAINERS))
        assert world.logs.closed == world.logs.fenced == []

    run(scenario, seed)


def test_a_changed_announcement_is_in_the_node_of_the_store() -> None:
    """Also after its session has ended, and while ZooKeeper is away."""

    async def scenario(world: World) -> None:
        await world.started("a")
        for key in ("first", "second"):
            world.members["a"].announce_security(SecurityMark(auth=True, keys=(key,)))
            await asyncio.sleep(5.0)
            assert (await read_cluster(world.admin)).hosts["a"].security == SecurityMark(auth=True, keys=(key,))
        world.zookeeper.expire_all()
        await asyncio.sleep(60.0)
        world.admin = await world.service("admin").open_session()
        assert (await read_cluster(world.admin)).hosts["a"].security == SecurityMark(auth=True, keys=("second",))

    run(scenario)


def test_a_proof_of_the_end_lets_others_take_over_at_once() -> None:
    """The parent has waited for the process: no session is waited for, and its lease need not be."""

    async def scenario(world: World) -> None:
        await world.started("a", "b", "c")
        await world.kill("a")
        await write_end(world.admin, "a", world.tokens["a"].hex(), by="parent")
        assert await world.until(lambda served: served.total() == CONTAINERS) < 3.0
        assert len(world.logs.proven) == 2
        assert world.logs.fenced == []
        await write_end(world.admin, "a", world.tokens["a"].hex(), by="parent")

    run(scenario)


def test_a_store_that_hangs_while_it_closes_is_taken_over() -> None:
    """After `handover_wait_s` the next store opens the log anyway, which shuts the other one out."""

    async def scenario(world: World) -> None:
        await world.started("a", "b")
        world.containers["a"].hangs_in_closing = True
        await world.admin.create(f"{DRAINS_PATH}/a", encode_node(DrainNode(by="test", since_ms=0)))
        await world.until(lambda served: served["b"] == CONTAINERS)
        assert len(world.logs.fenced) == 3

    run(scenario)


def test_of_two_processes_with_one_name_the_later_one_has_the_containers() -> None:
    """Also after the session of the earlier one has ended and begun again."""

    async def scenario(world: World) -> None:
        world.start("old", "a")
        await world.until(lambda served: served["old"] == CONTAINERS)
        world.start("new", "a")
        await world.until(lambda served: served["new"] == CONTAINERS)
        assert "another process" in world.members["old"].problem
        assert world.logs.fenced == []
        world.zookeeper.expire_all()
        await asyncio.sleep(60.0)
        assert world.served() == {"old": 0, "new": CONTAINERS}

    run(scenario)


def test_an_assignment_that_changes_back_within_a_hand_over_leaves_one_owner() -> None:
    """Drains are set and withdrawn in quick succession; in the end every container is served once."""

    async def scenario(world: World) -> None:
        await world.started("a", "b")
        rng = random.Random(5)
        for _ in range(20):
            for name in "ab":
                try:
                    await world.admin.create(f"{DRAINS_PATH}/{name}", encode_node(DrainNode(by="t", since_ms=0)))
                    await asyncio.sleep(rng.uniform(0.05, 3.0))
                    await world.admin.delete(f"{DRAINS_PATH}/{name}")
                except CoordinationError:
                    continue
                await asyncio.sleep(rng.uniform(0.05, 1.0))
        await world.until(lambda served: set(served.values()) == {3})
        assert world.logs.fenced == []

    run(scenario)


def test_no_log_is_opened_whose_container_another_store_holds() -> None:
    """A container that has failed may be started again before the store has seen who holds it."""

    async def scenario(world: World) -> None:
        await world.started("a")
        before_open = world.containers["a"].before_open
        await before_open(0)
        content = encode_node(HeldNode(owner="x", incarnation="1", phase=HeldPhase.OPENING))
        await world.admin.multi([DeleteNode("/held/0"), CreateNode("/held/0", content, is_ephemeral=True)])
        # Reads of the store's own server may lag behind the change; then its own change is refused.
        with pytest.raises((ContainerOfflineError, NodeVersionError, NoSuchNodeError)):
            await before_open(0)
        with pytest.raises(ContainerOfflineError, match="does not hold it"):
            await before_open(CONTAINERS)
        await world.until(lambda served: served["a"] == CONTAINERS - 1)

    run(scenario)

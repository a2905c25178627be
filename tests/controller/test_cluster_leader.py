"""The leader of a cluster on the simulated ZooKeeper: elections, joins, losses, drains, and two that believe to lead.

Stores are doubles that do what the leader sees of a store: a node in ``hosts``, and ``held`` nodes of what they serve.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.cluster.leader import ClusterLeader
from penstock.controller.cluster.settings import LeaderSettings
from penstock.controller.cluster.view import read_cluster
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    ENDS_PATH,
    IDENTITY_PATH,
    AssignmentNode,
    ClusterIdentity,
    DrainNode,
    HeldNode,
    HeldPhase,
    HostNode,
    HostState,
    LoadNode,
    decode_node,
    encode_node,
    host_node_name,
)
from penstock.model.errors.coordination import CoordinationError, NodeExistsError, NoSuchNodeError
from penstock.model.move_settings import MoveSettings
from penstock.runtime.coordination import CoordinationSettings
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession

CONTAINERS = 6
SETTINGS = CoordinationSettings(session_timeout_s=8.0, request_timeout_s=3.0)


class World:
    """A cluster that was made, with leaders and stores by name."""

    def __init__(self, seed: int, settings: ZooKeeperSettings | None) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(seed), settings)
        self.rng = random.Random(seed + 1)
        self.leaders: dict[str, ClusterLeader] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.admin: SimulatedSession

    def service(self, host: str) -> SimulatedCoordination:
        """Return the service as a host sees it."""
        return SimulatedCoordination(self.zookeeper, host, self.rng, SETTINGS)

    async def make(self) -> None:
        """Make the cluster."""
        self.admin = await self.service("admin").open_session()
        identity = ClusterIdentity(
            cluster_id="0" * 32, container_count=CONTAINERS, log="l", tier2="t", ownership_lease_s_max=4.0
        )
        await self.admin.create(IDENTITY_PATH, encode_node(identity))

    def lead(self, name: str, settings: LeaderSettings | None = None) -> ClusterLeader:
        """Start a candidate."""
        leader = self.leaders[name] = ClusterLeader(self.service(name), name, random.Random(name), settings)
        self.tasks[name] = asyncio.ensure_future(leader.run())
        return leader

    async def start_store(self, name: str) -> None:
        """Start a store, and keep it until `stop_store`."""
        self.tasks[name] = asyncio.ensure_future(self._serve(name))

    async def start_even(self, names: str) -> None:
        """Start stores with names of one letter, and wait until each has its part and the leader is at rest."""
        for name in names:
            await self.start_store(name)
        await self.until(is_even(len(names)))
        await asyncio.sleep(10.0)

    async def _serve(self, name: str) -> None:
        session = await self.service(name).open_session()
        path = f"/hosts/{host_node_name(name, f'{session.session_id:x}')}"
        held: set[int] = set()
        while True:
            try:
                if path:
                    await session.create(path, encode_node(HostNode(endpoints={})), is_ephemeral=True)
                    path = ""
                node = await session.get(ASSIGNMENT_PATH)
                owners = decode_node(AssignmentNode, ASSIGNMENT_PATH, node.content).owners
                wanted = {number for number, owner in enumerate(owners) if owner == name}
                for number in held - wanted:
                    await session.delete(f"/held/{number}")
                    held.discard(number)
                content = HeldNode(owner=name, incarnation="i", phase=HeldPhase.SERVING)
                for number in wanted - held:
                    try:
                        await session.create(f"/held/{number}", encode_node(content), is_ephemeral=True)
                        held.add(number)
                    except NodeExistsError:
                        continue
                async with asyncio.timeout(0.3):
                    await session.changed(ASSIGNMENT_PATH, node)
            except (TimeoutError, NoSuchNodeError, CoordinationError):
                await asyncio.sleep(0.1)

    async def report(self, name: str, state: HostState, *, log_problem_s: float) -> None:
        """Have a store report its state, and for how long its log has not answered."""
        (host,) = [each for each in (await self.admin.children("/hosts")).names if each.startswith(f"{name}~")]
        await self.admin.set(f"/hosts/{host}", encode_node(HostNode(endpoints={}, state=state)))
        load = encode_node(LoadNode(busy=0.0, log_problem_s=log_problem_s))
        for path, content in (("/loads", b""), (f"/loads/{name}", load)):
            try:
                await self.admin.create(path, content)
            except NodeExistsError:
                if content:
                    await self.admin.set(path, content)

    async def stop(self, name: str) -> None:
        """End a store or leader without any last word, as kill -9 does: its session times out."""
        self.zookeeper.cut(name)
        self.tasks.pop(name).cancel()

    async def owners(self) -> tuple[str, ...]:
        """Return the assignment."""
        node = await self.admin.get(ASSIGNMENT_PATH)
        return decode_node(AssignmentNode, ASSIGNMENT_PATH, node.content).owners

    async def until(self, condition: Callable[[Counter[str]], bool], within_s: float = 120.0) -> float:
        """Wait until the counts of containers meet a condition; return the time that it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(within_s):
            while True:
                try:
                    if condition(Counter(await self.owners())):
                        return loop.time() - began_s
                except CoordinationError:
                    pass
                await asyncio.sleep(0.05)


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1, settings: ZooKeeperSettings | None = None) -> None:
    """Run a scenario in virtual time."""
    with Simulation(seed) as simulation:

        async def whole() -> None:
            world = World(seed, settings)
            await world.make()
            await scenario(world)
            for task in world.tasks.values():
                task.cancel()

        simulation.run(whole)


def is_even(stores: int) -> Callable[[Counter[str]], bool]:
    """Return whether all containers are at so many stores, evenly."""
    return lambda counts: counts.total() == CONTAINERS and sorted(counts.values()) == [CONTAINERS // stores] * stores


def test_stores_that_start_together_cause_one_plan() -> None:
    """Containers wait for `join_delay_s` after the last one; then each is assigned once."""

    async def scenario(world: World) -> None:
        leader = world.lead("c1")
        for name in "abc":
            await world.start_store(name)
            await asyncio.sleep(1.0)
        took_s = await world.until(is_even(3))
        assert 3.0 < took_s < 8.0
        assert leader.assignment_count == 1

    run(scenario)


def test_stores_that_join_one_after_the_other_delay_the_first_plan_by_a_bounded_time() -> None:
    """Twice `join_delay_s` is the bound."""

    async def scenario(world: World) -> None:
        leader = world.lead("c1")
        for name in "abcd":
            await world.start_store(name)
            await asyncio.sleep(4.0)
        assert leader.assignment_count > 0
        assert all(owner in "abcd" for owner in await world.owners())

    run(scenario)


def test_a_store_that_joins_gets_its_part_by_hand_overs() -> None:
    """Two at once at most, and no more moves than needed."""

    async def scenario(world: World) -> None:
        leader = world.lead("c1")
        await world.start_store("a")
        await world.start_store("b")
        await world.until(is_even(2))
        before = await world.owners()
        await world.start_store("c")
        await world.until(is_even(3))
        after = await world.owners()
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 2
        assert leader.assignment_count <= 3

    run(scenario)


def test_a_lost_store_is_replaced_as_soon_as_its_session_ends() -> None:
    """Within the session's timeout, the wait for its return and two seconds; its containers alone move."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        for name in "abc":
            await world.start_store(name)
        await world.until(is_even(3))
        before = await world.owners()
        await asyncio.sleep(10.0)
        await world.stop("a")
        bound_s = SETTINGS.session_timeout_s + LeaderSettings().absence_wait_s + 2.0
        assert await world.until(is_even(2)) < bound_s
        after = await world.owners()
        assert all(one == other for one, other in zip(before, after, strict=True) if one != "a")

    run(scenario)


async def owners_until_none_has(world: World, lost: str) -> list[tuple[str, ...]]:
    """Return the assignments, one after the other, until no store in `lost` owns a container."""
    seen = [await world.owners()]
    async with asyncio.timeout(60.0):
        while set(lost) & set(seen[-1]):
            await asyncio.sleep(0.05)
            owners = await world.owners()
            if owners != seen[-1]:
                seen.append(owners)
    return seen


@pytest.mark.parametrize("pause_s", [0.5, 1.0, 1.5])
def test_a_store_that_is_missing_gets_no_containers_of_one_that_is_lost(pause_s: float) -> None:
    """Two are lost, one shortly after the other: the second may come back, but nothing shows that it does."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        for name in "abcde":
            await world.start_store(name)
        await world.until(lambda counts: len(counts) == 5 and counts[""] == 0)
        await asyncio.sleep(10.0)
        await world.stop("a")
        await asyncio.sleep(pause_s)
        await world.stop("b")
        moves = [
            target
            for before, after in itertools.pairwise(await owners_until_none_has(world, "ab"))
            for source, target in zip(before, after, strict=True)
            if source != target
        ]
        assert moves
        assert "b" not in moves

    run(scenario)


@pytest.mark.parametrize("is_over", [False, True], ids=["the log is silent", "the log answers again"])
def test_if_the_log_of_all_stores_fails_nothing_moves(is_over: bool) -> None:
    """However long it fails, though they notice it one after the other; nor to a store that starts soon after it.

    Stores report that they are impaired until their log has answered for a while. Then a new store gets its part.
    """

    async def scenario(world: World) -> None:
        leader = world.lead("c1")
        await world.start_even("abc")
        before, count = await world.owners(), leader.assignment_count
        for name in "abc":
            await world.report(name, HostState.IMPAIRED, log_problem_s=10.0)
            await asyncio.sleep(1.0)
        await asyncio.sleep(60.0)
        assert (await world.owners(), leader.assignment_count) == (before, count)
        if not is_over:
            return
        for name in "abc":
            await world.report(name, HostState.IMPAIRED, log_problem_s=0.0)
        await world.start_store("d")
        await asyncio.sleep(25.0)
        assert (await world.owners(), leader.assignment_count) == (before, count)
        for name in "abc":
            await world.report(name, HostState.UP, log_problem_s=0.0)
        await world.until(lambda counts: counts["d"] > 0)

    run(scenario)


def test_a_single_store_whose_log_fails_loses_its_containers() -> None:
    """The others get them soon, and it gets none until it is well."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        await world.start_even("abc")
        await world.report("a", HostState.IMPAIRED, log_problem_s=10.0)
        assert await world.until(is_even(2)) < LeaderSettings().impaired_wait_s + 1.0
        assert "a" not in await world.owners()
        await world.report("a", HostState.UP, log_problem_s=0.0)
        await world.until(is_even(3))

    run(scenario)


@pytest.mark.parametrize("state", [HostState.IMPAIRED, HostState.UP], ids=["still impaired", "well since a moment"])
def test_a_store_whose_log_fails_after_that_of_another_one_answers_again_loses_its_containers(state: HostState) -> None:
    """Two hosts were cut off from the bucket one after the other: the leader took it for an outage of the bucket."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        await world.start_even("abc")
        await world.report("a", HostState.IMPAIRED, log_problem_s=10.0)
        await world.until(is_even(2))
        await world.report("a", HostState.IMPAIRED, log_problem_s=0.0)
        await asyncio.sleep(12.0)
        await world.report("b", HostState.IMPAIRED, log_problem_s=10.0)
        await world.report("a", state, log_problem_s=0.0)
        assert await world.until(lambda counts: counts["b"] == 0) < LeaderSettings().impaired_wait_s + 1.0

    run(scenario)


def test_nothing_moves_while_the_log_answers_one_store_after_the_other_again() -> None:
    async def scenario(world: World) -> None:
        leader = world.lead("c1")
        for name in "abcd":
            await world.start_store(name)
        await world.until(lambda counts: max(counts.values()) <= 2)
        await asyncio.sleep(10.0)
        before, count = await world.owners(), leader.assignment_count
        for name in "abc":
            await world.report(name, HostState.IMPAIRED, log_problem_s=10.0)
        await asyncio.sleep(10.0)
        for state in (HostState.IMPAIRED, HostState.UP):
            for name in "abc":
                await world.report(name, state, log_problem_s=0.0)
                await asyncio.sleep(4.0)
            await asyncio.sleep(18.0)
        assert (await world.owners(), leader.assignment_count) == (before, count)

    run(scenario)


def test_a_drained_store_is_emptied() -> None:
    """By its node in ``drains``; each container is held by one store or by none at each moment."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        for name in "ab":
            await world.start_store(name)
        await world.until(is_even(2))
        await world.admin.create("/drains/a", encode_node(DrainNode(by="test", since_ms=0)))
        await world.until(lambda counts: counts["b"] == CONTAINERS)
        view = await read_cluster(world.admin)
        assert view.drains == {"a"}
        await world.admin.delete("/drains/a")
        await world.until(is_even(2))

    run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_after_the_loss_of_most_stores_nothing_moves_for_a_while(seed: int) -> None:
    """The first loss is acted on; with the second one most have left, so its containers wait for `mass_wait_s`."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        await world.start_even("abc")
        await world.stop("a")
        await world.stop("b")
        await asyncio.sleep(SETTINGS.session_timeout_s + MoveSettings().mass_wait_s - 8.0)
        waiting = Counter(await world.owners())
        assert waiting["a"] + waiting["b"] >= CONTAINERS // 3
        assert waiting["c"] >= CONTAINERS // 3
        took_s = await world.until(lambda counts: counts["c"] == CONTAINERS)
        assert took_s > 2.0

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_another_controller_leads_when_the_leader_is_lost(seed: int) -> None:
    """Within the session's timeout; nothing moves for that, and what is lost meanwhile is moved afterwards."""

    async def scenario(world: World) -> None:
        for name in ("c1", "c2", "c3"):
            world.lead(name)
        for name in "ab":
            await world.start_store(name)
        await world.until(is_even(2))
        before = await world.owners()
        (first,) = (name for name, leader in world.leaders.items() if leader.is_leading)
        await world.stop(first)
        others = [leader for name, leader in world.leaders.items() if name != first]
        await world.until(lambda _: any(leader.is_leading for leader in others), SETTINGS.session_timeout_s + 2.0)
        assert await world.owners() == before
        await world.start_store("c")
        await world.until(is_even(3))

    run(scenario, seed)


def test_a_leader_that_is_cut_off_stops_and_comes_back_as_another_session() -> None:
    """It stops when its session may have ended by its own clock, so two lead for a moment at most."""

    async def scenario(world: World) -> None:
        first = world.lead("c1", LeaderSettings(poll_s=600.0))
        for name in "ab":
            await world.start_store(name)
        await world.until(is_even(2))
        second = world.lead("c2")
        await asyncio.sleep(20.0)  # Nothing must be done, so it waits for changes.
        assert first.is_leading
        world.zookeeper.cut("c1")
        await asyncio.sleep(SETTINGS.session_timeout_s + 2.0)
        assert not first.is_leading
        assert second.is_leading  # type: ignore[unreachable]
        world.zookeeper.mend("c1")
        await world.start_store("c")
        await world.until(is_even(3))
        await world.stop("c2")
        await world.until(lambda _: first.is_leading)

    run(scenario)


def test_two_that_believe_to_lead_do_not_undo_each_other() -> None:
    """Both write on the version that they have read, so each assignment follows from the one before."""

    async def scenario(world: World) -> None:
        one, other = world.lead("c1"), ClusterLeader(world.service("c2"), "c2", random.Random(2))
        for name in "ab":
            await world.start_store(name)
        await world.until(is_even(2))
        session = await world.service("c2").open_session()
        rogue = asyncio.ensure_future(other._lead(session))
        await world.start_store("c")
        await world.until(is_even(3))
        node = decode_node(AssignmentNode, ASSIGNMENT_PATH, (await world.admin.get(ASSIGNMENT_PATH)).content)
        assert node.number == one.assignment_count + other.assignment_count
        assert len(node.why) == CONTAINERS + 2
        rogue.cancel()

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_and_an_outage_leave_a_right_assignment(seed: int) -> None:
    """Every tenth answer is lost, and ZooKeeper is away for half a minute: sessions and assignment stay."""

    async def scenario(world: World) -> None:
        for name in ("c1", "c2"):
            world.lead(name)
        for name in "abc":
            await world.start_store(name)
        await world.until(is_even(3), 600.0)
        before = await world.owners()
        for number in (0, 1):
            world.zookeeper.stop(number)
        await asyncio.sleep(30.0)
        for number in (0, 1):
            world.zookeeper.start(number)
        await asyncio.sleep(30.0)
        await world.until(is_even(3), 600.0)
        assert await world.owners() == before

    run(scenario, seed, ZooKeeperSettings(lost_reply_rate=0.1))


def test_only_the_newest_proofs_of_ends_are_kept() -> None:
    """Checked at intervals; a few more than that are left, so that it is done rarely."""

    async def scenario(world: World) -> None:
        settings = LeaderSettings(ends_max=10, ends_interval_s=20.0)
        world.lead("c1", settings)
        await world.start_store("a")
        await world.until(lambda counts: counts["a"] == CONTAINERS)
        for number in range(11):
            await world.admin.create(f"{ENDS_PATH}/{99 - number}")
        await asyncio.sleep(60.0)
        assert len((await world.admin.children(ENDS_PATH)).names) == 11
        await world.admin.create(f"{ENDS_PATH}/5")
        await asyncio.sleep(60.0)
        names = (await world.admin.children(ENDS_PATH)).names
        assert names == {"5", *(str(99 - number) for number in range(2, 11))}

    run(scenario)


#: A host and a load as a later version may write them: with another version, and in a state that is not known here.
LATER_HOSTS = (b'{"v":2,"endpoints":{}}', b'{"v":1,"endpoints":{},"state":"warming"}')


@pytest.mark.parametrize("content", LATER_HOSTS)
def test_a_leader_that_cannot_read_a_node_lets_another_controller_lead(content: bytes) -> None:
    """A controller of a later version may be among them. Nothing moves until the node can be read."""

    async def scenario(world: World) -> None:
        leaders = [world.lead("c1"), world.lead("c2")]
        await world.start_store("a")
        await world.until(lambda counts: counts["a"] == CONTAINERS)
        (first,) = [leader for leader in leaders if leader.is_leading]
        await world.admin.create("/hosts/b~1", content, is_ephemeral=True)
        async with asyncio.timeout(30.0):
            while first.is_leading or not any(leader.is_leading for leader in leaders):  # noqa: ASYNC110  # virtual time
                await asyncio.sleep(0.05)
        assert await world.owners() == ("a",) * CONTAINERS
        await world.admin.set("/hosts/b~1", encode_node(HostNode(endpoints={})))
        await world.until(is_even(2))

    run(scenario)


def test_a_leader_plans_without_a_load_that_it_cannot_read() -> None:
    async def scenario(world: World) -> None:
        world.lead("c1")
        await world.start_store("a")
        await world.until(lambda counts: counts["a"] == CONTAINERS)
        await world.admin.create("/loads/a", b'{"v":2}', is_ephemeral=True)
        await world.start_store("b")
        await world.until(is_even(2))
        assert world.leaders["c1"].is_leading

    run(scenario)


def test_fields_of_a_later_version_stay_in_the_assignment() -> None:
    """A leader of this version writes them again, as it has read them."""

    async def scenario(world: World) -> None:
        world.lead("c1")
        await world.start_store("a")
        await world.until(lambda counts: counts["a"] == CONTAINERS)
        node = await world.admin.get(ASSIGNMENT_PATH)
        later = b',"later":{"fields":[1,2]}}'
        await world.admin.set(ASSIGNMENT_PATH, node.content[:-1] + later)
        await world.start_store("b")
        await world.until(is_even(2))
        assert (await world.admin.get(ASSIGNMENT_PATH)).content.endswith(later)

    run(scenario)

"""What a segment store reports of its load, and that an impaired one gives its containers to others.

The cluster is that of `test_cluster_member`: a simulated ZooKeeper with a real leader, and doubles of containers.
"""

from __future__ import annotations

import asyncio

import pytest

from penstock.controller.cluster.leader import ClusterLeader
from penstock.controller.cluster.settings import LeaderSettings
from penstock.controller.cluster.view import read_cluster
from penstock.model.assignment_plan import MoveReason
from penstock.model.cluster_nodes import LOADS_PATH, HostState, LoadNode, decode_node, encode_node
from penstock.model.errors import StorageError
from penstock.model.move_settings import MoveSettings
from penstock.segmentstore.cluster.loads import ContainerCounts, StoreCounts, load_node
from penstock.segmentstore.cluster.settings import MemberSettings
from segmentstore.test_cluster_member import CONTAINERS, Containers, World, run


class Loads:
    """`LoadSource` of a store whose containers are doubles. `busy`: the share of time in which it works."""

    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.busy = 0.1
        self.log_failed_s: float | None = None
        self.own_failures = 0
        self.heavy: dict[int, int] = {}

    def counts(self) -> StoreCounts:
        now_s = asyncio.get_running_loop().time()
        problem_s = 0.0 if self.log_failed_s is None else now_s - self.log_failed_s
        return StoreCounts(
            cpu_s=now_s * self.busy,
            containers={
                number: ContainerCounts(epoch, operations_in=int(now_s * self.heavy.get(number, 100)))
                for number, epoch in self.containers.running.items()
            },
            log_problem_s=problem_s if self.containers.running else 0.0,
            own_failures=self.own_failures,
        )

    async def check_log(self) -> None:
        if self.log_failed_s is not None:
            raise StorageError("the bucket is not reached")


async def start(world: World, *hosts: str) -> dict[str, Loads]:
    """Start stores that report their loads, and wait until all serve their parts."""
    found: dict[str, Loads] = {}
    for host in hosts:
        member = world.start(host, loads=lambda containers, host=host: found.setdefault(host, Loads(containers)))  # type: ignore[misc]
        assert member.impaired == ""
    await world.until(lambda served: sorted(served.values()) == [CONTAINERS // len(hosts)] * len(hosts))
    return found


def test_each_store_reports_its_load() -> None:
    """Rates are those between two reports; the nodes are ephemeral."""

    async def scenario(world: World) -> None:
        await start(world, "a", "b")
        await asyncio.sleep(25.0)
        loads = (await read_cluster(world.admin)).loads
        assert sorted(loads) == ["a", "b"]
        assert loads["a"].busy == pytest.approx(0.1)
        assert {number for each in loads.values() for number in each.containers} == set(range(CONTAINERS))
        assert all(
            each.operations_in == pytest.approx(100, rel=0.1)
            for load in loads.values() for each in load.containers.values()
        )  # fmt: skip
        await world.kill("b")
        await world.until(lambda served: served["a"] == CONTAINERS)
        assert sorted((await read_cluster(world.admin)).loads) == ["a"]

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_is_cut_off_from_the_log_alone_loses_its_containers(seed: int) -> None:
    """Within 20 s and a lease, although its session lives and it hangs while it closes them; it gets them again when
    its log has answered for a while.
    """

    async def scenario(world: World) -> None:
        sources = await start(world, "a", "b", "c")
        sources["a"].log_failed_s = asyncio.get_running_loop().time()
        world.containers["a"].hangs_in_closing = True
        took_s = await world.until(lambda served: served["a"] == 0 and served["b"] == served["c"] == 3)
        assert took_s < 20.0
        assert "its log" in world.members["a"].impaired
        view = await read_cluster(world.admin)
        assert view.hosts["a"].state is HostState.IMPAIRED
        await asyncio.sleep(60.0)
        assert world.served() == {"a": 0, "b": 3, "c": 3}
        world.containers["a"].hangs_in_closing = False
        world.containers["a"].kill()
        sources["a"].log_failed_s = None
        await world.until(lambda served: set(served.values()) == {2})

    run(scenario, seed)


def test_a_store_that_reaches_neither_log_nor_zookeeper_ends_the_requests_that_wait() -> None:
    """At each check from `impaired_after_s` on, until the log answers; before and after that it ends none."""

    async def scenario(world: World) -> None:
        sources = await start(world, "a")  # No other store takes the containers over.
        settings, ended = MemberSettings(), world.containers["a"].ended_waits
        began_s = asyncio.get_running_loop().time()
        world.zookeeper.cut("a")
        sources["a"].log_failed_s = began_s
        await asyncio.sleep(settings.impaired_after_s + 5.0)
        assert settings.impaired_after_s - 1.0 < ended[0] - began_s < settings.impaired_after_s + 2.0
        assert len(ended) >= 3
        sources["a"].log_failed_s = None
        await asyncio.sleep(2.0)
        count = len(ended)
        await asyncio.sleep(20.0)
        assert len(ended) == count

    run(scenario)


def test_nothing_moves_if_the_log_of_all_stores_fails_and_recovers() -> None:
    """It is the log: no other store could serve the containers."""

    async def scenario(world: World) -> None:
        sources = await start(world, "a", "b", "c")
        for source in sources.values():
            source.log_failed_s = asyncio.get_running_loop().time()
        await asyncio.sleep(12.0)
        number = (await read_cluster(world.admin)).assignment.number
        await asyncio.sleep(60.0)
        after = await read_cluster(world.admin)
        assert after.assignment.number == number
        assert {host.state for host in after.hosts.values()} == {HostState.IMPAIRED}
        # Its outage does not end for all stores at the same moment.
        for source in sources.values():
            source.log_failed_s = None
            await asyncio.sleep(4.0)
        await asyncio.sleep(60.0)
        last = await read_cluster(world.admin)
        assert last.assignment.number == number
        assert {host.state for host in last.hosts.values()} == {HostState.UP}

    run(scenario)


@pytest.mark.parametrize("stagger_s", [0.5, 2.0, 4.0, 6.0, 8.0])
def test_nothing_moves_if_the_log_fails_for_one_store_after_the_other(stagger_s: float) -> None:
    """When the wait for the first one ends, the others are impaired, or have a log that does not answer: two of three
    are enough to see that it is the log.
    """

    async def scenario(world: World) -> None:
        sources = await start(world, "a", "b", "c")
        number = (await read_cluster(world.admin)).assignment.number
        for source in sources.values():
            source.log_failed_s = asyncio.get_running_loop().time()
            await asyncio.sleep(stagger_s)
        await asyncio.sleep(60.0)
        after = await read_cluster(world.admin)
        assert {host.state for host in after.hosts.values()} == {HostState.IMPAIRED}
        assert after.assignment.number == number

    run(scenario)


def test_a_store_whose_log_was_silent_for_some_seconds_gets_containers_again_at_once() -> None:
    """Of an impaired store: it reports the end of the problem, as it has reported the problem."""

    async def scenario(world: World) -> None:
        sources = await start(world, "a", "b", "c")
        loop = asyncio.get_running_loop()
        sources["a"].log_failed_s = loop.time()
        await asyncio.sleep(6.0)
        sources["b"].log_failed_s = sources["c"].log_failed_s = loop.time()
        await asyncio.sleep(9.0)
        assert world.members["a"].impaired != "" == world.members["b"].impaired
        assert world.served() == {"a": 2, "b": 2, "c": 2}
        sources["b"].log_failed_s = sources["c"].log_failed_s = None
        assert await world.until(lambda served: served["b"] == served["c"] == 3) < 3.0

    run(scenario)


def test_the_containers_of_most_stores_move_only_after_a_while() -> None:
    """If two of three are impaired, it is probably the log of all."""

    async def scenario(world: World) -> None:
        sources = await start(world, "a", "b", "c")
        for name in "ab":
            sources[name].log_failed_s = asyncio.get_running_loop().time()
        await asyncio.sleep(30.0)
        assert world.served() == {"a": 2, "b": 2, "c": 2}
        await world.until(lambda served: served["c"] == CONTAINERS)

    run(scenario)


def test_a_store_that_lacks_memory_gives_its_containers_away() -> None:
    """Three failures of its own within a minute; a move cannot help a container that fails for another reason."""

    async def scenario(world: World) -> None:
        sources = await start(world, "a", "b")
        sources["a"].own_failures = 2
        await asyncio.sleep(20.0)
        assert world.members["a"].impaired == ""
        sources["a"].own_failures = 3
        assert await world.until(lambda served: served["b"] == CONTAINERS) < 20.0
        assert "memory" in world.members["a"].impaired

    run(scenario)


def test_an_earlier_process_that_says_that_it_is_impaired_does_not_become_the_newest() -> None:
    """Of two processes with one name the one that was announced last has the containers."""

    async def scenario(world: World) -> None:
        sources: list[Loads] = []

        def source(containers: Containers) -> Loads:
            sources.append(Loads(containers))
            return sources[-1]

        world.start("old", "a", loads=source)
        await world.until(lambda served: served["old"] == CONTAINERS)
        world.start("new", "a", loads=source)
        await world.until(lambda served: served["new"] == CONTAINERS)
        sources[0].own_failures = 3
        await asyncio.sleep(30.0)
        assert world.members["old"].impaired != ""
        assert world.served() == {"old": 0, "new": CONTAINERS}
        assert (await read_cluster(world.admin)).hosts["a"].state is HostState.UP

    run(scenario)


def test_a_hot_store_exchanges_its_containers_for_lighter_ones_and_then_nothing_moves() -> None:
    """By the reports; one move or exchange per `load_interval_s`, and none when it would not help any more."""
    moves = MoveSettings(hot_s=60.0, load_interval_s=60.0, rest_s=120.0)

    async def scenario(world: World) -> None:
        world.leader.cancel()
        leader = ClusterLeader(world.service("c2"), "c2", world.rng, LeaderSettings(moves=moves))
        world.leader = asyncio.ensure_future(leader.run())
        sources = await start(world, "a", "b")
        heavy = sorted(world.containers["a"].running)[:2]
        for source in sources.values():
            source.heavy = dict.fromkeys(heavy, 400)

        async def follow() -> None:
            # A store works as much as its containers let it.
            while True:
                for host, source in sources.items():
                    running = world.containers[host].running
                    source.busy = sum(0.4 if number in heavy else 0.1 for number in running)
                await asyncio.sleep(0.5)

        following = asyncio.ensure_future(follow())
        await world.until(lambda _: all(set(heavy) & set(world.containers[each].running) for each in "ab"), 600.0)
        number = (await read_cluster(world.admin)).assignment.number
        await asyncio.sleep(1200.0)
        view = await read_cluster(world.admin)
        assert view.assignment.number == number
        assert [each.reason for each in view.assignment.why[-2:]] == [MoveReason.LOAD] * 2
        following.cancel()

    run(scenario)


def test_a_report_is_of_what_happened_since_the_one_before() -> None:
    """Counts of another incarnation of a container begin again."""
    before = StoreCounts(2.0, {0: ContainerCounts(1, 1000, 500, 10, 5), 1: ContainerCounts(1, 5000, 0, 70, 0)})
    after = StoreCounts(
        7.0, {0: ContainerCounts(1, 3000, 500, 30, 5, 9), 1: ContainerCounts(2, 100, 40, 90, 1), 2: ContainerCounts(4)}
    )
    load = load_node((100.0, before), 110.0, after, 0.0)
    assert load.busy == pytest.approx(0.5)
    first, second = load.containers[0], load.containers[1]
    assert (first.bytes_in, first.bytes_out, first.operations_in, first.operations_out) == (200.0, 0.0, 2.0, 0.0)
    assert first.log_bytes == 9
    assert (second.bytes_in, second.bytes_out, second.operations_in) == (10.0, 4.0, 0.0)
    assert sorted(load.containers) == [0, 1, 2]
    assert load_node(None, 110.0, after, 0.0).busy == 0.0
    assert decode_node(LoadNode, LOADS_PATH, encode_node(load)) == load


def test_settings_of_the_member_have_these_bounds() -> None:
    """A store cut off from its log is impaired and taken over within 30 s: see docs/cluster.md."""
    settings = MemberSettings()
    assert settings.impaired_after_s + 2 * settings.check_s + LeaderSettings().impaired_wait_s < 16.0
    assert settings.handover_wait_s <= 10.0

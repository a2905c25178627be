"""How streams that background cycles go over are shared out among the controllers that are alive.

Shows S-224 to S-226, S-228 and S-229, each where it is named.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.ownership.buckets import Buckets, bucket_of, java_hash, shared_out
from penstock.controller.ownership.coordinator import Members
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator, InProcessMembership
from penstock.controller.ownership.peers import Peers
from penstock.controller.service import ControllerService
from penstock.controller.settings import AutoScalingSettings, ControllerSettings
from penstock.model.errors import ContainerOfflineError
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(retry_delay_ms_first=1, retry_delay_ms_max=2)


def names(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [f"{number:016x}-{rng.randbytes(16).hex()}" for number in range(count)]


async def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"not so after 60 s: {what}")


@pytest.mark.parametrize(
    ("text", "code"),
    # Pravega's own seeds, which are hashes of names; and one of two halves outside of the basic plane.
    [
        ("SegmentToContainerMapper", 1661405012),
        ("KeyValueTableRouter", -2020233499),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
        ("", 0),
    ],
)
def test_names_have_the_hash_that_java_gives_them(text: str, code: int) -> None:
    """S-224: 32 bits, over UTF-16."""
    assert java_hash(text) == code % (1 << 32)


def test_a_stream_has_the_bucket_that_it_has_in_pravega() -> None:
    """S-224: the hash of the scoped name without its sign, modulo the number of buckets."""
    assert [bucket_of("a", "b", count) for count in (1, 7, 100)] == [94772 % count for count in (1, 7, 100)]
    negative = next(name for name in map(str, range(1000)) if java_hash(f"scope/{name}") >> 31)
    assert bucket_of("scope", negative, 100) == (java_hash(f"scope/{negative}") - (1 << 31)) % 100


@pytest.mark.parametrize("bucket_count", [1, 5, 100])
@pytest.mark.parametrize("seed", range(5))
def test_shares_differ_by_one_at_most_and_few_buckets_move(bucket_count: int, seed: int) -> None:
    """S-225, S-229: for each number of members, in any order of their names, when one comes and when it goes again."""
    members = names(9, seed)
    for count in range(1, 9):
        before = shared_out("kind", bucket_count, frozenset(members[:count]))
        after = shared_out("kind", bucket_count, frozenset(reversed(members[: count + 1])))
        assert sorted(after) == list(range(bucket_count))
        sizes = Counter(dict.fromkeys(members[: count + 1], 0))
        sizes.update(after.values())
        assert max(sizes.values()) - min(sizes.values()) <= 1
        moved = sum(before[bucket] != after[bucket] for bucket in after)
        # That one's share has to; twice that, and three of small shares, is what keeping them equal may cost.
        assert moved <= 2 * -(-bucket_count // (count + 1)) + 3
        assert shared_out("kind", bucket_count, frozenset(members[:count])) == before


def test_without_members_no_bucket_has_an_owner() -> None:
    """S-229: without members there are no owners; a controller that knows no members owns nothing."""
    assert shared_out("kind", 100, frozenset()) == {}
    buckets = Buckets("kind", 100, Peers())
    assert not buckets.owned("scope", "stream")
    assert buckets.shares() == {}
    assert buckets.own_name == ""


def test_kinds_with_one_bucket_do_not_all_fall_to_one_member() -> None:
    """Of forty kinds with a bucket each, among four members: the weights go by the kind too."""
    members = frozenset(names(4))
    owners = {shared_out(f"kind {number}", 1, members)[0] for number in range(40)}
    assert owners == members


async def test_who_is_taken_for_dead_owns_nothing_from_then_on() -> None:
    """Its watch need not have reported it: its membership has expired."""
    coordinator = InProcessCoordinator()
    peers = Peers()
    membership = await coordinator.join("a")
    peers.update(membership, (await membership.members()).names)
    buckets = Buckets("kind", 10, peers)
    assert buckets.owned("scope", "stream")
    coordinator.expire("a")
    assert not buckets.owned("scope", "stream")


def owners_of(services: list[ControllerService], count: int = 200) -> list[list[int]]:
    """Return who owns each of many streams."""
    return [
        [number for number, service in enumerate(services) if service.watermarking_buckets.owned("s", f"t{stream}")]
        for stream in range(count)
    ]


async def test_each_stream_has_one_owner_through_joins_and_leaves(cluster: InProcessCluster) -> None:
    """S-225, S-226: one has all; each further controller takes a part; buckets of one that leaves go to the rest."""
    services = [await cluster.start(SETTINGS)]
    assert owners_of(services) == [[0]] * 200
    for _ in range(2):
        services.append(await cluster.start(SETTINGS))
        await until(lambda: all(len(each) == 1 for each in owners_of(services)), "each stream has one owner")
        assert {each for (each,) in owners_of(services)} == set(range(len(services)))
    before = owners_of(services)
    await services[1].stop()
    await until(lambda: all(len(each) == 1 for each in owners_of(services)), "the two that are left have all")
    after = owners_of(services)
    assert {each for (each,) in after} == {0, 2}
    stayed = [old == new for old, new in zip(before, after, strict=True) if old != [1]]
    assert sum(stayed) > len(stayed) * 3 / 4


async def test_who_was_taken_for_dead_gets_a_share_under_its_new_name(cluster: InProcessCluster) -> None:
    """S-222 for buckets: while it is away the other one has all; afterwards each stream has one owner again."""
    services = [await cluster.start(SETTINGS) for _ in range(2)]
    await until(lambda: all(len(each) == 1 for each in owners_of(services)), "each stream has one owner")
    name = services[0].watermarking_buckets.own_name
    cluster.expire(services[0])
    assert not any(0 in each for each in owners_of(services))
    await until(lambda: services[0].watermarking_buckets.own_name not in ("", name), "it is a member again")
    await until(lambda: all(len(each) == 1 for each in owners_of(services)), "each stream has one owner again")
    assert {each for (each,) in owners_of(services)} == {0, 1}


async def test_a_coordinator_that_cannot_be_asked_leaves_the_buckets_where_they_are(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-228: members keep what they have; what changed meanwhile is seen when it is back."""
    services = [await cluster.start(SETTINGS) for _ in range(2)]
    await until(lambda: all(len(each) == 1 for each in owners_of(services)), "each stream has one owner")
    is_out = True
    changed = type(cluster.coordinator)._changed

    async def out(self: Any, asking: InProcessMembership, version: int) -> Members:
        found = await changed(self, asking, version)
        if is_out:
            raise ContainerOfflineError(0, "the coordinator is out")
        return found

    monkeypatch.setattr(type(cluster.coordinator), "_changed", out)
    # The waits that had begun before end with the first change; from the second one on nothing is heard.
    for name in ("x", "y"):
        await (await cluster.coordinator.join(name)).leave()
        for _ in range(20):
            await asyncio.sleep(0.001)
    before = owners_of(services)
    await services[1].stop()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert [0 in each for each in owners_of(services)] == [0 in each for each in before]
    is_out = False
    await until(lambda: all(0 in each for each in owners_of(services)), "the one that is left has heard of it")


class Advisor:
    """`ScaleAdvisor` to which the first segment of each of some streams is hot."""

    def __init__(self, streams: list[str]) -> None:
        self.names = [segment_name("scope", stream, 0) for stream in streams]

    async def scale_advice(self, container_id: int, segments: Any = None) -> list[ScaleAdvice]:
        return [ScaleAdvice(name, ScaleDirection.UP, 2) for name in self.names] if segments is None else []


async def test_of_two_controllers_each_scales_the_streams_that_fall_to_it(cluster: InProcessCluster) -> None:
    """Both inspect all loads; none of the streams is scaled by both, and each is by one."""
    streams = [f"stream-{number}" for number in range(12)]
    settings = ControllerSettings(auto_scaling=AutoScalingSettings(interval_s=1e9))
    services = []
    for _ in range(2):
        service = ControllerService(
            metadata=SegmentsMetadataStore(cluster.store, settings),
            segments=cluster.store,
            locator=SingleStoreLocator("127.0.0.1", 6000, 1),
            runtime=cluster.runtime(),
            settings=settings,
            advisor=Advisor(streams),
            coordinator=cluster.coordinator,
        )
        cluster.services.append(service)
        await service.start()
        services.append(service)
    first, second = services
    await until(lambda: len(first.retention_buckets.shares()) == 2, "the first one has heard of the second")
    await first.create_scope("scope")
    for stream in streams:
        await first.create_stream("scope", stream, StreamConfig(Scaling.by_event_rate(100)))
    scaled = []
    for service in services:
        await service._auto_scaler.poll()  # type: ignore[union-attr]
        await service.idle()
        scaled.append({name for name in streams if len(await service.current_segments("scope", name)) == 2})
    assert 0 < len(scaled[0]) < len(streams)
    assert scaled[1] == set(streams)
    for name in streams:
        assert len(await second.current_segments("scope", name)) == 2

"""Many callers at once, and callers without end: none is refused, none starves, nothing is left half done."""

from __future__ import annotations

import asyncio

import pytest

from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import ContainerOfflineError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.routing import container_of
from penstock_simulation.memory_segments import MemorySegments
from support.controller_faults import BlockedSegments
from support.in_process_cluster import InProcessCluster

COMMITTED = TransactionStatus.COMMITTED
FAST = ControllerSettings(retry_delay_ms_first=1, retry_delay_ms_max=2)


async def commit(service: ControllerService, stream: str, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.commit("scope", stream, transaction, writer_id="w", timestamp=0)


async def begin(service: ControllerService, stream: str = "stream") -> TransactionId:
    return (await service.transactions.create("scope", stream, 10_000)).id


async def commit_without_end(service: ControllerService, stream: str) -> None:
    while True:
        await commit(service, stream, await begin(service, stream))


@pytest.mark.parametrize("change", ["update", "truncate", "seal"])
async def test_commits_in_a_loop_do_not_starve_other_changes(service: ControllerService, change: str) -> None:
    """Clients commit one transaction after the other, for as long as it takes: a change of the stream is done."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    clients = [asyncio.create_task(commit_without_end(service, "stream")) for _ in range(16)]
    for _ in range(1000):
        await asyncio.sleep(0)
    calls = {
        "update": lambda: service.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("x",))),
        "truncate": lambda: service.truncate_stream("scope", "stream", {0: 0, 1: 0}),
        "seal": lambda: service.seal_stream("scope", "stream"),
    }
    changing = asyncio.create_task(calls[change]())
    # Turns of the loop and not seconds: a change takes some 50 of them when no other work conflicts with it.
    for _ in range(20_000):
        if changing.done():
            break
        await asyncio.sleep(0)
    is_done = changing.done()
    for task in [*clients, changing]:
        task.cancel()
    ends = await asyncio.gather(*clients, changing, return_exceptions=True)
    assert is_done, "the change was starved"
    assert ends[-1] is None


@pytest.mark.parametrize("count", [8, 200])
async def test_commits_at_once_are_all_accepted(service: ControllerService, count: int) -> None:
    """Clients that decide at the same moment all get their position in the commit order."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    made = [await begin(service) for _ in range(count)]
    decided = await asyncio.gather(*(commit(service, "stream", one) for one in made), return_exceptions=True)
    assert set(decided) <= {TransactionStatus.COMMITTING, COMMITTED}
    await service.idle()
    assert {await service.transactions.status("scope", "stream", one) for one in made} == {COMMITTED}


async def test_creations_with_one_tag_at_once_all_succeed(service: ControllerService) -> None:
    """200 streams with a tag in common are created at the same moment: none is refused, each is found by its tag."""
    names = [f"stream-{number}" for number in range(200)]
    results = await asyncio.gather(
        *(service.create_stream("scope", name, StreamConfig(tags=("common",))) for name in names),
        return_exceptions=True,
    )
    assert [result for result in results if result is not None] == []
    found: list[str]
    found, token = [], ""
    while (page := await service.list_streams_by_tag("scope", "common", token)).names:
        found += page.names
        token = page.token
    assert sorted(found) == sorted(names)
    for name in names:
        assert len(await service.current_segments("scope", name)) == 1


async def test_blocked_streams_do_not_stop_the_commits_and_lease_ends_of_others(cluster: InProcessCluster) -> None:
    """The segments of 70 streams cannot be reached while their commits and lease ends are due: others continue."""
    count = 70
    blocked = BlockedSegments(cluster.store, lambda segment: "/blocked-" in segment)
    service = cluster.build(ControllerSettings(lease_ms_min=1, lease_slack_ms=0, work_slot_s=0.01), segments=blocked)
    await service.start()
    await service.create_scope("scope")
    streams = ["free", *(f"blocked-{number}" for number in range(count))]
    for name in streams:
        await service.create_stream("scope", name, StreamConfig())
    committed = [await begin(service, name) for name in streams[1:]]
    expiring = [await begin(service, name) for name in streams[1:]]
    blocked.is_blocked = True
    for name, one in zip(streams[1:], committed, strict=True):
        await commit(service, name, one)
    for name, one in zip(streams[1:], expiring, strict=True):
        await service.transactions.abort("scope", name, one)
    await asyncio.sleep(0.01)
    last = await begin(service, "free")
    await cluster.store.append(transaction_segment_name(segment_name("scope", "free", 0), last.high, last.low), b"data")
    await commit(service, "free", last)
    short = (await service.transactions.create("scope", "free", 1)).id
    for transaction, wanted in ((last, COMMITTED), (short, TransactionStatus.ABORTED)):
        for _ in range(1000):
            if await service.transactions.status("scope", "free", transaction) is wanted:
                break
            await asyncio.sleep(0.005)
        else:
            raise AssertionError(f"{transaction} of the free stream is not {wanted.name}")
    blocked.release()
    await service.idle()
    for name, one in zip(streams[1:], committed, strict=True):
        assert await service.transactions.status("scope", name, one) is COMMITTED


async def test_requests_to_one_container_do_not_use_up_those_to_others() -> None:
    """More requests than the limit wait for a container that does not answer: another container's continue."""

    class Silent(MemorySegments):
        async def seal_segment(self, segment: str) -> None:
            if "/silent/" in segment:
                await asyncio.get_running_loop().create_future()
            await super().seal_segment(segment)

    silent: list[asyncio.Task[object]]
    store, silent = Silent(), []
    requests = SegmentRequests(store, ControllerSettings(segment_requests_max=4), container_count=4)
    number = 0
    while len(silent) < 10:
        name = segment_name("scope", "silent", number)
        number += 1
        if container_of(name, 4) == 0:
            silent.append(asyncio.create_task(requests.seal(name)))
    await asyncio.sleep(0)
    other = next(
        name for name in (segment_name("scope", "other", number) for number in range(100)) if container_of(name, 4) == 1
    )
    await store.create_segment(other)
    await asyncio.wait_for(requests.seal(other), 60)
    assert store.segments[other].is_sealed
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)


async def test_a_request_that_waits_for_its_next_attempt_holds_no_place() -> None:
    """One place for requests, taken by one that fails again and again: a second request gets its turn in between."""

    class Offline(MemorySegments):
        async def seal_segment(self, segment: str) -> None:
            if "offline" in segment:
                raise ContainerOfflineError(0)
            await super().seal_segment(segment)

    store = Offline()
    settings = ControllerSettings(segment_requests_max=1, retry_delay_ms_first=60_000, retry_delay_ms_max=60_000)
    requests = SegmentRequests(store, settings, container_count=1)
    first = asyncio.create_task(requests.seal("s/offline/0.#epoch.0"))
    await asyncio.sleep(0)
    await store.create_segment("s/online/0.#epoch.0")
    await asyncio.wait_for(requests.seal("s/online/0.#epoch.0"), 60)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

"""SS-259: a cut over several segments, taken while a transaction is committed, has all of it or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.controller.errors import HalfCreatedStreamError, WorkElsewhereError, WorkflowTimeoutError
from penstock.controller.grpc.call import Front
from penstock.controller.grpc.table import ADDITIONS
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import ControllerUnavailableError, NoSuchSegmentError, NoSuchStreamError, PenstockError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import SegmentInfo
from penstock.rpc import additions_pb2
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.additions_pb2_grpc import PenstockControllerServiceStub
from penstock_simulation.memory_segments import MemorySegments
from support.controller_faults import BlockedSegments
from support.failing_segments import OneByOne
from support.in_process_cluster import InProcessCluster

if TYPE_CHECKING:
    from controller.conftest import Wire

SETTINGS = ControllerSettings(
    attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2, peer_poll_ms=1, damaged_retry_delay_ms=1
)
#: Bytes that each transaction has in each of two segments: of what a cut has before it, each has the same number.
PIECE = b"ten bytes."


async def begin(cluster: InProcessCluster, service: ControllerService, stream: str = "stream") -> TransactionId:
    """Begin a transaction with one piece in each of two segments."""
    made = (await service.transactions.create("scope", stream, 10_000)).id
    for number in (0, 1):
        name = transaction_segment_name(segment_name("scope", stream, number), made.high, made.low)
        await cluster.store.append(name, PIECE)
    return made


async def commit(service: ControllerService, made: TransactionId, stream: str = "stream") -> TransactionStatus:
    return await service.transactions.commit("scope", stream, made, writer_id="w", timestamp=-1)


async def start(
    cluster: InProcessCluster, segments: OneByOne | None = None, settings: ControllerSettings = SETTINGS
) -> ControllerService:
    service = cluster.build(settings, segments=segments)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    return service


def lengths(cluster: InProcessCluster) -> list[int]:
    return [len(cluster.store.segments[segment_name("scope", "stream", number)].data) for number in (0, 1)]


async def until_half(cluster: InProcessCluster) -> None:
    for _ in range(10_000):
        if lengths(cluster) == [10, 0]:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"no half of a transaction is there: {lengths(cluster)}")


async def test_a_tail_between_two_merges_waits_for_the_second(cluster: InProcessCluster) -> None:
    blocked = BlockedSegments(cluster.store, lambda name: name == "scope/stream/1.#epoch.0", call_name="merge_segments")
    service = await start(cluster, blocked)
    made = await begin(cluster, service)
    blocked.is_blocked = True
    committing = asyncio.create_task(commit(service, made))
    await until_half(cluster)
    asked = asyncio.create_task(service.transactional_tails.of("scope", "stream"))
    done, _ = await asyncio.wait([asked], timeout=0.05)
    assert not done
    blocked.release()
    assert await asked == {0: 10, 1: 10}
    await committing


async def test_a_tail_at_one_controller_waits_for_a_commit_of_another(cluster: InProcessCluster) -> None:
    blocked = BlockedSegments(cluster.store, lambda name: name == "scope/stream/1.#epoch.0", call_name="merge_segments")
    first = await start(cluster, blocked)
    second = await cluster.start(SETTINGS)
    made = await begin(cluster, first)
    blocked.is_blocked = True
    committing = asyncio.create_task(commit(first, made))
    await until_half(cluster)
    asked = asyncio.create_task(second.transactional_tails.of("scope", "stream"))
    done, _ = await asyncio.wait([asked], timeout=0.05)
    assert not done
    blocked.release()
    assert await asked == {0: 10, 1: 10}
    await committing


class Between(OneByOne):
    """Lets something happen between the check of the first of several segments and that at the others."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.meanwhile = None
        self.read_count = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return getattr(self.store, name)

    async def segment_infos(self, segments: Sequence[str]) -> list[SegmentInfo | PenstockError]:
        self.read_count += 1
        first = await self.store.segment_infos(segments[:1])
        if self.meanwhile is not None:
            await self.meanwhile()
        return [*first, *await self.store.segment_infos(segments[1:])]


async def test_a_commit_between_the_reads_of_two_segments_is_noticed(cluster: InProcessCluster) -> None:
    """Begun and ended in between: neither before nor afterwards anything is on record of it, but another version."""
    between = Between(cluster.store)
    service = await start(cluster, between)
    await cluster.store.append(segment_name("scope", "stream", 0), b"before")
    made = await begin(cluster, service)

    async def commits() -> None:
        between.meanwhile = None
        assert await commit(service, made) in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)
        await service.idle()

    between.meanwhile = commits
    assert await service.transactional_tails.of("scope", "stream") == {0: 16, 1: 10}
    assert between.read_count == 2


async def test_an_idle_tail_is_read_once(cluster: InProcessCluster) -> None:
    between = Between(cluster.store)
    service = await start(cluster, between)
    assert await service.transactional_tails.of("scope", "stream") == {0: 0, 1: 0}
    assert between.read_count == 1


@pytest.mark.parametrize("committer_count", [1, 2])
async def test_a_tail_has_its_turn_among_commits_without_end(cluster: InProcessCluster, committer_count: int) -> None:
    """At its own controller and at another one; each has as much of one segment as of the other."""
    services = [await start(cluster), await cluster.start(SETTINGS)]
    is_over = False

    async def committer(service: ControllerService) -> None:
        while not is_over:
            await commit(service, await begin(cluster, service))

    tasks = [asyncio.create_task(committer(services[number % committer_count])) for number in range(4)]
    found = []
    async with asyncio.timeout(60):
        for number in range(20):
            cut = await services[number % 2].transactional_tails.of("scope", "stream")
            assert cut[0] == cut[1]
            found.append(cut[0])
            await asyncio.sleep(0.001)
    is_over = True
    await asyncio.gather(*tasks)
    assert found == sorted(found)
    assert found[-1] > found[0]


async def test_a_tail_under_constant_commits_asks_the_client_to_retry(cluster: InProcessCluster) -> None:
    """Another controller, which this one cannot hold up, merges during each attempt: no cut rather than a wrong one."""
    between = Between(cluster.store)
    service = await start(cluster, between, ControllerSettings(peer_poll_ms=1, workflow_timeout_s=0.2))
    other = await cluster.start(SETTINGS)

    async def commits() -> None:
        # Not through the queues of the first: it may hold its lock.
        await commit(other, await begin(cluster, other))
        await other.idle()

    between.meanwhile = commits
    with pytest.raises((WorkElsewhereError, WorkflowTimeoutError), match="scope/stream"):
        await service.transactional_tails.of("scope", "stream")
    between.meanwhile = None
    cut = await service.transactional_tails.of("scope", "stream")
    assert cut[0] == cut[1] > 0


async def test_the_tail_of_a_scaled_and_a_sealed_stream(cluster: InProcessCluster) -> None:
    service = await start(cluster)
    for number in (0, 1):
        await cluster.store.append(segment_name("scope", "stream", number), b"1234")
    half = 0.5
    await service.scale_stream("scope", "stream", [0], [(0.0, half / 2), (half / 2, half)])
    await service.idle()
    found = await service.transactional_tails.of("scope", "stream")
    assert sorted(found.values()) == [0, 0, 4]
    await service.seal_stream("scope", "stream")
    assert await service.transactional_tails.of("scope", "stream") == found
    await service.delete_stream("scope", "stream")
    with pytest.raises(NoSuchStreamError):
        await service.transactional_tails.of("scope", "stream")


async def test_a_tail_ignores_a_segment_that_was_scaled_away_and_truncated(cluster: InProcessCluster) -> None:
    between = Between(cluster.store)
    service = await start(cluster, between)

    async def goes() -> None:
        between.meanwhile = None
        half = 0.5
        await service.scale_stream("scope", "stream", [1], [(half, half * 1.5), (half * 1.5, 1.0)])
        await service.idle()
        (_, second, third) = [segment.id for segment in await service.queries.current_segments("scope", "stream")]
        await service.truncate_stream("scope", "stream", {0: 0, second: 0, third: 0})
        await service.idle()
        assert segment_name("scope", "stream", 1) not in cluster.store.segments

    between.meanwhile = goes
    found = await service.transactional_tails.of("scope", "stream")
    assert len(found) == 3
    assert 1 not in found


async def test_a_missing_segment_is_reported(cluster: InProcessCluster) -> None:
    service = await start(cluster)
    del cluster.store.segments[segment_name("scope", "stream", 1)]
    with pytest.raises(NoSuchSegmentError):
        await service.transactional_tails.of("scope", "stream")


async def test_a_stream_that_is_being_made_has_no_tail_yet(cluster: InProcessCluster) -> None:
    blocked = BlockedSegments(cluster.store, lambda name: name.startswith("scope/stream/"))
    blocked.is_blocked = True
    service = cluster.build(SETTINGS, segments=blocked)
    await service.start()
    await service.create_scope("scope")
    making = asyncio.create_task(service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2))))
    refused = None
    for _ in range(1000):
        try:
            await service.transactional_tails.of("scope", "stream")
        except NoSuchStreamError:
            await asyncio.sleep(0)
        except HalfCreatedStreamError as error:
            refused = error
            break
    assert refused is not None
    blocked.release()
    await making
    assert await service.transactional_tails.of("scope", "stream") == {0: 0, 1: 0}


async def test_the_call_on_the_wire(wire: Wire) -> None:
    ours, info = PenstockControllerServiceStub(wire.channel), pb.StreamInfo(scope="scope", stream="stream")
    await wire.service.create_scope("scope")
    await wire.service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    await wire.cluster.store.append(segment_name("scope", "stream", 1), b"12345")
    request = additions_pb2.WholeTailRequest(streamInfo=info)
    assert await ours.findWholeTail(request) == additions_pb2.WholeTail(cut={0: 0, 1: 5})
    info.stream = "none"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ours.findWholeTail(additions_pb2.WholeTailRequest(streamInfo=info))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_no_moment_free_is_no_final_answer_on_the_wire() -> None:
    """FAILED_PRECONDITION would be final; the client must retry."""

    class Contended:
        async def of(self, scope: str, stream: str) -> None:
            raise WorkElsewhereError("transactions are being merged")

    service = Contended()
    service.transactional_tails = service
    (row,) = (call for call in ADDITIONS if call.name == "findWholeTail")
    request = additions_pb2.WholeTailRequest(streamInfo=pb.StreamInfo(scope="s", stream="t"))
    with pytest.raises(ControllerUnavailableError):
        await row.serve(Front(service, list), request)

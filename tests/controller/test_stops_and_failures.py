"""Stops and failures while much is under way: nothing that was begun is lost, nothing is done again, order is kept.

What Pravega's event processors promise by queues, positions in them and checkpoints, Penstock promises by work that is
announced. Shows S-198, S-199 and S-212, each where it is named.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.controller.metadata.records import StreamState, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.model.errors import ContainerOfflineError, ControllerUnavailableError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.in_process_cluster import InProcessCluster
from support.two_controllers import SETTINGS, announced, start_pair, tables_of, until


@pytest.fixture
async def pair(
    cluster: InProcessCluster,
) -> AsyncIterator[tuple[ControllerService, ControllerService, BlockedSegments]]:
    """Two controllers that are alive, the first over a store that a test can hold up; and a stream of two segments."""
    first, second, held = await start_pair(cluster)
    yield first, second, held
    held.release()


async def begin(cluster: InProcessCluster, service: ControllerService, stream: str, data: bytes) -> TransactionId:
    """Begin a transaction with `data` in the first segment of a stream."""
    transaction = (await service.transactions.create("scope", stream, 30_000)).id
    name = transaction_segment_name(segment_name("scope", stream, 0), transaction.high, transaction.low)
    await cluster.store.append(name, data)
    return transaction


async def test_a_stop_fails_calls_and_keeps_begun_and_decided_work(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """S-198: one change is under way, others and a commit wait for it. The other controller resumes the recorded work.

    The calls fail because of the stop. Changes that only waited are not done.
    """
    first, second, held = pair
    transaction = await begin(cluster, first, "stream", b"decided")
    held.is_blocked, held.call_name = True, "truncate_segment"
    calls = [asyncio.create_task(first.truncate_stream("scope", "stream", {0: 10, 1: 10}))]
    await until(lambda: announced(cluster), "the truncation is announced")
    status = await first.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=1)
    assert status is TransactionStatus.COMMITTING
    calls.append(asyncio.create_task(first.update_stream("scope", "stream", StreamConfig(tags=("waits",)))))
    calls.append(asyncio.create_task(first.seal_stream("scope", "stream")))
    for _ in range(20):
        await asyncio.sleep(0)
    await first.stop()
    for call in calls:
        with pytest.raises(ControllerUnavailableError):
            await call
    with pytest.raises(ControllerUnavailableError):
        await first.seal_stream("scope", "stream")
    await until(lambda: not announced(cluster) and second.statistics().taken_over_count, "the change is taken over")
    await second.idle()
    assert [at.offset for at in await second.head("scope", "stream")] == [10, 10]
    assert await second.transactions.status("scope", "stream", transaction) is TransactionStatus.COMMITTED
    assert bytes(cluster.store.segments[segment_name("scope", "stream", 0)].data).endswith(b"\0decided")
    assert (await second.stream_configuration("scope", "stream")).tags == ()
    assert (await (await tables_of(second)).state()).record.state is StreamState.ACTIVE
    assert announced(cluster) == []


async def test_work_that_ended_out_of_order_is_not_repeated(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-199: of three begun in order the second one has ended; the other controller does only the remaining two."""
    first, second, held = pair
    for stream in "abc":
        await first.create_stream("scope", stream, StreamConfig())
    sealed = []
    seal = cluster.store.seal_segment

    async def seal_segment(segment: str) -> None:
        sealed.append(segment)
        await seal(segment)

    monkeypatch.setattr(cluster.store, "seal_segment", seal_segment)
    held.is_of_blocked = lambda segment: segment.startswith(("scope/a/", "scope/c/"))
    held.is_blocked, held.call_name = True, "seal_segment"
    calls = []
    for stream in "abc":
        calls.append(asyncio.create_task(first.seal_stream("scope", stream)))
        await asyncio.sleep(0)
    await calls[1]
    await until(lambda: announced(cluster) == ["stream/scope/a", "stream/scope/c"], "the others are under way")
    await first.stop()
    await asyncio.gather(*calls, return_exceptions=True)
    await until(lambda: not announced(cluster), "they are done")
    await second.idle()
    assert second.statistics().taken_over_count == 2
    assert sorted(sealed) == [segment_name("scope", stream, 0) for stream in "abc"]
    for stream in "abc":
        assert (await (await tables_of(second, stream)).state()).record.state is StreamState.SEALED


async def tagged(service: ControllerService, tag: str) -> list[str]:
    """Return the streams that carry a tag, from all pages."""
    found: list[str]
    found, page = [], await service.list_streams_by_tag("scope", tag, "")
    while page.names:
        found += page.names
        page = await service.list_streams_by_tag("scope", tag, page.token)
    return sorted(found)


async def test_requests_that_fail_again_and_again_leave_the_order_of_each_stream(cluster: InProcessCluster) -> None:
    """S-212: changes and commits of four streams at once; of the requests to segments many fail, at any place."""
    segments = ScriptedSegments(cluster.store)
    service = cluster.build(SETTINGS, segments=segments)
    await service.start()
    await service.create_scope("scope")
    for stream in "abcd":
        await service.create_stream("scope", stream, StreamConfig(Scaling.by_event_rate(1)))
    rng, failures = random.Random(5), []

    def rule(name: str, arguments: tuple[Any, ...]) -> ContainerOfflineError | None:
        if name in ("merge_segments", "update_policy") and rng.random() < 0.6:
            failures.append(name)
            return ContainerOfflineError(0)
        return None

    segments.rule = rule

    async def use(stream: str) -> None:
        for number in range(8):
            transaction = await begin(cluster, service, stream, f"{number}.".encode())
            await service.transactions.commit("scope", stream, transaction, writer_id="w", timestamp=number)
            config = StreamConfig(Scaling.by_event_rate(number + 2), tags=(str(number),))
            while await service.stream_configuration("scope", stream) != config:
                try:
                    await service.update_stream("scope", stream, config)
                except ContainerOfflineError:
                    continue  # It, or what was begun before it, continues in the background.

    async with asyncio.timeout(60):
        await asyncio.gather(*(use(stream) for stream in "abcd"))
        await service.idle()
    assert {*failures} == {"merge_segments", "update_policy"}
    assert service.statistics().failed_attempt_count > 0
    for stream in "abcd":
        segment = cluster.store.segments[segment_name("scope", stream, 0)]
        assert bytes(segment.data).decode() == "0.1.2.3.4.5.6.7."
        assert segment.target_rate == 9
        assert (await (await tables_of(service, stream)).state()).record.state is StreamState.ACTIVE
    assert await tagged(service, "7") == ["a", "b", "c", "d"]
    assert await tagged(service, "6") == []
    assert announced(cluster) == []

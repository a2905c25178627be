"""Truncations: what they count, and how they stand to others: one after the other, done again, stalled, too late.

Shows S-103 and S-106 to S-109, each where it is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller.errors import WorkElsewhereError, WorkflowTimeoutError
from penstock.controller.metadata.pending_work import PendingWork, TruncateStream
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import StreamState, TruncationRecord
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.service import ControllerService
from penstock.model.errors import PenstockError, StreamSealedError
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableRemoval, TableUpdate
from penstock_simulation.memory_segments import MemorySegments
from support.controller_faults import BlockedSegments
from support.failing_segments import WRITES, OneByOne
from support.in_process_cluster import InProcessCluster
from support.two_controllers import SETTINGS, STREAM, announced, start_pair, tables_of, until

CUT = {0: 10, 1: 10}
HALVES = [(0.0, 0.5), (0.5, 1.0)]


@pytest.fixture
async def pair(
    cluster: InProcessCluster,
) -> AsyncIterator[tuple[ControllerService, ControllerService, BlockedSegments]]:
    """Two controllers that are alive, the first over a store that a test can hold up; and a stream of two segments."""
    first, second, held = await start_pair(cluster)
    yield first, second, held
    held.release()


async def rows(service: ControllerService) -> tuple[Versioned[Any], Versioned[Any], Versioned[Any]]:
    """Return what is on record of the stream that a change of it writes, with the versions."""
    tables = await tables_of(service)
    return await tables.state(), await tables.truncation(), await tables.configuration()


def noted(store: MemorySegments, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note what the store is asked to truncate or delete: the segment, and the offset, -1 for a deletion."""
    found = []
    truncate, delete = store.truncate_segment, store.delete_segment

    async def truncate_segment(segment: str, offset: int) -> None:
        found.append((segment, offset))
        await truncate(segment, offset)

    async def delete_segment(segment: str) -> None:
        found.append((segment, -1))
        await delete(segment)

    monkeypatch.setattr(store, "truncate_segment", truncate_segment)
    monkeypatch.setattr(store, "delete_segment", delete_segment)
    return found


async def _truncate(service: ControllerService) -> None:
    await service.truncate_stream("scope", "stream", CUT)


async def _update(service: ControllerService) -> None:
    await service.update_stream("scope", "stream", StreamConfig(Scaling.by_event_rate(9, min_segments=2)))


async def _scale(service: ControllerService) -> None:
    await service.scale_stream("scope", "stream", [0, 1], [(0.0, 0.25), (0.25, 1.0)])


async def _commit(service: ControllerService) -> None:
    transaction = (await service.transactions.create("scope", "stream", 30_000)).id
    await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=1)


async def test_sizes_till_cuts_count_all_that_a_stream_has_held(
    cluster: InProcessCluster, service: ControllerService
) -> None:
    """S-103: in one epoch; over sealed segments; from the cut before, or from the start. What was deleted counts."""
    for stream in ("steps", "once"):
        await service.create_stream("scope", stream, StreamConfig(Scaling.fixed(2)))
        for number in (0, 1):
            await cluster.store.append(segment_name("scope", stream, number), bytes(40))

    async def split(stream: str) -> list[int]:
        begun = await service.scale_stream("scope", stream, [1], [(0.5, 0.75), (0.75, 1.0)])
        await service.idle()
        for segment in begun.created:
            await cluster.store.append(segment_name("scope", stream, segment.id), bytes(30))
        return [segment.id for segment in begun.created]

    async def size_till(stream: str, cut: dict[int, int]) -> int:
        await service.truncate_stream("scope", stream, cut)
        return (await (await tables_of(service, stream)).truncation()).record.size_till_bytes

    assert await size_till("steps", {0: 10, 1: 10}) == 20
    low, high = await split("steps")
    assert await size_till("steps", {0: 40, low: 0, high: 10}) == 90
    assert segment_name("scope", "steps", 1) not in cluster.store.segments
    assert await size_till("steps", {0: 40, low: 10, high: 10}) == 100
    assert await split("once") == [low, high]
    assert await size_till("once", {0: 40, low: 10, high: 10}) == 100


async def test_a_truncation_waits_for_the_one_before_it_and_has_an_end(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-106, S-196: at either controller, a request during a truncation waits until that has ended, and is done then.

    A request with a short time limit is refused, and none of it is done afterwards.
    """
    first, second, held = pair
    truncated = noted(cluster.store, monkeypatch)
    held.is_blocked, held.call_name = True, "truncate_segment"
    changing = asyncio.create_task(_truncate(first))
    await until(lambda: announced(cluster), "the first truncation is announced")
    impatient = await cluster.start(replace(SETTINGS, workflow_timeout_s=0.05))
    with pytest.raises((WorkElsewhereError, WorkflowTimeoutError)):
        await impatient.truncate_stream("scope", "stream", {0: 15, 1: 15})
    await impatient.idle()
    waiting = [
        asyncio.create_task(service.truncate_stream("scope", "stream", {0: 20, 1: 20})) for service in (first, second)
    ]
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not any(task.done() for task in (changing, *waiting))
    record = (await (await tables_of(second)).truncation()).record
    assert (record.stream_cut, record.is_updating) == (CUT, True)
    assert truncated == []
    held.release()
    await asyncio.gather(changing, *waiting)
    record = (await (await tables_of(second)).truncation()).record
    assert (record.stream_cut, record.is_updating, record.size_till_bytes) == ({0: 20, 1: 20}, False, 40)
    assert {offset for _, offset in truncated} == {10, 20}
    assert announced(cluster) == []


@pytest.mark.parametrize(
    ("change", "held_call", "state"),
    [
        (_commit, "merge_segments", StreamState.COMMITTING_TXN),
        (_update, "update_policy", StreamState.UPDATING),
        (_scale, "create_segment", StreamState.SCALING),
    ],
    ids=["commit", "update", "scale"],
)
async def test_a_truncation_that_finds_its_stream_in_another_state_waits(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    change: Callable[..., Awaitable[Any]],
    held_call: str,
    state: StreamState,
) -> None:
    """S-107: nothing of it is done while other work has the stream's state; then it is done."""
    first, second, held = pair
    held.is_blocked, held.call_name = True, held_call
    changing = asyncio.create_task(change(first))  # type: ignore[arg-type]
    tables = await tables_of(second)
    for _ in range(5000):
        if (await tables.state()).record.state is state:
            break
        await asyncio.sleep(0.001)
    truncating = asyncio.create_task(_truncate(second))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not truncating.done()
    assert (await tables.state()).record.state is state
    assert (await tables.truncation()).record == TruncationRecord()
    held.release()
    await asyncio.gather(changing, truncating)
    await first.idle()
    await second.idle()
    record = (await tables.truncation()).record
    assert (record.stream_cut, record.is_updating) == (CUT, False)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert announced(cluster) == []


@pytest.mark.parametrize("is_followed", [False, True], ids=["the last one", "followed by another"])
async def test_a_truncation_that_comes_again_after_its_end_changes_nothing(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    is_followed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-107: what was announced is found again, as of a controller that is gone, when it was done long ago."""
    first, second, _ = pair
    await _truncate(first)
    if is_followed:
        await second.truncate_stream("scope", "stream", {0: 20, 1: 20})
    before = await rows(second)
    asked = noted(cluster.store, monkeypatch)
    await first._context.begin(STREAM, TruncateStream(CUT), await first._catalog.stream_id("scope", "stream"))  # type: ignore[arg-type]
    await first.stop()
    await until(lambda: not announced(cluster), "the other one has inspected it")
    await second.idle()
    assert second.statistics().taken_over_count == 1
    assert await rows(second) == before
    assert asked == []


class Stalling(OneByOne):
    """Passes calls on to a store; is paused before write number `at`, counted from when that is set."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.at = self.count = 0
        self.is_still, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self.store, name)

        async def forward(*arguments: str | list[bytes | TableUpdate | TableRemoval], **options: int | bytes) -> Any:
            if self.at and name in WRITES:
                self.count += 1
                if self.count == self.at:
                    self.is_still.set()
                    await self.go_on.wait()
            return await call(*arguments, **options)

        return forward


async def _stalled_at(cluster: InProcessCluster, at: int) -> Any:
    """Truncate a stream by a controller that stalls at its write `at`, is overtaken, and resumes.

    Return the end of its call, the records at that time, and the stream's cut; None if there are not so many writes.
    """
    stalling = Stalling(cluster.store)
    first = cluster.build(SETTINGS, segments=stalling)  # type: ignore[arg-type]
    await first.start()
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    for number in (0, 1):
        await cluster.store.append(segment_name("scope", "stream", number), bytes(100))
    low, high = (await first.scale_stream("scope", "stream", [0], [(0.0, 0.25), (0.25, 0.5)])).created
    await first.idle()
    await cluster.store.append(segment_name("scope", "stream", high.id), bytes(100))
    second = await cluster.start(SETTINGS)
    await second.idle()
    cut = {1: 10, low.id: 0, high.id: 5}
    stalling.at = at
    call = asyncio.create_task(first.truncate_stream("scope", "stream", cut))
    still = asyncio.create_task(stalling.is_still.wait())
    await asyncio.wait([call, still], return_when=asyncio.FIRST_COMPLETED)
    if not stalling.is_still.is_set():
        still.cancel()
        await call
        return None
    cluster.expire(first)
    await until(lambda: not announced(cluster), "what was announced is done by the other one")
    await second.idle()
    stalling.go_on.set()
    (end,) = await asyncio.gather(call, return_exceptions=True)
    await first.idle()
    await until(lambda: not announced(cluster), "nothing is left")
    await second.idle()
    return end, await rows(second), cut


async def test_a_truncation_run_by_two_controllers_is_done_once(fresh: Callable[[], InProcessCluster]) -> None:
    """S-108: the first one stalls at each of its writes in turn, expires, and resumes after the other."""
    at = 0
    while True:
        at += 1
        cluster = fresh()
        found = await _stalled_at(cluster, at)
        if found is None:
            break
        end, (state, truncation, _), cut = found
        assert end is None or isinstance(end, PenstockError)
        assert state.record.state is StreamState.ACTIVE
        if truncation.record == TruncationRecord():
            # It was not announced yet, and never came to it.
            assert at == 1
            assert end is not None
            continue
        record = truncation.record
        assert (record.stream_cut, record.is_updating, record.size_till_bytes) == (cut, False, 100 + 10 + 5), at
        low, high = sorted(cut)[1:]
        offsets = {
            name: segment.start_offset
            for name, segment in cluster.store.segments.items()
            if name.startswith("scope/stream/")
        }
        assert offsets == {segment_name("scope", "stream", number): cut[number] for number in (1, low, high)}
    assert at > 7


@pytest.mark.parametrize("change", [_truncate, _update, _scale], ids=["truncate", "update", "scale"])
async def test_a_change_of_a_stream_that_was_sealed_right_before_it_is_refused(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    change: Callable[..., Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-109 for a truncation: the stream is sealed between the check of its state and the announcement.

    The change was announced nevertheless, failed again and again, and the stream could never be deleted.
    """
    first, second, _ = pair
    reached, go_on = asyncio.Event(), asyncio.Event()
    announce = first._context.claims.announce

    async def announce_late(work: PendingWork, **options: bool) -> WorkClaim:
        reached.set()
        await go_on.wait()
        return await announce(work, **options)

    monkeypatch.setattr(first._context.claims, "announce", announce_late)
    changing = asyncio.create_task(change(first))  # type: ignore[arg-type]
    await reached.wait()
    await second.seal_stream("scope", "stream")
    before = await rows(second)
    go_on.set()
    with pytest.raises(StreamSealedError):
        await changing
    await until(lambda: not announced(cluster), "nothing of it is left")
    await first.idle()
    assert await rows(second) == before
    assert (await (await tables_of(second)).transition()).record.is_empty
    with pytest.raises(StreamSealedError):
        await _truncate(first)
    await first.delete_stream("scope", "stream")
    assert not [name for name in cluster.store.segments if name.startswith("scope/stream/")]


async def test_a_truncation_waits_for_five_writes_one_after_another(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """WorkClaim; record and state; segments; record and state; withdrawal: what a caller feels is logs."""
    _, service, _ = pair
    await service.truncate_stream("scope", "stream", {0: 1, 1: 1})
    steps: list[str] = []
    for name in ("table_put", "table_remove", "truncate_segments", "delete_segments"):
        call = getattr(cluster.store, name)

        async def noting(
            *arguments: str | list[Any], name: str = name, call: Callable[..., Awaitable[Any]] = call, **named: object
        ) -> Any:
            if steps[-1:] != [name] or name.startswith("table"):
                steps.append(name)
            return await call(*arguments, **named)

        monkeypatch.setattr(cluster.store, name, noting)
    await service.truncate_stream("scope", "stream", CUT)
    assert steps == ["table_put", "table_put", "truncate_segments", "table_put", "table_remove"]

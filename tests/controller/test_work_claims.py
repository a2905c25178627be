"""The announcement of a piece of work is its lock and its fence: what late duplicates, zombies and outages find there.

Each case runs the controller over a segment store that duplicates, loses or refuses what a test names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.records import StreamState, TransactionStatus
from penstock.controller.metadata.scope_records import GroupCut, ReaderGroupConfig
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.store import Removal, Write
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ContainerOfflineError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableRemoval, TableUpdate
from support.controller_faults import ScriptedSegments
from support.in_process_cluster import InProcessCluster

#: Few attempts close together, so that an outage outlasts them at once.
IMPATIENT = ControllerSettings(attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2)


@pytest.fixture
def segments(cluster: InProcessCluster) -> ScriptedSegments:
    """A store that does what a test tells it to."""
    return ScriptedSegments(cluster.store)


@pytest.fixture
async def started(cluster: InProcessCluster, segments: ScriptedSegments) -> ControllerService:
    """A controller over `segments` with a stream of two segments, 100 bytes in each."""
    service = cluster.build(IMPATIENT, segments=segments)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    for number in (0, 1):
        await cluster.store.append(segment_name("scope", "stream", number), bytes(100))
    return service


async def state_of(service: ControllerService, stream: str = "stream") -> StreamState:
    tables = await service._catalog.on_stream("scope", stream, _itself)
    return (await tables.state()).record.state


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


def announced(cluster: InProcessCluster) -> list[str]:
    """Return the keys of what has an announcement."""
    return [key.decode() for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]


def writes_of(segments: ScriptedSegments, name: str, table: str) -> list[int]:
    """Return the numbers of the writes of a kind to tables whose name contains `table`."""
    return [at for at, (call, arguments, _) in enumerate(segments.writes) if call == name and table in arguments[0]]  # type: ignore[operator]


def is_on(table: str, name: str = "table_put") -> Any:
    return lambda call, arguments: call == name and table in arguments[0]


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(60_000):
        if await condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"not so after 60 s: {what}")


# Late duplicates.


async def test_late_duplicate_of_a_removal_leaves_the_next_announcement_alone(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """A truncation ends and withdraws; the request is delivered again while the next truncation is under way.

    Before, this removed the next one's announcement: its controller died, and the stream stayed in TRUNCATING.
    """
    await started.truncate_stream("scope", "stream", {0: 10, 1: 10})
    (*_, removal) = writes_of(segments, "table_remove", "pendingWork")

    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "truncate_segment" else None
    with pytest.raises(ContainerOfflineError):
        await started.truncate_stream("scope", "stream", {0: 20, 1: 20})
    await started.stop()
    await segments.repeat(removal)
    assert announced(cluster) == ["stream/scope/stream"]
    second = await cluster.start(IMPATIENT)
    await second.idle()
    assert await state_of(second) is StreamState.ACTIVE
    assert [at.offset for at in await second.head("scope", "stream")] == [20, 20]
    assert announced(cluster) == []


@pytest.mark.parametrize("kind", ["table_put", "table_remove"])
async def test_late_duplicates_of_all_writes_change_nothing(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService, kind: str
) -> None:
    """A stream lives, dies and lives again; then each write of its lives to the controller's tables comes again.

    Its configuration, its beginning, its listing and its tags stay as they were, and no work is announced.
    """
    await started.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("old",)))
    await started.truncate_stream("scope", "stream", {0: 10, 1: 10})
    await started.seal_stream("scope", "stream")
    await started.delete_stream("scope", "stream")
    config = StreamConfig(Scaling.fixed(1), tags=("new",))
    await started.create_stream("scope", "stream", config)
    await started.update_stream("scope", "stream", config)
    await started.reader_groups.create("scope", "group", ReaderGroupConfig((GroupCut("scope", "stream"),)))
    await started.reader_groups.delete("scope", "group")
    await started.reader_groups.create("scope", "group", ReaderGroupConfig((GroupCut("scope", "stream"),)))
    for number in range(len(segments.writes)):
        if segments.writes[number][0] == kind:
            await segments.repeat(number)
    assert announced(cluster) == []
    second = await cluster.start(IMPATIENT)
    await second.idle()
    assert await second.scope_exists("scope")
    assert await second.stream_configuration("scope", "stream") == config
    assert [at.id for at in await second.current_segments("scope", "stream")] == [2]
    assert (await second.list_streams_by_tag("scope", "new", "")).names == ("stream",)
    assert (await second.list_streams_by_tag("scope", "old", "")).names == ()
    assert await second.reader_groups.get("scope", "group") is not None


async def test_announcement_that_arrives_late_does_not_begin_its_work_again(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """The request to announce an update is lost, and delivered after another update has come and gone."""
    held: list[tuple[str, list[TableUpdate]]] = []

    async def table_put(segment: str, updates: list[TableUpdate]) -> Sequence[int]:
        if segment == layout.PENDING_WORK and not held:
            held.append((segment, updates))
            raise OutcomeUnknownError("the request is stuck somewhere")
        return await type(cluster.store).table_put(cluster.store, segment, updates)

    cluster.store.table_put = table_put  # type: ignore[assignment, method-assign]
    await started.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("first",)))
    await started.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("second",)))
    del cluster.store.table_put
    with pytest.raises(PenstockError):
        await cluster.store.table_put(*held[0])
    await started.stop()
    second = await cluster.start(IMPATIENT)
    await second.idle()
    assert (await second.stream_configuration("scope", "stream")).tags == ("second",)


async def test_stream_left_in_a_state_without_an_announcement_is_brought_back(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """However it came about that nothing announces the work in progress: the next change finishes it."""
    for state, call in (
        (StreamState.TRUNCATING, lambda: started.truncate_stream("scope", "stream", {0: 30, 1: 30})),
        (StreamState.UPDATING, lambda: started.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))),
    ):
        tables = await started._catalog.on_stream("scope", "stream", _itself)
        await tables.set_state(state)
        await call()
        assert await state_of(started) is StreamState.ACTIVE


# Two controllers.


async def test_controller_that_was_overtaken_does_no_harm(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """A controller stalls during a truncation; a second one finishes it, and begins another one.

    When the first one resumes, it neither ends the second's work nor withdraws its announcement.
    """
    at_segments, go_on, of_second = asyncio.Event(), asyncio.Event(), asyncio.Event()
    truncate = segments.truncate_segment

    class Slow(ScriptedSegments):
        async def truncate_segment(self, segment: str, offset: int) -> None:
            at_segments.set()
            await go_on.wait()
            await truncate(segment, offset)

    class Slower(ScriptedSegments):
        async def truncate_segment(self, segment: str, offset: int) -> None:
            if offset == 20:
                await of_second.wait()
            await truncate(segment, offset)

    await started.stop()
    slow = cluster.build(IMPATIENT, segments=Slow(cluster.store))
    await slow.start()
    first = asyncio.create_task(slow.truncate_stream("scope", "stream", {0: 10, 1: 10}))
    await at_segments.wait()
    cluster.expire(slow)
    second = cluster.build(IMPATIENT, segments=Slower(cluster.store))
    await second.start()
    await second.idle()
    other = asyncio.create_task(second.truncate_stream("scope", "stream", {0: 20, 1: 20}))

    async def is_begun() -> bool:
        return await state_of(second) is StreamState.TRUNCATING

    await until(is_begun, "the second truncation has begun")
    go_on.set()
    with pytest.raises(MetadataConflictError):
        await first
    await slow.idle()
    assert await state_of(second) is StreamState.TRUNCATING
    assert announced(cluster) == ["stream/scope/stream"]
    of_second.set()
    await other
    assert await state_of(second) is StreamState.ACTIVE
    assert announced(cluster) == []
    assert [at.offset for at in await second.head("scope", "stream")] == [20, 20]


async def test_controller_overtaken_before_it_withdrew_leaves_the_next_announcement(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """The same, with the first controller standing still at its last step: its truncation is done, nothing else."""
    at_withdrawal, go_on, of_second = asyncio.Event(), asyncio.Event(), asyncio.Event()
    remove, truncate = segments.table_remove, segments.truncate_segment

    class Slow(ScriptedSegments):
        async def table_remove(self, segment: str, removals: list[TableRemoval]) -> None:
            if segment == layout.PENDING_WORK:
                at_withdrawal.set()
                await go_on.wait()
            await remove(segment, removals)

    class Slower(ScriptedSegments):
        async def truncate_segment(self, segment: str, offset: int) -> None:
            await of_second.wait()
            await truncate(segment, offset)

    await started.stop()
    slow = cluster.build(IMPATIENT, segments=Slow(cluster.store))  # type: ignore[arg-type]
    await slow.start()
    first = asyncio.create_task(slow.truncate_stream("scope", "stream", {0: 10, 1: 10}))
    await at_withdrawal.wait()
    cluster.expire(slow)
    second = cluster.build(IMPATIENT, segments=Slower(cluster.store))
    await second.start()
    await second.idle()
    other = asyncio.create_task(second.truncate_stream("scope", "stream", {0: 20, 1: 20}))

    async def is_begun() -> bool:
        return await state_of(second) is StreamState.TRUNCATING

    await until(is_begun, "the second truncation has begun")
    go_on.set()
    await first
    assert announced(cluster) == ["stream/scope/stream"]
    of_second.set()
    await other
    assert announced(cluster) == []


# Outages and errors that stay.


async def _truncate(service: ControllerService) -> None:
    await service.truncate_stream("scope", "stream", {0: 10, 1: 10})


async def _update(service: ControllerService) -> None:
    await service.update_stream("scope", "stream", StreamConfig(Scaling.by_event_rate(9, min_segments=2)))


async def _seal(service: ControllerService) -> None:
    await service.seal_stream("scope", "stream")


async def _create(service: ControllerService) -> None:
    await service.create_stream("scope", "other", StreamConfig())


@pytest.mark.parametrize(
    ("change", "request_name", "stream", "state"),
    [
        (_truncate, "truncate_segment", "stream", StreamState.ACTIVE),
        (_update, "update_policy", "stream", StreamState.ACTIVE),
        (_seal, "seal_segment", "stream", StreamState.SEALED),
        (_create, "create_segment", "other", StreamState.ACTIVE),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_work_that_outlasts_its_retries_continues_without_a_restart(
    cluster: InProcessCluster,
    segments: ScriptedSegments,
    started: ControllerService,
    change: Callable[..., Awaitable[Any]],
    request_name: str,
    stream: str,
    state: StreamState,
) -> None:
    """Segment stores are out for longer than a request is repeated: the work ends by itself once they are back."""
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == request_name else None
    with pytest.raises(ContainerOfflineError):
        await change(started)
    for _ in range(20):
        await asyncio.sleep(0.002)
    assert announced(cluster) == [f"stream/scope/{stream}"]
    segments.rule = lambda name, arguments: None
    await started.idle()
    assert announced(cluster) == []
    assert await state_of(started, stream) is state


async def test_work_on_groups_and_scopes_that_outlasts_its_retries_continues_too(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """The same for a reader group's creation and for the deletion of a scope with all it holds."""
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "create_segment" else None
    with pytest.raises(ContainerOfflineError):
        await started.reader_groups.create("scope", "group", ReaderGroupConfig((GroupCut("scope", "stream"),)))
    segments.rule = lambda name, arguments: None
    await started.idle()
    assert (await started.reader_groups.get("scope", "group")).state.value == "active"
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "delete_segment" else None
    with pytest.raises(ContainerOfflineError):
        await started.delete_scope_recursive("scope")
    segments.rule = lambda name, arguments: None
    await started.idle()
    assert not await started.scope_exists("scope")
    assert not cluster.store.segments
    assert announced(cluster) == []


async def test_recovery_at_the_start_that_outlasts_its_retries_continues(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """A controller starts while the segments of unfinished work cannot be reached, and finishes it later."""
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "truncate_segment" else None
    with pytest.raises(ContainerOfflineError):
        await _truncate(started)
    await started.stop()
    second = cluster.build(IMPATIENT, segments=segments)
    await second.start()
    for _ in range(20):
        await asyncio.sleep(0.002)
    segments.rule = lambda name, arguments: None
    await second.idle()
    assert await state_of(second) is StreamState.ACTIVE
    assert announced(cluster) == []


@pytest.mark.parametrize("change", [_truncate, _update], ids=["truncate", "update"])
async def test_work_that_can_never_be_done_does_not_block_the_stream(
    cluster: InProcessCluster,
    segments: ScriptedSegments,
    started: ControllerService,
    change: Callable[..., Awaitable[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A segment refuses permanently: the work is given up and logged, and the stream accepts other changes."""
    bad = InvalidArgumentError("never")
    segments.rule = lambda name, arguments: (
        bad if name in ("truncate_segment", "update_policy") and arguments[0].endswith("/1.#epoch.0") else None  # type: ignore[attr-defined]
    )
    with pytest.raises(InvalidArgumentError):
        await change(started)
    await started.idle()
    assert "is abandoned" in caplog.text
    assert announced(cluster) == []
    assert await state_of(started) is StreamState.ACTIVE
    segments.rule = lambda name, arguments: None
    await started.truncate_stream("scope", "stream", {0: 40, 1: 40})
    assert [at.offset for at in await started.head("scope", "stream")] == [40, 40]
    assert {cluster.store.segments[segment_name("scope", "stream", number)].start_offset for number in (0, 1)} == {40}
    await started.seal_stream("scope", "stream")
    await started.delete_stream("scope", "stream")
    assert not cluster.store.segments


async def test_stream_with_a_lost_segment_can_be_truncated_sealed_and_deleted(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService, caplog: pytest.LogCaptureFixture
) -> None:
    """One segment is gone, with a committed transaction to be merged into it: the stream's life continues, and ends."""
    transaction = (await started.transactions.create("scope", "stream", 10_000)).id
    await cluster.store.delete_segment(segment_name("scope", "stream", 1))
    await started.transactions.commit("scope", "stream", transaction, writer_id="", timestamp=0)
    await started.idle()
    assert await started.transactions.status("scope", "stream", transaction) is TransactionStatus.COMMITTING
    with pytest.raises(NoSuchSegmentError):
        await started.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("x",)))
    await started.idle()
    await started.truncate_stream("scope", "stream", {0: 10, 1: 0})
    assert await state_of(started) is StreamState.ACTIVE
    await started.seal_stream("scope", "stream")
    assert segment_name("scope", "stream", 1) in caplog.text
    await started.delete_stream("scope", "stream")
    await started.idle()
    assert not cluster.store.segments
    assert announced(cluster) == []


async def test_missing_table_of_a_stream_is_no_error_of_its_work(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """The tables of a stream are gone while work on it is announced, as in a deletion cut off: it is withdrawn."""
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "truncate_segment" else None
    with pytest.raises(ContainerOfflineError):
        await _truncate(started)
    await started.stop()
    segments.rule = lambda name, arguments: None
    tables = await started._catalog.on_stream("scope", "stream", _itself)
    await tables.drop_tables()
    second = await cluster.start(IMPATIENT)
    await second.idle()
    assert announced(cluster) == []


# Seams.


async def test_conditional_removal_of_a_missing_key_is_a_conflict(cluster: InProcessCluster) -> None:
    """What a late duplicate of a removal is answered by the store: a conflict, and nothing happens."""
    store = SegmentsMetadataStore(cluster.store)
    await store.create_table("_system/_tables/x")
    (version,) = await store.put("_system/_tables/x", [Write("k", b"v")])
    await store.remove("_system/_tables/x", [Removal("k", version)])
    with pytest.raises(MetadataConflictError):
        await store.remove("_system/_tables/x", [Removal("k", version)])
    with pytest.raises(NoSuchSegmentError):
        await store.remove("_system/_tables/y", [Removal("k", version)])

"""Several controllers that are alive, and what they do about work of each other, and of those that are gone.

Shows S-215 to S-220, S-222 and S-223, each where it is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller.errors import MembershipLostError, WorkElsewhereError, WorkTakenOverError
from penstock.controller.grpc.call import is_final
from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import (
    AnnouncementFence,
    PendingWork,
    SealStream,
    Subject,
    SubjectKind,
    UpdateStream,
)
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import StreamState, TransactionIndexEntry, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaims
from penstock.controller.ownership.coordinator import Members
from penstock.controller.ownership.in_process_coordinator import InProcessMembership
from penstock.controller.ownership.peers import Peers
from penstock.controller.service import ControllerService
from penstock.controller.work.work_registry import WorkRegistry
from penstock.controller.workflows.update_stream import resume_update
from penstock.model.errors import (
    ContainerOfflineError,
    ControllerUnavailableError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
    StreamExistsError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.in_process_cluster import InProcessCluster
from support.two_controllers import SETTINGS, STREAM, announced, start_pair, until


async def announcement_of(service: ControllerService, subject: Subject = STREAM) -> PendingWork | None:
    found = await service._records.get(layout.PENDING_WORK, subject.key, PendingWork)
    return None if found is None else found.record


async def itself(tables: StreamTables) -> StreamTables:
    return tables


async def state_of(service: ControllerService) -> StreamState:
    tables = await service._catalog.on_stream("scope", "stream", itself)
    return (await tables.state()).record.state


@pytest.fixture
async def pair(
    cluster: InProcessCluster,
) -> AsyncIterator[tuple[ControllerService, ControllerService, BlockedSegments]]:
    """Two controllers that are alive, the first over a store that a test can hold up; and a stream of two segments."""
    first, second, held = await start_pair(cluster, held="scope/stream/")
    yield first, second, held
    held.release()


async def _truncate(service: ControllerService) -> None:
    await service.truncate_stream("scope", "stream", {0: 10, 1: 10})


async def _update(service: ControllerService) -> None:
    await service.update_stream("scope", "stream", StreamConfig(Scaling.by_event_rate(9, min_segments=2)))


async def _seal(service: ControllerService) -> None:
    await service.seal_stream("scope", "stream")


async def _scale(service: ControllerService) -> None:
    await service.update_stream("scope", "stream", StreamConfig(Scaling.fixed(3)))


#: Changes, and the requests to segments in whose midst they stand still.
CHANGES = pytest.mark.parametrize(
    ("change", "held_call"),
    [
        (_truncate, "truncate_segment"),
        (_update, "update_policy"),
        (_seal, "seal_segment"),
        (_scale, "create_segment"),
    ],
    ids=["truncate", "update", "seal", "scale"],
)


@CHANGES
async def test_work_of_a_live_peer_is_left_to_it(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    change: Callable[..., Awaitable[Any]],
    held_call: str,
) -> None:
    """One controller stalls in a change; the other one starts, sweeps, and gets a change of the stream.

    It neither takes the work over nor does any of it, and its own change comes after it.
    """
    first, second, held = pair
    held.is_blocked, held.call_name = True, held_call
    changing = asyncio.create_task(change(first))
    await until(lambda: announced(cluster), "the change is announced")
    before = await announcement_of(first)
    third = await cluster.start(SETTINGS)
    await third.idle()
    following = [
        asyncio.create_task(service.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("after",))))
        for service in (second, third)
    ]
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert await announcement_of(second) == before
    assert not any(task.done() for task in (changing, *following))
    assert second.statistics().taken_over_count == third.statistics().taken_over_count == 0
    held.release()
    await changing
    ends = await asyncio.gather(*following, return_exceptions=True)
    if change is _seal:
        assert all(isinstance(end, PenstockError) for end in ends)
        assert await state_of(second) is StreamState.SEALED
    else:
        assert ends == [None, None]
        assert (await second.stream_configuration("scope", "stream")).tags == ("after",)
        assert await state_of(second) is StreamState.ACTIVE
    assert announced(cluster) == []


async def test_waiting_for_a_live_peer_has_an_end(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """A peer is alive and never ends its work: a waiting call gets an error, and has done nothing."""
    first, _, held = pair
    held.is_blocked, held.call_name = True, "truncate_segment"
    changing = asyncio.create_task(_truncate(first))
    await until(lambda: announced(cluster), "the change is announced")
    impatient = await cluster.start(replace(SETTINGS, workflow_timeout_s=0.05))
    with pytest.raises(PenstockError):
        await _update(impatient)
    await impatient.idle()
    assert (await announcement_of(first)).owner == first._context.host
    held.release()
    await changing


async def test_commits_of_two_live_controllers_go_one_after_the_other(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """Transactions of one stream are committed at both: each merge is one owner's work, and each comes once."""
    first, second, _ = pair
    done = []
    for number in range(12):
        service = (first, second)[number % 2]
        created = (await service.transactions.create("scope", "stream", 30_000)).id
        for segment in (0, 1):
            name = transaction_segment_name(segment_name("scope", "stream", segment), created.high, created.low)
            await cluster.store.append(name, f"<{number}>".encode())
        done.append((service, created))
    await asyncio.gather(
        *(service.transactions.commit("scope", "stream", id, writer_id="w", timestamp=1) for service, id in done)
    )
    await asyncio.gather(first.idle(), second.idle())
    for _, id in done:
        assert await first.transactions.status("scope", "stream", id) is TransactionStatus.COMMITTED
    for segment in (0, 1):
        data = bytes(cluster.store.segments[segment_name("scope", "stream", segment)].data)[100:]
        assert sorted(data.decode().strip("<>").split("><"), key=int) == [str(number) for number in range(12)]
    assert announced(cluster) == []
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries
    assert first.statistics().taken_over_count == second.statistics().taken_over_count == 0


async def test_a_commit_of_a_live_peer_is_not_finished_by_another(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """One controller is paused in a merge: the other one leaves state and batch alone, and commits after it."""
    first, second, held = pair
    ids = [(await first.transactions.create("scope", "stream", 30_000)).id for _ in range(2)]
    held.is_blocked, held.call_name = True, "merge_segments"
    await first.transactions.commit("scope", "stream", ids[0], writer_id="w", timestamp=1)
    await until(lambda: announced(cluster), "the merge is announced")
    before = await announcement_of(first)
    await second.transactions.commit("scope", "stream", ids[1], writer_id="w", timestamp=1)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert await announcement_of(second) == before
    assert await state_of(second) is StreamState.COMMITTING_TXN
    held.release()
    await asyncio.gather(first.idle(), second.idle())
    for id in ids:
        assert await second.transactions.status("scope", "stream", id) is TransactionStatus.COMMITTED
    assert announced(cluster) == []


@CHANGES
async def test_work_of_a_dead_controller_is_finished_by_a_live_one(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    change: Callable[..., Awaitable[Any]],
    held_call: str,
) -> None:
    """S-214, S-217: no controller starts and no call comes; the survivor learns of the end and finishes the work."""
    first, second, held = pair
    held.is_blocked, held.call_name = True, held_call
    changing = asyncio.create_task(change(first))
    await until(lambda: announced(cluster), "the change is announced")
    await first.stop()
    with pytest.raises(PenstockError):
        await changing
    await until(lambda: not announced(cluster), "the survivor has finished it")
    await second.idle()
    assert second.statistics().taken_over_count == 1
    assert await state_of(second) is (StreamState.SEALED if change is _seal else StreamState.ACTIVE)
    if change is _scale:
        assert len(await second.current_segments("scope", "stream")) == 3


async def test_transactions_of_a_dead_controller_are_managed_by_a_live_one(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """Open ones keep their lease, decided ones end; those of who is alive are left alone."""
    first, second, held = pair
    opened = (await first.transactions.create("scope", "stream", 30_000)).id
    others = (await second.transactions.create("scope", "stream", 30_000)).id
    decided = (await first.transactions.create("scope", "stream", 30_000)).id
    held.is_blocked, held.call_name = True, "merge_segments"
    await first.transactions.commit("scope", "stream", decided, writer_id="w", timestamp=1)
    await until(lambda: announced(cluster), "the merge is announced")
    third = await cluster.start(SETTINGS)
    await third.idle()
    assert third.transactions.open_count == 0
    assert second.transactions.open_count == 1
    await first.stop()
    # Both may: two timers do no harm, as each inspects the record first.
    await until(
        lambda: second.transactions.open_count + third.transactions.open_count >= 2,
        "another controller watches the lease",
    )
    await asyncio.gather(second.idle(), third.idle())
    status = second.transactions.status
    assert await status("scope", "stream", decided) is TransactionStatus.COMMITTED
    assert await status("scope", "stream", opened) is await status("scope", "stream", others) is TransactionStatus.OPEN


async def test_two_that_take_over_at_once_do_the_work_once(cluster: InProcessCluster) -> None:
    """S-218: the compare-and-set has one winner; the other one finds a live owner, whatever the order of requests."""
    first = await cluster.start(SETTINGS)
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig())
    stream_id = await first._catalog.stream_id("scope", "stream")
    await first._context.begin(STREAM, SealStream(), stream_id)
    await first.stop()
    await cluster.coordinator.join("x")
    rivals = []
    for name in ("b", "c"):
        rival = WorkClaims(first._records, SETTINGS, Peers())
        rival.enter(await cluster.coordinator.join(name))
        rivals.append(rival)
    ends = await asyncio.gather(*(rival.claim(STREAM) for rival in rivals), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["WorkClaim", "WorkElsewhereError"]
    work = await announcement_of(first)
    assert work.attempt == 2
    assert [rival.taken_over_count for rival in rivals] == [work.owner == "b", work.owner == "c"]


async def test_work_changes_hands_by_naming_the_owner_that_is_gone(cluster: InProcessCluster) -> None:
    """S-219: refused while that one lives; who names an owner of before comes too late, and so does that owner."""
    first = await cluster.start(SETTINGS)
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig())
    stream_id = await first._catalog.stream_id("scope", "stream")
    stale = await first._context.begin(STREAM, SealStream(), stream_id)
    records = RecordStore(first._records.store)
    put, reached, go_on = records.put, asyncio.Event(), asyncio.Event()

    async def put_late(*arguments: str | PendingWork, **options: int) -> int:
        reached.set()
        await go_on.wait()
        return await put(*arguments, **options)

    records.put = put_late
    slow, quick = (WorkClaims(its, SETTINGS, Peers()) for its in (records, first._records))
    for name, rival in (("slow", slow), ("quick", quick)):
        rival.enter(await cluster.coordinator.join(name))
        with pytest.raises(WorkElsewhereError):
            await rival.announce(PendingWork(STREAM, SealStream(), stream_id, name, 0, name))
        with pytest.raises(WorkElsewhereError, match="alive"):
            await rival.claim(STREAM)
    await first.stop()
    claiming = asyncio.create_task(slow.claim(STREAM))
    await reached.wait()
    taken = await quick.claim(STREAM)
    assert (taken.work.owner, taken.work.attempt) == ("quick", 2)
    go_on.set()
    with pytest.raises(WorkElsewhereError, match="alive"):
        await claiming
    await first._context.claims.withdraw(stale)
    assert (await announcement_of(first)).owner == "quick"
    cluster.coordinator.expire("quick")
    again = await slow.claim(STREAM)
    assert (again.work.owner, again.work.attempt) == ("slow", 3)
    await quick.withdraw(taken)
    assert (await announcement_of(first)).owner == "slow"


async def test_a_controller_declared_dead_begins_nothing_and_rejoins(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """S-222: its work passes to a survivor; under a new name it continues, and its calls are served."""
    first, second, held = pair
    name = first._context.host
    held.is_blocked, held.call_name = True, "truncate_segment"
    changing = asyncio.create_task(_truncate(first))
    await until(lambda: announced(cluster), "the change is announced")
    cluster.expire(first)
    with pytest.raises(MembershipLostError):
        await first._context.begin(Subject(SubjectKind.STREAM, "scope", "other"), SealStream(), "life")
    await until(lambda: first._context.host != name, "it has joined again")
    await until(lambda: not announced(cluster), "the survivor has finished it")
    held.release()
    with pytest.raises(MetadataConflictError):
        await changing
    await first.idle()
    await first.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("again",)))
    assert (await second.stream_configuration("scope", "stream")).tags == ("again",)
    assert [at.offset for at in await second.head("scope", "stream")] == [10, 10]
    assert announced(cluster) == []


@CHANGES
async def test_a_call_with_taken_over_work_must_be_retried(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    change: Callable[..., Awaitable[Any]],
    held_call: str,
) -> None:
    """Found by a seed: the answer was FAILURE, which clients treat as final, although the work was done."""
    first, _, held = pair
    held.is_blocked, held.call_name = True, held_call
    changing = asyncio.create_task(change(first))
    await until(lambda: announced(cluster), "the change is announced")
    cluster.expire(first)
    await until(lambda: not announced(cluster), "the survivor has finished it")
    held.release()
    with pytest.raises(WorkTakenOverError) as raised:
        await changing
    assert not is_final(raised.value)
    await first.idle()
    while True:
        try:
            await change(first)
            break
        except MembershipLostError:
            await asyncio.sleep(0.01)  # It joins again in the background.
    assert announced(cluster) == []


async def test_an_announcement_without_a_reply_is_not_made_again_when_others_have_done_its_work(
    cluster: InProcessCluster,
) -> None:
    """Found by a seed: it was announced a second time, and what had been done after it was undone.

    The first request works and its reply is lost; before the next one another controller has taken the work over and
    ended it.
    """
    first = await cluster.start(SETTINGS)
    rival = WorkClaims(first._records, SETTINGS, Peers())
    rival.enter(await cluster.coordinator.join("rival"))
    tables = RecordStore(first._records.store)
    claims = WorkClaims(tables, SETTINGS, Peers())
    claims.enter(await cluster.coordinator.join("slow"))
    requests = []

    async def put_all(table: str, records: list[tuple[str, PendingWork | AnnouncementFence, int]]) -> None:
        requests.append(await RecordStore.put_all(tables, table, records))
        cluster.coordinator.expire("slow")
        await rival.withdraw(await rival.claim(STREAM))
        raise OutcomeUnknownError("no reply")

    tables.put_all = put_all
    with pytest.raises(WorkTakenOverError):
        await claims.announce(PendingWork(STREAM, SealStream(), "life", "slow", 0, "work"))
    assert len(requests) == 1
    assert announced(cluster) == []
    assert not claims.is_unfinished(STREAM)


async def test_an_overtaken_controller_does_not_replace_a_later_configuration(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """It stalls after announcing an update; that one is done, and another one after it; then it resumes."""
    first, second, _ = pair
    stream_id = await first._catalog.stream_id("scope", "stream")
    order = UpdateStream(StreamConfig(Scaling.fixed(2), tags=("old",)))
    stale = await first._context.begin(STREAM, order, stream_id)
    tables = first._catalog.tables_of("scope", "stream", stream_id)
    cluster.expire(first)
    await until(lambda: not announced(cluster), "the survivor has finished it")
    await second.update_stream("scope", "stream", StreamConfig(Scaling.fixed(2), tags=("new",)))
    with pytest.raises(WorkTakenOverError):
        await resume_update(first._context, tables, stale, order)
    assert (await second.stream_configuration("scope", "stream")).tags == ("new",)
    assert await state_of(second) is StreamState.ACTIVE


async def test_a_seal_that_was_taken_over_is_not_done_to_the_next_stream_of_the_name(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """Found by a seed: it stood still; the stream was sealed, deleted and made again; it sealed that one, too."""
    first, second, held = pair
    held.is_blocked, held.call_name = True, "seal_segment"
    sealing = asyncio.create_task(_seal(first))
    await until(lambda: announced(cluster), "the seal is announced")
    cluster.expire(first)
    await until(lambda: not announced(cluster), "the survivor has finished it")
    await second.delete_stream("scope", "stream")
    await second.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    held.release()
    with pytest.raises(WorkTakenOverError):
        await sealing
    await first.idle()
    assert await state_of(second) is StreamState.ACTIVE


@pytest.mark.parametrize("change", [_seal, _scale], ids=["seal", "scale"])
async def test_an_overtaken_controller_does_not_report_deleted_segments_as_lost(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    change: Callable[..., Awaitable[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It stalls before it seals segments; the survivor seals them, and the stream is deleted. Then it resumes."""
    first, second, held = pair
    held.is_blocked, held.call_name = True, "seal_segment"
    changing = asyncio.create_task(change(first))
    await until(lambda: announced(cluster), "the change is announced")
    cluster.expire(first)
    await until(lambda: not announced(cluster), "the survivor has finished it")
    await _seal(second)
    await second.delete_stream("scope", "stream")
    held.release()
    with pytest.raises(WorkTakenOverError):
        await changing
    await first.idle()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_overtaken_creation_does_not_create_a_deleted_stream_again(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by a seed: it made the tables of a life that was over, and took that one for the stream of this name.

    It is paused behind the listing of the stream. The survivor makes it, and it is sealed, deleted and made again.
    """
    first, second, _ = pair
    reached, released = asyncio.Event(), asyncio.Event()
    create_tables = StreamTables.create_tables

    async def create_tables_late(self: StreamTables) -> None:
        if not reached.is_set():
            reached.set()
            await released.wait()
        await create_tables(self)

    monkeypatch.setattr(StreamTables, "create_tables", create_tables_late)
    creating = asyncio.create_task(first.create_stream("scope", "other", StreamConfig()))
    await reached.wait()
    life = await first._catalog.stream_id("scope", "other")
    cluster.expire(first)
    await until(lambda: not announced(cluster), "the survivor has finished it")
    await second.seal_stream("scope", "other")
    await second.delete_stream("scope", "other")
    await second.create_stream("scope", "other", StreamConfig())
    released.set()
    with pytest.raises(WorkTakenOverError):
        await creating
    assert [table for table in cluster.store.tables if life in table] == []
    tables = await first._catalog.on_stream("scope", "other", itself)
    assert (await tables.state()).record.state is StreamState.ACTIVE


async def test_a_controller_alone_that_is_taken_for_dead_finishes_its_own_work(cluster: InProcessCluster) -> None:
    """It is the only controller: under its new name it takes over what it began under the old one."""
    segments = ScriptedSegments(cluster.store)
    alone = cluster.build(SETTINGS, segments=segments)
    await alone.start()
    await alone.create_scope("scope")
    await alone.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "seal_segment" else None
    with pytest.raises(ContainerOfflineError):
        await alone.seal_stream("scope", "stream")
    name = alone._context.host
    cluster.expire(alone)
    await until(lambda: alone._context.host != name, "it has joined again")
    await asyncio.sleep(0.05)
    segments.rule = lambda name, arguments: None
    await until(lambda: not announced(cluster), "it has finished what it began")
    await alone.idle()
    assert await state_of(alone) is StreamState.SEALED
    assert alone.statistics().taken_over_count == 1


async def test_requests_to_an_unavailable_coordinator_are_retried(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unavailable for longer than all attempts: members that ended meanwhile are swept when it is back."""
    is_out = False
    changed = type(cluster.coordinator)._changed

    async def out(self: object, asking: InProcessMembership, version: int) -> Members:
        found = await changed(self, asking, version)
        if is_out:
            raise ContainerOfflineError(0, "the coordinator is out")
        return found

    monkeypatch.setattr(type(cluster.coordinator), "_changed", out)
    first = await cluster.start(SETTINGS)
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig())
    second = await cluster.start(SETTINGS)
    stream_id = await first._catalog.stream_id("scope", "stream")
    await first._context.begin(STREAM, SealStream(), stream_id)
    is_out = True
    await first.stop()
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert announced(cluster) == [STREAM.key]
    is_out = False
    await until(lambda: not announced(cluster), "the work of the dead one is done")
    assert await state_of(second) is StreamState.SEALED


async def test_a_controller_declared_dead_creates_and_deletes_no_scope(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """The request may be old; a scope has no announcement, so no other controller would notice."""
    first, second, _ = pair
    await second.create_scope("kept")
    claims = first._context.claims
    for change in (lambda: first.create_scope("new"), lambda: first.delete_scope("kept")):
        cluster.expire(first)
        with pytest.raises(MembershipLostError):
            await change()
        await until(lambda: not claims._membership.is_over, "it has joined again")
    assert (await second.list_scopes("")).names == ("_system", "kept", "scope")


async def test_a_silent_coordinator_does_not_block_the_creation_of_scopes(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that know of no end continue, as with everything else."""
    first, _, _ = pair

    async def members() -> None:
        raise ControllerUnavailableError("the coordinator gives no answer")

    monkeypatch.setattr(first._context.claims._membership, "members", members)
    await first.create_scope("new")
    await first.delete_scope("new")


async def test_an_unreadable_claim_does_not_hide_the_others(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported, and retried until it is repaired."""
    first = await cluster.start(SETTINGS)
    await first.create_scope("scope")
    subjects = [Subject(SubjectKind.STREAM, "scope", name) for name in ("a", "b", "c")]
    for subject in subjects:
        await first._context.begin(subject, SealStream(), "gone")
    await first.stop()
    entries = cluster.store.tables[layout.PENDING_WORK].entries
    damaged = entries[b"stream/scope/b"]
    entries[b"stream/scope/b"] = type(damaged)(damaged.key, damaged.value[:-1] + b"\xff", damaged.version)
    second = await cluster.start(SETTINGS)
    await until(lambda: announced(cluster) == ["stream/scope/b"], "the others are done")
    assert "stream scope/b: the claim cannot be read" in caplog.text
    entries[b"stream/scope/b"] = damaged
    await until(lambda: not announced(cluster), "it is done once it was repaired")
    await second.idle()


async def test_one_name_created_at_two_controllers_at_once_is_one_stream(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """S-223: one success, and for the other one it exists."""
    first, second, _ = pair
    ends = await asyncio.gather(
        *(service.create_stream("scope", "new", StreamConfig(Scaling.fixed(2))) for service in (first, second)),
        return_exceptions=True,
    )
    assert sorted(type(end).__name__ for end in ends) == ["NoneType", StreamExistsError.__name__]
    assert len(await second.current_segments("scope", "new")) == 2
    assert announced(cluster) == []


async def test_a_start_reads_the_live_members_before_it_adopts_work(cluster: InProcessCluster) -> None:
    """S-215: work of the living and of the dead is announced; only that of the dead is taken over."""
    living = await cluster.start(SETTINGS)
    await living._context.begin(Subject(SubjectKind.STREAM, "scope", "of the living"), SealStream(), "gone")
    dead: ControllerService = await cluster.start(SETTINGS)
    await dead._context.begin(Subject(SubjectKind.STREAM, "scope", "of the dead"), SealStream(), "gone")
    await dead.stop()
    await living.idle()
    late = await cluster.start(SETTINGS)
    await late.idle()
    assert announced(cluster) == ["stream/scope/of the living"]
    with pytest.raises(WorkElsewhereError, match="alive"):
        await late._context.claims.claim(Subject(SubjectKind.STREAM, "scope", "of the living"))


async def test_a_late_write_of_earlier_work_does_not_refuse_a_call(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that was given up lands while the next call finishes its work: what is there then is read again."""
    service = cluster.build(SETTINGS)
    await service.start()
    await service.create_scope("scope")
    finish = WorkRegistry.finish
    conflicts = []

    async def overtaken(self: WorkRegistry, subject: Subject) -> bool | None:
        if not conflicts:
            conflicts.append(subject)
            raise MetadataConflictError("key 'state' was expected to have another version")
        return await finish(self, subject)

    monkeypatch.setattr(WorkRegistry, "finish", overtaken)
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    assert conflicts == [STREAM]
    assert await state_of(service) is StreamState.ACTIVE
    await service.stop()


async def test_work_of_a_controller_that_dies_during_a_search_is_found_by_the_next_search(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search may be past what it has left; also when a search fails in between."""
    service = cluster.build(SETTINGS)
    await service.start()
    await service.idle()
    searches = []

    async def orphans(self: WorkClaims) -> AsyncIterator[None]:
        searches.append(self)
        if len(searches) == 1:
            service._sweeper._sweep()
        if len(searches) == 2:
            raise PenstockError("the store is away")
        return
        yield

    monkeypatch.setattr(WorkClaims, "orphans", orphans)
    service._sweeper._sweep()
    await until(lambda: service._sweeper._search.done(), "the search ends")
    assert len(searches) == 3
    await service.stop()


async def test_an_announcement_that_lands_after_the_last_sweep_is_finished(cluster: InProcessCluster) -> None:
    """The request of a controller that is gone was still on its way: a later sweep finds the work without an owner."""
    settings = replace(SETTINGS, sweep_interval_s=0.05)
    gone, alive = await cluster.start(settings), await cluster.start(settings)
    await gone.create_scope("scope")
    await gone.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    life = await alive._catalog.stream_id("scope", "stream")
    late = gone._context.work(STREAM, SealStream(), life)
    await gone.stop()
    await asyncio.sleep(0.1)
    await alive.idle()
    await alive._records.put(layout.PENDING_WORK, STREAM.key, late)
    await until(lambda: not announced(cluster), "the work of the controller that is gone is finished")
    assert await state_of(alive) is StreamState.SEALED


async def test_a_transaction_that_lands_after_the_last_sweep_gets_a_lease(cluster: InProcessCluster) -> None:
    """Its index entry names a controller that is gone: another one takes it over, and aborts it in the end."""
    settings = replace(SETTINGS, sweep_interval_s=0.02, transaction_sweep_interval_s=0.05)
    gone, alive = await cluster.start(settings), await cluster.start(settings)
    await gone.create_scope("scope")
    await gone.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    made = (await gone.transactions.create("scope", "stream", 10_000)).id
    ((key, entry),) = [(key, found.record) async for key, found in gone._records.walk(
        layout.TRANSACTION_INDEX, TransactionIndexEntry
    )]  # fmt: skip
    await gone._records.remove(layout.TRANSACTION_INDEX, key)
    await gone.stop()
    await asyncio.sleep(0.1)
    await alive.idle()
    assert alive.transactions.open_count == 0
    await alive._records.put(layout.TRANSACTION_INDEX, key, entry)
    await until(lambda: alive.transactions.open_count == 1, "the lease of the transaction is watched")
    assert await alive.transactions.status("scope", "stream", made) is TransactionStatus.OPEN

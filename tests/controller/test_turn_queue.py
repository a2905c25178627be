"""Whose turn it is on a stream that commits and changes, at one controller or at two, want at once.

Over a metadata store in memory, and over table segments of a real segment store. Shows S-203 to S-206, each where it is
named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller.errors import WorkElsewhereError
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.codec import decode
from penstock.controller.metadata.pending_work import (
    AnnouncementFence,
    Lane,
    PendingWork,
    SealStream,
    Subject,
    SubjectKind,
    WaitingRequest,
)
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.store import Write
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.work_claims import _fence_of
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ContainerOfflineError,
    MetadataConflictError,
    NoSuchStreamError,
    OutcomeUnknownError,
    PenstockError,
    StreamSealedError,
)
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import VERSION_ABSENT
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock_simulation.memory_store import MemoryMetadataStore
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, memory_runtime, memory_store
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.in_process_cluster import InProcessCluster

#: No waiting request is passed over unless a test says so.
SETTINGS = ControllerSettings(
    attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2, peer_poll_ms=1, turn_timeout_ms=10**9
)
STREAM = Subject(SubjectKind.STREAM, "scope", "stream")
HALVES = [(0.0, 0.5), (0.5, 1.0)]


class Journal:
    """A metadata store that notes what is announced for the stream: by whom, and which kind of work."""

    def __init__(self, store: MemoryMetadataStore | SegmentsMetadataStore) -> None:
        self.store = store
        self.begun = []
        #: Names that came into the line: owner, lane, and how much was begun before.
        self.named = []
        self._tickets = set()
        self.puts = []
        self.is_reply_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def forget(self) -> None:
        self.begun.clear()
        self.named.clear()

    def _note_names(self, line: list[WaitingRequest]) -> None:
        for request in line:
            if request.ticket not in self._tickets:
                self._tickets.add(request.ticket)
                self.named.append((request.owner, request.lane, len(self.begun)))

    async def put(self, table: str, writes: list[Write]) -> Sequence[int]:
        versions = await self.store.put(table, writes)
        if table == layout.PENDING_WORK:
            self.puts.append(writes)
            for write in writes:
                if write.key == STREAM.key and write.version == VERSION_ABSENT:
                    work = decode(PendingWork, write.value, table=table, key=write.key)
                    self.begun.append((work.owner, work.kind))
                elif write.key == _fence_of(STREAM):
                    fence = decode(AnnouncementFence, write.value, table=table, key=write.key)
                    self._note_names([one for one in fence.waiting if one.subject == STREAM.key])
            if self.is_reply_lost:
                raise OutcomeUnknownError("the reply is lost")
        return versions


class House:
    """A store, what its controllers write, and two of them that are alive; a test can hold requests of the first up."""

    def __init__(self, cluster: InProcessCluster, metadata: MemoryMetadataStore | SegmentsMetadataStore) -> None:
        self.cluster = cluster
        self.journal = Journal(metadata)
        self.held = BlockedSegments(cluster.store, lambda segment: segment.startswith("scope/stream/"))
        self.scripted = ScriptedSegments(self.held)  # type: ignore[arg-type]

    async def start(
        self, settings: ControllerSettings = SETTINGS, settings_of_second: ControllerSettings | None = None
    ) -> None:
        self.first = self.cluster.build(settings, segments=self.scripted, metadata=self.journal)  # type: ignore[arg-type]
        self.second = self.cluster.build(settings_of_second or settings, metadata=self.journal)  # type: ignore[arg-type]
        for service in (self.first, self.second):
            await service.start()
        await self.first.create_scope("scope")
        await self.first.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
        await self.idle()
        await until(lambda: len(self.first.retention_buckets.shares()) == 2, "each has heard of the other")
        self.journal.forget()

    @property
    def begun(self) -> list[tuple[int, str]]:
        """What was announced, by number of the controller."""
        names = {self.first._context.host: 1, self.second._context.host: 2}
        return [(names[owner], kind) for owner, kind in self.journal.begun]

    def begun_while_waiting(self, lane: Lane) -> list[int]:
        """Return how much others began while a name of the second controller was in line, for each that was."""
        kinds = {Lane.COMMIT: ("commit transactions",), Lane.CHANGE: ("update stream", "truncate stream")}
        counts = []
        for owner, its_lane, start in self.journal.named:
            if (owner, its_lane) == (self.second._context.host, lane):
                after = self.begun[start:]
                counts.append(next(number for number, one in enumerate(after) if one[0] == 2 and one[1] in kinds[lane]))
        return counts

    async def until_more_has_begun(self) -> None:
        """Wait until the first controller is at work again, and busy."""
        before = len(self.begun)
        await until(lambda: len(self.begun) > before + 1, "it continues")

    async def fence(self) -> Any:
        found = await self.first._records.get(layout.PENDING_WORK, _fence_of(STREAM), AnnouncementFence)
        return found

    async def line(self) -> list[tuple[int, Lane]]:
        names = {self.first._context.host: 1, self.second._context.host: 2}
        return [
            (names.get(request.owner, request.owner), request.lane)
            for request in (await self.fence()).record.waiting
            if request.subject == STREAM.key
        ]

    async def put_in_line(self, *requests: WaitingRequest) -> None:
        """Let these names, and no others, be in line."""
        while True:
            found = await self.fence()
            record = AnnouncementFence(found.record.count, requests)
            try:
                await self.first._records.put(layout.PENDING_WORK, _fence_of(STREAM), record, version=found.version)
            except MetadataConflictError:
                continue
            return

    async def until_line(self, wanted: list[tuple[int, Lane]]) -> None:
        for _ in range(60_000):
            if (found := await self.line()) == wanted:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"the line is {found}, and not {wanted} after 60 s")

    async def begin(self, service: ControllerService) -> TransactionId:
        return (await service.transactions.create("scope", "stream", 30_000)).id

    async def commit(self, service: ControllerService, transaction: TransactionId) -> TransactionStatus:
        return await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=1)

    async def idle(self) -> None:
        for _ in range(2):
            await self.first.idle()
            await self.second.idle()

    async def check_end(self, *transactions: TransactionId) -> None:
        """Check that all is over: nothing in line or announced, no place kept, what was decided is committed."""
        await self.idle()
        assert await self.line() == []
        assert [len(service._context.claims._waiting) for service in (self.first, self.second)] == [0, 0]
        assert [subject async for subject in self.first._context.claims.pending()] == []
        for transaction in transactions:
            status = await self.second.transactions.status("scope", "stream", transaction)
            assert status is TransactionStatus.COMMITTED


async def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"not so after 60 s: {what}")


@pytest.fixture(params=["memory", "table segments"])
async def house(request: pytest.FixtureRequest, cluster: InProcessCluster) -> AsyncIterator[House]:
    if request.param == "memory":
        made = House(cluster, MemoryMetadataStore())
        yield made
        made.held.release()
        return
    runtime = memory_runtime()
    settings = SegmentStoreSettings(container_count=1, cache=SMALL_CACHE, container=QUIET, restart_delay_s=0.01)
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    cluster.store = store  # type: ignore[assignment]
    made = House(cluster, SegmentsMetadataStore(store, SETTINGS))
    yield made
    made.held.release()
    await cluster.stop()
    await store.stop()
    await runtime.work.close()


@pytest.fixture
async def pair(house: House) -> House:
    await house.start()
    return house


async def _scale(service: ControllerService) -> None:
    current = await service.current_segments("scope", "stream")
    await service.scale_stream("scope", "stream", [segment.id for segment in current], HALVES)


async def _update(service: ControllerService, *tags: str) -> None:
    await service.update_stream("scope", "stream", StreamConfig(Scaling.by_event_rate(9, min_segments=2), tags=tags))


async def _truncate(service: ControllerService) -> None:
    current = await service.current_segments("scope", "stream")
    await service.truncate_stream("scope", "stream", {segment.id: 0 for segment in current})


async def _seal(service: ControllerService) -> None:
    await service.seal_stream("scope", "stream")


CHANGES = pytest.mark.parametrize(
    ("change", "kind"),
    [
        (_scale, "scale stream"),
        (_update, "update stream"),
        (_truncate, "truncate stream"),
        (_seal, "seal stream"),
    ],
    ids=["scale", "update", "truncate", "seal"],
)
#: A seal commits by itself what was decided, and nothing comes after it.
CHANGES_BUT_SEAL = pytest.mark.parametrize(
    ("change", "kind"),
    [(_scale, "scale stream"), (_update, "update stream"), (_truncate, "truncate stream")],
    ids=["scale", "update", "truncate"],
)


@CHANGES
async def test_a_change_that_waits_for_a_commit_comes_before_the_commits_after_it(
    pair: House, change: Callable[..., Awaitable[Any]], kind: str
) -> None:
    """S-203: postponed behind a commit it has its name in line; later commits postpone; it runs; they continue."""
    transactions = [await pair.begin(service) for service in (pair.first, pair.first, pair.second)]
    pair.held.is_blocked, pair.held.call_name = True, "merge_segments"
    await pair.commit(pair.first, transactions[0])
    await until(lambda: pair.begun == [(1, "commit transactions")], "the merge is announced")
    changing = asyncio.create_task(change(pair.second))  # type: ignore[arg-type]
    await pair.until_line([(2, Lane.CHANGE)])
    await pair.commit(pair.first, transactions[1])
    await pair.commit(pair.second, transactions[2])
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert pair.begun == [(1, "commit transactions")]
    pair.held.release()
    await changing
    assert pair.begun[:2] == [(1, "commit transactions"), (2, kind)]
    await pair.check_end(*transactions)


@CHANGES_BUT_SEAL
async def test_a_commit_that_waits_for_a_change_comes_before_the_changes_after_it(
    pair: House, change: Callable[..., Awaitable[Any]], kind: str
) -> None:
    """S-204: the same with roles swapped, whichever change it is."""
    transaction = await pair.begin(pair.second)
    call = {_scale: "create_segment", _update: "update_policy", _truncate: "delete_segment"}[change]  # type: ignore[index]
    if change is _truncate:
        await _scale(pair.first)
        await pair.check_end()
        pair.journal.forget()
    pair.held.is_blocked, pair.held.call_name = True, call
    changing = asyncio.create_task(change(pair.first))  # type: ignore[arg-type]
    await until(lambda: pair.begun == [(1, kind)], "the change is announced")
    await pair.commit(pair.second, transaction)
    await pair.until_line([(2, Lane.COMMIT)])
    later = [asyncio.create_task(_update(service, "later")) for service in (pair.first, pair.second)]
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert pair.begun == [(1, kind)]
    pair.held.release()
    await asyncio.gather(changing, *later)
    kinds = [kind for _, kind in pair.begun]
    assert kinds == [kind, "commit transactions", "update stream", "update stream"]
    await pair.check_end(transaction)


async def test_a_deletion_that_waits_for_a_seal_comes_before_the_changes_after_it(pair: House) -> None:
    """S-204 for delete: later requests find the stream gone."""
    pair.held.is_blocked, pair.held.call_name = True, "seal_segment"
    sealing = asyncio.create_task(_seal(pair.first))
    await until(lambda: pair.begun == [(1, "seal stream")], "the seal is announced")
    deleting = asyncio.create_task(pair.second.delete_stream("scope", "stream"))
    await pair.until_line([(2, Lane.CHANGE)])
    later = asyncio.create_task(_update(pair.first))
    for _ in range(20):
        await asyncio.sleep(0.001)
    pair.held.release()
    await asyncio.gather(sealing, deleting)
    with pytest.raises((NoSuchStreamError, StreamSealedError)):
        await later
    assert pair.begun == [(1, "seal stream"), (2, "delete stream")]
    await pair.check_end()


async def _without_end(work: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await work()
        except PenstockError:
            await asyncio.sleep(0)


@asynccontextmanager
async def clients_of(work: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Have eight clients do the same without end."""
    clients = [asyncio.create_task(_without_end(work)) for _ in range(8)]
    try:
        yield
    finally:
        await _stopped(clients)  # type: ignore[arg-type]


async def _stopped(tasks: list[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("change", [_update, _truncate])
async def test_commits_without_end_at_one_controller_let_a_change_at_another_begin(
    pair: House, change: Callable[..., Awaitable[Any]]
) -> None:
    """Once the change has met a commit, nothing begins before it but what has waited for longer."""

    async def commit() -> None:
        await pair.commit(pair.first, await pair.begin(pair.first))

    async with clients_of(commit):
        await until(lambda: len(pair.begun) > 5, "commits are under way")
        for _ in range(100):
            await pair.until_more_has_begun()
            await change(pair.second)
            if len(counts := pair.begun_while_waiting(Lane.CHANGE)) >= 2:
                break
    # One more than none: the other lane of the busy one may have come into the line before.
    assert len(counts) >= 2
    assert max(counts) <= 1
    await pair.check_end()


async def test_changes_without_end_at_one_controller_let_commits_and_changes_at_another_begin(pair: House) -> None:
    """The same with roles swapped; and a change has its turn between those of another controller."""
    async with clients_of(lambda: _update(pair.first)):
        await until(lambda: len(pair.begun) > 5, "changes are under way")
        for _ in range(100):
            transaction = await pair.begin(pair.second)
            await pair.until_more_has_begun()
            await pair.commit(pair.second, transaction)
            await pair.second.idle()
            await pair.until_more_has_begun()
            await _truncate(pair.second)
            counts = [count for lane in (Lane.COMMIT, Lane.CHANGE) for count in pair.begun_while_waiting(lane)]
            if len(counts) >= 2:
                break
    assert len(counts) >= 2
    # The other controller, and the other lane of this one, may have come into the line before.
    assert max(counts) <= 2
    await pair.check_end(transaction)


async def test_many_changes_that_wait_at_one_controller_do_not_delay_a_commit(pair: House) -> None:
    """A hundred calls wait for the lock of the stream when a commit comes: it begins after two of them at most."""
    pair.held.is_blocked, pair.held.call_name = True, "update_policy"
    calls = [asyncio.create_task(_update(pair.first, f"t{number}")) for number in range(100)]
    await until(lambda: pair.begun, "the first is announced")
    transaction = await pair.begin(pair.first)
    await pair.commit(pair.first, transaction)
    for _ in range(20):
        await asyncio.sleep(0.001)
    pair.held.release()
    await asyncio.gather(*calls)
    kinds = [kind for _, kind in pair.begun]
    assert kinds.index("commit transactions") <= 2, kinds[:20]
    await pair.check_end(transaction)


async def test_many_commits_at_two_controllers_do_not_put_each_other_in_line(pair: House) -> None:
    """A merging controller takes what the other has decided: neither has to yield."""
    transactions = []
    for number in range(20):
        service = (pair.first, pair.second)[number % 2]
        transactions.append(await pair.begin(service))
    refused = []
    claims = pair.second._context.claims
    enqueue = claims.enqueue

    async def stand(*arguments: Any) -> None:
        await enqueue(*arguments)
        refused.append(await pair.line())

    claims.enqueue = stand  # type: ignore[assignment, method-assign]
    pair.held.is_blocked, pair.held.call_name = True, "merge_segments"
    await pair.commit(pair.first, transactions[0])
    await until(lambda: pair.begun == [(1, "commit transactions")], "the merge is announced")
    await asyncio.gather(
        *(pair.commit((pair.first, pair.second)[number % 2], one) for number, one in enumerate(transactions) if number)
    )
    await until(lambda: len(refused) > 3, "the second one has found the first at work")
    assert not any(refused)
    pair.held.release()
    await pair.check_end(*transactions)


async def _blocked_commit_and_waiting_change(house: House) -> tuple[TransactionId, asyncio.Task[object]]:
    """Let the first controller stand still in a merge, and a change at the second one wait for it."""
    transaction = await house.begin(house.first)
    house.held.is_blocked, house.held.call_name = True, "merge_segments"
    await house.commit(house.first, transaction)
    await until(lambda: house.begun, "the merge is announced")
    changing = asyncio.create_task(_update(house.second, "waited"))
    await house.until_line([(2, Lane.CHANGE)])
    return transaction, changing


async def test_an_entry_of_a_timed_out_caller_leaves_the_queue(house: House) -> None:
    """It waited for as long as it may, and said so; what comes after does not wait for it."""
    await house.start(SETTINGS, replace(SETTINGS, workflow_timeout_s=2.0))
    transaction, changing = await _blocked_commit_and_waiting_change(house)
    with pytest.raises(PenstockError):
        await changing
    await house.until_line([])
    house.held.release()
    await house.check_end(transaction, await _committed(house))


async def _committed(house: House) -> TransactionId:
    transaction = await house.begin(house.first)
    await house.commit(house.first, transaction)
    return transaction


async def test_a_change_of_a_disconnected_client_keeps_its_turn(pair: House) -> None:
    """An accepted request continues without its caller, and uses its name up."""
    transaction, changing = await _blocked_commit_and_waiting_change(pair)
    await _stopped([changing])
    pair.held.release()
    await pair.check_end(transaction)
    assert (await pair.first.stream_configuration("scope", "stream")).tags == ("waited",)


@pytest.mark.parametrize("how", ["stops", "is taken for dead"])
async def test_the_entry_of_a_dead_controller_does_not_block_the_queue(pair: House, how: str) -> None:
    """There is no wait: a controller that is no member has no turn, and the next announcement removes its name."""
    transaction, changing = await _blocked_commit_and_waiting_change(pair)
    if how == "stops":
        await pair.second.stop()
    else:
        # It joins again at once, under another name, and keeps waiting; the name in line belongs to no member.
        pair.cluster.expire(pair.second)
    await until(
        lambda: len(pair.first.retention_buckets.shares()) == (1 if how == "stops" else 2), "the first has heard of it"
    )
    pair.held.release()
    after = await _committed(pair)
    for _ in range(60_000):
        if await pair.first.transactions.status("scope", "stream", after) is TransactionStatus.COMMITTED:
            break
        await asyncio.sleep(0.001)
    await asyncio.gather(changing, return_exceptions=True)
    await pair.first.idle()
    # What was decided while the batch was merged may have gone with it, as a part of the same work.
    last = await _committed(pair)
    await pair.first.idle()
    assert await pair.line() == []
    for one in (transaction, after, last):
        assert await pair.first.transactions.status("scope", "stream", one) is TransactionStatus.COMMITTED


async def test_an_entry_whose_owner_never_begins_is_skipped(house: House) -> None:
    """Its owner is alive, and has forgotten it: a write that came late, a call that hangs. It costs one wait."""
    await house.start(replace(SETTINGS, turn_timeout_ms=30))
    ghost = WaitingRequest(STREAM.key, Lane.CHANGE, house.second._context.host, "ghost")
    other = WaitingRequest("stream/scope/other", Lane.CHANGE, house.second._context.host, "other")
    await house.put_in_line(ghost, replace(ghost, ticket="second ghost"), other)
    transaction = await _committed(house)
    await house.check_end(transaction)
    assert house.begun == [(1, "commit transactions")]
    # Waiting requests for another subject in the same bucket were left there.
    assert (await house.fence()).record.waiting == (other,)
    await house.put_in_line(replace(ghost, lane=Lane.COMMIT))
    await _update(house.first)
    await house.check_end()


async def test_work_that_has_begun_continues_although_callers_wait(pair: House) -> None:
    """S-205: a change and a commit fail half-way, others are in line; they are finished nevertheless, and first."""
    for call, work in (
        ("update_policy", lambda: _update(pair.first)),
        ("truncate_segment", lambda: pair.first.truncate_stream("scope", "stream", {0: 1, 1: 1})),
        ("merge_segments", lambda: _committed(pair)),
        ("create_segment", lambda: _scale(pair.first)),
    ):
        for segment in (0, 1):
            if call == "truncate_segment":
                await _fill(pair, segment)
        pair.journal.forget()
        pair.scripted.rule = lambda name, arguments, call=call: (  # type: ignore[misc]
            ContainerOfflineError(0)
            if name == call and "_tables" not in str(arguments[0]) and "#transaction" not in str(arguments[0])
            else None
        )
        working = asyncio.create_task(work())
        await until(lambda: pair.begun, "it has begun")
        ghost = WaitingRequest(STREAM.key, Lane.CHANGE, pair.second._context.host, "ghost")
        await pair.put_in_line(ghost)
        pair.scripted.rule = lambda name, arguments: None
        await asyncio.gather(working, return_exceptions=True)
        for _ in range(60_000):
            if not [subject async for subject in pair.first._context.claims.pending()]:
                break
            await asyncio.sleep(0.001)
        else:
            raise AssertionError(f"the work that {call} is a part of is not finished")
        assert (await pair.line())[0] == (2, Lane.CHANGE)
        await pair.put_in_line()
        await pair.idle()
    await pair.check_end()


async def _fill(house: House, segment: int) -> None:
    await house.cluster.store.append(f"scope/stream/{segment}.#epoch.0", b"12345")


async def test_a_name_never_blocks_its_own_controller(pair: House) -> None:
    """S-206: another change there uses the name, and who was in line by it comes again."""
    transaction, changing = await _blocked_commit_and_waiting_change(pair)
    others = [asyncio.create_task(_update(pair.second, f"t{number}")) for number in range(5)]
    pair.held.release()
    await asyncio.gather(changing, *others)
    await pair.check_end(transaction)
    assert pair.begun.count((2, "update stream")) == 6


async def test_an_entry_leaves_the_queue_when_its_call_is_refused(pair: House) -> None:
    """S-206: after its wait a scale is found to be impossible; no other request waits for it afterwards."""
    transaction = await pair.begin(pair.first)
    pair.held.is_blocked, pair.held.call_name = True, "merge_segments"
    await pair.commit(pair.first, transaction)
    await until(lambda: pair.begun, "the merge is announced")
    scaling = asyncio.create_task(pair.second.scale_stream("scope", "stream", [0], [(0.0, 0.7)]))
    await pair.until_line([(2, Lane.CHANGE)])
    pair.held.release()
    with pytest.raises(PenstockError):
        await scaling
    await pair.check_end(transaction)


async def test_a_caller_that_finds_the_queue_full_waits_without_an_entry(house: House) -> None:
    """The line is bounded. A change then runs when no other work is under way."""
    await house.start(replace(SETTINGS, waiting_requests_max=0))
    transaction = await house.begin(house.first)
    house.held.is_blocked, house.held.call_name = True, "merge_segments"
    await house.commit(house.first, transaction)
    await until(lambda: house.begun, "the merge is announced")
    changing = asyncio.create_task(_update(house.second))
    for _ in range(30):
        await asyncio.sleep(0.001)
    assert await house.line() == []
    house.held.release()
    await changing
    await house.check_end(transaction)


async def test_lost_replies_and_late_duplicates_of_entries_change_nothing(pair: House) -> None:
    """A name whose write's reply is lost is in line once; a duplicate of it after its use adds no name."""
    claims = pair.second._context.claims
    caller = object()
    await pair.first._context.begin(STREAM, _order(), "life")
    pair.journal.is_reply_lost = True
    await claims.enqueue(STREAM, Lane.CHANGE, caller, "a")
    pair.journal.is_reply_lost = False
    standing = pair.journal.puts[-1]
    await claims.enqueue(STREAM, Lane.CHANGE, object(), "b")
    assert await pair.line() == [(2, Lane.CHANGE)]
    await claims.dequeue(STREAM, Lane.CHANGE, caller)
    assert await pair.line() == [(2, Lane.CHANGE)], "another caller waits by the same name"
    claimed = await pair.first._context.claims.claim(STREAM)
    await pair.first._context.claims.withdraw(claimed)  # type: ignore[arg-type]
    with pytest.raises(WorkElsewhereError):
        await pair.first._context.begin(STREAM, _order(), "life")
    begun = await pair.second._context.begin(STREAM, _order(), "life")
    assert await pair.line() == []
    with pytest.raises(MetadataConflictError):
        await pair.journal.store.put(layout.PENDING_WORK, standing)
    assert await pair.line() == []
    await claims.withdraw(begun)


def _order() -> SealStream:
    return SealStream()


async def test_an_entry_that_cannot_be_removed_is_skipped_later(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """The store is away when a caller gives up: its own error is raised, not the line's; others wait one time-out."""
    await house.start(replace(SETTINGS, turn_timeout_ms=30))
    claims = house.second._context.claims
    begun = await house.first._context.begin(STREAM, _order(), "life")
    caller = object()
    await claims.enqueue(STREAM, Lane.CHANGE, caller, "a")
    house.journal.is_reply_lost = True
    await claims.dequeue(STREAM, Lane.CHANGE, caller)
    house.journal.is_reply_lost = False
    assert len(claims._waiting) == 0
    await house.first._context.claims.withdraw(begun)
    assert (await house.first.transactions.completed("scope", "stream")) == []
    await house.check_end(await _committed(house))


async def test_the_queue_entry_of_a_commit_is_deleted_with_its_stream(house: House) -> None:
    """The stream is deleted while a commit waits for it: neither a name nor a place is kept for what will not come."""
    await house.start(replace(SETTINGS, turn_timeout_ms=30))
    claims, work = house.second._context.claims, house.second.transactions.work
    transaction = await house.begin(house.second)
    begun = await house.first._context.begin(STREAM, _order(), "life")
    await claims.enqueue(STREAM, Lane.COMMIT, work._commits, "a")
    assert await house.line() == [(2, Lane.COMMIT)]
    await house.first._context.claims.withdraw(begun)
    await _seal(house.first)
    await house.first.delete_stream("scope", "stream")
    assert len(claims._waiting) == 1
    # As if it had known of too many others since: it finds the stream gone before it announces anything.
    house.second._catalog._stream_ids.clear()
    assert list(await work._commit("scope", "stream", [transaction])) == [transaction]
    await house.check_end()


async def test_a_lock_is_handed_from_lane_to_lane() -> None:
    """Two in one lane and one in the other: they take turns; who was cancelled while it waited is left out."""
    locks, order, free = StreamLocks(), [], asyncio.Event()

    async def work(name: str, lane: str) -> None:
        async with locks.hold("s", lane=lane):
            order.append(name)
            await free.wait()

    tasks = [asyncio.create_task(work(f"change {number}", "")) for number in range(4)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(work(f"commit {number}", "commit")) for number in range(3)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    free.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["change 0", "commit 0", "change 1", "commit 1", "change 3", "commit 2"]
    assert len(locks) == 0


async def test_a_lock_passed_to_a_cancelled_waiter_goes_to_the_next() -> None:
    """The lock and the cancellation arrive in the same turn of the loop: no waiter hangs."""
    locks, order = StreamLocks(), []
    free = asyncio.Event()

    async def work(name: str) -> None:
        async with locks.hold("s"):
            order.append(name)
            await free.wait()

    first, second, third = (asyncio.create_task(work(name)) for name in "abc")
    await asyncio.sleep(0)
    free.set()
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert order in (["a", "c"], ["a", "b", "c"])
    assert len(locks) == 0

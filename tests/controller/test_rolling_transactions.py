"""Transactions that a scale has overtaken: which epochs follow, what is in them, and what else is going on meanwhile.

Shows S-142, S-143, S-144, S-145 and S-165, each where it is named. Crashes: see also `test_scale_crashes`.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from penstock.controller.errors import ScalePreconditionError
from penstock.controller.metadata.records import (
    CommittingTransactions,
    EpochTransition,
    StreamState,
    TransactionStatus,
)
from penstock.controller.metadata.scale_plan import history_entry
from penstock.model.errors import PenstockError, ScopeExistsError, StreamExistsError
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import BlockedSegments, StalledSegments
from support.crash_script import at_each_write, run, run_with_survivor
from support.failing_segments import Fault
from support.mark_segments import without_marks
from support.two_controllers import SETTINGS, announced, tables_of, until

COMMITTED = TransactionStatus.COMMITTED
HALVES = [(0.0, 0.5), (0.5, 1.0)]
WHOLE = [(0.0, 1.0)]


@pytest.fixture
async def started(service):
    """A controller with a stream of one segment."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    return service


@pytest.fixture
def only_decides(started, monkeypatch):
    """Let nothing follow from a decision."""
    monkeypatch.setattr(started.transactions.work, "post_commit", lambda opened: None)
    return monkeypatch


async def begin(cluster, service, data):
    """Begin a transaction with `data` in each of its segments."""
    made = await service.transactions.create("scope", "stream", 10_000)
    for segment in made.epoch.segments:
        parent = segment_name("scope", "stream", segment.id)
        await cluster.store.append(transaction_segment_name(parent, made.id.high, made.id.low), data)
    return made.id


async def commit(service, transaction):
    return await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=1)


async def status(service, transaction):
    return await service.transactions.status("scope", "stream", transaction)


async def scale(service, ranges):
    """Replace all segments by others."""
    current = await service.current_segments("scope", "stream")
    await service.scale_stream("scope", "stream", [segment.id for segment in current], ranges)
    await service.idle()


async def write(cluster, service, data):
    """Write what is no part of a transaction to all segments that are open."""
    for segment in await service.current_segments("scope", "stream"):
        await cluster.store.append(segment_name("scope", "stream", segment.id), data)


def data_of(cluster, number, epoch):
    return bytes(cluster.store.segments[segment_name("scope", "stream", segment_id(number, epoch))].data)


async def shape(service):
    """Return of each epoch its reference and its segments' numbers and keys."""
    tables = await tables_of(service)
    return [
        (epoch.reference_epoch, [(one.number, one.key_start, one.key_end) for one in epoch.segments])
        for epoch in await tables.epochs(0, (await tables.current_epoch()).epoch)
    ]


async def check_rest(cluster, service):
    """Check that all is over: the stream is free, nothing is left of transactions, what has ended is sealed."""
    tables = await tables_of(service)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert (await tables.commit_view()).committing.record == CommittingTransactions()
    assert (await tables.transition()).record == EpochTransition()
    assert announced(cluster) == []
    current = await tables.current_epoch()
    assert await tables.epoch(current.epoch + 1) is None
    epochs = await tables.epochs(0, current.epoch)
    every = {segment_name("scope", "stream", one.id): one.id for epoch in epochs for one in epoch.segments}
    open_now = {segment_name("scope", "stream", one.id) for one in current.segments}
    found = without_marks(cluster.store)
    assert found.keys() == every.keys()
    assert {name for name, segment in found.items() if not segment.is_sealed} == open_now
    lengths = {every[name]: len(segment.data) for name, segment in found.items() if segment.is_sealed}
    assert await tables.sealed_sizes(lengths) == lengths
    ends = {
        one.id: later.epoch for epoch, later in pairwise(epochs) for one in epoch.segments if one not in later.segments
    }
    assert await tables.sealed_epochs(list(ends)) == ends
    assert [entry async for entry in tables.history(1, current.epoch)] == [
        history_entry(later, later if later.reference_epoch != later.epoch else epoch)
        for epoch, later in pairwise(epochs)
    ]


async def test_a_transaction_of_epoch_0_in_epoch_2_makes_epochs_3_and_4(cluster, started):
    """S-142: epoch 3 is epoch 0 again, with the transaction, epoch 4 is epoch 2 again; they refer to 0 and 2.

    A segment that a scale has left as it was is replaced as all others are.
    """
    late = await begin(cluster, started, b"late")
    await write(cluster, started, b"before")
    await scale(started, HALVES)
    await started.scale_stream("scope", "stream", [segment_id(1, 1)], [(0.0, 0.25), (0.25, 0.5)])
    await started.idle()
    await write(cluster, started, b"after")
    tables = await tables_of(started)
    scaled = await tables.current_epoch()
    assert [one.id for one in scaled.segments] == [segment_id(3, 2), segment_id(4, 2), segment_id(2, 1)]
    await commit(started, late)
    await started.idle()
    assert await status(started, late) is COMMITTED
    whole, quarters = [(0, 0.0, 1.0)], [(3, 0.0, 0.25), (4, 0.25, 0.5), (2, 0.5, 1.0)]
    found = await shape(started)
    assert [reference for reference, _ in found] == [0, 1, 2, 0, 2]
    assert [segments for _, segments in found[2:]] == [quarters, whole, quarters]
    # Splits and merges are those of the scales: a roll is neither.
    assert {(one.splits, one.merges) for one in await tables.epochs(3, 4)} == {(scaled.splits, scaled.merges)}
    created = [one.created_ms for one in await tables.epochs(0, 4)]
    assert created == sorted(set(created))
    current = [segment_id(number, 4) for number in (3, 4, 2)]
    assert [one.id for one in await started.current_segments("scope", "stream")] == current
    assert data_of(cluster, 0, 3) == b"late"
    assert [data_of(cluster, *place) for place in ((0, 0), (1, 1), (2, 1), (3, 2), (3, 4))] == [
        b"before", b"", b"after", b"after", b""
    ]  # fmt: skip
    # Readers go from epoch 2 through 3 to 4.
    of_epoch_2 = tuple(one.id for one in scaled.segments)
    for segment in of_epoch_2:
        (following,) = await started.successors("scope", "stream", segment)
        assert (following.segment.id, following.predecessors) == (segment_id(0, 3), of_epoch_2)
    following = await started.successors("scope", "stream", segment_id(0, 3))
    assert [(one.segment.id, one.predecessors) for one in following] == [(id, (segment_id(0, 3),)) for id in current]
    await check_rest(cluster, started)


async def test_transactions_of_two_old_epochs_are_rolled_one_epoch_after_the_other(cluster, started, only_decides):
    """S-143: the lowest epoch first, whatever was decided first; each with epochs of its own, in the order decided."""
    zero = [await begin(cluster, started, b"0%d" % number) for number in range(2)]
    await scale(started, HALVES)
    one = [await begin(cluster, started, b"1%d" % number) for number in range(2)]
    await scale(started, WHOLE)
    current = await begin(cluster, started, b"now")
    decided = [current, one[1], zero[1], one[0], zero[0]]
    for transaction in decided:
        await commit(started, transaction)
    only_decides.undo()
    for transaction in decided:
        # Decided again changes nothing; what follows from it does now.
        await commit(started, transaction)
    await started.idle()
    assert {await status(started, each) for each in (*zero, *one, current)} == {COMMITTED}
    assert [reference for reference, _ in await shape(started)] == [0, 1, 2, 0, 2, 1, 2]
    assert data_of(cluster, 0, 3) == b"0100"
    assert [data_of(cluster, number, 5) for number in (1, 2)] == [b"1110"] * 2
    assert [data_of(cluster, 3, epoch) for epoch in (2, 4, 6)] == [b"", b"", b"now"]
    await check_rest(cluster, started)


async def test_transactions_of_the_epoch_that_the_current_one_repeats_are_merged_directly(cluster, started):
    """S-144: whether they began before the roll or after it. Their segments are named by the epoch of their ids.

    A request for the segments of that epoch, to resume one by its id, therefore gets the segments that exist.
    """
    old = await begin(cluster, started, b"old")
    await scale(started, HALVES)
    await started.scale_stream("scope", "stream", [segment_id(1, 1)], [(0.0, 0.5)])
    await started.idle()
    before = await begin(cluster, started, b"<before>")
    await commit(started, old)
    await started.idle()
    references = [reference for reference, _ in await shape(started)]
    assert references == [0, 1, 2, 0, 2]
    made = await started.transactions.create("scope", "stream", 10_000)
    segments = await started.epoch_segments("scope", "stream", made.id.epoch)
    assert (before.epoch, made.id.epoch, made.epoch.segments) == (2, 2, segments)
    assert [one.id for one in segments] == [segment_id(3, 2), segment_id(2, 1)]
    for segment in segments:
        # It is there: there is nothing else that it could be appended to.
        parent = segment_name("scope", "stream", segment.id)
        await cluster.store.append(transaction_segment_name(parent, made.id.high, made.id.low), b"<after>")
    for transaction in (made.id, before):
        await commit(started, transaction)
    await started.idle()
    assert {await status(started, each) for each in (made.id, before)} == {COMMITTED}
    assert [reference for reference, _ in await shape(started)] == references
    assert [data_of(cluster, number, 4) for number in (3, 2)] == [b"<after><before>"] * 2
    await check_rest(cluster, started)


async def test_segments_of_both_epochs_roll_over_as_the_stream_says_and_only_the_second_reports_load(cluster, service):
    """What is merged and sealed is not to be split; how long its chunks are is the stream's, as of all its segments."""
    policy = Scaling.by_event_rate(100, factor=2, min_segments=1)
    await service.create_stream("scope", "stream", StreamConfig(policy, rollover_bytes=1 << 20))
    late = await begin(cluster, service, b"late")
    await scale(service, HALVES)
    create, asked = cluster.store.create_segment, {}

    async def recorded(segment, **options):
        asked[segment] = (options["rollover_bytes"], options["target_rate"])
        await create(segment, **options)

    cluster.store.create_segment = recorded
    await commit(service, late)
    await service.idle()
    assert asked == {
        segment_name("scope", "stream", segment_id(number, epoch)): (1 << 20, rate)
        for number, epoch, rate in ((0, 2, 0), (1, 3, 100), (2, 3, 100))
    }


# Beside other work, at another controller.


async def overtaken(cluster, held):
    """Start two controllers, the first over `held`, with a stream of epoch 1 and a transaction of epoch 0."""
    first = cluster.build(SETTINGS, segments=held)
    await first.start()
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    transaction = await begin(cluster, first, b"late")
    await scale(first, HALVES)
    second = await cluster.start(SETTINGS)
    await idle(first, second)
    return first, second, transaction


async def idle(*services):
    for _ in range(2):
        for service in services:
            await service.idle()


async def scale_again(service):
    """Split the first half; name it again if it was rolled over between the read and the change."""
    while True:
        (first, *_) = await service.current_segments("scope", "stream")
        try:
            await service.scale_stream("scope", "stream", [first.id], [(0.0, 0.25), (0.25, 0.5)])
        except ScalePreconditionError:
            assert (await service.current_segments("scope", "stream"))[0].id != first.id
        else:
            return


async def check_both_are_done(cluster, service, transaction, references):
    assert await status(service, transaction) is COMMITTED
    found = await shape(service)
    assert [reference for reference, _ in found] in references
    assert [keys for _, *keys in found[-1][1]] == [[0.0, 0.25], [0.25, 0.5], [0.5, 1.0]]
    everything = b"".join(bytes(segment.data) for segment in without_marks(cluster.store).values())
    assert everything == b"late"
    await check_rest(cluster, service)


async def test_a_roll_that_comes_while_a_scale_runs_waits_for_it(cluster):
    """S-145: it is not refused. It begins in the epoch that the scale has made, and goes back to that one."""
    held = BlockedSegments(cluster.store, lambda name: name.startswith("scope/"), call_name="seal_segment")
    first, second, transaction = await overtaken(cluster, held)
    held.is_blocked = True
    await first.scale_stream("scope", "stream", [segment_id(1, 1)], [(0.0, 0.25), (0.25, 0.5)])
    await until(lambda: segment_name("scope", "stream", segment_id(3, 2)) in cluster.store.segments, "it is under way")
    before = set(cluster.store.segments)
    await commit(second, transaction)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert set(cluster.store.segments) == before
    held.release()
    await idle(first, second)
    await check_both_are_done(cluster, second, transaction, [[0, 1, 2, 0, 2]])


async def test_a_scale_that_comes_while_transactions_are_rolled_over_waits_for_that(cluster):
    """S-145: it names segments that the roll replaces, and gets an error; the next order is for their copies."""
    held = BlockedSegments(cluster.store, lambda name: name.startswith("scope/"), call_name="merge_segments")
    first, second, transaction = await overtaken(cluster, held)
    held.is_blocked = True
    await commit(first, transaction)
    await until(lambda: segment_name("scope", "stream", segment_id(0, 2)) in cluster.store.segments, "it is under way")
    scaling = asyncio.create_task(
        second.scale_stream("scope", "stream", [segment_id(1, 1)], [(0.0, 0.25), (0.25, 0.5)])
    )
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not scaling.done()
    held.release()
    with pytest.raises(ScalePreconditionError):
        await scaling
    await idle(first, second)
    await scale_again(second)
    await idle(first, second)
    await check_both_are_done(cluster, second, transaction, [[0, 1, 0, 1, 4]])


async def stalled_at(fresh, at, does):
    """Let `does(first)` stand still before its write number `at`; yield all there is then. None: no such write."""
    cluster = fresh()
    held = StalledSegments(cluster.store)
    first, second, transaction = await overtaken(cluster, held)
    held.stall_at(at)

    async def to_the_end():
        await does(first, transaction)
        await first.idle()

    one = asyncio.create_task(to_the_end())
    reached = asyncio.create_task(held.reached.wait())
    await asyncio.wait([one, reached], return_when=asyncio.FIRST_COMPLETED)
    if not held.reached.is_set():
        reached.cancel()
        await one
        return None
    return cluster, first, second, transaction, one, held


async def test_a_scale_and_a_roll_paused_at_any_write_both_complete(fresh):
    """S-145: either first, at each of its writes; the other one comes to another controller meanwhile."""

    async def scales(service, transaction):
        await scale_again(service)

    async def commits(service, transaction):
        await commit(service, transaction)

    for does, does_too in ((commits, scales), (scales, commits)):
        at = 0
        while (begun := await stalled_at(fresh, at := at + 1, does)) is not None:
            cluster, first, second, transaction, one, held = begun
            other = asyncio.create_task(does_too(second, transaction))
            for _ in range(20):
                await asyncio.sleep(0.001)
            held.go_on.set()
            await one
            await other
            await idle(first, second)
            # Rolled and then scaled, or scaled and then rolled; nothing besides, and nothing twice.
            await check_both_are_done(cluster, second, transaction, [[0, 1, 0, 1, 4], [0, 1, 2, 0, 2]])
        assert at > 10


async def test_a_roll_paused_at_any_write_is_finished_by_another_controller(fresh):
    """S-165: the first one is taken for dead and continues later, as a zombie: it changes nothing any more."""
    at = 0

    async def commits(service, transaction):
        await commit(service, transaction)

    while (begun := await stalled_at(fresh, at := at + 1, commits)) is not None:
        cluster, first, second, transaction, one, held = begun
        cluster.expire(first)
        await asyncio.sleep(0)
        await second.idle()
        # Not decided yet, unless it is: then it is finished.
        decided = await status(second, transaction)
        if decided is TransactionStatus.OPEN:
            await commit(second, transaction)
            await second.idle()
        assert await status(second, transaction) is COMMITTED
        references = [reference for reference, _ in await shape(second)]
        assert references == [0, 1, 0, 1]
        held.go_on.set()
        await asyncio.wait([one])
        assert one.exception() is None or isinstance(one.exception(), PenstockError)
        await idle(first, second)
        assert [reference for reference, _ in await shape(second)] == references
        assert data_of(cluster, 0, 2) == b"late"
        await check_rest(cluster, second)
    assert at > 10


@pytest.mark.parametrize("call", ["merge_segments", "seal_segment"])
async def test_a_roll_that_was_overtaken_makes_no_segments_of_a_stream_that_is_gone(cluster, call, caplog):
    """It stalls as it merges, or seals; another one ends the roll, and the stream is deleted. Then it resumes.

    The missing segments are no loss: everything was merged into them. It reports none.
    """
    held = BlockedSegments(cluster.store, lambda name: name.startswith("scope/"), call_name=call)
    first, second, transaction = await overtaken(cluster, held)
    held.is_blocked = True
    await commit(first, transaction)
    await until(lambda: segment_name("scope", "stream", segment_id(0, 2)) in cluster.store.segments, "it is under way")
    cluster.expire(first)
    await until(lambda: second.statistics().taken_over_count, "the other one has taken it over")
    await second.idle()
    assert await status(second, transaction) is COMMITTED
    await second.seal_stream("scope", "stream")
    await second.delete_stream("scope", "stream")
    held.release()
    await idle(first, second)
    assert without_marks(cluster.store) == {}
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


# Crashes.


class Script:
    """Rolls transactions of two epochs over a stream with a segment that a scale has left, and then deletes it all."""

    def __init__(self, store) -> None:
        self.store = store
        self.made = {}

    def steps(self):
        return [
            self.create, self.begins(0), self.split, self.begins(1), self.join, self.begins(2),
            self.commits(1), self.settle, self.commits(0), self.settle, self.begins(3),
            self.commits(3), self.commits(2), self.settle, self.check, self.seal, self.delete, self.delete_scope,
        ]  # fmt: skip

    async def create(self, service):
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass
        try:
            await service.create_stream("s", "t", StreamConfig(Scaling.fixed(2)))
        except StreamExistsError:
            pass

    def begins(self, number):
        async def begin(service):
            made = await service.transactions.create("s", "t", 30_000)
            for segment in made.epoch.segments:
                parent = segment_name("s", "t", segment.id)
                name = transaction_segment_name(parent, made.id.high, made.id.low)
                await self.store.append(name, b"<%d>" % number)
            self.made[number] = made.id

        return begin

    def commits(self, number):
        async def commit(service):
            found = await service.transactions.commit("s", "t", self.made[number], writer_id="w", timestamp=number)
            assert found in (TransactionStatus.COMMITTING, COMMITTED)

        return commit

    async def settle(self, service):
        await service.idle()

    async def split(self, service):
        await self.scale(service, [0], [(0.0, 0.25), (0.25, 0.5)])

    async def join(self, service):
        await self.scale(service, [segment_id(2, 1), segment_id(3, 1)], [(0.0, 0.5)])

    async def scale(self, service, to_seal, ranges):
        try:
            await service.scale_stream("s", "t", to_seal, ranges)
        except ScalePreconditionError:
            pass  # It is done already.
        await service.idle()

    async def check(self, service):
        """Each is committed once, in the segments of its own epoch; the epochs are as without a crash."""
        for made in self.made.values():
            assert await service.transactions.status("s", "t", made) is COMMITTED
        tables = await service._catalog.on_stream("s", "t", _itself)
        current = await tables.current_epoch()
        epochs = await tables.epochs(0, current.epoch)
        assert [epoch.reference_epoch for epoch in epochs] == [0, 1, 2, 1, 2, 0, 2]
        assert await tables.epoch(7) is None
        expected = {(0, 5): b"<0>", (1, 5): b"<0>", (4, 6): b"<3><2>", (1, 6): b"<3><2>"}
        expected |= {(number, 3): b"<1>" for number in (2, 3, 1)}
        names = {segment_name("s", "t", segment_id(*place)): data for place, data in expected.items()}
        found = {name: segment for name, segment in without_marks(self.store).items() if "#transaction" not in name}
        assert {name: bytes(segment.data) for name, segment in found.items() if segment.data} == names
        assert found.keys() == {segment_name("s", "t", one.id) for epoch in epochs for one in epoch.segments}
        open_now = {segment_name("s", "t", one.id) for one in current.segments}
        assert {name for name, segment in found.items() if not segment.is_sealed} == open_now

    async def seal(self, service):
        await service.seal_stream("s", "t")

    async def delete(self, service):
        if await service.stream_exists("s", "t"):
            await service.delete_stream("s", "t")

    async def delete_scope(self, service):
        if await service.scope_exists("s"):
            await service.delete_scope("s")


async def _itself(tables):
    return tables


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
async def test_a_death_at_any_write_is_followed_by_the_controller_that_is_alive(fault, fresh):
    """Records and segments alike: one controller dies, the other one finishes the roll and the work after it."""
    await at_each_write(run_with_survivor, fresh, Script, fault)


@pytest.mark.parametrize("fault", list(Fault))
async def test_rolls_end_the_same_whichever_write_fails(fault, fresh):
    """The controller dies, or a request or a reply is lost, at each write; the next one, or the same one, resumes."""
    await at_each_write(run, fresh, Script, fault)

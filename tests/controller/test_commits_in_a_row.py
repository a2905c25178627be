"""Commits that follow one another: what a controller knows from the last one is right, or is seen not to be.

The crashes of `test_crashes.py`, with commits that begin where the one before has ended; two controllers that take
turns; a controller that is behind the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.controller.metadata.records import ActiveTransaction, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.transactions.service import CreatedTransaction
from penstock.model.errors import MetadataConflictError, ScopeExistsError, StreamExistsError, StreamSealedError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock_simulation.memory_segments import MemorySegments
from support.crash_script import at_each_write, run, run_with_survivor
from support.failing_segments import Fault
from support.in_process_cluster import InProcessCluster

COMMITTED = TransactionStatus.COMMITTED


def piece(transaction: TransactionId, segment: int = 0, scope: str = "s", stream: str = "t") -> str:
    return transaction_segment_name(segment_name(scope, stream, segment), transaction.high, transaction.low)


class Script:
    """Commits one transaction after the other on a stream of two segments, then ends the stream."""

    count = 4

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.made: dict[int, TransactionId] = {}

    def steps(self) -> list[Callable[..., Awaitable[Any]]]:
        steps = [self.create]
        for number in range(self.count):
            steps += [self.begins(number), self.commits(number), *([self.settle] if number % 2 else [])]  # type: ignore[list-item]
        return [*steps, self.settle, self.check, self.seal, self.delete, self.delete_scope]

    async def create(self, service: ControllerService) -> None:
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass
        try:
            await service.create_stream("s", "t", StreamConfig(Scaling.fixed(2)))
        except StreamExistsError:
            pass

    def begins(self, number: int) -> Callable[..., Awaitable[Any]]:
        async def begin(service: ControllerService) -> None:
            self.made[number] = made = (await service.transactions.create("s", "t", 10_000)).id
            for segment in (0, 1):
                await self.store.append(piece(made, segment), b"%d" % number)

        return begin

    def commits(self, number: int) -> Callable[..., Awaitable[Any]]:
        async def commit(service: ControllerService) -> None:
            status = await service.transactions.commit("s", "t", self.made[number], writer_id="w", timestamp=number)
            assert status in (TransactionStatus.COMMITTING, COMMITTED)

        return commit

    async def settle(self, service: ControllerService) -> None:
        await service.idle()

    async def check(self, service: ControllerService) -> None:
        """All of them are committed, once each, in their order, in both segments."""
        for made in self.made.values():
            assert await service.transactions.status("s", "t", made) is COMMITTED
        expected = b"".join(b"%d" % number for number in range(self.count))
        for segment in (0, 1):
            assert self.store.segments[segment_name("s", "t", segment)].data == expected

    async def seal(self, service: ControllerService) -> None:
        await service.seal_stream("s", "t")

    async def delete(self, service: ControllerService) -> None:
        if await service.stream_exists("s", "t"):
            await service.delete_stream("s", "t")

    async def delete_scope(self, service: ControllerService) -> None:
        if "s" in (await service.list_scopes("")).names:
            await service.delete_scope("s")


@pytest.mark.parametrize("fault", list(Fault))
async def test_commits_in_a_row_end_the_same_whichever_write_fails(
    fault: Fault, fresh: Callable[[], InProcessCluster]
) -> None:
    """The controller dies, or a request or a reply is lost, at each write of four commits."""
    await at_each_write(run, fresh, Script, fault)


async def test_commits_in_a_row_are_finished_by_the_controller_that_is_alive(
    fresh: Callable[[], InProcessCluster],
) -> None:
    """The first one dies after each write; the other one continues work that it has never seen."""
    await at_each_write(run_with_survivor, fresh, Script, Fault.DIES_AFTER)


async def test_commits_through_two_controllers_keep_the_order_of_their_decisions(cluster: InProcessCluster) -> None:
    """A client calls one and then the other: the decision made first is merged first, in every segment."""
    services = [await cluster.start(), await cluster.start()]
    await services[0].create_scope("s")
    await services[0].create_stream("s", "t", StreamConfig(Scaling.fixed(2)))
    for number in range(30):
        # Each knows the order from its own commits, until the other one has its turn: after one, two or three.
        service = services[number // 3 % 2 if number % 5 else number % 2]
        made = (await service.transactions.create("s", "t", 10_000)).id
        for segment in (0, 1):
            await cluster.store.append(piece(made, segment), b"%02d." % number)
        await service.transactions.commit("s", "t", made, writer_id="w", timestamp=-1)
        if number % 7 == 0:
            await service.idle()
    for service in services:
        await service.idle()
    expected = b"".join(b"%02d." % number for number in range(30))
    assert [cluster.store.segments[segment_name("s", "t", segment)].data for segment in (0, 1)] == [expected] * 2


async def test_what_another_controller_has_decided_before_is_merged_before(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has decided, and not merged yet: the one that knows the order from its own commits reads it again."""
    first, second = await cluster.start(), await cluster.start()
    await first.create_scope("s")
    await first.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))
    monkeypatch.setattr(second.transactions.work, "post_commit", lambda opened: None)
    for service, data in ((first, b"a"), (first, b"b"), (second, b"c"), (first, b"d"), (first, b"e")):
        made = (await service.transactions.create("s", "t", 10_000)).id
        await cluster.store.append(piece(made), data)
        await service.transactions.commit("s", "t", made, writer_id="w", timestamp=-1)
        await first.idle()
    assert cluster.store.segments[segment_name("s", "t", 0)].data == b"abcde"


async def test_a_commit_after_a_scale_at_another_controller_goes_to_the_new_segments(cluster: InProcessCluster) -> None:
    """The first one's state and epoch are out of date: it detects that, and rolls over or restarts."""
    first, second = await cluster.start(), await cluster.start()
    await first.create_scope("s")
    await first.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))

    async def begin(data: bytes) -> CreatedTransaction:
        made = await first.transactions.create("s", "t", 10_000)
        for segment in made.epoch.segments:
            await cluster.store.append(piece(made.id, segment.id), data)
        return made

    async def commit(made: CreatedTransaction) -> None:
        assert await first.transactions.commit("s", "t", made.id, writer_id="w", timestamp=-1) is (
            TransactionStatus.COMMITTING
        )
        await first.idle()

    for _ in range(2):
        await commit(await begin(b"before"))
    early = await begin(b"early")
    await second.scale_stream("s", "t", [0], [(0.0, 0.5), (0.5, 1.0)])
    await second.idle()
    late = await begin(b"late")
    assert late.epoch.epoch == 1
    await commit(early)
    await commit(late)
    assert cluster.store.segments[segment_name("s", "t", 0)].data == b"beforebefore"
    data = [bytes(cluster.store.segments[segment_name("s", "t", at.id)].data) for at in
            await first.current_segments("s", "t")]  # fmt: skip
    assert data == [b"late", b"late"]
    everything = b"".join(bytes(found.data) for found in cluster.store.segments.values())
    assert everything.count(b"early") == 1
    assert first.statistics().failed_attempt_count == 0


async def test_a_stream_that_another_controller_has_sealed_takes_no_transaction(cluster: InProcessCluster) -> None:
    """The first one knows the stream as open: it finds out, refuses, and leaves nothing."""
    first, second = await cluster.start(), await cluster.start()
    await first.create_scope("s")
    await first.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))
    made = (await first.transactions.create("s", "t", 10_000)).id
    await first.transactions.abort("s", "t", made)
    await first.idle()
    await second.seal_stream("s", "t")
    before = set(cluster.store.segments)
    with pytest.raises(StreamSealedError):
        await first.transactions.create("s", "t", 10_000)
    await first.idle()
    assert set(cluster.store.segments) == before


async def test_tables_of_finished_epochs_go(cluster: InProcessCluster) -> None:
    """Each scale makes an epoch: the tables of those without open transactions are dropped, and not noted any more."""
    service = await cluster.start()
    await service.create_scope("s")
    await service.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))

    def tables() -> list[str]:
        return sorted(name.partition("-")[2].partition(".")[0] for name in cluster.store.tables if "InEpoch-" in name)

    async def transaction(epoch: int) -> TransactionId:
        made = (await service.transactions.create("s", "t", 10_000)).id
        assert made.epoch == epoch
        return made

    async def commit(made: TransactionId) -> None:
        await service.transactions.commit("s", "t", made, writer_id="w", timestamp=-1)
        await service.idle()

    async def scale() -> None:
        (segment,) = await service.current_segments("s", "t")
        await service.scale_stream("s", "t", [segment.id], [(0.0, 1.0)])
        await service.idle()

    await commit(await transaction(0))
    await scale()
    left_open = await transaction(1)
    assert tables() == ["1"]
    await scale()
    await commit(await transaction(2))
    assert tables() == ["1", "2"]
    await commit(left_open)
    await scale()
    number = (await service.transactions.create("s", "t", 10_000)).id.epoch
    assert tables() == [str(number)]
    (noted,) = (found for name, found in cluster.store.tables.items() if "/s/t/epochsWithTransactions" in name)
    assert list(noted.entries) == [str(number).encode()]
    await service.seal_stream("s", "t")
    await service.delete_stream("s", "t")
    assert tables() == []


async def test_a_transaction_whose_epochs_table_goes_while_it_is_made_begins_again(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another controller finds the table empty, and drops it, right before the record is written."""
    service = await cluster.start()
    await service.create_scope("s")
    await service.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))
    await service.transactions.create("s", "t", 10_000)
    (name,) = (name for name in cluster.store.tables if "InEpoch-0" in name)
    dropped: list[str]
    create_table, dropped = cluster.store.create_table, []

    async def create_and_lose(segment: str, **options: Any) -> None:
        await create_table(segment, **options)
        if segment == name and not dropped:
            dropped.append(segment)
            await cluster.store.delete_table(segment)

    await cluster.store.delete_table(name)
    monkeypatch.setattr(cluster.store, "create_table", create_and_lose)
    made = (await service.transactions.create("s", "t", 10_000)).id
    assert dropped == [name]
    assert await service.transactions.status("s", "t", made) is TransactionStatus.OPEN
    # As a conflict, which restarts, and not as a stream that is gone.
    tables = service._catalog.tables_of("s", "t", await service._catalog.stream_id("s", "t"))  # type: ignore[arg-type]
    await cluster.store.delete_table(name)
    dropped.clear()
    with pytest.raises(MetadataConflictError):
        await tables.create_transaction(TransactionId.of(0, 77), ActiveTransaction(0, 0, 0, 0))

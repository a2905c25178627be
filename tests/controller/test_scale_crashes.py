"""Crashes and lost replies at every single write of scales, of updates that scale, and of transactions rolled over.

As `test_crashes`, which see. Shows S-060, S-064, S-066, S-067, S-068, S-070, S-072, S-076 and S-078; S-069 and S-071
where they are named: some of what they tell apart is one write here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller.errors import ScalePreconditionError
from penstock.controller.metadata import layout
from penstock.controller.metadata.epoch_tables import EpochTables
from penstock.controller.metadata.records import EpochRecord, SegmentRecord, TransactionStatus
from penstock.controller.metadata.scale_plan import history_entry
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.model.errors import MetadataConflictError, ScopeExistsError, StreamExistsError
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableUpdate
from penstock_simulation.memory_segments import MemorySegments
from support.crash_script import at_each_write, run, run_with_survivor
from support.failing_segments import Fault
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks
from support.two_controllers import tables_of

HALVES = [(0.0, 0.5), (0.5, 1.0)]


class Script:
    """Scales a stream under an open transaction, commits that, changes the number of segments, and deletes it all."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.transaction = None

    def steps(self) -> list[Callable[..., Awaitable[Any]]]:
        return [
            self.create, self.begin, self.split, self.check_split, self.commit, self.check_rolled,
            self.write, self.widen, self.check_wide, self.seal, self.delete, self.delete_scope,
        ]  # fmt: skip

    async def create(self, service: ControllerService) -> None:
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass
        try:
            await service.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))
        except StreamExistsError:
            pass

    async def begin(self, service: ControllerService) -> None:
        self.transaction = (await service.transactions.create("s", "t", 30_000)).id  # type: ignore[assignment]
        name = transaction_segment_name(segment_name("s", "t", 0), self.transaction.high, self.transaction.low)  # type: ignore[attr-defined]
        await self.store.append(name, b"committed")

    async def split(self, service: ControllerService) -> None:
        try:
            await service.scale_stream("s", "t", [0], HALVES)
        except ScalePreconditionError:
            pass  # It is done already.

    async def check_split(self, service: ControllerService) -> None:
        await service.idle()
        found = await service.current_segments("s", "t")
        assert [segment.id for segment in found] == [segment_id(1, 1), segment_id(2, 1)]
        following = await service.successors("s", "t", 0)
        assert [one.segment.id for one in following] == [segment_id(1, 1), segment_id(2, 1)]
        assert self.store.segments["s/t/0.#epoch.0"].is_sealed

    async def commit(self, service: ControllerService) -> None:
        status = await service.transactions.commit("s", "t", self.transaction, writer_id="w", timestamp=1)  # type: ignore[arg-type]
        assert status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)

    async def check_rolled(self, service: ControllerService) -> None:
        await service.idle()
        assert await service.transactions.status("s", "t", self.transaction) is TransactionStatus.COMMITTED  # type: ignore[arg-type]
        found = await service.current_segments("s", "t")
        assert [segment.id for segment in found] == [segment_id(1, 3), segment_id(2, 3)]
        # A transaction that began without a reply to its client is open until its lease ends.
        stored = {name: bytes(found.data) for name, found in self.store.segments.items() if found.data}
        assert stored == {"s/t/0.#epoch.2": b"committed"}

    async def write(self, service: ControllerService) -> None:
        for number, length in ((1, 11), (2, 22)):
            name = segment_name("s", "t", segment_id(number, 3))
            if not self.store.segments[name].data:
                await self.store.append(name, bytes(length))

    async def widen(self, service: ControllerService) -> None:
        await service.update_stream("s", "t", StreamConfig(Scaling.fixed(3)))

    async def check_wide(self, service: ControllerService) -> None:
        found = await service.current_segments("s", "t")
        assert [segment.id for segment in found] == [segment_id(3 + n, 4) for n in range(3)]
        tables = await service._catalog.on_stream("s", "t", _itself)
        ended = {0: 0, segment_id(1, 1): 0, segment_id(2, 1): 0, segment_id(0, 2): 9}
        ended |= {segment_id(1, 3): 11, segment_id(2, 3): 22}
        assert await tables.sealed_sizes([*ended, *(segment.id for segment in found)]) == ended
        between = await service.segments_between("s", "t", {0: 0}, {segment.id: 0 for segment in found})
        assert len(between) == 9
        # A segment of a transaction without a reply to its client is open until its lease ends.
        open_names = [
            name
            for name, found in without_marks(self.store).items()
            if not found.is_sealed and "#transaction" not in name
        ]
        assert sorted(open_names) == [segment_name("s", "t", segment.id) for segment in found]

    async def seal(self, service: ControllerService) -> None:
        await service.seal_stream("s", "t")
        assert all(found.is_sealed for found in without_marks(self.store).values())

    async def delete(self, service: ControllerService) -> None:
        if await service.stream_exists("s", "t"):
            await service.delete_stream("s", "t")
        assert not self.store.segments

    async def delete_scope(self, service: ControllerService) -> None:
        if await service.scope_exists("s"):
            await service.delete_scope("s")


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


async def test_records_that_belong_together_are_written_in_one_write(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """S-069: epoch, history entry and ends of segments; S-071: sizes, switch of epochs, reset of transition and state.

    So no crash comes between them; one before or after them is among those of the other tests here.
    """
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    put, writes = cluster.store.table_put, []

    async def seen(table: str, updates: list[TableUpdate]) -> Sequence[int]:
        writes.append({update.key.decode() for update in updates})
        return await put(table, updates)

    cluster.store.table_put = seen  # type: ignore[assignment, method-assign]
    await service.scale_stream("scope", "stream", [0], HALVES)
    await service.idle()
    epoch = {layout.epoch_key(1), layout.history_chunk_key(1), layout.sealed_epoch_key(0)}
    switch = {layout.CURRENT_EPOCH, layout.EPOCH_TRANSITION, layout.STATE, layout.sealed_sizes_key(0)}
    for together in (epoch, switch):
        (one,) = [keys for keys in writes if keys & (together - {layout.EPOCH_TRANSITION, layout.STATE})]
        assert one >= together


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
async def test_a_death_at_any_write_is_followed_by_the_controller_that_is_alive(
    fault: Fault, fresh: Callable[[], InProcessCluster]
) -> None:
    """Two controllers are alive; one dies at each write of the script in turn, the other one finishes all it began."""
    await at_each_write(run_with_survivor, fresh, Script, fault)


@pytest.mark.parametrize("fault", list(Fault))
async def test_scales_end_the_same_whichever_write_fails(fault: Fault, fresh: Callable[[], InProcessCluster]) -> None:
    """For every write of the script in turn: fail there, repeat, and compare the end."""
    await at_each_write(run, fresh, Script, fault)


async def test_a_controller_that_dies_while_it_resumes_a_scale_is_followed_by_another(
    fresh: Callable[[], InProcessCluster],
) -> None:
    """The recovery from a death at one of many writes is itself cut off at one of its first writes."""
    for at in range(5, 150, 3):
        for again_at in (1, 2, 3, 5, 8):
            await run(fresh(), Script, at, Fault.DIES_AFTER, again_at=again_at)


async def test_epochs_that_another_controller_has_just_written_are_a_conflict(
    cluster: InProcessCluster, service: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work was taken over: who is overtaken has seen that the epoch is not there, and then finds it in the chunk.

    A seed of sinks that prepare transactions found it: it was taken for a gap in the history, which is a defect.
    """
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    tables = await tables_of(service)
    current = await tables.current_epoch()
    segments = tuple(SegmentRecord(2 + index, 1, 5, index / 2, (index + 1) / 2) for index in range(2))
    following = EpochRecord(1, 1, segments, 5, 0, 0)
    entry = history_entry(following, current)
    transition = await tables.transition()
    fence = (layout.EPOCH_TRANSITION, transition.record, transition.version)
    added, ended = [(following, entry)], dict.fromkeys((0, 1), 1)
    read = EpochTables.epoch
    versions = []

    async def overtaken(self: EpochTables, epoch: int) -> EpochRecord | None:
        monkeypatch.undo()
        assert await read(self, epoch) is None
        versions.append(await self.add_epochs(added, ended, {}, fence))
        return None

    monkeypatch.setattr(EpochTables, "epoch", overtaken)
    with pytest.raises(MetadataConflictError, match="epoch 1 has just been written"):
        await tables.add_epochs(added, ended, {}, fence)
    assert await tables.epoch(1) == following
    # With the version that the first of them has left, it exists already.
    assert await tables.add_epochs(added, ended, {}, (fence[0], fence[1], versions[0])) > versions[0]
    with pytest.raises(ValueError, match="epoch 2 comes next, not"):
        await tables.add_epochs([(replace(following, epoch=3), replace(entry, epoch=3))], {}, {}, fence)

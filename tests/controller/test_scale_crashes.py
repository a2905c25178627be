"""Crashes and lost replies at every single write of scales, of updates that scale, and of transactions rolled over.

As `test_crashes`, which see. Shows S-060, S-064, S-066 to S-072, S-076, S-078.
"""

from __future__ import annotations

import pytest

from penstock.controller.errors import ScalePreconditionError
from penstock.controller.metadata.records import TransactionStatus
from penstock.model.errors import ScopeExistsError, StreamExistsError
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.testing.memory_segments import MemorySegments
from support.crash_script import at_each_write, run, run_with_survivor
from support.failing_segments import Fault
from support.mark_segments import without_marks

HALVES = [(0.0, 0.5), (0.5, 1.0)]


class Script:
    """Scales a stream under an open transaction, commits that, changes the number of segments, and deletes it all."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.transaction = None

    def steps(self):
        return [
            self.create, self.begin, self.split, self.check_split, self.commit, self.check_rolled,
            self.widen, self.check_wide, self.seal, self.delete, self.delete_scope,
        ]  # fmt: skip

    async def create(self, service):
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass
        try:
            await service.create_stream("s", "t", StreamConfig(Scaling.fixed(1)))
        except StreamExistsError:
            pass

    async def begin(self, service):
        self.transaction = (await service.transactions.create("s", "t", 30_000)).id
        name = transaction_segment_name(segment_name("s", "t", 0), self.transaction.high, self.transaction.low)
        await self.store.append(name, b"committed")

    async def split(self, service):
        try:
            await service.scale_stream("s", "t", [0], HALVES)
        except ScalePreconditionError:
            pass  # It is done already.

    async def check_split(self, service):
        await service.idle()
        found = await service.current_segments("s", "t")
        assert [segment.id for segment in found] == [segment_id(1, 1), segment_id(2, 1)]
        following = await service.successors("s", "t", 0)
        assert [one.segment.id for one in following] == [segment_id(1, 1), segment_id(2, 1)]
        assert self.store.segments["s/t/0.#epoch.0"].is_sealed

    async def commit(self, service):
        status = await service.transactions.commit("s", "t", self.transaction, writer_id="w", timestamp=1)
        assert status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)

    async def check_rolled(self, service):
        await service.idle()
        assert await service.transactions.status("s", "t", self.transaction) is TransactionStatus.COMMITTED
        found = await service.current_segments("s", "t")
        assert [segment.id for segment in found] == [segment_id(1, 3), segment_id(2, 3)]
        # One that was begun, and of which nobody was told, is open until its lease ends.
        stored = {name: bytes(found.data) for name, found in self.store.segments.items() if found.data}
        assert stored == {"s/t/0.#epoch.2": b"committed"}

    async def widen(self, service):
        await service.update_stream("s", "t", StreamConfig(Scaling.fixed(3)))

    async def check_wide(self, service):
        found = await service.current_segments("s", "t")
        assert [segment.id for segment in found] == [segment_id(3 + n, 4) for n in range(3)]
        between = await service.segments_between("s", "t", {0: 0}, {segment.id: 0 for segment in found})
        assert len(between) == 9
        # One whose transaction nobody was told of is open until its lease ends.
        open_names = [
            name
            for name, found in without_marks(self.store).items()
            if not found.is_sealed and "#transaction" not in name
        ]
        assert sorted(open_names) == [segment_name("s", "t", segment.id) for segment in found]

    async def seal(self, service):
        await service.seal_stream("s", "t")
        assert all(found.is_sealed for found in without_marks(self.store).values())

    async def delete(self, service):
        if await service.stream_exists("s", "t"):
            await service.delete_stream("s", "t")
        assert not self.store.segments

    async def delete_scope(self, service):
        if await service.scope_exists("s"):
            await service.delete_scope("s")


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
async def test_a_death_at_any_write_is_followed_by_the_controller_that_is_alive(fault, fresh):
    """Two controllers are alive; one dies at each write of the script in turn, the other one finishes all it began."""
    await at_each_write(run_with_survivor, fresh, Script, fault)


@pytest.mark.parametrize("fault", list(Fault))
async def test_scales_end_the_same_whichever_write_fails(fault, fresh):
    """For every write of the script in turn: fail there, repeat, and compare the end."""
    await at_each_write(run, fresh, Script, fault)


async def test_a_controller_that_dies_while_it_resumes_a_scale_is_followed_by_another(fresh):
    """The recovery from a death at one of many writes is itself cut off at one of its first writes."""
    for at in range(5, 150, 3):
        for again_at in (1, 2, 3, 5, 8):
            await run(fresh(), Script, at, Fault.DIES_AFTER, again_at=again_at)

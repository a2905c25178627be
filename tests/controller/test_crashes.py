"""Crashes and lost replies at every single write of every workflow.

A script of changes runs over a segment store that fails at its n-th write, for every n. Four ways to fail: the
controller dies before the write, or after it; or it lives and the write's reply is lost, the write done or not done.
After a death a fresh controller starts on the same store. Then the step that failed is repeated, the script continues,
and must end in the same state as without a failure.

Shows S-008, S-087, S-092, S-141, S-152, S-171.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.model.errors import ScopeExistsError, StreamExistsError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock_simulation.memory_segments import MemorySegments
from support.crash_script import at_each_write, run, run_with_survivor
from support.failing_segments import Fault
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks


class Script:
    """Creates, changes, uses, seals and deletes a stream; each step can be repeated."""

    config = StreamConfig(Scaling.fixed(2), Retention.by_size(1000), ("red", "blue"))
    update = StreamConfig(Scaling.by_event_rate(10, min_segments=2), None, ("blue", "green"))

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.committed = self.aborted = self.left_open = None

    def steps(self) -> list[Callable[[ControllerService], Awaitable[None]]]:
        return [
            self.create_scope, self.create_stream, self.update_stream, self.begin, self.commit, self.settle,
            self.truncate, self.begin_again, self.abort, self.settle, self.leave_open, self.seal, self.check_sealed,
            self.delete, self.check_deleted, self.create_again, self.seal, self.delete, self.delete_scope,
        ]  # fmt: skip

    async def create_scope(self, service: ControllerService) -> None:
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass

    async def create_stream(self, service: ControllerService) -> None:
        try:
            await service.create_stream("s", "t", self.config)
        except StreamExistsError:
            pass
        assert await service.stream_configuration("s", "t") == self.config
        assert [segment.id for segment in await service.current_segments("s", "t")] == [0, 1]
        for tag in ("red", "blue"):
            assert (await service.list_streams_by_tag("s", tag, "")).names == ("t",)

    async def update_stream(self, service: ControllerService) -> None:
        await service.update_stream("s", "t", self.update)
        assert await service.stream_configuration("s", "t") == self.update
        assert (await service.list_streams_by_tag("s", "red", "")).names == ()
        assert (await service.list_streams_by_tag("s", "green", "")).names == ("t",)
        assert {self.store.segments[segment_name("s", "t", id)].target_rate for id in (0, 1)} == {10}

    async def fill(self, transaction: TransactionId, text: bytes) -> None:
        for segment in (0, 1):
            name = transaction_segment_name(segment_name("s", "t", segment), transaction.high, transaction.low)
            await self.store.append(name, text)

    async def begin(self, service: ControllerService) -> None:
        self.committed = (await service.transactions.create("s", "t", 10_000)).id  # type: ignore[assignment]
        await self.fill(self.committed, b"committed")  # type: ignore[arg-type]

    async def commit(self, service: ControllerService) -> None:
        status = await service.transactions.commit("s", "t", self.committed, writer_id="w", timestamp=1)  # type: ignore[arg-type]
        assert status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)

    async def begin_again(self, service: ControllerService) -> None:
        self.aborted = (await service.transactions.create("s", "t", 10_000)).id  # type: ignore[assignment]
        await self.fill(self.aborted, b"aborted")  # type: ignore[arg-type]

    async def abort(self, service: ControllerService) -> None:
        status = await service.transactions.abort("s", "t", self.aborted)  # type: ignore[arg-type]
        assert status in (TransactionStatus.ABORTING, TransactionStatus.ABORTED)

    async def settle(self, service: ControllerService) -> None:
        await service.idle()
        for transaction, status in (
            (self.committed, TransactionStatus.COMMITTED),
            (self.aborted, TransactionStatus.ABORTED),
        ):
            if transaction is not None:
                assert await service.transactions.status("s", "t", transaction) is status  # type: ignore[unreachable]

    async def truncate(self, service: ControllerService) -> None:
        await service.truncate_stream("s", "t", {0: 4, 1: 2})
        assert [(at.segment, at.offset) for at in await service.head("s", "t")] == [(0, 4), (1, 2)]

    async def leave_open(self, service: ControllerService) -> None:
        self.left_open = (await service.transactions.create("s", "t", 10_000)).id  # type: ignore[assignment]

    async def seal(self, service: ControllerService) -> None:
        await service.seal_stream("s", "t")

    async def check_sealed(self, service: ControllerService) -> None:
        await service.idle()
        assert await service.current_segments("s", "t") == ()
        assert await service.transactions.status("s", "t", self.left_open) is TransactionStatus.ABORTED  # type: ignore[arg-type]
        # Every byte of the committed transaction once, in both segments; nothing of the others, and no leftovers.
        assert {name: (bytes(found.data), found.start_offset) for name, found in without_marks(self.store).items()} == {
            "s/t/0.#epoch.0": (b"committed", 4),
            "s/t/1.#epoch.0": (b"committed", 2),
        }
        assert all(found.is_sealed for found in without_marks(self.store).values())

    async def delete(self, service: ControllerService) -> None:
        if await service.stream_exists("s", "t"):
            await service.delete_stream("s", "t")

    async def check_deleted(self, service: ControllerService) -> None:
        await service.idle()
        assert not self.store.segments
        assert (await service.list_streams("s", "")).names == ()
        for tag in ("red", "blue", "green"):
            assert (await service.list_streams_by_tag("s", tag, "")).names == ()
        assert not [name for name in self.store.tables if "/s/t/" in name]

    async def create_again(self, service: ControllerService) -> None:
        try:
            await service.create_stream("s", "t", StreamConfig())
        except StreamExistsError:
            pass
        assert [segment.id for segment in await service.current_segments("s", "t")] == [2]

    async def delete_scope(self, service: ControllerService) -> None:
        if await service.scope_exists("s"):
            await service.delete_scope("s")


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
async def test_a_death_at_any_write_is_followed_by_the_controller_that_is_alive(
    fault: Fault, fresh: Callable[[], InProcessCluster]
) -> None:
    """Two controllers are alive; one dies at each write of the script in turn, the other one finishes its work.

    S-202: all work announced and not withdrawn is done again, also if only the withdrawal was missing.
    """
    await at_each_write(run_with_survivor, fresh, Script, fault)


@pytest.mark.parametrize("fault", list(Fault))
async def test_script_ends_the_same_whichever_write_fails(fault: Fault, fresh: Callable[[], InProcessCluster]) -> None:
    """For every write of the script in turn: fail there, repeat, and compare the end."""
    await at_each_write(run, fresh, Script, fault)


async def test_controller_that_dies_during_recovery_is_recovered_too(fresh: Callable[[], InProcessCluster]) -> None:
    """The recovery from a death at one of many writes is itself cut off at one of its first writes."""
    for at in range(5, 140, 7):
        for again_at in (1, 2, 4, 8):
            await run(fresh(), Script, at, Fault.DIES_AFTER, again_at=again_at)

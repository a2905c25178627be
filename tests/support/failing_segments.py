"""A segment store that fails at its n-th write, and the controller that dies with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any

from penstock.controller.service import ControllerService
from penstock.model.errors import OutcomeUnknownError, PenstockError, StorageError
from penstock.model.segments import SegmentInfo
from penstock.runtime.bulk import for_each
from penstock_simulation.memory_segments import MemorySegments

WRITES = {
    "create_segment", "delete_segment", "seal_segment", "truncate_segment", "update_policy", "merge_segments",
    "create_table", "delete_table", "table_put", "table_remove",
}  # fmt: skip


class Fault(Enum):
    """Which part dies, and when. LOST_BEFORE is a request, LOST_AFTER a reply that gets lost."""

    DIES_BEFORE = "dies before the write"
    DIES_AFTER = "dies after the write"
    LOST_BEFORE = "request lost"
    LOST_AFTER = "reply lost"


class DeadError(StorageError):
    """The controller that called has died: nothing it does reaches the store any more."""


class OneByOne:
    """Does what bulk calls are to do by calls for each segment: a wrapper's faults strike at each of these."""

    async def segment_infos(self, segments: Sequence[str]) -> list[SegmentInfo | PenstockError]:
        return await for_each(segments, self.segment_info, 64)

    async def delete_segments(self, segments: Sequence[str]) -> list[PenstockError | None]:
        return await for_each(segments, self.delete_segment, 64)

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> list[PenstockError | None]:
        return await for_each(offsets, lambda one: self.truncate_segment(*one), 64)


class FailingSegments(OneByOne):
    """Passes calls on to a store and fails at write number `at`."""

    def __init__(self, store: MemorySegments, at: int, fault: Fault) -> None:
        self.store = store
        self.at = at
        self.fault = fault
        self.count = 0
        self.died = asyncio.Event()

    @property
    def is_dead(self) -> bool:
        return self.died.is_set()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)

        async def forward(*arguments: Any, **options: Any) -> object:
            if self.is_dead:
                raise DeadError("dead")
            if name not in WRITES:
                return await call(*arguments, **options)
            self.count += 1
            if self.count != self.at:
                return await call(*arguments, **options)
            if self.fault in (Fault.DIES_BEFORE, Fault.DIES_AFTER):
                self.died.set()
            try:
                if self.fault in (Fault.DIES_AFTER, Fault.LOST_AFTER):
                    await call(*arguments, **options)
            finally:
                if self.is_dead:
                    raise DeadError("died just now")
            raise OutcomeUnknownError("the reply is lost")

        return forward


async def attempt(
    step: Callable[[ControllerService], Awaitable[object]], service: ControllerService, failing: FailingSegments
) -> bool:
    """Run a step until it ends or its controller dies; say whether it succeeded."""
    task = asyncio.ensure_future(step(service))
    death = asyncio.ensure_future(failing.died.wait())
    try:
        await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        if failing.is_dead:
            return False
        await task
    except PenstockError:
        return False
    finally:
        for left in (task, death):
            left.cancel()
        await asyncio.gather(task, death, return_exceptions=True)
    return True

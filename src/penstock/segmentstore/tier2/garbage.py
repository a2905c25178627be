"""`GarbageQueue`: unlinked chunks that wait to be deleted.

An operation that unlinks chunks (truncation, deletion, joining of small ones) stages a task with their names in the
same commit, so none is ever forgotten, and no record refers to a chunk in the queue. Tasks are ordered by creation.
They are processed from the first on, some at a time, once they are `delay_s` old and no lease holds them back:

1. read tasks; 2. send an empty operation through the log, which proves that the tasks read are durable, and that this
incarnation still owns the container; 3. delete the chunks; 4. remove the tasks, and put refused chunks into a new task
at the end.

After a failure between two steps the next round repeats them, here or at the next owner: a chunk that is already
deleted is no error. See docs/garbage.md for the failure cases.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence

from penstock.model.errors import (
    InconsistentStateError,
    LogFencedError,
    PenstockError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.model.segments import VERSION_ABSENT, TableRemoval, TableUpdate
from penstock.runtime.pacing import GrowingDelay
from penstock.segmentstore.container_settings import GarbageSettings
from penstock.segmentstore.tier2.chunk_deletion import delete_chunks
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.garbage_records import (
    GIVEN_UP_PREFIX,
    TASK_PREFIX,
    CreationOrder,
    GarbageTask,
    decode_task,
    encode_task,
)
from penstock.segmentstore.tier2.layout_leases import LayoutLeases
from penstock.segmentstore.tier2.metadata import MetadataTable, MetadataTransaction

logger: logging.Logger = logging.getLogger(__name__)

#: Granularity of deletion times: a chunk is deleted up to this fraction of `delay_s` late.
_DELAY_PARTS = 8
#: Enough marks however long a round takes: the oldest of them is old enough.
_MARKS_MAX = 8 * _DELAY_PARTS
#: After the last key of any place.
_KEY_END = b"\xff" * 17


async def _nothing() -> None:
    """Default owner check: visible records are durable."""


class GarbageQueue:
    """The garbage of one table of storage records, and one container epoch. All methods run on the event loop.

    Attributes:
        leases: the leases that hold deletions back.
        deleted_count: chunks known to be deleted so far.
        given_up_count: chunks given up so far.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        table: MetadataTable,
        *,
        epoch: int,
        settings: GarbageSettings,
        wall_clock_ms: Callable[[], int],
        check_owner: Callable[[], Awaitable[None]] = _nothing,
        is_room_short: Callable[[], bool] = lambda: False,
    ) -> None:
        self.deleted_count: int = 0
        self.given_up_count: int = 0
        self._chunks = chunks
        self._table = table
        self._epoch = epoch
        self._settings = settings
        self._wall_clock_ms = wall_clock_ms
        self._check_owner = check_owner
        self._is_room_short = is_room_short
        self._next_number = 1
        #: (time, next number at that time), oldest first.
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS_MAX)
        self._lock = asyncio.Lock()
        self.leases: LayoutLeases = LayoutLeases(
            table, settings, next_place=self._next_place, wall_clock_ms=wall_clock_ms
        )

    @property
    def is_immediate(self) -> bool:
        """Whether unlinked chunks are deleted without delay, by `settle`."""
        return self._settings.delay_s <= 0

    def stage(self, transaction: MetadataTransaction, names: Sequence[str]) -> None:
        """Queue chunks to be deleted some time after `transaction`, which removes their records, was committed."""
        if names:
            self._note()
            task = GarbageTask(self._next_place(), self._wall_clock_ms(), 0, tuple(names))
            transaction.add(task.place.key(TASK_PREFIX), encode_task(task))

    async def settle(self) -> None:
        """Delete due chunks, if there is no delay; failures are left to `run`. Called after a commit."""
        if not self.is_immediate:
            return
        try:
            await self.collect()
        except (PenstockError, OSError) as error:
            logger.info("chunks that are no longer used could not be deleted yet: %s", error)

    async def run(self, report: Callable[[UnreadableDataError], Awaitable[None]]) -> None:
        """Delete due chunks until cancelled; `report` is called with damage found."""
        settings = self._settings
        pause = GrowingDelay(settings.interval_s, settings.retry_s_max)
        given_up_due_s = asyncio.get_running_loop().time()
        while True:
            await pause.sleep()
            try:
                await self.collect()
                if asyncio.get_running_loop().time() >= given_up_due_s:
                    await self.take_up_again()
                    given_up_due_s = asyncio.get_running_loop().time() + settings.given_up_pause_s
            except (InconsistentStateError, LogFencedError, StorageNotPrimaryError):
                raise
            except UnreadableDataError as error:
                await report(error)
                pause.next_s = settings.retry_s_max
            except (PenstockError, OSError) as error:
                logger.info("chunks that are no longer used could not be deleted yet: %s", error)
            else:
                pause.reset()

    async def collect(self) -> int:
        """Delete all due chunks; return how many.

        Raises errors which mean that storage is unavailable or the container fenced; the rest stays in the queue.
        """
        async with self._lock:
            await self.leases.end_due()
            before = self._due()
            # The range is closed: there is no key between the last key and its end.
            last = before.key(TASK_PREFIX)
            token = TASK_PREFIX
            count = 0
            while tasks := await self._tasks(token, last, before):
                token = tasks[-1].place.key(TASK_PREFIX) + b"\0"
                count += await self._do(tasks)
                await asyncio.sleep(0.0 if self.is_immediate else self._settings.pause_s)
            return count

    async def take_up_again(self) -> None:
        """Return given-up chunks to the queue, one page of them."""
        page = await self._table.page(
            limit=self._settings.tasks_per_batch, first=GIVEN_UP_PREFIX, last=GIVEN_UP_PREFIX + _KEY_END
        )
        for entry in page.entries:
            task = decode_task(entry.key, entry.value)
            again = GarbageTask(self._next_place(), task.made_ms, 0, task.names)
            await self._table.commit(
                [TableUpdate(again.place.key(TASK_PREFIX), encode_task(again), VERSION_ABSENT)],
                [TableRemoval(entry.key)],
            )

    async def queued(self, names: Collection[str]) -> set[str]:
        """Return those of `names` that wait in the queue, except given-up ones."""
        wanted = set(names)
        found: set[str] = set()
        token = TASK_PREFIX
        while tasks := await self._tasks(token, TASK_PREFIX + _KEY_END):
            token = tasks[-1].place.key(TASK_PREFIX) + b"\0"
            for task in tasks:
                found |= wanted.intersection(task.names)
            await asyncio.sleep(0)
        return found

    def _next_place(self) -> CreationOrder:
        self._next_number += 1
        return CreationOrder(self._epoch, self._next_number - 1)

    def _note(self) -> None:
        """Note the current number."""
        now_s = asyncio.get_running_loop().time()
        if not self._marks:
            # Garbage of earlier epochs is at least as old as this one.
            self._marks.append((now_s, 0))
        elif now_s - self._marks[-1][0] >= self._settings.delay_s / _DELAY_PARTS:
            self._marks.append((now_s, self._next_number))

    def _due(self) -> CreationOrder:
        """Return the place before which everything may be deleted."""
        self._note()
        now_s = asyncio.get_running_loop().time()
        if self.is_immediate or self._is_room_short():
            due = CreationOrder(self._epoch, self._next_number)
        else:
            due = CreationOrder(0, 0)
            while self._marks and self._marks[0][0] <= now_s - self._settings.delay_s:
                due = CreationOrder(self._epoch, self._marks[0][1])
                if len(self._marks) == 1 or self._marks[1][0] > now_s - self._settings.delay_s:
                    break
                self._marks.popleft()
        held = self.leases.oldest
        return due if held is None else min(due, held)

    async def _tasks(self, first: bytes, last: bytes, before: CreationOrder | None = None) -> list[GarbageTask]:
        if first > last:
            return []
        page = await self._table.page(limit=self._settings.tasks_per_batch, first=first, last=last)
        tasks = [decode_task(entry.key, entry.value) for entry in page.entries]
        return tasks if before is None else [task for task in tasks if task.place < before]

    async def _do(self, tasks: Sequence[GarbageTask]) -> int:
        settings = self._settings
        await self._check_owner()
        refused: dict[str, str] = {}
        count = 0
        for names in _batches([name for task in tasks for name in task.names], settings.batch_chunks):
            failed = await delete_chunks(self._chunks, names, limit=settings.deletions_max)
            refused.update((name, str(error)) for name, error in failed.items())
            count += len(names) - len(failed)
        updates: list[TableUpdate] = []
        for task in tasks:
            left = tuple(name for name in task.names if name in refused)
            if left:
                updates.append(self._again(task, left, refused[left[0]]))
        await self._table.commit(updates, [TableRemoval(task.place.key(TASK_PREFIX)) for task in tasks])
        self.deleted_count += count
        return count

    def _again(self, task: GarbageTask, names: tuple[str, ...], reason: str) -> TableUpdate:
        """Return the task that replaces one of which some chunks could not be deleted."""
        again = GarbageTask(self._next_place(), task.made_ms, task.attempts + 1, names)
        prefix = TASK_PREFIX
        if again.attempts >= self._settings.attempts_max:
            prefix = GIVEN_UP_PREFIX
            self.given_up_count += len(names)
            logger.warning(
                "%d chunks that are no longer used could not be deleted in %d attempts; the next attempt is in %g s; "
                "the first is %s: %s", len(names), again.attempts, self._settings.given_up_pause_s, names[0], reason,
            )  # fmt: skip
        return TableUpdate(again.place.key(prefix), encode_task(again), VERSION_ABSENT)


def _batches(names: Sequence[str], length: int) -> list[Sequence[str]]:
    return [names[at : at + length] for at in range(0, len(names), length)]

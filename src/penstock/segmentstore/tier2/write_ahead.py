"""Several writes to one stored segment, each started while the previous one is checksummed and recorded.

A write needs only the length of the previous write's record, which is known before that is committed. So while the
checksums of one write are computed and its record is committed, up to `writes_max` writes are in progress or complete.
They are recorded in order; until then they are like any write without a record: bytes after a chunk's recorded length,
or chunks without a record. If one fails, later ones are never recorded, whatever their outcome: the next write begins
at the end of the recorded bytes.

Storage that can append gets one write at a time, since each needs the outcome of the previous one: whether it was
appended to a chunk or has a new one; each is recorded by a separate commit. Otherwise each write has its own chunks,
and they are created concurrently. All of these that are complete, up to the first that is not, share one commit: a
commit takes as long as an append to the log, which may be longer than the writes take.

The segment's lock is held throughout. A waiting operation gets it once the started writes are recorded.

See docs/write-ahead.md for the failure cases.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.errors import InconsistentStateError, StorageConflictError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import Extent, StoredSegmentRecord
from penstock.segmentstore.tier2.segment_removal import finish_deletion
from penstock.segmentstore.tier2.segment_write import Rest, SegmentWrite, commit_staged, load_writable
from penstock.segmentstore.tier2.storage_context import StorageContext


class NextWrite(Protocol):
    """The content of one write."""

    @property
    def data(self) -> Sequence[Buffer]:
        """The bytes, in order."""

    @property
    def checksummed_blocks(self) -> Sequence[tuple[Buffer, int]]:
        """The buffers that contain the bytes, with their checksums on arrival: see `ChunkedStorage.write`."""


#: Returns what to write from an offset on; None: no more. Called in order, as late as possible.
TakeNext = Callable[[int], NextWrite | None]


async def write_segment_ahead(
    context: StorageContext,
    segment: str,
    offset: int,
    take: TakeNext,
    stored: Callable[[int], None],
    *,
    writes_max: int,
    chunk_length_max: int | None,
) -> int:
    """See `ChunkedStorage.write_ahead`. The caller holds the segment's lock."""
    await finish_deletion(context, segment)
    first = context.transaction()
    record = await load_writable(context, first, segment, offset, chunk_length_max)
    last = await context.load_last(first, record)
    ahead = _WritesAhead(context, record, last, take, writes_max)
    transaction: MetadataTransaction | None = first
    try:
        while writes := await ahead.next():
            await ahead.commit(writes, transaction, stored)
            transaction = None
    except BaseException:
        await ahead.give_up()
        raise
    return ahead.recorded_length


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A started write; `task` ends when its bytes are in chunks."""

    write: SegmentWrite
    task: asyncio.Task[None]
    checksummed_blocks: Sequence[tuple[Buffer, int]]


class _WritesAhead:
    """Writes of one segment from `record` on. One task starts them, its owner records them."""

    def __init__(
        self, context: StorageContext, record: StoredSegmentRecord, last: Extent | None, take: TakeNext, writes_max: int
    ) -> None:
        self.recorded_length: int = record.length
        self._context = context
        self._take = take
        #: The recorded state; None before the first commit.
        self._recorded: StoredSegmentRecord | None = None
        #: Writes started and not yet recorded, in order: at most `writes_max`.
        self._begun: deque[_Begun] = deque()
        self._slots = asyncio.Semaphore(writes_max)
        self._has_more = asyncio.Event()
        self._feeder = asyncio.ensure_future(self._begin_all(record, last))
        self._feeder.add_done_callback(lambda _: self._has_more.set())

    async def _begin_all(self, record: StoredSegmentRecord, last: Extent | None) -> None:
        """Start one write after the other, while there is something to write and none has failed."""
        rest = Rest(())
        checksummed_blocks: Sequence[tuple[Buffer, int]] = ()
        while True:
            await self._slots.acquire()
            if any(_has_failed(begun.task) for begun in self._begun):
                return
            if not rest.length:
                # Not earlier: until the write can begin more data may arrive, and none is held.
                taken = self._take(record.length)
                if taken is None:
                    return
                rest, checksummed_blocks = Rest(taken.data), taken.checksummed_blocks
            write = SegmentWrite(self._context, record, last)
            if self._context.chunks.supports_append:
                task = self._begin(write, write.store(rest), checksummed_blocks)
                await asyncio.wait([task])
                if _has_failed(task):
                    return
                last = write.last
            else:
                write.plan(rest)
                self._begin(write, write.create_planned(), checksummed_blocks)
            record = write.record

    def _begin(
        self,
        write: SegmentWrite,
        store: Coroutine[object, object, None],
        checksummed_blocks: Sequence[tuple[Buffer, int]],
    ) -> asyncio.Task[None]:
        task = asyncio.ensure_future(store)
        self._begun.append(_Begun(write, task, checksummed_blocks))
        self._has_more.set()
        return task

    async def next(self) -> Sequence[_Begun]:
        """Return the first unrecorded writes, once the bytes of the first are in chunks; none after the last write.

        They are those that one commit may record.
        """
        while not self._begun and not self._feeder.done():
            self._has_more.clear()
            await self._has_more.wait()
        if not self._begun:
            await self._feeder
            return ()
        first = self._begun[0]
        await asyncio.wait([first.task])
        first.task.result()
        found, chunk_count = [first], len(first.write.created)
        if self._context.chunks.supports_append:
            return found
        for begun in itertools.islice(self._begun, 1, None):
            chunk_count += len(begun.write.created)
            if (
                not begun.task.done()
                or _has_failed(begun.task)
                or chunk_count > self._context.settings.written_chunks_per_commit_max
            ):
                break
            found.append(begun)
        return found

    async def commit(
        self, writes: Sequence[_Begun], transaction: MetadataTransaction | None, stored: Callable[[int], None]
    ) -> None:
        """Record the first writes, and call `stored` for each. `transaction`: that of the beginning.

        Raises `InconsistentStateError`, after those before it are recorded, if one of them is not what arrived.
        """
        context, first = self._context, writes[0].write
        before = first.before
        if transaction is None:
            transaction = context.transaction()
            record = await context.load_owned(transaction, first.record.name)
            if record is None or record != self._recorded:
                raise StorageConflictError(
                    first.record.name, "it was changed concurrently; the chunks written ahead are not recorded"
                )
            before = await context.load_last(transaction, record)
        staged: list[SegmentWrite] = []
        damage: InconsistentStateError | None = None
        try:
            for begun in writes:
                self._begun.popleft()
                await begun.write.stage(transaction, before, begun.checksummed_blocks)
                staged.append(begun.write)
        except InconsistentStateError as error:
            if not staged:
                raise
            damage = error
        except BaseException:
            for write in staged:
                write.leave_behind()
            raise
        self._recorded = await commit_staged(context, transaction, staged)
        self.recorded_length = self._recorded.length
        for write in staged:
            self._slots.release()
            stored(write.record.length)
        if damage is not None:
            raise damage

    async def give_up(self) -> None:
        """Stop starting writes, end those in progress, and delete created chunks: they will not be recorded."""
        tasks = [self._feeder, *(begun.task for begun in self._begun)]
        for task in tasks:
            task.cancel()
        await _end_of(tasks)
        for begun in self._begun:
            if not _has_failed(begun.task):
                begun.write.leave_behind()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _end_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all have ended, even if cancelled meanwhile: no write continues after the lock is released."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # The first error is raised; the others are its consequences.
    if cancelled is not None:
        raise cancelled

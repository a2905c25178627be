"""`ObjectLog`: `DurableLog` of one container in a bucket. Protocol and failure cases: docs/object-log.md."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from penstock.model.errors import (
    CorruptionError,
    LogDisabledError,
    LogFencedError,
    ObjectChangedError,
    PenstockError,
    StorageError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.tier1.durable_log import InspectFrame, LogAddress, LogFrameRun
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord, LogPiece, record_key
from penstock.segmentstore.tier1.object_log.journal_format import FRAMES_MAX, frame_address, journal_key
from penstock.segmentstore.tier1.object_log.journal_reader import JournalReader, SlotPlace, UpwardReader
from penstock.segmentstore.tier1.object_log.journal_writer import Append
from penstock.segmentstore.tier1.object_log.log_bucket import StoredRecord, finished
from penstock.segmentstore.tier1.object_log.log_process import LogProcess
from penstock.segmentstore.tier1.once_opened_log import LogLife, OnceOpenedLog

_log = logging.getLogger(__name__)


class ObjectLog(OnceOpenedLog):
    """See the module. Made by `ObjectLogFactory`; `process` is what the logs of this process share."""

    def __init__(self, container_id: int, process: LogProcess) -> None:
        super().__init__(container_id, process.settings.frame_length_max_bytes)
        self.on_full: Callable[[], None] = lambda: None
        self._process = process
        self._settings = process.settings
        #: Why the next call fails: another incarnation has opened the log.
        self._fenced: PenstockError | None = None
        self._stored: StoredRecord | None = None
        #: What `open` has found: the pieces before its own, and what it has read of the last of them.
        self._found: Sequence[LogPiece] = ()
        self._read: UpwardReader | None = None
        self._recovered_truncation = 0
        self._unacknowledged: deque[Append] = deque()
        self._settled = asyncio.Event()
        #: Last slot of the live journal with frames of this log; -1: none.
        self._last_slot = -1
        #: Where the live journal was when the last truncation was recorded.
        self._truncated_slot = 0
        self._appended_bytes = 0

    # -- properties -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """See `DurableLog.epoch`. 0 before `open`."""
        return 0 if self._stored is None else self._stored.record.epoch

    @property
    def is_check_billed(self) -> bool:
        """See `DurableLog.is_check_billed`."""
        return True

    @property
    def is_long_to_open(self) -> bool:
        """See `DurableLog.is_long_to_open`: its frames are in many slots, and in between are those of others."""
        if self._stored is None or self._last_slot < 0:
            return False
        record = self._stored.record.truncated(self._truncation)
        slots = sum(
            max((self._last_slot + 1 if piece.end is None else piece.end) - record.first_slot(piece), 0)
            for piece in record.pieces
        )
        return slots > self._settings.hop_slots or len(record.pieces) > self._settings.pieces_max

    @property
    def problem(self) -> str:
        """See `DurableLog.problem`. Always empty."""
        return ""

    @property
    def is_writing(self) -> bool:
        """Whether appends of this log still count."""
        return self._state in (LogLife.OPEN, LogLife.CLOSING) and self._fenced is None

    # -- opening --------------------------------------------------------------------------------------------------

    async def open(self, inspect: InspectFrame | None = None) -> None:
        """See `DurableLog.open`. A log object opens once. Cancelled: the epoch may have been raised."""
        self._begin_opening()
        self._opening = asyncio.get_running_loop().create_task(self._open(inspect))
        self._opening.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        await asyncio.shield(self._opening)

    async def _open(self, inspect: InspectFrame | None) -> None:
        try:
            async with self._process.opening(self.container_id):
                with self._process.shared_slots.used():
                    await self._claim(inspect)
        except BaseException as error:
            self.fail(error if isinstance(error, PenstockError) else StorageError("open was interrupted"))
            raise
        if self._state is LogLife.OPENING:
            self._state = LogLife.OPEN
        else:
            self._process.writer.detach(self)

    async def _claim(self, inspect: InspectFrame | None) -> None:
        for _ in range(self._settings.open_attempts_max):
            if await self._try_to_claim(inspect):
                return
        raise LogFencedError(f"{self._describe()} is being opened by other processes again and again")

    async def _try_to_claim(self, inspect: InspectFrame | None) -> bool:
        """Fence every other holder and take the log over. Return False if its record has changed meanwhile."""
        process, writer = self._process, self._process.writer
        stored = await process.bucket.read_record(self.container_id, gives_up_refused=True)
        # After the read: if the change of the record succeeds, no later server has opened this log.
        await process.check_may_open()
        before = ContainerRecord(self.container_id, process.bucket.cluster_id, b"") if stored is None else stored.record
        if not before.is_enabled:
            raise LogDisabledError(f"{self._describe()} is disabled: {before.reason}")
        try:
            self._read = await self._read_last_piece(before, inspect)
            self._check_opening()
            former = writer.member(self.container_id)
            if isinstance(former, ObjectLog):
                former.fence()
            end = await self._end_of(before, self._read)
        except CorruptionError:
            if await self._has_changed(stored):
                return False  # Its slots were deleted because its owner, or a later one, has truncated it.
            raise
        self._check_opening()
        may_live = before.epoch > 0 and not before.is_released
        is_unsettled = not before.is_settled or (
            may_live and process.owner.may_answer(self.container_id, before.epoch, before.owner)
        )
        ended = before if end is None else before.with_end(end, is_empty=not self._has_frames(self._read))
        while True:
            journal, first = writer.journal, writer.next_slot
            record = replace(
                ended.with_piece(journal, first),
                nonce=process.runtime.random_id(),
                epoch=before.epoch + 1,
                owner=process.owner.token,
                is_settled=not is_unsettled,
                is_released=False,
            )
            began_s = process.runtime.monotonic_s()
            process.trim.hold(self.container_id, journal, first)
            try:
                self._stored = await process.bucket.change_record(stored, record)
            except ObjectChangedError:
                process.trim.release(self.container_id)
                return False
            process.trim.changed(stored.record if stored is not None else None, record)
            self._confirmed_s = max(self._confirmed_s, began_s)
            if journal == writer.journal:
                break
            # The journal was sealed meanwhile, and this log's piece in it is empty.
            stored, ended = self._stored, record.with_end(first, is_empty=True)
        self._may_predecessor_answer = is_unsettled
        self._found = ended.pieces
        self._recovered_truncation = self._truncation = record.truncation
        self._last_address = max(record.truncation, self._last_known_address())
        self._last_slot = -1
        writer.attach(self)
        return True

    async def _read_last_piece(self, record: ContainerRecord, inspect: InspectFrame | None) -> UpwardReader | None:
        """Read the last piece, to its end or to the first free slot, and inspect its frames. Changes nothing."""
        if not record.pieces:
            return None
        piece = record.pieces[-1]
        reader = JournalReader(self._process.bucket, self._settings, self.container_id, self._process.shared_slots)
        found = UpwardReader(reader, piece.journal, record.first_slot(piece), self._settings, inspect)
        is_own = piece.end is None and piece.journal == self._process.writer.journal
        await found.read_up(self._process.writer.settled if is_own else piece.end)
        return found

    async def _end_of(self, record: ContainerRecord, found: UpwardReader | None) -> int | None:
        """Close the open piece for every other process, and return its end; None if no piece is open."""
        piece, writer = record.open_piece, self._process.writer
        if piece is None or found is None:
            return None
        if piece.journal == writer.journal and (end := await writer.quiesce(piece.journal)) is not None:
            await found.read_up(end)
            if found.slot < end:
                key = journal_key(self._process.bucket.prefix, piece.journal, found.slot)
                raise CorruptionError(key, 0, "it was created by this process, and is missing or sealed")
            return end
        # It was read up to a slot that was free then.
        while not found.is_sealed:
            self._check_opening()
            if await self._process.bucket.seal(piece.journal, found.slot, self._process.owner.token):
                break
            await found.read_up()
        return found.slot

    @staticmethod
    def _has_frames(found: UpwardReader | None) -> bool:
        return found is not None and any(part.section is not None for part in found.parts)

    def _last_known_address(self) -> int:
        """Return the address of the last frame that was found; of a slot before it, if that was not read."""
        if not self._found or self._read is None:
            return 0
        piece = self._found[-1]
        end = piece.first if piece.end is None else piece.end
        return frame_address(piece.ordinal, max(end - 1, piece.first), FRAMES_MAX - 1)

    # -- reading --------------------------------------------------------------------------------------------------

    async def frame_runs(self) -> AsyncGenerator[LogFrameRun, None]:
        """See `DurableLog.frame_runs`."""
        self._check_open()
        reader = JournalReader(self._process.bucket, self._settings, self.container_id)
        try:
            async with aclosing(reader.known_range(self._places())) as slots:
                async for slot in slots:
                    first = frame_address(slot.ordinal, slot.slot, 0)
                    skipped = min(max(self._recovered_truncation - first + 1, 0), len(slot.frames))
                    if skipped < len(slot.frames):
                        yield LogFrameRun(range(first + skipped, first + len(slot.frames)), slot.frames[skipped:])
        except CorruptionError as error:
            async with self._record_lock:
                if not await self._has_changed(self._stored):
                    raise
            raise LogFencedError(
                f"{self._describe()} has been opened by another process while it was read: this one must stop"
            ) from error

    async def _has_changed(self, known: StoredRecord | None) -> bool:
        """Return whether the record is another one than `known`: then slots may have been deleted with reason."""
        found = await self._process.bucket.read_record(self.container_id)
        return known is None or found is None or found.record.nonce != known.record.nonce

    def _places(self) -> Iterator[SlotPlace]:
        assert self._stored is not None
        record, read = self._stored.record, self._read
        for piece in self._found:
            for slot in range(record.first_slot(piece), piece.end or 0):
                is_read = read is not None and piece is self._found[-1] and read.journal == piece.journal
                index = slot - read.first if read is not None and is_read else -1
                part = read.parts[index] if read is not None and 0 <= index < len(read.parts) else None
                yield SlotPlace(piece.ordinal, piece.journal, slot, part)

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """See `DurableLog.append`."""
        self._check_open()
        self._check_frame(buffers, length)
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        if self._fenced is not None:
            future.set_exception(self._fenced)
            self.fail(self._fenced)
            return future
        append = Append(self, buffers, length, future)
        self._unacknowledged.append(append)
        self._outstanding_bytes += length
        self._process.writer.append(append)
        return future

    def slot_settled(self, slot: int, appends: Sequence[Append], began_s: float) -> None:
        """See `Member.slot_settled`."""
        assert self._stored is not None
        ordinal = self._stored.record.pieces[-1].ordinal
        self._last_slot = slot
        for frame, append in enumerate(appends):
            self._last_address = frame_address(ordinal, slot, frame)
            known = self._unacknowledged.popleft()
            assert known is append, "frames are acknowledged in the order of their appends"
            self._outstanding_bytes -= append.length
            self._appended_bytes += append.length
            if not append.future.done():
                append.future.set_result(LogAddress(self._last_address))
        if not self._unacknowledged:
            self._settled.set()

    def owned_at(self, began_s: float) -> None:
        """See `Member.owned_at`."""
        self._confirmed_s = max(self._confirmed_s, began_s)

    async def move(self, end: int) -> None:
        """See `Member.move`."""
        async with self._record_lock:
            last_slot, self._last_slot = self._last_slot, -1
            began_s = self._process.runtime.monotonic_s()
            journal = self._process.writer.journal

            def moved(record: ContainerRecord) -> ContainerRecord:
                return record.with_end(end, is_empty=last_slot < record.pieces[-1].first).with_piece(journal, 0)

            while True:
                try:
                    await self._change(moved)
                    break
                except StorageFullError as error:
                    _log.warning("%s moves to another journal later: %s", self._describe(), error)
                await asyncio.sleep(self._settings.full_retry_s)
            self._confirmed_s = max(self._confirmed_s, began_s)

    def fence(self) -> None:
        """End: this process opens the log again. What is in flight is not acknowledged any more."""
        error = LogFencedError(
            f"{self._describe()} has been opened by another incarnation since epoch {self.epoch}: this one must stop"
        )
        if self._unacknowledged:
            self.fail(error)
        else:
            self._fenced = error
        self._process.writer.detach(self)

    def fail(self, error: PenstockError) -> None:
        """See `Member.fail`."""
        if self._state in (LogLife.FAILED, LogLife.CLOSED):
            return
        self._state = LogLife.FAILED
        self._failure = error
        self._process.writer.detach(self)
        failed, self._unacknowledged = self._unacknowledged, deque()
        self._outstanding_bytes = 0
        for append in failed:
            if not append.future.done():
                append.future.set_exception(error)
        self._settled.set()

    # -- ownership and records ------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """See `DurableLog.settle`."""
        self._check_usable()
        async with self._record_lock:
            began_s = self._process.runtime.monotonic_s()
            await finished(self._change(lambda record: replace(record, is_settled=True)))
        self._may_predecessor_answer = False
        self._confirmed_s = max(self._confirmed_s, began_s)

    async def confirm_ownership(self, *, is_shared: bool = False) -> None:
        """See `DurableLog.confirm_ownership`. One request for all logs of this process."""
        self._check_usable()
        await self._process.writer.confirm(is_shared=is_shared)
        self._check_usable()

    async def truncate(self, address: LogAddress) -> None:
        """See `DurableLog.truncate`. An address beyond the last acknowledged frame means that frame."""
        self._check_usable()
        wanted = min(address, self._last_address)
        if wanted <= self._truncation:
            return
        self._truncation = wanted
        now_s = asyncio.get_running_loop().time()
        is_due = now_s - self._truncated_s >= self._settings.truncate_interval_s
        # Another journal begins at slot 0.
        slots = abs(self._process.writer.settled - self._truncated_slot)
        if is_due or self._appended_bytes >= self._settings.truncate_bytes or slots >= self._settings.truncate_slots:
            self._truncated_s, self._appended_bytes = now_s, 0
            self._truncated_slot = self._process.writer.settled
            try:
                await self.record_truncation()
            except StorageFullError as error:
                _log.warning("a truncation of %s is recorded later: %s", self._describe(), error)

    async def record_truncation(self) -> None:
        """See `Member.record_truncation`. The process then deletes what is not needed any more."""
        async with self._record_lock:
            if self._stored is None or self._truncation <= self._stored.record.truncation:
                return
            await finished(self._change(lambda record: record.truncated(self._truncation)))

    async def hop(self, bytes_after: Callable[[int], int]) -> None:
        """See `Member.hop`."""
        writer = self._process.writer
        async with self._record_lock:
            if self._stored is None or not self.is_writing or self._unacknowledged:
                return
            piece = self._stored.record.open_piece
            if piece is None or piece.journal != writer.journal:
                return
            last = max(self._last_slot, piece.first - 1)
            end, first, is_empty = last + 1, writer.settled, self._last_slot < piece.first
            if bytes_after(last) < self._settings.truncate_bytes and first - end < self._settings.hop_slots:
                return
            await finished(
                self._change(lambda record: record.truncated(self._truncation).with_gap(end, first, is_empty=is_empty))
            )

    async def _change(self, changed: Callable[[ContainerRecord], ContainerRecord]) -> None:
        """Change the record, under its lock. Raises `LogFencedError` if another process has changed it."""
        assert self._stored is not None
        process = self._process
        if self._fenced is not None:
            raise self._fenced
        before = self._stored.record
        record = replace(changed(before), nonce=process.runtime.random_id())
        try:
            self._stored = await process.bucket.change_record(self._stored, record)
        except ObjectChangedError as error:
            fenced = LogFencedError(
                f"{self._describe()} has been opened or disabled by another process since epoch {self.epoch}: "
                "this one must stop"
            )
            self.fence_by(fenced)
            process.fenced(self.container_id)
            raise fenced from error
        process.trim.changed(before, record)

    def fence_by(self, error: LogFencedError) -> None:
        """Note that another process owns the log: the next call fails, and nothing more is acknowledged."""
        if self._unacknowledged:
            self.fail(error)
        self._fenced = error
        self._process.writer.detach(self)

    async def space(self) -> DiskSpace | None:
        """See `DurableLog.space`. None free while the bucket refuses objects because it is full; else unknown."""
        return await self._process.bucket.space.ask()

    # -- the end --------------------------------------------------------------------------------------------------

    async def disable(self, cause: PenstockError | None = None) -> None:
        """See `DurableLog.disable`. Appends in flight fail. Also possible after a failed append.

        Raises `LogFencedError` if another incarnation owns the log; only that one can disable it then.
        """
        self._check_owner(has_record=self._stored is not None)
        if self._fenced is not None:
            raise self._fenced
        self.fail(LogDisabledError(f"{self._describe()} was disabled"))
        reason = "by an administrator" if cause is None else str(cause)
        try:
            async with self._record_lock:
                await finished(self._change(lambda record: replace(record, is_enabled=False, reason=reason)))
        finally:
            await self.close()

    async def _close(self, *, is_open: bool) -> None:
        if not is_open and self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        while self._unacknowledged and self._state is LogLife.CLOSING:
            self._settled.clear()
            self._process.writer.hurry()
            try:
                async with asyncio.timeout(self._settings.close_wait_s):
                    await self._settled.wait()
            except TimeoutError:
                if self._process.bucket.space.is_full:
                    self.fail(StorageFullError(f"{self._describe()}: the bucket is full, and the log is closed"))
        is_own = is_open and self._state is LogLife.CLOSING and self._fenced is None
        self._process.writer.detach(self)
        if self.epoch:
            self._process.owner.give_up(self.container_id, self.epoch)
        if is_own:
            await self._release()
        self._state = LogLife.CLOSED

    async def _release(self) -> None:
        """Record that this incarnation has stopped, and where the log ends."""

        def released(record: ContainerRecord) -> ContainerRecord:
            piece = record.pieces[-1]
            is_empty = self._last_slot < piece.first
            record = replace(record.truncated(self._truncation), is_released=True)
            return record.with_end(self._last_slot + 1, is_empty=is_empty)

        try:
            async with asyncio.timeout(self._settings.close_wait_s), self._record_lock:
                await self._change(released)
        except (TimeoutError, PenstockError) as error:
            _log.info("the next owner of %s waits for its lease: %r", self._describe(), error)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._fenced is not None and self._state is not LogLife.CLOSED:
            raise self._fenced
        super()._check_usable()

    def _describe(self) -> str:
        key = record_key(self._process.bucket.prefix, self.container_id)
        return f"the log of container {self.container_id} in {self._process.bucket.objects.place} ({key})"

"""`DurableLog` in a local directory: preallocated files, group commit, one fdatasync for many appends.

An append costs the event loop a queue entry. A blocking job takes everything queued, computes checksums, writes and
syncs the batch and checks that this incarnation still owns the log; only then are the futures completed, in order.
Appends that arrive while a batch is synced form the next batch, which the job takes without involving the loop. When
little is queued, the loop does the same itself if the system can write small batches without a thread. Neither path
involves the writer task, which handles new files, trailers and errors.

When the file system is full the log continues in files kept in reserve, and finally waits for space
(docs/full-disk.md).

Batches: `log_batch`. Files, prepared ahead: `log_files`. Formats: `frame_format`, `log_records`. Rules for changes of
the directory: `log_directory`. Source: segment-store 3.1 and 3.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from enum import Enum
from functools import partial

from penstock.model.errors import (
    InvalidArgumentError,
    LogClosedError,
    LogDisabledError,
    PenstockError,
    StorageError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.durable_log import InspectFrame, LogAddress, LogFrame, LogFrameRun
from penstock.segmentstore.tier1.log_batch import (
    Append,
    BatchResult,
    BatchWriter,
    NoRoomToGrowError,
    PreparedBatch,
    WritableFile,
)
from penstock.segmentstore.tier1.log_directory import LogDirectory
from penstock.segmentstore.tier1.log_files import LogFiles
from penstock.segmentstore.tier1.log_recovery import ChainFile, log_address
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.log_work import LogWork
from penstock.segmentstore.tier1.recovered_frames import one_by_one, recovered_frames

_log = logging.getLogger(__name__)

#: A complete reserve is checked less often than an incomplete one by this factor.
_RESERVE_CALM_FACTOR = 10
#: Event loops may run a timer early by up to this much.
_TIMER_GRAIN_S = 0.001


class _State(Enum):
    NEW = "not open"
    OPENING = "opening"
    OPEN = "open"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"


class LocalLog:
    """`DurableLog` of one container in one directory. Made by `LocalLogFactory`."""

    def __init__(self, directory: LogDirectory, runtime: Runtime, settings: LocalLogSettings) -> None:
        self._directory = directory
        container_id = directory.container_id
        self._runtime = runtime
        self._settings = settings
        self._work = LogWork(runtime, container_id, settings, self._describe())
        self._files = LogFiles(
            self._directory,
            runtime,
            settings,
            self._work,
            check_wanted=self._check_wanted,
            is_open=lambda: self._state is _State.OPEN,
            pause=lambda: self._pause(settings.space_check_interval_s),
            description=self._describe(),
        )
        #: Appends not being written yet. The loop adds to it and, if the log fails, empties it; the writer takes from
        #: it.
        self._queue: deque[Append] = deque()
        #: All appends not acknowledged yet, oldest first: those in the queue and those being written.
        self._unacknowledged: deque[Append] = deque()
        self._batches = BatchWriter(
            self._directory,
            self._queue,
            batch_length_max_bytes=settings.batch_length_max_bytes,
            room=self._files,
            tell=partial(self._work.writes.tell, self._committed),
        )
        self._state = _State.NEW
        self._failure: PenstockError | None = None
        self._outstanding_bytes = 0
        self._wakeup: asyncio.Future[None] | None = None
        #: Set when the log is closed or has failed.
        self._ended = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._metadata_lock = asyncio.Lock()
        self._recovered: Sequence[ChainFile] = ()
        self._closing: asyncio.Task[None] | None = None
        #: Whether no durable record after the last batch says that the batch was synced.
        self._needs_trailer = False
        self._trailer_due_s = 0.0
        self._trailer_timer: asyncio.TimerHandle | None = None
        self.on_synced: Callable[[], None] = lambda: None
        self.on_full: Callable[[], None] = lambda: None
        #: The batch being written without a thread; and whether the append thread is working.
        self._small: tuple[WritableFile, PreparedBatch] | None = None
        self._is_thread_busy = False
        #: A failure of either, for the writer task; with the batch, unless it was requeued or given up.
        self._write_failure: tuple[WritableFile, PreparedBatch | None, BaseException] | None = None
        self._last_address = LogAddress(0)
        self._confirmed_s = float("-inf")

    @property
    def epoch(self) -> int:
        """See `DurableLog.epoch`. 0 before `open`."""
        return self._directory.epoch

    @property
    def frame_length_max(self) -> int:
        """See `DurableLog.frame_length_max`."""
        return self._settings.frame_length_max_bytes

    @property
    def is_truncated(self) -> bool:
        """See `DurableLog.is_truncated`."""
        return self._directory.truncation_address > 0

    @property
    def ownership_confirmed_s(self) -> float:
        """See `DurableLog.ownership_confirmed_s`."""
        return self._confirmed_s

    @property
    def is_check_billed(self) -> bool:
        """See `DurableLog.is_check_billed`."""
        return False

    @property
    def is_long_to_open(self) -> bool:
        """See `DurableLog.is_long_to_open`. Never: an open reads nothing of other containers."""
        return False

    @property
    def problem(self) -> str:
        """See `DurableLog.problem`. Always empty."""
        return ""

    @property
    def may_predecessor_answer(self) -> bool:
        """See `DurableLog.may_predecessor_answer`."""
        return self._directory.may_predecessor_answer

    async def settle(self) -> None:
        """See `DurableLog.settle`."""
        self._check_open()
        # Cancelled half way it would leave a thread writing to an epoch file that is being closed.
        await self._work.shielded(self._settle())

    async def confirm_ownership(self, *, is_shared: bool = False) -> None:
        """See `DurableLog.confirm_ownership`. Costs one `fstat`."""
        self._check_open()
        began_s = self._runtime.monotonic_s()
        await self._work.run("read the owner of", self._directory.check_owned)
        self._confirmed_s = max(self._confirmed_s, began_s)

    @property
    def outstanding_bytes(self) -> int:
        """Payload bytes appended but not acknowledged yet; see `LocalLogSettings.outstanding_bytes_max`."""
        return self._outstanding_bytes

    async def open(self, inspect: InspectFrame | None = None) -> None:
        """See `DurableLog.open`. A log object opens once. Cancelled: the epoch may have been raised."""
        if self._state is not _State.NEW:
            raise LogClosedError(f"{self._describe()} is {self._state.value}: a log object opens only once")
        self._state = _State.OPENING
        await self._work.shielded(self._open(inspect))

    async def frame_runs(self) -> AsyncGenerator[LogFrameRun, None]:
        """See `DurableLog.frame_runs`."""
        self._check_open()
        truncation_address = self._directory.truncation_address
        path = self._directory.path
        found = recovered_frames(self._work, self._runtime.disk, path, self._recovered, truncation_address)
        try:
            async for run in found:
                yield run
        finally:
            await found.aclose()

    async def frames(self) -> AsyncIterator[LogFrame]:
        """See `DurableLog.frames`."""
        async with aclosing(one_by_one(self.frame_runs())) as found:
            async for frame in found:
                yield frame

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """See `DurableLog.append`."""
        self._check_open()
        if length > self._settings.frame_length_max_bytes:
            raise InvalidArgumentError(
                f"a frame of {length} bytes is longer than {self._settings.frame_length_max_bytes}, "
                "the maximum of the log"
            )
        if sum(map(len, buffers)) != length:
            raise InvalidArgumentError(f"the buffers hold {sum(map(len, buffers))} bytes, not {length}")
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        append = Append(buffers, length, future)
        self._unacknowledged.append(append)
        self._queue.append(append)
        self._outstanding_bytes += length
        self._go_on()
        return future

    async def truncate(self, address: LogAddress) -> None:
        """See `DurableLog.truncate`. An address beyond the last acknowledged frame means that frame."""
        self._check_open()
        await self._work.shielded(self._truncate(address))

    async def space(self) -> DiskSpace | None:
        """See `DurableLog.space`. None while the log's directory does not exist."""
        if not self._directory.is_claimed:
            return None
        return await self._work.run("check the free space for", self._directory.space)

    async def disable(self, cause: PenstockError | None = None) -> None:
        """See `DurableLog.disable`. Appends in flight fail. Also possible after a failed `open` or append.

        Raises `LogFencedError` if another incarnation owns the log; only that one can disable it then.
        """
        if not self._directory.is_claimed or self._state in (_State.CLOSING, _State.CLOSED):
            raise LogClosedError(f"{self._describe()} is {self._state.value}: only its owner can disable it")
        self._fail(LogDisabledError(f"{self._describe()} was disabled"))
        try:
            await self._work.shielded(self._disable(cause))
        finally:
            await self.close()

    async def close(self) -> None:
        """See `DurableLog.close`."""
        if self._state in (_State.NEW, _State.CLOSED):
            self._state = _State.CLOSED
            self._work.close()
            return
        if self._state in (_State.OPENING, _State.OPEN):
            self._state = _State.CLOSING
        self._wake()
        self._ended.set()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    # Opening.

    async def _open(self, inspect: InspectFrame | None) -> None:
        directory = self._directory
        try:
            await self._work.run("inspect", directory.check_versions, inspect)
            self._check_opening()
            await self._work.run_locked("open", directory.claim, self._check_opening)
            self._check_opening()
            recovered = await self._work.run("recover", directory.recover)
            self._recovered = recovered.files
            if recovered.files:
                tail = recovered.files[-1]
                self._last_address = log_address(tail.header.number, tail.end)
            await self._files.begin(recovered.files, recovered.next_sequence)
            self._batches.sequence = recovered.next_sequence + 1
            began_s = self._runtime.monotonic_s()
            await self._work.run_locked("open", directory.finish_open, recovered.residue)
            self._confirmed_s = began_s
        except BaseException as error:
            self._fail(error if isinstance(error, PenstockError) else StorageError("open was interrupted"))
            raise
        if self._state is _State.OPENING:
            self._state = _State.OPEN
            self._writer = asyncio.get_running_loop().create_task(self._write_loop())
            if self._settings.reserve_file_count or self._settings.reserve_record_count:
                self._work.start(self._keep_reserve())

    # Writing.

    async def _write_loop(self) -> None:
        """Write the batches that `_go_on` does not, and handle errors."""
        try:
            while self._has_work():
                if self._write_failure is not None:
                    failure, self._write_failure = self._write_failure, None
                    await self._write_failed(*failure)
                    continue
                if self._is_writing or not self._queue:
                    await self._idle()
                    continue
                file = await self._files.with_room(self._queue[0].length)
                if self._queue:
                    self._begin(file)
            current = self._files.current
            if self._state is _State.CLOSING and current is not None:
                await self._work.run_write("close", self._batches.write_closing_trailer, current)
                self._directory.note_closed(log_address(current.header.number, current.position))
        except PenstockError as error:
            self._fail(error)
        finally:
            if self._state is _State.OPEN or self._unacknowledged:
                self._fail(StorageError(f"the writer of {self._describe()} was stopped"))

    @property
    def _is_writing(self) -> bool:
        """Whether a batch is being written, by the kernel's workers or by the thread."""
        return self._small is not None or self._is_thread_busy

    def _has_work(self) -> bool:
        """Whether the writer continues: there is, or may come, something to write or to complete."""
        is_busy = self._is_writing or self._write_failure is not None
        return is_busy or self._state is _State.OPEN or (self._state is _State.CLOSING and bool(self._queue))

    async def _idle(self) -> None:
        """Wait until the writer has something to do; write the trailer if that is due."""
        self._wakeup = asyncio.get_running_loop().create_future()
        if self._needs_trailer:
            self._await_trailer()
        await self._wakeup
        if self._needs_trailer and self._is_trailer_due():
            self._needs_trailer = False
            assert self._files.current is not None
            await self._work.run_write("append to", self._batches.write_trailer, self._files.current)

    def _is_trailer_due(self) -> bool:
        is_quiet = not self._is_writing and self._write_failure is None and not self._queue
        now_s = asyncio.get_running_loop().time()
        return is_quiet and self._state is _State.OPEN and now_s >= self._trailer_due_s - _TIMER_GRAIN_S

    def _await_trailer(self) -> None:
        """Schedule the trailer that records that the last batch was synced."""
        if self._trailer_timer is None:
            loop = asyncio.get_running_loop()
            self._trailer_timer = loop.call_at(self._trailer_due_s, self._check_trailer)

    def _check_trailer(self) -> None:
        self._trailer_timer = None
        if self._is_trailer_due():
            self._wake()
        elif not self._is_writing and not self._queue and self._state is _State.OPEN:
            self._await_trailer()

    # Batches are started in the turn in which appends arrive, and completed in the turn that reports them. Turns of a
    # busy loop are long.

    def _go_on(self) -> None:
        """If nothing is being written, start to write the queue or wake the writer for it."""
        is_writer_idle = self._wakeup is not None and not self._wakeup.done()
        if self._is_writing or self._write_failure is not None or not is_writer_idle:
            return
        file = self._files.current
        if file is None or not self._files.fits(file, self._queue[0].length):
            self._wake()
        else:
            self._begin(file)

    def _begin(self, file: WritableFile) -> None:
        """Write queued appends that fit in `file`, at least one. No write may be in progress."""
        if not self._begin_small(file):
            self._batches.noted_s = self._runtime.monotonic_s()
            self._is_thread_busy = True
            self._work.writes.begin(partial(self._batches.write_queued, file), partial(self._thread_ended, file))

    def _begin_small(self, file: WritableFile) -> bool:
        """Write the whole queue if it is one small batch that needs no thread. No write may be in progress."""
        may_begin = (
            self._outstanding_bytes <= self._settings.threadless_batch_bytes_max
            and self._work.writes.writes_without_thread
            and self._directory.shows_claims_in_memory
        )
        if not may_begin:
            return False
        self._batches.noted_s = self._runtime.monotonic_s()
        batch = self._batches.prepare(file)
        if batch is None:
            return False
        self._small = file, batch
        self._work.writes.write_synced(file.file, file.position, batch.buffers, self._small_written)
        return True

    def _small_written(self, error: BaseException | None) -> None:
        assert self._small is not None
        file, batch = self._small
        self._small = None
        if error is None:
            try:
                result = self._batches.complete(file, batch)
            except PenstockError as failure:
                error = failure
            else:
                self._committed(result)
        self._write_ended(file, batch, error)

    def _thread_ended(self, file: WritableFile, result: BatchResult | None, error: BaseException | None) -> None:
        self._is_thread_busy = False
        if result is not None:
            self._committed(result)
        self._write_ended(file, None, error)

    def _write_ended(self, file: WritableFile, batch: PreparedBatch | None, error: BaseException | None) -> None:
        if error is not None or self._state is not _State.OPEN:
            self._write_failure = None if error is None else (file, batch, error)
            self._wake()
        elif self._queue:
            self._go_on()
        else:
            self._await_trailer()

    async def _write_failed(self, file: WritableFile, batch: PreparedBatch | None, error: BaseException) -> None:
        if isinstance(error, NoRoomToGrowError):
            await self._wait_for_room(file, error)
            return
        if batch is not None and isinstance(error, (OSError, StorageError)):
            try:
                self._batches.give_back(file, batch, error)
            except NoRoomToGrowError as no_room:
                await self._wait_for_room(file, no_room)
                return
        if isinstance(error, OSError):
            raise self._work.translated("append to", error) from error
        raise error

    def _committed(self, result: BatchResult) -> None:
        """Acknowledge a batch. Batches arrive in order."""
        self._confirmed_s = max(self._confirmed_s, result.began_s)
        self._batches.noted_s = self._runtime.monotonic_s()
        if self._state is _State.FAILED:
            return
        for address in result.addresses:
            append = self._unacknowledged.popleft()
            self._outstanding_bytes -= append.length
            if not append.future.done():
                append.future.set_result(address)
        self._last_address = result.addresses[-1]
        self._needs_trailer = True
        self._trailer_due_s = asyncio.get_running_loop().time() + self._settings.trailer_delay_s
        self._files.prepare_ahead()
        self.on_synced()

    async def _wait_for_room(self, file: WritableFile, error: StorageFullError) -> None:
        """Move a batch for which a file could not grow to the next file; the batch is in the queue again.

        Bytes of it that were written lie after the end that the next file's link will name, and were never synced.
        """
        if self._state is not _State.OPEN:
            raise error
        self._files.space.is_short = True
        if file.position < file.capacity:
            # A single frame longer than the whole file.
            _log.error("%s waits for free space: %s", self._describe(), error)
            await self._pause(self._settings.space_check_interval_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the log is closed or fails."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass  # The full time has passed.

    async def _keep_reserve(self) -> None:
        """Fill the reserve now, and whenever some of it was used and there is space again."""
        interval_s = self._settings.space_check_interval_s
        while self._state is _State.OPEN:
            is_complete = await self._files.space.fill_reserve()
            await self._files.give_spares_back()
            await self._pause(interval_s * (_RESERVE_CALM_FACTOR if is_complete else 1))

    def _check_wanted(self) -> None:
        """Raise `LogClosedError` if no more files are needed."""
        if self._state in (_State.FAILED, _State.CLOSED) or (self._state is _State.CLOSING and not self._queue):
            raise LogClosedError(f"{self._describe()} is {self._state.value}")

    def _check_opening(self) -> None:
        """Raise `LogClosedError` if the log's opening was abandoned. May be called off the loop."""
        if self._state is not _State.OPENING:
            raise LogClosedError(f"{self._describe()} is {self._state.value}: it can no longer be opened")

    # Metadata.

    async def _truncate(self, address: LogAddress) -> None:
        async with self._metadata_lock:
            address = min(address, self._last_address)
            if address <= self._directory.truncation_address:
                return
            await self._files.truncate(address)

    async def _settle(self) -> None:
        began_s = self._runtime.monotonic_s()
        await self._work.run("settle", self._directory.settle)
        # This checked the log's ownership.
        self._confirmed_s = max(self._confirmed_s, began_s)

    async def _disable(self, cause: PenstockError | None) -> None:
        async with self._metadata_lock:
            await self._work.run_locked("disable", self._directory.disable, cause)

    async def _close(self) -> None:
        if self._writer is not None:
            await asyncio.wait([self._writer])
        if self._trailer_timer is not None:
            self._trailer_timer.cancel()
        await self._work.tasks_ended()
        self._state = _State.CLOSED
        # Every step runs even if an earlier one fails; the last one registered runs first.
        async with AsyncExitStack() as steps:
            steps.callback(self._work.close)
            steps.push_async_callback(self._work.run, "close", self._directory.release)
            steps.push_async_callback(self._give_up)
            for file in self._files.take_open():
                steps.push_async_callback(self._work.run, "close", file.close)

    async def _give_up(self) -> None:
        try:
            await self._work.run("give up", self._directory.give_up)
        except PenstockError as error:
            _log.info("the next open of %s has to wait for its lease: %s", self._describe(), error)

    # Helpers.

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _fail(self, error: PenstockError) -> None:
        if self._state in (_State.FAILED, _State.CLOSED):
            return
        self._state = _State.FAILED
        self._failure = error
        self._ended.set()
        for append in self._unacknowledged:
            if not append.future.done():
                append.future.set_exception(error)
        self._unacknowledged.clear()
        self._queue.clear()
        self._outstanding_bytes = 0
        self._wake()

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            because = f" ({self._failure})" if self._failure is not None else ""
            raise LogClosedError(f"{self._describe()} is {self._state.value}{because}") from self._failure

    def _describe(self) -> str:
        return f"the log of container {self._directory.container_id} in {self._directory.path}"

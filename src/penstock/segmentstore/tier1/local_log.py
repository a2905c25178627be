"""`DurableLog` in a local directory: preallocated files, group commit, one fdatasync for many appends.

An append costs the event loop a queue entry; a writer task gives everything queued to one blocking job, which
checksums, writes and syncs it, looks that the log is still ours, and only then are the futures completed, in order.
While a job runs, later appends gather for the next one.

Files are filled with zeros, or recycled, before they are written, so a sync changes no file-system metadata. The next
file is prepared in the background once the current one is half full; if it comes too late the current file grows
beyond its length, up to twice, before appends wait.

When the file system is full the log goes on in files that it has kept in reserve for that, and in the end waits
(docs/full-disk.md).

Formats: `frame_format`, `log_records`. Who may touch what in the directory: `log_directory`. Source: segment store
specification, sections 3.1 and 3.3.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from penstock.model.errors import (
    CorruptionError,
    DataDirectoryInUseError,
    InvalidArgumentError,
    LogClosedError,
    LogDisabledError,
    PenstockError,
    StorageError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile, DiskSpace, is_full_error
from penstock.runtime.runtime import Runtime
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrame
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    LINK_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    encode_frame,
)
from penstock.segmentstore.tier1.log_directory import (
    LogDirectory,
    encode_link_frame,
    encode_trailer,
    log_container_ids,
    spare_name,
)
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.log_recovery import ChainFile, address_file_number, log_address, read_frames
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.log_space import LogSpace

__all__ = ["LocalLog", "LocalLogFactory", "LocalLogSettings"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_READ_BATCH_LENGTH = 8 * 1024 * 1024
#: A complete reserve is looked at so many times less often than one that is not.
_RESERVE_CALM_FACTOR = 10


class _State(Enum):
    NEW = "not open"
    OPENING = "opening"
    OPEN = "open"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(slots=True)
class _WritableFile:
    """A log file of this incarnation. `position`: everything before it is synced; the next batch goes there."""

    file: DiskFile
    name: str
    header: FileHeader
    length: int
    position: int = BLOCK_LENGTH

    @property
    def capacity(self) -> int:
        """Where frames end: a trailer finds room behind them without making the file longer."""
        return self.length - BLOCK_LENGTH


@dataclass(frozen=True, slots=True)
class _Append:
    buffers: Sequence[Buffer]
    length: int
    future: asyncio.Future[LogAddress]


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """Where reading the recovered log goes on: at `offset` of a file, where the frame `sequence` should lie."""

    file_index: int
    offset: int
    sequence: int | None


@dataclass(frozen=True, slots=True)
class _BatchResult:
    addresses: list[LogAddress]
    end: int
    trailer_error: OSError | PenstockError | None


class _NoRoomToGrowError(StorageFullError):
    """A batch that goes beyond the file's capacity was not written."""


class LocalLog:
    """`DurableLog` of one container in one directory. Made by `LocalLogFactory`."""

    def __init__(
        self, directory: str, container_id: int, runtime: Runtime, settings: LocalLogSettings, owner: LogOwner
    ) -> None:
        self._directory = LogDirectory(runtime.disk, directory, container_id, owner)
        self._runtime = runtime
        self._settings = settings
        # Whatever else hangs, appends have a thread; only one, because their order counts.
        self._writes = runtime.work.pool(f"log-{container_id}-writes", PoolSettings(thread_count_max=1))
        self._files = runtime.work.pool(f"log-{container_id}-files", settings.files)
        self._state = _State.NEW
        self._failure: PenstockError | None = None
        self._queue: deque[_Append] = deque()
        self._in_flight: list[_Append] = []
        self._outstanding_bytes = 0
        self._wakeup: asyncio.Future[None] | None = None
        #: Set when the log closes or has failed.
        self._ended = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._metadata_lock = asyncio.Lock()
        # Started work that must end before the descriptors are closed, even if its caller was cancelled.
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._recovered: Sequence[ChainFile] = ()
        # Files before the current one, oldest first: (name, number, whether it may be recycled).
        self._older: list[tuple[str, int, bool]] = []
        self._spares: list[str] = []
        self._spare_ordinal = 0
        self._current: _WritableFile | None = None
        self._next: _WritableFile | None = None
        self._preparation: asyncio.Task[object] | None = None
        self._preparation_failed = False
        self._space = LogSpace(
            self._directory,
            settings,
            run=self._run,
            run_locked=self._run_locked,
            new_spare_name=self._new_spare_name,
            check_wanted=self._check_wanted,
        )
        self._closing: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._sequence = 0
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
    def may_predecessor_answer(self) -> bool:
        """See `DurableLog.may_predecessor_answer`."""
        return self._directory.may_predecessor_answer

    async def settle(self) -> None:
        """See `DurableLog.settle`."""
        self._check_open()
        # Cut off half way it would leave a thread that writes to an epoch file which is being closed.
        await self._shielded(self._settle())

    async def confirm_ownership(self) -> None:
        """See `DurableLog.confirm_ownership`. Costs one `fstat`."""
        self._check_open()
        began_s = self._runtime.monotonic_s()
        await self._run("look at the owner of", self._directory.check_owned)
        self._confirmed_s = max(self._confirmed_s, began_s)

    @property
    def outstanding_bytes(self) -> int:
        """Payload bytes appended but not acknowledged yet; see `LocalLogSettings.outstanding_bytes_max`."""
        return self._outstanding_bytes

    async def open(self) -> None:
        """See `DurableLog.open`. A log object opens once. Cancelled: the epoch may have been raised."""
        if self._state is not _State.NEW:
            raise LogClosedError(f"{self._describe()} is {self._state.value}: a log object opens only once")
        self._state = _State.OPENING
        await self._shielded(self._open())

    async def frames(self) -> AsyncIterator[LogFrame]:
        """See `DurableLog.frames`."""
        self._check_open()
        truncation_address = self._directory.truncation_address
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read_batch(_ReadPosition(0, BLOCK_LENGTH, None)))
        is_over = False
        try:
            while not is_over:
                frames, following = await reading
                if following is not None:
                    # While the caller works on one batch the next one is read.
                    reading = loop.create_task(self._read_batch(following))
                    # It begins now: the caller may not give the loop a turn before it has worked all frames off.
                    await asyncio.sleep(0)
                is_over = following is None
                for frame in frames:
                    if frame.address > truncation_address:
                        yield frame
        finally:
            # A caller that stops early hears nothing more of the read under way.
            reading.cancel()
            reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _read_batch(self, position: _ReadPosition) -> tuple[list[LogFrame], _ReadPosition | None]:
        """Return the frames of a batch, and where the next one begins; None behind the last."""
        if position.file_index == len(self._recovered):
            return [], None
        file = self._recovered[position.file_index]
        if position.offset == BLOCK_LENGTH and position.sequence not in (None, file.first_sequence):
            raise CorruptionError(
                f"{self._directory.path}/{file.name}",
                BLOCK_LENGTH,
                f"expected frame {position.sequence}, found frame {file.first_sequence}",
            )
        sequence = file.first_sequence if position.offset == BLOCK_LENGTH else position.sequence
        frames, offset, sequence = await self._run(
            "read",
            read_frames,
            self._runtime.disk,
            self._directory.path,
            file,
            position.offset,
            sequence,
            _READ_BATCH_LENGTH,
        )
        if offset < file.end:
            return frames, _ReadPosition(position.file_index, offset, sequence)
        return frames, _ReadPosition(position.file_index + 1, BLOCK_LENGTH, sequence)

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """See `DurableLog.append`."""
        self._check_open()
        if length > self._settings.frame_length_max_bytes:
            raise InvalidArgumentError(
                f"a frame of {length} bytes is longer than {self._settings.frame_length_max_bytes}, "
                "the most that the log takes"
            )
        if sum(map(len, buffers)) != length:
            raise InvalidArgumentError(f"the buffers hold {sum(map(len, buffers))} bytes, not {length}")
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        self._queue.append(_Append(buffers, length, future))
        self._outstanding_bytes += length
        self._wake()
        return future

    async def truncate(self, address: LogAddress) -> None:
        """See `DurableLog.truncate`. An address beyond the last acknowledged frame means that frame."""
        self._check_open()
        await self._shielded(self._truncate(address))

    async def space(self) -> DiskSpace | None:
        """See `DurableLog.space`. Nobody can say while its directory does not exist."""
        if not self._directory.is_claimed:
            return None
        return await self._run("look for room for", self._directory.space)

    async def disable(self) -> None:
        """See `DurableLog.disable`. Appends under way fail. Also possible after a failed `open` or append.

        Raises `LogFencedError` if another incarnation owns the log: then that one decides.
        """
        if not self._directory.is_claimed or self._state in (_State.CLOSING, _State.CLOSED):
            raise LogClosedError(f"{self._describe()} is {self._state.value}: only its owner can disable it")
        self._fail(LogDisabledError(f"{self._describe()} was disabled"))
        try:
            await self._shielded(self._disable())
        finally:
            await self.close()

    async def close(self) -> None:
        """See `DurableLog.close`."""
        if self._state in (_State.NEW, _State.CLOSED):
            self._state = _State.CLOSED
            self._close_pools()
            return
        if self._state in (_State.OPENING, _State.OPEN):
            self._state = _State.CLOSING
        self._wake()
        self._ended.set()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    # Opening.

    async def _open(self) -> None:
        directory = self._directory
        try:
            await self._run_locked("open", directory.claim, self._check_opening)
            self._check_opening()
            recovered = await self._run("recover", directory.recover)
            self._recovered = recovered.files
            self._older = [(file.name, file.header.number, False) for file in recovered.files]
            self._sequence = recovered.next_sequence
            link = Link(0, 0, 0)
            if recovered.files:
                tail = recovered.files[-1]
                link = Link(tail.header.epoch, tail.header.number, tail.end)
                self._last_address = log_address(tail.header.number, tail.end)
            self._current = await self._prepare(link.number + 1, self._settings.first_file_length_bytes, link)
            self._current.position = 2 * BLOCK_LENGTH
            self._sequence += 1
            began_s = self._runtime.monotonic_s()
            await self._run_locked("open", directory.finish_open, recovered.residue)
            self._confirmed_s = began_s
        except BaseException as error:
            self._fail(error if isinstance(error, PenstockError) else StorageError("open was interrupted"))
            raise
        if self._state is _State.OPENING:
            self._state = _State.OPEN
            self._writer = asyncio.get_running_loop().create_task(self._write_loop())
            if self._settings.reserve_file_count or self._settings.reserve_record_count:
                self._start(self._keep_reserve())

    # Writing.

    async def _write_loop(self) -> None:
        try:
            while self._state is _State.OPEN or (self._state is _State.CLOSING and self._queue):
                if not self._queue:
                    self._wakeup = asyncio.get_running_loop().create_future()
                    await self._wakeup
                    continue
                file = await self._file_with_room()
                if not self._queue:
                    continue  # Failed meanwhile.
                self._take_batch(file)
                await self._commit_batch(file)
            if self._state is _State.CLOSING and self._current is not None:
                await self._run_write("close", self._write_closing_trailer, self._current)
        except PenstockError as error:
            self._fail(error)
        finally:
            if self._state is _State.OPEN or self._queue or self._in_flight:
                self._fail(StorageError(f"the writer of {self._describe()} was stopped"))

    def _take_batch(self, file: _WritableFile) -> None:
        # Past its capacity a file may grow to twice that: see `_file_with_room`.
        limit = file.capacity if file.position < file.capacity else self._growth_limit(file)
        offset = file.position
        payload_length = 0
        while self._queue:
            length = self._queue[0].length
            offset += FRAME_HEADER_LENGTH + length
            payload_length += length
            if self._in_flight and (
                offset > limit or payload_length > self._settings.batch_length_max_bytes
            ):
                break
            self._in_flight.append(self._queue.popleft())

    async def _commit_batch(self, file: _WritableFile) -> None:
        batch = self._in_flight
        link, self._link = self._link, None
        began_s = self._runtime.monotonic_s()
        try:
            result = await self._run_write("append to", self._write_batch, file, batch, link, self._sequence)
        except _NoRoomToGrowError as no_room:
            await self._take_back(file, batch, link, no_room)
            return
        self._confirmed_s = max(self._confirmed_s, began_s)
        file.position = result.end
        self._sequence += len(batch) + (link is not None)
        if self._state is _State.FAILED:
            return
        self._in_flight = []
        for append, address in zip(batch, result.addresses, strict=True):
            self._outstanding_bytes -= append.length
            if not append.future.done():
                append.future.set_result(address)
        self._last_address = result.addresses[-1]
        if result.trailer_error is not None:
            error = result.trailer_error
            raise StorageError(f"could not write behind the last frame of {self._describe()}: {error}") from error
        is_due = file.position > file.capacity // 2 and self._next is None and self._preparation is None
        if is_due and not self._preparation_failed:
            self._preparation = self._start(self._prepare_in_background())

    async def _take_back(
        self, file: _WritableFile, batch: list[_Append], link: Link | None, error: StorageFullError
    ) -> None:
        """Queue a batch again that a file could not grow for: it goes to the next file, or waits for room.

        What was written of it lies behind the end that the next file's link will name, and was never synced.
        """
        if self._state is not _State.OPEN:
            raise error
        self._in_flight = []
        self._queue.extendleft(reversed(batch))
        self._link = link
        self._space.is_short = True
        if file.position < file.capacity:
            # One frame that is longer than the whole file.
            _log.error("%s waits for room: %s", self._describe(), error)
            await self._pause(self._settings.space_check_interval_s)

    def _write_batch(
        self, file: _WritableFile, batch: list[_Append], link: Link | None, sequence: int
    ) -> _BatchResult:
        """Write and sync a batch (blocking, off the loop). Returns only while this incarnation owns the log."""
        header = file.header
        synced_offset = offset = file.position
        out: list[Buffer] = []
        if link is not None:
            encode_link_frame(header, link, sequence, is_last_of_batch=False, out=out)
            offset += FRAME_HEADER_LENGTH + LINK_LENGTH
            sequence += 1
        addresses: list[LogAddress] = []
        for index, append in enumerate(batch, 1):
            frame = FrameHeader(
                FrameKind.DATA,
                index == len(batch),
                False,
                append.length,
                offset,
                header.epoch,
                sequence,
                synced_offset,
            )
            encode_frame(header.salt, frame, append.buffers, out)
            addresses.append(log_address(header.number, offset))
            offset = frame.next_offset
            sequence += 1
        try:
            file.file.write(file.position, out)
        except (StorageFullError, OSError) as error:
            if offset > file.capacity and is_full_error(error):
                raise _NoRoomToGrowError(f"{file.name} of {self._describe()} cannot grow: {error}") from error
            raise
        file.file.sync()
        self._directory.check_owned()
        trailer_error: OSError | PenstockError | None = None
        if not self._queue:
            # Going idle: nothing after the last frame would say that it was synced. Not synced itself: it is meant to
            # outlive the process, not the machine. The next batch overwrites it.
            trailer: list[Buffer] = []
            encode_trailer(header, sequence, offset, is_clean_close=False, out=trailer)
            try:
                file.file.write(offset, trailer)
            except (OSError, PenstockError) as error:
                # Grown as far as there was room, it does without. Else: the batch itself is safe, acknowledge it first,
                # then fail.
                trailer_error = None if offset > file.capacity and is_full_error(error) else error
        return _BatchResult(addresses, offset, trailer_error)

    def _write_closing_trailer(self, file: _WritableFile) -> None:
        self._directory.check_owned()
        out: list[Buffer] = []
        encode_trailer(file.header, self._sequence, file.position, is_clean_close=True, out=out)
        file.file.write(file.position, out)
        file.file.sync()

    # Files.

    async def _file_with_room(self) -> _WritableFile:
        """Return the file for the next frame: the current one, or the next if the frame does not fit any more."""
        current = self._current
        assert current is not None
        end = current.position + FRAME_HEADER_LENGTH + self._queue[0].length
        if end <= current.capacity or current.position <= 2 * BLOCK_LENGTH:
            return current
        if self._next is None and end > self._growth_limit(current):
            if self._preparation is not None:
                await asyncio.wait([self._preparation])
            if self._next is None:
                # The preparation failed, perhaps long ago.
                self._next = await self._prepare_when_there_is_room()
        if self._next is None:
            return current
        self._link = Link(current.header.epoch, current.header.number, current.position)
        # What is recycled takes room that others may need more.
        is_recyclable = current.length >= self._settings.file_length_bytes and not self._space.is_short
        self._older.append((current.name, current.header.number, is_recyclable))
        self._start(self._run("close", current.file.close))
        self._current, self._next = self._next, None
        return self._current

    def _growth_limit(self, file: _WritableFile) -> int:
        return file.capacity if self._space.is_short else 2 * file.capacity

    async def _prepare_when_there_is_room(self) -> _WritableFile:
        """Prepare the next file, however long there is no room for it; nothing can be appended meanwhile.

        A closing log does not wait.
        """
        while True:
            try:
                return await self._prepare_next()
            except StorageFullError as error:
                if self._state is not _State.OPEN:
                    raise
                _log.error("%s waits for room: %s", self._describe(), error)
            await self._pause(self._settings.space_check_interval_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or until the log is closed or fails."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass  # The whole time is over.

    async def _prepare_in_background(self) -> None:
        try:
            self._next = await self._prepare_next(may_take_reserve=False)
        except LogClosedError:
            pass  # Not needed any more.
        except PenstockError as error:
            # Not fatal yet: the current file may grow. `_file_with_room` tries again once it must, and fails then.
            self._preparation_failed = True
            _log.warning("could not prepare the next file of %s: %s", self._describe(), error)
        finally:
            self._preparation = None

    async def _prepare_next(self, *, may_take_reserve: bool = True) -> _WritableFile:
        assert self._current is not None
        length = min(
            max(4 * self._current.length, self._settings.first_file_length_bytes), self._settings.file_length_bytes
        )
        return await self._prepare(
            self._current.header.number + 1, length, None, may_take_reserve=may_take_reserve
        )

    async def _prepare(
        self, number: int, length: int, link: Link | None, *, may_take_reserve: bool = True
    ) -> _WritableFile:
        """Make log file `number`: re-use a spare file, or fill a new one with zeros."""
        directory = self._directory
        header = FileHeader(
            directory.container_id, directory.epoch, number, self._runtime.rng.getrandbits(64), link is not None
        )
        if self._spares:
            spare = self._spares.pop()
            file = await self._run("open a spare file of", directory.open_spare, spare)
        else:
            spare, file = await self._space.new_file(length, may_take_reserve=may_take_reserve)
        try:
            # A recycled one may have grown beyond its length; do not let that become the rule.
            found_length = await self._run("prepare a file of", file.length)
            length = min(found_length, max(self._settings.file_length_bytes, self._settings.reserve_length_bytes))
            name = await self._run("prepare a file of", directory.publish, file, spare, header, link, self._sequence)
        except (OSError, PenstockError):
            await self._run("close", file.close)
            await self._run("remove a file of", directory.discard_spare, spare)
            raise
        self._preparation_failed = False
        return _WritableFile(file, name, header, length)

    async def _keep_reserve(self) -> None:
        """Fill the reserve up, now and whenever something of it was used and there is room again."""
        interval_s = self._settings.space_check_interval_s
        while self._state is _State.OPEN:
            is_complete = await self._space.fill_reserve()
            await self._pause(interval_s * (_RESERVE_CALM_FACTOR if is_complete else 1))

    def _check_wanted(self) -> None:
        """Raise `LogClosedError` when no more files are needed."""
        if self._state in (_State.FAILED, _State.CLOSED) or (self._state is _State.CLOSING and not self._queue):
            raise LogClosedError(f"{self._describe()} is {self._state.value}")

    def _check_opening(self) -> None:
        """Raise `LogClosedError` when nobody waits any more for the log to open. May be called off the loop."""
        if self._state is not _State.OPENING:
            raise LogClosedError(f"{self._describe()} is {self._state.value}: it is not opened any more")

    def _new_spare_name(self) -> str:
        self._spare_ordinal += 1
        return spare_name(self._directory.epoch, self._spare_ordinal)

    # Metadata.

    async def _truncate(self, address: LogAddress) -> None:
        async with self._metadata_lock:
            address = min(address, self._last_address)
            if address <= self._directory.truncation_address:
                return
            obsolete = [file for file in self._older if file[1] < address_file_number(address)]
            removed: list[str] = []
            recycled: list[tuple[str, str]] = []
            for name, _, is_recyclable in obsolete:
                if is_recyclable and len(self._spares) + len(recycled) < self._settings.spare_file_count_max:
                    recycled.append((name, self._new_spare_name()))
                else:
                    removed.append(name)
            await self._run_locked("truncate", self._directory.truncate, address, removed, recycled)
            self._older = self._older[len(obsolete) :]
            self._spares.extend(spare for _, spare in recycled)

    async def _settle(self) -> None:
        began_s = self._runtime.monotonic_s()
        await self._run("settle", self._directory.settle)
        # It has looked whose the log is.
        self._confirmed_s = max(self._confirmed_s, began_s)

    async def _disable(self) -> None:
        async with self._metadata_lock:
            await self._run_locked("disable", self._directory.disable)

    async def _close(self) -> None:
        if self._writer is not None:
            await asyncio.wait([self._writer])
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        self._state = _State.CLOSED
        # Each step is done even if one before it fails; the last one first.
        async with AsyncExitStack() as steps:
            steps.callback(self._close_pools)
            steps.push_async_callback(self._run, "close", self._directory.release)
            steps.push_async_callback(self._give_up)
            for file in (self._next, self._current):
                if file is not None:
                    steps.push_async_callback(self._run, "close", file.file.close)
            self._current = self._next = None

    async def _give_up(self) -> None:
        try:
            await self._run("give up", self._directory.give_up)
        except PenstockError as error:
            _log.info("whoever opens %s next has to wait for its lease: %s", self._describe(), error)

    def _close_pools(self) -> None:
        self._writes.close()
        self._files.close()

    # Helpers.

    async def _run(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run blocking work on files; operating-system errors become `StorageError`."""
        try:
            return await self._files.run(function, *args)
        except OSError as error:
            raise self._translated(what, error) from error

    async def _run_write(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run blocking work in the thread for appends."""
        try:
            return await self._writes.run(function, *args)
        except OSError as error:
            raise self._translated(what, error) from error

    def _translated(self, what: str, error: OSError) -> StorageError:
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        return kind(f"could not {what} {self._describe()}: {error}")

    async def _run_locked(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run blocking work that takes the log's lock, again and again while another holds it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.lock_wait_s_max
        while True:
            try:
                return await self._run(what, function, *args)
            except DataDirectoryInUseError as error:
                if loop.time() >= deadline:
                    raise StorageError(
                        f"could not {what} {self._describe()}: its lock was held for {self._settings.lock_wait_s_max} s"
                    ) from error
            await asyncio.sleep(self._settings.lock_retry_delay_s)

    def _start(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _shielded(self, work: Coroutine[object, object, object]) -> None:
        """Run to the end even if the caller is cancelled: blocking work cannot be taken back half way."""
        task = self._start(work)
        # After a cancellation nobody is left to hear how it ended.
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        await asyncio.shield(task)

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _fail(self, error: PenstockError) -> None:
        if self._state in (_State.FAILED, _State.CLOSED):
            return
        self._state = _State.FAILED
        self._failure = error
        self._ended.set()
        for append in (*self._in_flight, *self._queue):
            if not append.future.done():
                append.future.set_exception(error)
        self._in_flight = []
        self._queue.clear()
        self._outstanding_bytes = 0
        self._wake()

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            because = f" ({self._failure})" if self._failure is not None else ""
            raise LogClosedError(f"{self._describe()} is {self._state.value}{because}") from self._failure

    def _describe(self) -> str:
        return f"the log of container {self._directory.container_id} in {self._directory.path}"


class LocalLogFactory:
    """`DurableLogFactory`: one directory per container under `directory`."""

    def __init__(
        self,
        directory: str,
        runtime: Runtime,
        settings: LocalLogSettings | None = None,
        *,
        owner: LogOwner | None = None,
    ) -> None:
        """`owner`: in whose name logs are opened; by default somebody new, and of others nobody lives."""
        self._directory = directory
        self._runtime = runtime
        self._settings = settings or LocalLogSettings()
        self._owner = owner or LogOwner(runtime.random_id())

    def create(self, container_id: int) -> LocalLog:
        """See `DurableLogFactory.create`."""
        return LocalLog(self._path(container_id), container_id, self._runtime, self._settings, self._owner)

    async def has_logs(self) -> bool:
        """See `DurableLogFactory.has_logs`."""
        return bool(await self._runtime.work.run(log_container_ids, self._runtime.disk, self._directory))

    async def enable(self, container_id: int) -> None:
        """See `DurableLogFactory.enable`. Raises `InvalidArgumentError` when the log is not disabled."""
        directory = LogDirectory(self._runtime.disk, self._path(container_id), container_id)
        await self._runtime.work.run(directory.enable)

    def _path(self, container_id: int) -> str:
        return f"{self._directory}/{container_id}"

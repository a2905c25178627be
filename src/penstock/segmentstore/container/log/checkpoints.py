"""`Checkpoints`: when a container writes its metadata to its log, and where the log may be truncated.

A checkpoint holds the metadata of all segments at its position in the log, so that recovery can start there. The log is
truncated at a checkpoint once everything before it is in long-term storage. Under load some data before the newest
checkpoint is always unflushed, so older checkpoints are remembered and remain usable.

The reference implementation writes a checkpoint every 300 frames, or after 256 MiB in at least 300 frames. Here a frame
is one turn of the event loop and may hold a single small append, with thousands per second. The number of frames
therefore only counts once the log after the last checkpoint is long compared with that checkpoint. The threshold in
bytes is smaller, because the cost of a restart is the bytes it reads; it is never below the size of the last
checkpoint.

With very many segments and attributes a checkpoint is encoded in parts, one per turn of the loop, so that it does not
block the loop. All parts show the state at the position of the first, without operations accepted between them
(`MetadataSnapshot`). The log is truncated right before the first part, once the last is durable; recovery buffers the
records it reads until it has the last part, and replays them then.

| Crash | Recovery finds |
| --- | --- |
| between two parts | An older checkpoint, and parts of an incomplete one, which are skipped |
| after the last part | Both; later parts add nothing to the replay, except for what storage has |
| after the truncation | The parts, and between them the operations accepted meanwhile |

Source: segment-store 0.2 and 2.8.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import chain

from penstock.model.errors import PenstockError
from penstock.segmentstore.container.log.operations import Checkpoint
from penstock.segmentstore.container.log.pipeline import CheckpointPosition, OnDone, OperationPipeline
from penstock.segmentstore.container.log.recovery import Recovered
from penstock.segmentstore.container.metadata import MetadataSnapshot
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.tier1.durable_log import DurableLog

#: Starts a background job that ends with the container.
Spawn = Callable[[Coroutine[None, None, None]], None]


def _ignore_end(error: BaseException | None) -> None:
    """Do nothing. A checkpoint counts when its last part is durable; if the log failed, the container ends."""


class Checkpoints:
    """The checkpoints of one incarnation.

    `first_unflushed` returns the sequence number of a segment's first operation that long-term storage does not have.
    Operations that recovery `replayed` count like operations written since; otherwise the log of a container that does
    little between restarts would never be truncated. Checkpoints among them can also be truncated at.
    """

    def __init__(
        self,
        state: ContainerState,
        pipeline: OperationPipeline,
        log: DurableLog,
        *,
        settings: ContainerSettings,
        first_unflushed: Callable[[Segment], int],
        replayed: Recovered,
        spawn: Spawn,
        fail: Callable[[BaseException], None],
    ) -> None:
        #: Durable checkpoints that the log was not truncated at yet, oldest first.
        self.marks: deque[CheckpointPosition] = deque(
            CheckpointPosition(found.sequence_number, found.address, found.bytes_before - replayed.byte_count)
            for found in replayed.checkpoints
        )
        #: Whether a checkpoint is being written or is not durable yet.
        self.is_pending: bool = False
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._pipeline = pipeline
        self._log = log
        self._settings = settings
        self._first_unflushed = first_unflushed
        self._spawn = spawn
        self._fail = fail
        # The pipeline's counters at the last checkpoint, and that checkpoint's length.
        self._bytes_before = -replayed.byte_count
        self._frames_before = -replayed.frame_count
        self._last_length = 0
        # The log is truncated by one job at a time, to the newest mark that was usable when it began.
        self._truncate_to: CheckpointPosition | None = None
        self._is_truncating = False
        self._truncated = asyncio.Event()
        self._truncated.set()
        #: The segment that prevented truncation the last time.
        self._blocker_id = 0
        #: The pipeline's counter of bytes at the position where the log begins.
        self._cut_at_bytes = -replayed.byte_count

    @property
    def log_bytes(self) -> int:
        """Length of the log's records that recovery would read."""
        return self._pipeline.logged_bytes - self._cut_at_bytes

    @property
    def newest(self) -> CheckpointPosition | None:
        """The newest durable checkpoint that the log was not truncated at."""
        return self.marks[-1] if self.marks else None

    def truncation_candidate(self) -> int:
        """Return the number of the checkpoint that a long log should be truncated at next; 0 if the log is not long.

        It is the oldest checkpoint at which truncation is worthwhile. The segments that pin the log up to there have
        been unflushed for longest, so under even load they have nearly the most to flush that they will ever have.
        """
        log_bytes = self.log_bytes
        settings = self._settings
        if log_bytes * 100 <= settings.log_bytes_max * settings.log_flush_percent:
            return 0
        for mark in self.marks:
            if 4 * self.cut_bytes(mark) >= log_bytes:
                return mark.sequence_number
        return 0

    def cut_bytes(self, mark: CheckpointPosition) -> int:
        """Return how many bytes of the log a truncation at `mark` removes."""
        return mark.logged_bytes - self._cut_at_bytes

    def write_now(self) -> None:
        """Write a checkpoint regardless of the amount logged since the last one, unless one is pending."""
        if not self.is_pending:
            self.write()

    def write(self, on_done: OnDone = _ignore_end) -> CheckpointPosition:
        """Add a checkpoint of the accepted state to the log: its first part now, the others in the following turns.

        A checkpoint still being written is abandoned; nothing is lost with it. `on_done` is called when all of the
        checkpoint is durable, or with the error of a log that failed after its last part; never if the checkpoint was
        abandoned.
        """
        self.is_pending = True
        with self._pipeline.critical_section():
            self._state.cut = cut = self._state.metadata.cut()
            mark = self._pipeline.begin_checkpoint()
            self._write_part(cut, mark, 0, 0, on_done)
        return mark

    def _write_part(
        self, cut: MetadataSnapshot, mark: CheckpointPosition, part: int, length: int, on_done: OnDone
    ) -> None:
        """Encode and log one part; the previous parts took `length` bytes of records."""
        pipeline = self._pipeline
        if pipeline.error is not None or self._state.cut is not cut:
            return

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._note_durable(mark)
            on_done(error)

        with pipeline.critical_section():
            snapshot = cut.next_part(self._settings.checkpoint_part_values)
            before = pipeline.logged_bytes
            is_last = cut.is_done
            operation = Checkpoint(mark.sequence_number, part, is_last, snapshot)
            pipeline.add_operation(operation, durable if is_last else _ignore_end)
        length += pipeline.logged_bytes - before
        if not is_last:
            self._in_next_turn(partial(self._write_part, cut, mark, part + 1, length, on_done))
            return
        self._state.cut = None
        # Count from the end of the checkpoint: a large one must not trigger the next. Its own last frame is not sent
        # yet.
        self._bytes_before = pipeline.logged_bytes
        self._frames_before = pipeline.frame_count + 1
        self._last_length = length

    def _in_next_turn(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def _note_durable(self, mark: CheckpointPosition) -> None:
        self.is_pending = self._state.cut is not None
        if mark.address is not None:
            self.marks.append(mark)
            if len(self.marks) > self._settings.checkpoints_max:
                # Flushing lags far behind: keep every other one.
                self.marks = deque(list(self.marks)[::2])

    def write_if_due(self, *, is_idle: bool = False) -> None:
        """Write a checkpoint when enough was logged since the last one. `is_idle`: nothing is unflushed."""
        if self.is_pending:
            return
        settings = self._settings
        pipeline = self._pipeline
        logged = pipeline.logged_bytes - self._bytes_before
        # Regardless of the number of segments, at most half of the bytes written are checkpoints.
        if (
            logged > max(settings.checkpoint_log_bytes, self._last_length)
            or (is_idle and logged > max(settings.checkpoint_log_bytes_idle, self._last_length))
            or (is_idle and logged > 0 and self._shortens_open)
            or (
                pipeline.frame_count - self._frames_before >= settings.checkpoint_frames
                and logged * settings.checkpoint_share_percent_max >= self._last_length * 100
            )
        ):
            self.write()

    def write_to_shorten_open(self) -> None:
        """Write a small checkpoint if there is none at which a log that is long to open could be truncated."""
        if not self.is_pending and self._pipeline.logged_bytes > self._bytes_before and self._shortens_open:
            self.write()

    @property
    def is_long_to_open(self) -> bool:
        """See `DurableLog.is_long_to_open`."""
        return self._log.is_long_to_open

    @property
    def _shortens_open(self) -> bool:
        """Whether a small checkpoint would spare the next open much. Not while another one is yet to be used."""
        is_small = self._last_length <= self._settings.checkpoint_log_bytes_idle
        return is_small and not self.marks and self._log.is_long_to_open

    def disregard(self, byte_count: int) -> None:
        """Exclude logged bytes from the next checkpoint's trigger: another one would not help to truncate them."""
        self._bytes_before += byte_count

    def truncate_log(self) -> None:
        """Start truncating the log, in the background, at the last checkpoint before all unflushed data."""
        if not self.marks:
            return
        unflushed = self._state.unflushed
        oldest = self.marks[0].sequence_number
        first_unflushed = 1 << 63
        # Check the last blocking segment first: it usually still blocks, and there may be very many segments.
        for segment in chain(filter(None, (unflushed.get(self._blocker_id),)), unflushed.values()):
            first_unflushed = min(first_unflushed, self._first_unflushed(segment))
            if first_unflushed <= oldest:
                self._blocker_id = segment.id
                return
        usable: CheckpointPosition | None = None
        while self.marks and self.marks[0].sequence_number < first_unflushed:
            usable = self.marks.popleft()
        if usable is not None:
            self._truncate_to = usable
            if not self._is_truncating:
                self._is_truncating = True
                self._truncated.clear()
                self._spawn(self._truncate())

    async def until_truncated(self) -> None:
        """Wait for the end of a truncation that has begun: the end of the log would wait for it."""
        await self._truncated.wait()

    async def _truncate(self) -> None:
        try:
            while (mark := self._truncate_to) is not None:
                self._truncate_to = None
                assert mark.address is not None
                await self._log.truncate(mark.address)
                self._cut_at_bytes = max(self._cut_at_bytes, mark.logged_bytes)
        except (PenstockError, OSError) as error:
            self._fail(error)
        finally:
            self._is_truncating = False
            self._truncated.set()

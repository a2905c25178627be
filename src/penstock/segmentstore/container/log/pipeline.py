"""The operation pipeline: packs accepted operations into frames, writes them to tier 1, acknowledges them in order.

Operations are validated and accepted synchronously, in the loop's thread, against state that includes all operations
accepted before (invariant G11). Records are gathered into the current frame, which is sent to the log a few turns of
the loop later, or when it is full; one sync of the log covers many frames. When a frame is durable, its operations
become visible and their callbacks run, in order. After one failed write the pipeline accepts and acknowledges nothing:
only a new incarnation can determine the log's content by reading it. The outcome of operations already given to the log
is then unknown; operations not given to it were not applied.

Source: segment-store 2.2-2.6.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from penstock.model.errors import ContainerOfflineError, OutcomeUnknownError
from penstock.model.segments import Buffer
from penstock.runtime.histogram import Histogram
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.log.frames import FrameBuilder
from penstock.segmentstore.container.log.image import FrameRecorder
from penstock.segmentstore.container.log.operations import NonAppendOperation, encode_operation
from penstock.segmentstore.tier1.durable_log import DurableLog, LogAddress

#: Called with None once the operation is durable. If the pipeline ended first, called with `OutcomeUnknownError` if the
#: record had been given to the log, else with `ContainerOfflineError`.
OnDone = Callable[[BaseException | None], None]
#: Weight of one sync in the moving average.
_SYNC_WEIGHT = 0.125
#: Turns of the loop that a short frame waits. An idle loop runs them in microseconds. On a busy loop they let more
#: records join the frame: one write to the log costs more than many turns.
_GATHER_TURNS = 4
#: A frame of this length is sent at the end of the current turn.
_GATHER_BYTES_MAX = 32 * 1024


@dataclass(slots=True)
class CheckpointPosition:
    """A durable checkpoint: the log may be truncated to `address`, the last frame before it (None: there is none)."""

    sequence_number: int
    address: LogAddress | None
    #: Values of the pipeline's counters of bytes and frames before the checkpoint.
    logged_bytes: int = 0
    frame_count: int = 0


@dataclass(slots=True, eq=False)
class _Frame:
    """A frame given to the log: its callbacks, and the last record that ends in it or before."""

    callbacks: list[OnDone]
    length: int
    sequence_number: int
    future: asyncio.Future[LogAddress]
    #: When its first record was added, and when it was given to the log, on the loop's clock.
    begun_s: float
    sent_s: float
    is_told: bool = False
    is_ended: bool = False


class _Accepting:
    """See `OperationPipeline.accepting`. Stateless, so one instance serves all callers and is reentrant."""

    __slots__ = ("_pipeline",)

    def __init__(self, pipeline: OperationPipeline) -> None:
        self._pipeline = pipeline

    def __enter__(self) -> None:
        """Do nothing: no state has changed yet."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the pipeline if an error was raised."""
        if error is not None:
            self._pipeline.fail_inconsistent(error)


class OperationPipeline:
    """One container's pipeline. `fail` is called once, with the cause, when a log write failed.

    `last_sequence_number` and `last_address` are those of the last record and frame that recovery read.

    Acceptance is synchronous and applies no back pressure. Code that admits client operations checks
    `outstanding_bytes` first. The container's own operations must not wait for it: storage records and checkpoints
    reduce the load.
    """

    def __init__(
        self,
        container_id: int,
        log: DurableLog,
        *,
        last_sequence_number: int,
        last_address: LogAddress | None,
        fail: Callable[[BaseException], None],
        events: ContainerEvents,
    ) -> None:
        self.container_id = container_id
        self._events = events
        self.sequence_number: int = last_sequence_number
        self.durable_sequence_number: int = last_sequence_number
        #: Bytes of records, and frames, given to the log so far.
        self.logged_bytes: int = 0
        self.frame_count: int = 0
        #: Moving average of the log's write latency, without time spent queued after earlier frames.
        self.sync_s: float = 0.0
        self._last_done_s = 0.0
        #: Seconds per sync of the log, and from the acceptance of operations to their durability; for metrics.
        self.sync_durations: Histogram = Histogram()
        self.operation_durations: Histogram = Histogram()
        self._begun_s = 0.0
        self.error: BaseException | None = None
        #: Receives a copy of every frame given to the log while an image is taken.
        self.recorder: FrameRecorder | None = None
        self._log = log
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._builder = FrameBuilder(log.frame_length_max)
        self._added_sequence_number = last_sequence_number
        self._callbacks: list[OnDone] = []
        self._flush_is_scheduled = False
        #: Frames whose callbacks have not run, in log order; `_frames_in_flight` counts unfinished log futures.
        self._waiting_frames: deque[_Frame] = deque()
        self._frames_in_flight = 0
        self._bytes_in_flight = 0
        self._last_durable_address = last_address
        self._idle: asyncio.Future[None] | None = None
        self._accepting = _Accepting(self)
        log.on_synced = self._synced

    @property
    def outstanding_bytes(self) -> int:
        """Bytes accepted and not yet durable, including frame overhead."""
        return self._bytes_in_flight + (0 if self._builder.is_empty else self._builder.length)

    @property
    def is_all_durable(self) -> bool:
        """Whether everything accepted so far is durable, and its callbacks have run or are running."""
        return self.error is None and self.durable_sequence_number == self.sequence_number

    @property
    def frames_in_flight(self) -> int:
        """Number of frames given to the log and not yet acknowledged."""
        return self._frames_in_flight

    def oldest_wait_s(self, now_s: float) -> float:
        """Return for how long the oldest frame has been with the log; 0 if there is none. `now_s`: loop time."""
        return now_s - self._waiting_frames[0].sent_s if self._frames_in_flight and self._waiting_frames else 0.0

    def check_open(self) -> None:
        """Raise `ContainerOfflineError` if the pipeline accepts no more operations."""
        if self.error is not None:
            raise ContainerOfflineError(self.container_id, f"its log stopped: {self.error}") from self.error

    def critical_section(self) -> _Accepting:
        """Return a guard to be held, without awaiting, from a change of the accepted state until its record is added.

        An exception raised inside it ends the container: its state may contain operations that will never be logged,
        and neither readers nor later operations may rely on them.
        """
        return self._accepting

    def fail_inconsistent(self, error: BaseException) -> None:
        """End the pipeline: the accepted state may contain operations that will never be logged."""
        if self.error is None:
            self._break(error)

    def next_sequence_number(self) -> int:
        """Return the number for the record that is added next; add it before taking another."""
        self.sequence_number += 1
        return self.sequence_number

    def add(self, header: bytes, data: Buffer | None, on_done: OnDone) -> None:
        """Add an accepted record: `header` (with its sequence number) and `data`, which must not change."""
        length = len(header) + (len(data) if data is not None else 0)
        self.logged_bytes += length
        builder = self._builder
        if not builder.fits(length) and length <= self._log.frame_length_max // 2:
            self._send()
        if builder.fits(length):
            builder.add(header, data, length)
        else:
            for parts, frame_length in builder.add_spanning(header, data):
                self._append_frame(parts, frame_length)
        self._added_sequence_number = self.sequence_number
        self._callbacks.append(on_done)
        if not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self._begun_s = self._loop.time()
            self._loop.call_soon(self._gather, _GATHER_TURNS)

    def add_operation(self, operation: NonAppendOperation, on_done: OnDone) -> int:
        """Add an accepted operation that is not an append; return its sequence number."""
        with self._accepting:
            number = self.next_sequence_number()
            self.add(encode_operation(number, operation), None, on_done)
        return number

    def when_durable(self, on_done: OnDone) -> None:
        """Call `on_done` once everything accepted so far is durable; immediately if it already is."""
        if self.error is not None:
            on_done(self._offline(self.error))
        elif not self._builder.is_empty:
            self._callbacks.append(on_done)
        elif self._waiting_frames:
            self._waiting_frames[-1].callbacks.append(on_done)
        else:
            on_done(None)

    async def barrier(self) -> None:
        """Return once everything accepted so far is durable. Raises `ContainerOfflineError` if that fails."""
        if self.is_all_durable:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self.when_durable(completer(future))
        try:
            await future
        except OutcomeUnknownError as error:
            # The caller only waited; no operation of its own has an unknown outcome.
            raise ContainerOfflineError(self.container_id, str(error)) from error

    def begin_checkpoint(self) -> CheckpointPosition:
        """Begin a new frame, so that the log can be truncated right before the record that is added next.

        The mark holds the number of that record. Its address is set once the record is durable.
        """
        self._send()
        mark = CheckpointPosition(self.sequence_number + 1, None, self.logged_bytes, self.frame_count)

        def note_address(error: BaseException | None) -> None:
            if error is None:
                mark.address = self._last_durable_address

        self.when_durable(note_address)
        return mark

    def _gather(self, turns_left: int) -> None:
        if turns_left and self._builder.length < _GATHER_BYTES_MAX:
            self._loop.call_soon(self._gather, turns_left - 1)
        else:
            self._flush()

    def _flush(self) -> None:
        self._flush_is_scheduled = False
        with self._accepting:
            self._send()
            if self.error is None:
                self._events.on_frames_sent()

    def _send(self) -> None:
        if not self._builder.is_empty:
            parts, length = self._builder.take()
            self._append_frame(parts, length)

    def _append_frame(self, parts: list[Buffer], length: int) -> None:
        callbacks, self._callbacks = self._callbacks, []
        if self.error is not None:
            self._end(callbacks, self._offline(self.error))
            return
        try:
            future = self._log.append(parts, length)
        except Exception as error:  # noqa: BLE001 - on any error these records will never be in the log
            # The log may have failed an earlier frame and report that only at the end of this turn.
            done = [frame.future for frame in self._waiting_frames if frame.future.done()]
            causes = [future.exception() for future in done if not future.cancelled()]
            cause = next((cause for cause in causes if cause is not None), error)
            self._break(cause)
            self._end(callbacks, self._offline(cause))
            return
        if self.recorder is not None:
            self.recorder.add(self.frame_count, parts, length, self._added_sequence_number)
        self.frame_count += 1
        self._frames_in_flight += 1
        self._bytes_in_flight += length
        frame = _Frame(callbacks, length, self._added_sequence_number, future, self._begun_s, self._loop.time())
        self._waiting_frames.append(frame)
        future.add_done_callback(lambda _: self._frame_done(frame))

    def _synced(self) -> None:
        """Process the frames whose futures the log has just completed, before the futures' own callbacks run."""
        ended = list(takewhile(lambda frame: frame.future.done(), self._waiting_frames))
        try:
            for frame in ended:
                self._frame_done(frame)
            if ended:
                self._events.on_durable()
        except Exception as fault:  # noqa: BLE001 - a bug in a callback; the calling log is not at fault
            self._report(fault, "the work after operations became durable was interrupted")

    def _frame_done(self, frame: _Frame) -> None:
        if frame.is_ended:
            return  # The future's callback runs as well.
        frame.is_ended = True
        self._frames_in_flight -= 1
        self._bytes_in_flight -= frame.length
        future = frame.future
        error: BaseException | None
        if future.cancelled():
            error = ContainerOfflineError(self.container_id, "stopped while the log was being written")
        else:
            error = future.exception()
        if error is not None and self.error is None:
            self._break(error)
        now_s = self._loop.time()
        if now_s > self._last_done_s:
            # Other frames that complete at the same time were covered by the same sync.
            sync_s = now_s - max(frame.sent_s, self._last_done_s)
            self.sync_s += (sync_s - self.sync_s) * _SYNC_WEIGHT
            self._last_done_s = now_s
            if error is None:
                self.sync_durations.observe(sync_s)
        if error is None and frame.callbacks:
            self.operation_durations.observe(now_s - frame.begun_s, len(frame.callbacks))
        if self.error is None and not frame.is_told:
            self._commit_through(frame)
        if self.error is not None and not frame.is_told:
            frame.is_told = True
            self._end(frame.callbacks, self._outcome_unknown(self.error))
        if self._idle is not None and not self._frames_in_flight and not self._idle.done():
            self._idle.set_result(None)
        self._events.on_shrunk()

    def _commit_through(self, frame: _Frame) -> None:
        """Run the callbacks of every frame up to this one; if it is durable, all earlier frames are."""
        waiting = self._waiting_frames
        while self.error is None and not frame.is_told:
            head = waiting.popleft()
            future = head.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._last_durable_address = future.result()
            self.durable_sequence_number = head.sequence_number
            head.is_told = True
            self._end(head.callbacks, None)

    def _offline(self, cause: BaseException) -> ContainerOfflineError:
        error = ContainerOfflineError(self.container_id, f"its log stopped: {cause}")
        error.__cause__ = cause
        return error

    def _outcome_unknown(self, cause: BaseException) -> OutcomeUnknownError:
        error = OutcomeUnknownError(f"container {self.container_id} stopped while its log was being written: {cause}")
        error.__cause__ = cause
        return error

    def _break(self, error: BaseException) -> None:
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        self._end(callbacks, self._offline(error))
        self._fail(error)
        self._events.on_shrunk()

    def _end(self, callbacks: list[OnDone], error: BaseException | None) -> None:
        for on_done in callbacks:
            try:
                on_done(error)
            except Exception as fault:  # noqa: BLE001 - a bug of one caller; all cases below report it
                if error is not None:
                    # The remaining callbacks must still run.
                    self._report(fault)
                    continue
                # A bug in applying a durable operation: the state in memory is in doubt, the log is not.
                if self.error is None:
                    self._break(fault)
                error = self._outcome_unknown(fault)
                try:
                    on_done(error)
                except Exception as second:  # noqa: BLE001 - reported; the remaining callbacks must run
                    self._report(second)

    def _report(self, fault: Exception, what: str = "a failure could not be reported to a caller") -> None:
        self._loop.call_exception_handler({"message": f"container {self.container_id}: {what}", "exception": fault})

    async def close(self) -> None:
        """Send the current frame, wait for all frames in flight, then accept nothing more."""
        self._send()
        if self._frames_in_flight:
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)
        self.abandon("stopped")

    def abandon(self, reason: str) -> None:
        """Accept nothing more and fail pending callbacks; frames given to the log end when the log completes them."""
        if self.error is None:
            self.error = ContainerOfflineError(self.container_id, reason)
        callbacks, self._callbacks = self._callbacks, []
        self._end(callbacks, self._offline(self.error))
        while self._waiting_frames:
            frame = self._waiting_frames.popleft()
            if not frame.is_told:
                frame.is_told = True
                self._end(frame.callbacks, self._outcome_unknown(self.error))
        self._events.on_shrunk()


def completer(future: asyncio.Future[None]) -> OnDone:
    """Return a callback that completes `future`."""

    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done

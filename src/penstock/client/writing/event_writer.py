"""`EventWriter`: routes events to segments, batches them, and follows the stream through splits and merges.

Events of one routing key are stored in the order written, each exactly once, also across reconnects and scaling. `_put`
is safe to call from a thread other than the loop's: it only adds to a block under a lock and wakes the loop once per
burst. All other members belong to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from random import Random
from typing import cast

from penstock.client.common.arrow import check_keys, frame_array, is_arrow, payloads_of
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.tasks import start_watched
from penstock.client.common.telemetry import operation, telemetry_of_process
from penstock.client.controller.stream_segments import SegmentMap, SegmentRange, SegmentSource
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.writing.ack import Ack, AckState, OnDelivery, deliver, settle, settled, when_done
from penstock.client.writing.append_window import AppendWindow, Block, WindowLimits
from penstock.client.writing.block_sender import BlockSender
from penstock.client.writing.event_runs import Events, RoutingKeys, Step, as_bytes, has_foreign, parts_of, runs
from penstock.client.writing.writer_segments import WriterSegments
from penstock.client.writing.writer_times import WriterTimes
from penstock.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    ProtocolError,
    StreamError,
    StreamSealedError,
    WriteTimeoutError,
)
from penstock.model.events import EVENT_HEADER_LENGTH, EVENT_LENGTH_MAX
from penstock.model.segments import Buffer
from penstock.model.times import NotedTime
from penstock.runtime.portal import Lock

#: An event of `write_many` costs this much less than one of `write`.
_EVENTS_OF_MANY_PER_SINGLE = 4
_LARGE_SIZE_BYTES_MIN = EVENT_LENGTH_MAX + EVENT_HEADER_LENGTH + 1


class EventWriter(LifeCycle):
    """Writes events to a stream or a transaction. Made by `Client.event_writer`; use it as an async context manager.

    Leaving the context closes the writer, and closing flushes: all accepted events are stored, or their acks and
    `close` report that they may not be. Every ack is settled in any case.
    """

    def __init__(
        self,
        source: SegmentSource,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        *,
        owner: LifeCycle | None = None,
        ack_factory: Callable[[], AckState] = Ack,
        is_threaded: bool = False,
        times: WriterTimes | None = None,
    ) -> None:
        super().__init__(f"writer of {source.name}", close_timeout_s=settings.close_timeout_s)
        self._future_owner = owner
        self._source = source
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._ack_factory = ack_factory
        self._is_threaded = is_threaded
        self._times = times
        self._limits = WindowLimits(
            block_bytes_max=settings.block_bytes_max,
            pipelined_block_bytes_min=settings.pipelined_block_bytes_min,
            in_flight_block_count_max=settings.in_flight_block_count_max,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            slow_in_flight_bytes_max=settings.slow_in_flight_bytes_max,
        )
        # Front ends use acks of another kind, and call `_put` themselves.
        self._put_for_ack = cast(Callable[[bytes, str | None, OnDelivery | None], Ack], self._put)
        #: From this size on, a single event is checked against `large_event_bytes_max`, and a run has one event.
        self._checked_size_min = min(_LARGE_SIZE_BYTES_MIN, settings.large_event_bytes_max + EVENT_HEADER_LENGTH + 1)
        self._run_bytes_max = min(settings.block_bytes_max, settings.large_event_bytes_max + EVENT_HEADER_LENGTH)
        self._segments = WriterSegments(settings, self._make_appender)
        # Also guards all fields down to _is_scheduled.
        self._lock = self._segments.lock
        self._failure: PenstockError | None = None
        self._unacknowledged_bytes = 0
        self._acknowledged_event_count = 0
        self._telemetry = telemetry_of_process(pool.controller)
        if self._telemetry is not None:
            self._telemetry.watch_writer(self, source.name)
        #: Sealed segments whose events are being moved to their successors; one at a time, regardless of their number.
        self._spread_count = 0
        self._spreading = asyncio.Lock()
        #: Since the last yield to the loop: events taken by `write`, those of `write_many` counting a quarter; and the
        #: unacknowledged bytes at that time.
        self._turn_event_count = 0
        self._turn_start_bytes = 0
        self._is_scheduled = False
        self._space_waiters: list[asyncio.Future[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[Callable[[], None]], object] = _not_started

    # -- life ---------------------------------------------------------------------------------------------------

    async def _start(self) -> EventWriter:
        """Look up the segments. Raises `NoSuchStreamError`, `StreamSealedError`."""
        segments = await self._source.segments()
        if not segments:
            raise StreamSealedError(f"stream {self._source.name} is sealed and takes no events")
        segment_map = SegmentMap(segments)
        self.open_life(self._future_owner)
        self._loop = asyncio.get_running_loop()
        self._wake = self._loop.call_soon_threadsafe if self._is_threaded else self._loop.call_soon
        self._segments.begin(segment_map)
        return self

    async def __aenter__(self) -> EventWriter:
        return self if self.is_open else await self._start()

    def __await__(self) -> Generator[object, None, EventWriter]:
        """Call `_start` unless it was called already."""
        return self.__aenter__().__await__()

    async def _finish(self) -> None:
        """Flush. Events that other threads were putting when the writer began to close are in the windows by now."""
        await self.flush()
        if self._times is not None:
            await self._times.leave()

    async def _release(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            await asyncio.wait([task])
        for appender in list(self._segments.appenders.values()):
            await appender.close()

    def _settle(self) -> None:
        with self._lock:
            blocks = self._segments.take_all()
        self._settle_blocks(
            blocks,
            OutcomeUnknownError(
                f"the writer of {self._source.name} was closed before this event was acknowledged: it may be stored "
                "or not"
            ),
        )
        self._let_waiters_go()

    def _own_losses(self) -> Iterator[str]:
        count = self.unacknowledged_event_count
        if count:
            yield f"{count} events for {self._source.name} are not acknowledged, and may be stored or not"

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the lock; that thread does not exist in this process.
        self._lock = self._segments.lock = Lock()

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes written, headers included, that are not durable yet."""
        return self._unacknowledged_bytes

    @property
    def unacknowledged_event_count(self) -> int:
        """Events written that are not durable yet. Counted on access; in any thread."""
        with self._lock:
            return sum(block.event_count for block in self._segments.pending())

    @property
    def acknowledged_event_count(self) -> int:
        """Events written that are durable. After a failure: those known to be durable."""
        return self._acknowledged_event_count

    async def _has_space(self, timeout_s: float | None = None) -> None:
        """If `max_unacknowledged_bytes` are used up, wait until half of them are free.

        Raises the error that the writer failed with, `ClosedError`, or `WriteTimeoutError` after `timeout_s`.
        """
        if is_full(self) and self._failure is None and self.is_open:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._space_waiters.append(future)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            except TimeoutError:
                raise WriteTimeoutError(
                    f"{self._source.name}: no room for another event within {timeout_s:g} s: "
                    f"{self._unacknowledged_bytes} bytes are unacknowledged (max_unacknowledged_bytes)"
                ) from None
        if self._failure is not None:
            raise self._failure
        self._check_open()

    async def write(
        self,
        event: bytes,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Take an event and return its `Ack`; waits only while `max_unacknowledged_bytes` are used up.

        The event is sent at the next turn of the event loop, or in the next block if one is in flight. Events with the
        same `routing_key` are stored in the order written; an event without a key goes to any segment.

        Args:
            timeout_s: how long to wait for space; None: without limit.
            on_delivery: called in the client's event loop once the event is durable (with None) or has failed.

        If it raises or is cancelled, the event was not taken.

        Raises:
            StreamSealedError: the stream is sealed.
            PenstockError: an earlier event could not be written; the writer takes no more.
            EventTooLargeError: the event is larger than `large_event_bytes_max`.
            WriteTimeoutError: no space became free within `timeout_s`.
        """
        if is_full(self):
            await self._has_space(timeout_s)
        elif (
            self._turn_event_count >= self._settings.write_turn_event_count_max
            or self._unacknowledged_bytes - self._turn_start_bytes >= self._settings.write_turn_bytes_max
        ):
            # A writer that never waits would starve other tasks, and the sending of its own events.
            await asyncio.sleep(0)
        self._turn_event_count += 1
        return self._put_for_ack(event, routing_key, on_delivery)

    def _has_used_its_turn_of_bytes(self) -> bool:
        return self._unacknowledged_bytes - self._turn_start_bytes >= self._settings.write_turn_bytes_max

    def _put(self, event: bytes, routing_key: str | None = None, on_delivery: OnDelivery | None = None) -> AckState:
        """As `write`, but never waits: check `is_full` first. Safe in any thread."""
        if type(event) is not bytes:
            event = as_bytes(event)
        size_bytes = len(event) + EVENT_HEADER_LENGTH
        with self._lock:
            if self._failure is not None or self._is_refusing or size_bytes >= self._checked_size_min:
                self._check(size_bytes)
            segments = self._segments
            if routing_key is None:
                appender = segments.anywhere()
            else:
                appender = segments.routes.known.get(routing_key) or segments.routes.of(routing_key)
            ack = appender.window.add(event, routing_key, size_bytes)
            if on_delivery is not None:
                # While the lock is held, the block is not sent, so its ack is not settled.
                when_done(ack, partial(deliver, on_delivery, ack))
            self._unacknowledged_bytes += size_bytes
            if not appender.is_dirty:
                segments.mark(appender)
            if self._is_scheduled:
                return ack
            self._is_scheduled = True
        self._wake(self._pump)
        return ack

    async def write_many(
        self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None
    ) -> None:
        """Write `events` in order, waiting whenever `max_unacknowledged_bytes` are used up. Durable after `flush`.

        `events` are payloads, or a pyarrow (large) binary or string array without nulls; `routing_keys` one key for
        all, or one per event. Without keys the events go to the segments in turn, a block at a time. The call yields to
        other tasks every few thousand events.

        If it raises or is cancelled, a prefix of the events may have been taken. `WriteTimeoutError` reports how many
        were, if not all were taken within `timeout_s`.
        """
        count = len(events)
        keys = routing_keys
        if keys is not None and not isinstance(keys, str) and len(keys) != count:
            raise InvalidArgumentError(f"{count} events came with {len(keys)} routing keys")
        # An error in the keys is raised before any event is taken.
        if keys is not None and not isinstance(keys, str) and is_arrow(keys):
            check_keys(keys)
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        for start, part, part_keys in parts_of(events, keys, self._settings.write_turn_bytes_max):
            if (
                self._turn_event_count >= self._settings.write_turn_event_count_max
                or self._has_used_its_turn_of_bytes()
            ):
                await asyncio.sleep(0)
            self._turn_event_count += 1 + len(part) // _EVENTS_OF_MANY_PER_SINGLE
            for step in self._steps(part, part_keys):
                if is_full(self):
                    try:
                        await self._has_space(None if deadline_s is None else max(deadline_s - loop.time(), 0))
                    except WriteTimeoutError as error:
                        error.taken_count = start + step.start
                        raise
                elif self._has_used_its_turn_of_bytes():
                    await asyncio.sleep(0)
                step.put()

    def _steps(self, events: Events, keys: str | Sequence[str] | None) -> Iterator[Step]:
        """Split a slice of events into steps, each of up to a block."""
        if is_arrow(events):
            if keys is None or isinstance(keys, str):
                start = 0
                for data, count in frame_array(events, self._run_bytes_max):
                    yield Step(start, partial(self._put_framed, data, count, keys))
                    start += count
                return
            payloads = payloads_of(events)
        else:
            payloads = cast(Sequence[bytes], events)
            if has_foreign(payloads):
                for start, event in enumerate(payloads):
                    # Copied one by one: the whole may far exceed the space that is free.
                    key = keys if keys is None or isinstance(keys, str) else keys[start]
                    yield Step(start, partial(self._put, event, key))
                return
        for start, end in runs(payloads, self._run_bytes_max):
            if end - start == 1:
                key = keys if keys is None or isinstance(keys, str) else keys[start]
                yield Step(start, partial(self._put, payloads[start], key))
            elif keys is None or isinstance(keys, str):
                yield Step(start, partial(self._put_run, payloads[start:end], keys))
            else:
                yield Step(start, partial(self._put_keyed, payloads[start:end], keys[start:end]))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable. Raises the error of the first event that is not.

        Raises `TimeoutError` if that takes longer than `timeout_s`: the events are still in flight.
        """
        with operation(self._telemetry, "send", "send", self._source.name):
            with self._lock:
                acks = [block.ack for block in self._segments.pending()]
            async with asyncio.timeout(timeout_s):
                for ack in acks:
                    await settled(ack)
            if self._failure is not None:
                raise self._failure

    async def note_time(self, time: NotedTime) -> None:
        """Note that all events written so far are of `time` or before; returns when they are durable and it is noted.

        Times are numbers in a unit of the application's choice, or moments, which count in milliseconds since the
        epoch. See `Reader.time_window`. Raises `InvalidArgumentError` for a time before the last one.
        """
        assert self._times is not None, "writers of transactions, which have none, are not handed out"
        await self.flush()
        await self._times.note(time, {segment: each.end_offset for segment, each in self._segments.appenders.items()})

    # -- routing ------------------------------------------------------------------------------------------------

    def _put_framed(self, data: Buffer, event_count: int, key: str | None) -> None:
        with self._lock:
            self._check(0)
            appender = self._segments.anywhere() if key is None else self._segments.routes.of(key)
            window = appender.window
            if event_count == 1 and len(data) >= self._checked_size_min:
                self._check(len(data))
            if event_count == 1 and len(data) >= _LARGE_SIZE_BYTES_MIN:
                window.add(bytes(data[EVENT_HEADER_LENGTH:]), key, len(data))
            else:
                window.add_framed(data, event_count, (key,) * event_count)
            self._segments.turn()
            self._note(appender, len(data))
        self._schedule()

    def _put_run(self, events: Sequence[bytes], key: str | None) -> None:
        size_bytes = sum(map(len, events)) + EVENT_HEADER_LENGTH * len(events)
        with self._lock:
            self._check(0)
            appender = self._segments.anywhere() if key is None else self._segments.routes.of(key)
            appender.window.add_many(events, [key] * len(events), size_bytes)
            self._segments.turn()
            self._note(appender, size_bytes)
        self._schedule()

    def _put_keyed(self, events: Sequence[bytes], keys: Sequence[str]) -> None:
        """Distribute events by key."""
        # A tuple of strings is not tracked by Python's collector; a list would be for as long as the events are in
        # flight.
        keys = tuple(keys)
        with self._lock:
            self._check(0)
            for appender, its_events, find_keys in self._segments.routes.spread(events, keys):
                size_bytes = sum(map(len, its_events)) + EVENT_HEADER_LENGTH * len(its_events)
                appender.window.add_keyed(its_events, find_keys, size_bytes)
                self._note(appender, size_bytes)
        self._schedule()

    def _note(self, appender: BlockSender, size_bytes: int) -> None:
        self._unacknowledged_bytes += size_bytes
        self._segments.mark(appender)

    def _schedule(self) -> None:
        with self._lock:
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._wake(self._pump)

    def _check(self, size_bytes: int) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()
        if size_bytes - EVENT_HEADER_LENGTH > self._settings.large_event_bytes_max:
            raise EventTooLargeError(
                length_bytes=size_bytes - EVENT_HEADER_LENGTH, length_bytes_max=self._settings.large_event_bytes_max
            )

    # -- in the loop --------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        with self._lock:
            self._is_scheduled = False
            self._turn_event_count = 0
            self._turn_start_bytes = self._unacknowledged_bytes
            marked = self._segments.take_marked()
            self._segments.turn()
        for appender in marked:
            appender.pump()

    def _make_appender(self, segment: SegmentRange) -> BlockSender:
        def sealed(appender: BlockSender, error: PenstockError) -> None:
            task = start_watched(
                self._follow(segment, appender, error), f"successors of {appender.segment}", self._fail
            )
            self._tasks[task] = None
            task.add_done_callback(lambda task: self._tasks.pop(task, None))

        return BlockSender(
            self._source.segment_name(segment),
            AppendWindow(self._limits, self._ack_factory, unacknowledged_bytes=lambda: self._unacknowledged_bytes),
            self._pool,
            self._settings,
            self._rng,
            self._lock,
            on_settled=self._settle_blocks,
            on_sealed=sealed,
        )

    def _fail(self, error: PenstockError) -> None:
        """Fail everything that is pending."""
        with self._lock:
            self._failure = self._failure or error
            blocks = self._segments.take_all()
        self._settle_blocks(blocks, error)

    async def _follow(self, segment: SegmentRange, appender: BlockSender, cause: PenstockError) -> None:
        """Move the events that a sealed segment did not take to its successors, in order per key, and route there."""
        try:
            successors = await self._source.successors(segment)
        except PenstockError as error:
            error.__cause__ = error.__cause__ or cause
            successors = []
            failure: PenstockError = error
        else:
            failure = StreamSealedError(f"stream {self._source.name} is sealed and takes no more events")
            failure.__cause__ = cause
        if any(successor.segment_id == segment.segment_id for successor in successors):
            failure = ProtocolError(f"{appender.segment}: the controller names it as its own successor")
            successors = []
        if not successors:
            with self._lock:
                self._failure = self._failure or failure
                blocks = appender.window.take_all()
            self._settle_blocks(blocks, failure)
            return
        self._spread_count += 1
        try:
            async with self._spreading:
                await self._segments.spread(segment, successors, self._schedule)
        finally:
            self._spread_count -= 1
            self._let_waiters_go_if_there_is_room()

    def _settle_blocks(self, blocks: list[Block], error: PenstockError | None) -> None:
        with self._lock:
            size_bytes = sum(block.size_bytes for block in blocks)
            self._unacknowledged_bytes -= size_bytes
            self._turn_start_bytes -= size_bytes
            if error is None:
                event_count = sum(block.event_count for block in blocks)
                self._acknowledged_event_count += event_count
                if self._telemetry is not None:
                    self._telemetry.sent(self._source.name, event_count)
            if error is not None and blocks and self._failure is None:
                self._failure = error
        for block in blocks:
            settle(block.ack, error)
        self._let_waiters_go_if_there_is_room()

    def _let_waiters_go_if_there_is_room(self) -> None:
        has_room = self._unacknowledged_bytes <= self._settings.max_unacknowledged_bytes // 2
        if self._space_waiters and (self._failure is not None or (has_room and not self._spread_count)):
            self._let_waiters_go()

    def _let_waiters_go(self) -> None:
        waiters, self._space_waiters = self._space_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def is_full(writer: EventWriter) -> bool:
    """True when a write should call `wait_for_space` first. In any thread.

    Also true while events of a sealed segment are moved to its successors: new events would have to be moved, too, to
    be stored after them.
    """
    return writer._unacknowledged_bytes >= writer._settings.max_unacknowledged_bytes or writer._spread_count > 0


def wait_for_space(writer: EventWriter, timeout_s: float | None = None) -> Coroutine[object, object, None]:
    """If `max_unacknowledged_bytes` are used up, wait until half of them are free. For front ends that call `put_of`.

    Raises the error that the writer failed with, `ClosedError`, or `WriteTimeoutError` after `timeout_s`.
    """
    return writer._has_space(timeout_s)


def put_of(writer: EventWriter) -> Callable[[bytes, str | None, OnDelivery | None], AckState]:
    """Return the call that adds one event to its block, in any thread and without waiting. For front ends."""
    return writer._put


def _not_started(_: object) -> object:
    raise StreamError("the writer has not been started: use it as a context manager, or await it first")

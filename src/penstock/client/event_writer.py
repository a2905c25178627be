"""`EventWriter`: routes events to segments, batches them, and follows the stream through splits and merges.

Events of one routing key are stored in the order written, each exactly once, also across reconnects and scaling.
`put` is safe to call from a thread other than the loop's: it only adds to a block under a lock and wakes the
loop once per burst. Everything else belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import add, call
from random import Random
from typing import Protocol, cast

from penstock.client.ack import Ack, AckState
from penstock.client.append_window import AppendWindow, Block, WindowLimits
from penstock.client.appender import SegmentAppender
from penstock.client.arrow import ArrowStrings, frame_array, is_arrow, keys_of, payloads_of, slice_of
from penstock.client.connection_pool import ConnectionPool
from penstock.client.life_cycle import LifeCycle
from penstock.client.settings import ClientSettings
from penstock.client.stream_segments import SegmentMap, SegmentRange
from penstock.client.tasks import start_watched
from penstock.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
    StreamSealedError,
    WriteTimeoutError,
)
from penstock.model.events import EVENT_HEADER_LENGTH, EVENT_LENGTH_MAX
from penstock.model.names import SegmentId
from penstock.model.routing import routing_key_hash
from penstock.model.segments import Buffer
from penstock.runtime.portal import Lock

_log = logging.getLogger(__name__)

#: Events that `write_many` looks at in one turn of the event loop, a few milliseconds' worth.
_SLICE_EVENT_COUNT = 8192
_LARGE_SIZE_BYTES_MIN = EVENT_LENGTH_MAX + EVENT_HEADER_LENGTH + 1

#: Events for `write_many`: payloads in a sequence, or a pyarrow array or chunked array of binary or string.
Events = Sequence[bytes] | ArrowStrings
#: Called once for an event: with None when it is durable, else with the error.
OnDelivery = Callable[[PenstockError | None], object]
#: Routing keys for `write_many`: none, one for all, or one per event.
RoutingKeys = None | str | Sequence[str] | ArrowStrings


class SegmentSource(Protocol):
    """Where a writer gets its segments from: a stream, or a transaction on it."""

    @property
    def name(self) -> str:
        """What is written to, for messages."""

    async def segments(self) -> Sequence[SegmentRange]:
        """Return the segments that take events now; none means that the stream is sealed."""

    async def successors(self, sealed: SegmentRange) -> Sequence[SegmentRange]:
        """Return the segments that take over from a sealed one; none means that the stream is sealed."""

    def segment_name(self, segment: SegmentRange) -> str:
        """Return the full name of the segment to append to."""


class EventWriter(LifeCycle):
    """Writes events to a stream or a transaction. Made by `Client.event_writer`; use it as an async context manager.

    Leaving the context closes it, and closing flushes: what was taken is stored, or its acks and `close` say that it
    may not be. Whatever happens, each ack is settled.
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
    ) -> None:
        super().__init__(f"writer of {source.name}", close_timeout_s=settings.close_timeout_s)
        self._future_owner = owner
        self._source = source
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._ack_factory = ack_factory
        self._is_threaded = is_threaded
        self._limits = WindowLimits(
            block_bytes_max=settings.block_bytes_max,
            pipelined_block_bytes_min=settings.pipelined_block_bytes_min,
            in_flight_block_count_max=settings.in_flight_block_count_max,
            in_flight_bytes_max=settings.in_flight_bytes_max,
        )
        # Writers with acks of another kind are those of front ends, which call `put` themselves.
        self._put_for_ack = cast(Callable[[bytes, str | None, OnDelivery | None], Ack], self.put)
        #: From here on a single event is checked against `large_event_bytes_max`, and a run has one event.
        self._checked_size_min = min(_LARGE_SIZE_BYTES_MIN, settings.large_event_bytes_max + EVENT_HEADER_LENGTH + 1)
        self._run_bytes_max = min(settings.block_bytes_max, settings.large_event_bytes_max + EVENT_HEADER_LENGTH)
        # Guards the windows and all fields down to _is_scheduled. A lock, not a thread: alone it never waits.
        self._lock = Lock()
        self._map = SegmentMap(())
        self._appenders: dict[SegmentId, SegmentAppender] = {}
        self._routes: dict[str, SegmentAppender] = {}
        self._turn = 0
        self._dirty: list[SegmentAppender] = []
        self._failure: PenstockError | None = None
        self._unacknowledged_bytes = 0
        self._acknowledged_event_count = 0
        #: Events taken by `write` since the loop last had its turn.
        self._turn_event_count = 0
        self._is_scheduled = False
        self._space_waiters: list[asyncio.Future[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[Callable[[], None]], object] = _not_started
        self._token = ""

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> EventWriter:
        """Look up the segments. Raises `NoSuchStreamError`, `StreamSealedError`."""
        segments = await self._source.segments()
        if not segments:
            raise StreamSealedError(f"stream {self._source.name} is sealed and takes no events")
        segment_map = SegmentMap(segments)
        self._open_life(self._future_owner)
        self._loop = asyncio.get_running_loop()
        self._wake = self._loop.call_soon_threadsafe if self._is_threaded else self._loop.call_soon
        self._map = segment_map
        for segment in self._map.segments:
            self._appender_of(segment)
        return self

    async def __aenter__(self) -> EventWriter:
        return self if self.is_open else await self.start()

    def __await__(self) -> Generator[object, None, EventWriter]:
        """`start`, if it was not called yet."""
        return self.__aenter__().__await__()

    async def _finish(self) -> None:
        """Flush. What other threads were putting when the writer began to close is in the windows by now."""
        await self.flush()

    async def _release(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            await asyncio.wait([task])
        for appender in list(self._appenders.values()):
            await appender.close()

    def _settle(self) -> None:
        with self._lock:
            blocks = [block for appender in self._appenders.values() for block in appender.window.take_all()]
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
        # Another thread may have held it, and is not in this process to let it go.
        self._lock = Lock()

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes written, headers included, that are not durable yet."""
        return self._unacknowledged_bytes

    @property
    def is_full(self) -> bool:
        """True when a write should wait for `has_space` first."""
        return self._unacknowledged_bytes >= self._settings.max_unacknowledged_bytes

    @property
    def unacknowledged_event_count(self) -> int:
        """Events written that are not durable yet. Counted when asked for; in any thread."""
        with self._lock:
            return sum(
                block.event_count for appender in self._appenders.values() for block in appender.window.pending()
            )

    @property
    def acknowledged_event_count(self) -> int:
        """Events written that are durable. After a failure: those that are known to be."""
        return self._acknowledged_event_count

    async def has_space(self, timeout_s: float | None = None) -> None:
        """Wait until half of `max_unacknowledged_bytes` is free, if they are used up.

        Raises what the writer failed with, `ClosedError`, or `WriteTimeoutError` after `timeout_s`.
        """
        if self.is_full and self._failure is None and self.is_open:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._space_waiters.append(future)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            except TimeoutError:
                raise WriteTimeoutError(
                    f"{self._source.name}: no room for another event within {timeout_s:g} s: "
                    f"{self._unacknowledged_bytes} bytes wait to be acknowledged (max_unacknowledged_bytes)"
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

        The event is sent at the next turn of the event loop, or in the next block if one is in flight. Events
        with the same `routing_key` are stored in the order written; without a key any segment will do.

        Args:
            timeout_s: how long to wait for room; None: as long as it takes.
            on_delivery: called in the client's event loop once the event is durable (with None) or has failed.

        If it raises or is cancelled, the event was not taken.

        Raises:
            StreamSealedError: the stream is sealed.
            PenstockError: an earlier event could not be written; the writer takes no more.
            EventTooLargeError: the event is larger than `large_event_bytes_max`.
            WriteTimeoutError: there was no room within `timeout_s`.
        """
        if self.is_full:
            await self.has_space(timeout_s)
        elif self._turn_event_count >= self._settings.write_turn_event_count_max:
            # Whoever writes without ever waiting leaves no turn to others, nor to the sending of what it wrote.
            await asyncio.sleep(0)
        self._turn_event_count += 1
        return self._put_for_ack(event, routing_key, on_delivery)

    def put(self, event: bytes, routing_key: str | None = None, on_delivery: OnDelivery | None = None) -> AckState:
        """As `write`, but never waits: ask `is_full` first. Safe in any thread."""
        if type(event) is not bytes:
            event = _as_bytes(event)
        size_bytes = len(event) + EVENT_HEADER_LENGTH
        with self._lock:
            if self._failure is not None or self._is_refusing or size_bytes >= self._checked_size_min:
                self._check(size_bytes)
            if routing_key is None:
                appender = self._any_appender()
            else:
                appender = self._routes.get(routing_key) or self._route(routing_key)
            ack = appender.window.add(event, routing_key, size_bytes)
            if on_delivery is not None:
                # Under the lock nothing of the block is sent, hence not settled either.
                ack.when_done(partial(_deliver, on_delivery, ack))
            self._unacknowledged_bytes += size_bytes
            if not appender.is_dirty:
                appender.is_dirty = True
                self._dirty.append(appender)
            if self._is_scheduled:
                return ack
            self._is_scheduled = True
        self._wake(self._pump_dirty)
        return ack

    async def write_many(
        self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None
    ) -> None:
        """Write `events` in order, waiting whenever `max_unacknowledged_bytes` are used up. Durable after `flush`.

        `events` are payloads, or a pyarrow (large) binary or string array without nulls; `routing_keys` one key for
        all, or one per event. Without keys the events go to one segment after the other, a block at a time. Others get
        their turn every few thousand events.

        If it raises or is cancelled, a part from the front may have been taken. `WriteTimeoutError` says how many were,
        when not all were within `timeout_s`.
        """
        count = len(events)
        keys = routing_keys
        if keys is not None and not isinstance(keys, str) and len(keys) != count:
            raise InvalidArgumentError(f"{count} events came with {len(keys)} routing keys")
        # An error in the keys is found before any event is taken.
        if keys is not None and not isinstance(keys, str) and is_arrow(keys):
            keys = keys_of(keys)
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        for start in range(0, count, _SLICE_EVENT_COUNT):
            if start:
                await asyncio.sleep(0)
            end = min(start + _SLICE_EVENT_COUNT, count)
            part = slice_of(events, start, end) if is_arrow(events) else cast(Sequence[bytes], events)[start:end]
            part_keys = keys if keys is None or isinstance(keys, str) else cast(Sequence[str], keys)[start:end]
            for step in self._steps(part, part_keys):
                if self.is_full:
                    try:
                        await self.has_space(None if deadline_s is None else max(deadline_s - loop.time(), 0))
                    except WriteTimeoutError as error:
                        error.taken_count = start + step.start
                        raise
                step.put()

    def _steps(self, events: Events, keys: str | Sequence[str] | None) -> Iterator[_Step]:
        """Cut a slice of events into steps, each of up to a block."""
        if is_arrow(events):
            if keys is None or isinstance(keys, str):
                start = 0
                for data, count in frame_array(events, self._run_bytes_max):
                    yield _Step(start, partial(self._put_framed, data, count, keys))
                    start += count
                return
            payloads = payloads_of(events)
        else:
            payloads = cast(Sequence[bytes], events)
            if _has_foreign(payloads):
                payloads = list(map(_as_bytes, payloads))
        for start, end in _runs(payloads, self._run_bytes_max):
            if end - start == 1:
                key = keys if keys is None or isinstance(keys, str) else keys[start]
                yield _Step(start, partial(self.put, payloads[start], key))
            elif keys is None or isinstance(keys, str):
                yield _Step(start, partial(self._put_run, payloads[start:end], keys))
            else:
                yield _Step(start, partial(self._put_keyed, payloads[start:end], keys[start:end]))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable. Raises the error of the first event that is not.

        Raises `TimeoutError` when it is not within `timeout_s`: the events are still on their way.
        """
        with self._lock:
            acks = [block.ack for appender in self._appenders.values() for block in appender.window.pending()]
        async with asyncio.timeout(timeout_s):
            for ack in acks:
                await ack.settled()
        if self._failure is not None:
            raise self._failure

    # -- routing ------------------------------------------------------------------------------------------------

    def _any_appender(self) -> SegmentAppender:
        # The same segment until the loop has taken what was written: whole blocks, not one event everywhere.
        segments = self._map.segments
        return self._appenders[segments[self._turn % len(segments)].segment_id]

    def _route(self, routing_key: str) -> SegmentAppender:
        if not isinstance(routing_key, str):
            raise InvalidArgumentError(f"a routing key is str, not {type(routing_key).__name__}")
        appender = self._appenders[self._map.segment_of(routing_key_hash(routing_key)).segment_id]
        if len(self._routes) >= self._settings.routing_cache_size_max:
            self._routes.clear()
        self._routes[routing_key] = appender
        return appender

    def _put_framed(self, data: Buffer, event_count: int, key: str | None) -> None:
        with self._lock:
            self._check(0)
            appender = self._any_appender() if key is None else (self._routes.get(key) or self._route(key))
            window = appender.window
            if event_count == 1 and len(data) >= self._checked_size_min:
                self._check(len(data))
            if event_count == 1 and len(data) >= _LARGE_SIZE_BYTES_MIN:
                window.add(bytes(data[EVENT_HEADER_LENGTH:]), key, len(data))
            else:
                window.add_framed(data, event_count, [key] * event_count)
            self._turn += 1
            self._note(appender, len(data))
        self._schedule()

    def _put_run(self, events: Sequence[bytes], key: str | None) -> None:
        size_bytes = sum(map(len, events)) + EVENT_HEADER_LENGTH * len(events)
        with self._lock:
            self._check(0)
            appender = self._any_appender() if key is None else (self._routes.get(key) or self._route(key))
            appender.window.add_many(events, [key] * len(events), size_bytes)
            self._turn += 1
            self._note(appender, size_bytes)
        self._schedule()

    def _put_keyed(self, events: Sequence[bytes], keys: Sequence[str]) -> None:
        """Spread events by key. Each distinct key is hashed once; per event only C loops run."""
        with self._lock:
            self._check(0)
            groups: dict[SegmentAppender, tuple[list[bytes], list[str | None]]] = {}
            add_event: dict[str, Callable[[bytes], None]] = {}
            add_key: dict[str, Callable[[str], None]] = {}
            for key in dict.fromkeys(keys):
                appender = self._routes.get(key) or self._route(key)
                group = groups.get(appender)
                if group is None:
                    group = groups[appender] = ([], [])
                add_event[key] = group[0].append
                add_key[key] = group[1].append
            deque(map(call, map(add_event.__getitem__, keys), events), maxlen=0)
            deque(map(call, map(add_key.__getitem__, keys), keys), maxlen=0)
            for appender, (group_events, group_keys) in groups.items():
                size_bytes = sum(map(len, group_events)) + EVENT_HEADER_LENGTH * len(group_events)
                appender.window.add_many(group_events, group_keys, size_bytes)
                self._note(appender, size_bytes)
        self._schedule()

    def _note(self, appender: SegmentAppender, size_bytes: int) -> None:
        self._unacknowledged_bytes += size_bytes
        if not appender.is_dirty:
            appender.is_dirty = True
            self._dirty.append(appender)

    def _schedule(self) -> None:
        with self._lock:
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._wake(self._pump_dirty)

    def _check(self, size_bytes: int) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()
        if size_bytes - EVENT_HEADER_LENGTH > self._settings.large_event_bytes_max:
            raise EventTooLargeError(
                length_bytes=size_bytes - EVENT_HEADER_LENGTH, length_bytes_max=self._settings.large_event_bytes_max
            )

    # -- in the loop --------------------------------------------------------------------------------------------

    def _pump_dirty(self) -> None:
        with self._lock:
            self._is_scheduled = False
            self._turn_event_count = 0
            dirty, self._dirty = self._dirty, []
            for appender in dirty:
                appender.is_dirty = False
            self._turn += 1
        for appender in dirty:
            appender.pump()

    def _appender_of(self, segment: SegmentRange) -> SegmentAppender:
        appender = self._appenders.get(segment.segment_id)
        if appender is None:

            def sealed(appender: SegmentAppender, error: PenstockError) -> None:
                task = start_watched(
                    self._follow(segment, appender, error), f"successors of {appender.segment}", self._fail
                )
                self._tasks[task] = None
                task.add_done_callback(lambda task: self._tasks.pop(task, None))

            appender = SegmentAppender(
                self._source.segment_name(segment),
                AppendWindow(self._limits, self._ack_factory),
                self._pool,
                self._settings,
                self._rng,
                self._lock,
                token=self._token,
                on_settled=self._settle_blocks,
                on_sealed=sealed,
            )
            self._appenders[segment.segment_id] = appender
        return appender

    def _fail(self, error: PenstockError) -> None:
        """Fail everything that is pending."""
        with self._lock:
            self._failure = self._failure or error
            blocks = [block for appender in self._appenders.values() for block in appender.window.take_all()]
        self._settle_blocks(blocks, error)

    async def _follow(self, segment: SegmentRange, appender: SegmentAppender, cause: PenstockError) -> None:
        """Spread what a sealed segment did not take over its successors, in order per key, and route there."""
        try:
            successors = await self._source.successors(segment)
        except PenstockError as error:
            error.__cause__ = error.__cause__ or cause
            successors = []
            failure: PenstockError = error
        else:
            failure = StreamSealedError(f"stream {self._source.name} is sealed and takes no more events")
            failure.__cause__ = cause
        if not successors:
            with self._lock:
                self._failure = self._failure or failure
                blocks = appender.window.take_all()
            self._settle_blocks(blocks, failure)
            return
        with self._lock:
            self._map = self._map.replace(segment.segment_id, successors)
            for current in self._map.segments:
                self._appender_of(current)
            del self._appenders[segment.segment_id]
            self._routes.clear()
            for block in appender.window.take_all():
                self._respread(block)
        self._schedule()

    def _respread(self, block: Block) -> None:
        acks: dict[AckState, None] = {}
        for event, key in zip(block.payloads(), block.keys, strict=True):
            size_bytes = len(event) + EVENT_HEADER_LENGTH
            appender = self._any_appender() if key is None else (self._routes.get(key) or self._route(key))
            acks[appender.window.add(event, key, size_bytes)] = None
            if not appender.is_dirty:
                appender.is_dirty = True
                self._dirty.append(appender)
        block.ack.follow(acks)

    def _settle_blocks(self, blocks: list[Block], error: PenstockError | None) -> None:
        with self._lock:
            for block in blocks:
                self._unacknowledged_bytes -= block.size_bytes
                if error is None:
                    self._acknowledged_event_count += block.event_count
            if error is not None and blocks and self._failure is None:
                self._failure = error
        for block in blocks:
            block.ack.settle(error)
        if self._space_waiters and (
            self._failure is not None or self._unacknowledged_bytes <= self._settings.max_unacknowledged_bytes // 2
        ):
            self._let_waiters_go()

    def _let_waiters_go(self) -> None:
        waiters, self._space_waiters = self._space_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class _Step:
    """One call that takes events, the first of which is the one of index `start`."""

    start: int
    put: Callable[[], object]


def _deliver(on_delivery: OnDelivery, ack: AckState) -> None:
    try:
        on_delivery(ack.error)
    except Exception:  # noqa: BLE001  # the user's code: what others wait for, in the same block, must not hang on it
        _log.exception("a delivery callback failed")


def _runs(events: Sequence[bytes], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut events into runs `[start, end)` of up to `bytes_max` framed bytes; a larger event is a run of its own."""
    ends = list(accumulate(map(len, events)))
    count = len(events)
    # Framed end of event i, without a list of its own: payload bytes up to it plus a header each.
    framed_ends = list(
        map(add, ends, range(EVENT_HEADER_LENGTH, EVENT_HEADER_LENGTH * (count + 1), EVENT_HEADER_LENGTH))
    )
    start = 0
    while start < count:
        base = framed_ends[start - 1] if start else 0
        end = max(bisect_right(framed_ends, base + bytes_max, start), start + 1)
        yield start, end
        start = end


def _has_foreign(events: Sequence[bytes]) -> bool:
    """Say whether some event is not exactly `bytes` (a C loop over types)."""
    return any(kind is not bytes for kind in set(map(type, events)))


def _as_bytes(event: object) -> bytes:
    if isinstance(event, bytes | bytearray | memoryview):
        return bytes(event)
    raise InvalidArgumentError(f"an event is bytes, not {type(event).__name__}; encode it first")


def _not_started(_: Callable[[], None]) -> object:
    raise StreamError("the writer has not been started: use it as a context manager, or await start() first")

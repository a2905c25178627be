"""`OperationAcceptor`: accepts operations on segments that are in memory.

Each operation is validated against the accepted state, changes it and is logged in one turn of the loop, so that later
operations build on it. What needs an await (finding a segment, loading its attributes, waiting for durability) is done
before or after, by `SegmentContainer`.

Source: segment-store 2.1 and 2.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from penstock.model.errors import (
    AttributesNotLoadedError,
    BadEventNumberError,
    BadOffsetError,
    NoSuchSegmentError,
    SegmentInactiveError,
    SegmentMergedError,
    SegmentSealedError,
)
from penstock.model.names import is_transient_segment
from penstock.model.segments import NO_VALUE, Buffer
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.log.operations import (
    Create,
    Delete,
    Merge,
    NonAppendOperation,
    Seal,
    Truncate,
    TruncateMany,
    encode_append_header,
)
from penstock.segmentstore.container.log.pipeline import OnDone, OperationPipeline, completer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.state import ContainerState


class _Accepted(msgspec.Struct, eq=False):
    """Callback for a durable append. A struct instead of a closure, which would be eight objects: there are many."""

    state: ContainerState
    segment: Segment
    number: int
    offset: int
    end: int
    on_done: OnDone

    def __call__(self, error: BaseException | None) -> None:
        """See `OnDone`."""
        if error is None:
            self.state.durable_append(self.segment, self.number, self.offset, self.end)
        self.on_done(error)


def check_live(segment: Segment) -> None:
    """Raise `SegmentInactiveError`, `SegmentMergedError` or `NoSuchSegmentError` if a segment is no longer active."""
    if segment.is_inactive:
        raise SegmentInactiveError(segment.name)
    if segment.is_merged:
        raise SegmentMergedError(segment.name)
    if segment.is_deleted:
        raise NoSuchSegmentError(segment.name)


class OperationAcceptor:
    """Accepts the operations of one container."""

    def __init__(self, state: ContainerState, pipeline: OperationPipeline, runtime: Runtime) -> None:
        self.state: ContainerState = state
        self.pipeline: OperationPipeline = pipeline
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()

    def append(
        self, segment: Segment, request: AppendRequest, on_done: OnDone, *, stored_event_number: int = NO_VALUE
    ) -> int:
        """Validate and accept an append; return the segment's length after it.

        `on_done` is called when the bytes are durable, in the order of the calls. Raises at once, changing nothing:
        `SegmentSealedError`, `NoSuchSegmentError`, `SegmentMergedError`; `BadEventNumberError` when the writer's
        last number is not `stored_event_number`; `BadOffsetError`; `ContainerOfflineError`.
        """
        self.pipeline.check_open()
        if segment.is_sealed or segment.is_deleted:
            check_live(segment)
            raise SegmentSealedError(segment.name)
        data, writer_id, event_number = request.data, request.writer_id, request.event_number
        if event_number != NO_VALUE:
            stored = segment.attributes.get(writer_id, NO_VALUE)
            if stored == NO_VALUE and segment.has_attribute_index and writer_id not in segment.attributes:
                raise AttributesNotLoadedError(segment.name, (writer_id,))
            if stored != stored_event_number:
                first_number = request.first_event_number
                raise BadEventNumberError(segment.name, writer_id=writer_id, event_number=first_number, stored=stored)
        offset = segment.length
        expected_offset = request.expected_offset
        if expected_offset is not None and expected_offset != offset:
            raise BadOffsetError(segment.name, expected=expected_offset, actual=offset)
        segment.is_touched = True
        state = self.state
        pipeline = self.pipeline
        now_ms = self._runtime.wall_clock_ms()
        # Before anything is accepted: if encoding fails, no bytes may remain that the log does not have.
        number = pipeline.next_sequence_number()
        header = encode_append_header(number, segment.id, offset, now_ms, request.event_count, event_number, writer_id)
        end = offset + len(data)
        try:
            state.accept_append(segment, request, now_ms)
            pipeline.add(header, data, _Accepted(state, segment, number, offset, end, on_done))
        except BaseException as error:
            pipeline.fail_inconsistent(error)  # Same as `critical_section`, but cheaper.
            raise
        return end

    def append_own(self, segment: Segment, data: Buffer) -> asyncio.Future[None]:
        """Accept bytes for one of the container's own segments; the future completes when they are durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.append(segment, AppendRequest(data), completer(future))
        return future

    async def submit(self, operation: NonAppendOperation, accept: Callable[[], object]) -> None:
        """Call `accept` to change the accepted state, log the operation, and wait until it is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        with self.pipeline.critical_section():
            accept()
            self.pipeline.add_operation(operation, completer(future))
        await future

    def log(self, operation: NonAppendOperation, accept: Callable[[], object] = lambda: None) -> None:
        """Call `accept` to change the accepted state, and log the operation.

        There is no wait: operations that depend on it follow it in the log.
        """
        with self.pipeline.critical_section():
            accept()
            self.pipeline.add_operation(operation, _ignore)

    async def create(
        self,
        name: str,
        *,
        flags: SegmentFlags = SegmentFlags.NONE,
        key_length: int = 0,
        scale_type: int = 0,
        target_rate: int = 0,
        rollover_bytes: int = 0,
    ) -> Segment:
        """Create a segment that does not exist; return it once it is durable. Raises `ContainerOfflineError`."""
        self.pipeline.check_open()
        metadata = self.state.metadata
        if is_transient_segment(name):
            flags |= SegmentFlags.TRANSIENT
        operation = Create(
            metadata.next_segment_id,
            name,
            int(flags),
            key_length,
            scale_type,
            target_rate,
            rollover_bytes,
            self._runtime.wall_clock_ms(),
        )
        future: asyncio.Future[None] = self._loop.create_future()
        with self.pipeline.critical_section():
            segment = self.state.accept_create(operation)
            if segment.is_table:
                self.state.new_table(segment)
            self.pipeline.add_operation(operation, completer(future))
        await future
        return segment

    def seal(self, segment: Segment, on_done: OnDone) -> None:
        """Accept the seal of a segment that is not sealed; `on_done` is called when it is durable."""
        operation = Seal(segment.id, segment.length, self._runtime.wall_clock_ms())

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_seal(segment, number)
            on_done(error)

        with self.pipeline.critical_section():
            self.state.accept_seal(segment, operation.time_ms)
            number = self.pipeline.add_operation(operation, done)

    def truncate(self, segment: Segment, offset: int) -> bool:
        """Accept a truncation, durable with everything else accepted so far; False outside [start, length]."""
        if not self.can_truncate(segment, offset):
            return False
        self.truncate_all([(segment, offset)])
        return True

    def can_truncate(self, segment: Segment, offset: int) -> bool:
        """Return whether an offset is in [start, length] of a segment. Raises `ContainerOfflineError`."""
        self.pipeline.check_open()
        return segment.start_offset <= offset <= segment.length

    def truncate_all(self, offsets: Sequence[tuple[Segment, int]]) -> None:
        """Accept valid truncations of distinct segments, with a single record of the log."""
        moved = [(segment, offset) for segment, offset in offsets if offset > segment.start_offset]
        if moved:
            self._accept_truncations(moved)

    def _accept_truncations(self, moved: Sequence[tuple[Segment, int]]) -> None:
        time_ms = self._runtime.wall_clock_ms()
        operation: Truncate | TruncateMany
        if len(moved) == 1:
            ((segment, offset),) = moved
            operation = Truncate(segment.id, offset, time_ms)
        else:
            operation = TruncateMany([segment.id for segment, _ in moved], [offset for _, offset in moved], time_ms)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_truncations(moved, number)

        with self.pipeline.critical_section():
            self.state.accept_truncations(moved, time_ms)
            number = self.pipeline.add_operation(operation, done)

    def truncate_table(self, segment: Segment, offset: int) -> None:
        """Truncate a table whose head was compacted, unless it was deleted."""
        self.pipeline.check_open()
        if not segment.is_deleted and offset > segment.start_offset:
            self._accept_truncations([(segment, offset)])

    def delete(self, segment: Segment) -> asyncio.Future[None]:
        """Accept the deletion of a live segment; the future completes when it is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        complete = completer(future)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_delete(segment)
            complete(error)

        with self.pipeline.critical_section():
            self.state.accept_delete(segment)
            self.pipeline.add_operation(Delete(segment.id), done)
        return future

    def merge(self, target: Segment, source: Segment, values: dict[bytes, int]) -> tuple[int, asyncio.Future[None]]:
        """Accept a merge; return the target's length after it, and a future that completes once it is durable."""
        if not source.is_sealed:
            # Accepted directly before the merge, with nothing in between; the merge is durable only if the seal is.
            self.seal(source, lambda _: None)
        offset = target.length
        # The pieces of a large event count as one event.
        event_count = 1 if source.flags & SegmentFlags.TRANSIENT else source.event_count
        operation = Merge(
            target.id, source.id, offset, source.length, event_count, self._runtime.wall_clock_ms(), values
        )
        end = offset + source.length
        future: asyncio.Future[None] = self._loop.create_future()
        complete = completer(future)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_merge(target, source, number, offset, end)
            complete(error)

        with self.pipeline.critical_section():
            self.state.accept_merge(target, source, operation)
            number = self.pipeline.add_operation(operation, done)
        return end, future

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that completes once everything accepted so far is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.pipeline.when_durable(completer(future))
        return future


def _ignore(error: BaseException | None) -> None:
    """Do nothing: if the log failed, the container ends and all of its memory with it."""

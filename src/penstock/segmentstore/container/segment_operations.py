"""`SegmentOperations`: the operations on the segments of a running container.

Each operation is validated against the accepted state, changes it and is logged in one turn of the loop; only loading
its state into memory may come before. Rejections based on state that is not yet durable wait until it is.

Source: segment-store 1.4, 2.1 and 2.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from penstock.model.errors import (
    AttributesNotLoadedError,
    BadEventNumberError,
    BadOffsetError,
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentInactiveError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentTruncatedError,
    UnsupportedOperationError,
)
from penstock.model.names import is_transient_segment
from penstock.model.segments import NO_VALUE, Buffer, SegmentInfo
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.catalog import SegmentCatalog
from penstock.segmentstore.container.log.operations import (
    Create,
    Delete,
    NonAppendOperation,
    Seal,
    Truncate,
    TruncateMany,
    UpdateAttributes,
    UpdatePolicy,
    encode_append_header,
)
from penstock.segmentstore.container.log.pipeline import OnDone, OperationPipeline, completer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container.transients import TransientSegments

#: Attributes of a transient segment, see segment-store R5.5.
TRANSIENT_ATTRIBUTES_MAX = 16


class ContainerStatus(Enum):
    """Phase of a container's life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


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


class SegmentOperations:
    """The operations of one container; `SegmentContainer` adds its parts and life cycle."""

    state: ContainerState
    pipeline: OperationPipeline
    catalog: SegmentCatalog
    attributes: Attributes
    tables: Tables
    transients: TransientSegments

    def __init__(self, container_id: int, runtime: Runtime) -> None:
        self.id = container_id
        self.status = ContainerStatus.NEW
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()

    def _check_running(self) -> None:
        if self.status is not ContainerStatus.RUNNING:
            raise ContainerOfflineError(self.id, f"it is {self.status.value}")
        self.pipeline.check_open()

    def segment(self, name: str) -> Segment:
        """Return an active segment.

        Raises `NoSuchSegmentError`, `ContainerOfflineError`, and `SegmentInactiveError` if `find` is needed.
        """
        if self.status is not ContainerStatus.RUNNING:
            raise ContainerOfflineError(self.id, f"it is {self.status.value}")
        return self.catalog.get(name)

    async def find(self, name: str) -> Segment:
        """Return a segment, activating it if it is not in memory.

        Raises `NoSuchSegmentError`, `ContainerOfflineError`, `TooManyActiveSegmentsError`.
        """
        try:
            try:
                return self.segment(name)
            except SegmentInactiveError:
                segment = await self.catalog.find(name)
        except NoSuchSegmentError:
            await self.pipeline.barrier()  # Until its deletion is durable, a crash would restore it.
            raise
        self._check_running()
        return segment

    def _live(self, segment: Segment) -> None:
        if segment.is_inactive:
            raise SegmentInactiveError(segment.name)
        if segment.is_merged:
            raise SegmentMergedError(segment.name)
        if segment.is_deleted:
            raise NoSuchSegmentError(segment.name)

    async def submit(self, operation: NonAppendOperation, accept: Callable[[], object]) -> None:
        """Call `accept` to change the accepted state, log the operation, and wait until it is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        with self.pipeline.critical_section():
            accept()
            self.pipeline.add_operation(operation, completer(future))
        await future

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
        """Create a segment. Raises `SegmentExistsError` once the existing one is durable, `SegmentStoreBusyError`."""
        self._check_running()
        is_transient = is_transient_segment(name)
        if is_transient:
            self.transients.check(name)
        is_first = True
        while is_first or self.catalog.is_full:  # Another call may have taken the room during the name lookup.
            is_first = False
            if name not in self.state.metadata.by_name:
                await self.catalog.make_room(name)
            if await self.catalog.exists(name):
                await self.pipeline.barrier()
                raise SegmentExistsError(name)
        if is_transient:
            self.transients.check(name)  # Checked again: it is accepted in this turn of the loop.
        return await self._create(
            name,
            flags=flags,
            key_length=key_length,
            scale_type=scale_type,
            target_rate=target_rate,
            rollover_bytes=rollover_bytes,
        )

    async def _create(
        self,
        name: str,
        *,
        flags: SegmentFlags = SegmentFlags.NONE,
        key_length: int = 0,
        scale_type: int = 0,
        target_rate: int = 0,
        rollover_bytes: int = 0,
    ) -> Segment:
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
            self._live(segment)
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

    def _append_internal(self, segment: Segment, data: Buffer) -> asyncio.Future[None]:
        """Accept bytes for one of the container's own segments; the future completes when they are durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.append(segment, AppendRequest(data), completer(future))
        return future

    async def seal(self, name: str) -> None:
        """Seal a segment. Raises `SegmentSealedError` once the earlier seal is durable."""
        segment = await self.find(name)
        self.pipeline.check_open()
        if segment.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(name)
        future: asyncio.Future[None] = self._loop.create_future()
        self._accept_seal(segment, completer(future))
        await future

    def _accept_seal(self, segment: Segment, on_done: OnDone) -> None:
        operation = Seal(segment.id, segment.length, self._runtime.wall_clock_ms())

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_seal(segment, number)
            on_done(error)

        with self.pipeline.critical_section():
            self.state.accept_seal(segment, operation.time_ms)
            number = self.pipeline.add_operation(operation, done)

    async def truncate(self, name: str, offset: int) -> None:
        """Truncate the bytes before `offset`. Raises `SegmentTruncatedError` outside [start, length]."""
        segment = await self.find(name)
        is_accepted = self.begin_truncate(segment, offset)
        await self.pipeline.barrier()
        if not is_accepted:
            raise SegmentTruncatedError(name, start_offset=segment.start_offset, offset=offset)

    def begin_truncate(self, segment: Segment, offset: int) -> bool:
        """Accept a truncation, durable with everything else accepted so far; False outside [start, length]."""
        if not self.can_truncate(segment, offset):
            return False
        self.begin_truncations([(segment, offset)])
        return True

    def can_truncate(self, segment: Segment, offset: int) -> bool:
        """Return whether an offset is in [start, length] of a segment. Raises `ContainerOfflineError`."""
        self.pipeline.check_open()
        return segment.start_offset <= offset <= segment.length

    def begin_truncations(self, offsets: Sequence[tuple[Segment, int]]) -> None:
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

    def _truncate_table(self, segment: Segment, offset: int) -> None:
        """Truncate a table whose head was compacted, unless it was deleted."""
        self.pipeline.check_open()
        if not segment.is_deleted and offset > segment.start_offset:
            self._accept_truncations([(segment, offset)])

    async def delete(self, name: str) -> None:
        """Delete a segment; its storage is freed in the background. Raises `NoSuchSegmentError`."""
        self._check_running()
        await self._delete(await self.find(name))

    async def _delete(self, segment: Segment, *, must_be_empty: bool = False) -> None:
        with segment.in_use():
            await self.catalog.forget_record(segment)
            if must_be_empty and not segment.is_deleted:
                # The last check: nothing may be appended after it.
                await self.tables.check_empty(segment)
            self._check_running()
            if segment.is_deleted or segment.is_merged:
                await self.pipeline.barrier()
                raise NoSuchSegmentError(segment.name)
            future: asyncio.Future[None] = self._loop.create_future()
            complete = completer(future)

            def done(error: BaseException | None) -> None:
                if error is None:
                    self.state.durable_delete(segment)
                complete(error)

            with self.pipeline.critical_section():
                self.state.accept_delete(segment)
                self.pipeline.add_operation(Delete(segment.id), done)
        await future

    async def update_policy(self, name: str, *, scale_type: int, target_rate: int) -> None:
        """Store a segment's scaling policy."""
        segment = await self.find(name)
        self.pipeline.check_open()
        if segment.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(name)
        await self.submit(
            UpdatePolicy(segment.id, scale_type, target_rate),
            lambda: self.state.accept_policy(segment, scale_type, target_rate),
        )

    async def get_attribute(self, name: str, attribute_id: bytes) -> int:
        """Return a durable attribute value, or `NO_VALUE`."""
        segment = await self.find(name)
        await self.attributes.load(segment, (attribute_id,))
        value = segment.attribute(attribute_id)
        await self.pipeline.barrier()
        return value

    async def update_attribute(self, name: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """Compare-and-set an attribute; return whether it matched, once the result is durable."""
        segment = await self.find(name)
        await self.attributes.prepare(segment, (attribute_id,))
        self._check_running()
        self._live(segment)
        if segment.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(name)
        if segment.attribute(attribute_id) != expected:
            await self.pipeline.barrier()
            return False
        if (
            segment.flags & SegmentFlags.TRANSIENT
            and attribute_id not in segment.attributes
            and len(segment.attributes) >= TRANSIENT_ATTRIBUTES_MAX
        ):
            raise UnsupportedOperationError(
                f"{name}: a transient segment has at most {TRANSIENT_ATTRIBUTES_MAX} attributes"
            )
        values = {attribute_id: value}
        await self.submit(UpdateAttributes(segment.id, values), lambda: self.state.accept_attributes(segment, values))
        return True

    async def info(self, name: str) -> SegmentInfo:
        """Return the durable state of a segment, without activating it."""
        while True:
            try:
                segment = self.segment(name)
                break
            except NoSuchSegmentError:
                await self.pipeline.barrier()
                raise
            except SegmentInactiveError:
                stored = await self.catalog.inactive(name)
                if name in self.state.metadata.by_name:
                    continue
                if stored is None:
                    await self.pipeline.barrier()
                    raise NoSuchSegmentError(name) from None
                return SegmentInfo(
                    name,
                    stored.start_offset,
                    stored.length,
                    stored.is_sealed,
                    stored.last_modified_ms,
                    bool(stored.flags & SegmentFlags.TABLE),
                )
        with segment.in_use():
            await self.pipeline.barrier()
        return self.durable_info(segment)

    def durable_info(self, segment: Segment) -> SegmentInfo:
        """Return the durable state of an active segment; the caller has waited for everything accepted.

        Raises `SegmentInactiveError`, `SegmentMergedError`, `NoSuchSegmentError` if it is no longer active.
        """
        self._live(segment)
        return SegmentInfo(
            segment.name,
            segment.durable_start_offset,
            segment.durable_length,
            segment.durable_sealed,
            segment.last_modified_ms,
            segment.is_table,
        )

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        """Delete a table segment."""
        segment = await self.find(name)
        if not segment.is_table:
            raise UnsupportedOperationError(f"{name} is not a table segment")
        self._check_running()
        await self._delete(segment, must_be_empty=must_be_empty)

    def _barrier_future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self.pipeline.when_durable(completer(future))
        return future

"""`WireSegments`: the `Segments` seam over the wire protocol.

Its calls on segments are here, those on tables in `wire_tables`. See `wire_requests` for retries and lost replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from penstock.client.common.deadline import within
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.exchanges import in_time
from penstock.client.transport.known_ends import KnownEnds
from penstock.client.transport.replies import expect
from penstock.client.transport.wire_requests import Make
from penstock.client.transport.wire_tables import WireTables
from penstock.client.transport.writer_ids import WriterIds
from penstock.model.errors import (
    BadOffsetError,
    OutcomeUnknownError,
    PenstockError,
    PositionBeyondEndError,
    SegmentTruncatedError,
)
from penstock.model.names import primary_name
from penstock.model.segments import (
    READ_LENGTH_MAX,
    Buffer,
    SegmentData,
    SegmentInfo,
)
from penstock.runtime.bulk import for_each
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    DataAppended,
    DeleteSegment,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    LocateOffset,
    MergeSegmentsBatch,
    OffsetLocated,
    ReadSegment,
    SealSegment,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentPolicyUpdated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
    WireCommand,
    WrongHost,
)
from penstock.wire.connection import WireConnection

#: Servers of earlier wire versions do not support LocateOffset.
LOCATE_OFFSET_VERSION = 17
#: Initial distance of the backward search for a boundary: about the distance between two.
_BORDER_DISTANCE = 2 * 1024 * 1024


class WireSegments(WireTables):
    """See `penstock.model.segments.Segments` for the calls and their errors, `WireRequests` for the arguments.

    Use within one event loop.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        *,
        token: str = "",
        waits_for_space: bool = True,
    ) -> None:
        super().__init__(pool, settings, rng, token=token, waits_for_space=waits_for_space)
        self._known_ends = KnownEnds()
        self._writer_ids = WriterIds(rng)

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """See `Segments.create_segment`."""
        reply = await self._change(
            segment,
            lambda request_id: CreateSegment(
                request_id, segment, target_rate, scale_type, self._token(segment), rollover_bytes
            ),
        )
        expect(reply, SegmentCreated, segment)

    async def delete_segment(self, segment: str) -> None:
        """See `Segments.delete_segment`."""
        reply = await self._change(segment, lambda request_id: DeleteSegment(request_id, segment, self._token(segment)))
        expect(reply, SegmentDeleted, segment)

    async def seal_segment(self, segment: str) -> None:
        """See `Segments.seal_segment`."""
        reply = await self._change(segment, lambda request_id: SealSegment(request_id, segment, self._token(segment)))
        expect(reply, SegmentSealed, segment)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""
        reply = await self._change(
            segment, lambda request_id: TruncateSegment(request_id, segment, offset, self._token(segment))
        )
        expect(reply, SegmentTruncated, segment)

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """See `Segments.update_policy`."""
        reply = await self._change(
            segment,
            lambda request_id: UpdateSegmentPolicy(request_id, segment, target_rate, scale_type, self._token(segment)),
        )
        expect(reply, SegmentPolicyUpdated, segment)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""
        reply = expect(
            await self._ask(
                segment, lambda request_id: GetStreamSegmentInfo(request_id, segment, self._token(segment))
            ),
            StreamSegmentInfo,
            segment,
        )
        return SegmentInfo(segment, reply.start_offset, reply.write_offset, reply.is_sealed, reply.last_modified)

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        homes = _one_name_per_home(segments)

        async def ask(segment: str) -> SegmentInfo:
            reply = await self._once(
                segment, homes, lambda request_id: GetStreamSegmentInfo(request_id, segment, self._token(segment))
            )
            info = expect(reply, StreamSegmentInfo, segment)
            return SegmentInfo(segment, info.start_offset, info.write_offset, info.is_sealed, info.last_modified)

        return await for_each(segments, ask, self._settings.bulk_request_count_max)

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        """See `Segments.delete_segments`. `OutcomeUnknownError` for a name: its reply was lost."""
        homes = _one_name_per_home(segments)

        async def ask(segment: str) -> None:
            reply = await self._once(
                segment, homes, lambda request_id: DeleteSegment(request_id, segment, self._token(segment))
            )
            expect(reply, SegmentDeleted, segment)

        return await for_each(segments, ask, self._settings.bulk_request_count_max)

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        """See `Segments.truncate_segments`. `OutcomeUnknownError` for a name: its reply was lost."""
        homes = _one_name_per_home([segment for segment, _ in offsets])

        async def ask(one: tuple[str, int]) -> None:
            segment, offset = one
            reply = await self._once(
                segment, homes, lambda request_id: TruncateSegment(request_id, segment, offset, self._token(segment))
            )
            expect(reply, SegmentTruncated, segment)

        return await for_each(offsets, ask, self._settings.bulk_request_count_max)

    async def _once(self, segment: str, homes: dict[str, str], make: Make) -> WireCommand:
        """Send a request, once. The resolver is queried once for all segments of the same home."""
        home = homes[primary_name(segment)]
        try:
            connection = await self._pool.connection(home, Purpose.REQUEST)
            request_id = connection.next_request_id()
            reply = await in_time(segment, connection.request(request_id, make(request_id)))
        except OutcomeUnknownError:
            self._pool.forget(home)
            raise
        if isinstance(reply, WrongHost):
            self._pool.forget(home)
        return reply

    async def locate_offset(self, segment: str, offset: int, *, before: bool = False) -> int:
        """See `Segments.locate_offset`. `before` costs tens of requests: the wire protocol only searches forwards.

        Segment stores too old for LocateOffset are treated as if they had no boundaries.
        """
        if not before:
            return await self._border_behind(segment, offset)
        info = await self.segment_info(segment)
        if offset < info.start_offset:
            raise SegmentTruncatedError(segment, start_offset=info.start_offset, offset=offset)
        if offset >= info.length:
            return info.length
        # `low` is a boundary; between `high` and `offset` there is none except, perhaps, at `offset`.
        low, high = info.start_offset, offset + 1
        step = _BORDER_DISTANCE
        at = offset
        while at > low:
            border = await self._border_behind(segment, at)
            if border <= offset:
                low = border
                break
            high = at
            at -= step
            step *= 2
        while high - low > 1:
            at = (low + high) // 2
            border = await self._border_behind(segment, at)
            if border <= offset:
                low = border
            else:
                high = at
        return low

    async def _border_behind(self, segment: str, offset: int) -> int:
        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            if connection.wire_version < LOCATE_OFFSET_VERSION:
                command: WireCommand = GetStreamSegmentInfo(request_id, segment, self._token(segment))
            else:
                command = LocateOffset(request_id, segment, offset, self._token(segment))
            return await connection.request(request_id, command)

        reply = await self._exchanges.run(segment, exchange, Purpose.REQUEST, is_repeatable=True)
        if isinstance(reply, StreamSegmentInfo):
            if offset < reply.start_offset:
                raise SegmentTruncatedError(segment, start_offset=reply.start_offset, offset=offset)
            return reply.start_offset if offset == reply.start_offset else reply.write_offset
        if isinstance(reply, SegmentTruncated):
            info = await self.segment_info(segment)
            raise SegmentTruncatedError(segment, start_offset=info.start_offset, offset=offset)
        return expect(reply, OffsetLocated, segment).offset

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """See `Segments.merge_segments`."""
        reply = expect(
            await self._change(
                target, lambda request_id: MergeSegmentsBatch(request_id, target, tuple(sources), self._token(target))
            ),
            SegmentsBatchMerged,
            target,
        )
        return [merged.new_target_write_offset for merged in reply.merged]

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """See `Segments.append`."""
        writer_id = self._writer_ids.take()

        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            setup = await connection.request(
                request_id, SetupAppend(request_id, writer_id, segment, self._token(segment))
            )
            if not isinstance(setup, AppendSetup):
                return setup
            # Negative: the id was not used in this segment before.
            number = max(setup.last_event_number, 0) + 1
            if expected_offset is None:
                command: WireCommand = AppendBlockEnd(writer_id, len(data), data, 1, number, request_id)
            else:
                command = ConditionalBlockEnd(writer_id, number, expected_offset, data, request_id)
            return await connection.request(request_id, command)

        reply = await self._exchanges.run(segment, exchange, Purpose.APPEND, is_repeatable=False)
        if isinstance(reply, (DataAppended, ConditionalCheckFailed)):
            self._writer_ids.give_back(writer_id)
        if isinstance(reply, ConditionalCheckFailed):
            info = await self.segment_info(segment)
            raise BadOffsetError(segment, expected=expected_offset or 0, actual=info.length)
        return expect(reply, DataAppended, segment).current_segment_write_offset

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`. Without `wait` this costs a second request, because a server always waits."""
        if not wait:
            with within(f"read {segment} at {offset}", self._settings.retry_time_max_s, "retry_time_max_s"):
                info = await self.segment_info(segment)
                if offset >= info.length and not info.is_sealed:
                    return SegmentData(offset, (), is_at_tail=True, is_end_of_segment=False)
                length = min(length, max(info.length - offset, 0) or length)
                return await self._read(segment, offset, min(length, READ_LENGTH_MAX), wait=False)
        return await self._read(segment, offset, min(length, READ_LENGTH_MAX), wait=True)

    async def _read(self, segment: str, offset: int, length: int, *, wait: bool) -> SegmentData:
        async def exchange(connection: WireConnection) -> WireCommand:
            if not self._known_ends.reaches(connection, segment, offset):
                # A read beyond the end gets no reply before the segment has grown past it.
                request_id = connection.next_request_id()
                found = await connection.request(
                    request_id, GetStreamSegmentInfo(request_id, segment, self._token(segment))
                )
                if isinstance(found, WrongHost):
                    return found
                # For all other replies of the segment store, the read gets the same.
                if isinstance(found, StreamSegmentInfo):
                    if offset > found.write_offset:
                        raise PositionBeyondEndError(segment, position=offset, end=found.write_offset)
                    self._known_ends.note(connection, segment, found.write_offset)
            request_id = connection.next_request_id()
            command = ReadSegment(segment, offset, length, self._token(segment), request_id)
            reply = await connection.request(request_id, command, timeout_s=None)
            if isinstance(reply, SegmentRead):
                self._known_ends.note(connection, segment, offset + len(reply.buffer))
            return reply

        while True:
            reply = await self._exchanges.run(segment, exchange, Purpose.READ, is_repeatable=True, is_long_poll=True)
            if isinstance(reply, SegmentIsSealed):
                # Sealed while waiting at the tail.
                return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=True)
            read = expect(reply, SegmentRead, segment)
            data = read.buffer
            if len(data) > length:
                # A server may return somewhat more than the requested bytes if few were requested.
                return SegmentData(read.offset, (data[:length],), is_at_tail=False, is_end_of_segment=False)
            # An empty reply that is not the end means that the server's wait timed out: request again.
            if len(data) or read.end_of_segment or not wait:
                return SegmentData(
                    read.offset, (data,) if len(data) else (), read.at_tail, is_end_of_segment=read.end_of_segment
                )

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """See `Segments.get_attribute`."""
        reply = await self._ask(
            segment, lambda request_id: GetSegmentAttribute(request_id, segment, attribute_id, self._token(segment))
        )
        return expect(reply, SegmentAttribute, segment).value

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """See `Segments.update_attribute`."""
        reply = await self._change(
            segment,
            lambda request_id: UpdateSegmentAttribute(
                request_id, segment, attribute_id, value, expected, self._token(segment)
            ),
        )
        return expect(reply, SegmentAttributeUpdated, segment).success


def _one_name_per_home(segments: Sequence[str]) -> dict[str, str]:
    """Return one of the names for each home: names with the same part that determines the home share one."""
    homes: dict[str, str] = {}
    for segment in segments:
        homes.setdefault(primary_name(segment), segment)
    return homes

"""`SegmentStore`: the `Segments` interface to the containers of one process, by direct calls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentError,
)
from penstock.model.names import (
    SYSTEM_SCOPE,
    is_transient_segment,
    is_written_for_readers,
)
from penstock.model.segments import (
    READ_LENGTH_MAX,
    Buffer,
    SegmentData,
    SegmentInfo,
    TableDelta,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.runtime.bulk import for_each
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.bulk_requests import BulkRequests
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.attributes.updates import AttributeUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.storage.container_storage import INDEX_SUFFIX_BYTES_MAX
from penstock.segmentstore.container_host import UNNAMED_CLUSTER, ContainerHost
from penstock.segmentstore.container_monitor import AssignmentSource
from penstock.segmentstore.core_attributes import core_attribute, is_core_attribute
from penstock.segmentstore.segment_rules import check_new_name, check_not_system, check_page
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier2.chunk_name import check_segment_name
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage


class SegmentStore(ContainerHost):
    """Routes requests to the containers that run in this process. Parameters as `ContainerHost`."""

    def __init__(
        self,
        *,
        logs: DurableLogFactory,
        chunks: ChunkStorage,
        runtime: Runtime,
        settings: SegmentStoreSettings,
        container_ids: Collection[int] | None = None,
        assignment: AssignmentSource | None = None,
        cache_directory: str = "",
        cluster_id: str = UNNAMED_CLUSTER,
    ) -> None:
        super().__init__(
            logs=logs,
            chunks=chunks,
            runtime=runtime,
            settings=settings,
            container_ids=container_ids,
            assignment=assignment,
            cache_directory=cache_directory,
            cluster_id=cluster_id,
        )
        self._bulk = BulkRequests(self, settings.bulk_requests_max)

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """See `Segments.create_segment`."""
        self._check_new_name(segment)
        self.container(segment).space.check(segment)
        await self.container(segment).create(
            segment, scale_type=scale_type, target_rate=target_rate, rollover_bytes=rollover_bytes
        )

    def _check_new_name(self, segment: str) -> None:
        """Refuse names that no segment may have, and those with chunk names that long-term storage does not support."""
        check_new_name(segment)
        check_segment_name(
            segment,
            derived_bytes_max=INDEX_SUFFIX_BYTES_MAX,
            name_part_bytes_max=self._chunks.name_part_bytes_max,
        )

    async def delete_segment(self, segment: str) -> None:
        """See `Segments.delete_segment`. A repeated call completes a deletion that a crash interrupted."""
        try:
            async with self.using_own(segment) as (container, found):
                await container.delete(segment)
        except NoSuchSegmentError:
            await self.container(segment).offset_indexes.deleted(segment)
            raise
        if container.offset_indexes.may_have_one(found):
            try:
                await container.offset_indexes.deleted(segment)
            except PenstockError as error:
                # The segment is deleted: a caller that got a refusal would attribute the deletion to another client.
                raise OutcomeUnknownError(f"{segment} is deleted, its index may not be: {error}") from error

    async def seal_segment(self, segment: str) -> None:
        """See `Segments.seal_segment`."""
        async with self.using_own(segment) as (container, found):
            await container.seal(segment)
            await container.offset_indexes.sealed(found)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""
        async with self.using_stream(segment) as (container, found):
            await container.truncate(segment, offset)
            await container.offset_indexes.truncated(found)

    async def locate_offset(self, segment: str, offset: int, *, before: bool = False) -> int:
        """See `Segments.locate_offset`."""
        async with self.using_stream(segment) as (container, found):
            border = await container.offset_indexes.locate(found, offset, before=before)
            await container.ownership.confirmed()
            return border

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """See `Segments.update_policy`."""
        async with self.using_own(segment) as (container, _):
            await container.update_policy(segment, scale_type=scale_type, target_rate=target_rate)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""
        container = self.container(segment)
        try:
            info = await container.info(segment)
        except SegmentError:
            await container.ownership.confirmed()
            raise
        await container.ownership.confirmed()
        return info

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        return await self._bulk.infos(segments)

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        """See `Segments.delete_segments`."""
        return await for_each(segments, self.delete_segment, self.settings.bulk_requests_max)

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        """See `Segments.truncate_segments`."""
        return await self._bulk.truncate(offsets)

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """See `Segments.merge_segments`."""
        container = self.container(target)
        for segment in (target, *sources):
            check_not_system(segment)
            if self.container(segment) is not container:
                raise InvalidArgumentError(f"{segment} and {target} are not in one container")
        async with self.using(target):
            merged = await container.merges.merge_all(target, sources)
        if any(source is None for _, source in merged):
            await container.ownership.confirmed()
        for _, found in merged:
            if found is not None and container.offset_indexes.may_have_one(found):
                await container.offset_indexes.deleted(found.name)
        return [length for length, _ in merged]

    async def merge_segment(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of `source` to `target`, change the target's attributes, and delete the source, in one step.

        Returns the target's length, also if the source was merged into it before: a retry after a lost answer changes
        nothing. Raises `BadAttributeError` if a condition of `updates` does not hold, `NoSuchSegmentError` for the
        source or the target, `SegmentSealedError` for the target.
        """
        for segment in (target, source):
            check_not_system(segment)
        container = self.container(target)
        if self.container(source) is not container:
            raise InvalidArgumentError(f"{source} and {target} are not in one container")
        async with self.using(target) as (_, into):
            try:
                found = await container.find(source)
            except NoSuchSegmentError:
                length = (await container.info(target)).length
                if container.state.was_merged(source, into):
                    await container.ownership.confirmed()
                    return length
                raise
            length = await container.merges.merge(target, source, updates)
        if container.offset_indexes.may_have_one(found):
            await container.offset_indexes.deleted(source)
        return length

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """See `Segments.append`."""
        async with self.using_stream(segment) as (container, found):
            await _admit(container, found)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            request = AppendRequest(bytes(data), expected_offset=expected_offset)
            end = container.acceptor.append(found, request, completer(future))
            await future
            return end

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`."""
        using, has_waited = self.reading(segment), False
        while True:
            async with using as (container, found):
                if has_waited and found.has_ended_before(offset):
                    return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=True)
                data = await container.reader.read(found, offset, min(length, READ_LENGTH_MAX))
            if data.data or not data.is_at_tail or not wait:
                return data
            await container.reader.wait(found, offset)
            using, has_waited = self.reading_again(segment, found.id), True

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """See `Segments.get_attribute`."""
        if is_core_attribute(attribute_id):
            async with self.reading(segment) as (container, found):
                value = core_attribute(found, attribute_id)
                await container.pipeline.barrier()
                return value
        async with self.reading(segment) as (container, _):
            return await container.get_attribute(segment, attribute_id)

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """See `Segments.update_attribute`."""
        if is_core_attribute(attribute_id):
            raise InvalidArgumentError(f"{segment}: attribute {attribute_id.hex()} is reserved for the store")
        async with self.using_own(segment) as (container, _):
            was_expected = await container.update_attribute(segment, attribute_id, value=value, expected=expected)
            if not was_expected:
                await container.ownership.confirmed()
            return was_expected

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        """See `Segments.create_table`."""
        self._check_new_name(segment)
        if not 0 <= key_length <= 256:
            raise InvalidArgumentError(f"{segment}: keys of {key_length} bytes; fixed keys have 1 to 256")
        if is_transient_segment(segment):
            raise InvalidArgumentError(f"{segment}: this is the name of a transient segment, which cannot be a table")
        self.container(segment).space.check(segment)
        await self.container(segment).create(
            segment, flags=SegmentFlags.TABLE, key_length=key_length, rollover_bytes=rollover_bytes
        )

    async def delete_table(self, segment: str, *, must_be_empty: bool = False) -> None:
        """See `Segments.delete_table`."""
        async with self.using_own(segment) as (container, _):
            await container.delete_table(segment, must_be_empty=must_be_empty)

    async def table_info(self, segment: str) -> TableInfo:
        """See `Segments.table_info`."""
        async with self.reading(segment) as (container, found):
            return await container.tables.info(found)

    async def table_put(
        self, segment: str, updates: Sequence[TableUpdate], *, expected_offset: int = -1
    ) -> Sequence[int]:
        """See `Segments.table_put`."""
        async with self.using_own(segment) as (container, found):
            await _admit(container, found)
            return await container.tables.put(found, updates, expected_offset)

    async def table_remove(self, segment: str, removals: Sequence[TableRemoval], *, expected_offset: int = -1) -> None:
        """See `Segments.table_remove`."""
        async with self.using_own(segment) as (container, found):
            await container.tables.remove(found, removals, expected_offset)

    async def table_get(
        self, segment: str, keys: Sequence[bytes], *, bytes_max: int | None = None
    ) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`, and `Tables.get` for `bytes_max`."""
        async with self.reading(segment) as (container, found):
            return await container.tables.get(found, keys, bytes_max=bytes_max)

    async def table_entries(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TablePage:
        """See `Segments.table_entries`."""
        async with self.reading(segment) as (container, found):
            check_page(found, token, first, last)
            page = await container.tables.entries(found, limit=limit, token=token, first=first, last=last)
            return TablePage(page.entries, b"") if found.key_length else page

    async def table_keys(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TableKeyPage:
        """See `Segments.table_keys`."""
        async with self.reading(segment) as (container, found):
            check_page(found, token, first, last)
            page = await container.tables.keys(found, limit=limit, token=token, first=first, last=last)
            return TableKeyPage(page.keys, b"") if found.key_length else page

    async def table_delta(self, segment: str, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`."""
        async with self.reading(segment) as (container, found):
            return await container.tables.delta(found, position=position, limit=limit)


async def _admit(container: SegmentContainer, segment: Segment) -> None:
    """Throttle a caller's write while memory or storage fills up; the system's own streams and tables are exempt.

    Raises `StorageFullError` at once if the log's disk is full: that may last.
    """
    container.space.check(segment.name)
    if segment.name.startswith(f"{SYSTEM_SCOPE}/"):
        return
    if container.quota.is_over(segment):
        await container.quota.room(segment)
    is_urgent = is_written_for_readers(segment.name)
    if container.back_pressure.must_wait(is_urgent=is_urgent):
        await container.throttle.wait(is_urgent=is_urgent)

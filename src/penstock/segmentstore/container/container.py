"""`SegmentContainer`: the unit of ownership, fencing and recovery; holds the segments whose names hash to its id.

An object is one incarnation that `ContainerOpening` has opened: all of its parts exist. It has the operations on its
segments: each finds its segment and loads what it needs, then accepts and logs the operation in one turn of the loop
(`OperationAcceptor`). Rejections based on state that is not yet durable wait until it is.

The first failed log write or inconsistency in memory ends the container. There is no repair in place: recovery is
always by a new incarnation that reads the log. Damage in long-term storage only affects one segment; damage of the log
disables the log.

Source: segment-store 1.2, 1.3, 1.4 and 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock.model.errors import (
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentInactiveError,
    SegmentSealedError,
    SegmentTruncatedError,
    UnsupportedOperationError,
)
from penstock.model.names import is_transient_segment
from penstock.model.segments import SegmentInfo
from penstock.segmentstore.container.acceptor import OperationAcceptor, check_live
from penstock.segmentstore.container.activity.offset_index import OffsetIndexes
from penstock.segmentstore.container.activity.watch import ActivityWatch
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.back_pressure import BackPressure
from penstock.segmentstore.container.catalog import SegmentCatalog
from penstock.segmentstore.container.closing import ContainerClosing
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.life import ContainerLife, ContainerStatus
from penstock.segmentstore.container.log.checkpoints import Checkpoints
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.log.operations import UpdateAttributes, UpdatePolicy
from penstock.segmentstore.container.log.pipeline import OperationPipeline, completer
from penstock.segmentstore.container.log.recovery import Recovered
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.segment_merges import SegmentMerges
from penstock.segmentstore.container.segment_quota import SegmentQuota
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.adoptions import Adoptions
from penstock.segmentstore.container.storage.container_storage import ContainerStorage
from penstock.segmentstore.container.storage.image_capture import ImageCapture
from penstock.segmentstore.container.storage.images import ContainerImages
from penstock.segmentstore.container.storage.stale_log import StaleLogCheck
from penstock.segmentstore.container.storage.storage_writer import StorageWriter
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container.throttle import Throttle
from penstock.segmentstore.container.transients import TransientSegments
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.statistics import ContainerStatistics
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage

__all__ = ["ContainerStatus", "SegmentContainer"]

#: Attributes of a transient segment, see segment-store R5.5.
TRANSIENT_ATTRIBUTES_MAX = 16


@dataclass(eq=False, kw_only=True)
class SegmentContainer:
    """One incarnation of a container, open.

    Attributes:
        life: its phase, background jobs and failure.
        created_ms: creation time of this incarnation, in milliseconds since the epoch.
        recovered: what the replay of the log found.
        log: its log, which fences all other incarnations.
        chunks: long-term storage as a whole; `storage` is the container's view of it.
        events: what its parts report to each other.
        ownership: whether this incarnation may answer from its state.
        space: whether file systems have space. User operations wait while the log's file system has none.
        back_pressure: which operations of clients are held. `throttle` and `quota` are its parts.
        acceptor: accepts and logs operations on segments that are in memory.
        merges: merges of segments.
        stale_log: whether the log is an old copy, as far as long-term storage shows.
        adoptions: adopts segments of an older store, if enabled in the settings.
        images: writes images, from which a store whose machine is lost can be rebuilt, if enabled in the settings.
    """

    life: ContainerLife
    created_ms: int
    recovered: Recovered
    settings: ContainerSettings
    log: DurableLog
    chunks: ChunkStorage
    events: ContainerEvents
    state: ContainerState
    ownership: OwnershipLease
    space: SpaceWatch
    back_pressure: BackPressure
    pipeline: OperationPipeline
    acceptor: OperationAcceptor
    checkpoints: Checkpoints
    log_rewriter: LogRewriter
    reader: SegmentReader
    tables: Tables
    attributes: Attributes
    storage: ContainerStorage
    writer: StorageWriter
    catalog: SegmentCatalog
    stale_log: StaleLogCheck
    adoptions: Adoptions
    capture: ImageCapture
    images: ContainerImages | None
    closing: ContainerClosing
    id: int = field(init=False)
    throttle: Throttle = field(init=False)
    quota: SegmentQuota = field(init=False)
    merges: SegmentMerges = field(init=False)
    transients: TransientSegments = field(init=False)
    offset_indexes: OffsetIndexes = field(init=False)
    activity_watch: ActivityWatch = field(init=False)

    def __post_init__(self) -> None:
        """Create the parts that use the operations of the container."""
        settings = self.settings
        self.id = self.life.id
        self.throttle, self.quota = self.back_pressure.throttle, self.back_pressure.quota
        self._loop = asyncio.get_running_loop()
        self.merges = SegmentMerges(
            self.life, self.acceptor, catalog=self.catalog, attributes=self.attributes, find=self.find
        )
        self.transients = TransientSegments(
            self.state.metadata,
            settings.transients,
            count_max=settings.transients.count_max(settings.active_segments_max),
            delete=self.delete,
            takes_bytes=lambda: not self.throttle.must_wait(),
        )
        self.offset_indexes = OffsetIndexes(
            self,
            find=self.find,
            append=self.acceptor.append_own,
            read=self.reader.read_exactly,
            entry_bytes=settings.activity.index_entry_bytes,
        )
        self.activity_watch = ActivityWatch(self.id, self.state.activity, self.offset_indexes, settings.activity)

    # Life cycle.

    @property
    def status(self) -> ContainerStatus:
        """Phase of its life."""
        return self.life.status

    @property
    def failure(self) -> BaseException | None:
        """Why it ended by itself; None if it did not."""
        return self.life.failure

    @property
    def epoch(self) -> int:
        """The epoch of this incarnation's log, unique to it."""
        return self.log.epoch

    @property
    def outstanding_bytes_max(self) -> int:
        """Limit of bytes accepted and not yet durable above which no more are admitted."""
        return self.settings.outstanding_bytes_max

    async def stop(self) -> None:
        """Complete accepted operations, then stop. Every pending call ends, at worst with `ContainerOfflineError`."""
        await self.closing.stop()

    def _check_running(self) -> None:
        self.life.check_running()
        self.pipeline.check_open()

    # Segments.

    def segment(self, name: str) -> Segment:
        """Return an active segment.

        Raises `NoSuchSegmentError`, `ContainerOfflineError`, and `SegmentInactiveError` if `find` is needed.
        """
        self.life.check_running()
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
        return await self.acceptor.create(
            name,
            flags=flags,
            key_length=key_length,
            scale_type=scale_type,
            target_rate=target_rate,
            rollover_bytes=rollover_bytes,
        )

    async def seal(self, name: str) -> None:
        """Seal a segment. Raises `SegmentSealedError` once the earlier seal is durable."""
        segment = await self.find(name)
        self.pipeline.check_open()
        if segment.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(name)
        future: asyncio.Future[None] = self._loop.create_future()
        self.acceptor.seal(segment, completer(future))
        await future

    async def truncate(self, name: str, offset: int) -> None:
        """Truncate the bytes before `offset`. Raises `SegmentTruncatedError` outside [start, length]."""
        segment = await self.find(name)
        is_accepted = self.acceptor.truncate(segment, offset)
        await self.pipeline.barrier()
        if not is_accepted:
            raise SegmentTruncatedError(name, start_offset=segment.start_offset, offset=offset)

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
            deleted = self.acceptor.delete(segment)
        await deleted

    async def update_policy(self, name: str, *, scale_type: int, target_rate: int) -> None:
        """Store a segment's scaling policy."""
        segment = await self.find(name)
        self.pipeline.check_open()
        if segment.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(name)
        await self.acceptor.submit(
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
        check_live(segment)
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
        await self.acceptor.submit(
            UpdateAttributes(segment.id, values), lambda: self.state.accept_attributes(segment, values)
        )
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
        check_live(segment)
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

    # Storage and load.

    async def flush(self) -> None:
        """Move everything currently durable to long-term storage, and write an image if images are enabled."""
        self._check_running()
        await self.pipeline.barrier()
        await self.writer.flush_all()
        if self.images is not None:
            await self.images.write()

    def statistics(self, now_s: float) -> ContainerStatistics:
        """Return the load as of the last measurement, and the current backlog. `now_s` is the loop's time."""
        backlog = self.state.backlog
        return replace(
            self.activity_watch.statistics.snapshot(now_s),
            log_bytes=self.checkpoints.log_bytes,
            is_log_long=self.log_rewriter.is_alarmed,
            backlog_bytes=backlog.byte_count,
            backlog_operations=backlog.operation_count,
            held_append_count=self.quota.held_count,
        )

    def log_problem_s(self, now_s: float) -> float:
        """Return for how long the log has not answered: an append, or a check of the ownership. `now_s`: loop time."""
        return max(self.pipeline.oldest_wait_s(now_s), self.ownership.check_age_s)

    @property
    def log_problem(self) -> str:
        """See `DurableLog.problem`."""
        return self.log.problem

    def segments(self) -> Sequence[Segment]:
        """Return the live segments."""
        return list(self.state.metadata.by_name.values())

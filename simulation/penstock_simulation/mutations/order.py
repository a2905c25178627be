"""Planted bugs of order: answers, writes, checks or removals before their precondition holds. See `catalog`."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from msgspec import structs

from penstock.client.reading.event import EventChunk
from penstock.controller.metadata import layout
from penstock.controller.metadata.records import CommittingTransactions
from penstock.controller.metadata.stream_tables import CommitView, StreamTables
from penstock.model.errors import BadOffsetError, LogFencedError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.acceptor import OperationAcceptor
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import OnDone
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.log_batch import BatchResult, BatchWriter, PreparedBatch, WritableFile
from penstock.segmentstore.tier1.log_directory import LogDirectory
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile

# Segment stores.


def _read_what_followed() -> AbstractContextManager[None]:
    async def read_storage(
        self: SegmentReader, segment: Segment, offset: int, length: int, client: Hashable
    ) -> bytes | None:
        read = self._storage_read_of(segment, offset, length, client)
        data = await asyncio.shield(read.task)
        # The check that the segment is still the requested one is left out.
        first = offset - read.start
        if first >= len(data):
            return None
        return data[first : first + length]

    return patched(SegmentReader, "_read_storage", read_storage)


def _use_any_place() -> AbstractContextManager[None]:
    def check_nothing(self: GuardedChunkStorage, found: bytes | None) -> None:
        """Accept any identity, or none."""

    return patched(GuardedChunkStorage, "_check_identity", check_nothing)


def _answer_attributes_early() -> AbstractContextManager[None]:
    async def get_attribute(self: SegmentContainer, name: str, attribute_id: bytes) -> int:
        segment = await self.find(name)
        await self.attributes.load(segment, (attribute_id,))
        return segment.attribute(attribute_id)

    return patched(SegmentContainer, "get_attribute", get_attribute)


@contextmanager
def _index_what_is_not_durable() -> Iterator[None]:
    original = Attributes.flush

    async def at_once() -> None:
        """Do not wait."""

    async def flush(self: Attributes, segment: Segment) -> None:
        with patched(self, "_barrier", at_once):
            await original(self, segment)

    with patched(Attributes, "flush", flush):
        yield


@contextmanager
def _check_the_fence_before_the_sync() -> Iterator[None]:
    prepare_original, complete_original = BatchWriter.prepare, BatchWriter.complete
    claimed: set[BatchWriter] = set()

    def prepare(self: BatchWriter, file: WritableFile) -> PreparedBatch | None:
        try:
            self.directory.check_unclaimed()
        except LogFencedError:
            claimed.add(self)
        return prepare_original(self, file)

    def complete(self: BatchWriter, file: WritableFile, batch: PreparedBatch) -> BatchResult:
        if self in claimed:
            return complete_original(self, file, batch)
        # Skip the check after the sync.
        with patched(LogDirectory, "check_unclaimed", lambda self: None):
            return complete_original(self, file, batch)

    with patched(BatchWriter, "prepare", prepare), patched(BatchWriter, "complete", complete):
        yield


@contextmanager
def _compare_with_durable_length() -> Iterator[None]:
    original = OperationAcceptor.append

    def append(
        self: OperationAcceptor,
        segment: Segment,
        request: AppendRequest,
        on_done: OnDone,
        *,
        stored_event_number: int = NO_VALUE,
    ) -> int:
        expected = request.expected_offset
        if expected is not None and expected != segment.durable_length:
            raise BadOffsetError(segment.name, expected=expected, actual=segment.durable_length)
        unconditional = structs.replace(request, expected_offset=None)
        return original(self, segment, unconditional, on_done, stored_event_number=stored_event_number)

    with patched(OperationAcceptor, "append", append):
        yield


@contextmanager
def _tell_of_batches_before_their_sync() -> Iterator[None]:
    # Every batch is still synced, except when a crash comes first. Patches both the loop's own writes and the thread's.
    begin_original, written_original = LocalLog._begin_small, LocalLog._small_written

    def begin_small(self: LocalLog, file: WritableFile) -> bool:
        is_begun = begin_original(self, file)
        if is_begun and self._small is not None:
            _, batch = self._small
            self._committed(BatchResult(batch.addresses, batch.end, batch.began_s))
        return is_begun

    def small_written(self: LocalLog, error: BaseException | None) -> None:
        # The batch was already reported when it was begun.
        with patched(self, "_committed", lambda result: None):
            written_original(self, error)

    def write_queued(self: BatchWriter, file: WritableFile) -> None:
        while (batch := self.prepare(file)) is not None:
            self._tell(BatchResult(batch.addresses, batch.end, batch.began_s))
            file.file.write_synced(file.position, batch.buffers)
            self.complete(file, batch)

    with (
        patched(LocalLog, "_begin_small", begin_small),
        patched(LocalLog, "_small_written", small_written),
        patched(BatchWriter, "write_queued", write_queued),
    ):
        yield


# Client and controller.


def _store_positions_early() -> AbstractContextManager[None]:
    # Events in hand count as processed.
    return patched(EventChunk, "safe_offset", EventChunk.next_offset)


@contextmanager
def _remove_commit_positions_early() -> Iterator[None]:
    original = StreamTables.put_commit

    async def put_commit(self: StreamTables, batch: CommittingTransactions, view: CommitView) -> CommitView:
        chosen = set(batch.transactions)
        positions = [str(position) for position, text in await self.commit_positions() if text in chosen]
        if positions:
            await self.records.remove(layout.commit_order(*self.key), *positions)
        return await original(self, batch, view)

    with patched(StreamTables, "put_commit", put_commit):
        yield


_SLOW_WORK = 0.3
_LINKS = ("SlowLink", "Pause")
_SMALL_CACHE = 16 * 1024

#: Slow syncs, some of them split in two, and crashes during them.
_SYNCS = replace(short_profile("crashes in a sync", "bytes", gap_s=1.0), work_stall_rate=_SLOW_WORK, work_cut_rate=0.1)

ORDER_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "read what followed a deleted segment", "a read has the bytes of one segment",
        replace(
            short_profile("names used again", "names", "crowd", kinds=_LINKS), cache_bytes_min=_SMALL_CACHE,
            slow_read_rate=0.5,
            # If its chunks were still there, a late read of a deleted segment would return the segment's own bytes.
            garbage_delay_s=0.05,
        ),
        _read_what_followed,
    ),
    Mutation(
        "answer attributes before they are durable", "what was read stays",
        replace(short_profile("read right away", "attributes", gap_s=1.0), work_stall_rate=_SLOW_WORK),
        _answer_attributes_early,
    ),
    Mutation(
        "index what is not durable", "an index has what the log has",
        replace(
            short_profile("early indexes", "writers", "attributes", gap_s=1.0), work_stall_rate=_SLOW_WORK,
            has_lowest_limits=True, pace=4.0,
        ),
        _index_what_is_not_durable,
    ),
    Mutation(
        "use any place as long-term storage", "what is not mounted is no empty storage",
        short_profile("storage not mounted", "bytes", kinds=("StorageMissing", "Crash")), _use_any_place,
    ),
    Mutation(
        "check the fence before the sync", "an old owner can do no harm",
        replace(
            short_profile("owners overtaken in a sync", "bytes", kinds=("SlowLink", "Pause")), takeover_gap_s=1.0,
            store_count_min=2, store_count_max=3, shared_storage_rate=1.0, work_cut_rate=0.3, pace=4.0,
        ),
        _check_the_fence_before_the_sync,
    ),
    Mutation(
        "report a batch before its sync", "acknowledged means synced",
        _SYNCS, _tell_of_batches_before_their_sync,
    ),
    Mutation(
        "compare with the durable length", "a conditional append begins where it was to begin",
        replace(short_profile("conditional appends", "bytes"), work_stall_rate=_SLOW_WORK),
        _compare_with_durable_length,
    ),
    Mutation(
        "store positions before events are worked off", "a group gets each event at least once",
        short_profile("mortal readers", "mortals"), _store_positions_early,
    ),
    Mutation(
        "remove commit positions before the batch is written", "a committed transaction is seen",
        replace(
            short_profile("commits cut short", "transactions", gap_s=0.7), work_stall_rate=_SLOW_WORK
        ),
        _remove_commit_positions_early,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""

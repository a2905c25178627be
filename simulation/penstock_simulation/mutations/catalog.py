"""Planted bugs: each breaks one promise in one place, and the simulation must detect it within a few seeds.

They show that the checkers work. A mutation is a context manager around a run and leaves nothing behind. Each has a
profile that targets it, so that it is found fast; the faults and workloads of any seed may find it too, but later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import cast

from penstock.client.groups.group_state import HeldSegment, Redelivery
from penstock.client.groups.segment_events import SegmentEvents
from penstock.client.settings import ClientSettings
from penstock.client.transport.read_ahead import ReadAhead
from penstock.client.transport.wire_segments import WireSegments
from penstock.client.writing.append_window import AppendWindow, Block
from penstock.controller.metadata.records import AbortReason, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.transactions import service as transactions_service
from penstock.controller.workflows.commit import decide_commit
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.segments import NO_VALUE, Buffer, SegmentData, Segments, TableRemoval, TableUpdate
from penstock.runtime.disk import DiskFile
from penstock.segmentstore.append_processor import AppendProcessor
from penstock.segmentstore.container.acceptor import OperationAcceptor
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.log.pipeline import OnDone, OperationPipeline
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.reads.read_index import _Block
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.storage.container_storage import ContainerStorage
from penstock.segmentstore.container.storage.segment_flusher import SegmentFlusher
from penstock.segmentstore.container.tables.index import Loaded, TableIndex
from penstock.segmentstore.tier1 import log_records, log_recovery
from penstock.segmentstore.tier1.durable_log import LogFrameRun
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.log_batch import WritableFile
from penstock.segmentstore.tier1.log_directory import LogDirectory
from penstock.segmentstore.tier1.log_files import LogFiles
from penstock.segmentstore.tier2 import segment_read
from penstock.segmentstore.tier2.chunk_files import ChunkFiles
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock.wire.commands import SetupAppend, WireCommand
from penstock_simulation.mutations.controller import CONTROLLER_MUTATIONS
from penstock_simulation.mutations.days import DAY_MUTATIONS
from penstock_simulation.mutations.group_changes import GROUP_MUTATIONS
from penstock_simulation.mutations.half_open import HALF_OPEN_MUTATIONS
from penstock_simulation.mutations.isolation import ISOLATION_MUTATIONS
from penstock_simulation.mutations.joins import JOIN_MUTATIONS
from penstock_simulation.mutations.lost_locks import LOST_LOCK_MUTATIONS
from penstock_simulation.mutations.members import MEMBER_MUTATIONS
from penstock_simulation.mutations.memory import MEMORY_MUTATIONS
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile
from penstock_simulation.mutations.object_logs import OBJECT_LOG_MUTATIONS
from penstock_simulation.mutations.offline_containers import OFFLINE_MUTATIONS
from penstock_simulation.mutations.order import ORDER_MUTATIONS
from penstock_simulation.mutations.outages import OUTAGE_MUTATIONS
from penstock_simulation.mutations.peers import PEER_MUTATIONS
from penstock_simulation.mutations.prepared import PREPARED_MUTATIONS
from penstock_simulation.mutations.promises import PROMISE_MUTATIONS
from penstock_simulation.mutations.readers import READER_MUTATIONS
from penstock_simulation.mutations.remote import REMOTE_MUTATIONS
from penstock_simulation.mutations.rescues import RESCUE_MUTATIONS
from penstock_simulation.mutations.scaling import SCALING_MUTATIONS
from penstock_simulation.mutations.security import SECURITY_MUTATIONS
from penstock_simulation.mutations.shortages import SHORTAGE_MUTATIONS
from penstock_simulation.mutations.sinks import SINK_MUTATIONS
from penstock_simulation.mutations.stalls import STALL_MUTATIONS
from penstock_simulation.mutations.stuck import STUCK_MUTATIONS
from penstock_simulation.mutations.subscribers import SUBSCRIBER_MUTATIONS
from penstock_simulation.mutations.tables import TABLE_MUTATIONS
from penstock_simulation.mutations.users import USER_MUTATIONS
from penstock_simulation.mutations.versions import VERSION_MUTATIONS
from penstock_simulation.mutations.writes_ahead import WRITE_AHEAD_MUTATIONS
from penstock_simulation.mutations.wrong_logs import WRONG_LOG_MUTATIONS

_KIB = 1024


# Tier 1.


class _Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: object) -> None:
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Do nothing."""

    def write_synced(self, offset: int, buffers: object) -> object:
        """Write without a sync."""
        return self._file.write(offset, buffers)  # type: ignore[attr-defined]  # a file of the log


@contextmanager
def _acknowledge_before_sync() -> Iterator[None]:
    original = LogFiles.with_room

    async def with_room(self: LogFiles, length: int) -> WritableFile:
        file = await original(self, length)
        found: object = file.file
        if not isinstance(found, _Unsynced):
            file.file = cast(DiskFile, _Unsynced(found))
        return file

    with patched(LogFiles, "with_room", with_room):
        yield


def _skip_log_checksums() -> AbstractContextManager[None]:
    return patched(log_recovery, "frame_matches", lambda header, payload: True)


@contextmanager
def _ignore_fence() -> Iterator[None]:
    def ignore(self: LogDirectory) -> None:
        """Skip the check."""

    with patched(LogDirectory, "check_owned", ignore), patched(LogDirectory, "check_unclaimed", ignore):
        yield


def _claim_without_a_mark() -> AbstractContextManager[None]:
    return patched(log_records, "_mark_replaced", lambda disk, directory: None)


@contextmanager
def _answer_without_a_lease() -> Iterator[None]:
    async def keep(self: OwnershipLease) -> None:
        """Skip the checks."""

    with patched(OwnershipLease, "_check", lambda self: None), patched(OwnershipLease, "keep", keep):
        yield


@contextmanager
def _do_not_wait_for_the_predecessor() -> Iterator[None]:
    async def settle_at_once(self: OwnershipLease, opened_s: float, drift_percent: int) -> None:
        if self._log.may_predecessor_answer:
            await self._log.settle()

    with patched(OwnershipLease, "wait_out_predecessor", settle_at_once):
        yield


def _use_no_reserve() -> AbstractContextManager[None]:
    return patched(LogDirectory, "take_reserve", lambda self, spare_name: None)


def _truncate_log_too_far() -> AbstractContextManager[None]:
    return patched(ContainerStorage, "first_unflushed", lambda self, segment: 1 << 62)


@contextmanager
def _forget_last_frame() -> Iterator[None]:
    original = LocalLog.frame_runs

    async def frame_runs(self: LocalLog) -> object:
        held = None
        async for run in original(self):
            if held is not None:
                yield held
            held = run
        if held is not None and len(held.data) > 1:
            yield LogFrameRun(held.addresses[:-1], held.data[:-1])

    with patched(LocalLog, "frame_runs", frame_runs):
        yield


# Containers.


@contextmanager
def _acknowledge_when_accepted() -> Iterator[None]:
    original = OperationPipeline.add

    def add(self: OperationPipeline, header: bytes, data: Buffer | None, on_done: OnDone) -> None:
        original(self, header, data, lambda error: None)
        self._loop.call_soon(on_done, None)

    with patched(OperationPipeline, "add", add):
        yield


@contextmanager
def _answer_setup_with_accepted() -> Iterator[None]:
    original = AppendProcessor.set_up

    def set_up(self: AppendProcessor, command: SetupAppend) -> None:
        def at_once(pipeline: OperationPipeline, on_done: OnDone) -> None:
            on_done(None)

        with patched(OperationPipeline, "when_durable", at_once):
            original(self, command)

    with patched(AppendProcessor, "set_up", set_up):
        yield


@contextmanager
def _serve_what_is_not_durable() -> Iterator[None]:
    original = SegmentReader.read_cached

    def read_cached(self: SegmentReader, segment: Segment, offset: int, length: int) -> SegmentData | None:
        durable_length, segment.durable_length = segment.durable_length, segment.length
        try:
            return original(self, segment, offset, length)
        finally:
            segment.durable_length = durable_length

    with patched(SegmentReader, "read_cached", read_cached):
        yield


@contextmanager
def _remove_event_number_check() -> Iterator[None]:
    original = OperationAcceptor.append

    def append(
        self: OperationAcceptor,
        segment: Segment,
        request: AppendRequest,
        on_done: OnDone,
        *,
        stored_event_number: int = NO_VALUE,
    ) -> int:
        stored = segment.attributes.get(request.writer_id, NO_VALUE)
        return original(self, segment, request, on_done, stored_event_number=stored)

    with patched(OperationAcceptor, "append", append):
        yield


@contextmanager
def _evict_what_storage_lacks() -> Iterator[None]:
    def may_go(self: _Block[Segment]) -> bool:
        return not self.is_open

    with patched(_Block, "may_go", may_go):
        yield


@contextmanager
def _count_as_stored_too_early() -> Iterator[None]:
    original = SegmentFlusher._write

    async def write(self: SegmentFlusher, segment: Segment, stop: int) -> None:
        start = segment.storage_length
        length = min(stop - start, self._settings.flush_write_bytes_max)
        found = segment.index.arrived(start, length)
        if found is None:
            await original(self, segment, stop)
            return
        segment.storage_length = start + found.length
        segment.index.evict(segment.index.cached_bytes)
        await self._storage.write(segment, start, found)

    with patched(SegmentFlusher, "_write", write):
        yield


def _skip_table_conditions() -> AbstractContextManager[None]:
    def check_nothing(self: TableIndex, updates: Sequence[TableUpdate | TableRemoval], loaded: Loaded) -> None:
        """Accept any version."""

    return patched(TableIndex, "_check_conditions", check_nothing)


def _ignore_truncation() -> AbstractContextManager[None]:
    def truncate_all(self: OperationAcceptor, offsets: Sequence[tuple[Segment, int]]) -> None:
        """Drop the truncations."""

    return patched(OperationAcceptor, "truncate_all", truncate_all)


# Tier 2.


def _skip_chunk_checksums() -> AbstractContextManager[None]:
    def verify_nothing(chunk: str, start: int, data: bytes, checksums: Sequence[int], *, block_length: int) -> None:
        """Accept any bytes."""

    return patched(segment_read, "verify_blocks", verify_nothing)


@contextmanager
def _use_storage_that_is_not_there() -> Iterator[None]:
    def check_nothing(self: GuardedChunkStorage, found: bytes | None) -> None:
        """Accept any location."""

    def demand_nothing(self: ChunkFiles, name: str) -> None:
        """Create a chunk in whatever directory is there."""

    with (
        patched(GuardedChunkStorage, "_check_identity", check_nothing),
        patched(ChunkFiles, "_demand_identity", demand_nothing),
    ):
        yield


# Client and controller.


@contextmanager
def _renumber_on_resend() -> Iterator[None]:
    original = AppendWindow.reconnect

    def reconnect(self: AppendWindow, last_event_number: int) -> list[Block]:
        stored = original(self, last_event_number)
        if last_event_number >= 0:
            for block in [*stored, *self.ready]:
                block.last_number = 0
        # Resend stored blocks as if they were new.
        self.ready.extendleft(reversed(stored))
        return []

    with patched(AppendWindow, "reconnect", reconnect):
        yield


@contextmanager
def _read_from_start() -> Iterator[None]:
    original = SegmentEvents.__init__

    def made(
        self: SegmentEvents, segments: Segments, segment: str, held: HeldSegment, settings: ClientSettings,
        on_ready: Callable[[SegmentEvents], None], read_ahead: ReadAhead, redelivery: Redelivery | None = None,
    ) -> None:  # fmt: skip
        original(self, segments, segment, HeldSegment(0, held.turn), settings, on_ready, read_ahead, redelivery)

    with patched(SegmentEvents, "__init__", made):
        yield


def _repeat_changes() -> AbstractContextManager[None]:
    async def change(self: WireSegments, segment: str, make: Callable[[int], WireCommand]) -> WireCommand:
        return await self._ask(segment, make)

    return patched(WireSegments, "_change", change)


async def _take_position(tables: StreamTables, transaction: str) -> int:
    position, _ = await tables.take_commit_positions([transaction], 1)
    return position


def _commit_instead_of_abort() -> AbstractContextManager[None]:
    async def decide(
        context: WorkflowContext,
        tables: StreamTables,
        transaction: TransactionId,
        *,
        at_version: int | None = None,
        spares_prepared: bool = False,
        reason: AbortReason = AbortReason.REQUESTED,
    ) -> TransactionStatus:
        return await decide_commit(context, tables, transaction, _take_position, writer_id="", timestamp=0)

    return patched(transactions_service, "decide_abort", decide)


_LINKS = ("Partition", "Reset", "SlowLink")
_SLOW_WORK = 0.3

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "acknowledge before sync", "acknowledged means synced",
        short_profile("crashes"), _acknowledge_before_sync,
    ),
    Mutation(
        "acknowledge when accepted", "acknowledged means synced",
        short_profile("crashes", "bytes"), _acknowledge_when_accepted,
    ),
    Mutation(
        "answer set-up with what is accepted", "a writer that reconnects loses no event",
        replace(
            short_profile(
                "resets", "writers", kinds=("Reset", "Reset", "CrashAtDiskCall", "Crash"), gap_s=0.3
            ),
            work_stall_rate=_SLOW_WORK, refused_rate=0.0,
        ),
        _answer_setup_with_accepted,
    ),
    Mutation(
        "serve what is not durable", "what was read stays",
        replace(
            short_profile("stalled reads", "bytes", "readers", kinds=("CrashAtDiskCall", "Crash"), gap_s=0.3),
            work_stall_rate=_SLOW_WORK, refused_rate=0.0,
        ),
        _serve_what_is_not_durable,
    ),
    Mutation(
        "skip the checksums of the log", "corrupt data are never served",
        replace(short_profile("log bit flips", "bytes", "tables"), bit_flip_count=40, bit_flip_place="/log-"),
        _skip_log_checksums,
    ),
    Mutation(
        "skip the checksums of chunks", "corrupt data are never served",
        replace(short_profile("chunk bit flips", "bytes", "tables"), bit_flip_count=6, bit_flip_place="/tier2/sim/"),
        _skip_chunk_checksums,
    ),
    Mutation(
        "use long-term storage that is not there", "nothing is created where the storage's identity is missing",
        short_profile("missing storage", "bytes", "readers", kinds=("StorageMissing", "Crash")),
        _use_storage_that_is_not_there,
    ),
    Mutation(
        "ignore the fence", "an old owner can do no harm",
        replace(short_profile("takeovers", "bytes"), takeover_gap_s=1.0), _ignore_fence,
    ),
    Mutation(
        "claim a log without a mark for its owner", "an old owner can do no harm",
        replace(short_profile("takeovers", "bytes"), takeover_gap_s=1.0), _claim_without_a_mark,
    ),
    Mutation(
        "answer without a lease", "who was shut out answers no longer than a lease",
        replace(short_profile("quiet takeovers"), takeover_gap_s=1.0), _answer_without_a_lease,
    ),
    Mutation(
        "do not wait for the predecessor", "what a successor acknowledges is missed by no read after that",
        replace(short_profile("quiet takeovers"), takeover_gap_s=1.0), _do_not_wait_for_the_predecessor,
    ),
    Mutation(
        "use no reserve", "a full disk is not terminal",
        replace(
            short_profile("full disk", "bytes", "lives", kinds=("DiskFull", "Crash"), gap_s=1.0), reserve_file_count=24
        ),
        _use_no_reserve,
    ),
    Mutation(
        "truncate the log too far", "the log is truncated only before stored data",
        short_profile("crashes"), _truncate_log_too_far,
    ),
    Mutation(
        "forget the last frame of the log", "an acknowledged operation survives any crash",
        short_profile("crashes"), _forget_last_frame,
    ),
    Mutation(
        "remove the event number check", "a writer that reconnects duplicates no event",
        # Frequent connection resets under many events, so that old blocks arrive after the resent ones.
        replace(
            short_profile("links", "writers", kinds=("Reset", "SlowLink"), gap_s=0.3), work_stall_rate=_SLOW_WORK,
            pace=8.0,
        ),
        _remove_event_number_check,
    ),
    Mutation(
        "send with new event numbers", "a writer that reconnects duplicates no event",
        short_profile("links", kinds=_LINKS, gap_s=1.0), _renumber_on_resend,
    ),
    Mutation(
        "evict what storage lacks", "bytes not in storage stay in memory",
        replace(short_profile("small cache", "bytes"), cache_bytes_min=8 * _KIB), _evict_what_storage_lacks,
    ),
    Mutation(
        "count as stored before the write", "bytes not in storage stay in memory",
        short_profile("crashes", "readers", "bytes"), _count_as_stored_too_early,
    ),
    Mutation(
        "skip the conditions of tables", "conditional updates are linearisable",
        short_profile("tables", "tables"), _skip_table_conditions,
    ),
    Mutation(
        "repeat changes whose reply was lost", "a lost reply is neither success nor failure",
        short_profile("table links", "tables", "bytes", kinds=_LINKS, gap_s=1.0), _repeat_changes,
    ),
    Mutation(
        "forget truncations", "truncated bytes are gone",
        short_profile("truncations", "bytes", "lives"), _ignore_truncation,
    ),
    Mutation(
        "read a segment from its start", "a group reads each event once",
        short_profile("hand-overs", "readers"), _read_from_start,
    ),
    Mutation(
        "commit instead of abort", "an aborted transaction is never seen",
        short_profile("transactions", "transactions"), _commit_instead_of_abort,
    ),
    *MEMORY_MUTATIONS,
    *CONTROLLER_MUTATIONS,
    *PEER_MUTATIONS,
    *SCALING_MUTATIONS,
    *ORDER_MUTATIONS,
    *STUCK_MUTATIONS,
    *SUBSCRIBER_MUTATIONS,
    *SHORTAGE_MUTATIONS,
    *ISOLATION_MUTATIONS,
    *JOIN_MUTATIONS,
    *USER_MUTATIONS,
    *WRITE_AHEAD_MUTATIONS,
    *READER_MUTATIONS,
    *TABLE_MUTATIONS,
    *GROUP_MUTATIONS,
    *PROMISE_MUTATIONS,
    *PREPARED_MUTATIONS,
    *SINK_MUTATIONS,
    *REMOTE_MUTATIONS,
    *RESCUE_MUTATIONS,
    *HALF_OPEN_MUTATIONS,
    *WRONG_LOG_MUTATIONS,
    *OUTAGE_MUTATIONS,
    *LOST_LOCK_MUTATIONS,
    *OFFLINE_MUTATIONS,
    *OBJECT_LOG_MUTATIONS,
    *STALL_MUTATIONS,
    *DAY_MUTATIONS,
    *MEMBER_MUTATIONS,
    *VERSION_MUTATIONS,
    *SECURITY_MUTATIONS,
)  # fmt: skip
"""All planted bugs."""


def seeds_of(mutation: Mutation, count: int) -> Iterator[int]:
    """Yield the seeds to try for a mutation: always the same."""
    rng = random.Random(mutation.name)
    for _ in range(count):
        yield rng.randrange(1_000_000)

"""Planted bugs that show only when a resource of a store is full, exhausted or stalled. See `catalog`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.model.errors import ChunkError, NoSuchChunkError, StorageError, StorageFullError, StorageUnavailableError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile
from penstock.runtime.work import WorkPool
from penstock.segmentstore.container.log.pipeline import OnDone, OperationPipeline
from penstock.segmentstore.tier2.chunk_files import ChunkFiles
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.layout_leases import LayoutLeases
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import ChunkRecord
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile

_PATIENCE_S = 0.5


@contextmanager
def _count_what_was_cut_short() -> Iterator[None]:
    original = ChunkFiles.append

    def append(self: ChunkFiles, name: str, file: DiskFile, offset: int, data: Sequence[Buffer]) -> int:
        try:
            return original(self, name, file, offset, data)
        except StorageFullError:
            return sum(map(len, data))

    with patched(ChunkFiles, "append", append):
        yield


@contextmanager
def _take_closed_doors_for_empty_rooms() -> Iterator[None]:
    original = DirectoryChunkStorage._acquire

    async def acquire(self: DirectoryChunkStorage, name: str, pool: WorkPool) -> object:
        try:
            return await original(self, name, pool)
        except (ChunkError, StorageError, OSError) as error:
            raise NoSuchChunkError(name) from error

    with patched(DirectoryChunkStorage, "_acquire", acquire), _believe_at_once():
        yield


def _believe_at_once() -> AbstractContextManager[None]:
    # A second call would hide the other bug, since few directories stay unavailable for two calls.
    async def guarded(self: GuardedChunkStorage, call: Callable[[], Awaitable[object]]) -> object:
        if self._problem is not None:
            raise self._error()
        try:
            return await call()
        except NoSuchChunkError:
            await self.check()
            raise
        except StorageUnavailableError as error:
            self._set_unavailable(error)
            raise

    return patched(GuardedChunkStorage, "_guarded", guarded)


def _leave_orphans_to_themselves() -> AbstractContextManager[None]:
    async def sweep(self: OrphanChunks, epoch: int, unrecorded: object) -> int:
        return 0

    return patched(OrphanChunks, "sweep", sweep)


def _sweep_before_others_doors() -> AbstractContextManager[None]:
    def is_of_earlier(self: OrphanChunks, name: str, epoch: int) -> bool:
        origin = chunk_origin(name)
        return origin is not None and origin.epoch < epoch

    return patched(OrphanChunks, "_is_of_earlier", is_of_earlier)


@contextmanager
def _queue_what_a_truncation_ends_in() -> Iterator[None]:
    original = GarbageQueue.stage

    def stage(self: GarbageQueue, transaction: MetadataTransaction, names: Sequence[str]) -> None:
        # The chunk was read by the truncation and remains part of the segment.
        others = [
            known.record.name
            for key, known in transaction._read.items()
            if isinstance(known.record, ChunkRecord) and known.record.is_active and key not in transaction._staged
        ]
        original(self, transaction, [*names, *others] if names else names)

    with patched(GarbageQueue, "stage", stage):
        yield


def _forget_what_was_unlinked() -> AbstractContextManager[None]:
    def stage(self: GarbageQueue, transaction: MetadataTransaction, names: Sequence[str]) -> None:
        pass

    return patched(GarbageQueue, "stage", stage)


def _collect_what_is_leased() -> AbstractContextManager[None]:
    return patched(LayoutLeases, "oldest", None)


def _forget_leases_of_earlier_owners() -> AbstractContextManager[None]:
    async def load(self: LayoutLeases) -> None:
        self._is_loaded = True

    return patched(LayoutLeases, "load", load)


@contextmanager
def _acknowledge_after_a_while() -> Iterator[None]:
    original = OperationPipeline.add

    def add(self: OperationPipeline, header: bytes, data: Buffer | None, on_done: OnDone) -> None:
        is_told = False

        def once(error: BaseException | None) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                on_done(error)

        original(self, header, data, once)
        self._loop.call_later(_PATIENCE_S, once, None)

    with patched(OperationPipeline, "add", add):
        yield


_stalls = short_profile("stalls and no descriptors", "bytes", "crowd", kinds=("DiskStall", "NoDescriptors"), gap_s=1.0)
#: Long enough for a call to time out, and over by the time the directory is checked.
_SHORT_STALLS = replace(_stalls, plan=replace(_stalls.plan, lasts_s_max=6.0))

_TRUNCATIONS = short_profile("crashes of truncations", "bytes", "trimmed", "lives", gap_s=1.0)
_LEASES = replace(_TRUNCATIONS, name="crashes while layouts are read", layout_gap_s=0.3)

SHORTAGE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "count what a full disk cut short", "what counts as stored is stored",
        short_profile("full disks", "bytes", kinds=("DiskFull", "Crash")), _count_what_was_cut_short,
    ),
    Mutation(
        "take what cannot be opened for missing", "not found means that it is not there",
        _SHORT_STALLS, _take_closed_doors_for_empty_rooms,
    ),
    Mutation(
        "leave what a crash left of chunks", "room that nothing uses is given back",
        short_profile("crashes of flushes", "bytes", kinds=("Crash", "CrashAtDiskCall"), gap_s=1.0),
        _leave_orphans_to_themselves,
    ),
    Mutation(
        "sweep chunks of other containers", "only what no record leads to is deleted",
        short_profile("crashes of flushes", "bytes", kinds=("Crash", "CrashAtDiskCall"), gap_s=1.0),
        _sweep_before_others_doors,
    ),
    Mutation(
        "queue the chunk that a truncation ends in", "no record leads to a chunk that is deleted",
        _TRUNCATIONS, _queue_what_a_truncation_ends_in,
    ),
    Mutation(
        "forget chunks that were unlinked", "what is unlinked is deleted in the end",
        _TRUNCATIONS, _forget_what_was_unlinked,
    ),
    Mutation(
        "delete chunks that are leased", "a lease holds deletions back",
        _LEASES, _collect_what_is_leased,
    ),
    Mutation(
        "forget the leases of earlier owners", "a lease defers deletions, whichever store owns the container",
        _LEASES, _forget_leases_of_earlier_owners,
    ),
    Mutation(
        "acknowledge what the log does not answer in time", "acknowledged means synced",
        short_profile("logs that stand still", "bytes", kinds=("DiskStall", "Crash"), gap_s=1.0),
        _acknowledge_after_a_while,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""

"""Planted bugs that only show when something around a store is full or stands still. See `catalog`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.model.errors import StorageFullError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile
from penstock.segmentstore.container.log.pipeline import OnDone, OperationPipeline
from penstock.segmentstore.tier2.chunk_files import ChunkFiles
from penstock.testing.mutations.mutation import Mutation, patched, short_profile

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


SHORTAGE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "count what a full disk cut short", "what counts as stored is stored",
        short_profile("full disks", "bytes", kinds=("DiskFull", "Crash")), _count_what_was_cut_short,
    ),
    Mutation(
        "acknowledge what the log does not answer in time", "acknowledged means synced",
        short_profile("logs that stand still", "bytes", kinds=("DiskStall", "Crash"), gap_s=1.0),
        _acknowledge_after_a_while,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""

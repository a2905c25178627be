"""Planted bugs that show only when a store is rebuilt from its long-term storage alone. See `catalog`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

from penstock.model.errors import PenstockError, StorageError
from penstock.segmentstore.container.log.image import FrameRecorder, ImageName
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.storage.images import ContainerImages
from penstock.segmentstore.tier2.chunk_deletion import delete_chunks
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile


@contextmanager
def _delete_at_once() -> Iterator[None]:
    async def delete(self: DeferredDeletions, name: str) -> None:
        await self.inner.delete(name)

    async def delete_many(self: DeferredDeletions, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        return await delete_chunks(self.inner, names, limit=limit)

    with patched(DeferredDeletions, "delete", delete), patched(DeferredDeletions, "delete_many", delete_many):
        yield


def _leave_out_what_waits() -> AbstractContextManager[None]:
    async def rewrite_before(self: LogRewriter, before: int) -> bool:
        return False

    return patched(LogRewriter, "rewrite_before", rewrite_before)


def _cut_one_frame_too_far() -> AbstractContextManager[None]:
    original = FrameRecorder.frames

    def frames(self: FrameRecorder, durable_number: int) -> tuple[list[bytes], list[int]]:
        found, checksums = original(self, durable_number)
        return found[:-1] or found, checksums[:-1] or checksums

    return patched(FrameRecorder, "frames", frames)


@contextmanager
def _remove_earlier_ones_first() -> Iterator[None]:
    original = ContainerImages._earlier

    async def earlier(self: ContainerImages, name: ImageName) -> list[ImageName]:
        await self._remove(await original(self, name))
        return []

    with patched(ContainerImages, "_earlier", earlier):
        yield


@contextmanager
def _begin_again_with_each_start() -> Iterator[None]:
    original = ContainerImages.__init__

    def begin(self: ContainerImages, **parts: object) -> None:
        original(self, **parts)  # type: ignore[arg-type]  # unchanged
        self._epoch = self._capture.epoch = 1

    with patched(ContainerImages, "__init__", begin):
        yield


@contextmanager
def _answer_without_an_image() -> Iterator[None]:
    original = ContainerImages.write

    async def write(self: ContainerImages) -> None:
        async def later() -> None:
            with suppress(PenstockError, OSError):
                await original(self)

        self._later = asyncio.ensure_future(later())  # type: ignore[attr-defined]  # prevents its garbage collection

    with patched(ContainerImages, "write", write):
        yield


_QUIET = replace(
    short_profile("lost machines", "bytes", "trimmed", "lives", "tables", gap_s=4.0),
    rescue_gap_s=0.5, refused_rate=0.0, garbage_delay_s=0.05,
)  # fmt: skip
_OBJECTS = replace(_QUIET, name="lost machines over a bucket", storage="bucket")

RESCUE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "delete chunks that the last image leads to", "no chunk goes before an image without it is durable",
        _QUIET, _delete_at_once,
    ),
    Mutation(
        "leave out of an image what waits for storage", "what a flush has acknowledged can be recovered",
        _QUIET, _leave_out_what_waits,
    ),
    Mutation(
        "cut an image one frame too far", "what a flush has acknowledged can be recovered",
        _QUIET, _cut_one_frame_too_far,
    ),
    Mutation(
        "remove earlier images first", "there is always an image", _OBJECTS, _remove_earlier_ones_first,
    ),
    Mutation(
        "begin images again with each start", "later images come first", _QUIET, _begin_again_with_each_start,
    ),
    Mutation(
        "answer a flush without its image", "what a flush has acknowledged can be recovered",
        _QUIET, _answer_without_an_image,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""

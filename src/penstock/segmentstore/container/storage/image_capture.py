"""`ImageCapture`: captures a container's log from a truncatable checkpoint on, while the container runs.

Purpose and rationale: docs/recovery.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.model.errors import StorageNotRespondingError
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.checkpoints import Checkpoints
from penstock.segmentstore.container.log.image import ContainerImage, FrameRecorder, ImageName, ImageTooLongError
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.log.pipeline import OperationPipeline, completer
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ImageSettings

#: Interval between checks whether all data that pins the log was carried: another task may be doing it.
_CARRYING_POLL_S = 0.01
#: On a full disk of the log, unflushed bytes are restated up to this part of the free space.
_ROOM_PARTS = 8


@dataclass(frozen=True, slots=True)
class CapturedLog:
    """Frames of a log, their checksums, the last record's number, and the result of `waiting` at that moment."""

    frames: Sequence[bytes]
    checksums: Sequence[int]
    sequence_number: int
    waiting: Sequence[str]


class ImageCapture:
    """Captures for one incarnation of a container; concurrent captures run one after another."""

    def __init__(
        self,
        *,
        container_count: int,
        epoch: int,
        state: ContainerState,
        pipeline: OperationPipeline,
        checkpoints: Checkpoints,
        log_rewriter: LogRewriter,
        space: SpaceWatch,
        settings: ImageSettings,
        runtime: Runtime,
    ) -> None:
        self.epoch: int = epoch
        self._container_count = container_count
        self._state = state
        self._pipeline = pipeline
        self._checkpoints = checkpoints
        self._carrier = log_rewriter
        self._space = space
        self._settings = settings
        self._runtime = runtime
        self._lock = asyncio.Lock()

    @property
    def waits_for_flush(self) -> bool:
        """Whether so much is unflushed that an image must wait for long-term storage."""
        return self._state.backlog.byte_count > self._unflushed_bytes_max

    @property
    def _unflushed_bytes_max(self) -> int:
        bytes_max = self._settings.bytes_max // 2
        if self._space.is_log_low:
            # They are restated in the log, which must not use up its reserve for them.
            return min(bytes_max, self._space.log_free_bytes // _ROOM_PARTS)
        return bytes_max

    async def image(self) -> ContainerImage:
        """Return an image of everything durable at the call, with number 0: it is not written to long-term storage.

        Raises `ImageTooLongError`, `StorageNotRespondingError` after `timeout_s`, `StorageError`.
        """
        try:
            async with asyncio.timeout(self._settings.timeout_s) as deadline:
                return self.image_of(await self.take(), 0)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise StorageNotRespondingError(
                f"an image of container {self._state.metadata.container_id} was not taken within "
                f"{self._settings.timeout_s:g} s"
            ) from error

    def image_of(self, captured: CapturedLog, number: int) -> ContainerImage:
        """Return the captured log as the image with this number in this epoch."""
        name = ImageName(self._state.metadata.container_id, self.epoch, number)
        return ContainerImage(
            name, self._container_count, self._runtime.wall_clock_ms(), captured.frames, captured.checksums
        )

    async def take(self, waiting: Callable[[], Sequence[str]] = tuple) -> CapturedLog:
        """Return the log from a truncatable checkpoint on, and the result of `waiting` at the same moment.

        Raises `ImageTooLongError`, `StorageError`.
        """
        async with self._lock:
            if self.waits_for_flush:
                raise ImageTooLongError(
                    f"{self._state.backlog.byte_count} bytes wait for long-term storage, the limit is "
                    f"{self._unflushed_bytes_max}"
                )
            recorder = self._pipeline.recorder = FrameRecorder(self._settings.bytes_max)
            try:
                durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                mark = self._checkpoints.write(completer(durable))
                recorder.begin(mark.frame_count)
                await durable
                while True:
                    if not await self._carrier.rewrite_before(mark.sequence_number):
                        break
                    await asyncio.sleep(_CARRYING_POLL_S)
                await self._pipeline.barrier()
                # In one turn of the loop: no record up to here refers to chunks whose deletion is pending now.
                number = self._pipeline.durable_sequence_number
                return CapturedLog(*recorder.frames(number), number, waiting())
            finally:
                self._pipeline.recorder = None

"""`Carrier`: keeps a container's log from growing without end because of segments that cannot be flushed.

What pins the log is stated again behind a durable checkpoint, so that the log can be cut there. See docs/log-length.md,
which has the failure cases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.checksum import crc32c_at_once
from penstock.model.errors import CorruptionError, InconsistentStateError
from penstock.segmentstore.container.log.checkpoints import Checkpoints, Spawn
from penstock.segmentstore.container.log.operations import CarriedBytes, CarriedMerge, RareOperation, Truncate
from penstock.segmentstore.container.log.pipeline import OperationPipeline, completer
from penstock.segmentstore.container.pending import (
    PendingAppend,
    PendingMerge,
    PendingStorage,
    PendingTruncate,
)
from penstock.segmentstore.container.reads.read_index import Arrived
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.settings import ContainerSettings

logger = logging.getLogger(__name__)

#: Segments named in one warning.
_NAMED_MAX = 5


class Carrier:
    """Watches the length of one container's log and carries forward what keeps it. At most one job at a time.

    Attributes:
        carried_bytes: bytes stated again so far, ...
        carried_count: ... in so many records, those that are not about bytes included.
    """

    def __init__(
        self,
        state: ContainerState,
        pipeline: OperationPipeline,
        checkpoints: Checkpoints,
        *,
        settings: ContainerSettings,
        spawn: Spawn,
    ) -> None:
        self.carried_bytes = 0
        self.carried_count = 0
        self._state = state
        self._pipeline = pipeline
        self._checkpoints = checkpoints
        self._settings = settings
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._is_carrying = False
        self._warned_at_s = float("-inf")

    @property
    def is_alarmed(self) -> bool:
        """Whether the log is so long that somebody should look at what keeps it."""
        settings = self._settings
        return self._checkpoints.log_bytes > settings.log_bytes_max * settings.log_alarm_percent // 100

    def look(self) -> None:
        """Warn if the log is long, and shorten it if it is too long. Cheap when it is neither."""
        if not self.is_alarmed:
            return
        now_s = self._loop.time()
        if now_s - self._warned_at_s >= self._settings.log_alarm_interval_s:
            self._warned_at_s = now_s
            self._warn()
        log_bytes = self._checkpoints.log_bytes
        if self._is_carrying or log_bytes <= self._settings.log_bytes_max:
            return
        mark = self._checkpoints.newest
        behind_bytes = log_bytes if mark is None else self._pipeline.logged_bytes - mark.logged_bytes
        if mark is None or behind_bytes > log_bytes // 4:
            # Cut there, the log would still be long: first a checkpoint that is worth it.
            self._checkpoints.write_now()
            return
        pinned = self._pinned(mark.sequence_number)
        # What is cut off is at least twice what is copied: so the log gets shorter by as much as the copies cost, and
        # something else than copies has to be written before it can be as long again.
        if pinned and 2 * sum(map(_appended_bytes, pinned)) <= log_bytes - behind_bytes:
            self._is_carrying = True
            self._spawn(self._carry_all(pinned, mark.sequence_number))

    def _pinned(self, before: int) -> list[Segment]:
        found: list[Segment] = []
        for segment in self._state.unflushed.values():
            segment.pending.flushed(segment.storage_length)
            if segment.pending.first_number() < before:
                found.append(segment)
        return found

    def _warn(self) -> None:
        mark = self._checkpoints.newest
        pinned = self._pinned(mark.sequence_number) if mark is not None else []
        pinned.sort(key=_appended_bytes, reverse=True)
        names = ", ".join(segment.name for segment in pinned[:_NAMED_MAX])
        logger.warning(
            "container %d: its log has %d bytes, of at most %d; %d bytes of %d segments wait for long-term storage and "
            "keep it: %s%s",
            self._state.metadata.container_id,
            self._checkpoints.log_bytes,
            self._settings.log_bytes_max,
            sum(map(_appended_bytes, pinned)),
            len(pinned),
            names or "none before the newest checkpoint",
            ", ..." if len(pinned) > _NAMED_MAX else "",
        )

    async def _carry_all(self, segments: list[Segment], before: int) -> None:
        try:
            for segment in segments:
                await self._carry(segment, before)
            self._checkpoints.truncate_log()
        finally:
            self._is_carrying = False

    async def _carry(self, segment: Segment, before: int) -> None:
        """State again what of a segment has a sequence number below `before`, a batch at a time."""
        while True:
            batch: list[Callable[[], None]] = []
            byte_count = 0
            with self._pipeline.accepting():
                for piece in list(segment.pending.before(before)):
                    # One piece may need several records; the next batch goes on with what is left of it.
                    byte_count += self._carry_piece(segment, piece, batch)
                    if byte_count >= self._settings.carry_record_bytes_max or len(batch) >= 256:
                        break
            if not batch:
                return
            durable: asyncio.Future[None] = self._loop.create_future()
            self._pipeline.when_durable(completer(durable))
            await durable
            if segment.is_deleted or segment.is_inactive:
                return
            for settle in batch:
                settle()
            self.carried_count += len(batch)
            self.carried_bytes += byte_count

    def _carry_piece(self, segment: Segment, piece: PendingStorage[Segment], batch: list[Callable[[], None]]) -> int:
        """Log a piece, or the beginning of it, again; put what is to be done when that is durable into `batch`."""
        match piece:
            case PendingAppend():
                start = max(piece.start, segment.storage_length)
                length = min(piece.end - start, self._settings.carry_record_bytes_max)
                if length <= 0:
                    segment.pending.remove(piece)  # Behind something that still waits, but storage has it.
                    return 0
                found = segment.index.arrived(start, length)
                if found is None:
                    raise CorruptionError(
                        segment.name, start, "bytes that long-term storage does not have left the memory"
                    )
                end = start + found.length
                number = self._log(CarriedBytes(segment.id, start, _as_arrived(segment, start, found)))
                batch.append(lambda: self._settle(segment, number, start, end))
                return found.length
            case PendingTruncate():
                number = self._log(Truncate(segment.id, piece.offset, segment.last_modified_ms))
                batch.append(lambda: _renumber(segment, piece, number))
            case PendingMerge():
                number = self._log(CarriedMerge(segment.id, piece.source.id, piece.start))
                batch.append(lambda: _renumber(segment, piece, number))
        return 0

    def _log(self, operation: RareOperation) -> int:
        before = self._pipeline.logged_bytes
        number = self._pipeline.add_operation(operation, lambda _: None)
        self._checkpoints.disregard(self._pipeline.logged_bytes - before)
        return number

    def _settle(self, segment: Segment, number: int, start: int, end: int) -> None:
        start = max(start, segment.storage_length)
        if start < end and segment.pending:
            segment.pending.restate(number, start, end, self._loop.time(), self._settings.flush_bytes)


def _as_arrived(segment: Segment, start: int, found: Arrived) -> bytes:
    """Return the bytes in one piece. Raises `InconsistentStateError` when they are not what arrived."""
    data = b"".join(found.data)
    for whole, arrived in found.wholes:
        checksum = crc32c_at_once(whole, 0)
        if checksum != arrived:
            raise InconsistentStateError(
                segment.name,
                start,
                f"bytes that were to be stated again have checksum {checksum:08x}, they arrived with {arrived:08x}: "
                "the memory of this process is not sound",
            )
    return data


def _renumber(segment: Segment, piece: PendingTruncate | PendingMerge[Segment], number: int) -> None:
    piece.sequence_number = number
    segment.pending.is_carried = True


def _appended_bytes(segment: Segment) -> int:
    return segment.pending.byte_count

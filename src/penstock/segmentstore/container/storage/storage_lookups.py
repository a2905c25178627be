"""`StorageLookups`: finds out at a start how much of each segment long-term storage has.

The log's first checkpoint records the stored lengths at that time, and the log was truncated there because storage had
everything before it. Bytes that a start finds neither in memory nor before a segment's start offset are therefore
stored. That suffices to serve. How much of the log's remaining data is also stored, and which merges storage has done,
matters only for changes of storage. A start looks this up because it frees memory and reveals damage early, but it does
not wait for storage that is slow, hanging or unavailable. The lookups continue while the container serves, and nothing
is flushed before they are complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    InconsistentStateError,
    LogFencedError,
    PenstockError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.segmentstore.container.pending import PendingMerge
from penstock.segmentstore.container.reads.read_index import Missing
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.tier2.chunked_storage import StoredSegment
from penstock.segmentstore.tier2.turns import run_bounded

logger: logging.Logger = logging.getLogger(__name__)

#: Segments that need no lookup and are resolved before yielding to the event loop.
_RESOLVE_SLICE = 512
#: Errors that do not mean unresponsive storage: the container must end.
_FATAL = (ContainerOfflineError, UnreadableDataError, InconsistentStateError, LogFencedError, StorageNotPrimaryError)

#: A target, the segment merged into it, and the offset.
_Merge = tuple[Segment, Segment, int]


class StorageLookups:
    """See the module. For one container; `info` returns the stored state of a segment, None if there is none."""

    def __init__(
        self,
        container_id: int,
        state: ContainerState,
        *,
        info: Callable[[Segment], Awaitable[StoredSegment | None]],
        settings: ContainerSettings,
        note_damage: Callable[[UnreadableDataError], None],
    ) -> None:
        self._container_id = container_id
        self._state = state
        self._info = info
        self._settings = settings
        self._note_damage = note_damage
        self._segments: Sequence[Segment] = ()
        self._merges: Sequence[_Merge] = ()
        #: Stored lengths known before `_trust_log` raised them, by segment.
        self._believed: dict[Segment, int] = {}
        self._is_known = asyncio.Event()

    @property
    def have_ended(self) -> bool:
        """Whether all lookups are complete."""
        return self._is_known.is_set()

    async def ended(self) -> None:
        """Return when all lookups are complete: nothing may be changed in storage before that."""
        await self._is_known.wait()

    async def begin(self, segments: Sequence[Segment], progress: Callable[[], None]) -> None:
        """Look up all segments for at most `recovery_lookup_s`; `finish` completes it. Calls `progress` after each.

        A segment with bytes in neither storage nor log is marked as damaged; the other segments serve. Raises
        `CorruptionError` if it is a system segment, or if storage has more bytes of a segment than the log.
        """
        self._segments, self._merges = segments, self._waiting_merges()
        try:
            async with asyncio.timeout(self._settings.recovery_lookup_s):
                await self._look_up(progress)
        except _FATAL:
            raise
        except (PenstockError, OSError, TimeoutError) as error:
            logger.warning(
                "container %d serves before the state of its segments in long-term storage is known, and flushes "
                "nothing until then: %s",
                self._container_id, error if str(error) else f"no answer in {self._settings.recovery_lookup_s:g} s",
            )  # fmt: skip
            for segment in segments:
                self._trust_log(segment)
            # Sources have lost their names to the merge, so they are not in `segments`.
            for _, source, _ in self._merges:
                self._trust_log(source)
        else:
            self._end()

    async def finish(self) -> None:
        """Repeat the lookups until all are complete. Raises as `begin`."""
        while not self._is_known.is_set():
            try:
                await self._look_up(_nothing)
            except _FATAL:
                raise
            except (PenstockError, OSError) as error:
                logger.info("container %d queries long-term storage again: %s", self._container_id, error)
                await asyncio.sleep(self._settings.writer_retry_s)
            else:
                logger.warning(
                    "container %d has read the state of its segments in long-term storage, and flushes again",
                    self._container_id,
                )
                self._end()

    def _end(self) -> None:
        self._segments = self._merges = ()
        self._believed.clear()
        self._is_known.set()

    async def _look_up(self, progress: Callable[[], None]) -> None:
        """Resolve all segments, with several lookups in storage at a time; then the merges."""

        async def resolve(segment: Segment) -> None:
            await self.resolve(segment)
            progress()

        unclear: list[Segment] = []
        for number, segment in enumerate(self._segments):
            if segment.length > segment.storage_length or segment in self._believed:
                unclear.append(segment)
            else:
                await resolve(segment)  # Does not block.
            if number % _RESOLVE_SLICE == _RESOLVE_SLICE - 1:
                await asyncio.sleep(0)
        await run_bounded(resolve, unclear, self._settings.recovery_lookups_max)
        await self._resolve_merges()

    def _waiting_merges(self) -> list[_Merge]:
        """Return the merges that storage may not have done, and forget the rest."""
        metadata = self._state.metadata
        merges: list[_Merge] = []
        for source_id, (target_id, offset) in list(metadata.merges.items()):
            target, source = metadata.by_id[target_id], metadata.by_id[source_id]
            if any(isinstance(piece, PendingMerge) and piece.source is source for piece in target.pending):
                merges.append((target, source, offset))
            else:
                # From the checkpoint that the log was truncated at: storage had done it by then.
                del metadata.merges[source_id]
        return merges

    async def _resolve_merges(self) -> None:
        """Find out which merges storage has done, and direct reads of those to the target's own storage."""
        # A source may itself be the target of an earlier merge: the last merge determines the stored length of the
        # first.
        for target, source, offset in reversed(self._merges):
            if target.storage_length >= offset + source.length:
                source.storage_length = source.length
                source.index.stored(0)
            else:
                await self.resolve(source)
        for target, source, offset in self._merges:
            if target.storage_length >= offset + source.length:
                target.index.complete_merge(source)

    async def resolve(self, segment: Segment) -> None:
        """Find out the stored length of one segment. Raises as `begin`."""
        is_unclear = segment.length > segment.storage_length or segment in self._believed
        if is_unclear and not self._state.is_name_taken(segment):
            stored = await self._info(segment)
            if segment.is_deleted:
                return
            segment.storage_length = self._believed.pop(segment, segment.storage_length)
            if stored is not None:
                if stored.length > segment.length:
                    raise CorruptionError(
                        segment.name,
                        segment.length,
                        f"long-term storage has {stored.length} bytes, more than the log has recorded",
                    )
                segment.storage_length = max(segment.storage_length, stored.length)
                segment.index.stored(0)
                segment.storage_sealed = stored.is_sealed
        first = max(segment.storage_length, segment.start_offset)
        while first < segment.length and not segment.is_deleted:
            found = segment.index.lookup(first, segment.length - first)
            if isinstance(found, Missing):
                error = CorruptionError(
                    segment.name,
                    first,
                    f"neither the log nor long-term storage has bytes {first} to {found.end}",
                )
                if segment.is_system:
                    raise error
                # The other segments are not affected.
                segment.damage = error
                self._note_damage(error)
                break
            first += found.length
        segment.pending.first_unflushed(segment.storage_length)

    def _trust_log(self, segment: Segment) -> None:
        """Assume that bytes missing from the log are stored, because only stored bytes are truncated from it."""
        first = max(segment.storage_length, segment.start_offset)
        while first < segment.length:
            found = segment.index.lookup(first, segment.length - first)
            if isinstance(found, Missing):
                before, segment.storage_length = segment.storage_length, found.end
                self._believed.setdefault(segment, before)
                segment.index.stored(before)
                first = found.end
            else:
                first += found.length
        segment.pending.first_unflushed(segment.storage_length)


def _nothing() -> None:
    """Do nothing: progress is no longer reported."""

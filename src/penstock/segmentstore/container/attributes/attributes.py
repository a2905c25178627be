"""`Attributes`: attributes of segments that have too many to keep in memory, in one index per segment.

See docs/segments.md. Source: segment-store 5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from itertools import islice
from typing import Protocol

from penstock.model.errors import AttributesNotLoadedError, BadOffsetError, NoSuchSegmentError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.btree.sorted_index import SortedIndex
from penstock.segmentstore.container.log.operations import NonAppendOperation, SpillAttributes
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings

#: Bytes of a value in an attribute index: a signed integer, big endian.
VALUE_LENGTH = 8


class LogOperation(Protocol):
    """Accepts an operation and logs it, with no await in between."""

    def __call__(self, operation: NonAppendOperation, accept: Callable[[], object] = ...) -> None:
        """Call `accept` to change the accepted state, log the operation and return at once; later records follow it."""


class Attributes:
    """Loads, flushes and trims the attributes of one container's segments.

    `barrier` returns once everything accepted so far is durable. Only durable values may be written to an index;
    otherwise a writer could be told that events are stored which the log does not have.
    """

    def __init__(
        self,
        state: ContainerState,
        settings: ContainerSettings,
        *,
        open_index: Callable[[Segment], SortedIndex],
        log: LogOperation,
        barrier: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._settings = settings
        self._open_index = open_index
        self._log = log
        self._barrier = barrier

    # Reading.

    async def load(self, segment: Segment, attribute_ids: Iterable[bytes]) -> None:
        """Load the values of `attribute_ids` into memory. Values written meanwhile take precedence over loaded ones."""
        if not segment.has_attribute_index or segment.is_inactive:
            return
        wanted = dict.fromkeys(attribute_ids)
        with segment.in_use():
            # Repeated if values that were present have been evicted meanwhile.
            while missing := [attribute_id for attribute_id in wanted if attribute_id not in segment.attributes]:
                index = await self._index(segment)
                generation = index.generation
                values = await index.get(missing)
                if segment.is_deleted or segment.is_merged:
                    raise NoSuchSegmentError(segment.name)
                if index is not segment.attribute_index or index.generation != generation:
                    continue  # A value written, flushed and trimmed meanwhile is newer than the one read.
                self.trim(segment, spared=wanted)
                for attribute_id, value in zip(missing, values, strict=True):
                    segment.attributes.setdefault(attribute_id, NO_VALUE if value is None else _decode(value))

    async def _index(self, segment: Segment) -> SortedIndex:
        index = segment.attribute_index
        if index is None:
            index = self._open_index(segment)
            await index.open()
            # Two calls may have opened it; one index is dropped, which only readers used.
            if segment.attribute_index is None:
                segment.attribute_index = index
            index = segment.attribute_index
        return index

    def trim(self, segment: Segment, spared: Container[bytes] = ()) -> None:
        """Evict values that the index has, if there are too many in memory; those loaded first are evicted first."""
        attributes = segment.attributes
        dirty = segment.dirty_attributes
        # Dirty values cannot be evicted, and may be far more than the limit: if counted, every call would scan all of
        # them.
        excess = len(attributes) - len(dirty) - self._settings.attributes_cached_max
        if not segment.has_attribute_index or excess <= 0:
            return
        # Evict more than necessary, so that not every call scans all of them.
        excess += self._settings.attributes_cached_max // 4
        clean = (attribute_id for attribute_id in attributes if attribute_id not in dirty)
        leaving = (attribute_id for attribute_id in clean if attribute_id not in spared)
        for attribute_id in list(islice(leaving, excess)):
            del attributes[attribute_id]

    # Writing.

    def check_room(self, segment: Segment) -> None:
        """Raise `AttributesNotLoadedError` if no other writer may be set up before values are flushed to the index."""
        if segment.has_attribute_index and len(segment.dirty_attributes) >= self._settings.attributes_unflushed_max:
            raise AttributesNotLoadedError(segment.name, ())

    async def bring_in(self, segment: Segment, attribute_ids: Sequence[bytes]) -> None:
        """Make room for another writer's event number, and load `attribute_ids`."""
        with segment.in_use():
            while len(segment.dirty_attributes) >= self._settings.attributes_unflushed_max:
                if segment.is_deleted or segment.is_merged:
                    raise NoSuchSegmentError(segment.name)  # It is not flushed any more.
                await self.flush(segment)
            await self.load(segment, attribute_ids)

    async def prepare(self, segment: Segment, attribute_ids: Sequence[bytes]) -> None:
        """Load `attribute_ids`, which are about to be changed, and make room for those not yet dirty."""
        with segment.in_use():
            if any(attribute_id not in segment.dirty_attributes for attribute_id in attribute_ids):
                await self.bring_in(segment, attribute_ids)
            await self.load(segment, attribute_ids)

    def spill_if_due(self, segment: Segment) -> None:
        """Start an attribute index for a segment when it has too many attributes for memory."""
        if (
            not segment.has_attribute_index
            and len(segment.attributes) > self._settings.attributes_in_memory_max
            and not segment.flags & SegmentFlags.TRANSIENT
            and not (segment.is_deleted or segment.is_merged or segment.is_inactive)
        ):
            self._log(SpillAttributes(segment.id), lambda: self._state.accept_spill(segment))

    def is_due(self, segment: Segment) -> bool:
        """Whether enough values have changed to be worth an update of the index."""
        settings = self._settings
        index = segment.attribute_index
        share = 0 if index is None else index.entry_count * settings.attributes_flush_share_percent // 100
        limit = min(max(settings.attributes_flush_count, share), settings.attributes_unflushed_max)
        return len(segment.dirty_attributes) >= limit

    async def flush(self, segment: Segment) -> None:
        """Flush the currently dirty values to the index. Raises what storage raises; memory is then unchanged."""
        async with segment.flush_lock:
            dirty = segment.dirty_attributes
            if not dirty or segment.is_deleted or segment.is_merged or segment.is_inactive:
                return
            values = {attribute_id: segment.attributes[attribute_id] for attribute_id in dirty}
            await self._barrier()
            index = await self._index(segment)
            changes = {
                attribute_id: None if value == NO_VALUE else _encode(value) for attribute_id, value in values.items()
            }
            try:
                await index.update(changes, b"")
            except BadOffsetError:
                # An earlier update whose reply was lost has been applied. Values are absolute: write them again.
                await index.update(changes, b"")
            attributes = segment.attributes
            for attribute_id, value in values.items():
                if attributes.get(attribute_id) == value:
                    dirty.pop(attribute_id, None)
            self.trim(segment)
            if not dirty:
                self._state.attribute_work.pop(segment.id, None)

    def due(self) -> list[Segment]:
        """Return the segments whose changed values must be flushed; starts indexes for those that need one."""
        found: list[Segment] = []
        work = self._state.attribute_work
        for segment in list(work.values()):
            self.spill_if_due(segment)
            if not segment.has_attribute_index:
                del work[segment.id]
            elif self.is_due(segment):
                found.append(segment)
        return found


def _encode(value: int) -> bytes:
    return value.to_bytes(VALUE_LENGTH, "big", signed=True)


def _decode(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)

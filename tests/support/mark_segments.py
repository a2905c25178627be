"""Streams in a store without what holds their marks, for tests that say which segments a stream has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_simulation.memory_segments import MemorySegments, _Segment


def without_marks(store: MemorySegments) -> dict[str, _Segment]:
    """Return the segments of a store by name, without those of mark streams; as a copy."""
    return {name: segment for name, segment in store.segments.items() if "/_MARK" not in name}

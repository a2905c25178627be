"""Bit flips in the memory of a segment store, as caused by bad memory cells."""

from __future__ import annotations

import random

from penstock.segmentstore.container.reads.read_index import _Block
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.store import SegmentStore


def flip_memory(store: SegmentStore, rng: random.Random) -> str | None:
    """Invert a bit of a segment that a store has in its cache and not yet in long-term storage; return its place.

    The log keeps a separate copy of the bytes, so accepted data is safe there. Returns None if there is no such data.
    """
    lacking: list[tuple[Segment, _Block[Segment]]] = [
        (segment, block)
        for container in store.containers
        for segment in container.state.metadata.by_name.values()
        for block in segment.index._entries
        if type(block) is _Block and not block.may_go()
    ]
    if not lacking:
        return None
    segment, block = rng.choice(lacking)
    at = rng.randrange(len(block.data))
    if not block.is_open:
        block.data = bytearray(block.data)
    block.data[at] ^= 1 << rng.randrange(8)  # type: ignore[index]  # a bytearray while it is open
    return f"byte {block.start + at} of {segment.name}"

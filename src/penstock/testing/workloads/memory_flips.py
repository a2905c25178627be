"""Bits that flip in the memory of a segment store, as bad memory cells do it."""

from __future__ import annotations

import random

from penstock.segmentstore.container.reads.read_index import _Block
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.store import SegmentStore


def flip_memory(store: SegmentStore, rng: random.Random) -> str | None:
    """Invert a bit of what a store has of a segment in its cache and not yet in long-term storage; say where.

    The log has its bytes from memory of their own, so what was accepted is safe there. None when there is nothing.
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
    block.data[at] ^= 1 << rng.randrange(8)  # type: ignore[index]  # A bytearray, while it is open and now.
    return f"byte {block.start + at} of {segment.name}"

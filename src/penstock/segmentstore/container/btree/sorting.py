"""Sorting of many keys without blocking the event loop."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from itertools import pairwise
from typing import Final

#: Keys sorted at a time: a few milliseconds for random order.
SLICE_LENGTH: Final = 8192
_SAMPLES_PER_SLICE: Final = 16


async def sorted_in_slices(keys: list[bytes], *, slice_length: int = SLICE_LENGTH) -> list[bytes]:
    """Return distinct keys in ascending order; yields to the event loop after each `slice_length` of them.

    Slices are sorted one by one; then ranges of about a slice's length, bounded by samples, are merged one by one.
    """
    if len(keys) <= slice_length:
        return sorted(keys)
    slices = []
    for start in range(0, len(keys), slice_length):
        slices.append(sorted(keys[start : start + slice_length]))
        await asyncio.sleep(0)
    result: list[bytes] = []
    if all(left[-1] < right[0] for left, right in pairwise(slices)):
        # They were already sorted.
        for part in slices:
            result += part
        return result
    step = max(1, slice_length // _SAMPLES_PER_SLICE)
    samples = sorted(key for part in slices for key in part[::step])
    bounds = samples[_SAMPLES_PER_SLICE::_SAMPLES_PER_SLICE]
    starts = [0] * len(slices)
    for bound in (*bounds, None):
        merged: list[bytes] = []
        for number, part in enumerate(slices):
            end = len(part) if bound is None else bisect_left(part, bound, starts[number])
            merged += part[starts[number] : end]
            starts[number] = end
        merged.sort()
        result += merged
        await asyncio.sleep(0)
    return result

"""`SortedKeys`: very many keys in ascending order, in memory. The cost of a change is independent of their number."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final

#: A longer block is split in two.
_BLOCK_LENGTH_MAX: Final = 512


class SortedKeys:
    """Distinct keys in blocks, each of some hundreds. `add` and `discard` move the keys of one block."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        ordered = sorted(keys)
        step = _BLOCK_LENGTH_MAX // 2
        self._blocks = [ordered[at : at + step] for at in range(0, len(ordered), step)]
        # The last key of each block, or a greater one that was removed.
        self._lasts = [block[-1] for block in self._blocks]

    def add(self, key: bytes) -> None:
        """Add a key that is not present."""
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, key)
        self._lasts[at] = max(self._lasts[at], key)
        if len(block) > _BLOCK_LENGTH_MAX:
            middle = len(block) // 2
            self._blocks.insert(at + 1, block[middle:])
            self._lasts.insert(at, block[middle - 1])
            del block[middle:]

    def discard(self, key: bytes) -> None:
        """Remove a key, if present."""
        at = bisect_left(self._lasts, key)
        if at == len(self._blocks):
            return
        block = self._blocks[at]
        place = bisect_left(block, key)
        if place < len(block) and block[place] == key:
            del block[place]
            if not block:
                del self._blocks[at], self._lasts[at]

    def from_key(self, key: bytes) -> Iterator[bytes]:
        """Yield the keys from `key` on, ascending. They must not change meanwhile."""
        at = bisect_left(self._lasts, key)
        if at < len(self._blocks):
            block = self._blocks[at]
            yield from block[bisect_left(block, key) :]
            for later in self._blocks[at + 1 :]:
                yield from later

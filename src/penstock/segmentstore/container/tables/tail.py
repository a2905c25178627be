"""`Tail`: the keys of a range of a table's log that its index does not cover, in memory.

A table has one growing tail, and while that is moved to the index a second, frozen one (`TableIndex`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from typing import Final

from penstock.segmentstore.container.btree.sorting import SLICE_LENGTH, sorted_in_slices
from penstock.segmentstore.container.tables.entries import slot_length

#: Up to this many new keys are inserted one by one; beyond that, merging them with the sorted keys is cheaper.
_INSERTED_KEYS_MAX: Final = 64


class Tail:
    """Last writes of the keys in one range of the log.

    Attributes:
        slots: packed slot of each key written in the range, None if it was removed.
        unresolved: keys of `slots` whose slots in the layers below (index, older tail) are not known yet. They are
            in neither count.
        count_delta: live keys that this range adds to the layers below.
        live_bytes_delta: bytes of live entries that it adds.
        entry_count: entries in the range, live or dead.
    """

    __slots__ = (
        "_new_keys",
        "_sorted_keys",
        "_sorting",
        "_stale_count",
        "count_delta",
        "entry_count",
        "live_bytes_delta",
        "slots",
        "unresolved",
    )

    def __init__(self) -> None:
        self.slots: dict[bytes, bytes | None] = {}
        self.unresolved: dict[bytes, None] = {}
        self.count_delta: int = 0
        self.live_bytes_delta: int = 0
        self.entry_count: int = 0
        # Sorted on the first iteration, and kept sorted. May contain removed keys, and duplicates.
        self._sorted_keys: list[bytes] | None = None
        self._sorting: asyncio.Lock = asyncio.Lock()
        # Keys added since the keys were sorted, or since sorting began.
        self._new_keys: list[bytes] = []
        self._stale_count = 0

    def count(self, old: bytes | None, new: bytes | None) -> None:
        """Count the change of a key's live entry from `old` to `new`."""
        if old is not None:
            self.count_delta -= 1
            self.live_bytes_delta -= slot_length(old)
        if new is not None:
            self.count_delta += 1
            self.live_bytes_delta += slot_length(new)

    def resolve(self, key: bytes, below: bytes | None) -> None:
        """Count an unresolved key, now that the state below it is known."""
        del self.unresolved[key]
        self.count(below, self.slots[key])

    def add(self, key: bytes, slot: bytes | None) -> None:
        """Add a key that is not in the tail."""
        self.slots[key] = slot
        if self._sorted_keys is not None or self._sorting.locked():
            self._new_keys.append(key)

    def drop(self, key: bytes) -> None:
        """Remove a key when there is no layer below in which a removal would have to hide it."""
        if self.slots.pop(key, None) is not None and self._sorted_keys is not None:
            self._stale_count += 1
            if self._stale_count > len(self.slots):
                self._sorted_keys = None

    def drop_removed(self) -> None:
        """Drop removed keys when there is no layer below in which they would have to be hidden."""
        self.slots = {key: slot for key, slot in self.slots.items() if slot is not None}
        self._sorted_keys = None

    async def sort(self) -> None:
        """Sort very many keys in advance of `keys_between`, unless sorted; yields to the event loop."""
        if self._sorted_keys is not None or len(self.slots) <= SLICE_LENGTH:
            return
        async with self._sorting:
            if self._sorted_keys is None:
                new_keys = self._new_keys = []
                self._stale_count = 0
                keys = await sorted_in_slices(list(self.slots))
                if self._new_keys is new_keys:  # Else `keys_between` has sorted them meanwhile.
                    self._sorted_keys = keys

    def keys_between(self, *, after: bytes, first: bytes, last: bytes | None, limit: int) -> list[bytes]:
        """Return up to `limit` keys above `after` (if not empty) and in [`first`, `last`], ascending, removed or not.

        After few changes each costs an insertion into a list; after many, all together cost one merge, never a full
        sort.
        """
        keys = self._sorted_keys
        if keys is None:
            keys = self._sorted_keys = sorted(self.slots)
            self._new_keys = []
            self._stale_count = 0
        elif len(self._new_keys) <= _INSERTED_KEYS_MAX:
            for key in self._new_keys:
                insort(keys, key)
            self._new_keys.clear()
        else:
            # Timsort finds the two runs and merges them.
            self._new_keys.sort()
            keys += self._new_keys
            keys.sort()
            self._new_keys = []
        at = bisect_left(keys, first)
        if after:
            at = max(at, bisect_right(keys, after))
        stop = len(keys) if last is None else bisect_right(keys, last)
        found: list[bytes] = []
        slots = self.slots
        while at < stop and len(found) < limit:
            key = keys[at]
            at += 1
            if key in slots and not (found and found[-1] == key):
                found.append(key)
        return found

"""`Cache`: how much memory segment data may take, and what goes when it is too much.

One cache serves all containers of a process; the bytes themselves live in the read indexes. Only bytes that
long-term storage has may go (invariant G7), least recently used segments first, lowest offsets first. At the hard
limit nothing but new appends is taken in, and connections are held back until the storage writers have caught up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from penstock.segmentstore.settings import CacheSettings


class Evictable(Protocol):
    """Something that holds cached bytes."""

    def evict(self, bytes_wanted: int) -> int:
        """Free up to about `bytes_wanted` bytes that storage has; return how many were freed."""


class Cache:
    """Accounting and eviction. Invariant: `used_bytes` is the sum of the bytes that all members hold."""

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self.used_bytes = 0
        self._members: OrderedDict[Evictable, None] = OrderedDict()
        self._on_relief: list[Callable[[], None]] = []
        # After an eviction that did not free enough: no other one on growth before use has passed this.
        self._evict_above_bytes = settings.target_bytes

    @property
    def is_full(self) -> bool:
        """Whether the hard limit is reached: hold new appends back, cache no storage reads."""
        return self.used_bytes >= self.settings.bytes_max

    def grow(self, member: Evictable, byte_count: int) -> None:
        """Count bytes that `member` took in, and evict if that is too much."""
        self.used_bytes += byte_count
        self._members[member] = None
        self._members.move_to_end(member)
        if self.used_bytes > self._evict_above_bytes:
            self.evict()

    def shrink(self, byte_count: int) -> None:
        """Count bytes that a member let go by itself."""
        was_full = self.is_full
        self.used_bytes -= byte_count
        if was_full and not self.is_full:
            waiting, self._on_relief = self._on_relief, []
            for callback in waiting:
                callback()

    def touch(self, member: Evictable) -> None:
        """Note that `member` was read."""
        if member in self._members:
            self._members.move_to_end(member)

    def remove(self, member: Evictable) -> None:
        """Forget a member that holds nothing any more."""
        self._members.pop(member, None)

    def evict(self) -> int:
        """Free what may go until use is below the target; return the bytes freed.

        Called on growth, and by whoever has made more of the cache safe to evict.
        """
        freed = 0
        excess = self.used_bytes - self.settings.target_bytes
        for member in list(self._members):
            if freed >= excess:
                break
            freed += member.evict(excess - freed)
        if freed:
            self.shrink(freed)
        # Looking at every member for nothing costs as much as an append does.
        target = self.settings.target_bytes
        self._evict_above_bytes = max(target, self.used_bytes + target // 64)
        return freed

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the cache is below its hard limit."""
        if self.is_full:
            self._on_relief.append(callback)
        else:
            callback()

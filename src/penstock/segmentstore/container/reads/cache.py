"""`Cache`: limits the memory used for segment data, and evicts.

One cache serves all containers of a process. It counts two kinds of objects. *Entries* hold bytes of segments; each
records the generation (about a second) of its last use and is filed under a generation, so that the oldest entries are
found without a scan. *Members* hold bytes of other kinds, such as index pages, and choose themselves what to evict;
they count as older than every entry. Only bytes that long-term storage has may be evicted (invariant G7). Entries that
a sweep finds unstored are set aside until storage has them, so that later sweeps do not inspect them again. Above the
target the oldest entries are evicted. Near the limit only unstored bytes are admitted. At the limit appends are held
back as well, until the storage writers have caught up.

One call of `evict` inspects a bounded number of entries; the rest is done in later turns of the loop.

Source: segment-store 4.5.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from penstock.segmentstore.settings import CacheSettings


class Evictable(Protocol):
    """A member: an object that holds cached bytes and chooses which of them to evict."""

    def evict(self, bytes_wanted: int) -> int:
        """Free up to about `bytes_wanted` bytes that storage has; return how many were freed."""


#: Not filed under a generation: set aside until storage has the bytes.
_ASIDE = -1


class CacheEntry(ABC):
    """Bytes filed by the generation of their last use; users of the entry set `generation`."""

    __slots__ = ("filed_in", "generation")

    filed_in: int
    generation: int

    @property
    @abstractmethod
    def byte_count(self) -> int:
        """Number of bytes freed by evicting the entry."""

    @abstractmethod
    def may_go(self) -> bool:
        """Whether long-term storage has all of its bytes."""

    @abstractmethod
    def leave(self) -> None:
        """Remove the entry from its index. The cache removes it from its own accounting."""


class _Generation:
    """Entries filed under one generation, oldest first; `ended_s` is loop time, None for the current generation."""

    __slots__ = ("ended_s", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[CacheEntry, None] = OrderedDict()
        self.ended_s: float | None = None


class Cache:
    """Accounting and eviction. Invariant: `used_bytes` is the sum of the bytes of all entries and all members.

    Attributes:
        generation: the current generation, recorded in entries that are used.
        is_touched: whether an entry was used since the generation began.
        member_bytes: the part of `used_bytes` that members hold.
        lacking_bytes: appended bytes of all containers not yet in long-term storage; they cannot be evicted.
        urgent_lacking_bytes: the part of them in segments that readers need (group state, marks).
    """

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self.used_bytes: int = 0
        self.member_bytes: int = 0
        self.lacking_bytes = 0
        self.urgent_lacking_bytes: int = 0
        self.generation: int = 0
        self.is_touched: bool = False
        self._generation_ends_s = 0.0
        #: By number, oldest first, without gaps; all but the current one may be empty.
        self._generations: OrderedDict[int, _Generation] = OrderedDict({0: _Generation()})
        self._current = self._generations[0]
        self._entry_count = 0
        #: Entries that were not in storage when a sweep inspected them; not in `_entry_count`.
        self._aside: OrderedDict[CacheEntry, None] = OrderedDict()
        self._members: OrderedDict[Evictable, None] = OrderedDict()
        self._marks: dict[int, list[Callable[[], None]]] = {}
        # After an eviction that did not free enough: the next one is triggered only above this use.
        self._evict_above_bytes = settings.target_bytes
        #: Entries that the running sweep has yet to inspect; 0: no sweep is running.
        self._sweep_count = 0
        self._step_is_scheduled = False

    # Statistics.

    @property
    def utilisation(self) -> float:
        """Used share of the hard limit; a little above 1 at worst."""
        return self.used_bytes / self.settings.bytes_max

    @property
    def is_essential_only(self) -> bool:
        """Whether only bytes that long-term storage does not have are admitted."""
        return self.used_bytes >= self.settings.essential_bytes

    @property
    def is_full(self) -> bool:
        """Whether the hard limit is reached, so that new appends must be held back."""
        return self.used_bytes >= self.settings.bytes_max

    def entries(self) -> Iterator[CacheEntry]:
        """Iterate over all entries, for checks."""
        for generation in self._generations.values():
            yield from generation.entries
        yield from self._aside

    @property
    def aside_count(self) -> int:
        """Number of entries set aside because they were not in storage when a sweep inspected them."""
        return len(self._aside)

    def forgotten(self) -> Iterator[CacheEntry]:
        """Iterate over entries that are set aside although storage has them; for checks that there are none."""
        return (entry for entry in self._aside if entry.may_go())

    def on_fall_below(self, mark_bytes: int, callback: Callable[[], None]) -> None:
        """Call `callback` each time use falls below `mark_bytes`, until `forget_fall_below`."""
        self._marks.setdefault(mark_bytes, []).append(callback)

    def forget_fall_below(self, mark_bytes: int, callback: Callable[[], None]) -> None:
        """Undo one `on_fall_below`; no error if there was none."""
        callbacks = self._marks.get(mark_bytes, [])
        if callback in callbacks:
            callbacks.remove(callback)

    # Members.

    def grow(self, member: Evictable, byte_count: int) -> None:
        """Count bytes added by `member`, and evict if above the target."""
        self.member_bytes += byte_count
        self._members[member] = None
        self._members.move_to_end(member)
        self.count(byte_count)

    def shrink(self, byte_count: int) -> None:
        """Count bytes that a member freed by itself."""
        self.member_bytes -= byte_count
        self.discount(byte_count)

    def touch(self, member: Evictable) -> None:
        """Note that `member` was read."""
        if member in self._members:
            self._members.move_to_end(member)

    def remove(self, member: Evictable) -> None:
        """Remove a member that holds no bytes any more."""
        self._members.pop(member, None)

    # Entries.

    def file(self, entry: CacheEntry, byte_count: int) -> None:
        """Add an entry of `byte_count` bytes, as just used. It may be evicted before this returns."""
        entry.generation = entry.filed_in = self.generation
        self._current.entries[entry] = None
        self._entry_count += 1
        self.count(byte_count)

    def unfile(self, entry: CacheEntry) -> None:
        """Remove an entry, and its bytes from the count."""
        if entry.filed_in == _ASIDE:
            del self._aside[entry]
        else:
            del self._generations[entry.filed_in].entries[entry]
            self._entry_count -= 1
        self.discount(entry.byte_count)

    def stored(self, entries: Iterable[CacheEntry]) -> None:
        """Note that storage now has the bytes of these entries, so that they can be evicted."""
        generation, current = self.generation, self._current.entries
        for entry in entries:
            if entry.filed_in == _ASIDE:
                del self._aside[entry]
                # Treat the entry as just read.
                entry.filed_in = entry.generation = generation
                current[entry] = None
                self._entry_count += 1

    def count(self, byte_count: int) -> None:
        """Count bytes that an entry grew by, and evict if above the threshold."""
        self.used_bytes += byte_count
        if self.used_bytes > self._evict_above_bytes:
            self.evict()

    def discount(self, byte_count: int) -> None:
        """Count bytes that were freed, and call the callbacks of waiting operations."""
        before = self.used_bytes
        self.used_bytes = after = before - byte_count
        for mark_bytes, callbacks in self._marks.items():
            if after < mark_bytes <= before:
                for callback in callbacks:
                    callback()

    # Time.

    def advance(self, now_s: float) -> None:
        """Begin a new generation if the current one is over, and evict entries unused for too long.

        Call it periodically with the loop's time; cheap when nothing is due. A generation without any use is extended.
        """
        settings = self.settings
        if now_s < self._generation_ends_s:
            return
        self._generation_ends_s = now_s + settings.generation_s
        if self.is_touched or self._current.entries:
            self.is_touched = False
            self._current.ended_s = now_s
            self.generation += 1
            self._current = self._generations[self.generation] = _Generation()
        latest_s = now_s - settings.entry_age_s_max
        count = settings.eviction_entries_max
        freed_bytes = 0
        try:
            while count:
                number, oldest = next(iter(self._generations.items()))
                if oldest.ended_s is None or oldest.ended_s > latest_s:
                    break
                if not oldest.entries:
                    del self._generations[number]
                    continue
                count -= 1
                freed_bytes += self._take_oldest(number, oldest)
        finally:
            self.discount(freed_bytes)
        self._evict_above_bytes = min(self._evict_above_bytes, self._next_threshold())

    # Eviction.

    def evict(self) -> int:
        """Evict, oldest first, until use is below the target; return the bytes freed by this call.

        Called on growth, and by code that has made more of the cache evictable. Inspects at most `eviction_entries_max`
        entries and leaves the rest to later turns of the loop.
        """
        before = self.used_bytes
        excess = before - self.settings.target_bytes
        if excess > 0:
            self._evict_members(excess)
            if not self._sweep_count:
                self._sweep_count = self._entry_count
            self._step()
        self._evict_above_bytes = self._next_threshold()
        return before - self.used_bytes

    def evict_all(self) -> int:
        """Evict everything evictable, regardless of age and duration; return the bytes freed."""
        before = self.used_bytes
        for member in list(self._members):
            if freed := member.evict(before):
                self.shrink(freed)
        for entry in list(self.entries()):
            self._let_go(entry)
        return before - self.used_bytes

    def _evict_members(self, bytes_wanted: int) -> None:
        for _ in range(min(len(self._members), self.settings.eviction_entries_max)):
            member = next(iter(self._members))
            freed = member.evict(bytes_wanted)
            if member in self._members:
                self._members.move_to_end(member)
            if freed:
                self.shrink(freed)
                bytes_wanted -= freed
                if bytes_wanted <= 0:
                    break

    def _step(self) -> None:
        """Inspect the next few entries of the running sweep."""
        target = self.settings.target_bytes
        count = min(self._sweep_count, self.settings.eviction_entries_max)
        freed_bytes = 0
        try:
            while count and self.used_bytes - freed_bytes > target and self._entry_count:
                number, oldest = next(iter(self._generations.items()))
                if not oldest.entries:
                    del self._generations[number]  # Never the current one: it is the last, and there are entries.
                    continue
                count -= 1
                self._sweep_count -= 1
                freed_bytes += self._take_oldest(number, oldest)
        finally:
            self.discount(freed_bytes)  # Once for all entries: this calls the waiting callbacks.
        if self.used_bytes <= target or not self._entry_count:
            self._sweep_count = 0
        if self._sweep_count and not self._step_is_scheduled:
            self._schedule_step()

    def _schedule_step(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # No loop is running; the next growth continues the sweep.
        self._step_is_scheduled = True
        loop.call_soon(self._next_step)

    def _next_step(self) -> None:
        self._step_is_scheduled = False
        if self._sweep_count:
            self._step()
            self._evict_above_bytes = min(self._evict_above_bytes, self._next_threshold())

    def _take_oldest(self, number: int, oldest: _Generation) -> int:
        """Refile the first entry if it was used since, set it aside if storage does not have it; otherwise evict it.

        Return the number of bytes freed; the caller discounts them.
        """
        entries = oldest.entries
        entry = next(iter(entries))
        generation = entry.generation
        if generation > number:
            del entries[entry]
            entry.filed_in = generation
            self._generations[generation].entries[entry] = None
            return 0
        freed_bytes = 0
        if entry.may_go():
            freed_bytes = entry.byte_count
            entry.leave()
        else:
            entry.filed_in = _ASIDE
            self._aside[entry] = None
        del entries[entry]
        self._entry_count -= 1
        return freed_bytes

    def _let_go(self, entry: CacheEntry) -> bool:
        if not entry.may_go():
            return False
        entry.leave()
        self.unfile(entry)
        return True

    def _next_threshold(self) -> int:
        target = self.settings.target_bytes
        # A search for evictable entries costs as much as an append, so it does not run on each append. Use may
        # therefore exceed the target slightly, and then returns to it.
        return max(self.used_bytes, target) + target // 64

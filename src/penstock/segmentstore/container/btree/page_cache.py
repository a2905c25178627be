"""`PageCache`: pages of one index in memory, evicted least recently used first.

They are counted in the `Cache` of the process and have the lowest priority: nothing is added when it is full, and
everything may be evicted at any time, because storage has all pages. Pages are immutable bytes: eviction does not
affect code that holds one (lesson L20). A page whose length differs from that in its pointer is a miss (R5.14).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.segmentstore.container.reads.cache import Cache

#: Memory of a page besides its own bytes: its object, the key and its place in the order.
PAGE_MEMORY_OVERHEAD: Final = 200


class PageCache:
    """See the module. An `Evictable` member of `cache`. Keys are offsets, which are never reused."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._is_closed = False
        self.used_bytes: int = 0

    def __len__(self) -> int:
        """Return the number of pages held."""
        return len(self._pages)

    def __contains__(self, offset: int) -> bool:
        """Return whether the page at `offset` is held, without making it recently used."""
        return offset in self._pages

    def get(self, offset: int, length: int) -> bytes | None:
        """Return the page of `length` bytes at `offset`, None if it must be read."""
        page = self._pages.get(offset)
        if page is None or len(page) != length:
            return None
        self._pages.move_to_end(offset)
        return page

    def touch(self) -> None:
        """Mark the pages as recently used among the members of the cache."""
        self._cache.touch(self)

    def put(self, offset: int, page: bytes) -> None:
        """Add a page, if the cache has room."""
        if self._is_closed or self._cache.is_full or offset in self._pages:
            return
        size = len(page) + PAGE_MEMORY_OVERHEAD
        self._pages[offset] = page
        self.used_bytes += size
        self._cache.grow(self, size)

    def discard(self, offset: int) -> None:
        """Drop a page that no tree needs any more."""
        page = self._pages.pop(offset, None)
        if page is not None:
            size = len(page) + PAGE_MEMORY_OVERHEAD
            self.used_bytes -= size
            self._cache.shrink(size)

    def evict(self, bytes_wanted: int) -> int:
        """See `Evictable.evict`."""
        freed = 0
        while freed < bytes_wanted and self._pages:
            _, page = self._pages.popitem(last=False)
            freed += len(page) + PAGE_MEMORY_OVERHEAD
        self.used_bytes -= freed
        return freed

    def reopen(self) -> None:
        """Accept pages again after `clear`."""
        self._is_closed = False

    def clear(self) -> None:
        """Drop all pages and leave the cache; pages of running reads are no longer added."""
        self._is_closed = True
        freed, self.used_bytes = self.used_bytes, 0
        self._pages.clear()
        self._cache.shrink(freed)
        self._cache.remove(self)

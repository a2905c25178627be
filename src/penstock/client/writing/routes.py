"""`Routes`: a cache of routing keys and their segments: a known key is not hashed again.

Not thread-safe: the writer's lock guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from operator import call
from sys import getsizeof
from typing import Generic, TypeVar

Home = TypeVar("Home", bound=Hashable)


class Routes(Generic[Home]):
    """See the module.

    Args:
        find: returns the home of a key. Its error for an invalid key passes through.
        count_max: maximum number of cached keys.
        bytes_max: maximum memory of the cached keys, in bytes.

    When a bound is reached, the cache is cleared. The keys of a single run are cached in any case.
    """

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_find", "_inbox_of", "_inboxes", "known")

    def __init__(self, find: Callable[[str], Home], count_max: int, bytes_max: int) -> None:
        self._find = find
        self._count_max = count_max
        self._bytes_max = bytes_max
        #: Memory of the keys in `known`.
        self._bytes = 0
        #: Entries never change: results of `spread` may read it later, after it was replaced by a new one.
        self.known: dict[str, Home] = {}
        #: One for each home, empty between two calls, with the function that appends an event to it.
        self._inboxes: dict[Home, list[bytes]] = {}
        self._inbox_of: dict[str, Callable[[bytes], None]] = {}

    def of(self, key: str) -> Home:
        """Return the home of a key. Looking it up in `known` first is faster."""
        home = self.known.get(key)
        if home is None:
            home = self._find(key)
            size_bytes = getsizeof(key)
            if len(self.known) >= self._count_max or self._bytes + size_bytes > self._bytes_max:
                self.forget()
            self.known[key] = home
            self._bytes += size_bytes
        return home

    def forget(self) -> None:
        """Clear the cache: homes have changed."""
        self.known = {}
        self._bytes = 0
        self._inboxes = {}
        self._inbox_of = {}

    def spread(
        self, events: Sequence[bytes], keys: tuple[str, ...]
    ) -> Iterator[tuple[Home, Sequence[bytes], Callable[[], Sequence[str]]]]:
        """Yield homes, each with its events, in order, and with a function that computes their keys when needed.

        Copy the events before advancing the iterator. For events of known keys only C loops run.
        """
        try:
            try:
                self._sort(events, keys)
            except KeyError:
                self._empty()
                self._learn(keys)
                self._sort(events, keys)
            for home, inbox in self._inboxes.items():
                if inbox:
                    yield home, inbox, partial(_keys_at, keys, self.known, home)
        finally:
            self._empty()

    def _sort(self, events: Sequence[bytes], keys: Sequence[str]) -> None:
        deque(map(call, map(self._inbox_of.__getitem__, keys), events), maxlen=0)

    def _learn(self, keys: Sequence[str]) -> None:
        """Cache the homes of all these keys, however many they are."""
        wanted = dict.fromkeys(keys)
        homes = {key: self.known.get(key) or self._find(key) for key in wanted}
        new_bytes = sum(getsizeof(key) for key in homes if key not in self.known)
        count = len(homes.keys() | self.known.keys())
        if count > self._count_max or self._bytes + new_bytes > self._bytes_max:
            self.forget()
            new_bytes = sum(map(getsizeof, homes))
        self.known.update(homes)
        self._bytes += new_bytes
        for key, home in homes.items():
            self._inbox_of[key] = self._inboxes.setdefault(home, []).append

    def _empty(self) -> None:
        for inbox in self._inboxes.values():
            inbox.clear()


def _keys_at(keys: Sequence[str], homes: Mapping[str, Home], home: Home) -> Sequence[str]:
    return [key for key in keys if homes[key] is home]

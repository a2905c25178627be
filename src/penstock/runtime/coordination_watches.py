"""`Watches`: which calls wait for a change of a node; one watch of the service per node and kind.

The service's watches fire once. A watch is kept while it has not fired, also without waiters, because the service and
the library keep it too: a waiter that comes later uses it again, so watches do not accumulate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Post = Callable[[Callable[[], None]], None]


class Watch:
    """One watch. `fire` may be called in any thread and more than once; it takes the library's event."""

    def __init__(self, fired: Callable[[], None], post: Post) -> None:
        self.waiters: set[asyncio.Future[None]] = set()
        self._fired = fired
        self._post = post
        #: One object, by which the library recognises that the watch is set already.
        self.fire: Callable[[object], None] = self._fire

    def _fire(self, _: object) -> None:
        self._post(self._fired)

    def wake(self) -> None:
        """End all waits."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Watches:
    """See the module."""

    def __init__(self) -> None:
        self._watches: dict[tuple[str, bool], Watch] = {}

    def __len__(self) -> int:
        """Return the number of watches that have not fired."""
        return len(self._watches)

    @contextmanager
    def waiting(self, path: str, is_children: bool, post: Post) -> Iterator[tuple[Watch, asyncio.Future[None]]]:
        """Yield the watch of a node, and a future that is set when it fires."""
        key = path, is_children
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = Watch(lambda: self._fired(key), post)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch.waiters.add(waiter)
        try:
            yield watch, waiter
        finally:
            watch.waiters.discard(waiter)

    def fire_all(self) -> None:
        """End all waits: the session's state has changed, and its watches may be gone."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.wake()

    def _fired(self, key: tuple[str, bool]) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.wake()

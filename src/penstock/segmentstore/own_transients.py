"""`OwnTransients`: transient segments that one connection has created and neither merged nor deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.model.errors import (
    ContainerNotFoundError,
    ContainerOfflineError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentError,
    StorageFullError,
    TooManyTransientSegmentsError,
)
from penstock.model.routing import container_of
from penstock.runtime.bulk import for_each
from penstock.segmentstore.host_transients import HostTransients
from penstock.segmentstore.store import SegmentStore

logger: logging.Logger = logging.getLogger(__name__)

#: Errors after which certainly nothing was created.
_NOT_MADE = (SegmentError, ContainerNotFoundError, StorageFullError)
#: At the limit, names are looked up at most this often: each review checks all of them.
_REVIEW_INTERVAL_S = 1.0


class OwnTransients:
    """At most `count_max` of one connection. They are deleted when it ends.

    `hosts`: the shares of client hosts; `host`: returns the connection's.
    """

    def __init__(self, store: SegmentStore, count_max: int, hosts: HostTransients, host: Callable[[], str]) -> None:
        self._store = store
        self._count_max = count_max
        self._hosts = hosts
        self._host_of_peer = host
        #: Kept, since a connection that is lost may have no address.
        self._host = ""
        #: By name: whether it was created. Names are added before that, since the connection may be lost meanwhile.
        self._made: dict[str, bool] = {}
        self._reviewed_s = float("-inf")

    @property
    def count(self) -> int:
        """The number of names held."""
        return len(self._made)

    @contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Count `name` while the block creates it, and afterwards if it did. Raises when there are too many."""
        is_new = name not in self._made
        if is_new:
            self._host = self._host or self._host_of_peer()
            self._check(name)
            self._made[name] = False
            self._hosts.add(self._host, self._container_id(name), self._review)
        try:
            yield
        except _NOT_MADE:
            if is_new:
                self.forget(name)
            raise
        self._made[name] = True

    def _container_id(self, name: str) -> int:
        return container_of(name, self._store.settings.container_count)

    def _check(self, name: str) -> None:
        if len(self._made) >= self._count_max:
            self._review()
        if len(self._made) < self._count_max:
            self._hosts.check(self._host, name)
        else:
            raise TooManyTransientSegmentsError(
                name,
                whose="this connection",
                count_max=self._count_max,
                setting="segment_store.connection.transient_segments_max",
            )

    def _review(self) -> None:
        """Remove those deleted or merged by other connections, or deleted by their container."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._reviewed_s + _REVIEW_INTERVAL_S:
            return
        self._reviewed_s = now_s
        for name in [name for name, is_made in self._made.items() if is_made and not self._exists(name)]:
            self.forget(name)

    def _exists(self, name: str) -> bool:
        try:
            # They are in memory as long as they exist.
            return name in self._store.container(name).state.metadata.by_name
        except ContainerNotFoundError:
            return False  # Its container runs elsewhere, or restarts: a start deletes them.

    def forget(self, name: str) -> None:
        """Note that a segment was merged or deleted."""
        if self._made.pop(name, None) is not None:
            self._hosts.remove(self._host, self._container_id(name))
            if not self._made:
                self._hosts.end(self._host, self._review)

    async def delete_all(self) -> None:
        """Delete the remaining ones: the connection is lost."""
        names = list(self._made)
        for name in names:
            self.forget(name)
        results = await for_each(names, self._store.delete_segment, self._store.settings.bulk_requests_max)
        for name, result in zip(names, results, strict=True):
            if isinstance(
                result, (NoSuchSegmentError, ContainerNotFoundError, ContainerOfflineError, OutcomeUnknownError)
            ):
                continue  # Merged, or its container restarts, which deletes it.
            if isinstance(result, PenstockError):
                logger.info("%s is not deleted with its connection, but after it is idle: %s", name, result)

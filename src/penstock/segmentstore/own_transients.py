"""`OwnTransients`: the transient segments that one connection has made and neither merged nor deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
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
from penstock.runtime.bulk import for_each
from penstock.segmentstore.store import SegmentStore

logger: logging.Logger = logging.getLogger(__name__)

#: What certainly made nothing.
_NOT_MADE = (SegmentError, ContainerNotFoundError, StorageFullError)
#: At the limit, names are looked up no more often than this: each look is at all of them.
_REVIEW_INTERVAL_S = 1.0


class OwnTransients:
    """At most `count_max` of one connection. They are deleted when it ends."""

    def __init__(self, store: SegmentStore, count_max: int) -> None:
        self._store = store
        self._count_max = count_max
        #: By name: whether it has been made. Before that it is there, too: the connection may be lost meanwhile.
        self._made: dict[str, bool] = {}
        self._reviewed_s = float("-inf")

    @property
    def count(self) -> int:
        """How many there may be."""
        return len(self._made)

    @contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Count `name` while the block makes it, and from then on if the block did. Raises when there are too many."""
        is_new = name not in self._made
        if is_new:
            self._check(name)
            self._made[name] = False
        try:
            yield
        except _NOT_MADE:
            if is_new:
                self._made.pop(name, None)
            raise
        self._made[name] = True

    def _check(self, name: str) -> None:
        if len(self._made) < self._count_max:
            return
        self._review()
        if len(self._made) >= self._count_max:
            raise TooManyTransientSegmentsError(
                name,
                whose="this connection",
                count_max=self._count_max,
                setting="segment_store.connection.transient_segments_max",
            )

    def _review(self) -> None:
        """Forget those that others have deleted or merged, or that their container deleted."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._reviewed_s + _REVIEW_INTERVAL_S:
            return
        self._reviewed_s = now_s
        for name in [name for name, is_made in self._made.items() if is_made and not self._exists(name)]:
            del self._made[name]

    def _exists(self, name: str) -> bool:
        try:
            # They are in memory as long as they live.
            return name in self._store.container(name).state.metadata.by_name
        except ContainerNotFoundError:
            return False  # It is elsewhere, or starts again: a start deletes them.

    def forget(self, name: str) -> None:
        """Take note that a segment was merged or deleted."""
        self._made.pop(name, None)

    async def delete_all(self) -> None:
        """Delete what is left: the connection is lost."""
        names, self._made = list(self._made), {}
        results = await for_each(names, self._store.delete_segment, self._store.settings.bulk_requests_max)
        for name, result in zip(names, results, strict=True):
            if isinstance(
                result, (NoSuchSegmentError, ContainerNotFoundError, ContainerOfflineError, OutcomeUnknownError)
            ):
                continue  # Merged, or its container starts again, which deletes it.
            if isinstance(result, PenstockError):
                logger.info("%s is not deleted with its connection, but once it is idle: %s", name, result)

"""A listener that reports the lag of queries, from each progress report.

Use: ``spark.streams.addListener(LagListener())``. It runs in the program that started the session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.model.errors import InvalidArgumentError, LaterVersionError, NoSuchSegmentError, UnsupportedOperationError
from penstock.model.names import split_scoped_name
from penstock.spark.lag import LagTracker, QueryLag
from penstock.spark.options import StoreSettings
from penstock.spark.planner import Extent
from penstock.spark.store import StoredStream

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger(__name__)

#: The longest outage of the store that may delay a report. Spark notifies its listeners sequentially.
OUTAGE_S_MAX = 10.0

#: Maximum number of requests about one stream for one report. Beyond it the lag is incomplete.
QUERY_COUNT_MAX = 256


class LagListener(StreamingQueryListener):
    """Logs the lag of each micro-batch of a penstock source, at INFO, and keeps the latest of each query.

    A query without new data reports nothing: the kept lag is that of its latest micro-batch.
    """

    def __init__(self, on_lag: Callable[[QueryLag], object] | None = None, *, uri: str | None = None) -> None:
        """`on_lag` is called with each lag, in a thread of Spark's that it must not block.

        With `uri`, a controller's address, the store is queried where a stream was scaled after the query's position.
        """
        self._on_lag = on_lag
        self._settings = None if uri is None else StoreSettings(uri, outage_s_max=OUTAGE_S_MAX)
        self._tracker = LagTracker(None if uri is None else self._stream)
        self._latest: dict[str, QueryLag] = {}
        # Reports come in a thread of Spark's, one for each session. `latest` never waits for the store.
        self._tracking = threading.Lock()
        self._lock = threading.Lock()

    def latest(self) -> Sequence[QueryLag]:
        """Return the latest lag of each running query."""
        with self._lock:
            return list(self._latest.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """No lag is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compute the lag, keep it, and report it."""
        progress: Mapping[str, object] = event.progress
        try:
            with self._tracking:
                lag = self._tracker.lag(progress)
        except (InvalidArgumentError, LaterVersionError) as error:
            _log.warning("query %s: its lag is not known: %s", progress.get("id"), error)
            return
        if lag is None:
            return
        with self._lock:
            self._latest[lag.query] = lag
        _log.info("%s", lag)
        if self._on_lag is not None:
            self._on_lag(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There was no new data: the position is unchanged."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Drop the query."""
        with self._tracking:
            self._tracker.forget(str(event.id))
        with self._lock:
            self._latest.pop(str(event.id), None)

    def _stream(self, name: str) -> StoredStream:
        assert self._settings is not None
        return _AskedStream(self._settings, *split_scoped_name(name))


class _AskedStream(StoredStream):
    """A stream with a limited number of requests, for one report."""

    _query_count = 0

    def extent(self, segment: int) -> Extent:
        """See `StreamView.extent`."""
        self._count()
        return super().extent(segment)

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        """See `StreamView.extents`."""
        self._query_count += len(segments) - 1
        self._count()
        return super().extents(segments)

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        """See `StreamView.successors`."""
        self._count()
        return super().successors(segment)

    def _count(self) -> None:
        self._query_count += 1
        if self._query_count > QUERY_COUNT_MAX:
            raise UnsupportedOperationError(f"finding its tail takes more than {QUERY_COUNT_MAX} requests to the store")

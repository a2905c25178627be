"""`HostTransients`: a fair share of a container's transient segments for each client host.

One host may hold at most as many as are still free for all: alone it gets half of them, the second of two hosts that
want all gets a half of the rest, and some are always free for a host that has none. A host is an address: clients
behind one address share. See docs/segments.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.model.errors import ContainerNotFoundError, TooManyTransientSegmentsError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.store import SegmentStore


class HostTransients:
    """See the module. Counts what the connections of each host have created and neither merged nor deleted."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        #: By host and container.
        self._counts: Counter[tuple[str, int]] = Counter()
        #: By host: what removes the names of each connection that no longer exist.
        self._reviews: dict[str, dict[Callable[[], None], None]] = {}

    def add(self, host: str, container_id: int, review: Callable[[], None]) -> None:
        """Count one more. `review`: forgets those of the connection that no longer exist; may do nothing."""
        self._counts[host, container_id] += 1
        self._reviews.setdefault(host, {})[review] = None

    def remove(self, host: str, container_id: int) -> None:
        """Count one less."""
        self._counts[host, container_id] -= 1
        if not self._counts[host, container_id]:
            del self._counts[host, container_id]

    def end(self, host: str, review: Callable[[], None]) -> None:
        """Forget the `review` of a connection that holds none any more."""
        reviews = self._reviews.get(host, {})
        reviews.pop(review, None)
        if not reviews:
            self._reviews.pop(host, None)

    def check(self, host: str, name: str) -> None:
        """Raise `TooManyTransientSegmentsError` if the host has its share of the container of `name`."""
        try:
            container = self._store.container(name)
        except ContainerNotFoundError:
            return  # The creation fails.
        if self._has_room(host, container):
            return
        for review in list(self._reviews.get(host, ())):
            review()
        if not self._has_room(host, container):
            raise TooManyTransientSegmentsError(
                name,
                whose=f"client host {host}",
                count_max=self._counts[host, container.id],
                setting="segment_store.container.transients.share_percent_max, of which each host gets a part",
            )

    def _has_room(self, host: str, container: SegmentContainer) -> bool:
        held = self._counts.get((host, container.id), 0)
        # Without any free one the container itself refuses, with its own limit.
        return held == 0 or held < container.transients.free_count

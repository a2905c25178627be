"""`SegmentEnds`: what follows the segments that one reader has read to their end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from penstock.client.common.deadline import within
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.client.groups.reader_group_streams import is_match
from penstock.client.groups.segment_events import SegmentEvents
from penstock.client.streams.stream_lives import is_recreated, recreated_error
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import NoSuchStreamError, PenstockError
from penstock.model.names import parse_segment_name, segment_name
from penstock.runtime.bulk import for_each

#: Segment -> its end, and its successors, each with all of its predecessors.
Ends = dict[str, tuple[HeldSegment, dict[str, Sequence[str]]]]


class SegmentEnds:
    """See the module.

    Args:
        group: ``scope/name``, for messages.
        on_removed: called if a stream that the group found by a pattern seems to be deleted.
        on_error: called with each error of a request.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        on_removed: Callable[[], None],
        on_error: Callable[[PenstockError], None],
    ) -> None:
        #: Set while the stream of a held segment is deleted, as of the last `find`: an error that persists although the
        #: record can be updated.
        self.lost: PenstockError | None = None
        self._cluster = cluster
        self._group = group
        self._on_removed = on_removed
        self._on_error = on_error

    async def find(
        self,
        state: GroupState | None,
        sources: Collection[SegmentEvents],
        is_held: Callable[[SegmentEvents], bool],
        limit_s: float,
    ) -> Ends:
        """Return those of `sources`, all read to their end, whose successors are known, within `limit_s`.

        `state`: the record of the group, if it is known. `is_held`: whether the reader still has the segment.
        """
        ends = {} if state is None else state.ends
        for source in sources:
            if source.segment in ends and not source.is_gone:
                source.successors = {}  # The group ends there.
        asked = {source.segment: source for source in sources if source.successors is None}
        lost: PenstockError | None = None

        async def successors(segment: str) -> dict[str, Sequence[str]]:
            return await self._successors(state, segment)

        with within("find successors", limit_s, "position_interval_s"):
            answers = await for_each(list(asked), successors, self._cluster.settings.bulk_request_count_max)
        for source, answer in zip(asked.values(), answers, strict=True):
            is_deleted = isinstance(answer, NoSuchStreamError)
            if is_deleted and state is not None and is_match(source.stream, state.patterns):
                self._on_removed()  # The group drops the stream once it is certain that it was deleted.
            elif isinstance(answer, PenstockError):
                self._on_error(answer)
                lost = answer if is_deleted else lost
            else:
                source.successors = answer
        found: Ends = {}
        for source in sources:
            if source.successors is not None and is_held(source):
                source.is_leaving = True
                found[source.segment] = (HeldSegment(source.offset, source.turn), source.successors)
        self.lost = lost
        return found

    async def _successors(self, state: GroupState | None, segment: str) -> dict[str, Sequence[str]]:
        scope, stream, number = parse_segment_name(segment)
        following = await self._cluster.controller.successors(scope, stream, number)
        # The end of a sealed stream is indistinguishable from a segment of a deleted stream, which has no records.
        if not following and await is_recreated(self._cluster, f"{scope}/{stream}", [number]):
            raise recreated_error(f"{scope}/{stream}", self._group)
        if state is not None and segment in state.ends:
            return {}
        return {
            successor.segment.name: [segment_name(scope, stream, other) for other in successor.predecessors]
            for successor in following
        }

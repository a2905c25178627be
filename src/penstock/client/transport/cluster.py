"""`Cluster`: a connected cluster, as used by all objects of a client: its controller and its segment stores.

Writers and readers get this and not the `Client` that made them: lower layers do not depend on higher ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from penstock.client.common.deadline import within
from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.client.transport.segment_reader import SegmentReader
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import UnsupportedOperationError
from penstock.model.names import SegmentId, segment_name, split_scoped_name
from penstock.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class Cluster:
    """See the module. Its creator closes the members.

    Attributes:
        controller: the controller's calls.
        segments: the segment stores.
        settings: the client's.
        rng: for pauses and for generated names.
        wall_clock_ms: milliseconds since the epoch, to compare with users' times; never for intervals.
    """

    controller: ControllerClient
    segments: WireSegments
    settings: ClientSettings
    rng: Random
    wall_clock_ms: Callable[[], int]

    def segment_reader(self, segment: str, start_offset: int, end_offset: int | None = None) -> SegmentReader:
        """Read the bytes `[start_offset, end_offset)` of a segment; see `Client.segment_reader`."""
        return SegmentReader(self.segments, segment, start_offset, end_offset, self.settings)

    async def head(self, stream: str) -> StreamCut:
        """Return the cut of the oldest events that still exist. Raises `NoSuchStreamError`."""
        return await self.controller.head(*split_scoped_name(stream))

    async def tail(self, stream: str) -> StreamCut:
        """Return a cut after everything acknowledged so far. Raises `NoSuchStreamError`."""
        scope, name = split_scoped_name(stream)
        with within(f"find the tail of {stream}", self.settings.retry_time_max_s, "retry_time_max_s"):
            ids = await self.last_segments(stream)
            infos = await asyncio.gather(
                *(self.segments.segment_info(segment_name(scope, name, segment)) for segment in ids)
            )
        return StreamCut(scope, name, {segment: info.length for segment, info in zip(ids, infos, strict=True)})

    async def whole_tail(self, stream: str) -> StreamCut:
        """Return a cut after everything acknowledged so far that splits no transaction.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` if the controller is not Penstock's.
        """
        return await self.controller.whole_tail(*split_scoped_name(stream))

    async def latest(self, stream: str) -> StreamCut:
        """Return the whole tail, or the tail if the controller does not support that. Raises `NoSuchStreamError`."""
        try:
            return await self.whole_tail(stream)
        except UnsupportedOperationError:
            return await self.tail(stream)

    async def last_segments(self, stream: str) -> list[SegmentId]:
        """Return the segments without successors: the open ones, or the final ones of a sealed stream.

        Raises `NoSuchStreamError`.
        """
        scope, name = split_scoped_name(stream)
        last = [segment.segment_id for segment in await self.controller.current_segments(scope, name)]
        if last:
            return last
        seen: set[int] = set()
        pending = list((await self.controller.head(scope, name)).positions)
        while pending:
            segment = SegmentId(pending.pop(0))
            if segment in seen:
                continue
            seen.add(segment)
            following = await self.controller.successors(scope, name, segment)
            pending.extend(successor.segment.segment_id for successor in following)
            if not following:
                last.append(segment)
        return last

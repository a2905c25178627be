"""`GroupLeader`: the group's periodic work, done by one of its readers: the first by name in the record.

It publishes the positions of a group that subscribes to its streams, and updates the set of streams from the controller
and the patterns. When it dies, other readers declare it dead and the next one by name takes over. Two readers that both
act as the first do no harm: each publishes stored positions, and the controller's never move back.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from penstock.client.common.deadline import within
from penstock.client.controller.reader_group_calls import Publication
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.groups.reader_group_streams import GroupStreams
from penstock.client.settings import ClientSettings
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import NoSuchReaderGroupError, PenstockError
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import for_each

_log = logging.getLogger(__name__)

#: A reader stores changed positions at least this many times in the group's `reader_timeout_s`.
_BEATS_PER_TIMEOUT = 3
#: Interval at which remains of absent readers are deleted, in seconds.
_SWEEP_INTERVAL_S = 600.0


def beat_interval_s(settings: ClientSettings, state: GroupState) -> float:
    """Return the seconds between two stores of a reader's positions, which are also its heartbeats."""
    return min(settings.position_interval_s, state.reader_timeout_s / _BEATS_PER_TIMEOUT)


class GroupLeader:
    """See the module. No call raises a `PenstockError`, or takes longer than `beat_interval_s` of the group.

    Otherwise its reader would appear dead meanwhile.
    """

    def __init__(self, record: GroupRecord, reader: str, cluster: Cluster) -> None:
        self._record = record
        self._reader = reader
        self._cluster = cluster
        self._settings = cluster.settings
        self._streams = GroupStreams(cluster, record)
        self._published_s = float("-inf")
        #: Stream -> the generation and the cut that the controller has accepted.
        self._published: dict[str, tuple[int, StreamCut]] = {}
        #: The last checkpoint started, as seen here, and when it was seen. A new reader starts one at once: otherwise
        #: readers that never live for an interval would take none.
        self._checkpoint = -1
        self._checkpoint_s = float("-inf")
        self._swept_s = asyncio.get_running_loop().time()
        # The streams were checked when the group was opened.
        self._polled_s = asyncio.get_running_loop().time()

    def poll_soon(self) -> None:
        """Check for added and removed streams at the next `keep`."""
        self._polled_s = float("-inf")

    def checkpoint_due(self, state: GroupState) -> int | None:
        """Return the number of the checkpoint that this reader must start, if one is due."""
        checkpoint, now_s = state.checkpoint, asyncio.get_running_loop().time()
        if checkpoint.number != self._checkpoint:
            if self._checkpoint >= 0:
                self._checkpoint_s = now_s
            self._checkpoint = checkpoint.number
        is_due = 0 < checkpoint.interval_s <= now_s - self._checkpoint_s
        is_mine = not checkpoint.awaited and self._reader == next(iter(state.readers), None)
        # A group whose positions have not changed needs no new checkpoint.
        if not is_due or not is_mine or checkpoint.positions == rgs.positions_of(state):
            return None
        return checkpoint.number + 1

    async def keep(self, state: GroupState) -> bool:
        """Do the work that is due for a group with record `state`; return whether that changed the record."""
        if self._reader != next(iter(state.readers), None):
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s - self._swept_s >= _SWEEP_INTERVAL_S:
            self._swept_s = now_s
            await self._sweep(state)
        if now_s - self._published_s >= self._settings.reader_group_publish_interval_s:
            self._published_s = now_s
            await self._publish(state)
        if now_s - self._polled_s < self._settings.reader_group_stream_refresh_s:
            return False
        self._polled_s = now_s
        return await self._poll_streams(state)

    async def leave(self, state: GroupState) -> None:
        """Publish the positions of a group that its last reader has left: until one joins, nothing else does."""
        if not state.readers:
            await self._publish(state)

    async def _sweep(self, state: GroupState) -> None:
        with within("delete old heartbeats", beat_interval_s(self._settings, state), "position_interval_s"):
            try:
                await self._record.sweep_heartbeats(state)
            except PenstockError as error:
                group = f"{self._record.scope}/{self._record.name}"
                _log.warning("reader %s could not delete heartbeats in group %s: %s", self._reader, group, error)

    async def _publish(self, state: GroupState) -> None:
        if state.retention is not GroupRetention.AUTOMATIC:
            return
        group = f"{self._record.scope}/{self._record.name}"
        with within("publish positions", beat_interval_s(self._settings, state), "position_interval_s"):
            try:
                if state.is_finished and state.ends:
                    # It reads nothing any more, and would retain the data after its end indefinitely.
                    await self._streams.set_retention(GroupRetention.NONE)
                    return
                cuts = self._cuts(state)
                publish = partial(self._publish_cut, group, state)
                for answer in await for_each(list(cuts.values()), publish, self._settings.bulk_request_count_max):
                    if isinstance(answer, PenstockError):
                        raise answer
            except PenstockError as error:
                _log.warning("reader %s could not publish the position of group %s: %s", self._reader, group, error)
        for stream in self._published.keys() - state.streams:
            del self._published[stream]

    def _cuts(self, state: GroupState) -> dict[str, StreamCut]:
        """Return the cuts to publish: the last checkpoint, and nothing else. A stream read to its end has none.

        For a group without automatic checkpoints, return the stored positions.
        """
        if state.checkpoint.interval_s:
            return rgs.checkpoint_cuts(state)
        return {stream: cut for stream, cut in rgs.stream_cuts(state).items() if cut.positions}

    async def _publish_cut(self, group: str, state: GroupState, cut: StreamCut) -> None:
        stream = f"{cut.scope}/{cut.stream}"
        if self._published.get(stream) == (state.generation, cut):
            return
        found = await self._cluster.controller.publish_cut(group, state.group_id, state.generation, cut)
        if found is Publication.TAKEN:
            self._published[stream] = (state.generation, cut)
        elif found is Publication.OVERTAKEN:
            # The record must follow the controller's configuration first.
            self.poll_soon()

    async def _poll_streams(self, state: GroupState) -> bool:
        with within("find streams", beat_interval_s(self._settings, state), "position_interval_s"):
            try:
                return await self._streams.refresh() != state.generation
            except NoSuchReaderGroupError:
                return True  # The record shows the outcome, or the controller does not have it yet.
            except PenstockError as error:
                group = f"{self._record.scope}/{self._record.name}"
                _log.warning("reader %s could not find the streams of group %s: %s", self._reader, group, error)
                return False

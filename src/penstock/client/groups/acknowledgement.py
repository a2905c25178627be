"""`Acknowledgement`: the cut up to which the application needs no data, for groups with manual retention.

It is never beyond the positions stored as read: after a crash the group resumes there, and the data after them must
exist. See ``docs/reader-groups.md``, "Retention".
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.common.deadline import within
from penstock.client.common.retry import Backoff
from penstock.client.controller.reader_group_calls import Publication
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.groups.reader_group_streams import GroupStreams
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import InvalidArgumentError, MetadataConflictError, StreamError
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut


class Acknowledgement:
    """See the module."""

    def __init__(self, cluster: Cluster, record: GroupRecord) -> None:
        self._cluster = cluster
        self._record = record
        self._name = f"{record.scope}/{record.name}"

    async def give(self, cuts: Mapping[str, StreamCut]) -> bool:
        """Publish a cut for each of some streams (``scope/stream``); see `ReaderGroup.acknowledge`."""
        settings = self._cluster.settings
        backoff = Backoff(settings, self._cluster.rng)
        with within(f"acknowledge what {self._name} has read", settings.retry_time_max_s, "retry_time_max_s"):
            while True:
                _, state = await GroupStreams(self._cluster, self._record).complete()
                for stream, cut in cuts.items():
                    await self._check(state, stream, cut)
                found = [await self._publish(state, cut) for cut in cuts.values()]
                if Publication.OVERTAKEN not in found:
                    return Publication.REFUSED not in found
                await backoff.pause(
                    MetadataConflictError(f"the configuration of reader group {self._name} is being changed elsewhere")
                )

    async def _check(self, state: GroupState, stream: str, cut: StreamCut) -> None:
        if state.retention is not GroupRetention.MANUAL:
            raise InvalidArgumentError(
                f"reader group {self._name} has retention {state.retention.name.lower()!r}; only a group with "
                "'manual' is acknowledged by the application: see set_retention"
            )
        if stream not in state.streams:
            raise InvalidArgumentError(f"reader group {self._name} reads {', '.join(state.streams)}, not {stream}")
        place = rgs.stream_cuts(state)[stream]
        if not await self._cluster.controller.is_valid_cut(cut):
            raise InvalidArgumentError(
                f"{dict(cut.positions)} is not a valid cut of {stream}: it does not cover every key exactly once"
            )
        if not place.positions:
            return  # The stream is read to its end.
        try:
            await self._cluster.controller.segments_between(cut, place)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{dict(cut.positions)} is after the stored position of group {self._name}, which would resume at "
                f"{dict(place.positions)} in {stream} after a crash: commit, or take a checkpoint, first"
            ) from error

    async def _publish(self, state: GroupState, cut: StreamCut) -> Publication:
        found = await self._cluster.controller.publish_cut(self._name, state.group_id, state.generation, cut)
        if found in (Publication.NO_STREAM, Publication.NO_SUBSCRIBER):
            raise StreamError(
                f"reader group {self._name} does not subscribe to {cut.scope}/{cut.stream}: the stream was deleted, "
                "or created again under its name; remove it from the group, or wait until the group finds it again"
            )
        return found

"""Whether a stream was deleted, and created again under the same name, since its segments were recorded.

The numbers of a name's segments continue where its last stream ended, also after its scope was deleted. So a segment
with a lower number than those of the stream's first epoch belonged to a deleted stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import NoSuchSegmentError, NoSuchStreamError, PenstockError
from penstock.model.names import SegmentId, segment_name, segment_number, split_scoped_name
from penstock.runtime.bulk import for_each


async def is_recreated(cluster: Cluster, stream: str, known: Collection[int]) -> bool:
    """Return whether the segments `known` (ids) belonged to a deleted stream of the same name.

    False for no segments. Raises `NoSuchStreamError` for a stream that does not exist or is not completely created.
    """
    if not known:
        return False
    first = await cluster.controller.epoch_segments(*split_scoped_name(stream), 0)
    begin = min((segment_number(segment.segment_id) for segment in first), default=0)
    return all(segment_number(SegmentId(segment)) < begin for segment in known)


async def recreated_streams(cluster: Cluster, known: Mapping[str, Collection[int]]) -> list[str]:
    """Return the streams of `known` (stream -> ids of segments) that were deleted and created again since.

    Streams that do not exist are omitted. Costs one request per stream while its newest known segment exists.
    """
    streams = sorted(stream for stream, segments in known.items() if segments)
    newest = [segment_name(*split_scoped_name(stream), SegmentId(max(known[stream]))) for stream in streams]
    infos = await segment_infos(cluster, newest)
    # No other error shows that the segment is missing.
    missing = [stream for stream, info in zip(streams, infos, strict=True) if isinstance(info, NoSuchSegmentError)]

    async def check(stream: str) -> bool:
        return await is_recreated(cluster, stream, known[stream])

    answers = await for_each(missing, check, cluster.settings.bulk_request_count_max)
    found = []
    for stream, answer in zip(missing, answers, strict=True):
        if isinstance(answer, NoSuchStreamError):
            continue  # It is being created, or was deleted: the next check shows it.
        if isinstance(answer, PenstockError):
            raise answer
        if answer:
            found.append(stream)
    return found


def recreated_error(stream: str, group: str) -> NoSuchStreamError:
    """Return the error for a group that has positions of a deleted stream."""
    return NoSuchStreamError(
        f"stream {stream} was deleted, and created again under the same name, after reader group {group} began to read "
        "it: the group's position belongs to the deleted stream. Delete the group and create it again; a group of "
        "several streams can also remove this stream and add it again (remove_streams, add_streams)"
    )

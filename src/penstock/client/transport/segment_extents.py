"""Extents of many segments in bulk, with retries of failed requests.

`Segments.segment_infos` sends each request once, so that the controller can decide about retries itself. In a client,
one lost connection must not end a call that has time left.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.common.deadline import within
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import NoSuchSegmentError, PenstockError
from penstock.model.segments import SegmentInfo
from penstock.runtime.bulk import for_each


async def segment_infos(cluster: Cluster, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
    """Return the info of each segment (full names), or its error, in order.

    Failed requests are retried for at most `retry_time_max_s`, all of them together. `NoSuchSegmentError` is a result
    and is not retried.
    """
    infos = list(await cluster.segments.segment_infos(segments))
    failed = [
        at
        for at, info in enumerate(infos)
        if isinstance(info, PenstockError) and not isinstance(info, NoSuchSegmentError)
    ]
    if not failed:
        return infos
    settings = cluster.settings
    with within(f"read the extents of {len(segments)} segments", settings.retry_time_max_s, "retry_time_max_s"):
        answers = await for_each(
            [segments[at] for at in failed], cluster.segments.segment_info, settings.bulk_request_count_max
        )
    for at, answer in zip(failed, answers, strict=True):
        infos[at] = answer
    return infos

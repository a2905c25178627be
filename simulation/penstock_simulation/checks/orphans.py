"""That chunks which no record leads to are gone after a while, also those of the queue of garbage.

For quiet moments, when storage answers.
"""

from __future__ import annotations

import asyncio

from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.tier2.chunk_name import chunk_origin

#: How long a container is given to find and delete them, in the loop's time.
WAIT_S = 40.0
_POLL_COUNT = 40


async def check_orphans(container: SegmentContainer) -> list[str]:
    """Return which chunks of a container's earlier starts no record leads to and are still there after `WAIT_S`.

    Of its present start: those that it remembers or has in its queue; others too, unless a commit may come late, or a
    creation: a bucket or HDFS may get one twice, the second time behind the deletion. The next start finds what that
    makes.
    """
    # Longer where sweeps are rare.
    wait_s = max(WAIT_S, 1.2 * container.storage.orphans._settings.sweep_interval_s)
    deadline_s = asyncio.get_running_loop().time() + wait_s
    left = await _orphans(container)
    while left and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(wait_s / _POLL_COUNT)
        if container.status is not ContainerStatus.RUNNING:
            return []
        # A write may have made one, and not have got round to its record.
        found = await _orphans(container)
        left = [name for name in left if name in found]
    return [f"container {container.id}: no record leads to chunk {name}, and it is still there" for name in left]


async def _orphans(container: SegmentContainer) -> list[str]:
    storage, epoch = container.storage, container.log.epoch
    layers = (storage._system, storage._user)
    # What is elsewhere may get a creation twice.
    is_here = container.chunks.supports_append and "://" not in container.chunks.place
    is_sure = is_here and not any(layer._context.cache.doubt_count for layer in layers)
    unclear: list[str] = []
    remembered: list[str] = []
    after = ""
    while names := await container.chunks.names(limit=1000, after=after):
        after = names[-1]
        for name in names:
            origin = chunk_origin(name)
            if name in storage.orphans._orphans:
                remembered.append(name)
            elif origin is not None and origin.mark == storage.orphans.mark and (is_sure or origin.epoch < epoch):
                unclear.append(name)
    for layer in layers:
        remembered += await layer.garbage.queued(unclear)
    return [*await storage.unrecorded(unclear), *remembered] if unclear else remembered

"""A simulated cluster of several machines without faults of its own: a test adds the one that it is about."""

from __future__ import annotations

from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.simulated.cluster import ClusterSettings, MemberClusterSettings
from penstock_simulation.simulated.log_objects import BucketLogSettings
from penstock_simulation.simulated.objects import ObjectFaults

_CACHE_BYTES_MAX = 32 * 1024 * 1024


def faultless_cluster(*, store_count: int, container_count: int, controller_count: int = 1) -> ClusterSettings:
    """Return settings of a cluster with ZooKeeper, and with logs and long-term storage in a bucket."""
    return ClusterSettings(
        store_count=store_count,
        controller_count=controller_count,
        is_combined=False,
        members=MemberClusterSettings(),
        bucket_log=BucketLogSettings(ObjectLogSettings(reserve_bytes=0), ObjectFaults()),
        remote_faults=ObjectFaults(),
        segment_store=SegmentStoreSettings(
            container_count=container_count, cache=CacheSettings(bytes_max=_CACHE_BYTES_MAX)
        ),
    )

"""`draw_cluster`: draws a seed's cluster: stores, controllers, their settings, and the faults of its storage."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from penstock.client.settings import ClientSettings
from penstock.controller.cluster.settings import LeaderSettings
from penstock.controller.settings import ControllerSettings, RetentionSettings, WatermarkSettings
from penstock.model.move_settings import MoveSettings
from penstock.runtime.sockets import DeadPeerSettings
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.cluster.settings import MemberSettings
from penstock.segmentstore.container_settings import (
    ActivitySettings,
    ContainerSettings,
    GarbageSettings,
    ImageSettings,
    IndexSettings,
    JoinSettings,
    OrphanSettings,
    SpaceSettings,
    TransientSettings,
)
from penstock.segmentstore.settings import CacheSettings, DiskCacheSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier2.directory import DirectoryChunkStorageSettings
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock.server.cluster_settings import ClusterSettings as ProcessClusterSettings
from penstock.server.settings import StoreProcessSettings
from penstock_simulation.chunk_faults import ChunkFaults
from penstock_simulation.simulated.cluster import ClusterSettings, MemberClusterSettings
from penstock_simulation.simulated.files import FileFault, FileFaults
from penstock_simulation.simulated.late_requests import LateRequestSettings
from penstock_simulation.simulated.log_objects import BucketLogSettings
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults
from penstock_simulation.simulated.security import SimulatedSecuritySettings
from penstock_simulation.simulated.zookeeper import ZooKeeperSettings
from penstock_simulation.workloads.profile import Profile
from penstock_simulation.workloads.world import REFUSED_PREFIX

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

#: Faults of the logs' bucket only.
_LOG_FAULTS = (ObjectFault.LATE_COPY, ObjectFault.HANG, ObjectFault.STALL)

_KIB = 1024
#: Ingest budget of a store to which many connections send while its log stalls.
_CROWDED_INGEST_BYTES = 64 * _KIB
#: Longer than partitions last: clients have to detect those.
_PEER_TIMEOUT_S = 15.0


def draw_cluster(seed: int, profile: Profile, rng: random.Random, *, is_crowded: bool) -> ClusterSettings:
    """Draw the cluster of a seed, with `rng` and generators of its own. `is_crowded`: it gets many connections."""

    def own(name: str) -> random.Random:
        return random.Random(f"{seed}/{name}/{profile.name}")

    cluster = _draw_basis(rng, own("chunk faults"), profile)
    limits_rng = _Lowest(f"{seed}/limits/{profile.name}") if profile.has_lowest_limits else own("limits")
    cluster = _with_limits(cluster, limits_rng)
    cluster = _with_log_bounds(cluster, own("log bounds"), profile)
    cluster = _with_ingest_budget(cluster, profile, is_crowded=is_crowded)
    cluster = _with_controller(cluster, own("controller"), profile)
    cluster = _with_controllers(cluster, own("controllers"), profile)
    cluster = _with_writes_ahead(cluster, own("writes ahead"))
    cluster = _with_read_ranges(cluster, own("read ranges"))
    cluster = _with_transients(cluster, own("transients"))
    cluster = _with_dead_peers(cluster, profile)
    if profile.call_slots:
        cluster = _with_call_slots(cluster, profile.call_slots)
    if profile.container_count:
        cluster = _with_quiet_containers(cluster)
    if profile.late_chunk_gap_s:
        cluster = _with_rare_background_work(cluster)
    if "LockGone" in profile.plan.kinds:
        cluster = replace(cluster, watches_directories=True)
    if not profile.has_chunk_faults:
        cluster = _with_sound_storage(cluster)
    if profile.rescue_gap_s or profile.has_images:
        cluster = _with_images(cluster, own("images"))
    if profile.storage == "bucket" or profile.has_joins:
        cluster = _with_joins(cluster, own("joins"))
    if profile.storage == "bucket":
        cluster = replace(cluster, remote_faults=_draw_object_faults(own("objects")))
    elif profile.storage == "hdfs":
        cluster = replace(cluster, remote_faults=_draw_file_faults(own("files")))
    if own("object log").random() < profile.object_log_rate:
        cluster = _with_object_log(cluster, own("object log settings"), profile)
    if profile.member_fault_gap_s:
        cluster = _with_members(cluster, own("members"), profile)
    if profile.is_secured:
        cluster = _with_security(cluster, own("security"))
    return cluster


def _draw_chunk_faults(rng: random.Random, slow_read_rate: float | None) -> ChunkFaults | None:
    if rng.random() < 0.5 and slow_read_rate is None:
        return None
    return ChunkFaults(
        latency_s_max=rng.choice((0.0, 0.01)),
        slow_rate=0.02,
        slow_read_rate=slow_read_rate or 0.0,
        slow_s=rng.uniform(0.1, 1.0) * (1.0 if slow_read_rate is None else 3.0),
        throttle_rate=rng.choice((0.0, 0.02)),
        error_before_rate=rng.choice((0.0, 0.02)),
        error_after_rate=rng.choice((0.0, 0.02)),
        partial_write_rate=rng.choice((0.0, 0.02)),
    )


def _draw_object_faults(rng: random.Random) -> ObjectFaults:
    drawn = [fault for fault in ObjectFault if fault not in _LOG_FAULTS]
    rates = tuple((fault, rng.choice((0.0, 0.01, 0.05))) for fault in drawn)
    return ObjectFaults(latency_s_max=rng.choice((0.01, 0.1)), slow_s=1.0, late_s_max=10.0, rates=rates)


def _with_object_log(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster whose logs are in a bucket: with small journals, and requests that may arrive minutes late."""
    log = ObjectLogSettings(
        batch_interval_s=rng.choice((0.0, 0.02, 0.1)),
        gather_s=rng.choice((0.0, 0.005)),
        batch_bytes_max=rng.choice((4, 64)) * _KIB,
        in_flight_max=rng.choice((1, 4, 8)),
        in_flight_bytes_max=rng.choice((8, 256)) * _KIB,
        frame_length_max_bytes=cluster.durable_log.frame_length_max_bytes,
        hedge_s=rng.choice((0.0, 0.1, 0.4)),
        hedge_percent_max=rng.choice((5, 50)),
        retry_delay_s_first=0.02,
        retry_delay_s_max=0.5,
        read_slots_max=rng.choice((1, 4, 16)),
        read_head_bytes=rng.choice((4, 64)) * _KIB,
        read_bytes_max=rng.choice((8, 1024)) * _KIB,
        kept_bytes_max=rng.choice((0, 8, 1024)) * _KIB,
        truncate_interval_s=rng.choice((0.0, 1.0, 10.0)),
        truncate_bytes=rng.choice((4, 32)) * _KIB,
        trim_interval_s=rng.choice((0.3, 2.0)),
        reserve_bytes=16 * _KIB,
        close_wait_s=2.0,
        slots_max=rng.choice((20, 200, 10_000)),
    )
    faults = ObjectFaults(
        latency_s_min=0.002,
        latency_s_max=rng.choice((0.01, 0.05)),
        slow_s=1.0,
        late_s_max=rng.choice((2.0, 20.0, 150.0)),
        hang_s=3.0,
        stall_s_max=rng.choice((1.0, 10.0)),
        rates=tuple((fault, rng.choice(profile.log_fault_rates)) for fault in ObjectFault),
    )
    has_one_server = rng.random() < 0.5 and not (cluster.store_count > 1 and cluster.has_shared_storage)
    return replace(cluster, bucket_log=BucketLogSettings(log, faults, has_one_server))


def _with_load_moves(members: MemberClusterSettings, rng: random.Random) -> MemberClusterSettings:
    """Return a cluster whose stores are hot by a few operations, and whose leaders even that out within seconds."""
    cluster = members.cluster
    moves = replace(
        cluster.leader.moves, hot_busy_percent=rng.choice((5, 20)), hot_ratio_percent=110, hot_s=rng.choice((1.0, 3.0)),
        load_interval_s=rng.choice((2.0, 6.0)), rest_s=rng.choice((5.0, 15.0)),
    )  # fmt: skip
    cluster = replace(
        cluster,
        member=replace(cluster.member, load_interval_s=0.5),
        leader=replace(cluster.leader, moves=moves, poll_s=1.0),
    )
    return replace(members, cluster=cluster, operation_s=rng.choice((0.001, 0.004)))


def _with_members(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster of several machines, with the default times or shorter ones.

    In half of the clusters, and in profiles without faults of logs, the buckets have no faults of their own, so that
    bounds of times can be checked.
    """
    log, is_sound = cluster.bucket_log, rng.random() < 0.5 or not any(profile.log_fault_rates)
    assert log is not None
    session_timeout_s = rng.choice((4.0, 8.0))
    members = MemberClusterSettings(
        cluster=ProcessClusterSettings(
            session_timeout_s=session_timeout_s,
            request_timeout_s=session_timeout_s / 4,
            poll_s=rng.choice((2.0, 10.0)),
            member=MemberSettings(poll_s=rng.choice((2.0, 10.0)), drain_timeout_s=20.0, stop_timeout_s=8.0),
            leader=LeaderSettings(
                join_delay_s=rng.choice((0.5, 5.0)),
                moves=MoveSettings(mass_wait_s=rng.choice((10.0, 30.0))),
                ends_max=rng.choice((3, 1000)),
                ends_interval_s=10.0,
            ),
        ),
        zookeeper=ZooKeeperSettings(lag_s_max=rng.choice((0.02, 0.5)), lost_reply_rate=rng.choice((0.0, 0.0, 0.02))),
        lease_s=rng.choice((2.0, 4.0)),
        object_storage=ObjectStorageSettings(
            flush_bytes=cluster.segment_store.container.flush_bytes,
            flush_age_s=cluster.segment_store.container.flush_age_s,
            read_ahead_range_bytes=rng.choice((2, 16)) * _KIB,
            put_retry_delay_s=0.05,
            put_deadline_s=20.0,
        ),
        processes=StoreProcessSettings(health_interval_s=1.0, health_timeout_s=rng.choice((5.0, 10.0))),
    )
    if profile.has_load_moves:
        members = _with_load_moves(members, rng)
    remote = cluster.remote_faults
    if is_sound or remote is None:
        remote = ObjectFaults(latency_s_max=0.02)
    faults = replace(log.faults, rates=()) if is_sound else log.faults
    bucket_log = replace(log, faults=faults, has_one_server=False)
    return replace(
        cluster, members=members, remote_faults=remote, chunk_faults=None, bucket_log=bucket_log,
        has_shared_storage=False, is_combined=False,
    )  # fmt: skip


def _draw_file_faults(rng: random.Random) -> FileFaults:
    rates = tuple((fault, rng.choice((0.0, 0.01, 0.05))) for fault in FileFault)
    return FileFaults(
        latency_s_max=rng.choice((0.01, 0.1)), slow_s=1.0, late_s_max=10.0, recovery_s=rng.choice((0.2, 1.0, 3.0)),
        rates=rates,
    )  # fmt: skip


def _with_call_slots(cluster: ClusterSettings, count: int) -> ClusterSettings:
    """Return settings with few slots for calls, and few places for those that take long."""
    slots = replace(
        cluster.controller, rpc_concurrency_max=count, rpc_waiting_max=2 * count, rpc_share_max=max(count - 2, 1)
    )
    return replace(cluster, controller=slots)


def _draw_basis(rng: random.Random, chunk_rng: random.Random, profile: Profile) -> ClusterSettings:
    store_count = min(rng.choices((1, 2, 3), (6, 3, 1))[0], profile.store_count_max)
    store_count = max(store_count, profile.store_count_min)
    container_count = rng.randint(store_count, 4)
    container_count = profile.container_count or container_count
    return ClusterSettings(
        store_count=store_count,
        chunk_faults=_draw_chunk_faults(chunk_rng, profile.slow_read_rate),
        has_shared_storage=store_count > 1 and chunk_rng.random() < profile.shared_storage_rate,
        is_combined=rng.random() < 0.7,
        restart_delay_s=rng.uniform(0.1, 2.0),
        segment_store=SegmentStoreSettings(
            container_count=container_count,
            restart_delay_s=rng.uniform(0.05, 0.5),
            restart_delay_s_max=2.0,
            disabled_retry_s=5.0,
            cache=CacheSettings(
                bytes_max=rng.choice((profile.cache_bytes_min, 4 * profile.cache_bytes_min, 4096 * _KIB)),
                target_percent=rng.choice((25, 50, 75)),
                block_length=rng.choice((512, 2048, 16 * _KIB)),
                small_append_length=rng.choice((128, 512, 2048)),
            ),
            container=ContainerSettings(
                checkpoint_log_bytes=rng.choice((4, 16, 64)) * _KIB,
                checkpoint_log_bytes_idle=rng.choice((1, 4)) * _KIB,
                checkpoints_max=rng.choice((2, 8, 64)),
                flush_bytes=rng.choice((512, 2 * _KIB, 16 * _KIB)),
                flush_age_s=rng.uniform(0.3, 4.0),
                rollover_bytes_min=4 * _KIB,
                flush_write_bytes_max=rng.choice((700, 4 * _KIB, 64 * _KIB)),
                flush_concurrency=rng.choice((1, 4)),
                writer_interval_s=rng.uniform(0.1, 0.5),
                writer_retry_s=rng.uniform(0.1, 0.5),
                outstanding_bytes_max=256 * _KIB,
                read_ahead_bytes=rng.choice((4, 16, 64)) * _KIB,
                whole_read_bytes=rng.choice((512, 64 * _KIB)),
                table_compact_bytes=rng.choice((1, 4, 16)) * _KIB,
                table_compact_step_bytes=rng.choice((512, 4 * _KIB)),
                stop_timeout_s=5.0,
                ownership_lease_s=2.0,
                recovery_lookup_s=0.2,
                space=SpaceSettings(
                    check_interval_s=0.5,
                    log_free_bytes_min=32 * _KIB,
                    log_free_percent_max=100,
                    storage_free_bytes_min=16 * _KIB,
                    storage_free_percent_max=100,
                ),
                orphans=OrphanSettings(
                    retry_s_min=1.0,
                    retry_s_max=4.0,
                    late_s_max=30.0,
                    sweep_delay_s=3.0,
                    sweep_interval_s=9.0,
                    sweep_names=16,
                    sweep_pause_s=0.01,
                ),
                garbage=GarbageSettings(
                    delay_s=profile.garbage_delay_s,
                    interval_s=1.0,
                    retry_s_max=4.0,
                    tasks_per_batch=2,
                    batch_chunks=3,
                    attempts_max=2,
                    given_up_pause_s=8.0,
                ),
            ),
        ),
        durable_log=LocalLogSettings(
            frame_length_max_bytes=(
                frame_length_max_bytes := rng.choice((8,) if profile.reserve_file_count else (8, 64, 1024)) * _KIB
            ),
            batch_length_max_bytes=rng.choice((4, 64)) * _KIB,
            file_length_bytes=rng.choice((32, 128)) * _KIB,
            first_file_length_bytes=rng.choice((16, 32)) * _KIB,
            zero_chunk_length_bytes=64 * _KIB,
            spare_file_count_max=rng.choice((0, 2)),
            lock_wait_s_max=1.0,
            # With long frames the reserve would be long, too, and the simulated disk is in memory.
            reserve_file_count=profile.reserve_file_count or (2 if frame_length_max_bytes <= 64 * _KIB else 0),
            reserve_file_length_bytes=32 * _KIB,
            reserve_record_count=max(3, profile.reserve_file_count),
            free_bytes_min=4 * _KIB,
            free_percent_max=100,
        ),
        # Short enough for calls to time out while storage hangs, long enough for slow storage.
        long_term_storage=DirectoryChunkStorageSettings(
            reads=PoolSettings(thread_count_max=8, hung_count_max=4, timeout_s=3.0),
            writes=PoolSettings(thread_count_max=4, hung_count_max=4, timeout_s=4.0),
            names=PoolSettings(thread_count_max=2, hung_count_max=4, timeout_s=4.0),
            cancel_grace_s=0.2,
        ),
        # No workload uses watermarks, and few have a retention policy: the scans would only change what seeds do.
        controller=ControllerSettings(
            watermarks=WatermarkSettings(is_enabled=False),
            retention=(
                RetentionSettings(interval_s=0.5, cut_interval_s_min=0.0)
                if profile.has_retention
                else RetentionSettings(is_enabled=False)
            ),
        ),
        client=ClientSettings(
            connect_timeout_s=2.0,
            request_timeout_s=5.0,
            keepalive_interval_s=2.0,
            controller_request_timeout_s=5.0,
            controller_attempt_count_max=20,
            retry_time_max_s=200.0,
            retry_delay_max_s=1.0,
            block_bytes_max=rng.choice((256, 2048, 64 * _KIB)),
            pipelined_block_bytes_min=rng.choice((1, 100, 1024)),
            read_bytes=rng.choice((512, 4 * _KIB, 64 * _KIB)),
            position_interval_s=rng.uniform(0.5, 3.0),
            reader_group_refresh_s=rng.uniform(0.3, 1.0),
            # No reader is ever declared dead, so that a group reads everything exactly once.
            reader_timeout_s=10_000.0,
        ),
    )


class _Lowest(random.Random):
    """Always draws the first choice: for limits, the lowest."""

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        """Return the first."""
        return seq[0]


def _with_limits(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster that can keep little in memory: few segments, few attributes, few table keys."""
    container = replace(
        cluster.segment_store.container,
        active_segments_max=rng.randint(12, 40),
        active_segments_idle_max=rng.choice((0, 4, 1000)),
        deactivation_interval_s=rng.uniform(0.3, 3.0),
        deactivation_batch_max=rng.choice((1, 3, 2500)),
        attributes_in_memory_max=rng.choice((2, 8)),
        attributes_cached_max=rng.choice((1, 4, 16)),
        attributes_flush_count=rng.choice((1, 4, 12)),
        attributes_unflushed_max=rng.choice((12, 64)),
        table_index_min_bytes=rng.choice((500, 2 * _KIB, 8 * _KIB)),
        table_index_percent=rng.choice((1, 12, 50)),
        table_index_max_bytes=rng.choice((2, 16)) * _KIB,
        table_unindexed_bytes_max=rng.choice((16, 64)) * _KIB,
        table_unindexed_bytes_max_system=rng.choice((64, 256)) * _KIB,
        table_index_retry_s=rng.uniform(0.1, 0.5),
        table_index_wait_timeout_s=5.0,
        index_chunk_bytes_max=rng.choice((1, 4, 64)) * _KIB,
        storage_read_timeout_s=3.0,
        flush_slow_s=rng.choice((0.3, 5.0)),
        index=IndexSettings(
            page_bytes=rng.choice((256, 512, 8 * _KIB)),
            read_bytes_max=rng.choice((512, 16 * _KIB)),
            compact_slack_bytes=rng.choice((512, 8 * _KIB)),
            truncate_bytes_min=rng.choice((256, 4 * _KIB)),
            redo_max=rng.choice((1, 4)),
        ),
        activity=ActivitySettings(interval_s=rng.uniform(0.2, 1.0), index_entry_bytes=rng.choice((0, 600, 4 * _KIB))),
    )
    disk_cache = DiskCacheSettings(
        bytes_max=rng.choice((0, 16, 64)) * _KIB,
        slot_bytes=container.read_ahead_bytes,
        piece_bytes_min=100,
        pending_bytes_max=32 * _KIB,
    )
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container, disk_cache=disk_cache))


def _with_log_bounds(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster with short logs, checkpoints in parts, and possibly a segment that can never be flushed."""
    container = replace(
        cluster.segment_store.container,
        log_bytes_max=profile.log_bytes_max or rng.choice((48, 128, 512)) * _KIB,
        carry_record_bytes_max=rng.choice((300, 8 * _KIB)),
        checkpoint_part_values=rng.choice((16, 100, 8192)),
        flush_pressure_segments_max=rng.choice((1, 64)),
    )
    throttle = replace(
        cluster.segment_store.throttle,
        segment_hold_s_max=rng.choice((1.0, 5.0)),
        segment_backlog_percent=rng.choice((1, 25)),
    )
    chunk_faults = cluster.chunk_faults
    if rng.random() < profile.refused_rate:
        chunk_faults = replace(chunk_faults or ChunkFaults(), refused_prefixes=(REFUSED_PREFIX,))
    container = replace(
        container, flush_age_index_s=rng.choice((2.0, 300.0)), flush_concurrency_small=rng.choice((1, 16))
    )
    segment_store = replace(cluster.segment_store, container=container, throttle=throttle)
    return replace(cluster, segment_store=segment_store, chunk_faults=chunk_faults)


def _with_writes_ahead(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster in which the flush of a segment has one or several concurrent writes."""
    container = replace(cluster.segment_store.container, flush_writes_max=rng.choice((1, 2, 8)))
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container))


def _with_read_ranges(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster whose read-ahead ranges equal single reads, end elsewhere, or hold several of them."""
    container = cluster.segment_store.container
    single_bytes = container.read_ahead_bytes
    container = replace(
        container,
        read_ahead_range_bytes=rng.choice((0, single_bytes + 700, 4 * single_bytes)),
        read_small_bytes=single_bytes // 8,
        storage_reads_max=rng.choice((1, 2, 8)),
    )
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container))


def _with_transients(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster with low limits of transient segments per connection, segment or container."""
    container = replace(
        cluster.segment_store.container,
        transients=TransientSettings(
            share_percent_max=rng.choice((10, 20, 30)),
            parent_max=rng.choice((2, 1000)),
            idle_s=rng.choice((2.0, 300.0)),
            sweep_interval_s=0.5,
        ),
    )
    connection = replace(cluster.segment_store.connection, transient_segments_max=rng.choice((1, 4, 256)))
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container, connection=connection))


def _with_security(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster with accounts, whose tokens expire within seconds."""
    security = SimulatedSecuritySettings(token_ttl_s=rng.choice((2, 4, 6)), reload_interval_s=rng.choice((0.5, 2.0)))
    return replace(cluster, security=security)


def _with_dead_peers(cluster: ClusterSettings, profile: Profile) -> ClusterSettings:
    """Return a cluster whose servers drop dead peers soon, and whose clients have default time-outs or shorter ones."""
    client = cluster.client
    if profile.has_usual_times:
        usual = ClientSettings()
        client = replace(
            client,
            connect_timeout_s=usual.connect_timeout_s,
            request_timeout_s=usual.request_timeout_s,
            keepalive_interval_s=usual.keepalive_interval_s,
            controller_request_timeout_s=usual.controller_request_timeout_s,
        )
    dead_peers = DeadPeerSettings(probe_after_s=5.0, probe_interval_s=2.0, timeout_s=_PEER_TIMEOUT_S)
    connection = replace(cluster.segment_store.connection, dead_peers=dead_peers)
    return replace(
        cluster,
        client=client,
        segment_store=replace(cluster.segment_store, connection=connection),
        controller=replace(cluster.controller, dead_peers=dead_peers),
    )


def _with_quiet_containers(cluster: ClusterSettings) -> ClusterSettings:
    """Return a cluster of many containers that do little on their own: their background work takes most of the time."""
    container = cluster.segment_store.container
    container = replace(
        container,
        writer_interval_s=2.0,
        active_segments_max=1000,
        active_segments_idle_max=1000,
        deactivation_interval_s=30.0,
        activity=replace(container.activity, interval_s=30.0),
        space=replace(container.space, check_interval_s=10.0),
        garbage=replace(container.garbage, interval_s=10.0),
        transients=replace(container.transients, sweep_interval_s=30.0),
        orphans=replace(container.orphans, sweep_interval_s=60.0),
    )
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container))


def _with_rare_background_work(cluster: ClusterSettings) -> ClusterSettings:
    """Return a cluster that can be idle for days at little cost: intervals as in production, or longer."""
    container = cluster.segment_store.container
    container = replace(
        container,
        writer_interval_s=60.0,
        writer_retry_s=60.0,
        flush_age_s=300.0,
        deactivation_interval_s=1800.0,
        ownership_lease_s=900.0,
        activity=replace(container.activity, interval_s=600.0),
        space=replace(container.space, check_interval_s=600.0),
        garbage=replace(container.garbage, delay_s=60.0, interval_s=600.0, given_up_pause_s=86_400.0),
        transients=replace(container.transients, sweep_interval_s=1800.0),
        orphans=replace(OrphanSettings(), retry_s_min=300.0, sweep_names=container.orphans.sweep_names),
    )
    store = cluster.segment_store
    store = replace(
        store,
        container=container,
        assignment_interval_s=600.0,
        cache=replace(store.cache, generation_s=600.0),
        storage_guard=replace(store.storage_guard, check_interval_s=600.0),
    )
    controller = replace(
        cluster.controller,
        sweep_interval_s=600.0,
        transaction_sweep_interval_s=600.0,
        retention=RetentionSettings(interval_s=600.0),
    )
    return replace(
        cluster,
        segment_store=store,
        controller=controller,
        durable_log=replace(cluster.durable_log, space_check_interval_s=600.0),
        client=replace(cluster.client, keepalive_interval_s=3600.0),
    )


def _with_sound_storage(cluster: ClusterSettings) -> ClusterSettings:
    """Return a cluster whose long-term storage has no faults of its own, so that starts can wait for it."""
    container = replace(cluster.segment_store.container, recovery_lookup_s=5.0)
    return replace(cluster, chunk_faults=None, segment_store=replace(cluster.segment_store, container=container))


def _with_images(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster whose containers write images of themselves."""
    images = ImageSettings(
        interval_s=rng.uniform(0.3, 5.0),
        deletions_delay_s=rng.uniform(0.1, 2.0),
        retry_s=rng.uniform(0.1, 0.5),
        timeout_s=10.0,
        bytes_max=rng.choice((256, 4096)) * _KIB,
        deletions_max=rng.choice((200, 1000)),
    )
    container = replace(cluster.segment_store.container, images=images)
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container))


def _with_ingest_budget(cluster: ClusterSettings, profile: Profile, *, is_crowded: bool) -> ClusterSettings:
    """Return a cluster whose stores apply backpressure soon, if the profile or `is_crowded` asks for it."""
    ingest_bytes_max = profile.ingest_bytes_max or (_CROWDED_INGEST_BYTES if is_crowded else 0)
    if not ingest_bytes_max:
        return cluster
    connection = replace(cluster.segment_store.connection, ingest_bytes_max=ingest_bytes_max, read_delay_s_max=1.0)
    return replace(cluster, segment_store=replace(cluster.segment_store, connection=connection))


def _with_joins(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster that joins small chunks often, and a few at a time."""
    joins = JoinSettings(
        interval_s=rng.choice((0.3, 1.0)),
        is_for_appending=True,
        target_bytes=rng.choice((2, 8, 64)) * _KIB,
        chunks_min=(chunks_min := rng.choice((2, 4))),
        chunks_max=rng.choice((chunks_min, 16)),
        round_bytes=rng.choice((4, 64)) * _KIB,
        round_records=rng.choice((16, 256)),
        slow_s=1.0,
        retry_s_max=2.0,
    )
    container = replace(cluster.segment_store.container, joins=joins)
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container))


def _with_controller(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster whose controller at times gives up before an outage ends, or gets requests late."""
    late = LateRequestSettings() if rng.random() < 0.3 else None
    controller = replace(
        cluster.controller,
        attempts_max=profile.controller_attempts_max or rng.choice((2, 4, 10)),
        retry_delay_ms_first=rng.choice((10, 100)),
        retry_delay_ms_max=rng.choice((100, 1000, 10_000)),
        work_slot_s=rng.choice((0.05, 1.0)),
    )
    return replace(cluster, controller=controller, late_requests=profile.late_requests or late)


def _with_controllers(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster with several controllers, if the profile has them."""
    count = rng.randint(profile.controller_count_min, profile.controller_count_max)
    return cluster if count == 1 else replace(cluster, controller_count=count, is_combined=False)

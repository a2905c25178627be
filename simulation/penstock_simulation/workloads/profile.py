"""`Profile`: the settings that scenarios are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from penstock_simulation.simulated.late_requests import LateRequestSettings
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.users import UserHabits

_KIB = 1024
Storage = Literal["directory", "bucket", "hdfs"]
ALL_WORKLOADS = (
    "events", "readers", "transactions", "trimmed", "tables", "counters", "bytes", "lives",
    "crowd", "writers", "merges", "attributes", "keys", "names", "mortals", "streams",
    "user writers", "group changes", "connections", "transients", "followers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings that a scenario is drawn from. The default has everything; others target something specific.

    Attributes:
        name: for messages.
        plan: the faults.
        workloads: those that may take part; "users" brings "user writers", whose events they read.
        share: each takes part with this probability (events always do).
        takeover_gap_s: mean time between two changes of a container's owner, 0 for none.
        move_share: share of moves among these changes, if containers can move.
        ingest_bytes_max: ingest budget of a store; 0: the default, which is never exhausted, or a small one if the
            workload "connections" takes part.
        bit_flip_count: bits flipped per store while all are down at the end, in files with `bit_flip_place` in their
            paths. Then corruption may be reported and answers may fail, but wrong data must not be served.
        writing_s: how long workloads work, from their start.
        store_count_min, store_count_max: fewest and most segment stores.
        cache_bytes_min: smallest cache.
        work_stall_rate: probability that blocking work, such as a sync, is slow.
        work_cut_rate: probability that blocking work is split in two, with other work between the halves.
        shared_storage_rate: probability that several stores have both tiers on one file system, and containers move.
        container_count: containers of the cluster; 0: as drawn.
        pace: speed of the workloads, as a multiple of the usual one.
        has_lowest_limits: use the lowest memory limits, see `_with_limits`.
        late_chunk_gap_s: mean time between two clean restarts, or chunks that an old owner creates late; above 0: the
            profile spans days, and background work is as rare as in production.
        check_interval_s: time between two inspections of all containers.
        callback_cost_s: mean CPU time of a callback of a server; 0: none.
        slow_read_rate: probability that a read of long-term storage takes up to 3 s, in every cluster; None: as drawn.
        garbage_delay_s: how long unreferenced chunks stay in long-term storage.
        late_requests: requests of the controller that arrive late; None: as drawn.
        controller_attempts_max: how often the controller repeats a request; 0: as drawn.
        controller_count_min, controller_count_max: fewest and most controllers; several have hosts of their own.
        member_fault_gap_s: above 0: stores and controllers are processes of a cluster of several machines, and this is
            the mean time between two faults of such clusters; in half of the seeds each fault has time to pass first.
        member_kinds: kinds of these faults, see `workloads.member_plans`; empty: all.
        has_load_moves: their leaders move containers for load, at short intervals.
        has_versions: their processes behave as two neighbouring versions of Penstock, see `simulated.versions`.
        controller_fault_gap_s: mean time between two faults that target one of several controllers, 0 for none.
        reserve_file_count: files in reserve for a full disk, enough for all starts on one; then no container may be
            offline because the disk is full. 0: a few, or none, and containers may be offline.
        storage: kind of long-term storage: a directory, or a bucket or HDFS files with their typical faults.
        object_log_rate: probability that the logs are in a bucket with its typical faults.
        log_fault_rates: rates that each fault of that bucket is drawn from.
        has_joins: small chunks are joined although long-term storage can append; in a bucket they always are.
        layout_gap_s: mean time between two readers that lease a chunk layout and read by it for a while; 0: none.
        rescue_gap_s: containers write images of themselves, and with this mean time between two a store is rebuilt from
            long-term storage alone, or all are flushed; 0: they write none. All stores then share one long-term
            storage.
        has_images: containers write images of themselves, also without such rebuilds.
        has_chunk_faults: long-term storage has faults of its own, in addition to those of its disk; False: none, and
            starts wait for its answers.
        refused_rate: probability that long-term storage refuses all writes of one segment, while there are faults.
        log_bytes_max: limit of each container's log; 0: as drawn.
        memory_flip_rate: probability that bits flip in data that stores have only in memory and in their log.
        memory_flip_gap_s: mean time between two such flips.
        scale_rate: probability that streams split and merge all the time.
        scale_gap_s: mean time between two scales of a stream.
        has_retention: streams are truncated all the time according to their policies; otherwise retention is disabled.
        stream_lives_count: clients that create, change and delete streams, if "streams" is among the workloads.
        call_slots: calls that a controller serves at the same time; 0: the default, which is never reached.
        has_usual_times: clients have the default time-outs; otherwise shorter ones.
        is_secured: callers need accounts, and requests to stores need tokens.
        habits: behaviour of users, if "user writers" or "users", which read their events, are among the workloads.
    """

    name: str = "everything"
    plan: PlanSettings = field(default_factory=PlanSettings)
    workloads: tuple[str, ...] = ALL_WORKLOADS
    share: float = 0.7
    takeover_gap_s: float = 15.0
    move_share: float = 0.6
    ingest_bytes_max: int = 0
    bit_flip_count: int = 0
    bit_flip_place: str = "/log-"
    writing_s: float = 55.0
    late_requests: LateRequestSettings | None = None
    controller_attempts_max: int = 0
    controller_count_min: int = 1
    controller_count_max: int = 1
    member_fault_gap_s: float = 0.0
    member_kinds: tuple[str, ...] = ()
    has_load_moves: bool = False
    has_versions: bool = False
    controller_fault_gap_s: float = 0.0
    store_count_min: int = 1
    store_count_max: int = 3
    cache_bytes_min: int = 256 * _KIB
    work_stall_rate: float = 0.001
    late_chunk_gap_s: float = 0.0
    check_interval_s: float = 1.0
    callback_cost_s: float = 0.0
    slow_read_rate: float | None = None
    garbage_delay_s: float = 4.0
    reserve_file_count: int = 0
    work_cut_rate: float = 0.003
    shared_storage_rate: float = 0.6
    container_count: int = 0
    pace: float = 1.0
    has_lowest_limits: bool = False
    storage: Storage = "directory"
    object_log_rate: float = 0.0
    log_fault_rates: tuple[float, ...] = (0.0, 0.01, 0.03)
    has_joins: bool = False
    layout_gap_s: float = 0.0
    rescue_gap_s: float = 0.0
    has_images: bool = False
    has_chunk_faults: bool = True
    refused_rate: float = 0.2
    log_bytes_max: int = 0
    memory_flip_rate: float = 0.1
    memory_flip_gap_s: float = 8.0
    scale_rate: float = 0.3
    scale_gap_s: float = 3.0
    has_retention: bool = False
    stream_lives_count: int = 1
    call_slots: int = 0
    has_usual_times: bool = False
    is_secured: bool = False
    habits: UserHabits = field(default_factory=UserHabits)

    def of_length(self, work_s: float) -> Profile:
        """Return this profile for runs of about `work_s` seconds, including the time after the work."""
        factor = work_s / 60.0
        plan = replace(self.plan, duration_s=self.plan.duration_s * factor)
        return replace(self, plan=plan, writing_s=self.writing_s * factor)


#: Everything that a seed without a profile may have.
EVERYTHING = Profile(object_log_rate=0.15)

"""Settings of a segment container: all bounds, thresholds and time-outs of its own operation.

Settings shared by the containers of a store, above all the cache, are in `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.model.sizes import MIB
from penstock.runtime.fixed_values import fixed
from penstock.segmentstore.layout_settings import LayoutSettings


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Layout and reading of sorted indexes in long-term storage (attributes, live keys of tables).

    Attributes:
        page_bytes: maximum length of a page, unless a single key requires more; at most 32 KiB.
        reads_max: concurrent storage reads of one index.
        read_bytes_max: adjacent pages are read together up to this length.
        compact_percent: pages are moved to the end when stored bytes exceed this share of the live ones ...
        compact_slack_bytes: ... by this much.
        move_percent: maximum that one update moves, as a share of what it changes; the stored bytes then stay below
            `compact_percent` + 10 000 / `move_percent` percent of the live bytes, apart from constants.
        move_pages_min: pages that any update may move, however little it changes.
        truncate_bytes_min: bytes before the first needed page are released once they are this many.
        redo_max: how often a read restarts because an update became visible, before it delays the next update.
        slice_pages: pages built before the loop runs other tasks.
    """

    page_bytes: int = fixed(8 * 1024)
    reads_max: int = fixed(4)
    read_bytes_max: int = fixed(128 * 1024)
    compact_percent: int = fixed(150)
    compact_slack_bytes: int = fixed(256 * 1024)
    move_percent: int = fixed(200)
    move_pages_min: int = fixed(4)
    truncate_bytes_min: int = fixed(64 * 1024)
    redo_max: int = fixed(4)
    slice_pages: int = fixed(32)


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """How the load of segments is measured.

    Attributes:
        tick_s: time between two measurements.
        window_unit_s: averages are over 2, 5, 10 and 20 times this. It is the minute of scaling by load; a smaller unit
            lets streams follow their load faster, short peaks included.
        expiry_s: a segment without data for this long is forgotten; a policy by rate treats it as silent.
        segments_max: segments of one container that are remembered; those silent longest are dropped first.
    """

    tick_s: float = 5.0
    window_unit_s: float = 60.0
    expiry_s: float = 1200.0
    segments_max: int = fixed(100_000)


@dataclass(frozen=True, slots=True)
class ScaleAdviceSettings:
    """When the load of a segment leads to advice to split or merge it. Thresholds are those of Pravega.

    Attributes:
        cool_down_s: a segment gets no advice before it was watched for this long.
        recent_s: a segment without data for this long is not split, whatever its averages are.
        advice_max: maximum number of segments in one answer; splits come first.
        quiet_told_s: how long a segment is reported as silent, from when it is; then it is forgotten.
        quiet_segments_max: segments of one container that are remembered because they get no data.
    """

    cool_down_s: float = 600.0
    recent_s: float = fixed(120.0)
    advice_max: int = fixed(1000)
    quiet_told_s: float = fixed(1200.0)
    quiet_segments_max: int = fixed(10_000)


@dataclass(frozen=True, slots=True)
class ActivitySettings:
    """How records of appends are processed.

    Attributes:
        interval_s: time between two passes over them.
        index_entry_bytes: a boundary between appends is indexed about once per this many bytes; 0: never.
        index_segments_max: segments whose last indexed boundary is remembered; for others it is read again.
        statistics: how loads are measured.
        scale_advice: when loads lead to a split or a merge.
    """

    interval_s: float = 1.0
    index_entry_bytes: int = fixed(1 * MIB)
    index_segments_max: int = fixed(10_000)
    statistics: StatisticsSettings = field(default_factory=StatisticsSettings)
    scale_advice: ScaleAdviceSettings = field(default_factory=ScaleAdviceSettings)


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """When a container saves space on file systems that are nearly full; see docs/full-disk.md.

    Attributes:
        check_interval_s: how often free space is checked.
        check_timeout_s: a check that takes longer is ignored: the previous result stays in force.
        log_free_bytes_min: while less is free on the log's file system, users' appends, table updates and creations
            wait, or are refused ...
        log_free_percent_max: ... or less than this share of that file system, if that is smaller.
        storage_free_bytes_min: while less is free in long-term storage, users' bytes are not moved there ...
        storage_free_percent_max: ... or less than this share of it, if that is smaller.
        resume_percent: either ends when this percentage of the required space is free again.
    """

    check_interval_s: float = 1.0
    check_timeout_s: float = fixed(10.0)
    log_free_bytes_min: int = 256 * MIB
    log_free_percent_max: int = 10
    storage_free_bytes_min: int = 128 * MIB
    storage_free_percent_max: int = 5
    resume_percent: int = fixed(125)


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Images of containers in long-term storage, from which a store is rebuilt if its machine is lost.

    See docs/recovery.md.

    Attributes:
        interval_s: a container that has changed writes an image this long after the last; 0: never. Not given: 300
            where there is long-term storage, 0 where everything is in memory.
        deletions_delay_s: while chunk deletions wait for an image, one is written this long after the last, unless it
            would require an early flush.
        retry_s: pause after a failed image.
        timeout_s: time limit for writing an image.
        bytes_max: maximum length of an image, and of the container's unflushed data when one is written.
        deletions_max: waiting chunk deletions that are remembered; further garbage stays in its queue, and further
            orphans are left to the sweep of a later start.
    """

    interval_s: float | None = None
    deletions_delay_s: float = 30.0
    retry_s: float = fixed(5.0)
    timeout_s: float = fixed(120.0)
    bytes_max: int = fixed(64 * MIB)
    deletions_max: int = fixed(100_000)


@dataclass(frozen=True, slots=True)
class OrphanSettings:
    """How chunks without a record are found and deleted. See docs/orphan-chunks.md.

    Attributes:
        remembered_max: orphans of this start that are remembered; more are left to the sweep of a later one.
        retry_s_min: how often their deletion is tried, ...
        retry_s_max: ... with intervals growing up to this.
        late_s_max: a chunk whose creation was given up may still be created for this long. Its deletion is tried until
            then, and by the sweep of the next start.
        sweep_delay_s: how long after its start, or after a failed sweep, a container scans all chunks. After a clean
            stop that left no orphans the scan is due `sweep_interval_s` after the last one instead.
        sweep_interval_s: the interval between sweeps, which continues across clean stops.
        sweep_names: names processed together, ...
        sweep_pause_s: ... and the pause between two such batches.
    """

    remembered_max: int = fixed(10_000)
    retry_s_min: float = fixed(5.0)
    retry_s_max: float = fixed(600.0)
    late_s_max: float = fixed(900.0)
    sweep_delay_s: float = 60.0
    sweep_interval_s: float = 86_400.0
    sweep_names: int = fixed(1000)
    sweep_pause_s: float = fixed(0.1)


@dataclass(frozen=True, slots=True)
class GarbageSettings:
    """How chunks unlinked by truncations, deletions and joins are deleted. See docs/garbage.md.

    Attributes:
        delay_s: a chunk is deleted this long after it was unlinked, and up to an eighth of it later, so that current
            readers still find it; a new owner of the container restarts the delay. While long-term storage has little
            space there is no delay. 0: it is deleted at once, by the call that unlinked it.
        interval_s: how often due deletions are processed, ...
        retry_s_max: ... with intervals growing up to this while storage does not respond.
        tasks_per_batch: tasks processed together, each of one commit that unlinked chunks; about the number held in
            memory ...
        batch_chunks: ... and chunks in one request, where the storage can delete many in one, ...
        pause_s: ... with this pause after each batch of tasks.
        deletions_max: concurrent deletions, where each is a request.
        attempts_max: a chunk whose deletion was refused this many times is left alone ...
        given_up_pause_s: ... for this long, and until the next start.
        leases_max: concurrent leases of layouts; more are refused. Each delays the deletion of chunks unlinked after
            it.
        lease_s_max: maximum duration of a lease.
    """

    delay_s: float = 60.0
    interval_s: float = 5.0
    retry_s_max: float = fixed(300.0)
    tasks_per_batch: int = fixed(8)
    batch_chunks: int = fixed(1000)
    pause_s: float = fixed(0.01)
    deletions_max: int = fixed(8)
    attempts_max: int = fixed(5)
    given_up_pause_s: float = fixed(86_400.0)
    leases_max: int = fixed(256)
    lease_s_max: float = fixed(3600.0)


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How small adjacent chunks are copied into a longer one, in the background. See docs/defragmentation.md.

    Attributes:
        interval_s: the pause between two rounds; 0: chunks are never joined.
        is_for_appending: also where long-term storage can append, and few chunks are small.
        target_bytes: maximum and usual length of a joined chunk, also limited by the segment's maximum. Chunks of more
            than half of it are not joined. A join needs about twice as much memory, in each container.
        chunks_min: minimum number of chunks to join, unless fewer make half of `target_bytes`.
        chunks_max: maximum number of chunks to join: their records are removed by one commit.
        round_bytes: bytes copied in one round.
        round_records: records of segments and chunks scanned in one round.
        pause_s: the pause after each copy of a round.
        reads_max: chunks read concurrently.
        slow_s: a copy that takes longer ends its round, and the interval of the next ones grows ...
        retry_s_max: ... up to this; also while storage is full or unavailable, or appends wait for room.
        segments_max: segments remembered as having nothing to join.
    """

    interval_s: float = 30.0
    is_for_appending: bool = fixed(False)
    target_bytes: int = 8 * MIB
    chunks_min: int = fixed(8)
    chunks_max: int = fixed(64)
    round_bytes: int = fixed(128 * MIB)
    round_records: int = fixed(4096)
    pause_s: float = fixed(0.1)
    reads_max: int = fixed(4)
    slow_s: float = fixed(30.0)
    retry_s_max: float = fixed(600.0)
    segments_max: int = fixed(10_000)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if not 2 <= self.chunks_min <= self.chunks_max <= 128 or self.target_bytes < 2:
            raise InvalidArgumentError(
                "joins: chunks_min is at least 2 and at most chunks_max, that at most 128; target_bytes is at least 2"
            )


@dataclass(frozen=True, slots=True)
class TransientSettings:
    """Limits of transient segments, each a large event that a client is writing. See docs/segments.md.

    Attributes:
        share_percent_max: all transient segments of a container take at most this share of `active_segments_max`; the
            rest is reserved for other segments, ...
        parent_max: ... and one parent segment has at most this many. More are refused: the client retries.
        idle_s: one without new bytes for this long is deleted. Time in which the container accepts no appends at all
            does not count.
        sweep_interval_s: how often idle ones are searched.
    """

    share_percent_max: int = 20
    parent_max: int = 1000
    idle_s: float = 300.0
    sweep_interval_s: float = fixed(30.0)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if not 1 <= self.share_percent_max <= 90 or self.parent_max < 1 or self.sweep_interval_s <= 0:
            raise InvalidArgumentError(
                "transients: share_percent_max is 1 to 90, parent_max at least 1, sweep_interval_s above 0"
            )

    def count_max(self, active_segments_max: int) -> int:
        """Return the maximum number of transient segments of a container."""
        return max(1, active_segments_max * self.share_percent_max // 100)


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Settings of one segment container.

    Attributes:
        checkpoint_log_bytes: a metadata checkpoint is written after this many bytes of log ...
        checkpoint_log_bytes_idle: ... or this many, when everything is flushed and the container is idle, in both cases
            not less than the last checkpoint's length ...
        checkpoint_frames: ... or this many frames, however short ...
        checkpoint_share_percent_max: ... once the last checkpoint is at most this share of the log after it.
        checkpoint_part_values: approximate number of segments and attributes encoded before the loop runs other tasks.
        checkpoints_max: checkpoints remembered as truncation points of the log, once all before them is flushed.
        recovery_lookups_max: segments that a start looks up concurrently in long-term storage.
        recovery_lookup_s: how long a start waits for lookups of segments in long-term storage. Then it serves and
            continues the lookups; nothing is flushed before they are complete.
        log_bytes_max: when the log is longer, the data that prevent its truncation are logged again after a checkpoint,
            unless they are more than half of the log before the checkpoint.
        log_flush_percent: from this share of it on, segments that hold back the log are flushed before all others.
        carry_little_percent: data that hold back `checkpoint_log_bytes` or more of the log are logged again if they are
            at most this share of what is truncated then.
        log_alarm_percent: from this share of it on a warning names the segments that hold back the log, if storage
            accepts nothing of them: their flush fails or hangs, ...
        log_alarm_age_s: ... or is overdue by this long. A log that is long because of the write rate causes no warning.
        log_alarm_interval_s: minimum interval between warnings.
        carry_record_bytes_max: longest record, and batch of records, that logs bytes again.
        flush_bytes: a segment is flushed to long-term storage when this much is waiting ...
        flush_age_s: ... or when its oldest waiting byte is this old.
        flush_age_index_s: the same age for an index of boundaries between appends: each has a few bytes, there is
            one for each written segment, and they cost as many syncs as segments do.
        truncate_delay_s: it is flushed this long after a truncation, too: truncations that follow meanwhile are sent to
            storage together. While storage has little space each is sent at the next pass.
        merge_delay_s: ... or this long after another segment was merged into it: merges that follow meanwhile, such as
            those of small transactions, are stored together.
        flush_pressure_percent: when more than this share of the permitted bytes is waiting, in the cache or of this
            container, segments are flushed early, those with most waiting bytes first ...
        flush_pressure_segments_max: ... up to this many at a time; flushing all of them in small pieces would cost
            more.
        flush_write_bytes_max: longest single write to long-term storage.
        flush_writes_max: writes of one segment that are in progress, or written and not yet recorded; 1: each waits
            until the previous one is recorded. See docs/write-ahead.md.
        flush_concurrency: segments flushed concurrently, ...
        flush_concurrency_small: ... or this many, if all of them have less than `flush_bytes` in total: their records
            are committed together then, and names of new chunks synced together, ...
        flush_slow_s: ... not counting those that take longer than this ...
        flush_slow_max: ... which are at most this many; storage that hangs for some segments must not block the others.
        writer_interval_s: how often the storage writer checks for due work.
        writer_scan_share_percent: with very many segments a check takes a while; this share of the time is spent on it.
        rollover_bytes_min: minimum chunk length in long-term storage; a segment that requests shorter chunks gets this.
        writer_retry_s: pause after a failed round of the storage writer.
        outstanding_bytes_max: bytes accepted but not yet synced to tier 1 before connections are held.
        read_ahead_bytes: a sequential read from long-term storage is extended to the next multiple of this ...
        read_small_bytes: ... and any other to the next multiple of this; at most `read_ahead_bytes`.
        read_ahead_range_bytes: length of the aligned ranges read ahead of a sequential reader; at least
            `read_ahead_bytes`, and equal to it if 0.
        read_ahead_count_max: such ranges ahead of a sequential reader; 0: none.
        read_ahead_segments_max: sequential readers remembered.
        whole_read_bytes: a read of at most this length returns all existing bytes, wherever they are; some clients do
            not repeat a short read. Longer reads may return less.
        storage_reads_max: concurrent reads from long-term storage, read-ahead included; further ones wait, and their
            connections take turns. Reads of the container's own segments have a separate limit of the same size.
        storage_read_timeout_s: time limit of one such read.
        table_compact_bytes: a table's log is compacted when it is at least this long and mostly dead.
        table_compact_step_bytes: how much of the log one compaction step processes.
        table_utilisation_percent: live bytes below this share of a table's log make it mostly dead.
        table_index_min_bytes: a table with less log than this is kept in memory; others get an index in long-term
            storage, which is updated when this much of the log is not in it, ...
        table_index_percent: ... and it is this share of the indexed live bytes, ...
        table_index_max_bytes: ... or this much.
        table_unindexed_bytes_max: updates of a table wait while this much of its log is not in the index ...
        table_unindexed_bytes_max_system: ... or this much, for the container's own tables ...
        table_index_wait_timeout_s: ... at most this long.
        table_index_attempts: how often an update of the index is retried at once after a concurrent change.
        table_index_retry_s: pause after a failed update of the index.
        table_load_timeout_s: how long calls wait for a table's state to be loaded.
        active_segments_max: segments in memory at once; others are unloaded first, then calls are refused.
        active_segments_wait_s: how long a call waits for others to be unloaded before it is refused.
        active_segments_idle_max: above this many, segments not used for `deactivation_interval_s` are unloaded.
        deactivation_interval_s: how often idle segments are searched.
        deactivation_batch_max: segments unloaded together, in several steps.
        attributes_in_memory_max: attributes of one segment kept in memory and checkpoints; more go to an index.
        attributes_cached_max: indexed values of one segment that are also kept in memory.
        attributes_flush_count: changed values of one segment at which they are moved to its index, ...
        attributes_flush_share_percent: ... or this share of the index's entries if that is more.
        attributes_unflushed_max: changed values of one segment above which new writers wait.
        index_chunk_bytes_max: longest chunk of an attribute or table index: the unit in which it shrinks.
        stop_timeout_s: time limit of a graceful stop before it is abandoned.
        ownership_lease_s: answers that may be stale are given for this long after ownership of the log was last
            confirmed; a new owner waits as long if its predecessor may be alive. See docs/ownership.md.
        ownership_drift_percent: maximum amount by which another machine's clock may be slower; extends that wait.
        index: sorted indexes.
        images: images from which a store is rebuilt if its machine is lost.
        activity: statistics, and indexes of boundaries between appends.
        space: behaviour when file systems run out of space.
        orphans: how chunks that never had a record are deleted.
        garbage: how unlinked chunks are deleted.
        joins: how small chunks are joined into longer ones.
        layout: how segments of an older Pravega are treated.
        transients: number and lifetime of transient segments.
    """

    checkpoint_log_bytes: int = 64 * MIB
    checkpoint_log_bytes_idle: int = 1 * MIB
    checkpoint_frames: int = fixed(300)
    checkpoint_share_percent_max: int = fixed(10)
    checkpoint_part_values: int = fixed(8192)
    checkpoints_max: int = fixed(64)
    log_bytes_max: int = 512 * MIB
    log_flush_percent: int = fixed(60)
    carry_little_percent: int = fixed(2)
    log_alarm_percent: int = fixed(75)
    log_alarm_age_s: float = fixed(30.0)
    log_alarm_interval_s: float = fixed(60.0)
    carry_record_bytes_max: int = fixed(1 * MIB)
    flush_bytes: int = 4 * MIB
    flush_age_s: float = 30.0
    flush_age_index_s: float = fixed(300.0)
    truncate_delay_s: float = fixed(1.0)
    merge_delay_s: float = fixed(1.0)
    flush_pressure_percent: int = 85
    flush_pressure_segments_max: int = fixed(64)
    flush_write_bytes_max: int = fixed(8 * MIB)
    flush_writes_max: int = 8
    flush_concurrency: int = fixed(4)
    flush_concurrency_small: int = fixed(16)
    flush_slow_s: float = fixed(5.0)
    flush_slow_max: int = fixed(64)
    writer_interval_s: float = 0.25
    writer_scan_share_percent: int = fixed(10)
    rollover_bytes_min: int = 1 * MIB
    recovery_lookups_max: int = fixed(16)
    recovery_lookup_s: float = fixed(5.0)
    writer_retry_s: float = 1.0
    outstanding_bytes_max: int = 64 * MIB
    read_ahead_bytes: int = fixed(1 * MIB)
    read_small_bytes: int = fixed(64 * 1024)
    read_ahead_range_bytes: int = 0
    read_ahead_count_max: int = fixed(2)
    read_ahead_segments_max: int = fixed(1024)
    whole_read_bytes: int = fixed(64 * 1024)
    storage_reads_max: int = 8
    storage_read_timeout_s: float = 30.0
    table_compact_bytes: int = 1 * MIB
    table_compact_step_bytes: int = 1 * MIB
    table_utilisation_percent: int = fixed(50)
    table_index_min_bytes: int = fixed(1 * MIB)
    table_index_percent: int = fixed(12)
    table_index_max_bytes: int = fixed(16 * MIB)
    table_unindexed_bytes_max: int = fixed(128 * MIB)
    table_unindexed_bytes_max_system: int = fixed(256 * MIB)
    table_index_wait_timeout_s: float = fixed(30.0)
    table_index_attempts: int = fixed(3)
    table_index_retry_s: float = fixed(1.0)
    table_load_timeout_s: float = fixed(60.0)
    active_segments_max: int = 25_000
    active_segments_wait_s: float = fixed(30.0)
    active_segments_idle_max: int = fixed(1000)
    deactivation_interval_s: float = fixed(60.0)
    deactivation_batch_max: int = fixed(2500)
    attributes_in_memory_max: int = fixed(256)
    attributes_cached_max: int = fixed(4096)
    attributes_flush_count: int = fixed(4096)
    attributes_flush_share_percent: int = fixed(6)
    attributes_unflushed_max: int = fixed(65_536)
    index_chunk_bytes_max: int = fixed(16 * MIB)
    stop_timeout_s: float = 20.0
    ownership_lease_s: float = 10.0
    ownership_drift_percent: int = fixed(1)
    index: IndexSettings = field(default_factory=IndexSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    activity: ActivitySettings = field(default_factory=ActivitySettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    orphans: OrphanSettings = field(default_factory=OrphanSettings)
    garbage: GarbageSettings = field(default_factory=GarbageSettings)
    joins: JoinSettings = field(default_factory=JoinSettings)
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    transients: TransientSettings = field(default_factory=TransientSettings)

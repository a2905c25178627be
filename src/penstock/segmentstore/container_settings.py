"""Settings of a segment container: every bound, threshold and time-out of what one does by itself has its name here.

What the containers of a store share, the cache above all, is in `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.segmentstore.layout_settings import LayoutSettings

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """How sorted indexes in long-term storage (attributes, live keys of tables) are laid out and read.

    Attributes:
        page_bytes: pages are at most this long, unless a single key forces more; at most 32 KiB.
        reads_max: reads from storage that one index has under way at once.
        read_bytes_max: pages that lie one after the other are read together up to this length.
        compact_percent: pages are moved to the end when stored bytes exceed this share of the live ones ...
        compact_slack_bytes: ... by this much.
        move_percent: how much one update moves at most, as a share of what it changes; what is stored then stays
            below `compact_percent` + 10 000 / `move_percent` percent of the live bytes, apart from constants.
        move_pages_min: pages that any update may move, however little it changes.
        truncate_bytes_min: bytes before the first needed page are given back once they are this many.
        redo_max: times that a read starts again because an update became visible, before it holds up the next one.
        slice_pages: pages built before other tasks get a turn.
    """

    page_bytes: int = 8 * 1024
    reads_max: int = 4
    read_bytes_max: int = 128 * 1024
    compact_percent: int = 150
    compact_slack_bytes: int = 256 * 1024
    move_percent: int = 200
    move_pages_min: int = 4
    truncate_bytes_min: int = 64 * 1024
    redo_max: int = 4
    slice_pages: int = 32


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """How the load of segments is measured.

    Attributes:
        tick_s: time between two measurements.
        window_unit_s: averages are over 2, 5, 10 and 20 of it. The minutes of scaling by load are meant in this unit;
            less lets streams follow their load sooner, and its short peaks too.
        expiry_s: a segment without data for so long is forgotten; to its policy by rate it is silent.
        segments_max: segments of one container that are remembered; those silent longest go first.
    """

    tick_s: float = 5.0
    window_unit_s: float = 60.0
    expiry_s: float = 1200.0
    segments_max: int = 100_000


@dataclass(frozen=True, slots=True)
class ScaleAdviceSettings:
    """When the load of a segment is said to ask for a split or a merge. Thresholds are those of Pravega.

    Attributes:
        cool_down_s: a segment has no advice before it was watched for so long.
        recent_s: a segment that got nothing for so long is not to be split, whatever its averages say.
        advice_max: segments in the answer to one question at most; what is to be split comes first.
        quiet_told_s: how long it is said that a segment is silent, from when it is; then it is forgotten.
        quiet_segments_max: segments of one container that are remembered because they get nothing.
    """

    cool_down_s: float = 600.0
    recent_s: float = 120.0
    advice_max: int = 1000
    quiet_told_s: float = 1200.0
    quiet_segments_max: int = 10_000


@dataclass(frozen=True, slots=True)
class ActivitySettings:
    """What is made of the notes that appends leave behind.

    Attributes:
        interval_s: time between two looks at them.
        index_entry_bytes: a border between appends is indexed about once in so many bytes; 0: never.
        index_segments_max: segments whose last indexed border is remembered; for others it is read again.
        statistics: how loads are measured.
        scale_advice: when they ask for a split or a merge.
    """

    interval_s: float = 1.0
    index_entry_bytes: int = 1 * MIB
    index_segments_max: int = 10_000
    statistics: StatisticsSettings = field(default_factory=StatisticsSettings)
    scale_advice: ScaleAdviceSettings = field(default_factory=ScaleAdviceSettings)


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """When a container spares file systems that run out of room; see docs/full-disk.md.

    Attributes:
        check_interval_s: how often free space is looked at.
        check_timeout_s: a look that takes longer says nothing: what was known before stays in force.
        log_free_bytes_min: while less is free beside the log, what users append, put into tables or create waits, or
            is refused ...
        log_free_percent_max: ... or less than this share of that file system, if that is smaller.
        storage_free_bytes_min: while less is free in long-term storage, bytes of users are not moved there ...
        storage_free_percent_max: ... or less than this share of it, if that is smaller.
        resume_percent: either ends when so much of what has to be free is free again.
    """

    check_interval_s: float = 1.0
    check_timeout_s: float = 10.0
    log_free_bytes_min: int = 256 * MIB
    log_free_percent_max: int = 10
    storage_free_bytes_min: int = 128 * MIB
    storage_free_percent_max: int = 5
    resume_percent: int = 125


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Images of containers in long-term storage, from which a store is built anew whose machine is gone.

    See docs/recovery.md.

    Attributes:
        interval_s: a container that has changed writes one so long after the last; 0: it never writes any. Not given:
            300 where there is long-term storage, 0 where everything is in memory.
        deletions_delay_s: while chunks wait for one to be deleted, so long after the last, if what waits for long-term
            storage need not be flushed for it.
        retry_s: pause after one that could not be written.
        timeout_s: how long writing one may take.
        bytes_max: of one image, and of what may wait for long-term storage, in the container, when one is written.
        deletions_max: chunks remembered that wait to be deleted; more of garbage stay in its queue, and of orphans are
            left to the sweep of a later start.
    """

    interval_s: float | None = None
    deletions_delay_s: float = 30.0
    retry_s: float = 5.0
    timeout_s: float = 120.0
    bytes_max: int = 64 * MIB
    deletions_max: int = 100_000


@dataclass(frozen=True, slots=True)
class OrphanSettings:
    """How chunks are looked for and deleted that no record leads to. See docs/orphan-chunks.md.

    Attributes:
        remembered_max: orphans of this start that are remembered; more are left to the sweep of a later one.
        retry_s_min: how often their deletion is tried, ...
        retry_s_max: ... less and less often down to this.
        late_s_max: a chunk whose creation was given up may still be created for so long. It is looked for until then,
            and by the sweep of the next start.
        sweep_delay_s: how long after its start, or after a sweep that failed, a container goes along all chunks; not so
            soon if it was stopped in order before, and had left nothing behind.
        sweep_interval_s: the pause before it does so again, stops in order included.
        sweep_names: names that it looks at together, ...
        sweep_pause_s: ... and the pause between two lots of them.
    """

    remembered_max: int = 10_000
    retry_s_min: float = 5.0
    retry_s_max: float = 600.0
    late_s_max: float = 900.0
    sweep_delay_s: float = 60.0
    sweep_interval_s: float = 86_400.0
    sweep_names: int = 1000
    sweep_pause_s: float = 0.1


@dataclass(frozen=True, slots=True)
class GarbageSettings:
    """How chunks are deleted that were unlinked: by truncations, deletions, joining. See docs/garbage.md.

    Attributes:
        delay_s: a chunk is deleted so long after it was unlinked, and up to an eighth of it later, so that who reads it
            just then still finds it; a new owner of the container begins to count anew. When long-term storage has
            little room nobody waits. 0: it is deleted at once, by the call that unlinked it.
        interval_s: how often is looked for what is due, ...
        retry_s_max: ... less and less often down to this while storage does not answer.
        tasks_per_batch: tasks done together, each a commit that unlinked chunks; about what is in memory of them ...
        batch_chunks: ... and chunks in one request, where the storage deletes many in one, ...
        pause_s: ... with this pause behind each batch of tasks.
        deletions_max: deletions under way at once, where each is a request.
        attempts_max: a chunk whose deletion was refused so often is left alone ...
        given_up_pause_s: ... for so long, and until the next start.
        leases_max: leases of layouts at once; more are refused. Each holds back what is unlinked behind it.
        lease_s_max: how long one may last.
    """

    delay_s: float = 60.0
    interval_s: float = 5.0
    retry_s_max: float = 300.0
    tasks_per_batch: int = 8
    batch_chunks: int = 1000
    pause_s: float = 0.01
    deletions_max: int = 8
    attempts_max: int = 5
    given_up_pause_s: float = 86_400.0
    leases_max: int = 256
    lease_s_max: float = 3600.0


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How small chunks beside each other are copied into a longer one, in the background. See docs/defragmentation.md.

    Attributes:
        interval_s: the pause between two rounds; 0: chunks are never joined.
        is_for_appending: also where long-term storage can append, and few chunks are small.
        target_bytes: chunks get about as long as this, and no longer; nor longer than their segment's may be. Chunks of
            more than half of it stay as they are. About twice as much memory is used meanwhile, in each container.
        chunks_min: so many are joined at least, unless fewer make half of `target_bytes`.
        chunks_max: so many are joined at most: their records are removed by one commit.
        round_bytes: bytes copied in one round.
        round_records: records of segments and chunks looked at in one round.
        pause_s: the pause behind each copy of a round.
        reads_max: chunks read at the same time.
        slow_s: a copy that takes longer ends its round, and the next ones come less and less often, ...
        retry_s_max: ... down to this; so they do while storage is full or away, or appends wait for room.
        segments_max: segments of which it is remembered that there is nothing to join.
    """

    interval_s: float = 30.0
    is_for_appending: bool = False
    target_bytes: int = 8 * MIB
    chunks_min: int = 8
    chunks_max: int = 64
    round_bytes: int = 128 * MIB
    round_records: int = 4096
    pause_s: float = 0.1
    reads_max: int = 4
    slow_s: float = 30.0
    retry_s_max: float = 600.0
    segments_max: int = 10_000

    def __post_init__(self) -> None:
        """Check what no type says. Raises `InvalidArgumentError`."""
        if not 2 <= self.chunks_min <= self.chunks_max <= 128 or self.target_bytes < 2:
            raise InvalidArgumentError(
                "joins: chunks_min is at least 2 and at most chunks_max, that at most 128; target_bytes is at least 2"
            )


@dataclass(frozen=True, slots=True)
class TransientSettings:
    """How many transient segments there may be, each a large event that a client is writing. See docs/segments.md.

    Attributes:
        share_percent_max: all transient segments of a container take at most this share of `active_segments_max`; the
            rest is reserved for other segments, ...
        parent_max: ... and those of one parent segment are at most so many. More are refused: the client tries again.
        idle_s: one that has taken no bytes for so long is deleted. Time in which the container takes no
            appends at all does not count.
        sweep_interval_s: how often idle ones are looked for.
    """

    share_percent_max: int = 20
    parent_max: int = 1000
    idle_s: float = 300.0
    sweep_interval_s: float = 30.0

    def __post_init__(self) -> None:
        """Check what no type says. Raises `InvalidArgumentError`."""
        if not 1 <= self.share_percent_max <= 90 or self.parent_max < 1 or self.sweep_interval_s <= 0:
            raise InvalidArgumentError(
                "transients: share_percent_max is 1 to 90, parent_max at least 1, sweep_interval_s above 0"
            )

    def count_max(self, active_segments_max: int) -> int:
        """Return how many transient segments a container may have."""
        return max(1, active_segments_max * self.share_percent_max // 100)


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """How one segment container works.

    Attributes:
        checkpoint_log_bytes: a metadata checkpoint is written after this many bytes of log ...
        checkpoint_log_bytes_idle: ... or this many, when everything is flushed and nothing else is going on, in both
            cases not less than the last checkpoint's length ...
        checkpoint_frames: ... or this many frames, however short ...
        checkpoint_share_percent_max: ... once the last checkpoint is at most this share of the log behind it.
        checkpoint_part_values: about how many segments and attributes are encoded before the loop turns.
        checkpoints_max: checkpoints remembered that the log may be truncated to once all before them is flushed.
        recovery_lookups_max: segments that a start looks up in long-term storage at the same time ...
        recovery_lookup_s: ... and how long it waits for the answers. Then it serves, and asks on; nothing is flushed
            before it knows.
        log_bytes_max: when the log is longer, what keeps it from being cut is stated again behind a checkpoint, unless
            that is more than half of what lies before the checkpoint.
        log_flush_percent: from this share of it on, segments that keep it are flushed before all others.
        carry_little_percent: what keeps `checkpoint_log_bytes` or more of it from being cut is stated again if it is
            at most this share of what is cut then.
        log_alarm_percent: from this share of it on a warning says which segments keep the log, if storage takes nothing
            of them: their flush fails or hangs, ...
        log_alarm_age_s: ... or is overdue by so long. A log that is long for what is written calls for none.
        log_alarm_interval_s: the warning comes once in so long.
        carry_record_bytes_max: longest record, and batch of records, that states bytes again.
        flush_bytes: a segment is flushed to long-term storage when this much is waiting ...
        flush_age_s: ... or when its oldest waiting byte is this old, ...
        flush_age_index_s: ... or this old, of an index of borders between appends: each has a few bytes, there is one
            for each segment that is written, and they cost as many syncs as segments do.
        truncate_delay_s: ... or when it was truncated so long ago: storage is told once of all truncations that come
            meanwhile. When storage has little room it is told of each at the next look.
        merge_delay_s: ... or when another was merged into it so long ago: merges that come meanwhile, as those of small
            transactions do, are stored together.
        flush_pressure_percent: when what waits is more than this share of what may, in the cache or of this container,
            segments are flushed before their time, those first of which most waits ...
        flush_pressure_segments_max: ... up to so many at a time; flushing all, each with its little, would cost more.
        flush_write_bytes_max: longest single write to long-term storage.
        flush_writes_max: writes of one segment that are under way, or written and not yet recorded; 1: each waits until
            the one before is recorded. See docs/write-ahead.md.
        flush_concurrency: segments flushed at the same time, ...
        flush_concurrency_small: ... or so many, if all that are have less than `flush_bytes` together: their records
            are committed together then, and names of new chunks synced together, ...
        flush_slow_s: ... not counting those that take longer than this ...
        flush_slow_max: ... which are at most so many; storage that is stuck for some must not hold the others up.
        writer_interval_s: how often the storage writer looks for due work.
        writer_look_share_percent: with very many segments a look takes a while; this share of the time is spent on it.
        rollover_bytes_min: a segment that asks for shorter chunks in long-term storage gets chunks of this length.
        writer_retry_s: pause after a failed round of the storage writer.
        outstanding_bytes_max: bytes accepted but not yet synced to tier 1 before connections are held.
        read_ahead_bytes: a sequential read from long-term storage is extended to the next multiple of this ...
        read_small_bytes: ... and any other to the next multiple of this; at most `read_ahead_bytes`.
        read_ahead_range_bytes: what is read ahead of a sequential reader comes in ranges of this length, aligned; at
            least `read_ahead_bytes`, and as long as that if it is 0.
        read_ahead_count_max: such ranges ahead of a sequential reader; 0: none.
        read_ahead_segments_max: sequential readers remembered.
        whole_read_bytes: a read of at most this length gets all bytes that exist, wherever they are; some clients do
            not ask again. Longer reads may come short.
        storage_reads_max: reads from long-term storage under way at once, those ahead included; further ones wait, and
            the connections that they are of take turns. Reads of the container's own segments have as many apart.
        storage_read_timeout_s: time for one of them.
        table_compact_bytes: a table's log is compacted when it is at least this long and mostly dead.
        table_compact_step_bytes: how much of the log one compaction step goes over.
        table_utilisation_percent: live bytes below this share of a table's log make it mostly dead.
        table_index_min_bytes: a table with less log than this is kept in memory; others get an index in long-term
            storage, which is brought up to date when so much of the log is not in it, ...
        table_index_percent: ... and it is this share of the live bytes that are, ...
        table_index_max_bytes: ... or this much.
        table_unindexed_bytes_max: updates of a table wait while so much of its log is not in the index ...
        table_unindexed_bytes_max_system: ... or this much, for the container's own tables ...
        table_index_wait_timeout_s: ... at most this long.
        table_index_attempts: times that an update of the index is tried at once when somebody else has changed it.
        table_index_retry_s: pause after an update of the index that failed.
        table_load_timeout_s: how long calls wait for a table's state to be loaded.
        active_segments_max: segments in memory at once; others are put away first, then calls are refused.
        active_segments_wait_s: how long a call waits for others to be put away before it is refused.
        active_segments_idle_max: above this many, segments not used for `deactivation_interval_s` are put away.
        deactivation_interval_s: how often idle segments are looked for.
        deactivation_batch_max: segments put away together, in several steps.
        attributes_in_memory_max: attributes of one segment that live in memory and checkpoints; more go to an index.
        attributes_cached_max: of a segment with an index, values kept in memory although the index has them.
        attributes_flush_count: changed values of one segment that are moved to its index at the latest, ...
        attributes_flush_share_percent: ... or this share of the index's entries if that is more.
        attributes_unflushed_max: changed values of one segment above which new writers wait.
        index_chunk_bytes_max: longest chunk of an attribute or table index: the unit in which it shrinks.
        stop_timeout_s: how long a graceful stop may take before it is abandoned.
        ownership_lease_s: what may be out of date is answered for so long after the log was last found to be this
            container's own; who takes a container over from one that may live waits as long. See docs/ownership.md.
        ownership_drift_percent: how much slower another machine's clock may be; who waits, waits longer by it.
        index: sorted indexes.
        images: what a store is built from whose machine is gone.
        activity: statistics, and indexes of borders between appends.
        space: what happens when file systems run out of room.
        orphans: how chunks that no record ever led to are deleted.
        garbage: how chunks are deleted that were unlinked.
        joins: how small chunks become longer ones.
        layout: what is done about segments that an older Pravega left.
        transients: how many transient segments there may be, and for how long.
    """

    checkpoint_log_bytes: int = 64 * MIB
    checkpoint_log_bytes_idle: int = 1 * MIB
    checkpoint_frames: int = 300
    checkpoint_share_percent_max: int = 10
    checkpoint_part_values: int = 8192
    checkpoints_max: int = 64
    log_bytes_max: int = 512 * MIB
    log_flush_percent: int = 60
    carry_little_percent: int = 2
    log_alarm_percent: int = 75
    log_alarm_age_s: float = 30.0
    log_alarm_interval_s: float = 60.0
    carry_record_bytes_max: int = 1 * MIB
    flush_bytes: int = 4 * MIB
    flush_age_s: float = 30.0
    flush_age_index_s: float = 300.0
    truncate_delay_s: float = 1.0
    merge_delay_s: float = 1.0
    flush_pressure_percent: int = 85
    flush_pressure_segments_max: int = 64
    flush_write_bytes_max: int = 8 * MIB
    flush_writes_max: int = 8
    flush_concurrency: int = 4
    flush_concurrency_small: int = 16
    flush_slow_s: float = 5.0
    flush_slow_max: int = 64
    writer_interval_s: float = 0.25
    writer_look_share_percent: int = 10
    rollover_bytes_min: int = 1 * MIB
    recovery_lookups_max: int = 16
    recovery_lookup_s: float = 5.0
    writer_retry_s: float = 1.0
    outstanding_bytes_max: int = 64 * MIB
    read_ahead_bytes: int = 1 * MIB
    read_small_bytes: int = 64 * 1024
    read_ahead_range_bytes: int = 0
    read_ahead_count_max: int = 2
    read_ahead_segments_max: int = 1024
    whole_read_bytes: int = 64 * 1024
    storage_reads_max: int = 8
    storage_read_timeout_s: float = 30.0
    table_compact_bytes: int = 1 * MIB
    table_compact_step_bytes: int = 1 * MIB
    table_utilisation_percent: int = 50
    table_index_min_bytes: int = 1 * MIB
    table_index_percent: int = 12
    table_index_max_bytes: int = 16 * MIB
    table_unindexed_bytes_max: int = 128 * MIB
    table_unindexed_bytes_max_system: int = 256 * MIB
    table_index_wait_timeout_s: float = 30.0
    table_index_attempts: int = 3
    table_index_retry_s: float = 1.0
    table_load_timeout_s: float = 60.0
    active_segments_max: int = 25_000
    active_segments_wait_s: float = 30.0
    active_segments_idle_max: int = 1000
    deactivation_interval_s: float = 60.0
    deactivation_batch_max: int = 2500
    attributes_in_memory_max: int = 256
    attributes_cached_max: int = 4096
    attributes_flush_count: int = 4096
    attributes_flush_share_percent: int = 6
    attributes_unflushed_max: int = 65_536
    index_chunk_bytes_max: int = 16 * MIB
    stop_timeout_s: float = 20.0
    ownership_lease_s: float = 10.0
    ownership_drift_percent: int = 1
    index: IndexSettings = field(default_factory=IndexSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    activity: ActivitySettings = field(default_factory=ActivitySettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    orphans: OrphanSettings = field(default_factory=OrphanSettings)
    garbage: GarbageSettings = field(default_factory=GarbageSettings)
    joins: JoinSettings = field(default_factory=JoinSettings)
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    transients: TransientSettings = field(default_factory=TransientSettings)

"""Settings of a segment store: what its containers share, its connections, and how it is watched and administered.

Those of each container are in `container_settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.runtime.descriptors import DescriptorBudget
from penstock.runtime.sockets import DeadPeerSettings
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.container_settings import ContainerSettings

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Memory for segment data that is not yet, or was lately, in long-term storage.

    Attributes:
        bytes_max: hard limit; at it connections are no longer read until the storage writer has made room.
        target_percent: eviction of data that is safe in long-term storage begins here.
        essential_percent: from here on only data that long-term storage lacks is taken in.
        generation_s: how finely the time of the last use is known.
        entry_age_s_max: what was not used for so long goes even if there is room.
        eviction_entries_max: entries that one step of an eviction looks at; the loop turns between steps.
        block_length: small appends are gathered into blocks of about this length.
        small_append_length: appends shorter than this are gathered, longer ones are kept as they came.
    """

    bytes_max: int = 512 * MIB
    target_percent: int = 75
    essential_percent: int = 90
    generation_s: float = 1.0
    entry_age_s_max: float = 1800.0
    eviction_entries_max: int = 512
    block_length: int = 64 * 1024
    small_append_length: int = 8 * 1024

    @property
    def target_bytes(self) -> int:
        """Bytes in use above which eviction begins."""
        return self.bytes_max * self.target_percent // 100

    @property
    def essential_bytes(self) -> int:
        """Bytes in use from which on only essential data is taken in."""
        return self.bytes_max * self.essential_percent // 100


@dataclass(frozen=True, slots=True)
class DiskCacheSettings:
    """A second level of the cache on a local disk, for what leaves memory. Empty after a start.

    Attributes:
        bytes_max: how much it may take; 0: there is none.
        slot_bytes: it keeps aligned ranges of this length; best the same as `read_ahead_bytes` of a container.
        piece_bytes_min: shorter pieces are not worth a write.
        pending_bytes_max: bytes that wait to be written; what comes while there are more is not kept.
        failures_max: after so many failures of the disk in a row it is given up until the next start.
        pool: its threads and how long a call may take; one that takes longer is a failure.
        close_timeout_s: how long the end of the process waits for the disk.
    """

    bytes_max: int = 0
    slot_bytes: int = 1 * MIB
    piece_bytes_min: int = 4096
    pending_bytes_max: int = 16 * MIB
    failures_max: int = 8
    pool: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=2, hung_count_max=8, timeout_s=10.0)
    )
    close_timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """When operations from outside are held, and how they are let in. See docs/back-pressure.md.

    Attributes:
        cache_margin_percent: appends are held when the cache is so far above its target; they fill the room that
            evictions make. Urgent operations are held from `CacheSettings.essential_percent` on.
        urgent_percent: share of each other bound that only urgent operations may fill: group state, marks.
        backlog_operations_max: durable operations of one container that wait for long-term storage ...
        backlog_bytes_max: ... and their bytes; more are not let in. 0: no limit but the next.
        backlog_percent: share of the cache that one container's bytes waiting for long-term storage may take.
        segment_backlog_percent: share of those (or of where the cache holds appends, if that is less) that may be
            of one segment; appends to it alone are held beyond that, ...
        segment_hold_s_max: ... and refused after so long.
        quantum_bytes: what one connection in line may take in before it is the next one's turn.
        round_bytes_max: what all of them take in before the loop turns.
    """

    cache_margin_percent: int = 5
    urgent_percent: int = 10
    backlog_operations_max: int = 1_000_000
    backlog_bytes_max: int = 0
    backlog_percent: int = 60
    segment_backlog_percent: int = 25
    segment_hold_s_max: float = 60.0
    quantum_bytes: int = 256 * 1024
    round_bytes_max: int = 4 * MIB

    def container_backlog_bytes_max(self, cache: CacheSettings) -> int:
        """Bytes of one container that may wait for long-term storage."""
        share = cache.bytes_max * self.backlog_percent // 100
        return min(share, self.backlog_bytes_max) if self.backlog_bytes_max else share

    def segment_backlog_bytes_max(self, cache: CacheSettings) -> int:
        """Bytes of one segment that may wait for long-term storage: a share of what may wait before others are held."""
        held_from = cache.bytes_max * (cache.target_percent + self.cache_margin_percent) // 100
        return min(held_from, self.container_backlog_bytes_max(cache)) * self.segment_backlog_percent // 100


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Limits of one client connection, and of all of them together. See docs/back-pressure.md.

    Attributes:
        ingest_bytes_max: memory that all connections together may fill with what they send and is not durable or
            answered yet; those that hold most are not read then.
        unacknowledged_bytes_max: of that, what one connection may fill, however much is free.
        ingest_wait_s: what a connection may have under way follows the rate at which that gets done, so that an append
            waits about so long for those before it, and for two syncs of the log ...
        ingest_window_bytes_min: ... but is never less than this, or, where so many connections have something under
            way that this would be more than a sixteenth of `ingest_bytes_max`, their share of that; 64 KiB at least.
        receive_buffer_bytes: what the kernel may hold of one connection that was received and not read (it doubles the
            number for its own needs).
        read_delay_s_max: a request waits so long at most behind appends of its connection that cannot be taken; then
            the writers of those are sent away, to set up again.
        write_buffer_bytes_max: replies waiting for a slow reader; above it no further requests are read.
        slow_reply_bytes: replies waiting on one connection from which on its reader counts as slow.
        slow_replies_bytes_max: replies waiting for all slow readers together, which may keep memory that the cache
            has let go; above it slow readers get no more, and others short answers only.
        handshake_timeout_s: time for the peer's Hello.
        frame_timeout_s: time for a begun frame to arrive completely.
        requests_max: requests under way on one connection, reads apart, before it is no longer read.
        reads_max: reads on one connection that need storage, or wait for their turn, before it is no longer read.
        tail_read_bytes_max: memory of reads on one connection that wait for bytes beyond the end of a segment, 800
            bytes each; further ones are answered at once, without bytes ...
        tail_reads_bytes_max: ... and of those on all connections together; each holds no more than is free.
        writer_bytes_max: memory of the writers that one connection has set up, 1 KiB each; a peer with more is
            disconnected, and sets those up again that it still uses ...
        writers_bytes_max: ... and of those of all connections together. Each connection holds no more than is free;
            further writers are refused as busy.
        transient_segments_max: large events that one connection may write at the same time; further ones are refused as
            busy.
        table_reads_max: reads of tables under way on one connection in each container. Each may hold a reply of 16 MiB
            that is partly made; replies are made only while the client takes them.
        connections_max: connections served at once; more are refused. Fewer when the process may not have so many
            descriptors, see `DescriptorSettings`.
        accept_backlog: connections waiting to be accepted.
        drain_timeout_s: how long a stopping server waits for replies to leave.
        dead_peers: when connections are dropped whose clients are gone without a word.
    """

    ingest_bytes_max: int = 128 * MIB
    unacknowledged_bytes_max: int = 32 * MIB
    ingest_wait_s: float = 0.05
    ingest_window_bytes_min: int = 512 * 1024
    receive_buffer_bytes: int = 256 * 1024
    read_delay_s_max: float = 5.0
    write_buffer_bytes_max: int = 8 * MIB
    slow_reply_bytes: int = 256 * 1024
    slow_replies_bytes_max: int = 256 * MIB
    handshake_timeout_s: float = 30.0
    frame_timeout_s: float = 60.0
    requests_max: int = 1024
    reads_max: int = 1024
    tail_read_bytes_max: int = 16 * MIB
    tail_reads_bytes_max: int = 64 * MIB
    writer_bytes_max: int = 8 * MIB
    writers_bytes_max: int = 64 * MIB
    transient_segments_max: int = 256
    table_reads_max: int = 32
    connections_max: int = 4096
    accept_backlog: int = 1024
    drain_timeout_s: float = 5.0
    dead_peers: DeadPeerSettings = field(default_factory=DeadPeerSettings)

    def within(self, budget: DescriptorBudget) -> ConnectionSettings:
        """Return these settings with no more connections than there are descriptors for."""
        return replace(
            self,
            connections_max=min(self.connections_max, budget.segment_store_connections),
            accept_backlog=min(self.accept_backlog, budget.accept_backlog),
        )


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The administrator's port: off unless enabled, and then best reachable from this machine alone.

    Attributes:
        is_enabled: whether to listen at all.
        host, port: where; 0 takes any free port.
        connections_max: administrators served at once; more are refused.
        handshake_timeout_s: time for the peer's Hello.
        frame_timeout_s: time for a begun request to arrive completely, and for an answer to be taken.
        frame_length_max: longest request in bytes.
        dead_peers: when connections are dropped whose administrators are gone without a word.
    """

    is_enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 9999
    connections_max: int = 16
    handshake_timeout_s: float = 30.0
    frame_timeout_s: float = 30.0
    frame_length_max: int = 64 * 1024
    dead_peers: DeadPeerSettings = field(default_factory=DeadPeerSettings)


@dataclass(frozen=True, slots=True)
class StorageGuardSettings:
    """How long-term storage is watched: whether it is there, and the one that it should be.

    Attributes:
        check_interval_s: its identity is read this often ...
        retry_interval_s: ... and this often while it is unavailable.
        check_timeout_s: storage that does not answer for so long is unavailable.
        check_attempts_max: so does one whose identity cannot be read this many times in a row: a single request that
            is refused, as storage does with whoever asks too often, says nothing of the rest ...
        check_retry_delay_s: ... with a pause of so long between them.
        missing_chunks_max: more chunks than this, found missing ...
        missing_window_s: ... within so long, mean that storage is unavailable ...
        missing_wait_s_max: ... until they are back, or for so long; then they are taken for lost.
    """

    check_interval_s: float = 10.0
    retry_interval_s: float = 1.0
    check_timeout_s: float = 10.0
    check_attempts_max: int = 3
    check_retry_delay_s: float = 0.1
    missing_chunks_max: int = 8
    missing_window_s: float = 60.0
    missing_wait_s_max: float = 600.0


@dataclass(frozen=True, slots=True)
class SegmentStoreSettings:
    """Settings of a segment store process.

    Attributes:
        container_count: number of containers of the whole cluster; fixed for the life of its data.
        parallel_starts: containers that recover at the same time.
        start_stall_timeout_s: a container's start that has not got on for so long is given up and tried again. However
            long a log is, it is read to its end as long as it can be read.
        stop_timeout_s: how long a container that is given away may take to stop before it is left to be fenced.
        restart_delay_s: pause before a failed container is started again, doubled up to `restart_delay_s_max`.
        disabled_retry_s: pause before a container whose log is disabled is tried again.
        assignment_interval_s: how often a store reads again which containers it is to run.
        bulk_requests_max: segments that one bulk call is about at the same time.
    """

    container_count: int = 4
    parallel_starts: int = 2
    start_stall_timeout_s: float = 60.0
    stop_timeout_s: float = 30.0
    restart_delay_s: float = 0.5
    restart_delay_s_max: float = 10.0
    disabled_retry_s: float = 60.0
    assignment_interval_s: float = 10.0
    bulk_requests_max: int = 32
    cache: CacheSettings = field(default_factory=CacheSettings)
    disk_cache: DiskCacheSettings = field(default_factory=DiskCacheSettings)
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    storage_guard: StorageGuardSettings = field(default_factory=StorageGuardSettings)
    container: ContainerSettings = field(default_factory=ContainerSettings)
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)

"""Settings of a segment store: shared state of its containers, connections, monitoring and administration.

Settings of each container are in `container_settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.model.sizes import MIB
from penstock.runtime.descriptors import DescriptorBudget
from penstock.runtime.fixed_values import fixed
from penstock.runtime.sockets import DeadPeerSettings
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.container_settings import ContainerSettings


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Memory for segment data that is not yet, or was recently, in long-term storage.

    Attributes:
        bytes_max: hard limit; at it connections are no longer read until the storage writer has freed space.
        target_percent: eviction of data that is safe in long-term storage begins here.
        essential_percent: from here on only data that long-term storage lacks is accepted.
        generation_s: granularity of the time of last use.
        entry_age_s_max: entries not used for this long are evicted even if there is room.
        eviction_entries_max: entries that one step of an eviction examines; other tasks run between steps.
        block_length: small appends are gathered into blocks of about this length.
        small_append_length: appends shorter than this are gathered, longer ones are kept as received.
    """

    bytes_max: int = 512 * MIB
    target_percent: int = 75
    essential_percent: int = 90
    generation_s: float = 1.0
    entry_age_s_max: float = 1800.0
    eviction_entries_max: int = fixed(512)
    block_length: int = fixed(64 * 1024)
    small_append_length: int = fixed(8 * 1024)

    @property
    def target_bytes(self) -> int:
        """Used bytes above which eviction begins."""
        return self.bytes_max * self.target_percent // 100

    @property
    def essential_bytes(self) -> int:
        """Used bytes from which on only essential data is accepted."""
        return self.bytes_max * self.essential_percent // 100


@dataclass(frozen=True, slots=True)
class DiskCacheSettings:
    """A second level of the cache on a local disk, for data evicted from memory. Empty after a start.

    Attributes:
        bytes_max: maximum size; 0: there is none.
        slot_bytes: length of the aligned ranges it stores; ideally equal to `read_ahead_bytes` of a container.
        piece_bytes_min: shorter pieces are not written.
        pending_bytes_max: bytes that wait to be written; data evicted above this limit is not stored.
        failures_max: after this many consecutive failures the disk is not used until the next start.
        pool: its threads and the time limit of a call; one that takes longer is a failure.
        close_timeout_s: how long the end of the process waits for the disk.
    """

    bytes_max: int = 0
    slot_bytes: int = fixed(1 * MIB)
    piece_bytes_min: int = fixed(4096)
    pending_bytes_max: int = fixed(16 * MIB)
    failures_max: int = fixed(8)
    pool: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=2, hung_count_max=8, timeout_s=10.0)
    )
    close_timeout_s: float = fixed(2.0)


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """When external operations are held, and how they are admitted. See docs/back-pressure.md.

    Attributes:
        cache_margin_percent: appends are held when the cache is this far above its target; they fill the room that
            evictions make. Urgent operations are held from `CacheSettings.essential_percent` on.
        urgent_percent: share of each other bound that only urgent operations may fill: group state, marks.
        backlog_operations_max: durable operations of one container that wait for long-term storage ...
        backlog_bytes_max: ... and their bytes; more are not admitted. 0: no limit but the next.
        backlog_percent: share of the cache that one container's bytes waiting for long-term storage may take.
        segment_backlog_percent: share of those (or of the level at which the cache holds appends, if that is less) that
            one segment may take; only appends to it are held beyond that, ...
        segment_hold_s_max: ... and refused after this long.
        quantum_bytes: bytes that one queued connection may submit before the next one's turn.
        round_bytes_max: bytes that all of them submit before the loop runs other tasks.
    """

    cache_margin_percent: int = fixed(5)
    urgent_percent: int = fixed(10)
    backlog_operations_max: int = 1_000_000
    backlog_bytes_max: int = 0
    backlog_percent: int = 60
    segment_backlog_percent: int = fixed(25)
    segment_hold_s_max: float = fixed(60.0)
    quantum_bytes: int = fixed(256 * 1024)
    round_bytes_max: int = fixed(4 * MIB)

    def container_backlog_bytes_max(self, cache: CacheSettings) -> int:
        """Maximum bytes of one container that may wait for long-term storage."""
        share = cache.bytes_max * self.backlog_percent // 100
        return min(share, self.backlog_bytes_max) if self.backlog_bytes_max else share

    def segment_backlog_bytes_max(self, cache: CacheSettings) -> int:
        """Maximum bytes of one segment that may wait for long-term storage, as a share of the limit for all."""
        held_from = cache.bytes_max * (cache.target_percent + self.cache_margin_percent) // 100
        return min(held_from, self.container_backlog_bytes_max(cache)) * self.segment_backlog_percent // 100


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Limits of one client connection, and of all of them together. See docs/back-pressure.md.

    Attributes:
        ingest_bytes_max: memory that all connections together may fill with incoming data that is not durable or
            answered yet; those that hold most are not read then.
        unacknowledged_bytes_max: of that, the maximum of one connection, however much is free.
        ingest_wait_s: the bytes in flight of a connection follow the rate at which they are completed, so that an
            append waits about this long for earlier ones, and for two syncs of the log ...
        ingest_window_bytes_min: ... but are never limited to less than this. If so many connections are active that
            this would be more than a sixteenth of `ingest_bytes_max`, the minimum is their share of that; at least 64
            KiB.
        receive_buffer_bytes: bytes of one connection that the kernel may hold received and unread (it doubles the
            number for its own needs).
        read_delay_s_max: maximum time that a request waits behind appends of its connection that cannot be accepted;
            then the writers of those get WrongHost, and set up again.
        write_buffer_bytes_max: replies waiting for a slow reader; above it no further requests are read.
        slow_reply_bytes: replies waiting on one connection from which on its reader counts as slow.
        slow_replies_bytes_max: replies waiting for all slow readers together, which may keep evicted cache memory
            alive; above it slow readers get no more, and others only short replies.
        handshake_timeout_s: time for the peer's Hello.
        frame_timeout_s: time for a begun frame to arrive completely.
        requests_max: concurrent requests on one connection, not counting reads, before it is no longer read.
        reads_max: reads on one connection that need storage, or are queued, before it is no longer read.
        tail_read_bytes_max: memory of reads on one connection that wait for bytes beyond the end of a segment, 800
            bytes each; further ones are answered at once, without bytes ...
        tail_reads_bytes_max: ... and of those on all connections together; each holds no more than is free.
        writer_bytes_max: memory of the writers that one connection has set up, 1 KiB each; a peer with more is
            disconnected, and sets up again those that it still uses ...
        writers_bytes_max: ... and of those of all connections together. Each connection holds no more than is free;
            further writers are refused as busy.
        transient_segments_max: large events that one connection may write concurrently; further ones are refused as
            busy.
        table_reads_max: concurrent reads of tables on one connection in each container. Each may hold a partly created
            reply of 16 MiB; replies are created only while the client reads them.
        connections_max: connections served at once; more are refused. Reduced if the process may not have that many
            descriptors, see `DescriptorSettings`.
        accept_backlog: connections waiting to be accepted.
        drain_timeout_s: how long a stopping server waits for replies to be sent.
        dead_peers: when connections to clients that have disappeared are dropped.
    """

    ingest_bytes_max: int = 128 * MIB
    unacknowledged_bytes_max: int = fixed(32 * MIB)
    ingest_wait_s: float = fixed(0.05)
    ingest_window_bytes_min: int = fixed(512 * 1024)
    receive_buffer_bytes: int = fixed(256 * 1024)
    read_delay_s_max: float = fixed(5.0)
    write_buffer_bytes_max: int = fixed(8 * MIB)
    slow_reply_bytes: int = fixed(256 * 1024)
    slow_replies_bytes_max: int = fixed(256 * MIB)
    handshake_timeout_s: float = 30.0
    frame_timeout_s: float = 60.0
    requests_max: int = fixed(1024)
    reads_max: int = fixed(1024)
    tail_read_bytes_max: int = fixed(16 * MIB)
    tail_reads_bytes_max: int = 64 * MIB
    writer_bytes_max: int = fixed(8 * MIB)
    writers_bytes_max: int = 64 * MIB
    transient_segments_max: int = 256
    table_reads_max: int = fixed(32)
    connections_max: int = 4096
    accept_backlog: int = fixed(1024)
    drain_timeout_s: float = fixed(5.0)
    dead_peers: DeadPeerSettings = field(default_factory=DeadPeerSettings)

    def within(self, budget: DescriptorBudget) -> ConnectionSettings:
        """Return these settings with no more connections than the descriptor budget allows."""
        return replace(
            self,
            connections_max=min(self.connections_max, budget.segment_store_connections),
            accept_backlog=min(self.accept_backlog, budget.accept_backlog),
        )


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The administration port: off unless enabled, and then best reachable only from this machine.

    Attributes:
        is_enabled: whether to listen at all.
        host, port: the address; port 0 takes any free port.
        connections_max: administrators served at once; more are refused.
        handshake_timeout_s: time for the peer's Hello.
        frame_timeout_s: time for a begun request to arrive completely, and for a reply to be read.
        frame_length_max: longest request in bytes.
        dead_peers: when connections to administrators that have disappeared are dropped.
    """

    is_enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 9999
    connections_max: int = fixed(16)
    handshake_timeout_s: float = fixed(30.0)
    frame_timeout_s: float = fixed(30.0)
    frame_length_max: int = fixed(64 * 1024)
    dead_peers: DeadPeerSettings = field(default_factory=DeadPeerSettings)


@dataclass(frozen=True, slots=True)
class StorageGuardSettings:
    """How presence and identity of long-term storage are monitored.

    Attributes:
        check_interval_s: its identity is read this often ...
        retry_interval_s: ... and this often while it is unavailable.
        check_timeout_s: storage that does not respond for this long is unavailable.
        check_attempts_max: so is storage whose identity cannot be read this many times in a row: a single refused
            request, such as by throttling, is not significant ...
        check_retry_delay_s: ... with a pause of this long between them.
        missing_chunks_max: more missing chunks than this ...
        missing_window_s: ... within this time mean that storage is unavailable ...
        missing_wait_s_max: ... until they are back, or for this long; then they are considered lost.
    """

    check_interval_s: float = 10.0
    retry_interval_s: float = 1.0
    check_timeout_s: float = 10.0
    check_attempts_max: int = fixed(3)
    check_retry_delay_s: float = fixed(0.1)
    missing_chunks_max: int = 8
    missing_window_s: float = fixed(60.0)
    missing_wait_s_max: float = fixed(600.0)


@dataclass(frozen=True, slots=True)
class SegmentStoreSettings:
    """Settings of a segment store process.

    Attributes:
        container_count: number of containers of the whole cluster; fixed for the life of its data.
        parallel_starts: containers that replay their logs concurrently. Claims of logs and waits for leases are not
            limited.
        start_stall_timeout_s: a container's start that makes no progress for this long is abandoned and retried.
            However long a log is, it is read to its end as long as it can be read.
        stop_timeout_s: time limit for stopping a container that is handed over, before it is left to be fenced.
        restart_delay_s: pause before a failed container is restarted, doubled up to `restart_delay_s_max`.
        disabled_retry_s: pause before a container whose log is disabled is retried.
        assignment_interval_s: how often a store reads its assignment of containers again.
        bulk_requests_max: segments that one bulk call processes concurrently.
    """

    container_count: int = 4
    parallel_starts: int = 2
    start_stall_timeout_s: float = 60.0
    stop_timeout_s: float = 30.0
    restart_delay_s: float = 0.5
    restart_delay_s_max: float = fixed(10.0)
    disabled_retry_s: float = fixed(60.0)
    assignment_interval_s: float = fixed(10.0)
    bulk_requests_max: int = fixed(32)
    cache: CacheSettings = field(default_factory=CacheSettings)
    disk_cache: DiskCacheSettings = field(default_factory=DiskCacheSettings)
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    storage_guard: StorageGuardSettings = field(default_factory=StorageGuardSettings)
    container: ContainerSettings = field(default_factory=ContainerSettings)
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)

"""Settings of a segment store: every bound, threshold and time-out of the data plane has its name here."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Memory for segment data that is not yet, or was lately, in long-term storage.

    Attributes:
        bytes_max: hard limit; at it connections are no longer read until the storage writer has made room.
        target_percent: eviction of data that is safe in long-term storage begins here.
        block_length: small appends are gathered into blocks of about this length.
        small_append_length: appends shorter than this are gathered, longer ones are kept as they came.
    """

    bytes_max: int = 512 * MIB
    target_percent: int = 75
    block_length: int = 64 * 1024
    small_append_length: int = 16 * 1024

    @property
    def target_bytes(self) -> int:
        """Bytes in use above which eviction begins."""
        return self.bytes_max * self.target_percent // 100


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """How one segment container works.

    Attributes:
        checkpoint_log_bytes: a metadata checkpoint is written after this many bytes of log.
        checkpoint_log_bytes_idle: the same when everything is flushed and nothing else is going on.
        checkpoints_max: checkpoints remembered that the log may be truncated to once all before them is flushed.
        flush_bytes: a segment is flushed to long-term storage when this much is waiting ...
        flush_age_s: ... or when its oldest waiting byte is this old.
        flush_write_bytes_max: longest single write to long-term storage.
        flush_concurrency: segments flushed at the same time.
        writer_interval_s: how often the storage writer looks for due work.
        writer_retry_s: pause after a failed round of the storage writer.
        outstanding_bytes_max: bytes accepted but not yet synced to tier 1 before connections are held.
        read_ahead_bytes: a read from long-term storage is extended to the next multiple of this.
        whole_read_bytes: a read of at most this length gets all bytes that exist, wherever they are; some clients do
            not ask again. Longer reads may come short.
        storage_reads_max: reads from long-term storage under way at once.
        waiting_reads_max: tail reads parked at once on one segment.
        table_compact_bytes: a table's log is compacted when it is at least this long and mostly dead.
        table_compact_step_bytes: how much of the log one compaction step goes over.
        table_utilisation_percent: live bytes below this share of a table's log make it mostly dead.
        stop_timeout_s: how long a graceful stop may take before it is abandoned.
    """

    checkpoint_log_bytes: int = 64 * MIB
    checkpoint_log_bytes_idle: int = 1 * MIB
    checkpoints_max: int = 64
    flush_bytes: int = 4 * MIB
    flush_age_s: float = 30.0
    flush_write_bytes_max: int = 8 * MIB
    flush_concurrency: int = 4
    writer_interval_s: float = 0.25
    writer_retry_s: float = 1.0
    outstanding_bytes_max: int = 64 * MIB
    read_ahead_bytes: int = 1 * MIB
    whole_read_bytes: int = 64 * 1024
    storage_reads_max: int = 8
    waiting_reads_max: int = 10_000
    table_compact_bytes: int = 1 * MIB
    table_compact_step_bytes: int = 1 * MIB
    table_utilisation_percent: int = 50
    stop_timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Limits of one client connection.

    Attributes:
        unacknowledged_bytes_max: bytes of appends and requests taken from one connection and not yet answered;
            reading stops there.
        write_buffer_bytes_max: replies waiting for a slow reader; above it no further requests are read.
        handshake_timeout_s: time for the peer's Hello.
        frame_timeout_s: time for a begun frame to arrive completely.
        requests_max: requests under way on one connection, reads apart, before it is no longer read.
        reads_max: reads on one connection that wait for data or storage; a peer with more is disconnected.
        writers_max: writers set up on one connection.
        connections_max: connections served at once; more are refused.
        accept_backlog: connections waiting to be accepted.
        drain_timeout_s: how long a stopping server waits for replies to leave.
    """

    unacknowledged_bytes_max: int = 32 * MIB
    write_buffer_bytes_max: int = 8 * MIB
    handshake_timeout_s: float = 30.0
    frame_timeout_s: float = 60.0
    requests_max: int = 1024
    reads_max: int = 16_384
    writers_max: int = 8192
    connections_max: int = 4096
    accept_backlog: int = 1024
    drain_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class SegmentStoreSettings:
    """Settings of a segment store process.

    Attributes:
        container_count: number of containers of the whole cluster; fixed for the life of its data.
        parallel_starts: containers that recover at the same time.
        restart_delay_s: pause before a failed container is started again, doubled up to `restart_delay_s_max`.
        disabled_retry_s: pause before a container whose log is disabled is tried again.
    """

    container_count: int = 4
    parallel_starts: int = 2
    restart_delay_s: float = 0.5
    restart_delay_s_max: float = 10.0
    disabled_retry_s: float = 60.0
    cache: CacheSettings = field(default_factory=CacheSettings)
    container: ContainerSettings = field(default_factory=ContainerSettings)
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)

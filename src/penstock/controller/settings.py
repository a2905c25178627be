"""`ControllerSettings`: every bound, timeout and default of the controller.

Source: controller-internals 18; controller-api 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.runtime.fixed_values import fixed
from penstock.runtime.sockets import DeadPeerSettings


@dataclass(frozen=True, slots=True)
class AutoScalingSettings:
    """How often the controller inspects the load of segments, and what it remembers of that.

    Attributes:
        is_enabled: whether streams are scaled by their load; if not, their policies are only stored.
        interval_s: pause between two inspections of all containers.
        answer_timeout_s: time limit for a container to report which scales its loads call for.
        mute_s: after an inspection without result, a segment is not inspected again for this long.
        mutes_max: maximum number of such segments that are remembered.
        containers_at_once: containers queried concurrently.
        streams_at_once: streams inspected concurrently.
        bucket_count: buckets of streams that are distributed among the controllers.
    """

    is_enabled: bool = True
    interval_s: float = 120.0
    answer_timeout_s: float = fixed(10.0)
    mute_s: float = 600.0
    mutes_max: int = fixed(100_000)
    containers_at_once: int = fixed(16)
    streams_at_once: int = fixed(64)
    bucket_count: int = fixed(100)


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """How often watermarks are computed from the times that writers note, and at what cost.

    Attributes:
        is_enabled: whether watermarks are computed; if not, writers' times are only stored.
        interval_s: pause between two inspections of the streams on which writers have noted times.
        streams_at_once: streams inspected concurrently.
        stream_timeout_s: time limit for the inspection of one stream.
        truncation_bytes_max: bytes of watermarks that one cycle checks for removal.
        relist_s: interval at which a controller lists a stream with marks again.
    """

    is_enabled: bool = True
    interval_s: float = 10.0
    streams_at_once: int = fixed(16)
    stream_timeout_s: float = fixed(60.0)
    truncation_bytes_max: int = fixed(1024 * 1024)
    relist_s: float = fixed(600.0)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How often streams with a retention policy are inspected, and how fine-grained the record of their past is.

    Attributes:
        is_enabled: whether streams are truncated by their policies; if not, policies are only stored.
        interval_s: pause between two inspections of the streams that have a policy.
        streams_at_once: streams inspected concurrently.
        stream_timeout_s: time limit for the inspection of one stream, truncation included.
        answer_timeout_s: time limit for a container to report the lengths of segments of streams without new data.
        cuts_in_minimum: number of cuts recorded over a policy's minimum: a stream keeps more than the minimum by up to
            one such part, plus the data that arrives between two inspections.
        cuts_max: maximum number of cuts recorded over a policy's maximum; with longer maxima they are further apart.
        cut_interval_s_min: minimum time between two cuts of a policy by time.
        cut_interval_s_max: maximum time between two cuts of a policy by time.
        explained_cuts_max: maximum number of recorded cuts, the newest, in one explanation of retained data.
        explained_subscribers_max: maximum number of subscribers in one explanation, those that hold back truncation
            first.
    """

    is_enabled: bool = True
    interval_s: float = 30.0
    streams_at_once: int = fixed(16)
    stream_timeout_s: float = fixed(600.0)
    answer_timeout_s: float = fixed(5.0)
    cuts_in_minimum: int = fixed(64)
    cuts_max: int = fixed(4096)
    cut_interval_s_min: float = fixed(1.0)
    cut_interval_s_max: float = fixed(1800.0)
    explained_cuts_max: int = fixed(1000)
    explained_subscribers_max: int = fixed(100)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Bounds, timeouts and defaults of a controller.

    Attributes:
        lease_ms_min: shortest transaction lease that may be requested at creation.
        lease_ms_max: longest transaction lease, at creation and in a ping.
        lease_slack_ms: time after the end of its lease at which a transaction is aborted. Not 0: the Rust client pings
            exactly when the lease ends.
        transaction_lifetime_ms_max: a transaction ends after this time however often it is pinged.
        transaction_lifetime_leases_max: the same limit as a multiple of its first lease; the smaller limit applies.
        prepared_limit_s_max: longest time that a prepared transaction may wait for its decision, after it was last
            prepared.
        transactions_open_max: open transactions that one controller keeps timers for.
        commit_positions_max: positions in a stream's commit order that one write reserves.
        transaction_id_range: ids taken from the shared counter at a time.
        completed_transaction_ttl_ms: minimum time that the outcome of a transaction is kept (at most twice that).
        completed_transactions_listed_max: entries in a listing of completed transactions.
        commit_batch_max: transactions merged, or aborted, by one run of a workflow; other workflows on the stream may
            run before the next.
        commit_batches_max: batches of transactions that one run merges in succession; fewer once they contain
            `commit_batch_max` transactions in total.
        removal_delay_ms: time that unreferenced rows of ended transactions wait for more, to be removed with one
            request.
        removal_rows_max: rows that one such request removes.
        shared_writes_max: records of a table, written at the same moment, that are sent with one request.
        workflow_timeout_s: time that a caller waits for a workflow; the workflow continues after that.
        peer_poll_ms: interval at which work of another controller is checked for its end.
        sweep_interval_s: time between two searches for announced work whose owner is no longer alive.
        transaction_sweep_interval_s: the same for transactions that no controller manages.
        turn_timeout_ms: a waiter that does not begin within this time of its turn is skipped. Should be many times
            `peer_poll_ms`.
        waiting_requests_max: names in the waiting line of one of the 64 buckets of subjects; further ones wait without
            a place in line.
        workflow_concurrency_max: background workflows that hold a slot at the same time.
        work_slot_s: longest time that a background workflow holds its slot; after that it continues without one.
        segment_requests_max: requests in flight to the segments of one container.
        segment_batch_max: segments in one batch request to a container.
        segment_batches_max: batch requests in flight to one container.
        segments_per_stream_max: maximum number of initial segments of a stream.
        attempts_max: attempts of a request that failed in a way that is safe to repeat.
        retry_delay_ms_first: wait before the second attempt; ten times more before each further one.
        retry_delay_ms_max: longest wait between two attempts.
        moved_retry_delay_ms_max: the same, where several segment stores run: a container that moves to another store
            serves there within seconds. There are more attempts then, so that all waits together are not shorter.
        damaged_retry_delay_ms: wait between two attempts of background work that reads damaged data.
        given_up_records_max: records kept of work that was given up, the newest.
        conflict_attempts_max: attempts of a read-modify-write that lost against another controller's.
        conflict_delay_ms_first: longest wait before the second attempt of an announcement that lost against another
            one; the wait is random, with a bound that doubles before each further attempt ...
        conflict_delay_ms_max: ... and never exceeds this.
        seal_rounds_max: how often a seal checks again for transactions that are still open.
        retention_bucket_count: buckets of streams with a retention policy, distributed among the controllers.
        watermarking_bucket_count: the same for streams with marks of writers.
        page_entries_max: names in one page of a listing.
        described_groups_max: reader groups in one page of a listing with their positions in streams.
        described_groups_at_once: groups of such a page that are read concurrently.
        id_cache_entries_max: scope and stream ids that are cached.
        rpc_concurrency_max: gRPC calls that hold a slot at the same time; further ones are answered UNAVAILABLE.
        rpc_slot_s: longest time that a call holds its slot; after that it moves to the waiting room.
        rpc_waiting_max: places of the waiting room; a call that finds none is answered UNAVAILABLE.
        rpc_share_max: calls about one subject, and calls that wait for one container, in slots and waiting room
            together; further ones are answered UNAVAILABLE. Less than `rpc_concurrency_max`.
        dead_peers: when connections to clients that vanished without closing them are dropped; over gRPC an idle
            connection is probed once, and the client has the rest of `dead_peers.timeout_s` to answer.
        message_bytes_max: largest gRPC message; a call with a longer reply is answered OUT_OF_RANGE. Java's client
            accepts no more than 4 MiB.
        auto_scaling: how streams are scaled by their load.
        watermarks: how watermarks are computed from the times that writers note.
        retention: how streams are truncated by their policies.
    """

    lease_ms_min: int = 10_000
    lease_ms_max: int = 600_000
    lease_slack_ms: int = fixed(5_000)
    transaction_lifetime_ms_max: int = 86_400_000
    transaction_lifetime_leases_max: int = fixed(1000)
    prepared_limit_s_max: int = 604_800
    transactions_open_max: int = fixed(100_000)
    commit_positions_max: int = fixed(100)
    transaction_id_range: int = fixed(10_000)
    completed_transaction_ttl_ms: int = 86_400_000
    completed_transactions_listed_max: int = fixed(500)
    commit_batch_max: int = fixed(100)
    commit_batches_max: int = fixed(4)
    removal_delay_ms: int = fixed(200)
    removal_rows_max: int = fixed(100)
    shared_writes_max: int = fixed(100)
    workflow_timeout_s: float = 120.0
    peer_poll_ms: int = fixed(200)
    sweep_interval_s: float = fixed(3.0)
    transaction_sweep_interval_s: float = fixed(60.0)
    turn_timeout_ms: int = fixed(5_000)
    waiting_requests_max: int = fixed(100)
    workflow_concurrency_max: int = fixed(64)
    work_slot_s: float = fixed(1.0)
    segment_requests_max: int = fixed(64)
    segment_batch_max: int = fixed(256)
    segment_batches_max: int = fixed(4)
    segments_per_stream_max: int = 10_000
    attempts_max: int = fixed(10)
    retry_delay_ms_first: int = fixed(100)
    retry_delay_ms_max: int = fixed(10_000)
    moved_retry_delay_ms_max: int = fixed(1_000)
    damaged_retry_delay_ms: int = fixed(60_000)
    given_up_records_max: int = fixed(1000)
    conflict_attempts_max: int = fixed(20)
    conflict_delay_ms_first: int = fixed(5)
    conflict_delay_ms_max: int = fixed(100)
    seal_rounds_max: int = fixed(100)
    retention_bucket_count: int = fixed(1)
    watermarking_bucket_count: int = fixed(100)
    page_entries_max: int = fixed(1000)
    described_groups_max: int = fixed(100)
    described_groups_at_once: int = fixed(16)
    id_cache_entries_max: int = fixed(10_000)
    rpc_concurrency_max: int = 2048
    rpc_slot_s: float = fixed(1.0)
    rpc_waiting_max: int = fixed(4096)
    rpc_share_max: int = fixed(1024)
    dead_peers: DeadPeerSettings = field(default_factory=DeadPeerSettings)
    message_bytes_max: int = 4 * 1024 * 1024
    auto_scaling: AutoScalingSettings = field(default_factory=AutoScalingSettings)
    watermarks: WatermarkSettings = field(default_factory=WatermarkSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)

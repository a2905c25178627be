"""`ControllerSettings`: every bound, time-out and default of the controller.

Source: controller internals specification, section 18; controller API specification, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.runtime.sockets import DeadPeerSettings


@dataclass(frozen=True, slots=True)
class AutoScalingSettings:
    """How often the controller looks at loads, and what it remembers of that.

    Attributes:
        is_enabled: whether streams are scaled by their load at all; else their policies are stored, and no more.
        interval_s: pause between two looks at all containers.
        answer_timeout_s: how long a container may take to say what its loads ask for.
        mute_s: a segment that was looked at in vain is not looked at again for so long.
        mutes_max: such segments that are remembered.
        containers_at_once: containers asked at the same time.
        streams_at_once: streams looked at at the same time.
        bucket_count: buckets of streams that the controllers share out among each other.
    """

    is_enabled: bool = True
    interval_s: float = 120.0
    answer_timeout_s: float = 10.0
    mute_s: float = 600.0
    mutes_max: int = 100_000
    containers_at_once: int = 16
    streams_at_once: int = 64
    bucket_count: int = 100


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """How often watermarks are made of the times that writers note, and at what cost.

    Attributes:
        is_enabled: whether watermarks are made at all; else writers' times are kept, and no more.
        interval_s: pause between two looks at the streams on which writers have noted times.
        streams_at_once: streams looked at at the same time.
        stream_timeout_s: how long a look at one stream may take.
        truncation_bytes_max: watermarks, in bytes, that are looked at in one cycle, whether they are still needed.
        relist_s: a controller lists a stream with marks anew after this time.
    """

    is_enabled: bool = True
    interval_s: float = 10.0
    streams_at_once: int = 16
    stream_timeout_s: float = 60.0
    truncation_bytes_max: int = 1024 * 1024
    relist_s: float = 600.0


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How often streams with a retention policy are looked at, and how finely their past is known.

    Attributes:
        is_enabled: whether streams are truncated by their policies at all; else policies are stored, and no more.
        interval_s: pause between two looks at the streams that have a policy.
        streams_at_once: streams looked at at the same time.
        stream_timeout_s: how long a look at one stream may take, truncation included.
        answer_timeout_s: how long a container may take to say how long segments are, of streams that got nothing new.
        cuts_in_minimum: cuts that are recorded of what a policy keeps at least: it keeps more by up to one of so many
            parts, and by what comes between two looks.
        cuts_max: cuts that are recorded of what a policy keeps at most; then they are further apart.
        cut_interval_s_min: time between two cuts of a policy by time, at least.
        cut_interval_s_max: the same, at most.
        explained_cuts_max: recorded cuts, the newest ones, that one explanation of what is kept has.
        explained_subscribers_max: subscribers that it has, those that hold the others back before the rest.
    """

    is_enabled: bool = True
    interval_s: float = 30.0
    streams_at_once: int = 16
    stream_timeout_s: float = 600.0
    answer_timeout_s: float = 5.0
    cuts_in_minimum: int = 64
    cuts_max: int = 4096
    cut_interval_s_min: float = 1.0
    cut_interval_s_max: float = 1800.0
    explained_cuts_max: int = 1000
    explained_subscribers_max: int = 100


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Bounds and times of a controller.

    Attributes:
        lease_ms_min: shortest transaction lease that may be asked for at creation.
        lease_ms_max: longest transaction lease, at creation and in a ping.
        lease_slack_ms: how long after its lease a transaction is aborted. Not 0: the Rust client pings exactly when
            the lease ends.
        transaction_lifetime_ms_max: a transaction ends after this time however often it is pinged.
        transaction_lifetime_leases_max: the same limit as a multiple of its first lease; the smaller one counts.
        prepared_limit_s_max: the longest that a prepared transaction may wait for its decision, after it was prepared
            last.
        transactions_open_max: open transactions that one controller keeps timers for.
        commit_positions_max: positions in a stream's commit order that are taken with one write.
        transaction_id_range: ids taken from the shared counter at a time.
        completed_transaction_ttl_ms: how long the outcome of a transaction is kept at least (at most twice that).
        completed_transactions_listed_max: entries in a listing of completed transactions.
        commit_batch_max: transactions merged, or aborted, by one run of a workflow: then others of the stream have
            their turn.
        commit_batches_max: batches of transactions that one run merges, one right after the other, while there are no
            more than `commit_batch_max` transactions in them.
        removal_delay_ms: how long rows of ended transactions that lead nowhere any more wait for others, to be removed
            with one request.
        removal_rows_max: rows that one such request removes.
        shared_writes_max: records of a table, written at the same moment, that go with one request.
        workflow_timeout_s: how long a caller waits for a workflow; the workflow goes on after that.
        peer_poll_ms: time between two looks at work that another controller is at, for who waits for its end.
        sweep_interval_s: time between two searches for announced work whose owner is not alive any more.
        transaction_sweep_interval_s: the same for transactions that no controller looks after.
        turn_timeout_ms: who waits in line, and does not begin for so long when its turn has come, is passed over. Many
            times `peer_poll_ms`.
        waiting_requests_max: names in the line of one of the 64 buckets of subjects; further ones wait without.
        workflow_concurrency_max: background workflows that hold a slot at the same time.
        work_slot_s: how long a background workflow holds its slot at most; one that takes longer goes on without.
        segment_requests_max: requests to the segments of one container on their way at the same time.
        segment_batch_max: segments that one request to a container is about, where it may be about many.
        segment_batches_max: such requests to one container on their way at the same time.
        segments_per_stream_max: initial segments a stream may ask for.
        attempts_max: attempts of a request that failed in a way that is safe to repeat.
        retry_delay_ms_first: wait before the second attempt; ten times more before each further one.
        retry_delay_ms_max: longest wait between two attempts.
        damaged_retry_delay_ms: wait between two attempts of background work that meets damaged data.
        given_up_records_max: pieces of work that are kept on record after they were given up, the newest.
        conflict_attempts_max: attempts of a read-decide-write that lost against another controller's.
        conflict_delay_ms_first: longest wait before the second attempt of an announcement that lost against another
            one; it is drawn by chance, up to twice as long before each further one ...
        conflict_delay_ms_max: ... and never longer than this.
        seal_rounds_max: how often a seal looks again for transactions that are still open.
        retention_bucket_count: buckets of streams whose retention is looked after, shared out among the controllers.
        watermarking_bucket_count: the same of streams with marks of writers.
        page_entries_max: names in one page of a listing.
        described_groups_max: reader groups in one page that says what each holds of its streams.
        described_groups_at_once: those of them that are looked at at the same time.
        id_cache_entries_max: scope and stream ids remembered.
        rpc_concurrency_max: gRPC calls that hold a slot at the same time; further ones are answered UNAVAILABLE.
        rpc_slot_s: how long a call holds its slot at most; a call that takes longer moves to the waiting room.
        rpc_waiting_max: places of the waiting room; a call that finds none is answered UNAVAILABLE.
        rpc_share_max: calls about one subject, and calls that wait for one container, in slots and waiting room
            together; further ones are answered UNAVAILABLE. Less than `rpc_concurrency_max`.
        dead_peers: when connections are dropped whose clients are gone without a word; over gRPC an idle connection is
            probed once, and the client has the rest of `dead_peers.timeout_s` to answer.
        message_bytes_max: largest gRPC message; a call with a longer reply is answered OUT_OF_RANGE. Java's client
            takes no more than 4 MiB.
        auto_scaling: how streams are scaled by their load.
        watermarks: how watermarks are made of the times that writers note.
        retention: how streams are truncated as their policies say.
    """

    lease_ms_min: int = 10_000
    lease_ms_max: int = 600_000
    lease_slack_ms: int = 5_000
    transaction_lifetime_ms_max: int = 86_400_000
    transaction_lifetime_leases_max: int = 1000
    prepared_limit_s_max: int = 604_800
    transactions_open_max: int = 100_000
    commit_positions_max: int = 100
    transaction_id_range: int = 10_000
    completed_transaction_ttl_ms: int = 86_400_000
    completed_transactions_listed_max: int = 500
    commit_batch_max: int = 100
    commit_batches_max: int = 4
    removal_delay_ms: int = 200
    removal_rows_max: int = 100
    shared_writes_max: int = 100
    workflow_timeout_s: float = 120.0
    peer_poll_ms: int = 200
    sweep_interval_s: float = 3.0
    transaction_sweep_interval_s: float = 60.0
    turn_timeout_ms: int = 5_000
    waiting_requests_max: int = 100
    workflow_concurrency_max: int = 64
    work_slot_s: float = 1.0
    segment_requests_max: int = 64
    segment_batch_max: int = 256
    segment_batches_max: int = 4
    segments_per_stream_max: int = 10_000
    attempts_max: int = 10
    retry_delay_ms_first: int = 100
    retry_delay_ms_max: int = 10_000
    damaged_retry_delay_ms: int = 60_000
    given_up_records_max: int = 1000
    conflict_attempts_max: int = 20
    conflict_delay_ms_first: int = 5
    conflict_delay_ms_max: int = 100
    seal_rounds_max: int = 100
    retention_bucket_count: int = 1
    watermarking_bucket_count: int = 100
    page_entries_max: int = 1000
    described_groups_max: int = 100
    described_groups_at_once: int = 16
    id_cache_entries_max: int = 10_000
    rpc_concurrency_max: int = 2048
    rpc_slot_s: float = 1.0
    rpc_waiting_max: int = 4096
    rpc_share_max: int = 1024
    dead_peers: DeadPeerSettings = field(default_factory=DeadPeerSettings)
    message_bytes_max: int = 4 * 1024 * 1024
    auto_scaling: AutoScalingSettings = field(default_factory=AutoScalingSettings)
    watermarks: WatermarkSettings = field(default_factory=WatermarkSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)

"""`ClientSettings`: every bound, time-out and interval of the client, by name."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.model.sizes import MIB
from penstock.wire.connection import ConnectionSettings


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Resource bounds and time limits of a client.

    Attributes:
        connect_timeout_s: one attempt to connect to a segment store, Hello included.
        request_timeout_s: one request to a segment store; long polls are exempt.
        keepalive_interval_s: a connection that received nothing for this long is probed, and replaced if the probe is
            not answered within the same time again. Connections to the controller are probed only while calls are in
            progress.
        endpoint_count_max: cached segment -> host entries.
        bulk_request_count_max: concurrent requests of one bulk call.

        controller_request_timeout_s: one attempt of a controller call.
        controller_silence_s: with several controllers, a call that waits for this long makes the client send a request
            for a sign of life. Without an answer within the same time again, the call is repeated at another one.
        controller_reply_bytes_max: largest accepted reply of a controller.
        controller_attempt_count_max: attempts of a controller call that fails with transient errors; the time limit
            usually expires first.
        first_contact_timeout_s: how long a client that has never reached its controller waits for a connection.

        retry_time_max_s: how long one call may take while the server is unavailable, all of its requests included. A
            writer and reading ahead count from the first failure since the last success.
        retry_delay_initial_s, retry_delay_max_s, retry_delay_factor: exponential back-off, each delay drawn from the
            upper half of its range.
        wait_notice_after_s: a wait for a server that takes this long is logged, with its reason and the time left.
        wait_notice_interval_s: interval at which that is logged again while the wait lasts.

        block_bytes_max: an append block is sent at the latest when it has this many bytes.
        pipelined_block_bytes_min: while a block is in flight, the next one is sent once it has this many bytes; fewer,
            but at least 4096, are enough while acknowledgements take long.
        in_flight_block_count_max, in_flight_bytes_max: unacknowledged blocks of one segment on the wire ...
        slow_in_flight_bytes_max: ... and their bytes if the store acknowledges slowly, as with its log in a bucket: a
            few times what it acknowledges in one round trip, at most this.
        max_unacknowledged_bytes: events of one writer that are not durable yet; a write past this bound waits.
        write_turn_event_count_max: events that single writes take before they yield to the event loop; for `write_many`
            four times this number, ...
        write_turn_bytes_max: ... and bytes that they take before they yield.
        spread_turn_event_count_max: events of a sealed segment that are moved to its successors before yielding to the
            event loop; a block at most.
        routing_cache_size_max: cached routing keys of one writer, each with its segment.
        routing_cache_bytes_max: memory of these keys, in bytes.
        large_event_bytes_max: the largest event accepted; past `EVENT_LENGTH_MAX` it is written through a transient
            segment.

        read_bytes: bytes requested by one read of a segment.
        read_ahead_block_count: blocks read ahead of the consumer, per segment.
        reader_read_ahead_bytes_max: bytes read ahead by one reader, in all its segments together; a larger single event
            is still read.
        reader_segment_count_max: segments that one reader reads at the same time.
        reader_rotation_interval_s: interval at which a reader of that many segments releases some of them in exchange
            for segments that no reader holds.
        position_interval_s: interval at which a reader stores its positions and renews its heartbeat.
        reader_timeout_s: a reader whose state has not changed for this long is declared dead by another one. For groups
            created here; an existing group has its own value.
        processing_time_max_s: an application that has not read for this long loses its segments if other readers lack
            segments. For groups created here, as above.
        reader_close_timeout_s: how long closing a reader tries to store its positions and leave its group.
        reader_group_update_count_max: attempts at one compare-and-set of the reader-group state.
        reader_group_refresh_s: interval at which a reader checks for segments to take over.
        reader_group_stream_refresh_s: interval at which one reader of a group checks for added and removed streams, by
            the group's patterns and its configuration in the controller.
        reader_group_publish_interval_s: interval at which a group that retains data reports to the controller which
            data it no longer needs.
        reader_group_checkpoint_interval_s: interval of a group's automatic checkpoints. For groups created here, as
            above.

        reader_time_window_refresh_s: interval at which `Reader.time_window` checks for new watermarks, once it has read
            all.

        close_timeout_s: how long closing a client, writer, reader or group may take: flushing and storing positions.
        exit_timeout_s: how long the end of the program waits for unflushed events of blocking clients.

        statistics_timeout_s: how long one segment store may take to report its state. The whole call may take twice as
            long, plus the same again for reader groups.
        statistics_extent_age_s: how old the cached start of a segment may be in the lag of a group.

        layout_timeout_s: total time to obtain the chunks of a range of a segment, or to return their lease.
        layout_chunk_count_max: chunks of one layout; data after them is read through the store.
        direct_read_timeout_s: one read of long-term storage itself; after it, the read goes through the store.

        table_batch_key_count_max, table_batch_bytes_max: keys and bytes of one request that changes a table; larger
            changes are split. An atomic change must fit into one request.
        table_read_key_count_max: keys of one request to read a table. If their entries do not fit into one reply, fewer
            are requested at a time.
        table_page_entry_count: entries per request while a table is scanned.
        table_scan_ahead_bytes_max: bytes that a scan reads ahead over all partitions of a table, one page of each,
            estimated from the page before it.
        table_request_count_max: concurrent requests of one call on a table.
        table_update_count_max: attempts at one read-modify-write of a key.
        table_watch_interval_s: interval at which a watched table is polled.
        table_watch_key_count_max: keys whose versions one watch remembers.

        batch_range_count_max: default number of ranges that `BatchReader.read_all` reads at the same time.

        shared_state_update_count_max: attempts at one change of a shared state.

        transaction_lease_s: default lease of a transaction; it is renewed after a third of it.
        prepared_limit_s: default time that a prepared transaction waits for its decision.
        list_page_count_max: pages fetched for one listing.
    """

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    keepalive_interval_s: float = 6.0
    endpoint_count_max: int = 65536
    bulk_request_count_max: int = 256

    controller_request_timeout_s: float = 30.0
    controller_silence_s: float = 2.0
    controller_reply_bytes_max: int = 64 * MIB
    controller_attempt_count_max: int = 1000
    first_contact_timeout_s: float = 1.5

    retry_time_max_s: float = 60.0
    retry_delay_initial_s: float = 0.01
    retry_delay_max_s: float = 2.0
    retry_delay_factor: float = 2.0
    wait_notice_after_s: float = 3.0
    wait_notice_interval_s: float = 10.0

    block_bytes_max: int = MIB
    pipelined_block_bytes_min: int = 128 * 1024
    in_flight_block_count_max: int = 4
    in_flight_bytes_max: int = 8 * MIB
    slow_in_flight_bytes_max: int = 32 * MIB
    max_unacknowledged_bytes: int = 64 * MIB
    write_turn_event_count_max: int = 1024
    write_turn_bytes_max: int = MIB
    spread_turn_event_count_max: int = 4096
    routing_cache_size_max: int = 65536
    routing_cache_bytes_max: int = 16 * 1024 * 1024
    large_event_bytes_max: int = 1024 * MIB

    read_bytes: int = MIB
    read_ahead_block_count: int = 2
    reader_read_ahead_bytes_max: int = 32 * MIB
    reader_segment_count_max: int = 4096
    reader_rotation_interval_s: float = 10.0
    position_interval_s: float = 3.0
    reader_timeout_s: float = 30.0
    processing_time_max_s: float = 300.0
    reader_close_timeout_s: float = 5.0
    reader_group_update_count_max: int = 100
    reader_group_refresh_s: float = 1.0
    reader_group_stream_refresh_s: float = 10.0
    reader_group_publish_interval_s: float = 10.0
    reader_group_checkpoint_interval_s: float = 30.0
    reader_time_window_refresh_s: float = 1.0

    close_timeout_s: float = 30.0
    exit_timeout_s: float = 10.0

    statistics_timeout_s: float = 2.0
    statistics_extent_age_s: float = 10.0

    layout_timeout_s: float = 10.0
    layout_chunk_count_max: int = 10_000
    direct_read_timeout_s: float = 15.0

    table_batch_key_count_max: int = 256
    table_batch_bytes_max: int = 8 * MIB
    table_read_key_count_max: int = 256
    table_page_entry_count: int = 2000
    table_scan_ahead_bytes_max: int = 8 * MIB
    table_request_count_max: int = 8
    table_update_count_max: int = 100
    table_watch_interval_s: float = 0.5
    table_watch_key_count_max: int = 1_000_000

    batch_range_count_max: int = 4

    shared_state_update_count_max: int = 100

    transaction_lease_s: float = 90.0
    prepared_limit_s: float = 86_400.0
    list_page_count_max: int = 10000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"client setting {name} is {getattr(self, name)}: it must be above 0")
        if self.block_bytes_max > 8 * MIB:
            raise InvalidArgumentError(f"block_bytes_max is {self.block_bytes_max}: the limit is 8 MiB")

    def connection(self) -> ConnectionSettings:
        """Return the settings of a connection."""
        return ConnectionSettings(
            connect_timeout_s=self.connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            keepalive_interval_s=self.keepalive_interval_s,
        )

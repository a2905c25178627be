"""`ClientSettings`: every bound, time-out and interval of the client, by name."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.wire.connection import ConnectionSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client may use and how long it tries.

    Attributes:
        connect_timeout_s: one attempt to connect to a segment store, Hello included.
        request_timeout_s: one request to a segment store; long polls are not bound by it.
        keepalive_interval_s: a connection on which nothing was received for so long is probed, and is replaced when the
            probe is not answered within as long again; of the controller, while calls are under way.
        endpoint_count_max: cached segment -> host answers.
        bulk_request_count_max: requests of one bulk call that wait for replies at the same time.

        controller_request_timeout_s: one attempt of a controller call.
        controller_reply_bytes_max: longest reply of a controller.
        controller_attempt_count_max: attempts of a controller call that fails in a passing way; most often the
            time is used up before.
        first_contact_timeout_s: how long a client that has never reached its controller waits for a connection.

        retry_time_max_s: how long one call may take while the server is away, all that it is made of included; a
            writer and reading ahead count from the first failure since something worked.
        retry_delay_initial_s, retry_delay_max_s, retry_delay_factor: exponential back-off, each delay drawn from
            the upper half of its range.
        wait_notice_after_s: a wait for a server that takes so long is logged, with its reason and the time left.
        wait_notice_interval_s: how often that is logged again while the wait lasts.

        block_bytes_max: an append block is sent no later than when it has so many bytes.
        pipelined_block_bytes_min: while a block is in flight, another one is sent once it has so many bytes.
        in_flight_block_count_max, in_flight_bytes_max: unacknowledged blocks of one segment on the wire.
        max_unacknowledged_bytes: events of one writer that are not durable yet; a write past it waits.
        write_turn_event_count_max: events that single writes take before they let others have a turn of the event loop;
            for writes of many four times as many, ...
        write_turn_bytes_max: ... and so many bytes.
        spread_turn_event_count_max: events of a sealed segment that are moved to its successors in one turn, which are
            at most a block.
        routing_cache_size_max: routing keys of one writer whose segment is remembered.
        routing_cache_bytes_max: the memory that these keys may take, in bytes.
        large_event_bytes_max: the largest event accepted; past `EVENT_LENGTH_MAX` it goes through a transient segment.

        read_bytes: bytes asked for in one read of a segment.
        read_ahead_block_count: blocks read ahead of the consumer, per segment.
        reader_read_ahead_bytes_max: bytes read ahead by one reader, of all its segments together; one event that is
            larger is read all the same.
        reader_segment_count_max: segments read by one reader at one time.
        reader_rotation_interval_s: how often a reader of so many segments gives up some of them for others that no
            reader holds.
        position_interval_s: how often a reader stores its positions and shows that it is alive.
        reader_timeout_s: a reader whose state has not changed for so long is declared dead by another one. Of groups
            created here; a group that exists has its own.
        processing_time_max_s: an application that has not come back for more for so long loses its segments, if others
            wait for some. Of groups created here, as above.
        reader_close_timeout_s: how long a reader that is closed tries to store its positions and leave its group.
        reader_group_update_count_max: attempts at one compare-and-set of the reader-group state.
        reader_group_refresh_s: how often a reader looks for segments to take over.
        reader_group_stream_refresh_s: how often one reader of a group looks for streams that came or went, by its
            patterns and by what the controller says that it reads.
        reader_group_publish_interval_s: how often a group that holds data tells the controller what it needs no more.
        reader_group_checkpoint_interval_s: how often a group takes a checkpoint by itself. Of groups created here, as
            above.

        reader_time_window_refresh_s: how often `Reader.time_window` looks for new watermarks, once it has read all.

        close_timeout_s: how long closing a client, writer, reader or group may take: flushing and storing positions.
        exit_timeout_s: how long the end of the program waits for what blocking clients have not flushed.

        statistics_timeout_s: how long one segment store may take to say what it is doing, and twice that for all of a
            call, and as long again for reader groups.
        statistics_extent_age_s: how old what is known of a segment's start may be in the lag of a group.

        layout_timeout_s: how long it may take in all to be told which chunks hold a range of a segment, or to give the
            lease of them back.
        layout_chunk_count_max: chunks of one layout; what is behind them is read through the store.
        direct_read_timeout_s: how long one read of long-term storage itself may take, before the store is asked.

        table_batch_key_count_max, table_batch_bytes_max: keys and bytes of one request that changes a table; more are
            sent in several. What is changed as one must fit into one.
        table_read_key_count_max: keys of one request to read a table. If their entries do not fit into one reply, fewer
            are asked for at a time.
        table_page_entry_count: entries asked for at once while a table is scanned.
        table_scan_ahead_bytes_max: what a scan reads ahead of all partitions of a table, a page of each, going by the
            page before it.
        table_request_count_max: requests of one call on a table that wait for replies at the same time.
        table_update_count_max: attempts at one read-modify-write of a key before it is given up.
        table_watch_interval_s: how often a watched table is looked at.
        table_watch_key_count_max: keys that one watch remembers the versions of.

        batch_range_count_max: ranges that `BatchReader.read_all` reads at the same time, if it is not told.

        shared_state_update_count_max: attempts at one change of a shared state before it is given up.

        transaction_lease_s: default lease of a transaction; it is renewed at a third of it.
        prepared_limit_s: how long a prepared transaction waits for its decision by default.
        list_page_count_max: pages fetched for one listing.
    """

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    keepalive_interval_s: float = 6.0
    endpoint_count_max: int = 65536
    bulk_request_count_max: int = 256

    controller_request_timeout_s: float = 30.0
    controller_reply_bytes_max: int = 64 * _MIB
    controller_attempt_count_max: int = 1000
    first_contact_timeout_s: float = 1.5

    retry_time_max_s: float = 60.0
    retry_delay_initial_s: float = 0.01
    retry_delay_max_s: float = 2.0
    retry_delay_factor: float = 2.0
    wait_notice_after_s: float = 3.0
    wait_notice_interval_s: float = 10.0

    block_bytes_max: int = _MIB
    pipelined_block_bytes_min: int = 128 * 1024
    in_flight_block_count_max: int = 4
    in_flight_bytes_max: int = 8 * _MIB
    max_unacknowledged_bytes: int = 64 * _MIB
    write_turn_event_count_max: int = 1024
    write_turn_bytes_max: int = _MIB
    spread_turn_event_count_max: int = 4096
    routing_cache_size_max: int = 65536
    routing_cache_bytes_max: int = 16 * 1024 * 1024
    large_event_bytes_max: int = 1024 * _MIB

    read_bytes: int = _MIB
    read_ahead_block_count: int = 2
    reader_read_ahead_bytes_max: int = 32 * _MIB
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
    table_batch_bytes_max: int = 8 * _MIB
    table_read_key_count_max: int = 256
    table_page_entry_count: int = 2000
    table_scan_ahead_bytes_max: int = 8 * _MIB
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
        if self.block_bytes_max > 8 * _MIB:
            raise InvalidArgumentError(f"block_bytes_max is {self.block_bytes_max}: the limit is 8 MiB")

    def connection(self) -> ConnectionSettings:
        """Return the part that a connection needs."""
        return ConnectionSettings(
            connect_timeout_s=self.connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            keepalive_interval_s=self.keepalive_interval_s,
        )

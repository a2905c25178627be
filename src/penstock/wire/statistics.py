"""The payloads of `GetStatistics` and `StatisticsTold`: JSON, described in ``docs/statistics.md``.

Unknown fields are ignored, and fields added later have defaults: the two sides may be of different releases.
"""

from __future__ import annotations

import msgspec

from penstock.model.errors import InvalidArgumentError, ProtocolError

VERSION = 1
#: A query has a cursor for each container; one for two thousand containers is shorter.
QUERY_BYTES_MAX = 64 * 1024
#: Maximum number of segments in one answer: some milliseconds of work.
SEGMENTS_MAX = 2000


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The position up to which a client knows a container's segments, in the run of the container with this epoch.

    A log in memory has the same epoch again after a restart, hence `created_ms`. A cursor of another run is ignored.
    """

    epoch: int = 0
    created_ms: int = 0
    change: int = 0


class AdviceQuery(msgspec.Struct, frozen=True):
    """A request for the segments that are too hot or too cold. See `ScaleAdvisor.scale_advice`.

    Attributes:
        container: id of the container.
        segments: full names of segments of it; None: all.
    """

    container: int
    segments: list[str] | None = None


class AdviceRow(msgspec.Struct, frozen=True, array_like=True):
    """See `ScaleAdvice`; `direction` as a number."""

    segment: str
    direction: int
    split_count: int = 0
    is_silent: bool = False


class TablesQuery(msgspec.Struct, frozen=True):
    """A request for the table segments whose names have a prefix and a suffix.

    Attributes:
        container: id of the container.
        begin, end: of the full names.
        after: of the previous answer; "": from the start.
    """

    container: int
    begin: str
    end: str
    after: str = ""


class TablesPage(msgspec.Struct, frozen=True, array_like=True):
    """Names of tables, some perhaps twice. `after` is for the next query; "": there are no more."""

    names: list[str]
    after: str = ""


class StatisticsQuery(msgspec.Struct, frozen=True):
    """A request for statistics.

    Attributes:
        cursors: by container id; the answer has the segments with news since then. Missing: all that are remembered.
        containers: ids of the requested containers; None: all that run there.
        segment_count_max: maximum number of segments in the answer; 0: none.
        advice: the request for scaling advice; None: none.
        tables: the request for tables; None: none.
    """

    version: int = VERSION
    cursors: dict[int, Cursor] = {}
    containers: list[int] | None = None
    segment_count_max: int = 1000
    advice: AdviceQuery | None = None
    tables: TablesQuery | None = None


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """A segment that received data, or was sealed or deleted.

    Attributes:
        name: full name.
        length_bytes: its length.
        event_count, byte_count: received since the container began to measure it.
        last_event_count, last_byte_count: received up to the last measurement that found any, ...
        measured_s: ... and the time of that, on the store's clock.
        is_gone: sealed or deleted; it receives nothing more.
    """

    name: str
    length_bytes: int
    event_count: int
    byte_count: int
    last_event_count: int
    last_byte_count: int
    measured_s: float
    is_gone: bool = False


class ContainerReport(msgspec.Struct, frozen=True):
    """A running container.

    Attributes:
        epoch: of its log, different for each run.
        measured_s: time of the last measurement, on the store's clock; the previous one was `interval_s` before.
        oldest_s: segments without data since then are not remembered; 0: all that received any are.
        segment_count: those remembered.
        active_segment_count: segments in memory, the container's own included.
        event_count, byte_count: since its start; `last_event_count`, `last_byte_count`: of the last measurement.
        events_per_s, bytes_per_s: averages over the last 2, 5, 10, 20 minutes.
        log_bytes, is_log_long, backlog_bytes, backlog_operations, held_append_count: see `ContainerStatistics`.
        outstanding_bytes: accepted and not yet synced to the log.
        segments: those with news since the cursor, in the order of the news, up to the maximum.
        cursor: for the next query.
        is_complete: whether there are no more since the cursor.
    """

    id: int
    epoch: int
    measured_s: float
    interval_s: float
    oldest_s: float
    segment_count: int
    active_segment_count: int
    event_count: int
    byte_count: int
    last_event_count: int
    last_byte_count: int
    events_per_s: tuple[float, float, float, float]
    bytes_per_s: tuple[float, float, float, float]
    log_bytes: int
    is_log_long: bool
    outstanding_bytes: int
    backlog_bytes: int
    backlog_operations: int
    held_append_count: int
    segments: list[SegmentRow]
    cursor: Cursor
    is_complete: bool


class ObjectRow(msgspec.Struct, frozen=True, array_like=True):
    """Requests of a store to a bucket since its process started. See `RequestCounts`."""

    bucket: str
    write_count: int
    read_count: int
    delete_count: int
    sent_bytes: int
    received_bytes: int


class StoreReport(msgspec.Struct, frozen=True):
    """A segment store.

    Attributes:
        container_count: containers of the whole cluster.
        resident_bytes: memory of the process; 0: unknown.
        cache_bytes, cache_bytes_max: use and limit of the cache; `cache_lacking_bytes` of it cannot be evicted, because
            they are not in long-term storage yet.
        storage_problem: why long-term storage cannot be used now.
        failures: why assigned containers do not run, by their ids.
        advice: scaling advice; None: it was not requested, or the store does not support it.
        tables: the same, for names of tables.
        full_disk: why users' writes are held or refused for want of space; None: they are not.
        objects: requests to object stores; empty without any.
        measured_s: time of this report on the store's clock.
        starting: assigned containers that are being opened. Empty from a store of an earlier version.
        log_problem: why appends wait for the log; None: they do not, or the store is of an earlier version.
    """

    version: int
    container_count: int
    resident_bytes: int
    cache_bytes: int
    cache_bytes_max: int
    cache_lacking_bytes: int
    storage_problem: str | None
    failures: dict[int, str]
    containers: list[ContainerReport]
    advice: list[AdviceRow] | None = None
    tables: TablesPage | None = None
    full_disk: str | None = None
    objects: list[ObjectRow] = []
    measured_s: float = 0.0
    starting: list[int] = []
    log_problem: str | None = None


def encode_message(message: StatisticsQuery | StoreReport) -> bytes:
    """Encode a message."""
    return msgspec.json.encode(message)


def decode_query(data: bytes) -> StatisticsQuery:
    """Decode a query. Raises `InvalidArgumentError`."""
    if len(data) > QUERY_BYTES_MAX:
        raise InvalidArgumentError(f"a query for statistics has {len(data)} bytes; the maximum is {QUERY_BYTES_MAX}")
    try:
        query = msgspec.json.decode(data, type=StatisticsQuery)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"cannot decode a query for statistics: {error}") from error
    if query.version != VERSION:
        raise InvalidArgumentError(f"a query for statistics has version {query.version}; this store supports {VERSION}")
    return query


def decode_report(data: bytes) -> StoreReport:
    """Decode an answer. Raises `ProtocolError`."""
    try:
        report = msgspec.json.decode(data, type=StoreReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"statistics of a segment store cannot be read: {error}") from error
    if report.version != VERSION:
        raise ProtocolError(
            f"the segment store sent statistics in format version {report.version}; this client reads version {VERSION}"
        )
    return report

"""What is said in `GetStatistics` and `StatisticsTold`: JSON, described in ``docs/statistics.md``.

Fields that are not known are skipped, and what is added later has a default: the two sides may be of different
releases.
"""

from __future__ import annotations

import msgspec

from penstock.model.errors import InvalidArgumentError, ProtocolError

VERSION = 1
#: A question has a cursor for each container; that for two thousand is shorter.
QUESTION_BYTES_MAX = 64 * 1024
#: Segments in one answer, whatever is asked for: some milliseconds of work.
SEGMENTS_MAX = 2000


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Up to where somebody knows a container's segments, in the life that has this epoch and began then.

    A log in memory has the same epoch again after a restart, hence `created_ms`. Of another life they know nothing.
    """

    epoch: int = 0
    created_ms: int = 0
    change: int = 0


class AdviceQuestion(msgspec.Struct, frozen=True):
    """Which segments are too hot or too cold? See `ScaleAdvisor.scale_advice`.

    Attributes:
        container: id of the container asked about.
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


class TablesQuestion(msgspec.Struct, frozen=True):
    """Which table segments have names that begin and end so?

    Attributes:
        container: id of the container asked about.
        begin, end: of the full names.
        after: of the answer before; "": from the start.
    """

    container: int
    begin: str
    end: str
    after: str = ""


class TablesPage(msgspec.Struct, frozen=True, array_like=True):
    """Names of tables, some perhaps twice. `after` is for the next question; "": there are no more."""

    names: list[str]
    after: str = ""


class Question(msgspec.Struct, frozen=True):
    """What somebody wants to know.

    Attributes:
        cursors: by container id; the answer has the segments with news since then. Missing: all that are remembered.
        containers: ids of the containers asked about; None: all that run there.
        segment_count_max: segments in the answer at most; 0: none.
        advice: what is asked about scaling; None: nothing.
        tables: which tables are asked for; None: none.
    """

    version: int = VERSION
    cursors: dict[int, Cursor] = {}
    containers: list[int] | None = None
    segment_count_max: int = 1000
    advice: AdviceQuestion | None = None
    tables: TablesQuestion | None = None


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """A segment that got data, or has gone.

    Attributes:
        name: full name.
        length_bytes: offset behind its last byte.
        event_count, byte_count: what it got since the container began to watch it.
        last_event_count, last_byte_count: of those, what the last look found that found anything, ...
        measured_s: ... and when that was, on the store's clock.
        is_gone: sealed or deleted; it gets nothing more.
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
    """A container that runs.

    Attributes:
        epoch: of its log, other for each life.
        measured_s: the last look, on the store's clock; and `interval_s` before that the one before.
        oldest_s: segments without data since then are not remembered; 0: all are that got any.
        segment_count: those remembered.
        active_segment_count: segments in memory, the container's own included.
        event_count, byte_count: since its start; `last_event_count`, `last_byte_count`: of the last look.
        events_per_s, bytes_per_s: averages over the last 2, 5, 10, 20 minutes.
        log_bytes, is_log_long, backlog_bytes, backlog_operations, held_append_count: see `ContainerStatistics`.
        outstanding_bytes: accepted and not yet synced to the log.
        segments: those with news since the cursor, in the order of the news, as far as there was room.
        cursor: for the next question.
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


class StoreReport(msgspec.Struct, frozen=True):
    """A segment store.

    Attributes:
        container_count: containers of the whole cluster.
        resident_bytes: memory of the process; 0: unknown.
        cache_bytes, cache_bytes_max: use and limit of the cache; `cache_lacking_bytes` of it cannot go, because
            long-term storage lacks them.
        storage_problem: why long-term storage cannot be used now.
        failures: why containers that should run do not, by their ids.
        advice: about scaling, if it was asked for; None: it was not, or the store knows of no such thing.
        tables: likewise, names of tables.
        full_disk: why users' writes are held or refused for want of space; None: they are not.
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


def encode_message(message: Question | StoreReport) -> bytes:
    """Return a message as it travels."""
    return msgspec.json.encode(message)


def decode_question(data: bytes) -> Question:
    """Read a question. Raises `InvalidArgumentError`."""
    if len(data) > QUESTION_BYTES_MAX:
        raise InvalidArgumentError(f"a question about statistics of {len(data)} bytes; up to {QUESTION_BYTES_MAX} do")
    try:
        question = msgspec.json.decode(data, type=Question)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"a question about statistics cannot be read: {error}") from error
    if question.version != VERSION:
        raise InvalidArgumentError(f"a question about statistics of version {question.version}; this is {VERSION}")
    return question


def decode_report(data: bytes) -> StoreReport:
    """Read an answer. Raises `ProtocolError`."""
    try:
        report = msgspec.json.decode(data, type=StoreReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"statistics of a segment store cannot be read: {error}") from error
    if report.version != VERSION:
        raise ProtocolError(f"statistics of version {report.version} of a segment store; this client reads {VERSION}")
    return report

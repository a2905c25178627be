"""A cluster's statistics: the values that `Client.statistics` returns, and their computation from stores' reports.

Pure: reports in, values out. The requests are in `statistics_calls`. See ``docs/statistics.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec

from penstock.client.groups.subscribers import subscriber_kind
from penstock.model.errors import InvalidNameError
from penstock.model.names import parse_segment_name
from penstock.model.object_prices import prices_of
from penstock.wire.statistics import ContainerReport, Cursor, ObjectRow, SegmentRow, StoreReport

#: Segments merged before yielding to the event loop.
_STEP_SEGMENTS = 1000


class SegmentLoad(msgspec.Struct, frozen=True):
    """Load of one segment.

    Attributes:
        name, stream: full names.
        container_id: its container.
        length_bytes: offset after its last byte.
        event_count, byte_count: written since its container began to watch it.
        events_per_s, bytes_per_s: current write rates; see `ClusterStatistics`.
        measured_s: when its counts were taken, on its store's clock.
    """

    name: str
    stream: str
    container_id: int
    length_bytes: int
    event_count: int
    byte_count: int
    events_per_s: float
    bytes_per_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """Load of one stream: the sums over those of its segments that are tracked."""

    name: str
    segment_count: int
    event_count: int
    byte_count: int
    events_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ContainerLoad:
    """A container: its load and its backlog.

    Attributes:
        id: its number; `store`: ``host:port`` of its segment store; `epoch`: of its log, new for each start.
        event_count, byte_count: written since its start.
        events_per_s, bytes_per_s: current write rates; see `ClusterStatistics`.
        events_per_s_averages, bytes_per_s_averages: over the last 2, 5, 10 and 20 minutes.
        segment_count: segments with recent writes; `active_segment_count`: those in memory, its own included.
        log_bytes: length of its log, all of which recovery reads; `is_log_long`: the log cannot be shortened at
            present.
        outstanding_bytes: accepted and not yet synced to the log.
        backlog_bytes, backlog_operations: synced, and not yet in long-term storage.
        held_append_count: appends held because too much of their segment waits for long-term storage.
        measured_s: when that was measured, on its store's clock.
    """

    id: int
    store: str
    epoch: int
    event_count: int
    byte_count: int
    events_per_s: float
    bytes_per_s: float
    events_per_s_averages: tuple[float, float, float, float]
    bytes_per_s_averages: tuple[float, float, float, float]
    segment_count: int
    active_segment_count: int
    log_bytes: int
    is_log_long: bool
    outstanding_bytes: int
    backlog_bytes: int
    backlog_operations: int
    held_append_count: int
    measured_s: float


@dataclass(frozen=True, slots=True)
class ObjectLoad:
    """Requests of a store to one bucket. Rates are those since the previous statistics; None without previous ones.

    Attributes:
        bucket: its URL.
        write_count: creations, replacements and pages of lists, since the store's process started.
        read_count: reads. `delete_count`: deletions, which are free.
        sent_bytes, received_bytes: contents of objects.
        writes_per_s, reads_per_s, sent_bytes_per_s, received_bytes_per_s: rates of these.
        dollars_per_month: list price of a month at these rates (`model/object_prices.py`); None: the price or the rates
            are unknown.
    """

    bucket: str
    write_count: int
    read_count: int
    delete_count: int
    sent_bytes: int
    received_bytes: int
    writes_per_s: float | None = None
    reads_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    dollars_per_month: float | None = None


@dataclass(frozen=True, slots=True)
class StoreLoad:
    """A segment store, with or without a reply.

    Attributes:
        address: ``host:port``.
        problem: why there is no reply; None: there is one. Without a reply all numbers are 0.
        resident_bytes: memory of its process; 0 if the system does not report it.
        cache_bytes, cache_bytes_max: use and limit of its cache.
        cache_lacking_bytes: cached bytes that cannot be evicted because they are not in long-term storage.
        storage_problem: why long-term storage is unusable now; None when it is usable.
        failures: why containers do not run there, by their ids.
        objects: requests to object stores, by the URL of the bucket.
        measured_s: time of the reply on the store's clock.
        log_problem: why appends wait for the log; None when they do not.
    """

    address: str
    problem: str | None = None
    resident_bytes: int = 0
    cache_bytes: int = 0
    cache_bytes_max: int = 0
    cache_lacking_bytes: int = 0
    storage_problem: str | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    objects: Mapping[str, ObjectLoad] = field(default_factory=dict)
    measured_s: float = 0.0
    log_problem: str | None = None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A reader group's lag, as of the positions stored last.

    Attributes:
        name: ``scope/group``.
        unread_bytes: per stream, in the segments that the group knows.
        reader_count: its readers; `unassigned_segment_count`: segments that no reader holds.
        problem: why its state could not be read; None: it was read.
        is_finished: every stream of the group was read to its end.
        recreated: streams that were deleted and created again since the group began to read them; it reads nothing of
            them, and they are not in `unread_bytes`.
    """

    name: str
    unread_bytes: Mapping[str, int]
    reader_count: int
    unassigned_segment_count: int
    problem: str | None = None
    is_finished: bool = False
    recreated: Sequence[str] = ()

    @property
    def total_unread_bytes(self) -> int:
        """Return the sum over its streams."""
        return sum(self.unread_bytes.values())

    @property
    def lacks_readers(self) -> bool:
        """Return whether it has unread events and no reader, although readers are what reads it.

        A Spark query and an export are groups without readers, recognized by their names.
        """
        is_idle = self.problem is not None or self.is_finished or not self.total_unread_bytes
        return not is_idle and not self.reader_count and not subscriber_kind(self.name)


@dataclass(frozen=True, slots=True)
class ClusterStatistics:
    """A cluster at one moment. Pass it to the next call as `since`: only changes are then requested.

    Rates of segments and containers cover the time since that earlier call if there was one (a second or more before),
    otherwise the last second. A store samples its counts once a second.

    Attributes:
        stores: by address, those without a reply included.
        containers: by id. `missing_containers` do not run, or run on stores without a reply; nothing is known of them
            here.
        segments: by full name, all with recent writes (in the last 20 minutes, and since their container started).
        groups: the requested groups, by name.
        container_count: of the whole cluster; 0: no store replied.
    """

    stores: Mapping[str, StoreLoad]
    containers: Mapping[int, ContainerLoad]
    segments: Mapping[str, SegmentLoad]
    groups: Mapping[str, GroupLag] = field(default_factory=dict)
    missing_containers: Sequence[int] = ()
    container_count: int = 0
    #: Position in each container's reports, for the next request.
    cursors: Mapping[int, Cursor] = field(default_factory=dict, repr=False)

    @property
    def events_per_s(self) -> float:
        """Events written per second, over all containers."""
        return sum(container.events_per_s for container in self.containers.values())

    @property
    def bytes_per_s(self) -> float:
        """Bytes written per second, headers of events included, over all containers."""
        return sum(container.bytes_per_s for container in self.containers.values())

    @property
    def backlog_bytes(self) -> int:
        """Bytes that are not in long-term storage yet."""
        return sum(container.backlog_bytes for container in self.containers.values())

    def streams(self) -> dict[str, StreamLoad]:
        """Return the load of each stream, by name. Goes over all segments."""
        sums: dict[str, list[float]] = {}
        for segment in self.segments.values():
            entry = sums.setdefault(segment.stream, [0, 0, 0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += segment.event_count
            entry[2] += segment.byte_count
            entry[3] += segment.events_per_s
            entry[4] += segment.bytes_per_s
        return {
            stream: StreamLoad(stream, int(count), int(events), int(byte_count), events_per_s, bytes_per_s)
            for stream, (count, events, byte_count, events_per_s, bytes_per_s) in sums.items()
        }


@dataclass(slots=True)
class Answer:
    """Replies of one store, page by page: the last of each kind, and all changed segments.

    `reports` are by container id; their `segments` are in `rows`.
    """

    address: str
    store: StoreReport | None = None
    problem: str | None = None
    reports: dict[int, ContainerReport] = field(default_factory=dict)
    rows: dict[int, list[SegmentRow]] = field(default_factory=dict)

    def take(self, report: StoreReport, asked: Collection[int] | None) -> None:
        """Add a page about the `asked` containers; None: all.

        Drops the reports of containers that have left the store: they are incomplete.
        """
        self.store = report
        for container_id in set(asked or ()) - {container.id for container in report.containers}:
            del self.reports[container_id]
        for container in report.containers:
            self.reports[container.id] = container
            self.rows.setdefault(container.id, []).extend(container.segments)


def merged(answers: Iterable[Answer], since: ClusterStatistics | None) -> ClusterStatistics:
    """Merge the replies of all stores. If two report the same container, the one of the higher epoch counts."""
    steps = merging(answers, since)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(ClusterStatistics, end.value)


def merging(answers: Iterable[Answer], since: ClusterStatistics | None) -> Generator[None, None, ClusterStatistics]:
    """Do what `merged` does, some thousand segments at a time."""
    answers = list(answers)
    chosen: dict[int, Answer] = {}
    for answer in answers:
        for container_id, report in answer.reports.items():
            other = chosen.get(container_id)
            if other is None or report.epoch > other.reports[container_id].epoch:
                chosen[container_id] = answer
    container_count = max((answer.store.container_count for answer in answers if answer.store is not None), default=0)
    if not container_count and since is not None:
        container_count = since.container_count
    segments: dict[str, SegmentLoad] = {}
    containers: dict[int, ContainerLoad] = {}
    cursors: dict[int, Cursor] = {}
    old_by_container: dict[int, list[SegmentLoad]] = {}
    for load in () if since is None else since.segments.values():
        old_by_container.setdefault(load.container_id, []).append(load)
    for container_id in sorted(chosen):
        answer = chosen[container_id]
        report = answer.reports[container_id]
        earlier = None if since is None else since.containers.get(container_id)
        if since is None or not _is_same_life(since.cursors.get(container_id), report.cursor):
            earlier = None
        containers[container_id] = _container(answer.address, report, earlier)
        cursors[container_id] = report.cursor
        old = old_by_container.get(container_id, []) if earlier is not None else []
        segments.update((yield from _segments(report, answer.rows[container_id], earlier, old)))
    return ClusterStatistics(
        {
            answer.address: _store(answer, None if since is None else since.stores.get(answer.address))
            for answer in sorted(answers, key=lambda answer: answer.address)
        },
        containers,
        segments,
        missing_containers=[each for each in range(container_count) if each not in containers],
        container_count=container_count,
        cursors=cursors,
    )


def _is_same_life(earlier: Cursor | None, now: Cursor) -> bool:
    return earlier is not None and (earlier.epoch, earlier.created_ms) == (now.epoch, now.created_ms)


def _store(answer: Answer, earlier: StoreLoad | None) -> StoreLoad:
    said = answer.store
    if said is None or answer.problem is not None:
        return StoreLoad(answer.address, answer.problem or "no answer")
    return StoreLoad(
        answer.address,
        None,
        said.resident_bytes,
        said.cache_bytes,
        said.cache_bytes_max,
        said.cache_lacking_bytes,
        said.storage_problem,
        said.failures,
        {row.bucket: _objects(row, said.measured_s, earlier) for row in said.objects},
        said.measured_s,
        said.log_problem,
    )


def _objects(row: ObjectRow, measured_s: float, earlier: StoreLoad | None) -> ObjectLoad:
    load = ObjectLoad(row.bucket, row.write_count, row.read_count, row.delete_count, row.sent_bytes, row.received_bytes)
    before = None if earlier is None else earlier.objects.get(row.bucket)
    elapsed_s = 0.0 if earlier is None else measured_s - earlier.measured_s
    # Lower counts and times are those of another process.
    if before is None or elapsed_s <= 0 or before.write_count > row.write_count or before.read_count > row.read_count:
        return load
    writes_per_s = (row.write_count - before.write_count) / elapsed_s
    reads_per_s = (row.read_count - before.read_count) / elapsed_s
    sent = max(row.sent_bytes - before.sent_bytes, 0) / elapsed_s
    received = max(row.received_bytes - before.received_bytes, 0) / elapsed_s
    prices = prices_of(row.bucket)
    return replace(
        load,
        writes_per_s=writes_per_s,
        reads_per_s=reads_per_s,
        sent_bytes_per_s=sent,
        received_bytes_per_s=received,
        dollars_per_month=None
        if prices is None
        else prices.month(
            writes_per_s=writes_per_s,
            reads_per_s=reads_per_s,
            sent_bytes_per_s=sent,
            received_bytes_per_s=received,
        ),
    )


def _container(store: str, report: ContainerReport, earlier: ContainerLoad | None) -> ContainerLoad:
    if earlier is None:
        events_per_s = _rate(report.last_event_count, report.interval_s)
        bytes_per_s = _rate(report.last_byte_count, report.interval_s)
    elif report.measured_s <= earlier.measured_s:
        events_per_s, bytes_per_s = earlier.events_per_s, earlier.bytes_per_s  # No sample was taken since.
    else:
        passed_s = report.measured_s - earlier.measured_s
        events_per_s = _rate(report.event_count - earlier.event_count, passed_s)
        bytes_per_s = _rate(report.byte_count - earlier.byte_count, passed_s)
    return ContainerLoad(
        report.id,
        store,
        report.epoch,
        report.event_count,
        report.byte_count,
        events_per_s,
        bytes_per_s,
        report.events_per_s,
        report.bytes_per_s,
        report.segment_count,
        report.active_segment_count,
        report.log_bytes,
        report.is_log_long,
        report.outstanding_bytes,
        report.backlog_bytes,
        report.backlog_operations,
        report.held_append_count,
        report.measured_s,
    )


def _segments(
    report: ContainerReport, rows: Sequence[SegmentRow], earlier: ContainerLoad | None, old: Sequence[SegmentLoad]
) -> Generator[None, None, dict[str, SegmentLoad]]:
    """Return the segments of a container by name: the previous ones, updated by the changes."""
    is_newer = earlier is None or report.measured_s > earlier.measured_s
    # A segment without changes got no data since the last report.
    segments = {load.name: _silent(load) if is_newer and load.bytes_per_s else load for load in old}
    known = {load.name: load for load in old}
    yield
    for number, row in enumerate(rows, start=1):
        if not number % _STEP_SEGMENTS:
            yield
        if row.is_gone:
            segments.pop(row.name, None)
            continue
        before = known.get(row.name)
        segments[row.name] = SegmentLoad(
            row.name,
            stream_of(row.name) if before is None else before.stream,
            report.id,
            row.length_bytes,
            row.event_count,
            row.byte_count,
            *_segment_rates(report, row, earlier, before),
            row.measured_s,
        )
    if len(segments) > report.segment_count:
        # The store drops segments without recent writes and does not report that.
        oldest_s = report.oldest_s
        segments = {name: load for name, load in segments.items() if load.measured_s >= oldest_s}
    return segments


def _segment_rates(
    report: ContainerReport, row: SegmentRow, earlier: ContainerLoad | None, before: SegmentLoad | None
) -> tuple[float, float]:
    """Return events and bytes per second: since the earlier statistics, otherwise of the last sample."""
    if earlier is not None:
        events, byte_count, since_s = row.event_count, row.byte_count, earlier.measured_s
        if before is not None:
            events -= before.event_count
            byte_count -= before.byte_count
            # The earlier page may have been made while a sample was being taken.
            since_s = max(since_s, before.measured_s)
        # So may this one.
        passed_s = max(report.measured_s, row.measured_s) - since_s
        if passed_s > 0 and events >= 0 and byte_count >= 0:
            return _rate(events, passed_s), _rate(byte_count, passed_s)
    if row.measured_s < report.measured_s:
        return 0.0, 0.0
    return _rate(row.last_event_count, report.interval_s), _rate(row.last_byte_count, report.interval_s)


def _silent(load: SegmentLoad) -> SegmentLoad:
    return SegmentLoad(
        load.name,
        load.stream,
        load.container_id,
        load.length_bytes,
        load.event_count,
        load.byte_count,
        0.0,
        0.0,
        load.measured_s,
    )


def _rate(count: int, passed_s: float) -> float:
    return count / passed_s if passed_s > 0 else 0.0


def stream_of(segment: str) -> str:
    """Return the stream of a segment, or the segment's own name if it belongs to no stream."""
    try:
        scope, stream, _ = parse_segment_name(segment)
    except InvalidNameError:
        return segment
    return f"{scope}/{stream}"

"""`store_report`: a segment store's report: a snapshot of existing counters. Never waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.model.errors import InvalidArgumentError
from penstock.model.scale_advice import ScaleAdvice
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.statistics import Rates
from penstock.segmentstore.store import SegmentStore
from penstock.wire.statistics import (
    SEGMENTS_MAX,
    VERSION,
    AdviceRow,
    ContainerReport,
    Cursor,
    ObjectRow,
    StatisticsQuery,
    StoreReport,
    TablesPage,
)

#: Maximum reported length of an error's text.
_TEXT_CHARACTERS_MAX = 400


def store_report(store: SegmentStore, query: StatisticsQuery) -> StoreReport:
    """Return the answer to a query, of up to `SEGMENTS_MAX` segments.

    Raises `InvalidArgumentError` for a count below 0.
    """
    if query.segment_count_max < 0:
        raise InvalidArgumentError(f"statistics of {query.segment_count_max} segments; use 0 or more")
    wanted = None if query.containers is None else frozenset(query.containers)
    asked = [container for container in store.containers if wanted is None or container.id in wanted]
    # Each container has a share, so that a busy one does not starve others.
    count_max = min(query.segment_count_max, SEGMENTS_MAX)
    share = max(count_max // len(asked), 1) if asked and count_max else 0
    problem, full_disk, log_problem = store.storage_problem, store.full_disk, store.log_problem
    return StoreReport(
        VERSION,
        store.settings.container_count,
        store.runtime.resident_bytes(),
        store.cache.used_bytes,
        store.cache.settings.bytes_max,
        store.cache.lacking_bytes,
        None if problem is None else problem[:_TEXT_CHARACTERS_MAX],
        {container_id: str(error)[:_TEXT_CHARACTERS_MAX] for container_id, error in sorted(store.failures.items())},
        [_container_report(container, query.cursors.get(container.id, Cursor()), share) for container in asked],
        full_disk=None if full_disk is None else full_disk[:_TEXT_CHARACTERS_MAX],
        objects=[
            ObjectRow(
                bucket, each.write_count, each.read_count, each.delete_count, each.sent_bytes, each.received_bytes
            )
            for bucket, each in sorted(store.runtime.object_requests.by_bucket.items())
        ],
        measured_s=store.runtime.monotonic_s(),
        starting=store.starting,
        log_problem=None if log_problem is None else log_problem[:_TEXT_CHARACTERS_MAX],
    )


def with_advice(report: StoreReport, advice: Sequence[ScaleAdvice]) -> StoreReport:
    """Return a report that also has the requested advice."""
    rows = [AdviceRow(each.segment, int(each.direction), each.split_count, each.is_silent) for each in advice]
    return msgspec.structs.replace(report, advice=rows)


def with_tables(report: StoreReport, tables: TablesPage) -> StoreReport:
    """Return a report that also has the requested names of tables."""
    return msgspec.structs.replace(report, tables=tables)


def _container_report(container: SegmentContainer, cursor: Cursor, segment_count_max: int) -> ContainerReport:
    is_same_life = (cursor.epoch, cursor.created_ms) == (container.epoch, container.created_ms)
    after = cursor.change if is_same_life else 0
    page = container.activity_watch.statistics.page(after, segment_count_max)
    backlog = container.state.backlog
    return ContainerReport(
        container.id,
        container.epoch,
        page.measured_s,
        page.interval_s,
        page.oldest_s,
        page.segment_count,
        len(container.state.metadata.by_name),
        page.event_count,
        page.byte_count,
        page.last_event_count,
        page.last_byte_count,
        _tuple(page.events_per_s),
        _tuple(page.bytes_per_s),
        container.checkpoints.log_bytes,
        container.log_rewriter.is_alarmed,
        container.pipeline.outstanding_bytes,
        backlog.byte_count,
        backlog.operation_count,
        container.quota.held_count,
        page.segments,
        Cursor(container.epoch, container.created_ms, page.change),
        page.is_complete,
    )


def _tuple(rates: Rates) -> tuple[float, float, float, float]:
    """Return averages, rounded to three decimal places."""
    return (
        round(rates.minutes_2, 3),
        round(rates.minutes_5, 3),
        round(rates.minutes_10, 3),
        round(rates.minutes_20, 3),
    )

"""`RetentionExplanations`: what an inspection of a stream would do now, and why. It changes nothing.

It calls the same functions as an inspection, and treats a cut that an inspection would record now as recorded. A later
inspection may find another state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.retention_records import RetentionEntry
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import published_cuts
from penstock.controller.retention.decision import RetentionRow
from penstock.controller.retention.plan import Situation, find_situation, find_tail, moves_head, plan_of, size_till
from penstock.controller.retention.planned_cuts import PlannedCuts
from penstock.controller.retention.subscriber_bound import bound_of
from penstock.controller.stream_cuts import Position
from penstock.controller.stream_positions import position_of
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.policies import Retention as RetentionPolicy
from penstock.model.policies import RetentionKind


@dataclass(frozen=True, slots=True)
class CutPosition:
    """A cut, and the bytes before it over the stream's life."""

    cut: Mapping[int, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExplainedSubscriber:
    """A subscriber.

    Attributes:
        name: ``scope/group``.
        has_published: whether `place` is a position that it has published; otherwise it is the stream's start.
        place: its position.
        is_last: whether on some keys no other subscriber is further behind.
    """

    name: str
    has_published: bool
    place: CutPosition
    is_last: bool


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """What an inspection would do. Times are in milliseconds.

    Attributes:
        policy: the retention policy; None: everything is kept, and only `head` and `tail` are set.
        is_sealed: the stream is sealed and no longer truncated, whatever the other fields are.
        is_enabled: whether this controller's settings allow policies to be enforced.
        now_ms: the controller's clock, from which the ages of cuts are computed.
        head, tail: start and end of the stream.
        row: the row that applies; None without a policy.
        chosen: the new start; None: the start does not change.
        bound: the position of the slowest subscribers, key by key; None without any.
        min_entry, max_entry: the recorded cuts of the limits; None: none is that old, or has that much after it.
        cuts: the newest recorded cuts, oldest first. `cut_count`: number of all.
        subscribers: the slowest ones first. `subscriber_count`: number of all.
        is_cut_due: whether an inspection would first record another cut, at `tail`.
        interval_ms: pause between two inspections of all streams.
        next_scan_ms: time until this stream's next inspection; None: by another controller, within `interval_ms`.
    """

    policy: RetentionPolicy | None
    is_sealed: bool
    is_enabled: bool
    now_ms: int
    head: CutPosition
    tail: CutPosition
    row: RetentionRow | None = None
    chosen: CutPosition | None = None
    bound: CutPosition | None = None
    min_entry: RetentionEntry | None = None
    max_entry: RetentionEntry | None = None
    cuts: Sequence[RetentionEntry] = ()
    cut_count: int = 0
    subscribers: Sequence[ExplainedSubscriber] = ()
    subscriber_count: int = 0
    is_cut_due: bool = False
    interval_ms: int = 0
    next_scan_ms: int | None = None


class RetentionExplanations:
    """See the module. `next_scan_s`: as `Retention.next_scan_s`."""

    def __init__(self, context: WorkflowContext, next_scan_s: Callable[[str, str], float | None]) -> None:
        self._context = context
        self._next_scan_s = next_scan_s
        self._settings = context.settings.retention

    async def of(self, scope: str, stream: str) -> RetentionExplanation:
        """Explain a stream. Raises `NoSuchStreamError`; `MetadataConflictError` when it is truncated meanwhile."""
        found = await self._context.catalog.on_stream(scope, stream, self._explained)
        next_s = self._next_scan_s(scope, stream) if self._settings.is_enabled else None
        interval_ms = round(1000 * self._settings.interval_s)
        return replace(found, interval_ms=interval_ms, next_scan_ms=None if next_s is None else round(1000 * next_s))

    async def _explained(self, tables: StreamTables) -> RetentionExplanation:
        configured = (await tables.configuration()).record.configuration.retention
        state = (await tables.state()).record.state
        is_sealed = state in (StreamState.SEALING, StreamState.SEALED)
        # Without a policy head and tail are found as for any policy.
        policy = configured or RetentionPolicy(RetentionKind.BY_SIZE, 0)
        now_ms = self._context.runtime.wall_clock_ms()
        situation = await find_situation(tables, policy, now_ms)
        newest = await tables.retention.newest()
        end = await find_tail(self._context, situation, newest)
        explained = RetentionExplanation(
            configured,
            is_sealed,
            self._settings.is_enabled,
            now_ms,
            CutPosition(situation.head.cut, situation.truncation.size_till_bytes),
            CutPosition(end.cut, end.size_bytes),
        )
        if configured is None:
            return explained
        planned = None if is_sealed else end.record
        situation = replace(situation, cuts=PlannedCuts(tables.retention, planned))
        published = await published_cuts(tables)
        bound = await bound_of(tables, situation.head.cut, published)
        plan = await plan_of(situation, bound)
        is_moved = not is_sealed and await moves_head(situation, plan)
        return replace(
            explained,
            row=plan.row,
            chosen=await _place(situation, plan.chosen) if is_moved and plan.chosen is not None else None,
            bound=None if bound is None else await _place(situation, bound),
            min_entry=plan.min_entry,
            max_entry=plan.max_entry,
            cuts=await self._cuts(tables),
            cut_count=await tables.retention.count(),
            subscribers=await self._subscribers(situation, bound, published),
            subscriber_count=len(published),
            is_cut_due=planned is not None,
        )

    async def _cuts(self, tables: StreamTables) -> list[RetentionEntry]:
        pages = tables.retention.entries(newest=self._settings.explained_cuts_max)
        return [entry async for page in pages for entry in page]

    async def _subscribers(
        self, situation: Situation, bound: Position | None, published: Mapping[str, Mapping[int, int]]
    ) -> list[ExplainedSubscriber]:
        """Return the subscribers' positions. If there are too many, those that hold back truncation are kept."""
        if bound is None:
            return []
        last: dict[str, bool] = {}
        for name, cut in published.items():
            last[name] = _is_last(cut or situation.head.cut, bound)
            await asyncio.sleep(0)  # A cut may have ten thousand segments.
        first = sorted(published, key=lambda name: (not last[name], name))[: self._settings.explained_subscribers_max]
        found: list[ExplainedSubscriber] = []
        for name in first:
            cut = published[name]
            position = await position_of(situation.tables, cut) if cut else situation.head
            found.append(ExplainedSubscriber(name, bool(cut), await _place(situation, position), last[name]))
        return sorted(found, key=lambda one: (one.place.size_bytes, not one.is_last, one.name))


async def _place(situation: Situation, position: Position) -> CutPosition:
    return CutPosition(position.cut, await size_till(situation, position))


def _is_last(cut: Mapping[int, int], bound: Position) -> bool:
    """Say whether a cut is equal to the bound in some segment of the bound."""
    return any(cut.get(segment) == offset for segment, offset in bound.cut.items())

"""`RetentionExplanations`: what a look at a stream would do now, and why. Nothing is changed.

It asks the functions that the looks ask, and takes the cut that a look would record now for recorded. What a look
finds a moment later may be something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.retention_records import RetentionEntry
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import published_cuts
from penstock.controller.retention.decision import Row
from penstock.controller.retention.plan import Situation, find_situation, find_tail, moves_head, plan_of, size_till
from penstock.controller.retention.planned_cuts import PlannedCuts
from penstock.controller.retention.subscriber_bound import bound_of
from penstock.controller.stream_cuts import Position
from penstock.controller.stream_positions import position_of
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.policies import Retention as RetentionPolicy
from penstock.model.policies import RetentionKind


@dataclass(frozen=True, slots=True)
class Place:
    """A cut, and the bytes that the stream has held before it, over its life."""

    cut: Mapping[int, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExplainedSubscriber:
    """A subscriber.

    Attributes:
        name: ``scope/group``.
        has_published: whether `place` is what it has published; else it counts from where the stream begins.
        place: how far it has come.
        is_last: whether it is on some keys the one, or one of those, that have come least far.
    """

    name: str
    has_published: bool
    place: Place
    is_last: bool


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """What a look would do. Times are milliseconds.

    Attributes:
        policy: what is to be kept; None: everything, and then there is nothing more to tell but `head` and `tail`.
        is_sealed: it is not truncated any more, whatever the rest says.
        is_enabled: whether this controller's settings let policies be enforced at all.
        now_ms: the controller's clock, by which cuts are so and so old.
        head, tail: where the stream begins, and where it ends.
        row: why it is to begin where it is; None without a policy.
        chosen: where it is to begin; None: where it does.
        bound: where the subscribers are that have come least far, key by key; None without any.
        min_entry, max_entry: the cuts that the limits come to; None: there is none so old, or with so much behind it.
        cuts: the newest of those that are recorded, oldest first. `cut_count`: of all.
        subscribers: those that have come least far first. `subscriber_count`: of all.
        is_cut_due: whether a look would record another cut first, which is `tail`.
        interval_ms: pause between two looks at all streams.
        next_look_ms: until the next one at this stream; None: another controller does it, within `interval_ms`.
    """

    policy: RetentionPolicy | None
    is_sealed: bool
    is_enabled: bool
    now_ms: int
    head: Place
    tail: Place
    row: Row | None = None
    chosen: Place | None = None
    bound: Place | None = None
    min_entry: RetentionEntry | None = None
    max_entry: RetentionEntry | None = None
    cuts: Sequence[RetentionEntry] = ()
    cut_count: int = 0
    subscribers: Sequence[ExplainedSubscriber] = ()
    subscriber_count: int = 0
    is_cut_due: bool = False
    interval_ms: int = 0
    next_look_ms: int | None = None


class RetentionExplanations:
    """See the module. `next_look_s`: as `Retention.next_look_s`."""

    def __init__(self, context: WorkflowContext, next_look_s: Callable[[str, str], float | None]) -> None:
        self._context = context
        self._next_look_s = next_look_s
        self._settings = context.settings.retention

    async def of(self, scope: str, stream: str) -> RetentionExplanation:
        """Explain a stream. Raises `NoSuchStreamError`; `MetadataConflictError` when it is truncated meanwhile."""
        found = await self._context.catalog.on_stream(scope, stream, self._explained)
        next_s = self._next_look_s(scope, stream) if self._settings.is_enabled else None
        interval_ms = round(1000 * self._settings.interval_s)
        return replace(
            found, interval_ms=interval_ms, next_look_ms=None if next_s is None else round(1000 * next_s)
        )

    async def _explained(self, tables: StreamTables) -> RetentionExplanation:
        configured = (await tables.configuration()).record.configuration.retention
        state = (await tables.state()).record.state
        is_sealed = state in (StreamState.SEALING, StreamState.SEALED)
        # Without a policy head and tail are found as for any.
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
            Place(situation.head.cut, situation.truncation.size_till_bytes),
            Place(end.cut, end.size_bytes),
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
        """Return where the subscribers are. Those that hold others back come before the rest is cut off."""
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


async def _place(situation: Situation, position: Position) -> Place:
    return Place(position.cut, await size_till(situation, position))


def _is_last(cut: Mapping[int, int], bound: Position) -> bool:
    """Say whether a cut is where the bound is, in some segment of the bound."""
    return any(cut.get(segment) == offset for segment, offset in bound.cut.items())

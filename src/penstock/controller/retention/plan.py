"""The state of a stream at an inspection, and where it should begin. Changes nothing.

`Retention` carries out a plan; `explanation` reports it to users. Both use the same functions.

Source: controller-internals 8.2 to 8.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.controller.metadata.records import TruncationRecord
from penstock.controller.metadata.retention_records import RetentionEntry, StreamCutRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.retention.decision import Choice, RetentionRow, SizeSituation, choose_by_size, choose_by_time
from penstock.controller.retention.planned_cuts import PlannedCuts
from penstock.controller.settings import RetentionSettings
from penstock.controller.steps import in_turns
from penstock.controller.stream_cuts import CutOrder, Position, is_equal_or_after, order_of, size_between
from penstock.controller.stream_positions import beginning_of, position_of, segments_between
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.names import segment_name
from penstock.model.policies import LIMIT_NONE, RetentionKind
from penstock.model.policies import Retention as RetentionPolicy


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a stream at an inspection. `head` is its start, also if it was never truncated."""

    tables: StreamTables
    policy: RetentionPolicy
    truncation: TruncationRecord
    head: Position
    now_ms: int
    cuts: PlannedCuts

    @property
    def max_limit(self) -> int | None:
        """The policy's maximum; None if it has none."""
        return None if self.policy.max_limit in (0, LIMIT_NONE) else self.policy.max_limit


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a stream's active segments.

    Attributes:
        cut: their lengths, by id.
        lengths: their lengths, by name.
        size_bytes: all bytes before it over the stream's life.
        record: the cut to record there; None if none is due, or there is too little new data.
    """

    cut: Mapping[int, int]
    lengths: Mapping[str, int]
    size_bytes: int
    record: StreamCutRecord | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a stream should begin.

    Attributes:
        row: the row that applies.
        chosen: the new start; None: no change, or the cut was removed meanwhile.
        min_entry: the newest recorded cut that keeps the minimum.
        max_entry: the oldest recorded cut that keeps no more than the maximum.
    """

    row: RetentionRow
    chosen: Position | None = None
    min_entry: RetentionEntry | None = None
    max_entry: RetentionEntry | None = None


async def find_situation(
    tables: StreamTables, policy: RetentionPolicy, now_ms: int, planned: StreamCutRecord | None = None
) -> Situation:
    """Read the state of a stream. `planned`: a cut that is treated as recorded."""
    truncation = (await tables.truncation()).record
    head = await beginning_of(tables, truncation)
    return Situation(tables, policy, truncation, head, now_ms, PlannedCuts(tables.retention, planned))


def is_cut_due(situation: Situation, settings: RetentionSettings, newest: RetentionEntry | None) -> bool:
    """Say whether another cut may be recorded, if there is new data. `newest`: the last recorded one."""
    if newest is None or situation.policy.kind is RetentionKind.BY_SIZE:
        return True
    return situation.now_ms - newest.recorded_ms > step_ms(situation.policy, settings)


async def find_tail(
    context: WorkflowContext,
    situation: Situation,
    newest: RetentionEntry | None,
    whole_tail: Mapping[int, int] | None = None,
) -> Tail:
    """Return the end of the active segments, and the cut to record there, if any.

    `whole_tail`: a cut at which they ended a moment ago; None: their lengths are read, and a transaction that is being
    merged may lie on both sides of the tail.
    """
    tables, settings = situation.tables, context.settings.retention
    if whole_tail is None:
        epoch = await tables.current_epoch()
        wanted = [segment_name(tables.scope, tables.stream, segment.id) for segment in epoch.segments]
        infos = await context.segments.infos(wanted)
        lengths = {name: infos[name].length for name in wanted}
        cut: dict[int, int] = {segment.id: lengths[name] for segment, name in zip(epoch.segments, wanted, strict=True)}
    else:
        cut = dict(whole_tail)
        lengths = {segment_name(tables.scope, tables.stream, segment): length for segment, length in cut.items()}
    size_bytes = await size_till(situation, await position_of(tables, cut))
    known_bytes = situation.truncation.size_till_bytes if newest is None else newest.size_bytes
    is_new = size_bytes - known_bytes >= _step_bytes(situation, settings) and is_cut_due(situation, settings, newest)
    record = StreamCutRecord(situation.now_ms, size_bytes, cut) if is_new else None
    return Tail(cut, lengths, size_bytes, record)


def _step_bytes(situation: Situation, settings: RetentionSettings) -> int:
    """Return the minimum number of bytes between two cuts."""
    if situation.policy.kind is RetentionKind.BY_TIME:
        return 1
    most = situation.max_limit or 0
    return max(1, situation.policy.min_limit // settings.cuts_in_minimum, most // settings.cuts_max)


def step_ms(policy: RetentionPolicy, settings: RetentionSettings) -> int:
    """Return the time between two cuts of a policy by time: fine enough for the minimum, without too many cuts."""
    most = 0 if policy.max_limit in (0, LIMIT_NONE) else policy.max_limit
    wanted = min(policy.min_limit // settings.cuts_in_minimum, int(settings.cut_interval_s_max * 1000))
    return max(wanted, int(settings.cut_interval_s_min * 1000), most // settings.cuts_max)


async def size_till(situation: Situation, position: Position) -> int:
    """Return the total bytes before a position over the stream's life."""
    tables = situation.tables
    reference = await last_cut_until(situation, position)
    if reference is not None:
        start, size_bytes = await position_of(tables, reference.stream_cut), reference.size_bytes
    else:
        start, size_bytes = situation.head, situation.truncation.size_till_bytes
        if not await in_turns(is_equal_or_after(position, start)):
            return size_bytes
    async for page in segments_between(tables, [start], position):
        sizes = await tables.sealed_sizes(segment.id for segment in page if segment.id not in position.cut)
        size_bytes += size_between(start.cut, position.cut, page, sizes)
    return size_bytes


async def last_cut_until(situation: Situation, position: Position) -> StreamCutRecord | None:
    """Return the newest recorded cut that is nowhere after a position; None if there is none."""

    async def is_until(cut: StreamCutRecord) -> bool:
        found = await position_of(situation.tables, cut.stream_cut)
        return await in_turns(order_of(position, found)) is CutOrder.EQUAL_OR_AFTER

    return await situation.cuts.last_that(is_until)


async def plan_of(situation: Situation, bound: Position | None) -> Plan:
    """Return where the stream should begin. `bound`: the position all subscribers have reached; None without any."""
    if situation.policy.kind is RetentionKind.BY_TIME:
        return await _plan_by_time(situation, bound)
    return await _plan_by_size(situation, bound)


async def moves_head(situation: Situation, plan: Plan) -> bool:
    """Say whether the stream has to be truncated: the chosen position is after its head, and nowhere before it."""
    if plan.chosen is None or dict(plan.chosen.cut) == dict(situation.head.cut):
        return False
    return await in_turns(order_of(plan.chosen, situation.head)) is CutOrder.EQUAL_OR_AFTER


async def _plan_by_time(situation: Situation, bound: Position | None) -> Plan:
    cuts, now_ms, least = situation.cuts, situation.now_ms, situation.policy.min_limit
    min_entry = await cuts.last_recorded_until(now_ms - least)
    min_cut = await _position(situation, min_entry)
    if bound is None:
        return Plan(RetentionRow.TIME_NO_SUBSCRIBERS, min_cut, min_entry)
    if min_cut is None:
        return Plan(RetentionRow.TIME_WITHOUT_CUT)
    max_bound: Position | None = None
    if situation.max_limit is not None:
        max_bound = await _position(situation, await cuts.last_recorded_until(now_ms - situation.max_limit))
    row = choose_by_time(
        await in_turns(order_of(min_cut, bound)),
        None if max_bound is None else await in_turns(order_of(bound, max_bound)),
    )
    max_entry: RetentionEntry | None = None
    if situation.max_limit is not None:
        max_entry = await cuts.first_behind_time(now_ms - situation.max_limit - 1)
        if max_entry is not None and max_entry.recorded_ms > now_ms - least:
            max_entry = None
    chosen = await _chosen(situation, row.choice, min_cut, bound, max_entry, max_bound)
    return Plan(row, chosen, min_entry, max_entry)


async def _plan_by_size(situation: Situation, bound: Position | None) -> Plan:
    cuts, least, most = situation.cuts, situation.policy.min_limit, situation.max_limit
    newest = await cuts.newest()
    if newest is None:
        return Plan(RetentionRow.NO_CUTS)
    min_entry = await cuts.last_with_at_most(newest.size_bytes - least)
    min_cut = await _position(situation, min_entry)
    if bound is None:
        return Plan(RetentionRow.SIZE_NO_SUBSCRIBERS, min_cut, min_entry)
    max_entry: RetentionEntry | None = None
    if most is not None:
        max_entry = await cuts.first_behind_size(newest.size_bytes - most - 1)
        if max_entry is not None and max_entry.size_bytes > newest.size_bytes - least:
            max_entry = None
    gained = max_entry or min_entry
    row = choose_by_size(
        SizeSituation(
            min_bytes=least,
            max_bytes=most,
            retained_bytes=newest.size_bytes - await size_till(situation, bound),
            min_cut_order=None if min_cut is None else await in_turns(order_of(min_cut, bound)),
            max_cut_retained_bytes=newest.size_bytes - (gained.size_bytes if gained is not None else 0),
        )
    )
    return Plan(row, await _chosen(situation, row.choice, min_cut, bound, max_entry, None), min_entry, max_entry)


async def _chosen(
    situation: Situation,
    choice: Choice,
    min_cut: Position | None,
    bound: Position,
    max_entry: RetentionEntry | None,
    max_bound: Position | None,
) -> Position | None:
    match choice:
        case Choice.NOTHING:
            return None
        case Choice.MIN_CUT:
            return min_cut
        case Choice.BOUND:
            return bound
        case Choice.MAX_BOUND:
            return max_bound
        case Choice.MAX_CUT:
            return min_cut if max_entry is None else await _position(situation, max_entry)
        case Choice.BEFORE_BOUND:
            before = await last_cut_until(situation, bound)
            return None if before is None else await position_of(situation.tables, before.stream_cut)


async def _position(situation: Situation, entry: RetentionEntry | None) -> Position | None:
    """Return the position of a recorded cut; None without one, or when another controller has removed it meanwhile."""
    if entry is None:
        return None
    found = await situation.cuts.cut_of(entry)
    return None if found is None else await position_of(situation.tables, found.stream_cut)

"""`Retention`: records where streams are, now and then, and truncates them as their policies say.

A look at a stream: record a cut, if one is due; choose where the stream is to begin; truncate it there, as a user
would; forget the cuts that lie before its head. Each step may be the last one, and may be done by two controllers at
once: cuts are added and removed conditionally, truncations are announced work. See ``docs/retention.md``.

Source: controller internals specification, sections 8.1 to 8.6; PDP-19, PDP-47.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.controller.buckets import Buckets
from penstock.controller.metadata.listed_streams import ListedStream
from penstock.controller.metadata.records import StreamState, TruncationRecord
from penstock.controller.metadata.retention_records import RetentionEntry, StreamCutRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.retention.decision import Choice, SizeSituation, choose_by_size, choose_by_time
from penstock.controller.retention.subscriber_bound import subscriber_bound
from penstock.controller.settings import RetentionSettings
from penstock.controller.steps import in_turns, pages
from penstock.controller.stream_cuts import CutOrder, Position, is_equal_or_after, order_of, size_between
from penstock.controller.stream_cycle import CyclePace, StreamCycle
from penstock.controller.stream_positions import beginning_of, position_of, segments_between
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import InvalidArgumentError, PenstockError, StreamSealedError
from penstock.model.names import segment_name
from penstock.model.policies import LIMIT_NONE, RetentionKind
from penstock.model.policies import Retention as RetentionPolicy

_logger = logging.getLogger(__name__)

#: Truncates a stream (scope, name) at a cut.
Truncate = Callable[[str, str, Mapping[int, int]], Awaitable[None]]


@dataclass(slots=True)
class _Seen:
    """What is remembered of one stream.

    Attributes:
        head: the head before which there are no recorded cuts any more.
        version: of the stream's entry in the list, at the last look: a policy that changes makes another one.
        next_look_s: when there can be something to do again, by the loop's clock.
        lengths: the lengths of its segments at the last look, by name; nothing is to be done as long as they stay.
            Empty where that does not follow.
    """

    head: Mapping[int, int] = field(default_factory=dict)
    version: int | None = None
    next_look_s: float = 0.0
    lengths: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Situation:
    """A stream as a look finds it. `head_cut` is where it begins, also if it never was truncated."""

    tables: StreamTables
    policy: RetentionPolicy
    truncation: TruncationRecord
    head: Position
    now_ms: int

    @property
    def max_limit(self) -> int | None:
        """The policy's maximum; None if it has none."""
        return None if self.policy.max_limit in (0, LIMIT_NONE) else self.policy.max_limit


class Retention:
    """See the module. `run` it as a task; it goes on whatever a stream or a store does.

    Of all streams that have a policy it looks at those in this controller's `buckets`.
    """

    def __init__(self, context: WorkflowContext, buckets: Buckets, truncate: Truncate) -> None:
        self._context = context
        self._truncate = truncate
        self._settings = settings = context.settings.retention
        pace = CyclePace(
            settings.interval_s, settings.streams_at_once, settings.stream_timeout_s, "retention.stream_timeout_s"
        )
        self._cycle = StreamCycle(
            "retention", context.catalog, context.retained, buckets, pace, _Seen, self._look, self._due
        )

    async def run(self) -> None:
        """Look for ever."""
        await self._cycle.run()

    async def cycle(self) -> None:
        """Look at each stream once. Raises what the list of streams cannot be read for, and nothing of a stream."""
        await self._cycle.once()

    async def _due(self, listed: Sequence[tuple[ListedStream, _Seen]]) -> Sequence[ListedStream]:
        """Return the streams for which there may be something to do. Of all that get nothing new it asks at once."""
        now_s = asyncio.get_running_loop().time()
        due: list[ListedStream] = []
        resting: list[tuple[ListedStream, _Seen]] = []
        for page in pages(listed):
            for each, seen in page:
                if each.version != seen.version:
                    due.append(each)
                elif now_s >= seen.next_look_s:
                    if seen.lengths:
                        resting.append((each, seen))
                    else:
                        due.append(each)
            await asyncio.sleep(0)
        try:
            infos = await self._context.segments.infos([name for _, seen in resting for name in seen.lengths])
        except PenstockError as error:
            # One of them is away, or gone: the look at its stream tells.
            _logger.debug("it is not known which streams got something new: %s", error)
            return due + [each for each, _ in resting]
        for each, seen in resting:
            if any(infos[name].is_sealed or infos[name].length != length for name, length in seen.lengths.items()):
                due.append(each)
        return due

    async def _look(self, tables: StreamTables, listed: ListedStream, seen: _Seen) -> None:
        policy = (await tables.configuration()).record.configuration.retention
        state = (await tables.state()).record.state
        if policy is None or state in (StreamState.SEALING, StreamState.SEALED):
            # A policy that comes from now on makes another version of the entry, which stays. What is sealed is never
            # truncated, and never opened again.
            await self._context.retained.remove(listed)
            return
        truncation = (await tables.truncation()).record
        head = await beginning_of(tables, truncation)
        situation = _Situation(tables, policy, truncation, head, self._context.runtime.wall_clock_ms())
        lengths = await self._record_cut(situation)
        bound = await subscriber_bound(tables, head.cut)
        chosen = await self._choose(situation, bound)
        if chosen is not None and await in_turns(order_of(chosen, head)) is CutOrder.EQUAL_OR_AFTER:
            await self._truncate_at(situation, chosen)
        await self._forget_cuts(tables, seen)
        seen.version = listed.version
        by_time = policy.kind is RetentionKind.BY_TIME
        # Ages change by themselves, and subscribers publish when they like.
        seen.lengths = {} if by_time or bound is not None else lengths
        pause_s = step_ms(policy, self._settings) / 1000 if by_time else 0.0
        seen.next_look_s = asyncio.get_running_loop().time() + pause_s

    # Recording.

    async def _record_cut(self, situation: _Situation) -> Mapping[str, int]:
        """Record where the stream is, if it is time to and there is something new.

        Return the lengths of its segments, by name; none if they were not asked for.
        """
        tables = situation.tables
        newest = await tables.retention.newest()
        if newest is not None and not self._is_due(situation, newest):
            return {}
        epoch = await tables.current_epoch()
        names: dict[int, str] = {
            segment.id: segment_name(tables.scope, tables.stream, segment.id) for segment in epoch.segments
        }
        infos = await self._context.segments.infos(list(names.values()))
        cut = {segment: infos[name].length for segment, name in names.items()}
        size_bytes = await self._size_till(situation, await position_of(tables, cut))
        known_bytes = situation.truncation.size_till_bytes if newest is None else newest.size_bytes
        if size_bytes - known_bytes >= self._step_bytes(situation) and await tables.retention.add(
            StreamCutRecord(situation.now_ms, size_bytes, cut)
        ):
            _logger.debug("stream %s: a cut at %d bytes is recorded", tables.name, size_bytes)
        return {name: infos[name].length for name in names.values()}

    def _is_due(self, situation: _Situation, newest: RetentionEntry) -> bool:
        if situation.policy.kind is RetentionKind.BY_SIZE:
            return True
        return situation.now_ms - newest.recorded_ms > step_ms(situation.policy, self._settings)

    def _step_bytes(self, situation: _Situation) -> int:
        """Return how many bytes there are between two cuts at least."""
        if situation.policy.kind is RetentionKind.BY_TIME:
            return 1
        most = situation.max_limit or 0
        return max(1, situation.policy.min_limit // self._settings.cuts_in_minimum, most // self._settings.cuts_max)

    async def _size_till(self, situation: _Situation, position: Position) -> int:
        """Return the bytes that the stream had held before a position, over its life."""
        tables = situation.tables
        reference = await self._last_cut_until(tables, position)
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

    async def _last_cut_until(self, tables: StreamTables, position: Position) -> StreamCutRecord | None:
        """Return the newest recorded cut that lies nowhere behind a position; None: there is none."""

        async def is_until(cut: StreamCutRecord) -> bool:
            found = await position_of(tables, cut.stream_cut)
            return await in_turns(order_of(position, found)) is CutOrder.EQUAL_OR_AFTER

        return await tables.retention.last_that(is_until)

    # Choosing.

    async def _choose(self, situation: _Situation, bound: Position | None) -> Position | None:
        """Return where the stream is to begin; None: where it does."""
        if situation.policy.kind is RetentionKind.BY_TIME:
            return await self._choose_by_time(situation, bound)
        return await self._choose_by_size(situation, bound)

    async def _choose_by_time(self, situation: _Situation, bound: Position | None) -> Position | None:
        cuts, now_ms, least = situation.tables.retention, situation.now_ms, situation.policy.min_limit
        min_cut = await self._position(situation, await cuts.last_recorded_until(now_ms - least))
        if bound is None or min_cut is None:
            return min_cut if bound is None else None
        max_bound: Position | None = None
        if situation.max_limit is not None:
            max_bound = await self._position(situation, await cuts.last_recorded_until(now_ms - situation.max_limit))
        choice = choose_by_time(
            await in_turns(order_of(min_cut, bound)),
            None if max_bound is None else await in_turns(order_of(bound, max_bound)),
        )
        max_cut: RetentionEntry | None = None
        if choice is Choice.MAX_CUT and situation.max_limit is not None:
            max_cut = await cuts.first_behind(time_ms=now_ms - situation.max_limit - 1)
            if max_cut is not None and max_cut.recorded_ms > now_ms - least:
                max_cut = None
        return await self._chosen(situation, choice, min_cut, bound, max_cut, max_bound)

    async def _choose_by_size(self, situation: _Situation, bound: Position | None) -> Position | None:
        cuts, least, most = situation.tables.retention, situation.policy.min_limit, situation.max_limit
        newest = await cuts.newest()
        if newest is None:
            return None
        min_entry = await cuts.last_with_at_most(newest.size_bytes - least)
        min_cut = await self._position(situation, min_entry)
        if bound is None:
            return min_cut
        max_cut: RetentionEntry | None = None
        if most is not None:
            max_cut = await cuts.first_behind(size_bytes=newest.size_bytes - most - 1)
            if max_cut is not None and max_cut.size_bytes > newest.size_bytes - least:
                max_cut = None
        max_entry = max_cut or min_entry
        choice = choose_by_size(
            SizeSituation(
                min_bytes=least,
                max_bytes=most,
                retained_bytes=newest.size_bytes - await self._size_till(situation, bound),
                min_cut_order=None if min_cut is None else await in_turns(order_of(min_cut, bound)),
                max_cut_retained_bytes=newest.size_bytes - (max_entry.size_bytes if max_entry is not None else 0),
            )
        )
        return await self._chosen(situation, choice, min_cut, bound, max_cut, None)

    async def _chosen(
        self,
        situation: _Situation,
        choice: Choice,
        min_cut: Position | None,
        bound: Position,
        max_cut: RetentionEntry | None,
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
                return min_cut if max_cut is None else await self._position(situation, max_cut)
            case Choice.BEFORE_BOUND:
                before = await self._last_cut_until(situation.tables, bound)
                return None if before is None else await position_of(situation.tables, before.stream_cut)

    async def _position(self, situation: _Situation, entry: RetentionEntry | None) -> Position | None:
        """Return where a recorded cut is; None without one, and when another controller has removed it meanwhile."""
        if entry is None:
            return None
        found = await situation.tables.retention.cut_of(entry)
        return None if found is None else await position_of(situation.tables, found.stream_cut)

    # Truncating.

    async def _truncate_at(self, situation: _Situation, position: Position) -> None:
        tables, cut = situation.tables, dict(position.cut)
        if cut == dict(situation.head.cut):
            return
        try:
            await self._truncate(tables.scope, tables.stream, cut)
        except (InvalidArgumentError, StreamSealedError) as error:
            # Somebody has truncated it further meanwhile, or sealed it: there is nothing more to do.
            _logger.info("stream %s is not truncated by its policy this time: %s", tables.name, error)
            return
        _logger.info(
            "stream %s begins at %d of its bytes by its retention policy",
            tables.name,
            await self._size_till(situation, position),
        )

    async def _forget_cuts(self, tables: StreamTables, seen: _Seen) -> None:
        """Forget the recorded cuts at the head and before it: nothing can be truncated there any more."""
        truncation = (await tables.truncation()).record
        head = truncation.stream_cut
        if truncation.is_updating or not head or head == seen.head:
            return
        last = await self._last_cut_until(tables, await beginning_of(tables, truncation))
        if last is not None:
            await tables.retention.remove_until(last.recorded_ms)
        seen.head = head


def step_ms(policy: RetentionPolicy, settings: RetentionSettings) -> int:
    """Return the time between two cuts of a policy by time: fine enough for the minimum, and never too many of them."""
    most = 0 if policy.max_limit in (0, LIMIT_NONE) else policy.max_limit
    wanted = min(policy.min_limit // settings.cuts_in_minimum, int(settings.cut_interval_s_max * 1000))
    return max(wanted, int(settings.cut_interval_s_min * 1000), most // settings.cuts_max)

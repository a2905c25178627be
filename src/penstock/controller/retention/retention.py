"""`Retention`: periodically records stream cuts, and truncates streams by their policies.

An inspection of a stream: record a cut, if one is due; choose where the stream should begin (`plan`); truncate it
there, as a user would; remove the recorded cuts before its head. It may be interrupted after any step, and two
controllers may run it at once: cuts are added and removed conditionally, truncations are announced work. See
``docs/retention.md``.

Source: controller-internals 8.1 to 8.6; PDP-19, PDP-47.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.controller.errors import PolicyReplacedError
from penstock.controller.metadata.listed_streams import ListedStream
from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.ownership.buckets import Buckets
from penstock.controller.retention.plan import (
    Situation,
    find_situation,
    find_tail,
    is_cut_due,
    last_cut_until,
    moves_head,
    plan_of,
    size_till,
    step_ms,
)
from penstock.controller.retention.subscriber_bound import subscriber_bound
from penstock.controller.steps import pages
from penstock.controller.stream_cuts import Position
from penstock.controller.stream_positions import beginning_of
from penstock.controller.stream_scanner import CyclePace, StreamScanner
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import InvalidArgumentError, StreamSealedError
from penstock.model.policies import RetentionKind
from penstock.model.segments import SegmentInfo

_logger = logging.getLogger(__name__)

#: Truncates a stream (scope, name) at a cut, unless its configuration has another version than the given one.
Truncate = Callable[[str, str, Mapping[int, int], int], Awaitable[None]]
#: Returns the end of a stream (scope, name), with no partial transaction before it: see `TransactionalTails.of`.
WholeTail = Callable[[str, str], Awaitable[Mapping[int, int]]]


@dataclass(slots=True)
class _Seen:
    """State kept for one stream.

    Attributes:
        head: the head before which no recorded cuts are left.
        version: version of the stream's entry in the list at the last inspection; a change of policy changes it.
        next_scan_s: the earliest time at which an inspection may be due, by the loop's clock.
        lengths: the lengths of its segments at the last inspection, by name; while they are unchanged, no inspection is
            due. Empty where that does not follow.
    """

    head: Mapping[int, int] = field(default_factory=dict)
    version: int | None = None
    next_scan_s: float = 0.0
    lengths: Mapping[str, int] = field(default_factory=dict)


class Retention:
    """See the module. `run` it as a task; it continues whatever error a stream or a store causes.

    It inspects the streams with a policy in this controller's `buckets`.
    """

    def __init__(self, context: WorkflowContext, buckets: Buckets, truncate: Truncate, whole_tail: WholeTail) -> None:
        self._context = context
        self._buckets = buckets
        self._truncate = truncate
        self._whole_tail = whole_tail
        self._settings = settings = context.settings.retention
        pace = CyclePace(
            settings.interval_s, settings.streams_at_once, settings.stream_timeout_s, "retention.stream_timeout_s"
        )
        self._cycle = StreamScanner(
            "retention", context.catalog, context.retained, buckets, pace, _Seen, self._inspect, self._due
        )

    async def run(self) -> None:
        """Inspect streams until cancelled."""
        await self._cycle.run()

    async def cycle(self) -> None:
        """Inspect each stream once. Raises errors of reading the list of streams, not those of a stream."""
        await self._cycle.once()

    async def _due(self, listed: Sequence[tuple[ListedStream, _Seen]]) -> Sequence[ListedStream]:
        """Return the streams that may need an inspection. Streams without new data share a batch of requests."""
        now_s = asyncio.get_running_loop().time()
        due: list[ListedStream] = []
        resting: list[tuple[ListedStream, _Seen]] = []
        for page in pages(listed):
            for each, seen in page:
                if each.version != seen.version:
                    due.append(each)
                elif now_s >= seen.next_scan_s:
                    if seen.lengths:
                        resting.append((each, seen))
                    else:
                        due.append(each)
            await asyncio.sleep(0)
        names: list[str] = []
        for some in pages(resting):
            names += [name for _, seen in some for name in seen.lengths]
            await asyncio.sleep(0)
        infos = await self._context.segments.infos_in_time(names, self._settings.answer_timeout_s)
        for some in pages(resting):
            for each, seen in some:
                # A segment that does not answer is offline or deleted: the inspection of its stream finds out.
                if any(_is_new(infos.get(name), length) for name, length in seen.lengths.items()):
                    due.append(each)
            await asyncio.sleep(0)
        return due

    def next_scan_s(self, scope: str, stream: str) -> float | None:
        """Return the seconds until this controller next inspects a stream: 0.0 if it is about to, or is doing so.

        None: another controller does. At that time a stream by size without new data is not inspected.
        """
        if not self._buckets.owned(scope, stream):
            return None
        next_s, seen = self._cycle.next_s, self._cycle.seen(scope, stream)
        if seen is not None:
            next_s = max(next_s, seen.next_scan_s)
        return max(0.0, next_s - asyncio.get_running_loop().time())

    async def _inspect(self, tables: StreamTables, listed: ListedStream, seen: _Seen) -> None:
        configured = await tables.configuration()
        policy = configured.record.configuration.retention
        state = (await tables.state()).record.state
        if state is StreamState.CREATING:
            return
        if policy is None or state in (StreamState.SEALING, StreamState.SEALED):
            # A policy set from now on changes the version of the entry, so the entry is not removed. A sealed stream is
            # never truncated, and never reopened.
            await self._context.retained.remove(listed)
            return
        situation = await find_situation(tables, policy, self._context.runtime.wall_clock_ms())
        lengths = await self._record_cut(situation)
        bound = await subscriber_bound(tables, situation.head.cut)
        plan = await plan_of(situation, bound)
        if plan.chosen is not None and await moves_head(situation, plan):
            await self._truncate_at(situation, plan.chosen, configured.version)
        await self._forget_cuts(situation, seen)
        seen.version = listed.version
        by_time = policy.kind is RetentionKind.BY_TIME
        # Ages change continuously, and subscribers may publish at any time.
        seen.lengths = {} if by_time or bound is not None else lengths
        pause_s = step_ms(policy, self._settings) / 1000 if by_time else 0.0
        seen.next_scan_s = asyncio.get_running_loop().time() + pause_s

    async def _record_cut(self, situation: Situation) -> Mapping[str, int]:
        """Record a cut at the end of the stream, if one is due and there is new data.

        Return the lengths of its segments, by name; empty if they were not read.
        """
        tables = situation.tables
        goes_by_size = situation.policy.kind is RetentionKind.BY_SIZE
        if not goes_by_size and await tables.retention.restamp(situation.now_ms):
            _logger.warning(
                "stream %s: cuts were recorded by a clock that was ahead of this one; events before them count as "
                "written now",
                tables.name,
            )
        newest = await tables.retention.newest()
        if not is_cut_due(situation, self._settings, newest):
            return {}
        # Retention may truncate at this cut later: a transaction must lie entirely before it or entirely after it.
        cut = await self._whole_tail(tables.scope, tables.stream)
        tail = await find_tail(self._context, situation, newest, cut)
        if tail.record is not None and await tables.retention.add(tail.record, goes_by_size=goes_by_size):
            _logger.debug("stream %s: a cut at %d bytes is recorded", tables.name, tail.size_bytes)
        return tail.lengths

    async def _truncate_at(self, situation: Situation, position: Position, configuration_version: int) -> None:
        tables = situation.tables
        try:
            await self._truncate(tables.scope, tables.stream, dict(position.cut), configuration_version)
        except (InvalidArgumentError, PolicyReplacedError, StreamSealedError) as error:
            # It was truncated further meanwhile, sealed, or given another policy, which the next cycle enforces.
            _logger.info("stream %s was not truncated by its policy in this pass: %s", tables.name, error)
            return
        _logger.info(
            "stream %s begins at %d of its bytes by its retention policy",
            tables.name,
            await size_till(situation, position),
        )

    async def _forget_cuts(self, situation: Situation, seen: _Seen) -> None:
        """Remove the recorded cuts at the head and before it: the stream can no longer be truncated there."""
        tables = situation.tables
        truncation = (await tables.truncation()).record
        head = truncation.stream_cut
        if truncation.is_updating or not head or head == seen.head:
            return
        last = await last_cut_until(situation, await beginning_of(tables, truncation))
        if last is not None:
            await tables.retention.remove_until(last.recorded_ms)
        seen.head = head


def _is_new(info: SegmentInfo | None, length: int) -> bool:
    """Return whether a segment may differ from an open one with this length."""
    return info is None or info.is_sealed or info.length != length

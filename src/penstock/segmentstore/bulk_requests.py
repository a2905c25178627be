"""Requests about very many segments of one store: what is in memory is done in one sweep, and waits for the log once.

What a segment alone would cost a task, a look into the log and a wait costs here a few steps of a loop; all that is
accepted between two turns of the event loop goes to the log together. A segment that has to be looked for, and whatever
is refused, takes the way of a single request (`store.segment_info`, `store.truncate_segment`), which says why.

All containers have been given their part before one of them is waited for; each name has a result of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from penstock.model.errors import PenstockError
from penstock.model.names import SYSTEM_SCOPE
from penstock.model.segments import SegmentInfo
from penstock.runtime.bulk import for_each
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment

T = TypeVar("T")
Name = TypeVar("Name")

#: Segments that are looked at, or changed, before others have their turn: a millisecond of work. What is changed in one
#: turn goes to the log together, and no second sync is waited for.
SEGMENTS_PER_TURN = 256


class BulkHost(Protocol):
    """What is needed of the store."""

    def find(self, segment: str) -> tuple[SegmentContainer, Segment]:
        """See `SegmentStore.find`."""

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""


class BulkRequests:
    """See the module. `singles_max`: segments that are asked for one by one at the same time."""

    def __init__(self, store: BulkHost, singles_max: int) -> None:
        self._store = store
        self._singles_max = singles_max

    async def infos(self, segments: Sequence[str]) -> list[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        answers: dict[int, SegmentInfo | PenstockError] = {}
        found: dict[SegmentContainer, list[tuple[int, Segment]]] = {}
        for turn in _turns(len(segments)):
            await _others_have_their_turn(turn)
            for at in turn:
                try:
                    container, segment = self._store.find(segments[at])
                except PenstockError:
                    continue
                found.setdefault(container, []).append((at, segment))
        for container, members in found.items():
            try:
                await container.pipeline.barrier()
                for turn in _turns(len(members)):
                    await _others_have_their_turn(turn)
                    told = _infos(container, [members[index] for index in turn])
                    container.ownership.check()
                    answers.update(told)
            except PenstockError:
                continue  # Those that have no answer are asked for again, and told why.
        return await self._complete(segments, answers, self._store.segment_info)

    async def truncate(self, offsets: Sequence[tuple[str, int]]) -> list[PenstockError | None]:
        """See `Segments.truncate_segments`."""
        accepted: dict[SegmentContainer, list[int]] = {}
        indexed: list[tuple[SegmentContainer, Segment]] = []
        answers: dict[int, PenstockError | None] = {}
        with ExitStack() as in_use:
            for turn in _turns(len(offsets)):
                await _others_have_their_turn(turn)
                wanted: dict[SegmentContainer, dict[Segment, int]] = {}
                for at in turn:
                    name, offset = offsets[at]
                    try:
                        container, segment = self._store.find(name)
                        batch = wanted.setdefault(container, {})
                        if segment in batch:
                            container.begin_truncations(list(batch.items()))
                            batch.clear()
                        if not _is_callers(segment) or not container.can_truncate(segment, offset):
                            continue
                    except PenstockError:
                        continue
                    batch[segment] = offset
                    accepted.setdefault(container, []).append(at)
                    if container.offset_indexes.may_have_one(segment):
                        in_use.enter_context(segment.in_use())
                        indexed.append((container, segment))
                for container, batch in wanted.items():
                    container.begin_truncations(list(batch.items()))
            for container, members in accepted.items():
                error: PenstockError | None = None
                try:
                    await container.pipeline.barrier()
                except PenstockError as failure:
                    error = failure
                answers.update(dict.fromkeys(members, error))
            await for_each(indexed, lambda one: one[0].offset_indexes.truncated(one[1]), self._singles_max)
        return await self._complete(offsets, answers, lambda one: self._store.truncate_segment(*one))

    async def _complete(
        self, names: Sequence[Name], answers: dict[int, T | PenstockError], single: Callable[[Name], Awaitable[T]]
    ) -> list[T | PenstockError]:
        """Return the answers in order; what there is none of is asked for one by one."""
        left = [at for at in range(len(names)) if at not in answers]
        answers.update(zip(left, await for_each([names[at] for at in left], single, self._singles_max), strict=True))
        return [answers[at] for at in range(len(names))]


def _turns(count: int) -> list[range]:
    """Return which of `count` things are dealt with in each turn of the event loop."""
    return [range(start, min(count, start + SEGMENTS_PER_TURN)) for start in range(0, count, SEGMENTS_PER_TURN)]


async def _others_have_their_turn(turn: range) -> None:
    """Let others go on before a turn that is not the first."""
    if turn.start:
        await asyncio.sleep(0)


def _infos(container: SegmentContainer, members: Sequence[tuple[int, Segment]]) -> dict[int, SegmentInfo]:
    """Return what can be told of segments that were found before: one may have come to an end, or left memory."""
    told: dict[int, SegmentInfo] = {}
    for at, segment in members:
        try:
            told[at] = container.durable_info(segment)
        except PenstockError:
            continue
    return told


def _is_callers(segment: Segment) -> bool:
    """Say whether a caller may change the bytes of a segment; what else it is, a single request says."""
    return not (
        segment.is_system
        or segment.is_table
        or segment.is_offset_index
        or segment.name.startswith(f"{SYSTEM_SCOPE}/containers/")
    )

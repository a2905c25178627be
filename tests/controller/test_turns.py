"""Streams of very many segments do not keep others waiting: what is done between two turns of another task is bounded.

Measured in lines of Python that are run, not in time: the same on a slow machine, and on a busy one.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from types import FrameType
from typing import Any

import pytest

from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front
from penstock.controller.grpc.table import call_table
from penstock.controller.steps import STEP_ITEMS, at_once, in_turns, pages
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb

SEGMENTS = 9000
#: What one turn may run. Loops over all segments that do something with each run more than a hundred thousand.
LINES_PER_TURN_MAX = 70_000


class LineCount:
    """Counts the lines that are run between two turns of a task that always wants one."""

    def __init__(self) -> None:
        self.lines = 0
        self.turns: list[int] = []

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._trace

    async def _take_turns(self) -> None:
        while True:
            self.turns.append(self.lines)
            self.lines = 0
            await asyncio.sleep(0)

    async def during(self, call):
        """Count while a call runs; return the most lines of a turn."""
        self.turns.clear()
        other = asyncio.ensure_future(self._take_turns())
        await asyncio.sleep(0)
        before = sys.gettrace()
        sys.settrace(self._trace)
        self.lines = 0
        try:
            # A task of its own: frames that run already are not counted.
            await asyncio.ensure_future(call)
        finally:
            sys.settrace(before)
        await asyncio.sleep(0)
        other.cancel()
        return max(self.turns)


async def test_cuts_of_very_many_segments_let_others_have_their_turn(service):
    """Check, range and truncation at cuts of 9000 segments over two epochs, then seal and deletion of the stream."""
    split_count = SEGMENTS // 3
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2 * split_count)))
    segments = await service.current_segments("scope", "stream")
    split = segments[:split_count]
    halves = [(one.key_start, (one.key_start + one.key_end) / 2) for one in split]
    halves += [((one.key_start + one.key_end) / 2, one.key_end) for one in split]
    await service.scale_stream("scope", "stream", [one.id for one in split], halves)
    await service.idle()
    cut = {one.id: 0 for one in await service.current_segments("scope", "stream")}
    assert len(cut) == 3 * split_count
    mixed = {one.id: 0 for one in segments[: split_count // 2]} | {
        one.id: 0
        for one in await service.current_segments("scope", "stream")
        if one.key_start >= segments[split_count // 2].key_start
    }
    count, found = LineCount(), {}
    for name, call in {
        "check": lambda: service.is_stream_cut_valid("scope", "stream", cut),
        "check of a cut over two epochs": lambda: service.is_stream_cut_valid("scope", "stream", mixed),
        "range": lambda: service.segments_between("scope", "stream", {}, cut),
        "range to the tail": lambda: service.segments_between("scope", "stream", mixed, {}),
        "segments at a time": lambda: service.queries.segments_at("scope", "stream", 0),
        "truncation": lambda: service.truncate_stream("scope", "stream", mixed),
        "truncation after it": lambda: service.truncate_stream("scope", "stream", cut),
        "truncation in the same segments": lambda: service.truncate_stream("scope", "stream", cut),
        "seal": lambda: service.seal_stream("scope", "stream"),
        "deletion": lambda: service.delete_stream("scope", "stream"),
    }.items():
        found[name] = await count.during(call())
    assert {name: lines for name, lines in found.items() if lines > LINES_PER_TURN_MAX} == {}
    assert max(found.values()) > 1000  # They were counted.


async def test_replies_about_very_many_segments_are_made_page_by_page(service, monkeypatch):
    """Each call that answers with 9000 segments, ids, offsets or key ranges: all of them, in order, no turn too long.

    Counted are the names of segments put into messages between two turns of another task, a page for each call of two
    that may be in between; and the lines of Python for what follows a segment, which is not only put into messages.
    """
    table = call_table(Front(service, list))
    wide, narrow = (pb.StreamInfo(scope="scope", stream=stream) for stream in ("wide", "narrow"))
    bounds = [number / SEGMENTS for number in range(SEGMENTS + 1)]
    await service.create_stream("scope", "wide", StreamConfig(Scaling.fixed(SEGMENTS)))
    await service.create_stream("scope", "narrow", StreamConfig(Scaling.fixed(1)))
    cut = dict.fromkeys(range(SEGMENTS), 0)
    split = [1 << 32 | number for number in range(1, SEGMENTS + 1)]
    ranges = [pb.ScaleRequest.KeyRangeEntry(start=start, end=end) for start, end in itertools.pairwise(bounds)]
    named, most, segment_id = 0, {}, convert.segment_id

    def counting(scope, stream, segment):
        nonlocal named
        named += 1
        return segment_id(scope, stream, segment)

    monkeypatch.setattr(convert, "segment_id", counting)

    async def ask(name, request):
        most[name] = 0

        async def other():
            nonlocal named
            while True:
                most[name] = max(most[name], named)
                named = 0
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        reply = await table[name](request)
        await asyncio.sleep(0)
        task.cancel()
        await service.idle()
        return reply

    for name, request in {
        "getCurrentSegments": wide,
        "getEpochSegments": pb.GetEpochSegmentsRequest(streamInfo=wide, epoch=0),
    }.items():
        reply = await ask(name, request)
        assert [one.segmentId.segmentId for one in reply.segmentRanges] == list(range(SEGMENTS))
        assert [one.minKey for one in reply.segmentRanges] == pytest.approx(bounds[:-1])
        assert {one.segmentId.streamInfo.stream for one in reply.segmentRanges} == {"wide"}
    reply = await ask("getSegments", pb.GetSegmentsRequest(streamInfo=wide))
    assert [(one.segmentId.segmentId, one.offset) for one in reply.segments] == [*cut.items()]
    reply = await ask("getSegmentsBetween", pb.StreamCutRange(streamInfo=wide, to=cut))
    assert [one.segmentId for one in reply.segments] == list(range(SEGMENTS))
    reply = await ask("scale", pb.ScaleRequest(streamInfo=narrow, sealedSegments=[0], newKeyRanges=ranges))
    assert [one.segmentId.segmentId for one in reply.segments] == split
    reply = await ask("getSegmentsImmediatelyFollowing", pb.SegmentId(streamInfo=narrow, segmentId=0))
    assert [one.segment.segmentId.segmentId for one in reply.segments] == split
    assert {tuple(one.value) for one in reply.segments} == {(0,)}
    assert len(most) == 6
    assert all(STEP_ITEMS <= count <= 2 * STEP_ITEMS for count in most.values()), most
    following = pb.SegmentId(streamInfo=narrow, segmentId=0)
    assert await LineCount().during(table["getSegmentsImmediatelyFollowing"](following)) < LINES_PER_TURN_MAX


@pytest.mark.parametrize("length", [0, 1, STEP_ITEMS - 1, STEP_ITEMS, STEP_ITEMS + 1, 3 * STEP_ITEMS])
async def test_a_computation_in_steps_has_the_same_result_however_it_is_run(length):
    """With turns of others or without; it stops once for each page."""

    def summed(items):
        total = 0
        for page in pages(items):
            assert 1 <= len(page) <= STEP_ITEMS
            total += sum(page)
            yield
        return total

    assert await in_turns(summed(range(length))) == at_once(summed(range(length))) == sum(range(length))
    assert sum(1 for _ in summed(range(length))) == -(-length // STEP_ITEMS)


async def test_an_error_of_a_computation_in_steps_is_its_callers():
    """It comes out of either way of running it."""

    def failing():
        yield
        raise ValueError("as the test says")

    with pytest.raises(ValueError, match="as the test says"):
        await in_turns(failing())
    with pytest.raises(ValueError, match="as the test says"):
        at_once(failing())

"""Times that writers note, and the windows that readers get of them: rules, reading, and a whole server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.client.client import Client
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.groups.reader import Reader
from penstock.client.settings import ClientSettings
from penstock.client.streams.time_windows import PlacedSegment, StreamMarks, TimeWindow, is_ahead, is_passed
from penstock.client.writing.event_writer import EventWriter
from penstock.controller.settings import ControllerSettings, WatermarkSettings
from penstock.model.errors import CorruptionError, InvalidArgumentError, NoSuchStreamError
from penstock.model.events import EVENT_LENGTH_MAX, frame_event
from penstock.model.names import segment_id
from penstock.model.stream_cuts import StreamCut
from penstock.model.times import noted_time
from penstock.model.watermarks import MarkedSegment, Watermark
from penstock.runtime.portal import Portal
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from penstock_simulation.memory_segments import MemorySegments

FAST = ClientSettings(position_interval_s=0.05, reader_group_refresh_s=0.02, reader_time_window_refresh_s=1e-9)
NEW = segment_id(2, 1)


def mark(time: int, *offsets: int) -> Watermark:
    """A watermark of as many equal segments as there are offsets."""
    count = len(offsets)
    return Watermark(time, time + 1, tuple(
        MarkedSegment(index, index / count, (index + 1) / count, offset) for index, offset in enumerate(offsets)
    ))  # fmt: skip


def at(*offsets: int) -> list[PlacedSegment]:
    """A position in as many equal segments."""
    return [PlacedSegment(each.segment_id, each.key_start, each.key_end, each.offset)
            for each in mark(0, *offsets).segments]  # fmt: skip


def test_a_mark_is_passed_when_the_whole_position_is_at_or_after_it() -> None:
    """Also exactly at it. Behind a scale the newer segment counts, whatever its offset is."""
    assert is_passed(at(5, 5), mark(1, 5, 5))
    assert is_passed(at(6, 5), mark(1, 5, 5))
    assert not is_passed(at(9, 4), mark(1, 5, 5))
    merged = [PlacedSegment(NEW, 0.0, 1.0, 0)]
    assert is_passed(merged, mark(1, 5, 5))
    after = Watermark(2, 2, (MarkedSegment(NEW, 0.0, 1.0, 3),))
    assert not is_passed(at(100, 100), after)
    assert is_passed([], after)


def test_a_mark_is_ahead_when_the_whole_position_is_at_or_before_it() -> None:
    """What is neither passed nor ahead says nothing about what comes next."""
    assert is_ahead(at(4, 5), mark(1, 5, 5))
    assert is_ahead(at(0, 0), mark(1, 5, 5))
    assert not is_ahead(at(5, 5), mark(1, 5, 5))
    assert not is_ahead(at(4, 6), mark(1, 5, 5))
    assert is_ahead(at(100, 100), Watermark(2, 2, (MarkedSegment(NEW, 0.0, 1.0, 3),)))
    assert not is_ahead([], mark(1, 5, 5))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), st.integers(0, 30), st.integers(0, 30))
def test_of_cuts_that_grow_those_passed_come_first_and_those_ahead_last(
    steps: list[tuple[int, int]], first: int, second: int
) -> None:
    """So a window needs no more than the last one passed, and the first one ahead."""
    offsets, marks = (0, 0), []
    for index, step in enumerate(steps):
        offsets = (offsets[0] + step[0], offsets[1] + step[1])
        marks.append(mark(index, *offsets))
    position = at(first, second)
    passed = [is_passed(position, each) for each in marks]
    ahead = [is_ahead(position, each) for each in marks]
    assert passed == sorted(passed, reverse=True)
    assert ahead == sorted(ahead)


class Controller:
    """Knows the segments of stream s/a and of its marks."""

    def __init__(self) -> None:
        self.mark_segments = [SegmentRange("s", "_MARKa", segment_id(0, 0), 0.0, 1.0)]
        self.asked: list[int] = []

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        assert (scope, stream) == ("s", "_MARKa")
        if not self.mark_segments:
            raise NoSuchStreamError("gone")
        return self.mark_segments

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        self.asked.append(epoch)
        if epoch == 0:
            return [SegmentRange("s", "a", segment_id(number, 0), number / 2, number / 2 + 0.5) for number in (0, 1)]
        return [SegmentRange("s", "a", NEW, 0.0, 1.0)]


class Stored:
    """A stream's watermarks in a segment, and what reads them."""

    def __init__(self, refresh_s: float = 1e-9) -> None:
        self.segments = MemorySegments()
        self.controller = Controller()
        cluster = SimpleNamespace(
            segments=self.segments, controller=self.controller,
            settings=ClientSettings(reader_time_window_refresh_s=refresh_s),
        )  # fmt: skip
        self.marks = StreamMarks(cluster, "s/a")
        self.name = "s/_MARKa/0.#epoch.0"

    async def put(self, *marks: Watermark) -> None:
        for each in marks:
            await self.segments.append(self.name, frame_event(each.encode()))

    async def window(self, *offsets: int) -> tuple[int | None, int | None]:
        window = await self.marks.window(dict(enumerate(offsets)))
        return window.lower_bound, window.upper_bound


@pytest.fixture
async def stored() -> Stored:
    made = Stored()
    await made.segments.create_segment(made.name)
    return made


async def test_a_window_moves_with_the_position(stored: Stored) -> None:
    """From before the first watermark to behind the last one, and with one that comes."""
    assert await stored.window(0, 0) == (None, None)
    await stored.put(mark(10, 5, 5), mark(20, 9, 9))
    assert await stored.window(0, 0) == (None, 11)
    assert await stored.window(5, 4) == (None, 11)
    assert await stored.window(5, 5) == (10, 21)
    # Behind a part of it: what comes may be newer.
    assert await stored.window(5, 12) == (10, None)
    assert await stored.window(9, 12) == (20, None)
    await stored.put(mark(30, 50, 50))
    assert await stored.window(9, 12) == (20, 31)
    assert stored.controller.asked == [0]


async def test_a_position_that_moved_back_gets_no_wrong_bound(stored: Stored) -> None:
    """A group that was set back: what it had passed comes again."""
    await stored.put(*(mark(10 * number, 5 * number, 5 * number) for number in range(1, 6)))
    assert await stored.window(25, 25) == (50, None)
    assert await stored.window(11, 11) == (20, 31)
    assert await stored.window(0, 0) == (None, 11)


async def test_very_many_watermarks_are_read_block_by_block(stored: Stored) -> None:
    """No more are held than one block has; those behind the position are forgotten."""
    marks = [mark(number, number, number) for number in range(1, 2001)]
    await stored.put(*marks)
    assert await stored.window(0, 0) == (None, 2)
    assert len(stored.marks._ahead) < 200
    assert await stored.window(1999, 1999) == (1999, 2001)
    assert len(stored.marks._ahead) < 200


async def test_watermarks_that_are_truncated_are_passed_over(stored: Stored) -> None:
    """They are about truncated data, too."""
    await stored.put(*(mark(10 * number, 5 * number, 5 * number) for number in range(1, 4)))
    assert await stored.window(0, 0) == (None, 11)
    stored.marks._ahead.clear()
    length = (await stored.segments.segment_info(stored.name)).length
    await stored.put(*(mark(10 * number, 5 * number, 5 * number) for number in range(4, 6)))
    await stored.segments.truncate_segment(stored.name, length)
    assert await stored.window(20, 20) == (40, 51)


async def test_a_stream_without_watermarks_has_no_window(stored: Stored) -> None:
    """Another server may keep none; or the stream is gone, and comes again with others."""
    await stored.put(mark(10, 5, 5))
    assert await stored.window(5, 5) == (10, None)
    stored.controller.mark_segments = []
    await stored.segments.delete_segment(stored.name)
    assert await stored.window(5, 6) == (None, None)
    stored.name = "s/_MARKa/7.#epoch.0"
    stored.controller.mark_segments = [SegmentRange("s", "_MARKa", segment_id(7, 0), 0.0, 1.0)]
    await stored.segments.create_segment(stored.name)
    await stored.put(mark(3, 1, 1))
    assert await stored.window(5, 6) == (3, None)


async def test_damaged_watermarks_are_reported(stored: Stored) -> None:
    """Not passed over."""
    await stored.segments.append(stored.name, frame_event(b"nonsense"))
    with pytest.raises(CorruptionError):
        await stored.window(0, 0)


async def test_new_watermarks_are_polled_periodically() -> None:
    """A caller that asks after every event causes one request per configured interval."""
    stored = Stored(refresh_s=3600.0)
    await stored.segments.create_segment(stored.name)
    assert await stored.window(0, 0) == (None, None)
    infos: list[Any] = []
    stored.segments.segment_info = infos.append
    for _ in range(100):
        assert await stored.window(0, 0) == (None, None)
    assert not infos


def test_times_are_numbers_or_datetimes_with_a_zone() -> None:
    """A datetime counts milliseconds since the epoch."""
    assert noted_time(-7) == -7
    assert noted_time(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)) == 1500
    assert noted_time(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert noted_time("1970-01-01T00:00:02Z") == 2000
    for wrong in (1 << 63, True, 1.5, "10", None, datetime(1970, 1, 1)):
        with pytest.raises(InvalidArgumentError):
            noted_time(wrong)


# -- with a server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A running server that makes watermarks all the time."""
    portal = Portal("server")
    options = StandaloneSettings(
        is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0,
        controller=ControllerSettings(watermarks=WatermarkSettings(interval_s=0.05)),
    )  # fmt: skip
    server = Standalone(options)
    portal.call(server.start(), 30)
    yield server.controller_uri
    portal.call(server.stop(), 30)
    portal.close()


_names = iter(range(1_000_000))


@pytest.fixture
def stream() -> str:
    return f"times-{next(_names)}/events"


async def window_is(reader: Reader, stream: str, lower: int | None, upper: int | None) -> None:
    """Wait for a window: watermarks come some time after the writers' times."""
    async with asyncio.timeout(60):
        while await reader.time_window(stream) != TimeWindow(lower, upper):  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.02)


async def cut_at(client: Client, stream: str, time: int) -> StreamCut:
    """Wait for the cut at a noted time."""
    async with asyncio.timeout(60):
        while (cut := await client.cut_at_noted_time(stream, time)) is None:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.02)
    return cut


async def write(writer: EventWriter, *events: bytes, key: str = "k") -> None:
    for event in events:
        await writer.write(event, routing_key=key)


async def test_a_reader_sees_the_times_that_a_writer_noted(uri: str, stream: str) -> None:
    """None is known before; then where it is, event by event; also behind a scale."""
    async with Client(uri, FAST) as client:
        await client.create_stream(stream)
        writer = await client.event_writer(stream)
        group = await client.reader_group("group", [stream])
        reader = await group.reader()
        assert await reader.time_window(stream) == TimeWindow(None, None)
        await write(writer, b"a", b"b")
        await writer.note_time(10)
        await window_is(reader, stream, None, 10)
        assert [(await reader.read(20)).data, (await reader.read(20)).data] == [b"a", b"b"]
        await window_is(reader, stream, 10, None)
        await client.scale_stream(stream, seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
        await write(writer, b"c")
        await writer.note_time(20)
        await window_is(reader, stream, 10, 20)
        assert (await reader.read(20)).data == b"c"
        await window_is(reader, stream, 20, None)
        with pytest.raises(InvalidArgumentError, match="before 20"):
            await writer.note_time(19)
        with pytest.raises(InvalidArgumentError, match="does not read"):
            await reader.time_window("other/events")


async def test_two_readers_have_one_window(uri: str, stream: str) -> None:
    """What the other one has not read, as far as it has said, is not passed."""
    async with Client(uri, FAST) as client:
        await client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
        writer = await client.event_writer(stream)
        group = await client.reader_group("group", [stream])
        one = await group.reader("one")
        other = await group.reader("other")
        async with asyncio.timeout(60):
            while not (len(one.segments) == len(other.segments) == 1):
                await asyncio.sleep(0.02)
                await one.read(0)
        for number in range(20):
            await write(writer, b"x", key=f"key{number}")
        await writer.note_time(10)
        await window_is(one, stream, None, 10)
        assert await one.read(20) is not None
        while await one.read(0.1) is not None:
            assert (await one.time_window(stream)).lower_bound is None
        async with asyncio.timeout(60):
            while {await each.time_window(stream) for each in (one, other)} != {TimeWindow(10, None)}:
                await asyncio.gather(one.read(0.05), other.read(0.05))


async def test_the_position_after_a_large_event_is_requested_from_the_store(uri: str, stream: str) -> None:
    """The server does not say it then: the position is the segment's end, and nothing of the time lies after it."""
    async with Client(uri, FAST) as client:
        await client.create_stream(stream)
        writer = await client.event_writer(stream)
        await write(writer, bytes(EVENT_LENGTH_MAX + 1))
        await writer.flush()
        (appender,) = writer._segments.appenders.values()
        assert appender.end_offset is None
        await writer.note_time(10)
        cut = await cut_at(client, stream, 10)
        assert cut == await client.tail(stream)
        await write(writer, b"small")
        await writer.flush()
        assert appender.end_offset == (await client.tail(stream)).positions[0]


async def test_a_cut_at_a_noted_time_divides_a_stream(uri: str, stream: str) -> None:
    """What was noted as of then lies before it: as the end of one group, and the start of another."""
    async with Client(uri, FAST) as client:
        await client.create_stream(stream, scaling=penstock.Scaling.fixed(3))
        writer = await client.event_writer(stream)
        for time in (10, 20, 30):
            for number in range(9):
                await write(writer, b"%d" % time, key=f"key{number}")
            await writer.note_time(time)
            cut = await cut_at(client, stream, time)
            if time == 20:
                middle = cut
        assert await client.cut_at_noted_time(stream, 11) == middle
        assert await client.cut_at_noted_time(stream, 31) is None
        before = await client.reader_group("before", [stream], until=middle)
        after = await client.reader_group("after", [stream], start=middle, until="latest")
        for group, expected in ((before, [b"10"] * 9 + [b"20"] * 9), (after, [b"30"] * 9)):
            async with group.reader() as reader:
                assert sorted([event.data async for event in reader]) == expected


async def test_a_writer_that_is_closed_is_not_awaited(uri: str, stream: str) -> None:
    """Even where the stream says that writers are awaited for long."""
    async with Client(uri, FAST) as client:
        await client.create_stream(stream, timestamp_aggregation_timeout_s=60.0)
        await client.update_stream(stream, timestamp_aggregation_timeout_s=3600.0)
        await client.update_stream(stream, tags=["late"])
        assert (await client.stream_config(stream)).timestamp_aggregation_timeout_ms == 3_600_000
        reader = await (await client.reader_group("group", [stream])).reader()
        leaving, staying = await client.event_writer(stream), await client.event_writer(stream)
        await leaving.note_time(10)
        await staying.note_time(11)
        await write(staying, b"a")
        await window_is(reader, stream, 10, None)
        await leaving.close()
        await staying.note_time(12)
        async with asyncio.timeout(60):
            while (window := await reader.time_window(stream)).upper_bound != 12:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.02)
        # There may have been another watermark as soon as the one had left.
        assert window.lower_bound in (10, 11)
        await client.event_writer(stream)  # One that never notes a time counts for nothing.
        await staying.note_time(13)
        assert (await reader.read(20)).data == b"a"
        await window_is(reader, stream, 13, None)


def test_the_blocking_client_has_times_and_windows(uri: str, stream: str) -> None:
    """With values as well as with bytes."""
    with penstock.connect(uri, FAST) as client:
        client.create_stream(stream)
        with client.event_writer(stream, serializer=penstock.serializers.JsonSerializer()) as writer:
            writer.write({"a": 1})
            writer.note_time(datetime(2026, 1, 1, tzinfo=UTC))
        noted = 1_767_225_600_000
        with (
            client.reader_group("group", [stream]) as group,
            group.reader(serializer=penstock.serializers.JsonSerializer()) as reader,
        ):
            assert reader.read(20).value == {"a": 1}
            window = reader.time_window(stream)
            for _ in range(600):
                if window == penstock.TimeWindow(noted, None):
                    break
                client._portal.call(asyncio.sleep(0.1))
                window = reader.time_window(stream)
            assert window == penstock.TimeWindow(noted, None)
        assert client.cut_at_noted_time(stream, datetime(2026, 1, 1, tzinfo=UTC)) == client.tail(stream)
        transaction = client.begin_transaction(stream)
        transaction.write(b"b")
        client.commit_transaction(stream, transaction.detach(), time=datetime(2026, 1, 2, tzinfo=UTC))
        later = datetime(2026, 1, 2, tzinfo=UTC)
        for _ in range(600):
            if client.cut_at_noted_time(stream, later) is not None:
                break
            client._portal.call(asyncio.sleep(0.1))
        assert client.cut_at_noted_time(stream, later) == client.tail(stream)


async def test_a_reader_sees_the_times_that_transactions_are_committed_with(uri: str, stream: str) -> None:
    """All transactions of a client count as one writer, so each committed time moves the window.

    An aborted transaction does not move it, nor does one that is committed with an earlier time.
    """
    async with Client(uri, FAST) as client:
        await client.create_stream(stream, timestamp_aggregation_timeout_s=3600.0)
        reader = await (await client.reader_group("group", [stream])).reader()
        for time in (10, 20):
            transaction = await client.begin_transaction(stream)
            await transaction.write(b"%d" % time, "k")
            await transaction.commit(time=time)
            await transaction.commit(time=time)
            with pytest.raises(InvalidArgumentError, match=f"{time} was given before"):
                await transaction.commit(time=time + 1)
            await window_is(reader, stream, None if time == 10 else 10, time)
            assert (await reader.read(60)).data == b"%d" % time
            await window_is(reader, stream, time, None)
        prepared = await client.begin_transaction(stream)
        await prepared.prepare()
        await prepared.commit(time=25)
        await window_is(reader, stream, 25, None)
        aborted = await client.begin_transaction(stream)
        await aborted.write(b"never", "k")
        await aborted.abort()
        for time in (15, None, 30):
            transaction = await client.begin_transaction(stream, serializer=penstock.serializers.JsonSerializer())
            await transaction.write(time, "k")
            await transaction.commit(time=time)
            assert json.loads((await reader.read(60)).data) == time
        await window_is(reader, stream, 30, None)
        refused = await client.begin_transaction(stream)
        for wrong in (-1, 1 << 63, "soon", datetime(2026, 1, 1), True):
            with pytest.raises(InvalidArgumentError):
                await refused.commit(time=wrong)
        assert await refused.state() == "OPEN"
        await refused.commit()


async def test_a_client_that_is_closed_is_not_awaited_for_times_of_its_transactions(uri: str, stream: str) -> None:
    """It leaves as a writer does: another one's times move the window from then on."""
    async with Client(uri, FAST) as staying:
        await staying.create_stream(stream, timestamp_aggregation_timeout_s=3600.0)
        reader = await (await staying.reader_group("group", [stream])).reader()
        async with Client(uri, FAST) as leaving:
            transaction = await leaving.begin_transaction(stream)
            await transaction.write(b"left", "k")
            await transaction.commit(time=10)
            assert (await reader.read(60)).data == b"left"
            await window_is(reader, stream, 10, None)
        for time in (20, 30):
            transaction = await staying.begin_transaction(stream)
            await transaction.write(b"stayed", "k")
            await transaction.commit(time=time)
            assert (await reader.read(60)).data == b"stayed"
        await window_is(reader, stream, 30, None)


def test_the_blocking_client_commits_with_times(uri: str, stream: str) -> None:
    """A moment counts in milliseconds since the epoch."""
    with penstock.connect(uri, FAST) as client:
        client.create_stream(stream)
        transaction = client.begin_transaction(stream)
        transaction.write(b"a")
        transaction.commit(time="2026-01-01T00:00Z")
        for _ in range(600):
            cut = client.cut_at_noted_time(stream, 1_767_225_600_000)
            if cut is not None:
                break
            client._portal.call(asyncio.sleep(0.1))
        assert cut == client.tail(stream)


async def test_a_commit_by_id_notes_a_time_as_a_transactions_own_does(uri: str, stream: str) -> None:
    """Prepared or detached, by any client that has the id; each time that one client commits moves the window.

    The time of the first commit counts. An invalid time leaves the transaction undecided.
    """
    async with Client(uri, FAST) as client:
        await client.create_stream(stream, timestamp_aggregation_timeout_s=3600.0)
        reader = await (await client.reader_group("group", [stream])).reader()
        for time, leave in ((10, "detach"), (20, "prepare")):
            transaction = await client.begin_transaction(stream)
            await transaction.write(b"%d" % time, "k")
            await getattr(transaction, leave)()
            for wrong in (-1, 1.5, "soon", datetime(1970, 1, 1)):
                with pytest.raises(InvalidArgumentError):
                    await client.commit_transaction(stream, transaction.id, time=wrong)
            assert await client.transaction_state(stream, transaction.id) == "OPEN"
            await client.commit_transaction(stream, transaction.id, time=time)
            await client.commit_transaction(stream, transaction.id, time=99)
            await window_is(reader, stream, None if time == 10 else 10, time)
            assert (await reader.read(60)).data == b"%d" % time
        await window_is(reader, stream, 20, None)

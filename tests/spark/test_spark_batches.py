"""Blocks of a segment to Arrow batches, and Arrow batches to a writer. No Spark session; pyarrow is real."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pytest.importorskip("pyspark", reason="needs pyspark")

from pyspark.sql.types import BinaryType, LongType, StringType, StructType  # noqa: E402

from penstock.model.errors import (  # noqa: E402
    CorruptionError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.model.events import frame_events  # noqa: E402
from penstock.spark import batches as batches_module  # noqa: E402
from penstock.spark import sink, sink_rows  # noqa: E402
from penstock.spark.batches import RangeProgress, record_batches  # noqa: E402
from penstock.spark.options import COLUMN_TYPES, SinkOptions, StoreSettings  # noqa: E402

NAME = "a/b/0.#epoch.1"


def batches_of(
    data: bytes, block_size: int, columns: tuple[str, ...] = tuple(COLUMN_TYPES), start: int = 0
) -> list[Any]:
    blocks: Iterator[bytes] = (data[at : at + block_size] for at in range(0, len(data), block_size))
    return list(
        record_batches(
            blocks,
            scope="a",
            stream="b",
            segment=1 << 32,
            segment_name=NAME,
            place=RangeProgress(start),
            columns=columns,
        )
    )


def test_every_column_has_its_type_and_value() -> None:
    [batch] = batches_of(frame_events([b"one", b"", b"three"]), 7, start=100)
    assert batch.schema == pa.schema(
        [
            ("event", pa.binary()),
            ("scope", pa.string()),
            ("stream", pa.string()),
            ("segment_id", pa.int64()),
            ("offset", pa.int64()),
        ]
    )
    assert batch.to_pydict() == {
        "event": [b"one", b"", b"three"],
        "scope": ["a"] * 3,
        "stream": ["b"] * 3,
        "segment_id": [1 << 32] * 3,
        "offset": [100, 111, 119],
    }


def test_columns_come_in_the_order_asked_for() -> None:
    [batch] = batches_of(frame_events([b"x"]), 100, columns=("offset", "event"))
    assert batch.to_pydict() == {"offset": [0], "event": [b"x"]}


def test_batches_are_bounded_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BATCH_ROW_COUNT_MAX", 7)
    monkeypatch.setattr(batches_module, "BATCH_BYTES_TARGET", 200)
    events = [b"%03d" % number * (number % 5) for number in range(100)]
    found = batches_of(frame_events(events), 64, columns=("event", "offset"))
    assert [event for batch in found for event in batch["event"].to_pylist()] == events
    offsets = [offset for batch in found for offset in batch["offset"].to_pylist()]
    assert offsets == [sum(8 + len(event) for event in events[:index]) for index in range(100)]
    assert len(found) > 10
    assert all(0 < batch.num_rows <= 7 for batch in found)


def test_an_event_larger_than_a_batch_is_returned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BATCH_BYTES_TARGET", 100)
    events = [b"a", b"b" * 5000, b"c"]
    found = batches_of(frame_events(events), 64, columns=("event",))
    assert [event for batch in found for event in batch["event"].to_pylist()] == events


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    events=st.one_of(
        st.lists(st.binary(max_size=30), max_size=60),
        st.integers(0, 30).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=60)),
    ),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
    target=st.integers(1, 300),
)
def test_events_come_whole_wherever_blocks_are_cut(
    monkeypatch: pytest.MonkeyPatch, events: list[bytes], cuts: list[int], target: int
) -> None:
    # Blocks of any lengths, none among them empty; events of one length and not, cut in their headers and payloads.
    monkeypatch.setattr(batches_module, "BATCH_BYTES_TARGET", target)
    data, start = frame_events(events), 1000
    borders = [0, *sorted({each % len(data) for each in cuts if each % len(data)}), len(data)] if data else [0]
    place = RangeProgress(start)
    found = record_batches(
        (data[at:to] for at, to in pairwise(borders)),
        scope="a",
        stream="b",
        segment=0,
        segment_name=NAME,
        place=place,
        columns=("event", "offset"),
    )
    rows = [row for batch in found for row in zip(batch["event"].to_pylist(), batch["offset"].to_pylist(), strict=True)]
    offsets = [start + sum(8 + len(event) for event in events[:index]) for index in range(len(events))]
    assert rows == list(zip(events, offsets, strict=True))
    assert place.at == start + len(data)


def test_a_large_block_is_not_copied_for_the_event_that_its_start_cuts() -> None:
    block = b"end" + frame_events([b"next"] * 3)
    head, data = batches_module._joined([frame_events([b"start and end"])[:-3], block], NAME, 0)
    assert bytes(head) == frame_events([b"start and end"])
    assert isinstance(data, memoryview)
    assert data.obj is block
    assert bytes(data) == block[3:]


@pytest.mark.parametrize("kept", [3, 8, 12])
def test_a_bad_header_after_a_cut_event_is_corruption_with_its_offset(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(batches_module, "BATCH_BYTES_TARGET", 50)
    good = frame_events([b"abcd"] * 10)
    with pytest.raises(CorruptionError) as caught:
        batches_of(good + b"\1" * 100, 108 + kept, start=1000)
    assert (caught.value.path, caught.value.offset) == (NAME, 1120)


def test_no_bytes_give_no_batch() -> None:
    assert batches_of(b"", 10) == []


def test_a_range_that_ends_inside_an_event_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"0\.#epoch\.1.*ends at byte 15, inside the event at byte 10"):
        batches_of(frame_events([b"ab", b"cd"])[:15], 4)


def test_bytes_that_are_no_header_are_corruption_with_their_offset() -> None:
    with pytest.raises(CorruptionError) as caught:
        batches_of(frame_events([b"ab"]) + b"\1" * 12, 100, start=1000)
    assert (caught.value.path, caught.value.offset) == (NAME, 1010)


class RecordingWriter:
    """Replaces a writer of the store."""

    def __init__(self) -> None:
        self.written: list[tuple[bytes, str | None]] = []
        self.flush_count = 0

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def write_many(self, events: Any, routing_keys: Any | None = None) -> None:
        keys = [None] * len(events) if routing_keys is None else routing_keys.to_pylist()
        assert routing_keys is None or None not in keys
        self.written.extend(zip(events.to_pylist(), keys, strict=True))

    def flush(self) -> None:
        self.flush_count += 1


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> RecordingWriter:
    from penstock.spark.store import StoredStream

    recording = RecordingWriter()
    monkeypatch.setattr(StoredStream, "writer", lambda self: recording)
    return recording


OPTIONS = SinkOptions(StoreSettings(), "a", "b")


def test_a_task_writes_its_rows_and_flushes_once(writer: RecordingWriter) -> None:
    batch = pa.record_batch({"event": pa.array(["é", "b"]), "routing_key": pa.array(["k", "l"])})
    written = sink.write_batches(OPTIONS, iter([batch, batch]))
    assert writer.written == [("é".encode(), "k"), (b"b", "l")] * 2
    assert writer.flush_count == 1
    assert (written.event_count, written.payload_bytes) == (4, 6)


def test_rows_without_a_key_are_written_without_one(writer: RecordingWriter) -> None:
    batch = pa.record_batch(
        {"routing_key": pa.array(["k", None, "l"], pa.string()), "event": pa.array([b"1", b"2", b"3"], pa.binary())}
    )
    sink.write_batches(OPTIONS, iter([batch]))
    assert sorted(writer.written) == [(b"1", "k"), (b"2", None), (b"3", "l")]
    writer.written.clear()
    sink.write_batches(OPTIONS, iter([batch.slice(1, 1)]))
    sink.write_batches(OPTIONS, iter([batch.select(["event"])]))
    assert writer.written == [(b"2", None), (b"1", None), (b"2", None), (b"3", None)]


def test_an_empty_task_opens_no_writer(writer: RecordingWriter) -> None:
    empty = pa.record_batch({"event": pa.array([], pa.binary())})
    assert sink.write_batches(OPTIONS, iter([])).event_count == 0
    assert sink.write_batches(OPTIONS, iter([empty])).event_count == 0
    assert (writer.written, writer.flush_count) == ([], 0)


class RefusedTask:
    """A task whose rows the store does not take, and which it does not let be undone either."""

    def __init__(self, client: object, identity: object, limits: object) -> None:
        pass

    async def begin(self) -> None:
        pass

    async def write(self, stream: str, events: object, keys: object) -> None:
        raise KeyboardInterrupt if stream == "a/killed" else InvalidArgumentError("too large")

    async def abort(self) -> None:
        raise OutcomeUnknownError("no answer")


@pytest.mark.parametrize(("stream", "ended_by"), [("killed", KeyboardInterrupt), ("b", InvalidArgumentError)])
def test_the_error_of_a_task_is_reported_if_its_abort_fails(
    monkeypatch: pytest.MonkeyPatch, stream: str, ended_by: type[BaseException]
) -> None:
    from penstock.spark import store

    def run(settings: object, step: Callable[[object], Coroutine[object, object, object]]) -> object:
        coroutine = step(None)
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits")

    monkeypatch.setattr(store, "run_in_client", run)
    monkeypatch.setattr(sink, "SinkTask", RefusedTask)
    batch = pa.record_batch({"event": pa.array([b"1"], pa.binary())})
    with pytest.raises(ended_by) as caught:
        sink.prepare_batches(SinkOptions(StoreSettings(), "a", stream), iter([batch]), None)
    assert "no answer" in "".join(caught.value.__notes__)


def test_a_null_event_is_refused(writer: RecordingWriter) -> None:
    batch = pa.record_batch({"event": pa.array([b"1", None], pa.binary())})
    with pytest.raises(InvalidArgumentError, match="1 of 2 rows have a null event"):
        sink.write_batches(OPTIONS, iter([batch]))


@pytest.mark.parametrize(
    "schema",
    [
        StructType().add("event", BinaryType()),
        StructType().add("EVENT", StringType()),
        StructType().add("routing_key", StringType()).add("event", StringType()),
    ],
)
def test_a_writable_schema_passes(schema: StructType) -> None:
    sink_rows.check_sink_schema(schema)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (StructType(), "'event' is missing.*has: none"),
        (StructType().add("value", StringType()), "'event' is missing.*has: value string"),
        (StructType().add("event", LongType()), "'event' is bigint"),
        (StructType().add("event", StringType()).add("routing_key", LongType()), "'routing_key' is bigint"),
        (StructType().add("event", StringType()).add("offset", LongType()), "'offset' cannot be stored"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(schema: StructType, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        sink_rows.check_sink_schema(schema)


def test_streams_may_come_from_a_column(writer: RecordingWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.spark.store import StoredStream

    opened = []
    monkeypatch.setattr(StoredStream, "writer", lambda self: opened.append(self.name) or writer)  # type: ignore[func-returns-value]
    batch = pa.record_batch(
        {
            "stream": pa.array(["b", "a/c", "b"]),
            "event": pa.array([b"1", b"2", b"3"], pa.binary()),
            "routing_key": pa.array(["k", None, None], pa.string()),
        }
    )
    written = sink.write_batches(SinkOptions(StoreSettings(), "a", None), iter([batch, batch]))
    assert opened == ["a/b", "a/c"]
    assert writer.written == [(b"1", "k"), (b"3", None), (b"2", None)] * 2
    assert written.event_count == 6


@pytest.mark.parametrize(
    ("streams", "complaint"),
    [
        (["b", None], "1 of 2 rows have no stream"),
        (["b", "x/c"], "names 'x/c', but option 'scope' is 'a'"),
        (["b", "a b"], "stream name 'a b'"),
        ([f"s{at}" for at in range(257)], "more than 256 streams: repartition"),
    ],
)
def test_a_stream_that_cannot_be_written_to_is_refused(
    writer: RecordingWriter, streams: list[str], complaint: str
) -> None:
    batch = pa.record_batch({"stream": pa.array(streams, pa.string()), "event": pa.array([b"1"] * len(streams))})
    with pytest.raises(PenstockError, match=complaint):
        sink.write_batches(SinkOptions(StoreSettings(), "a", None), iter([batch]))


def test_a_schema_needs_the_column_stream_just_where_the_option_is_missing() -> None:
    schema = StructType().add("event", StringType())
    with pytest.raises(InvalidArgumentError, match="'stream' is missing"):
        sink_rows.check_sink_schema(schema, has_stream=True)
    schema.add("stream", StringType())
    sink_rows.check_sink_schema(schema, has_stream=True)
    with pytest.raises(InvalidArgumentError, match="'stream' cannot be stored"):
        sink_rows.check_sink_schema(schema)
    with pytest.raises(InvalidArgumentError, match="'stream' is bigint"):
        sink_rows.check_sink_schema(StructType().add("event", StringType()).add("stream", LongType()), has_stream=True)

"""Replays and backfills, cut off at each request: each event is in the target once. Of a server in memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.client.client import Client
from penstock.jobs.backfill import BackfillSource
from penstock.jobs.errors import StreamRecreatedError
from penstock.jobs.ledgered_copy import CopyReport, LedgeredCopy, Pace, Portion, PortionSource, open_job
from penstock.jobs.replay import ReplayPlan, ReplaySource
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    PenstockError,
    StreamSealedError,
    TransactionError,
)
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.portal import Portal
from penstock.spark.ledger import SinkIdentity, ledger_rows
from penstock.testing import MemoryServer, memory_server
from support.job_stream import JobStream
from support.mortal_client import Death, MortalPart

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with memory_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: MemoryServer) -> Iterator[penstock.Client]:
    with server.connect() as connected:
        yield connected


class Target:
    """A stream of a server, and jobs that write into it."""

    def __init__(self, client: penstock.Client, segment_count: int = 2) -> None:
        self.client = client
        self.name = f"copies/target-{next(_numbers)}"
        client.create_stream(self.name, scaling=penstock.Scaling.fixed(segment_count))

    @property
    def call(self) -> Any:
        portal: Portal = self.client._portal
        return portal.call

    @property
    def part(self) -> Client:
        return self.client._part

    def copy(
        self, source: PortionSource, name: str = "job", client: Client | None = None,
        note: Callable[[CopyReport], None] = lambda _: None, pace: Pace | None = None,
    ) -> CopyReport:  # fmt: skip
        self.call(open_job(self.part, name, self.name))
        made = LedgeredCopy(self.call, client or self.part, name, self.name, source)
        made.run(pace or Pace(), note)
        return made.report

    def events(self) -> list[bytes]:
        with self.client.batch(self.name) as batch:
            return [event.data for part in batch.ranges for event in batch.events(part)]


@pytest.fixture
def target(client: penstock.Client) -> Target:
    return Target(client)


def filled(event_count: int = 8) -> JobStream:
    stream = JobStream()
    for number in range(event_count):
        stream.write(number % 2, b'{"n":%d}' % number)
    return stream


def replay_of(stream: JobStream, **options: Any) -> ReplaySource:
    start, end = (StreamCut(stream.scope, stream.stream, at) for at in (stream.head(), stream.tail()))
    plan = ReplayPlan("all of it", start, end, options.pop("key_field", None), stream.own_identity)
    return ReplaySource(stream, plan, **({"bytes_max": 40} | options))


def test_a_replay_is_there_once_however_often_it_is_run(target: Target) -> None:
    """In order for each segment that it came from, through a scale event; what came behind its end is not in it."""
    stream = filled(40)
    stream.replace([0, 1], [2])
    stream.write(2, b"after")
    source = replay_of(stream, bytes_max=200)
    stream.write(2, b"too late")
    report = target.copy(source)
    assert report.event_count == 41
    assert report.commit_count > 2
    assert report.length_bytes == source.left_bytes()
    assert target.copy(source) == CopyReport()
    found = target.events()
    assert Counter(found) == Counter(stream.written[:-1])
    for parity in (0, 1):
        mine = [event for event in found if event[5:-1].isdigit() and int(event[5:-1]) % 2 == parity]
        assert mine == sorted(mine, key=lambda event: int(event[5:-1]))


@pytest.mark.parametrize("is_while_reading", [False, True])
def test_a_replay_of_a_recreated_source_ends_with_the_events_so_far(
    target: Target, monkeypatch: pytest.MonkeyPatch, is_while_reading: bool
) -> None:
    """The new stream is as long as the old one, so the positions of the plan exist in it, too."""
    stream = filled(40)
    source = replay_of(stream, bytes_max=200)
    read = stream.read

    def recreate() -> None:
        stream.recreate("identity-2")
        for number in range(40):
            stream.write(number % 2, b'{"n":%d}' % (100 + number))

    def recreate_after_a_read(segment: int, start: int, end: int) -> Iterator[bytes]:
        data = list(read(segment, start, end))
        if stream.own_identity == "identity-1" and target.events():
            recreate()
        return iter(data)

    if is_while_reading:
        monkeypatch.setattr(stream, "read", recreate_after_a_read)
    written = list(stream.written)
    with pytest.raises(StreamRecreatedError, match="identity identity-2 instead of identity-1"):
        target.copy(source, note=lambda _: None if is_while_reading else recreate())
    assert Counter() < Counter(target.events()) < Counter(written)
    with pytest.raises(StreamRecreatedError):
        source.left_bytes()


def test_a_plan_of_a_replay_is_read_again_with_and_without_an_identity() -> None:
    cut = StreamCut("s", "t", {0: 5})
    for plan in (ReplayPlan("all", cut, cut, None), ReplayPlan("all", cut, cut, "k", "identity-1")):
        assert ReplayPlan.from_text(plan.to_text()) == plan
    assert "identity" not in ReplayPlan("all", cut, cut, None).to_text()


@pytest.mark.parametrize(
    "how", ["lost", "limit", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("before", "behind"))]
)
def test_a_copy_that_is_cut_off_anywhere_continues_without_a_gap(client: penstock.Client, how: str) -> None:
    """The copy dies before or after each request, or its reply is lost; the next run has portions of another size.

    `limit`: it stays down until the limit of its prepared transaction is over.
    """
    for at in itertools.count():
        target, stream = Target(client, 1), filled(4)
        calls = itertools.count()
        mortal = cast(Client, MortalPart(target.part, calls, at, "behind" if how == "limit" else how))
        try:
            target.copy(replay_of(stream), client=mortal)
        except (Death, PenstockError):
            if how == "limit":
                for left in list(client.open_transactions(target.name)):
                    with suppress(TransactionError):  # It was committed, and is only just being merged.
                        client.abort_transaction(target.name, left.id)
            target.copy(replay_of(stream, bytes_max=1))
        assert Counter(target.events()) == Counter(stream.written)
        if next(calls) <= at:
            break
    assert at > 20


def test_two_copies_of_one_name_double_nothing(target: Target) -> None:
    """The other one takes over during the copy, as often as it may."""
    stream = filled()

    def interfere(report: CopyReport) -> None:
        assert report.commit_count <= 2
        target.copy(replay_of(stream, bytes_max=20))

    target.copy(replay_of(stream), note=interfere)
    assert Counter(target.events()) == Counter(stream.written)


def test_another_run_that_was_ahead_within_a_portion_counts(target: Target) -> None:
    """Its own is aborted: it may not commit what the other one has."""
    stream = filled()
    source = replay_of(stream)

    class Slow:
        plan = source.plan
        portions = 0

        def portion(self, position: str | None) -> Portion | None:
            read = source.portion(position)
            self.portions += 1
            if self.portions == 2:
                target.copy(replay_of(stream, bytes_max=20))
            return read

    report = target.copy(Slow())
    assert report.commit_count == 1
    assert Counter(target.events()) == Counter(stream.written)
    assert not list(target.client.open_transactions(target.name))


def test_a_name_continues_with_its_own_plan_only(target: Target) -> None:
    target.copy(replay_of(filled()))
    with pytest.raises(InvalidArgumentError, match="another name"):
        target.copy(replay_of(filled(10)))
    assert target.copy(replay_of(filled(10)), name="other").event_count == 10
    plan = target.call(open_job(target.part, "job", target.name))
    assert ReplayPlan.from_text(plan).wanted == "all of it"
    with pytest.raises(CorruptionError):
        ReplayPlan.from_text("{}")


def test_a_row_of_another_make_under_the_name_is_reported(target: Target) -> None:
    target.copy(replay_of(filled()))
    rows = {row.sink: row for row in ledger_rows(target.client, "copies")}
    row = rows[SinkIdentity("job job", target.name)]
    assert type(row).decode(row.encode(), "here") == row
    assert '"note"' in row.encode().decode()


def test_a_sealed_target_is_found_before_anything_is_read(target: Target) -> None:
    target.client.seal_stream(target.name)
    with pytest.raises(StreamSealedError):
        target.copy(replay_of(filled()))


def test_a_field_gives_the_routing_key(target: Target) -> None:
    """Events of one key are in one segment; an event without a key is reported with its place."""
    stream = filled()
    target.copy(replay_of(stream, key_field="n"))
    with pytest.raises(InvalidArgumentError, match=r"event 0 of model/stream/0 from byte 0 on has no routing key"):
        target.copy(replay_of(stream, key_field="m"), name="other")
    single = Target(target.client)
    stream = JobStream()
    for number in range(8):
        stream.write(number % 2, b'{"n":7,"at":%d}' % number)
    single.copy(replay_of(stream, key_field="n"))
    with target.client.batch(single.name) as batch:
        assert len(batch.ranges) == 1


def test_a_pace_is_kept(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """By events and by bytes, whichever is slower; portions hold no more than they may."""
    now_s = 100.0

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    monkeypatch.setattr("penstock.jobs.ledgered_copy.time.sleep", sleep)
    monkeypatch.setattr("penstock.jobs.ledgered_copy.time.monotonic", lambda: now_s)
    stream = filled()
    times: list[tuple[float, int]] = []
    target.copy(
        replay_of(stream, events_max=2, bytes_max=10_000), pace=Pace(events_per_s=2),
        note=lambda report: times.append((now_s, report.event_count)),
    )  # fmt: skip
    assert times == [(100.0, 2), (101.0, 4), (102.0, 6), (103.0, 8)]
    begin_s = now_s
    pace = Pace(events_per_s=1e9, bytes_per_s=15)
    report = target.copy(replay_of(stream), name="by bytes", pace=pace)
    assert now_s - begin_s == pytest.approx(report.length_bytes / 15)


def table_of(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    columns = {"event": [b"event %03d" % number for number in numbers], "who": [number % 3 for number in numbers]}
    return pa.table(columns, pa.schema({"event": pa.binary(), "who": pa.int32()}))


def test_rows_of_files_are_written_once_and_by_key(target: Target, tmp_path: Path) -> None:
    """Several files and row groups, more of them than fit into a portion, and files without a row."""
    pq.write_table(table_of(0), tmp_path / "0.parquet")
    pq.write_table(table_of(25), tmp_path / "1.parquet", row_group_size=10)
    pq.write_table(table_of(0), tmp_path / "2.parquet")
    pq.write_table(table_of(5, 25), tmp_path / "3.parquet")
    (tmp_path / "_hidden.parquet").write_text("none")

    def source(bytes_max: int) -> BackfillSource:
        return BackfillSource([tmp_path], key_column="who", bytes_max=bytes_max)

    assert source(40).row_count() == 30
    stopped = []

    def stop(report: CopyReport) -> None:
        stopped.append(report.event_count)
        if len(stopped) == 2:
            raise Death

    with pytest.raises(Death):
        target.copy(source(40), note=stop)
    assert stopped == [4, 8]
    assert target.copy(source(100)).event_count == 22
    assert target.copy(source(40)) == CopyReport()
    found = target.events()
    assert Counter(found) == Counter(b"event %03d" % number for number in range(30))
    for who in range(3):
        mine = [event for event in found if int(event[6:]) % 3 == who]
        assert mine == sorted(mine)


def test_an_export_is_put_back_as_it_was(target: Target, tmp_path: Path) -> None:
    """Texts, and what were none; in order for each segment."""
    count = 40
    texts = [None if number == 7 else f"event {number:02}" for number in range(count)]
    rows = {
        "event": texts, "event_undecoded": [b"\xff" if text is None else None for text in texts],
        "scope": ["s"] * count, "stream": ["t"] * count, "segment_id": [number % 2 for number in range(count)],
        "offset": list(range(count)),
    }  # fmt: skip
    pq.write_table(pa.table(rows), tmp_path / "1.parquet")
    source = BackfillSource([tmp_path / "1.parquet"], bytes_max=50)
    first = source.portion(None)
    assert first is not None
    assert first.keys is not None
    assert list(map(str, first.keys)) == ["0", "1"] * 3
    target.copy(source)
    found = target.events()
    wanted = [b"\xff" if text is None else text.encode() for text in texts]
    assert Counter(found) == Counter(wanted)
    for segment in (0, 1):
        mine = wanted[segment::2]
        assert [event for event in found if event in mine] == mine


def test_unwritable_output_is_refused(tmp_path: Path) -> None:
    """Before the first event, except for a row without one: the error names the row."""
    with pytest.raises(InvalidArgumentError, match="neither a file"):
        BackfillSource([tmp_path], bytes_max=1)
    file = tmp_path / "1.parquet"
    file.write_text("no Parquet")
    with pytest.raises(CorruptionError, match=r"1\.parquet"):
        BackfillSource([file], bytes_max=1)
    pq.write_table(pa.table({"event": [b"a", None], "n": [1, 2]}), file)
    for options in ({"event_column": "n"}, {"event_column": "x"}, {"key_column": "x"}):
        with pytest.raises(InvalidArgumentError):
            BackfillSource([file], bytes_max=1, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="row 1 of"):
        BackfillSource([file], bytes_max=1).portion(None)

"""Exports into Parquet files and Iceberg tables, cut off at each step: each event is a row once. No server needed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from penstock.jobs.errors import ExportTargetError, StreamRecreatedError
from penstock.jobs.export import Exporter, ExportTarget, HereWriter
from penstock.jobs.iceberg_table import IcebergTable, open_catalog
from penstock.jobs.parquet_directory import Manifest, ParquetDirectory
from penstock.jobs.rows import RowShape
from penstock.model.errors import CorruptionError, InvalidArgumentError, OutcomeUnknownError
from penstock.model.stream_cuts import StreamCut
from support.job_stream import JobStream

SHAPE = RowShape("binary")


class Death(BaseException):
    """The process of an exporter ends here."""


class Place:
    """Where a test exports to: opens a target again, as a process that is started again does."""

    def __init__(self, directory: Path, stream: str = "model/stream") -> None:
        self.directory, self.stream, self.schema = directory, stream, SHAPE.schema

    def open(self) -> ExportTarget:
        raise NotImplementedError

    def table(self) -> pa.Table:
        """Return what readers see now."""
        raise NotImplementedError


class ParquetPlace(Place):
    def open(self) -> ExportTarget:
        return ParquetDirectory(self.directory, self.stream, self.schema)

    def table(self) -> pa.Table:
        if not self.directory.exists():
            return SHAPE.schema.empty_table()
        # As any program reads a directory: without the manifests.
        return pyarrow.dataset.dataset(self.directory, schema=SHAPE.schema, format="parquet").to_table()


@functools.cache
def catalog_in(directory: Path) -> Any:
    return open_catalog("test", {}, directory)


class IcebergPlace(Place):
    table_name = "events.all"

    def catalog(self) -> Any:
        return catalog_in(self.directory)

    def open(self) -> ExportTarget:
        return IcebergTable(self.catalog(), self.table_name, self.stream, self.schema, outage_s_max=20.0)

    def table(self) -> pa.Table:
        if not self.catalog().table_exists(self.table_name):
            return SHAPE.schema.empty_table()
        return self.catalog().load_table(self.table_name).scan().to_arrow()


@pytest.fixture(params=["parquet", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "parquet":
        return ParquetPlace(tmp_path / "out")
    pytest.importorskip("pyiceberg", reason="needs the extra: penstock[iceberg]")
    return IcebergPlace(tmp_path / "out")


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergPlace:
    pytest.importorskip("pyiceberg", reason="needs the extra: penstock[iceberg]")
    return IcebergPlace(tmp_path / "out")


def cut(stream: JobStream, at: dict[int, int]) -> StreamCut:
    return StreamCut(stream.scope, stream.stream, at)


def exporter(stream: JobStream, target: ExportTarget, batch_bytes: int = 100) -> Exporter:
    first = cut(stream, stream.head())
    writer = HereWriter(stream, SHAPE)
    return Exporter(stream, target, writer, first, batch_bytes=batch_bytes, identity=stream.own_identity)


def export_all(stream: JobStream, target: ExportTarget, batch_bytes: int = 100) -> Exporter:
    made = exporter(stream, target, batch_bytes)
    made.run_to(cut(stream, stream.tail()), lambda _: None)
    return made


def exported(place: Place) -> Counter[bytes]:
    return Counter(place.table()["event"].to_pylist())


def filled(event_count: int = 20) -> JobStream:
    stream = JobStream()
    for number in range(event_count):
        stream.write(number % 2, b"event %03d" % number)
    return stream


def test_a_table_has_each_event_once_with_its_place(place: Place) -> None:
    """Over several commits, several runs, and scale events; of each segment in order."""
    stream = filled()
    report = export_all(stream, place.open()).report
    assert (report.row_count, report.length_bytes) == (20, 20 * 17)
    assert report.commit_count > 1
    stream.replace([0, 1], [2, 3])
    stream.write(2, b"after")
    assert export_all(stream, place.open()).report.row_count == 1
    stream.write(3, b"", b"last")
    last = export_all(stream, place.open())
    assert last.report.row_count == 2
    assert last.left_bytes(cut(stream, stream.tail())) == 0
    assert export_all(stream, place.open()).report.commit_count == 0
    assert exported(place) == Counter(stream.written)
    rows = place.table().sort_by([("segment_id", "ascending"), ("offset", "ascending")]).to_pylist()
    assert rows[1] == {
        "event": b"event 002", "scope": "model", "stream": "stream", "segment_id": 0, "offset": 17,
    }  # fmt: skip


def test_an_export_ends_at_its_end_cut_and_a_passed_cut_exports_nothing(place: Place) -> None:
    """Also where the stream was scaled in between."""
    stream = filled()
    first = cut(stream, {0: 17, 1: 34})
    exporter(stream, place.open()).run_to(first, lambda _: None)
    assert exported(place) == Counter([b"event 000", b"event 001", b"event 003"])
    stream.replace([0, 1], [2])
    stream.write(2, b"after")
    export_all(stream, place.open())
    late = exporter(stream, place.open())
    late.run_to(first, lambda _: None)
    assert late.left_bytes(first) == 0
    assert late.report.commit_count == 0
    assert exported(place) == Counter(stream.written)


def test_the_second_of_two_exporters_continues_after_the_first(place: Place) -> None:
    """Each is writing a batch that the other one has committed by then."""
    stream = filled()
    one, two = place.open(), place.open()
    written: list[Any] = []

    class Between:
        """Lets the other exporter commit between the writing of a batch and its commit."""

        def __getattr__(self, name: str) -> Any:
            return getattr(one, name)

        def commit(self, batch: Any) -> bool:
            written.append(batch)
            if len(written) == 2:
                exporter(stream, two).run_to(cut(stream, {0: 170, 1: 119}), lambda _: None)
            return one.commit(batch)

    late = exporter(stream, Between())
    late.run_to(cut(stream, stream.tail()), lambda _: None)
    assert late.report.overtaken_count == 1
    assert exported(place) == Counter(stream.written)
    # What was overtaken is not left behind.
    lost = Path(written[1].files[0].removeprefix("file://")).name
    assert not list(place.directory.rglob(lost))


def test_concurrent_exporters_write_no_event_twice(place: Place) -> None:
    """Three in threads, as fast as they can."""
    stream = filled(60)
    targets = [place.open() for _ in range(3)]
    failures: list[BaseException] = []

    def run(target: ExportTarget) -> None:
        try:
            export_all(stream, target, 200)
        except BaseException as error:  # noqa: BLE001  # told below
            failures.append(error)

    threads = [threading.Thread(target=run, args=[target]) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert exported(place) == Counter(stream.written)


def cut_off(
    calls: Iterator[int], at: int, how: str, function: Callable[..., Any], failure: type[Exception]
) -> Callable[..., Any]:
    """Return `function`, which at the `at`-th of all `calls` does not come to its end."""

    def call(*args: Any, **options: Any) -> Any:
        is_now = next(calls) == at
        if is_now and how == "before":
            raise Death(function)
        result = function(*args, **options)
        if is_now:
            raise Death(function) if how == "behind" else failure(f"the reply of {function} was lost")
        return result

    return call


@pytest.mark.parametrize("how", ["before", "behind"])
def test_a_parquet_export_that_dies_anywhere_continues_without_a_gap(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or behind each call that changes or syncs a file; readers never see an event twice."""
    for at in itertools.count():
        stream, place = filled(4), ParquetPlace(tmp_path / f"{how}-{at}")
        calls = itertools.count()
        with monkeypatch.context() as patched:
            for name in ("fsync", "link", "rename", "unlink", "mkdir"):
                patched.setattr(os, name, cut_off(calls, at, how, getattr(os, name), OSError))
            try:
                export_all(stream, place.open(), 40)
            except Death:
                pass
        seen = exported(place)
        assert seen <= Counter(stream.written)
        stream.write(0, b"more")
        export_all(stream, place.open())
        assert exported(place) == Counter(stream.written)
        assert os.listdir(place.directory / "_penstock" / "staged") == []
        if next(calls) <= at:
            break
    assert at > 20


class MortalCatalog:
    """Stands before a catalogue, whose calls may end anywhere."""

    def __init__(self, catalog: Any, calls: Iterator[int], at: int, how: str) -> None:
        self._catalog = catalog
        self._cut_off = lambda function: cut_off(calls, at, how, function, ConnectionError)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        return self._cut_off(found) if name in ("load_table", "commit_table") else found  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("how", ["before", "behind", "lost"])
def test_an_iceberg_export_that_is_cut_off_anywhere_continues_without_a_gap(iceberg: IcebergPlace, how: str) -> None:
    """At each call of the catalogue. A lost reply is looked up, and the export continues unaided."""
    for at in itertools.count():
        stream, place = filled(4), iceberg
        place.table_name = f"events.{how}-{at}"
        calls = itertools.count()
        mortal = MortalCatalog(place.catalog(), calls, at, how)
        target = IcebergTable(mortal, place.table_name, place.stream, SHAPE.schema, outage_s_max=20.0)
        try:
            export_all(stream, target, 40)
            # That is all of them, also where a reply was lost.
            assert exported(place) == Counter(stream.written)
        except Death:
            assert how != "lost"
        assert exported(place) <= Counter(stream.written)
        stream.write(0, b"more")
        export_all(stream, place.open())
        assert exported(place) == Counter(stream.written)
        if next(calls) <= at:
            break
    assert at >= 6


def test_a_commit_with_unknown_outcome_is_found_by_the_next_run(iceberg: IcebergPlace) -> None:
    """The catalogue stays away after the commit; the files stay, because they may be part of the table."""
    stream = filled()
    catalog = iceberg.catalog()

    class Away:
        is_away = False

        def __getattr__(self, name: str) -> Any:
            if self.is_away:
                raise ConnectionError("the catalogue is away")
            return getattr(catalog, name)

        def commit_table(self, *args: Any) -> None:
            catalog.commit_table(*args)
            self.is_away = True
            raise ConnectionError("the reply was lost")

    target = IcebergTable(Away(), "events.all", "model/stream", SHAPE.schema, outage_s_max=0.2)
    with pytest.raises(OutcomeUnknownError, match=r"ConnectionError: the reply was lost.*Run the export again"):
        export_all(stream, target)
    assert 0 < exported(iceberg).total() < 20
    export_all(stream, iceberg.open())
    assert exported(iceberg) == Counter(stream.written)


class Failing:
    """A catalogue one of whose calls fails, after it did its work or instead of it."""

    def __init__(self, catalog: Any, call: str, failure: Exception, *, does_work: bool = False) -> None:
        self._catalog, self._call, self._failure, self._does_work = catalog, call, failure, does_work
        self.is_failing = False
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        if name != self._call or not self.is_failing:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self._does_work:
                found(*args, **options)
            raise self._failure

        return call


def failing_export(place: IcebergPlace, catalog: Failing, outage_s: float = 0.2) -> Exporter:
    target = IcebergTable(catalog, "events.all", "model/stream", SHAPE.schema, outage_s_max=outage_s)
    catalog.is_failing = True
    return export_all(filled(), target, 10_000)


def refusals() -> list[Exception]:
    from pyiceberg import exceptions

    return [exceptions.BadRequestError("no"), exceptions.ForbiddenError("no"), exceptions.NoSuchTableError("no")]


@pytest.mark.parametrize("number", range(3))
def test_a_commit_refused_by_the_catalogue_is_known_to_have_failed(iceberg: IcebergPlace, number: int) -> None:
    catalog = Failing(iceberg.catalog(), "commit_table", refusals()[number])
    with pytest.raises(ExportTargetError, match=r"refused the commit, and nothing was committed: .*Error: no"):
        failing_export(iceberg, catalog, 20.0)
    assert catalog.count == 1
    assert exported(iceberg) == Counter()


def test_a_commit_that_always_conflicts_is_known_to_have_failed(iceberg: IcebergPlace) -> None:
    from pyiceberg.exceptions import CommitFailedException

    catalog = Failing(iceberg.catalog(), "commit_table", CommitFailedException("late"))
    with pytest.raises(ExportTargetError, match=r"nothing was committed within 0.2 s: CommitFailedException: late"):
        failing_export(iceberg, catalog)
    assert catalog.count > 1


def test_a_refusal_after_an_attempt_without_an_answer_leaves_the_outcome_unknown(
    iceberg: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt may still arrive."""
    catalog = Failing(iceberg.catalog(), "commit_table", ConnectionError("lost"))
    target = IcebergTable(catalog, "events.all", "model/stream", SHAPE.schema, outage_s_max=0.5)
    catalog.is_failing = True

    def refuse_later(delay_s: float) -> None:
        catalog._failure = refusals()[0]

    monkeypatch.setattr("penstock.jobs.iceberg_table.time.sleep", refuse_later)
    with pytest.raises(OutcomeUnknownError, match="ConnectionError: lost"):
        export_all(filled(), target, 10_000)


def test_a_table_is_opened_once_its_catalogue_is_back(
    iceberg: IcebergPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its namespace and the table are created; the outage is reported once. After the longest outage it is an error."""
    clock_s, pauses_s = 0.0, list[float]()

    def sleep(delay_s: float) -> None:
        nonlocal clock_s
        clock_s += delay_s
        pauses_s.append(delay_s)
        if clock_s > 600:
            catalog.is_failing = False

    monkeypatch.setattr("penstock.jobs.iceberg_table.time.sleep", sleep)
    monkeypatch.setattr("penstock.jobs.iceberg_table.time.monotonic", lambda: clock_s)
    catalog = Failing(iceberg.catalog(), "create_namespace_if_not_exists", ConnectionError("away"))
    catalog.is_failing = True
    with pytest.raises(ExportTargetError, match=r"events.all can be neither created nor opened: away"):
        IcebergTable(catalog, "events.all", "model/stream", SHAPE.schema, outage_s_max=60.0)
    assert 30 < sum(pauses_s) <= 60
    caplog.clear()
    export_all(filled(), IcebergTable(catalog, "events.all", "model/stream", SHAPE.schema, outage_s_max=900.0))
    assert caplog.text.count("the catalogue is unavailable, retrying for 900 s: ConnectionError: away") == 1
    assert exported(iceberg).total() == 20


def test_a_catalogue_that_was_never_reached_is_waited_for_if_wanted(
    monkeypatch: pytest.MonkeyPatch, iceberg: IcebergPlace
) -> None:
    import pyiceberg.catalog

    clock_s, count, present = 0.0, 0, iceberg.catalog()

    def load_catalog(name: str, **properties: str) -> object:
        nonlocal count
        count += 1
        if clock_s < 300:
            raise ConnectionError("away")
        return present

    def sleep(delay_s: float) -> None:
        nonlocal clock_s
        clock_s += delay_s

    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", load_catalog)
    monkeypatch.setattr("penstock.jobs.iceberg_table.time.sleep", sleep)
    monkeypatch.setattr("penstock.jobs.iceberg_table.time.monotonic", lambda: clock_s)
    with pytest.raises(ExportTargetError, match="catalogue lake cannot be opened: away"):
        open_catalog("lake", {}, None)
    assert count == 1
    assert open_catalog("lake", {}, None, 900.0) is present


def test_texts_whose_bounds_the_library_cannot_compute_are_exported_without_bounds(iceberg: IcebergPlace) -> None:
    """PyIceberg raises on a text that has U+D7FF where it shortens the upper bound of a column."""
    shape = RowShape("text")
    stream = JobStream()
    texts = ["\ud7ff" * 40, "plain"]
    for text in texts:
        stream.write(0, text.encode())
    for has_own_mode in (False, True):
        name = f"events.bounds-{has_own_mode}"
        target = IcebergTable(iceberg.catalog(), name, "model/stream", shape.schema, outage_s_max=20.0)
        if has_own_mode:
            with iceberg.catalog().load_table(name).transaction() as change:
                change.set_properties({"write.metadata.metrics.column.event": "truncate(8)"})
        before = dict(iceberg.catalog().load_table(name).properties)
        writer = HereWriter(stream, shape)
        made = Exporter(stream, target, writer, cut(stream, stream.head()), batch_bytes=10_000)
        made.run_to(cut(stream, stream.tail()), lambda _: None)
        table = iceberg.catalog().load_table(name)
        assert sorted(table.scan().to_arrow()["event"].to_pylist()) == sorted(texts)
        # The table's own settings are as before.
        assert {key: value for key, value in table.properties.items() if "metrics" in key} == {
            key: value for key, value in before.items() if "metrics" in key
        }


def test_files_that_the_library_cannot_add_are_reported_at_once_and_nothing_is_committed(
    iceberg: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import Transaction

    def add_files(*args: object, **options: object) -> None:
        raise ValueError("these files are strange")

    monkeypatch.setattr(Transaction, "add_files", add_files)
    with pytest.raises(ExportTargetError, match=r"cannot add the files.*nothing was committed: ValueError: these"):
        export_all(filled(), iceberg.open())
    monkeypatch.undo()
    assert exported(iceberg) == Counter()


def test_other_writers_of_an_iceberg_table_come_in_between(iceberg: IcebergPlace) -> None:
    """Commits of another stream and of foreign rows arrive during each commit: it is repeated after theirs."""
    stream, other = filled(6), filled(6)
    other.scope, other.name = "other", "other/stream"
    second = IcebergPlace(iceberg.directory, "other/stream")
    strange = pa.table({"event": [b"strange"]}, pa.schema([SHAPE.schema.field(0)]))
    commits: list[object] = []

    class Crowded:
        def __getattr__(self, name: str) -> Any:
            return getattr(iceberg.catalog(), name)

        def commit_table(self, *args: Any) -> None:
            commits.append(args)
            if len(commits) == 1:
                iceberg.catalog().load_table("events.all").append(strange)
            if len(commits) == 3:
                export_all(other, second.open())
            iceberg.catalog().commit_table(*args)

    target = IcebergTable(Crowded(), "events.all", "model/stream", SHAPE.schema)
    made = export_all(stream, target, 40)
    assert len(commits) == made.report.commit_count + 2
    rows = iceberg.table().to_pylist()
    assert Counter(row["event"] for row in rows if row["scope"] == "model") == Counter(stream.written)
    assert Counter(row["event"] for row in rows if row["scope"] == "other") == Counter(other.written)
    assert len(rows) == 13


def test_a_table_that_was_rolled_back_is_filled_again(iceberg: IcebergPlace) -> None:
    stream = filled()
    export_all(stream, iceberg.open())
    table = iceberg.catalog().load_table("events.all")
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert exported(iceberg).total() < 20
    export_all(stream, iceberg.open())
    assert exported(iceberg) == Counter(stream.written)


def test_a_table_with_expired_snapshots_is_not_exported_from_the_start(iceberg: IcebergPlace) -> None:
    """The error names the cut to resume from, and the export resumes there when that cut is confirmed."""
    stream = filled()
    export_all(stream, iceberg.open())
    end = cut(stream, stream.tail())
    table = iceberg.catalog().load_table("events.all")
    table.append(iceberg.table().slice(0, 0))
    table = iceberg.catalog().load_table("events.all")
    own = [each.snapshot_id for each in table.metadata.snapshots if each.summary["penstock.stream"]]
    table.maintenance.expire_snapshots().by_ids(own).commit()
    stream.write(0, b"more")
    with pytest.raises(ExportTargetError, match="have expired") as raised:
        export_all(stream, iceberg.open())
    assert end.to_text() in str(raised.value)
    confirmed = IcebergTable(iceberg.catalog(), "events.all", "model/stream", SHAPE.schema, confirmed=end)
    stream.own_identity = "identity-2"
    with pytest.raises(StreamRecreatedError):
        export_all(stream, confirmed)
    stream.own_identity = "identity-1"
    export_all(stream, confirmed)
    assert exported(iceberg) == Counter(stream.written)


def test_a_target_with_other_columns_is_refused(place: Place) -> None:
    export_all(filled(), place.open())
    place.schema = RowShape("text").schema
    with pytest.raises(InvalidArgumentError, match="different columns from this export"):
        place.open()


def test_a_parquet_directory_holds_one_stream(tmp_path: Path) -> None:
    export_all(filled(), ParquetPlace(tmp_path).open())
    with pytest.raises(InvalidArgumentError, match="holds model/stream"):
        ParquetPlace(tmp_path, "other/stream").open()


def test_a_recreated_stream_without_an_identity_is_refused_while_it_is_shorter(place: Place) -> None:
    stream = filled()
    stream.own_identity = None
    export_all(stream, place.open())
    stream.recreate(None)
    stream.write(0, b"new")
    with pytest.raises(StreamRecreatedError, match="deleted and created again"):
        export_all(stream, place.open())


@pytest.mark.parametrize("event_count", [0, 3, 20, 60], ids=["empty", "shorter", "equal", "longer"])
def test_a_recreated_stream_is_refused_whatever_its_length(place: Place, event_count: int) -> None:
    stream = filled()
    export_all(stream, place.open())
    before = exported(place)
    stream.recreate("identity-2")
    for number in range(event_count):
        stream.write(number % 2, b"event %03d" % number)
    with pytest.raises(StreamRecreatedError, match=r"identity identity-2 instead of identity-1.*another directory"):
        export_all(stream, place.open())
    with pytest.raises(StreamRecreatedError):
        exporter(stream, place.open()).left_bytes(cut(stream, stream.tail()))
    assert exported(place) == before


def test_a_stream_that_is_recreated_while_it_is_exported_adds_no_rows(place: Place) -> None:
    """While a batch is read: its files are removed, and the batches before it stay."""
    stream = filled()
    made = exporter(stream, place.open())
    written, write = list(stream.written), made._writer.write

    def write_then_recreate(*arguments: Any) -> Any:
        files = write(*arguments)
        if made.report.commit_count == 1:
            stream.recreate("identity-2")
        return files

    made._writer.write = write_then_recreate  # type: ignore[assignment, method-assign]
    with pytest.raises(StreamRecreatedError):
        made.run_to(cut(stream, stream.tail()), lambda _: None)
    assert made.report.commit_count == 1
    assert Counter() < exported(place) < Counter(written)
    if isinstance(place, ParquetPlace):
        assert os.listdir(place.directory / "_penstock" / "staged") == []


def test_a_stream_that_is_recreated_before_the_first_commit_is_refused(place: Place) -> None:
    """The cuts that the export begins with belong to the stream that was deleted."""
    stream = filled()
    made = exporter(stream, place.open())
    stream.recreate("identity-2")
    stream.write(0, b"new")
    with pytest.raises(StreamRecreatedError, match="while this export started: run it again"):
        made.run_to(cut(stream, stream.tail()), lambda _: None)
    export_all(stream, place.open())
    assert exported(place) == Counter([b"new"])


def test_an_export_without_an_identity_records_one_with_its_next_commit(place: Place) -> None:
    """Exports of earlier versions have none, and streams of a controller that has no identities."""
    stream = filled()
    stream.own_identity = None
    export_all(stream, place.open())
    for identity, recorded in ((None, None), ("identity-1", "identity-1"), (None, "identity-1")):
        stream.own_identity = identity
        stream.write(0, b"more")
        export_all(stream, place.open())
        position = place.open().latest()
        assert position is not None
        assert position.identity == recorded
    assert exported(place) == Counter(stream.written)


def test_a_manifest_of_an_earlier_version_is_read() -> None:
    text = StreamCut("s", "t", {0: 5}).to_text()
    stored = {
        "v": 1, "number": 3, "id": "ab", "start": text, "end": text, "schema": [["event", "binary"]], "files": ["f"],
        "row_count": 1,
    }  # fmt: skip
    manifest = Manifest.decode(json.dumps(stored).encode(), "here")
    assert (manifest.number, manifest.end.to_text(), manifest.identity) == (3, text, None)
    assert Manifest.decode(manifest.encode(), "here") == manifest
    known = dataclasses.replace(manifest, identity="identity-1")
    assert Manifest.decode(known.encode(), "here") == known


def test_an_export_follows_until_the_stream_is_sealed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = filled()
    pauses = []

    def grow(pause_s: float) -> None:
        pauses.append(pause_s)
        stream.write(0, b"more %d" % len(pauses))
        stream.is_closed = len(pauses) == 3

    monkeypatch.setattr("penstock.jobs.export.time.sleep", grow)
    exporter(stream, place.open()).follow(7.0, lambda _: None)
    assert len(pauses) == 3
    assert all(0 <= pause <= 7 for pause in pauses)
    assert exported(place) == Counter(stream.written)


def test_a_full_disk_leaves_no_visible_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = filled()
    target = place.open()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
        with pytest.raises(ExportTargetError, match="No space left"):
            export_all(stream, target)
    assert not list(place.directory.rglob("*.parquet"))
    export_all(stream, target)
    assert exported(place) == Counter(stream.written)


def test_an_invalid_manifest_is_reported(tmp_path: Path) -> None:
    place = ParquetPlace(tmp_path)
    export_all(filled(), place.open())
    newest = max((tmp_path / "_penstock").glob("*.json"))
    whole = newest.read_bytes()
    assert Manifest.decode(whole, "here").encode() == whole
    for damaged in (b"", b"{}", whole[:-1], whole.replace(b'"v":1', b'"v":0'), whole.replace(b"positions", b"x")):
        newest.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=newest.name):
            place.open()

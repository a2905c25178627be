"""What an older Pravega left is surveyed, imported and exported again, over the files of a store that is stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.rolling_export import ExportReport, export_rolling
from penstock.administration.rolling_storage import ImportReport, RollingReport, check_rolling, import_rolling
from penstock.administration.storage_administration import CheckProgress, check_storage
from penstock.model.errors import (
    DataDirectoryInUseError,
    InvalidArgumentError,
    NoSuchSegmentError,
    StorageIdentityError,
    StorageLayoutError,
    StorageUnavailableError,
)
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.layout_settings import LayoutMode, LayoutSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings

NAMES = [f"s/orders/{number}.#epoch.0" for number in range(3)]
DATA = {name: random.Random(name).randbytes(250_000) for name in NAMES}


class Shown:
    """Progress reports of a command."""

    def __init__(self) -> None:
        self.total_bytes = self.chunk_count = self.length_bytes = 0

    @contextmanager
    def __call__(self, total_bytes: int) -> Iterator[CheckProgress]:
        self.total_bytes = total_bytes
        yield self

    def note(self, chunk_count: int, length_bytes: int) -> None:
        self.chunk_count, self.length_bytes = chunk_count, length_bytes


def settings_of(tmp_path: Path, mode: LayoutMode | None = None, data_dir: str = "data") -> StandaloneSettings:
    container = ContainerSettings(
        flush_age_s=1e9, writer_interval_s=0.01, rollover_bytes_min=1, layout=LayoutSettings(mode=mode)
    )
    return StandaloneSettings(
        data_dir=str(tmp_path / data_dir),
        tier2=str(tmp_path / "long-term"),
        segment_store=SegmentStoreSettings(container_count=2, container=container),
        durable_log=LocalLogSettings(first_file_length_bytes=64 * 1024, file_length_bytes=4 * 1024 * 1024),
    )


@asynccontextmanager
async def running(settings: StandaloneSettings) -> AsyncIterator[SegmentStore]:
    runtime: Runtime = real_runtime(2)
    directory = DataDirectory(settings.data_dir, runtime)
    identity = directory.open(settings.segment_store.container_count)
    store = SegmentStore(
        logs=LocalLogFactory(directory.tier1, runtime, settings.durable_log),
        chunks=open_long_term_storage(settings, directory, runtime),
        cluster_id=identity.cluster_id,
        runtime=runtime,
        settings=settings.segment_store,
    )
    try:
        await store.start()
        yield store
    finally:
        await store.stop()
        directory.close()
        await runtime.work.close()


def lay(root: Path, segment: str, data: bytes, *, chunk_bytes: int = 100_000, gone: int = 0) -> None:
    """Write a segment as RollingStorage over a file system leaves it: docs/formats.md."""
    folder = (root / segment).parent
    folder.mkdir(parents=True, exist_ok=True)
    header = f"maxsize={chunk_bytes}&"
    for number, at in enumerate(range(0, len(data), chunk_bytes)):
        if number >= gone:
            path = root / f"{segment}$offset.{at}"
            path.write_bytes(data[at : at + chunk_bytes])
            # As its file system binding seals.
            path.chmod(0o444)
        header += f"{at}={segment}$offset.{at}&"
    (root / f"{segment}$header").write_text(header)


@pytest.fixture
async def left(tmp_path: Path) -> StandaloneSettings:
    """Settings of a stopped store over a place in which an older one has left three segments, and some others."""
    settings = settings_of(tmp_path)
    async with running(settings) as store:
        await store.create_segment("s/ours/0.#epoch.0")
        await store.append("s/ours/0.#epoch.0", b"ours")
    root = Path(settings.tier2)
    for name, data in DATA.items():
        lay(root, name, data)
    lay(root, f"{NAMES[0]}$attributes.index", b"tree")
    lay(root, "_system/containers/metadata_0", b"tree")
    (root / "s/orders/7.#epoch.1$header").write_text("maxsize=9&0=gone&")
    return settings


async def survey(settings: StandaloneSettings, *names: str) -> RollingReport:
    runtime = real_runtime(2)
    try:
        return await check_rolling(settings, runtime, names=names)
    finally:
        await runtime.work.close()


async def take_over(
    settings: StandaloneSettings, *names: str, shown: Shown | None = None, stream: str = ""
) -> ImportReport:
    runtime = real_runtime(2)
    try:
        return await import_rolling(settings, runtime, shown or Shown(), names=names, stream=stream)
    finally:
        await runtime.work.close()


async def give_back(settings: StandaloneSettings, *names: str, container_id: int | None = None) -> ExportReport:
    runtime = real_runtime(2)
    try:
        return await export_rolling(settings, runtime, Shown(), names=names, container_id=container_id)
    finally:
        await runtime.work.close()


async def content(store: SegmentStore, name: str) -> bytes:
    info = await store.segment_info(name)
    parts: list[bytes] = []
    at = info.start_offset
    while at < info.length:
        parts.append((await store.read(name, at, 100_000)).joined())
        at += len(parts[-1])
    return b"".join(parts)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def as_rolling(root: Path, segment: str) -> bytes:
    """Read a segment as RollingStorage does: entries in order, each as long as up to the next, the last as its file."""
    entries = [entry.split("=", 1) for entry in (root / f"{segment}$header").read_text().split("&")[:-1]]
    assert entries[0][0] == "maxsize"
    starts = [int(start) for start, _ in entries[1:]]
    assert starts == sorted(set(starts))
    parts = []
    for index, (start, name) in enumerate(entries[1:]):
        data = (root / name).read_bytes()
        if index + 1 < len(starts):
            length = starts[index + 1] - int(start)
            assert len(data) >= length
            data = data[:length]
        parts.append(data)
    return b"".join(parts)


async def test_a_survey_compares_headers_with_chunks_and_changes_nothing(left: StandaloneSettings) -> None:
    root = Path(left.tier2)
    before = files(root)
    report = await survey(left)
    assert [segment.name for segment in report.segments if segment.is_adoptable] == NAMES
    assert {segment.length for segment in report.segments if segment.is_adoptable} == {250_000}
    assert {segment.chunk_count for segment in report.segments if segment.is_adoptable} == {3}
    assert len(report.segments) == 5
    assert (report.left_over_count, report.problems) == (1, [])
    assert files(root) == before
    assert [segment.name for segment in (await survey(left, NAMES[1], "s/other")).segments] == [NAMES[1]]
    (root / f"{NAMES[0]}$offset.100000").unlink()
    (root / f"{NAMES[1]}$header").write_text("maxsize=9&0=x")
    report = await survey(left, "s/orders")
    assert [problem.segment for problem in sorted(report.problems, key=lambda one: one.segment)] == NAMES[:2]
    with pytest.raises(StorageUnavailableError):
        await take_over(replace(left, tier2=str(root / "none")))


async def test_imported_segments_are_served_and_intact(left: StandaloneSettings) -> None:
    """Of what is not a stream's nothing is taken; repeated, nothing is read again; chunks are where they were."""
    root = Path(left.tier2)
    before = files(root)
    shown = Shown()
    report = await take_over(left, shown=shown)
    assert [segment.name for segment in report.imported] == NAMES
    assert report.read_bytes == shown.total_bytes == shown.length_bytes == 750_000
    assert shown.chunk_count == 9
    assert report.skipped == ["_system/containers/metadata_0", f"{NAMES[0]}$attributes.index"]
    assert not report.problems
    after = files(root)
    assert {name: after[name] for name in before} == before
    again = await take_over(left)
    assert (again.imported, len(again.present), again.read_bytes) == ([], 3, 0)

    runtime = real_runtime(2)
    check = await check_storage(left, runtime, Shown())
    await runtime.work.close()
    assert not check.problems
    # Five headers and two chunks of what was not taken; those that were are no strangers any more, nor are images.
    assert (check.orphan_count, check.stranger_count) == (0, len([n for n in before if "$" in n]) - 9)

    async with running(left) as store:
        for name, data in DATA.items():
            assert await content(store, name) == data
            await store.append(name, b"more")
        await asyncio.gather(*(container.flush() for container in store.containers))
    async with running(left) as store:
        for name, data in DATA.items():
            assert await content(store, name) == data + b"more"
        # What is deleted stays so: not even the tool brings it back.
        await store.delete_segment(NAMES[0])
    report = await take_over(left)
    assert (report.imported, len(report.present), report.deleted_count) == ([], 2, 1)
    async with running(left) as store:
        with pytest.raises(NoSuchSegmentError):
            await store.segment_info(NAMES[0])


async def test_an_import_that_was_cut_off_continues(left: StandaloneSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any chunk: what was read and recorded before is not read again."""
    from penstock.segmentstore.tier2 import segment_adoption

    record = segment_adoption._record
    count = 0

    async def cut_off(*args: object) -> object:
        nonlocal count
        count += 1
        if count in (3, 6, 7):
            raise asyncio.CancelledError
        return await record(*args)  # type: ignore[arg-type]  # As they came.

    monkeypatch.setattr(segment_adoption, "_record", cut_off)
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await take_over(left)
    report = await take_over(left)
    assert len(report.present) + len(report.imported) == 3
    async with running(left) as store:
        for name, data in DATA.items():
            assert await content(store, name) == data


async def test_damage_of_one_does_not_keep_the_others_out(left: StandaloneSettings) -> None:
    root = Path(left.tier2)
    (root / f"{NAMES[0]}$offset.100000").unlink()
    lay(root, "s/short/0.#epoch.0", b"0123456789", chunk_bytes=5)
    path = root / "s/short/0.#epoch.0$offset.0"
    path.chmod(0o644)
    path.write_bytes(b"01")
    (root / "s/torn").mkdir()
    (root / "s/torn/0.#epoch.0$header").write_text("maxsize=9&0=to")
    report = await take_over(left)
    assert [segment.name for segment in report.imported] == NAMES[1:]
    told = {problem.segment: problem.message for problem in report.problems}
    assert set(told) == {NAMES[0], "s/short/0.#epoch.0", "s/torn/0.#epoch.0"}
    assert "the chunk is missing" in told[NAMES[0]]
    assert "the chunk ends here" in told["s/short/0.#epoch.0"]
    assert "truncated while" in told["s/torn/0.#epoch.0"]


async def test_a_server_that_runs_is_left_alone(left: StandaloneSettings, tmp_path: Path) -> None:
    async with running(left):
        for call in (take_over(left), give_back(left)):
            with pytest.raises(DataDirectoryInUseError, match="stop it"):
                await call
    other = settings_of(tmp_path, data_dir="other")
    with pytest.raises(StorageIdentityError):
        async with running(other):
            pass
    with pytest.raises(StorageLayoutError):
        async with running(settings_of(tmp_path, LayoutMode.CODE_ONLY_UPGRADE)):
            pass


async def test_a_new_store_starts_on_data_of_an_older_one(tmp_path: Path) -> None:
    """And nowhere else: not over another store's chunks, and not unless the settings say so."""
    root = tmp_path / "long-term"
    for name, data in DATA.items():
        lay(root, name, data, gone=1)
    with pytest.raises(StorageIdentityError, match="use an empty place"):
        async with running(settings_of(tmp_path)):
            pass
    upgrade = settings_of(tmp_path, LayoutMode.LAYOUT_UPGRADE)
    strange = root / "s/strange.E-1-O-0.6f2b0c1e-52a7-4f0e-9f0c-1d0a52f6b7aa"
    strange.write_bytes(b"x")
    with pytest.raises(StorageIdentityError, match=r"strange\.E-1-O-0"):
        async with running(upgrade):
            pass
    strange.unlink()
    async with running(upgrade) as store:
        for name, data in DATA.items():
            assert (await store.segment_info(name)).start_offset == 100_000
            assert await content(store, name) == data[100_000:]
    # The mode is not given any more, and stays.
    lay(root, "s/later/0.#epoch.0", b"later")
    async with running(settings_of(tmp_path)) as store:
        assert await content(store, "s/later/0.#epoch.0") == b"later"
    with pytest.raises(StorageLayoutError, match="cannot be reverted"):
        async with running(settings_of(tmp_path, LayoutMode.INSTALL_NEW)):
            pass


async def test_exported_segments_are_readable_by_the_older_store(left: StandaloneSettings) -> None:
    """Imported, written on, truncated, merged and empty ones; again after more was written; chunks stay as they are."""
    root = Path(left.tier2)
    transaction = f"{NAMES[1]}#transaction.{7:032x}"
    expected = dict(DATA)
    await take_over(left)
    async with running(left) as store:
        await store.append(NAMES[0], b"more")
        await store.create_segment(transaction)
        await store.append(transaction, b"merged")
        await store.merge_segments(NAMES[1], [transaction])
        await store.create_segment(f"{NAMES[2]}#transaction.{8:032x}")
        await store.truncate_segment(NAMES[2], 120_000)
        await store.create_segment("s/empty/0.#epoch.0")
        await store.create_segment("s/end/0.#epoch.0")
        await store.append("s/end/0.#epoch.0", b"gone")
        await store.truncate_segment("s/end/0.#epoch.0", 4)
        await store.create_table("s/table_kvtable/0.#epoch.0")
        await store.seal_segment(NAMES[1])
    expected[NAMES[0]] += b"more"
    expected[NAMES[1]] += b"merged"
    # The chunk in which it begins has more.
    expected[NAMES[2]] = expected[NAMES[2]][100_000:]
    expected |= {"s/empty/0.#epoch.0": b"", "s/end/0.#epoch.0": b"", "s/ours/0.#epoch.0": b"ours"}
    report = await give_back(left)
    assert not report.problems
    assert sorted(segment.name for segment in report.exported) == sorted(expected)
    assert report.skipped_count == 2
    exported = {segment.name: segment for segment in report.exported}
    assert [name for name in expected if exported[name].is_sealed] == [NAMES[1]]
    assert (exported[NAMES[2]].start_offset, exported[NAMES[2]].length) == (120_000, 250_000)
    for name, data in expected.items():
        assert as_rolling(root, name) == data, name
    assert (root / "s/end/0.#epoch.0$header").read_text().endswith("&4=s/end/0.#epoch.0$offset.4&")

    before = files(root)
    again = await give_back(left)
    assert (again.exported, again.unchanged_count, again.problems) == ([], len(expected), [])
    async with running(left) as store:
        await store.append("s/ours/0.#epoch.0", b" and more")
    later = await give_back(left, "s/ours")
    assert [segment.name for segment in later.exported] == ["s/ours/0.#epoch.0"]
    assert as_rolling(root, "s/ours/0.#epoch.0") == b"ours and more"
    headers = {name for name in before if name.endswith("$header")}
    after = files(root)
    assert {name: after[name] for name in before if "_system" not in name and name not in headers} == {
        name: before[name] for name in before if "_system" not in name and name not in headers
    }


async def test_a_store_imports_what_another_one_exported(left: StandaloneSettings, tmp_path: Path) -> None:
    """There and back again: byte for byte, also what the first had in chunks of its own."""
    await take_over(left)
    async with running(left) as store:
        await store.append(NAMES[0], b"more")
    report = await give_back(left)
    target = tmp_path / "moved" / "long-term"
    for name, data in files(Path(left.tier2)).items():
        # By the names of chunks its own are another store's: so only what headers lead to is copied.
        if name.endswith("$header") or "$offset." in name:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)
    settings = settings_of(tmp_path / "moved")
    async with running(replace(settings, tier2=str(tmp_path / "moved" / "empty"))):
        pass
    identity = tmp_path / "moved" / "empty" / "penstock-storage.toml"
    (target / "penstock-storage.toml").write_bytes(identity.read_bytes())
    for segment in report.exported:
        for chunk in (target / f"{segment.name}$header").read_text().split("&")[1:-1]:
            name = chunk.partition("=")[2]
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((Path(left.tier2) / name).read_bytes())
    again = await take_over(settings)
    assert not again.problems
    async with running(settings) as store:
        assert await content(store, NAMES[0]) == DATA[NAMES[0]] + b"more"
        assert await content(store, NAMES[1]) == DATA[NAMES[1]]
        assert await content(store, "s/ours/0.#epoch.0") == b"ours"


async def test_bytes_after_the_end_of_the_last_chunk_are_not_exported(left: StandaloneSettings) -> None:
    """A write that failed left them. The older store takes the whole file: it gets a copy that ends where it must."""
    await take_over(left, NAMES[0])
    root = Path(left.tier2)
    path = root / f"{NAMES[0]}$offset.200000"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"torn")
    before = files(root)
    report = await give_back(left, NAMES[0])
    (exported,) = report.exported
    assert exported.copied
    assert as_rolling(root, NAMES[0]) == DATA[NAMES[0]]
    assert path.read_bytes() == before[f"{NAMES[0]}$offset.200000"]
    # The copy serves again, and no sweep takes it for an orphan.
    assert (await give_back(left, NAMES[0])).unchanged_count == 1
    async with running(left) as store:
        for container in store.containers:
            assert await container.storage.orphans.sweep(container.epoch, container.storage.unrecorded) == 0
    assert as_rolling(root, NAMES[0]) == DATA[NAMES[0]]


async def test_a_torn_header_is_written_again(left: StandaloneSettings) -> None:
    root = Path(left.tier2)
    await give_back(left, "s/ours")
    header = root / "s/ours/0.#epoch.0$header"
    whole = header.read_bytes()
    for length in (0, 1, len(whole) - 1):
        header.write_bytes(whole[:length])
        assert len((await give_back(left, "s/ours")).exported) == 1
        assert header.read_bytes() == whole


async def test_a_header_that_was_not_imported_is_never_replaced(left: StandaloneSettings) -> None:
    """A segment of the same name was made here: what the older store left is all that is left of its own."""
    root = Path(left.tier2)
    async with running(left) as store:
        await store.create_segment(NAMES[0])
        await store.append(NAMES[0], b"another one")
    before = (root / f"{NAMES[0]}$header").read_bytes()
    for stored in (before, before[:-1]):
        (root / f"{NAMES[0]}$header").write_bytes(stored)
        report = await give_back(left, NAMES[0])
        (problem,) = report.problems
        assert "an older store may have left it" in problem.message
        assert (root / f"{NAMES[0]}$header").read_bytes() == stored
    # Nor is it taken for a part of the other one.
    (root / f"{NAMES[0]}$header").write_bytes(before)
    report_of_import = await take_over(left, NAMES[0])
    assert (report_of_import.imported, len(report_of_import.present)) == ([], 1)


async def test_one_container_is_exported(left: StandaloneSettings) -> None:
    await take_over(left)
    both = [{segment.name for segment in (await give_back(left, container_id=number)).exported} for number in range(2)]
    assert not both[0] & both[1]
    runtime = real_runtime(1)
    await runtime.work.close()
    with pytest.raises(InvalidArgumentError, match="no container 9"):
        await give_back(left, container_id=9)


async def test_a_stream_that_was_scaled_becomes_one_of_a_single_epoch(left: StandaloneSettings) -> None:
    """In the order of epochs, then of numbers; its chunks belong to no other segment, also after later requests."""
    root = Path(left.tier2)
    scaled = ["0.#epoch.0", "1.#epoch.0", "10.#epoch.1", "9.#epoch.1", "2.#epoch.2"]
    order = ["0.#epoch.0", "1.#epoch.0", "9.#epoch.1", "10.#epoch.1", "2.#epoch.2"]
    for name in scaled:
        lay(root, f"s/scaled/{name}", name.encode() * 10, chunk_bytes=40)
    for wrong in ("flat", "s/flat/x", "s/scaled"):
        with pytest.raises(InvalidArgumentError):
            await take_over(left, "s/scaled", stream=wrong)
    report = await take_over(left, "s/scaled", stream="s/flat")
    assert [(segment.source, segment.name) for segment in report.imported] == [
        (f"s/scaled/{name}", f"s/flat/{order.index(name)}.#epoch.0") for name in sorted(order)
    ]
    assert len((await take_over(left, "s/scaled", stream="s/flat")).present) == 5
    # Not by their own names, nor by others.
    assert (await take_over(left, "s/scaled")).deleted_count == 5
    again = await take_over(left, "s/scaled", stream="s/other")
    assert (again.imported, len(again.problems)) == ([], 5)
    assert "were assigned to segment s/flat/" in again.problems[0].message
    async with running(left) as store:
        for number, name in enumerate(order):
            assert await content(store, f"s/flat/{number}.#epoch.0") == name.encode() * 10
            with pytest.raises(NoSuchSegmentError):
                await store.segment_info(f"s/scaled/{name}")
        await store.append("s/flat/4.#epoch.0", b"more")
    # What was imported by its own name is not given to another stream, too.
    await take_over(left, NAMES[0])
    report = await take_over(left, "s/orders", stream="s/second")
    assert [problem.segment for problem in report.problems] == [NAMES[0]]
    assert len(report.imported) == 2


async def test_an_import_under_another_name_that_was_cut_off_continues(
    left: StandaloneSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reserved, and not yet taken over: no other import gets it meanwhile."""
    from penstock.segmentstore.container.storage.adoptions import Adoptions

    adopt = Adoptions.adopt
    is_cut_off = False

    async def cut_off(self: Adoptions, name: str) -> object:
        nonlocal is_cut_off
        if self.given and not is_cut_off:
            is_cut_off = True
            raise asyncio.CancelledError
        return await adopt(self, name)

    monkeypatch.setattr(Adoptions, "adopt", cut_off)
    with pytest.raises(asyncio.CancelledError):
        await take_over(left, NAMES[0], stream="s/flat")
    assert (await take_over(left, NAMES[0])).deleted_count == 1
    report = await take_over(left, NAMES[0], stream="s/flat")
    assert [segment.name for segment in report.imported] == ["s/flat/0.#epoch.0"]
    async with running(left) as store:
        assert await content(store, "s/flat/0.#epoch.0") == DATA[NAMES[0]]

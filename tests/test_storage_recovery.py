"""`recover_store`: a data directory from long-term storage alone, in this process; with real servers: tests/e2e."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.errors import NotRecoverableError
from penstock.administration.storage_recovery import RecoveryReport, recover_store
from penstock.model.checksum import crc32c
from penstock.model.errors import InvalidArgumentError, LaterVersionError, NoSuchSegmentError, StorageUnavailableError
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container.log.image import ContainerImage, ImageName
from penstock.server.errors import DataDirectoryError
from penstock.server.settings import StandaloneSettings
from support.small_store import DATA, NAMES, fill, running, settings_of, unseen


async def recover(settings: StandaloneSettings) -> RecoveryReport:
    runtime = real_runtime(2)
    try:
        return await recover_store(settings, runtime, unseen)
    finally:
        await runtime.work.close()


def images(settings: StandaloneSettings, container: int) -> list[Path]:
    return sorted(Path(settings.tier2, "_system", "containers").glob(f"_sysjournal.container{container}.*"))


@pytest.fixture
async def lost(tmp_path: Path) -> StandaloneSettings:
    """Settings of a store whose data directory is gone."""
    settings = settings_of(tmp_path)
    await fill(settings)
    shutil.rmtree(settings.data_dir)
    return settings


async def test_all_that_was_flushed_is_there_and_the_store_continues(lost: StandaloneSettings, tmp_path: Path) -> None:
    """SS-232, SS-242: into another directory; long-term storage is not touched; the new one can be lost as well."""
    for number in range(3):
        settings = replace(lost, data_dir=str(tmp_path / f"new{number}"))
        before = {path: path.read_bytes() for path in Path(lost.tier2).rglob("*") if path.is_file()}
        report = await recover(settings)
        assert {path: path.read_bytes() for path in Path(lost.tier2).rglob("*") if path.is_file()} == before
        assert not report.check.problems
        assert [container.id for container in report.containers] == [0, 1]
        assert all(not container.passed_over for container in report.containers)
        async with running(settings) as store:
            for name in NAMES:
                expected = DATA + b"more" * number
                assert (await store.segment_info(name)).length == len(expected)
                found = b""
                while len(found) < len(expected):
                    found += (await store.read(name, len(found), len(expected))).joined()
                assert found == expected
                await store.append(name, b"more")
            info = await store.segment_info("s/empty/0.#epoch.0")
            assert info.length == 0
            (entry,) = await store.table_get("s/table", [b"key"])
            assert entry is not None
            assert entry.value == b"value"
            await asyncio.gather(*(container.flush() for container in store.containers))
            epochs = [container.epoch for container in store.containers]
            assert min(epochs) > 65536 * (number + 1)
        shutil.rmtree(settings.data_dir)


async def test_all_frames_of_an_image_come_into_the_new_log_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SS-232, SS-242: what no flush has moved is there as far as the newest image goes, which has it in many frames."""
    # The log is given some at a time.
    monkeypatch.setattr("penstock.administration.storage_recovery._APPEND_BYTES", 10_000)
    settings = settings_of(tmp_path)
    settings = replace(settings, durable_log=replace(settings.durable_log, frame_length_max_bytes=3_000))
    await fill(settings)
    more = b"nor is this" * 4_000
    tail = b"not flushed" + more
    async with running(settings) as store:
        for name in NAMES:
            await store.append(name, more)
        for container in store.containers:
            assert container.images is not None
            await container.images.write()
    shutil.rmtree(settings.data_dir)
    report = await recover(settings)
    assert min(container.length_bytes for container in report.containers) > 3 * 10_000
    async with running(settings) as store:
        for name in NAMES:
            length = len(DATA) + len(tail)
            assert (await store.segment_info(name)).length == length
            found = b""
            while len(found) < len(tail):
                found += (await store.read(name, len(DATA) + len(found), length)).joined()
            assert found == tail


async def test_an_image_that_was_not_written_to_its_end_is_passed_over(lost: StandaloneSettings) -> None:
    (image,) = images(lost, 1)
    partial = image.with_name(image.name[:-1] + "9")
    partial.write_bytes(image.read_bytes()[:-1])
    report = await recover(lost)
    assert [list(container.passed_over) for container in report.containers] == [
        [],
        [f"_system/containers/{partial.name}"],
    ]
    assert report.containers[1].image == f"_system/containers/{image.name}"


async def test_an_image_of_a_later_version_is_not_passed_over_for_an_earlier_one(lost: StandaloneSettings) -> None:
    """It holds what was acknowledged since. Nothing is made, and nothing in long-term storage is changed."""
    (path,) = images(lost, 0)
    name = ImageName.parse(f"_system/containers/{path.name}")
    assert name is not None
    image = ContainerImage.decode(name, path.read_bytes())
    newer = replace(image, name=replace(name, number=name.number + 1))
    content = b"".join(map(bytes, newer.encode()))
    head = content[:8] + b"\0\2" + content[10:56]
    later = path.parent / Path(newer.name.name).name
    later.write_bytes(head + crc32c(head, 0).to_bytes(4) + content[60:])
    with pytest.raises(LaterVersionError, match=f"{later.name} was written by a later version.* version 2, .* reads 1"):
        await recover(lost)
    assert not Path(lost.data_dir, "tier1", "0").exists()
    assert {path, later} <= set(images(lost, 0))


async def test_the_newest_image_counts_whatever_numbers_are_missing_before_it(lost: StandaloneSettings) -> None:
    """SS-229, SS-230, SS-242: each image is complete, so no sequence of numbers is required. A damaged one is reported
    by name; older images are still there, since they are removed only once a newer one is durable.
    """
    (path,) = images(lost, 0)
    name = ImageName.parse(f"_system/containers/{path.name}")
    assert name is not None
    image = ContainerImage.decode(name, path.read_bytes())
    made: dict[int, Path] = {}
    for step in (1, 2, 5, 40, 41):
        own = replace(image, name=replace(name, number=name.number + step))
        made[step] = path.parent / Path(own.name.name).name
        made[step].write_bytes(b"".join(own.encode()))
    content = made[41].read_bytes()
    made[41].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    made[2].write_bytes(b"")
    report = await recover(lost)
    assert report.containers[0].image == f"_system/containers/{made[40].name}"
    assert list(report.containers[0].passed_over) == [f"_system/containers/{made[41].name}"]
    assert not report.check.problems
    # With each epoch, as after a recovery, numbers restart.
    shutil.rmtree(lost.data_dir)
    later = replace(image, name=replace(name, epoch=name.epoch + 1, number=1))
    Path(lost.tier2, later.name.name).write_bytes(b"".join(later.encode()))
    report = await recover(lost)
    assert (report.containers[0].image, report.containers[0].passed_over) == (later.name.name, [])


async def test_a_store_that_has_its_log_starts_from_that(tmp_path: Path) -> None:
    """SS-243: its images in long-term storage make no difference, whatever was written since; nor is it rebuilt."""
    settings = settings_of(tmp_path)
    await fill(settings)
    async with running(settings) as store:
        await store.truncate_segment(NAMES[0], 1000)
        await store.delete_segment("s/empty/0.#epoch.0")
    assert images(settings, 0)
    assert images(settings, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(DataDirectoryError, match="is not empty"):
        await recover(settings)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    async with running(settings) as store:
        assert [container.epoch for container in store.containers] == [3, 3]
        for name in NAMES:
            length = len(DATA) + len(b"not flushed")
            assert (await store.segment_info(name)).length == length
            assert (await store.read(name, len(DATA), length)).joined() == b"not flushed"
        assert (await store.segment_info(NAMES[0])).start_offset == 1000
        with pytest.raises(NoSuchSegmentError):
            await store.segment_info("s/empty/0.#epoch.0")


async def test_unrecoverable_storage_is_refused_and_nothing_is_created(
    lost: StandaloneSettings, tmp_path: Path
) -> None:
    """SS-230: with an error; an operator has to decide."""
    (image,) = images(lost, 1)
    content = image.read_bytes()
    image.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(NotRecoverableError, match="container 1 has no complete image"):
        await recover(lost)
    image.unlink()
    with pytest.raises(NotRecoverableError, match="of a store with 2 containers, and has no image of 1"):
        await recover(lost)
    images(lost, 0)[0].unlink()
    with pytest.raises(NotRecoverableError, match=r"contains no image of a container.*interval_s was 0"):
        await recover(lost)
    with pytest.raises(StorageUnavailableError, match="it has no identity"):
        await recover(replace(lost, tier2=str(tmp_path / "elsewhere")))
    with pytest.raises(InvalidArgumentError, match="--tier2 is required"):
        await recover(replace(lost, tier2=""))
    assert not Path(lost.data_dir).exists()


async def test_a_directory_with_anything_in_it_is_not_taken(lost: StandaloneSettings) -> None:
    """Nor is one that a recovery which was cut off has left."""
    Path(lost.data_dir).mkdir()
    Path(lost.data_dir, "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match=r"is not empty \(file\)"):
        await recover(lost)
    Path(lost.data_dir, "file").unlink()
    assert not (await recover(lost)).check.problems
    Path(lost.data_dir, "penstock.toml").unlink()
    with pytest.raises(DataDirectoryError, match=r"is not empty \(logs, tier1\)"):
        await recover(lost)
    with pytest.raises(DataDirectoryError, match="is not empty"):
        async with running(lost):
            pass


async def test_chunks_that_are_gone_are_reported(lost: StandaloneSettings) -> None:
    """As when images were switched off later: what is there is recovered."""
    for path in Path(lost.tier2, "s", "3").iterdir():
        path.unlink()
    report = await recover(lost)
    assert {problem.kind for problem in report.check.problems} == {"chunk_missing"}
    async with running(lost) as store:
        assert (await store.read(NAMES[1], 0, 10)).joined() == DATA[:10]

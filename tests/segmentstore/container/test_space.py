"""What stops, and what does not, when a file system under a container runs out of room (docs/full-disk.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import StorageFullError
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.image import image_prefix
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.storage.container_storage import storage_metadata_segment
from penstock.segmentstore.container_settings import ImageSettings, SpaceSettings
from support.containers import QUIET, Incarnations, append, read_all, turns, until

SETTINGS = SpaceSettings(
    check_interval_s=0.001,
    log_free_bytes_min=1000,
    log_free_percent_max=100,
    storage_free_bytes_min=1000,
    storage_free_percent_max=100,
)
SEGMENT = "shop/orders/0.#epoch.0"
OTHER = "shop/returns/0.#epoch.0"


class Place:
    """A tier whose room is set; it can hang."""

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self.free_bytes = free_bytes
        self.gate = asyncio.Event()
        self.gate.set()
        self.check_count = 0

    async def space(self) -> DiskSpace | None:
        self.check_count += 1
        await self.gate.wait()
        return DiskSpace(self.free_bytes, 1 << 41)


def watch_over(log: Place, storage: Place, settings: SpaceSettings = SETTINGS) -> SpaceWatch:
    return SpaceWatch(3, settings, log_space=log.space, storage_space=storage.space, on_change=lambda: None)


async def test_writes_of_users_wait_below_the_mark_and_those_for_readers_do_not() -> None:
    """At the mark nothing waits, one byte below it does; it ends when a quarter more is free."""
    log = Place(1000)
    watch = watch_over(log, Place())
    await watch.check_log()
    watch.check(SEGMENT)
    log.free_bytes = 999
    await watch.check_log()
    with pytest.raises(StorageFullError, match="999 bytes are free beside the log of container 3"):
        watch.check(SEGMENT)
    for name in ("_system/_tables/x/0.#epoch.0", "shop/_RGaudit/0.#epoch.0", "shop/audit_penstockrg/0.#epoch.0"):
        watch.check(name)
    log.free_bytes = 1249
    await watch.check_log()
    assert watch.is_log_low
    log.free_bytes = 1250
    await watch.check_log()
    watch.check(SEGMENT)


async def test_a_log_that_is_found_full_is_checked_at_once() -> None:
    """Not with the next periodic check, an hour later."""
    log = Place()
    watch = watch_over(log, Place(), replace(SETTINGS, check_interval_s=3600.0))
    watching = asyncio.create_task(watch.watch_log())
    await turns()
    assert (log.check_count, watch.is_log_low) == (1, False)
    log.free_bytes = 0
    watch.check_log_now()
    await turns()
    assert (log.check_count, watch.is_log_low) == (2, True)
    await turns()
    assert log.check_count == 2
    watching.cancel()


async def test_a_small_file_system_has_a_share_for_its_mark() -> None:
    """10 % of it is less than the bytes of the mark."""
    settings = replace(SETTINGS, log_free_bytes_min=1 << 50, log_free_percent_max=10)
    log = Place((1 << 41) // 10)
    watch = watch_over(log, Place(), settings)
    await watch.check_log()
    assert not watch.is_log_low
    log.free_bytes -= 1
    await watch.check_log()
    assert watch.is_log_low


async def test_a_check_that_hangs_is_abandoned_and_changes_nothing() -> None:
    """The last result stays, no second check is begun, and the log is checked nevertheless."""
    log, storage = Place(), Place(5)
    watch = watch_over(log, storage, replace(SETTINGS, check_timeout_s=0.002))
    tasks = [asyncio.create_task(watch.watch_log()), asyncio.create_task(watch.watch_storage())]
    await until(lambda: watch.is_storage_low)
    storage.gate.clear()
    storage.free_bytes = 1 << 40
    before = storage.check_count
    await until(lambda: log.check_count > 5)
    assert storage.check_count <= before + 1
    assert watch.is_storage_low
    log.free_bytes = 5
    await until(lambda: watch.is_log_low)
    storage.gate.set()
    await until(lambda: not watch.is_storage_low)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_check_of_free_space_that_hangs_delays_no_start() -> None:
    """A container starts although its log's file system does not say what is free; what it says later counts."""
    log = Place(5)
    watch = watch_over(log, Place(), replace(SETTINGS, check_timeout_s=0.002))
    log.gate.clear()
    async with asyncio.timeout(60):
        await watch.check_log()
    assert not watch.is_log_low
    task = asyncio.create_task(watch.watch_log())
    log.gate.set()
    await until(lambda: watch.is_log_low)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(replace(QUIET, space=SETTINGS, writer_interval_s=0.01, flush_age_s=0.0))
    yield made
    await made.close()


async def test_bytes_of_users_stay_in_the_log_while_long_term_storage_is_full(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SS-237: truncations there and deletions continue, the container's own tables are moved, users' bytes wait."""
    place = Place()
    monkeypatch.setattr(lives.chunks, "space", place.space)
    container = await lives.start()
    for name in (SEGMENT, OTHER):
        await container.create(name, rollover_bytes=1 << 20)
        await append(container, name, b"stored" * 100)
    segment = container.segment(SEGMENT)
    await until(lambda: segment.storage_length == 600)
    place.free_bytes = 10
    await until(lambda: container.space.is_storage_low)
    await append(container, SEGMENT, b"waits")
    await container.truncate(SEGMENT, 600)
    stored = container.storage.of(segment)

    async def start_of() -> int:
        info = await stored.info(SEGMENT)
        assert info is not None
        return info.start_offset

    async with asyncio.timeout(60):
        while await start_of() != 600:  # noqa: ASYNC110  # storage sends no notification
            await asyncio.sleep(0.005)
    own = container.segment(storage_metadata_segment(0))
    own_length = own.storage_length
    await container.delete(OTHER)
    await until(lambda: not container.state.gone)
    await until(lambda: own.storage_length > own_length)
    await turns(50)
    assert segment.storage_length == 600
    with pytest.raises(StorageFullError, match="storage_free_bytes_min"):
        await container.writer.flush(segment)
    assert await read_all(container, SEGMENT) == b"waits"
    container = await lives.restart(container)
    segment = container.segment(SEGMENT)
    assert await read_all(container, SEGMENT) == b"waits"
    place.free_bytes = 1 << 40
    await until(lambda: segment.storage_length == 605)
    assert await read_all(container, SEGMENT) == b"waits"


async def test_a_log_that_little_keeps_long_is_cut_on_a_full_disk(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be moved to long-term storage, and the log is far from its bound; but the log fills the disk.
    Truncated segments free their part of it nevertheless, at the price of copying the few bytes kept beside them.
    """
    no_room = Place(10)
    monkeypatch.setattr(lives.chunks, "space", no_room.space)
    container = await lives.start(checkpoint_log_bytes=10_000, flush_bytes=1000, carry_record_bytes_max=1000)
    monkeypatch.setattr(container.space._log, "ask", no_room.space)
    await until(lambda: container.space.is_storage_low and container.space.is_log_low)
    for name in (SEGMENT, OTHER):
        await container.create(name)
    await append(container, OTHER, b"little")
    for number in range(100):
        await append(container, SEGMENT, bytes([number]) * 1000)
    assert sum(map(len, lives.frames())) > 100_000
    await container.truncate(SEGMENT, 90_000)
    await until(lambda: sum(map(len, lives.frames())) < 40_000)
    assert container.log_rewriter.carried_bytes == len(b"little")
    container = await lives.restart(container)
    assert await read_all(container, OTHER) == b"little"
    assert await read_all(container, SEGMENT) == b"".join(bytes([number]) * 1000 for number in range(90, 100))


async def test_writes_are_held_while_the_log_has_no_room_and_let_go_after_that(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start on, when it starts on a full disk; changes that make room are done meanwhile."""
    container = await lives.start()
    await container.create(SEGMENT)
    await append(container, SEGMENT, b"before")
    await lives.stop(container)
    place = Place(10)
    opening = lives.new()
    monkeypatch.setattr(opening.space._log, "ask", place.space)
    container = await lives.open(opening)
    assert container.back_pressure.must_wait()
    held = asyncio.create_task(container.throttle.wait())
    await container.truncate(SEGMENT, 3)
    await container.seal(SEGMENT)
    await container.create("shop/audit_penstockrg/0.#epoch.0", flags=SegmentFlags.TABLE)
    assert not container.back_pressure.must_wait(is_urgent=True)
    await turns(50)
    assert not held.done()
    place.free_bytes = 1 << 40
    await asyncio.wait_for(held, 60)
    assert not container.back_pressure.must_wait()


#: An image takes at most 5 000 unflushed bytes, and only a full disk makes one due.
FULL_IMAGES = ImageSettings(interval_s=1e9, deletions_delay_s=1e9, retry_s=0.01, timeout_s=60.0, bytes_max=10_000)


async def images_of(lives: Incarnations) -> list[str]:
    return [info.name for info in await lives.chunks.list(image_prefix(0))]


async def until_stored(lives: Incarnations, prefix: str, count: int) -> None:
    """Wait until `count` chunks with this prefix are in long-term storage."""
    async with asyncio.timeout(60):
        while len(await lives.chunks.list(prefix)) != count:  # noqa: ASYNC110  # storage sends no notification
            await asyncio.sleep(0.005)


async def until_images(lives: Incarnations, is_there: bool) -> None:
    async with asyncio.timeout(60):
        while bool(await images_of(lives)) != is_there:  # noqa: ASYNC110  # storage sends no notification
            await asyncio.sleep(0.005)


async def with_image(lives: Incarnations, **changes: float) -> SegmentContainer:
    """Start a container with images; its first image is written, and 600 bytes of `SEGMENT` are in three chunks."""
    lives.settings = replace(lives.settings, rollover_bytes_min=1, images=replace(FULL_IMAGES, **changes))  # type: ignore[arg-type]
    container = await lives.start()
    await container.create(SEGMENT, rollover_bytes=200)
    await append(container, SEGMENT, b"stored" * 100)
    await until(lambda: container.segment(SEGMENT).storage_length == 600)
    await until_images(lives, is_there=True)
    return container


async def test_deletions_on_full_storage_wait_for_no_flush(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More bytes wait for storage than an image may have, and none of them can be moved: a truncation frees its chunks
    although no image can be written. The next image is written as soon as there is space.
    """
    place = Place()
    monkeypatch.setattr(lives.chunks, "space", place.space)
    container = await with_image(lives)
    place.free_bytes = 10
    await until(lambda: container.space.is_storage_low)
    await append(container, SEGMENT, b"waits" * 1200)
    await container.truncate(SEGMENT, 600)
    await until_stored(lives, "shop/orders", 0)
    assert await images_of(lives) == [], "an image whose chunks are gone must not be used"
    place.free_bytes = 1 << 40
    await until_images(lives, is_there=True)
    assert await read_all(container, SEGMENT) == b"waits" * 1200


async def test_deletions_on_full_storage_come_with_an_image_if_one_can_be_written(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few bytes wait: the image has them. It is due at once, not after the delay of deletions."""
    place = Place()
    monkeypatch.setattr(lives.chunks, "space", place.space)
    container = await with_image(lives)
    before = await images_of(lives)
    place.free_bytes = 10
    await until(lambda: container.space.is_storage_low)
    await append(container, SEGMENT, b"waits")
    await container.truncate(SEGMENT, 600)
    await until_stored(lives, "shop/orders", 0)
    after = await images_of(lives)
    assert len(after) == 1
    assert after != before


async def test_full_storage_that_reports_no_free_space_frees_chunks_too(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a bucket at its quota: only writes are refused. The image is due by its interval, and cannot be written."""
    container = await with_image(lives, interval_s=0.05)
    write, create = lives.chunks.write, lives.chunks.create_with_content

    async def full(*_: object) -> int:
        raise StorageFullError("quota exceeded")

    def is_full(value: bool) -> None:
        monkeypatch.setattr(lives.chunks, "write", full if value else write)
        monkeypatch.setattr(lives.chunks, "create_with_content", full if value else create)

    await container.create(OTHER, rollover_bytes=1 << 20)
    await container.truncate(SEGMENT, 600)
    is_full(True)
    await append(container, OTHER, b"waits" * 1200)
    await until_stored(lives, "shop/orders", 0)
    is_full(False)
    await until_images(lives, is_there=True)
    assert await read_all(container, OTHER) == b"waits" * 1200


async def test_an_image_does_not_use_up_the_reserve_of_a_full_log(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that wait would be restated in the log, which has no space: chunks are deleted without an image."""
    place = Place()
    monkeypatch.setattr(lives.chunks, "space", place.space)
    container = await with_image(lives)
    monkeypatch.setattr(container.space._log, "ask", place.space)
    place.free_bytes = 800
    await until(lambda: container.space.is_storage_low and container.space.is_log_low)
    await append(container, SEGMENT, b"waits" * 100)
    await container.truncate(SEGMENT, 600)
    await until_stored(lives, "shop/orders", 0)
    assert container.log_rewriter.carried_bytes == 0
    assert await images_of(lives) == []


async def test_a_log_without_any_space_gets_that_of_chunks(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log waits for space, so no image can be taken; the space that it waits for is that of deleted chunks."""
    place = Place()
    container = await with_image(lives, timeout_s=0.2)
    monkeypatch.setattr(container.space._log, "ask", place.space)
    assert container.images is not None
    chunks = container.images._chunks
    for info in await lives.chunks.list("shop/orders"):
        await chunks.delete(info.name)
    lives.logs.hold_appends(0)
    place.free_bytes = 10
    await until_stored(lives, "shop/orders", 0)
    lives.logs.release_appends(0)
    await until_images(lives, is_there=True)


async def test_an_image_of_full_storage_stays_if_there_is_nothing_to_delete(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are all there, so a store can be built from it."""
    place = Place()
    monkeypatch.setattr(lives.chunks, "space", place.space)
    container = await with_image(lives)
    before = await images_of(lives)
    place.free_bytes = 10
    await until(lambda: container.space.is_storage_low)
    await append(container, SEGMENT, b"waits" * 1200)
    with pytest.raises(StorageFullError):
        await container.flush()
    assert container.images is not None
    with pytest.raises(StorageFullError):
        await container.images._flush_and_write()
    assert await images_of(lives) == before

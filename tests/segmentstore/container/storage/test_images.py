"""Images of a container: a new log that begins with one recovers to the container as it was, over the same chunks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, replace

import pytest

from penstock.model.checksum import crc32c
from penstock.model.errors import (
    CorruptionError,
    NoSuchChunkError,
    NoSuchSegmentError,
    PenstockError,
    StaleLogError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageUnavailableError,
)
from penstock.model.segments import NO_VALUE, Buffer, TableRemoval, TableUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.image import (
    ContainerImage,
    FrameRecorder,
    ImageName,
    ImageTooLongError,
    PartialImageError,
    image_prefix,
)
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.container.storage.container_storage import storage_metadata_segment
from penstock.segmentstore.container_settings import ImageSettings, OrphanSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.chunk_deletion import delete_chunks
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from support.containers import QUIET, FaultyChunks, Incarnations, append, read_all, until

#: Images are written when a test asks for one.
IMAGES = ImageSettings(interval_s=1e9, deletions_delay_s=1e9, retry_s=0.01, timeout_s=20.0)
SETTINGS = replace(QUIET, images=IMAGES, rollover_bytes_min=1, orphans=OrphanSettings(sweep_delay_s=1e9))


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(SETTINGS)
    yield made
    await made.close()


async def images_of(chunks: FaultyChunks | MemoryChunkStorage) -> list[ImageName]:
    found = [ImageName.parse(info.name) for info in await chunks.list(image_prefix(0))]
    return sorted(name for name in found if name is not None)


def stored_names(lives: Incarnations) -> list[str]:
    inner = lives.chunks.inner
    assert isinstance(inner, MemoryChunkStorage)
    return list(inner._chunks)


async def newest_image(chunks: FaultyChunks | MemoryChunkStorage) -> ContainerImage:
    return await image_of(chunks, (await images_of(chunks))[-1])


async def image_of(chunks: FaultyChunks | MemoryChunkStorage, name: ImageName) -> ContainerImage:
    length = (await chunks.info(name.name)).length
    return ContainerImage.decode(name, await chunks.read(name.name, 0, length))


async def rebuilt(lives: Incarnations, name: ImageName | None = None) -> Incarnations:
    """Return the container's life on another machine, which has the chunks and nothing else. Not started.

    From the newest image unless one is named. Raises `PartialImageError`.
    """
    image = await image_of(lives.chunks, name or (await images_of(lives.chunks))[-1])
    other = Incarnations(lives.settings)
    # Copies of the chunks as they are now: later deletions in one do not affect the other.
    for info in await lives.chunks.list():
        content = await lives.chunks.inner.read(info.name, 0, info.length)
        await other.chunks.create_with_content(info.name, [content])
    other.logs._get(0).epoch = image.name.epoch + 1000
    log = other.logs.create(0)
    await log.open()
    for frame in image.frames:
        await log.append([frame], len(frame))
    await log.close()
    return other


@dataclass
class Model:
    """What a container holds."""

    segments: dict[str, tuple[int, bytes, bool]]
    table: dict[bytes, bytes]


async def state_of(container: SegmentContainer) -> Model:
    await container.pipeline.barrier()
    segments: dict[str, tuple[int, bytes, bool]] = {}
    table: dict[bytes, bytes] = {}
    for segment in container.segments():
        if segment.is_system:
            continue
        if segment.is_table:
            token = b""
            while (page := await container.tables.entries(segment, limit=100, token=token)).entries:
                table.update((entry.key, entry.value) for entry in page.entries)
                token = page.token
        else:
            data = await read_all(container, segment)
            segments[segment.name] = (segment.durable_start_offset, data, segment.is_sealed)
    return Model(segments, table)


async def do_something(container: SegmentContainer, rng: random.Random, step: int) -> None:
    """Do one thing of those that a container does."""
    names = [s.name for s in container.segments() if not s.is_system and not s.is_table and "#" not in s.name]
    name = rng.choice(names) if names else ""
    match rng.randrange(12):
        case 0 | 1:
            await container.create(f"s/{step}", rollover_bytes=50)
        case 2 if name:
            segment = container.segment(name)
            await container.truncate(name, rng.randint(segment.start_offset, segment.length))
        case 3 if name and rng.random() < 0.3:
            await container.delete(name)
        case 4 if name and not container.segment(name).is_sealed:
            source = f"{name}#{step}"
            await container.create(source)
            await append(container, source, rng.randbytes(rng.randrange(1, 90)))
            await container.merges.merge(name, source)
        case 5 if name and not container.segment(name).is_sealed and rng.random() < 0.2:
            await container.seal(name)
        case 6:
            table = container.segment("s/table")
            await container.tables.put(table, [TableUpdate(b"%d" % rng.randrange(20), rng.randbytes(40))], -1)
        case 7:
            table = container.segment("s/table")
            await container.tables.remove(table, [TableRemoval(b"%d" % rng.randrange(20))], -1)
        case 8 if name:
            await container.writer.flush(container.segment(name))
        case 9 if rng.random() < 0.3:
            await container.writer.flush_all()
        case _ if name and not container.segment(name).is_sealed:
            await append(container, name, rng.randbytes(rng.randrange(1, 200)))


@pytest.mark.parametrize("seed", range(12))
async def test_a_store_rebuilt_from_an_image_is_as_it_was_then(seed: int) -> None:
    """Earlier operations and later changes to the chunks make no difference, through several incarnations.

    The rebuilt container works, and so does one that is rebuilt from it.
    """
    rng = random.Random(seed)
    lives = Incarnations(SETTINGS, seed=seed)
    container = await lives.start()
    await container.create("s/table", flags=SegmentFlags.TABLE)
    for life in range(3):
        for step in range(40):
            await do_something(container, rng, 1000 * life + step)
            if rng.randrange(15) == 0:
                container = await lives.restart(container)
        then = await state_of(container)
        assert container.images is not None
        await container.images.write()
        for step in range(rng.randrange(40)):
            await do_something(container, rng, 1000 * life + 500 + step)
            if rng.randrange(25) == 0:
                container = await lives.restart(container)
                await until_written(container, 1)
                then = await state_of(container)
        other = await rebuilt(lives)
        await lives.close()
        lives, container = other, await other.start()
        assert await state_of(container) == then
        await container.flush()
        assert await state_of(container) == then
    await lives.close()


async def test_flushed_data_is_in_an_image(lives: Incarnations) -> None:
    """And nothing of it need be in the log: the image is short."""
    container = await lives.start()
    await container.create("s/a")
    data = random.Random(1).randbytes(200_000)
    await append(container, "s/a", data)
    await container.flush()
    image = await newest_image(lives.chunks)
    assert sum(map(len, image.frames)) < 20_000
    assert image.container_count == 1
    other = await rebuilt(lives)
    again = await other.start()
    assert await read_all(again, "s/a") == data
    assert again.epoch > container.epoch + 1000
    await other.close()


async def test_bytes_that_storage_lacks_are_in_an_image(lives: Incarnations) -> None:
    container = await lives.start()
    await container.create("s/a")
    await append(container, "s/a", b"early" * 1000)
    container.checkpoints.write()
    await container.pipeline.barrier()
    await append(container, "s/a", b"later" * 1000)
    assert container.images is not None
    await container.images.write()
    other = await rebuilt(lives)
    assert await read_all(await other.start(), "s/a") == b"early" * 1000 + b"later" * 1000
    await other.close()


async def test_no_chunk_is_deleted_before_an_image_is_written_later(lives: Incarnations) -> None:
    """And then those are, of which the image says that they are gone; and the images before."""
    container = await lives.start()
    assert container.images is not None
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(100))
    await container.flush()
    names = {info.name for info in await lives.chunks.list("s/a")}
    assert len(names) >= 2
    await container.truncate("s/a", 100)
    await container.writer.flush_all()
    assert {info.name for info in await lives.chunks.list("s/a")} == names
    other = await rebuilt(lives)
    assert await read_all(await other.start(), "s/a") == bytes(100), "the image was from before the truncation"
    await other.close()
    (first,) = await images_of(lives.chunks)
    await container.images.write()
    assert await lives.chunks.list("s/a") == []
    (second,) = await images_of(lives.chunks)
    assert first < second


async def test_an_image_is_written_soon_after_a_start_and_when_chunks_wait(lives: Incarnations) -> None:
    container = await lives.start(images=replace(IMAGES, interval_s=0.01, deletions_delay_s=0.01))  # type: ignore[arg-type]
    assert container.images is not None
    await until_written(container, 1)
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(100))
    await container.writer.flush_all()
    await container.truncate("s/a", 100)
    await container.writer.flush_all()
    await until(lambda: not any(name.startswith("s/a") for name in stored_names(lives)))
    # One that is idle writes none.
    count = -1
    async with asyncio.timeout(60):
        while count != container.images.written_count:
            count = container.images.written_count
            await asyncio.sleep(0.2)
    assert len(await images_of(lives.chunks)) == 1


async def test_an_idle_container_writes_no_images(lives: Incarnations) -> None:
    """What an image itself has logged, and what the storage writer does about that, is no reason for the next."""
    lives.settings = replace(
        lives.settings, writer_interval_s=0.005, flush_age_s=0.02, flush_age_index_s=0.02, checkpoint_log_bytes_idle=1
    )
    container = await lives.start(images=replace(IMAGES, interval_s=0.01, deletions_delay_s=0.01))  # type: ignore[arg-type]
    assert container.images is not None
    for number in range(5):
        await container.create(f"s/{number}")
        await append(container, f"s/{number}", bytes(100))
    count = -1
    async with asyncio.timeout(60):
        while count != container.images.written_count:
            count = container.images.written_count
            await asyncio.sleep(0.5)
    assert count > 0


@pytest.mark.parametrize("is_late", [True, False])
async def test_waiting_bytes_too_large_for_an_image_are_flushed(lives: Incarnations, is_late: bool) -> None:
    """Else a container whose segments fill long objects slowly would never have one. For deletions alone it is not."""
    images = replace(IMAGES, interval_s=0.01 if is_late else 1e9, deletions_delay_s=0.0, bytes_max=64 * 1024)
    container = await lives.start(images=images)  # type: ignore[arg-type]
    assert container.images is not None
    await until_written(container, 1)
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(100))
    await container.writer.flush_all()
    # While none can be written.
    lives.chunks.fail("write", times=1_000_000)
    await container.create("s/b")
    for _ in range(20):
        await append(container, "s/b", bytes(3_000))
    held = container.storage._chunks
    assert isinstance(held, DeferredDeletions)
    await container.truncate("s/a", 100)
    await until(lambda: len(held) > 0)
    lives.chunks.heal()
    assert container.images._is_due() is is_late
    if is_late:
        await until(lambda: not len(held))
        assert container.segment("s/b").storage_length == 60_000
    else:
        # Once it is flushed for its own sake, the image comes.
        await container.writer.flush_all()
        await until(lambda: not len(held))


async def test_held_chunks_are_deleted_in_batches_and_failures_are_retried() -> None:
    """Where storage deletes many in one. Of garbage no more is taken than may wait: its own queue remembers better."""
    requests: list[int] = []
    refused: dict[str, StorageError] = {"s/3": StorageError("refused")}

    class Many(MemoryChunkStorage):
        async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
            requests.append(len(names))
            return {name: refused[name] for name in names if name in refused}

    held = DeferredDeletions(Many(), held_max=2_500)
    names = [f"s/{number}" for number in range(2_400)]
    assert await delete_chunks(held, names, limit=1) == {}
    assert held.waiting() == names
    with pytest.raises(StorageUnavailableError, match="2400 chunks already wait"):
        await delete_chunks(held, [f"t/{number}" for number in range(101)], limit=1)
    assert len(held) == 2_400
    await held.release(names[:2_000])
    assert requests == [1_000, 1_000]
    assert held.waiting() == ["s/3", *names[2_000:]]
    assert not held.has_forgotten


async def until_written(container: SegmentContainer, count: int) -> None:
    images = container.images
    assert images is not None
    await until(lambda: images.written_count >= count)


class DyingChunks(FaultyChunks):
    """At change number `at` the process dies, before, during or after the change; later calls change nothing."""

    def __init__(self, at: int, mode: str) -> None:
        super().__init__()
        self.count = 0
        self.is_dead = False
        self._at = at
        self._mode = mode

    def _strikes(self) -> bool:
        if self.is_dead:
            raise StorageError("dead already")
        self.count += 1
        self.is_dead = self.count - 1 == self._at
        return self.is_dead

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if not self._strikes():
            return await super().create_with_content(name, data)
        whole = b"".join(data)
        if self._mode != "before":
            await super().create_with_content(name, [whole[: None if self._mode == "after" else len(whole) // 2 or 1]])
        raise StorageError("died")

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        if not self._strikes():
            return await super().write(name, offset, data)
        whole = b"".join(data)
        if self._mode != "before":
            await super().write(name, offset, [whole[: None if self._mode == "after" else len(whole) // 2]])
        raise StorageError("died")

    async def delete(self, name: str) -> None:
        if not self._strikes():
            return await super().delete(name)
        if self._mode != "before":
            await super().delete(name)
        raise StorageError("died")


async def interrupted(at: int, mode: str) -> int:
    """Tell a story that ends at a change of storage. Then start again from the log, and from storage alone."""
    lives = Incarnations(SETTINGS)
    lives.chunks = chunks = DyingChunks(at, mode)
    container = await lives.start()
    states = [await state_of(container)]
    flushed = 0

    async def do(*steps: Awaitable[object]) -> None:
        for step in steps:
            await step
            states.append(await state_of(container))

    async def flush() -> None:
        nonlocal flushed
        await container.flush()
        flushed = len(states) - 1

    try:
        await do(container.create("s/table", flags=SegmentFlags.TABLE), container.create("s/a", rollover_bytes=10))
        await do(append(container, "s/a", bytes(range(60))), container.create("s/b"))
        await do(append(container, "s/b", b"b" * 9))
        await flush()
        await do(container.tables.put(container.segment("s/table"), [TableUpdate(b"k", b"v")], -1))
        await do(container.truncate("s/a", 35), container.create("s/a#1"), append(container, "s/a#1", b"merged"))
        await do(container.merges.merge("s/a", "s/a#1"))
        await flush()
        await do(container.delete("s/b"), append(container, "s/a", b"and on"))
        await flush()
        await do(container.truncate("s/a", 64))
        await flush()
    except StorageError:
        assert chunks.is_dead
    await lives.crash(container)
    chunks.is_dead = False
    if await images_of(chunks):
        for name in reversed(await images_of(chunks)):
            # Whichever is whole: what an earlier one leads to stays until it is gone itself.
            try:
                other = await rebuilt(lives, name)
            except PartialImageError:
                continue
            found = await state_of(await other.start())
            await other.close()
            assert found in states
            is_newest = name == (await images_of(chunks))[-1]
            assert not is_newest or found in states[flushed:]
    else:
        assert not flushed
    assert await state_of(await lives.start()) in states[-1:]
    await lives.close()
    return chunks.count


@pytest.mark.parametrize("mode", ["before", "half", "after"])
async def test_a_crash_at_every_change_of_storage_leaves_an_image_of_what_was_flushed(mode: str) -> None:
    """SS-224, SS-231, SS-234: while images are written, earlier ones removed, and chunks deleted that only those need.

    From any that is there and whole the container is built as it was then; from the newest, no older than the last
    flush that was acknowledged. With its log it starts as if there had been none.
    """
    count = await interrupted(-1, mode)
    assert count > 15
    for at in range(count):
        await interrupted(at, mode)


async def test_an_image_written_twice_is_used_once(lives: Incarnations) -> None:
    """SS-228: the answer to the first was lost, and it could not be removed behind the second: both say the same."""
    container = await lives.start()
    await until_written(container, 1)
    assert container.images is not None
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(range(100)))
    await container.writer.flush_all()
    lives.chunks.fail("write", has_effect=True)
    with pytest.raises(StorageError):
        await container.images.write()
    lives.chunks.fail("delete")
    with pytest.raises(StorageError):
        await container.images.write()
    names = await images_of(lives.chunks)
    assert len(names) == 3
    for name in names[1:]:
        other = await rebuilt(lives, name)
        assert await state_of(await other.start()) == await state_of(container)
        await other.close()
    await container.images.write()
    assert len(await images_of(lives.chunks)) == 1


async def test_incarnations_without_images_keep_the_chunks_of_the_last_image(lives: Incarnations) -> None:
    """SS-225: five of them move bytes, truncate and sweep; none gets as far as an image. The log has it all."""
    container = await lives.start()
    assert container.images is not None
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(range(100)))
    await container.flush()
    then = await state_of(container)
    create = lives.chunks.create_with_content

    async def refuse_images(name: str, data: Sequence[Buffer]) -> int:
        if ImageName.parse(name) is not None:
            raise StorageError("no image this time")
        return await create(name, data)

    lives.chunks.create_with_content = refuse_images  # type: ignore[method-assign]
    for number in range(5):
        container = await lives.restart(container)
        await append(container, "s/a", bytes([number]) * 20)
        await container.truncate("s/a", 15 * (number + 1))
        with pytest.raises(StorageError):
            await container.flush()
        await container.storage.orphans.sweep(container.epoch, container.storage.unrecorded)
        other = await rebuilt(lives)
        assert await state_of(await other.start()) == then
        await other.close()
    container = await lives.restart(container)
    expected = bytes(range(100)) + b"".join(bytes([number]) * 20 for number in range(5))
    assert await read_all(container, "s/a") == expected[75:]


@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_failed_image_leaves_the_previous_one(lives: Incarnations, has_effect: bool) -> None:
    """The flush that requested the image gets the error; no chunk is deleted; the next image succeeds."""
    container = await lives.start()
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(100))
    await container.flush()
    names = {info.name for info in await lives.chunks.list("s/a")}
    await container.truncate("s/a", 100)
    await container.writer.flush_all()
    assert container.images is not None
    lives.chunks.fail("write", has_effect=has_effect)
    with pytest.raises(StorageError, match="injected failure"):
        await container.images.write()
    assert {info.name for info in await lives.chunks.list("s/a")} == names
    other = await rebuilt(lives)
    await other.start()
    await other.close()
    await container.flush()
    assert await lives.chunks.list("s/a") == []
    assert len(await images_of(lives.chunks)) == 1


async def test_an_image_that_hangs_is_given_up(lives: Incarnations) -> None:
    container = await lives.start(images=replace(IMAGES, timeout_s=0.05))  # type: ignore[arg-type]
    lives.chunks.hold("write")
    assert container.images is not None
    with pytest.raises(StorageNotRespondingError, match="was not written within"):
        await container.images.write()
    assert container.pipeline.recorder is None
    lives.chunks.heal()


async def test_on_full_storage_chunks_are_deleted_and_earlier_images_go(lives: Incarnations) -> None:
    """Only deletions make room. No store may be built from an image whose chunks are deleted."""
    container = await lives.start()
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(100))
    await container.flush()
    await container.truncate("s/a", 100)
    await container.writer.flush_all()
    assert container.images is not None
    create = lives.chunks.create_with_content

    async def full(name: str, data: Sequence[Buffer]) -> int:
        raise StorageFullError("no space left on device")

    lives.chunks.create_with_content = full  # type: ignore[method-assign]
    with pytest.raises(StorageFullError):
        await container.images.write()
    assert await lives.chunks.list("s/a") == []
    assert await images_of(lives.chunks) == []
    lives.chunks.create_with_content = create  # type: ignore[method-assign]
    await container.images.write()
    assert len(await images_of(lives.chunks)) == 1


async def test_an_overtaken_container_writes_no_image_after_a_later_one(lives: Incarnations) -> None:
    """SS-233: it ends, and what it would have deleted stays."""
    old = await lives.start()
    await old.create("s/a", rollover_bytes=10)
    await append(old, "s/a", bytes(100))
    await old.flush()
    later = ContainerImage(ImageName(0, old.epoch + 5, 1), 1, 0, [])
    await lives.chunks.create_with_content(later.name.name, later.encode())
    await old.truncate("s/a", 100)
    await old.writer.flush_all()
    assert old.images is not None
    with pytest.raises(StaleLogError):
        await old.images.write()
    assert (await images_of(lives.chunks))[-1] == later.name
    assert await lives.chunks.list("s/a")


async def test_too_much_that_waits_is_no_image(lives: Incarnations) -> None:
    container = await lives.start(images=replace(IMAGES, bytes_max=10_000))  # type: ignore[arg-type]
    await container.create("s/a")
    await append(container, "s/a", bytes(6000))
    assert container.images is not None
    with pytest.raises(ImageTooLongError, match="6000 bytes wait for long-term storage, the limit is 5000"):
        await container.images.write()
    await container.flush()


async def test_images_are_taken_under_load(lives: Incarnations) -> None:
    """What was acknowledged before one was asked for is in it, and nothing that a writer did not write."""
    container = await lives.start(images=replace(IMAGES, bytes_max=1 << 30))  # type: ignore[arg-type]
    await container.create("s/a", rollover_bytes=100)
    written = 0
    is_over = False

    async def write() -> None:
        nonlocal written
        while not is_over:
            piece = b"%08d" % written
            await append(container, "s/a", piece)
            written += 1

    writers = [asyncio.ensure_future(write()) for _ in range(1)]
    assert container.images is not None
    for _ in range(10):
        before = written
        await container.writer.flush_all()
        await container.images.write()
        other = await rebuilt(lives)
        data = await read_all(await other.start(), "s/a")
        await other.close()
        assert data == b"".join(b"%08d" % number for number in range(len(data) // 8))
        assert len(data) // 8 >= before
    is_over = True
    await asyncio.gather(*writers)


async def test_images_are_of_one_moment_while_everything_of_the_container_is_written(lives: Incarnations) -> None:
    """SS-236: its tables, indexes and storage records, and the chunks of all of them. A rebuilt store can read all.

    Each key is put after the append that it counts, so an image with the key has those bytes.
    """
    container = await lives.start(
        images=replace(IMAGES, bytes_max=1 << 30), table_index_min_bytes=200, table_compact_bytes=400,  # type: ignore[arg-type]
        table_index_max_bytes=400, table_compact_step_bytes=200, attributes_flush_count=2,
    )  # fmt: skip
    await container.create("s/table", flags=SegmentFlags.TABLE)
    await container.create("s/a", rollover_bytes=100)
    table = container.segment("s/table")
    values: dict[bytes, int] = {}
    own: set[str] = set()
    is_over = False

    async def write() -> None:
        number = 0
        while not is_over:
            await append(container, "s/a", b"%08d" % number)
            number += 1
            await container.tables.put(table, [TableUpdate(b"%d" % (number % 7), b"%d" % number)], -1)
            attribute = b"%016d" % (number % 9)
            before = values.get(attribute, NO_VALUE)
            assert await container.update_attribute("s/a", attribute, value=number, expected=before)
            values[attribute] = number
            if number % 10 == 0:
                await container.create(f"s/{number}")
                await container.truncate("s/a", 4 * number)

    async def flush() -> None:
        while not is_over:
            await container.writer.flush_all()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        tasks.create_task(flush())
        assert container.images is not None
        for _ in range(8):
            before = container.segment("s/a").durable_length
            await container.images.write()
            other = await rebuilt(lives)
            again = await other.start()
            segment = await again.find("s/a")
            data = await read_all(again, segment)
            assert (b"".join(b"%08d" % number for number in range(segment.length // 8))).endswith(data)
            assert segment.length >= before
            page = await again.tables.entries(await again.find("s/table"), limit=10, token=b"")
            assert all(int(entry.value) <= segment.length // 8 for entry in page.entries)
            for storage in (again.storage._system, again.storage._user):
                async for stored in storage.list_segments():
                    if stored.start_offset < stored.length:
                        await storage.read(stored.name, stored.start_offset, stored.length)
                    if storage is again.storage._system:
                        own.add(stored.name)
            await other.close()
        is_over = True
    assert {storage_metadata_segment(0), f"{storage_metadata_segment(0)}$table-1"} <= own


async def test_without_the_setting_no_image_is_written_and_chunks_are_deleted_at_once() -> None:
    lives = Incarnations(replace(SETTINGS, images=ImageSettings()))
    container = await lives.start()
    assert container.images is None
    await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes(100))
    await container.flush()
    await container.truncate("s/a", 100)
    await container.flush()
    assert await lives.chunks.list("s/a") == []
    assert await images_of(lives.chunks) == []
    await lives.close()


# Bytes of images.


IMAGE = ContainerImage(ImageName(3, 7, 11), 4, 1234, [b"first frame", b"", b"third" * 10])


def test_an_image_is_read_back() -> None:
    data = b"".join(IMAGE.encode())
    assert ContainerImage.decode(IMAGE.name, data) == IMAGE
    assert ImageName.parse(IMAGE.name.name) == IMAGE.name
    for name in (f"{IMAGE.name.name}0", f"x{IMAGE.name.name}", "s/a", "_system/containers/_sysjournal.container1"):
        assert ImageName.parse(name) is None
    assert ImageName(0, 2, 1) > ImageName(0, 1, 99)
    assert ImageName(0, 16, 1).name > ImageName(0, 9, 1).name, "names are in order, too"


def test_an_image_that_is_cut_anywhere_is_distinguished_from_a_damaged_one() -> None:
    """SS-227."""
    data = b"".join(IMAGE.encode())
    for length in range(len(data)):
        with pytest.raises(PartialImageError):
            ContainerImage.decode(IMAGE.name, data[:length])


def test_a_flipped_bit_anywhere_in_an_image_is_found() -> None:
    data = b"".join(IMAGE.encode())
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError):
            ContainerImage.decode(IMAGE.name, bytes(damaged))
    with pytest.raises(CorruptionError):
        ContainerImage.decode(IMAGE.name, data + b"x")
    with pytest.raises(CorruptionError, match="image 11 of container 3"):
        ContainerImage.decode(ImageName(3, 7, 12), data)


def test_a_recorder_begins_with_a_checkpoint_and_is_bounded() -> None:
    recorder = FrameRecorder(10)
    recorder.add(0, [b"before"], 6, 1)
    # Part of a record that needs several frames: the last that ended is from before.
    recorder.add(1, [b"a", b"b"], 2, 1)
    recorder.begin(1)
    recorder.add(2, [b"c"], 1, 2)
    recorder.add(3, [b"d"], 1, 3)
    assert recorder.frames(2) == ([b"ab", b"c"], [crc32c(b"ab", 0), crc32c(b"c", 0)])
    recorder.add(4, [b"e"], 1, 4)
    with pytest.raises(ImageTooLongError):
        recorder.frames(4)


async def test_held_deletions_are_bounded_and_done_when_they_are_let_go() -> None:
    chunks = DeferredDeletions(MemoryChunkStorage(), held_max=2)
    assert not chunks.supports_concat
    with pytest.raises(PenstockError):
        await chunks.concat("a", 1, [("b", 1)])
    for name in "abc":
        await chunks.create_with_content(name, [b"x"])
        await chunks.delete(name)
        assert await chunks.exists(name)
    assert chunks.waiting() == ["b", "c"], "the oldest is left to a later start"
    with pytest.raises(NoSuchChunkError):
        await chunks.delete("never there")
    await chunks.release(["c", "never there"])
    assert chunks.waiting() == ["b"]
    with pytest.raises(NoSuchChunkError):
        await chunks.info("c")
    assert await chunks.exists("a")


async def test_a_deleted_segment_stays_deleted_in_an_image(lives: Incarnations) -> None:
    container = await lives.start()
    await container.create("s/a")
    await append(container, "s/a", b"x" * 100)
    await container.flush()
    await container.delete("s/a")
    await container.flush()
    other = await rebuilt(lives)
    again = await other.start()
    with pytest.raises(NoSuchSegmentError):
        await again.find("s/a")
    assert isinstance(other.logs, MemoryLogFactory)
    await other.close()

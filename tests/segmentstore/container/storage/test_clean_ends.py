"""A container that stopped cleanly without leftovers spares the next start the listing of all names; no other does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import PenstockError, StorageError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container_settings import ImageSettings, OrphanSettings
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock.segmentstore.tier2.clean_end import CleanEnd
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock.segmentstore.tier2.orphans import OrphanChunks
from support.containers import QUIET, Incarnations, append, pause_writer, turns, until

NAME = "s/t/0.#epoch.0"
DAY_S = 86_400.0
#: A sweep that is not put off begins at once.
ORPHANS = OrphanSettings(retry_s_min=0.01, sweep_delay_s=0.0, sweep_interval_s=DAY_S, sweep_pause_s=0.0)


class Lives(Incarnations):
    """Incarnations with a clock, and a check of which ones sweep."""

    def __init__(self) -> None:
        super().__init__(replace(QUIET, orphans=ORPHANS))
        self.clock_ms = 1_000
        self.runtime.wall_clock_ms = lambda: self.clock_ms

    async def next(self) -> SegmentContainer:
        """Start the next incarnation; its storage writer does nothing by itself."""
        self.chunks.calls.clear()
        container = await self.start()
        await pause_writer(container)
        return container

    async def sweeps(self, container: SegmentContainer) -> bool:
        """Say whether a container lists all names, soon after it was started."""
        asked = 0
        collect = container.storage.orphans.collect

        async def count() -> None:
            nonlocal asked
            asked += 1
            await collect()

        container.storage.orphans.collect = count  # type: ignore[method-assign]  # Another job of the container.
        await until(lambda: asked > 3)
        if self.chunks.calls["names"]:
            await until(lambda: container.storage.orphans.swept_ms == self.clock_ms)
            return True
        return False

    async def unrecorded(self, container: SegmentContainer) -> list[str]:
        """Return the chunks of earlier epochs that no record leads to."""
        names = [info.name for info in await self.chunks.inner.list("s/")]
        origins = {name: chunk_origin(name) for name in names}
        earlier = [name for name, origin in origins.items() if origin is not None and origin.epoch < container.epoch]
        return list(await container.storage.unrecorded(earlier))


@pytest.fixture
async def lives() -> AsyncIterator[Lives]:
    made = Lives()
    yield made
    await made.close()


async def write(container: SegmentContainer, data: bytes = b"a" * 100) -> None:
    if NAME not in container.state.metadata.by_name:
        await container.create(NAME)
    await append(container, NAME, data)
    await container.flush()


async def test_after_a_clean_end_no_names_are_listed(lives: Lives) -> None:
    """Nor at the very first start, which finds no mark of a predecessor; whether anything was written or not."""
    for number in range(4):
        lives.clock_ms += 1_000
        container = await lives.next()
        assert not await lives.sweeps(container)
        assert container.storage.orphans.swept_ms == 2_000
        if number != 2:
            await write(container)
        await lives.stop(container)
    assert len(await lives.chunks.list("s/")) == 3


async def test_the_start_after_a_crash_sweeps_and_its_clean_end_counts(lives: Lives) -> None:
    container = await lives.next()
    await write(container)
    await lives.crash(container)
    lives.clock_ms = 5_000
    container = await lives.next()
    assert await lives.sweeps(container)
    await lives.stop(container)
    container = await lives.next()
    assert not await lives.sweeps(container)
    assert container.storage.orphans.swept_ms == 5_000


async def test_a_start_that_was_stopped_before_its_sweep_leaves_that_to_the_next(lives: Lives) -> None:
    lives.settings = replace(lives.settings, orphans=replace(ORPHANS, sweep_delay_s=1e6))
    await lives.crash(await lives.next())
    await lives.stop(await lives.next())
    lives.settings = replace(lives.settings, orphans=ORPHANS)
    assert await lives.sweeps(await lives.next())


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_note_counts_for_one_start(lives: Lives, is_whole: bool) -> None:
    """The one that believed it crashed, or had but claimed the log: it may have made chunks, for all that is known."""
    await lives.stop(await lives.next())
    if is_whole:
        await lives.crash(await lives.next())
    else:
        log = lives.logs.create(0)
        await log.open()
        await log.close()
    assert await lives.sweeps(await lives.next())


async def test_sweeps_continue_over_clean_ends(lives: Lives) -> None:
    """Every `sweep_interval_s` one: what comes about late, by calls of dead processes, no end can know of."""
    container = await lives.next()
    await lives.stop(container)
    for hours in (8, 16, 24):
        lives.clock_ms = 1_000 + hours * 3_600_000
        container = await lives.next()
        assert await lives.sweeps(container) == (hours == 24)
        await lives.stop(container)
    # The clock was set back.
    lives.clock_ms = 500
    assert await lives.sweeps(await lives.next())


@pytest.mark.parametrize("has_effect", [True, False])
async def test_a_creation_that_failed_leaves_no_note(lives: Lives, has_effect: bool) -> None:
    """Even if the chunk is missing before the end: elsewhere it might come a second time."""
    container = await lives.next()
    lives.chunks.fail("write", has_effect=has_effect)
    with pytest.raises(StorageError):
        await write(container)
    await container.storage.orphans.collect()
    await container.flush()
    await lives.stop(container)
    assert await lives.sweeps(await lives.next())


async def test_a_creation_that_the_stop_cuts_off_leaves_no_note(lives: Lives) -> None:
    """The creation takes effect later, when no process remembers it; the next start finds it."""
    container = await lives.next()
    gate = asyncio.Event()
    create = lives.chunks.inner.create_with_content
    late: list[asyncio.Task[int]] = []

    async def hangs(name: str, data: list[bytes]) -> int:
        async def work() -> int:  # As in a thread, which no cancellation reaches.
            await gate.wait()
            return await create(name, data)

        late.append(asyncio.ensure_future(work()))
        return await asyncio.shield(late[-1])

    lives.chunks.inner.create_with_content = hangs  # type: ignore[assignment, method-assign]
    writing = asyncio.ensure_future(write(container))
    await until(lambda: bool(late))
    await lives.stop(container)
    gate.set()
    await asyncio.gather(*late)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    lives.chunks.inner.create_with_content = create  # type: ignore[method-assign]
    assert len(await lives.chunks.list("s/")) == 1
    container = await lives.next()
    assert await lives.sweeps(container)
    await until(lambda: not len(container.storage.orphans))
    assert await lives.chunks.list("s/") == []


async def test_a_container_that_has_stopped_creates_no_chunk(lives: Lives) -> None:
    """A flush that was under way comes to its first chunk when the note is written: it fails, and makes none."""
    container = await lives.next()
    await container.create(NAME)
    await append(container, NAME, b"late")
    assert container.storage.close() is not None
    with pytest.raises(StorageError, match="its container has stopped"):
        await container.storage._user.write(NAME, 0, [b"late"])
    assert await lives.chunks.list("s/") == []


@pytest.mark.parametrize("is_landed", [True, False])
async def test_a_crash_while_the_note_is_written(lives: Lives, is_landed: bool) -> None:
    """It is in the log, and true, or it is not there. Never is there one without the commits before it."""
    container = await lives.next()
    await write(container)
    lives.settings = replace(lives.settings, stop_timeout_s=0.05)
    lives.logs.hold_appends(0)
    container.settings = lives.settings
    stopping = asyncio.ensure_future(lives.stop(container))
    await turns()
    if is_landed:
        lives.logs.release_appends(0)
    await stopping
    starting = asyncio.ensure_future(lives.next())
    await turns()
    lives.logs.release_appends(0)
    assert await lives.sweeps(await starting) == (not is_landed)


async def test_deletions_that_wait_for_an_image_leave_no_note(lives: Lives) -> None:
    lives.settings = replace(lives.settings, images=ImageSettings(interval_s=1e6, deletions_delay_s=1e6))
    container = await lives.next()
    held = container.storage._chunks
    assert isinstance(held, DeferredDeletions)
    await write(container)
    await container.delete(NAME)
    await container.writer.flush_all()
    assert len(held) == 1
    await lives.stop(container)
    container = await lives.next()
    assert await lives.sweeps(container)
    await container.flush()
    assert not await lives.unrecorded(container)
    await lives.stop(container)
    assert not await lives.sweeps(await lives.next())


async def test_a_sweep_with_undeleted_orphans_writes_no_clean_end(lives: Lives) -> None:
    container = await lives.next()
    lives.chunks.fail("write", has_effect=True)
    with pytest.raises(StorageError):
        await write(container)
    await lives.crash(container)
    lives.chunks.fail("delete", times=1_000_000)
    container = await lives.next()
    assert await lives.sweeps(container)
    assert len(container.storage.orphans) == 1
    await lives.stop(container)
    lives.chunks.heal()
    container = await lives.next()
    assert await lives.sweeps(container)
    assert await lives.chunks.list("s/") == []


def test_orphans_that_were_forgotten_leave_no_note() -> None:
    async def scenario() -> None:
        from penstock.segmentstore.tier2.memory import MemoryChunkStorage

        orphans = OrphanChunks(MemoryChunkStorage(), OrphanSettings(remembered_max=1), swept_ms=1)
        orphans.add("a")
        orphans.add("b")
        await orphans.collect()
        assert not len(orphans)
        assert not orphans.close()

    asyncio.run(scenario())


def test_a_clean_end_of_another_format_is_ignored() -> None:
    note = CleanEnd(7, 1234)
    stored = note.encode()
    assert stored == bytes.fromhex("01 0000000000000007 00000000000004d2")
    assert CleanEnd.decode(stored) == note
    for data in (None, b"", stored[:-1], stored + b"\0", b"\x02" + stored[1:]):
        assert CleanEnd.decode(data) is None


async def history(seed: int) -> str | None:
    """Play starts, failures, stops and crashes; return a chunk that no later start will search for, if there is any."""
    rng = random.Random(seed)
    lives = Lives()
    try:
        for _ in range(6):
            container = await lives.next()
            if not await lives.sweeps(container) and (left := await lives.unrecorded(container)):
                return f"seed {seed}: epoch {container.epoch} does not sweep, and {left} are there"
            writing: asyncio.Task[None] | None = None
            for _ in range(rng.randrange(3)):
                what = rng.choice(("write", "write", "before", "behind", "hang"))
                if what in ("before", "behind"):
                    lives.chunks.fail("write", has_effect=what == "behind")
                elif what == "hang":
                    lives.chunks.hold("write")
                    writing = asyncio.ensure_future(write(container))
                    await turns(60)
                    break
                try:
                    await write(container)
                except PenstockError:
                    pass
            if rng.random() < 0.7:
                await lives.stop(container)
            else:
                await lives.crash(container)
            lives.chunks.heal()
            if writing is not None:
                # What the storage was asked for it does in the end.
                await asyncio.gather(writing, return_exceptions=True)
        return None
    finally:
        await lives.close()


async def test_in_any_history_a_skipped_sweep_would_find_no_orphan() -> None:
    for seed in range(12):
        assert await history(seed) is None


async def test_a_note_in_spite_of_creations_of_unknown_outcome_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history above is able to fail: a planted bug."""

    def close(self: OrphanChunks) -> bool:
        self._is_closed = True
        return self.swept_ms is not None

    monkeypatch.setattr(OrphanChunks, "close", close)
    assert any([await history(seed) for seed in range(12)])

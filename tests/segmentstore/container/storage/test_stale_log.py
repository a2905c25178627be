"""A log that is an old copy, over long-term storage that has what later epochs wrote. docs/log-identity.md."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import ChunkError, LogClosedError, LogDisabledError, LogFencedError, StaleLogError
from penstock.segmentstore.container.storage import stale_log
from penstock.segmentstore.container.storage.container_storage import storage_metadata_segment
from penstock.segmentstore.container_settings import ImageSettings, OrphanSettings
from penstock.segmentstore.tier1.memory_log import _StoredLog
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from support.containers import QUIET, Incarnations, append, read_all, until

SETTINGS = replace(
    QUIET, rollover_bytes_min=1, recovery_lookup_s=0.05, orphans=OrphanSettings(sweep_delay_s=1e9, sweep_pause_s=0.0)
)
WITH_IMAGES = replace(
    SETTINGS, images=ImageSettings(interval_s=1e9, deletions_delay_s=1e9, retry_s=0.01, timeout_s=20.0)
)


@pytest.fixture(params=[SETTINGS, WITH_IMAGES], ids=["chunks", "images"])
async def lives(request: pytest.FixtureRequest) -> AsyncIterator[Incarnations]:
    made = Incarnations(request.param)
    yield made
    await made.close()


def snapshot(lives: Incarnations) -> _StoredLog:
    stored = lives.logs._get(0)
    return replace(stored, frames=copy.copy(stored.frames), holders=[])


def roll_back(lives: Incarnations, old: _StoredLog) -> None:
    lives.logs._stored[0] = replace(old, frames=copy.copy(old.frames), holders=[])


async def written(lives: Incarnations, first: int) -> None:
    """Live once: append ten bytes and flush them."""
    container = await lives.start()
    if first == 0:
        await container.create("s/a", rollover_bytes=10)
    await append(container, "s/a", bytes([first]) * 10)
    await container.flush()
    await lives.stop(container)


async def names(lives: Incarnations) -> set[str]:
    return {info.name for info in await lives.chunks.inner.list("")}


async def old_copy(lives: Incarnations) -> set[str]:
    """Leave the log as it was before three more lives; return the chunks of the newest one."""
    await written(lives, 0)
    old = snapshot(lives)
    for first in (1, 2, 3):
        await written(lives, first)
    roll_back(lives, old)
    return await names(lives)


async def test_an_old_copy_of_the_log_is_disabled_and_deletes_nothing(lives: Incarnations) -> None:
    newest = await old_copy(lives)
    with pytest.raises(StaleLogError, match="is an old copy: it is at epoch 2"):
        await lives.start()
    for _ in range(4):
        # It does not gain an epoch by each start until it is the newest.
        with pytest.raises(LogDisabledError):
            await lives.start()
    assert await names(lives) == newest


async def test_the_newest_log_starts_as_often_as_it_likes(lives: Incarnations) -> None:
    await written(lives, 0)
    for first in range(1, 6):
        await written(lives, first)
    container = await lives.start()
    assert await read_all(container, "s/a") == b"".join(bytes([first]) * 10 for first in range(6))
    assert container.stale_log.is_done


async def test_storage_that_answers_late_still_refuses_an_old_copy(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container serves meanwhile, and nothing in it deletes."""
    monkeypatch.setattr(stale_log, "RETRY_S", 0.01)
    newest = await old_copy(lives)
    lives.chunks.hold("list")
    container = await lives.start()
    await append(container, "s/a", b"x" * 10)
    assert not container.stale_log.is_done
    lives.chunks.release("list")
    await until(lambda: bool(lives.failures))
    assert isinstance(lives.failures[0], StaleLogError)
    await lives.stop(container)
    with pytest.raises(LogDisabledError):
        await lives.start()
    assert await names(lives) >= newest


async def test_one_refused_request_does_not_let_an_old_copy_serve(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_copy(lives)
    lives.settings = replace(lives.settings, recovery_lookup_s=5.0)
    inner, refused = lives.chunks.inner, []  # type: ignore[var-annotated]
    answer = inner.list

    async def list_chunks(prefix: str) -> list[ChunkInfo]:
        if not refused:
            refused.append(prefix)
            raise ChunkError(prefix, "too many requests")
        return await answer(prefix)  # type: ignore[return-value]

    monkeypatch.setattr(inner, "list", list_chunks)
    with pytest.raises(StaleLogError):
        await lives.start()
    assert refused


async def test_images_and_chunks_are_listed_at_the_same_time(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a container that moves is away for two requests to long-term storage more."""
    await written(lives, 0)
    lives.settings = replace(lives.settings, recovery_lookup_s=1.0)
    inner, asked, both = lives.chunks.inner, set[str](), asyncio.Event()
    answer = inner.list

    async def list_chunks(prefix: str) -> list[ChunkInfo]:
        asked.add(prefix)
        if len(asked) == 2:
            both.set()
        await both.wait()
        return await answer(prefix)  # type: ignore[return-value]

    monkeypatch.setattr(inner, "list", list_chunks)
    container = await lives.start()
    assert container.stale_log.is_done


async def test_an_old_copy_whose_chunks_are_deleted_is_reported_as_an_old_copy(lives: Incarnations) -> None:
    """Later epochs replaced the chunks that its records lead to. That is no corruption."""
    newest = await old_copy(lives)
    for name in newest:
        if name.startswith(f"{storage_metadata_segment(0)}.E-1-"):
            await lives.chunks.inner.delete(name)
    with pytest.raises(StaleLogError):
        await lives.start()


async def test_a_sweep_deletes_nothing_where_a_chunk_is_of_a_later_epoch(lives: Incarnations) -> None:
    """Neither images nor the chunks of the container's own table show it: the sweep inspects all names first."""
    newest = await old_copy(lives)
    for name in newest:
        if name.startswith((f"{storage_metadata_segment(0)}.E-", "_system/containers/_sysjournal")):
            await lives.chunks.inner.delete(name)
    left = await names(lives)
    container = await lives.start()
    storage = container.storage
    with pytest.raises(StaleLogError):
        await storage.orphans.sweep(container.epoch, storage.unrecorded)
    assert await names(lives) == left


async def test_a_successor_is_no_sign_of_an_old_copy(lives: Incarnations) -> None:
    """Its objects are of a later epoch, too, but the log shows the claim: the old incarnation is fenced."""
    await written(lives, 0)
    old = await lives.start()
    new = await lives.start()
    await append(new, "s/a", b"n" * 10)
    await new.flush()
    with pytest.raises((LogFencedError, LogClosedError)):  # Closed, if it has found that out itself.
        await old.storage.orphans.sweep(old.epoch, old.storage.unrecorded)
    assert lives.logs._get(0).is_enabled


async def test_a_restored_log_of_a_far_later_epoch_refuses_the_lost_one(lives: Incarnations) -> None:
    """The lost machine comes back after its store was built again: it must not serve."""
    await written(lives, 0)
    lost = snapshot(lives)
    lives.logs._get(0).epoch += 65536
    await written(lives, 1)
    roll_back(lives, lost)
    newest = await names(lives)
    with pytest.raises(StaleLogError, match="epoch 65538"):
        await lives.start()
    assert await names(lives) == newest

"""A container has small chunks joined, of users and its own, where storage cannot append; not while room is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.storage.storage_writer import StorageWriter
from penstock.segmentstore.container_settings import JoinSettings
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from support.containers import QUIET, FaultyChunks, Incarnations, append, pause_writer, read_all, until

NAME = "s/t/0.#epoch.0"
JOINS = JoinSettings(interval_s=0.02, retry_s_max=0.04, chunks_min=4, pause_s=0.0)


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(replace(QUIET, joins=JOINS))
    made.chunks = FaultyChunks(MemoryChunkStorage(supports_append=False))
    yield made
    await made.close()


async def filled(lives: Incarnations) -> SegmentContainer:
    container = await lives.start()
    await pause_writer(container)
    await container.create(NAME)
    for number in range(20):
        await append(container, NAME, bytes([number]) * 100)
        await container.flush()
    return container


async def chunk_count(container: SegmentContainer) -> int:
    return len(await container.storage.layout(container.segment(NAME)))


def made_counts(container: SegmentContainer) -> list[int]:
    return [joiner.made_count for joiner in container.storage.joiners]


async def test_small_chunks_of_users_and_of_the_container_itself_become_fewer(lives: Incarnations) -> None:
    container = await filled(lives)
    await until(lambda: all(made_counts(container)))
    assert await chunk_count(container) < 20
    container = await lives.restart(container)
    assert await read_all(container, NAME) == b"".join(bytes([number]) * 100 for number in range(20))
    await pause_writer(container)
    await append(container, NAME, b"more")
    await container.flush()
    assert lives.failures == []


async def test_no_chunks_are_joined_while_appends_are_close_to_being_held(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = 0

    def is_pressed(_: StorageWriter) -> bool:
        nonlocal scans
        scans += 1
        return True

    with monkeypatch.context() as pressed:
        pressed.setattr(StorageWriter, "is_pressed", property(is_pressed))
        container = await filled(lives)
        scans = 0
        await until(lambda: scans > 6)
        assert made_counts(container) == [0, 0]
        assert await chunk_count(container) == 20
    await until(lambda: all(made_counts(container)))


@pytest.mark.parametrize(
    ("joins", "supports_append", "is_on"),
    [(JOINS, True, False), (replace(JOINS, is_for_appending=True), True, True), (JOINS, False, True),
     (replace(JOINS, interval_s=0.0), False, False)],
)  # fmt: skip
async def test_where_chunks_are_joined(joins: JoinSettings, supports_append: bool, is_on: bool) -> None:
    lives = Incarnations(replace(QUIET, joins=joins))
    lives.chunks = FaultyChunks(MemoryChunkStorage(supports_append=supports_append))
    container = await lives.start()
    assert bool(container.storage.joiners) == is_on
    await lives.close()

"""Segments of an older Pravega are adopted when first requested, and the layout mode changes in one direction only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import (
    AdoptionError,
    CorruptionError,
    NoSuchSegmentError,
    SegmentExistsError,
    StorageError,
    StorageLayoutError,
    StorageNotRespondingError,
)
from penstock.segmentstore.container.storage.adoptions import is_adoptable
from penstock.segmentstore.layout_settings import LayoutMode, LayoutSettings
from support.containers import QUIET, Incarnations, append, pause_writer, read_all, turns
from support.rolling_storage import put, put_rolling

A, B = "s/a/0.#epoch.0", "s/b/0.#epoch.0"
PIECES = [b"0123456789", b"abc", b"x" * 50_000, b"end"]
UPGRADE = replace(QUIET, layout=LayoutSettings(mode=LayoutMode.LAYOUT_UPGRADE))


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    """A container's lives; closed in the end."""
    incarnations = Incarnations(UPGRADE)
    yield incarnations
    await incarnations.close()


def with_layout(lives: Incarnations, mode: LayoutMode | None) -> None:
    lives.settings = replace(lives.settings, layout=LayoutSettings(mode=mode))


async def test_a_segment_is_taken_over_at_its_first_request_and_stays_active(lives: Incarnations) -> None:
    """Read, appended to, flushed, over restarts, put away and back; nothing of the older layout has changed."""
    data = await put_rolling(lives.chunks, A, PIECES)
    before = {info.name: info.length for info in await lives.chunks.list()}
    container = await lives.start()
    info = await container.info(A)
    assert (info.start_offset, info.length, info.is_sealed) == (0, len(data), False)
    assert container.adoptions.adopted_count == 1
    assert await read_all(container, A) == data
    await append(container, A, b"more")
    container = await lives.restart(container)
    assert await read_all(container, A) == data + b"more"
    await container.flush()
    segment = container.segment(A)
    assert await container.catalog.deactivate([segment], 1) == 1
    container = await lives.restart(container)
    assert await read_all(container, await container.find(A)) == data + b"more"
    assert container.adoptions.adopted_count == 0
    assert {info.name: info.length for info in await lives.chunks.list() if info.name in before} == before


async def test_a_creation_of_an_adopted_segment_reports_that_it_exists(lives: Incarnations) -> None:
    """So a controller that makes a stream over such segments has them as its segments."""
    data = await put_rolling(lives.chunks, A, PIECES)
    container = await lives.start()
    with pytest.raises(SegmentExistsError):
        await container.create(A)
    assert await read_all(container, A) == data
    # Others are made as before, and their numbers are their own.
    other = await container.create(B)
    assert other.id != container.segment(A).id
    with pytest.raises(NoSuchSegmentError):
        await container.find("s/none/0.#epoch.0")


async def test_concurrent_requests_get_the_same_segment(lives: Incarnations) -> None:
    await put_rolling(lives.chunks, A, PIECES)
    container = await lives.start()
    found = await asyncio.gather(*(container.find(A) for _ in range(5)), container.catalog.exists(A))
    assert len({id(segment) for segment in found[:5]}) == 1
    assert container.adoptions.adopted_count == 1


async def test_after_a_crash_at_any_step_the_next_incarnation_continues() -> None:
    """Whatever was done by then: the segment is there whole, its chunks too."""
    steps = 0
    is_done = False
    while not is_done:
        lives = Incarnations(UPGRADE)
        try:
            data = await put_rolling(lives.chunks, A, PIECES)
            container = await lives.start()
            finding = asyncio.ensure_future(container.find(A))
            await turns(steps)
            is_done = finding.done()
            await lives.crash(container)
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
            container = await lives.start()
            assert await read_all(container, await container.find(A)) == data
            await append(container, A, b"more")
            await container.flush()
            container = await lives.restart(container)
            assert await read_all(container, await container.find(A)) == data + b"more"
        finally:
            await lives.close()
        steps += 1
    assert steps > 8


async def test_a_fenced_owner_takes_nothing_over(lives: Incarnations) -> None:
    """Two that take the same segment over: the records are the log's owner's, and the other one learns that it is."""
    data = await put_rolling(lives.chunks, A, PIECES)
    first = await lives.start()
    second = await lives.start()
    results = await asyncio.gather(first.find(A), second.find(A), return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert await read_all(second, A) == data


async def test_deleted_segments_do_not_return(lives: Incarnations) -> None:
    """Not while its storage is being freed, not after that, and not after restarts; the name can be used again."""
    await put_rolling(lives.chunks, A, PIECES)
    container = await lives.start()
    await container.find(A)
    await pause_writer(container)
    await container.delete(A)
    # Nothing of its storage is freed yet.
    assert await container.storage._user.info(A) is not None
    for _ in range(2):
        with pytest.raises(NoSuchSegmentError):
            await container.find(A)
        container = await lives.restart(container)
        await container.flush()
    # Even if its chunks were still there: their deletion may fail, or wait for an image.
    await put_rolling(lives.chunks, A, PIECES)
    with pytest.raises(NoSuchSegmentError):
        await container.find(A)
    await container.create(A)
    await append(container, A, b"new")
    await container.flush()
    container = await lives.restart(container)
    assert await read_all(container, A) == b"new"


async def test_unavailable_storage_is_reported_and_hides_no_segment(lives: Incarnations) -> None:
    """No caller gets "no such segment"; the next request after the outage finds the segment."""
    data = await put_rolling(lives.chunks, A, PIECES)
    lives.settings = replace(lives.settings, layout=replace(lives.settings.layout, lookup_timeout_s=0.05))
    container = await lives.start()
    lives.chunks.fail("read")
    with pytest.raises(StorageError, match="injected"):
        await container.find(A)
    lives.chunks.fail("read")
    with pytest.raises(StorageError, match="injected"):
        await container.create(A)
    lives.chunks.hold("read")
    with pytest.raises(StorageNotRespondingError, match="did not answer within"):
        await container.find(A)
    lives.chunks.release("read")
    assert await read_all(container, await container.find(A)) == data


async def test_damage_is_reported_and_is_that_segments_own(lives: Incarnations) -> None:
    await put(lives.chunks, f"{A}$header", b"maxsize=9&0=gone&5=la")
    container = await lives.start()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="truncated while"):
            await container.find(A)
    assert list(container.storage.damages) == [f"{A}$header"]
    await container.create(B)
    # Mended: nothing has to be restarted.
    await put_rolling(lives.chunks, A, PIECES)
    assert (await container.find(A)).length == sum(map(len, PIECES))


async def test_an_older_segment_above_the_limit_is_refused_with_the_import_command(lives: Incarnations) -> None:
    await put_rolling(lives.chunks, A, PIECES)
    lives.settings = replace(lives.settings, layout=replace(lives.settings.layout, adopted_bytes_max=100))
    container = await lives.start()
    with pytest.raises(AdoptionError, match="penstock storage import"):
        await container.find(A)


async def test_without_the_mode_no_older_segments_are_searched(lives: Incarnations) -> None:
    await put_rolling(lives.chunks, A, PIECES)
    with_layout(lives, None)
    container = await lives.start()
    lives.chunks.calls.clear()
    with pytest.raises(NoSuchSegmentError):
        await container.find(A)
    await container.create(A)
    assert not lives.chunks.calls["read"]


async def test_the_mode_goes_one_way_only(lives: Incarnations) -> None:
    """What was written in the new layout no older store reads: so much is refused with what to do, before a start."""
    with_layout(lives, LayoutMode.INSTALL_NEW)
    await lives.stop(await lives.start())
    with_layout(lives, LayoutMode.LAYOUT_UPGRADE)
    container = await lives.start()
    # The checkpoint has it, too.
    container.checkpoints.write()
    await container.flush()
    await lives.crash(container)
    for mode in (LayoutMode.INSTALL_NEW, LayoutMode.CODE_ONLY_UPGRADE, LayoutMode.NO_UPGRADE):
        with_layout(lives, mode)
        with pytest.raises(StorageLayoutError, match=f"mode is {mode}"):
            await lives.start()
    with_layout(lives, None)
    container = await lives.start()
    assert container.storage.layout_mode is LayoutMode.LAYOUT_UPGRADE
    await put_rolling(lives.chunks, A, PIECES)
    await container.find(A)


async def test_a_server_does_not_start_in_modes_of_an_older_store(lives: Incarnations) -> None:
    for mode in (LayoutMode.CODE_ONLY_UPGRADE, LayoutMode.NO_UPGRADE):
        with_layout(lives, mode)
        with pytest.raises(StorageLayoutError, match="an older Pravega serves"):
            await lives.start()
    with_layout(lives, LayoutMode.INSTALL_NEW)
    await lives.start()


def test_only_segments_of_streams_are_taken_over() -> None:
    assert is_adoptable(A)
    assert is_adoptable("s/_RGgroup/0.#epoch.0")
    for name in (
        f"{A}#transaction.{7:032x}",
        f"{A}#transient.{7:032x}.{8:032x}",
        f"{A}#index",
        f"{A}$attributes.index",
        "_system/containers/metadata_0",
        "_system/_abortStream/0.#epoch.0",
        "s/table_kvtable/0.#epoch.0",
    ):
        assert not is_adoptable(name), name

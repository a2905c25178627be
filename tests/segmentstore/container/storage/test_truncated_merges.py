"""A merge whose bytes were truncated before they were moved is left out of long-term storage, and needs no room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.model.errors import StorageError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.operations import Forget
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container_settings import OrphanSettings
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from support.containers import QUIET, Incarnations, append, evict_all, pause_writer, read_all

A = "s/t/0.#epoch.0"
T = f"{A}#transaction.{'1' * 32}"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(replace(QUIET, orphans=OrphanSettings(sweep_pause_s=0.0)))
    yield made
    await made.close()


async def merged_and_truncated(lives: Incarnations, *, is_partly_stored: bool) -> SegmentContainer:
    """Some bytes of the target in storage, a merge that is not, all of it truncated, and bytes after it."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await container.create(T)
    await append(container, A, b"a" * 100)
    await container.flush()
    await append(container, T, b"t" * 2000)
    if is_partly_stored:
        await container.flush()
        await append(container, T, b"u" * 2000)
    await container.seal(T)
    await container.merges.merge(A, T)
    await append(container, A, b"behind")
    await container.truncate(A, container.segment(A).length - 6)
    return container


async def chunks_of(lives: Incarnations, segment: str) -> int:
    return sum(1 for info in await lives.chunks.list("s/") if info.name.startswith(f"{segment}.E-"))


async def check(container: SegmentContainer, lives: Incarnations) -> None:
    segment = container.segment(A)
    assert segment.storage_length == segment.length
    assert await container.storage.of(segment).info(T) is None
    assert not container.state.metadata.merges
    assert not container.state.gone
    await container.storage.orphans.sweep(container.log.epoch, container.storage.unrecorded)
    assert await chunks_of(lives, T) == 0
    evict_all(container)
    assert await read_all(container, A) == b"behind"


@pytest.mark.parametrize("is_partly_stored", [False, True])
async def test_a_truncated_merge_is_not_moved(lives: Incarnations, is_partly_stored: bool) -> None:
    """What storage has of it already goes, too, and the name is free."""
    container = await merged_and_truncated(lives, is_partly_stored=is_partly_stored)
    before = lives.chunks.calls["write"]
    await container.writer.flush(container.segment(A))
    assert await chunks_of(lives, T) == 0
    (written,) = [info.length for info in await lives.chunks.list(f"{A}.E-")]
    assert written == len(b"behind")
    assert lives.chunks.calls["write"] > before
    await check(container, lives)
    await container.create(T)
    await append(container, T, b"again")
    await container.flush()
    container = await lives.restart(container)
    assert await read_all(container, T) == b"again"
    await check_target(container)


async def check_target(container: SegmentContainer) -> None:
    evict_all(container)
    assert await read_all(container, A) == b"behind"


@pytest.mark.parametrize("is_partly_stored", [False, True])
async def test_a_truncated_merge_waits_for_no_room(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, is_partly_stored: bool
) -> None:
    """Long-term storage is full: the merge is left out nevertheless, and what it had there makes room."""
    container = await merged_and_truncated(lives, is_partly_stored=is_partly_stored)
    segment = container.segment(A)
    monkeypatch.setattr(SpaceWatch, "is_storage_low", True)
    assert not container.writer._flusher.has_to_wait(segment)
    with pytest.raises(StorageError):
        await container.writer.flush(segment)  # The bytes after it do wait.
    assert segment.storage_length == segment.length - 6
    assert await chunks_of(lives, T) == 0
    assert not container.state.metadata.merges


@pytest.mark.parametrize("is_partly_stored", [False, True])
@pytest.mark.parametrize("step", ["skip", "delete", "forget"])
@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_crash_while_a_merge_is_skipped_is_recovered_from(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, step: str, has_effect: bool, is_partly_stored: bool
) -> None:
    """The process dies before or after each of its steps; the next one resumes."""
    container = await merged_and_truncated(lives, is_partly_stored=is_partly_stored)

    def dies(original: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def call(*arguments: object, **named: object) -> object:
            if has_effect:
                await original(*arguments, **named)
            raise StorageError("the process dies here")

        return call

    with monkeypatch.context() as patch:
        if step == "forget":
            submit = container.writer._flusher._submit

            async def forget(operation: object, accept: Callable[[], object]) -> None:
                await (dies(submit) if isinstance(operation, Forget) else submit)(operation, accept)  # type: ignore[arg-type]

            patch.setattr(container.writer._flusher, "_submit", forget)
        else:
            patch.setattr(ChunkedStorage, step, dies(getattr(ChunkedStorage, step)))
        with pytest.raises(StorageError):
            await container.writer.flush(container.segment(A))
        await lives.crash(container)
    container = await lives.start()
    await pause_writer(container)
    await container.flush()
    await check(container, lives)
    container = await lives.restart(container)
    await check_target(container)

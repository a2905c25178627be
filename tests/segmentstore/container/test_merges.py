"""Many segments merged at once: in their order, with few writes to the log, as many at a time as may be active."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import FrameType

import pytest

from penstock.model.errors import InvalidArgumentError, SegmentSealedError
from penstock.model.segments import Buffer
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.durable_log import DurableLog
from support.containers import Incarnations, append, evict_all, pause_writer, read_all

TARGET = "s/a/0.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    """A container's lives; closed in the end."""
    incarnations = Incarnations()
    yield incarnations
    await incarnations.close()


def source(number: int) -> str:
    """Return the name of a transaction's segment."""
    return f"{TARGET}#transaction.{number:032x}"


async def fill(container: SegmentContainer, count: int) -> None:
    await container.create(TARGET)
    for number in range(count):
        await container.create(source(number))
        await append(container, source(number), b"%04d" % number)


async def test_a_batch_of_merges_waits_for_few_writes_to_the_log(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 sources: all are accepted before the first is durable, so writes of the log do not grow with their number."""
    container = await lives.start()
    await fill(container, 50)
    writes = 0
    original = type(container.log).append

    def counted(self: DurableLog, buffers: Sequence[Buffer], length: int) -> object:
        nonlocal writes
        writes += 1
        return original(self, buffers, length)

    monkeypatch.setattr(type(container.log), "append", counted)
    merged = await container.merges.merge_all(TARGET, [source(number) for number in range(50)])
    assert [length for length, _ in merged] == [4 * (number + 1) for number in range(50)]
    assert writes < 10
    expected = b"".join(b"%04d" % number for number in range(50))
    assert await read_all(container, await container.find(TARGET)) == expected
    container = await lives.restart(container)
    assert await read_all(container, await container.find(TARGET)) == expected
    again = await container.merges.merge_all(TARGET, [source(number) for number in range(50)])
    assert again == [(200, None)] * 50


async def test_more_sources_than_may_be_active_are_merged_in_pieces(lives: Incarnations) -> None:
    """20 segments may be active, 60 are merged: none waits for room that the others of its batch take."""
    container = await lives.start(active_segments_max=20)
    await fill(container, 60)
    await container.merges.merge_all(TARGET, [source(number) for number in range(60)])
    expected = b"".join(b"%04d" % number for number in range(60))
    assert await read_all(container, await container.find(TARGET)) == expected


async def test_sources_before_one_that_cannot_be_merged_are_and_none_after_it(lives: Incarnations) -> None:
    """One source is truncated: those before it are durable when the error is raised, those after it are untouched."""
    container = await lives.start()
    await fill(container, 3)
    await container.truncate(source(1), 2)
    with pytest.raises(InvalidArgumentError, match="truncated at 2"):
        await container.merges.merge_all(TARGET, [source(number) for number in range(3)])
    container = await lives.restart(container)
    assert await read_all(container, await container.find(TARGET)) == b"0000"
    assert (await container.find(source(2))).length == 4


async def test_a_source_that_comes_twice_or_never_was_counts_as_merged(lives: Incarnations) -> None:
    """The answer is the length as it is then; into a sealed segment nothing more is merged."""
    container = await lives.start()
    await fill(container, 2)
    names = [source(0), source(0), source(7), source(1)]
    assert [length for length, _ in await container.merges.merge_all(TARGET, names)] == [4, 4, 4, 8]
    await container.create(source(2))
    await container.seal(TARGET)
    with pytest.raises(SegmentSealedError):
        await container.merges.merge_all(TARGET, [source(2)])
    assert await container.merges.merge_all(TARGET, [source(0)]) == [(8, None)]


async def test_a_merge_takes_the_same_work_whatever_the_sources_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """One append of ten bytes, 2000 of them, or 10 MB, none of it in storage yet: as many lines of code, as many bytes
    of the log. What storage takes later is not the merge's.
    """
    lives = Incarnations(cache=CacheSettings(bytes_max=64 * 1024 * 1024))
    container = await lives.start()
    await container.writer.stop()
    await container.create(TARGET)
    await append(container, TARGET, b"first")
    logged = 0
    original = type(container.log).append

    def counted(self: DurableLog, buffers: Sequence[Buffer], length: int) -> object:
        nonlocal logged
        logged += length
        return original(self, buffers, length)

    monkeypatch.setattr(type(container.log), "append", counted)
    lines: list[int] = []
    log_bytes: list[int] = []
    for number, (count, size) in enumerate([(1, 10), (2000, 10), (1000, 10_000), (1, 10)]):
        await container.create(source(number))
        for _ in range(count):
            await append(container, source(number), bytes(size))
        logged = 0
        lines.append(await lines_of(container.merges.merge_all(TARGET, [source(number)])))
        log_bytes.append(logged)
    await lives.close()
    assert max(lines) - min(lines) < 100, lines
    assert max(log_bytes) - min(log_bytes) < 20, log_bytes
    assert min(lines) > 100  # They were counted.


async def lines_of(call: Coroutine[object, object, object]) -> int:
    """Return how many lines of Python are run, in all tasks, until a call has ended."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        await asyncio.ensure_future(call)  # A task of its own: frames that run already are not counted.
    finally:
        sys.settrace(before)
    return count


A = "s/a/0.#epoch.0"
B = "s/a/1.#epoch.0"
C = "s/a/2.#epoch.0"
D = "s/a/3.#epoch.0"


async def contents(container: SegmentContainer, *names: str) -> list[bytes]:
    return [await read_all(container, await container.find(name)) for name in names]


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_segments_that_wait_for_each_others_names_are_flushed(
    lives: Incarnations, is_flushed: bool, is_restarted: bool
) -> None:
    """B is merged into A and created again; A is merged into the new B.

    The new B waits until storage has freed the old one, which the flush of A does, which is left to the new B.
    """
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"a")
    await container.create(B)
    await append(container, B, b"b")
    if is_flushed:
        await container.flush()
    await container.merges.merge(A, B)
    await container.create(B)
    await append(container, B, b"c")
    await container.merges.merge(B, A)
    await container.create(A)
    await append(container, A, b"d")
    if is_restarted:
        container = await lives.restart(container)
        await pause_writer(container)
    async with asyncio.timeout(30):
        await container.flush()
        await container.flush()
    assert not container.state.gone
    evict_all(container)
    assert await contents(container, A, B) == [b"d", b"cab"]
    assert container.segment(B).storage_length == 3
    container = await lives.restart(container)
    assert await contents(container, A, B) == [b"d", b"cab"]


async def test_two_segments_that_wait_for_names_of_each_others_sources_are_flushed(lives: Incarnations) -> None:
    """A goes into C, B into D; both are created again; C goes into the new B, D into the new A: none is next."""
    container = await lives.start()
    await pause_writer(container)
    for name, data in ((A, b"a"), (B, b"b"), (C, b"c"), (D, b"d")):
        await container.create(name)
        await append(container, name, data)
    await container.merges.merge(C, A)
    await container.merges.merge(D, B)
    for name in (A, B):
        await container.create(name)
    await container.merges.merge(B, C)
    await container.merges.merge(A, D)
    async with asyncio.timeout(30):
        await container.flush()
        await container.flush()
    assert not container.state.gone
    evict_all(container)
    assert await contents(container, A, B) == [b"db", b"ca"]
    container = await lives.restart(container)
    assert await contents(container, A, B) == [b"db", b"ca"]

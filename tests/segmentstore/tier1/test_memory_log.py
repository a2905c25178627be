"""The fault switches of the memory log. The contract: tests/conformance/test_durable_log.py."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.model.errors import InvalidArgumentError, LogClosedError, LogFencedError, StorageError, StorageFullError
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.tier1.memory_log import MemoryLog, MemoryLogFactory


@pytest.fixture
def factory() -> MemoryLogFactory:
    return MemoryLogFactory(
        Runtime(disk=LocalDisk(), work=ThreadedWork(1), rng=random.Random(1), wall_clock_ms=lambda: 0)
    )


async def opened(factory: MemoryLogFactory) -> MemoryLog:
    log = factory.create(0)
    await log.open()
    return log


@pytest.mark.parametrize("has_effect", [False, True])
async def test_nth_append_fails_with_all_after_it(factory: MemoryLogFactory, has_effect: bool) -> None:
    """The failed frame is there after the next open if and only if the switch says that it landed."""
    log = await opened(factory)
    factory.fail_append(0, nth=3, has_effect=has_effect)
    futures = [log.append([bytes([number])], 1) for number in range(5)]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(outcome, StorageError) for outcome in outcomes] == [False, False, True, True, True]
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    await log.close()
    log = await opened(factory)
    found = [frame.data async for frame in log.frames()]
    assert found == [bytes([number]) for number in range(3 if has_effect else 2)]
    assert await log.append([b"x"], 1)


async def test_injected_error_is_the_one_given(factory: MemoryLogFactory) -> None:
    """Any typed error can be asked for; nth counts from 1."""
    log = await opened(factory)
    factory.fail_append(0, error=StorageFullError("full"))
    with pytest.raises(StorageFullError):
        await log.append([b"x"], 1)
    with pytest.raises(InvalidArgumentError):
        factory.fail_append(0, nth=0)


async def test_held_appends_stay_in_flight_until_released(factory: MemoryLogFactory) -> None:
    """`close` waits for them too."""
    log = await opened(factory)
    factory.hold_appends(0)
    futures = [log.append([b"abc"], 3) for _ in range(3)]
    closing = asyncio.create_task(log.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.outstanding_bytes == 9
    assert not any(future.done() for future in futures)
    assert not closing.done()
    factory.release_appends(0)
    await asyncio.gather(*futures)
    await closing
    assert log.outstanding_bytes == 0


async def test_held_appends_of_a_fenced_log_fail_when_released(factory: MemoryLogFactory) -> None:
    """They never land."""
    log = await opened(factory)
    factory.hold_appends(0)
    future = log.append([b"zombie"], 6)
    await asyncio.sleep(0)
    second = await opened(factory)
    factory.release_appends(0)
    with pytest.raises(LogFencedError):
        await future
    assert [frame async for frame in second.frames()] == []
    await second.append([b"x"], 1)

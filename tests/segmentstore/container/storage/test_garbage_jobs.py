"""Deletions in the background end with the container, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import InconsistentStateError
from penstock.segmentstore.container_settings import GarbageSettings
from support.containers import QUIET, Incarnations, until


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(replace(QUIET, garbage=GarbageSettings(delay_s=0.0, interval_s=0.01, retry_s_max=0.02)))
    yield made
    await made.close()


def collecting() -> int:
    """Return how many tasks delete garbage, of whichever container."""
    return sum("GarbageQueue.run" in str(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_failed_queue_ends_the_other_queue(lives: Incarnations, monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue finds contradictory state in memory: the container ends, and the other queue stops deleting."""

    async def broken() -> int:
        raise InconsistentStateError("garbage", 0, "a task lies before the first one")

    container = await lives.start()
    monkeypatch.setattr(container.storage._system.garbage, "collect", broken)
    await until(lambda: container.failure is not None)
    assert isinstance(container.failure, InconsistentStateError)
    assert lives.failures == [container.failure]
    assert collecting() == 1
    await lives.stop(container)
    assert collecting() == 0

"""Waits for tasks that are cancelled or raced."""

from __future__ import annotations

import asyncio

import pytest

from penstock.runtime.waits import cancel_and_wait, first_of


async def test_cancelled_tasks_have_ended_and_their_errors_are_discarded() -> None:
    cleaned = []

    async def slow_cleanup() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            cleaned.append("slow cleanup")

    async def failing_cleanup() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append("failing cleanup")
            raise OSError("cleanup failed")

    tasks = [asyncio.ensure_future(slow_cleanup()), asyncio.ensure_future(failing_cleanup())]
    await asyncio.sleep(0)
    await cancel_and_wait(*tasks)
    assert all(task.done() for task in tasks)
    assert sorted(cleaned) == ["failing cleanup", "slow cleanup"]


async def test_the_wait_for_the_first_of_several_cancels_the_others_and_raises_its_error() -> None:
    async def fail() -> None:
        raise OSError("failed")

    never = asyncio.get_running_loop().create_future()
    with pytest.raises(OSError, match="failed"):
        await first_of(fail(), never)
    assert never.cancelled()
    assert not await first_of(asyncio.sleep(3600), timeout_s=0)

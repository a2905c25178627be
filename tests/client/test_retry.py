"""Back-off and watched tasks: bounds hold, nothing ends unseen."""

from __future__ import annotations

import asyncio
import contextvars
from random import Random
from typing import Any

import pytest

from penstock.client.common.deadline import within
from penstock.client.common.retry import Backoff
from penstock.client.common.tasks import start_watched
from penstock.client.settings import ClientSettings
from penstock.model.errors import ConnectionLostError, ContainerNotFoundError, StorageFullError, StreamError

SETTINGS = ClientSettings(retry_time_max_s=10.0, retry_delay_initial_s=0.1, retry_delay_max_s=1.0)


def test_delays_grow_to_their_limit_and_end_in_time() -> None:
    backoff = Backoff(SETTINGS, Random(1))
    now_s, delays = 100.0, []
    while (delay_s := backoff.next_delay_s(now_s)) is not None:
        delays.append(delay_s)
        now_s += delay_s
    assert now_s == pytest.approx(110.0)
    assert all(0.05 * 2**index <= delay <= 0.1 * 2**index for index, delay in enumerate(delays[:3]))
    assert max(delays) <= 1.0


def test_pauses_for_a_container_that_moves_are_a_small_share_of_the_move() -> None:
    """At most 0.2 s at first, and an eighth of the time since the first failure later."""
    backoff = Backoff(ClientSettings(retry_time_max_s=30.0), Random(1))
    now_s, ends = 100.0, []
    while (delay_s := backoff.next_delay_s(now_s, is_moving=True)) is not None:
        assert delay_s <= max(0.2, (now_s - 100.0) / 8)
        now_s += delay_s
        ends.append(now_s - 100.0)
    assert 25 < len(ends) < 60
    assert ends[-1] == pytest.approx(30.0)


async def test_only_a_container_that_moves_has_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is overloaded, or away, is not asked more often."""
    settings = ClientSettings(retry_delay_initial_s=1.0, retry_delay_max_s=1.0)
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await Backoff(settings, Random(1)).pause(ContainerNotFoundError(None, "not here"))
    await Backoff(settings, Random(1)).pause(ConnectionLostError("gone"))
    assert slept[0] <= 0.2 < slept[1]


def test_success_starts_the_time_afresh() -> None:
    backoff = Backoff(SETTINGS, Random(1))
    assert backoff.next_delay_s(0.0) is not None
    assert backoff.next_delay_s(10.0) is None
    backoff.reset()
    assert backoff.next_delay_s(20.0) <= 0.1  # type: ignore[operator]


async def test_pause_raises_the_error_with_a_note_when_time_is_up() -> None:
    backoff = Backoff(ClientSettings(retry_time_max_s=0.001), Random(1))
    error = ConnectionLostError("gone")

    async def pause_for_ever() -> None:
        while True:
            await backoff.pause(error)

    with pytest.raises(ConnectionLostError) as caught:
        await asyncio.wait_for(pause_for_ever(), 60)
    assert "retry_time_max_s" in caught.value.__notes__[0]


async def test_the_last_answer_is_raised_and_no_attempt_made_that_has_no_time() -> None:
    """A pause that ends with the call's deadline: cut off at once, the next attempt would say that nothing is known."""
    backoff = Backoff(SETTINGS, Random(1))
    with within("the call", 0.04, "timeout_s"), pytest.raises(StorageFullError) as caught:
        await backoff.pause(StorageFullError("no room"))
    assert "timeout_s" in caught.value.__notes__[0]


async def test_task_that_ends_by_a_bug_is_reported() -> None:
    crashes: list[Any] = []

    async def fail() -> None:
        raise KeyError("bug")

    task = start_watched(fail(), "watched", crashes.append)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert isinstance(crashes[0], StreamError)
    assert isinstance(crashes[0].__cause__, KeyError)


async def test_cancelled_and_finished_tasks_get_no_callback() -> None:
    crashes: list[Any] = []
    forever = start_watched(asyncio.sleep(1000), "sleeps", crashes.append)
    done = start_watched(asyncio.sleep(0), "done", crashes.append)
    await done
    forever.cancel()
    await asyncio.wait([forever])
    await asyncio.sleep(0)
    assert crashes == []


async def test_a_call_that_is_collected_ends_without_a_complaint() -> None:
    """A loop that ends drops pending calls: they are closed in another context, where an error has no receiver."""

    async def call() -> None:
        with within("wait without end", 1.0, "limit_s"):
            await asyncio.get_running_loop().create_future()

    abandoned = call()
    contextvars.copy_context().run(abandoned.send, None)
    abandoned.close()

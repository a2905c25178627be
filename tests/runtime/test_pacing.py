"""Waits between attempts."""

from __future__ import annotations

import pytest

from penstock.runtime.pacing import GrowingDelay, delay_after


def test_each_wait_is_longer_up_to_the_maximum() -> None:
    delay = GrowingDelay(0.5, 3.0)
    assert [delay.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_reset_begins_with_the_first_wait() -> None:
    delay = GrowingDelay(0.5, 3.0, 4)
    assert [delay.take(), delay.take(), delay.next_s] == [0.5, 2.0, 3.0]
    delay.reset()
    assert [delay.take(), delay.take()] == [0.5, 2.0]


def test_without_a_maximum_waits_keep_growing() -> None:
    delay = GrowingDelay(1)
    assert [delay.take() for _ in range(12)][-1] == 2**11


async def test_it_sleeps_by_the_clock_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr("asyncio.sleep", sleep)
    delay = GrowingDelay(0.1, 0.3)
    for _ in range(3):
        await delay.sleep()
    assert slept == [0.1, 0.2, 0.3]


def test_the_delay_after_an_attempt_is_the_one_of_the_series() -> None:
    delay = GrowingDelay(100, 5000, 10)
    assert [delay_after(attempt, 100, 5000, 10) for attempt in (1, 2, 3, 4)] == [delay.take() for _ in range(4)]
    assert [delay_after(attempt, 100, 5000, 10) for attempt in (1, 2, 3, 4)] == [100, 1000, 5000, 5000]

"""What a client logs about its waits: when, how often, and when they are over. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from penstock.client.common.waits import DISK_FULL, UNREACHABLE, Waits
from penstock.client.settings import ClientSettings
from penstock.model.errors import ConnectionLostError, StorageFullError
from penstock_simulation.simulated.simulation import Simulation


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture) -> Callable[[Callable[[Waits], Awaitable[None]]], list[str]]:
    """Run a scenario in a loop with virtual time; return the lines about waits."""
    caplog.set_level(logging.WARNING)

    def run_scenario(scenario: Callable[[Waits], Awaitable[None]]) -> list[str]:
        with Simulation(1) as simulation:
            simulation.run(lambda: scenario(Waits(ClientSettings())))  # type: ignore[arg-type, return-value]
        return [each.getMessage() for each in caplog.records if each.name == "penstock.client.waits"]

    return run_scenario


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_short_waits_are_not_reported(run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]]) -> None:
    async def scenario(waits: Waits) -> None:
        for _ in range(20):
            with waits.during("read a/b", now_s() + 60.0):
                await asyncio.sleep(2.9)

    assert run(scenario) == []


def test_a_long_wait_is_reported_with_its_reason_and_the_time_left_and_again_and_at_its_end(
    run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]],
) -> None:
    async def scenario(waits: Waits) -> None:
        with waits.during("create stream a/b", now_s() + 60.0) as wait:
            wait.note(ConnectionLostError("10.0.0.1:6000: connection refused"))
            await asyncio.sleep(25.0)

    assert run(scenario) == [
        f"create stream a/b: waiting for {at} s: {UNREACHABLE}, {60 - at} s left (10.0.0.1:6000: connection refused)"
        for at in (3, 13, 23)
    ] + ["the wait ended after 25 s"]


def test_a_wait_that_fails_ends_with_its_error_and_no_line(
    run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]],
) -> None:
    async def scenario(waits: Waits) -> None:
        async def fail() -> None:
            with waits.during("write to a/b", None) as wait:
                await asyncio.sleep(5.0)
                error = StorageFullError("no space")
                wait.note(error)
                raise error

        with pytest.raises(StorageFullError):
            await fail()

    assert len(run(scenario)) == 1


def test_many_waits_for_one_reason_share_a_line(run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]]) -> None:
    async def scenario(waits: Waits) -> None:
        found = [waits.begin(f"write to a/{number}", why=DISK_FULL) for number in range(1000)]
        await asyncio.sleep(5.0)
        for wait in found:
            waits.end(wait)

    assert run(scenario) == [
        f"write to a/0: waiting for 3 s: {DISK_FULL}; 999 more waits for the same reason",
        "the wait ended after 5 s",
    ]


def test_a_new_reason_is_reported_at_once_and_one_that_comes_and_goes_once_per_interval(
    run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]],
) -> None:
    async def scenario(waits: Waits) -> None:
        with waits.during("write to a/b", None) as wait:
            for turn in range(16):
                wait.why = (DISK_FULL, UNREACHABLE)[turn % 2]
                await asyncio.sleep(0.5)

    lines = run(scenario)
    assert sum(DISK_FULL in line for line in lines) == 1
    assert sum(UNREACHABLE in line for line in lines) == 1


def test_progress_begins_a_wait_again(run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]]) -> None:
    async def scenario(waits: Waits) -> None:
        wait = waits.begin("write to a/b")
        for _ in range(20):
            await asyncio.sleep(1.0)
            wait.since_s = now_s()
        waits.end(wait)

    assert run(scenario) == []


def test_nothing_is_reported_after_close(run: Callable[[Callable[[Waits], Awaitable[None]]], list[str]]) -> None:
    async def scenario(waits: Waits) -> None:
        waits.begin("write to a/b")
        waits.close()
        await asyncio.sleep(10.0)

    assert run(scenario) == []

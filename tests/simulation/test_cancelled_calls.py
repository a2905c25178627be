"""`cut_short` cancels a call at the await that was drawn, and at no other."""

from __future__ import annotations

import asyncio

import pytest

from penstock_simulation.simulated.cancellation import CutShortError, cut_short
from penstock_simulation.simulated.simulation import Simulation


def play(seed: int, suspension: int) -> tuple[list[str], object]:
    """Cut a call with three awaits short; return how far it came and its result."""
    steps: list[str] = []

    async def inner() -> None:
        await asyncio.sleep(1.0)
        steps.append("inner")

    async def call() -> str:
        try:
            await inner()
            await asyncio.gather(asyncio.sleep(1.0), asyncio.sleep(2.0))
            steps.append("gathered")
            await asyncio.sleep(1.0)
            return "answer"
        finally:
            steps.append("cleaned up")

    async def scenario() -> object:
        try:
            return await cut_short(call(), suspension)
        except CutShortError as error:
            return str(error)

    with Simulation(seed) as simulation:
        result = simulation.run(scenario)
        assert simulation.loop.unhandled == []
    return steps, result


@pytest.mark.parametrize(
    ("suspension", "steps"),
    [(1, ["cleaned up"]), (2, ["inner", "cleaned up"]), (3, ["inner", "gathered", "cleaned up"])],
)
def test_a_call_is_cancelled_at_each_of_its_awaits_and_cleans_up(suspension: int, steps: list[str]) -> None:
    assert play(1, suspension) == (steps, f"cancelled at its suspension {suspension}")


def test_a_call_that_ends_before_has_its_answer() -> None:
    assert play(1, 4) == (["inner", "gathered", "cleaned up"], "answer")


def test_errors_pass_and_an_outer_cancellation_reaches_the_call() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise KeyError("its own")

    async def wait() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            ended.append("wait")

    async def scenario() -> None:
        with pytest.raises(KeyError):
            await cut_short(fail(), 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await cut_short(wait(), 5)
        await asyncio.sleep(0.0)
        assert ended == ["wait"]

    with Simulation(1) as simulation:
        simulation.run(scenario)

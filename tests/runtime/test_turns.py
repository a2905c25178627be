"""`Turns`: steps of work in the background, one in each turn of the event loop."""

from __future__ import annotations

import asyncio

from penstock.runtime.turns import Turns


async def _count_turns(turn: list[int]) -> None:
    while True:
        await asyncio.sleep(0)
        turn[0] += 1


async def test_each_step_has_a_turn_of_its_own_in_the_order_in_which_they_came() -> None:
    turns, turn = Turns(), [0]
    steps: list[tuple[int, str]] = []

    async def work(name: str) -> None:
        for _ in range(20):
            await turns.wait_turn()
            steps.append((turn[0], name))

    counting = asyncio.ensure_future(_count_turns(turn))
    async with asyncio.timeout(60):
        await asyncio.gather(*(work(name) for name in "abcd"))
    counting.cancel()
    taken = [at for at, _ in steps]
    assert len(set(taken)) == len(taken) == 80
    assert "".join(name for _, name in steps) == "abcd" * 20


async def test_a_cancelled_waiter_uses_no_turn() -> None:
    turns = Turns()
    gave_up = [asyncio.ensure_future(turns.wait_turn()) for _ in range(10)]
    last = asyncio.ensure_future(turns.wait_turn())
    await asyncio.sleep(0)
    for one in gave_up:
        one.cancel()
    async with asyncio.timeout(60):
        await last
        await turns.wait_turn()
    assert all(one.cancelled() for one in gave_up)


def test_a_loop_that_ended_in_the_middle_holds_up_no_other() -> None:
    """A program may run one event loop after another."""
    turns = Turns()

    async def waits() -> None:
        await turns.wait_turn()

    async def ends_at_once() -> None:
        asyncio.get_running_loop().create_task(waits())
        await asyncio.sleep(0)

    for _ in range(3):
        asyncio.run(ends_at_once())
    asyncio.run(asyncio.wait_for(waits(), 60))

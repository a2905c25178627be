"""In which order reads go to long-term storage: in turns by client. The pure part."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.segmentstore.container.reads.storage_turns import StorageTurns, Turn
from support.containers import turns as loop_turns


class Queue:
    """Reads that wait, by name, and those that had their turn."""

    def __init__(self, count_max: int) -> None:
        self.turns = StorageTurns(count_max)
        self.given: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.places: dict[str, Turn] = {}
        self.done: dict[str, asyncio.Event] = {}

    async def add(self, *names: str) -> None:
        """Let reads wait; the first letter is the client."""
        for name in names:
            self.places[name] = Turn(name[0])
            self.done[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._read(name))
        await loop_turns(3)

    async def _read(self, name: str) -> None:
        try:
            await self.turns.take(self.places[name])
            self.given.append(name)
            await self.done[name].wait()
        finally:
            self.turns.leave(self.places[name])

    async def end_all(self) -> None:
        """End each as soon as it has had its turn."""
        for done in self.done.values():
            done.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_a_client_with_many_reads_delays_another_one_by_one_of_its_own() -> None:
    """Forty of one client wait; one of another comes last, and is second. A third takes turns with the first."""
    queue = Queue(1)
    await queue.add(*(f"a{number}" for number in range(40)))
    await queue.add("b0", "c0", "c1", "c2")
    await queue.end_all()
    assert queue.given[:9] == ["a0", "a1", "b0", "c0", "a2", "c1", "a3", "c2", "a4"]
    assert queue.given[9:] == [f"a{number}" for number in range(5, 40)]
    assert queue.turns.waiting_count == 0


async def test_a_shared_read_takes_the_earlier_turn_of_its_two_clients() -> None:
    queue = Queue(1)
    await queue.add("a0", "a1", "a2", "a3")
    queue.turns.join(queue.places["a3"], "b")
    queue.turns.join(queue.places["a3"], "b")
    assert queue.turns.waiting_count == 4
    await queue.end_all()
    assert queue.given == ["a0", "a1", "a3", "a2"]


async def test_reads_that_are_given_up_leave_the_line() -> None:
    """Also one that is given up in the turn of the loop in which it would have gone."""
    queue = Queue(1)
    await queue.add("a0", "a1", "a2", "b0")
    queue.tasks["a1"].cancel()
    await loop_turns(3)
    assert queue.turns.waiting_count == 2
    queue.tasks["a2"].cancel()
    queue.done["a0"].set()
    await queue.end_all()
    assert queue.given == ["a0", "b0"]
    await queue.add("a3")
    assert queue.given[-1] == "a3"
    await queue.end_all()


@pytest.mark.parametrize("seed", range(10))
async def test_turns_are_bounded_and_never_lost(seed: int) -> None:
    """Random arrivals, ends and cancellations: as many as may are under way while any wait."""
    rng = random.Random(seed)
    queue = Queue(3)
    for number in range(300):
        await queue.add(rng.choice("abcde") + str(number))
        for name, task in list(queue.tasks.items()):
            if not task.done() and rng.random() < 0.2:
                if rng.random() < 0.3:
                    task.cancel()
                elif name in queue.given:
                    queue.done[name].set()
                else:
                    queue.turns.join(queue.places[name], rng.choice("abcde"))
        await loop_turns(6)
        under_way = [name for name in queue.given if not queue.tasks[name].done()]
        waiting = [name for name, task in queue.tasks.items() if not task.done() and name not in queue.given]
        assert len(under_way) <= 3
        assert len(under_way) == 3 or not waiting
    await queue.end_all()
    assert queue.turns.waiting_count == 0
    assert queue.turns._free_count == 3

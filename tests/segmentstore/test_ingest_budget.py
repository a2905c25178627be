"""One budget for the bytes that all connections send: which are read, which are paused, which resume."""

from __future__ import annotations

import asyncio

from penstock.segmentstore.ingest_budget import IngestBudget


class Connection:
    """Takes in a piece whenever it is read."""

    def __init__(self, budget: IngestBudget) -> None:
        self.budget = budget
        self.held_bytes = 0
        self.review_count = 0

    def review(self) -> None:
        self.review_count += 1
        self.is_read()

    def is_read(self) -> bool:
        return self.budget.lets_read(self, self.held_bytes)

    def take(self, byte_count: int) -> None:
        self.held_bytes += byte_count
        self.budget.add_requests(byte_count)

    def give_back(self, byte_count: int) -> None:
        self.held_bytes -= byte_count
        self.budget.add_requests(-byte_count)


async def test_one_alone_may_hold_half_and_many_together_not_the_whole() -> None:
    for count in (1, 2, 30, 1000):
        budget = IngestBudget(1_000_000, 1_000_000)
        connections = [Connection(budget) for _ in range(count)]
        went_on = True
        while went_on:
            went_on = False
            for connection in connections:
                if connection.is_read():
                    connection.take(100)
                    went_on = True
        assert budget.used_bytes <= 1_000_000 + 100 * count
        held = [connection.held_bytes for connection in connections]
        assert max(held) - min(held) <= 200
        assert abs(sum(held) - 1_000_000 * count // (count + 1)) <= 200 * count


async def test_no_connection_has_more_than_its_share() -> None:
    budget = IngestBudget(1_000_000, 1000)
    connection = Connection(budget)
    while connection.is_read():
        connection.take(100)
    assert connection.held_bytes == 1100


async def test_the_connection_that_holds_most_is_stopped_and_others_are_read() -> None:
    """And continues when it holds clearly less than is free, without being asked."""
    budget = IngestBudget(1000, 1000)
    greedy, modest = Connection(budget), Connection(budget)
    greedy.take(600)
    modest.take(100)
    assert (greedy.is_read(), modest.is_read()) == (False, True)
    greedy.give_back(200)
    await asyncio.sleep(0)
    assert (greedy.review_count, greedy.is_read()) == (1, False)
    greedy.give_back(200)
    await asyncio.sleep(0)
    assert greedy.review_count == 2
    assert greedy.is_read()


async def test_frames_that_have_not_arrived_do_not_stop_each_other_forever() -> None:
    """Half-sent frames fill the budget and nothing is under way that would give bytes back: one at a time continues."""
    budget = IngestBudget(1000, 1000)
    connections = [Connection(budget) for _ in range(3)]
    for connection in connections:
        connection.held_bytes = 400
        budget.add_frames(400)
    for _ in range(2):
        assert [connection.is_read() for connection in connections] == [True, False, False]
    # It is done: its bytes are a request now, then they are given back. The next one has its turn.
    budget.add_frames(-400)
    budget.add_requests(400)
    assert [connection.is_read() for connection in connections] == [False, False, False]
    budget.add_requests(-400)
    connections[0].held_bytes = 0
    await asyncio.sleep(0)
    assert [connection.is_read() for connection in connections] == [True, True, False]


async def test_a_connection_that_ends_is_forgotten() -> None:
    budget = IngestBudget(1000, 1000)
    one, other = Connection(budget), Connection(budget)
    for connection in (one, other):
        connection.take(700)
        assert not connection.is_read()
    budget.add_requests(-700)
    budget.forget(one)
    await asyncio.sleep(0)
    assert one.review_count == 0
    assert other.review_count == 1

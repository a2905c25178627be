"""`for_each`: many requests, and how many of them begin in one turn of the event loop."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from penstock.model.errors import NoSuchSegmentError, PenstockError
from penstock.runtime.bulk import STARTS_PER_TURN, all_ended, errors_of, for_each

T = TypeVar("T")


async def test_the_number_of_starts_per_turn_is_bounded() -> None:
    """At first, and when many answers come in at once, as they do behind a sync of the log."""
    turn = 0
    began: dict[int, int] = {}
    all_at_once = asyncio.Event()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def request(name: int) -> int:
        began[turn] = began.get(turn, 0) + 1
        if name < 1000:
            await all_at_once.wait()
        return name

    counting = asyncio.ensure_future(count_turns())
    asking = asyncio.ensure_future(for_each(range(3000), request, 1000))
    async with asyncio.timeout(60):
        while sum(began.values()) < 1000:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)
    all_at_once.set()
    assert await asking == list(range(3000))
    counting.cancel()
    # A task that asks for a turn may have one before or behind the others of the same.
    assert max(began.values()) <= 2 * STARTS_PER_TURN
    assert len(began) >= 3000 // (2 * STARTS_PER_TURN)


async def test_a_turn_makes_no_more_tasks_than_requests_that_begin_in_it() -> None:
    """A task is a tenth of a millisecond of work itself, with what the collector has to do with it."""
    loop, made, most = asyncio.get_running_loop(), 0, 0
    release = asyncio.Event()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, T], **kwargs: object) -> Task[T]:
        nonlocal made
        made += 1
        return Task(coroutine, loop=loop)

    async def request(name: int) -> None:
        await release.wait()

    loop.set_task_factory(factory)  # type: ignore[arg-type]  # typeshed knows no generic ones
    asking = loop.create_task(for_each(range(1000), request, 1000))
    async with asyncio.timeout(60):
        while made < 1000:
            before = made
            await asyncio.sleep(0)
            most = max(most, made - before)
    release.set()
    await asking
    assert most <= 2 * STARTS_PER_TURN


async def test_each_item_has_its_own_result_and_concurrency_is_bounded() -> None:
    most = under_way = 0

    async def request(name: int) -> int:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if name % 2:
            raise NoSuchSegmentError(str(name))
        return name

    answers = await for_each(range(10), request, 3)
    assert [answer for answer in answers if isinstance(answer, int)] == [0, 2, 4, 6, 8]
    assert [isinstance(answer, NoSuchSegmentError) for answer in answers] == [False, True] * 5
    assert most == 3


async def test_all_ended_runs_few_at_a_time_and_keeps_the_order() -> None:
    running, most = 0, 0

    async def request(name: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return -name

    assert await all_ended(range(7), request, 3) == [-name for name in range(7)]
    assert most == 3


async def test_all_ended_raises_the_first_error_when_every_request_has_ended() -> None:
    ended = []

    async def request(name: int) -> int:
        for _ in range(7 - name):  # The first name ends last.
            await asyncio.sleep(0)
        ended.append(name)
        if name % 2:
            raise PenstockError(f"request {name}")
        return name

    with pytest.raises(PenstockError, match="request 1"):
        await all_ended(range(6), request, 6)
    assert sorted(ended) == list(range(6))


async def test_errors_of_returns_every_error_when_every_request_has_ended() -> None:
    ended = []

    async def request(name: int) -> None:
        for _ in range(7 - name):
            await asyncio.sleep(0)
        ended.append(name)
        if name % 2:
            raise PenstockError(f"request {name}")

    errors = await errors_of(range(6), request, 2)
    assert [str(error) for error in errors] == ["request 1", "request 3", "request 5"]
    assert sorted(ended) == list(range(6))

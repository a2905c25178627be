"""`Portal`: results, errors, time-outs and closing across the thread border."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.model.errors import ClosedError
from penstock.runtime.portal import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("test")
    yield portal
    portal.close()


def test_results_and_errors_cross_over(portal: Portal) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def fail() -> None:
        raise KeyError("inside")

    assert portal.call(double(21)) == 42
    with pytest.raises(KeyError, match="inside"):
        portal.call(fail())
    assert portal.call_soon(threading.current_thread).name == "test"


def test_time_out_cancels_what_ran(portal: Portal) -> None:
    cancelled = threading.Event()

    async def sleep() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        portal.call(sleep(), 0.01)
    assert cancelled.wait(5)


def test_iteration_takes_one_item_at_a_time(portal: Portal) -> None:
    made = []

    async def count() -> AsyncIterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    items = portal.iterate(count())
    assert next(items) == 0
    assert made == [0]
    assert list(items) == [1, 2]


def test_iteration_continues_after_an_error_of_one_item_if_the_source_does(portal: Portal) -> None:
    """A generator would be at its end, and the loop over it, without a word."""

    class Flaky:
        def __init__(self) -> None:
            self.count = 0

        def __aiter__(self) -> Flaky:
            return self

        async def __anext__(self) -> int:
            self.count += 1
            if self.count == 2:
                raise ValueError("once")
            if self.count == 4:
                raise StopAsyncIteration
            return self.count

    items = portal.iterate(Flaky())
    assert next(items) == 1
    with pytest.raises(ValueError, match="once"):
        next(items)
    assert list(items) == [3]


def test_closing_cancels_what_still_runs_and_ends_the_thread() -> None:
    portal = Portal()
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def start() -> None:
        portal.task = asyncio.get_running_loop().create_task(forever())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    portal.call(start())
    portal.close()
    assert ended.is_set()
    assert portal.loop.is_closed()
    portal.close()
    with pytest.raises(ClosedError, match="closed"):
        portal.call(forever())


def test_blocking_call_from_the_loop_itself_is_refused(portal: Portal) -> None:
    async def never() -> None:
        """Not awaited: the call is refused before."""

    async def outer() -> None:
        portal.call(never())

    with pytest.raises(RuntimeError, match=r"penstock\.aio"):
        portal.call(outer())

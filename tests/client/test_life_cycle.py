"""`LifeCycle` by itself: what holds for everything that a client makes."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Iterator

import pytest

from penstock.client.common.life_cycle import LifeCycle
from penstock.model.errors import ClosedError, ForkedError, OutcomeUnknownError, StreamError
from penstock.runtime.program import watch_program
from support.containers import until


class Part(LifeCycle):
    """Something with work to finish. `gate` lets the finishing continue; `told` is the sequence of events."""

    def __init__(self, name: str, told: list[str] | None = None, *, close_timeout_s: float = 30.0) -> None:
        super().__init__(name, close_timeout_s=close_timeout_s)
        self.name = name
        self.told = told if told is not None else []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.pending = 0

    def open(self, owner: LifeCycle | None = None) -> Part:
        self.open_life(owner, None if owner else watch_program)
        return self

    def work(self) -> None:
        self._check_open()
        self.pending += 1

    async def _finish(self) -> None:
        self.told.append(f"finish {self.name}")
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.pending = 0

    async def _release(self) -> None:
        self.told.append(f"release {self.name}")
        await asyncio.sleep(0)

    def _settle(self) -> None:
        self.told.append(f"settle {self.name}, {self.pending} left")

    def _own_losses(self) -> Iterator[str]:
        if self.pending:
            yield f"{self.pending} of {self.name} are not done"

    async def __aenter__(self) -> Part:
        return self.open()


async def test_it_refuses_before_it_opens_while_it_closes_and_afterwards() -> None:
    part = Part("writer of a/b")
    with pytest.raises(ClosedError, match=r"writer of a/b is not open yet: use it as a context manager"):
        part.work()
    part.open().work()
    part.gate.clear()
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0)
    with pytest.raises(ClosedError, match="being closed"):
        part.work()
    assert not part.is_open
    assert not part.is_closed
    part.gate.set()
    await closing
    with pytest.raises(ClosedError, match="is closed"):
        part.work()
    with pytest.raises(ValueError, match="is closed"):
        part.open()
    assert part.told == ["finish writer of a/b", "release writer of a/b", "settle writer of a/b, 0 left"]


async def test_close_twice_is_fine_at_once_and_one_after_the_other() -> None:
    part = Part("part").open()
    part.error = StreamError("no")
    results = await asyncio.gather(part.close(), part.close(), return_exceptions=True)
    assert results == [part.error, part.error]  # type: ignore[comparison-overlap]
    await part.close()  # type: ignore[unreachable]
    await part.abandon()
    assert part.told == ["finish part", "release part", "settle part, 0 left"]
    never_opened = Part("other")
    await never_opened.close()
    assert never_opened.is_closed


async def test_an_owner_closes_its_children_first() -> None:
    told: list[str] = []
    owner = Part("client", told).open()
    gone = Part("gone", told).open(owner)
    await gone.close()
    del told[:]
    Part("writer", told).open(owner)
    await owner.close()
    assert told == ["finish writer", "release writer", "settle writer, 0 left",
                    "finish client", "release client", "settle client, 0 left"]  # fmt: skip
    with pytest.raises(ClosedError):
        Part("late", told).open(owner)


async def test_the_owner_is_closed_and_raises_when_a_part_of_it_cannot_be() -> None:
    told: list[str] = []
    owner = Part("client", told).open()
    for name in ("one", "two"):
        Part(name, told).open(owner).error = StreamError(f"{name} failed")
    with pytest.raises(StreamError, match="one failed") as caught:
        await owner.close()
    assert caught.value.__notes__ == ["and: two failed"]
    assert told[-2:] == ["release client", "settle client, 0 left"]


async def test_closing_ends_within_its_limit_and_reports_unfinished_parts() -> None:
    told: list[str] = []
    owner = Part("client", told).open()
    stuck = Part("writer", told).open(owner)
    stuck.work()
    stuck.gate.clear()
    with pytest.raises(OutcomeUnknownError, match=r"writer was not closed in time .*: 1 of writer are not done"):
        await owner.close(0.5)
    assert owner.is_closed
    assert stuck.is_closed
    assert told == ["finish writer", "release writer", "settle writer, 1 left",
                    "finish client", "release client", "settle client, 0 left"]  # fmt: skip


async def test_a_cancelled_caller_does_not_cut_the_closing_in_two() -> None:
    part = Part("part").open()
    part.gate.clear()
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert part.told == ["finish part"]
    part.gate.set()
    await part.close()
    assert part.told == ["finish part", "release part", "settle part, 0 left"]


@pytest.mark.parametrize("steps", range(6))
async def test_abandoning_ends_a_closing_that_hangs(steps: int) -> None:
    # Whatever moment of the closing it comes in.
    part = Part("part").open()
    part.work()
    part.gate.clear()
    closing = asyncio.create_task(part.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    results = await asyncio.gather(part.abandon(), closing, return_exceptions=True)
    assert all(result is None or isinstance(result, OutcomeUnknownError) for result in results)
    assert part.told[-1] == "settle part, 1 left"


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_loop_that_ends_during_close_settles_all_waiters(steps: int) -> None:
    """`asyncio.run` cancels every task, also those that close: everything is settled nevertheless."""
    told: list[str] = []

    async def main() -> None:
        owner = Part("client", told).open()
        part = Part("writer", told).open(owner)
        part.work()
        part.gate.clear()
        closings.append(asyncio.create_task(owner.close()))
        for _ in range(steps):
            await asyncio.sleep(0)

    closings: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert [line for line in told if line.startswith("settle")] == ["settle writer, 1 left", "settle client, 0 left"]


async def test_an_error_in_the_block_is_the_one_that_is_raised() -> None:
    part = Part("writer")

    async def use() -> None:
        async with part:
            part.error = StreamError("cannot flush")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        await use()
    assert caught.value.__notes__ == ["then the writer could not be closed: cannot flush"]
    assert part.is_closed


async def test_a_cancelled_block_ends_at_once_and_closes_in_the_background() -> None:
    part = Part("writer")

    async def use() -> None:
        async with part:
            part.work()
            part.gate.clear()
            await asyncio.sleep(60)

    task = asyncio.create_task(use())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not part.is_open
    assert part.pending == 1
    part.gate.set()
    await part.close()
    assert part.pending == 0


async def test_unfinished_work_of_an_abandoned_object_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    part = Part("writer").open()
    part.work()
    await part.abandon()
    assert "the writer was abandoned: 1 of writer are not done" in caplog.text


async def test_an_error_that_no_caller_waited_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    part = Part("writer").open()
    part.gate.clear()
    part.error = StreamError("cannot flush")
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing])
    part.gate.set()
    await until(lambda: part.is_closed)
    assert "closing the writer failed, after the caller stopped waiting: cannot flush" in caplog.text


async def test_an_object_dropped_while_open_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    parts = [Part("writer").open()]
    parts[0].work()
    gone = weakref.ref(parts[0])
    with pytest.warns(ResourceWarning, match=r"unclosed <Part: writer, open; 1 of writer are not done>"):
        parts.clear()
    assert gone() is None
    assert "a writer was dropped without being closed: 1 of writer are not done" in caplog.text


async def test_objects_open_at_exit_are_logged_with_their_counts(caplog: pytest.LogCaptureFixture) -> None:
    owner = Part("client").open()
    Part("writer").open(owner).work()
    owner._on_exit()
    assert "the program ended with an open client: 1 of writer are not done" in caplog.text
    await owner.close()
    with caplog.at_level(logging.INFO):
        caplog.clear()
        owner._on_exit()
    assert not caplog.text


async def test_a_forked_child_is_refused_and_the_parent_continues() -> None:
    owner = Part("client").open()
    part = Part("writer").open(owner)
    child = os.fork()
    if not child:
        code = 1
        try:
            part.work()
        except ForkedError as error:
            code = 0 if "connect only in the child" in str(error) else 2
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    part.work()
    await owner.close()
    assert part.pending == 0

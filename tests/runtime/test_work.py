"""Pools for blocking work: bounds, abandonment, time-outs, and the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import InvalidArgumentError, StorageNotRespondingError
from penstock.runtime import work as work_module
from penstock.runtime.work import PoolSettings, ThreadedWork


class Hanging:
    """Functions that hang until they are let go."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.begun_count = 0

    def call(self) -> str:
        self.begun_count += 1
        assert self.may_go_on.wait(30)
        return "late"


@pytest.fixture
async def work() -> AsyncIterator[ThreadedWork]:
    made = ThreadedWork(2)
    yield made
    await made.close()


@pytest.fixture
def hanging() -> Hanging:
    return Hanging()


async def until_begun(hanging: Hanging, count: int) -> None:
    async with asyncio.timeout(60):
        while hanging.begun_count < count:  # noqa: ASYNC110  # the threads know no events of the loop
            await asyncio.sleep(0.001)


async def test_results_and_errors_come_back(work: ThreadedWork) -> None:
    """Also through the general pool."""
    pool = work.pool("p", PoolSettings())
    assert await pool.run(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await pool.run(int, "x")
    assert await work.run(int, "8") == 8


async def test_the_loop_gets_progress_of_a_function_in_order_and_before_its_end(work: ThreadedWork) -> None:
    pool = work.pool("p", PoolSettings(thread_count_max=1))
    heard: list[object] = []

    def count() -> str:
        for number in range(100):
            pool.tell(heard.append, number)
        return "end"

    running = pool.run(count)
    running.add_done_callback(lambda done: heard.append(done.result()))
    await running
    assert heard == [*range(100), "end"]


async def test_the_caller_gets_the_end_of_a_function_in_the_turn_in_which_the_loop_gets_it(
    work: ThreadedWork,
) -> None:
    """Before whatever that turn schedules; also of an error. Of one that is refused it hears at once, and once."""
    pool = work.pool("p", PoolSettings(thread_count_max=1, waiting_count_max=1))
    heard: list[object] = []
    ended = asyncio.Event()

    def note(result: str | None, error: BaseException | None) -> None:
        heard.append(result if error is None else type(error))
        asyncio.get_running_loop().call_soon(heard.append, "a turn later")
        ended.set()

    def fail() -> str:
        raise ZeroDivisionError

    for function in (lambda: "end", fail):
        ended.clear()
        pool.begin(function, note)
        await ended.wait()
        await asyncio.sleep(0)
    assert heard == ["end", "a turn later", ZeroDivisionError, "a turn later"]
    hanging = Hanging()
    pool.begin(hanging.call, note)
    waits = pool.run(int, "7")
    pool.begin(lambda: "refused", note)
    assert heard[4:] == [StorageNotRespondingError]
    hanging.may_go_on.set()
    assert await waits == 7
    await asyncio.sleep(0)
    assert [one for one in heard[4:] if one != "a turn later"] == [StorageNotRespondingError, "late"]


async def test_no_more_functions_run_than_there_are_threads(work: ThreadedWork, hanging: Hanging) -> None:
    """The others wait, and run in order."""
    pool = work.pool("p", PoolSettings(thread_count_max=2))
    jobs = [pool.run(hanging.call) for _ in range(5)]
    await until_begun(hanging, 2)
    await asyncio.sleep(0.01)
    assert hanging.begun_count == 2
    hanging.may_go_on.set()
    assert await asyncio.gather(*jobs) == ["late"] * 5


async def test_pools_do_not_wait_for_each_other(work: ThreadedWork, hanging: Hanging) -> None:
    """One is full and hangs, the other answers."""
    pools = [work.pool(name, PoolSettings(thread_count_max=1)) for name in "ab"]
    stuck = pools[0].run(hanging.call)
    assert await pools[1].run(int, "7") == 7
    hanging.may_go_on.set()
    await stuck


async def test_hung_threads_are_replaced_up_to_a_number_and_then_work_is_refused(
    work: ThreadedWork, hanging: Hanging
) -> None:
    """And taken again as soon as one of them answers after all."""
    pool = work.pool("p", PoolSettings(thread_count_max=2, hung_count_max=3, timeout_s=0.25))
    for hung_count in range(1, 6):
        with pytest.raises(StorageNotRespondingError, match=r"did not answer within 0.25 s; the call may still take"):
            await pool.run(hanging.call)
        # A thread counts as hung when it was given the call, which it may not have begun yet.
        await until_begun(hanging, hung_count)
        assert pool.hung_count == hanging.begun_count == hung_count
    with pytest.raises(StorageNotRespondingError, match="5 of its calls hang already; nothing was done"):
        await pool.run(hanging.call)
    assert hanging.begun_count == 5
    hanging.may_go_on.set()
    await pool.drained(with_abandoned=True)
    assert pool.hung_count == 0
    assert await pool.run(int, "7") == 7


async def test_waiting_work_is_refused_once_all_threads_hang(work: ThreadedWork, hanging: Hanging) -> None:
    """It need not wait for its own time-out, and never runs."""
    pool = work.pool("p", PoolSettings(thread_count_max=1, hung_count_max=0))
    stuck, waiting = pool.run(hanging.call), pool.run(hanging.call)
    await until_begun(hanging, 1)
    stuck.cancel()
    with pytest.raises(StorageNotRespondingError, match="nothing was done"):
        await waiting
    hanging.may_go_on.set()
    await pool.drained(with_abandoned=True)
    assert hanging.begun_count == 1


async def test_work_that_no_thread_can_be_started_for_is_refused_and_costs_no_slot(
    work: ThreadedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the system gives threads again the pool works as before."""
    pool = work.pool("p", PoolSettings(thread_count_max=1))
    ends: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(StorageNotRespondingError, match=r"can't start new thread\); nothing was done"):
                await asyncio.wait_for(pool.run(int, "7", on_end=lambda: ends.append("end")), 60)
    assert ends == ["end"] * 3
    assert await asyncio.wait_for(pool.run(int, "7"), 60) == 7
    await asyncio.wait_for(pool.drained(with_abandoned=True), 60)


async def test_more_than_may_wait_is_refused(work: ThreadedWork, hanging: Hanging) -> None:
    """The queue is bounded, too."""
    pool = work.pool("p", PoolSettings(thread_count_max=1, waiting_count_max=1))
    jobs = [pool.run(hanging.call) for _ in range(2)]
    with pytest.raises(StorageNotRespondingError, match="1 calls are queued"):
        await pool.run(hanging.call)
    hanging.may_go_on.set()
    await asyncio.gather(*jobs)


async def test_abandoned_work_gives_its_result_away_and_tells_its_end(work: ThreadedWork, hanging: Hanging) -> None:
    """What it uses must stay until then. Cancelled or late makes no difference."""
    pool = work.pool("p", PoolSettings(thread_count_max=2))
    seen: list[str] = []
    job = pool.run(hanging.call, on_end=lambda: seen.append("end"), discard=seen.append)
    await until_begun(hanging, 1)
    job.cancel()
    await asyncio.sleep(0.01)
    assert not seen
    hanging.may_go_on.set()
    await pool.drained(with_abandoned=True)
    assert seen == ["late", "end"]


async def test_cancelled_work_that_waits_never_runs(work: ThreadedWork, hanging: Hanging) -> None:
    """Its end is reported exactly once anyway."""
    pool = work.pool("p", PoolSettings(thread_count_max=1))
    seen: list[str] = []
    first = pool.run(hanging.call)
    second = pool.run(hanging.call, on_end=lambda: seen.append("end"))
    second.cancel()
    await asyncio.sleep(0)
    assert seen == ["end"]
    hanging.may_go_on.set()
    await first
    assert hanging.begun_count == 1
    assert seen == ["end"]


async def test_close_waits_for_work_but_not_for_abandoned_work(work: ThreadedWork, hanging: Hanging) -> None:
    """Nothing more is accepted."""
    healthy, hung = work.pool("healthy", PoolSettings()), work.pool("hung", PoolSettings())
    abandoned = hung.run(hanging.call)
    await until_begun(hanging, 1)
    abandoned.cancel()
    done = healthy.run(int, "7")
    await work.close()
    assert done.result() == 7
    assert hanging.begun_count == 1
    with pytest.raises(RuntimeError, match="closed"):
        healthy.run(int)
    hanging.may_go_on.set()


async def test_close_abandons_work_that_does_not_end(
    work: ThreadedWork, hanging: Hanging, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process must be able to end."""
    monkeypatch.setattr(work_module, "CLOSE_TIMEOUT_S", 0.02)
    stuck = work.pool("stuck pool", PoolSettings()).run(hanging.call)
    await work.close()
    assert "abandoned: 'stuck pool'" in caplog.text
    assert not stuck.done()
    hanging.may_go_on.set()
    await stuck


def test_interpreter_ends_while_work_hangs() -> None:
    """The threads of an executor would be joined at exit, without end."""
    program = (
        "import asyncio, threading\n"
        "from penstock.runtime.work import PoolSettings, ThreadedWork\n"
        "async def main():\n"
        "    pool = ThreadedWork().pool('hung', PoolSettings(timeout_s=0.05))\n"
        "    try: await pool.run(threading.Event().wait)\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "StorageNotRespondingError\n"


@pytest.mark.parametrize(
    "wrong", [{"thread_count_max": 0}, {"waiting_count_max": 0}, {"hung_count_max": -1}, {"timeout_s": -1.0}]
)
def test_bounds_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        PoolSettings(**wrong)

"""The loop alone: virtual time, ordered and random scheduling, limits, and the refusal of everything real."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock_simulation.simulated.errors import DeadlockError, RealWorldError, SimulationLimitError
from penstock_simulation.simulated.loop import TIME_S_FIRST, LoopSettings, SimulatedLoop
from penstock_simulation.simulated.simulation import Simulation, SimulationSettings


def run(scenario, seed=1, **loop_settings):
    with Simulation(seed, SimulationSettings(loop=LoopSettings(**loop_settings))) as simulation:
        return simulation.run(scenario)


def test_a_long_sleep_takes_no_real_time() -> None:
    async def scenario():
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    started_s = time.monotonic()
    assert run(scenario) == pytest.approx(TIME_S_FIRST + 86_400, abs=0.001)
    assert time.monotonic() - started_s < 5


def test_callbacks_of_one_process_keep_the_order_of_call_soon() -> None:
    async def scenario():
        loop = asyncio.get_running_loop()
        seen = []
        for number in range(100):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(0.001)
        return seen

    for seed in range(5):
        assert run(scenario, seed) == list(range(100))


def test_tasks_of_one_process_start_in_the_order_of_their_making() -> None:
    async def scenario():
        seen = []

        async def work(number) -> None:
            seen.append(number)
            await asyncio.sleep(0)
            seen.append(100 + number)

        await asyncio.gather(*map(work, range(5)))
        return seen

    for seed in range(5):
        assert run(scenario, seed) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]


def test_timers_of_one_instant_come_in_a_drawn_order() -> None:
    async def scenario():
        loop = asyncio.get_running_loop()
        seen = []
        when_s = loop.time() + 1
        for number in range(6):
            loop.call_at(when_s, seen.append, number)
        await asyncio.sleep(2)
        return tuple(seen)

    orders = {run(scenario, seed) for seed in range(20)}
    assert len(orders) > 10
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2, 3, 4, 5)}
    assert run(scenario, 3) == run(scenario, 3)


def test_timers_of_different_instants_come_in_their_order() -> None:
    async def scenario():
        loop = asyncio.get_running_loop()
        seen = []
        for delay_ms in (30, 10, 20):
            loop.call_later(delay_ms / 1000, seen.append, delay_ms)
        await asyncio.sleep(1)
        return seen

    assert run(scenario) == [10, 20, 30]


def test_cancelled_timers_do_not_fire_and_are_swept_out() -> None:
    async def scenario():
        loop = asyncio.get_running_loop()
        seen = []
        for _ in range(5000):
            loop.call_later(3600, seen.append, 1).cancel()
            await asyncio.sleep(0.001)
        assert len(loop._events) < 2000  # type: ignore[attr-defined]
        await asyncio.sleep(7200)
        return seen

    assert run(scenario) == []


def test_a_loop_of_sleep_zero_comes_to_its_deadline() -> None:
    async def scenario():
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 0.001
        count = 0
        while loop.time() < deadline_s:
            await asyncio.sleep(0)
            count += 1
        return count

    assert 900 <= run(scenario) <= 1100


def test_hosts_take_turns_in_a_drawn_order() -> None:
    def order(seed):
        seen = []

        async def main(host) -> None:
            seen.append(host.name)

        with Simulation(seed) as simulation:
            for name in "abcdef":
                simulation.host(name, main)
            simulation.run(lambda: asyncio.sleep(1))
        return "".join(seen)

    assert len({order(seed) for seed in range(20)}) > 10
    assert order(7) == order(7)


def test_sets_of_tasks_and_futures_iterate_in_a_repeatable_order() -> None:
    async def scenario():
        async def nothing() -> None:
            pass

        tasks = [asyncio.create_task(nothing()) for _ in range(50)]
        futures = [asyncio.get_running_loop().create_future() for _ in range(50)]
        places = {item: place for place, item in enumerate(tasks + futures)}
        await asyncio.sleep(0)
        return [places[task] for task in set(tasks)], [places[future] for future in set(futures)]

    assert run(scenario) == run(scenario)


def test_asyncio_tools_work() -> None:
    async def scenario():
        event, queue, lock = asyncio.Event(), asyncio.Queue(2), asyncio.Lock()

        async def producer() -> None:
            for number in range(5):
                await queue.put(number)
            event.set()

        async def consumer():
            return [await queue.get() for _ in range(5)]

        async with asyncio.TaskGroup() as group:
            group.create_task(producer())
            consumed = group.create_task(consumer())
        await event.wait()
        async with lock:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.get_running_loop().create_future()
        done, pending = await asyncio.wait(
            [asyncio.create_task(asyncio.sleep(delay_s)) for delay_s in (1, 3)], timeout=2
        )
        assert (len(done), len(pending)) == (1, 1)
        return consumed.result()

    assert run(scenario) == [0, 1, 2, 3, 4]


def test_context_variables_follow_tasks_and_callbacks() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def scenario():
        variable.set(7)
        seen = []
        asyncio.get_running_loop().call_later(1, lambda: seen.append(variable.get()))
        variable.set(8)
        await asyncio.sleep(2)
        return seen

    assert run(scenario) == [7]


def test_a_deadlock_is_an_error_that_names_the_tasks() -> None:
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        await asyncio.create_task(stuck(), name="the stuck one")

    with pytest.raises(DeadlockError, match=r"the stuck one at .*stuck line"):
        run(scenario)


def test_the_limit_of_virtual_time_is_an_error_that_names_the_tasks() -> None:
    async def scenario() -> None:
        for _ in range(1000):
            await asyncio.sleep(10)

    with pytest.raises(SimulationLimitError, match=r"100 virtual seconds .*\n.*scenario"):
        run(scenario, time_s_max=100)


def test_the_limit_of_turns_is_an_error() -> None:
    async def scenario() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    with pytest.raises(SimulationLimitError, match="500 turns"):
        run(scenario, turn_count_max=500)


async def use_executor(loop) -> None:
    await loop.run_in_executor(None, time.time)


async def use_pool(loop) -> None:
    with ThreadPoolExecutor(1) as pool:
        await loop.run_in_executor(pool, time.time)


async def use_thread(loop) -> None:
    await asyncio.to_thread(time.time)


async def use_names(loop) -> None:
    await loop.getaddrinfo("localhost", 80)


async def use_descriptor(loop) -> None:
    loop.add_reader(0, print)


async def use_socket(loop) -> None:
    with socket.socket() as real:
        await loop.sock_connect(real, ("127.0.0.1", 1))


async def use_given_socket(loop) -> None:
    with socket.socket() as real:
        await loop.create_server(asyncio.Protocol, sock=real)


async def use_tls(loop) -> None:
    await loop.create_connection(asyncio.Protocol, "driver", 1, ssl=True)


async def use_datagrams(loop) -> None:
    await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))


async def use_subprocess(loop) -> None:
    await asyncio.create_subprocess_exec("true")


async def use_signal(loop) -> None:
    loop.add_signal_handler(15, print)


async def use_unix_socket(loop) -> None:
    await loop.create_unix_server(asyncio.Protocol, "/nowhere")


@pytest.mark.parametrize(
    "use",
    [
        use_executor, use_pool, use_thread, use_names, use_descriptor, use_socket, use_given_socket, use_tls,
        use_datagrams, use_subprocess, use_signal,
    ],
)  # fmt: skip
def test_the_real_world_is_refused(use) -> None:
    with pytest.raises(RealWorldError, match="which the simulation does not have"):
        run(lambda: use(asyncio.get_running_loop()))


def test_unix_sockets_do_not_exist() -> None:
    with pytest.raises(NotImplementedError):
        run(lambda: use_unix_socket(asyncio.get_running_loop()))


def test_a_call_from_another_thread_is_refused() -> None:
    caught = []

    def meddle(loop) -> None:
        try:
            loop.call_soon_threadsafe(print)
        except RealWorldError as error:
            caught.append(error)

    async def scenario() -> None:
        thread = threading.Thread(target=meddle, args=(asyncio.get_running_loop(),))
        thread.start()
        thread.join()

    run(scenario)
    assert len(caught) == 1


def test_an_error_of_a_callback_is_reported_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(1) as simulation:

        async def scenario() -> None:
            asyncio.get_running_loop().call_soon(int, "x")
            await asyncio.sleep(1)

        simulation.run(scenario)
        assert [type(context["exception"]) for context in simulation.loop.unhandled] == [ValueError]
    assert "Exception in callback" in caplog.text


def test_the_garbage_collector_is_held_during_the_run_and_given_back() -> None:
    assert gc.isenabled()

    async def scenario():
        return gc.isenabled()

    assert run(scenario) is False
    assert gc.isenabled()


def test_an_abandoned_pending_task_lives_on() -> None:
    """Nothing but the loop refers to it; asyncio alone would let the garbage collector end it, whenever."""

    async def forgotten(seen) -> None:
        await asyncio.sleep(10)
        seen.append("done")

    async def scenario():
        seen = []
        asyncio.get_running_loop().create_task(forgotten(seen))
        gc.collect()
        await asyncio.sleep(20)
        return seen

    assert run(scenario) == ["done"]


def test_a_simulation_that_came_to_its_limit_closes_in_order() -> None:
    simulation = Simulation(1, SimulationSettings(loop=LoopSettings(turn_count_max=100)))
    seen = []

    async def main(host) -> None:
        try:
            for _ in range(1000):
                await asyncio.sleep(0)
        finally:
            # Neither has an effect, for the process is dead; both would be complaints of asyncio otherwise.
            asyncio.get_running_loop().create_task(main(host))
            await asyncio.sleep(1)
            seen.append("after")

    simulation.host("machine", main)
    with pytest.raises(SimulationLimitError):
        simulation.run(lambda: asyncio.sleep(1))
    simulation.close()
    simulation.close()
    assert seen == []
    assert simulation.loop.unhandled == []


def test_clean_up_that_waits_ends_with_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two coroutines, one awaits the other, wait again in their clean-up code. Nothing is reported of either."""
    reported: list[object] = []
    ended: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            try:
                await asyncio.sleep(1)
            finally:
                try:
                    await asyncio.sleep(2)
                finally:
                    ended.append(name)

    async def outer() -> None:
        try:
            await wait("inner")
        except BaseException:
            await wait("outer")
            raise

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        process = loop.start_process("host", 1)
        loop.spawn(process, outer(), "outer")
        await asyncio.sleep(1)

    run(scenario)
    gc.collect()
    assert reported == []
    assert ended == ["inner", "outer"]


def test_generators_are_finalised_by_their_own_process() -> None:
    closed_in = []

    async def numbers() -> AsyncIterator[Any]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            closed_in.append(asyncio.get_running_loop().current.name)  # type: ignore[attr-defined]

    async def main(host) -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(5)

    with Simulation(1) as simulation:
        simulation.host("machine", main)
        simulation.run(lambda: asyncio.sleep(3))
    assert closed_in == ["machine"]


def test_generators_of_a_dead_process_are_not_finalised() -> None:
    closed = []

    async def numbers() -> AsyncIterator[Any]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("closed")

    async def main(host) -> None:
        generator = numbers()
        await anext(generator)
        await asyncio.sleep(5)

    with Simulation(1) as simulation:
        host = simulation.host("machine", main)

        async def scenario() -> None:
            await asyncio.sleep(1)
            host.crash()
            gc.collect()
            await asyncio.sleep(3)
            assert closed == []

        simulation.run(scenario)

"""How long operations from outside are held. Virtual time. SS-n: segment store specification, scenario n."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from penstock.segmentstore.container.throttle import Load, Throttle, delay_s
from penstock.segmentstore.settings import CacheSettings, ThrottleSettings
from penstock.testing.simulation.simulation import Simulation

SETTINGS = ThrottleSettings()
CACHE = CacheSettings()


def in_virtual_time(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    with Simulation(1) as simulation:
        simulation.run(scenario)


class Source:
    """A load that a test changes."""

    def __init__(self, utilisation: float) -> None:
        self.utilisation = utilisation
        self.is_exempt = False
        self.throttle = Throttle(SETTINGS, CACHE, lambda: Load(self.utilisation), lambda: self.is_exempt)

    async def waited_s(self) -> float:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        await self.throttle.wait()
        return loop.time() - begin_s


@pytest.mark.parametrize(
    ("load", "expected_s"),
    [
        (Load(), 0.0),
        (Load(cache_utilisation=0.80), 0.0),
        (Load(cache_utilisation=0.85), 12.5),
        (Load(cache_utilisation=0.90), 25.0),
        (Load(cache_utilisation=1.10), 25.0),
        (Load(outstanding_bytes=100, outstanding_bytes_max=100, log_s=6.0), 0.0),
        (Load(outstanding_bytes=100, outstanding_bytes_max=100, log_s=6.1), 25.0),
        (Load(outstanding_bytes=10, outstanding_bytes_max=100, log_s=9.0), 0.0),
        (Load(outstanding_bytes=55, outstanding_bytes_max=100, log_s=9.0), 12.5),
        (Load(backlog_operations=950_000), 0.0),
        (Load(backlog_operations=975_000), 12.5),
        (Load(backlog_operations=2_000_000), 25.0),
        (Load(backlog_bytes=CACHE.bytes_max * 57 // 100), 0.0),
        (Load(backlog_bytes=CACHE.bytes_max * 585 // 1000), 12.5),
        (Load(backlog_bytes=1 << 60), 25.0),
        (Load(cache_utilisation=0.85, backlog_operations=960_000), 12.5),
    ],
)
def test_delays_grow_linearly_and_the_longest_counts(load: Load, expected_s: float) -> None:
    """SS-32: half of the maximum at 85 % of the cache; delays do not add up."""
    assert delay_s(load, SETTINGS, CACHE) == pytest.approx(expected_s)


def test_a_backlog_of_bytes_holds_when_it_has_a_limit() -> None:
    settings = ThrottleSettings(backlog_bytes_max=1000)
    assert delay_s(Load(backlog_bytes=975), settings, CACHE) == pytest.approx(12.5)


def test_nothing_is_held_without_need() -> None:
    async def scenario() -> None:
        assert await Source(0.8).waited_s() == 0

    in_virtual_time(scenario)


def test_a_delay_that_nothing_interrupts_is_taken_once() -> None:
    async def scenario() -> None:
        assert await Source(0.85).waited_s() == pytest.approx(12.5)

    in_virtual_time(scenario)


def test_a_full_cache_holds_until_it_is_not_full() -> None:
    """SS-33: at the maximum the delay is repeated; relief alone ends it, whenever that comes."""

    async def scenario() -> None:
        source = Source(0.95)
        waiting = asyncio.get_running_loop().create_task(source.waited_s())
        await asyncio.sleep(100)
        assert not waiting.done()
        assert source.throttle.waiting_count == 1
        source.utilisation = 0.7
        source.throttle.notify()
        assert await waiting == pytest.approx(100)
        assert source.throttle.waiting_count == 0

    in_virtual_time(scenario)


def test_interruptions_at_the_maximum_do_not_let_anything_through() -> None:
    """The rest of a delay runs out under many interruptions; what is full is full all the same."""

    async def scenario() -> None:
        source = Source(0.95)
        waiting = asyncio.get_running_loop().create_task(source.waited_s())
        for _ in range(600):
            await asyncio.sleep(0.1)
            source.throttle.notify()
        assert not waiting.done()
        source.throttle.close()
        await waiting

    in_virtual_time(scenario)


def test_interruptions_never_prolong_a_delay() -> None:
    """SS-34: interrupted 100 times per second under a load that grows, it takes the first delay and no longer."""

    async def scenario() -> None:
        source = Source(0.82)
        waiting = asyncio.get_running_loop().create_task(source.waited_s())
        for _ in range(1000):
            await asyncio.sleep(0.01)
            source.utilisation = min(0.89, source.utilisation + 0.001)
            source.throttle.notify()
        assert waiting.done()
        assert await waiting == pytest.approx(5.0, abs=0.02)

    in_virtual_time(scenario)


def test_an_interruption_shortens_a_delay_when_there_is_relief() -> None:
    async def scenario() -> None:
        source = Source(0.88)
        waiting = asyncio.get_running_loop().create_task(source.waited_s())
        await asyncio.sleep(1)
        source.utilisation = 0.804
        source.throttle.notify()
        assert await waiting == pytest.approx(2.0)

    in_virtual_time(scenario)


def test_an_exempt_operation_breaks_a_delay() -> None:
    """R1.30, SS-32: what relieves pressure is not held, nor what it waits behind."""

    async def scenario() -> None:
        source = Source(0.95)
        waiting = asyncio.get_running_loop().create_task(source.waited_s())
        await asyncio.sleep(3)
        source.is_exempt = True
        source.throttle.notify()
        assert await waiting == pytest.approx(3.0)
        assert await source.waited_s() == 0

    in_virtual_time(scenario)


def test_closing_ends_every_delay_at_once() -> None:
    """SS-35: also those that would begin later."""

    async def scenario() -> None:
        source = Source(0.95)
        waiting = [asyncio.get_running_loop().create_task(source.waited_s()) for _ in range(3)]
        await asyncio.sleep(1)
        source.throttle.close()
        assert await asyncio.gather(*waiting) == pytest.approx([1.0] * 3)
        assert await source.waited_s() == 0

    in_virtual_time(scenario)


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        source = Source(0.85)
        waiting = asyncio.get_running_loop().create_task(source.waited_s())
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert source.throttle.waiting_count == 0

    in_virtual_time(scenario)


def test_the_shortest_delays_pass_on_the_loop_of_the_server() -> None:
    """Under a millisecond uvloop gives a handle that is no timer; nothing may rely on that."""
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        utilisation = 0.80 + 1e-6
        assert 0 < Source(utilisation).throttle.delay_s() < 0.0005
        await Source(utilisation).waited_s()

    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(scenario())

"""What is let in, in bytes, and in which order. Virtual time. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from penstock.segmentstore.container.throttle import Bounds, Throttle, hold_bytes
from penstock.segmentstore.settings import CacheSettings, ThrottleSettings
from penstock_simulation.simulated.simulation import Simulation

SETTINGS = ThrottleSettings(backlog_percent=100, quantum_bytes=1000, round_bytes_max=10_000)
CACHE = CacheSettings(bytes_max=1000)


def in_virtual_time(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    with Simulation(1) as simulation:
        simulation.run(scenario)


def room_bytes(settings: ThrottleSettings, changes: dict[str, int], *, is_urgent: bool = False) -> int:
    bounds = Bounds.of(settings, CACHE, 1_000_000, is_urgent=is_urgent)
    return bounds.room_bytes(**{"cache_bytes": 0, "outstanding_bytes": 0, "backlog_bytes": 0, **changes})


class Source:
    """Room that a test gives; what is let in uses it up."""

    def __init__(self, room: int, urgent_room: int = 0) -> None:
        self.room = {False: room, True: urgent_room}
        self.throttle = Throttle(SETTINGS, lambda is_urgent: self.room[is_urgent])
        self.order: list[tuple[str, int]] = []

    def relieve(self, byte_count: int) -> None:
        self.room[False] += byte_count
        self.throttle.notify()


class Connection:
    """A connection with queued appends."""

    def __init__(self, source: Source, name: str, lengths: list[int], *, is_urgent: bool = False) -> None:
        self.source = source
        self.name = name
        self.lengths = lengths
        self.is_urgent = is_urgent
        source.throttle.hold(self, is_urgent=is_urgent)

    def admit(self, byte_count: int) -> bool:
        while self.lengths and byte_count > 0:
            length = self.lengths.pop(0)
            byte_count -= length
            self.source.room[self.is_urgent] -= length
            self.source.order.append((self.name, length))
        return bool(self.lengths)


@pytest.mark.parametrize(
    ("changes", "room", "urgent_room"),
    [
        ({}, 800, 900),
        ({"cache_bytes": 799}, 1, 101),
        ({"cache_bytes": 800}, 0, 100),
        ({"cache_bytes": 900}, -100, 0),
        ({"outstanding_bytes": 899_900}, 100, 900),
        ({"outstanding_bytes": 999_900}, -99_900, 100),
        ({"backlog_operations": 899_999}, 800, 900),
        ({"backlog_operations": 900_000}, 0, 900),
        ({"backlog_operations": 1_000_000}, 0, 0),
        ({"backlog_bytes": 839}, 61, 161),
        ({"backlog_bytes": 900}, 0, 100),
    ],
)
def test_the_least_room_counts(changes: dict[str, int], room: int, urgent_room: int) -> None:
    """SS-32: of cache, log and backlog; the last of each is for urgent operations."""
    assert room_bytes(SETTINGS, changes) == room
    assert room_bytes(SETTINGS, changes, is_urgent=True) == urgent_room


def test_the_reserve_of_urgent_operations_counts_only_what_they_use() -> None:
    """An excess of ordinary operations is not in it; see docs/back-pressure.md."""
    reserved = Bounds.reserved(SETTINGS, CACHE, 1_000_000)
    assert reserved == Bounds(
        cache_bytes=100, outstanding_bytes=1_000_000, backlog_bytes=100, backlog_operations=100_000
    )
    unlimited = Bounds.reserved(replace(SETTINGS, backlog_operations_max=0), CACHE, 1_000_000)
    assert unlimited.backlog_operations == 0
    small = Bounds.reserved(replace(SETTINGS, backlog_operations_max=1), CACHE, 1_000_000)
    assert small.backlog_operations == 1


def test_a_backlog_of_bytes_holds_when_it_has_a_limit() -> None:
    settings = replace(SETTINGS, backlog_bytes_max=1000)
    assert room_bytes(settings, {"backlog_bytes": 890}) == 10
    assert room_bytes(settings, {"backlog_bytes": 890}, is_urgent=True) == 110


def test_appends_are_held_before_only_essential_data_are_taken_in() -> None:
    cache = CacheSettings()
    assert cache.target_bytes < hold_bytes(ThrottleSettings(), cache) < cache.essential_bytes


def test_nothing_is_held_while_there_is_room() -> None:
    async def scenario() -> None:
        source = Source(1)
        assert not source.throttle.must_wait()
        await source.throttle.wait()
        source.room[False] = 0
        assert source.throttle.must_wait()

    in_virtual_time(scenario)


def test_a_released_waiter_takes_everything_in_line_up_to_a_quantum() -> None:
    """Two connections, many small appends each: a thousand bytes of one, then of the other, all without any time."""

    async def scenario() -> None:
        source = Source(0)
        for name in ("one", "other"):
            Connection(source, name, [100] * 25)
        begin_s = asyncio.get_running_loop().time()
        source.relieve(5000)
        for _ in range(20):
            await asyncio.sleep(0)
        names = [name for name, _ in source.order]
        assert names == ["one"] * 10 + ["other"] * 10 + ["one"] * 10 + ["other"] * 10 + ["one"] * 5 + ["other"] * 5
        assert asyncio.get_running_loop().time() - begin_s < 0.001
        assert source.throttle.waiting_count == 0

    in_virtual_time(scenario)


def test_appends_come_in_at_the_rate_of_relief_however_small_they_are() -> None:
    """0.1 s between reliefs of 10 000 bytes: 100 000 bytes take a second in appends of 10 bytes as of 10 000."""

    async def took_s(length: int) -> float:
        loop = asyncio.get_running_loop()
        source = Source(0)
        connections = [Connection(source, name, [length] * (50_000 // length)) for name in ("one", "other")]
        begin_s = loop.time()
        while any(connection.lengths for connection in connections):
            await asyncio.sleep(0.1)
            source.relieve(10_000)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return loop.time() - begin_s

    async def scenario() -> None:
        assert await took_s(10) == pytest.approx(1.0, abs=0.15)
        assert await took_s(10_000) == pytest.approx(1.0, abs=0.15)

    in_virtual_time(scenario)


def test_an_append_longer_than_the_room_is_admitted_alone() -> None:
    """Otherwise it would wait without end. Those after it wait until the excess is relieved."""

    async def scenario() -> None:
        source = Source(0)
        Connection(source, "long", [5000])
        Connection(source, "behind", [10])
        source.relieve(1)
        await asyncio.sleep(0.01)
        assert source.order == [("long", 5000)]
        source.relieve(5000)
        await asyncio.sleep(0.01)
        assert source.order[1:] == [("behind", 10)]

    in_virtual_time(scenario)


def test_urgent_operations_pass_those_that_are_held() -> None:
    async def scenario() -> None:
        source = Source(0, urgent_room=10)
        Connection(source, "ordinary", [10])
        assert not source.throttle.must_wait(is_urgent=True)
        source.room[True] = 0
        Connection(source, "urgent", [10], is_urgent=True)
        source.room[True] = 10
        source.throttle.notify()
        await asyncio.sleep(0.01)
        assert source.order == [("urgent", 10)]

    in_virtual_time(scenario)


def test_a_call_waits_in_line_until_there_is_room() -> None:
    """SS-33: relief alone ends it, whenever that comes."""

    async def scenario() -> None:
        source = Source(0)
        waiting = asyncio.get_running_loop().create_task(source.throttle.wait())
        for _ in range(100):
            await asyncio.sleep(1)
            source.throttle.notify()
        assert not waiting.done()
        assert source.throttle.waiting_count == 1
        source.relieve(1)
        await waiting
        assert source.throttle.waiting_count == 0

    in_virtual_time(scenario)


def test_frequent_polls_lengthen_no_wait() -> None:
    """SS-34: no wait is a delay that could be restarted. A hundred reliefs a second, each too small, and with each a
    new connection in the queue: a waiter resumes when what was queued before it is relieved, and before all of those.
    """

    async def scenario() -> None:
        source = Source(0)
        Connection(source, "before", [1000])

        async def call() -> None:
            await source.throttle.wait()
            source.order.append(("call", 0))

        begin_s = asyncio.get_running_loop().time()
        waiting = asyncio.get_running_loop().create_task(call())
        number = 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            source.relieve(10)
            Connection(source, f"later {number}", [10])
            number += 1
            assert number < 1000
        assert [name for name, _ in source.order[:2]] == ["before", "call"]
        assert asyncio.get_running_loop().time() - begin_s == pytest.approx(1.0, abs=0.05)

    in_virtual_time(scenario)


def test_calls_are_let_in_one_after_the_other_when_there_is_little_room() -> None:
    """What a call brings is known when it continues: a byte of room lets one in, not all of a hundred table updates."""

    async def scenario() -> None:
        source = Source(0)

        async def call() -> None:
            await source.throttle.wait()
            source.room[False] -= 1000
            source.order.append(("call", 1000))

        calls = [asyncio.get_running_loop().create_task(call()) for _ in range(100)]
        await asyncio.sleep(1)
        assert source.throttle.waiting_count == 100
        source.relieve(1)
        await asyncio.sleep(1)
        assert len(source.order) == 1
        source.relieve(999 + 2500)
        await asyncio.sleep(1)
        assert len(source.order) == 4
        source.relieve(500 + 96_000)
        await asyncio.gather(*calls)
        assert source.throttle.waiting_count == 0

    in_virtual_time(scenario)


def test_closing_wakes_every_waiter_at_once() -> None:
    """SS-35: also those that come later. They are refused by the container."""

    async def scenario() -> None:
        source = Source(0)
        Connection(source, "one", [10] * 1000)
        waiting = [asyncio.get_running_loop().create_task(source.throttle.wait()) for _ in range(3)]
        await asyncio.sleep(1)
        source.throttle.close()
        await asyncio.gather(*waiting)
        await asyncio.sleep(0.01)
        assert len(source.order) == 1000
        assert not source.throttle.must_wait()
        late = Connection(source, "late", [10])
        await asyncio.sleep(0.01)
        assert not late.lengths

    in_virtual_time(scenario)


def test_a_cancelled_wait_leaves_nothing_behind_and_lets_the_next_one_go() -> None:
    async def scenario() -> None:
        source = Source(0)
        waiting = asyncio.get_running_loop().create_task(source.throttle.wait())
        await asyncio.sleep(1)
        other = Connection(source, "other", [10])
        waiting.cancel()
        source.room[False] = 10
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert not other.lengths
        assert source.throttle.waiting_count == 0

    in_virtual_time(scenario)

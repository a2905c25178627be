"""CPU time that passes within a turn: the rest of a turn runs later; other processes and threads run meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.runtime.work import PoolSettings
from penstock_simulation.mutations.stalls import STALLS
from penstock_simulation.runner import run
from penstock_simulation.simulated.faults import FaultPlan, PlannedFault
from penstock_simulation.simulated.hangs import Hang
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.simulation import Simulation

CALLBACK_COUNT = 20


class Seen:
    """What the callbacks of one turn have seen: number, the loop's time, the monotonic time."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float]] = []
        self.timer_s = 0.0
        self.threads_s: list[float] = []
        self.others_s: list[float] = []

    async def work(self, host: Host) -> None:
        """One turn with many callbacks, the last of which sets a timer."""
        loop, runtime = asyncio.get_running_loop(), host.runtime

        def note(number: int) -> None:
            self.rows.append((number, loop.time(), runtime.monotonic_s()))

        def fire() -> None:
            self.timer_s = runtime.monotonic_s()

        running = runtime.work.pool("p", PoolSettings(1)).run(lambda: self.threads_s.append(runtime.monotonic_s()))
        for number in range(CALLBACK_COUNT):
            loop.call_soon(note, number)
        loop.call_soon(loop.call_later, 0.5, fire)
        await running
        await asyncio.sleep(100)

    async def tick(self, host: Host) -> None:
        """Another host, which reads its clock all the time."""
        while True:
            self.others_s.append(host.runtime.monotonic_s())
            await asyncio.sleep(0.1)


def seen_with(seed: int, stall_s: float) -> tuple[Seen, float]:
    seen = Seen()
    with Simulation(seed) as simulation:
        host = simulation.host("stalled", seen.work)
        simulation.host("other", seen.tick)
        host.stall(stall_s)
        simulation.run(lambda: asyncio.sleep(20))
        held_s = host.held_s
    return seen, held_s


@pytest.mark.parametrize("seed", range(10))
def test_the_rest_of_a_turn_runs_after_a_stall_in_order_and_by_the_loops_old_time(seed: int) -> None:
    seen, held_s = seen_with(seed, 3.0)
    assert [number for number, _, _ in seen.rows] == list(range(CALLBACK_COUNT))
    assert len({loop_s for _, loop_s, _ in seen.rows}) == 1, "the loop's time does not advance within a turn"
    began_s, ended_s = seen.rows[0][2], seen.rows[-1][2]
    assert ended_s - began_s == pytest.approx(3.0, abs=0.01), "the monotonic time does"
    assert held_s == 3.0
    # The timer was set for half a second after the turn's beginning, which is over.
    assert seen.timer_s == pytest.approx(ended_s, abs=0.01)
    assert began_s <= seen.threads_s[0] < began_s + 0.1, "its threads continue"
    assert sum(began_s < other_s < ended_s for other_s in seen.others_s) >= 28, "and so do other hosts"


def test_without_a_stall_a_turn_takes_no_time() -> None:
    seen, held_s = seen_with(0, 0.0)
    assert len({row[1:] for row in seen.rows}) == 1
    assert held_s == 0.0


def test_callbacks_that_take_time_hold_their_process_for_as_long() -> None:
    numbers: list[tuple[int, float]] = []

    def note(host: Host, number: int) -> None:
        numbers.append((number, host.runtime.monotonic_s()))

    async def main(host: Host) -> None:
        loop = asyncio.get_running_loop()
        host.set_costs(lambda: 0.0004)
        await asyncio.sleep(0)
        for number in range(100):
            loop.call_soon(note, host, number)
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        simulation.host("busy", main)
        simulation.run(lambda: asyncio.sleep(2))
    assert [number for number, _ in numbers] == list(range(100))
    assert numbers[-1][1] - numbers[0][1] == pytest.approx(99 * 0.0004, rel=0.01)


def test_a_process_that_dies_in_a_stall_runs_nothing_more() -> None:
    seen = Seen()
    with Simulation(3) as simulation:
        host = simulation.host("stalled", seen.work)
        host.stall(3.0)
        simulation.loop.at(simulation.loop.now_s + 1.0, host.crash)
        simulation.run(lambda: asyncio.sleep(10))
    assert 0 < len(seen.rows) < CALLBACK_COUNT


def test_a_hang_is_text_and_back() -> None:
    plan = FaultPlan((PlannedFault(1.5, Hang("store-1", 2.5, is_killed=True)),))
    assert str(plan) == "1.5 Hang host=store-1 duration_s=2.5 is_killed=True\n"
    assert FaultPlan.parse(str(plan)) == plan
    assert plan.end_s > 4.0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_servers_that_hang_within_turns_keep_every_promise(seed: int) -> None:
    outcome = run(seed, STALLS.of_length(20.0))
    assert outcome.violations == ()
    assert outcome.fault_counts["stall in a turn"]


def test_a_log_that_is_copied_during_short_hangs_becomes_short_in_the_end() -> None:
    """Copies of at most 300 bytes, each of which waits for a sync of a server that hangs half of the time."""
    profile = replace(STALLS, name="short stalls", plan=replace(STALLS.plan, lasts_s_max=1.8))
    assert run(882143, profile).violations == ()

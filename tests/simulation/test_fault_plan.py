"""Fault plans as data: text and back, drawing, striking, shrinking."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock_simulation.simulated.faults import (
    ClockJump,
    Crash,
    CrashAtDiskCall,
    FaultPlan,
    FaultSettings,
    HalfOpen,
    Partition,
    Pause,
    PlannedFault,
    Reset,
    SlowLink,
    shrink,
)
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.storage_faults import DiskErrors

ALL = FaultPlan(
    (
        PlannedFault(0.5, Partition("a", "b", 2.0)),
        PlannedFault(1.0, Partition("b", "a", 2.0, is_one_way=True)),
        PlannedFault(1.25, Reset("a", "b")),
        PlannedFault(1.5, SlowLink("a", "b", 0.25, 100.0, 3.0)),
        PlannedFault(2.0, Pause("a", 0.1)),
        PlannedFault(2.5, Crash("a", Death.KILL, 1.0)),
        PlannedFault(4.0, CrashAtDiskCall("b", 2, Death.POWER, 1.0)),
        PlannedFault(5.0, DiskErrors("b", 0.5, 0.25, 1.0, 2.0)),
        PlannedFault(6.0, ClockJump("a", -3000)),
        PlannedFault(7.0, HalfOpen("a", "b", is_one_way=True)),
    )
)
KINDS = tuple(dict.fromkeys(type(planned.fault).__name__ for planned in ALL.faults))


def test_a_plan_is_text_and_back() -> None:
    text = str(ALL)
    assert text.splitlines()[5] == "2.5 Crash host=a death=kill down_s=1.0"
    assert FaultPlan.parse(f"# a comment\n\n{text}") == ALL
    assert FaultPlan.parse("") == FaultPlan()


def test_a_field_with_a_default_may_be_left_out() -> None:
    assert FaultPlan.parse("1.0 Partition one=a other=b duration_s=2").faults[0].fault == Partition("a", "b", 2.0)


@pytest.mark.parametrize(
    "line",
    [
        "1.0", "x Reset one=a other=b", "1.0 Flood host=a", "1.0 Reset one=a", "1.0 Reset one=a other=b more=c",
        "1.0 Reset one", "1.0 Crash host=a death=sleep down_s=1", "1.0 Pause host=a duration_s=long",
        "1.0 Partition one=a other=b duration_s=1 is_one_way=perhaps", "1.0 ClockJump host=a by_ms=1.5",
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a planned fault"):
        FaultPlan.parse(line)


@pytest.mark.parametrize("kinds", [(), ("Flood",), ("Reset", "Flood")])
def test_unknown_kinds_are_refused(kinds: tuple[()] | tuple[str, str] | tuple[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="kinds of faults"):
        FaultSettings(kinds=kinds)


def test_drawn_plans_are_repeatable_and_use_all_kinds() -> None:
    settings = FaultSettings(duration_s=500, mean_gap_s=1, kinds=KINDS)

    def draw(seed):
        return FaultPlan.draw(random.Random(seed), servers=["a", "b"], clients=["c"], settings=settings)

    plan = draw(1)
    assert plan == draw(1)
    assert plan != draw(2)
    assert FaultPlan.parse(str(plan)) == plan
    assert 350 < len(plan.faults) < 650
    assert {type(planned.fault).__name__ for planned in plan.faults} == set(KINDS)
    assert all(0 <= planned.at_s < 500 for planned in plan.faults)
    hosts = {getattr(planned.fault, "host", "a") for planned in plan.faults}
    assert hosts == {"a", "b"}, "clients are not crashed"


def test_a_single_server_gets_no_faults_of_links() -> None:
    plan = FaultPlan.draw(random.Random(1), servers=["a"], settings=FaultSettings(duration_s=500))
    assert {type(planned.fault) for planned in plan.faults} == {Pause, Crash, CrashAtDiskCall, ClockJump}


def test_every_fault_strikes_and_ends() -> None:
    seen = []

    async def main(host) -> None:
        async def touch() -> None:
            while True:
                await asyncio.sleep(0.25)
                await host.runtime.work.run(host.runtime.disk.exists, "/x")
                await host.runtime.work.run(host.runtime.disk.list_directory, "/")

        await touch()

    with Simulation(1) as simulation:
        a, b = simulation.host("a", main), simulation.host("b", main)

        async def scenario() -> None:
            ALL.start(simulation)
            for _ in range(60):
                await asyncio.sleep(0.25)
                passable = [simulation.network.is_passable(*pair) for pair in (("a", "b"), ("b", "a"))]
                seen.append((passable, a.is_up, b.is_up, b.disk.faults.sync_error_rate))

        simulation.run(scenario)
        assert a.life == b.life == 2
        assert b.disk.faults == b.disk_faults
        assert a.wall_clock_ms() == b.wall_clock_ms() - 3000
    assert seen[-1] == ([True, True], True, True, 0.0)
    states = {name for passable, up, _, _ in seen for name in (f"passable {passable}", f"up {up}")}
    assert {"passable [False, False]", "passable [True, False]", "up False"} <= states
    assert max(rate for *_, rate in seen) == 1.0
    assert ALL.end_s == 7.0


def test_shrinking_finds_the_faults_that_matter() -> None:
    calls = []

    def fails(plan) -> bool:
        calls.append(plan)
        kinds = {type(planned.fault) for planned in plan.faults}
        return {Crash, ClockJump} <= kinds

    assert [type(planned.fault) for planned in shrink(ALL, fails).faults] == [Crash, ClockJump]
    assert len(calls) < 60


def test_shrinking_leaves_a_single_fault() -> None:
    plan = FaultPlan(ALL.faults[:1])
    assert shrink(plan, lambda candidate: True) == plan
    assert len(shrink(ALL, lambda candidate: True).faults) == 1

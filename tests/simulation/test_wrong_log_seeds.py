"""Tier 1 holds wrong files for a while: nothing is acknowledged over them, and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock_simulation.mutations.wrong_logs import WRONG_LOGS
from penstock_simulation.runner import run
from penstock_simulation.simulated.faults import FaultPlan, PlannedFault
from penstock_simulation.simulated.log_faults import WRONG_LOG_KINDS, WrongLogs
from penstock_simulation.workloads.scenario import Scenario


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_wrong_logs_lose_nothing(seed: int) -> None:
    outcome = run(seed, WRONG_LOGS)
    assert outcome.violations == ()
    assert outcome.fault_counts["WrongLogs"]


def test_the_seeds_draw_every_kind() -> None:
    drawn = Counter(
        planned.fault.kind
        for seed in range(20)
        for planned in Scenario.draw(seed, WRONG_LOGS).plan.faults
        if isinstance(planned.fault, WrongLogs)
    )
    assert drawn.keys() == set(WRONG_LOG_KINDS)


def test_a_planned_fault_is_read_back() -> None:
    plan = FaultPlan((PlannedFault(1.5, WrongLogs("store-1", "rolled-back", 2.0, 0.25, 3.0)),))
    assert FaultPlan.parse(str(plan)) == plan

"""The runner: one seed gives one trace, plans can be replaced and shrunk, and reports of failures are readable."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.model.errors import InvalidArgumentError
from penstock_simulation.__main__ import Totals, app, parse_seeds
from penstock_simulation.mutations.catalog import MUTATIONS, seeds_of
from penstock_simulation.mutations.mutation import Mutation
from penstock_simulation.runner import run, shrink_failure
from penstock_simulation.simulated.faults import FaultPlan
from penstock_simulation.trace_excerpt import TraceExcerpt
from penstock_simulation.workloads.plans import KIND_COUNT_MIN, PlanSettings
from penstock_simulation.workloads.profile import Profile
from penstock_simulation.workloads.scenario import Scenario

SHORT = Profile().of_length(10.0)
PLANTED = next(mutation for mutation in MUTATIONS if mutation.name == "acknowledge before sync")


#: Keeps answering reads after it was fenced: only a change of owners can reveal it.
ZOMBIE = next(mutation for mutation in MUTATIONS if mutation.name == "answer without a lease")
OWNER_KINDS = {"Takeover", "Reassignment", "Move"}


def failing_seed(planted: Mutation = PLANTED) -> int:
    for seed in seeds_of(planted, 20):
        with planted.apply():
            if not run(seed, planted.profile).is_ok:
                return seed
    raise AssertionError("no seed fails")


def test_one_seed_gives_one_trace_byte_for_byte() -> None:
    first, second = io.StringIO(), io.StringIO()
    one, other = run(3, SHORT, sink=first), run(3, SHORT, sink=second)
    assert first.getvalue() == second.getvalue()
    assert replace(one, elapsed_s=0.0) == replace(other, elapsed_s=0.0)


def test_a_new_process_gives_the_same_trace() -> None:
    code = (
        "from penstock_simulation.runner import run; from penstock_simulation.workloads.profile import Profile;"
        "print(run(5, Profile().of_length(10.0)).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }  # fmt: skip
    assert digests == {run(5, SHORT).digest}


def test_other_seeds_give_other_scenarios() -> None:
    assert len({str(Scenario.draw(seed)) for seed in range(20)}) == 20


def test_users_are_never_drawn_without_the_writers_of_their_events() -> None:
    profile = Profile(name="users alone", workloads=("events", "users"))
    drawn = [Scenario.draw(seed, profile).workloads for seed in range(20)]
    assert {("events",), ("events", "users", "user writers")} == set(drawn)


def test_every_plan_has_three_kinds_of_faults_and_all_kinds_occur() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(100):
        of_plan = {type(planned.fault).__name__ for planned in Scenario.draw(seed).plan.faults}
        assert len(of_plan - OWNER_KINDS) >= KIND_COUNT_MIN
        kinds.update(of_plan)
    assert set(kinds) == {*PlanSettings().kinds, *OWNER_KINDS}


def test_some_plans_swizzle_links_loop_crashes_and_sleep() -> None:
    settings = PlanSettings()
    plans = [Scenario.draw(seed).plan for seed in range(100)]

    def longest_pause(plan: FaultPlan) -> float:
        pauses = [planned for planned in plan.faults if type(planned.fault).__name__ == "Pause"]
        return max((planned.fault.lasts_s for planned in pauses), default=0.0)

    assert any(longest_pause(plan) > settings.lasts_s_max for plan in plans)
    assert any(str(plan).count("Crash") >= 6 for plan in plans)
    assert any(str(plan).count("Partition") >= 5 for plan in plans)


def test_a_run_without_faults_is_quiet() -> None:
    outcome = run(4, SHORT, plan=FaultPlan())
    assert outcome.is_ok
    assert not outcome.fault_counts
    assert outcome.counts["events"]


def test_a_failing_plan_is_shrunk_to_faults_that_still_fail() -> None:
    with PLANTED.apply():
        outcome = run(failing_seed(), PLANTED.profile)
        plan = shrink_failure(outcome, PLANTED.profile, run_count_max=30)
        assert len(plan.faults) <= len(outcome.plan.faults)
        assert not run(outcome.seed, PLANTED.profile, plan=plan).is_ok


def test_a_failure_caused_by_a_change_of_owners_is_shrunk_to_it() -> None:
    """Changes of owners are of the plan, as all faults are: they can be left out, and nothing else makes them."""
    with ZOMBIE.apply():
        outcome = run(failing_seed(ZOMBIE), ZOMBIE.profile)
        plan = shrink_failure(outcome, ZOMBIE.profile, run_count_max=30)
    assert {type(planned.fault).__name__ for planned in plan.faults} <= OWNER_KINDS
    assert 0 < len(plan.faults) < len(outcome.plan.faults)
    assert FaultPlan.parse(str(plan)) == plan


def test_a_story_ends_shortly_after_the_first_problem() -> None:
    story = TraceExcerpt()
    story.write("1.0 turn store-1 3\n2.0 history writer: #1 put\n")
    story.write("3.0 store-1: crash power\n4.0 store-1: disk write /x\n")
    story.write("5.0 problem something\n" + "6.0 history writer: #2 put\n" * 20)
    assert story.tail(100) == [
        "2.0 history writer: #1 put", "3.0 store-1: crash power", "5.0 problem something",
        *["6.0 history writer: #2 put"] * 5,
    ]  # fmt: skip


def test_replay_explains_a_failure(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    arguments = ["replay", str(failing_seed()), "--mutation", PLANTED.name, "--no-shrink", "--trace", str(trace)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    for part in ("failed:", "faults, ", "history ", "again: python -m penstock_simulation replay"):
        assert part in result.output
    assert trace.read_text().count("\n") > 1000


def test_replay_takes_a_plan_from_a_file(tmp_path: Path) -> None:
    plan = tmp_path / "plan.txt"
    plan.write_text("# nothing else\n1.0 Reset one=client-1 other=store-1\n")
    result = CliRunner().invoke(app, ["replay", "6", "--minutes", "0.1", "--plan", str(plan)])
    assert result.exit_code == 0, result.output
    assert "1 Reset" in result.output
    assert "nothing was wrong" in result.output


def test_run_prints_totals_as_text_and_as_json() -> None:
    arguments = ["run", "--seeds", "7:9", "--minutes", "0.1", "--jobs", "1"]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0, text.output
    assert "2 seeds, 0.0" in text.output
    totals = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert totals["seeds"] == 2
    assert totals["failed"] == []
    assert len(totals["faults"]) >= 3


@pytest.mark.parametrize("text", ["", "5:5", "9:3", "a:b", "1:2:3"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="write first:end"):
        parse_seeds(text)


def test_a_range_of_seeds_is_half_open() -> None:
    assert list(parse_seeds("3:5")) == [3, 4]
    assert list(parse_seeds("8")) == [8]


def test_totals_include_failed_seeds() -> None:
    with PLANTED.apply():
        outcome = run(failing_seed(), PLANTED.profile)
    totals = Totals()
    totals.add(outcome)
    assert json.loads(totals.as_json(1.0))["failed"][0]["seed"] == outcome.seed
    assert "1 failed" in totals.lines()[0]

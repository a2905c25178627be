"""``python -m penstock_simulation``: run seeds of the simulation, or replay one. See ``docs/simulation.md``."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from penstock.model.errors import InvalidArgumentError
from penstock_simulation.mutations.catalog import MUTATIONS
from penstock_simulation.mutations.mutation import Mutation
from penstock_simulation.processes.run import processes
from penstock_simulation.profiles import PROFILES
from penstock_simulation.runner import Outcome, run, shrink_failure
from penstock_simulation.simulated.faults import FaultPlan
from penstock_simulation.trace_excerpt import TraceExcerpt
from penstock_simulation.workloads.profile import EVERYTHING, Profile
from penstock_simulation.workloads.scenario import Scenario

app: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
app.command()(processes)

#: Seeds queued per worker beyond the running one, so that workers are never idle.
_AHEAD_PER_JOB = 2
_STORY_LINE_COUNT = 60


def parse_seeds(text: str) -> range:
    """Read ``first:end`` (end excluded) or a single seed. Raises `InvalidArgumentError`."""
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise InvalidArgumentError(f"seeds {text!r}: write first:end, as 0:200, or one seed")
    return seeds


class Totals:
    """Totals of many runs."""

    def __init__(self) -> None:
        self.seed_count: int = 0
        self.simulated_s: float = 0.0
        self.fault_counts: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.failed: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.seed_count += 1
        self.simulated_s += outcome.simulated_s
        self.fault_counts += outcome.fault_counts
        self.counts += outcome.counts
        if not outcome.is_ok:
            self.failed.append(outcome)

    def lines(self) -> list[str]:
        """Return the totals as text."""
        return [
            f"{self.seed_count} seeds, {self.simulated_s / 3600:.2f} simulated hours, {len(self.failed)} failed",
            f"faults: {_listed(self.fault_counts)}",
            f"done: {_listed(self.counts)}",
        ]

    def as_json(self, elapsed_s: float) -> str:
        """Return the totals as data for programs."""
        return json.dumps(
            {
                "seeds": self.seed_count,
                "simulated_hours": round(self.simulated_s / 3600, 3),
                "elapsed_s": round(elapsed_s, 1),
                "faults": dict(sorted(self.fault_counts.items())),
                "done": dict(sorted(self.counts.items())),
                "failed": [
                    {"seed": outcome.seed, "violations": outcome.violations, "plan": str(outcome.plan)}
                    for outcome in self.failed
                ],
            },
            indent=2,
        )


def run_seeds(seeds: Sequence[int], profile: Profile, job_count: int) -> Iterator[Outcome]:
    """Yield the outcomes of seeds in order, run by `job_count` processes."""
    if job_count == 1:
        for seed in seeds:
            yield run(seed, profile)
        return
    # Fresh processes: a run's numbers (and its trace) must not depend on earlier imports or runs.
    with ProcessPoolExecutor(job_count, mp_context=get_context("spawn")) as pool:
        waiting = iter(seeds)
        pending = [pool.submit(run, seed, profile) for seed in islice(waiting, job_count * (1 + _AHEAD_PER_JOB))]
        while pending:
            yield pending.pop(0).result()
            pending += [pool.submit(run, seed, profile) for seed in islice(waiting, 1)]


@app.command("run")
def run_command(
    seeds: Annotated[str, typer.Option(help="first:end, end excluded")] = "0:200",
    minutes: Annotated[float, typer.Option(help="simulated minutes of work per seed")] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="processes")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="totals as JSON on standard output")] = False,
    keep_going: Annotated[bool, typer.Option(help="continue after failures; explain only the first")] = True,
    profile_name: Annotated[str, typer.Option("--profile", help=f"one of: {', '.join(PROFILES)}")] = "everything",
) -> None:
    """Run seeds; say what was done; explain the first failure with its shrunk fault plan. Exits 1 if any failed."""
    profile = _profile(profile_name).of_length(60.0 * minutes)
    chosen = parse_seeds(seeds)
    started_s = time.monotonic()
    totals = Totals()
    for outcome in run_seeds(chosen, profile, jobs):
        totals.add(outcome)
        elapsed_s = time.monotonic() - started_s
        if sys.stderr.isatty():
            progress = f"\r{totals.seed_count}/{len(chosen)} seeds, {len(totals.failed)} failed, {elapsed_s:.0f} s "
            typer.echo(progress, nl=False, err=True)
        if not outcome.is_ok:
            typer.echo(f"seed {outcome.seed} failed: {outcome.violations[0]}", err=True)
            if not keep_going:
                break
    elapsed_s = time.monotonic() - started_s
    if as_json:
        typer.echo(totals.as_json(elapsed_s))
    else:
        for line in totals.lines():
            typer.echo(line)
        typer.echo(f"{elapsed_s:.0f} s of real time with {jobs} processes")
    if totals.failed:
        typer.echo(_explained(totals.failed[0], profile), err=True)
        raise typer.Exit(1)


@app.command()
def replay(
    seed: Annotated[int, typer.Argument()],
    plan: Annotated[Path | None, typer.Option(help="fault plan to use instead of the seed's own")] = None,
    minutes: Annotated[float, typer.Option(help="as it was run")] = 1.0,
    trace: Annotated[Path | None, typer.Option(help="write the whole trace to this file")] = None,
    shrinks: Annotated[bool, typer.Option("--shrink/--no-shrink", help="find the fewest faults")] = True,
    mutation: Annotated[str, typer.Option(help="plant a bug, by its name")] = "",
    profile_name: Annotated[str, typer.Option("--profile", help=f"one of: {', '.join(PROFILES)}")] = "everything",
) -> None:
    """Run one seed again; print its faults, its story and what was wrong. Exits 1 if something was."""
    profile = _profile(profile_name).of_length(60.0 * minutes)
    planted = _mutation(mutation) if mutation else None
    if planted is not None:
        profile = planted.profile
        with planted.apply():
            _replay(seed, profile, plan, trace, shrinks=shrinks)
    else:
        _replay(seed, profile, plan, trace, shrinks=shrinks)


def _replay(seed: int, profile: Profile, plan: Path | None, trace: Path | None, *, shrinks: bool) -> None:
    chosen = FaultPlan.parse(plan.read_text()) if plan is not None else None
    if trace is not None:
        with trace.open("w") as sink:
            outcome = run(seed, profile, plan=chosen, sink=sink)
    else:
        outcome = run(seed, profile, plan=chosen)
    typer.echo(str(Scenario.draw(seed, profile)))
    typer.echo(f"trace {outcome.digest}, {outcome.simulated_s:.1f} simulated seconds in {outcome.elapsed_s:.1f} s")
    typer.echo(f"faults: {_listed(outcome.fault_counts)}")
    typer.echo(f"done: {_listed(outcome.counts)}")
    if not outcome.is_ok:
        typer.echo(_explained(outcome, profile, shrinks=shrinks))
        raise typer.Exit(1)
    typer.echo("nothing was wrong")


def _explained(outcome: Outcome, profile: Profile, *, shrinks: bool = True) -> str:
    """Describe a failure: the violations, the smallest fault plan that reproduces them, and the story of that run."""
    plan = shrink_failure(outcome, profile) if shrinks else outcome.plan
    story = TraceExcerpt()
    shown = run(outcome.seed, profile, plan=plan, sink=story)
    if shown.is_ok:
        # The limit of shrinking was reached early; show the original failure.
        plan, story = outcome.plan, TraceExcerpt()
        shown = run(outcome.seed, profile, plan=plan, sink=story)
    return "\n".join(
        [
            "",
            f"seed {outcome.seed} failed:",
            *(f"  {violation}" for violation in shown.violations),
            f"faults, {len(plan.faults)} of {len(outcome.plan.faults)} drawn (seconds after the start of the plan):",
            *(f"  {line}" for line in str(plan).splitlines()),
            f"the last {_STORY_LINE_COUNT} things that clients and hosts did before the first problem:",
            *(f"  {line}" for line in story.tail(_STORY_LINE_COUNT)),
            f"again: python -m penstock_simulation replay {outcome.seed}{_profile_option(profile)}",
        ]
    )


def _profile_option(profile: Profile) -> str:
    """Return the command-line option for a profile; empty for the default one."""
    return "" if profile.name == EVERYTHING.name else f" --profile {profile.name!r}"


def _profile(name: str) -> Profile:
    if name not in PROFILES:
        raise InvalidArgumentError(f"there is no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def _mutation(name: str) -> Mutation:
    found = [mutation for mutation in MUTATIONS if mutation.name == name]
    if not found:
        names = ", ".join(repr(mutation.name) for mutation in MUTATIONS)
        raise InvalidArgumentError(f"there is no mutation {name!r}; there are {names}")
    return found[0]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


if __name__ == "__main__":
    app()

"""Compares two checkouts in turns (A B A B ...) on one machine: ratios of figures, with their spread.

    python bench/compare.py ../main .
    python bench/compare.py ../main . --rounds 9 --command "append --event-bytes 1000 --segments 100" --command startup

`base` and `changed` are directories of two checkouts. Each round runs each command once from `base`, then once from
`changed`: with the command of that checkout, its `.venv` if it has one, and its `src`. All numbers in the reports are
compared (of a list its median). `ratio` is changed / base in each round: its median, lowest and highest. `base_spread`
is the highest figure of `base` divided by its lowest: a ratio closer to 1 than that shows nothing. The figures under
`raw_disk` show how steady the disk itself was.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from _common import parser, report
from _wire import say

#: What is run if no command is given: throughput of appends; start, first event, and memory when idle.
COMMANDS_DEFAULT = ("append --event-bytes 100", "startup --runs 1")
#: What describes the machine, not the program.
_LEFT_OUT = ("hardware", "load_average")


def numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a report with their dotted names; of a list of numbers its median."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, (int, float)):
        yield name, float(value)
    elif isinstance(value, list):
        if value and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value):
            yield name, float(statistics.median(value))
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in _LEFT_OUT:
                yield from numbers(inner, f"{name}.{key}" if name else str(key))


def compared(base: Sequence[float], changed: Sequence[float]) -> dict[str, object]:
    """Return how the figures of two checkouts, one of each per round, relate."""
    figures: dict[str, object] = {"base": list(base), "changed": list(changed)}
    ratios = [after / before for before, after in zip(base, changed, strict=True) if before]
    if ratios:
        figures["ratio"] = {
            "median": round(statistics.median(ratios), 4),
            "lowest": round(min(ratios), 4),
            "highest": round(max(ratios), 4),
        }
    if min(base) > 0:
        figures["base_spread"] = round(max(base) / min(base), 4)
    return figures


class Checkout:
    """A directory with a version of the project. `commit`: with "+" if files differ from it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        if not (self.path / "src" / "penstock").is_dir():
            raise SystemExit(f"{self.path} is no checkout of the project: it has no src/penstock")
        python = self.path / ".venv" / "bin" / "python"
        self.python: str = str(python) if python.exists() else sys.executable
        self.commit: str = self._git("rev-parse", "HEAD") + ("+" if self._git("status", "--porcelain") else "")
        self._environment = {**os.environ, "PYTHONPATH": str(self.path / "src")}

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def check(self) -> None:
        """End with a message unless this checkout's own code is what its commands import."""
        done = self._run("-c", "import penstock; print(penstock.__file__)")
        found = Path(done.stdout.strip())
        if done.returncode or not found.is_relative_to(self.path):
            raise SystemExit(f"{self.python} does not import {self.path}/src/penstock: {done.stdout}{done.stderr}")

    def figures(self, command: Sequence[str], options: Sequence[str]) -> dict[str, float]:
        """Run a command of this checkout; return its numbers."""
        done = self._run(f"bench/{command[0]}.py", *command[1:], *options)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} of {self.path} failed with {done.returncode}:\n{done.stderr}")
        return dict(numbers(json.loads(done.stdout)))

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.path, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def compare(
    checkouts: tuple[Checkout, Checkout], command: str, arguments: argparse.Namespace
) -> dict[str, dict[str, object]]:
    """Run a command in turns; return what is compared, by the name of the figure."""
    options = ["--directory", str(Path(arguments.directory).resolve()), "--seconds", str(arguments.seconds)]
    options += ["--quick"] if arguments.quick else []
    found: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for number in range(arguments.rounds):
        for checkout, figures in zip(checkouts, found, strict=True):
            figures.append(checkout.figures(shlex.split(command), options))
            time.sleep(arguments.pause_seconds)
        say(f"{command}: round {number + 1} of {arguments.rounds}")
    names = [name for name in found[0][0] if all(name in figures for side in found for figures in side)]
    base, changed = found
    return {name: compared([each[name] for each in base], [each[name] for each in changed]) for name in names}


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("base", type=Path, help="the checkout to compare with")
    options.add_argument("changed", type=Path, help="the checkout to be judged")
    options.add_argument("--rounds", type=int, default=5, help="how often each command runs in each checkout")
    options.add_argument("--command", action="append", help="a command of bench/ with its options; may be repeated")
    options.add_argument("--pause-seconds", type=float, default=2.0, help="pause after each run, for the disk")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.pause_seconds = min(arguments.rounds, 2), 0.0
    if arguments.rounds < 1:
        raise SystemExit("--rounds must be at least 1")
    checkouts = Checkout(arguments.base), Checkout(arguments.changed)
    for checkout in checkouts:
        checkout.check()
    figures = {command: compare(checkouts, command, arguments) for command in arguments.command or COMMANDS_DEFAULT}
    report(
        "compare",
        {
            "base": {"path": str(checkouts[0].path), "commit": checkouts[0].commit},
            "changed": {"path": str(checkouts[1].path), "commit": checkouts[1].commit},
            "rounds": arguments.rounds,
            "figures": figures,
        },
    )


if __name__ == "__main__":
    main()

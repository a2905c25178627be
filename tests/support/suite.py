"""Runs the groups of tests, repeats failed tests, and prints one closing line: ``python suite.py [pytest option]...``.

Exit codes: 0: all tests passed. 1: a test failed twice, or too many failed once. 2, 3, 4 and others: pytest's own code
of an incomplete run (an error while tests were collected, an internal or a usage error, a killed process). 5: no test
was selected. See docs/simulation.md.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

PASSED, FAILED_TWICE, NO_TESTS = 0, 1, 5
#: More tests than this that pass only when they are repeated fail the run.
REPEATED_MAX = 5
#: More failures than this are not repeated: a slow machine does not explain them.
FAILURES_MAX = 50
REPEATED = "passed only when repeated: a defect to fix"
#: Of the tests that run beside those of servers: a third of the time that one of these gets on a busy core.
PARTS_NICENESS = 5
#: Options with which a run leaves out tests or needs a terminal: its failures are not repeated.
_NOT_REPEATED = ("-x", "--exitfirst", "--maxfail", "--pdb", "--trace", "--lf", "--last-failed", "--sw", "--stepwise")


@dataclass(frozen=True)
class Group:
    """Tests that run in one pytest.

    Attributes:
        name: of its reports.
        options: of pytest, before those of the user.
        is_beside: whether it runs in parallel with the groups after it; its output follows theirs.
        niceness: added to that of this process. Tests of a higher one use the time that the others leave.
    """

    name: str
    options: tuple[str, ...]
    is_beside: bool = False
    niceness: int = 0


@dataclass
class Outcome:
    """The result of one run of pytest.

    Attributes:
        status: its exit code.
        passed, failed, skipped: names of tests.
        seconds: how long the tests took.
    """

    status: int
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    seconds: float = 0.0

    @classmethod
    def read(cls, status: int, report: Path) -> Outcome:
        """Return the outcome in a JUnit file; without the file there are no tests in it."""
        outcome = cls(status)
        if not report.exists():
            return outcome
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            outcome.seconds += float(suite.get("time", "0"))
            for case in suite.iter("testcase"):
                name = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
                if case.find("failure") is not None or case.find("error") is not None:
                    outcome.failed.add(name)
                elif case.find("skipped") is not None:
                    outcome.skipped.add(name)
                else:
                    outcome.passed.add(name)
        # A test that passed, and failed when its fixtures ended, is in the file twice.
        outcome.passed -= outcome.failed
        outcome.skipped -= outcome.failed
        return outcome

    @property
    def is_complete(self) -> bool:
        """Whether every selected test ran: pytest ended by itself, without an error of its own."""
        return self.status in (PASSED, FAILED_TWICE, NO_TESTS)

    @property
    def may_be_repeated(self) -> bool:
        """Whether tests failed, and nothing else did."""
        return self.status == FAILED_TWICE and 0 < len(self.failed) <= FAILURES_MAX


def verdict(first: Sequence[Outcome], again: Sequence[Outcome | None]) -> tuple[list[str], int]:
    """Return the closing lines and the exit code. `again`: for each of `first` the result of its repetition, if any."""
    passed, failed, skipped, repeated = set[str](), set[str](), set[str](), set[str]()
    seconds = 0.0
    status = PASSED
    for one, other in zip(first, again, strict=True):
        recovered = one.failed & other.passed if other is not None and other.is_complete else set()
        repeated |= recovered
        failed |= one.failed - recovered
        passed |= one.passed
        skipped |= one.skipped
        seconds += one.seconds + (0.0 if other is None else other.seconds)
        # Tests failed, but the report names none of them: a repetition cannot show that they pass.
        is_unknown = one.status == FAILED_TWICE and not one.failed
        if not one.is_complete or is_unknown:
            status = max(status, one.status if one.status > 0 else FAILED_TWICE)
    lines = []
    is_too_much = len(repeated) > REPEATED_MAX
    if repeated:
        lines += ["", f"{REPEATED}:", *(f"  {name}" for name in sorted(repeated))]
        if is_too_much:
            lines.append(f"These are {len(repeated)}, and {REPEATED_MAX} are allowed: they count as failed.")
    if is_too_much:
        failed |= repeated
    else:
        passed |= repeated
    if failed:
        lines += ["", "failed:", *(f"  {name}" for name in sorted(failed))]
    if status:
        lines += ["", f"not all tests ran: pytest ended with {status}"]
    if failed and not status:
        status = FAILED_TWICE
    if not (passed or failed or skipped or status):
        status = NO_TESTS
    counts = (
        (len(failed), "failed"),
        (len(passed), "passed"),
        (len(skipped), "skipped"),
        (0 if is_too_much else len(repeated), "rerun"),
        (int(status not in (PASSED, NO_TESTS) and (status != FAILED_TWICE or not failed)), "error"),
    )
    parts = [f"{count} {word}" for count, word in counts if count]
    return [*lines, "", f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ".center(100, "=")], status


class Suite:
    """Runs groups in a directory of reports.

    `command`: how pytest is started; `options`: those of the user.
    """

    def __init__(self, groups: Sequence[Group], options: Sequence[str], reports: Path, command: Sequence[str]) -> None:
        self._groups = groups
        self._options = tuple(options)
        self._reports = reports
        self._command = tuple(command)
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Run everything, and return the exit code."""
        try:
            first = self._run_all()
            again = [self._repeat(*pair) for pair in zip(self._groups, first, strict=True)]
        finally:
            for process in self._running:
                process.terminate()
        lines, status = verdict(first, again)
        sys.stdout.write("\n".join([*lines, ""]))
        sys.stdout.flush()
        return status

    def _run_all(self) -> list[Outcome]:
        statuses: dict[str, int] = {}
        beside: list[tuple[Group, subprocess.Popen[bytes], Path]] = []
        for group in self._groups:
            if group.is_beside:
                log = self._reports / f"{group.name}.log"
                with log.open("wb") as file:
                    beside.append((group, self._start(group, group.options, output=file), log))
                continue
            _say(f"tests: {group.name}")
            statuses[group.name] = self._wait(self._start(group, group.options))
        for group, process, log in beside:
            statuses[group.name] = self._wait(process)
            _say(f"tests: {group.name}")
            sys.stdout.buffer.write(log.read_bytes())
            sys.stdout.flush()
        return [Outcome.read(statuses[group.name], self._report(group.name)) for group in self._groups]

    def _repeat(self, group: Group, outcome: Outcome) -> Outcome | None:
        """Repeat the failed tests, one after the other in a single process."""
        if not outcome.may_be_repeated or any(option.split("=")[0] in _NOT_REPEATED for option in self._options):
            return None
        name = f"{group.name}-repeated"
        _say(f"tests: {group.name}: {len(outcome.failed)} failed and are repeated one after the other")
        options = ("-n", "0", "--lf", "--lfnf", "none")
        status = self._wait(self._start(group, group.options, options, name=name, user=self._files_of_tests()))
        return Outcome.read(status, self._report(name))

    def _files_of_tests(self) -> tuple[str, ...]:
        """Return the user's options with the files of named tests: pytest refuses the name of a test that passed."""
        found = []
        for option in self._options:
            path = option.partition("::")[0]
            found.append(path if path != option and Path(path).exists() else option)
        return tuple(found)

    def _report(self, name: str) -> Path:
        return self._reports / f"{name}.xml"

    def _start(
        self,
        group: Group,
        options: tuple[str, ...],
        last: tuple[str, ...] = (),
        *,
        name: str = "",
        user: tuple[str, ...] | None = None,
        output: IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        own = ("-o", f"cache_dir={self._reports / group.name}", "--junitxml", str(self._report(name or group.name)))
        lower = ("nice", "-n", str(group.niceness)) if group.niceness else ()
        process = subprocess.Popen(
            [*lower, *self._command, *own, *options, *(self._options if user is None else user), *last],
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
        )
        self._running.append(process)
        return process

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        status = process.wait()
        self._running.remove(process)
        return status if status >= 0 else 128 - status


def _say(text: str) -> None:
    sys.stderr.write(f"\nrun: {text}\n")
    sys.stderr.flush()


def groups_of(options: Sequence[str]) -> list[Group]:
    """Return the groups of this project's tests.

    Tests of servers and of Spark's session wait for processes most of the time. The tests of parts, which compute, run
    beside them at a lower priority, and use that time. With a single process, a debugger, or a named directory for
    temporary files, the groups run one after the other.
    """
    parallel = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")
    text = f" {' '.join(options)} "
    is_alone = any(word in text for word in (" -n 0 ", " -n0 ", " --pdb ", " --trace ", " --basetemp"))
    is_beside, niceness = not is_alone, 0 if is_alone or shutil.which("nice") is None else PARTS_NICENESS
    return [
        Group("parts", (*parallel, "-m", "not e2e and not interop and not spark"), is_beside, niceness),
        Group("spark", ("-m", "spark"), is_beside),
        Group("servers", (*parallel, "-m", "(e2e or interop) and not spark")),
    ]


def main() -> int:
    """Run this project's tests with the options of the command line."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as reports:
        return Suite(groups_of(options), options, Path(reports), [sys.executable, "-m", "pytest", "-q"]).run()


if __name__ == "__main__":
    sys.exit(main())

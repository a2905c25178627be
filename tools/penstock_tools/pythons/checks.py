"""What is run on each interpreter, in an environment of its own, and what came out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock_tools.pythons.interpreters import Interpreter

REPOSITORY = Path(__file__).parents[3]
#: Bound for the installation of the packages, and for the tests of one interpreter.
INSTALLATION_TIMEOUT_S, TESTS_TIMEOUT_S = 1800.0, 4 * 3600.0
#: Tests that use most of the language and of the standard library in little time.
QUICK = ("tests/model", "tests/wire", "tests/rpc", "tests/runtime/test_settings_loader.py")
#: A real server is started, written to, stopped, started again and read.
SMOKE = "tests/e2e/test_standalone_process.py::test_data_survive_a_restart_and_the_stop_is_reported"
_NEEDS_NO_SERVER = "not e2e and not interop and not spark"


class State(StrEnum):
    """What is known of a version."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Result:
    """Of one version.

    Attributes:
        version: such as ``3.13``.
        state: whether its tests passed.
        detail: which interpreter it was and the last lines of pytest, or why there is none.
        duration_s: of installation and tests.
    """

    version: str
    state: State
    detail: str
    duration_s: float = 0.0


def check(interpreter: Interpreter, extra: str, paths: Sequence[str], jobs: int) -> Result:
    """Install the packages for an interpreter unless they are there, and run the tests on it.

    Args:
        interpreter: a found one. The running one uses the environment in which it runs.
        extra: of the packages that the tests need.
        paths: of tests; tests that need servers, other clients or Spark are left out.
        jobs: processes of pytest; 0: the tests run in pytest itself.
    """
    began_s = time.monotonic()
    name = f"{interpreter.release}, {interpreter.path}"
    python = Path(sys.executable)
    if interpreter.path != python:
        environment = REPOSITORY / f".venv-{interpreter.version}"
        python = environment / "bin" / "python"
        more = {"VENV": environment.name, "PYTHON": str(interpreter.path)}
        failure = _run(["./run", "install", extra], INSTALLATION_TIMEOUT_S, more)[1]
        if failure:
            return Result(interpreter.version, State.FAILED, f"{name}: {failure}", time.monotonic() - began_s)
    pytest = [
        str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs), "--hypothesis-profile=busy",
    ]  # fmt: skip
    ends = []
    for command in ([*pytest, "-m", _NEEDS_NO_SERVER, *paths], [*pytest, SMOKE]):
        printed, failure = _run(command, TESTS_TIMEOUT_S)
        if failure:
            return Result(interpreter.version, State.FAILED, f"{name}: {failure}", time.monotonic() - began_s)
        ends.append(closing_line(printed))
    return Result(interpreter.version, State.PASSED, f"{name}: {'; '.join(ends)}", time.monotonic() - began_s)


def closing_line(printed: str) -> str:
    """Return the counts in pytest's last line, such as ``5 passed, 1 skipped``, without the time."""
    lines = printed.strip().splitlines() or [""]
    return re.sub(r" in [0-9.]+s.*$", "", lines[-1].strip("= "))


def _run(command: Sequence[str], timeout_s: float, more: dict[str, str] | None = None) -> tuple[str, str]:
    """Run a command in the repository; return what it printed, and why it failed or an empty text."""
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env={**os.environ, **(more or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"{' '.join(command)} has not ended within {timeout_s:g} s"
    last = "\n".join(done.stdout.splitlines()[-30:])
    return done.stdout, f"{' '.join(command)} ended with {done.returncode}:\n{last}" if done.returncode else ""

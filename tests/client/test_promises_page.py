"""The page of the client's promises: each promise has a footnote, and each footnote names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "what-the-client-promises.md"


def faults(page: str, tests: set[str]) -> list[str]:
    """Return what is wrong with a page of promises, given the names of all tests and test modules."""
    wrong = []
    notes = dict(re.findall(r"^\[\^([\w-]+)\]: (.*)$", page, re.MULTILINE))
    promises = re.findall(r"^- (.*)$", page, re.MULTILINE)
    cited = []
    for promise in promises:
        keys = re.findall(r"\[\^([\w-]+)\]$", promise)
        cited += keys
        if not keys or keys[0] not in notes:
            wrong.append(f"no footnote: {promise}")
    for note in notes.values():
        named = re.findall(r"`(test_\w+)(?:\.py)?`", note)
        if not named and "profile" not in note:
            wrong.append(f"no test is named in: {note}")
        wrong += [f"no such test: {name}" for name in named if name not in tests]
    wrong += [f"cited {cited.count(key)} times: {key}" for key in notes if cited.count(key) != 1]
    return wrong


def test_each_promise_names_tests_that_exist() -> None:
    tests = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests.add(path.stem)
        tests |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    page = PAGE.read_text()
    assert page.count("\n- ") > 60
    assert not faults(page, tests)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("- Kept.\n", "no footnote: Kept."),
        ("- Kept.[^a]\n", "no footnote: Kept.[^a]"),
        ("- Kept.[^a]\n\n[^a]: trust.\n", "no test is named in: trust."),
        ("- Kept.[^a]\n\n[^a]: `test_gone`.\n", "no such test: test_gone"),
        ("\n[^a]: `test_here`.\n", "cited 0 times: a"),
    ],
)
def test_a_fault_of_the_page_is_found(page: str, fault: str) -> None:
    assert faults(page, {"test_here"}) == [fault]

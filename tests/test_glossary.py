"""The glossary defines each term once, in alphabetical order."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"


def faults(text: str) -> list[str]:
    """Return what is wrong with the rows of a glossary."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.*) \|$", text, re.MULTILINE)
    terms = [term.lower() for term, _ in rows]
    wrong = [f"defined {terms.count(term)} times: {term}" for term in sorted(set(terms)) if terms.count(term) > 1]
    wrong += [f"not in order: {after!r} after {before!r}" for before, after in pairwise(terms) if after < before]
    wrong += [f"no definition: {term}" for term, meaning in rows if not meaning.strip()]
    bold = re.findall(r"\*\*(.+?)\*\*", text)
    wrong += [f"in bold, but no term: {word}" for word in bold if word.lower() not in terms]
    return wrong


def test_terms_are_unique_and_sorted() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    assert text.count("\n| **") > 100
    assert not faults(text)


def test_readme_and_guides_link_the_glossary() -> None:
    for page in ("README.md", "docs/index.md", "docs/concepts.md", "docs/getting-started.md"):
        assert "glossary.md)" in (ROOT / page).read_text(encoding="utf-8"), page


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("| **Ack** | x |\n| **Ack** | y |\n", "defined 2 times: ack"),
        ("| **Log** | x |\n| **Ack** | y |\n", "not in order: 'ack' after 'log'"),
        ("| **Ack** |  |\n", "no definition: Ack"),
        ("| **Ack** | x |\n\n**Log** is", "in bold, but no term: Log"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    assert faults(text) == [fault]

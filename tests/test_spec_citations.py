"""Every citation of a specification in sources, tests, benchmarks and pages exists in docs/spec.

A citation is the name of a page of docs/spec with numbers of its sections, or the name of a rule, an invariant, a
lesson, a hazard or a scenario. docs/spec/index.md describes the forms.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "docs" / "spec"
PAGES = sorted(page.stem for page in SPEC.glob("*.md") if page.stem != "index")

_GAP = r"(?: |\n *(?:#:? ?)?)"
_ID = r"(?:R\d+(?:\.\d+)?|\d+(?:\.\d+)*(?![\w%]))"
#: Explanations in brackets may follow a number.
_ITEM = rf"(?:rules?{_GAP})?{_ID}(?:{_GAP}\([^()]*\))?"
_LIST = re.compile(
    rf"(?<![\w/.-])({'|'.join(PAGES)}){_GAP}({_ITEM}(?:(?:,{_GAP}and{_GAP}|,{_GAP}|{_GAP}and{_GAP}|{_GAP}to{_GAP}|-){_ITEM})*)"
)
#: Names that say by their form which page defines them.
_NAME = re.compile(r"(?<![\w.-])(?:(?:SS|API|K)-\d+|S-\d{3}|R\d+\.\d+)(?!\w)")
#: Shorter names, only where the text says what they are.
_SHORT = re.compile(r"(?<=[\"(])([GH]\d{1,2})(?=[):,])|\b(?:[Ii]nvariants?|[Ll]essons?|[Hh]azards?) ([GLH]\d{1,2})\b")
#: Forms that name no page.
_OLD_FORM = re.compile(
    r"\b[Ss]ections? §?\d|specification,? (?:sections?|rules?|scenarios?|\d)|\b[Ss]cenarios? \d|§ ?\d|\b[Ss]pec \d"
)
#: One of these is in each of the old forms: most files have none, and are not searched.
_OLD_WORDS = ("ection", "pecification", "cenario", "§", "pec ")

_FILES = [
    file
    for tree in ("src", "simulation", "tools", "tests", "bench", "docs")
    for file in sorted((ROOT / tree).rglob("*"))
    if file.suffix in (".py", ".md") and SPEC not in file.parents and file != Path(__file__) and "_pb2" not in file.name
] + [ROOT / "README.md"]


@functools.cache
def defined(page: str) -> set[str]:
    """Return the numbers of a page's sections, and the names that it defines in tables and lists."""
    text = (SPEC / f"{page}.md").read_text(encoding="utf-8")
    found = set(re.findall(r"^#+ (\d+(?:\.\d+)*) ", text, re.MULTILINE))
    found |= set(re.findall(r"^\| ((?:SS|S|API|K)-\d+|[GLH]\d+|R\d+(?:\.\d+)?) \|", text, re.MULTILINE))
    found |= set(re.findall(r"^- \*\*(SS-\d+)\*\*: ", text, re.MULTILINE))
    return found


@functools.cache
def names() -> set[str]:
    """Return the names that any page defines."""
    return {name for page in PAGES for name in defined(page) if not name[0].isdigit()}


def citations(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield position, page (empty: any page) and number or name of each citation in a text."""
    for found in _LIST.finditer(text) if any(page in text for page in PAGES) else ():
        for item in re.finditer(_ID, re.sub(r"\([^()]*\)", "", found[2])):
            yield found.start(), found[1], item[0]
    for found in _NAME.finditer(text):
        yield found.start(), "", found[0]
    for found in _SHORT.finditer(text):
        yield found.start(), "", found[1] or found[2]


@functools.cache
def texts() -> dict[str, str]:
    """Return the texts that may cite, by path."""
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in _FILES}


def unresolved(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of each citation in `text` that no page defines, and of each in another form."""
    for position, page, cited in citations(text):
        if cited not in (defined(page) if page else names()):
            yield position, f"{page} {cited}".strip()
    for found in _OLD_FORM.finditer(text) if any(word in text for word in _OLD_WORDS) else ():
        yield found.start(), f"{found[0]!r} names no page"


def test_every_citation_exists() -> None:
    wrong = []
    for path, text in texts().items():
        for position, cited in unresolved(text):
            wrong.append(f"{path}:{text.count(chr(10), 0, position) + 1}: {cited}")
    assert not wrong, "docs/spec has no such section or name:\n" + "\n".join(wrong)


def test_the_citations_are_found() -> None:
    sources = [text for path, text in texts().items() if path.startswith("src")]
    found = [citation for text in sources for citation in citations(text)]
    assert {*PAGES} <= {page for _, page, _ in found}
    assert len(found) > 250, len(found)


def test_each_name_is_defined_by_one_page() -> None:
    found = [name for page in PAGES for name in defined(page) if not name[0].isdigit()]
    assert len(found) == len(names())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Source: segment-store 2.99.", ["segment-store 2.99"]),
        ("Source: segment-store 2.4, 2.7 and 2.98 (frames).", ["segment-store 2.98"]),
        ("Source: segment-store 2.4 (frames); wire-protocol 1.2 to 1.77.", ["wire-protocol 1.77"]),
        ("Source:\n    controller-api 9.3 and\n    77.1.", ["controller-api 77.1"]),
        ("# Source: segment-store 1,\n# R8.99", ["segment-store R8.99", "R8.99"]),
        ('"""SS-271, S-999, API-46: each."""', ["SS-271", "S-999", "API-46"]),
        ("stops (invariant G13), and the lesson L77", ["G13", "L77"]),
        ("Source: wire protocol specification, section 1.2.", ["'specification, section' names no page"]),
        ("Source: segment-store 2.7; G7, R2.30 and SS-37, 4 MiB", []),
    ],
)
def test_a_false_citation_is_found(text: str, expected: list[str]) -> None:
    assert sorted(cited for _, cited in unresolved(text)) == sorted(expected)

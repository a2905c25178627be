"""The tables of what Spark can do with streams name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark-features.md"


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    part = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"][2:]


@pytest.mark.parametrize(("heading", "column_count"), [("Features", 5), ("The connector's scenarios", 2)])
def test_every_row_names_existing_tests_or_gives_a_reason(heading: str, column_count: int) -> None:
    """A row without a test is a promise that nothing checks."""
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE))
    found = rows(heading)
    assert len(found) > 20
    for row in found:
        assert len(row) == column_count, row
        named = re.findall(r"`(test_\w+)`", row[-1])
        assert not (missing := set(named) - there), f"{row[0]}: there is no {sorted(missing)}"
        assert named or re.match(r"(left out|none): \w", row[-1]), f"{row[0]}: name a test, or say why there is none"

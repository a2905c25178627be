"""The page of what the client promises names tests, and each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "what-the-client-promises.md"


def test_each_promise_names_a_test_that_is_there():
    there = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    promises = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    rows = [line for line in promises if not line.startswith("| Promise |")]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)(?:\.py)?`", row)
        assert named or "profile" in row, f"no test is named for: {row}"
        missing = [name for name in named if name not in there and not list((ROOT / "tests").rglob(f"{name}.py"))]
        assert not missing, f"{missing} of: {row}"

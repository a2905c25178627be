"""Print one closing line over several pytest runs: ``python summary.py DIRECTORY`` with their JUnit files.

Exits with 1 when a test failed, or when nothing ran at all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def summarise(directory: Path) -> tuple[str, bool]:
    """Return the closing line, in pytest's form, and whether all is well."""
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    duration_s = 0.0
    for report in sorted(directory.glob("*.xml")):
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            for name in counts:
                counts[name] += int(suite.get(name, "0"))
            duration_s += float(suite.get("time", "0"))
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    parts = [
        f"{count} {word}"
        for count, word in (
            (counts["failures"], "failed"),
            (passed, "passed"),
            (counts["skipped"], "skipped"),
            (counts["errors"], "errors"),
        )
        if count
    ]
    is_well = passed > 0 and not counts["failures"] and not counts["errors"]
    return f" {', '.join(parts) or 'no tests ran'} in {duration_s:.2f}s ".center(100, "="), is_well


if __name__ == "__main__":
    line, is_well = summarise(Path(sys.argv[1]))
    sys.stdout.write(f"\n{line}\n")
    raise SystemExit(not is_well)

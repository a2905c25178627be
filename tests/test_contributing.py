"""CONTRIBUTING.md names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
#: Directories that a path on the page may begin with.
TREES = ("src/", "tests/", "simulation/", "tools/", "bench/", "docs/", ".ci/")


def names_in(file: Path) -> set[str]:
    """Return the names of the functions and classes that a file defines, at any depth."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)}


def faults(text: str) -> list[str]:
    """Return what is wrong with the paths and functions that a page names."""
    wrong = []
    paths = {path for path in re.findall(r"`([\w./-]+)`", text) if path.startswith(TREES)}
    paths |= set(re.findall(r"\]\(([\w./-]+?)(?:#[\w-]+)?\)", text))
    wrong += [f"no such file: {path}" for path in sorted(paths) if not (ROOT / path).exists()]
    for path, cell in re.findall(r"^\|[^|]*\| `(src/[\w./]+\.py)` \| (.*) \|$", text, re.MULTILINE):
        if (ROOT / path).exists():
            known = names_in(ROOT / path)
            wrong += [f"{path} has no {name}" for name in re.findall(r"`(\w+)`", cell) if name not in known]
    return wrong


def test_files_and_functions_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("| `src/penstock/") > 15
    assert not faults(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see `src/penstock/gone.py`", "no such file: src/penstock/gone.py"),
        ("see [there](docs/gone.md#part)", "no such file: docs/gone.md"),
        ("| Step | `src/penstock/aio.py` | `gone` |", "src/penstock/aio.py has no gone"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    assert faults(text) == [fault]

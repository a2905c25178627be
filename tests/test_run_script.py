"""`./run`: what it shows while it installs, and that a failed installation is not taken for a complete one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Represents the Python of a virtual environment: its pip says what pip says, and ends as it is given.
PYTHON = """#!/bin/sh
case "$*" in
  *--version) exit 0 ;;
  *"pip install"*)
    echo "Collecting pyspark<4.4,>=4.3 (from penstock==0.1.0)"
    echo "  Downloading pyspark-4.3.0.tar.gz (450 MB)"
    echo "Requirement already satisfied: rich"
    echo "Installing collected packages: pyspark, rich"
    echo "ERROR: no space left" >&2
    exit {status} ;;
esac
"""


@pytest.mark.parametrize("status", [0, 3])
def test_each_package_is_shown_while_it_is_installed(tmp_path: Path, status: int) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON.format(status=status))
    python.chmod(0o755)
    ran = subprocess.run(
        ["./run", "install", "docs"],
        cwd=ROOT,
        env={**os.environ, "VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == status
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert [line for line in lines if line.startswith("run:   ")] == [
        "run:   Collecting pyspark<4.4,>=4.3",
        "run:   Downloading pyspark-4.3.0.tar.gz (450 MB)",
        "run:   Installing collected packages",
    ]
    assert "ERROR: no space left" in lines
    assert [path.name.startswith(".penstock-docs-") for path in tmp_path.glob(".penstock-*")] == [True] * (status == 0)

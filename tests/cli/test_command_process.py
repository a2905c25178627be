"""The process of a command: it spends its CPU on the command, not on the collection of garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Counts the collections of a command that imports the whole client, and how the process leaves its objects.
SCRIPT = """
import atexit, gc, sys
runs = []
gc.callbacks.append(lambda phase, info: phase == "start" and runs.append(info["generation"]))
atexit.register(lambda: print(len(runs), gc.get_freeze_count(), len(gc.get_objects())))
from penstock.__main__ import run
sys.argv = ["penstock", "stream", "create", "a", "--uri", "tcp://127.0.0.1:1", *sys.argv[1:]]
run()
"""


def test_a_command_collects_garbage_rarely_and_leaves_nothing_to_collect() -> None:
    """With Python's own thresholds there are some hundred collections, and a last one over all modules."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended  # The command's own exit code: "a" is no stream.
    collections, frozen, left = map(int, ended.stdout.split())
    assert collections < 20
    assert frozen > 20_000
    assert left < 1_000


def test_the_installed_command_runs_in_such_a_process() -> None:
    """The console script of the package and ``python -m penstock`` are the same function."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'penstock = "penstock.__main__:run"' in project

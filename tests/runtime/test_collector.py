"""What a server tells Python's garbage collector."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from penstock.runtime.collector import settle_collector
settle_collector()
runs = []
gc.callbacks.append(lambda phase, info: runs.append(info["generation"]))
before = gc.get_freeze_count()
kept = [[number] for number in range(8_000)]
assert before > 1000, before
assert not runs, runs
kept += [[number] for number in range(60_000)]
assert 4 <= len(runs) // 2 <= 16, runs
"""


def test_young_objects_are_looked_at_seldom_and_what_the_start_left_never() -> None:
    """In a process of its own: the collector is the process's. Eight thousand objects are made without a collection."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)

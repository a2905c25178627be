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
kept = [[number] for number in range(1_500)]
assert before > 1000, before
assert not runs, runs
kept += [[number] for number in range(60_000)]
assert 20 <= len(runs) // 2 <= 48, runs
"""


def test_young_objects_are_collected_rarely_and_those_of_the_start_never() -> None:
    """In a process of its own: the collector is the process's. Fifteen hundred objects bring about no collection."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)


#: A million small objects that stay, and cycles that are garbage by then: put away, each is alive and is let go later.
GROWTH = """
import gc
from penstock.runtime import collector
collector._GROWTH_MIN = 100_000
collector.settle_collector()
runs = []
gc.callbacks.append(lambda phase, info: phase == "stop" and runs.append(info["generation"]))
class Cycle:
    living = 0
    def __init__(self):
        self.me = self
        Cycle.living += 1
    def __del__(self):
        Cycle.living -= 1
cycles = [Cycle() for _ in range(1_000)]
kept = [[number] for number in range(90_000)]
assert gc.get_freeze_count() > 50_000
cycles.clear()
kept += [[number] for number in range(1_000_000)]
at_growth = runs.count(2)
assert Cycle.living == 0, Cycle.living
assert 2 <= at_growth <= 6, runs
kept.clear()
# Nothing grows any more: freed objects were frozen, and their replacements are no reason to collect at all.
for _ in range(10):
    kept = [[number] for number in range(200_000)]
assert runs.count(2) <= at_growth + 2, runs
# Cycles that are made and dropped all the time are collected while they are young, frozen or not.
most = 0
for _ in range(300_000):
    Cycle()
    most = max(most, Cycle.living)
assert most < 100_000, most
print(runs.count(2), most)
"""


def test_a_growing_process_collects_rarely_and_cycles_are_freed() -> None:
    """Full collections run each time the kept memory has doubled. They also free cycles that were frozen alive."""
    subprocess.run([sys.executable, "-c", GROWTH], check=True, timeout=120)

"""One seed, one trace, byte for byte: in one process twice, and in processes whose hash seeds differ.

Before any other result of a simulation counts, this does.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_simulation.simulated.trace import Trace
from support import simulated_workload

TESTS = Path(__file__).parents[1]


def trace_of(seed, kind, hash_seed):
    done = subprocess.run(
        [sys.executable, str(TESTS / "support" / "simulated_workload.py"), str(seed), kind],
        env={
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(str(TESTS.parent / each) for each in ("src", "simulation", "tests")),
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("kind", ["combined", "apart"])
def test_a_seed_has_one_trace_in_every_process(kind: str) -> None:
    first = trace_of(11, kind, "1")
    assert len(first.splitlines()) > 2000
    assert first == trace_of(11, kind, "4242")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_a_seed_has_one_trace_in_one_process(seed: int) -> None:
    traces = []
    for _ in range(2):
        sink = io.StringIO()
        simulated_workload.run(seed, is_combined=seed % 2 == 0, sink=sink)
        traces.append(sink.getvalue())
    assert traces[0] == traces[1]


def test_seeds_differ() -> None:
    digests = {simulated_workload.run(seed, is_combined=True, duration_s=1.0)[0] for seed in range(4)}
    assert len(digests) == 4


def test_the_digest_is_that_of_the_lines() -> None:
    sink = io.StringIO()
    trace = Trace(tail_line_count_max=3, sink=sink)
    for number in range(1000):
        trace.add(float(number), f"line {number}")
    assert trace.line_count == 1000
    assert trace.digest == hashlib.sha256(sink.getvalue().encode()).hexdigest()
    assert trace.digest == trace.digest
    assert trace.tail(2) == ["998.000000000 line 998", "999.000000000 line 999"]
    assert len(trace.tail()) == 3

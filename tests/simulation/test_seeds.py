"""Seeds of the simulation: whole clusters under faults keep every promise.

Here a few, short; the pipeline runs 60 of a minute each, and 20 000 at night: ``python -m penstock.testing run``.
"""

from __future__ import annotations

import pytest

from penstock.testing.runner import run
from penstock.testing.workloads.profile import Profile

LENGTH_S = 30.0
SEED_COUNT = 6


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_seed_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, Profile().of_length(LENGTH_S))
    assert outcome.violations == ()
    assert outcome.counts["events"] > 0
    assert len(outcome.fault_counts) >= 3

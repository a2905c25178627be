"""Seeds of the simulation: whole clusters under faults keep every promise.

Here a few, short; the pipeline runs 30 of a minute each, and 20 000 at night: ``python -m penstock_simulation run``.
"""

from __future__ import annotations

import pytest

from penstock_simulation.runner import run
from penstock_simulation.workloads.profile import EVERYTHING

LENGTH_S = 30.0
SEED_COUNT = 2


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_seed_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, EVERYTHING.of_length(LENGTH_S))
    assert outcome.violations == ()
    assert outcome.counts["events"] > 0
    assert len(outcome.fault_counts) >= 3

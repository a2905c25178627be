"""A sink that writes exactly once, whose drivers are cut off, come again, and have a second one beside them."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.sinks import SINKS
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_batches_are_there_once(seed: int) -> None:
    """Each event once, and nothing is left of attempts that did not count; no driver meets one that is ahead."""
    outcome = run(seed, SINKS)
    assert outcome.violations == ()
    for done in ("batches", "batches that came again", "batches cut short", "drivers beside drivers"):
        assert outcome.counts[done], done

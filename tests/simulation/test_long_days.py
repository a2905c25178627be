"""Days of restarts, sweeps each 24 hours, retention of six hours: what has to go goes, and records stay few."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.days import DAYS
from penstock_simulation.runner import run


def test_a_day_of_restarts_keeps_every_promise() -> None:
    outcome = run(0, DAYS.of_length(20.0))
    assert outcome.violations == ()
    assert outcome.simulated_s > 86_400
    assert outcome.counts["clean restarts"] + outcome.counts["late chunks"]
    assert outcome.counts["checks of recorded cuts"] > 30


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_days_of_restarts_keep_every_promise(seed: int) -> None:
    outcome = run(seed, DAYS)
    assert outcome.violations == ()
    assert outcome.simulated_s > 3 * 86_400
    assert outcome.counts["clean restarts"]
    assert outcome.counts["late chunks swept"]
    assert outcome.counts["checks of recorded cuts"] > 100

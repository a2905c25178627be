"""Users of the client through seeds made for them: killed, hung, failing and cancelled at any await, under load.

Nothing that was acknowledged is lost; an event comes again once for each loss of a reader that had it, and only then.
"""

from __future__ import annotations

from collections import Counter

import pytest

from penstock_simulation.mutations.users import USERS
from penstock_simulation.runner import run
from penstock_simulation.workloads.users import Fate

#: In so many parts, each with seeds of its own: one with each change, all of them in nightly runs.
PART_COUNT = 10
PARTS = [pytest.param(part, marks=[] if part == 4 else [pytest.mark.nightly]) for part in range(PART_COUNT)]
TROUBLES = (Fate.KILLED, Fate.HANGS, Fate.CANCELLED, Fate.FAILS)


@pytest.mark.parametrize("part", PARTS)
def test_a_hundred_consumers_killed_a_hundred_hung_and_a_hundred_cancelled_lose_nothing(part: int) -> None:
    """Seeds until each trouble has befallen a tenth of a hundred of them."""
    befell: Counter[str] = Counter()
    for seed in range(1000 * part, 1000 * part + 100):
        outcome = run(seed, USERS)
        assert outcome.violations == (), f"seed {seed}"
        befell += outcome.counts
        if all(befell[f"users: {fate.value}"] >= 100 // PART_COUNT for fate in TROUBLES):
            return
    pytest.fail(f"only {befell}")

"""Users of the client through seeds made for them: killed, hung, failing and cancelled at any await, under load.

Nothing that was acknowledged is lost; an event comes again once for each loss of a reader that had it, and only then.
"""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.testing.mutations.users import USERS
from penstock.testing.runner import run
from penstock.testing.workloads.users import Fate


@pytest.mark.parametrize("seed", range(6))
def test_users_lose_nothing_and_see_an_event_again_only_after_a_loss(seed: int) -> None:
    assert run(seed, USERS).violations == ()


@pytest.mark.nightly
def test_a_hundred_consumers_killed_a_hundred_hung_and_a_hundred_cancelled() -> None:
    """Seeds until each has befallen a hundred of them."""
    befell: Counter[str] = Counter()
    wanted = [f"users: {fate.value}" for fate in (Fate.KILLED, Fate.HANGS, Fate.CANCELLED, Fate.FAILS)]
    for seed in range(1000, 2000):
        outcome = run(seed, USERS)
        assert outcome.violations == (), f"seed {seed}"
        befell += outcome.counts
        if all(befell[name] >= 100 for name in wanted):
            return
    pytest.fail(f"only {befell}")

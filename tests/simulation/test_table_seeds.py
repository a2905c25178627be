"""Users of tables and of shared state through seeds made for them: cancelled at any await, with replies lost.

What the client tells them is one history, key by key; a shared state counts every update once; a watch misses nothing.
"""

from __future__ import annotations

from collections import Counter

import pytest

from penstock_simulation.mutations.tables import TABLES_AND_STATES
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 10))])
def test_tables_and_states_are_one_history_to_their_users(seed: int) -> None:
    assert run(seed, TABLES_AND_STATES).violations == ()


@pytest.mark.nightly
def test_a_hundred_changes_of_unknown_outcome() -> None:
    """Seeds until so many replies of changes of tables were lost."""
    counts: Counter[str] = Counter()
    for seed in range(1000, 2000):
        outcome = run(seed, TABLES_AND_STATES)
        assert outcome.violations == (), f"seed {seed}"
        counts += outcome.counts
        if counts["user table changes of unknown outcome"] >= 100:
            return
    pytest.fail(f"only {counts}")

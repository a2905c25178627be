"""Very many transactions that scales overtake, at several controllers that fail."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.peers import TRANSACTIONS
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 2))])
def test_transactions_that_scales_overtake_have_one_order(seed: int) -> None:
    """Many are open while the stream is scaled once a second: whole or not at all, in one order in all segments."""
    outcome = run(seed, TRANSACTIONS)
    assert outcome.violations == ()
    assert outcome.counts["transactions committed"] > 30
    assert outcome.counts["stream scales"] > 5

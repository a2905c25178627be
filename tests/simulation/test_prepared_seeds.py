"""A sink that prepares its transactions, is away for longer than any lease, and decides them by their ids."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.prepared import PREPARED
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 1, 3))])
def test_prepared_transactions_end_as_their_sink_decides(seed: int) -> None:
    """Its lease never ends it. All of its events are stored or none, also beside scales; its stream is sealed later."""
    outcome = run(seed, PREPARED)
    assert outcome.violations == ()
    for done in (
        "transactions prepared", "prepared transactions committed", "prepared transactions aborted",
        "prepared transactions decided beyond their lease", "seals refused for prepared transactions",
    ):  # fmt: skip
        assert outcome.counts[done], done

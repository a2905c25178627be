"""The lock file of a data directory is removed or replaced while a server runs: each log has one owner."""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.lost_locks import LOST_LOCKS
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_server_without_its_lock_claims_nothing_and_ends(seed: int) -> None:
    outcome = run(seed, LOST_LOCKS)
    assert outcome.violations == ()
    assert outcome.fault_counts["LockGone"]

"""Seeds of secured clusters: accounts change, keys are rotated, tokens expire, while servers die and links fail.

Clients with permission notice nothing. An account that tries more than it may gets what it may, and nothing else.
"""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.security import SECURED
from penstock_simulation.runner import run

#: What each seed must have done.
DONE = (
    "accounts changed", "rotations of keys", "calls of a guest: done", "calls of a guest: UNAUTHENTICATED",
    "calls of a guest: PERMISSION_DENIED", "requests of a guest: no refusal", "requests of a guest: a refusal",
)  # fmt: skip


@pytest.mark.parametrize("seed", [2, 3, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 40))])
def test_a_secured_cluster_permits_what_its_accounts_may_and_nothing_else(seed: int) -> None:
    outcome = run(seed, SECURED)
    assert outcome.violations == ()
    for done in DONE:
        assert outcome.counts[done], done

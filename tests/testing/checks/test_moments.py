"""Violations that leave no trace are reported as they happen, and correct behaviour is not reported."""

from __future__ import annotations

from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock_simulation.checks.moments import watched
from penstock_simulation.mutations.order import ORDER_MUTATIONS
from penstock_simulation.runner import run

PLANTED = next(mutation for mutation in ORDER_MUTATIONS if mutation.name == "index what is not durable")
SEED = 116602


def test_an_index_with_undurable_entries_is_reported() -> None:
    with PLANTED.apply():
        violations = run(SEED, PLANTED.profile).violations
    assert any("$attributes-" in violation and "are durable" in violation for violation in violations)


def test_an_index_that_waits_for_the_log_is_not() -> None:
    assert not any("are durable" in violation for violation in run(SEED, PLANTED.profile).violations)


def test_the_watch_leaves_no_traces() -> None:
    before = Attributes.flush
    with watched(lambda violation: None):
        assert Attributes.flush is not before
    assert Attributes.flush is before

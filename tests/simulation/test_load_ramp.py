"""A stream whose load comes and goes, in simulated time: splits, merges, and every event once and in order per key."""

from __future__ import annotations

import pytest

from penstock.controller.scaling import auto_scaler
from penstock_simulation.load_ramp import describe, play_load_ramp


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 10, 13))])
def test_a_stream_follows_its_load_through_crashes(seed: int) -> None:
    """Two stores and one, the controller beside them and apart; crashes of each, before the split and before the merge.

    The times are those of the policy, from the load's change, or the last crash, on.
    """
    ramp = play_load_ramp(seed)
    assert ramp.violations == [], describe(ramp)
    assert ramp.segment_counts == [1, 2, 1]
    assert ramp.crashes
    assert ramp.event_count > 500


def test_a_stream_that_does_not_follow_its_load_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What judges the run: without decisions there is neither a split nor, in its time, anything else."""
    monkeypatch.setattr(auto_scaler, "order_by_load", lambda *args, **others: None)
    ramp = play_load_ramp(12)
    assert ramp.segment_counts == [1]
    assert [violation.split(" within")[0] for violation in ramp.violations] == ["no split"]


@pytest.mark.nightly
def test_a_stream_that_only_splits_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second half of the run is judged, too."""
    decide = auto_scaler.order_by_load  # type: ignore[attr-defined]

    def never_merging(current, policy, hot, cold, **others):
        return decide(current, policy, hot, (), **others)

    monkeypatch.setattr(auto_scaler, "order_by_load", never_merging)
    ramp = play_load_ramp(12)
    assert ramp.segment_counts == [1, 2]
    assert [violation.split(" within")[0] for violation in ramp.violations] == ["no merge"]

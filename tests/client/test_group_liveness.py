"""Which readers of a group count as dead: only time in which the observer could observe counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.groups.group_liveness import Liveness

TIMEOUT_S = 30.0


def test_a_reader_without_a_sign_of_life_is_silent_after_the_timeout() -> None:
    liveness: Liveness[int] = Liveness()
    for second in range(31):
        assert liveness.silent(TIMEOUT_S) == {}
        liveness.observe({"quiet": 1, "lively": second}, float(second), TIMEOUT_S)
    assert liveness.silent(TIMEOUT_S) == {"quiet": 1}
    assert liveness.silent(TIMEOUT_S, but=("quiet",)) == {}


def test_after_an_outage_of_the_observer_others_have_the_whole_timeout() -> None:
    liveness: Liveness[int] = Liveness()
    for second in range(25):
        liveness.observe({"other": 1}, float(second), TIMEOUT_S)
    for second in range(600, 630):
        liveness.observe({"other": 1}, float(second), TIMEOUT_S)
        assert liveness.silent(TIMEOUT_S) == {}
    liveness.observe({"other": 1}, 630.0, TIMEOUT_S)
    assert liveness.silent(TIMEOUT_S) == {"other": 1}


def test_a_reader_that_left_and_came_back_starts_again() -> None:
    liveness: Liveness[int] = Liveness()
    for second in range(29):
        liveness.observe({"other": 1}, float(second), TIMEOUT_S)
    liveness.observe({}, 29.0, TIMEOUT_S)
    liveness.observe({"other": 1}, 30.0, TIMEOUT_S)
    assert liveness.silent(1.0) == {}


@given(st.lists(st.floats(0.01, 200.0), min_size=1, max_size=60))
def test_silence_never_exceeds_the_observed_time(gaps: list[float]) -> None:
    liveness: Liveness[int] = Liveness()
    now_s = observed_s = 0.0
    liveness.observe({"other": 1}, now_s, TIMEOUT_S)
    for gap_s in gaps:
        now_s += gap_s
        liveness.observe({"other": 1}, now_s, TIMEOUT_S)
        observed_s = 0.0 if gap_s > TIMEOUT_S / 2 else observed_s + gap_s
        assert liveness.silent(observed_s + 0.001) == {}

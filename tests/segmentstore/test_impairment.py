"""`Impairment`: when a segment store is impaired, over drawn histories and by examples; and failures of its own."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptionError, InvalidArgumentError, StorageError
from penstock.segmentstore.cluster.impairment import Impairment
from penstock.segmentstore.cluster.settings import MemberSettings
from penstock.segmentstore.own_failures import is_own_failure

SETTINGS = MemberSettings()


def history(impairment: Impairment, problems_s: list[float], *, began_s: float = 0.0, failures: int = 0) -> list[bool]:
    """Note one problem each second; return whether the store was impaired after each."""
    found = []
    for number, problem_s in enumerate(problems_s):
        impairment.note(began_s + number, log_problem_s=problem_s, own_failures=failures)
        found.append(bool(impairment.reason))
    return found


def test_a_log_that_does_not_answer_impairs_the_store_until_it_has_answered_for_a_while() -> None:
    """After `impaired_after_s`, and until `recovered_after_s` without a problem."""
    impairment = Impairment(SETTINGS)
    assert history(impairment, [float(second) for second in range(13)]) == [False] * 11 + [True] * 2
    recovery = history(impairment, [0.0] * 35, began_s=13.0)
    assert recovery == [True] * 29 + [False] * 6


def test_a_problem_again_delays_the_recovery() -> None:
    """The log has to answer for the whole time."""
    impairment = Impairment(SETTINGS)
    history(impairment, [float(second) for second in range(13)])
    assert all(history(impairment, [0.0] * 20 + [6.0] + [0.0] * 20, began_s=13.0))


def test_slow_answers_are_no_problem() -> None:
    """Every append waits for some seconds, and each is answered: the age starts again from a lower value."""
    assert not any(history(Impairment(SETTINGS), [1.0, 4.0, 7.0, 9.5] * 30))


def test_a_pause_of_the_process_does_not_count() -> None:
    """After a minute of suspension the oldest append is a minute old. It is given its time."""
    impairment = Impairment(SETTINGS)
    impairment.note(0.0, log_problem_s=0.1, own_failures=0)
    impairment.note(60.0, log_problem_s=60.1, own_failures=0)
    assert impairment.reason == ""
    assert history(impairment, [0.0] * 5, began_s=61.0) == [False] * 5
    # One that does not answer afterwards either is a problem.
    impairment.note(120.0, log_problem_s=54.0, own_failures=0)
    assert any(history(impairment, [55.0 + second for second in range(12)], began_s=121.0))


def test_three_failures_for_lack_of_resources_within_a_minute_impair_the_store() -> None:
    """Two do not, nor do three in a longer time. It ends after a rest."""
    impairment = Impairment(SETTINGS)
    for now_s, failures, is_impaired in (
        (0.0, 1, False), (50.0, 2, False), (100.0, 3, False), (104.0, 4, True), (300.0, 4, True), (405.0, 4, False),
    ):  # fmt: skip
        impairment.note(now_s, log_problem_s=0.0, own_failures=failures)
        assert bool(impairment.reason) is is_impaired, now_s
    impairment.note(500.0, log_problem_s=0.0, own_failures=9)
    assert "lack of memory" in impairment.reason


@given(st.lists(st.tuples(st.floats(0.5, 90.0), st.booleans(), st.integers(0, 2)), max_size=80))
def test_the_store_is_impaired_for_a_reason_only(steps: list[tuple[float, bool, int]]) -> None:
    """Without a problem for `impaired_after_s`, and with too few failures in each window, it never is.

    A step: time since the one before, whether the log has answered in between, failures in between.
    """
    impairment = Impairment(SETTINGS)
    now_s = problem_s = observed_s = 0.0
    failures_s: list[float] = []
    for elapsed_s, has_answered, failures in steps:
        now_s += elapsed_s
        observed_s = 0.0 if has_answered else observed_s + min(elapsed_s, 2 * SETTINGS.check_s)
        problem_s = 0.0 if has_answered else problem_s + elapsed_s
        failures_s += [now_s] * failures
        was = impairment.reason
        impairment.note(now_s, log_problem_s=problem_s, own_failures=len(failures_s))
        last = failures_s[-SETTINGS.own_failures_max :]
        may_lack = len(last) == SETTINGS.own_failures_max and last[-1] - last[0] <= SETTINGS.own_failures_window_s
        if impairment.reason and not was:
            assert observed_s >= SETTINGS.impaired_after_s or may_lack
        if min(observed_s, problem_s) >= SETTINGS.impaired_after_s + 2 * SETTINGS.check_s:
            assert "log" in impairment.reason


@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        (MemoryError(), True),
        (OSError(errno.EMFILE, "too many open files"), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.EIO, "input/output error"), False),
        (CorruptionError("log", 7, "damaged"), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_failures_of_the_process_are_distinguished_from_those_of_the_container(error: Exception, is_own: bool) -> None:
    """Also behind the error of a layer above."""
    assert is_own_failure(error) is is_own
    wrapped = StorageError("cannot be opened")
    wrapped.__cause__ = error
    assert is_own_failure(wrapped) is is_own


def test_errors_that_cause_each_other_end_the_search() -> None:
    """A circle of causes does not hang it."""
    one, other = StorageError("one"), StorageError("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_own_failure(one)


def test_settings_are_checked() -> None:
    """Values that could never work."""
    with pytest.raises(InvalidArgumentError, match="check_s"):
        MemberSettings(check_s=0.0)
    with pytest.raises(InvalidArgumentError, match="own_failures_max"):
        MemberSettings(own_failures_max=0)

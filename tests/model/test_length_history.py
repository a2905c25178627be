"""How long unread bytes have waited, compared with all lengths ever noted."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.length_history import KEPT_S, RECENT_S, THINNED_S, LengthHistory

#: Seconds and bytes from one note to the next.
STEPS = st.lists(st.tuples(st.sampled_from([1.0, 10.0, 70.0, 2000.0]), st.integers(0, 3)), min_size=1, max_size=200)


@given(STEPS, st.integers(0, 300))
# A note that follows another one closely, and after which there was none for long.
@example([(1.0, 0), (1.0, 1), (2000.0, 0)], 0)
def test_a_wait_is_exact_up_to_the_distance_of_two_notes(steps: list[tuple[float, int]], position: int) -> None:
    history = LengthHistory()
    now_s, length = 0.0, 0
    notes: list[tuple[float, int]] = []
    for seconds, count in steps:
        now_s, length = now_s + seconds, length + count
        history.note(now_s, length)
        notes.append((now_s, length))
    found_s, is_bound = history.waited_s(now_s, position)
    longer = [time_s for time_s, noted in notes if noted > position]
    if not longer:
        assert (found_s, is_bound) == (0.0, False)
        return
    true_s = now_s - longer[0]
    assert found_s <= true_s
    if not is_bound:
        assert true_s - found_s <= (0 if true_s <= RECENT_S else THINNED_S)


def test_the_history_is_bounded_and_reaches_back_six_hours() -> None:
    history = LengthHistory()
    for second in range(0, 24 * 3600, 10):
        history.note(second, second)
        assert len(history) <= RECENT_S / 10 + KEPT_S / THINNED_S + 2
    now_s = 24 * 3600.0 - 10
    waited_s, is_bound = history.waited_s(now_s, 0)
    assert is_bound
    assert KEPT_S - THINNED_S <= waited_s <= KEPT_S


def test_a_shorter_segment_begins_a_history() -> None:
    history = LengthHistory()
    history.note(0, 100)
    history.note(10, 50)
    assert history.waited_s(20, 20) == (10, True)
    assert LengthHistory().waited_s(5, 0) == (0.0, False)

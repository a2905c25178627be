"""How often readers poll, show that they are alive and store positions: rarer in large groups, but bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.groups.group_liveness import OBSERVATION_SHARE, Liveness
from penstock.client.groups.group_pace import heartbeat_interval_s, next_tick_s, poll_interval_s, store_interval_s
from penstock.client.groups.group_watch import WATCHER_COUNT, watched_by
from penstock.client.settings import ClientSettings

SETTINGS = ClientSettings()


def polls_per_s(reader_count: int, unchanged_count: int = 0) -> float:
    return reader_count / poll_interval_s(SETTINGS, 30.0, reader_count, unchanged_count)


def test_a_small_group_polls_each_refresh_even_when_it_is_idle() -> None:
    for count in (1, 2, 5):
        assert poll_interval_s(SETTINGS, 30.0, count, 1000) == SETTINGS.reader_group_refresh_s


def test_a_large_group_polls_hardly_more_than_a_small_one() -> None:
    assert polls_per_s(200) < 3 * polls_per_s(20)
    assert polls_per_s(60, unchanged_count=50) < polls_per_s(60)
    assert poll_interval_s(SETTINGS, 30.0, 100, 50) == 30.0 * OBSERVATION_SHARE
    assert poll_interval_s(SETTINGS, 30.0, 1000, 50, is_watcher=False) == 7.5


def test_those_that_watch_an_idle_group_of_many_readers_poll_as_rarely_as_the_others() -> None:
    """Each of their polls reads the heartbeats of all readers."""
    assert poll_interval_s(SETTINGS, 30.0, 1000, 50) == 7.5 == heartbeat_interval_s(30.0)
    assert poll_interval_s(SETTINGS, 30.0, 1000, 0) == 30.0 * OBSERVATION_SHARE


@given(st.floats(0.1, 1e4), st.integers(1, 5000), st.integers(0, 100), st.booleans())
def test_a_poll_is_never_so_rare_that_the_observer_takes_it_for_an_outage(
    timeout_s: float, reader_count: int, unchanged_count: int, is_watcher: bool
) -> None:
    interval_s = poll_interval_s(SETTINGS, timeout_s, reader_count, unchanged_count, is_watcher=is_watcher)
    is_often = is_watcher and reader_count <= 100
    assert 0 < interval_s <= min(timeout_s * OBSERVATION_SHARE * (1 if is_often else 2), 10.0)
    liveness = Liveness[int]()
    for poll in range(8):
        liveness.observe({"dead": 1}, poll * 1.5 * interval_s, timeout_s)
    assert liveness.silent(6 * interval_s) == {"dead": 1}
    # A tick is up to one and a half intervals after the last one.
    assert 1.5 * heartbeat_interval_s(timeout_s) + 1.5 * interval_s < timeout_s


def test_positions_of_a_large_group_are_stored_in_proportion_to_its_readers() -> None:
    assert store_interval_s(3.0, 100) == 3.0
    assert store_interval_s(3.0, 1000) == 20.0


@given(st.floats(0, 1e9), st.floats(0.001, 1e4), st.floats(0, 1))
def test_a_tick_is_after_the_last_one_and_at_most_an_interval_later(
    after_s: float, interval_s: float, phase: float
) -> None:
    tick_s = next_tick_s(after_s, interval_s, phase)
    assert after_s < tick_s <= after_s + interval_s * 1.001 + 1e-6


def test_all_readers_watch_the_first_ones_and_these_watch_all() -> None:
    readers = {f"r{number:03}": None for number in range(100)}
    for name in readers:
        watched = set(watched_by({name}, readers))
        assert set(list(readers)[:WATCHER_COUNT]) <= watched
        assert (len(watched) == 100) == (name in list(readers)[:WATCHER_COUNT])

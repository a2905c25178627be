"""Outages longer than every time-out of a reader: no reader is declared dead because of one."""

from __future__ import annotations

from penstock.testing.mutations.users import LONG_OUTAGES, USER_MUTATIONS
from penstock.testing.runner import run

#: A seed in which readers expelled each other when an outage counted as silence.
SEED = 0


def test_no_reader_is_expelled_because_of_an_outage_of_the_store() -> None:
    assert run(SEED, LONG_OUTAGES).violations == ()


def test_readers_that_count_an_outage_as_silence_are_found() -> None:
    (mutation,) = [each for each in USER_MUTATIONS if each.name == "count an outage as silence"]
    with mutation.apply():
        assert run(SEED, LONG_OUTAGES).violations

"""Outages longer than every time-out of a reader: no reader is declared dead because of one."""

from __future__ import annotations

from penstock_simulation.mutations.users import LONG_OUTAGES
from penstock_simulation.runner import run


def test_no_reader_is_expelled_because_of_an_outage_of_the_store() -> None:
    assert run(0, LONG_OUTAGES).violations == ()

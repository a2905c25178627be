"""Outages longer than every time-out, and clocks hours apart: no reader is declared dead, no lease ends early."""

from __future__ import annotations

from penstock_simulation.mutations.peers import CLOCKS
from penstock_simulation.mutations.users import LONG_OUTAGES
from penstock_simulation.runner import run


def test_no_reader_is_expelled_because_of_an_outage_of_the_store() -> None:
    assert run(0, LONG_OUTAGES).violations == ()


def test_leases_and_retention_continue_with_clocks_that_are_hours_apart() -> None:
    assert run(2, CLOCKS).violations == ()

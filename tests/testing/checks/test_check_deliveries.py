"""The checker of deliveries: each rule is kept by a good history, and broken by the smallest bad one."""

from __future__ import annotations

import pytest

from penstock_simulation.checks.deliveries import check_deliveries
from penstock_simulation.checks.history_events import EventDelivered, History, PositionsStored, ReaderLost


def history_of(*told: str) -> History:
    """Return a history of `a:x` (reader a delivers event x), `a=2` (its first two are stored), `a!` (it is lost)."""
    history = History(lambda: 0.0)
    for text in told:
        life = text[0]
        if text[1] == ":":
            history.see("user", EventDelivered("group", life, text[2:].encode()))
        elif text[1] == "=":
            history.see("user", PositionsStored("group", life, int(text[2:])))
        else:
            history.see("user", ReaderLost("group", life, "killed"))
    return history


@pytest.mark.parametrize(
    "told",
    [
        "a:x a:y b:z a=2 b=1",
        "a:x a! b:x",
        "a:x a=0 a! b:x b! c:x",
        # Hung with an event in hand: another one had it first, and it hands it out still.
        "a:w a! b:x b=1 a:x",
    ],
)
def test_permitted_histories_pass(told: str) -> None:
    assert check_deliveries(history_of(*told.split())) == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("a:x b:x", "only 0 of them were lost"),
        ("a:x a! b:x c:x", "only 1 of them were lost"),
        ("a:x a:x", "twice to one reader"),
        ("a:x a:y a=1 a! b:x", "a got the reply at record 2 that it is stored"),
        ("a:x a=1 b:x", "only 0 of them were lost"),
    ],
)
def test_forbidden_histories_are_reported(told: str, why: str) -> None:
    (violation,) = check_deliveries(history_of(*told.split()))
    assert why in violation

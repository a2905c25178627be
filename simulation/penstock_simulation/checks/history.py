"""Histories of what clients did and saw, and the checkers that judge them.

Give every client of a simulation one `History`; let it record each call and its end, and what it sees. At the end (and
whenever all is quiet) let somebody do a `FullRead`, then `check_history`: an empty answer means that every promise was
kept as far as clients can tell. Each violation names the calls, their clients, times and record numbers.

The records are in `history_events`, the rules in `checks_events`, `checks_bytes` and `checks_tables`. What only the
inside of a server shows is asserted by `invariants`.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock_simulation.checks.byte_reads import check_monotonic, check_reads, check_up_to_date
from penstock_simulation.checks.deliveries import check_deliveries
from penstock_simulation.checks.events import check_events, check_transactions
from penstock_simulation.checks.history_events import (
    AbortTransaction,
    AppendBytes,
    CommitTransaction,
    EpochStarted,
    EventDelivered,
    EventSeen,
    FullRead,
    GetKey,
    GetLength,
    History,
    Invocation,
    KeyValue,
    OffsetSeen,
    Outcome,
    PositionsStored,
    PutKey,
    ReaderLost,
    ReadRange,
    RemoveKey,
    WriteEvent,
)
from penstock_simulation.checks.tables import check_table


def check_history(history: History, *, truncated_streams: Collection[str] = ()) -> list[str]:
    """Return everything that is wrong, by all checkers. In `truncated_streams` the oldest events may be gone."""
    return [
        *check_events(history, truncated_streams=truncated_streams),
        *check_transactions(history, truncated_streams=truncated_streams),
        *check_reads(history),
        *check_up_to_date(history),
        *check_monotonic(history),
        *check_table(history),
        *check_deliveries(history),
    ]


__all__ = [
    "AbortTransaction",
    "AppendBytes",
    "CommitTransaction",
    "EpochStarted",
    "EventDelivered",
    "EventSeen",
    "FullRead",
    "GetKey",
    "GetLength",
    "History",
    "Invocation",
    "KeyValue",
    "OffsetSeen",
    "Outcome",
    "PositionsStored",
    "PutKey",
    "ReadRange",
    "ReaderLost",
    "RemoveKey",
    "WriteEvent",
    "check_deliveries",
    "check_events",
    "check_history",
    "check_monotonic",
    "check_reads",
    "check_table",
    "check_transactions",
    "check_up_to_date",
]

"""How much is left of a transaction's lease and lifetime. Pure.

The times of a record are by the wall clock of the controller that wrote it. Only differences between times of one
record are used: they are right whatever that clock shows. How long ago a record was written is measured by the own
clock of each controller, from the moment at which it first saw that version of the record.
"""

from __future__ import annotations

from penstock.controller.metadata.records import ActiveTransaction


def written_ms(record: ActiveTransaction) -> int:
    """Return when the lease of an open, unprepared transaction was written, by the wall clock of its writer."""
    return record.lease_expiry_ms - record.lease_ms


def elapsed_at_first_sight_ms(record: ActiveTransaction, now_ms: int, lease_slack_ms: int) -> int:
    """Estimate how long ago another controller wrote a record, from `now_ms` by this controller's wall clock.

    The clocks may differ by hours. An open transaction is not older than its lease with the slack, and not younger than
    nothing, so the estimate is wrong by no more than that.
    """
    return min(max(now_ms - written_ms(record), 0), record.lease_ms + lease_slack_ms)


def lifetime_left_ms(record: ActiveTransaction, elapsed_ms: int) -> int:
    """Return how far a lease may go that is asked for now, `elapsed_ms` after the record was written."""
    return record.execution_expiry_ms - written_ms(record) - elapsed_ms


def limit_ms(record: ActiveTransaction) -> int:
    """Return how long a prepared transaction waits for its decision, counted from its first preparation."""
    return record.lease_expiry_ms - record.prepared_ms

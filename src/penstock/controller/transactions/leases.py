"""The remaining lease and lifetime of a transaction. Pure functions.

The times of a record are by the wall clock of the controller that wrote it. Only differences between times of one
record are used: they are correct whatever that clock shows. The time since a record was written is measured by each
controller's own clock, from the moment at which it first saw that version of the record.
"""

from __future__ import annotations

from penstock.controller.metadata.records import ActiveTransaction


def written_ms(record: ActiveTransaction) -> int:
    """Return when the lease of an open, unprepared transaction was written, by the wall clock of its writer."""
    return record.lease_expiry_ms - record.lease_ms


def elapsed_at_first_sight_ms(record: ActiveTransaction, now_ms: int, lease_slack_ms: int) -> int:
    """Estimate how long ago another controller wrote a record, from `now_ms` by this controller's wall clock.

    The clocks may differ by hours. The record of an open transaction is not older than its lease with the slack, and
    not from the future, which bounds the error of the estimate.
    """
    return min(max(now_ms - written_ms(record), 0), record.lease_ms + lease_slack_ms)


def lifetime_left_ms(record: ActiveTransaction, elapsed_ms: int) -> int:
    """Return the maximum lease that may be requested `elapsed_ms` after the record was written."""
    return record.execution_expiry_ms - written_ms(record) - elapsed_ms


def limit_ms(record: ActiveTransaction) -> int:
    """Return how long a prepared transaction waits for its decision, counted from its first preparation."""
    return record.lease_expiry_ms - record.prepared_ms

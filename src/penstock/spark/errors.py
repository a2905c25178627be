"""What can go wrong with a batch of the sink, beyond what goes wrong with the store."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class BatchOvertakenError(PenstockError):
    """A later batch of the same sink is on record: another run of the query is ahead. Nothing was written."""


class OtherQueryError(PenstockError):
    """A batch of the same sink and number is on record, and another streaming query has written it.

    The query lost its checkpoint and counts from 0 again, or two queries use one `appId`. Nothing was written.
    """


class LostBatchError(PenstockError):
    """A batch was to be written, and a part of its transactions was aborted, or all of them behind Spark's back.

    That takes a limit that ran out (`transactionLimit`), or somebody who aborted them by hand.
    """


class MalformedEventError(PenstockError):
    """An event is none of the schema that it is to be decoded by (option `decode`)."""

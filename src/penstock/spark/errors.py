"""Errors of a batch of the sink, besides those of the store."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class BatchOvertakenError(PenstockError):
    """A later batch of the same sink is recorded: another run of the query is ahead. Nothing was written."""


class OtherQueryError(PenstockError):
    """A batch of the same sink and number is recorded, and another streaming query has written it.

    The query lost its checkpoint and counts from 0 again, or two queries use one `appId`. Nothing was written.
    """


class LostBatchError(PenstockError):
    """Transactions of a batch were aborted: some of them, or all of a batch that Spark considers written.

    Either a limit expired (`transactionLimit`), or they were aborted by hand.
    """


class MalformedEventError(PenstockError):
    """An event does not match the schema of option `decode`."""


class JavaNotFoundError(PenstockError):
    """No Java that Spark can use was found."""

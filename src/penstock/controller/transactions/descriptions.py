"""`TransactionDescriptions`: the state, age and lease of transactions, and why they were aborted.

Specific to Penstock: Pravega's controllers return the state of one transaction by id, and recently completed ones.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.controller.metadata.records import AbortReason, ActiveTransaction, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The present state of a transaction. Times are in milliseconds; negative ones are overdue.

    Attributes:
        id: its id.
        status: UNKNOWN if it does not exist, or ended too long ago; then all other fields have defaults.
        age_ms: time since it began; for COMMITTED or ABORTED since its end.
        lease_ms: the last requested lease; after the end of the transaction 0, like the next two.
        lease_left_ms: OPEN: time until it is aborted unless the lease is renewed; prepared: until it is aborted.
        lifetime_left_ms: OPEN: no lease may extend beyond this.
        writer_id: as given with its commit, or "".
        abort_reason: for ABORTING or ABORTED.
        is_prepared: it is OPEN, accepts no more events, and waits for its decision.
    """

    id: TransactionId
    status: TransactionStatus
    age_ms: int = 0
    lease_ms: int = 0
    lease_left_ms: int = 0
    lifetime_left_ms: int = 0
    writer_id: str = ""
    abort_reason: AbortReason = AbortReason.NONE
    is_prepared: bool = False


@dataclass(frozen=True, slots=True)
class DescriptionPage:
    """A page of transactions. An empty one ends the listing; otherwise continue from `token`."""

    transactions: Sequence[TransactionDescription]
    token: str


class TransactionDescriptions:
    """Reads the records of transactions, and changes nothing."""

    def __init__(self, context: WorkflowContext) -> None:
        self._context = context

    async def one(self, scope: str, stream: str, transaction: TransactionId) -> TransactionDescription:
        """Return the present state of a transaction. Raises `NoSuchStreamError`."""

        async def read(tables: StreamTables) -> TransactionDescription:
            found = await tables.transaction(transaction)
            now_ms = self._context.runtime.wall_clock_ms()
            if found is not None and found.record.status is TransactionStatus.COMMITTED:
                # It was just committed, and is about to be moved to the completed ones.
                return TransactionDescription(transaction, TransactionStatus.COMMITTED)
            if found is not None:
                return self._described(transaction, found.record, now_ms)
            ended = await self._context.completed.find(scope, stream, transaction)
            if ended is None:
                # Another controller may have deleted the stream, and created it again.
                await tables.check_exists()
                return TransactionDescription(transaction, TransactionStatus.UNKNOWN)
            return TransactionDescription(
                transaction, ended.status, max(now_ms - ended.completed_ms, 0), abort_reason=ended.abort_reason
            )

        return await self._context.catalog.on_stream(scope, stream, read)

    async def open(self, scope: str, stream: str, token: str = "") -> DescriptionPage:
        """Return transactions of a stream that have not ended, by epoch, up to the page limit.

        `token`: of the previous page, '' for the first one. Transactions that begin or end meanwhile may be listed or
        not. 1 request per epoch with transactions. Raises `NoSuchStreamError`, `InvalidArgumentError` for a bad token.
        """
        first_epoch, after = _read_token(token)

        async def read(tables: StreamTables) -> DescriptionPage:
            found: list[TransactionDescription] = []
            at_epoch, at_row = first_epoch, after
            limit = self._context.settings.page_entries_max
            now_ms = self._context.runtime.wall_clock_ms()
            for epoch in sorted([each async for each in tables.epochs_with_transactions() if each >= first_epoch]):
                row = after if epoch == first_epoch else b""
                while len(found) < limit:
                    rows, following = await tables.transactions_page(epoch, limit=limit - len(found), token=row)
                    if not rows:
                        break
                    at_epoch, at_row = epoch, following
                    row = following
                    found += [
                        self._described(transaction, record, now_ms)
                        for transaction, record in rows
                        if record.status is not TransactionStatus.COMMITTED
                    ]
                if len(found) >= limit:
                    break
            if not found:
                await tables.check_exists()
            return DescriptionPage(found, f"{at_epoch}:{base64.b64encode(at_row).decode()}" if found else token)

        return await self._context.catalog.on_stream(scope, stream, read)

    def _described(self, transaction: TransactionId, record: ActiveTransaction, now_ms: int) -> TransactionDescription:
        is_open = record.status is TransactionStatus.OPEN
        end_ms = record.lease_expiry_ms + self._context.settings.lease_slack_ms
        return TransactionDescription(
            transaction,
            record.status,
            max(now_ms - record.created_ms, 0),
            record.lease_ms,
            end_ms - now_ms if is_open else 0,
            record.execution_expiry_ms - now_ms if is_open else 0,
            record.writer_id,
            record.abort_reason,
            is_open and record.is_prepared,
        )


def _read_token(token: str) -> tuple[int, bytes]:
    if not token:
        return 0, b""
    epoch, colon, row = token.partition(":")
    try:
        if not colon:
            raise ValueError("no colon")
        return int(epoch), base64.b64decode(row.encode(), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidArgumentError(f"{token[:80]!r} is not a continuation token of open transactions") from error

"""`TransactionDescriptions`: what is known of transactions: their state, age, lease, and why they were aborted.

Penstock's own: Pravega's controllers tell the state of one transaction by its id, and which ended lately.
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
    """What is known of a transaction now. Times are milliseconds, negative ones are over.

    Attributes:
        id: its id.
        status: UNKNOWN if there is none, or it ended too long ago; then nothing else is known.
        age_ms: since it began; of a COMMITTED or ABORTED one since its end.
        lease_ms: its lease as asked for last; of what has ended 0, as all that follows.
        lease_left_ms: of an OPEN one: until it is aborted, unless it is renewed; of a prepared one until it is aborted.
        lifetime_left_ms: of an OPEN one: no lease goes further than this.
        writer_id: as its commit gave it, or "".
        abort_reason: of an ABORTING or ABORTED one.
        is_prepared: it is OPEN, takes no more events, and waits for its decision.
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
    """A page of transactions. An empty one ends the listing; otherwise go on from `token`."""

    transactions: Sequence[TransactionDescription]
    token: str


class TransactionDescriptions:
    """Reads the records of transactions, and changes nothing."""

    def __init__(self, context: WorkflowContext) -> None:
        self._context = context

    async def one(self, scope: str, stream: str, transaction: TransactionId) -> TransactionDescription:
        """Return what is known of a transaction. Raises `NoSuchStreamError`."""

        async def read(tables: StreamTables) -> TransactionDescription:
            found = await tables.transaction(transaction)
            now_ms = self._context.runtime.wall_clock_ms()
            if found is not None and found.record.status is TransactionStatus.COMMITTED:
                # It has ended this moment, and is on its way to the completed ones.
                return TransactionDescription(transaction, TransactionStatus.COMMITTED)
            if found is not None:
                return self._described(transaction, found.record, now_ms)
            ended = await self._context.completed.find(scope, stream, transaction)
            if ended is None:
                return TransactionDescription(transaction, TransactionStatus.UNKNOWN)
            return TransactionDescription(
                transaction, ended.status, max(now_ms - ended.completed_ms, 0), abort_reason=ended.abort_reason
            )

        return await self._context.catalog.on_stream(scope, stream, read)

    async def open(self, scope: str, stream: str, token: str = "") -> DescriptionPage:
        """Return transactions of a stream that have not ended, by epoch, at most the number set for pages.

        `token`: of the page before, '' for the first one. What begins or ends meanwhile may be listed or not. Costs a
        request for each epoch that has some. Raises `NoSuchStreamError`, `InvalidArgumentError` for another token.
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
            return DescriptionPage(found, f"{at_epoch}:{base64.b64encode(at_row).decode()}" if found else token)

        return await self._context.catalog.on_stream(scope, stream, read)

    def _described(
        self, transaction: TransactionId, record: ActiveTransaction, now_ms: int
    ) -> TransactionDescription:
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

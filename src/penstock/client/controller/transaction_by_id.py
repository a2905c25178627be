"""`TransactionById`: inspects and prepares a transaction of another process."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.controller.transaction_ids import id_of, transaction_text
from penstock.model.names import split_scoped_name


class TransactionById:
    """A transaction of a stream, by its id.

    It is not kept open from here: its lease is renewed by its creator, or expires.
    """

    def __init__(self, controller: ControllerClient, stream: str, transaction_id: str) -> None:
        self._controller = controller
        self._scope, self._stream = split_scoped_name(stream)
        self._message = id_of(transaction_id)
        self.id: str = transaction_text(self._message)

    async def describe(self) -> TransactionInfo:
        """Return the controller's record of it. Raises `NoSuchStreamError`."""
        return await self._controller.describe_transaction(self._scope, self._stream, self._message)

    async def prepare(self, limit_s: float) -> float:
        """Prepare it: it takes no more events and waits for a decision; see `Transaction.prepare`.

        Returns the seconds until its limit ends. Raises as `Client.prepare_transaction`.
        """
        return await self._controller.prepare_transaction(
            self._scope, self._stream, self._message, limit_ms=round(limit_s * 1000)
        )


async def completed_transactions(controller: ControllerClient, stream: str) -> Mapping[str, str]:
    """Return the recent outcomes of a stream's transactions: id -> ``COMMITTED`` or ``ABORTED``, the newest of them.

    Raises `NoSuchStreamError`.
    """
    scope, name = split_scoped_name(stream)
    return {transaction_text(each): state for each, state in await controller.completed_transactions(scope, name)}

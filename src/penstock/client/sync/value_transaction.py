"""The blocking `ValueTransaction`. Generated from `penstock.client.transactions.value_transaction`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from penstock.client.common.serializers import Value
from penstock.client.sync.ack import Ack
from penstock.client.sync.handle import PlainHandle
from penstock.client.sync.transaction import Transaction
from penstock.client.transactions import value_transaction as aio
from penstock.client.writing.ack import OnDelivery
from penstock.model.times import NotedTime
from penstock.runtime.portal import Portal


class ValueTransaction(PlainHandle[aio.ValueTransaction[Value]], Generic[Value]):
    """Writes values into a transaction; else as `Transaction`. Made by `Client.begin_transaction` with a serializer.

    A value that cannot be serialized raises `SerializationError`, and is not written.

    Attributes:
        events: the transaction of the bytes, for operations that this class does not offer.
        serializer: serializes the values.
    """

    def __init__(self, client: object, portal: Portal, part: aio.ValueTransaction[Value]) -> None:
        super().__init__(client, portal, part)
        #: The transaction of the bytes.
        self.events: Transaction = Transaction(client, portal, part.events)
        self._serialize = part.serializer.serialize

    @property
    def id(self) -> str:
        """The transaction's id, 32 hexadecimal digits."""
        return self._part.id

    def write(
        self,
        value: Value,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write a value into the transaction; see `EventWriter.write`. Raises `TransactionError` when it is over."""
        event = self._serialize(value)
        return self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)

    def write_many(
        self,
        values: Sequence[Value],
        routing_keys: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Write many values into the transaction; see `ValueWriter.write_many`."""
        self.events.write_many(list(map(self._serialize, values)), routing_keys, timeout_s=timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable (not readable before the commit)."""
        self._portal.call(self._part.flush(timeout_s))

    def commit(self, *, time: NotedTime | None = None) -> None:
        """Flush and commit; see `Transaction.commit`."""
        self._portal.call(self._part.commit(time=time))

    def abort(self) -> None:
        """Abort: none of the transaction's events are ever read; see `Transaction.abort`."""
        self._portal.call(self._part.abort())

    def detach(self) -> str:
        """Flush, leave the transaction open for another process, and return its id; see `Transaction.detach`."""
        return self._portal.call(self._part.detach())

    def prepare(self, *, limit_s: float | None = None) -> str:
        """Flush, take no more events, and leave the decision to any process that has the id, which this returns.

        See `Transaction.prepare`.
        """
        return self._portal.call(self._part.prepare(limit_s=limit_s))

    def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return self._portal.call(self._part.state())

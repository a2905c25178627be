"""`ValueTransaction`: a `Transaction` of values that a serializer encodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from penstock.client.common.serializers import Serializer, Value
from penstock.client.common.value_handle import ValueHandle
from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.ack import Ack, OnDelivery
from penstock.client.writing.value_writer import write_values
from penstock.model.times import NotedTime


class ValueTransaction(ValueHandle[Transaction], Generic[Value]):
    """Writes values into a transaction; else as `Transaction`. Made by `Client.begin_transaction` with a serializer.

    A value that cannot be serialized raises `SerializationError`, and is not written.

    Attributes:
        events: the transaction of the bytes, for operations that this class does not offer.
        serializer: serializes the values.
    """

    def __init__(self, events: Transaction, serializer: Serializer[Value]) -> None:
        super().__init__(events)
        self.serializer = serializer

    @property
    def id(self) -> str:
        """The transaction's id, 32 hexadecimal digits."""
        return self.events.id

    async def write(
        self,
        value: Value,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write a value into the transaction; see `EventWriter.write`. Raises `TransactionError` when it is over."""
        event = self.serializer.serialize(value)
        return await self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)

    async def write_many(
        self,
        values: Sequence[Value],
        routing_keys: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Write many values into the transaction; see `ValueWriter.write_many`."""
        await write_values(self.events.write_many, self.serializer.serialize, values, routing_keys, timeout_s)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable (not readable before the commit)."""
        await self.events.flush(timeout_s)

    async def commit(self, *, time: NotedTime | None = None) -> None:
        """Flush and commit; see `Transaction.commit`."""
        await self.events.commit(time=time)

    async def abort(self) -> None:
        """Abort: none of the transaction's events are ever read; see `Transaction.abort`."""
        await self.events.abort()

    async def detach(self) -> str:
        """Flush, leave the transaction open for another process, and return its id; see `Transaction.detach`."""
        return await self.events.detach()

    async def prepare(self, *, limit_s: float | None = None) -> str:
        """Flush, take no more events, and leave the decision to any process that has the id, which this returns.

        See `Transaction.prepare`.
        """
        return await self.events.prepare(limit_s=limit_s)

    async def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return await self.events.state()

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort the transaction if it is undecided, and stop; see `Transaction`."""
        await self.events.close(timeout_s)

    async def __aenter__(self) -> ValueTransaction[Value]:
        await self.events.__aenter__()
        return self

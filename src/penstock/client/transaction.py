"""`Transaction`: events that become readable all at once, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import TracebackType

from penstock.client.ack import Ack, AckState
from penstock.client.connection_pool import ConnectionPool
from penstock.client.controller import ControllerClient
from penstock.client.event_writer import Events, EventWriter, RoutingKeys
from penstock.client.settings import ClientSettings
from penstock.client.sources import TransactionSource
from penstock.client.tasks import start_watched
from penstock.model.errors import ControllerUnavailableError, PenstockError, TransactionError
from penstock.rpc import controller_pb2 as pb

#: A lease is renewed when this part of it has passed.
_RENEWAL_PART = 1 / 3


class Transaction:
    """An open transaction on a stream. Made by `Client.begin_transaction`.

    As a context manager it commits on leaving, or aborts when an exception passes through.
    """

    def __init__(
        self,
        controller: ControllerClient,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        scope: str,
        stream: str,
        *,
        lease_s: float,
        ack_factory: Callable[[], AckState] = Ack,
        is_threaded: bool = False,
    ) -> None:
        self._controller = controller
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._scope = scope
        self._stream = stream
        self._lease_s = lease_s
        self._ack_factory = ack_factory
        self._is_threaded = is_threaded
        self._id = pb.TxnId()
        self._writer: EventWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_over = False

    async def begin(self) -> None:
        """Open the transaction. Called by `Client.begin_transaction`."""
        self._id, segments = await self._controller.create_transaction(
            self._scope, self._stream, lease_ms=round(self._lease_s * 1000)
        )
        source = TransactionSource(
            self._scope, self._stream, segments, high_bits=self._id.highBits, low_bits=self._id.lowBits
        )
        self._writer = await EventWriter(
            source, self._pool, self._settings, self._rng,
            ack_factory=self._ack_factory, is_threaded=self._is_threaded,
        ).start()  # fmt: skip
        self._keeper = start_watched(self._keep_open(), f"lease of {self.id}", lambda error: None)

    @property
    def id(self) -> str:
        """The transaction's id, 32 hexadecimal digits."""
        return f"{self._id.highBits & (2**64 - 1):016x}{self._id.lowBits & (2**64 - 1):016x}"

    @property
    def writer(self) -> EventWriter:
        """The writer of the transaction's events, for what this class does not offer."""
        if self._writer is None or self._is_over:
            raise TransactionError(f"transaction {self.id} on stream {self._scope}/{self._stream} is over")
        return self._writer

    async def write(self, event: bytes, routing_key: str | None = None) -> AckState:
        """Write an event into the transaction; see `EventWriter.write`. Raises `TransactionError` when it is over."""
        return await self.writer.write(event, routing_key)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> None:
        """Write many events into the transaction; see `EventWriter.write_many`."""
        await self.writer.write_many(events, routing_keys)

    async def flush(self) -> None:
        """Wait until everything written so far is durable (not readable before the commit)."""
        await self.writer.flush()

    async def commit(self) -> None:
        """Flush and decide that the transaction commits. Once this returns it stays committed; readers see it soon.

        Raises:
            OutcomeUnknownError: no answer; `state` tells what became of it, and `commit` may be repeated.
            TransactionError: it was aborted, or its lease ran out. None of its events will ever be read.
        """
        if self._writer is not None and not self._is_over:
            await self._writer.close()
        await self._stop()
        await self._controller.commit_transaction(self._scope, self._stream, self._id)

    async def abort(self) -> None:
        """Decide that none of the transaction's events are ever read."""
        if self._writer is not None:
            await self._writer.abandon()
        await self._stop()
        await self._controller.abort_transaction(self._scope, self._stream, self._id)

    async def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return await self._controller.transaction_state(self._scope, self._stream, self._id)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if kind is None:
            await self.commit()
        else:
            await self.abort()

    async def _stop(self) -> None:
        self._is_over = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None

    async def _keep_open(self) -> None:
        """Renew the lease. An error that stays ends the renewal: the next write or the commit meets it too."""
        while True:
            await asyncio.sleep(self._lease_s * _RENEWAL_PART)
            try:
                await self._controller.ping_transaction(
                    self._scope, self._stream, self._id, lease_ms=round(self._lease_s * 1000)
                )
            except ControllerUnavailableError:
                continue
            except PenstockError:
                return

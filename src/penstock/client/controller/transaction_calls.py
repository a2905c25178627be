"""The controller's calls about transactions, a part of `ControllerClient`.

Source: controller-api 9.14; the calls that describe and list are Penstock's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.client.controller.controller_messages import range_from_message
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.controller.transaction_endings import TransactionInfo, over_error
from penstock.client.controller.transaction_ids import transaction_text
from penstock.client.controller.unary_call import CallGroup, UnaryCall
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    NoSuchStreamError,
    StreamError,
    StreamSealedError,
    TransactionError,
    TransactionExpiredError,
    UnsupportedOperationError,
)
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb

#: The value for "no time" in a commit.
NO_TIME: int = -(1 << 63)


class TransactionStub(Protocol):
    """The RPCs that are used here."""

    createTransaction: UnaryCall[pb.CreateTxnRequest, pb.CreateTxnResponse]
    pingTransaction: UnaryCall[pb.PingTxnRequest, pb.PingTxnStatus]
    commitTransaction: UnaryCall[pb.TxnRequest, pb.TxnStatus]
    abortTransaction: UnaryCall[pb.TxnRequest, pb.TxnStatus]
    checkTransactionState: UnaryCall[pb.TxnRequest, pb.TxnState]
    listCompletedTransactions: UnaryCall[pb.ListCompletedTxnRequest, pb.ListCompletedTxnResponse]
    describeTransaction: UnaryCall[added.DescribeTransactionRequest, added.TransactionDescription]
    listOpenTransactions: UnaryCall[added.OpenTransactionsRequest, added.OpenTransactionsReply]


class TransactionCalls(CallGroup):
    """See the module. Calls on an ended transaction raise the error that names the cause."""

    _stub: TransactionStub

    @abstractmethod
    async def current_segments(self, scope: str, stream: str) -> Sequence[SegmentRange]:
        """Return the segments that take events now; none for a sealed stream."""

    async def create_transaction(
        self, scope: str, stream: str, *, lease_ms: int
    ) -> tuple[pb.TxnId, Sequence[SegmentRange]]:
        """Begin a transaction; return its id and the parent segments.

        A lost reply leaves an unused transaction, which is aborted when its lease ends. Raises `NoSuchStreamError`,
        `StreamSealedError`, and `InvalidArgumentError` with the bounds if the lease is outside them.
        """
        request = pb.CreateTxnRequest(streamInfo=_stream(scope, stream), lease=lease_ms)

        async def check_sealed() -> None:
            # A controller returns only INTERNAL, as it does for transient errors.
            if not await self.current_segments(scope, stream):
                raise StreamSealedError(f"stream {scope}/{stream} is sealed and takes no transactions")

        what = f"begin a transaction on {scope}/{stream}"
        reply, _ = await self._attempt(
            self._stub.createTransaction, request, what, is_change=False, on_internal=check_sealed
        )
        return reply.txnId, [range_from_message(segment) for segment in reply.activeSegments]

    async def ping_transaction(
        self, scope: str, stream: str, transaction: pb.TxnId, *, lease_ms: int, tried: str = "renew the lease of"
    ) -> None:
        """Extend a transaction's lease to `lease_ms` from now. `tried`: the purpose, in messages.

        Raises the subclass of `TransactionError` that names the cause; `InvalidArgumentError` for too long a lease,
        `NoSuchStreamError`.
        """
        request = pb.PingTxnRequest(streamInfo=_stream(scope, stream), txnId=transaction, lease=lease_ms)
        what = _named(tried, scope, stream, transaction)
        status = (await self._ask(self._stub.pingTransaction, request, what)).status
        answers = pb.PingTxnStatus
        if status == answers.OK:
            return
        if status == answers.LEASE_TOO_LARGE:
            raise InvalidArgumentError(f"{what}: a lease of {lease_ms / 1000:g} s is longer than the server allows")
        if status == answers.MAX_EXECUTION_TIME_EXCEEDED:
            raise TransactionExpiredError(
                f"cannot {what}: it has reached the maximum time that the server allows; commit it before its lease "
                "ends, or it is aborted",
                stream=f"{scope}/{stream}", transaction=transaction_text(transaction),
            )  # fmt: skip
        if status == answers.DISCONNECTED:
            raise ControllerUnavailableError(f"{what}: the controller is shutting down and does not renew transactions")
        raise await self.over_error(scope, stream, transaction, tried)

    async def commit_transaction(
        self, scope: str, stream: str, transaction: pb.TxnId, *, writer_id: str = "", timestamp: int = NO_TIME
    ) -> None:
        """Commit the transaction; its events become readable soon after. Safe to repeat.

        With a `writer_id`, `timestamp` is noted for that writer, as by `note_time`, with the transaction's end. Raises
        the subclass of `TransactionError` that names the cause; `NoSuchStreamError`.
        """
        request = pb.TxnRequest(
            streamInfo=_stream(scope, stream), txnId=transaction, writerId=writer_id, timestamp=timestamp
        )
        await self._decide(self._stub.commitTransaction, request, "commit")

    async def abort_transaction(self, scope: str, stream: str, transaction: pb.TxnId) -> None:
        """Abort the transaction. Safe to repeat. Raises as `commit_transaction`."""
        request = pb.TxnRequest(streamInfo=_stream(scope, stream), txnId=transaction)
        await self._decide(self._stub.abortTransaction, request, "abort")

    async def _decide(self, call: UnaryCall[pb.TxnRequest, pb.TxnStatus], request: pb.TxnRequest, tried: str) -> None:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        what = _named(tried, scope, stream, request.txnId)
        status = (await self._change(call, request, what))[0].status
        if status == pb.TxnStatus.STREAM_NOT_FOUND:
            raise NoSuchStreamError(f"cannot {what}: the stream does not exist or was deleted")
        if status != pb.TxnStatus.SUCCESS:
            raise await self.over_error(scope, stream, request.txnId, tried)

    async def over_error(self, scope: str, stream: str, transaction: pb.TxnId, tried: str) -> TransactionError:
        """Return the error that says why `tried` cannot be done with a transaction. Raises `NoSuchStreamError`."""
        return over_error(tried, f"{scope}/{stream}", await self.describe_transaction(scope, stream, transaction))

    async def transaction_state(self, scope: str, stream: str, transaction: pb.TxnId) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        request = pb.TxnRequest(streamInfo=_stream(scope, stream), txnId=transaction)
        what = _named("check", scope, stream, transaction)
        reply = await self._ask(self._stub.checkTransactionState, request, what)
        return pb.TxnState.State.Name(reply.state)

    async def describe_transaction(self, scope: str, stream: str, transaction: pb.TxnId) -> TransactionInfo:
        """Return the controller's record of a transaction; controllers other than Penstock's return only its state.

        Raises `NoSuchStreamError`.
        """
        request = added.DescribeTransactionRequest(streamInfo=_stream(scope, stream), txnId=transaction)
        what = _named("describe", scope, stream, transaction)
        try:
            reply = await self._ask(self._stub.describeTransaction, request, what)
        except UnsupportedOperationError:
            state = await self.transaction_state(scope, stream, transaction)
            return TransactionInfo(transaction_text(transaction), state)
        return _info(reply)

    async def open_transactions(self, scope: str, stream: str) -> AsyncIterator[TransactionInfo]:
        """Iterate over the transactions of a stream that have not ended, page by page.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` if the controller is not Penstock's.
        """
        token = ""
        what = f"list the open transactions of stream {scope}/{stream}"
        for _ in range(self._settings.list_page_count_max):
            request = added.OpenTransactionsRequest(streamInfo=_stream(scope, stream), token=token)
            reply = await self._ask(self._stub.listOpenTransactions, request, what)
            if not reply.transactions:
                return
            for found in reply.transactions:
                yield _info(found)
            token = reply.token
        raise StreamError(f"{what}: the listing did not end within {self._settings.list_page_count_max} pages")

    async def completed_transactions(self, scope: str, stream: str) -> Sequence[tuple[pb.TxnId, str]]:
        """Return recent outcomes of transactions, ``COMMITTED`` or ``ABORTED``. Raises `NoSuchStreamError`."""
        request = pb.ListCompletedTxnRequest(streamInfo=_stream(scope, stream))
        what = f"list the completed transactions of {scope}/{stream}"
        reply = await self._ask(self._stub.listCompletedTransactions, request, what)
        return [(each.txnId, pb.TxnResponse.Status.Name(each.status)) for each in reply.response]


def _stream(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def _named(tried: str, scope: str, stream: str, transaction: pb.TxnId) -> str:
    return f"{tried} transaction {transaction_text(transaction)} on stream {scope}/{stream}"


def _info(found: added.TransactionDescription) -> TransactionInfo:
    state = added.TransactionState.Name(found.state)
    is_undecided = state in ("OPEN", "PREPARED")
    is_active = is_undecided or state in ("COMMITTING", "ABORTING")
    reason = added.TransactionDescription.AbortReason.Name(found.abortReason)
    return TransactionInfo(
        transaction_text(found.txnId),
        state,
        age_s=None if state == "UNKNOWN" else found.ageMillis / 1000,
        lease_s=found.leaseMillis / 1000 if is_active else None,
        lease_left_s=found.leaseLeftMillis / 1000 if is_undecided else None,
        lifetime_left_s=found.lifetimeLeftMillis / 1000 if state == "OPEN" else None,
        writer=found.writerId,
        abort_reason="" if reason == "NONE" else reason,
    )

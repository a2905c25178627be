"""The controller's calls that Penstock has beyond Pravega's, a part of `ControllerClient`.

A controller that is Pravega's own, or of an earlier release, has none of them: `UnsupportedOperationError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from penstock.client.unary_call import Reply, Request, UnaryCall
from penstock.model.errors import TransactionError
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb


class AdditionStub(Protocol):
    """The RPCs that are used here."""

    prepareTransaction: UnaryCall[added.PrepareTransactionRequest, added.PrepareTransactionReply]


class AdditionCalls(ABC):
    """See the module."""

    _stub: AdditionStub

    @abstractmethod
    async def _change(self, call: UnaryCall[Request, Reply], request: Request, what: str) -> tuple[Reply, bool]:
        """Make a call that changes something; also say whether an earlier attempt may have been carried out."""

    @abstractmethod
    async def over_error(self, scope: str, stream: str, transaction: pb.TxnId, tried: str) -> TransactionError:
        """Return the error that says why `tried` cannot be done with a transaction."""

    async def prepare_transaction(self, scope: str, stream: str, transaction: pb.TxnId, *, limit_ms: int) -> float:
        """Have an open transaction take no more events, and wait for its decision up to `limit_ms` from now.

        Returns the seconds until its limit ends. Safe to repeat: the later end counts.
        Raises `TransactionError`, of a kind that says what became of it; `InvalidArgumentError` for a limit out of
        bounds, `NoSuchStreamError`, `OutcomeUnknownError` without an answer.
        """
        name = f"{scope}/{stream}"
        request = added.PrepareTransactionRequest(
            streamInfo=pb.StreamInfo(scope=scope, stream=stream), txnId=transaction, limitMillis=limit_ms
        )
        reply, _ = await self._change(self._stub.prepareTransaction, request, f"prepare a transaction of {name}")
        if reply.state != added.PREPARED:
            raise await self.over_error(scope, stream, transaction, "prepare")
        return reply.leftMillis / 1000

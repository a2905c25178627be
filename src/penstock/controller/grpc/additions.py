"""The calls that Penstock has beyond Pravega's, in a service of their own."""

from __future__ import annotations

from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front, need_stream
from penstock.controller.metadata.records import TransactionStatus
from penstock.rpc import additions_pb2 as added

_STATES = {
    TransactionStatus.UNKNOWN: added.UNKNOWN,
    TransactionStatus.OPEN: added.OPEN,
    TransactionStatus.COMMITTING: added.COMMITTING,
    TransactionStatus.COMMITTED: added.COMMITTED,
    TransactionStatus.ABORTING: added.ABORTING,
    TransactionStatus.ABORTED: added.ABORTED,
}


async def prepare_transaction(
    front: Front, request: added.PrepareTransactionRequest
) -> added.PrepareTransactionReply:
    """Answer prepareTransaction."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    found = await front.service.transactions.prepare(info.scope, info.stream, transaction, request.limitMillis)
    if isinstance(found, TransactionStatus):
        return added.PrepareTransactionReply(state=_STATES[found])
    left_ms = found.lease_expiry_ms - front.service.transactions.now_ms()
    return added.PrepareTransactionReply(state=added.PREPARED, leftMillis=max(0, left_ms))

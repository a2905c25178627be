"""The calls for transactions, and for the times that writers note.

Source: controller-api 9.14 and 9.15.
"""

from __future__ import annotations

from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front, need_stream
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.transactions.service import PingResult
from penstock.rpc import controller_pb2 as pb

_PING_RESULTS = {
    PingResult.OK: pb.PingTxnStatus.OK,
    PingResult.LEASE_TOO_LARGE: pb.PingTxnStatus.LEASE_TOO_LARGE,
    PingResult.LIFETIME_EXCEEDED: pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED,
    PingResult.DISCONNECTED: pb.PingTxnStatus.DISCONNECTED,
    PingResult.COMMITTED: pb.PingTxnStatus.COMMITTED,
    PingResult.ABORTED: pb.PingTxnStatus.ABORTED,
    PingResult.UNKNOWN: pb.PingTxnStatus.UNKNOWN,
}
_STATES = {
    TransactionStatus.UNKNOWN: pb.TxnState.UNKNOWN,
    TransactionStatus.OPEN: pb.TxnState.OPEN,
    TransactionStatus.COMMITTING: pb.TxnState.COMMITTING,
    TransactionStatus.COMMITTED: pb.TxnState.COMMITTED,
    TransactionStatus.ABORTING: pb.TxnState.ABORTING,
    TransactionStatus.ABORTED: pb.TxnState.ABORTED,
}
_COMPLETED = {
    TransactionStatus.COMMITTED: pb.TxnResponse.COMMITTED,
    TransactionStatus.ABORTED: pb.TxnResponse.ABORTED,
}
_COMMITS = (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)
_ABORTS = (TransactionStatus.ABORTING, TransactionStatus.ABORTED)


async def create_transaction(front: Front, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
    """Answer createTransaction."""
    info = request.streamInfo
    need_stream(info)
    created = await front.service.transactions.create(info.scope, info.stream, request.lease)
    return pb.CreateTxnResponse(
        txnId=convert.transaction_id_message(created.id),
        activeSegments=[convert.segment_range(info.scope, info.stream, segment) for segment in created.epoch.segments],
    )


async def ping_transaction(front: Front, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
    """Answer pingTransaction."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    result = await front.service.transactions.ping(info.scope, info.stream, transaction, request.lease)
    return pb.PingTxnStatus(status=_PING_RESULTS[result])


async def commit_transaction(front: Front, request: pb.TxnRequest) -> pb.TxnStatus:
    """Answer commitTransaction."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    status = await front.service.transactions.commit(
        info.scope, info.stream, transaction, writer_id=request.writerId, timestamp=request.timestamp
    )
    return decided(status, _COMMITS)


async def abort_transaction(front: Front, request: pb.TxnRequest) -> pb.TxnStatus:
    """Answer abortTransaction."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    return decided(await front.service.transactions.abort(info.scope, info.stream, transaction), _ABORTS)


def decided(status: TransactionStatus, wanted: tuple[TransactionStatus, ...]) -> pb.TxnStatus:
    """Return whether a transaction was decided as wanted; FAILURE means that it was finally decided otherwise."""
    if status in wanted:
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS)
    if status is TransactionStatus.UNKNOWN:
        return pb.TxnStatus(status=pb.TxnStatus.TRANSACTION_NOT_FOUND)
    return pb.TxnStatus(status=pb.TxnStatus.FAILURE)


async def check_transaction_state(front: Front, request: pb.TxnRequest) -> pb.TxnState:
    """Answer checkTransactionState."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    return pb.TxnState(state=_STATES[await front.service.transactions.status(info.scope, info.stream, transaction)])


async def list_completed_transactions(front: Front, request: pb.ListCompletedTxnRequest) -> pb.ListCompletedTxnResponse:
    """Answer listCompletedTransactions."""
    info = request.streamInfo
    need_stream(info)
    found = await front.service.transactions.completed(info.scope, info.stream)
    return pb.ListCompletedTxnResponse(
        response=[
            pb.TxnResponse(txnId=convert.transaction_id_message(transaction), status=_COMPLETED[status])
            for transaction, status in found
        ]
    )


async def note_timestamp_from_writer(front: Front, request: pb.TimestampFromWriter) -> pb.TimestampResponse:
    """Answer noteTimestampFromWriter."""
    info = request.position.streamInfo
    need_stream(info)
    await front.service.writer_marks.note(
        info.scope, info.stream, request.writer, request.timestamp, dict(request.position.cut)
    )
    return pb.TimestampResponse(result=pb.TimestampResponse.SUCCESS)


async def remove_writer(front: Front, request: pb.RemoveWriterRequest) -> pb.RemoveWriterResponse:
    """Answer removeWriter."""
    need_stream(request.stream)
    await front.service.writer_marks.remove(request.stream.scope, request.stream.stream, request.writer)
    return pb.RemoveWriterResponse(result=pb.RemoveWriterResponse.SUCCESS)

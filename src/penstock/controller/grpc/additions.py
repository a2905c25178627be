"""The calls that Penstock adds to Pravega's, in a separate service."""

from __future__ import annotations

from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front, need_stream
from penstock.controller.metadata.records import AbortReason, TransactionStatus
from penstock.controller.metadata.retention_records import RetentionEntry
from penstock.controller.retention.explanation import CutPosition
from penstock.controller.transactions.descriptions import TransactionDescription
from penstock.model.errors import UnsupportedOperationError
from penstock.rpc import additions_pb2 as added

_STATES = {
    TransactionStatus.UNKNOWN: added.UNKNOWN,
    TransactionStatus.OPEN: added.OPEN,
    TransactionStatus.COMMITTING: added.COMMITTING,
    TransactionStatus.COMMITTED: added.COMMITTED,
    TransactionStatus.ABORTING: added.ABORTING,
    TransactionStatus.ABORTED: added.ABORTED,
}
_REASONS = {
    AbortReason.NONE: added.TransactionDescription.NONE,
    AbortReason.REQUESTED: added.TransactionDescription.REQUESTED,
    AbortReason.LEASE_ENDED: added.TransactionDescription.LEASE_ENDED,
    AbortReason.STREAM_SEALED: added.TransactionDescription.STREAM_SEALED,
}


async def prepare_transaction(front: Front, request: added.PrepareTransactionRequest) -> added.PrepareTransactionReply:
    """Answer prepareTransaction."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    found = await front.service.transactions.prepare(info.scope, info.stream, transaction, request.limitMillis)
    if isinstance(found, TransactionStatus):
        return added.PrepareTransactionReply(state=_STATES[found])
    left_ms = found.lease_expiry_ms - front.service.transactions.now_ms()
    return added.PrepareTransactionReply(state=added.PREPARED, leftMillis=max(0, left_ms))


async def describe_transaction(front: Front, request: added.DescribeTransactionRequest) -> added.TransactionDescription:
    """Answer describeTransaction."""
    info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
    need_stream(info)
    return _description(await front.service.transactions.descriptions.one(info.scope, info.stream, transaction))


async def list_open_transactions(front: Front, request: added.OpenTransactionsRequest) -> added.OpenTransactionsReply:
    """Answer listOpenTransactions."""
    info = request.streamInfo
    need_stream(info)
    page = await front.service.transactions.descriptions.open(info.scope, info.stream, request.token)
    return added.OpenTransactionsReply(
        transactions=[_description(found) for found in page.transactions], token=page.token
    )


def _description(found: TransactionDescription) -> added.TransactionDescription:
    return added.TransactionDescription(
        txnId=convert.transaction_id_message(found.id),
        state=added.PREPARED if found.is_prepared else _STATES[found.status],
        ageMillis=found.age_ms,
        leaseMillis=found.lease_ms,
        leaseLeftMillis=found.lease_left_ms,
        lifetimeLeftMillis=found.lifetime_left_ms,
        writerId=found.writer_id,
        abortReason=_REASONS[found.abort_reason],
    )


async def explain_retention(front: Front, request: added.ExplainRetentionRequest) -> added.RetentionExplanation:
    """Answer explainRetention."""
    info = request.streamInfo
    need_stream(info)
    found = await front.service.retention_explanations.of(info.scope, info.stream)

    def cut(entry: RetentionEntry | None) -> added.RetentionExplanation.RecordedCut | None:
        if entry is None:
            return None
        age_ms = max(0, found.now_ms - entry.recorded_ms)
        return added.RetentionExplanation.RecordedCut(ageMillis=age_ms, sizeBytes=entry.size_bytes)

    return added.RetentionExplanation(
        policy=None if found.policy is None else convert.retention_message(found.policy),
        isSealed=found.is_sealed,
        isEnabled=found.is_enabled,
        row="NONE" if found.row is None else found.row.name,
        head=_place(found.head),
        tail=_place(found.tail),
        chosen=_place(found.chosen),
        bound=_place(found.bound),
        minCut=cut(found.min_entry),
        maxCut=cut(found.max_entry),
        cuts=[each for entry in found.cuts if (each := cut(entry)) is not None],
        cutCount=found.cut_count,
        subscribers=[
            added.RetentionExplanation.Subscriber(
                name=one.name, hasPublished=one.has_published, place=_place(one.place), isLast=one.is_last
            )
            for one in found.subscribers
        ],
        subscriberCount=found.subscriber_count,
        isCutDue=found.is_cut_due,
        intervalMillis=found.interval_ms,
        nextLookMillis=found.next_scan_ms,
    )


async def find_whole_tail(front: Front, request: added.WholeTailRequest) -> added.WholeTail:
    """Answer findWholeTail."""
    info = request.streamInfo
    need_stream(info)
    return added.WholeTail(cut=await front.service.transactional_tails.of(info.scope, info.stream))


async def describe_stream(front: Front, request: added.DescribeStreamRequest) -> added.StreamDescription:
    """Answer describeStream."""
    info = request.streamInfo
    need_stream(info)
    return added.StreamDescription(identity=await front.service.queries.identity(info.scope, info.stream))


async def describe_history(front: Front, request: added.DescribeHistoryRequest) -> added.StreamHistory:
    """Answer describeHistory."""
    info = request.streamInfo
    need_stream(info)
    page = await front.service.queries.history(info.scope, info.stream, request.before or None, request.limit)
    return added.StreamHistory(
        epochs=[
            added.StreamHistory.Epoch(
                epoch=entry.epoch,
                beganMillis=entry.created_ms,
                created=[
                    added.StreamHistory.Segment(id=segment.id, keyLow=segment.key_start, keyHigh=segment.key_end)
                    for segment in entry.created
                ],
                sealed=entry.sealed,
            )
            for entry in page.entries
        ],
        currentEpoch=page.current_epoch,
        isSealed=page.is_sealed,
    )


async def open_session(front: Front, request: added.OpenSessionRequest) -> added.OpenSessionReply:
    """Refuse openSession: with accounts, the guard answers it."""
    raise UnsupportedOperationError("the server has no accounts, so there is nothing to log in to")


async def describe_caller(front: Front, request: added.DescribeCallerRequest) -> added.DescribeCallerReply:
    """Answer describeCaller for a server without accounts: with accounts, the guard answers it."""
    return added.DescribeCallerReply()


def _place(found: CutPosition | None) -> added.RetentionExplanation.Place | None:
    if found is None:
        return None
    return added.RetentionExplanation.Place(cut=found.cut, sizeBytes=found.size_bytes)

"""The calls of the gRPC service, one method each: message in, message out.

What a response enum can say is said there; the rest is raised, and `penstock.controller.grpc.status` chooses the gRPC
status. FAILURE is kept for trouble that a retry can mend, because the Rust client answers it with ten retries.

Source: controller API specification, sections 4, 5, 9 and 10.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from google.protobuf.message import Message

from penstock.controller.errors import (
    NoSuchWriterError,
    ScalePreconditionError,
    ScaleUnderWayError,
    WriterPositionError,
    WriterTimeError,
)
from penstock.controller.grpc import convert
from penstock.controller.grpc.replies import give_up_unless_retriable, page_of
from penstock.controller.grpc.scope_calls import GroupCalls, TableCalls
from penstock.controller.grpc.status import LateArgumentError
from penstock.controller.metadata.catalog import NamePage
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.service import ControllerService
from penstock.controller.transactions.service import PingResult
from penstock.controller.workflows.scale_stream import ScaleStatus
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    InvalidNameError,
    MetadataConflictError,
    NoSuchScopeError,
    NoSuchStreamError,
    PenstockError,
    ScopeExistsError,
    ScopeNotEmptyError,
    StreamExistsError,
    StreamNotSealedError,
    StreamSealedError,
)
from penstock.rpc import controller_pb2 as pb

_logger = logging.getLogger(__name__)

_PING_RESULTS = {
    PingResult.OK: pb.PingTxnStatus.OK,
    PingResult.LEASE_TOO_LARGE: pb.PingTxnStatus.LEASE_TOO_LARGE,
    PingResult.LIFETIME_EXCEEDED: pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED,
    PingResult.DISCONNECTED: pb.PingTxnStatus.DISCONNECTED,
    PingResult.COMMITTED: pb.PingTxnStatus.COMMITTED,
    PingResult.ABORTED: pb.PingTxnStatus.ABORTED,
    PingResult.UNKNOWN: pb.PingTxnStatus.UNKNOWN,
}
_TRANSACTION_STATES = {
    TransactionStatus.UNKNOWN: pb.TxnState.UNKNOWN,
    TransactionStatus.OPEN: pb.TxnState.OPEN,
    TransactionStatus.COMMITTING: pb.TxnState.COMMITTING,
    TransactionStatus.COMMITTED: pb.TxnState.COMMITTED,
    TransactionStatus.ABORTING: pb.TxnState.ABORTING,
    TransactionStatus.ABORTED: pb.TxnState.ABORTED,
}
_SCALE_STATUS = {
    ScaleStatus.IN_PROGRESS: pb.ScaleStatusResponse.IN_PROGRESS,
    ScaleStatus.SUCCESS: pb.ScaleStatusResponse.SUCCESS,
    ScaleStatus.UNKNOWN_EPOCH: pb.ScaleStatusResponse.INVALID_INPUT,
}
_COMMITS = (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)
_ABORTS = (TransactionStatus.ABORTING, TransactionStatus.ABORTED)


class GrpcCalls:
    """Answers messages by calling a `ControllerService`. `server_list`: host and port of each live controller."""

    def __init__(self, service: ControllerService, server_list: Callable[[], list[tuple[str, int]]]) -> None:
        self._service = service
        self._server_list = server_list
        self.groups: GroupCalls = GroupCalls(service)
        self.tables: TableCalls = TableCalls(service)

    # Scopes.

    async def create_scope(self, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
        """Answer createScope."""
        reply = pb.CreateScopeStatus
        if not request.scope:
            raise InvalidArgumentError("the scope's name is empty")
        try:
            await self._service.create_scope(request.scope)
        except InvalidNameError:
            return reply(status=reply.INVALID_SCOPE_NAME)
        except ScopeExistsError:
            return reply(status=reply.SCOPE_EXISTS)
        except PenstockError as error:
            give_up_unless_retriable(error, "createScope", request.scope)
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def delete_scope(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        """Answer deleteScope."""
        return await self._delete_scope(request, self._service.delete_scope)

    async def delete_scope_recursive(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        """Answer deleteScopeRecursive."""
        return await self._delete_scope(request, self._service.delete_scope_recursive)

    async def _delete_scope(
        self, request: pb.ScopeInfo, delete: Callable[[str], Awaitable[None]]
    ) -> pb.DeleteScopeStatus:
        reply = pb.DeleteScopeStatus
        if not request.scope:
            raise InvalidArgumentError("the scope's name is empty")
        try:
            await delete(request.scope)
        except NoSuchScopeError:
            return reply(status=reply.SCOPE_NOT_FOUND)
        except ScopeNotEmptyError:
            return reply(status=reply.SCOPE_NOT_EMPTY)
        except PenstockError as error:
            give_up_unless_retriable(error, "deleteScope", request.scope)
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def list_scopes(self, request: pb.ScopesRequest) -> pb.ScopesResponse:
        """Answer listScopes."""
        page = await page_of(self._service.list_scopes(request.continuationToken.token))
        return pb.ScopesResponse(scopes=page.names, continuationToken=pb.ContinuationToken(token=page.token))

    async def check_scope_exists(self, request: pb.ScopeInfo) -> pb.ExistsResponse:
        """Answer checkScopeExists."""
        return pb.ExistsResponse(exists=await self._service.scope_exists(request.scope))

    # Streams.

    async def create_stream(self, request: pb.StreamConfig) -> pb.CreateStreamStatus:
        """Answer createStream."""
        reply = pb.CreateStreamStatus
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        if not scope or not stream:
            raise InvalidArgumentError(f"scope {scope!r}, stream {stream!r}: neither may be empty")
        try:
            if request.HasField("scalingPolicy") and request.scalingPolicy.minNumSegments < 1:
                _logger.info("createStream %s/%s: no stream without segments", scope, stream)
                return reply(status=reply.FAILURE)
            await self._service.create_stream(scope, stream, convert.stream_config(request))
        except InvalidNameError:
            return reply(status=reply.INVALID_STREAM_NAME)
        except StreamExistsError:
            return reply(status=reply.STREAM_EXISTS)
        except NoSuchScopeError:
            return reply(status=reply.SCOPE_NOT_FOUND)
        except PenstockError as error:
            give_up_unless_retriable(error, "createStream", f"{scope}/{stream}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def update_stream(self, request: pb.StreamConfig) -> pb.UpdateStreamStatus:
        """Answer updateStream."""
        info = request.streamInfo
        configuration = convert.stream_config(request)
        return await self._change(
            "updateStream", info, self._service.update_stream(info.scope, info.stream, configuration)
        )

    async def seal_stream(self, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
        """Answer sealStream."""
        return await self._change("sealStream", request, self._service.seal_stream(request.scope, request.stream))

    async def truncate_stream(self, request: pb.StreamCut) -> pb.UpdateStreamStatus:
        """Answer truncateStream."""
        info = request.streamInfo
        if not info.scope or not info.stream:
            raise InvalidArgumentError(f"scope {info.scope!r}, stream {info.stream!r}: neither may be empty")
        try:
            return await self._change(
                "truncateStream", info, self._service.truncate_stream(info.scope, info.stream, dict(request.cut))
            )
        except InvalidArgumentError as error:
            _logger.info("truncateStream %s/%s: %s", info.scope, info.stream, error)
            return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.FAILURE)

    @staticmethod
    async def _change(what: str, info: pb.StreamInfo, change: Awaitable[None]) -> pb.UpdateStreamStatus:
        reply = pb.UpdateStreamStatus
        try:
            await change
        except NoSuchStreamError:
            return reply(status=reply.STREAM_NOT_FOUND)
        except StreamSealedError:
            return reply(status=reply.STREAM_SEALED)
        except PenstockError as error:
            give_up_unless_retriable(error, what, f"{info.scope}/{info.stream}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def scale(self, request: pb.ScaleRequest) -> pb.ScaleResponse:
        """Answer scale."""
        reply, info = pb.ScaleResponse, request.streamInfo
        # Two ranges with one start are one, as in Pravega.
        ranges = list({entry.start: entry.end for entry in request.newKeyRanges}.items())
        try:
            begun = await self._service.scale_stream(info.scope, info.stream, list(request.sealedSegments), ranges)
        except ScalePreconditionError as error:
            _logger.info("scale %s/%s: %s", info.scope, info.stream, error)
            return reply(status=reply.PRECONDITION_FAILED)
        except (InvalidArgumentError, NoSuchStreamError, ScaleUnderWayError, StreamSealedError) as error:
            _logger.info("scale %s/%s: %s", info.scope, info.stream, error)
            return reply(status=reply.FAILURE)
        return reply(
            status=reply.STARTED,
            segments=[convert.segment_range(info.scope, info.stream, segment) for segment in begun.created],
            epoch=begun.active_epoch,
        )

    async def check_scale(self, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
        """Answer checkScale."""
        reply, info = pb.ScaleStatusResponse, request.streamInfo
        try:
            status = await self._service.scale_status(info.scope, info.stream, request.epoch)
        except NoSuchStreamError:
            return reply(status=reply.INVALID_INPUT)
        return reply(status=_SCALE_STATUS[status])

    async def delete_stream(self, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
        """Answer deleteStream."""
        reply = pb.DeleteStreamStatus
        try:
            await self._service.delete_stream(request.scope, request.stream)
        except NoSuchStreamError:
            return reply(status=reply.STREAM_NOT_FOUND)
        except StreamNotSealedError:
            return reply(status=reply.STREAM_NOT_SEALED)
        except PenstockError as error:
            give_up_unless_retriable(error, "deleteStream", f"{request.scope}/{request.stream}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def check_stream_exists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        """Answer checkStreamExists."""
        return pb.ExistsResponse(exists=await self._service.stream_exists(request.scope, request.stream))

    async def get_stream_configuration(self, request: pb.StreamInfo) -> pb.StreamConfig:
        """Answer getStreamConfiguration."""
        found = await self._service.stream_configuration(request.scope, request.stream)
        return convert.stream_config_message(request.scope, request.stream, found)

    async def list_streams_in_scope(self, request: pb.StreamsInScopeRequest) -> pb.StreamsInScopeResponse:
        """Answer listStreamsInScope."""
        token, scope = request.continuationToken.token, request.scope.scope
        return await self._list_streams(scope, token, self._service.list_streams(scope, token))

    async def list_streams_in_scope_for_tag(
        self, request: pb.StreamsInScopeWithTagRequest
    ) -> pb.StreamsInScopeResponse:
        """Answer listStreamsInScopeForTag."""
        token, scope = request.continuationToken.token, request.scope.scope
        return await self._list_streams(
            scope, token, self._service.list_streams_by_tag(scope, request.tag, token)
        )

    @staticmethod
    async def _list_streams(scope: str, token: str, listing: Awaitable[NamePage]) -> pb.StreamsInScopeResponse:
        reply = pb.StreamsInScopeResponse
        try:
            page = await page_of(listing)
        except NoSuchScopeError:
            # The token message must be there on every page: without it a Rust client sees no page at all.
            return reply(continuationToken=pb.ContinuationToken(token=token), status=reply.SCOPE_NOT_FOUND)
        return reply(
            streams=[convert.stream_info(scope, stream) for stream in page.names],
            continuationToken=pb.ContinuationToken(token=page.token),
            status=reply.SUCCESS,
        )

    # Segments.

    async def get_current_segments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        """Answer getCurrentSegments."""
        found = await self._service.current_segments(request.scope, request.stream)
        return convert.segment_ranges(request.scope, request.stream, found)

    async def get_epoch_segments(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        """Answer getEpochSegments."""
        info = request.streamInfo
        found = await self._service.epoch_segments(info.scope, info.stream, request.epoch)
        return convert.segment_ranges(info.scope, info.stream, found)

    async def get_segments(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        """Answer getSegments: the head of the stream, whatever the timestamp is."""
        info = request.streamInfo
        found = await self._service.head(info.scope, info.stream)
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(
                    segmentId=convert.segment_id(info.scope, info.stream, position.segment), offset=position.offset
                )
                for position in found
            ]
        )

    async def get_segments_immediately_following(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        """Answer getSegmentsImmediatelyFollowing, and its misspelt alias."""
        info = request.streamInfo
        found = await self._service.successors(info.scope, info.stream, request.segmentId)
        return pb.SuccessorResponse(
            segments=[
                pb.SuccessorResponse.SegmentEntry(
                    segment=convert.segment_range(info.scope, info.stream, successor.segment),
                    value=successor.predecessors,
                )
                for successor in found
            ]
        )

    async def get_segments_between(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        """Answer getSegmentsBetween."""
        info = request.streamInfo
        # `from` is a word of Python's, so the field can only be reached by name.
        start: dict[int, int] = dict(getattr(request, "from"))
        end = dict(request.to)
        try:
            found = await self._service.segments_between(info.scope, info.stream, start, end)
        except InvalidArgumentError as error:
            if start or end:
                raise LateArgumentError(str(error)) from error
            raise
        return pb.StreamCutRangeResponse(
            segments=[convert.segment_id(info.scope, info.stream, segment.id) for segment in found]
        )

    async def is_segment_valid(self, request: pb.SegmentId) -> pb.SegmentValidityResponse:
        """Answer isSegmentValid."""
        info = request.streamInfo
        is_valid = await self._service.is_segment_valid(info.scope, info.stream, request.segmentId)
        return pb.SegmentValidityResponse(response=is_valid)

    async def is_stream_cut_valid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        """Answer isStreamCutValid."""
        info = request.streamInfo
        is_valid = await self._service.is_stream_cut_valid(info.scope, info.stream, dict(request.cut))
        return pb.StreamCutValidityResponse(response=is_valid)

    async def get_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        """Answer getURI."""
        info = request.streamInfo
        host, port = self._service.endpoint_of(info.scope, info.stream, request.segmentId)
        return pb.NodeUri(endpoint=host, port=port)

    # Transactions.

    async def create_transaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        """Answer createTransaction."""
        info = request.streamInfo
        if not info.scope or not info.stream:
            raise InvalidArgumentError(f"scope {info.scope!r}, stream {info.stream!r}: neither may be empty")
        try:
            created = await self._service.transactions.create(info.scope, info.stream, request.lease)
        except InvalidArgumentError as error:
            raise LateArgumentError(str(error)) from error
        return pb.CreateTxnResponse(
            txnId=convert.transaction_id_message(created.id),
            activeSegments=[
                convert.segment_range(info.scope, info.stream, segment) for segment in created.epoch.segments
            ],
        )

    async def ping_transaction(self, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
        """Answer pingTransaction."""
        info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
        try:
            result = await self._service.transactions.ping(info.scope, info.stream, transaction, request.lease)
        except InvalidArgumentError as error:
            raise LateArgumentError(str(error)) from error
        return pb.PingTxnStatus(status=_PING_RESULTS[result])

    async def commit_transaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        """Answer commitTransaction."""
        info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
        decision = self._service.transactions.commit(
            info.scope, info.stream, transaction, writer_id=request.writerId, timestamp=request.timestamp
        )
        return await self._decide("commitTransaction", info, decision, _COMMITS)

    async def abort_transaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        """Answer abortTransaction."""
        info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
        decision = self._service.transactions.abort(info.scope, info.stream, transaction)
        return await self._decide("abortTransaction", info, decision, _ABORTS)

    @staticmethod
    async def _decide(
        what: str,
        info: pb.StreamInfo,
        decision: Awaitable[TransactionStatus],
        wanted: tuple[TransactionStatus, ...],
    ) -> pb.TxnStatus:
        reply = pb.TxnStatus
        try:
            status = await decision
        except NoSuchStreamError:
            return reply(status=reply.STREAM_NOT_FOUND)
        except MetadataConflictError as error:
            # FAILURE says that the transaction was decided otherwise, for good. Here nobody knows: it must be asked
            # again, as after every other error, which goes to the client as a gRPC status.
            raise ControllerUnavailableError(f"{what} on {info.scope}/{info.stream}: {error}") from error
        if status in wanted:
            return reply(status=reply.SUCCESS)
        if status is TransactionStatus.UNKNOWN:
            return reply(status=reply.TRANSACTION_NOT_FOUND)
        return reply(status=reply.FAILURE)

    async def check_transaction_state(self, request: pb.TxnRequest) -> pb.TxnState:
        """Answer checkTransactionState."""
        info, transaction = request.streamInfo, convert.transaction_id(request.txnId)
        status = await self._service.transactions.status(info.scope, info.stream, transaction)
        return pb.TxnState(state=_TRANSACTION_STATES[status])

    async def list_completed_transactions(
        self, request: pb.ListCompletedTxnRequest
    ) -> pb.ListCompletedTxnResponse:
        """Answer listCompletedTransactions."""
        info = request.streamInfo
        reply = pb.TxnResponse
        statuses = {TransactionStatus.COMMITTED: reply.COMMITTED, TransactionStatus.ABORTED: reply.ABORTED}
        found = await self._service.transactions.completed(info.scope, info.stream)
        return pb.ListCompletedTxnResponse(
            response=[
                reply(txnId=convert.transaction_id_message(transaction), status=statuses[status])
                for transaction, status in found
            ]
        )

    # Marks of writers.

    async def note_timestamp_from_writer(self, request: pb.TimestampFromWriter) -> pb.TimestampResponse:
        """Answer noteTimestampFromWriter."""
        reply, info = pb.TimestampResponse, request.position.streamInfo
        try:
            await self._service.writer_marks.note(
                info.scope, info.stream, request.writer, request.timestamp, dict(request.position.cut)
            )
        except WriterTimeError:
            return reply(result=reply.INVALID_TIME)
        except WriterPositionError:
            return reply(result=reply.INVALID_POSITION)
        except PenstockError as error:
            give_up_unless_retriable(error, "noteTimestampFromWriter", f"{info.scope}/{info.stream}")
            return reply(result=reply.INTERNAL_ERROR)
        return reply(result=reply.SUCCESS)

    async def remove_writer(self, request: pb.RemoveWriterRequest) -> pb.RemoveWriterResponse:
        """Answer removeWriter."""
        reply, info = pb.RemoveWriterResponse, request.stream
        try:
            await self._service.writer_marks.remove(info.scope, info.stream, request.writer)
        except NoSuchWriterError:
            return reply(result=reply.UNKNOWN_WRITER)
        except PenstockError as error:
            give_up_unless_retriable(error, "removeWriter", f"{info.scope}/{info.stream}")
            return reply(result=reply.INTERNAL_ERROR)
        return reply(result=reply.SUCCESS)

    # Others.

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        """Answer getControllerServerList."""
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in self._server_list()])

    async def get_delegation_token(self, request: pb.StreamInfo) -> pb.DelegationToken:
        """Answer getDelegationToken: empty, as there is no authorization; also for streams unknown here."""
        return pb.DelegationToken(delegationToken="")


def call_table(calls: GrpcCalls) -> Mapping[str, Callable[..., Awaitable[Message]]]:
    """Return the method that answers each call of the service, by the call's name. Calls not listed are not built."""
    return {
        "getControllerServerList": calls.get_controller_server_list,
        "createStream": calls.create_stream,
        "updateStream": calls.update_stream,
        "truncateStream": calls.truncate_stream,
        "sealStream": calls.seal_stream,
        "scale": calls.scale,
        "checkScale": calls.check_scale,
        "deleteStream": calls.delete_stream,
        "getCurrentSegments": calls.get_current_segments,
        "getEpochSegments": calls.get_epoch_segments,
        "getSegments": calls.get_segments,
        "getSegmentsImmediatlyFollowing": calls.get_segments_immediately_following,
        "getSegmentsImmediatelyFollowing": calls.get_segments_immediately_following,
        "getSegmentsBetween": calls.get_segments_between,
        "getURI": calls.get_uri,
        "isSegmentValid": calls.is_segment_valid,
        "isStreamCutValid": calls.is_stream_cut_valid,
        "createTransaction": calls.create_transaction,
        "commitTransaction": calls.commit_transaction,
        "abortTransaction": calls.abort_transaction,
        "pingTransaction": calls.ping_transaction,
        "checkTransactionState": calls.check_transaction_state,
        "listCompletedTransactions": calls.list_completed_transactions,
        "createScope": calls.create_scope,
        "listScopes": calls.list_scopes,
        "checkScopeExists": calls.check_scope_exists,
        "checkStreamExists": calls.check_stream_exists,
        "listStreamsInScope": calls.list_streams_in_scope,
        "deleteScope": calls.delete_scope,
        "deleteScopeRecursive": calls.delete_scope_recursive,
        "getDelegationToken": calls.get_delegation_token,
        "getStreamConfiguration": calls.get_stream_configuration,
        "listStreamsInScopeForTag": calls.list_streams_in_scope_for_tag,
        "noteTimestampFromWriter": calls.note_timestamp_from_writer,
        "removeWriter": calls.remove_writer,
        "createReaderGroup": calls.groups.create_reader_group,
        "getReaderGroupConfig": calls.groups.get_reader_group_config,
        "updateReaderGroup": calls.groups.update_reader_group,
        "deleteReaderGroup": calls.groups.delete_reader_group,
        "listSubscribers": calls.groups.list_subscribers,
        "updateSubscriberStreamCut": calls.groups.update_subscriber_stream_cut,
        "createKeyValueTable": calls.tables.create_key_value_table,
        "getCurrentSegmentsKeyValueTable": calls.tables.get_current_segments,
        "listKeyValueTablesInScope": calls.tables.list_key_value_tables_in_scope,
        "getKeyValueTableConfiguration": calls.tables.get_key_value_table_configuration,
        "deleteKeyValueTable": calls.tables.delete_key_value_table,
    }

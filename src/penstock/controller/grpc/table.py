"""The table of the gRPC service's calls: handler, required access and error replies of each.

Source: controller-api 2, 4 and 9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from penstock.controller.errors import (
    FinalArgumentError,
    LateArgumentError,
    NoSuchSubscriberError,
    NoSuchWriterError,
    ReaderGroupMismatchError,
    ScalePreconditionError,
    ScaleUnderWayError,
    StreamCutBehindError,
    SubscriberGenerationError,
    WriterPositionError,
    WriterTimeError,
)
from penstock.controller.grpc import (
    access,
    additions,
    administration,
    controllers,
    key_value_tables,
    reader_groups,
    scopes,
    segments,
    streams,
    transactions,
)
from penstock.controller.grpc.access import AccessOf
from penstock.controller.grpc.call import Call, Errors, Front
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    InvalidNameError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    ScopeExistsError,
    ScopeNotEmptyError,
    StreamExistsError,
    StreamNotSealedError,
    StreamSealedError,
    TableExistsError,
)
from penstock.model.permissions import Permission
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb

_READ = Permission.READ
_UPDATE = Permission.READ_UPDATE

#: For arguments that Pravega checks late in a request: leases, tokens of listings, cuts in the wrong order.
_LATE: Errors = {InvalidArgumentError: LateArgumentError}


def _status(reply: Callable[..., Message]) -> Callable[..., Message]:
    return lambda request, value: reply(status=value)


def _result(reply: Callable[..., Message]) -> Callable[..., Message]:
    return lambda request, value: reply(result=value)


def _stream_change(errors: Errors | None = None) -> Errors:
    return {
        NoSuchStreamError: pb.UpdateStreamStatus.STREAM_NOT_FOUND,
        StreamSealedError: pb.UpdateStreamStatus.STREAM_SEALED,
        **(errors or {}),
    }


def _decision() -> Errors:
    return {
        NoSuchStreamError: pb.TxnStatus.STREAM_NOT_FOUND,
        # FAILURE means that the transaction was finally decided otherwise. Here the outcome is unknown, and the client
        # must retry, as after every other error, which is sent as a gRPC status.
        MetadataConflictError: ControllerUnavailableError,
    }


CALLS: tuple[Call, ...] = (
    Call("getControllerServerList", controllers.get_controller_server_list, access.unchecked),
    Call("getControllerToBucketMapping", controllers.get_controller_to_bucket_mapping, access.root(_UPDATE)),
    Call("getDelegationToken", controllers.get_delegation_token, access.delegation),
    # Scopes.
    Call(
        "createScope", scopes.create_scope, access.root(_UPDATE),
        {
            InvalidNameError: pb.CreateScopeStatus.INVALID_SCOPE_NAME,
            ScopeExistsError: pb.CreateScopeStatus.SCOPE_EXISTS,
        },
        pb.CreateScopeStatus.FAILURE, _status(pb.CreateScopeStatus),
    ),
    Call("listScopes", scopes.list_scopes, access.root(_READ), _LATE),
    Call("checkScopeExists", scopes.check_scope_exists, access.scope(_READ)),
    Call(
        "deleteScope", scopes.delete_scope, access.root(_UPDATE),
        {
            NoSuchScopeError: pb.DeleteScopeStatus.SCOPE_NOT_FOUND,
            ScopeNotEmptyError: pb.DeleteScopeStatus.SCOPE_NOT_EMPTY,
        },
        pb.DeleteScopeStatus.FAILURE, _status(pb.DeleteScopeStatus),
    ),
    Call(
        "deleteScopeRecursive", scopes.delete_scope_recursive, access.root(_UPDATE),
        {ScopeNotEmptyError: pb.DeleteScopeStatus.SCOPE_NOT_EMPTY},
        pb.DeleteScopeStatus.FAILURE, _status(pb.DeleteScopeStatus),
    ),
    # Streams.
    Call(
        "createStream", streams.create_stream, access.creation,
        {
            InvalidNameError: pb.CreateStreamStatus.INVALID_STREAM_NAME,
            StreamExistsError: pb.CreateStreamStatus.STREAM_EXISTS,
            NoSuchScopeError: pb.CreateStreamStatus.SCOPE_NOT_FOUND,
        },
        pb.CreateStreamStatus.FAILURE, _status(pb.CreateStreamStatus),
    ),
    Call(
        "updateStream", streams.update_stream, access.owner(_UPDATE),
        _stream_change(), pb.UpdateStreamStatus.FAILURE, _status(pb.UpdateStreamStatus),
    ),
    Call(
        "truncateStream", streams.truncate_stream, access.stream(_UPDATE),
        _stream_change({InvalidArgumentError: pb.UpdateStreamStatus.FAILURE}),
        pb.UpdateStreamStatus.FAILURE, _status(pb.UpdateStreamStatus),
    ),
    Call(
        "sealStream", streams.seal_stream, access.stream(_UPDATE),
        _stream_change(), pb.UpdateStreamStatus.FAILURE, _status(pb.UpdateStreamStatus),
    ),
    Call(
        "deleteStream", streams.delete_stream, access.stream(_UPDATE),
        {
            NoSuchStreamError: pb.DeleteStreamStatus.STREAM_NOT_FOUND,
            StreamNotSealedError: pb.DeleteStreamStatus.STREAM_NOT_SEALED,
        },
        pb.DeleteStreamStatus.FAILURE, _status(pb.DeleteStreamStatus),
    ),
    Call(
        "scale", streams.scale, access.stream(_UPDATE),
        {
            ScalePreconditionError: pb.ScaleResponse.PRECONDITION_FAILED,
            InvalidArgumentError: pb.ScaleResponse.FAILURE,
            NoSuchStreamError: pb.ScaleResponse.FAILURE,
            ScaleUnderWayError: pb.ScaleResponse.FAILURE,
            StreamSealedError: pb.ScaleResponse.FAILURE,
        },
        None, _status(pb.ScaleResponse),
    ),
    Call(
        "checkScale", streams.check_scale, access.stream(_READ),
        {NoSuchStreamError: pb.ScaleStatusResponse.INVALID_INPUT},
        pb.ScaleStatusResponse.INTERNAL_ERROR, _status(pb.ScaleStatusResponse),
    ),
    Call("checkStreamExists", streams.check_stream_exists, access.stream(_READ)),
    Call("getStreamConfiguration", streams.get_stream_configuration, access.stream(_READ)),
    Call(
        "listStreamsInScope", streams.list_streams_in_scope, access.scope(_READ),
        {NoSuchScopeError: pb.StreamsInScopeResponse.SCOPE_NOT_FOUND, **_LATE}, None, streams.no_page,
    ),
    Call(
        "listStreamsInScopeForTag", streams.list_streams_in_scope_for_tag, access.scope(_READ),
        {NoSuchScopeError: pb.StreamsInScopeResponse.SCOPE_NOT_FOUND, **_LATE}, None, streams.no_page,
    ),
    # Segments.
    Call("getCurrentSegments", segments.get_current_segments, access.segments),
    Call("getEpochSegments", segments.get_epoch_segments, access.stream(_UPDATE)),
    Call("getSegments", segments.get_segments, access.segments),
    Call("getSegmentsImmediatlyFollowing", segments.get_segments_immediately_following, access.stream(_READ)),
    Call("getSegmentsImmediatelyFollowing", segments.get_segments_immediately_following, access.stream(_READ)),
    Call("getSegmentsBetween", segments.get_segments_between, access.stream(_READ), _LATE),
    Call("getURI", segments.get_uri, access.owner(_READ)),
    Call("isSegmentValid", segments.is_segment_valid, access.stream(_READ)),
    Call("isStreamCutValid", segments.is_stream_cut_valid, access.stream(_READ)),
    # Transactions.
    Call("createTransaction", transactions.create_transaction, access.stream(_UPDATE), _LATE),
    Call("pingTransaction", transactions.ping_transaction, access.stream(_UPDATE), _LATE),
    Call(
        "commitTransaction", transactions.commit_transaction, access.stream(_UPDATE),
        _decision(), None, _status(pb.TxnStatus),
    ),
    Call(
        "abortTransaction", transactions.abort_transaction, access.stream(_UPDATE),
        _decision(), None, _status(pb.TxnStatus),
    ),
    Call("checkTransactionState", transactions.check_transaction_state, access.stream(_READ)),
    Call("listCompletedTransactions", transactions.list_completed_transactions, access.stream(_READ)),
    # Times of writers.
    Call(
        "noteTimestampFromWriter", transactions.note_timestamp_from_writer, access.stream(_UPDATE),
        {
            WriterTimeError: pb.TimestampResponse.INVALID_TIME,
            WriterPositionError: pb.TimestampResponse.INVALID_POSITION,
        },
        pb.TimestampResponse.INTERNAL_ERROR, _result(pb.TimestampResponse),
    ),
    Call(
        "removeWriter", transactions.remove_writer, access.stream(_UPDATE),
        {NoSuchWriterError: pb.RemoveWriterResponse.UNKNOWN_WRITER},
        pb.RemoveWriterResponse.INTERNAL_ERROR, _result(pb.RemoveWriterResponse),
    ),
    # Reader groups and subscribers.
    Call(
        "createReaderGroup", reader_groups.create_reader_group, access.group_change,
        {
            InvalidNameError: pb.CreateReaderGroupResponse.INVALID_RG_NAME,
            NoSuchScopeError: pb.CreateReaderGroupResponse.SCOPE_NOT_FOUND,
        },
        pb.CreateReaderGroupResponse.FAILURE, _status(pb.CreateReaderGroupResponse),
    ),
    Call(
        "getReaderGroupConfig", reader_groups.get_reader_group_config, access.scope(_READ),
        {NoSuchReaderGroupError: pb.ReaderGroupConfigResponse.RG_NOT_FOUND},
        pb.ReaderGroupConfigResponse.FAILURE, reader_groups.no_config,
    ),
    Call(
        "updateReaderGroup", reader_groups.update_reader_group, access.group_change,
        {
            NoSuchReaderGroupError: pb.UpdateReaderGroupResponse.RG_NOT_FOUND,
            ReaderGroupMismatchError: pb.UpdateReaderGroupResponse.INVALID_CONFIG,
        },
        pb.UpdateReaderGroupResponse.FAILURE, _status(pb.UpdateReaderGroupResponse),
    ),
    Call(
        "deleteReaderGroup", reader_groups.delete_reader_group, access.group_change,
        {NoSuchReaderGroupError: pb.DeleteReaderGroupStatus.RG_NOT_FOUND},
        pb.DeleteReaderGroupStatus.FAILURE, _status(pb.DeleteReaderGroupStatus),
    ),
    Call(
        "listSubscribers", reader_groups.list_subscribers, access.stream(_UPDATE),
        {NoSuchStreamError: pb.SubscribersResponse.STREAM_NOT_FOUND},
        pb.SubscribersResponse.FAILURE, _status(pb.SubscribersResponse),
    ),
    Call(
        "updateSubscriberStreamCut", reader_groups.update_subscriber_stream_cut, access.stream(_UPDATE),
        {
            NoSuchStreamError: pb.UpdateSubscriberStatus.STREAM_NOT_FOUND,
            NoSuchSubscriberError: pb.UpdateSubscriberStatus.SUBSCRIBER_NOT_FOUND,
            SubscriberGenerationError: pb.UpdateSubscriberStatus.GENERATION_MISMATCH,
            StreamCutBehindError: pb.UpdateSubscriberStatus.STREAM_CUT_NOT_VALID,
        },
        pb.UpdateSubscriberStatus.FAILURE, _status(pb.UpdateSubscriberStatus),
    ),
    # Key-value tables.
    Call(
        "createKeyValueTable", key_value_tables.create_key_value_table, access.scope(_UPDATE),
        {
            InvalidNameError: pb.CreateKeyValueTableStatus.INVALID_TABLE_NAME,
            NoSuchScopeError: pb.CreateKeyValueTableStatus.SCOPE_NOT_FOUND,
            TableExistsError: pb.CreateKeyValueTableStatus.TABLE_EXISTS,
        },
        pb.CreateKeyValueTableStatus.FAILURE, _status(pb.CreateKeyValueTableStatus),
    ),
    Call("getCurrentSegmentsKeyValueTable", key_value_tables.get_current_segments, access.table(_UPDATE)),
    Call(
        "listKeyValueTablesInScope", key_value_tables.list_in_scope, access.scope(_READ),
        {NoSuchScopeError: pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND, **_LATE}, None, key_value_tables.no_page,
    ),
    Call(
        "getKeyValueTableConfiguration", key_value_tables.get_configuration, access.table(_READ),
        {NoSuchTableError: pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND},
        pb.KeyValueTableConfigResponse.FAILURE, key_value_tables.no_config,
    ),
    Call(
        "deleteKeyValueTable", key_value_tables.delete_key_value_table, access.table(_UPDATE),
        {NoSuchTableError: pb.DeleteKVTableStatus.TABLE_NOT_FOUND},
        pb.DeleteKVTableStatus.FAILURE, _status(pb.DeleteKVTableStatus),
    ),
)  # fmt: skip


#: The calls specific to Penstock, in a separate service.
ADDITIONS: tuple[Call, ...] = (
    Call(
        "prepareTransaction", additions.prepare_transaction, access.stream(_UPDATE),
        # As for decisions: it is unknown whether it is prepared, so the client must retry.
        {InvalidArgumentError: FinalArgumentError, MetadataConflictError: ControllerUnavailableError},
    ),
    Call("describeTransaction", additions.describe_transaction, access.stream(_READ)),
    Call(
        "listOpenTransactions", additions.list_open_transactions, access.stream(_READ),
        {InvalidArgumentError: FinalArgumentError},
    ),
    Call(
        "explainRetention", additions.explain_retention, access.stream(_READ),
        # The stream was truncated during the call: a retry can succeed.
        {MetadataConflictError: ControllerUnavailableError},
    ),
    Call("describeReaderGroups", reader_groups.describe_reader_groups, access.scope(_READ), _LATE),
    Call(
        "findWholeTail", additions.find_whole_tail, access.stream(_READ),
        # Transactions are being merged continuously: a retry may find a moment in between.
        {MetadataConflictError: ControllerUnavailableError},
    ),
    Call("describeStream", additions.describe_stream, access.stream(_READ)),
    Call(
        "describeHistory", additions.describe_history, access.stream(_READ),
        {InvalidArgumentError: FinalArgumentError},
    ),
    Call("openSession", additions.open_session, access.session),
    Call("describeCaller", additions.describe_caller, access.any_account),
    Call("describeMembers", administration.describe_members, access.root(_READ)),
    Call("changeAssignment", administration.change_assignment, access.root(_UPDATE)),
    Call("describeAccounts", administration.describe_accounts, access.any_account),
    Call("readAudit", administration.read_audit, access.root(_UPDATE)),
)  # fmt: skip


def call_table(front: Front) -> Mapping[str, Callable[..., Awaitable[Message]]]:
    """Return the function that answers each call of the services, by the call's name."""
    return {call.name: partial(call.serve, front) for call in (*CALLS, *ADDITIONS)}


def access_table() -> Mapping[str, AccessOf]:
    """Return the access that each call requires, by the call's name."""
    return {call.name: call.access for call in (*CALLS, *ADDITIONS)}


def services() -> tuple[ServiceDescriptor, ...]:
    """Return the descriptors of the services, Pravega's first."""
    return (
        pb.DESCRIPTOR.services_by_name["ControllerService"],
        added.DESCRIPTOR.services_by_name["PenstockControllerService"],
    )

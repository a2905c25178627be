"""Every call of the gRPC service with every error, and what its caller must be allowed to do.

The expectations are written here a second time, by hand, from controller-api 2, 4, 5, 9 and 12.2, so that an error in
the table of calls passes only if it was made twice.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.controller import errors as controller_errors
from penstock.controller.errors import HalfCreatedStreamError, WorkflowTimeoutError
from penstock.controller.grpc.access import stream_of
from penstock.controller.grpc.call import Front
from penstock.controller.grpc.status import status_of
from penstock.controller.grpc.table import CALLS
from penstock.controller.metadata.scope_records import GroupCut, KeyValueTableConfig, ReaderGroupConfig
from penstock.controller.service import ControllerService
from penstock.model import errors as model_errors
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.permissions import Permission
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableEntry
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.memory_segments import MemorySegments

if TYPE_CHECKING:
    from controller.conftest import Wire

METHODS = pb.DESCRIPTOR.services_by_name["ControllerService"].methods_by_name
ROWS = {call.name: call for call in CALLS}

_UPDATE_STREAM = {"NoSuchStreamError": "STREAM_NOT_FOUND", "StreamSealedError": "STREAM_SEALED"}
_DECISION = {"NoSuchStreamError": "STREAM_NOT_FOUND", "MetadataConflictError": "INTERNAL"}
_SCALE = ("InvalidArgumentError", "InvalidNameError", "NoSuchStreamError", "ScaleUnderWayError", "StreamSealedError")
_LATE = {"InvalidArgumentError": "UNKNOWN", "InvalidNameError": "UNKNOWN"}
_LISTING = {"NoSuchScopeError": "SCOPE_NOT_FOUND", **_LATE}
#: Call -> what it answers to what the state of things forbids, if it has a word for it; its words for single errors.
WORDS = {
    "getControllerServerList": (None, {}),
    "createStream": (
        "FAILURE",
        {
            "InvalidNameError": "INVALID_STREAM_NAME",
            "StreamExistsError": "STREAM_EXISTS",
            "NoSuchScopeError": "SCOPE_NOT_FOUND",
        },
    ),
    "updateStream": ("FAILURE", _UPDATE_STREAM),
    "truncateStream": (
        "FAILURE", {**_UPDATE_STREAM, "InvalidArgumentError": "FAILURE", "InvalidNameError": "FAILURE"}
    ),
    "sealStream": ("FAILURE", _UPDATE_STREAM),
    "deleteStream": (
        "FAILURE", {"NoSuchStreamError": "STREAM_NOT_FOUND", "StreamNotSealedError": "STREAM_NOT_SEALED"}
    ),
    "getCurrentSegments": (None, {}),
    "getEpochSegments": (None, {}),
    "getSegments": (None, {}),
    "getSegmentsImmediatlyFollowing": (None, {}),
    "getSegmentsImmediatelyFollowing": (None, {}),
    "getSegmentsBetween": (None, _LATE),
    "scale": (None, {**dict.fromkeys(_SCALE, "FAILURE"), "ScalePreconditionError": "PRECONDITION_FAILED"}),
    "checkScale": ("INTERNAL_ERROR", {"NoSuchStreamError": "INVALID_INPUT"}),
    "getURI": (None, {}),
    "isSegmentValid": (None, {}),
    "isStreamCutValid": (None, {}),
    "createTransaction": (None, _LATE),
    "commitTransaction": (None, _DECISION),
    "abortTransaction": (None, _DECISION),
    "pingTransaction": (None, _LATE),
    "checkTransactionState": (None, {}),
    "listCompletedTransactions": (None, {}),
    "createScope": ("FAILURE", {"InvalidNameError": "INVALID_SCOPE_NAME", "ScopeExistsError": "SCOPE_EXISTS"}),
    "listScopes": (None, _LATE),
    "checkScopeExists": (None, {}),
    "checkStreamExists": (None, {}),
    "listStreamsInScope": (None, _LISTING),
    "deleteScope": ("FAILURE", {"NoSuchScopeError": "SCOPE_NOT_FOUND", "ScopeNotEmptyError": "SCOPE_NOT_EMPTY"}),
    "deleteScopeRecursive": ("FAILURE", {"ScopeNotEmptyError": "SCOPE_NOT_EMPTY"}),
    "getDelegationToken": (None, {}),
    "getControllerToBucketMapping": (None, {}),
    "removeWriter": ("INTERNAL_ERROR", {"NoSuchWriterError": "UNKNOWN_WRITER"}),
    "noteTimestampFromWriter": (
        "INTERNAL_ERROR", {"WriterTimeError": "INVALID_TIME", "WriterPositionError": "INVALID_POSITION"}
    ),
    "createKeyValueTable": (
        "FAILURE",
        {
            "InvalidNameError": "INVALID_TABLE_NAME",
            "NoSuchScopeError": "SCOPE_NOT_FOUND",
            "TableExistsError": "TABLE_EXISTS",
        },
    ),
    "getCurrentSegmentsKeyValueTable": (None, {}),
    "listKeyValueTablesInScope": (None, _LISTING),
    "getKeyValueTableConfiguration": ("FAILURE", {"NoSuchTableError": "TABLE_NOT_FOUND"}),
    "deleteKeyValueTable": ("FAILURE", {"NoSuchTableError": "TABLE_NOT_FOUND"}),
    "listSubscribers": ("FAILURE", {"NoSuchStreamError": "STREAM_NOT_FOUND"}),
    "updateSubscriberStreamCut": (
        "FAILURE",
        {
            "NoSuchStreamError": "STREAM_NOT_FOUND",
            "NoSuchSubscriberError": "SUBSCRIBER_NOT_FOUND",
            "SubscriberGenerationError": "GENERATION_MISMATCH",
            "StreamCutBehindError": "STREAM_CUT_NOT_VALID",
        },
    ),
    "createReaderGroup": (
        "FAILURE", {"InvalidNameError": "INVALID_RG_NAME", "NoSuchScopeError": "SCOPE_NOT_FOUND"}
    ),
    "getReaderGroupConfig": ("FAILURE", {"NoSuchReaderGroupError": "RG_NOT_FOUND"}),
    "deleteReaderGroup": ("FAILURE", {"NoSuchReaderGroupError": "RG_NOT_FOUND"}),
    "updateReaderGroup": (
        "FAILURE", {"NoSuchReaderGroupError": "RG_NOT_FOUND", "ReaderGroupMismatchError": "INVALID_CONFIG"}
    ),
    "getStreamConfiguration": (None, {}),
    "listStreamsInScopeForTag": (None, _LISTING),
}  # fmt: skip

#: Error -> its gRPC status where the reply has no word for it, and whether asking again is of no use.
STATUS = {
    "InvalidArgumentError": ("INTERNAL", False),
    "InvalidNameError": ("INTERNAL", False),
    "NoSuchScopeError": ("NOT_FOUND", True),
    "NoSuchStreamError": ("NOT_FOUND", True),
    "NoSuchReaderGroupError": ("NOT_FOUND", True),
    "NoSuchTableError": ("NOT_FOUND", True),
    "ScopeExistsError": ("ALREADY_EXISTS", True),
    "StreamExistsError": ("ALREADY_EXISTS", True),
    "TableExistsError": ("INTERNAL", True),
    "ScopeNotEmptyError": ("FAILED_PRECONDITION", True),
    "StreamNotSealedError": ("FAILED_PRECONDITION", True),
    "StreamSealedError": ("INTERNAL", True),
    "TransactionError": ("INTERNAL", True),
    "MetadataConflictError": ("FAILED_PRECONDITION", True),
    "WorkElsewhereError": ("FAILED_PRECONDITION", False),
    "WorkflowTimeoutError": ("DEADLINE_EXCEEDED", False),
    "OutcomeUnknownError": ("INTERNAL", False),
    "ControllerUnavailableError": ("INTERNAL", False),
    "HalfCreatedStreamError": ("INTERNAL", False),
    "ScalePreconditionError": ("INTERNAL", True),
    "ScaleUnderWayError": ("INTERNAL", True),
    "StreamWithoutSegmentsError": ("INTERNAL", True),
    "ReaderGroupMismatchError": ("INTERNAL", True),
    "NoSuchSubscriberError": ("INTERNAL", True),
    "SubscriberGenerationError": ("INTERNAL", True),
    "StreamCutBehindError": ("INTERNAL", True),
    "NoSuchWriterError": ("INTERNAL", True),
    "WriterTimeError": ("INTERNAL", True),
    "WriterPositionError": ("INTERNAL", True),
    "UnsupportedOperationError": ("UNIMPLEMENTED", True),
    "NoSuchSegmentError": ("INTERNAL", True),
    "SegmentSealedError": ("INTERNAL", True),
    # What passes: it is asked again, and is never answered as if it were decided.
    "CorruptionError": ("DATA_LOSS", False),
    "StorageFullError": ("RESOURCE_EXHAUSTED", False),
    "StorageError": ("INTERNAL", False),
    "StorageNotRespondingError": ("INTERNAL", False),
    "ContainerOfflineError": ("INTERNAL", False),
    "ContainerNotFoundError": ("INTERNAL", False),
    "SegmentStoreBusyError": ("INTERNAL", False),
    "TooManyActiveSegmentsError": ("INTERNAL", False),
}


def made(name: str) -> PenstockError:
    """Return an error of a class, whatever its arguments are."""
    kind = getattr(controller_errors, name, None) or getattr(model_errors, name)
    error = kind.__new__(kind)
    Exception.__init__(error, "as the test says")
    assert isinstance(error, PenstockError)
    return error


class Refusing:
    """A service all of whose calls, and those of its parts, raise an error."""

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Refusing:
        return Refusing(self._error)

    def __call__(self, *given: object, **options: str | int) -> None:
        raise self._error


def request_of(name: str, stream: str = "stream") -> Message:
    """Return a request that a handler has nothing to say against."""
    info = pb.StreamInfo(scope="scope", stream=stream)
    scope, some_id = pb.ScopeInfo(scope="scope"), str(uuid.UUID(int=7))
    cut = pb.StreamCut(streamInfo=info, cut={0: 0})
    kind = GetMessageClass(METHODS[name].input_type)
    match kind.DESCRIPTOR.name:
        case "StreamInfo":
            return info
        case "ScopeInfo":
            return scope
        case "StreamConfig":
            return pb.StreamConfig(streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
        case "StreamCut":
            return cut
        case "StreamCutRange":
            return kind(streamInfo=info, to={0: 0})
        case "StreamsInScopeRequest" | "StreamsInScopeWithTagRequest" | "KVTablesInScopeRequest":
            return kind(scope=scope)
        case "SubscriberStreamCut":
            return kind(subscriber="scope/group", readerGroupId=some_id, streamCut=cut)
        case "TimestampFromWriter":
            return kind(writer="writer", position=cut)
        case "RemoveWriterRequest":
            return kind(writer="writer", stream=info)
        case "KeyValueTableConfig":
            return kind(scope="scope", kvtName="table", partitionCount=1, primaryKeyLength=1)
        case "KeyValueTableInfo":
            return kind(scope="scope", kvtName="table")
        case "ReaderGroupConfiguration":
            return kind(
                scope="scope", readerGroupName="group", readerGroupId=some_id, startingStreamCuts=[cut],
                endingStreamCuts=[pb.StreamCut(streamInfo=info)], maxOutstandingCheckpointRequest=1,
            )  # fmt: skip
        case "ReaderGroupInfo":
            return kind(scope="scope", readerGroup="group", readerGroupId=some_id)
        case "ServerRequest" | "ScopesRequest" | "ControllerToBucketMappingRequest":
            return kind()
        case _:
            return kind(streamInfo=info)


def word_of(reply: Message) -> str:
    """Return the value of a reply's enum, by its name."""
    field = next(field for field in reply.DESCRIPTOR.fields if field.enum_type is not None)
    return field.enum_type.values_by_number[getattr(reply, field.name)].name


async def answer_to(name: str, error: PenstockError) -> str:
    """Return what a call answers when the controller raises `error`: a word of its reply, or a gRPC status."""
    row = ROWS[name]
    try:
        reply = await row.serve(Front(Refusing(error), list), request_of(name))
    except PenstockError as raised:
        return status_of(raised)[0].name
    assert type(reply) is GetMessageClass(METHODS[name].output_type)
    return word_of(reply)


def expected(name: str, error: str) -> str:
    failure, words = WORDS[name]
    status, is_final = STATUS[error]
    if error in words:
        return words[error]
    if error == "WorkElsewhereError" and "MetadataConflictError" in words:
        return words["MetadataConflictError"]  # It is one.
    return failure if is_final and failure else status


#: Calls that send no request of their own.
CERTAIN = {"getControllerServerList", "getDelegationToken", "getControllerToBucketMapping"}


def test_every_call_of_the_service_has_one_row() -> None:
    """47 calls; nothing twice, nothing that the service does not have."""
    assert len(CALLS) == len(ROWS)
    assert set(ROWS) == set(WORDS) == set(METHODS)


@pytest.mark.parametrize("name", sorted(WORDS.keys() - CERTAIN))
async def test_call_answers_each_error_as_the_specification_says(name: str) -> None:
    """A word of the reply's enum where there is one for it, FAILURE for what stays so, a gRPC status for the rest."""
    found = {error: await answer_to(name, made(error)) for error in STATUS}
    assert found == {error: expected(name, error) for error in STATUS}


async def test_refusal_of_a_page_carries_the_token_that_was_sent() -> None:
    """K-2: a Rust client takes a reply without the token message for an empty listing."""
    for name in ("listStreamsInScope", "listStreamsInScopeForTag", "listKeyValueTablesInScope"):
        request = request_of(name)
        request.continuationToken.token = "here"
        reply = await ROWS[name].serve(Front(Refusing(made("NoSuchScopeError")), list), request)
        assert reply.continuationToken.token == "here"
        assert word_of(reply) == "SCOPE_NOT_FOUND"


async def test_late_answer_to_a_workflow_is_not_a_refusal() -> None:
    """A call that gives up waiting reports that, and nothing about the outcome."""
    for name in WORDS.keys() - CERTAIN:
        assert await answer_to(name, WorkflowTimeoutError("not yet")) == "DEADLINE_EXCEEDED", name


#: Calls that work on any name, and those that are about something else than a stream.
NAMELESS = CERTAIN | {"getURI"} | {
    name for name in WORDS if GetMessageClass(METHODS[name].input_type).DESCRIPTOR.name in (
        "ScopeInfo", "ScopesRequest", "StreamsInScopeRequest", "StreamsInScopeWithTagRequest", "KVTablesInScopeRequest",
        "KeyValueTableConfig", "KeyValueTableInfo", "ReaderGroupConfiguration", "ReaderGroupInfo",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WORDS.keys() - NAMELESS))
async def test_empty_names_are_internal_errors_before_anything_is_asked(name: str, wire: Wire) -> None:
    """controller-api 5: an empty scope or stream is never an answer of an enum."""
    for empty in ("scope", "stream"):
        request = request_of(name)
        stream_of(request).ClearField(empty)
        with pytest.raises(InvalidArgumentError) as failure:
            await ROWS[name].serve(Front(wire.service, list), request)
        assert status_of(failure.value)[0].name == "INTERNAL"


_R, _RU = Permission.READ, Permission.READ_UPDATE
#: controller-api 2: call -> what it needs for a stream of users' (or for its other subject).
ACCESS = {
    "getControllerServerList": None,
    "createStream": (_RU, "prn::/scope:scope"),
    "updateStream": (_RU, "prn::/scope:scope/stream:stream"),
    "truncateStream": (_RU, "prn::/scope:scope/stream:stream"),
    "sealStream": (_RU, "prn::/scope:scope/stream:stream"),
    "deleteStream": (_RU, "prn::/scope:scope/stream:stream"),
    "getCurrentSegments": (_RU, "prn::/scope:scope/stream:stream"),
    "getEpochSegments": (_RU, "prn::/scope:scope/stream:stream"),
    "getSegments": (_RU, "prn::/scope:scope/stream:stream"),
    "getSegmentsImmediatlyFollowing": (_R, "prn::/scope:scope/stream:stream"),
    "getSegmentsImmediatelyFollowing": (_R, "prn::/scope:scope/stream:stream"),
    "getSegmentsBetween": (_R, "prn::/scope:scope/stream:stream"),
    "scale": (_RU, "prn::/scope:scope/stream:stream"),
    "checkScale": (_R, "prn::/scope:scope/stream:stream"),
    "getURI": (_R, "prn::/scope:scope/stream:stream"),
    "isSegmentValid": (_R, "prn::/scope:scope/stream:stream"),
    "isStreamCutValid": (_R, "prn::/scope:scope/stream:stream"),
    "createTransaction": (_RU, "prn::/scope:scope/stream:stream"),
    "commitTransaction": (_RU, "prn::/scope:scope/stream:stream"),
    "abortTransaction": (_RU, "prn::/scope:scope/stream:stream"),
    "pingTransaction": (_RU, "prn::/scope:scope/stream:stream"),
    "checkTransactionState": (_R, "prn::/scope:scope/stream:stream"),
    "listCompletedTransactions": (_R, "prn::/scope:scope/stream:stream"),
    "createScope": (_RU, "prn::/"),
    "listScopes": (_R, "prn::/"),
    "checkScopeExists": (_R, "prn::/scope:scope"),
    "checkStreamExists": (_R, "prn::/scope:scope/stream:stream"),
    "listStreamsInScope": (_R, "prn::/scope:scope"),
    "deleteScope": (_RU, "prn::/"),
    "deleteScopeRecursive": (_RU, "prn::/"),
    "getDelegationToken": (_RU, "prn::/scope:scope/stream:stream"),
    "getControllerToBucketMapping": (_RU, "prn::/"),
    "removeWriter": (_RU, "prn::/scope:scope/stream:stream"),
    "noteTimestampFromWriter": (_RU, "prn::/scope:scope/stream:stream"),
    "createKeyValueTable": (_RU, "prn::/scope:scope"),
    "getCurrentSegmentsKeyValueTable": (_RU, "prn::/scope:scope/key-value-table:table"),
    "listKeyValueTablesInScope": (_R, "prn::/scope:scope"),
    "getKeyValueTableConfiguration": (_R, "prn::/scope:scope/key-value-table:table"),
    "deleteKeyValueTable": (_RU, "prn::/scope:scope/key-value-table:table"),
    "listSubscribers": (_RU, "prn::/scope:scope/stream:stream"),
    "updateSubscriberStreamCut": (_RU, "prn::/scope:scope/stream:stream"),
    "createReaderGroup": (_R, "prn::/scope:scope", _RU),
    "getReaderGroupConfig": (_R, "prn::/scope:scope"),
    "deleteReaderGroup": (_R, "prn::/scope:scope", _RU),
    "updateReaderGroup": (_R, "prn::/scope:scope", _RU),
    "getStreamConfiguration": (_R, "prn::/scope:scope/stream:stream"),
    "listStreamsInScopeForTag": (_R, "prn::/scope:scope"),
}
#: Calls that take what keeps its state in a stream for that stream's owner.
INTERNAL_FORM = {"updateStream", "getCurrentSegments", "getURI", "getDelegationToken"}


def needed(
    name: str, stream: str = "stream", access: int = pb.StreamInfo.UNSPECIFIED
) -> tuple[str | Permission, ...] | None:
    request = request_of(name, stream)
    if isinstance(request, pb.StreamInfo):
        request.accessOperation = access
    elif "streamInfo" in request.DESCRIPTOR.fields_by_name:
        request.streamInfo.accessOperation = access
    found = ROWS[name].access(request)
    if found is None:
        return None
    strict = () if found.permission_strict is None else (found.permission_strict,)
    return (found.permission, found.resource, *strict)


def test_each_call_needs_the_permission_of_the_specification() -> None:
    """controller-api 2, permission column, for a stream of users'."""
    assert {name: needed(name) for name in WORDS} == ACCESS


def test_streams_of_groups_and_marks_are_their_owners() -> None:
    """API-42: only calls that say so translate internal names; creating such a stream takes less."""
    group, mark = "prn::/scope:scope/reader-group:g", "prn::/scope:scope/stream:s"
    for name in INTERNAL_FORM:
        assert needed(name, "_RGg")[1] == group, name
        assert needed(name, "_MARKs")[1] == mark, name
        assert needed(name, "_other")[1] == "prn::/scope:scope/stream:_other"
    for name in ("sealStream", "getSegments", "getEpochSegments", "checkStreamExists"):
        assert needed(name, "_RGg")[1] == "prn::/scope:scope/stream:_RGg"
    assert needed("createStream", "_RGg") == (_R, "prn::/scope:scope", _RU)
    assert needed("createStream", "_MARKs") == (_R, "prn::/scope:scope")


def test_access_operation_decides_what_segments_and_tokens_need() -> None:
    """controller-api 12.4: a caller that only reads needs no permission to write."""
    for name in ("getCurrentSegments", "getSegments"):
        assert needed(name, access=pb.StreamInfo.NONE)[0] == _R
        assert needed(name, access=pb.StreamInfo.READ)[0] == _RU
    info = pb.StreamInfo
    for access, user, group, mark in (
        (info.READ, (_R,), (_R,), (_R,)),
        (info.NONE, (_R,), (_R,), (_R,)),
        (info.WRITE, (_RU,), (_R, _RU), (_R,)),
        (info.READ_WRITE, (_RU,), (_R, _RU), (_R,)),
        (info.UNSPECIFIED, (_RU,), (_RU,), (_RU,)),
    ):
        for stream, wanted in (("stream", user), ("_RGg", group), ("_MARKs", mark)):
            permission, _, *strict = needed("getDelegationToken", stream, access)
            assert (permission, *strict) == wanted, (stream, access)
    with pytest.raises(InvalidArgumentError):
        needed("getDelegationToken", access=info.ANY)


#: Calls that only read.
QUERIES = {
    "getControllerServerList", "getCurrentSegments", "getEpochSegments", "getSegments",
    "getSegmentsImmediatlyFollowing", "getSegmentsImmediatelyFollowing", "getSegmentsBetween", "checkScale", "getURI",
    "isSegmentValid", "getControllerToBucketMapping",
    "isStreamCutValid", "checkTransactionState", "listCompletedTransactions", "listScopes", "checkScopeExists",
    "checkStreamExists", "listStreamsInScope", "getDelegationToken", "getCurrentSegmentsKeyValueTable",
    "listKeyValueTablesInScope", "getKeyValueTableConfiguration", "listSubscribers", "getReaderGroupConfig",
    "getStreamConfiguration", "listStreamsInScopeForTag", "pingTransaction",
}  # fmt: skip


def stored(store: MemorySegments) -> tuple[dict[str, dict[bytes, TableEntry]], list[str]]:
    """Return all that a store holds, by name."""
    return {name: dict(table.entries) for name, table in store.tables.items()}, sorted(store.segments)


@pytest.mark.parametrize("has_stream", [False, True])
async def test_query_creates_and_changes_nothing(has_stream: bool, wire: Wire) -> None:
    """Of a scope, a stream, a group and a table that are there, and of those that are not."""
    service = wire.service
    if has_stream:
        await service.create_scope("scope")
        await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
        await service.key_value_tables.create("scope", "table", KeyValueTableConfig(1, 1, 0))
        await service.reader_groups.create("scope", "group", ReaderGroupConfig((GroupCut("scope", "stream"),)))
    await service.idle()
    before = stored(wire.cluster.store)
    front = Front(service, lambda: [("localhost", 9090)])
    for name in sorted(QUERIES):
        for stream in ("stream", "_RGgroup", "_RGmissing", "_MARKstream", "_MARKmissing"):
            with suppress(PenstockError):
                await ROWS[name].serve(front, request_of(name, stream))
        await service.idle()
        assert stored(wire.cluster.store) == before, name
    # A change would be seen.
    await service.create_scope("other")
    assert stored(wire.cluster.store) != before


async def test_segment_of_a_stream_that_is_being_created_takes_no_events_yet(service: ControllerService) -> None:
    """API-24: true for what is in the current epoch of a stream, false for anything else, and no error."""

    async def half_created(scope: str, stream: str) -> None:
        raise HalfCreatedStreamError("not completely created")

    service.queries.current_segments = half_created
    request = pb.SegmentId(streamInfo=pb.StreamInfo(scope="scope", stream="stream"), segmentId=0)
    assert not (await ROWS["isSegmentValid"].serve(Front(service, list), request)).response

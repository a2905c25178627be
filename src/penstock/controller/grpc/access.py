"""The access that each call requires: a permission on a resource.

`guard` enforces it when authentication is on.

Source: controller-api 2 (permission column), 12.2 and 12.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import (
    KEY_VALUE_TABLE_SUFFIX,
    MARK_STREAM_PREFIX,
    READER_GROUP_TABLE_SUFFIX,
    STATE_STREAM_PREFIX,
)
from penstock.model.permissions import ROOT, Permission, account_resource, scope_resource
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb


@dataclass(frozen=True, slots=True)
class Access:
    """A permission on a resource.

    Attributes:
        resource: its name in access control lists (PDP-42).
        permission: the required permission.
        permission_strict: the permission required where only clients with write access may write the state of reader
            groups; None: the same.
        alternatives: other resources; the permission on one of them suffices.
    """

    resource: str
    permission: Permission
    permission_strict: Permission | None = None
    alternatives: tuple[str, ...] = ()


#: Returns the access that a request requires; None: there is nothing to check.
AccessOf = Callable[..., Access | None]


def stream_resource(info: pb.StreamInfo) -> str:
    """Return the resource name of a stream, under its own name."""
    return f"{scope_resource(info.scope)}/stream:{info.stream}"


def internal_resource(info: pb.StreamInfo) -> str:
    """Return the resource name of a stream's owner: for an internal stream the reader group or stream it belongs to."""
    if is_group_stream(info.stream):
        return f"{scope_resource(info.scope)}/reader-group:{info.stream.removeprefix(STATE_STREAM_PREFIX)}"
    if is_mark_stream(info.stream):
        return f"{scope_resource(info.scope)}/stream:{info.stream.removeprefix(MARK_STREAM_PREFIX)}"
    return stream_resource(info)


def is_group_stream(stream: str) -> bool:
    """Say whether a stream holds the state of a reader group."""
    return stream.startswith(STATE_STREAM_PREFIX)


def is_mark_stream(stream: str) -> bool:
    """Say whether a stream holds the watermarks of another one."""
    return stream.startswith(MARK_STREAM_PREFIX)


def stream_of(request: Message) -> pb.StreamInfo:
    """Return the stream that a request refers to."""
    match request:
        case pb.StreamInfo():
            return request
        case pb.RemoveWriterRequest():
            return request.stream
        case pb.TimestampFromWriter():
            return request.position.streamInfo
        case pb.SubscriberStreamCut():
            return request.streamCut.streamInfo
        case _:
            found: pb.StreamInfo = getattr(request, "streamInfo")  # noqa: B009  # Not every message has one.
            return found


def _scope_of(request: Message) -> str:
    """Return the scope that a request refers to, or that contains its subject."""
    match request:
        case pb.ScopeInfo() | pb.KeyValueTableConfig() | pb.ReaderGroupConfiguration() | pb.ReaderGroupInfo():
            return request.scope
        case added.DescribeReaderGroupsRequest():
            return request.scopeInfo.scope
        case pb.StreamsInScopeRequest() | pb.StreamsInScopeWithTagRequest() | pb.KVTablesInScopeRequest():
            return request.scope.scope
        case _:
            return stream_of(request).scope


def unchecked(request: Message) -> None:
    """No permission is required."""


def any_account(request: Message) -> Access:
    """Require an account, and no permission."""
    return Access(ROOT, Permission.NONE)


def session(request: added.OpenSessionRequest) -> Access:
    """Require an account; for the session of another one, READ_UPDATE on that."""
    if not request.user:
        return any_account(request)
    return Access(account_resource(request.user), Permission.READ_UPDATE)


def root(permission: Permission) -> AccessOf:
    """Require a permission on all scopes."""
    return lambda request: Access(ROOT, permission)


def scope(permission: Permission) -> AccessOf:
    """Require a permission on the request's scope."""
    return lambda request: Access(scope_resource(_scope_of(request)), permission)


def stream(permission: Permission) -> AccessOf:
    """Require a permission on the request's stream, under its own name."""
    return lambda request: Access(stream_resource(stream_of(request)), permission)


def owner(permission: Permission) -> AccessOf:
    """Require a permission on the owner of the request's stream."""

    def access(request: Message) -> Access:
        info = stream_of(request)
        return Access(internal_resource(info), permission, alternatives=_owners_of_table(info))

    return access


def _owners_of_table(info: pb.StreamInfo) -> tuple[str, ...]:
    """Return the resources whose readers may locate a table that is named like a stream: no stream has such a name."""
    scope, name = scope_resource(info.scope), info.stream
    if name.endswith(KEY_VALUE_TABLE_SUFFIX):
        owner_name = name.removesuffix(KEY_VALUE_TABLE_SUFFIX)
        return f"{scope}/key-value-table:{owner_name}", f"{scope}/reader-group:{owner_name}"
    return (scope,) if name.endswith(READER_GROUP_TABLE_SUFFIX) else ()


def table(permission: Permission) -> AccessOf:
    """Require a permission on the request's key-value table."""

    def access(request: pb.KeyValueTableInfo) -> Access:
        return Access(f"{scope_resource(request.scope)}/key-value-table:{request.kvtName}", permission)

    return access


def group_change(request: pb.ReaderGroupConfiguration | pb.ReaderGroupInfo) -> Access:
    """Return the access required to change a reader group."""
    return Access(scope_resource(request.scope), Permission.READ, Permission.READ_UPDATE)


def creation(request: pb.StreamConfig) -> Access:
    """Return the access required to create a stream: less for streams that serve readers."""
    info = request.streamInfo
    if is_group_stream(info.stream):
        return Access(scope_resource(info.scope), Permission.READ, Permission.READ_UPDATE)
    needed = Permission.READ if is_mark_stream(info.stream) else Permission.READ_UPDATE
    return Access(scope_resource(info.scope), needed)


def segments(request: pb.StreamInfo | pb.GetSegmentsRequest) -> Access:
    """Return the access required to read a stream's segments: more if a token for writing is requested with them."""
    info = stream_of(request)
    needed = Permission.READ if info.accessOperation == pb.StreamInfo.NONE else Permission.READ_UPDATE
    # Only one of the two calls translates internal names.
    resource = internal_resource(info) if isinstance(request, pb.StreamInfo) else stream_resource(info)
    return Access(resource, needed)


def delegation(request: pb.StreamInfo) -> Access:
    """Return the access required for a token, by its operations. Raises `InvalidArgumentError` for "any"."""
    operation = request.accessOperation
    if operation == pb.StreamInfo.ANY:
        raise InvalidArgumentError("access operation ANY does not define the permissions of a token")
    resource = internal_resource(request)
    if operation == pb.StreamInfo.UNSPECIFIED:
        return Access(resource, Permission.READ_UPDATE)
    if operation in (pb.StreamInfo.WRITE, pb.StreamInfo.READ_WRITE):
        if is_group_stream(request.stream):
            return Access(resource, Permission.READ, Permission.READ_UPDATE)
        return Access(resource, Permission.READ if is_mark_stream(request.stream) else Permission.READ_UPDATE)
    return Access(resource, Permission.READ)

"""`claims_of`: what a delegation token permits, for each reply that carries one.

A claim names a stream, or the segments of a table as ``<table>_kvtable``, and never permits more than the caller has.

Source: controller-api 12.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from google.protobuf.message import Message

from penstock.controller.errors import FinalArgumentError
from penstock.controller.grpc import access
from penstock.controller.service import ControllerService
from penstock.model.errors import NoSuchReaderGroupError, NoSuchTableError
from penstock.model.names import (
    KEY_VALUE_TABLE_SUFFIX,
    MARK_STREAM_PREFIX,
    READER_GROUP_TABLE_SUFFIX,
    STATE_STREAM_PREFIX,
    SYSTEM_SCOPE,
)
from penstock.model.permissions import ROOT, Permission, reader_group_resource, stream_resource, table_resource
from penstock.rpc import controller_pb2 as pb
from penstock.security.tokens import STATISTICS_CLAIM

#: Permissions by claim, which is the resource name of a stream.
Claims = Mapping[str, Permission]
PermissionOf = Callable[[str], Permission]

#: Scope and stream of a request for a token that permits reading the statistics of segment stores.
STATISTICS = (SYSTEM_SCOPE, "statistics")

#: Names in a claim. With a slash, an access list could permit a name that covers the segments of another stream.
_NAME = re.compile(r"[A-Za-z0-9._-]+")

#: Calls whose reply has a token for the stream of the request, with its permission.
_OF_STREAM: Mapping[str, Permission] = {
    "getCurrentSegments": Permission.READ_UPDATE,
    "getSegments": Permission.READ_UPDATE,
    "getEpochSegments": Permission.READ_UPDATE,
    "createTransaction": Permission.READ_UPDATE,
    "getSegmentsBetween": Permission.READ,
}


async def claims_of(
    call: str, request: Message, service: ControllerService, permission: PermissionOf, *, is_strict: bool
) -> Claims:
    """Return the claims of the token in a reply; empty: there is no token.

    For getDelegationToken, they are empty if the caller lacks the access. For other calls, it was checked before.
    Raises `FinalArgumentError` for names that no stream can have.
    """
    if call == "getDelegationToken":
        assert isinstance(request, pb.StreamInfo)
        return await _delegated(request, service, permission, is_strict=is_strict)
    if call == "getCurrentSegmentsKeyValueTable":
        assert isinstance(request, pb.KeyValueTableInfo)
        return {
            **_table_claim(request.scope, request.kvtName, Permission.READ_UPDATE, permission),
            **_stream_claim(request.scope, request.kvtName, Permission.READ_UPDATE, permission),
        }
    wanted = _OF_STREAM.get(call)
    if wanted is None:
        return {}
    info = access.stream_of(request)
    if call in ("getCurrentSegments", "getSegments") and info.accessOperation == pb.StreamInfo.NONE:
        return {}
    return {stream_resource(info.scope, info.stream): _mark_limited(info, wanted, permission)}


async def _delegated(
    request: pb.StreamInfo, service: ControllerService, permission: PermissionOf, *, is_strict: bool
) -> Claims:
    scope, stream = request.scope, request.stream
    if not (_NAME.fullmatch(scope) and _NAME.fullmatch(stream)):
        raise FinalArgumentError(f"scope {scope!r} and stream {stream!r} cannot be the names of a token")
    if (scope, stream) == STATISTICS:
        return {STATISTICS_CLAIM: Permission.READ} if permission(ROOT) >= Permission.READ else {}
    needed = access.delegation(request)
    least = needed.permission
    if is_strict and needed.permission_strict is not None:
        least = needed.permission_strict
    wanted = {pb.StreamInfo.READ: Permission.READ, pb.StreamInfo.NONE: Permission.NONE}.get(
        request.accessOperation, Permission.READ_UPDATE
    )
    claims: dict[str, Permission] = {}
    if permission(needed.resource) >= least:
        claims[stream_resource(scope, stream)] = _mark_limited(request, wanted, permission)
        if access.is_group_stream(stream):
            claims.update(await _group_table_claim(scope, stream.removeprefix(STATE_STREAM_PREFIX), wanted, service))
    if stream.endswith(KEY_VALUE_TABLE_SUFFIX):
        table = stream.removesuffix(KEY_VALUE_TABLE_SUFFIX)
        if await _is_table(scope, table, service):
            claims.pop(stream_resource(scope, stream), None)
            claims.update(_table_claim(scope, table, wanted, permission))
        elif permission(reader_group_resource(scope, table)) >= Permission.READ_UPDATE:
            # Readers of the Rust client keep their state in a table that is named after the group.
            claims[stream_resource(scope, stream)] = wanted
    elif "_" not in stream and permission(table_resource(scope, stream)) and await _is_table(scope, stream, service):
        claims.update(_table_claim(scope, stream, wanted, permission))
    return claims


def _mark_limited(info: pb.StreamInfo, wanted: Permission, permission: PermissionOf) -> Permission:
    """Return what a token for a stream permits: readers must not write watermarks."""
    if access.is_mark_stream(info.stream):
        owner = stream_resource(info.scope, info.stream.removeprefix(MARK_STREAM_PREFIX))
        if permission(owner) < Permission.READ_UPDATE:
            return min(wanted, Permission.READ)
    return wanted


def _stream_claim(scope: str, stream: str, wanted: Permission, permission: PermissionOf) -> Claims:
    resource = stream_resource(scope, stream)
    granted = min(wanted, permission(resource))
    return {resource: granted} if granted >= Permission.READ else {}


def _table_claim(scope: str, table: str, wanted: Permission, permission: PermissionOf) -> Claims:
    granted = min(wanted, permission(table_resource(scope, table)))
    return {stream_resource(scope, table + KEY_VALUE_TABLE_SUFFIX): granted} if granted >= Permission.READ else {}


async def _is_table(scope: str, table: str, service: ControllerService) -> bool:
    try:
        await service.key_value_tables.configuration(scope, table)
    except NoSuchTableError:
        return False
    return True


async def _group_table_claim(scope: str, group: str, wanted: Permission, service: ControllerService) -> Claims:
    """Return the claim on the state table of a group of Penstock's client, which the group's id names."""
    try:
        record = await service.reader_groups.get(scope, group)
    except NoSuchReaderGroupError:
        return {}
    table = str(record.id).replace("-", "") + READER_GROUP_TABLE_SUFFIX
    return {stream_resource(scope, table): wanted}

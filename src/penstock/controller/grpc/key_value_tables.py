"""The calls for key-value tables. Source: controller-api 9.17."""

from __future__ import annotations

from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front, need_names
from penstock.controller.metadata.scope_records import KeyValueTableConfig
from penstock.rpc import controller_pb2 as pb


async def create_key_value_table(front: Front, request: pb.KeyValueTableConfig) -> pb.CreateKeyValueTableStatus:
    """Answer createKeyValueTable."""
    need_names(scope=request.scope, table=request.kvtName)
    config = KeyValueTableConfig(
        request.partitionCount, request.primaryKeyLength, request.secondaryKeyLength, request.rolloverSizeBytes
    )
    await front.service.key_value_tables.create(request.scope, request.kvtName, config)
    return pb.CreateKeyValueTableStatus(status=pb.CreateKeyValueTableStatus.SUCCESS)


async def get_current_segments(front: Front, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
    """Answer getCurrentSegmentsKeyValueTable. Segments have the table's own name, without a suffix."""
    found = await front.service.key_value_tables.segments(request.scope, request.kvtName)
    return await convert.segment_ranges(request.scope, request.kvtName, found)


async def list_in_scope(front: Front, request: pb.KVTablesInScopeRequest) -> pb.KVTablesInScopeResponse:
    """Answer listKeyValueTablesInScope."""
    scope = request.scope.scope
    page = await front.service.key_value_tables.list(scope, request.continuationToken.token)
    return pb.KVTablesInScopeResponse(
        kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=table) for table in page.names],
        continuationToken=pb.ContinuationToken(token=page.token),
        status=pb.KVTablesInScopeResponse.SUCCESS,
    )


def no_page(
    request: pb.KVTablesInScopeRequest, status: pb.KVTablesInScopeResponse.Status
) -> pb.KVTablesInScopeResponse:
    """Return the error reply of a listing."""
    return pb.KVTablesInScopeResponse(
        continuationToken=pb.ContinuationToken(token=request.continuationToken.token), status=status
    )


async def get_configuration(front: Front, request: pb.KeyValueTableInfo) -> pb.KeyValueTableConfigResponse:
    """Answer getKeyValueTableConfiguration."""
    scope, table = request.scope, request.kvtName
    found = await front.service.key_value_tables.configuration(scope, table)
    return pb.KeyValueTableConfigResponse(
        config=pb.KeyValueTableConfig(
            scope=scope,
            kvtName=table,
            partitionCount=found.partitions,
            primaryKeyLength=found.primary_key_bytes,
            secondaryKeyLength=found.secondary_key_bytes,
            rolloverSizeBytes=found.rollover_bytes,
        ),
        status=pb.KeyValueTableConfigResponse.SUCCESS,
    )


def no_config(
    request: pb.KeyValueTableInfo, status: pb.KeyValueTableConfigResponse.Status
) -> pb.KeyValueTableConfigResponse:
    """Return the error reply without a configuration."""
    return pb.KeyValueTableConfigResponse(config=pb.KeyValueTableConfig(), status=status)


async def delete_key_value_table(front: Front, request: pb.KeyValueTableInfo) -> pb.DeleteKVTableStatus:
    """Answer deleteKeyValueTable."""
    await front.service.key_value_tables.delete(request.scope, request.kvtName)
    return pb.DeleteKVTableStatus(status=pb.DeleteKVTableStatus.SUCCESS)

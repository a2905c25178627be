"""The controller's calls about key-value tables, a part of `ControllerClient`.

Source: controller-api 9.17.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.controller.unary_call import CallGroup, UnaryCall, reason_of_refusal
from penstock.model.errors import (
    InvalidNameError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    OutcomeUnknownError,
    StreamError,
)
from penstock.model.names import KEY_VALUE_TABLE_SUFFIX, SegmentId
from penstock.model.tables import TableConfig
from penstock.rpc import controller_pb2 as pb


class TableStub(Protocol):
    """The RPCs that are used here."""

    createKeyValueTable: UnaryCall[pb.KeyValueTableConfig, pb.CreateKeyValueTableStatus]
    getCurrentSegmentsKeyValueTable: UnaryCall[pb.KeyValueTableInfo, pb.SegmentRanges]
    listKeyValueTablesInScope: UnaryCall[pb.KVTablesInScopeRequest, pb.KVTablesInScopeResponse]
    getKeyValueTableConfiguration: UnaryCall[pb.KeyValueTableInfo, pb.KeyValueTableConfigResponse]
    deleteKeyValueTable: UnaryCall[pb.KeyValueTableInfo, pb.DeleteKVTableStatus]


class TableCalls(CallGroup):
    """See the module."""

    _stub: TableStub

    async def create_table(self, scope: str, table: str, config: TableConfig) -> bool:
        """Create a key-value table and return True, or False if the name is taken.

        Raises `NoSuchScopeError`, `InvalidNameError`.
        """
        message = pb.KeyValueTableConfig(
            scope=scope,
            kvtName=table,
            partitionCount=config.partition_count,
            primaryKeyLength=config.primary_key_length,
            secondaryKeyLength=config.secondary_key_length,
            rolloverSizeBytes=config.rollover_bytes,
        )
        reply, is_unsure = await self._change(self._stub.createKeyValueTable, message, f"create table {scope}/{table}")
        kinds = pb.CreateKeyValueTableStatus
        if reply.status == kinds.SCOPE_NOT_FOUND:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        if reply.status == kinds.INVALID_TABLE_NAME:
            raise InvalidNameError(f"the controller refuses {table!r} as the name of a table")
        if reply.status == kinds.FAILURE:
            raise StreamError(f"the controller could not create table {scope}/{table}; {reason_of_refusal()}")
        if reply.status == kinds.TABLE_EXISTS and is_unsure:
            raise OutcomeUnknownError(
                f"table {scope}/{table} exists now, but an earlier attempt to create it got no answer: this call or "
                "another one created it; check its configuration"
            )
        return bool(reply.status == kinds.SUCCESS)

    async def delete_table(self, scope: str, table: str) -> None:
        """Delete a key-value table and its entries. Raises `NoSuchTableError`."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply, is_unsure = await self._change(self._stub.deleteKeyValueTable, request, f"delete table {scope}/{table}")
        if reply.status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND and not is_unsure:
            raise _missing(scope, table)
        if reply.status == pb.DeleteKVTableStatus.FAILURE:
            raise StreamError(f"the controller could not delete table {scope}/{table}; {reason_of_refusal()}")

    async def table_config(self, scope: str, table: str) -> TableConfig:
        """Return the shape of a key-value table. Raises `NoSuchTableError`."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        what = f"read the configuration of table {scope}/{table}"
        reply = await self._ask(self._stub.getKeyValueTableConfiguration, request, what)
        if reply.status == pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND:
            raise _missing(scope, table)
        if reply.status != pb.KeyValueTableConfigResponse.SUCCESS:
            raise StreamError(f"the controller could not {what}; {reason_of_refusal()}")
        found = reply.config
        return TableConfig(
            found.primaryKeyLength, found.secondaryKeyLength, found.partitionCount, found.rolloverSizeBytes
        )

    async def table_segments(self, scope: str, table: str) -> Sequence[SegmentRange]:
        """Return the segments of a key-value table, in the order of their ranges. Raises `NoSuchTableError`."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        what = f"read the segments of table {scope}/{table}"
        try:
            reply = await self._ask(self._stub.getCurrentSegmentsKeyValueTable, request, what)
        except NoSuchStreamError as error:
            # The controller has one status for all kinds of missing objects.
            raise _missing(scope, table) from error
        # They are stored under a name that no stream can have.
        return [
            SegmentRange(
                scope, table + KEY_VALUE_TABLE_SUFFIX, SegmentId(found.segmentId.segmentId), found.minKey, found.maxKey
            )
            for found in reply.segmentRanges
        ]

    async def tables(self, scope: str) -> AsyncIterator[str]:
        """Iterate over the names of the key-value tables of `scope`. Raises `NoSuchScopeError`."""
        async for _, names in self.table_pages(scope):
            for name in names:
                yield name

    async def table_pages(self, scope: str, *, token: str = "") -> AsyncIterator[tuple[str, Sequence[str]]]:
        """Iterate over the tables of `scope` page by page, each with the token that leads to it; from `token` on.

        Raises `NoSuchScopeError`.
        """
        for _ in range(self._settings.list_page_count_max):
            request = pb.KVTablesInScopeRequest(
                scope=pb.ScopeInfo(scope=scope), continuationToken=pb.ContinuationToken(token=token)
            )
            reply = await self._ask(self._stub.listKeyValueTablesInScope, request, f"list tables of {scope}")
            if reply.status == pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND:
                raise NoSuchScopeError(f"scope {scope} does not exist")
            if not reply.kvtables:
                return
            yield token, [info.kvtName for info in reply.kvtables]
            token = reply.continuationToken.token
        raise StreamError(f"listing {scope} did not end within {self._settings.list_page_count_max} pages")


def _missing(scope: str, table: str) -> NoSuchTableError:
    return NoSuchTableError(f"table {scope}/{table} does not exist")

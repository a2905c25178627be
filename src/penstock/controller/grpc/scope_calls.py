"""The calls about reader groups, subscribers and key-value tables: message in, message out.

Source: controller API specification, sections 4, 5, 9.16 and 9.17.
"""

from __future__ import annotations

from penstock.controller.errors import (
    NoSuchSubscriberError,
    ReaderGroupMismatchError,
    StreamCutBehindError,
    SubscriberGenerationError,
)
from penstock.controller.grpc import convert
from penstock.controller.grpc.replies import give_up_unless_retriable, page_of
from penstock.controller.metadata.scope_records import KeyValueTableConfig
from penstock.controller.service import ControllerService
from penstock.model.errors import (
    InvalidArgumentError,
    InvalidNameError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    PenstockError,
    TableExistsError,
)
from penstock.rpc import controller_pb2 as pb


class GroupCalls:
    """Answers the calls about reader groups and subscribers."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    async def create_reader_group(self, request: pb.ReaderGroupConfiguration) -> pb.CreateReaderGroupResponse:
        """Answer createReaderGroup. A group that exists is a success, with the configuration it has."""
        reply = pb.CreateReaderGroupResponse
        scope, group = request.scope, request.readerGroupName
        group_id = convert.group_id(request.readerGroupId)
        config = convert.group_config(request).checked()
        try:
            found = await self._service.reader_groups.create(
                scope, group, config, None if group_id == convert.GROUP_ID_NONE else group_id
            )
        except InvalidNameError:
            return reply(status=reply.INVALID_RG_NAME)
        except NoSuchScopeError:
            return reply(status=reply.SCOPE_NOT_FOUND)
        except PenstockError as error:
            give_up_unless_retriable(error, "createReaderGroup", f"{scope}/{group}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS, config=convert.group_config_message(scope, group, found))

    async def get_reader_group_config(self, request: pb.ReaderGroupInfo) -> pb.ReaderGroupConfigResponse:
        """Answer getReaderGroupConfig. Id and generation of the request say nothing."""
        reply = pb.ReaderGroupConfigResponse
        scope, group = request.scope, request.readerGroup
        try:
            found = await self._service.reader_groups.get(scope, group)
        except NoSuchReaderGroupError:
            return reply(config=pb.ReaderGroupConfiguration(), status=reply.RG_NOT_FOUND)
        return reply(config=convert.group_config_message(scope, group, found), status=reply.SUCCESS)

    async def update_reader_group(self, request: pb.ReaderGroupConfiguration) -> pb.UpdateReaderGroupResponse:
        """Answer updateReaderGroup."""
        reply = pb.UpdateReaderGroupResponse
        scope, group = request.scope, request.readerGroupName
        group_id, config = convert.group_id(request.readerGroupId), convert.group_config(request).checked()
        try:
            generation = await self._service.reader_groups.update(scope, group, config, group_id, request.generation)
        except NoSuchReaderGroupError:
            return reply(status=reply.RG_NOT_FOUND)
        except ReaderGroupMismatchError:
            return reply(status=reply.INVALID_CONFIG)
        except PenstockError as error:
            give_up_unless_retriable(error, "updateReaderGroup", f"{scope}/{group}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS, generation=generation)

    async def delete_reader_group(self, request: pb.ReaderGroupInfo) -> pb.DeleteReaderGroupStatus:
        """Answer deleteReaderGroup. The generation is not looked at: Java's client always sends 0."""
        reply = pb.DeleteReaderGroupStatus
        scope, group = request.scope, request.readerGroup
        group_id = convert.group_id(request.readerGroupId)
        try:
            await self._service.reader_groups.delete(scope, group, group_id)
        except NoSuchReaderGroupError:
            return reply(status=reply.RG_NOT_FOUND)
        except PenstockError as error:
            give_up_unless_retriable(error, "deleteReaderGroup", f"{scope}/{group}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def list_subscribers(self, request: pb.StreamInfo) -> pb.SubscribersResponse:
        """Answer listSubscribers."""
        reply = pb.SubscribersResponse
        try:
            found = await self._service.reader_groups.subscribers(request.scope, request.stream)
        except NoSuchStreamError:
            return reply(status=reply.STREAM_NOT_FOUND)
        except PenstockError as error:
            give_up_unless_retriable(error, "listSubscribers", f"{request.scope}/{request.stream}")
            return reply(status=reply.FAILURE)
        return reply(subscribers=found, status=reply.SUCCESS)

    async def update_subscriber_stream_cut(self, request: pb.SubscriberStreamCut) -> pb.UpdateSubscriberStatus:
        """Answer updateSubscriberStreamCut."""
        reply = pb.UpdateSubscriberStatus
        info, subscriber = request.streamCut.streamInfo, request.subscriber
        group_id = convert.group_id(request.readerGroupId)
        try:
            await self._service.reader_groups.publish(
                info.scope, info.stream, subscriber, group_id, request.generation, dict(request.streamCut.cut)
            )
        except NoSuchStreamError:
            return reply(status=reply.STREAM_NOT_FOUND)
        except NoSuchSubscriberError:
            return reply(status=reply.SUBSCRIBER_NOT_FOUND)
        except SubscriberGenerationError:
            return reply(status=reply.GENERATION_MISMATCH)
        except StreamCutBehindError:
            return reply(status=reply.STREAM_CUT_NOT_VALID)
        except PenstockError as error:
            give_up_unless_retriable(error, "updateSubscriberStreamCut", f"{subscriber} on {info.scope}/{info.stream}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)


class TableCalls:
    """Answers the calls about key-value tables."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    async def create_key_value_table(self, request: pb.KeyValueTableConfig) -> pb.CreateKeyValueTableStatus:
        """Answer createKeyValueTable."""
        reply = pb.CreateKeyValueTableStatus
        scope, table = request.scope, request.kvtName
        if not scope or not table:
            raise InvalidArgumentError(f"scope {scope!r}, table {table!r}: neither may be empty")
        config = KeyValueTableConfig(
            request.partitionCount, request.primaryKeyLength, request.secondaryKeyLength, request.rolloverSizeBytes
        )
        try:
            await self._service.key_value_tables.create(scope, table, config)
        except InvalidNameError:
            return reply(status=reply.INVALID_TABLE_NAME)
        except NoSuchScopeError:
            return reply(status=reply.SCOPE_NOT_FOUND)
        except TableExistsError:
            return reply(status=reply.TABLE_EXISTS)
        except PenstockError as error:
            give_up_unless_retriable(error, "createKeyValueTable", f"{scope}/{table}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

    async def get_current_segments(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        """Answer getCurrentSegmentsKeyValueTable. The segments go by the table's own name, without a suffix."""
        found = await self._service.key_value_tables.segments(request.scope, request.kvtName)
        return convert.segment_ranges(request.scope, request.kvtName, found)

    async def list_key_value_tables_in_scope(
        self, request: pb.KVTablesInScopeRequest
    ) -> pb.KVTablesInScopeResponse:
        """Answer listKeyValueTablesInScope."""
        reply = pb.KVTablesInScopeResponse
        scope, token = request.scope.scope, request.continuationToken.token
        try:
            page = await page_of(self._service.key_value_tables.list(scope, token))
        except NoSuchScopeError:
            return reply(continuationToken=pb.ContinuationToken(token=token), status=reply.SCOPE_NOT_FOUND)
        return reply(
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=table) for table in page.names],
            continuationToken=pb.ContinuationToken(token=page.token),
            status=reply.SUCCESS,
        )

    async def get_key_value_table_configuration(
        self, request: pb.KeyValueTableInfo
    ) -> pb.KeyValueTableConfigResponse:
        """Answer getKeyValueTableConfiguration."""
        reply = pb.KeyValueTableConfigResponse
        scope, table = request.scope, request.kvtName
        try:
            found = await self._service.key_value_tables.configuration(scope, table)
        except NoSuchTableError:
            return reply(config=pb.KeyValueTableConfig(), status=reply.TABLE_NOT_FOUND)
        return reply(
            config=pb.KeyValueTableConfig(
                scope=scope,
                kvtName=table,
                partitionCount=found.partitions,
                primaryKeyLength=found.primary_key_bytes,
                secondaryKeyLength=found.secondary_key_bytes,
                rolloverSizeBytes=found.rollover_bytes,
            ),
            status=reply.SUCCESS,
        )

    async def delete_key_value_table(self, request: pb.KeyValueTableInfo) -> pb.DeleteKVTableStatus:
        """Answer deleteKeyValueTable."""
        reply = pb.DeleteKVTableStatus
        try:
            await self._service.key_value_tables.delete(request.scope, request.kvtName)
        except NoSuchTableError:
            return reply(status=reply.TABLE_NOT_FOUND)
        except PenstockError as error:
            give_up_unless_retriable(error, "deleteKeyValueTable", f"{request.scope}/{request.kvtName}")
            return reply(status=reply.FAILURE)
        return reply(status=reply.SUCCESS)

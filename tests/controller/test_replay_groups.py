"""Recorded calls of the Java client about groups, subscribers, tables and writers' marks, made again with ours.

`data/java-groups-and-tables.jsonl` holds calls and replies recorded between Pravega 0.13 and its Java client. The
recording is a sample, so before each call the state is brought about that the recorded reply shows; then the reply must
be equal to the recorded one, field by field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict, ParseDict

from penstock.controller.grpc.convert import group_config
from penstock.controller.metadata.scope_records import GroupCut, KeyValueTableConfig, ReaderGroupConfig
from penstock.controller.service import ControllerService
from penstock.model.errors import NoSuchReaderGroupError, NoSuchTableError, ScopeExistsError, StreamExistsError
from penstock.model.policies import GroupRetention, Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.conftest import Wire

RECORDING = Path(__file__).parent / "data" / "java-groups-and-tables.jsonl"
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["ControllerService"].methods}


class Stage:
    """Brings about the state before each call."""

    def __init__(self, service: ControllerService) -> None:
        self.service = service
        self.groups = service.reader_groups
        self.tables = service.key_value_tables

    async def scope(self, scope: str) -> None:
        try:
            await self.service.create_scope(scope)
        except ScopeExistsError:
            pass

    async def stream(self, scope: str, stream: str) -> None:
        await self.scope(scope)
        try:
            await self.service.create_stream(scope, stream, StreamConfig(Scaling.fixed(1)))
        except StreamExistsError:
            pass

    async def no_group(self, scope: str, group: str) -> None:
        await self.scope(scope)
        try:
            await self.groups.delete(scope, group)
        except NoSuchReaderGroupError:
            pass

    async def group(self, message: pb.ReaderGroupConfiguration, generation: int) -> None:
        """Make a group that gets to `generation`, with what `message` configures in force."""
        scope, group, config = message.scope, message.readerGroupName, group_config(message)
        await self.no_group(scope, group)
        for cut in config.subscriptions:
            await self.stream(cut.scope, cut.stream)
        await self.groups.create(scope, group, config, message.readerGroupId)
        for step in range(generation):
            await self.groups.update(scope, group, config, message.readerGroupId, step)

    async def table(self, scope: str, table: str, config: KeyValueTableConfig | None) -> None:
        await self.scope(scope)
        try:
            await self.tables.delete(scope, table)
        except NoSuchTableError:
            pass
        if config is not None:
            await self.tables.create(scope, table, config)

    async def prepare(self, call: str, message: Any, reply: dict[str, Any]) -> None:
        status = reply.get("status")
        if status == "SCOPE_NOT_FOUND":
            await self.service.delete_scope_recursive(message.scope)
        elif call == "createReaderGroup":
            await self.no_group(message.scope, message.readerGroupName)
            stored = ParseDict(reply["config"], pb.ReaderGroupConfiguration())
            if stored != message:  # The group was there before.
                await self.group(stored, stored.generation)
            for cut in group_config(message).subscriptions:
                await self.stream(cut.scope, cut.stream)
        elif call == "updateReaderGroup":
            await self.group(message, message.generation + (status == "INVALID_CONFIG"))
            for cut in group_config(message).subscriptions:
                await self.stream(cut.scope, cut.stream)
        elif call == "getReaderGroupConfig":
            stored = ParseDict(reply["config"], pb.ReaderGroupConfiguration())
            await self.group(stored, stored.generation)
        elif call == "deleteReaderGroup":
            await self.no_group(message.scope, message.readerGroup)
            config = ReaderGroupConfig((GroupCut(message.scope, "any"),))
            await self.groups.create(message.scope, message.readerGroup, config, message.readerGroupId)
        elif call == "listSubscribers":
            await self.stream(message.scope, message.stream)
            for subscriber in await self.groups.subscribers(message.scope, message.stream):
                await self.groups.delete(*subscriber.split("/"))
            for subscriber in reply["subscribers"]:
                scope, group = subscriber.split("/")
                await self.no_group(scope, group)
                cut = GroupCut(message.scope, message.stream)
                await self.groups.create(scope, group, ReaderGroupConfig((cut,), retention=GroupRetention.MANUAL))
        elif call == "createKeyValueTable":
            await self.table(message.scope, message.kvtName, None)
        elif call == "getCurrentSegmentsKeyValueTable":
            config = KeyValueTableConfig(len(reply["segmentRanges"]), 8)  # type: ignore[assignment]
            await self.table(message.scope, message.kvtName, config)  # type: ignore[arg-type]
        elif call == "getKeyValueTableConfiguration":
            stored = reply["config"]
            config = KeyValueTableConfig(  # type: ignore[assignment]
                stored["partitionCount"], stored["primaryKeyLength"], stored["secondaryKeyLength"]
            )
            await self.table(message.scope, message.kvtName, config)  # type: ignore[arg-type]
        elif call == "noteTimestampFromWriter":
            info = message.position.streamInfo
            await self.stream(info.scope, info.stream)
        else:
            raise AssertionError(f"there is no preparation for {call}")


async def test_recorded_calls_get_the_recorded_replies(wire: Wire) -> None:
    """Every recorded call in order; API-29 to API-34 on requests as the Java client sends them."""
    stage = Stage(wire.service)
    counts: dict[str, int] = {}
    for line in RECORDING.read_text().splitlines():
        record = json.loads(line)
        call, reply = record["call"], record["reply"]
        assert record["error"] is None
        message = ParseDict(record["request"], getattr(pb, METHODS[call].input_type.name)())
        await stage.prepare(call, message, reply)
        answer = await getattr(wire.stub, call)(message)
        as_dict = MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        assert as_dict == reply, f"{call} {record['request']}"
        counts[call] = counts.get(call, 0) + 1
    assert len(counts) == 9
    assert sum(counts.values()) > 80

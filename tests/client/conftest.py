"""A segment store on a real socket and a controller in the same process, both in memory and easy to break.

The store speaks the wire protocol over `MemorySegments`; the controller is a gRPC stub's worth of methods. Faults are
switched on by tests: refuse connections, drop the connection before or after an append is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.controller_messages import config_from_message
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    BadOffsetError,
    NoSuchSegmentError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
)
from penstock.model.key_ranges import initial_ranges
from penstock.model.names import segment_id, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.segments import NO_VALUE, TableRemoval, TableUpdate
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.runtime import real_runtime
from penstock.wire import commands as wire
from penstock.wire.codec import decode, encode
from penstock.wire.commands.base import Request, WireCommand
from penstock.wire.framing import FrameReceiver
from penstock_simulation.memory_segments import MemorySegments


class FakeConnection(asyncio.BufferedProtocol):
    """One client's connection to the `FakeStore`."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.receiver = FrameReceiver()
        self.writers: dict[bytes, str] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.appends: asyncio.Queue[wire.WireCommand] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.store.connections.append(self)
        self.spawn(self.serve_appends())
        if self.store.refuses:
            transport.abort()

    def connection_lost(self, exc: object) -> None:
        if self in self.store.connections:
            self.store.connections.remove(self)
        for task in self.tasks:
            task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for code, payload, _ in self.receiver.buffer_updated(nbytes):
            command = decode(code, memoryview(bytes(payload)))
            self.store.received.append(type(command).__name__)
            if isinstance(command, wire.Hello):
                self.send(wire.Hello(17, 5))
            elif isinstance(command, wire.KeepAlive):
                self.send(command)
            elif isinstance(command, (wire.SetupAppend, wire.AppendBlockEnd, wire.ConditionalBlockEnd)):
                self.appends.put_nowait(command)
            else:
                self.spawn(self.answer(command))

    def spawn(self, coroutine: Awaitable[Any]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def send(self, command: WireCommand) -> None:
        self.transport.write(encode(command))

    async def serve_appends(self) -> None:
        while True:
            command = await self.appends.get()
            await self.store.gate.wait()
            await self.answer(command)

    async def answer(self, command: Request) -> None:
        store, segments = self.store, self.store.segments
        if store.loses_table_requests and "Table" in type(command).__name__:
            store.request_lost.set()
            return
        name = getattr(command, "segment", "") or self.writers.get(getattr(command, "writer_id", b""), "")
        if isinstance(command, (wire.MergeSegments, wire.MergeSegmentsBatch)):
            name = command.target
        if name in store.wrong_hosts:
            store.wrong_hosts.discard(name)
            self.send(wire.WrongHost(command.request_id, name, "", ""))
            return
        try:
            await self.carry_out(command, name, segments)
        except SegmentSealedError:
            offset = getattr(command, "offset", getattr(command, "last_event_number", -1))
            self.send(wire.SegmentIsSealed(command.request_id, name, "", offset))
        except NoSuchSegmentError as error:
            # Of a merge it may be the source.
            self.send(wire.NoSuchSegment(command.request_id, error.segment, "", -1))
        except SegmentExistsError:
            self.send(wire.SegmentAlreadyExists(command.request_id, name, ""))
        except SegmentTruncatedError as error:
            self.send(wire.SegmentIsTruncated(command.request_id, name, error.start_offset, "", error.offset))
        except TableKeyMissingError:
            self.send(wire.TableKeyDoesNotExist(command.request_id, name, ""))
        except TableKeyVersionError:
            self.send(wire.TableKeyBadVersion(command.request_id, name, ""))
        except TableNotEmptyError:
            self.send(wire.TableSegmentNotEmpty(command.request_id, name, ""))
        except PenstockError as error:
            self.send(wire.ErrorMessage(command.request_id, name, str(error), -1))

    async def carry_out(self, command: Request, name: str, segments: MemorySegments) -> None:
        match command:
            case wire.SetupAppend():
                await segments.segment_info(name)
                self.writers[command.writer_id] = name
                last = await segments.get_attribute(name, command.writer_id)
                self.acknowledged[command.writer_id] = last
                self.send(wire.AppendSetup(command.request_id, name, command.writer_id, last))
            case wire.AppendBlockEnd() | wire.ConditionalBlockEnd():
                if "#transient." in name and self.store.take("lose_before_piece"):
                    await segments.delete_segment(name)
                    await segments.segment_info(name)
                await self.append(command, name, segments)
            case wire.CreateTransientSegment():
                if self.store.take("busy"):
                    busy = f"{wire.BUSY}{name}: as the test says"
                    self.send(wire.WrongHost(command.request_id, command.parent_segment, "", busy))
                    return
                name = f"{command.parent_segment}#transient.{command.writer_id.hex()}.{len(self.store.received):032x}"
                await segments.create_segment(name)
                self.send(wire.SegmentCreated(command.request_id, name))
            case wire.MergeSegments() if command.attribute_updates and self.store.merges_plainly:
                self.send(wire.OperationUnsupported(command.request_id, "MergeSegments", ""))
            case wire.MergeSegments():
                if self.store.take("lose_before_merge"):
                    await segments.delete_segment(command.source)
                await segments.segment_info(command.source)
                for update in command.attribute_updates:
                    matched = await segments.update_attribute(
                        command.target, update.attribute_id, value=update.new_value, expected=update.old_value
                    )
                    if not matched:
                        self.send(wire.SegmentAttributeUpdated(command.request_id, False))
                        return
                (end,) = await segments.merge_segments(command.target, [command.source])
                if self.store.take("drop_after_merge"):
                    self.transport.abort()
                    return
                self.send(wire.SegmentsMerged(command.request_id, command.target, command.source, end))
            case wire.MergeSegmentsBatch():
                ends = await segments.merge_segments(command.target, command.sources)
                merged = tuple(map(wire.MergedSegment, command.sources, ends))
                self.send(wire.SegmentsBatchMerged(command.request_id, command.target, merged))
            case wire.ReadSegment():
                read = await segments.read(name, command.offset, command.suggested_length, wait=True)
                self.send(
                    wire.SegmentRead(
                        name, command.offset, read.is_at_tail, read.is_end_of_segment, read.joined(),
                        command.request_id,
                    )
                )  # fmt: skip
            case wire.GetStreamSegmentInfo():
                info = await segments.segment_info(name)
                self.send(
                    wire.StreamSegmentInfo(
                        command.request_id, name, True, info.is_sealed, False, 0, info.length, info.start_offset
                    )
                )
            case wire.LocateOffset():
                border = await segments.locate_offset(name, command.target_offset)
                self.send(wire.OffsetLocated(command.request_id, name, border))
            case wire.CreateSegment():
                await segments.create_segment(name)
                self.send(wire.SegmentCreated(command.request_id, name))
            case wire.SealSegment():
                await segments.seal_segment(name)
                self.send(wire.SegmentSealed(command.request_id, name))
            case wire.DeleteSegment():
                await segments.delete_segment(name)
                self.send(wire.SegmentDeleted(command.request_id, name))
            case wire.TruncateSegment():
                await segments.truncate_segment(name, command.truncation_offset)
                self.send(wire.SegmentTruncated(command.request_id, name))
            case wire.UpdateSegmentPolicy():
                self.send(wire.SegmentPolicyUpdated(command.request_id, name))
            case wire.GetSegmentAttribute():
                value = await segments.get_attribute(name, command.attribute_id)
                self.send(wire.SegmentAttribute(command.request_id, value))
            case wire.UpdateSegmentAttribute():
                matched = await segments.update_attribute(
                    name, command.attribute_id, value=command.new_value, expected=command.expected_value
                )
                self.send(wire.SegmentAttributeUpdated(command.request_id, matched))
            case wire.CreateTableSegment():
                await segments.create_table(name, key_length=command.key_length)
                if self.store.take("drop_after_create_table"):
                    self.transport.abort()
                    return
                self.send(wire.SegmentCreated(command.request_id, name))
            case wire.DeleteTableSegment():
                await segments.delete_table(name, must_be_empty=command.must_be_empty)
                self.send(wire.SegmentDeleted(command.request_id, name))
            case wire.GetTableSegmentInfo():
                info = await segments.table_info(name)
                self.send(
                    wire.TableSegmentInfo(
                        command.request_id, name, info.start_offset, info.length, info.entry_count, info.key_length
                    )
                )
            case wire.UpdateTableEntries():
                updates = [TableUpdate(entry.key, entry.value, entry.version) for entry in command.entries]
                if self.store.take("drop_before_table_put"):
                    self.transport.abort()
                    return
                versions = await segments.table_put(name, updates)
                if self.store.take("drop_after_table_put"):
                    self.transport.abort()
                    return
                self.send(wire.TableEntriesUpdated(command.request_id, tuple(versions)))
            case wire.RemoveTableKeys():
                await segments.table_remove(name, [TableRemoval(key.key, key.version) for key in command.keys])
                if self.store.take("drop_after_table_remove"):
                    self.transport.abort()
                    return
                self.send(wire.TableKeysRemoved(command.request_id, name))
            case wire.ReadTable():
                found = await segments.table_get(name, [key.key for key in command.keys])
                entries = tuple(
                    wire.TableKeyValue(key.key, entry.version if entry else -1, entry.value if entry else b"")
                    for key, entry in zip(command.keys, found, strict=True)
                )
                if sum(len(entry.key) + len(entry.value) + 24 for entry in entries) > 16_000_000:
                    text = f"{wire.READ_TOO_LONG}ask for fewer keys"
                    self.send(wire.ErrorMessage(command.request_id, name, text, 0))
                    return
                self.send(wire.TableRead(command.request_id, name, entries))
            case wire.ReadTableEntries():
                page = await segments.table_entries(
                    name, limit=command.suggested_count, token=command.continuation_token,
                    first=command.from_key, last=command.to_key or None,
                )  # fmt: skip
                entries = tuple(wire.TableKeyValue(entry.key, entry.version, entry.value) for entry in page.entries)
                self.send(wire.TableEntriesRead(command.request_id, name, entries, page.token))
            case wire.ReadTableKeys():
                found = await segments.table_keys(
                    name, limit=command.suggested_count, token=command.continuation_token,
                    first=command.from_key, last=command.to_key or None,
                )  # fmt: skip
                keys = tuple(wire.TableKey(key, version) for key, version in found.keys)
                self.send(wire.TableKeysRead(command.request_id, name, keys, found.token))
            case wire.ReadTableEntriesDelta():
                delta = await segments.table_delta(name, position=command.from_position, limit=command.suggested_count)
                entries = tuple(wire.TableKeyValue(entry.key, entry.version, entry.value) for entry in delta.entries)
                self.send(
                    wire.TableEntriesDeltaRead(
                        command.request_id, name, entries, delta.should_clear, delta.reached_end, delta.last_position
                    )
                )
            case _:
                self.send(wire.OperationUnsupported(command.request_id, type(command).__name__, ""))

    async def append(self, command: Request, name: str, segments: MemorySegments) -> None:
        if self.store.take("drop_before_append"):
            self.transport.abort()
            return
        is_conditional = isinstance(command, wire.ConditionalBlockEnd)
        number = command.event_number if is_conditional else command.last_event_number
        stored = await segments.get_attribute(name, command.writer_id)
        if not is_conditional and stored != NO_VALUE and number <= stored:
            self.send(wire.InvalidEventNumber(command.writer_id, command.request_id, "", number))
            return
        try:
            end = await segments.append(
                name, command.data, expected_offset=command.expected_offset if is_conditional else None
            )
        except BadOffsetError:
            self.send(wire.ConditionalCheckFailed(command.writer_id, number, command.request_id))
            return
        await segments.update_attribute(name, command.writer_id, value=number, expected=stored)
        self.store.block_sizes.append(len(command.data))
        if self.store.take("drop_after_append"):
            self.transport.abort()
            return
        previous = self.acknowledged[command.writer_id]
        self.acknowledged[command.writer_id] = number
        self.send(wire.DataAppended(command.writer_id, number, previous, command.request_id, end))


class FakeStore:
    """A segment store in memory.

    `gate` holds appends back while it is not set. While `loses_table_requests`, requests about tables get no reply, and
    `request_lost` is set with the first one.
    """

    def __init__(self) -> None:
        self.segments = MemorySegments()
        self.connections: list[FakeConnection] = []
        self.received: list[str] = []
        self.block_sizes: list[int] = []
        self.wrong_hosts: set[str] = set()
        self.faults: dict[str, int] = {}
        self.refuses = False
        self.loses_table_requests = False
        self.request_lost = asyncio.Event()
        self.merges_plainly = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = 0

    def take(self, fault: str) -> bool:
        """Say whether `fault` happens now, and count it down."""
        left = self.faults.get(fault, 0)
        if left:
            self.faults[fault] = left - 1
        return bool(left)

    def drop_all(self) -> None:
        """Break every connection."""
        for connection in list(self.connections):
            connection.transport.abort()

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(lambda: FakeConnection(self), "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.server.close()
        self.drop_all()


class FakeStream:
    """A stream of the `FakeController`: all segments ever, the current ones, and who follows whom."""

    def __init__(self, config: StreamConfig) -> None:
        self.config = config
        self.ranges: dict[int, tuple[float, float]] = {}
        self.current: list[int] = []
        self.successors: dict[int, list[int]] = {}
        self.predecessors: dict[int, list[int]] = {}
        self.epoch = 0
        self.first: list[int] = []
        self.epochs: list[list[int]] = []
        self.is_sealed = False


class FakeController:
    """The controller's RPCs as plain methods, as `ControllerStub` wants them."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.scopes: set[str] = set()
        self.all: dict[tuple[str, str], FakeStream] = {}
        self.groups: dict[tuple[str, str], pb.ReaderGroupConfiguration] = {}
        self.tables: dict[tuple[str, str], pb.KeyValueTableConfig] = {}
        self.uri_requests = 0
        self.transactions: dict[int, str] = {}
        self.pings = 0
        self.pinged = asyncio.Event()

    async def on_group_updated(self) -> None:
        """Called when a group's configuration was replaced and the reply is still to be sent."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        snake = "".join("_" + c.lower() if c.isupper() else c for c in name)
        method = object.__getattribute__(self, "rpc_" + snake)

        async def call(request: Message, *, timeout: float | None = None) -> Message:
            return await method(request)

        return call

    async def rpc_find_whole_tail(self, request: added.WholeTailRequest) -> None:
        """Answer as Pravega's controller, which knows none of Penstock's calls."""
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "unknown")

    rpc_describe_stream = rpc_find_whole_tail
    rpc_describe_reader_groups = rpc_find_whole_tail
    rpc_describe_history = rpc_find_whole_tail
    rpc_open_session = rpc_find_whole_tail
    rpc_describe_caller = rpc_find_whole_tail
    rpc_describe_members = rpc_find_whole_tail
    rpc_change_assignment = rpc_find_whole_tail
    rpc_describe_accounts = rpc_find_whole_tail
    rpc_read_audit = rpc_find_whole_tail

    def stream(self, info: pb.StreamInfo) -> FakeStream:
        found = self.all.get((info.scope, info.stream))
        if found is None:
            raise grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), grpc.aio.Metadata(), "no stream")
        return found

    async def rpc_create_scope(self, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
        if request.scope in self.scopes:
            return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)
        self.scopes.add(request.scope)
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)

    async def rpc_delete_scope(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        if request.scope not in self.scopes:
            return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND)
        if any(scope == request.scope for scope, _ in [*self.all, *self.groups]):
            return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_EMPTY)
        self.scopes.discard(request.scope)
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)

    async def rpc_list_scopes(self, request: pb.StreamInfo) -> object:
        # Pages of one, to show that the client asks for the next.
        names = [scope for scope in sorted(self.scopes) if scope > request.continuationToken.token][:1]
        token = pb.ContinuationToken(token=names[-1] if names else "")
        return pb.ScopesResponse(scopes=names, continuationToken=token)

    async def rpc_create_stream(self, request: pb.StreamConfig) -> pb.CreateStreamStatus:
        info = request.streamInfo
        if info.scope not in self.scopes:
            return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND)
        if (info.scope, info.stream) in self.all:
            return pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS)
        stream = self.all[info.scope, info.stream] = FakeStream(config_from_message(request))
        stream.message = request
        for number, key_range in enumerate(initial_ranges(request.scalingPolicy.minNumSegments)):
            stream.ranges[number] = (key_range.start, key_range.end)
            stream.current.append(number)
            await self.store.segments.create_segment(segment_name(info.scope, info.stream, number))
        stream.first = list(stream.current)
        stream.epochs.append(stream.first)
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SUCCESS)

    async def rpc_get_stream_configuration(self, request: pb.StreamInfo) -> object:
        return self.stream(request).message

    async def rpc_update_stream(self, request: pb.StreamInfo) -> object:
        self.stream(request.streamInfo).message = request
        return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)

    async def rpc_check_stream_exists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=(request.scope, request.stream) in self.all)

    async def rpc_list_streams_in_scope(self, request: pb.StreamsInScopeRequest) -> pb.StreamsInScopeResponse:
        scope = request.scope.scope
        if scope not in self.scopes:
            return pb.StreamsInScopeResponse(status=pb.StreamsInScopeResponse.SCOPE_NOT_FOUND)
        after = request.continuationToken.token
        everything = sorted([*self.all, *((where, f"_RG{group}") for where, group in self.groups)])
        names = [name for where, name in everything if where == scope and name > after][:1]
        return pb.StreamsInScopeResponse(
            streams=[pb.StreamInfo(scope=scope, stream=name) for name in names],
            continuationToken=pb.ContinuationToken(token=names[-1] if names else ""),
        )

    async def rpc_seal_stream(self, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
        stream = self.stream(request)
        stream.is_sealed = True
        for number in stream.current:
            await self.store.segments.seal_segment(segment_name(request.scope, request.stream, number))
        return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)

    async def rpc_delete_stream(self, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
        stream = self.all.get((request.scope, request.stream))
        if stream is None:
            return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND)
        if not stream.is_sealed:
            return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_SEALED)
        del self.all[request.scope, request.stream]
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)

    def range_of(self, info: pb.StreamInfo, number: int) -> pb.SegmentRange:
        low, high = self.stream(info).ranges[number]
        return pb.SegmentRange(segmentId=pb.SegmentId(streamInfo=info, segmentId=number), minKey=low, maxKey=high)

    async def rpc_get_current_segments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        stream = self.stream(request)
        current = [] if stream.is_sealed else stream.current
        return pb.SegmentRanges(segmentRanges=[self.range_of(request, number) for number in current])

    async def rpc_get_segments(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        info = request.streamInfo
        locations = [
            pb.SegmentsAtTime.SegmentLocation(segmentId=pb.SegmentId(streamInfo=info, segmentId=number), offset=0)
            for number in self.stream(info).first
        ]
        return pb.SegmentsAtTime(segments=locations)

    async def rpc_get_segments_immediately_following(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        stream = self.stream(request.streamInfo)
        return pb.SuccessorResponse(
            segments=[
                pb.SuccessorResponse.SegmentEntry(
                    segment=self.range_of(request.streamInfo, number), value=stream.predecessors[number]
                )
                for number in stream.successors.get(request.segmentId, [])
            ]
        )

    async def rpc_get_epoch_segments(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        epoch = self.stream(request.streamInfo).epochs[request.epoch]
        return pb.SegmentRanges(segmentRanges=[self.range_of(request.streamInfo, number) for number in epoch])

    async def rpc_is_stream_cut_valid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        ranges = self.stream(request.streamInfo).ranges
        known = set(request.cut) <= set(ranges)
        covered = known and sum(ranges[number][1] - ranges[number][0] for number in request.cut)
        return pb.StreamCutValidityResponse(response=known and abs(covered - 1.0) < 1e-9)

    async def rpc_create_reader_group(self, request: pb.ReaderGroupConfiguration) -> pb.CreateReaderGroupResponse:
        reply = pb.CreateReaderGroupResponse
        if request.scope not in self.scopes:
            return reply(status=reply.SCOPE_NOT_FOUND)
        found = self.groups.setdefault((request.scope, request.readerGroupName), request)
        return reply(status=reply.SUCCESS, config=found)

    async def rpc_get_reader_group_config(self, request: pb.ReaderGroupInfo) -> pb.ReaderGroupConfigResponse:
        reply = pb.ReaderGroupConfigResponse
        found = self.groups.get((request.scope, request.readerGroup))
        if found is None:
            return reply(status=reply.RG_NOT_FOUND)
        return reply(status=reply.SUCCESS, config=found)

    async def rpc_update_reader_group(self, request: pb.ReaderGroupConfiguration) -> pb.UpdateReaderGroupResponse:
        reply = pb.UpdateReaderGroupResponse
        found = self.groups.get((request.scope, request.readerGroupName))
        if found is None:
            return reply(status=reply.RG_NOT_FOUND)
        if (found.readerGroupId, found.generation) != (request.readerGroupId, request.generation):
            return reply(status=reply.INVALID_CONFIG)
        changed = pb.ReaderGroupConfiguration()
        changed.CopyFrom(request)
        changed.generation += 1
        self.groups[request.scope, request.readerGroupName] = changed
        await self.on_group_updated()
        return reply(status=reply.SUCCESS, generation=changed.generation)

    async def rpc_get_segments_between(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        start, end = dict(getattr(request, "from")), dict(request.to)
        if any(end.get(number, offset) < offset for number, offset in start.items()):
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(),
                "the end of the range is before its start",
            )  # fmt: skip
        info, found, pending = request.streamInfo, set(), list(start)
        while pending:
            number = pending.pop()
            found.add(number)
            if number not in end:
                pending += self.stream(info).successors.get(number, [])
        return pb.StreamCutRangeResponse(
            segments=[pb.SegmentId(streamInfo=info, segmentId=number) for number in sorted(found)]
        )

    async def rpc_delete_reader_group(self, request: pb.ReaderGroupInfo) -> pb.DeleteReaderGroupStatus:
        reply = pb.DeleteReaderGroupStatus
        found = self.groups.get((request.scope, request.readerGroup))
        if found is None or found.readerGroupId != request.readerGroupId:
            return reply(status=reply.RG_NOT_FOUND)
        del self.groups[request.scope, request.readerGroup]
        return reply(status=reply.SUCCESS)

    async def rpc_create_key_value_table(self, request: pb.KeyValueTableConfig) -> pb.CreateKeyValueTableStatus:
        reply = pb.CreateKeyValueTableStatus
        if request.scope not in self.scopes:
            return reply(status=reply.SCOPE_NOT_FOUND)
        if (request.scope, request.kvtName) in self.tables:
            return reply(status=reply.TABLE_EXISTS)
        self.tables[request.scope, request.kvtName] = request
        for number in range(request.partitionCount):
            await self.store.segments.create_table(
                segment_name(request.scope, f"{request.kvtName}_kvtable", number),
                key_length=request.primaryKeyLength + request.secondaryKeyLength,
            )
        return reply(status=reply.SUCCESS)

    async def rpc_get_key_value_table_configuration(
        self, request: pb.KeyValueTableInfo
    ) -> pb.KeyValueTableConfigResponse:
        reply = pb.KeyValueTableConfigResponse
        found = self.tables.get((request.scope, request.kvtName))
        if found is None:
            return reply(status=reply.TABLE_NOT_FOUND)
        return reply(status=reply.SUCCESS, config=found)

    async def rpc_get_current_segments_key_value_table(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        count = self.tables[request.scope, request.kvtName].partitionCount
        info = pb.StreamInfo(scope=request.scope, stream=request.kvtName)
        return pb.SegmentRanges(
            segmentRanges=[
                pb.SegmentRange(
                    segmentId=pb.SegmentId(streamInfo=info, segmentId=number), minKey=found.start, maxKey=found.end
                )
                for number, found in enumerate(initial_ranges(count))
            ]
        )

    async def rpc_list_key_value_tables_in_scope(
        self, request: pb.KVTablesInScopeRequest
    ) -> pb.KVTablesInScopeResponse:
        scope, after = request.scope.scope, request.continuationToken.token
        reply = pb.KVTablesInScopeResponse
        if scope not in self.scopes:
            return reply(status=reply.SCOPE_NOT_FOUND)
        names = [name for where, name in sorted(self.tables) if where == scope and name > after][:1]
        return reply(
            status=reply.SUCCESS,
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in names],
            continuationToken=pb.ContinuationToken(token=names[-1] if names else ""),
        )

    async def rpc_delete_key_value_table(self, request: pb.KeyValueTableInfo) -> pb.DeleteKVTableStatus:
        reply = pb.DeleteKVTableStatus
        found = self.tables.pop((request.scope, request.kvtName), None)
        if found is None:
            return reply(status=reply.TABLE_NOT_FOUND)
        for number in range(found.partitionCount):
            await self.store.segments.delete_table(segment_name(request.scope, f"{request.kvtName}_kvtable", number))
        return reply(status=reply.SUCCESS)

    async def rpc_get_u_r_i(self, request: pb.SegmentId) -> pb.NodeUri:
        self.uri_requests += 1
        return pb.NodeUri(endpoint="127.0.0.1", port=self.store.port)

    async def rpc_create_transaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        info = request.streamInfo
        low_bits = len(self.transactions) + 1
        self.transactions[low_bits] = "OPEN"
        for number in self.stream(info).current:
            name = segment_name(info.scope, info.stream, number)
            await self.store.segments.create_segment(f"{name}#transaction.{0:016x}{low_bits:016x}")
        return pb.CreateTxnResponse(
            txnId=pb.TxnId(highBits=0, lowBits=low_bits),
            activeSegments=[self.range_of(info, number) for number in self.stream(info).current],
        )

    async def rpc_ping_transaction(self, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
        self.pings += 1
        self.pinged.set()
        return pb.PingTxnStatus(status=pb.PingTxnStatus.OK)

    async def rpc_check_transaction_state(self, request: pb.TxnRequest) -> pb.TxnState:
        return pb.TxnState(state=pb.TxnState.State.Value(self.transactions[request.txnId.lowBits]))

    async def rpc_describe_transaction(self, request: added.DescribeTransactionRequest) -> added.TransactionDescription:
        state = self.transactions[request.txnId.lowBits]
        is_over = state == "ABORTED"
        reasons = added.TransactionDescription
        return added.TransactionDescription(
            txnId=request.txnId,
            state=added.TransactionState.Value(state),
            abortReason=reasons.REQUESTED if is_over else reasons.NONE,
        )

    async def rpc_commit_transaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        info, low_bits = request.streamInfo, request.txnId.lowBits
        if self.transactions[low_bits] not in ("OPEN", "COMMITTED"):
            return pb.TxnStatus(status=pb.TxnStatus.FAILURE)
        self.transactions[low_bits] = "COMMITTED"
        for number in self.stream(info).current:
            name = segment_name(info.scope, info.stream, number)
            await self.store.segments.merge_segments(name, [f"{name}#transaction.{0:016x}{low_bits:016x}"])
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS)

    async def rpc_abort_transaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        info, low_bits = request.streamInfo, request.txnId.lowBits
        if self.transactions[low_bits] == "ABORTED":
            return pb.TxnStatus(status=pb.TxnStatus.SUCCESS)
        self.transactions[low_bits] = "ABORTED"
        for number in self.stream(info).current:
            name = segment_name(info.scope, info.stream, number)
            await self.store.segments.delete_segment(f"{name}#transaction.{0:016x}{low_bits:016x}")
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS)

    async def scale(self, name: str, seal: list[int], ranges: list[tuple[float, float]]) -> list[int]:
        """Replace segments as the real controller does: create, record, then seal."""
        scope, _, stream_name = name.partition("/")
        stream = self.all[scope, stream_name]
        stream.epoch += 1
        count = len(stream.ranges)
        new = [int(segment_id(count + index, stream.epoch)) for index in range(len(ranges))]
        for number, key_range in zip(new, ranges, strict=True):
            await self.store.segments.create_segment(segment_name(scope, stream_name, number))
            stream.ranges[number] = key_range
            overlapping = [
                old for old in seal if stream.ranges[old][0] < key_range[1] and key_range[0] < stream.ranges[old][1]
            ]
            stream.predecessors[number] = overlapping
            for old in overlapping:
                stream.successors.setdefault(old, []).append(number)
        stream.current = sorted(
            [number for number in stream.current if number not in seal] + new, key=lambda n: stream.ranges[n]
        )
        stream.epochs.append(list(stream.current))
        for old in seal:
            await self.store.segments.seal_segment(segment_name(scope, stream_name, old))
        return new


class Cluster:
    """A `FakeStore`, a `FakeController` and clients of them."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.controller = FakeController(self.store)

    def client(self, **settings: object) -> Client:
        """Return a client, to be entered as a context manager."""
        chosen = ClientSettings(**({"retry_time_max_s": 10.0} | settings))
        runtime = real_runtime(1)
        controller = ControllerClient(self.controller, chosen, runtime.rng)
        return Client("tcp://in-process:9090", chosen, runtime=runtime, controller=controller)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster in memory, stopped after the test."""
    running = Cluster()
    await running.store.start()
    yield running
    await running.store.stop()

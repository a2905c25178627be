"""Recorded conversations of the Rust and the Java client with Pravega's controller, held again with ours.

The recordings are samples: some calls between those recorded are missing. Before each call the stream is brought into
the state that the recorded reply shows it was in; then the call must get the same kind of answer: the same statuses,
errors, fields, key ranges and counts; ids, tokens and times may differ. Calls on scaled streams are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from penstock.controller.grpc.convert import stream_config
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.model.errors import NoSuchScopeError, NoSuchStreamError, ScopeExistsError
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.conftest import Wire

DATA = Path(__file__).parents[1] / "data"
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["ControllerService"].methods}
#: What may differ from the recording.
VOLATILE = {"txnId", "segmentId", "token", "endpoint", "port", "value", "offset"}


def shape(value: Any) -> Any:
    """Return what must be equal: everything but ids, tokens and the internal streams that we do not create."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in sorted(value.items()) if key not in VOLATILE}
    if isinstance(value, list):
        kept = [item for item in value if not (isinstance(item, dict) and item.get("stream", "").startswith("_"))]
        return sorted(map(shape, kept), key=json.dumps)
    return value


def as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


class Replay:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.service = wire.service
        self.transactions = {}
        self.count = 0

    async def has_scope(self, scope: str) -> Any:
        return await self.service.scope_exists(scope)

    async def ensure_scope(self, scope: str) -> None:
        try:
            await self.service.create_scope(scope)
        except ScopeExistsError:
            pass

    async def drop_stream(self, scope: str, stream: str) -> None:
        try:
            await self.service.seal_stream(scope, stream)
            await self.service.delete_stream(scope, stream)
        except NoSuchStreamError:
            pass

    async def ensure_stream(
        self, scope: str, stream: str, segments: int | None = 1, config: StreamConfig | None = None
    ) -> None:
        await self.ensure_scope(scope)
        if await self.service.stream_exists(scope, stream):
            current = await self.service.current_segments(scope, stream)
            if (
                current
                and (segments is None or len(current) == segments)
                and config
                in (
                    None,
                    await self.service.stream_configuration(scope, stream),
                )
            ):
                return
            await self.drop_stream(scope, stream)
        await self.service.create_stream(scope, stream, config or StreamConfig(Scaling.fixed(segments or 1)))

    async def prepare(self, call: str, request: dict[str, Any], reply: dict[str, Any], error: Any) -> None:
        """Bring about the state that the recorded reply shows."""
        info = request.get("streamInfo", request)
        scope, stream = info.get("scope"), info.get("stream")
        status = (reply or {}).get("status")
        if call == "createScope":
            if status == "SUCCESS":
                await self.service.delete_scope_recursive(scope)
            elif status == "SCOPE_EXISTS":
                await self.ensure_scope(scope)
        elif call in ("deleteScope", "deleteScopeRecursive", "checkScopeExists"):
            wanted = status == "SUCCESS" or (reply or {}).get("exists")
            if status == "SCOPE_NOT_EMPTY":
                await self.ensure_stream(scope, "leftover")
            elif call == "deleteScopeRecursive":
                pass
            elif wanted:
                await self.service.delete_scope_recursive(scope)
                await self.ensure_scope(scope)
            else:
                await self.service.delete_scope_recursive(scope)
        elif call in ("createStream", "deleteStream", "checkStreamExists", "sealStream"):
            if status in ("SCOPE_NOT_FOUND",):
                await self.service.delete_scope_recursive(scope)
                return
            await self.ensure_scope(scope)
            exists = status in ("STREAM_EXISTS", "STREAM_NOT_SEALED") or (reply or {}).get("exists")
            if exists or (call in ("deleteStream", "sealStream") and status == "SUCCESS"):
                await self.ensure_stream(scope, stream, None)
                if call == "deleteStream" and status == "SUCCESS":
                    await self.service.seal_stream(scope, stream)
            else:
                await self.drop_stream(scope, stream)
        elif call in ("listScopes", "listStreamsInScope", "listStreamsInScopeForTag"):
            await self.prepare_listing(call, request, reply)
        elif call == "getStreamConfiguration":
            if error:
                await self.drop_stream(scope, stream)
            else:
                await self.ensure_stream(scope, stream, None, stream_config(ParseDict(reply, pb.StreamConfig())))
        elif call in ("getURI", "getDelegationToken"):
            pass  # Must work whether the stream exists or not.
        elif status == "STREAM_NOT_FOUND":
            await self.ensure_scope(scope)
            await self.drop_stream(scope, stream)
        elif status == "STREAM_SEALED":
            await self.ensure_stream(scope, stream)
            await self.service.seal_stream(scope, stream)
        else:
            keys = ("segmentRanges", "activeSegments", "segments")
            ranges = next((reply[key] for key in keys if key in (reply or {})), None)
            await self.ensure_stream(scope, stream, len(ranges) if ranges else None)
            if "txnId" in request:
                await self.prepare_transaction(call, request, reply, scope, stream)
            if call == "listCompletedTransactions":
                # Its predecessors are not all recorded: a fresh stream with as many of the same outcomes.
                self.count += 1
                stream = request["streamInfo"]["stream"] = f"completed-{self.count}"
                await self.ensure_stream(scope, stream)
                for done in reply["response"]:
                    made = await self.service.transactions.create(scope, stream, 10_000)
                    if done["status"] == "COMMITTED":
                        await self.service.transactions.commit(scope, stream, made.id, writer_id="", timestamp=0)
                    else:
                        await self.service.transactions.abort(scope, stream, made.id)
                    await self.service.idle()
            if call == "truncateStream":
                for segment in await self.service.current_segments(scope, stream):
                    name = f"{scope}/{stream}/{segment.number}.#epoch.0"
                    await self.wire.cluster.store.append(name, bytes(100))
                    request["cut"] = {str(segment.id): next(iter(request["cut"].values()))}

    async def prepare_listing(self, call: str, request: dict[str, Any], reply: dict[str, Any]) -> None:
        if call == "listScopes":
            names = reply["scopes"]
            if names:
                have = (await self.service.list_scopes("")).names
                for scope in have:
                    if scope not in names:
                        await self.service.delete_scope_recursive(scope)
                for scope in names:
                    await self.ensure_scope(scope)
            else:
                request["continuationToken"]["token"] = (await self.service.list_scopes("")).token
            return
        scope = request["scope"]["scope"]
        await self.ensure_scope(scope)
        names = [found["stream"] for found in reply["streams"] if not found["stream"].startswith("_")]
        tag = request.get("tag")
        config = StreamConfig(tags=(tag,) if tag else ())
        token = request["continuationToken"]["token"]
        if token and not names:
            # The page after the last one.
            while True:
                if tag:
                    page = await self.service.list_streams_by_tag(scope, tag, "")
                else:
                    page = await self.service.list_streams(scope, "")
                if not tag or not page.names:
                    break
                for stream in page.names:
                    await self.drop_stream(scope, stream)
            request["continuationToken"]["token"] = page.token
            return
        request["continuationToken"]["token"] = ""
        for stream in (await self.service.list_streams(scope, "")).names:
            await self.drop_stream(scope, stream)
        for stream in names:
            await self.ensure_stream(scope, stream, None, config)

    async def prepare_transaction(
        self, call: str, request: dict[str, Any], reply: dict[str, str], scope: str, stream: str
    ) -> None:
        recorded = (scope, stream, str(request["txnId"]))
        known = self.transactions.get(recorded)
        if known is not None and await self.service.transactions.status(scope, stream, known) == 0:
            known = None
        if known is None:
            known = (await self.service.transactions.create(scope, stream, 10_000)).id
            self.transactions[recorded] = known
        wanted = reply.get("state") or (reply.get("status") if call == "pingTransaction" else None)
        if wanted in ("COMMITTING", "COMMITTED"):
            await self.service.transactions.commit(scope, stream, known, writer_id="", timestamp=0)
        if wanted in ("ABORTING", "ABORTED"):
            await self.service.transactions.abort(scope, stream, known)
        if wanted in ("COMMITTED", "ABORTED"):
            await self.service.idle()
        request["txnId"] = {"highBits": str(known.high), "lowBits": str(known.low)}

    def expected(self, call: str, reply: dict[str, Any]) -> Any:
        if call == "listScopes" and reply["scopes"]:
            return {"scopes": sorted({*reply["scopes"], "_system"})}
        return shape(reply)

    async def hold(self, record: dict[str, Any]) -> None:
        call, request, reply, error = record["call"], record["request"], record["reply"], record["error"]
        method = METHODS[call]
        original = json.loads(json.dumps(request))
        await self.prepare(call, request, reply, error)
        message = ParseDict(request, getattr(pb, method.input_type.name)())
        failure = None
        try:
            answer = as_dict(await getattr(self.wire.stub, call)(message))
        except grpc.aio.AioRpcError as raised:
            failure = raised
        if failure is not None:
            assert error is not None, f"{call} {request} failed: {failure.code()} {failure.details()}"
            assert failure.code().name == error[0]
            if error[0] == "UNKNOWN":
                assert failure.details() == error[1]
            return
        assert error is None, f"{call} {request} should fail with {error}, got {answer}"
        if call == "createTransaction":
            made = TransactionId(int(answer["txnId"]["highBits"]), int(answer["txnId"]["lowBits"]))
            stream = original["streamInfo"]
            self.transactions[stream["scope"], stream["stream"], str(reply["txnId"])] = made
        if call == "checkTransactionState":
            # The background may be faster here than it was there.
            faster = {"COMMITTING": ("COMMITTING", "COMMITTED"), "ABORTING": ("ABORTING", "ABORTED")}
            assert answer["state"] in faster.get(reply["state"], (reply["state"],)), request
            return
        if "continuationToken" in reply:
            assert "continuationToken" in answer
        if call == "listScopes":
            assert sorted(answer["scopes"]) == (sorted(reply["scopes"]) if reply["scopes"] else [])
            return
        assert shape(answer) == self.expected(call, reply), f"{call} {request}"
        assert set(answer) == set(reply), f"{call}: other fields than recorded"


@pytest.mark.parametrize("client", ["rust", "java"])
async def test_recorded_calls_get_the_recorded_kind_of_answer(client: str, wire: Wire) -> None:
    """Every recorded call that we serve is sent to a real gRPC server over memory segments, in order.

    Shows API-2, API-4, API-5, API-7, API-8, API-12, API-13, API-14, API-16, API-17, API-22, API-23, API-27, API-41 and
    K-8 on requests as real clients send them.
    """
    replay = Replay(wire)
    count = 0
    for line in (DATA / f"controller-{client}.jsonl").read_text().splitlines():
        await replay.hold(json.loads(line))
        count += 1
    assert count > 100


async def test_stream_unknown_to_the_recording_is_not_found(wire: Wire) -> None:
    """The harness itself: a call that must fail is distinguished from one that must not."""
    with pytest.raises(AssertionError):
        await Replay(wire).hold(
            {
                "call": "checkScopeExists",
                "request": {"scope": "missing"},
                "reply": None,
                "error": ["NOT_FOUND", ""],
            }
        )
    with pytest.raises(NoSuchScopeError):
        await wire.service.list_streams("missing", "")

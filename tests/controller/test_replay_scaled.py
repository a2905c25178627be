"""Recorded calls of the Rust and the Java client about scaled streams, replayed against our controller.

`data/scaled-streams.jsonl` holds calls and replies recorded between Pravega 0.13 and its clients, in order. A stream is
created again where its recording begins; between a scale and its end ours is held as long as the recorded controller
took. Replies must equal the recorded ones, ids, key ranges and epochs included, except for the order of successor
segments.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from penstock.model.errors import ScopeExistsError
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.conftest import Wire

RECORDING = Path(__file__).parent / "data" / "scaled-streams.jsonl"
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["ControllerService"].methods}


def in_any_order(
    value: str | float | list[dict[str, Any]] | dict[str, Any],
) -> str | float | list[Any] | dict[str, Any]:
    """Return a reply with its lists sorted."""
    if isinstance(value, dict):
        return {key: in_any_order(item) for key, item in value.items()}
    return sorted(map(in_any_order, value), key=json.dumps) if isinstance(value, list) else value


def as_recorded(message: Message, alias: str, stream: str) -> Any:
    found = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return in_any_order(json.loads(json.dumps(found).replace(json.dumps(alias), json.dumps(stream))))


class Stage:
    """Brings about the state before each call."""

    def __init__(self, wire: Wire) -> None:
        self.service = wire.service
        self.store = wire.cluster.store
        self.aliases = {}
        self.transactions = {}
        self.count = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.store.seal_segment = self._held(self.store.seal_segment)  # type: ignore[assignment, method-assign]

    def _held(self, seal: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def seal_later(segment: str) -> None:
            await self.is_open.wait()
            await seal(segment)

        return seal_later

    async def begin(self, key: tuple[str, str], first_segment: int, segments: int) -> None:
        """Make a stream that has never been there, or the next one of the name if its segments continue."""
        scope, stream = key
        try:
            await self.service.create_scope(scope)
        except ScopeExistsError:
            pass
        if first_segment == 0:
            self.count += 1
            self.aliases[key] = f"{stream}-{self.count}"
        else:
            await self.service.seal_stream(scope, self.aliases[key])
            await self.service.delete_stream(scope, self.aliases[key])
        alias = self.aliases[key]
        await self.service.create_stream(scope, alias, StreamConfig(Scaling.fixed(segments)))
        for segment in await self.service.current_segments(scope, alias):
            await self.store.append(f"{scope}/{alias}/{segment.number}.#epoch.0", bytes(100))
        if "TxnWithScale" in stream:
            self.transactions[key] = (await self.service.transactions.create(scope, alias, 30_000)).id

    async def prepare(self, record: dict[str, Any], following: dict[str, Any] | None) -> Any:
        """Bring about the state that the recorded reply shows. `following`: the next call about the same stream."""
        call, request = record["call"], record["request"]
        key = request["streamInfo"]["scope"], request["streamInfo"]["stream"]
        if call == "scale":
            sealed = [int(segment) for segment in request["sealedSegments"]]
            if min(sealed) < 1 << 32:
                low = min(entry["start"] for entry in request["newKeyRanges"])
                high = max(entry["end"] for entry in request["newKeyRanges"])
                await self.begin(key, 0 if high < 1.0 else min(sealed), round(len(sealed) / (high - low)))
            if record["reply"]["status"] == "PRECONDITION_FAILED":
                # It names a segment that was replaced before.
                found = await self.service.current_segments(key[0], self.aliases[key])
                ranges = [(segment.key_start, segment.key_end) for segment in found if segment.id in sealed]
                await self.service.scale_stream(key[0], self.aliases[key], sealed, ranges)
                await self.service.idle()
            if following is not None and following["reply"].get("status") == "IN_PROGRESS":
                self.is_open.clear()
        elif record["reply"].get("status") != "IN_PROGRESS":
            self.is_open.set()
            await self.service.idle()
        if call == "getSegmentsImmediatelyFollowing" and int(request["segmentId"]) >> 32 and key in self.transactions:
            transaction = self.transactions.pop(key)
            await self.service.transactions.commit(key[0], self.aliases[key], transaction, writer_id="", timestamp=0)
            await self.service.idle()
        return self.aliases[key]


@pytest.mark.parametrize("client", ["rust", "java"])
async def test_recorded_calls_about_scaled_streams_get_the_recorded_answer(client: str, wire: Wire) -> None:
    """Scales, their status, what follows a segment (also when transactions were rolled over), segments between cuts.

    Shows API-19, API-20, API-21 and H13 on requests as real clients send them.
    """
    stage = Stage(wire)
    records = [record for record in map(json.loads, RECORDING.read_text().splitlines()) if record["client"] == client]
    for index, record in enumerate(records):
        info = record["request"]["streamInfo"]
        later = (other for other in records[index + 1 :] if other["request"]["streamInfo"] == info)
        alias = await stage.prepare(record, next(later, None))
        request = {**record["request"], "streamInfo": {**info, "stream": alias}}
        message = ParseDict(request, getattr(pb, METHODS[record["call"]].input_type.name)())
        answer = as_recorded(await getattr(wire.stub, record["call"])(message), alias, info["stream"])
        assert answer == in_any_order(record["reply"]), f"{index}: {record['call']} {record['request']}"
    assert len(records) >= 30

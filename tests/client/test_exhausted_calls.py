"""RESOURCE_EXHAUSTED has one code for four causes. Over real channels: each has its own error, and its own advice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from random import Random

import grpc.aio
import pytest

from penstock.client.common.waits import DISK_FULL, REFUSED, Waits
from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.exhaustion import Exhaustion, cause_of
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    OutcomeUnknownError,
    ReplyTooLongError,
    StorageFullError,
    UnacknowledgedStorageFullError,
)
from penstock.model.errors.root import PenstockError
from penstock.rpc import STORAGE_FULL_KEY
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server
from support.containers import until

LIMIT = 2000


class Answers(ControllerServiceServicer):
    """Hangs where a scope is called "hang", and is out of something where it has another name."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hanging = asyncio.Event()

    async def checkScopeExists(self, request: pb.ScopeInfo, context: object) -> object:
        return await self.createScope(request, context)

    async def createScope(self, request: pb.ScopeInfo, context: object) -> None:
        self.calls.append(request.scope)
        if request.scope == "hang":
            self.hanging.set()
            await asyncio.Event().wait()
        if request.scope == "full":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", ((STORAGE_FULL_KEY, "1"),))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests today")

    async def listScopes(self, request: pb.ScopesRequest, context: object) -> pb.ScopesResponse:
        self.calls.append("listScopes")
        return pb.ScopesResponse(scopes=["x" * 2 * LIMIT])


@asynccontextmanager
async def serving(
    *, calls_max: int | None = None, sends_max: int = -1, **changes: int
) -> AsyncIterator[tuple[ControllerClient, Answers]]:
    answers = Answers()
    options = [("grpc.max_receive_message_length", LIMIT), ("grpc.max_send_message_length", sends_max)]
    server = grpc.aio.server(maximum_concurrent_rpcs=calls_max, options=options)
    add_ControllerServiceServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    settings = ClientSettings(controller_attempt_count_max=3, **changes)
    client = ControllerClient.connect(f"tcp://127.0.0.1:{port}", settings, Random(1))
    client.waits = Waits(settings)
    try:
        yield client, answers
    finally:
        await client.close()
        await server.stop(None)


async def test_a_too_long_request_is_not_retried() -> None:
    async with serving() as (client, answers):
        with pytest.raises(InvalidArgumentError, match="message_bytes_max of the controller") as caught:
            await client.create_scope("x" * 2 * LIMIT)
    assert not isinstance(caught.value, ReplyTooLongError)
    assert "nothing was done" in str(caught.value)
    assert "disk" not in str(caught.value)
    assert not answers.calls


@pytest.mark.parametrize(
    ("options", "setting"),
    [({"sends_max": LIMIT}, "message_bytes"), ({"controller_reply_bytes_max": LIMIT}, "controller_reply_bytes")],
    ids=["for the controller", "for the client"],
)
async def test_a_too_long_reply_names_the_limit_that_it_exceeds(options: dict[str, int], setting: str) -> None:
    async with serving(**options) as (client, answers):
        with pytest.raises(ReplyTooLongError, match=rf"\({setting}_max"):
            async for _ in client.scopes():
                pass
    assert answers.calls == ["listScopes"]


async def test_a_controller_with_too_many_calls_has_no_full_disk() -> None:
    """Nothing was done, so a change has no unknown outcome; and it is repeated."""
    async with serving(calls_max=1) as (client, answers):
        hanging = asyncio.ensure_future(client._stub.checkScopeExists(pb.ScopeInfo(scope="hang")))
        await answers.hanging.wait()
        for call in (client.create_scope, client.scope_exists):
            with pytest.raises(ControllerUnavailableError, match=r"its maximum number of calls.*attempts") as caught:
                await call("a")
            assert "disk" not in str(caught.value)
        assert answers.calls == ["hang"]
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)


@pytest.mark.parametrize(
    ("scope", "why", "of_change", "of_query"),
    [
        ("full", DISK_FULL, UnacknowledgedStorageFullError, StorageFullError),
        ("busy", REFUSED, OutcomeUnknownError, ControllerUnavailableError),
    ],
)
async def test_only_the_controllers_own_code_means_a_full_disk(
    scope: str, why: str, of_change: type[OutcomeUnknownError], of_query: type[PenstockError]
) -> None:
    """Of another cause, as a proxy's limit of requests, it is not known whether anything was done."""
    async with serving() as (client, answers):
        said = asyncio.ensure_future(client.create_scope(scope))
        await until(lambda: any("RESOURCE" in wait.detail for wait in client.waits._waits))
        assert [wait.why for wait in client.waits._waits] == [why]
        with pytest.raises(of_change) as caught:
            await said
        assert isinstance(caught.value, StorageFullError) is (scope == "full")
        assert len(answers.calls) > 1
        with pytest.raises(of_query) as caught:
            await client.scope_exists(scope)
        assert isinstance(caught.value, StorageFullError) is (scope == "full")


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("SERVER: Received message larger than max (20002 vs. 10000)", Exhaustion.REQUEST_TOO_LONG),
        ("CLIENT: Sent message larger than max (20002 vs. 10000)", Exhaustion.REQUEST_TOO_LONG),
        ("SERVER: Sent message larger than max (20002 vs. 10000)", Exhaustion.REPLY_TOO_LONG),
        ("Stream removed (CLIENT: Received message larger than max (2 vs. 1))", Exhaustion.REPLY_TOO_LONG_HERE),
        ("gRPC message exceeds maximum size 4194304: 5000000", Exhaustion.REQUEST_TOO_LONG),
        ("Concurrent RPC limit exceeded!", Exhaustion.TOO_MANY_CALLS),
        ("quota of the proxy", Exhaustion.REFUSED),
        ("", Exhaustion.REFUSED),
        (None, Exhaustion.REFUSED),
    ],
)
def test_causes_follow_from_grpc_status_and_details(details: str | None, cause: Exhaustion) -> None:
    """The texts of gRPC's core, and of Java's servers; a full disk by what the controller adds alone."""

    def error(code: Enum, **metadata: str) -> Exception:
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata.items()), details)

    assert cause_of(error(grpc.StatusCode.RESOURCE_EXHAUSTED)) is cause
    assert cause_of(error(grpc.StatusCode.RESOURCE_EXHAUSTED, **{STORAGE_FULL_KEY: "1"})) is Exhaustion.DISK_FULL
    assert cause_of(error(grpc.StatusCode.UNAVAILABLE)) is None

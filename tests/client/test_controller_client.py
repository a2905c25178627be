"""`ControllerClient` against a real gRPC server that fails on purpose: which calls are retried, which are unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient, parse_controller_uri
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    AccessDeniedError,
    AuthenticationError,
    ControllerUnavailableError,
    InvalidArgumentError,
    InvalidNameError,
    MetadataConflictError,
    NoSuchScopeError,
    NoSuchStreamError,
    OutcomeUnknownError,
    ScopeExistsError,
    StreamError,
    StreamSealedError,
    TransactionError,
    UnsupportedOperationError,
)
from penstock.model.errors.root import PenstockError
from penstock.model.names import SegmentId
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server

SETTINGS = ClientSettings(controller_attempt_count_max=3, retry_delay_max_s=0.02)


class Script(ControllerServiceServicer):
    """Answers each call with the next scripted answer: a message, or a status code to fail with."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[Any] = []


async def _answer(self: object, request: Message, context: object) -> Message:
    self.requests.append(request)
    answer = self.answers.pop(0)
    if isinstance(answer, grpc.StatusCode):
        await context.abort(answer, "on purpose")
    return answer


for _name in [name for name in vars(ControllerServiceServicer) if not name.startswith("_")]:
    setattr(Script, _name, _answer)


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    script = Script()
    server = grpc.aio.server()
    add_ControllerServiceServicer_to_server(script, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    script.client = ControllerClient.connect(f"tcp://127.0.0.1:{port}", SETTINGS, Random(1))
    yield script
    await script.client.close()
    await server.stop(None)


async def test_transient_errors_are_retried(script: Script) -> None:
    script.answers = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, pb.ExistsResponse(exists=True)]
    assert await script.client.scope_exists("a")
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, NoSuchStreamError),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedOperationError),
        (grpc.StatusCode.PERMISSION_DENIED, AccessDeniedError),
        (grpc.StatusCode.UNAUTHENTICATED, AuthenticationError),
    ],
)
async def test_permanent_errors_are_not_retried(
    script: Script, code: grpc.StatusCode, error: type[PenstockError]
) -> None:
    script.answers = [code]
    with pytest.raises(error, match="on purpose"):
        await script.client.current_segments("a", "b")
    assert len(script.requests) == 1


async def test_a_controller_without_stream_identities_returns_none(script: Script) -> None:
    """Pravega's own controller has no such service: gRPC answers UNIMPLEMENTED."""
    assert await script.client.stream_identity("a", "b") is None
    assert script.requests == []


async def test_query_without_an_answer_is_unavailable_and_change_is_unknown(script: Script) -> None:
    script.answers = [grpc.StatusCode.UNAVAILABLE] * 6
    with pytest.raises(ControllerUnavailableError, match="3 attempts"):
        await script.client.stream_exists("a", "b")
    with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
        await script.client.seal_stream("a", "b")


async def test_a_refusal_after_an_unanswered_attempt_says_that_this_may_have_taken_effect(script: Script) -> None:
    """Only of a change: a query has no effect."""
    script.answers = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND] * 2
    with pytest.raises(NoSuchStreamError, match="earlier attempt, whose reply was lost, may have taken effect"):
        await script.client.seal_stream("a", "b")
    with pytest.raises(NoSuchStreamError) as caught:
        await script.client.stream_exists("a", "b")
    assert "earlier attempt" not in str(caught.value)


async def test_created_by_an_unanswered_attempt_is_not_called_existing(script: Script) -> None:
    # First attempt: no answer. Second: it exists. A scope is then as wanted; a stream's policies are unknown.
    script.answers = [grpc.StatusCode.UNAVAILABLE, pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)]
    await script.client.create_scope("a")
    script.answers = [pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)]
    with pytest.raises(ScopeExistsError):
        await script.client.create_scope("a")
    script.answers = [grpc.StatusCode.UNAVAILABLE, pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS)]
    with pytest.raises(OutcomeUnknownError, match="exists now"):
        await script.client.create_stream("a", "b", StreamConfig())
    script.answers = [
        grpc.StatusCode.UNAVAILABLE,
        pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND),
    ]
    await script.client.delete_stream("a", "b")


async def test_with_exist_ok_a_concurrent_creation_is_success(script: Script) -> None:
    # No answer, then "exists", then the query whether it does: with `exist_ok` that is success.
    async with Client("tcp://unused:9090", SETTINGS, controller=script.client) as client:
        unsure = [grpc.StatusCode.UNAVAILABLE, pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS)]
        script.answers = [*unsure, pb.ExistsResponse(exists=True)]
        await client.create_stream("a/b", exist_ok=True)
        script.answers = list(unsure)
        with pytest.raises(OutcomeUnknownError):
            await client.create_stream("a/b")


CREATE, UPDATE, DELETE = pb.CreateStreamStatus, pb.UpdateStreamStatus, pb.DeleteScopeStatus


@pytest.mark.parametrize(
    ("call", "answer", "error"),
    [
        (lambda c: c.create_scope("a"), pb.CreateScopeStatus(status=3), InvalidNameError),
        (lambda c: c.create_scope("a"), pb.CreateScopeStatus(status=1), StreamError),
        (lambda c: c.delete_scope("a"), DELETE(status=DELETE.SCOPE_NOT_FOUND), NoSuchScopeError),
        (lambda c: c.delete_scope("a"), DELETE(status=DELETE.FAILURE), StreamError),
        (lambda c: c.create_stream("a", "b", StreamConfig()), CREATE(status=3), NoSuchScopeError),
        (lambda c: c.create_stream("a", "b", StreamConfig()), CREATE(status=4), InvalidNameError),
        (lambda c: c.create_stream("a", "b", StreamConfig()), CREATE(status=1), StreamError),
        (lambda c: c.update_stream("a", "b", StreamConfig()), UPDATE(status=4), StreamSealedError),
        (lambda c: c.update_stream("a", "b", StreamConfig()), UPDATE(status=2), NoSuchStreamError),
        (lambda c: c.truncate_stream(StreamCut("a", "b", {0: 1})), UPDATE(status=1), MetadataConflictError),
        (lambda c: c.abort_transaction("a", "b", pb.TxnId()), pb.TxnStatus(status=2), NoSuchStreamError),
        (lambda c: c.ping_transaction("a", "b", pb.TxnId(), lease_ms=1), pb.PingTxnStatus(status=2), TransactionError),
        (
            lambda c: c.scale_stream("a", "b", seal=[SegmentId(0)], key_ranges=[(0, 1)]),
            pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED),
            InvalidArgumentError,
        ),
        (
            lambda c: c.scale_stream("a", "b", seal=[SegmentId(0)], key_ranges=[(0, 1)]),
            pb.ScaleResponse(status=pb.ScaleResponse.FAILURE),
            MetadataConflictError,
        ),
    ],
)
async def test_refusals_have_their_types(
    script: Script, call: Callable[..., Any], answer: Message, error: type[PenstockError]
) -> None:
    script.answers = [answer]
    with pytest.raises(error):
        await call(script.client)


async def test_sealing_twice_is_fine(script: Script) -> None:
    script.answers = [UPDATE(status=UPDATE.STREAM_SEALED)]
    await script.client.seal_stream("a", "b")


async def test_scale_waits_until_it_is_complete(script: Script) -> None:
    script.answers = [
        pb.ScaleResponse(status=pb.ScaleResponse.STARTED, epoch=3),
        pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.IN_PROGRESS),
        pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS),
    ]
    await script.client.scale_stream(
        "a", "b", seal=[SegmentId(0)], key_ranges=[(0.0, 0.5), (0.5, 1.0)], poll_interval_s=0.001
    )
    assert [list(script.requests[0].sealedSegments), script.requests[1].epoch] == [[0], 3]


@pytest.mark.parametrize("bound", [0.5, 0.25])
async def test_scale_that_was_done_by_an_attempt_without_an_answer_is_done(script: Script, bound: float) -> None:
    """The segments were replaced by this scale, which then succeeds, or by a different one: then it is refused."""
    ends = [(0.0, bound), (bound, 1.0)]
    following = [
        pb.SuccessorResponse.SegmentEntry(
            segment=pb.SegmentRange(
                segmentId=pb.SegmentId(streamInfo=pb.StreamInfo(scope="a", stream="b"), segmentId=number),
                minKey=low, maxKey=high,
            ),
            value=[0],
        )
        for number, (low, high) in enumerate(ends, 1)
    ]  # fmt: skip
    script.answers = [
        grpc.StatusCode.UNAVAILABLE,
        pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED),
        pb.SuccessorResponse(segments=following),
    ]
    asked = script.client.scale_stream("a", "b", seal=[SegmentId(0)], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    if bound == 0.5:
        await asked
    else:
        with pytest.raises(InvalidArgumentError):
            await asked
    assert script.answers == []


async def test_configuration_survives_the_wire(script: Script) -> None:
    config = StreamConfig(
        Scaling.by_data_rate(100, factor=3, min_segments=2), Retention.by_size(1000, 2000), ("x", "y"), 5, 6
    )
    script.answers = [CREATE(status=CREATE.SUCCESS)]
    assert await script.client.create_stream("a", "b", config)
    script.answers = [script.requests[0]]
    assert await script.client.stream_config("a", "b") == config


async def test_segments_between_two_cuts(script: Script) -> None:
    script.answers = [pb.StreamCutRangeResponse(segments=[pb.SegmentId(segmentId=5)])]
    found = await script.client.segments_between(StreamCut("a", "b", {0: 1}), StreamCut("a", "b", {5: 2}))
    assert found == [5]
    assert dict(getattr(script.requests[0], "from")) == {0: 1}
    assert dict(script.requests[0].to) == {5: 2}


async def test_cuts_that_form_no_range_are_refused_at_once_for_any_message(script: Script) -> None:
    """A controller answers UNKNOWN, in words of its own. Once that may be a fault of gRPC's, which passes."""
    start, end = StreamCut("a", "b", {3: 0, 1 << 32 | 4: 0}), StreamCut("a", "b", {1: 0, 1 << 32 | 5: 0})
    script.answers = [grpc.StatusCode.UNKNOWN, pb.StreamCutRangeResponse(segments=[pb.SegmentId(segmentId=5)])]
    assert await script.client.segments_between(start, end) == [5]
    script.requests.clear()
    script.answers = [grpc.StatusCode.UNKNOWN] * 9
    with pytest.raises(InvalidArgumentError, match="the segments between two cuts of stream a/b"):
        await script.client.segments_between(start, end)
    assert len(script.requests) == 2


async def test_host_of_a_transaction_segment_is_that_of_its_parent(script: Script) -> None:
    script.answers = [pb.NodeUri(endpoint="h", port=1)]
    name = "a/b/7.#epoch.2#transaction." + "0" * 32
    assert await script.client.endpoint_of(name) == ("h", 1)
    assert script.requests[0].segmentId == (2 << 32) | 7


@pytest.mark.parametrize(
    ("uri", "addresses", "use_tls"),
    [
        ("tcp://h:9090", ["h:9090"], False),
        ("h:9090", ["h:9090"], False),
        ("tls://h:1/", ["h:1"], True),
        ("pravega://10.0.0.1:1,10.0.0.2:2", ["10.0.0.1:1", "10.0.0.2:2"], False),
        ("tls://c-1.example:1, c-2.example:2", ["c-1.example:1", "c-2.example:2"], True),
        ("tcp://[::1]:9090", ["[::1]:9090"], False),
    ],
)
def test_controller_addresses(uri: str, addresses: list[str], use_tls: bool) -> None:
    assert parse_controller_uri(uri) == (tuple(addresses), use_tls)


async def test_no_grpc_work_is_pending_after_close() -> None:
    """What a call waited for that gave up would end in a loop that is closed, and take another client's news along."""
    client = ControllerClient.connect("tcp://127.0.0.1:1", ClientSettings(request_timeout_s=0.1), Random(1))
    with pytest.raises(ControllerUnavailableError):
        await client.create_scope("never")
    assert client._channels is not None
    (watching,) = client._channels.waits
    assert not watching.done()
    await client.close()
    assert watching.done()
    assert watching.exception() is None

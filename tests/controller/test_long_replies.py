"""Replies that no message can hold: each names its stream for each segment, and there may be ten thousand of them.

gRPC itself answers RESOURCE_EXHAUSTED, as for a temporary shortage, and every client retries until it gives up.
"""

from __future__ import annotations

import asyncio
from random import Random

import grpc
import pytest

from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.controller.grpc import convert
from penstock.controller.grpc.server import GrpcServer
from penstock.controller.metadata.records import SegmentRecord
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import ReplyTooLongError
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from support.in_process_cluster import InProcessCluster

LIMIT = 20_000
SEGMENTS = 60
SCOPE, STREAM = "s" * 255, "t" * 250
START = StreamCut(SCOPE, STREAM, dict.fromkeys(range(SEGMENTS), 0))

CALLS = {
    "getCurrentSegments": lambda client: client.current_segments(SCOPE, STREAM),
    "getEpochSegments": lambda client: client.epoch_segments(SCOPE, STREAM, 0),
    "getSegments": lambda client: client.head(SCOPE, STREAM),
    "getSegmentsBetween": lambda client: client.segments_between(START, START),
}


async def started(cluster: InProcessCluster, settings: ControllerSettings | None = None) -> ControllerService:
    """Return a controller with a stream of many segments and long names."""
    service = await cluster.start(settings)
    await service.create_scope(SCOPE)
    await service.create_stream(SCOPE, STREAM, StreamConfig(Scaling.fixed(SEGMENTS)))
    return service


@pytest.mark.parametrize("limiting", ["controller", "client"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_too_long_reply_is_reported_and_not_requested_again(
    cluster: InProcessCluster, name: str, limiting: str
) -> None:
    """Whichever end does not take it; a call with a short reply goes well meanwhile, on the same connection."""
    is_servers = limiting == "controller"
    settings = ControllerSettings(message_bytes_max=LIMIT) if is_servers else None
    client_settings = ClientSettings() if is_servers else ClientSettings(controller_reply_bytes_max=LIMIT)
    async with GrpcServer(await started(cluster, settings), "127.0.0.1", 0) as server:
        client = ControllerClient.connect(f"tcp://127.0.0.1:{server.port}", client_settings, Random(1))
        try:
            # A client asks again for ten minutes.
            async with asyncio.timeout(60):
                with pytest.raises(ReplyTooLongError, match=r"message_bytes_max|controller_reply_bytes_max"):
                    await CALLS[name](client)
                assert await client.stream_exists(SCOPE, STREAM)
        finally:
            await client.close()


async def test_other_clients_get_a_status_code_that_they_do_not_retry(cluster: InProcessCluster) -> None:
    """OUT_OF_RANGE; see controller-api 4. The limit is said, and what would help."""
    async with (
        GrpcServer(await started(cluster, ControllerSettings(message_bytes_max=LIMIT)), "127.0.0.1", 0) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await ControllerServiceStub(channel).getCurrentSegments(pb.StreamInfo(scope=SCOPE, stream=STREAM))  # type: ignore[misc]
    assert failure.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert f"at most {LIMIT} may be sent (message_bytes_max" in failure.value.details()  # type: ignore[operator]


@pytest.mark.parametrize(("name_length", "fits"), [(180, True), (255, False)])
async def test_ten_thousand_segments_fit_into_the_default_with_names_of_usual_length(
    name_length: int, fits: bool
) -> None:
    """Also of a late epoch, whose numbers are long."""
    segments = [SegmentRecord(number, 1_000_000, 1, number / 10_000, (number + 1) / 10_000) for number in range(10_000)]
    reply = await convert.segment_ranges("s" * name_length, "t" * name_length, segments)
    assert (reply.ByteSize() <= ControllerSettings().message_bytes_max) is fits

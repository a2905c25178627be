"""Identities: two streams never share one, and a stream keeps it for its whole life."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from penstock.controller.metadata.records import StreamState
from penstock.controller.service import ControllerService
from penstock.controller.watermarks.mark_streams import mark_stream_of
from penstock.model.errors import NoSuchStreamError
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import additions_pb2
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.additions_pb2_grpc import PenstockControllerServiceStub
from support.in_process_cluster import InProcessCluster

if TYPE_CHECKING:
    from controller.conftest import Wire

CONFIG = StreamConfig(Scaling.fixed(1))
HALVES = [(0.0, 0.5), (0.5, 1.0)]


async def recreate(service: ControllerService) -> None:
    await service.seal_stream("scope", "stream")
    await service.delete_stream("scope", "stream")
    await service.create_stream("scope", "stream", CONFIG)


@pytest.fixture
async def service(cluster: InProcessCluster) -> ControllerService:
    service = await cluster.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", CONFIG)
    return service


async def test_a_stream_that_is_created_again_has_another_identity(
    cluster: InProcessCluster, service: ControllerService
) -> None:
    """Also when the clock has been set back between the two, to the very time of the first creation."""
    found = [await service.queries.identity("scope", "stream")]
    for _ in range(3):
        await recreate(service)
        found.append(await service.queries.identity("scope", "stream"))
    cluster.clock_ms -= 3_600_000
    await recreate(service)
    found.append(await service.queries.identity("scope", "stream"))
    assert len(set(found)) == 5
    assert all(found)


async def test_changes_and_restarts_keep_the_identity(cluster: InProcessCluster, service: ControllerService) -> None:
    before = await service.queries.identity("scope", "stream")
    await service.update_stream("scope", "stream", StreamConfig(Scaling.fixed(1), tags=("retail",)))
    await service.scale_stream("scope", "stream", [0], HALVES)
    await service.idle()
    cut = {segment.id: 0 for segment in await service.current_segments("scope", "stream")}
    await service.truncate_stream("scope", "stream", cut)  # type: ignore[arg-type]
    await service.seal_stream("scope", "stream")
    assert await service.queries.identity("scope", "stream") == before
    await service.stop()
    assert await (await cluster.start()).queries.identity("scope", "stream") == before


async def test_a_controller_that_remembers_the_deleted_stream_returns_the_new_identity(
    cluster: InProcessCluster, service: ControllerService
) -> None:
    other = await cluster.start()
    before = await other.queries.identity("scope", "stream")
    await recreate(service)
    found = await other.queries.identity("scope", "stream")
    assert found == await service.queries.identity("scope", "stream") != before


async def test_a_mark_stream_has_the_identity_of_its_stream(service: ControllerService) -> None:
    found = await service.queries.identity("scope", mark_stream_of("stream"))  # type: ignore[arg-type]
    assert found == await service.queries.identity("scope", "stream")


async def test_half_a_stream_has_no_identity(service: ControllerService) -> None:
    tables = service._catalog.tables_of("scope", "half", await service._catalog.add_stream("scope", "half", "an-id"))
    with pytest.raises(NoSuchStreamError):
        await service.queries.identity("scope", "half")
    await tables.create_tables()
    await tables.create_records(CONFIG, 1, 0)
    with pytest.raises(NoSuchStreamError):
        await service.queries.identity("scope", "half")
    await tables.set_state(StreamState.ACTIVE, of=await tables.state())
    assert await service.queries.identity("scope", "half") == "an-id"


async def test_the_call_on_the_wire(wire: Wire) -> None:
    ours, info = PenstockControllerServiceStub(wire.channel), pb.StreamInfo(scope="scope", stream="stream")
    await wire.service.create_scope("scope")
    await wire.service.create_stream("scope", "stream", CONFIG)
    reply = await ours.describeStream(additions_pb2.DescribeStreamRequest(streamInfo=info))  # type: ignore[misc]
    assert reply.identity == await wire.service.queries.identity("scope", "stream")
    info.stream = "none"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ours.describeStream(additions_pb2.DescribeStreamRequest(streamInfo=info))  # type: ignore[misc]
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND

"""The scenarios of controller-api 15, through a real gRPC server and client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import grpc
import pytest

from penstock.controller.grpc.server import GrpcServer
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ContainerOfflineError,
    ControllerUnavailableError,
    NoSuchSegmentError,
    PenstockError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    TooManyActiveSegmentsError,
)
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import STORAGE_FULL_KEY
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks

if TYPE_CHECKING:
    from controller.conftest import Wire


def info(stream: str = "stream", scope: str = "scope") -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def config(
    stream: str = "stream", scope: str = "scope", segments: int = 1, tags: Sequence[str] = (), **options: int
) -> pb.StreamConfig:
    policy = pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=segments)
    return pb.StreamConfig(streamInfo=info(stream, scope), scalingPolicy=policy, tags=pb.Tags(tag=tags), **options)


def token(text: str = "") -> pb.ContinuationToken:
    return pb.ContinuationToken(token=text)


def segment(number: int, stream: str = "stream", scope: str = "scope") -> pb.SegmentId:
    return pb.SegmentId(streamInfo=info(stream, scope), segmentId=number)


async def status_of(call: object) -> str:
    """Return the gRPC status that a call fails with. A full disk, and nothing else, is marked as one."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    assert "Traceback" not in failure.value.details()
    assert 'File "' not in failure.value.details()
    assert (STORAGE_FULL_KEY in failure.value.trailing_metadata()) is ("no room" in failure.value.details())
    return failure.value.code().name


@pytest.fixture
async def stub(wire: Wire) -> ControllerServiceStub:
    """A client with the scope "scope"."""
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))
    return wire.stub


async def test_controller_list_has_the_published_endpoint(cluster: InProcessCluster) -> None:
    """API-1, S-260: the list names the published host and port, whatever the server listens on."""
    service = await cluster.start()
    async with GrpcServer(service, "127.0.0.1", 0, published_host="controller.example", published_port=19090) as server:
        assert server.port > 0
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            from penstock.rpc.controller_pb2_grpc import ControllerServiceStub

            found = await ControllerServiceStub(channel).getControllerServerList(pb.ServerRequest())
    assert [(node.endpoint, node.port) for node in found.nodeURI] == [("controller.example", 19090)]


async def test_no_host_at_all_is_every_address_of_the_machine(cluster: InProcessCluster) -> None:
    """As for the segment store; clients get a name that they can use."""
    from penstock.rpc.controller_pb2_grpc import ControllerServiceStub

    async with (
        GrpcServer(await cluster.start(), "", 0) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        found = await ControllerServiceStub(channel).getControllerServerList(pb.ServerRequest())
    assert [node.endpoint for node in found.nodeURI] == ["localhost"]


async def test_scope_is_created_once_under_a_legal_name(wire: Wire) -> None:
    """API-2: success, then exists; names that break the rules are invalid; the empty name is an error."""
    create = wire.stub.createScope
    reply = pb.CreateScopeStatus
    for name in ("a", "_internal", "a.b-C9", "x" * 255):
        assert (await create(pb.ScopeInfo(scope=name))).status == reply.SUCCESS
        assert (await create(pb.ScopeInfo(scope=name))).status == reply.SCOPE_EXISTS
    for name in ("a/b", "a_b", "__a", "ä", "_", "x" * 256, "a b", "a\n"):
        assert (await create(pb.ScopeInfo(scope=name))).status == reply.INVALID_SCOPE_NAME, name
    assert await status_of(create(pb.ScopeInfo())) == "INTERNAL"


async def test_scopes_are_listed_in_pages(connect: Callable[..., Awaitable[Wire]]) -> None:
    """API-3, K-2, S-004: one scope, then 25, at once and in pages of 10; an empty page repeats the token."""
    wire = await connect(ControllerSettings(page_entries_max=10))
    first = await wire.stub.listScopes(pb.ScopesRequest(continuationToken=token()))
    assert list(first.scopes) == ["_system"]
    assert first.HasField("continuationToken")
    for number in range(24):
        await wire.stub.createScope(pb.ScopeInfo(scope=f"scope{number}"))
    seen, at, pages = [], "", 0
    while True:
        page = await wire.stub.listScopes(pb.ScopesRequest(continuationToken=token(at)))
        assert page.HasField("continuationToken")
        if not page.scopes:
            assert page.continuationToken.token == at
            break
        assert len(page.scopes) <= 10
        seen += page.scopes
        at = page.continuationToken.token
        pages += 1
    assert pages == 3
    assert sorted(seen) == sorted(["_system", *(f"scope{number}" for number in range(24))])
    assert sorted((await wire.service.list_scopes("", 1000)).names) == sorted(seen)


async def test_scope_existence_before_and_after(wire: Wire) -> None:
    """API-4: false, then true; names that cannot exist are just not there."""
    for expected in (False, True):
        assert (await wire.stub.checkScopeExists(pb.ScopeInfo(scope="late"))).exists is expected
        await wire.stub.createScope(pb.ScopeInfo(scope="late"))
    for name in ("", "a/b", "x" * 10_000):
        assert not (await wire.stub.checkScopeExists(pb.ScopeInfo(scope=name))).exists


async def test_only_an_empty_scope_is_deleted(stub: ControllerServiceStub) -> None:
    """API-5, S-002: with a stream not empty, without it gone, then not found; the empty name is an error."""
    reply = pb.DeleteScopeStatus
    scope = pb.ScopeInfo(scope="scope")
    await stub.createStream(config())
    assert (await stub.deleteScope(scope)).status == reply.SCOPE_NOT_EMPTY
    await stub.sealStream(info())
    await stub.deleteStream(info())
    assert (await stub.deleteScope(scope)).status == reply.SUCCESS
    assert (await stub.deleteScope(scope)).status == reply.SCOPE_NOT_FOUND
    assert (await stub.deleteScope(pb.ScopeInfo(scope="_system"))).status == reply.SCOPE_NOT_EMPTY
    assert await status_of(stub.deleteScope(pb.ScopeInfo())) == "INTERNAL"


async def test_recursive_delete_empties_a_scope(stub: ControllerServiceStub) -> None:
    """API-6: missing is success, a scope with streams disappears, the empty name is an error."""
    reply = pb.DeleteScopeStatus
    assert (await stub.deleteScopeRecursive(pb.ScopeInfo(scope="none"))).status == reply.SUCCESS
    for stream in ("a", "b", "_RGgroup"):
        await stub.createStream(config(stream))
    await stub.sealStream(info("a"))
    assert (await stub.deleteScopeRecursive(pb.ScopeInfo(scope="scope"))).status == reply.SUCCESS
    assert not (await stub.checkScopeExists(pb.ScopeInfo(scope="scope"))).exists
    assert (await stub.createStream(config())).status == pb.CreateStreamStatus.SCOPE_NOT_FOUND
    assert await status_of(stub.deleteScopeRecursive(pb.ScopeInfo())) == "INTERNAL"


async def test_stream_is_created_once_under_a_legal_name(stub: ControllerServiceStub) -> None:
    """API-7: success, exists, missing scope, a bad name before a missing scope; an internal-looking name is fine."""
    reply = pb.CreateStreamStatus
    assert (await stub.createStream(config())).status == reply.SUCCESS
    assert (await stub.createStream(config(segments=5))).status == reply.STREAM_EXISTS
    assert (await stub.createStream(config(scope="none"))).status == reply.SCOPE_NOT_FOUND
    assert (await stub.createStream(config("a/b", "none"))).status == reply.INVALID_STREAM_NAME
    assert (await stub.createStream(config("_RGx"))).status == reply.SUCCESS
    assert len((await stub.getCurrentSegments(info())).segmentRanges) == 1


async def test_impossible_configurations_are_refused(stub: ControllerServiceStub) -> None:
    """controller-api 9.6: no segments: FAILURE; negative sizes, excess tags or segments, unknown policies: INTERNAL."""
    for count in (0, -1):
        assert (await stub.createStream(config(segments=count))).status == pb.CreateStreamStatus.FAILURE
    unknown = config()
    unknown.scalingPolicy.scaleType = 77
    kept = config()
    kept.retentionPolicy.retentionType = 77
    for bad in (
        config(rolloverSizeBytes=-1),
        config(tags=[str(number) for number in range(128)]),
        config(tags=["x" * 256]),
        config(segments=2**31 - 1),
        config(""),
        config(scope=""),
        pb.StreamConfig(),
        unknown,
        kept,
    ):
        assert await status_of(stub.createStream(bad)) == "INTERNAL"
    assert not (await stub.checkStreamExists(info())).exists


@pytest.mark.parametrize(
    ("scaling", "retention"),
    [
        ({"scaleType": "BY_RATE_IN_EVENTS_PER_SEC", "targetRate": 0, "scaleFactor": 2}, None),
        ({"scaleType": "BY_RATE_IN_EVENTS_PER_SEC", "targetRate": -1, "scaleFactor": 2}, None),
        ({"scaleType": "BY_RATE_IN_KBYTES_PER_SEC", "targetRate": 1, "scaleFactor": 0}, None),
        ({"scaleType": "BY_RATE_IN_KBYTES_PER_SEC", "targetRate": 1, "scaleFactor": -2}, None),
        ({}, {"retentionType": "TIME", "retentionParam": -1, "retentionMax": 10}),
        ({}, {"retentionType": "SIZE", "retentionParam": 1, "retentionMax": -1}),
        ({}, {"retentionType": "SIZE", "retentionParam": 10, "retentionMax": 9}),
    ],
)
async def test_policies_that_make_no_sense_are_refused(
    stub: ControllerServiceStub, scaling: dict[str, str | int], retention: dict[str, str | int] | None
) -> None:
    """Rates and factors below one, negative amounts, a maximum below the minimum: at creation and in an update."""
    bad = config()
    for name, value in {"minNumSegments": 1, **scaling}.items():
        kinds = pb.ScalingPolicy.ScalingPolicyType
        setattr(bad.scalingPolicy, name, kinds.Value(value) if name == "scaleType" else value)
    for name, value in (retention or {}).items():
        kinds = pb.RetentionPolicy.RetentionPolicyType
        setattr(bad.retentionPolicy, name, kinds.Value(value) if name == "retentionType" else value)
    assert await status_of(stub.createStream(bad)) == "INTERNAL"
    assert not (await stub.checkStreamExists(info())).exists
    await stub.createStream(config())
    assert await status_of(stub.updateStream(bad)) == "INTERNAL"
    assert not (await stub.getStreamConfiguration(info())).HasField("retentionPolicy")


async def test_policies_as_other_clients_write_them_are_taken(stub: ControllerServiceStub) -> None:
    """What Java and Rust send: no limit written as 0 or 2^63-1, a fixed number with factor 1, a minimum of 0."""
    for number, (least, most) in enumerate([(0, 2**63 - 1), (5, 0), (5, 5), (5, 2**63 - 1)]):
        good = config(f"stream-{number}")
        good.scalingPolicy.scaleFactor = 1
        good.retentionPolicy.retentionType = pb.RetentionPolicy.SIZE
        good.retentionPolicy.retentionParam, good.retentionPolicy.retentionMax = least, most
        assert (await stub.createStream(good)).status == pb.CreateStreamStatus.SUCCESS


async def test_a_creation_that_outlasts_its_retries_is_reported_as_retryable(
    connect: Callable[..., Awaitable[Wire]], cluster: InProcessCluster
) -> None:
    """Stores are out: not FAILURE, which says that nothing was done. Clients ask again, and find it when it is made."""
    wire = await connect(ControllerSettings(attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2))
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))
    create = cluster.store.create_segment

    async def out(segment: str, **options: int) -> None:
        raise ContainerOfflineError(0)

    cluster.store.create_segment = out
    assert await status_of(wire.stub.createStream(config())) == "INTERNAL"
    cluster.store.create_segment = create
    await wire.service.idle()
    assert len((await wire.stub.getCurrentSegments(info())).segmentRanges) == 1
    assert (await wire.stub.createStream(config())).status == pb.CreateStreamStatus.STREAM_EXISTS


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (StorageFullError("no room"), "RESOURCE_EXHAUSTED"),
        (StorageNotRespondingError("it hangs"), "INTERNAL"),
        (StorageError("a read failed"), "INTERNAL"),
        (TooManyActiveSegmentsError("s", active_count=1, active_max=1, reason="none is idle"), "INTERNAL"),
        (PenstockError("what a store says over the wire"), "INTERNAL"),
        (ControllerUnavailableError("stopping"), "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PenstockError) else "",
)
async def test_a_temporary_refusal_of_a_store_is_reported_as_retryable(
    connect: Callable[..., Awaitable[Wire]], cluster: InProcessCluster, trouble: PenstockError, code: str
) -> None:
    """Creation, seal and deletion: to Java's client FAILURE is the end, and the work continues when the store can."""
    wire = await connect(ControllerSettings(attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2))
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))

    async def out(*arguments: str, **options: int) -> None:
        raise trouble

    for request, call, argument in (
        ("create_segment", wire.stub.createStream, config()),
        ("seal_segment", wire.stub.sealStream, info()),
        ("delete_segment", wire.stub.deleteStream, info()),
    ):
        works = getattr(cluster.store, request)
        setattr(cluster.store, request, out)
        assert await status_of(call(argument)) == code, request
        setattr(cluster.store, request, works)
        await wire.service.idle()
    assert not (await wire.stub.checkStreamExists(info())).exists


async def test_what_no_store_can_do_any_more_is_a_failure(
    connect: Callable[..., Awaitable[Wire]], cluster: InProcessCluster
) -> None:
    """A segment that is lost: asking again would change nothing."""
    wire = await connect(ControllerSettings(attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2))
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))

    async def lost(segment: str, **options: int) -> None:
        raise NoSuchSegmentError(segment)

    cluster.store.create_segment = lost
    assert (await wire.stub.createStream(config())).status == pb.CreateStreamStatus.FAILURE


async def test_stream_existence_before_and_after(stub: ControllerServiceStub) -> None:
    """API-8: false, then true."""
    for expected in (False, True):
        assert (await stub.checkStreamExists(info())).exists is expected
        await stub.createStream(config())


async def test_streams_are_listed_in_pages(connect: Callable[..., Awaitable[Wire]]) -> None:
    """API-9, K-2: internal names and mark streams too, at most two on a page; an empty page repeats the token."""
    wire = await connect(ControllerSettings(page_entries_max=2))
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))
    names = ["a", "b", "c", "_RGa", "_RGb", "d"]
    empty = await wire.stub.listStreamsInScope(pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="scope")))
    assert not empty.streams
    assert empty.HasField("continuationToken")
    for stream in names:
        await wire.stub.createStream(config(stream))
    seen, at, pages = [], "", 0
    while True:
        request = pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="scope"), continuationToken=token(at))
        page = await wire.stub.listStreamsInScope(request)
        assert page.HasField("continuationToken")
        if not page.streams:
            assert page.continuationToken.token == at
            break
        seen += [(found.scope, found.stream) for found in page.streams]
        at, pages = page.continuationToken.token, pages + 1
    assert pages == 6
    listed = [*names, *(f"_MARK{name}" for name in names if not name.startswith("_"))]
    assert sorted(seen) == sorted(("scope", name) for name in listed)
    for scope in ("none", "", "a/b"):
        page = await wire.stub.listStreamsInScope(pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=scope)))
        assert page.status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND
        assert page.HasField("continuationToken")


async def by_tag(stub: ControllerServiceStub, tag: str, scope: str = "scope") -> int | list[str]:
    seen, at = [], ""
    while True:
        request = pb.StreamsInScopeWithTagRequest(scope=pb.ScopeInfo(scope=scope), tag=tag, continuationToken=token(at))
        page = await stub.listStreamsInScopeForTag(request)
        assert page.HasField("continuationToken")
        if page.status != pb.StreamsInScopeResponse.SUCCESS:
            return page.status
        if not page.streams:
            return sorted(seen)
        seen += [found.stream for found in page.streams]
        at = page.continuationToken.token


async def test_streams_are_found_by_tag(stub: ControllerServiceStub) -> None:
    """API-10, S-084, S-194: over several chunks, one a page; after a tag is taken away, and after a stream is deleted.

    A tag that no stream has leads to nothing.
    """
    names = [f"stream{number}" for number in range(12)]
    for name in names:
        await stub.createStream(config(name, tags=["all", name]))
    assert await by_tag(stub, "all") == sorted(names)
    request = pb.StreamsInScopeWithTagRequest(scope=pb.ScopeInfo(scope="scope"), tag="all", continuationToken=token())
    assert 0 < len((await stub.listStreamsInScopeForTag(request)).streams) < len(names)
    assert await by_tag(stub, "stream3") == ["stream3"]
    await stub.updateStream(config("stream3", tags=["stream3", "new"]))
    await stub.sealStream(info("stream4"))
    await stub.deleteStream(info("stream4"))
    assert await by_tag(stub, "all") == sorted({*names} - {"stream3", "stream4"})
    assert await by_tag(stub, "new") == ["stream3"]
    for tag in ("stream4", "", "x" * 100_000):
        assert await by_tag(stub, tag) == []
    assert await by_tag(stub, "all", "none") == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND


@pytest.mark.parametrize(
    "bad",
    ["nonsense", "chunk-", "chunk-25", "chunk--1", "💥", "=", "AA=", "chunk-9" + "9" * 5000],
    ids=lambda bad: bad[:9],
)
async def test_senseless_tokens_are_errors(stub: ControllerServiceStub, bad: str) -> None:
    """API-11, S-006: UNKNOWN, as for every bad argument found late; no crash."""
    scope = pb.ScopeInfo(scope="scope")
    request = pb.StreamsInScopeWithTagRequest(scope=scope, tag="t", continuationToken=token(bad))
    assert await status_of(stub.listStreamsInScopeForTag(request)) == "UNKNOWN"
    if bad != "nonsense":  # That is base64 by chance: a position like any other.
        request = pb.StreamsInScopeRequest(scope=scope, continuationToken=token(bad))
        assert await status_of(stub.listStreamsInScope(request)) == "UNKNOWN"
        assert await status_of(stub.listScopes(pb.ScopesRequest(continuationToken=token(bad)))) == "UNKNOWN"


async def test_configuration_is_replaced_whole(stub: ControllerServiceStub) -> None:
    """API-12, S-082: success, not found, sealed; tags and retention that the request leaves out are gone."""
    reply = pb.UpdateStreamStatus
    policy = pb.RetentionPolicy(retentionType=pb.RetentionPolicy.TIME, retentionParam=1000, retentionMax=2**63 - 1)
    await stub.createStream(config(tags=["a"], retentionPolicy=policy))
    assert (await stub.getStreamConfiguration(info())).retentionPolicy == policy
    assert (await stub.updateStream(config(segments=3))).status == reply.SUCCESS
    found = await stub.getStreamConfiguration(info())
    assert found.scalingPolicy.minNumSegments == 3
    assert not found.HasField("retentionPolicy")
    assert found.HasField("tags")
    assert list(found.tags.tag) == []
    assert (await stub.updateStream(config("none"))).status == reply.STREAM_NOT_FOUND
    assert (await stub.updateStream(config(scope="none"))).status == reply.STREAM_NOT_FOUND
    await stub.sealStream(info())
    assert (await stub.updateStream(config())).status == reply.STREAM_SEALED


async def test_only_a_sealed_stream_is_deleted(stub: ControllerServiceStub) -> None:
    """API-13, S-089: unknown stream and scope, not sealed, sealed, and again."""
    reply = pb.DeleteStreamStatus
    assert (await stub.deleteStream(info())).status == reply.STREAM_NOT_FOUND
    assert (await stub.deleteStream(info(scope="none"))).status == reply.STREAM_NOT_FOUND
    await stub.createStream(config())
    assert (await stub.deleteStream(info())).status == reply.STREAM_NOT_SEALED
    await stub.sealStream(info())
    assert (await stub.deleteStream(info())).status == reply.SUCCESS
    assert (await stub.deleteStream(info())).status == reply.STREAM_NOT_FOUND
    assert await status_of(stub.deleteStream(info(""))) == "INTERNAL"


async def test_stream_is_sealed(stub: ControllerServiceStub) -> None:
    """API-14, S-085, S-088: success, again success, unknown stream and scope."""
    reply = pb.UpdateStreamStatus
    await stub.createStream(config())
    for _ in range(2):
        assert (await stub.sealStream(info())).status == reply.SUCCESS
    assert (await stub.sealStream(info("none"))).status == reply.STREAM_NOT_FOUND
    assert (await stub.sealStream(info(scope="none"))).status == reply.STREAM_NOT_FOUND


async def test_stream_is_truncated_forward_only(stub: ControllerServiceStub, wire: Wire) -> None:
    """API-15, S-096 in one epoch: zeros and the same cut again are fine; backward, past the end, sealed are not."""
    reply = pb.UpdateStreamStatus

    async def truncate(cut: dict[int, int], stream: str = "stream") -> int:
        return (await stub.truncateStream(pb.StreamCut(streamInfo=info(stream), cut=cut))).status

    await stub.createStream(config(segments=2))
    for number in (0, 1):
        await wire.cluster.store.append(f"scope/stream/{number}.#epoch.0", bytes(100))
    assert await truncate({0: 0, 1: 0}) == reply.SUCCESS
    assert await truncate({0: 10, 1: 20}) == reply.SUCCESS
    assert await truncate({0: 10, 1: 20}) == reply.SUCCESS
    for bad in (
        {0: 9, 1: 20},
        {0: 20},
        {},
        {0: 20, 1: -1},
        {0: -1, 1: -1},
        {0: 20, 7: 20},
        {0: 20, 1 << 40: 20},
        {0: 101, 1: 20},
        {0: 20, 1: -7},
        {-5: 20, 1: 20},
    ):
        assert await truncate(bad) == reply.FAILURE, bad
    head = await stub.getSegments(pb.GetSegmentsRequest(streamInfo=info(), timestamp=0))
    assert {found.segmentId.segmentId: found.offset for found in head.segments} == {0: 10, 1: 20}
    assert await truncate({0: 0}, "none") == reply.STREAM_NOT_FOUND
    await stub.sealStream(info())
    assert await truncate({0: 50, 1: 50}) == reply.STREAM_SEALED


async def test_current_segments_tile_until_the_stream_is_sealed(stub: ControllerServiceStub) -> None:
    """API-16, S-001: two segments with their stream's name; none once sealed; an unknown stream is NOT_FOUND."""
    await stub.createStream(config(segments=2))
    found = await stub.getCurrentSegments(info())
    assert [
        (at.segmentId.streamInfo.scope, at.segmentId.streamInfo.stream, at.segmentId.segmentId, at.minKey, at.maxKey)
        for at in found.segmentRanges
    ] == [("scope", "stream", 0, 0.0, 0.5), ("scope", "stream", 1, 0.5, 1.0)]
    await stub.sealStream(info())
    assert not (await stub.getCurrentSegments(info())).segmentRanges
    for missing in (info("none"), info(scope="none")):
        assert await status_of(stub.getCurrentSegments(missing)) == "NOT_FOUND"
    assert await status_of(stub.getCurrentSegments(pb.StreamInfo())) == "INTERNAL"


@pytest.mark.parametrize("count", [49, 98, 103])
async def test_last_segment_ends_at_one(stub: ControllerServiceStub, count: int) -> None:
    """K-3, H4: counts for which a careless computation ends below 1.0."""
    await stub.createStream(config(segments=count))
    ranges = (await stub.getCurrentSegments(info())).segmentRanges
    assert len(ranges) == count
    assert ranges[-1].maxKey == 1.0
    assert [at.minKey for at in ranges[1:]] == [at.maxKey for at in ranges[:-1]]


async def test_segments_of_epochs(stub: ControllerServiceStub) -> None:
    """API-17: epoch 0; a missing epoch is NOT_FOUND, a negative one INTERNAL; a sealed stream still has its epochs."""
    await stub.createStream(config(segments=2))
    await stub.sealStream(info())

    def ask(epoch: int) -> object:
        return stub.getEpochSegments(pb.GetEpochSegmentsRequest(streamInfo=info(), epoch=epoch))

    assert [at.segmentId.segmentId for at in (await ask(0)).segmentRanges] == [0, 1]
    assert await status_of(ask(1)) == "NOT_FOUND"
    assert await status_of(ask(2**31 - 1)) == "NOT_FOUND"
    assert await status_of(ask(-1)) == "INTERNAL"


async def test_segments_between_two_cuts(stub: ControllerServiceStub) -> None:
    """API-18: from the head, to the tail, between equal cuts; nothing given INTERNAL, backwards UNKNOWN."""
    await stub.createStream(config(segments=2))
    for start, end in (({}, {0: 5, 1: 5}), ({0: 0, 1: 0}, {}), ({0: 5, 1: 5}, {0: 5, 1: 5})):
        request = pb.StreamCutRange(streamInfo=info(), to=end, **{"from": start})
        found = await stub.getSegmentsBetween(request)
        assert sorted(at.segmentId for at in found.segments) == [0, 1]
    assert await status_of(stub.getSegmentsBetween(pb.StreamCutRange(streamInfo=info()))) == "INTERNAL"
    backwards = pb.StreamCutRange(streamInfo=info(), to={0: 1, 1: 1}, **{"from": {0: 5, 1: 5}})
    assert await status_of(stub.getSegmentsBetween(backwards)) == "UNKNOWN"
    beyond = pb.StreamCutRange(streamInfo=info(), to={1 << 40: 1})
    assert await status_of(stub.getSegmentsBetween(beyond)) == "UNKNOWN"


async def test_active_and_last_segments_have_no_successors(stub: ControllerServiceStub) -> None:
    """S-022, H13, without a scale: empty while active and at a sealed stream's end; the alias is the same."""
    await stub.createStream(config())
    for _ in range(2):
        for ask in (stub.getSegmentsImmediatelyFollowing, stub.getSegmentsImmediatlyFollowing):
            assert not (await ask(segment(0))).segments
            # Nothing is on record that would follow what never was: no error, as in Pravega.
            for unknown in (1, 1 << 32, -1):
                assert not (await ask(segment(unknown))).segments
            assert await status_of(ask(segment(0, stream="missing"))) == "NOT_FOUND"
        await stub.sealStream(info())


async def test_buckets_of_streams_are_all_with_a_controller_that_is_alone(
    stub: ControllerServiceStub, wire: Wire
) -> None:
    """API-35: one controller, with the bucket of retention and the hundred of watermarks."""
    asked = pb.ControllerToBucketMappingRequest
    for service, count in ((asked.RetentionService, 1), (asked.WatermarkingService, 100)):
        reply = await stub.getControllerToBucketMapping(asked(serviceType=service))
        assert {host: list(buckets.id) for host, buckets in reply.mapping.items()} == {
            f"127.0.0.1:{wire.server.port}": list(range(count))
        }


async def test_head_of_a_stream_is_its_first_epoch_whatever_the_time(stub: ControllerServiceStub) -> None:
    """API-22: every segment at offset 0."""
    await stub.createStream(config(segments=2))
    for timestamp in (0, -1, 2**62):
        found = await stub.getSegments(pb.GetSegmentsRequest(streamInfo=info(), timestamp=timestamp))
        assert {at.segmentId.segmentId: at.offset for at in found.segments} == {0: 0, 1: 0}


async def test_head_of_a_stream_that_is_being_made_is_not_told(wire: Wire) -> None:
    """Its segments need not be there: a reader that began there would take them for deleted, and never come back."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    create = wire.cluster.store.create_segment

    async def held(segment: str, **options: int) -> object:
        if segment.startswith("scope/"):
            begun.set()
            await go_on.wait()
        return await create(segment, **options)

    await wire.service.create_scope("scope")
    wire.cluster.store.create_segment = held
    making = asyncio.ensure_future(wire.service.create_stream("scope", "stream", StreamConfig()))
    await begun.wait()
    request = pb.GetSegmentsRequest(streamInfo=info())
    assert await status_of(wire.stub.getSegments(request)) == "NOT_FOUND"
    go_on.set()
    await making
    assert len((await wire.stub.getSegments(request)).segments) == 1


async def test_address_is_reported_for_anything(stub: ControllerServiceStub) -> None:
    """API-23, K-5, H5: for a segment of a stream, and for tables of groups that no controller has heard of."""
    await stub.createStream(config())
    for name in (segment(0), segment(0, "group_kvtable"), segment(5 << 32, "none", "none"), pb.SegmentId()):
        found = await stub.getURI(name)
        assert (found.endpoint, found.port) == ("127.0.0.1", 6000)


async def test_address_of_a_container_without_a_host_is_an_error(wire: Wire) -> None:
    """controller-api 9.12: INTERNAL, which clients try again."""

    class Nowhere:
        container_count = 4

        def endpoint_of(self, container_id: int) -> None:
            return None

    wire.service._locator = Nowhere()
    assert await status_of(wire.stub.getURI(segment(0))) == "INTERNAL"


async def test_segment_validity(stub: ControllerServiceStub) -> None:
    """API-24: of the active epoch true, others false, sealed false; an empty name is an error."""
    await stub.createStream(config())
    assert (await stub.isSegmentValid(segment(0))).response
    assert not (await stub.isSegmentValid(segment(1))).response
    assert not (await stub.isSegmentValid(segment(0, "none"))).response
    await stub.sealStream(info())
    assert not (await stub.isSegmentValid(segment(0))).response
    assert await status_of(stub.isSegmentValid(segment(0, ""))) == "INTERNAL"
    assert await status_of(stub.isSegmentValid(segment(0, scope=""))) == "INTERNAL"


async def test_stream_cut_validity(stub: ControllerServiceStub) -> None:
    """API-25 in one epoch: covering true; gaps and unknown segments false; empty is an error."""
    await stub.createStream(config(segments=2))

    def ask(cut: dict[int, int]) -> object:
        return stub.isStreamCutValid(pb.StreamCut(streamInfo=info(), cut=cut))

    assert (await ask({0: 0, 1: 7})).response
    assert not (await ask({0: 0})).response
    assert not (await ask({0: 0, 1: 0, 1 << 33: 0})).response
    # False and no error, which clients would repeat until their deadline.
    assert not (await ask({0: 0, 9: 0})).response
    for bad in ({}, {0: -1, 1: -1}):
        assert await status_of(ask(bad)) == "INTERNAL"


async def test_delegation_token_is_empty_for_any_stream(stub: ControllerServiceStub) -> None:
    """API-41 without authorization, H5: also for streams that do not exist."""
    assert (await stub.getDelegationToken(info("none", "none"))).delegationToken == ""


async def test_rust_style_request_is_understood(stub: ControllerServiceStub) -> None:
    """K-8, H8: no tags, retention UNKNOWN with the largest maximum, access UNSPECIFIED; the reply has all messages."""
    request = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope="scope", stream="rust"),
        scalingPolicy=pb.ScalingPolicy(scaleFactor=1, minNumSegments=1),
        retentionPolicy=pb.RetentionPolicy(retentionMax=2**63 - 1),
    )
    assert (await stub.createStream(request)).status == pb.CreateStreamStatus.SUCCESS
    found = await stub.getStreamConfiguration(info("rust"))
    assert found.HasField("streamInfo")
    assert found.HasField("scalingPolicy")
    assert found.HasField("tags")
    assert not found.HasField("retentionPolicy")
    assert found.scalingPolicy.scaleFactor == 1


async def test_configuration_of_a_missing_stream_is_not_found(stub: ControllerServiceStub) -> None:
    """controller-api 5: NOT_FOUND for stream and scope."""
    for missing in (info("none"), info(scope="none"), info("x" * 10_000)):
        assert await status_of(stub.getStreamConfiguration(missing)) == "NOT_FOUND"


@pytest.mark.parametrize("missing", [info("x" * 10_000), info(scope="x" * 10_000)])
async def test_names_too_long_for_the_store_are_of_nothing_that_exists(
    stub: ControllerServiceStub, missing: pb.StreamInfo
) -> None:
    """Changes fail because there is no such stream, group or scope, as they do for shorter names."""
    group = pb.ReaderGroupConfiguration(
        scope=missing.scope, readerGroupName=missing.stream, maxOutstandingCheckpointRequest=1,
        readerGroupId="00000000-0000-4000-8000-000000000000", startingStreamCuts=[pb.StreamCut(streamInfo=info())],
    )  # fmt: skip
    statuses = [
        (await stub.sealStream(missing)).status == pb.UpdateStreamStatus.STREAM_NOT_FOUND,
        (await stub.deleteStream(missing)).status == pb.DeleteStreamStatus.STREAM_NOT_FOUND,
        (await stub.truncateStream(pb.StreamCut(streamInfo=missing, cut={0: 0}))).status
        == pb.UpdateStreamStatus.STREAM_NOT_FOUND,
        (await stub.createReaderGroup(group)).status
        in (pb.CreateReaderGroupResponse.SCOPE_NOT_FOUND, pb.CreateReaderGroupResponse.INVALID_RG_NAME),
    ]
    assert statuses == [True] * 4


async def test_concurrent_creators_get_one_stream(stub: ControllerServiceStub, wire: Wire) -> None:
    """Twenty clients create the same stream with different counts: one SUCCESS, and that one's count."""
    replies = await asyncio.gather(*(stub.createStream(config(segments=count)) for count in range(1, 21)))  # type: ignore[call-overload]
    statuses = [reply.status for reply in replies]
    assert sorted(statuses) == [pb.CreateStreamStatus.SUCCESS] + [pb.CreateStreamStatus.STREAM_EXISTS] * 19
    winner = statuses.index(pb.CreateStreamStatus.SUCCESS) + 1
    assert len((await stub.getCurrentSegments(info())).segmentRanges) == winner
    assert len(without_marks(wire.cluster.store)) == winner


async def test_stuck_workflow_is_reported_and_continues(connect: Callable[..., Awaitable[Wire]]) -> None:
    """API-36, S-093: the caller gets DEADLINE_EXCEEDED, the work ends later nevertheless."""
    wire = await connect(ControllerSettings(workflow_timeout_s=0.05))
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))
    gate = asyncio.Event()
    create = wire.cluster.store.create_segment

    async def slow(*arguments: str, **options: int) -> None:
        await gate.wait()
        await create(*arguments, **options)

    wire.cluster.store.create_segment = slow
    assert await status_of(wire.stub.createStream(config())) == "DEADLINE_EXCEEDED"
    gate.set()
    await wire.service.idle()
    assert len((await wire.stub.getCurrentSegments(info())).segmentRanges) == 1


@pytest.mark.parametrize(
    "method", list(pb.DESCRIPTOR.services_by_name["ControllerService"].methods), ids=lambda m: m.name
)
async def test_garbage_and_empty_requests_never_show_a_traceback(wire: Wire, method: object) -> None:
    """Bytes that are no message, and a message without fields, to each call: an answer or a clean status."""
    call = wire.channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}")
    for request in (b"\xff\xff\xff\xff", b"", b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"):
        failure = None
        try:
            await call(request)
        except grpc.aio.AioRpcError as raised:
            failure = raised
        if failure is not None:
            assert "Traceback" not in failure.details()
            assert "Error" not in failure.details().split(":")[0]
            assert failure.code() is not grpc.StatusCode.UNKNOWN


async def test_too_large_a_message_is_refused(connect: Callable[..., Awaitable[Wire]]) -> None:
    """A request above the limit is RESOURCE_EXHAUSTED and the server lives on."""
    wire = await connect(ControllerSettings(message_bytes_max=10_000))
    assert await status_of(wire.stub.createScope(pb.ScopeInfo(scope="x" * 20_000))) == "RESOURCE_EXHAUSTED"
    assert (await wire.stub.createScope(pb.ScopeInfo(scope="x"))).status == pb.CreateScopeStatus.SUCCESS


async def test_unexpected_fault_stays_in_the_log(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """A bug in the service is described in the log; the client only learns that there was one."""

    async def broken(scope: str) -> None:
        raise ZeroDivisionError("secret detail")

    wire.service.scope_exists = broken
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await wire.stub.checkScopeExists(pb.ScopeInfo(scope="a"))
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in failure.value.details()
    assert "secret detail" in caplog.text


async def test_occupied_port_is_explained(wire: Wire, cluster: InProcessCluster) -> None:
    """A second server on the port raises an error that names the port."""
    server = GrpcServer(wire.service, "127.0.0.1", wire.server.port)
    with pytest.raises(ControllerUnavailableError, match="another controller"):
        await server.start()
    await server.stop()


async def test_stopped_controller_refuses_changes(service: ControllerService) -> None:
    """Calls after stop fail at once, retriably."""
    await service.stop()
    with pytest.raises(ControllerUnavailableError):
        await service.create_stream("scope", "late", StreamConfig(Scaling.fixed(1)))

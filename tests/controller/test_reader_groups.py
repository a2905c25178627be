"""Reader groups and subscribers: the controller over in-memory seams, and through a real gRPC server.

Shows S-173..S-179 and S-181..S-186, each where it is named, and API-30 to API-33.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.controller.errors import (
    NoSuchSubscriberError,
    ReaderGroupMismatchError,
    StreamCutBehindError,
    SubscriberGenerationError,
)
from penstock.controller.group_overviews import GroupOverviews
from penstock.controller.metadata.catalog import NamePage
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.scope_records import ChildState, GroupCut, ReaderGroupConfig
from penstock.controller.metadata.subscribers import add_subscriber, read_subscriber, remove_subscriber
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    InvalidNameError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    ScopeNotEmptyError,
)
from penstock.model.policies import GroupRetention, Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from support.in_process_cluster import InProcessCluster

if TYPE_CHECKING:
    from controller.conftest import Wire

ID = "11111111-2222-4333-8444-555555555555"
OTHER_ID = "99999999-2222-4333-8444-555555555555"


def config(*streams: Any, retention: GroupRetention = GroupRetention.NONE, **options: Any) -> ReaderGroupConfig:
    return ReaderGroupConfig(tuple(GroupCut("scope", name) for name in streams), retention=retention, **options)


@pytest.fixture
async def groups(service: ControllerService) -> ReaderGroups:
    """The reader groups of a controller with the streams a, b and c of two segments each."""
    for stream in ("a", "b", "c"):
        await service.create_stream("scope", stream, StreamConfig(Scaling.fixed(2)))
    return service.reader_groups


async def subscribed(groups: ReaderGroups) -> str:
    """Return which of the streams the group subscribes to."""
    names = {stream: await groups.subscribers("scope", stream) for stream in ("a", "b", "c")}
    assert all(found in ((), ("scope/g",)) for found in names.values())
    return "".join(stream for stream, found in names.items() if found)


async def test_group_is_created_once_with_its_stream(
    groups: ReaderGroups, service: ControllerService, cluster: InProcessCluster
) -> None:
    """S-173, S-184: id and generation 0; the stream has one segment and chunks of 4 MiB; again: what is stored."""
    wanted = config("a", refresh_ms=1, checkpoint_interval_ms=-1, checkpoints_outstanding_max=7)
    made = await groups.create("scope", "g", wanted, ID)
    assert (made.id, made.generation, made.state, made.config) == (ID, 0, ChildState.ACTIVE, wanted)
    stored = await service.stream_configuration("scope", "_RGg")
    assert (stored.scaling, stored.rollover_bytes) == (Scaling.fixed(1), 4 * 1024 * 1024)
    assert "scope/_RGg/0.#epoch.0" in cluster.store.segments
    assert await groups.create("scope", "g", config("b"), OTHER_ID) == made == await groups.get("scope", "g")
    # Internal streams are listed like others.
    assert "_RGg" in (await service.list_streams("scope", "")).names


async def test_groups_are_described_page_by_page(groups: ReaderGroups, service: ControllerService) -> None:
    """Behind a token, whole; those that are deleted meanwhile are left out, and a page of such is passed over."""
    settings = replace(service.settings, described_groups_max=2, described_groups_at_once=1)
    for number in range(5):
        await groups.create("scope", f"g{number}", config("a", retention=GroupRetention.MANUAL))
    listed = groups.list

    async def with_some_that_are_gone(scope: str, token: str, limit: int) -> NamePage:
        page = await listed(scope, token, limit)
        for name in {"g0", "g1"}.intersection(page.names):
            await groups.delete(scope, name)
        return page

    overviews = GroupOverviews(replace(service._context, settings=settings), groups)
    groups.list = with_some_that_are_gone  # type: ignore[assignment, method-assign]
    first = await overviews.page("scope", "")
    second = await overviews.page("scope", first.token)
    assert [[one.name for one in page.groups] for page in (first, second)] == [["g2", "g3"], ["g4"]]
    assert (await overviews.page("scope", second.token)).groups == []
    with pytest.raises(NoSuchReaderGroupError):
        await overviews.one("scope", "g0")
    assert (await overviews.one("scope", "g4")).streams[0].is_subscribed


async def test_group_without_a_chosen_id_gets_one(groups: ReaderGroups) -> None:
    """controller-api 9.16: the controller chooses a UUID, another one each time."""
    first = await groups.create("scope", "g", config("a"))
    second = await groups.create("scope", "h", config("a"))
    assert len({str(uuid.UUID(first.id)), str(uuid.UUID(second.id))}) == 2


@pytest.mark.parametrize("retention", list(GroupRetention))
async def test_group_that_holds_data_subscribes_to_every_stream(
    groups: ReaderGroups, retention: GroupRetention
) -> None:
    """S-174, S-183: on every starting stream for both types that hold data; on none for NONE."""
    await groups.create("scope", "g", config("a", "c", retention=retention), ID)
    assert await subscribed(groups) == ("" if retention is GroupRetention.NONE else "ac")
    with pytest.raises(NoSuchStreamError):
        await groups.subscribers("scope", "none")
    with pytest.raises(NoSuchStreamError):
        await groups.subscribers("none", "a")


async def test_subscription_to_a_missing_stream_creates_nothing(
    groups: ReaderGroups, service: ControllerService
) -> None:
    """The error comes before any write; a group without retention is created without a check."""
    with pytest.raises(NoSuchStreamError):
        await groups.create("scope", "g", config("a", "none", retention=GroupRetention.MANUAL), ID)
    assert await subscribed(groups) == ""
    assert (await groups.list("scope", "")).names == ()
    await groups.create("scope", "g", config("none"), ID)
    with pytest.raises(NoSuchStreamError):
        await groups.update("scope", "g", config("none", retention=GroupRetention.MANUAL), ID, 0)
    assert (await groups.get("scope", "g")).generation == 0


async def test_missing_group_and_scope_are_reported(groups: ReaderGroups) -> None:
    """S-175, S-178: of reads, updates and deletions."""
    for scope in ("scope", "none"):
        for call in (
            groups.get(scope, "g"),
            groups.update(scope, "g", config("a"), ID, 0),
            groups.delete(scope, "g", ID),
        ):
            with pytest.raises(NoSuchReaderGroupError):
                await call
    for call in (groups.create("none", "g", config("a")), groups.list("none", "")):  # type: ignore[assignment]
        with pytest.raises(NoSuchScopeError):
            await call
    with pytest.raises(NoSuchReaderGroupError):
        await groups.get("scope", "x" * 10_000)


async def test_updates_subscribe_and_unsubscribe(groups: ReaderGroups) -> None:
    """S-176: from and to NONE, and a change of streams; the generation grows by one each time."""
    await groups.create("scope", "g", config("a", "b"), ID)
    manual, automatic = GroupRetention.MANUAL, GroupRetention.AUTOMATIC
    steps = [
        (config("a", "b", retention=manual), "ab"),
        (config("b", "c", retention=automatic), "bc"),
        (config("b", "c", retention=manual), "bc"),
        (config("c"), ""),
        (config("a"), ""),
        (config("a", retention=automatic), "a"),
    ]
    for generation, (wanted, expected) in enumerate(steps):
        assert await groups.update("scope", "g", wanted, ID, generation) == generation + 1
        assert await subscribed(groups) == expected
        found = await groups.get("scope", "g")
        assert (found.config, found.generation, found.next_config) == (wanted, generation + 1, None)


async def test_update_of_another_life_or_configuration_is_refused(groups: ReaderGroups) -> None:
    """S-177: old and future generation, other id; and the second of two concurrent updates."""
    await groups.create("scope", "g", config("a"), ID)
    await groups.update("scope", "g", config("b"), ID, 0)
    for group_id, generation in ((ID, 0), (ID, 2), (OTHER_ID, 1)):
        with pytest.raises(ReaderGroupMismatchError):
            await groups.update("scope", "g", config("c"), group_id, generation)
    results = await asyncio.gather(
        *(groups.update("scope", "g", config(stream), ID, 1) for stream in "abc"), return_exceptions=True
    )
    assert results[0] == 2
    assert all(isinstance(result, ReaderGroupMismatchError) for result in results[1:])
    assert (await groups.get("scope", "g")).config == config("a")


async def test_deletion_removes_stream_and_subscriptions(
    groups: ReaderGroups, service: ControllerService, cluster: InProcessCluster
) -> None:
    """S-178, S-179: with the right id only; the name is free again; late requests of the old life do nothing."""
    await groups.create("scope", "g", config("a", "b", retention=GroupRetention.MANUAL), ID)
    await groups.update("scope", "g", config("b", "c", retention=GroupRetention.MANUAL), ID, 0)
    with pytest.raises(NoSuchReaderGroupError):
        await groups.delete("scope", "g", OTHER_ID)
    assert await subscribed(groups) == "bc"
    await groups.delete("scope", "g", ID)
    assert await subscribed(groups) == ""
    assert not await service.stream_exists("scope", "_RGg")
    assert not [name for name in cluster.store.segments if "_RG" in name]
    with pytest.raises(NoSuchReaderGroupError):
        await groups.delete("scope", "g", ID)
    again = await groups.create("scope", "g", config("a", retention=GroupRetention.MANUAL), OTHER_ID)
    assert (again.id, again.generation) == (OTHER_ID, 0)
    with pytest.raises(ReaderGroupMismatchError):
        await groups.update("scope", "g", config("c"), ID, 0)
    with pytest.raises(NoSuchReaderGroupError):
        await groups.delete("scope", "g", ID)
    assert await subscribed(groups) == "a"


async def test_deletion_without_its_streams_works(groups: ReaderGroups, service: ControllerService) -> None:
    """S-178: the group's stream and a stream that it subscribed to were deleted before."""
    await groups.create("scope", "g", config("a", "b", retention=GroupRetention.MANUAL), ID)
    for stream in ("_RGg", "a"):
        await service.seal_stream("scope", stream)
        await service.delete_stream("scope", stream)
    await groups.delete("scope", "g", ID)
    assert await groups.subscribers("scope", "b") == ()


async def test_published_cuts_move_forward_only(groups: ReaderGroups) -> None:
    """S-181, API-33: the order of the checks, an equal cut, one behind, and cuts that make no sense."""
    await groups.create("scope", "g", config("a", retention=GroupRetention.MANUAL), ID)

    async def publish(
        cut: dict[int, int], stream: str = "a", subscriber: str = "scope/g", group_id: str = ID, generation: int = 0
    ) -> None:
        await groups.publish("scope", stream, subscriber, group_id, generation, cut)

    await publish({0: 10, 1: 10})
    await publish({0: 10, 1: 10})
    await publish({0: 10, 1: 11})
    with pytest.raises(StreamCutBehindError):
        await publish({0: 10, 1: 10})
    for bad in ({}, {0: 20}, {0: 20, 1: -1}, {0: 20, 1: 20, 7: 1}, {0: 20, 1: 20, 1 << 32: 1}, {0: -5, 1: 20}):
        with pytest.raises(StreamCutBehindError):
            await publish(bad)
    with pytest.raises(NoSuchStreamError):
        await publish({0: 20, 1: 20}, stream="none", subscriber="scope/none", generation=5)
    for wrong in ({"stream": "b"}, {"subscriber": "scope/none"}, {"subscriber": "none"}, {"group_id": OTHER_ID}):
        with pytest.raises(NoSuchSubscriberError):
            await publish({}, generation=5, **wrong)
    with pytest.raises(SubscriberGenerationError):
        await publish({}, generation=1)


async def test_generation_of_a_subscriber_grows_only(groups: ReaderGroups, service: ControllerService) -> None:
    """S-182: a lower generation changes nothing, neither added nor removed; a higher one keeps the cut."""
    await groups.create("scope", "g", config("a", retention=GroupRetention.MANUAL), ID)
    await groups.publish("scope", "a", "scope/g", ID, 0, {0: 1, 1: 1})

    async def with_tables(action: Callable[..., Any]) -> Versioned[Any] | None:
        return await service._catalog.on_stream("scope", "a", action)

    async def read() -> Any:
        return (await with_tables(lambda tables: read_subscriber(tables, "scope/g"))).record  # type: ignore[union-attr]

    for generation, expected in ((3, 3), (2, 3), (4, 4)):
        await with_tables(lambda tables, g=generation: add_subscriber(tables, "scope/g", g, 5, 3))
        assert ((await read()).generation, (await read()).stream_cut) == (expected, {0: 1, 1: 1})
    await with_tables(lambda tables: remove_subscriber(tables, "scope/g", 3, 3))
    assert await groups.subscribers("scope", "a") == ("scope/g",)
    for _ in range(2):
        await with_tables(lambda tables: remove_subscriber(tables, "scope/g", 4, 3))
        assert await groups.subscribers("scope", "a") == ()


async def test_many_groups_subscribe_to_one_stream_at_once(groups: ReaderGroups) -> None:
    """Concurrent changes of one set of subscribers lose no subscriber."""
    names = [f"g{number:02d}" for number in range(12)]
    wanted = config("a", retention=GroupRetention.MANUAL)
    await asyncio.gather(*(groups.create("scope", name, wanted) for name in names))
    assert await groups.subscribers("scope", "a") == tuple(f"scope/{name}" for name in names)


async def test_groups_are_listed_in_pages(groups: ReaderGroups) -> None:
    """S-185: every group once, then an empty page that repeats the token; an invalid token is reported."""
    assert (await groups.list("scope", "")).names == ()
    for number in range(5):
        await groups.create("scope", f"g{number}", config("a"))
    token, found = "", []
    while (page := await groups.list("scope", token, 2)).names:
        found += page.names
        token = page.token
    assert (sorted(found), page.token) == ([f"g{number}" for number in range(5)], token)
    with pytest.raises(InvalidArgumentError):
        await groups.list("scope", "no token!")


async def test_scope_with_a_group_is_not_empty(service: ControllerService) -> None:
    """S-186: the group counts; once it is deleted the scope can go."""
    await service.create_scope("other")
    await service.reader_groups.create("other", "g", config("a"), ID)
    with pytest.raises(ScopeNotEmptyError):
        await service.delete_scope("other")
    assert (await service.reader_groups.get("other", "g")).id == ID
    await service.reader_groups.delete("other", "g", ID)
    await service.delete_scope("other")
    assert not await service.scope_exists("other")


async def test_configurations_that_make_no_sense_are_refused(groups: ReaderGroups) -> None:
    """controller-api 9.16: no stream, no checkpoints allowed, an end before the start, empty names and bad names."""
    start, before, after = ({0: 10, 1: 10}, {0: 9, 1: 10}, {0: 10, 1: 11})

    def ranged(end: dict[int, int]) -> ReaderGroupConfig:
        return ReaderGroupConfig((GroupCut("scope", "a", start),), (GroupCut("scope", "a", end),))

    for bad in (
        config(),
        config("a", checkpoints_outstanding_max=0),
        config("a", rollover_bytes=-1),
        config(""),
        ranged(before),
        ReaderGroupConfig((GroupCut("scope", "a", {1 << 32: 0}),), (GroupCut("scope", "a", {0: 5}),)),
    ):
        with pytest.raises(InvalidArgumentError):
            await groups.create("scope", "g", bad)
    for name in ("a_b", "_RGx", "a/b", "x" * 251):
        with pytest.raises(InvalidNameError):
            await groups.create("scope", name, config("a"))
    for valid in (start, after, {}):
        ranged(valid).checked()
    streams = [GroupCut("scope", f"{number:05d}" + "x" * 200, {n: n for n in range(10)}) for number in range(6000)]
    with pytest.raises(InvalidArgumentError, match="fewer streams"):
        await groups.create("scope", "g", ReaderGroupConfig(tuple(streams)))
    assert (await groups.list("scope", "")).names == ()
    assert await groups.create("scope", "g", config("a"), ID)


async def test_groups_survive_the_controller(
    groups: ReaderGroups, service: ControllerService, cluster: InProcessCluster
) -> None:
    """Nothing is kept in memory: another controller on the same store knows all."""
    made = await groups.create("scope", "g", config("a", retention=GroupRetention.MANUAL), ID)
    await service.stop()
    with pytest.raises(ControllerUnavailableError):
        await groups.create("scope", "h", config("a"))
    other = (await cluster.start()).reader_groups
    assert await other.get("scope", "g") == made
    assert await other.subscribers("scope", "a") == ("scope/g",)


# Over gRPC.


def message(
    name: str = "g", scope: str = "scope", streams: tuple[str, ...] = ("a",), group_id: str = ID, **options: int
) -> pb.ReaderGroupConfiguration:
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=stream)) for stream in streams]
    fields = {"groupRefreshTimeMillis": 3000, "automaticCheckpointIntervalMillis": -1} | options
    return pb.ReaderGroupConfiguration(
        scope=scope, readerGroupName=name, readerGroupId=group_id, startingStreamCuts=cuts, endingStreamCuts=cuts,
        **({"maxOutstandingCheckpointRequest": 3} | fields),
    )  # fmt: skip


def info(name: str = "g", scope: str = "scope", group_id: str = ID) -> pb.ReaderGroupInfo:
    return pb.ReaderGroupInfo(scope=scope, readerGroup=name, readerGroupId=group_id)


@pytest.fixture
async def stub(wire: Wire) -> ControllerServiceStub:
    await wire.service.create_scope("scope")
    for stream in ("a", "b"):
        await wire.service.create_stream("scope", stream, StreamConfig(Scaling.fixed(1)))
    return wire.stub


async def fails_with(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value.code().name


async def test_create_over_grpc(stub: ControllerServiceStub) -> None:
    """API-30: invalid name, missing scope, success with the configuration sent, again the stored one; bad requests."""
    reply = pb.CreateReaderGroupResponse
    assert (await stub.createReaderGroup(message("a_b"))).status == reply.INVALID_RG_NAME  # type: ignore[misc]
    assert (await stub.createReaderGroup(message(scope="none"))).status == reply.SCOPE_NOT_FOUND  # type: ignore[misc]
    sent = message(retentionType=2)
    sent.startingStreamCuts[0].cut[0] = 0
    made = await stub.createReaderGroup(sent)  # type: ignore[misc]
    assert (made.status, made.config) == (reply.SUCCESS, sent)
    again = await stub.createReaderGroup(message(streams=("b",), group_id=OTHER_ID))  # type: ignore[misc]
    assert (again.status, again.config) == (reply.SUCCESS, sent)
    chosen = (await stub.createReaderGroup(message("h", group_id=str(uuid.UUID(int=0)), generation=-1))).config  # type: ignore[misc]
    assert uuid.UUID(chosen.readerGroupId).int != 0
    assert chosen.generation == 0
    missing = await stub.createReaderGroup(message("i", streams=("none",), retentionType=1))  # type: ignore[misc]
    assert missing.status == reply.FAILURE
    for bad in (
        message("i", streams=()),
        message("i", group_id="no uuid"),
        message("i", group_id=""),
        message("i", maxOutstandingCheckpointRequest=0),
        message("i", retentionType=3),
        message(""),
    ):
        assert await fails_with(stub.createReaderGroup(bad)) == "INTERNAL"


async def test_read_update_and_delete_over_grpc(stub: ControllerServiceStub) -> None:
    """API-31, API-32: generation 1, then INVALID_CONFIG; unknown groups, wrong ids; a delete's generation is free."""
    await stub.createReaderGroup(message(retentionType=1))  # type: ignore[misc]
    update, read, delete = pb.UpdateReaderGroupResponse, pb.ReaderGroupConfigResponse, pb.DeleteReaderGroupStatus
    assert (await stub.updateReaderGroup(message("none"))).status == update.RG_NOT_FOUND  # type: ignore[misc]
    done = await stub.updateReaderGroup(message(streams=("b",), retentionType=1))  # type: ignore[misc]
    assert (done.status, done.generation) == (update.SUCCESS, 1)
    assert (await stub.updateReaderGroup(message(streams=("b",)))).status == update.INVALID_CONFIG  # type: ignore[misc]
    wrong_id = message(group_id=OTHER_ID, generation=1)
    assert (await stub.updateReaderGroup(wrong_id)).status == update.INVALID_CONFIG  # type: ignore[misc]
    assert (await stub.updateReaderGroup(message(streams=("none",), retentionType=1, generation=1))).status == (  # type: ignore[misc]
        update.FAILURE
    )
    found = await stub.getReaderGroupConfig(info(group_id=""))  # type: ignore[misc]
    assert found.status == read.SUCCESS
    assert found.config == message(streams=("b",), retentionType=1, generation=1)
    missing = await stub.getReaderGroupConfig(info("none"))  # type: ignore[misc]
    assert (missing.status, missing.HasField("config")) == (read.RG_NOT_FOUND, True)
    assert (await stub.deleteReaderGroup(info("none"))).status == delete.RG_NOT_FOUND  # type: ignore[misc]
    assert (await stub.deleteReaderGroup(info(group_id=OTHER_ID))).status == delete.RG_NOT_FOUND  # type: ignore[misc]
    assert await fails_with(stub.deleteReaderGroup(info(group_id=""))) == "INTERNAL"
    assert (await stub.deleteReaderGroup(info())).status == delete.SUCCESS  # type: ignore[misc]
    assert (await stub.deleteReaderGroup(info())).status == delete.RG_NOT_FOUND  # type: ignore[misc]
    assert (await stub.getReaderGroupConfig(info())).status == read.RG_NOT_FOUND  # type: ignore[misc]


async def test_subscribers_over_grpc(stub: ControllerServiceStub) -> None:
    """API-33: names; unknown stream and subscriber, generation, success, an older cut."""
    await stub.createReaderGroup(message(retentionType=1))  # type: ignore[misc]
    listed, status = pb.SubscribersResponse, pb.UpdateSubscriberStatus
    found = await stub.listSubscribers(pb.StreamInfo(scope="scope", stream="a"))  # type: ignore[misc]
    assert (found.status, list(found.subscribers)) == (listed.SUCCESS, ["scope/g"])
    found = await stub.listSubscribers(pb.StreamInfo(scope="scope", stream="none"))  # type: ignore[misc]
    assert found.status == listed.STREAM_NOT_FOUND

    async def publish(
        offset: int, stream: str = "a", subscriber: str = "scope/g", generation: int = 0, group_id: str = ID
    ) -> Any:
        cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=stream), cut={0: offset})
        request = pb.SubscriberStreamCut(
            subscriber=subscriber, generation=generation, readerGroupId=group_id, streamCut=cut
        )
        return (await stub.updateSubscriberStreamCut(request)).status  # type: ignore[misc]

    assert await publish(1, stream="none") == status.STREAM_NOT_FOUND
    assert await publish(1, subscriber="scope/h") == status.SUBSCRIBER_NOT_FOUND
    assert await publish(1, group_id=OTHER_ID) == status.SUBSCRIBER_NOT_FOUND
    assert await publish(1, generation=3) == status.GENERATION_MISMATCH
    assert await publish(2) == status.SUCCESS
    assert await publish(1) == status.STREAM_CUT_NOT_VALID


def marks_of(wire: Wire) -> list[str]:
    return [name for name in wire.cluster.store.segments if name.startswith("scope/_MARK")]


async def test_a_mark_stream_exists_as_long_as_its_stream(stub: ControllerServiceStub, wire: Wire) -> None:
    """Java's readers open it: one segment, made with its stream, there until that is gone; no marks of marks."""

    def ask(stream: str) -> Any:
        return stub.getCurrentSegments(pb.StreamInfo(scope="scope", stream=stream))

    assert sorted(marks_of(wire)) == ["scope/_MARKa/0.#epoch.0", "scope/_MARKb/0.#epoch.0"]
    (found,) = (await ask("_MARKa")).segmentRanges
    assert (found.segmentId.segmentId, found.minKey, found.maxKey) == (0, 0.0, 1.0)
    assert found.segmentId.streamInfo.stream == "_MARKa"
    for missing in ("_MARKnone", "_MARK", "_MARK_MARKa", "_RGnone", "_MARK_RGnone"):
        assert await fails_with(ask(missing)) == "NOT_FOUND"
    listed = await stub.listStreamsInScope(pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="scope")))  # type: ignore[misc]
    assert sorted(found.stream for found in listed.streams) == ["_MARKa", "_MARKb", "a", "b"]
    assert (await wire.service.stream_configuration("scope", "_MARKa")).scaling.min_segments == 1
    await wire.service.scale_stream("scope", "a", [0], [(0.0, 0.5), (0.5, 1.0)])
    await wire.service.idle()
    await wire.service.seal_stream("scope", "a")
    assert list((await ask("_MARKa")).segmentRanges) == [found]
    assert not wire.cluster.store.segments["scope/_MARKa/0.#epoch.0"].is_sealed
    await wire.service.delete_stream("scope", "a")
    assert await fails_with(ask("_MARKa")) == "NOT_FOUND"
    assert marks_of(wire) == ["scope/_MARKb/0.#epoch.0"]


async def test_next_life_of_a_stream_has_another_segment_of_marks(stub: ControllerServiceStub, wire: Wire) -> None:
    """What a late request of the life before makes or deletes is not met again."""
    await wire.service.seal_stream("scope", "a")
    await wire.service.delete_stream("scope", "a")
    await wire.service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2)))
    (found,) = (await stub.getCurrentSegments(pb.StreamInfo(scope="scope", stream="_MARKa"))).segmentRanges  # type: ignore[misc]
    assert found.segmentId.segmentId == 1
    assert sorted(marks_of(wire)) == ["scope/_MARKa/1.#epoch.0", "scope/_MARKb/0.#epoch.0"]


async def test_a_mark_segment_is_valid_as_long_as_its_stream_exists(stub: ControllerServiceStub, wire: Wire) -> None:
    """`isSegmentValid`: yes for the one that holds the marks, no for any other one; asking changes nothing."""

    async def is_valid(stream: str, segment: int = 0) -> Any:
        info = pb.StreamInfo(scope="scope", stream=stream)
        return (await stub.isSegmentValid(pb.SegmentId(streamInfo=info, segmentId=segment))).response  # type: ignore[misc]

    assert await is_valid("_MARKa")
    assert not await is_valid("_MARKa", 1)
    assert not await is_valid("_MARKnone")
    assert sorted(marks_of(wire)) == ["scope/_MARKa/0.#epoch.0", "scope/_MARKb/0.#epoch.0"]


async def test_refused_deletion_leaves_the_mark_stream(stub: ControllerServiceStub, wire: Wire) -> None:
    """A stream that is not sealed keeps its mark stream when its deletion is refused."""
    refused = await stub.deleteStream(pb.StreamInfo(scope="scope", stream="a"))  # type: ignore[misc]
    assert refused.status == pb.DeleteStreamStatus.STREAM_NOT_SEALED
    assert await wire.service.stream_exists("scope", "_MARKa")
    assert "scope/_MARKa/0.#epoch.0" in marks_of(wire)


async def test_a_mark_stream_cannot_be_created_on_its_own(stub: ControllerServiceStub, wire: Wire) -> None:
    """Neither beside its stream, nor before there is one."""

    async def create(stream: str) -> Any:
        policy = pb.ScalingPolicy(minNumSegments=1)
        info = pb.StreamInfo(scope="scope", stream=stream)
        return (await stub.createStream(pb.StreamConfig(streamInfo=info, scalingPolicy=policy))).status  # type: ignore[misc]

    assert await create("_MARKa") == pb.CreateStreamStatus.INVALID_STREAM_NAME
    assert await create("_MARKc") == pb.CreateStreamStatus.INVALID_STREAM_NAME


async def test_a_mark_stream_of_an_earlier_release_remains_a_separate_stream(
    stub: ControllerServiceStub, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment is left to it when the stream that it is named after is deleted, and it is listed once."""
    monkeypatch.setattr("penstock.controller.service.check_new_stream_name", lambda name: name)
    config = StreamConfig(Scaling.fixed(1))
    await wire.service.create_stream("scope", "_MARKc", config)
    await wire.service.create_stream("scope", "c", config)
    listed = await stub.listStreamsInScope(pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="scope")))  # type: ignore[misc]
    assert sorted(found.stream for found in listed.streams) == ["_MARKa", "_MARKb", "_MARKc", "a", "b", "c"]
    await wire.service.seal_stream("scope", "c")
    await wire.service.delete_stream("scope", "c")
    assert len(await wire.service.current_segments("scope", "_MARKc")) == 1
    assert "scope/_MARKc/0.#epoch.0" in marks_of(wire)


async def test_a_group_does_not_adopt_a_stream_of_the_same_name(stub: ControllerServiceStub, wire: Wire) -> None:
    """Its deletion would delete that stream."""
    config = StreamConfig(Scaling.fixed(1))
    await wire.service.create_stream("scope", "_RGg", config)
    assert (await stub.createReaderGroup(message())).status == pb.CreateReaderGroupResponse.FAILURE  # type: ignore[misc]
    assert (await wire.service.reader_groups.list("scope", "")).names == ()
    assert await wire.service.stream_exists("scope", "_RGg")
    await wire.service.seal_stream("scope", "_RGg")
    await wire.service.delete_stream("scope", "_RGg")
    assert (await stub.createReaderGroup(message())).status == pb.CreateReaderGroupResponse.SUCCESS  # type: ignore[misc]


async def test_stuck_group_is_reported_and_finished(connect: Callable[..., Awaitable[Wire]]) -> None:
    """A group whose stream cannot be made in time: DEADLINE_EXCEEDED, and it is there later nevertheless."""
    wire = await connect(ControllerSettings(workflow_timeout_s=0.5))
    await wire.service.create_scope("scope")
    gate = asyncio.Event()
    create = wire.cluster.store.create_segment

    async def slow(*arguments: Any, **options: Any) -> None:
        await gate.wait()
        await create(*arguments, **options)

    wire.cluster.store.create_segment = slow  # type: ignore[method-assign]
    assert await fails_with(wire.stub.createReaderGroup(message())) == "DEADLINE_EXCEEDED"
    assert (await wire.service.reader_groups.get("scope", "g")).state is ChildState.CREATING
    gate.set()
    await wire.service.idle()
    assert (await wire.service.reader_groups.get("scope", "g")).state is ChildState.ACTIVE

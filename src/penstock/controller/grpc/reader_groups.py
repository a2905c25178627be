"""The calls for reader groups and subscribers. Source: controller-api 9.16."""

from __future__ import annotations

from penstock.controller.group_overviews import GroupOverview
from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb


async def create_reader_group(front: Front, request: pb.ReaderGroupConfiguration) -> pb.CreateReaderGroupResponse:
    """Answer createReaderGroup. An existing group is a success, with its own configuration."""
    scope, group = request.scope, request.readerGroupName
    group_id = convert.group_id(request.readerGroupId)
    config = convert.group_config(request).checked()
    found = await front.service.reader_groups.create(
        scope, group, config, None if group_id == convert.GROUP_ID_NONE else group_id
    )
    return pb.CreateReaderGroupResponse(
        status=pb.CreateReaderGroupResponse.SUCCESS, config=convert.group_config_message(scope, group, found)
    )


async def get_reader_group_config(front: Front, request: pb.ReaderGroupInfo) -> pb.ReaderGroupConfigResponse:
    """Answer getReaderGroupConfig. Id and generation of the request are ignored."""
    scope, group = request.scope, request.readerGroup
    found = await front.service.reader_groups.get(scope, group)
    return pb.ReaderGroupConfigResponse(
        config=convert.group_config_message(scope, group, found), status=pb.ReaderGroupConfigResponse.SUCCESS
    )


def no_config(request: pb.ReaderGroupInfo, status: pb.ReaderGroupConfigResponse.Status) -> pb.ReaderGroupConfigResponse:
    """Return the error reply without a configuration."""
    return pb.ReaderGroupConfigResponse(config=pb.ReaderGroupConfiguration(), status=status)


async def update_reader_group(front: Front, request: pb.ReaderGroupConfiguration) -> pb.UpdateReaderGroupResponse:
    """Answer updateReaderGroup."""
    scope, group = request.scope, request.readerGroupName
    group_id, config = convert.group_id(request.readerGroupId), convert.group_config(request).checked()
    generation = await front.service.reader_groups.update(scope, group, config, group_id, request.generation)
    return pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.SUCCESS, generation=generation)


async def delete_reader_group(front: Front, request: pb.ReaderGroupInfo) -> pb.DeleteReaderGroupStatus:
    """Answer deleteReaderGroup. The generation is ignored: Java's client always sends 0."""
    group_id = convert.group_id(request.readerGroupId)
    await front.service.reader_groups.delete(request.scope, request.readerGroup, group_id)
    return pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.SUCCESS)


async def list_subscribers(front: Front, request: pb.StreamInfo) -> pb.SubscribersResponse:
    """Answer listSubscribers."""
    found = await front.service.reader_groups.subscribers(request.scope, request.stream)
    return pb.SubscribersResponse(subscribers=found, status=pb.SubscribersResponse.SUCCESS)


async def update_subscriber_stream_cut(front: Front, request: pb.SubscriberStreamCut) -> pb.UpdateSubscriberStatus:
    """Answer updateSubscriberStreamCut."""
    info = request.streamCut.streamInfo
    group_id = convert.group_id(request.readerGroupId)
    await front.service.reader_groups.publish(
        info.scope, info.stream, request.subscriber, group_id, request.generation, dict(request.streamCut.cut)
    )
    return pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.SUCCESS)


async def describe_reader_groups(
    front: Front, request: added.DescribeReaderGroupsRequest
) -> added.DescribeReaderGroupsReply:
    """Answer describeReaderGroups, a call specific to Penstock."""
    scope = request.scopeInfo.scope
    overviews = front.service.group_overviews
    if request.readerGroup:
        return added.DescribeReaderGroupsReply(groups=[_overview(await overviews.one(scope, request.readerGroup))])
    if request.isNamesOnly:
        names = await front.service.reader_groups.list(scope, request.token)
        found = [added.ReaderGroupOverview(name=name) for name in names.names]
        return added.DescribeReaderGroupsReply(groups=found, token=names.token)
    page = await overviews.page(scope, request.token)
    return added.DescribeReaderGroupsReply(groups=[_overview(found) for found in page.groups], token=page.token)


def _overview(found: GroupOverview) -> added.ReaderGroupOverview:
    return added.ReaderGroupOverview(
        name=found.name,
        isPenstock=found.is_penstock,
        retention=int(found.record.config.retention),  # type: ignore[arg-type]  # an open enum
        generation=found.record.generation,
        streams=[
            added.ReaderGroupOverview.StreamOfGroup(
                streamInfo=pb.StreamInfo(scope=one.scope, stream=one.stream),
                isSubscribed=one.is_subscribed,
                cut=one.cut,
                ageMillis=one.age_ms,
            )
            for one in found.streams
        ],
    )

"""The calls about the controllers themselves. Source: controller API specification, sections 9.18 and 12.4."""

from __future__ import annotations

from penstock.controller.grpc.call import Front
from penstock.rpc import controller_pb2 as pb


async def get_controller_server_list(front: Front, request: pb.ServerRequest) -> pb.ServerResponse:
    """Answer getControllerServerList."""
    return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in front.endpoints()])


async def get_controller_to_bucket_mapping(
    front: Front, request: pb.ControllerToBucketMappingRequest
) -> pb.ControllerToBucketMappingResponse:
    """Answer getControllerToBucketMapping: every bucket is this controller's, as one at a time is at work.

    Streams are not gone over by bucket here; the counts are what administrators' tools are used to.
    """
    settings = front.service.settings
    is_retention = request.serviceType == pb.ControllerToBucketMappingRequest.RetentionService
    count = settings.retention_bucket_count if is_retention else settings.watermarking_bucket_count
    host, port = front.endpoints()[0]
    return pb.ControllerToBucketMappingResponse(mapping={f"{host}:{port}": pb.BucketIds(id=range(count))})


async def get_delegation_token(front: Front, request: pb.StreamInfo) -> pb.DelegationToken:
    """Answer getDelegationToken: empty, as there is no authorization; also for streams unknown here."""
    return pb.DelegationToken(delegationToken="")

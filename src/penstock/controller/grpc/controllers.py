"""The calls for controllers. Source: controller-api 9.18 and 12.4."""

from __future__ import annotations

from penstock.controller.grpc.call import Front
from penstock.rpc import controller_pb2 as pb


async def get_controller_server_list(front: Front, request: pb.ServerRequest) -> pb.ServerResponse:
    """Answer getControllerServerList."""
    return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in front.endpoints()])


async def get_controller_to_bucket_mapping(
    front: Front, request: pb.ControllerToBucketMappingRequest
) -> pb.ControllerToBucketMappingResponse:
    """Answer getControllerToBucketMapping. This controller is named by its address, others by their member names."""
    is_retention = request.serviceType == pb.ControllerToBucketMappingRequest.RetentionService
    buckets = front.service.retention_buckets if is_retention else front.service.watermarking_buckets
    host, port = front.endpoints()[0]
    return pb.ControllerToBucketMappingResponse(
        mapping={
            f"{host}:{port}" if name == buckets.own_name else name: pb.BucketIds(id=share)
            for name, share in buckets.shares().items()
        }
    )


async def get_delegation_token(front: Front, request: pb.StreamInfo) -> pb.DelegationToken:
    """Answer getDelegationToken: empty, as there is no authorization; also for unknown streams."""
    return pb.DelegationToken(delegationToken="")

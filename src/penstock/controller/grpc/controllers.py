"""The calls about the controllers themselves. Source: controller API specification, sections 9.18 and 12.4."""

from __future__ import annotations

from penstock.controller.grpc.call import Front
from penstock.rpc import controller_pb2 as pb


async def get_controller_server_list(front: Front, request: pb.ServerRequest) -> pb.ServerResponse:
    """Answer getControllerServerList."""
    return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in front.endpoints()])


async def get_delegation_token(front: Front, request: pb.StreamInfo) -> pb.DelegationToken:
    """Answer getDelegationToken: empty, as there is no authorization; also for streams unknown here."""
    return pb.DelegationToken(delegationToken="")

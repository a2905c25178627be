"""The calls for scopes. Source: controller-api 9.1 to 9.5."""

from __future__ import annotations

from penstock.controller.grpc.call import Front, need_names
from penstock.rpc import controller_pb2 as pb


async def create_scope(front: Front, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
    """Answer createScope."""
    need_names(scope=request.scope)
    await front.service.create_scope(request.scope)
    return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)


async def delete_scope(front: Front, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
    """Answer deleteScope."""
    need_names(scope=request.scope)
    await front.service.delete_scope(request.scope)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


async def delete_scope_recursive(front: Front, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
    """Answer deleteScopeRecursive."""
    need_names(scope=request.scope)
    await front.service.delete_scope_recursive(request.scope)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


async def list_scopes(front: Front, request: pb.ScopesRequest) -> pb.ScopesResponse:
    """Answer listScopes."""
    page = await front.service.list_scopes(request.continuationToken.token)
    return pb.ScopesResponse(scopes=page.names, continuationToken=pb.ContinuationToken(token=page.token))


async def check_scope_exists(front: Front, request: pb.ScopeInfo) -> pb.ExistsResponse:
    """Answer checkScopeExists."""
    return pb.ExistsResponse(exists=await front.service.scope_exists(request.scope))

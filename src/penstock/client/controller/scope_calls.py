"""The controller's calls about scopes, a part of `ControllerClient`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.client.controller.unary_call import CallGroup, UnaryCall, reason_of_refusal
from penstock.model.errors import InvalidNameError, NoSuchScopeError, ScopeExistsError, ScopeNotEmptyError, StreamError
from penstock.rpc import controller_pb2 as pb


class ScopeStub(Protocol):
    """The RPCs that are used here."""

    createScope: UnaryCall[pb.ScopeInfo, pb.CreateScopeStatus]
    deleteScope: UnaryCall[pb.ScopeInfo, pb.DeleteScopeStatus]
    deleteScopeRecursive: UnaryCall[pb.ScopeInfo, pb.DeleteScopeStatus]
    checkScopeExists: UnaryCall[pb.ScopeInfo, pb.ExistsResponse]
    listScopes: UnaryCall[pb.ScopesRequest, pb.ScopesResponse]


class ScopeCalls(CallGroup):
    """See the module."""

    _stub: ScopeStub

    async def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `ScopeExistsError`."""
        reply, unsure = await self._change(self._stub.createScope, pb.ScopeInfo(scope=scope), f"create scope {scope}")
        status = reply.status
        if status == pb.CreateScopeStatus.SCOPE_EXISTS and not unsure:
            raise ScopeExistsError(f"scope {scope} exists already")
        if status == pb.CreateScopeStatus.INVALID_SCOPE_NAME:
            raise InvalidNameError(f"the controller refuses {scope!r} as the name of a scope: {reason_of_refusal()}")
        if status == pb.CreateScopeStatus.FAILURE:
            raise StreamError(f"the controller could not create scope {scope}; {reason_of_refusal()}")

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        """Delete a scope; see `StreamCalls.delete_scope`. Raises `NoSuchScopeError`, `ScopeNotEmptyError`."""
        # For a controller, a recursive deletion of a missing scope succeeds.
        if recursive and not await self.scope_exists(scope):
            raise NoSuchScopeError(f"scope {scope} does not exist")
        call = self._stub.deleteScopeRecursive if recursive else self._stub.deleteScope
        reply, unsure = await self._change(call, pb.ScopeInfo(scope=scope), f"delete scope {scope}")
        status = reply.status
        if status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND and not unsure:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        if status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY:
            raise ScopeNotEmptyError(f"scope {scope} still holds streams, tables or reader groups")
        if status == pb.DeleteScopeStatus.FAILURE:
            raise StreamError(f"the controller could not delete scope {scope}; {reason_of_refusal()}")

    async def scope_exists(self, scope: str) -> bool:
        """Return whether a scope exists."""
        reply = await self._ask(self._stub.checkScopeExists, pb.ScopeInfo(scope=scope), f"check for scope {scope}")
        return reply.exists

    async def scopes(self) -> AsyncIterator[str]:
        """Iterate over the names of all scopes, page by page."""
        async for _, names in self.scope_pages():
            for name in names:
                yield name

    async def scope_pages(self, *, token: str = "") -> AsyncIterator[tuple[str, Sequence[str]]]:
        """Iterate over all scopes page by page, each with the token that leads to it; from `token` on."""
        for _ in range(self._settings.list_page_count_max):
            request = pb.ScopesRequest(continuationToken=pb.ContinuationToken(token=token))
            reply = await self._ask(self._stub.listScopes, request, "list scopes")
            if not reply.scopes:
                return
            yield token, list(reply.scopes)
            token = reply.continuationToken.token
        raise StreamError(f"listing scopes did not end within {self._settings.list_page_count_max} pages")

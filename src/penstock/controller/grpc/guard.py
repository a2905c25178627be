"""`CallGuard`: checks the caller of each call, filters listings, and adds delegation tokens to replies.

The permission is checked before anything is read, so that a caller without it gets the same answer for things that
exist and that do not.

Source: controller-api 2 and 12.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from penstock.controller.grpc import access
from penstock.controller.grpc.access import Access, AccessOf
from penstock.controller.grpc.grants import Claims, claims_of
from penstock.controller.service import ControllerService
from penstock.model.errors import AccessDeniedError, AuthenticationError
from penstock.model.permissions import ROOT, Permission, reader_group_resource, scope_resource, table_resource
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock.security.accounts import Account
from penstock.security.authenticator import Authenticator
from penstock.security.client_certificates import CallerCertificates
from penstock.security.sessions import Session
from penstock.security.tokens import TokenSigner

#: Pages of a listing that are read for one reply, if the caller may not see the entries of the first ones.
_PAGES_MAX = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a call. `account` None: it sent no credentials. `session` None: it sent a password."""

    account: Account | None
    is_strict: bool
    session: Session | None = None

    def permission(self, resource: str) -> Permission:
        """Return the permission of the caller on a resource."""
        return Permission.NONE if self.account is None else self.account.access.permission(resource)

    def permits(self, needed: Access) -> bool:
        """Return whether the caller has an access."""
        if self.account is None:
            return False
        permission = needed.permission
        if self.is_strict and needed.permission_strict is not None:
            permission = needed.permission_strict
        return any(self.permission(resource) >= permission for resource in (needed.resource, *needed.alternatives))

    def check(self, call: str, needed: Access) -> None:
        """Raise `AuthenticationError` or `AccessDeniedError` if the caller lacks an access."""
        if self.permits(needed):
            return
        if self.account is None:
            raise AuthenticationError(f"{call} needs credentials: a user and a password, or a client certificate")
        raise AccessDeniedError(
            f"{call}: user {self.account.name!r} lacks {needed.permission.name} on {needed.resource}"
        )


class CallGuard:
    """Serves calls for callers that have the access which each call requires.

    `signer` makes delegation tokens. `is_strict`: READ permission does not suffice for readers to write group state.
    `certificates` finds the accounts of client certificates; None: none are accepted.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        signer: TokenSigner,
        *,
        is_strict: bool = False,
        certificates: CallerCertificates | None = None,
    ) -> None:
        self._certificates = certificates
        self._authenticator = authenticator
        self._signer = signer
        self._is_strict = is_strict

    async def caller(
        self, header: str | None, peer: str, connection: Mapping[str, Iterable[bytes]] | None = None
    ) -> Caller:
        """Return the caller with these credentials. Raises `AuthenticationError` if they are wrong.

        `connection`: what gRPC has verified about the connection. Credentials of the call come before a certificate.
        """
        account = await self._authenticator.account_of(header, peer)
        if account is None and connection and self._certificates is not None:
            user = self._certificates.user_of(connection)
            account = None if user is None else self._authenticator.account_of_certificate(user)
        return Caller(account, self._is_strict, self._authenticator.session_of(header))

    async def serve(
        self,
        call: str,
        access_of: AccessOf,
        answer: Callable[[Message], Awaitable[Message]],
        service: ControllerService,
        caller: Caller,
        request: Message,
    ) -> Message:
        """Answer a request. Raises `AuthenticationError`, `AccessDeniedError`, and what the call raises."""
        claims: Claims = {}
        if call == "getDelegationToken":
            assert isinstance(request, pb.StreamInfo)
            claims = await claims_of(call, request, service, caller.permission, is_strict=self._is_strict)
            if not claims:
                needed = access_of(request)
                assert needed is not None
                caller.check(call, needed)
        elif (needed := access_of(request)) is not None:
            caller.check(call, needed)
        if call in ("openSession", "describeCaller", "describeAccounts"):
            return self._answer_about(call, caller, request)
        reply = await answer(request)
        listing = _LISTINGS.get(call)
        if listing is not None:
            reply = await self._filtered(listing, answer, request, reply, caller)
        if "delegationToken" in reply.DESCRIPTOR.fields_by_name:
            claims = claims or await claims_of(call, request, service, caller.permission, is_strict=self._is_strict)
            if claims:
                reply.delegationToken = self._signer.sign(claims)  # type: ignore[attr-defined]
        return reply

    def _answer_about(self, call: str, caller: Caller, request: Message) -> Message:
        """Answer a call about the caller itself."""
        assert caller.account is not None
        if call == "describeCaller":
            return added.DescribeCallerReply(user=caller.account.name)
        if call == "describeAccounts":
            has_all = caller.permission(ROOT) >= Permission.READ_UPDATE
            accounts = self._authenticator.accounts.by_name if has_all else {}
            return added.AccountDescriptions(
                own=_described(caller.account), hasAll=has_all,
                accounts=[_described(each) for _, each in sorted(accounts.items())],
            )  # fmt: skip
        assert isinstance(request, added.OpenSessionRequest)
        account = caller.account if not request.user else self._authenticator.account_for_session(request.user)
        token, expires_s = self._authenticator.open_session(account, caller.session)
        return added.OpenSessionReply(token=token, expiresMillis=1000 * expires_s)

    async def _filtered(
        self,
        listing: _Listing,
        answer: Callable[[Message], Awaitable[Message]],
        request: Message,
        reply: Message,
        caller: Caller,
    ) -> Message:
        """Remove the entries that the caller may not read; read further pages while nothing is left."""
        for _ in range(_PAGES_MAX):
            entries = getattr(reply, listing.field)
            had_entries = bool(entries)
            visible = [
                entry for entry in entries if caller.permission(listing.resource(request, entry)) >= Permission.READ
            ]
            if len(visible) < len(entries):
                del entries[:]
                entries.extend(visible)
            if visible or not had_entries:
                break
            following = type(request)()
            following.CopyFrom(request)
            listing.proceed(following, reply)
            reply = await answer(following)
        return reply


def _described(account: Account) -> added.AccountDescriptions.Account:
    """Return an account without its password."""
    return added.AccountDescriptions.Account(
        name=account.name, hasPassword=account.password is not None, entries=list(map(str, account.access.entries))
    )


@dataclass(frozen=True, slots=True)
class _Listing:
    """A call whose replies are pages of names.

    Attributes:
        field: the entries in the reply.
        resource: resource name of an entry, by request and entry.
        proceed: sets the token of the next page in a request.
    """

    field: str
    resource: Callable[[Any, Any], str]
    proceed: Callable[[Any, Any], None]


def _proceed(request: Any, reply: Any) -> None:
    request.continuationToken.token = reply.continuationToken.token


def _proceed_groups(request: added.DescribeReaderGroupsRequest, reply: added.DescribeReaderGroupsReply) -> None:
    request.token = reply.token


_LISTINGS: Mapping[str, _Listing] = {
    "listScopes": _Listing("scopes", lambda request, scope: scope_resource(scope), _proceed),
    "listStreamsInScope": _Listing("streams", lambda request, stream: access.internal_resource(stream), _proceed),
    "listStreamsInScopeForTag": _Listing("streams", lambda request, stream: access.internal_resource(stream), _proceed),
    "listKeyValueTablesInScope": _Listing(
        "kvtables", lambda request, table: table_resource(table.scope, table.kvtName), _proceed
    ),
    "describeReaderGroups": _Listing(
        "groups",
        lambda request, group: reader_group_resource(request.scopeInfo.scope, group.name),
        _proceed_groups,
    ),
}

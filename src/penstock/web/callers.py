"""`Callers`: a client of the cluster for each account that sends requests. Requests have the rights of their sender."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping

from penstock import aio
from penstock.client.low_level import open_client
from penstock.model.errors import AuthenticationBusyError, AuthenticationError
from penstock.runtime.client_security import (
    CA_VARIABLE,
    ClientSecurity,
    Credentials,
    SessionCredentials,
    client_security,
)

_HEADER_LENGTH_MAX = 4096
#: Sessions that were ended here and are remembered until they expire, which is later than any session does.
_ENDED_MAX = 10_000
_ENDED_S = 20 * 60.0

#: What a session consists of: base64url and dots. gRPC refuses other characters in metadata.
_SESSION = re.compile(r"[A-Za-z0-9._-]+")


#: Makes a client with the credentials of a caller, or without any.
Connect = Callable[[Credentials | SessionCredentials | None], aio.Client]


def connection_to(uri: str, ca: bytes | None = None, own: tuple[str, str] = ("", "")) -> Connect:
    """Return a function that makes clients of the cluster at `uri`.

    They have the credentials of the caller alone: an account in the environment of this process is not used.
    `own`: PEM files of the server's certificate and key, which represent no account, for a controller that requires a
    certificate.
    """
    trusted = ca if ca is not None else client_security(environment=_without_account(os.environ)).ca
    return lambda credentials: aio.Client(uri, security=ClientSecurity(credentials, trusted, *own))


def _without_account(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name == CA_VARIABLE}


class _Kept:
    """A client and the number of requests that use it."""

    __slots__ = ("client", "is_forgotten", "use_count")

    def __init__(self, client: aio.Client) -> None:
        self.client: aio.Client = client
        self.use_count: int = 0
        self.is_forgotten: bool = False


class Lease:
    """The use of a client by one request.

    Attributes:
        client: the client of the caller.
        is_kept: the reply is sent after its handler has returned, and releases the lease at its end.
    """

    __slots__ = ("_callers", "_kept", "client", "is_kept")

    def __init__(self, callers: Callers, kept: _Kept) -> None:
        self._callers = callers
        self._kept: _Kept | None = kept
        self.client: aio.Client = kept.client
        self.is_kept: bool = False
        kept.use_count += 1

    def release(self) -> None:
        """End the use. Safe to repeat."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.use_count -= 1
            self._callers.released(kept)


class Callers:
    """Opens and keeps clients, at most `clients_max`. `connect` makes a client with credentials, or without any.

    The credentials themselves are not kept, only a keyed hash of them. A client that a request uses is not closed.
    """

    def __init__(
        self,
        connect: Connect,
        clients_max: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._connect = connect
        self._clients_max = clients_max
        self._key = random_bytes(32)
        self._clients: OrderedDict[bytes, _Kept] = OrderedDict()
        #: Keyed hashes of ended sessions, and until when they are remembered.
        self._ended: OrderedDict[bytes, float] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, header: str | None) -> Lease:
        """Return the client for an ``Authorization`` header, until the lease is released; None: there was no header.

        Raises `AuthenticationError` for a header of another method than basic or bearer, and for an ended session;
        `AuthenticationBusyError` if requests use `clients_max` other clients.
        """
        key = self._hash(header)
        if key in self._ended:
            raise AuthenticationError("the session has ended; log in again")
        kept = self._clients.get(key)
        if kept is None:
            credentials = None if header is None else credentials_of(header)
            self._make_room()
            kept = _Kept(self._connect(credentials))
            open_client(kept.client)
            self._clients[key] = kept
        else:
            self._clients.move_to_end(key)
        return Lease(self, kept)

    def _make_room(self) -> None:
        """Close the client that no request has used for longest, if there are `clients_max`."""
        if len(self._clients) < self._clients_max:
            return
        for key, kept in self._clients.items():
            if not kept.use_count:
                del self._clients[key]
                self._close(kept.client)
                return
        raise AuthenticationBusyError(f"requests of {self._clients_max} other accounts are being served; try again")

    def _hash(self, header: str | None) -> bytes:
        return hmac.digest(self._key, (header or "").encode("utf-8", "surrogateescape"), "sha256")

    def end(self, header: str | None) -> None:
        """Refuse a session from now on. It does nothing for a password, or without credentials."""
        if header is None or not isinstance(credentials_of(header), SessionCredentials):
            return
        now_s = asyncio.get_running_loop().time()
        key = self._hash(header)
        self._ended[key] = now_s + _ENDED_S
        while len(self._ended) > _ENDED_MAX or next(iter(self._ended.values())) <= now_s:
            self._ended.popitem(last=False)
        if (kept := self._clients.pop(key, None)) is not None:
            kept.is_forgotten = True
            self.released(kept)

    def forget(self, client: aio.Client) -> None:
        """Keep a client no longer whose credentials were refused. It is closed when no request uses it."""
        for key, kept in list(self._clients.items()):
            if kept.client is client:
                del self._clients[key]
                kept.is_forgotten = True
                self.released(kept)

    def released(self, kept: _Kept) -> None:
        """Close a forgotten client that no request uses. Called by its leases."""
        if kept.is_forgotten and not kept.use_count:
            self._close(kept.client)

    def _close(self, client: aio.Client) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled():
            task.exception()  # A client that cannot close cleanly has nothing unfinished here.

    async def close(self) -> None:
        """Close all clients."""
        clients, self._clients = self._clients, OrderedDict()
        for kept in clients.values():
            self._close(kept.client)
        await asyncio.gather(*self._closing, return_exceptions=True)


def user_of(header: str) -> str:
    """Return the account in a header of basic authentication; empty for a session. Raises `AuthenticationError`."""
    found = credentials_of(header)
    return found.user if isinstance(found, Credentials) else ""


def credentials_of(header: str) -> Credentials | SessionCredentials:
    """Return the credentials in a header: a password, or a session. Raises `AuthenticationError`."""
    method, _, value = header.partition(" ")
    if len(header) <= _HEADER_LENGTH_MAX and method.lower() == "bearer" and _SESSION.fullmatch(value):
        return SessionCredentials(value)
    if method.lower() != "basic" or len(header) > _HEADER_LENGTH_MAX:
        raise AuthenticationError("the Authorization header is not one of basic authentication, and has no session")
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AuthenticationError("the Authorization header is not valid base64 of user:password") from error
    if not colon or not user:
        raise AuthenticationError("the Authorization header has no user:password")
    return Credentials(user, password)

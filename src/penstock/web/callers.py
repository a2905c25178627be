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
from penstock.model.errors import AuthenticationError
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


def connection_to(uri: str, ca: bytes | None = None) -> Connect:
    """Return a function that makes clients of the cluster at `uri`.

    They have the credentials of the caller alone: an account in the environment of this process is not used.
    """
    trusted = ca if ca is not None else client_security(environment=_without_account(os.environ)).ca
    return lambda credentials: aio.Client(uri, security=ClientSecurity(credentials, trusted))


def _without_account(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name == CA_VARIABLE}


class Callers:
    """Opens and keeps clients, at most `clients_max`. `connect` makes a client with credentials, or without any.

    The credentials themselves are not kept, only a keyed hash of them.
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
        self._clients: OrderedDict[bytes, aio.Client] = OrderedDict()
        #: Keyed hashes of ended sessions, and until when they are remembered.
        self._ended: OrderedDict[bytes, float] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def client(self, header: str | None) -> aio.Client:
        """Return the client for an ``Authorization`` header; None: the caller sent none.

        Raises `AuthenticationError` for a header of another method than basic or bearer, and for an ended session.
        """
        key = self._hash(header)
        if key in self._ended:
            raise AuthenticationError("the session has ended; log in again")
        found = self._clients.get(key)
        if found is None:
            found = self._connect(None if header is None else credentials_of(header))
            open_client(found)
            self._clients[key] = found
            while len(self._clients) > self._clients_max:
                self._close(self._clients.popitem(last=False)[1])
        else:
            self._clients.move_to_end(key)
        return found

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
        if (client := self._clients.pop(key, None)) is not None:
            self._close(client)

    def forget(self, client: aio.Client) -> None:
        """Close a client whose credentials were refused."""
        for key, known in list(self._clients.items()):
            if known is client:
                del self._clients[key]
                self._close(client)

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
        for client in clients.values():
            self._close(client)
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

"""`Callers`: a client of the cluster for each account that sends requests. Requests have the rights of their sender."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping

from penstock import aio
from penstock.client.low_level import open_client
from penstock.model.errors import AuthenticationError
from penstock.runtime.client_security import CA_VARIABLE, ClientSecurity, Credentials, client_security

_HEADER_LENGTH_MAX = 4096


#: Makes a client with the credentials of a caller, or without any.
Connect = Callable[[Credentials | None], aio.Client]


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
        connect: Callable[[Credentials | None], aio.Client],
        clients_max: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._connect = connect
        self._clients_max = clients_max
        self._key = random_bytes(32)
        self._clients: OrderedDict[bytes, aio.Client] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def client(self, header: str | None) -> aio.Client:
        """Return the client for an ``Authorization`` header; None: the caller sent none.

        Raises `AuthenticationError` for a header that is not one of basic authentication.
        """
        key = hmac.digest(self._key, (header or "").encode("utf-8", "surrogateescape"), "sha256")
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


def credentials_of(header: str) -> Credentials:
    """Return the credentials in a header of basic authentication. Raises `AuthenticationError`."""
    method, _, value = header.partition(" ")
    if method.lower() != "basic" or len(header) > _HEADER_LENGTH_MAX:
        raise AuthenticationError("the Authorization header is not one of basic authentication")
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AuthenticationError("the Authorization header is not valid base64 of user:password") from error
    if not colon or not user:
        raise AuthenticationError("the Authorization header has no user:password")
    return Credentials(user, password)

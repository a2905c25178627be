"""Client certificates at the web server: which account one names, and the session with which its requests are served.

The web server is a client of the cluster, and cannot pass a certificate on. It verifies the certificate, and opens a
session for the account that it names, with an account of its own. That account needs READ_UPDATE on
``prn::/account:NAME``. A password or a session of the request comes before the certificate.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from starlette.requests import Request as HttpRequest

from penstock import aio
from penstock.client.low_level import controller_of, open_client
from penstock.model.errors import AuthenticationError
from penstock.security.client_certificates import account_in, user_of_peer
from penstock.web.errors import WebAccountError
from penstock.web.sessions import COOKIE

#: Where the protocol of a connection leaves the content of its certificate, in the scope of each request.
SCOPE_KEY = "penstock.certificate"
#: For how long a session is used, and how many are remembered. A controller makes it for longer.
_USED_S = 300.0
_REMEMBERED_MAX = 1_000

#: What `ssl.SSLObject.getpeercert` returns.
PeerCertificate = Mapping[str, Sequence[Sequence[object]]]


class CertifiedSessions:
    """Sessions for the accounts of certificates. `connect` makes the client with the account of the web server.

    Concurrent requests of an account share one call of the controller.
    """

    def __init__(self, connect: Callable[[], aio.Client]) -> None:
        self._connect = connect
        self._client: aio.Client | None = None
        #: The session of each account, and until when it is used.
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._opening: dict[str, asyncio.Future[str]] = {}

    async def header(self, user: str) -> str:
        """Return the ``Authorization`` of an account.

        Raises `AccessDeniedError` if the account does not exist, or the web server's own may not open sessions for it;
        `WebAccountError` if its own account is refused; and what the call raises.
        """
        now_s = asyncio.get_running_loop().time()
        known = self._sessions.get(user)
        if known is not None and now_s < known[1]:
            self._sessions.move_to_end(user)
            return known[0]
        opening = self._opening.get(user)
        if opening is None:
            opening = asyncio.ensure_future(self._open(user))
            self._opening[user] = opening
            opening.add_done_callback(lambda ended: self._opened(user, ended))
        # A request that ends does not end the call for the others.
        return await asyncio.shield(opening)

    def forget(self, user: str) -> None:
        """Open another session for the next request: this one was refused, or has ended."""
        self._sessions.pop(user, None)

    async def close(self) -> None:
        """Close the client."""
        for opening in list(self._opening.values()):
            opening.cancel()
        if self._client is not None:
            await self._client.close()

    async def _open(self, user: str) -> str:
        if self._client is None:
            self._client = self._connect()
            open_client(self._client)
        try:
            token, _ = await controller_of(self._client).open_session(user)
        except AuthenticationError as error:
            raise WebAccountError(f"the account of this web server is not accepted: {error}") from error
        header = f"Bearer {token}"
        self._sessions[user] = (header, asyncio.get_running_loop().time() + _USED_S)
        if len(self._sessions) > _REMEMBERED_MAX:
            self._sessions.popitem(last=False)
        return header

    def _opened(self, user: str, ended: asyncio.Future[str]) -> None:
        if self._opening.get(user) is ended:
            del self._opening[user]
        if not ended.cancelled():
            ended.exception()  # All requests that waited for it may have ended.


class RequestCredentials:
    """Finds the credentials of requests. `certified` None: certificates prove no accounts."""

    def __init__(self, certified: CertifiedSessions | None = None) -> None:
        self._certified = certified

    async def header(self, http: HttpRequest) -> str | None:
        """Return the ``Authorization`` of a request, also of its cookie or certificate; None without any of them.

        Raises `AuthenticationError` for a certificate that names no account, or several, and what
        `CertifiedSessions.header` raises.
        """
        header = sent_header(http)
        if header is not None or self._certified is None:
            return header
        user = account_in(http.scope.get(SCOPE_KEY))
        return None if user is None else await self._certified.header(user)

    def refused(self, http: HttpRequest) -> None:
        """Note that the credentials of a request were not accepted."""
        if self._certified is None or sent_header(http) is not None:
            return
        if user := user_of_peer(http.scope.get(SCOPE_KEY)):
            self._certified.forget(user)

    def has_certificate(self, http: HttpRequest) -> bool:
        """Return whether the certificate of a request counts, as it has no other credentials."""
        return self._certified is not None and bool(http.scope.get(SCOPE_KEY)) and sent_header(http) is None

    async def close(self) -> None:
        """Close what `CertifiedSessions` uses."""
        if self._certified is not None:
            await self._certified.close()


def sent_header(http: HttpRequest) -> str | None:
    """Return the ``Authorization`` of a request, or its session's cookie as one; None without both."""
    header = http.headers.get("authorization")
    session = http.cookies.get(COOKIE)
    return header if header is not None or not session else f"Bearer {session}"

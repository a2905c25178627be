"""Sessions over REST: a caller gives its password once, and sends a token, or a cookie with it, in further requests.

The token is one of the cluster's controllers (`penstock.security.sessions`). A program sends it as ``Authorization:
Bearer``; a browser sends the cookie, which scripts cannot read and pages of other sites cannot use.
"""

from __future__ import annotations

import datetime

import msgspec

from penstock.client.low_level import controller_of
from penstock.model.errors import UnsupportedOperationError
from penstock.web.replies import Caller
from penstock.web.routes import Reply, Request, Route

COOKIE = "penstock_session"


class SessionReply(msgspec.Struct):
    """A session; `expiresAt` is a time in ISO 8601."""

    token: str
    expiresAt: str
    user: str


async def open_session(request: Request) -> Reply:
    """Open a session, or renew the one that the request has."""
    controller = controller_of(request.client)
    token, expires_ms = await controller.open_session()
    ends = datetime.datetime.fromtimestamp(expires_ms / 1000, datetime.UTC).isoformat().replace("+00:00", "Z")
    content = SessionReply(token, ends, await controller.caller())
    return Reply(201, content, headers={"Set-Cookie": session_cookie(token, is_https=request.is_https)})


async def end_session(request: Request) -> Reply:
    """End the session of the request at this web server, and remove the cookie."""
    request.end_session()
    return Reply(204, has_content=False, headers={"Set-Cookie": session_cookie("", is_https=request.is_https)})


async def whoami(request: Request) -> Reply:
    """Return the account of the caller."""
    try:
        user = await controller_of(request.client).caller()
    except UnsupportedOperationError:
        user = request.user  # The controller is Pravega's. It has checked nothing so far.
    return Reply(content=Caller(user or None))


def session_cookie(token: str, *, is_https: bool) -> str:
    """Return the value of ``Set-Cookie``. It ends with the browser, or with the session; empty token: at once."""
    secure = "; Secure" if is_https else ""
    ends = "" if token else "; Max-Age=0"
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{ends}"


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/sessions",
        "Open a session with a password, or renew a session.",
        open_session,
        201,
        reply=(SessionReply,),
        needs="an account",
    ),
    Route("DELETE", "/v1/sessions/current", "End the session of the request.", end_session, 204),
    Route("GET", "/v1/whoami", "Return the account of the caller.", whoami, reply=(Caller,), needs="an account"),
)

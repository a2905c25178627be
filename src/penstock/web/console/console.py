"""`Console`: serves the pages, with the guards that forms need.

A form carries a token that only a page of this server could give it: a keyed hash of a random cookie. So another site
cannot send a form, although browsers add the credentials of basic authentication to its requests.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from penstock import aio
from penstock.client.low_level import controller_of
from penstock.model.errors import (
    AuthenticationBusyError,
    AuthenticationError,
    PenstockError,
    UnsupportedOperationError,
)
from penstock.runtime.client_security import Credentials
from penstock.web.callers import Callers, user_of
from penstock.web.certificates import RequestCredentials, sent_header
from penstock.web.console import (
    account_pages,
    cluster_changes,
    cluster_pages,
    group_pages,
    overview,
    retention_pages,
    saved_filters,
    stream_changes,
    stream_pages,
    streams,
    table_pages,
    task_pages,
    transaction_pages,
)
from penstock.web.console.pages import (
    ROOT,
    Answer,
    Data,
    Download,
    Elsewhere,
    Page,
    PageRequest,
    PageRoute,
)
from penstock.web.console.rates import Rates
from penstock.web.console.rendering import STATIC, rendered, static_file
from penstock.web.errors import BadRequestError, ForeignFormError, Refusal, refusal_of
from penstock.web.sessions import COOKIE, session_cookie
from penstock.web.settings import WebSettings

logger: logging.Logger = logging.getLogger(__name__)

ROUTES: tuple[PageRoute, ...] = (
    *overview.ROUTES,
    *streams.ROUTES,
    *stream_pages.ROUTES,
    *saved_filters.ROUTES,
    *stream_changes.ROUTES,
    *group_pages.ROUTES,
    *retention_pages.ROUTES,
    *transaction_pages.ROUTES,
    *table_pages.ROUTES,
    *task_pages.ROUTES,
    *cluster_pages.ROUTES,
    *cluster_changes.ROUTES,
    *account_pages.ROUTES,
)
#: Answers a request for something below `ROOT`.
Endpoint = Callable[[HttpRequest], Awaitable[Response]]
SIGN_IN: str = "/sign-in"
SIGN_OUT: str = "/sign-out"
#: Media type of the forms.
FORM_TYPE: str = "application/x-www-form-urlencoded"
_FORM_BYTES_MAX = 256 * 1024
_FORM_FIELDS_MAX = 64
_COOKIE = "penstock_console"
_TOKEN_FIELD = "token_of_form"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    # With less, browsers would send no Origin with forms.
    "Referrer-Policy": "same-origin",
}
_STATIC_AGE_S = 31_536_000


class Console:
    """See the module. `controller`: address of the cluster in the commands that pages show."""

    def __init__(
        self,
        callers: Callers,
        credentials: RequestCredentials,
        controller: str,
        settings: WebSettings,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._callers = callers
        self._credentials = credentials
        self._controller = controller
        self._settings = settings
        self._random_bytes = random_bytes
        self._key = random_bytes(32)
        self._rates = Rates()

    async def close(self) -> None:
        """End what the console does between requests."""
        await self._rates.close()

    def endpoints(self) -> Iterator[tuple[str, Endpoint, list[str]]]:
        """Yield path, handler and methods of all that is served below `ROOT`."""
        yield ROOT + "/static/{name}", serve_static, ["GET"]
        yield ROOT + SIGN_IN, self._sign_in, ["GET", "POST"]
        yield ROOT + SIGN_OUT, self._sign_out, ["POST"]
        for route in ROUTES:
            yield ROOT + route.path, partial(self._serve, route), ["GET", "POST"] if route.is_form else ["GET"]
        yield ROOT + "/{rest:path}", self._missing, ["GET", "POST"]

    async def _serve(self, route: PageRoute, http: HttpRequest) -> Response:
        """Return the response to a request for a page, with the rights of its sender."""
        nonce, token = self._tokens(http)
        lease = None
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                header = await self._credentials.header(http)
            lease = self._callers.take(header)
            client = lease.client
            async with asyncio.timeout(self._settings.request_timeout_s):
                user = await _user(client, header)
                form = await self._form(http, token)
                request = PageRequest(
                    client, self._rates, {name: unquote(value) for name, value in http.path_params.items()},
                    dict(http.query_params), form, http.method == "POST", token, user, _origin(http),
                    self._controller, http.cookies,
                )  # fmt: skip
                response = _response(await route.answer(request), http, token, user)
        except (PenstockError, TimeoutError) as error:
            if isinstance(error, AuthenticationError) and not isinstance(error, AuthenticationBusyError):
                self._credentials.refused(http)
                if lease is not None:
                    self._callers.forget(lease.client)
                return self._signed_out(http, error)
            response = self.refused(http, refusal_of(error))
        except Exception:
            # Last resort: the log gets the details.
            logger.exception("%s %s failed with an unexpected error", http.method, route.path)
            response = self.refused(http, Refusal(500, "Internal", "see the log of the web server for the reason"))
        finally:
            if lease is not None:
                lease.release()
        return _with_nonce(response, http, nonce)

    async def _missing(self, http: HttpRequest) -> Response:
        return self.refused(http, Refusal(404, "NotFound", f"the console has no page {http.url.path}"))

    def _tokens(self, http: HttpRequest) -> tuple[str, str]:
        """Return the random cookie of a browser, a new one if it has none, and the token of its forms."""
        nonce = http.cookies.get(_COOKIE, "")
        if len(nonce) != 32 or not nonce.isalnum():
            nonce = self._random_bytes(16).hex()
        return nonce, self._token(nonce)

    async def _form(self, http: HttpRequest, token: str) -> dict[str, str]:
        """Return the fields of a form, empty for a page that is only read. Raises `ForeignFormError`."""
        if http.method != "POST":
            return {}
        form = await _fields(http)
        if not self._is_own(form, token):
            raise ForeignFormError(
                "the form is not one of this server, or the server was restarted since: open the page again"
            )
        return form

    def _signed_out(self, http: HttpRequest, error: AuthenticationError) -> Response:
        """Ask for an account. A browser that sent one in a header of its own asks itself."""
        if "authorization" in http.headers:
            return self.refused(http, refusal_of(error))
        nonce, token = self._tokens(http)
        return_to = http.url.path + (f"?{http.url.query}" if http.url.query else "")
        has_sent = COOKIE in http.cookies or self._credentials.has_certificate(http)
        page = _sign_in_page(return_to if http.method == "GET" else "", str(error) if has_sent else "")
        response = _response(page, http, token, "")
        if COOKIE in http.cookies:
            response.headers.append("Set-Cookie", session_cookie("", is_https=http.url.scheme == "https"))
        return _with_nonce(response, http, nonce)

    async def _sign_in(self, http: HttpRequest) -> Response:
        """Open a session for the account that a form names."""
        nonce, token = self._tokens(http)
        lease = None
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                form = await self._form(http, token)
                if http.method != "POST":
                    response = _response(_sign_in_page("", "", 200), http, token, "")
                    return _with_nonce(response, http, nonce)
                header = Credentials(form.get("user", ""), form.get("password", "")).header()
                lease = self._callers.take(header)
                session, _ = await controller_of(lease.client).open_session()
        except AuthenticationError as error:
            if lease is not None and not isinstance(error, AuthenticationBusyError):
                self._callers.forget(lease.client)
            page = _sign_in_page(form.get("return_to", ""), str(error), refusal_of(error).status)
            return _with_nonce(_response(page, http, token, ""), http, nonce)
        except (PenstockError, TimeoutError) as error:
            return self.refused(http, refusal_of(error))
        finally:
            if lease is not None:
                lease.release()
        return_to = form.get("return_to", "")
        place = return_to if return_to.startswith(ROOT + "/") and "\\" not in return_to else ROOT + "/"
        response = _response(Elsewhere(place), http, token, "")
        response.headers.append("Set-Cookie", session_cookie(session, is_https=http.url.scheme == "https"))
        return _with_nonce(response, http, nonce)

    async def _sign_out(self, http: HttpRequest) -> Response:
        """End the session of a browser at this web server."""
        nonce, token = self._tokens(http)
        try:
            await self._form(http, token)
            self._callers.end(sent_header(http))
        except PenstockError as error:
            return self.refused(http, refusal_of(error))
        response = _response(Elsewhere(ROOT + SIGN_IN), http, token, "")
        response.headers.append("Set-Cookie", session_cookie("", is_https=http.url.scheme == "https"))
        return _with_nonce(response, http, nonce)

    def _token(self, nonce: str) -> str:
        return hmac.new(self._key, nonce.encode(), "sha256").hexdigest()

    @staticmethod
    def _is_own(form: Mapping[str, str], token: str) -> bool:
        return hmac.compare_digest(form.get(_TOKEN_FIELD, "").encode(), token.encode())

    def refused(self, http: HttpRequest, refusal: Refusal) -> Response:
        """Return the page of an error."""
        page = Page("error.html", "Error", {"refusal": refusal}, refusal.status)
        response = _response(page, http, "", "")
        response.headers.update(refusal.headers)
        return response


def _sign_in_page(return_to: str, problem: str, status: int = 401) -> Page:
    return Page(
        "sign_in.html", "Sign in", {"return_to": return_to, "problem": problem, "sign_in": ROOT + SIGN_IN}, status
    )


def _with_nonce(response: Response, http: HttpRequest, nonce: str) -> Response:
    """Set the random cookie, if the browser has another one or none."""
    if http.cookies.get(_COOKIE) != nonce:
        response.set_cookie(
            _COOKIE, nonce, path=ROOT, httponly=True, samesite="strict", secure=http.url.scheme == "https"
        )
    return response


async def _user(client: aio.Client, header: str | None) -> str:
    """Return the account of a caller, for the pages; empty: there is none, or the controller does not report it."""
    user = "" if header is None else user_of(header)
    if user or header is None:
        return user
    try:
        return await controller_of(client).caller()
    except UnsupportedOperationError:
        return ""


async def _fields(http: HttpRequest) -> dict[str, str]:
    """Return the fields of a form. Raises `BadRequestError`."""
    body = b""
    async for part in http.stream():
        body += part
        if len(body) > _FORM_BYTES_MAX:
            raise BadRequestError(f"the form is longer than {_FORM_BYTES_MAX} bytes")
    try:
        return dict(
            parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX, errors="strict")
        )
    except ValueError as error:
        raise BadRequestError(f"the form is not understood: {error}") from error


def _origin(http: HttpRequest) -> str:
    return f"{http.url.scheme}://{http.headers.get('host', 'localhost')}"


def _response(answer: Answer, http: HttpRequest, token: str, user: str) -> Response:
    if isinstance(answer, Elsewhere):
        response = Response(status_code=303, headers={**_HEADERS, "Location": answer.address})
        if answer.filters is not None:
            cookie = saved_filters.set_cookie(answer.filters, is_https=http.url.scheme == "https")
            response.headers.append("Set-Cookie", cookie)
        return response
    if isinstance(answer, Data):
        return Response(msgspec.json.encode(answer.value), headers=_HEADERS, media_type="application/json")
    if isinstance(answer, Download):
        name = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in answer.name if sign.isascii())
        headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(answer.data, headers=headers, media_type="application/octet-stream")
    values = {
        **answer.values, "title": answer.title, "token_of_form": token, "user": user, "path": http.url.path,
        "has_session": COOKIE in http.cookies, "sign_out": ROOT + SIGN_OUT,
        "query": dict(http.query_params),
    }  # fmt: skip
    return Response(rendered(answer.template, values), answer.status, _HEADERS, "text/html; charset=utf-8")


async def serve_static(http: HttpRequest) -> Response:
    """Return a file that is served as it is."""
    name = http.path_params["name"]
    if name not in STATIC:
        return Response(status_code=404, headers=_HEADERS)
    headers = {**_HEADERS, "Cache-Control": f"public, max-age={_STATIC_AGE_S}, immutable"}
    return Response(static_file(name), headers=headers, media_type=STATIC[name])

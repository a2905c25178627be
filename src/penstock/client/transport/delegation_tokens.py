"""Delegation tokens of a client: what segment stores with authentication require with each request.

A token is valid for the segments of one stream, and for some minutes. It is fetched from the controller before the
first request about a segment of the stream, and again before it expires. A store that refuses a token as expired gets
the request again with a new one.

Source: controller-api 12.4; wire-protocol 7.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock.model.errors import AccessDeniedError
from penstock.model.names import SYSTEM_SCOPE

#: Means the statistics of segment stores, which belong to no stream.
STATISTICS_SEGMENT = f"{SYSTEM_SCOPE}/statistics/0"
#: A token is fetched again when less than this is left, or a third of its life.
_AHEAD_S = 30.0
_AHEAD_SHARE = 3
#: Life of a token that does not tell its expiry, and of the fact that a caller may not read statistics.
_LIFE_UNKNOWN_S = 300.0
_REMEMBERED_MAX = 10_000

#: Fetches the token for a stream: scope, stream, whether to write. Raises `AccessDeniedError` without permission.
FetchToken = Callable[[str, str, bool], Awaitable[str]]


class Tokens(Protocol):
    """Provides the tokens of requests to segment stores."""

    async def prepare(self, segment: str) -> None:
        """Make sure that `of` returns a valid token for a segment. Raises what the controller's call raises."""

    def of(self, segment: str) -> str:
        """Return the token for requests about a segment; empty: none is needed, or `prepare` was not called."""

    def forget(self, segment: str) -> None:
        """Fetch the token of a segment again: a store has refused it."""

    def alias(self, segment: str, stream: str) -> None:
        """Use the token of another stream of the same scope for a segment: tables of groups belong to their groups."""


class FixedToken:
    """One token for all requests; empty where segment stores require none."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    async def prepare(self, segment: str) -> None:
        """See `Tokens.prepare`."""

    def of(self, segment: str) -> str:
        """See `Tokens.of`."""
        return self._token

    def forget(self, segment: str) -> None:
        """See `Tokens.forget`."""

    def alias(self, segment: str, stream: str) -> None:
        """See `Tokens.alias`."""


class DelegationTokens:
    """Tokens from the controller. `now_s` returns the time of the loop's clock. Use within one event loop."""

    def __init__(self, fetch: FetchToken) -> None:
        self._fetch = fetch
        #: By ``scope/stream``: the token, and when to fetch the next one, on the loop's clock.
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._fetching: dict[str, asyncio.Future[str]] = {}
        self._aliases: OrderedDict[str, str] = OrderedDict()

    async def prepare(self, segment: str) -> None:
        """See `Tokens.prepare`."""
        key = _key_of(segment)
        known = self._known.get(key)
        loop = asyncio.get_running_loop()
        if known is not None and loop.time() < known[1]:
            return
        fetching = self._fetching.get(key)
        if fetching is None:
            fetching = asyncio.ensure_future(self._fetch_new(key))
            self._fetching[key] = fetching
            fetching.add_done_callback(lambda _: self._fetching.pop(key, None))
        # Other callers wait for the same token.
        await asyncio.shield(fetching)

    async def _fetch_new(self, key: str) -> str:
        scope, stream = (self._aliases.get(key) or key).split("/", 1)
        try:
            token = await self._fetch(scope, stream, True)
        except AccessDeniedError:
            if key == _key_of(STATISTICS_SEGMENT):
                token = ""
            else:
                # A caller that may only read.
                token = await self._fetch(scope, stream, False)
        life_s = _life_s(token)
        ahead_s = min(_AHEAD_S, life_s / _AHEAD_SHARE)
        self._known[key] = (token, asyncio.get_running_loop().time() + life_s - ahead_s)
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED_MAX:
            self._known.popitem(last=False)
        return token

    def of(self, segment: str) -> str:
        """See `Tokens.of`."""
        known = self._known.get(_key_of(segment))
        return "" if known is None else known[0]

    def forget(self, segment: str) -> None:
        """See `Tokens.forget`."""
        self._known.pop(_key_of(segment), None)

    def alias(self, segment: str, stream: str) -> None:
        """See `Tokens.alias`."""
        key = _key_of(segment)
        self._aliases[key] = f"{key.split('/', 1)[0]}/{stream}"
        while len(self._aliases) > _REMEMBERED_MAX:
            self._aliases.popitem(last=False)


def _key_of(segment: str) -> str:
    """Return ``scope/stream`` of a segment's full name."""
    scope, _, rest = segment.partition("/")
    return f"{scope}/{rest.partition('/')[0]}"


def _life_s(token: str) -> float:
    """Return for how long a token was made, by its own claims; the clock of this machine does not matter."""
    parts = token.split(".")
    if len(parts) != 3:
        return _LIFE_UNKNOWN_S
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        life_s = float(payload["exp"]) - float(payload["iat"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return _LIFE_UNKNOWN_S
    return max(life_s, 0.0)

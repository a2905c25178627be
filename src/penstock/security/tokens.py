"""Delegation tokens: what a controller signs for a client, and a segment store accepts.

A token is a JSON Web Token, signed with HMAC-SHA512 by a key that controllers and segment stores share. Its claims are
permissions on streams. A store verifies the signature of a token once and remembers the result.

Source: controller-api 12.4; wire-protocol 7.
"""

from __future__ import annotations

import hmac
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.model.errors import InvalidArgumentError, TokenExpiredError, TokenRefusedError
from penstock.model.permissions import Permission

if TYPE_CHECKING:
    from jwt.types import Options

V = TypeVar("V")

#: Claim of the servers themselves: every segment.
MASTER_CLAIM = "*"
#: Claim of clients that may read the statistics of segment stores.
STATISTICS_CLAIM = "penstock:statistics"
AUDIENCE = "segmentstore"
SUBJECT = "segmentstoreresource"
ALGORITHM = "HS512"
#: A token that expired less than this ago is accepted: clocks of controllers and stores differ.
LEEWAY_S = 10
_TOKEN_LENGTH_MAX = 4096
_CLAIMS_MAX = 8
_REGISTERED = frozenset({"sub", "aud", "iat", "exp", "nbf", "iss", "jti"})
_REMEMBERED_MAX = 10_000
#: Refused tokens, which may be longer: a peer without an account chooses them.
_REFUSED_MAX = 1_000
#: Times are checked here, by the injected clock.
_OPTIONS: Options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "require": ["sub", "aud"]}


@dataclass(frozen=True, slots=True)
class Claim:
    """A permission on the segments whose names the claim covers."""

    name: str
    permission: Permission

    def covers(self, segment: str) -> bool:
        """Return whether the claim is about a segment."""
        if self.name == MASTER_CLAIM:
            return True
        if self.name == STATISTICS_CLAIM:
            return False
        name = self.name.removeprefix("prn::").removeprefix("/").removeprefix("scope:").replace("stream:", "", 1)
        if not name:
            return False
        return segment == name or segment.startswith(name if name.endswith("/") else f"{name}/")


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """The content of an accepted token.

    Attributes:
        claims: see `Claim`.
        expires_s: Unix time; None: it does not expire.
        begins_s: Unix time from which on it is valid; None: it is.
    """

    claims: Sequence[Claim]
    expires_s: float | None
    begins_s: float | None = None

    def permission(self, segment: str) -> Permission:
        """Return the highest permission for a segment."""
        return max((claim.permission for claim in self.claims if claim.covers(segment)), default=Permission.NONE)

    def is_master(self) -> bool:
        """Return whether this is a token of a server."""
        return any(claim.name == MASTER_CLAIM and claim.permission >= Permission.READ_UPDATE for claim in self.claims)


class TokenKeys:
    """The signing keys: the first one signs, all verify. Their bytes never appear in messages."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Raises `InvalidArgumentError` without a key, or for an empty one."""
        if not keys or not all(keys):
            raise InvalidArgumentError("the file of token keys is empty: it needs one key per line")
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        """Return a text without the keys."""
        return f"TokenKeys({len(self._keys)} keys)"

    @property
    def signing_key(self) -> bytes:
        """The key that signs."""
        return self._keys[0]

    @property
    def all(self) -> Sequence[bytes]:
        """All keys that verify."""
        return self._keys

    def fingerprints(self, purpose: bytes) -> tuple[str, ...]:
        """Return a text for each key, in order, by which holders of a key recognise it: 16 hex digits."""
        return tuple(hmac.digest(key, b"penstock key " + purpose, "sha512")[:8].hex() for key in self._keys)


class TokenSigner:
    """Makes tokens that are valid for `ttl_s` seconds. `wall_clock_s` returns the Unix time."""

    def __init__(self, keys: TokenKeys, ttl_s: int, wall_clock_s: Callable[[], float]) -> None:
        self.ttl_s: int = ttl_s
        self._keys = keys
        self._wall_clock_s = wall_clock_s

    def now_s(self) -> float:
        """Return the Unix time."""
        return self._wall_clock_s()

    def replace_keys(self, keys: TokenKeys) -> None:
        """Sign with other keys from now on."""
        self._keys = keys

    def sign(self, claims: Mapping[str, Permission]) -> str:
        """Return a token with these claims."""
        import jwt

        now_s = int(self._wall_clock_s())
        content: dict[str, object] = {
            "sub": SUBJECT,
            "aud": AUDIENCE,
            "iat": now_s,
            "exp": now_s + self.ttl_s,
            **{name: permission.name for name, permission in claims.items()},
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About short keys, which are reported at the start of the server.
            return jwt.encode(content, self._keys.signing_key, algorithm=ALGORITHM)

    def master(self) -> str:
        """Return a token of the servers themselves."""
        return self.sign({MASTER_CLAIM: Permission.READ_UPDATE})


class MasterTokens:
    """Tokens of the servers themselves, for their requests to segment stores. One token is used for half its life.

    Has the methods that a connection pool needs (`penstock.client.transport.delegation_tokens.Tokens`).
    """

    def __init__(self, signer: TokenSigner) -> None:
        self._signer = signer
        self._token = ""
        self._made_s = 0.0

    async def prepare(self, segment: str) -> None:
        """Tokens are made here, so nothing is fetched."""

    def of(self, segment: str) -> str:
        """Return a token that covers every segment."""
        age_s = self._signer.now_s() - self._made_s
        # Below zero: the clock was set back.
        if not self._token or not 0 <= age_s < self._signer.ttl_s / 2:
            self._token, self._made_s = self._signer.master(), self._signer.now_s()
        return self._token

    def forget(self, segment: str) -> None:
        """Make a new token for the next request: a store has refused this one."""
        self._token = ""

    def alias(self, segment: str, stream: str) -> None:
        """One token covers all segments."""


class TokenVerifier:
    """Accepts or refuses tokens. `wall_clock_s` returns the Unix time."""

    def __init__(self, keys: TokenKeys, wall_clock_s: Callable[[], float]) -> None:
        self._keys = keys
        self._wall_clock_s = wall_clock_s
        self._accepted: OrderedDict[str, TokenGrant] = OrderedDict()
        #: The reasons of refusals.
        self._refused: OrderedDict[str, str] = OrderedDict()

    def replace_keys(self, keys: TokenKeys) -> None:
        """Verify with other keys from now on."""
        self._keys = keys
        self._accepted.clear()
        self._refused.clear()

    def verify(self, token: str) -> TokenGrant:
        """Return what a token grants.

        Raises:
            TokenExpiredError: it was valid, and has expired.
            TokenRefusedError: it is missing, malformed, not signed by one of the keys, or for another use.
        """
        found = self._accepted.get(token)
        if found is None:
            found = self._verify_new(token)
        else:
            self._accepted.move_to_end(token)
        if found.begins_s is not None and self._wall_clock_s() < found.begins_s - LEEWAY_S:
            raise TokenRefusedError("the token is not valid yet")
        if found.expires_s is not None and self._wall_clock_s() >= found.expires_s + LEEWAY_S:
            raise TokenExpiredError("the token has expired")
        return found

    def _verify_new(self, token: str) -> TokenGrant:
        if (reason := self._refused.get(token)) is not None:
            raise TokenRefusedError(reason)
        if len(token) > _TOKEN_LENGTH_MAX:
            raise TokenRefusedError(f"the token has more than {_TOKEN_LENGTH_MAX} characters")
        try:
            found = self._decode(token)
        except TokenRefusedError as error:
            _remember(self._refused, token, str(error), _REFUSED_MAX)
            raise
        _remember(self._accepted, token, found, _REMEMBERED_MAX)
        return found

    def _decode(self, token: str) -> TokenGrant:
        import jwt

        if not token:
            raise TokenRefusedError("the request has no token; the client needs credentials")
        content: dict[str, object] | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key in self._keys.all:
                try:
                    content = jwt.decode(
                        token, key, algorithms=[ALGORITHM], audience=AUDIENCE, subject=SUBJECT, options=_OPTIONS
                    )  # fmt: skip
                    break
                except jwt.InvalidSignatureError:
                    continue
                except (jwt.PyJWTError, ValueError, RecursionError) as error:
                    raise TokenRefusedError(f"the token is not accepted: {type(error).__name__}") from None
        if content is None:
            raise TokenRefusedError("the token was not signed with a key of this server")
        return TokenGrant(_claims_of(content), _time_of(content, "exp"), _time_of(content, "nbf"))


def _remember(where: OrderedDict[str, V], token: str, value: V, count_max: int) -> None:
    where[token] = value
    if len(where) > count_max:
        where.popitem(last=False)


def _time_of(content: Mapping[str, object], name: str) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TokenRefusedError(f"the token's {name} is not a number")
    return float(value)


def _claims_of(content: Mapping[str, object]) -> Sequence[Claim]:
    own = {name: value for name, value in content.items() if name not in _REGISTERED}
    if len(own) > _CLAIMS_MAX:
        raise TokenRefusedError(f"the token has more than {_CLAIMS_MAX} claims")
    return tuple(
        Claim(name, Permission[value])
        for name, value in own.items()
        if isinstance(value, str) and value in Permission.__members__
    )

"""Sessions: what a controller signs for a caller who has logged in, in place of the password in further calls.

A session is a JSON Web Token for the controllers, signed with the key of delegation tokens; stores refuse it, as
controllers refuse delegation tokens. It ends when its account is removed or gets another password, and after `TTL_S`.
Before that it can be renewed, up to `LOGIN_S` after the password was given. Nothing is stored, so each controller of a
cluster accepts it, and no controller can revoke a single one.
"""

from __future__ import annotations

import hmac
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors import AuthenticationError
from penstock.security.accounts import Account, Accounts
from penstock.security.passwords import NO_PASSWORD
from penstock.security.tokens import ALGORITHM, LEEWAY_S, TokenKeys

if TYPE_CHECKING:
    from jwt.types import Options

AUDIENCE = "penstock-controller"
#: How long a session is valid, and how long after the login it can be renewed.
TTL_S = 900
LOGIN_S = 12 * 3600
_TOKEN_LENGTH_MAX = 4096
_REMEMBERED_MAX = 1_000
#: Part of the hash of a password that a session carries, as a keyed hash: the session ends when it changes.
_PASSWORD_MARK_LENGTH = 8
_REFUSED = "the session has ended, or is not one of this cluster; log in again"
#: Times are checked here, by the injected clock.
_OPTIONS: Options = {
    "verify_exp": False, "verify_iat": False, "verify_nbf": False, "require": ["sub", "aud", "exp", "login", "pw"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Session:
    """The content of an accepted session.

    Attributes:
        name: of the account.
        expires_s: Unix time.
        login_s: Unix time at which the password was given.
        password_mark: changes with the password.
        key: that signed it.
    """

    name: str
    expires_s: int
    login_s: int
    password_mark: str
    key: bytes


class Sessions:
    """Makes and accepts sessions. `wall_clock_s` returns the Unix time."""

    def __init__(self, keys: TokenKeys, wall_clock_s: Callable[[], float]) -> None:
        self._keys = keys
        self._wall_clock_s = wall_clock_s
        self._remembered: OrderedDict[str, Session] = OrderedDict()

    def replace_keys(self, keys: TokenKeys) -> None:
        """Sign and verify with other keys from now on."""
        self._keys = keys
        self._remembered.clear()

    def open(self, account: Account, session: Session | None = None) -> tuple[str, int]:
        """Return a token for an account, and its end as Unix time in seconds.

        `session`: the one that it renews; None: the caller has given a password. Raises `AuthenticationError` if the
        login is too long ago.
        """
        import jwt

        now_s = int(self._wall_clock_s())
        login_s = now_s if session is None else session.login_s
        expires_s = min(now_s + TTL_S, login_s + LOGIN_S)
        if expires_s <= now_s:
            raise AuthenticationError("the login is too long ago to renew the session; log in again")
        key = self._keys.signing_key
        content: dict[str, object] = {
            "sub": account.name, "aud": AUDIENCE, "iat": now_s, "exp": expires_s, "login": login_s,
            "pw": _password_mark(key, account),
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About short keys, which are reported at the start of the server.
            return jwt.encode(content, key, algorithm=ALGORITHM), expires_s

    def accept(self, token: str, accounts: Accounts) -> tuple[Account, Session]:
        """Return the account of a session, as it is now. Raises `AuthenticationError`."""
        found = self._remembered.get(token)
        if found is None:
            if len(token) > _TOKEN_LENGTH_MAX:
                raise AuthenticationError(_REFUSED)
            found = self._decode(token)
            self._remembered[token] = found
            if len(self._remembered) > _REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        else:
            self._remembered.move_to_end(token)
        account = accounts.by_name.get(found.name)
        if account is None or self._wall_clock_s() >= found.expires_s + LEEWAY_S:
            raise AuthenticationError(_REFUSED)
        if not hmac.compare_digest(_password_mark(found.key, account), found.password_mark):
            raise AuthenticationError(_REFUSED)
        return account, found

    def _decode(self, token: str) -> Session:
        import jwt

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key in self._keys.all:
                try:
                    content = jwt.decode(token, key, algorithms=[ALGORITHM], audience=AUDIENCE, options=_OPTIONS)
                except jwt.InvalidSignatureError:
                    continue
                except (jwt.PyJWTError, ValueError, RecursionError):
                    break
                return _session(content, key)
        raise AuthenticationError(_REFUSED)


def _session(content: Mapping[str, object], key: bytes) -> Session:
    name, mark = content["sub"], content["pw"]
    expires_s, login_s = content["exp"], content["login"]
    if not isinstance(name, str) or not isinstance(mark, str) or not mark.isascii():
        raise AuthenticationError(_REFUSED)
    if type(expires_s) is not int or type(login_s) is not int:
        raise AuthenticationError(_REFUSED)
    return Session(name, expires_s, login_s, mark, key)


def _password_mark(key: bytes, account: Account) -> str:
    encoded = NO_PASSWORD if account.password is None else account.password.encode()
    text = f"penstock session\n{account.name}\n{encoded}".encode()
    return hmac.digest(key, text, "sha256")[:_PASSWORD_MARK_LENGTH].hex()

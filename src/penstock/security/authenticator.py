"""`Authenticator`: finds the account behind the credentials of a call.

A password hash takes tenths of a second of CPU, and clients send their credentials with each call. So each pair of
account and password is verified once, in a thread, and the result is remembered. An unknown account costs as much as a
wrong password. Failures of one peer are slowed down; an account is never locked.

Source: controller-api 12.1.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.model.errors import (
    AccessDeniedError,
    AuthenticationBusyError,
    AuthenticationError,
    StorageNotRespondingError,
    UnsupportedOperationError,
)
from penstock.runtime.work import BlockingWork, PoolSettings
from penstock.security.accounts import Account, Accounts
from penstock.security.passwords import HASH_LENGTH, ITERATIONS, SALT_LENGTH, PasswordHash
from penstock.security.sessions import Session, Sessions

K = TypeVar("K")
V = TypeVar("V")

#: Length of the longest accepted header and of the longest decoded ``user:password``.
_HEADER_LENGTH_MAX = 16 * 1024
_CREDENTIALS_LENGTH_MAX = 1024


@dataclass(frozen=True, slots=True)
class AuthenticationSettings:
    """How passwords are verified.

    Attributes:
        thread_count_max: passwords hashed at the same time.
        waiting_count_max: passwords that may wait for a thread; further calls are refused.
        positive_s, negative_s: how long a right and a wrong password are remembered.
        remembered_max: how many of each are remembered.
        failures_max: failures of one peer that are answered at once ...
        failures_per_s: ... and per second after these; further ones wait ...
        failure_wait_s_max: ... at most this long, or are refused.
        peers_max: peers whose failures are counted.
    """

    thread_count_max: int = 2
    waiting_count_max: int = 64
    positive_s: float = 300.0
    negative_s: float = 5.0
    remembered_max: int = 10_000
    failures_max: int = 20
    failures_per_s: float = 1.0
    failure_wait_s_max: float = 5.0
    peers_max: int = 10_000


class Authenticator:
    """See the module. `random_bytes` returns random bytes of a length; `work` makes the pool that hashes passwords.

    `sessions` accepts those of callers who have logged in; None: there are none.
    """

    def __init__(
        self,
        accounts: Accounts,
        work: BlockingWork,
        random_bytes: Callable[[int], bytes],
        settings: AuthenticationSettings | None = None,
        *,
        sessions: Sessions | None = None,
    ) -> None:
        self._settings = settings or AuthenticationSettings()
        self._accounts = accounts
        self._sessions = sessions
        self._key = random_bytes(32)
        # What unknown accounts are compared with: nothing has this hash.
        self._decoy = PasswordHash(ITERATIONS, random_bytes(SALT_LENGTH), random_bytes(HASH_LENGTH))
        self._iterations = _iterations_of(accounts)
        self._pool = work.pool(
            "authentication",
            PoolSettings(
                thread_count_max=self._settings.thread_count_max, waiting_count_max=self._settings.waiting_count_max
            ),
        )
        #: By a keyed hash of the credentials: the account, or None, and until when that is remembered.
        self._positive: OrderedDict[bytes, tuple[Account, float]] = OrderedDict()
        self._negative: OrderedDict[bytes, float] = OrderedDict()
        self._verifying: dict[bytes, asyncio.Future[Account | None]] = {}
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def accounts(self) -> Accounts:
        """The accounts as of now."""
        return self._accounts

    def replace_accounts(self, accounts: Accounts) -> None:
        """Use other accounts for calls from now on. Earlier calls end as they began."""
        self._accounts = accounts
        self._iterations = _iterations_of(accounts)
        self._positive.clear()
        self._negative.clear()
        # Calls from now on do not share a verification that began with the previous accounts.
        self._verifying.clear()

    def close(self) -> None:
        """Accept no more passwords."""
        self._pool.close()

    def account_of_certificate(self, name: str) -> Account:
        """Return the account that a verified client certificate names. Raises `AuthenticationError` without one."""
        account = self._accounts.by_name.get(name)
        if account is None:
            raise AuthenticationError(
                f"the client certificate is for {name!r}, which is no account; add it with penstock user add"
            )
        return account

    def account_for_session(self, name: str) -> Account:
        """Return the account of a session that another account opens. Raises `AccessDeniedError` without one."""
        account = self._accounts.by_name.get(name)
        if account is None:
            raise AccessDeniedError(f"there is no account {name!r}; add it with penstock user add")
        return account

    async def account_of(self, header: str | None, peer: str) -> Account | None:
        """Return the account of an ``authorization`` header; None without one, or with an unknown method.

        Raises:
            AuthenticationError: the credentials are malformed or wrong.
            AuthenticationBusyError: they were not verified, and a later attempt may succeed.
        """
        if header is None:
            return None
        if len(header) > _HEADER_LENGTH_MAX:
            raise AuthenticationError("the authorization header is too long")
        parts = header.split(None, 1)
        if len(parts) == 2 and parts[0] == "Bearer" and self._sessions is not None:
            return self._sessions.accept(parts[1], self._accounts)[0]
        if len(parts) != 2 or parts[0] != "Basic":
            return None
        now_s = asyncio.get_running_loop().time()
        key = hmac.digest(self._key, header.encode("utf-8", "surrogatepass"), "sha256")
        known = self._positive.get(key)
        if known is not None and known[1] > now_s:
            self._positive.move_to_end(key)
            return known[0]
        refused_until_s = self._negative.get(key)
        if refused_until_s is None or refused_until_s <= now_s:
            account = await self._verify_once(key, parts[1])
            if account is not None:
                return account
        await self._slow_down(peer)
        raise AuthenticationError("unknown user or wrong password")

    def session_of(self, header: str | None) -> Session | None:
        """Return the session of a header that `account_of` has accepted; None: it has a password, or nothing."""
        parts = (header or "").split(None, 1)
        if len(parts) != 2 or parts[0] != "Bearer" or self._sessions is None:
            return None
        return self._sessions.accept(parts[1], self._accounts)[1]

    def open_session(self, account: Account, renewed: Session | None) -> tuple[str, int]:
        """See `Sessions.open`. Raises `AuthenticationError`, `UnsupportedOperationError` (there are no sessions)."""
        if self._sessions is None:
            raise UnsupportedOperationError("this controller has no sessions")
        return self._sessions.open(account, renewed)

    async def _verify_once(self, key: bytes, encoded: str) -> Account | None:
        """Verify credentials; concurrent calls with the same ones share one verification."""
        running = self._verifying.get(key)
        if running is None:
            running = asyncio.ensure_future(self._verify(key, encoded))
            self._verifying[key] = running
            running.add_done_callback(lambda ended: self._verified(key, ended))
        # A caller that gives up does not end the verification for the others.
        return await asyncio.shield(running)

    def _verified(self, key: bytes, ended: asyncio.Future[Account | None]) -> None:
        if self._verifying.get(key) is ended:
            del self._verifying[key]

    async def _verify(self, key: bytes, encoded: str) -> Account | None:
        name, password = _decode(encoded)
        accounts = self._accounts
        account = accounts.by_name.get(name)
        known = None if account is None else account.password
        try:
            is_right = await self._pool.run((known or self._decoy_of(name)).verify, password)
        except StorageNotRespondingError as error:
            raise AuthenticationBusyError("too many passwords are being verified; try again later") from error
        found = account if is_right and known is not None else None
        loop = asyncio.get_running_loop()
        if accounts is self._accounts:
            if found is not None:
                _remember(self._positive, key, (found, loop.time() + self._settings.positive_s),
                          self._settings.remembered_max)  # fmt: skip
            else:
                _remember(self._negative, key, loop.time() + self._settings.negative_s, self._settings.remembered_max)
        return found

    def _decoy_of(self, name: str) -> PasswordHash:
        """Return a hash that takes as long as that of some account: files of Pravega have fewer iterations than ours.

        A name always gets the same one, so repeated attempts show nothing either.
        """
        number = int.from_bytes(hmac.digest(self._key, name.encode("utf-8", "surrogatepass"), "sha256")[:8], "big")
        return replace(self._decoy, iterations=self._iterations[number % len(self._iterations)])

    async def _slow_down(self, peer: str) -> None:
        """Count a failure of a peer; wait if it has failed often. Raises `AuthenticationBusyError`."""
        settings = self._settings
        now_s = asyncio.get_running_loop().time()
        count, since_s = self._failures.pop(peer, (0.0, now_s))
        count = max(count - (now_s - since_s) * settings.failures_per_s, 0.0) + 1
        _remember(self._failures, peer, (count, now_s), settings.peers_max)
        wait_s = (count - settings.failures_max) / settings.failures_per_s
        if wait_s > settings.failure_wait_s_max:
            raise AuthenticationBusyError("too many failed attempts from this address; try again later")
        if wait_s > 0:
            await asyncio.sleep(wait_s)


def _iterations_of(accounts: Accounts) -> Sequence[int]:
    """Return the iterations of each account's hash; those of new hashes without any account."""
    found = [account.password.iterations for account in accounts.by_name.values() if account.password is not None]
    return found or [ITERATIONS]


def _decode(encoded: str) -> tuple[str, str]:
    """Return user and password. Raises `AuthenticationError`."""
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise AuthenticationError("the Basic credentials are not base64 of user:password") from error
    user, colon, password = decoded.partition(":")
    if not colon or "\0" in decoded or len(decoded) > _CREDENTIALS_LENGTH_MAX:
        raise AuthenticationError("the Basic credentials are not base64 of user:password")
    return user, password


def _remember(where: OrderedDict[K, V], key: K, value: V, count_max: int) -> None:
    where[key] = value
    where.move_to_end(key)
    while len(where) > count_max:
        where.popitem(last=False)

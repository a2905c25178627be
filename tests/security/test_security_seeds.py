"""Seeds of a secured cluster over time: tokens expire, keys are rotated, accounts change, in any order.

Two controllers and three stores read changed files each at a time of its own. What a call or a request must answer
comes from a model: when the account had a permission, when the token was made, and how far the rotation is. Time is
virtual: nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.model.errors import AuthenticationError
from penstock.model.permissions import Permission
from penstock.runtime.client_security import Credentials
from penstock.runtime.runtime import real_runtime
from penstock.security import tokens
from penstock.security.access_list import AccessEntry, AccessList
from penstock.security.accounts import Account, Accounts
from penstock.security.authenticator import AuthenticationSettings, Authenticator
from penstock.security.passwords import hash_password
from penstock.security.tokens import LEEWAY_S, TokenKeys, TokenSigner, TokenVerifier
from penstock.segmentstore.token_access import CHECK_FAILED, EXPIRED, TokenAccess
from penstock.wire.commands import GetStreamSegmentInfo, SealSegment

TTL_S = 60
#: After the last use of a key for a signature it verifies for this long, as `penstock security rotate-key` waits.
KEPT_S = TTL_S + 60
STREAMS = ("orders", "orders2", "clicks")
USERS = ("ann", "bob")
SEEDS = range(12)
STEPS = 150


class Cluster:
    """The processes, and the model of what they must answer."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 1_000_000.0
        self.runtime = real_runtime(1)
        self.keys = [self._new_key()]
        self._rotation = 0
        self._not_before_s = 0.0
        self.accounts: dict[str, tuple[str, dict[str, Permission]]] = {}
        self.count = 0
        # It stays. Without any account, wrong passwords would cost as much as those of new accounts.
        self.accounts["other"] = ("password", dict.fromkeys(STREAMS, Permission.NONE))
        for user in USERS:
            self._change_account(user)
        first = TokenKeys(tuple(self.keys))
        settings = AuthenticationSettings(failures_max=1_000_000)
        self.signers = [TokenSigner(first, TTL_S, self._now) for _ in range(2)]
        self.authenticators = [
            Authenticator(self._read(), self.runtime.work, self.random.randbytes, settings) for _ in self.signers
        ]
        #: What each controller has read: the accounts.
        self.known = [dict(self.accounts) for _ in self.signers]
        self.stores = [TokenAccess(TokenVerifier(first, self._now), self._now) for _ in range(3)]
        #: Each process that has not yet read the latest keys.
        self._behind: list[Callable[[], None]] = []
        #: Token, its time, its stream, its permission.
        self.tokens: list[tuple[str, float, str, Permission]] = []

    def _now(self) -> float:
        return self.now_s

    def _new_key(self) -> bytes:
        return self.random.randbytes(64)

    def _read(self) -> Accounts:
        return Accounts({
            user: Account(user, hash_password(password, bytes(32), 10), AccessList(tuple(
                AccessEntry(f"prn::/scope:shop/stream:{stream}", permission) for stream, permission in entries.items()
            )))
            for user, (password, entries) in self.accounts.items()
        })  # fmt: skip

    def _change_account(self, user: str) -> None:
        """Remove an account, or give it another password or other permissions."""
        self.count += 1
        choice = self.random.random()
        if choice < 0.2 and user in self.accounts:
            del self.accounts[user]
            return
        password = self.accounts.get(user, (f"password {self.count}", {}))[0]
        if choice < 0.5:
            password = f"password {self.count}"
        self.accounts[user] = (password, {stream: self.random.choice(list(Permission)) for stream in STREAMS})

    def _rotate(self) -> None:
        """Do the next step of a rotation, once every process has done the previous one."""
        if self._behind or self.now_s < self._not_before_s:
            return
        if self._rotation == 0:
            self.keys = [*self.keys, self._new_key()]
        elif self._rotation == 1:
            self.keys = [self.keys[1], self.keys[0]]
        else:
            self.keys = self.keys[:1]
        self._rotation = (self._rotation + 1) % 3
        read = TokenKeys(tuple(self.keys))
        self._behind = [lambda each=each: each.replace_keys(read) for each in self.signers]  # type: ignore[misc]
        self._behind += [lambda each=each: each._verifier.replace_keys(read) for each in self.stores]  # type: ignore[misc]
        self.random.shuffle(self._behind)

    def _catch_up(self) -> None:
        if self._behind:
            self._behind.pop()()
            if not self._behind and self._rotation == 2:
                self._not_before_s = self.now_s + KEPT_S

    async def _ask(self) -> None:
        """Log in at a controller, with a password that is right, was right, or never was; and get a token."""
        index = self.random.randrange(len(self.signers))
        user = self.random.choice(USERS)
        known = self.known[index].get(user)
        passwords = [entries[0] for entries in (known, self.accounts.get(user)) if entries is not None]
        password = self.random.choice([*passwords, "password 1", "wrong"])
        header = Credentials(user, password).header()
        try:
            account = await self.authenticators[index].account_of(header, "peer")
        except AuthenticationError:
            account = None
        assert (account is not None) == (known is not None and known[0] == password), "a password"
        if account is None:
            return
        assert known is not None
        stream = self.random.choice(STREAMS)
        permission = account.access.permission(f"prn::/scope:shop/stream:{stream}")
        assert permission == known[1][stream], "a permission"
        if permission is not Permission.NONE:
            token = self.signers[index].sign({f"prn::/scope:shop/stream:{stream}": permission})
            self.tokens.append((token, self.now_s, stream, permission))

    def _use(self) -> None:
        """Use a token at a store, for a stream that may not be its own."""
        if not self.tokens:
            return
        token, made_s, stream, permission = self.random.choice(self.tokens[-30:])
        other = self.random.choice((stream, *STREAMS))
        segment = f"shop/{other}/0.#epoch.0"
        store = self.random.choice(self.stores)
        is_change = self.random.random() < 0.5
        request = SealSegment(1, segment, token) if is_change else GetStreamSegmentInfo(1, segment, token)
        refused = store.check(request)
        age_s = self.now_s - made_s
        needed = Permission.READ_UPDATE if is_change else Permission.READ
        if age_s >= TTL_S + LEEWAY_S:
            # The key of an expired token may be gone.
            assert refused is not None, "expired"
            assert refused.error_code in (EXPIRED, CHECK_FAILED)
        elif other == stream and permission >= needed:
            assert refused is None, "a valid token"
        else:
            assert refused is not None, "another stream or permission"
            assert refused.error_code == CHECK_FAILED

    async def step(self) -> None:
        """Do one thing."""
        match self.random.choices(range(6), (3, 2, 1, 2, 6, 12))[0]:
            case 0:
                self.now_s += self.random.choice((0.5, 5.0, TTL_S / 2, TTL_S + LEEWAY_S))
            case 1:
                self._rotate()
            case 2:
                self._change_account(self.random.choice(USERS))
            case 3:
                index = self.random.randrange(len(self.signers))
                self.authenticators[index].replace_accounts(self._read())
                self.known[index] = dict(self.accounts)
                self._catch_up()
            case 4:
                self._catch_up()
                await self._ask()
            case _:
                self._use()

    async def close(self) -> None:
        for each in self.authenticators:
            each.close()
        await self.runtime.work.close()


async def run(seed: int, steps: int = STEPS) -> None:
    cluster = Cluster(seed)
    try:
        for _ in range(steps):
            await cluster.step()
        assert cluster.tokens
    finally:
        await cluster.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_answers_follow_accounts_keys_and_time(seed: int) -> None:
    await run(seed)


@pytest.mark.nightly
async def test_answers_follow_accounts_keys_and_time_for_many_seeds() -> None:
    for seed in range(1_000, 1_400):
        await run(seed, 600)


def _stale_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts are replaced, and passwords that were verified before stay accepted."""

    def replace_accounts(authenticator: Authenticator, accounts: Accounts) -> None:
        authenticator._accounts = accounts
        authenticator._negative.clear()

    monkeypatch.setattr(Authenticator, "replace_accounts", replace_accounts)


def _only_the_first_key_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenKeys, "all", property(lambda keys: keys._keys[:1]))


def _refusals_are_remembered_over_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has refused a token refuses it permanently, and one that has not read new keys refuses them all."""

    def replace_keys(verifier: TokenVerifier, keys: TokenKeys) -> None:
        """Do nothing."""

    monkeypatch.setattr(TokenVerifier, "replace_keys", replace_keys)


def _expiry_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = TokenVerifier.verify

    def cached(verifier: TokenVerifier, token: str) -> tokens.TokenGrant:
        return verifier._accepted.get(token) or verify(verifier, token)

    monkeypatch.setattr(TokenVerifier, "verify", cached)


def _claims_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def covers(claim: tokens.Claim, segment: str) -> bool:
        return segment.startswith(claim.name.removeprefix("prn::/scope:").replace("stream:", "", 1))

    monkeypatch.setattr(tokens.Claim, "covers", covers)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "passwords stay accepted after a change": _stale_passwords,
    "only the signing key verifies": _only_the_first_key_verifies,
    "stores do not read new keys": _refusals_are_remembered_over_new_keys,
    "the expiry is checked once": _expiry_is_checked_once,
    "a claim without its end": _claims_without_end,
}


@pytest.mark.parametrize("bug", BUGS)
async def test_seeds_find_each_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in SEEDS:
        try:
            await run(seed)
        except AssertionError:
            return
    pytest.fail(f"no seed finds: {bug}")

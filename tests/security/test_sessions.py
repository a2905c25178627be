"""Sessions: what is signed for a caller who has logged in, and when it ends."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable

import jwt
import pytest

from penstock.model.errors import AuthenticationError, TokenRefusedError
from penstock.model.permissions import Permission
from penstock.security.accounts import Account, Accounts
from penstock.security.passwords import hash_password
from penstock.security.sessions import LOGIN_S, TTL_S, Sessions
from penstock.security.tokens import LEEWAY_S, TokenKeys, TokenSigner, TokenVerifier

KEY, OTHER = b"k" * 64, b"o" * 64
ANN = Account("ann", hash_password("secret", bytes(32), 10))
ACCOUNTS = Accounts({"ann": ANN, "bob": Account("bob", None)})


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(TokenKeys((KEY,)), clock)


def test_a_session_is_accepted_until_its_end(sessions: Sessions, clock: Clock) -> None:
    token, expires_s = sessions.open(ANN)
    assert expires_s == clock.now_s + TTL_S
    for at_s in (0, TTL_S + LEEWAY_S - 1):
        clock.now_s = 1_000_000 + at_s
        account, session = sessions.accept(token, ACCOUNTS)
        assert (account, session.name, session.login_s) == (ANN, "ann", 1_000_000)
    clock.now_s += 1
    with pytest.raises(AuthenticationError):
        sessions.accept(token, ACCOUNTS)


def test_a_session_is_renewed_for_a_limited_time(sessions: Sessions, clock: Clock) -> None:
    token, expires_s = sessions.open(ANN)
    begun_s, renewals = clock.now_s, 0
    while expires_s < begun_s + LOGIN_S:
        clock.now_s = expires_s - 1
        token, expires_s = sessions.open(ANN, sessions.accept(token, ACCOUNTS)[1])
        renewals += 1
    assert expires_s == begun_s + LOGIN_S
    assert renewals == pytest.approx(LOGIN_S / (TTL_S - 1), abs=1)
    clock.now_s = expires_s
    with pytest.raises(AuthenticationError, match="too long ago"):
        sessions.open(ANN, sessions.accept(token, ACCOUNTS)[1])


@pytest.mark.parametrize(
    "accounts",
    [
        Accounts({}),
        Accounts({"ann": dataclasses.replace(ANN, password=hash_password("other", bytes(32), 10))}),
        Accounts({"ann": dataclasses.replace(ANN, password=hash_password("secret", b"\1" * 32, 10))}),
        Accounts({"ann": dataclasses.replace(ANN, password=None)}),
    ],
    ids=["removed", "other password", "other salt", "no password"],
)
def test_a_session_ends_with_the_password_of_its_account(sessions: Sessions, accounts: Accounts) -> None:
    token, _ = sessions.open(ANN)
    sessions.accept(token, ACCOUNTS)
    with pytest.raises(AuthenticationError):
        sessions.accept(token, accounts)


def test_keys_are_rotated_without_an_end_of_sessions(sessions: Sessions) -> None:
    token, _ = sessions.open(ANN)
    sessions.replace_keys(TokenKeys((OTHER, KEY)))
    sessions.accept(token, ACCOUNTS)
    renewed, _ = sessions.open(ANN, sessions.accept(token, ACCOUNTS)[1])
    sessions.replace_keys(TokenKeys((OTHER,)))
    sessions.accept(renewed, ACCOUNTS)
    with pytest.raises(AuthenticationError):
        sessions.accept(token, ACCOUNTS)


def test_sessions_and_delegation_tokens_do_not_replace_each_other(sessions: Sessions, clock: Clock) -> None:
    """They have the same key: their audiences differ."""
    keys = TokenKeys((KEY,))
    with pytest.raises(AuthenticationError):
        sessions.accept(TokenSigner(keys, 600, clock).master(), ACCOUNTS)
    with pytest.raises(AuthenticationError):
        sessions.accept(TokenSigner(keys, 600, clock).sign({"ann": Permission.READ_UPDATE}), ACCOUNTS)
    with pytest.raises(TokenRefusedError):
        TokenVerifier(keys, clock).verify(sessions.open(ANN)[0])


def _with(**changes: object) -> Callable[[dict[str, object]], str]:
    def change(content: dict[str, object]) -> str:
        return jwt.encode({**content, **changes}, KEY, algorithm="HS512")

    return change


def _without(name: str) -> Callable[[dict[str, object]], str]:
    return lambda content: jwt.encode({k: v for k, v in content.items() if k != name}, KEY, algorithm="HS512")


def _unsigned(content: dict[str, object]) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(content)}."


@pytest.mark.parametrize(
    "change",
    [
        _with(sub="bob"), _with(sub="root"), _with(pw="0" * 16), _with(pw="\u00e9"), _with(pw=1), _with(exp="soon"),
        _with(exp=True), _with(login=1.5), _with(aud="segmentstore"), _with(aud=["a"]), _without("exp"), _without("pw"),
        _without("login"), _without("sub"), _without("aud"), _unsigned,
        lambda content: jwt.encode(content, KEY, algorithm="HS256"),
        lambda content: jwt.encode(content, OTHER, algorithm="HS512"),
        lambda content: jwt.encode(content, KEY, algorithm="HS512")[:-2], lambda content: "", lambda content: "a.b.c",
        lambda content: jwt.encode({**content, "more": "x" * 4096}, KEY, algorithm="HS512"),
    ],
)  # fmt: skip
def test_a_session_that_is_not_as_it_was_signed_is_refused(
    sessions: Sessions, change: Callable[[dict[str, object]], str]
) -> None:
    token, _ = sessions.open(ANN)
    content = jwt.decode(token, KEY, algorithms=["HS512"], audience="penstock-controller",
                         options={"verify_exp": False, "verify_iat": False})  # fmt: skip
    sessions.accept(jwt.encode(content, KEY, algorithm="HS512"), ACCOUNTS)
    with pytest.raises(AuthenticationError):
        sessions.accept(change(content), ACCOUNTS)

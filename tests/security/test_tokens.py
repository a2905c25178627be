"""Delegation tokens: what is signed, accepted and refused, and which segments a claim covers."""

from __future__ import annotations

import json

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError, TokenExpiredError, TokenRefusedError
from penstock.model.permissions import Permission, stream_resource
from penstock.security.tokens import LEEWAY_S, Claim, TokenKeys, TokenSigner, TokenVerifier

KEY, OTHER = b"k" * 64, b"o" * 64
ORDERS = stream_resource("shop", "orders")
SEGMENT = "shop/orders/0.#epoch.0"


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def signer(clock: Clock, *keys: bytes) -> TokenSigner:
    return TokenSigner(TokenKeys(keys or (KEY,)), 600, clock)


def verifier(clock: Clock, *keys: bytes) -> TokenVerifier:
    return TokenVerifier(TokenKeys(keys or (KEY,)), clock)


def test_a_token_grants_its_claims(clock: Clock) -> None:
    grant = verifier(clock).verify(signer(clock).sign({ORDERS: Permission.READ}))
    assert grant.permission(SEGMENT) is Permission.READ
    assert grant.permission("shop/clicks/0.#epoch.0") is Permission.NONE
    assert grant.expires_s == clock.now_s + 600
    assert not grant.is_master()


def test_a_token_of_a_server_covers_every_segment(clock: Clock) -> None:
    grant = verifier(clock).verify(signer(clock).master())
    assert grant.is_master()
    assert grant.permission(SEGMENT) is Permission.READ_UPDATE


@pytest.mark.parametrize(
    ("claim", "segment", "covers"),
    [
        ("prn::/scope:shop/stream:orders", SEGMENT, True),
        ("prn::/scope:shop/stream:orders", SEGMENT + "#transaction.0123", True),
        ("prn::/scope:shop/stream:orders", "shop/orders2/0.#epoch.0", False),
        ("prn::/scope:shop/stream:order", SEGMENT, False),
        ("prn::/scope:shop/stream:orders", "shop/orders_kvtable/0.#epoch.0", False),
        ("prn::/scope:shop/stream:orders", "shop/_RGorders/0.#epoch.0", False),
        ("prn::/scope:shop/", SEGMENT, True),
        ("prn::/scope:shop", SEGMENT, True),
        ("prn::/scope:sho", SEGMENT, False),
        ("shop/orders", SEGMENT, True),
        ("*", SEGMENT, True),
        ("", SEGMENT, False),
        ("prn::/", SEGMENT, False),
        ("penstock:statistics", "penstock:statistics", False),
    ],
)
def test_a_claim_covers_the_segments_of_its_stream_alone(claim: str, segment: str, covers: bool) -> None:
    assert Claim(claim, Permission.READ).covers(segment) is covers


def test_a_token_expires_after_the_leeway(clock: Clock) -> None:
    accepting, token = verifier(clock), signer(clock).sign({ORDERS: Permission.READ})
    clock.now_s += 600 + LEEWAY_S - 1
    accepting.verify(token)
    clock.now_s += 1
    with pytest.raises(TokenExpiredError):
        accepting.verify(token)


def encode(changes: dict[str, object], *, key: bytes = KEY, algorithm: str = "HS512") -> str:
    content: dict[str, object] = {
        "sub": "segmentstoreresource", "aud": "segmentstore", "exp": 2_000_000, ORDERS: "READ_UPDATE",
    }  # fmt: skip
    content.update(changes)
    return jwt.encode({name: value for name, value in content.items() if value is not None}, key, algorithm=algorithm)


@pytest.mark.parametrize(
    "token",
    [
        "", "x", "a.b.c", "." * 10, "x" * 5000,
        encode({}, key=OTHER),
        encode({}, algorithm="HS256"),
        encode({"aud": None}), encode({"aud": "penstock-controller"}), encode({"sub": "else"}), encode({"sub": None}),
        encode({"exp": "soon"}), encode({"nbf": 1_500_000}),
        encode({f"claim{number}": "READ" for number in range(9)}),
        jwt.encode({"sub": "segmentstoreresource", "aud": "segmentstore", "*": "READ_UPDATE"}, None, algorithm="none"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_other_tokens_are_refused(clock: Clock, token: str) -> None:
    accepting = verifier(clock)
    for _ in range(2):  # The second answer comes from memory.
        with pytest.raises(TokenRefusedError) as refused:
            accepting.verify(token)
        assert not isinstance(refused.value, TokenExpiredError)


def test_a_permission_of_another_name_grants_nothing(clock: Clock) -> None:
    grant = verifier(clock).verify(encode({ORDERS: "WRITE", "prn::/scope:a/stream:b": 7}))
    assert grant.permission(SEGMENT) is Permission.NONE


def test_keys_are_rotated_without_a_moment_in_which_a_token_is_refused(clock: Clock) -> None:
    accepting = verifier(clock, KEY)
    old = signer(clock, KEY).sign({ORDERS: Permission.READ})
    accepting.replace_keys(TokenKeys((KEY, OTHER)))  # First every store verifies with the new key, too.
    accepting.verify(old)
    new = signer(clock, OTHER, KEY).sign({ORDERS: Permission.READ})
    accepting.verify(new)
    accepting.replace_keys(TokenKeys((OTHER,)))
    accepting.verify(new)
    with pytest.raises(TokenRefusedError):
        accepting.verify(old)


@pytest.mark.parametrize("keys", [(), (b"",), (KEY, b"")])
def test_keys_must_not_be_empty(keys: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        TokenKeys(keys)


def test_keys_are_not_in_their_representation() -> None:
    assert "kkk" not in repr(TokenKeys((KEY,)))


@given(st.from_regex(r"[A-Za-z0-9.\-]{1,30}", fullmatch=True), st.from_regex(r"[A-Za-z0-9.\-]{1,30}", fullmatch=True))
def test_tokens_have_only_characters_of_the_standard_base64_alphabet(scope: str, stream: str) -> None:
    # Pravega's Rust client decodes the payload with that alphabet.
    token = signer(Clock()).sign({stream_resource(scope, stream): Permission.READ_UPDATE})
    payload = token.split(".")[1]
    assert not set(payload) & set("-_")
    assert json.loads(jwt.utils.base64url_decode(payload))["aud"] == "segmentstore"

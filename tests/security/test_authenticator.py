"""Basic credentials: what is accepted, remembered, slowed down and refused."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.controller.grpc.server import peer_address
from penstock.model.errors import AuthenticationBusyError, AuthenticationError
from penstock.runtime.client_security import Credentials
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.security import passwords
from penstock.security.accounts import Account, Accounts
from penstock.security.authenticator import AuthenticationSettings, Authenticator
from penstock.security.passwords import hash_password

SALT = bytes(32)


def basic_header(user: str, password: str) -> str:
    return Credentials(user, password).header()


ANN = Account("ann", hash_password("secret", SALT, 10))
TOOL = Account("tool", None)
ACCOUNTS = Accounts({"ann": ANN, "tool": TOOL})


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    running = real_runtime()
    yield running
    await running.work.close()


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iterations of every hash that is computed."""
    found: list[int] = []
    derive = passwords._derive

    def count(password: str, salt: bytes, iterations: int, length: int) -> bytes:
        found.append(iterations)
        return derive(password, salt, min(iterations, 10), length)

    monkeypatch.setattr(passwords, "_derive", count)
    return found


Make = Callable[..., Authenticator]


@pytest.fixture
def make(runtime: Runtime, hashes: list[int]) -> Make:
    def authenticator(**changes: float) -> Authenticator:
        made = Authenticator(ACCOUNTS, runtime.work, bytes, AuthenticationSettings(**changes))  # type: ignore[arg-type]
        return made

    return authenticator


async def test_a_right_password_is_hashed_once(make: Make, hashes: list[int]) -> None:
    authenticator = make()
    header = basic_header("ann", "secret")
    for _ in range(3):
        assert await authenticator.account_of(header, "peer") is ANN
    assert hashes == [10]


async def test_concurrent_calls_share_one_hash(make: Make, hashes: list[int]) -> None:
    authenticator = make()
    header = basic_header("ann", "secret")
    found = await asyncio.gather(*(authenticator.account_of(header, "peer") for _ in range(50)))
    assert set(map(id, found)) == {id(ANN)}
    assert hashes == [10]


async def test_a_wrong_password_is_refused_and_hashed_once(make: Make, hashes: list[int]) -> None:
    authenticator = make()
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            await authenticator.account_of(basic_header("ann", "wrong"), "peer")
    assert hashes == [10]


@pytest.mark.parametrize("user", ["stranger", "tool"])
async def test_an_unknown_account_costs_as_much_as_a_known_one(make: Make, hashes: list[int], user: str) -> None:
    """Also where a file of Pravega has accounts with fewer iterations."""
    authenticator = make()
    with pytest.raises(AuthenticationError):
        await authenticator.account_of(basic_header(user, ""), "peer")
    assert hashes == [10]
    authenticator.replace_accounts(Accounts({"tool": TOOL}))
    with pytest.raises(AuthenticationError):
        await authenticator.account_of(basic_header(user, "again"), "peer")
    assert hashes[1:] == [passwords.ITERATIONS]


async def test_unknown_names_cost_as_accounts_of_both_kinds_and_each_always_the_same(
    make: Make, hashes: list[int]
) -> None:
    authenticator = make(failures_max=1000)
    new = Account("new", hash_password("secret", SALT, 20))
    hashes.clear()
    authenticator.replace_accounts(Accounts({"ann": ANN, "new": new}))
    for password in ("a", "b"):
        for number in range(20):
            with pytest.raises(AuthenticationError):
                await authenticator.account_of(basic_header(f"stranger{number}", password), "peer")
    assert set(hashes[:20]) == {10, 20}
    assert hashes[:20] == hashes[20:]


@pytest.mark.parametrize("header", [None, "", "Basic", "Bearer x", "basic x", "x"])
async def test_a_header_of_another_method_is_no_principal(make: Make, header: str | None) -> None:
    assert await make().account_of(header, "peer") is None


@pytest.mark.parametrize(
    "header",
    [
        "Basic %%%",
        "Basic " + base64.b64encode(b"nocolon").decode(),
        "Basic " + base64.b64encode(b"a\0:b").decode(),
        "Basic " + base64.b64encode(b"\xff:\xfe").decode(),
        "Basic " + base64.b64encode(b"a:" + b"b" * 2000).decode(),
        "Basic " + "a" * 20_000,
    ],
)
async def test_malformed_credentials_are_refused_without_a_hash(make: Make, hashes: list[int], header: str) -> None:
    with pytest.raises(AuthenticationError):
        await make().account_of(header, "peer")
    assert hashes == []


async def test_changed_accounts_count_at_once(make: Make) -> None:
    authenticator = make()
    header = basic_header("ann", "secret")
    assert await authenticator.account_of(header, "peer") is ANN
    authenticator.replace_accounts(Accounts({"ann": Account("ann", hash_password("new", SALT, 10))}))
    with pytest.raises(AuthenticationError):
        await authenticator.account_of(header, "peer")
    assert await authenticator.account_of(basic_header("ann", "new"), "peer") is not None


async def test_a_call_after_a_change_of_accounts_shares_no_verification_from_before_it(
    make: Make, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password is being verified when its account is removed."""
    authenticator = make()
    header = basic_header("ann", "secret")
    begun, may_end = asyncio.Event(), threading.Event()
    loop, verify = asyncio.get_running_loop(), passwords.PasswordHash.verify

    def slow(known: passwords.PasswordHash, password: str) -> bool:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(60)
        return verify(known, password)

    monkeypatch.setattr(passwords.PasswordHash, "verify", slow)
    earlier = asyncio.create_task(authenticator.account_of(header, "peer"))
    await begun.wait()
    authenticator.replace_accounts(Accounts({"tool": TOOL}))
    later = asyncio.create_task(authenticator.account_of(header, "peer"))
    await asyncio.sleep(0)
    may_end.set()
    assert await earlier is ANN
    with pytest.raises(AuthenticationError):
        await later
    assert not authenticator._verifying


async def test_a_peer_that_fails_often_is_refused_and_others_are_not(make: Make) -> None:
    authenticator = make(failures_max=3, failures_per_s=0.01, failure_wait_s_max=0.0)
    for number in range(3):
        with pytest.raises(AuthenticationError, match="wrong password"):
            await authenticator.account_of(basic_header("ann", f"{number}"), "guesser")
    with pytest.raises(AuthenticationBusyError):
        await authenticator.account_of(basic_header("ann", "4"), "guesser")
    # No account is locked, and the same peer may log in with the right password.
    assert await authenticator.account_of(basic_header("ann", "secret"), "guesser") is ANN
    with pytest.raises(AuthenticationError, match="wrong password"):
        await authenticator.account_of(basic_header("ann", "1"), "other")


async def test_remembered_passwords_are_bounded(make: Make) -> None:
    authenticator = make(remembered_max=5, peers_max=5)
    for number in range(20):
        with pytest.raises(AuthenticationError):
            await authenticator.account_of(basic_header("ann", f"{number}"), f"peer{number}")
    assert len(authenticator._negative) == len(authenticator._failures) == 5
    assert not authenticator._verifying


def test_connections_of_one_address_are_one_peer() -> None:
    assert peer_address("ipv4:10.0.0.7:40112") == peer_address("ipv4:10.0.0.7:40113") == "ipv4:10.0.0.7"
    assert peer_address("ipv6:%5B::1%5D:40112") == "ipv6:%5B::1%5D"

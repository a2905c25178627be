"""Every request of the wire protocol with every kind of token, and connections whose writers' tokens expire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest

from penstock.model.permissions import Permission, stream_resource
from penstock.security.tokens import STATISTICS_CLAIM, TokenGrant, TokenKeys, TokenSigner, TokenVerifier
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.token_access import CHECK_FAILED, EXPIRED, RULES, TokenAccess
from penstock.segmentstore.writer_tokens import WITHOUT_TOKEN
from penstock.wire import commands as wire
from penstock.wire.commands import (
    AppendSetup,
    AuthTokenCheckFailed,
    DataAppended,
    GetStreamSegmentInfo,
    NoSuchSegment,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    WireCommand,
)
from penstock.wire.commands.base import Request
from support.raw_wire import RawWire, block
from support.wire_service import A, W, WireService

NOW_S = 1_000_000
KEYS = TokenKeys((b"k" * 64,))
STREAM = stream_resource("s", "t")


def token(claims: dict[str, Permission], *, ttl_s: int = 600, keys: TokenKeys = KEYS) -> str:
    return TokenSigner(keys, ttl_s, lambda: NOW_S).sign(claims)


READ = token({STREAM: Permission.READ})
UPDATE = token({STREAM: Permission.READ_UPDATE})
SERVER = token({"*": Permission.READ_UPDATE})
#: Tokens that permit nothing on the segment, by kind, with the code of the refusal.
REFUSED = {
    "none": ("", CHECK_FAILED),
    "malformed": ("a.b.c", CHECK_FAILED),
    "other key": (token({STREAM: Permission.READ_UPDATE}, keys=TokenKeys((b"o" * 64,))), CHECK_FAILED),
    "expired": (token({STREAM: Permission.READ_UPDATE}, ttl_s=-3600), EXPIRED),
    "name that begins alike": (token({stream_resource("s", "t2"): Permission.READ_UPDATE}), CHECK_FAILED),
    "prefix of the name": (token({stream_resource("s", ""): Permission.NONE}), CHECK_FAILED),
    "read only server": (token({"*": Permission.NONE}), CHECK_FAILED),
}


def access() -> TokenAccess:
    return TokenAccess(TokenVerifier(KEYS, lambda: NOW_S), lambda: NOW_S)


def command_of(kind: type[WireCommand], with_token: str) -> WireCommand:
    """Return a command of a kind with this token, about the segment `A` or one of its transactions."""
    command = object.__new__(kind)
    for field in fields(kind):
        value: Any = None
        if field.name == "token":
            value = with_token
        elif field.name in ("segment", "parent_segment", "target"):
            value = A
        elif field.name == "source":
            value = A + "#transaction.1"
        elif field.name == "sources":
            value = [A + "#transaction.1"]
        elif field.name == "request_id":
            value = 7
        object.__setattr__(command, field.name, value)
    return command


def requests() -> list[type[WireCommand]]:
    """Return every request of the protocol that has a token."""
    return [
        kind
        for kind in vars(wire).values()
        if isinstance(kind, type) and issubclass(kind, Request) and kind not in (*WITHOUT_TOKEN, Request)
    ]


def test_every_request_has_a_rule_or_is_refused() -> None:
    without = {kind.__name__ for kind in requests() if kind not in RULES}
    # The server supports none of these, and refuses them for all but servers.
    assert without <= {"MergeTableSegments", "SealTableSegment"}


@pytest.mark.parametrize("kind", requests(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("refused", REFUSED)
def test_a_request_without_a_valid_token_is_refused(kind: type[WireCommand], refused: str) -> None:
    text, code = REFUSED[refused]
    assert access().check(command_of(kind, text)) == AuthTokenCheckFailed(7, "", code)


@pytest.mark.parametrize("kind", [kind for kind in requests() if kind in RULES], ids=lambda kind: kind.__name__)
def test_a_token_permits_what_its_permission_covers(kind: type[WireCommand]) -> None:
    rule, checker = RULES[kind], access()
    is_about_segments = rule.segments is not None
    assert (checker.check(command_of(kind, READ)) is None) is (is_about_segments and rule.permission is Permission.READ)
    assert (checker.check(command_of(kind, UPDATE)) is None) is is_about_segments
    assert checker.check(command_of(kind, SERVER)) is None
    statistics = token({STATISTICS_CLAIM: Permission.READ})
    assert (checker.check(command_of(kind, statistics)) is None) is rule.is_statistics


@pytest.mark.parametrize("kind", [kind for kind in requests() if kind in RULES], ids=lambda kind: kind.__name__)
def test_only_servers_change_watermarks(kind: type[WireCommand]) -> None:
    rule = RULES[kind]
    everything = token({stream_resource("s", "_MARKt"): Permission.READ_UPDATE, STREAM: Permission.READ_UPDATE})
    command = command_of(kind, everything)
    for name in ("segment", "parent_segment", "target"):
        if hasattr(command, name):
            object.__setattr__(command, name, "s/_MARKt/0.#epoch.0")
    is_read = rule.segments is not None and rule.permission is Permission.READ
    assert (access().check(command) is None) is is_read


def test_a_merge_needs_a_claim_on_both_segments() -> None:
    other = wire.MergeSegments(7, A, "s/other/0.#epoch.0", UPDATE, [])
    assert access().check(other) == AuthTokenCheckFailed(7, "", CHECK_FAILED)


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    running = WireService()
    running.server = SegmentStoreServer(running.store, access=access())
    await running.start()
    yield running
    await running.stop()


async def test_names_that_exist_and_names_that_do_not_are_refused_alike(service: WireService) -> None:
    connection = await service.connect()
    refusals = [
        await connection.ask(GetStreamSegmentInfo(7, name, READ if name == "s2/x/0" else ""), AuthTokenCheckFailed)
        for name in (A, "s/none/0.#epoch.0", "s2/x/0")
    ]
    assert set(refusals) == {AuthTokenCheckFailed(7, "", CHECK_FAILED)}
    # With a token, the answers differ.
    await connection.ask(GetStreamSegmentInfo(8, A, READ), StreamSegmentInfo)
    await connection.ask(GetStreamSegmentInfo(9, "s/t/7.#epoch.0", READ), NoSuchSegment)


async def test_appends_are_covered_by_the_token_of_the_set_up(service: WireService) -> None:
    connection = await service.connect()
    await connection.ask(SetupAppend(1, W, A, READ), AuthTokenCheckFailed)
    await connection.ask(SetupAppend(2, W, A, UPDATE), AppendSetup)
    connection.send(wire.ConditionalBlockEnd(W, 1, 0, b"event", 3))
    await connection.expect(DataAppended)
    reply = await connection.ask(ReadSegment(A, 0, 100, READ, 4), SegmentRead)
    assert b"event" in bytes(reply.data)  # type: ignore[arg-type]


async def test_appends_cost_no_verification_of_a_token(service: WireService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the set-up does, whether appends come one by one or many in one read of the socket."""
    verified: list[str] = []
    original = TokenVerifier.verify

    def verify(verifier: TokenVerifier, text: str) -> TokenGrant:
        verified.append(text)
        return original(verifier, text)

    monkeypatch.setattr(TokenVerifier, "verify", verify)
    connection = await service.connect()
    await connection.ask(SetupAppend(1, W, A, UPDATE), AppendSetup)
    at_set_up = len(verified)
    assert at_set_up
    for number in range(1, 6):
        await connection.ask(block(W, number, b"12345678"), DataAppended)
    connection.send(*(block(W, number, b"12345678") for number in range(6, 60)))
    while (await connection.expect(DataAppended)).event_number < 59:
        pass
    assert len(verified) == at_set_up
    await connection.close()


async def test_an_append_without_a_set_up_ends_the_connection(service: WireService) -> None:
    connection = await service.connect()
    connection.send(wire.ConditionalBlockEnd(W, 1, 0, b"event", 3))
    assert await connection.receive() is None
    assert service.store.find(A)[1].length == 0


class LoopClock:
    """A wall clock that runs with the loop's clock, from `NOW_S` on."""

    def __init__(self, service: WireService) -> None:
        self._loop = service.server.loop
        self._began_s = self._loop.time()

    def __call__(self) -> float:
        return NOW_S + self._loop.time() - self._began_s


async def open_with_short_token(service: WireService, monkeypatch: pytest.MonkeyPatch) -> tuple[RawWire, str]:
    """Connect to a server with no leeway whose clock runs; return also a token that expires after half a second."""
    monkeypatch.setattr("penstock.security.tokens.LEEWAY_S", 0)
    monkeypatch.setattr("penstock.segmentstore.token_access.LEEWAY_S", 0)
    clock = LoopClock(service)
    service.server.access = TokenAccess(TokenVerifier(KEYS, clock), clock)
    short = TokenSigner(KEYS, 1, lambda: NOW_S).sign({STREAM: Permission.READ_UPDATE})
    return await service.connect(), short


async def test_a_connection_ends_when_the_token_of_a_writer_expires(
    service: WireService, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, short = await open_with_short_token(service, monkeypatch)
    await connection.ask(SetupAppend(1, W, A, short), AppendSetup)
    assert await connection.receive() is None


async def test_a_writer_that_is_set_up_again_with_a_later_token_continues(
    service: WireService, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, short = await open_with_short_token(service, monkeypatch)
    await connection.ask(SetupAppend(1, W, A, short), AppendSetup)
    await connection.ask(SetupAppend(2, W, A, UPDATE), AppendSetup)
    # After the first token has expired: a read with it is refused, and the connection serves on.
    while not isinstance(reply := await _info(connection, short), AuthTokenCheckFailed):
        assert isinstance(reply, StreamSegmentInfo)
    assert reply.error_code == EXPIRED
    await connection.ask(GetStreamSegmentInfo(8, A, UPDATE), StreamSegmentInfo)


async def _info(connection: RawWire, with_token: str) -> WireCommand | None:
    connection.send(GetStreamSegmentInfo(3, A, with_token))
    return await connection.receive()

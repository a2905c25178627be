"""Connections that have shown no accepted token yet: their frames are short, they append nothing, and they end soon."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from penstock.model.permissions import Permission
from penstock.security.tokens import TokenKeys, TokenSigner, TokenVerifier
from penstock.segmentstore import connection_access
from penstock.segmentstore.connection_access import FRAME_LENGTH_UNPROVEN, UnprovenConnections
from penstock.segmentstore.token_access import TokenAccess
from penstock.wire import commands as wire
from penstock.wire.codec import HEADER_LENGTH, encode
from penstock.wire.commands import (
    AuthTokenCheckFailed,
    GetStreamSegmentInfo,
    StreamSegmentInfo,
    TableKeyValue,
    UpdateTableEntries,
)
from support.raw_wire import RawWire
from support.wire_service import A, W, WireService

NOW_S = 1_000_000
KEYS = TokenKeys((b"k" * 64,))
TOKEN = TokenSigner(KEYS, 600, lambda: NOW_S).sign({"prn::/scope:s/stream:t": Permission.READ_UPDATE})


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    running = WireService()
    running.server.access = TokenAccess(TokenVerifier(KEYS, lambda: NOW_S), lambda: NOW_S)
    await running.start()
    yield running
    await running.stop()


async def prove(connection: RawWire) -> None:
    await connection.ask(GetStreamSegmentInfo(1, A, TOKEN), StreamSegmentInfo)


def table_update(length: int) -> wire.WireCommand:
    """Return a request whose frame has this length."""
    empty = UpdateTableEntries(2, A, TOKEN, [TableKeyValue(b"k", -1, b"")], -1)
    value = b"x" * (length - len(encode(empty)))
    return UpdateTableEntries(2, A, TOKEN, [TableKeyValue(b"k", -1, value)], -1)


async def test_frames_are_short_until_a_token_was_accepted(service: WireService) -> None:
    connection = await service.connect()
    connection.send(table_update(FRAME_LENGTH_UNPROVEN + 1))
    assert await connection.receive() is None
    connection = await service.connect()
    # The longest one is answered: its segment is no table.
    connection.send(table_update(FRAME_LENGTH_UNPROVEN))
    assert await connection.receive() is not None
    connection.send(table_update(20 * FRAME_LENGTH_UNPROVEN))
    assert await connection.receive() is not None


async def test_a_refused_token_proves_nothing(service: WireService) -> None:
    connection = await service.connect()
    await connection.ask(GetStreamSegmentInfo(1, A, TOKEN + "x"), AuthTokenCheckFailed)
    await connection.ask(wire.KeepAlive(), wire.KeepAlive)
    assert len(service.server.unproven) == 1
    connection.writer.write(struct.pack(">ii", wire.SealSegment.TYPE, FRAME_LENGTH_UNPROVEN - HEADER_LENGTH + 1))
    assert await connection.receive() is None


@pytest.mark.parametrize(
    "append",
    [
        wire.AppendBlock(W, b""), wire.AppendBlockEnd(W, 0, b"", 1, 1, 0), wire.ConditionalAppend(W, 1, 0, b"e", 3),
        wire.ConditionalBlockEnd(W, 1, 0, b"event", 3),
    ],
    ids=lambda command: type(command).__name__,
)  # fmt: skip
async def test_appends_before_a_token_end_the_connection(service: WireService, append: wire.WireCommand) -> None:
    connection = await service.connect()
    connection.send(append)
    assert await connection.receive() is None
    assert service.store.find(A)[1].length == 0


async def test_a_connection_without_a_token_ends_after_a_while(
    service: WireService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a token stays, also if the other has been closed."""
    monkeypatch.setattr(connection_access, "UNPROVEN_S", 1.0)
    proven = await service.connect()
    await prove(proven)
    strangers = [await service.connect() for _ in range(3)]
    for stranger in strangers:
        await stranger.ask(wire.KeepAlive(), wire.KeepAlive)
    for stranger in strangers:
        assert await stranger.receive() is None
    await prove(proven)
    assert len(service.server.unproven) == 0


async def test_the_oldest_connection_without_a_token_is_closed_for_another(service: WireService) -> None:
    service.server.unproven = UnprovenConnections(4 * 3)
    proven = [await service.connect() for _ in range(3)]
    for connection in proven:
        await prove(connection)
    strangers = [await service.connect() for _ in range(5)]
    for stranger in strangers[:2]:
        assert await stranger.receive() is None
    for connection in (*proven, *strangers[2:]):
        await prove(connection)
    assert service.server.unproven.pushed_out_count == 2
    assert len(service.server.unproven) == 0


async def test_lost_connections_are_forgotten(service: WireService) -> None:
    for _ in range(3):
        connection = await service.connect()
        await connection.close()
    async with asyncio.timeout(30):
        while len(service.server.unproven):  # noqa: ASYNC110  # a lost connection is noticed by the loop
            await asyncio.sleep(0.01)

"""`send_parts`: a peer that takes nothing pauses the protocol, on every Python; what arrives is whole and in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from penstock.model.segments import Buffer
from penstock.wire.connection import pauses_in_writelines, send_parts

BOUND = 100_000


class Sender(asyncio.Protocol):
    """Notes whether it is paused."""

    is_paused = False
    resume_count = 0

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.resume_count += 1


@pytest.mark.parametrize(
    "parts",
    [(b"a" * 10_000,), (b"a" * 9_000, bytearray(b"b" * 1_000)), (b"a" * 10_000, b"", memoryview(b""))],
    ids=["one", "two", "last ones empty"],
)
async def test_a_peer_that_takes_nothing_pauses_the_protocol(parts: Sequence[Buffer]) -> None:
    """Then it takes all: the protocol continues, and the bytes are those that were sent."""
    mine, other = socket.socketpair()
    other.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, sender = await loop.create_connection(Sender, sock=mine)
    assert isinstance(transport, asyncio.Transport)
    transport.set_write_buffer_limits(high=BOUND)
    sent = 0
    while not sender.is_paused:
        send_parts(transport, parts)
        sent += 1
        assert transport.get_write_buffer_size() <= BOUND + 10_000, "the protocol is not paused"
    received = bytearray()
    while len(received) < sent * 10_000:
        received += await loop.sock_recv(other, 1 << 20)
    assert bytes(received) == b"".join(parts) * sent
    await asyncio.sleep(0)
    assert sender.resume_count == 1
    transport.abort()
    other.close()


async def test_parts_after_the_end_of_a_connection_are_dropped() -> None:
    """`writelines` of Python 3.12 raises `AttributeError` then."""
    mine, other = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(Sender, sock=mine)
    transport.abort()
    await asyncio.sleep(0.01)
    send_parts(transport, [b"lost", b"as well"])
    assert transport.get_write_buffer_size() == 0
    other.close()


@pytest.mark.parametrize(
    ("version", "does"),
    [
        *(((3, 12, patch), patch > 8) for patch in (0, 1, 8, 9, 12)),
        *(((3, 13, patch), patch > 1) for patch in (0, 1, 2, 11)),
        ((3, 11, 2), True),
        ((3, 14, 0), True),
    ],
)
def test_versions_whose_transports_pause_in_writelines(version: tuple[int, ...], does: bool) -> None:
    assert pauses_in_writelines(version) is does

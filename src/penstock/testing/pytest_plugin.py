"""Fixtures for pytest: an in-memory server, a client of it, and a new stream. Available once Penstock is installed.

::

    def test_orders_are_audited(penstock_client, penstock_stream):
        with penstock_client.event_writer(penstock_stream) as writer:
            writer.write(b"order", routing_key="customer-42")
        assert audit(penstock_client, penstock_stream) == 1
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock import Client
    from penstock.testing.server import MemoryServer

_SCOPE = "penstock-tests"
#: The server is used by this session only, so a number is a unique name.
_numbers = count()


@pytest.fixture(scope="session")
def penstock_server() -> Iterator[MemoryServer]:
    """One server in memory for the whole session; `penstock_server.uri` is its address."""
    from penstock.testing.server import memory_server

    with memory_server() as server:
        yield server


@pytest.fixture
def penstock_client(penstock_server: MemoryServer) -> Iterator[Client]:
    """A blocking client for one test; closed after it, which flushes what the test left open."""
    with penstock_server.connect() as client:
        yield client


@pytest.fixture
def penstock_stream(penstock_client: Client) -> str:
    """The name of a new stream of one segment for this test only, as ``scope/stream``."""
    stream = f"{_SCOPE}/stream-{next(_numbers)}"
    penstock_client.create_stream(stream)
    return stream

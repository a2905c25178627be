"""Reader groups of the PyPI client, as Penstock reports them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import penstock
from support.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    import pravega_client
else:
    pravega_client = pytest.importorskip("pravega_client", reason="PyPI pravega exists for Python 3.11 and older only")

pytestmark = [pytest.mark.interop, pytest.mark.e2e]


async def test_groups_of_this_client_are_in_one_listing_with_others(server: StandaloneProcess) -> None:
    """Controllers do not know these groups; their tables are found at the segment stores, also after a restart."""
    manager = pravega_client.StreamManager(server.uri)
    assert manager.create_scope("shop")
    assert manager.create_stream("shop", "orders", 1)
    group = manager.create_reader_group("audit", "shop", "orders")
    group.create_reader("reader")
    async with penstock.aio.connect(server.uri) as client:
        await client.reader_group("audit", ["shop/orders"])
        expected = [("shop/audit", "penstock"), ("shop/audit", "rust")]
        assert [(one.name, one.made_by) async for one in client.group_overviews("shop")] == expected
        await asyncio.to_thread(server.restart)
        assert [(one.name, one.made_by) async for one in client.group_overviews("shop")] == expected
        await client.delete_reader_group("shop/audit")
        assert [(one.name, one.made_by) async for one in client.group_overviews("shop")] == expected[1:]
    manager.delete_reader_group("audit", "shop")
    with penstock.connect(server.uri) as blocking:
        assert list(blocking.group_overviews("shop")) == []

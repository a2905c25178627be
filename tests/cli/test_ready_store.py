"""``penstock ready --store``: a store is ready when it serves all of its containers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.cli.errors import NotReadyError
from penstock.cli.probe import probe_store
from penstock.segmentstore.server import SegmentStoreServer
from support.small_store import running, settings_of

WAIT_S = 60.0


async def test_a_store_is_not_ready_while_it_opens_a_container(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path)) as store:
        server = SegmentStoreServer(store)
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.last_port}"
        await probe_store(address, WAIT_S)

        may_open, is_asked = asyncio.Event(), asyncio.Event()

        async def before_open(container_id: int) -> None:
            is_asked.set()
            await may_open.wait()

        store.monitor.before_open = before_open
        store.set_assignment([0])
        while list(store.held) != [0]:  # noqa: ASYNC110  # no event tells that
            await asyncio.sleep(0.01)
        await probe_store(address, WAIT_S)
        store.set_assignment([0, 1])
        await is_asked.wait()
        assert store.starting == [1]
        with pytest.raises(NotReadyError, match="still opens containers 1"):
            await probe_store(address, 3.0)
        may_open.set()
        await probe_store(address, WAIT_S)
        assert store.starting == []
        await server.stop()

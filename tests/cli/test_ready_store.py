"""``penstock ready``: a store is ready when it serves all of its containers, whatever long-term storage does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.cli import probe as probes
from penstock.cli.errors import NotReadyError
from penstock.cli.probe import probe, probe_store
from penstock.model.routing import container_of
from penstock.runtime.client_security import ClientSecurity, Credentials
from penstock.segmentstore.server import SegmentStoreServer
from penstock.wire.statistics import StoreReport
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


class FakeController:
    """Says where segments are: by container, `addresses` in turns."""

    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        self._addresses = addresses

    def connect(self, *arguments: object) -> FakeController:
        return self

    async def scope_exists(self, scope: str) -> bool:
        return False

    async def delegation_token(self, *arguments: object) -> str:
        return "token"

    async def endpoint_of(self, segment: str) -> tuple[str, int]:
        return self._addresses[container_of(segment, 2) % len(self._addresses)]

    async def close(self) -> None:
        """Nothing to close."""


async def test_a_store_is_ready_although_requests_for_segments_wait_for_long_term_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report says that it runs every container; and that it does not run one that the controller places there."""
    async with running(settings_of(tmp_path)) as store:
        server = SegmentStoreServer(store)
        await server.start("127.0.0.1", 0)
        monkeypatch.setattr(probes, "ControllerClient", FakeController([("127.0.0.1", server.last_port)]))

        async def wait(segment: str) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(store, "segment_info", wait)
        assert (await probe("tcp://controller:9090", WAIT_S)).segment_store == f"127.0.0.1:{server.last_port}"
        store.set_assignment([0])
        while list(store.held) != [0]:  # noqa: ASYNC110  # no event tells that
            await asyncio.sleep(0.01)
        with pytest.raises(NotReadyError, match=r"container 1: a container of segment store .* is not running"):
            await probe("tcp://controller:9090", 3.0)
        await server.stop()


@pytest.mark.parametrize("credentials", [None, Credentials("reader", "secret")], ids=["open", "account"])
async def test_every_store_is_asked(monkeypatch: pytest.MonkeyPatch, credentials: Credentials | None) -> None:
    """With an account, too: each store reports of its own containers only."""
    asked: dict[int, set[int]] = {}

    async def ask(host: str, port: int, segments: list[str], *arguments: object) -> None:
        assert len(segments) == 1
        asked[port] = {container_of(segment, 2) for segment in segments}

    async def report(*arguments: object) -> StoreReport:
        return StoreReport(1, 2, 0, 0, 0, 0, None, {}, [])

    monkeypatch.setattr(probes, "ControllerClient", FakeController([("one", 1), ("two", 2)]))
    monkeypatch.setattr(probes, "client_security", lambda: ClientSecurity(credentials=credentials))
    monkeypatch.setattr(probes, "_ask_store", ask)
    monkeypatch.setattr(probes, "_report", report)
    assert (await probe("tcp://controller:9090", WAIT_S)).segment_store in ("one:1, two:2", "two:2, one:1")
    assert asked == {1: {0}, 2: {1}}

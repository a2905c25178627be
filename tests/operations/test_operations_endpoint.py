"""Health and metrics of whole servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import aio
from penstock.cli.server_checks import check_health
from penstock.model.errors import ContainerOfflineError, InvalidArgumentError, PenstockError
from penstock.operations import group_lag
from penstock.operations.settings import OperationsSettings
from penstock.runtime.client_security import ClientSecurity
from penstock.security.settings import SecuritySettings
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container_host import ContainerHost
from penstock.segmentstore.container_start import ContainerStart
from penstock.server.errors import PortInUseError
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.containers import until
from support.standalone_process import StandaloneProcess

SETTINGS = StandaloneSettings(
    is_memory=True,
    controller_port=0,
    segment_store_port=0,
    operations=OperationsSettings(is_enabled=True, port=0, streams_max=1),
)
#: Bound of waits for a condition, far above what it takes.
WAIT_S = 60


def get(port: int, path: str) -> tuple[int, str]:
    """Return status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
async def server() -> AsyncIterator[Standalone]:
    """A server in memory with the port for health and metrics."""
    async with Standalone(SETTINGS) as running:
        yield running


async def ask(server: Standalone, path: str) -> tuple[int, str]:
    """Send a request from a thread: the server runs on this loop."""
    assert server.operations is not None
    return await asyncio.to_thread(get, server.operations.port, path)


async def samples(server: Standalone) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the value of each series, by name and label values."""
    status, text = await ask(server, "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_appends_and_calls_are_counted(server: Standalone) -> None:
    async with aio.connect(server.controller_uri) as client:
        for stream, count in (("shop/orders", 30), ("shop/clicks", 5)):
            await client.create_stream(stream)
            async with client.event_writer(stream) as writer:
                for number in range(count):
                    await writer.write(b"%d" % number)
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await samples(server)
            if found.get(("penstock_stream_append_events_total", ("_other", "_other"))):
                break
            await asyncio.sleep(0.1)
    by_name = {name: value for (name, labels), value in found.items() if labels[:1] == ("shop",)}
    # One stream has series of its own here: the first one that a container has counted.
    assert by_name["penstock_stream_append_events_total"] in (30, 5)
    assert sum(value for (name, _), value in found.items() if name == "penstock_append_duration_seconds_count") > 0
    calls = found["penstock_rpc_requests_total", ("createStream", "OK")]
    assert calls >= 2
    assert found["penstock_rpc_duration_seconds_count", ("createStream",)] == calls
    assert found["penstock_container_state", ("0", "running")] == 1
    assert found["penstock_storage_up", ()] == 1


async def test_a_running_server_is_live_and_ready(server: Standalone) -> None:
    assert await ask(server, "/live") == (200, "live\n")
    assert await ask(server, "/ready") == (200, "ready\n")
    status, text = await ask(server, "/v1/health")
    tree = json.loads(text)
    assert (status, tree["status"], sorted(tree["children"])) == (200, "UP", ["controller", "stores"])
    assert await ask(server, "/v1/health/status") == (200, '"UP"\n')
    assert await ask(server, "/v1/health/readiness") == (200, "true\n")
    assert await ask(server, "/v1/health/liveness") == (200, "true\n")


async def test_an_offline_container_makes_the_server_not_ready(server: Standalone) -> None:
    assert server.store is not None
    failed = server.store.containers[1]
    server.store.failures[failed.id] = RuntimeError("planted")
    status, text = await ask(server, "/ready")
    assert (status, text) == (503, f"not ready\nstores/0/containers/{failed.id}: planted\n")
    assert (await samples(server))["penstock_container_state", (str(failed.id), "running")] == 1
    assert await ask(server, "/live") == (200, "live\n")


async def test_blocked_writes_make_the_server_not_ready(server: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.store is not None
    monkeypatch.setattr(type(server.store), "full_disk", property(lambda store: "17 bytes are free"))
    status, text = await ask(server, "/ready")
    assert (status, text) == (503, "not ready\nstores/0/space: 17 bytes are free\n")
    assert (await samples(server))["penstock_writes_blocked", ()] == 1


async def test_health_and_metrics_are_served_while_the_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = asyncio.Event()
    start_store = Standalone._start_store

    async def wait_first(self: Standalone) -> object:
        await may_go_on.wait()
        return await start_store(self)

    monkeypatch.setattr(Standalone, "_start_store", wait_first)
    server = Standalone(SETTINGS)
    start = asyncio.ensure_future(server.start())
    await until(lambda: server.operations is not None)
    assert (await ask(server, "/live"))[0] == 200
    status, text = await ask(server, "/ready")
    assert (status, text) == (503, "not ready\ncontroller: starting\nstores: starting\n")
    found = await samples(server)
    assert ("penstock_process_resident_memory_bytes", ()) in found
    assert found["penstock_ready", ()] == 0
    may_go_on.set()
    await start
    assert (await ask(server, "/ready"))[0] == 200
    assert (await samples(server))["penstock_ready", ()] == 1
    await server.stop()


async def test_a_container_that_starts_is_reported_during_the_start_of_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_start = asyncio.Event()
    start_container = ContainerHost._start_container

    async def wait_first(self: ContainerHost, container_id: int, steps: ContainerStart) -> SegmentContainer:
        if container_id == 2:
            await may_start.wait()
        return await start_container(self, container_id, steps)

    monkeypatch.setattr(ContainerHost, "_start_container", wait_first)
    server = Standalone(SETTINGS)
    start = asyncio.ensure_future(server.start())
    await until(lambda: server.store is not None and len(server.store.containers) == 3)

    def state(found: Mapping[tuple[str, tuple[str, ...]], float], container: int, name: str) -> float:
        return found["penstock_container_state", (str(container), name)]

    found = await samples(server)
    assert (state(found, 2, "starting"), state(found, 2, "running"), state(found, 1, "running")) == (1, 0, 1)
    assert ("penstock_connections", ()) not in found
    may_start.set()
    await start
    found = await samples(server)
    assert (state(found, 2, "starting"), state(found, 2, "running")) == (0, 1)
    assert ("penstock_connections", ()) in found
    await server.stop()


async def test_a_port_in_use_is_refused_with_the_name_of_the_option(server: Standalone) -> None:
    assert server.operations is not None
    taken = replace(SETTINGS.operations, port=server.operations.port)
    with pytest.raises(PortInUseError, match="--metrics-port"):
        await Standalone(replace(SETTINGS, operations=taken)).start()


@pytest.mark.parametrize("port", [9090, 6000, 70_000])
def test_ports_that_collide_are_refused(port: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"operations\.port"):
        StandaloneSettings(operations=OperationsSettings(is_enabled=True, port=port))


@pytest.mark.e2e
def test_a_killed_segment_store_is_named_until_it_runs_again(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path, "--metrics-port", "0", segment_stores=2) as process:
        port = cast(int, process.ready["metrics_port"])
        store = cast(list[dict[str, int]], process.ready["segment_stores"])[1]
        assert get(port, "/ready") == (200, "ready\n")
        os.kill(store["pid"], signal.SIGKILL)
        # It takes a second at least until a new process is ready: the first requests find it missing.
        found: set[str] = set()
        while "ready" not in found or len(found) == 1:
            found.update(get(port, "/ready")[1].splitlines())
        assert "stores/1: its process is not running; it is being restarted" in found
        assert get(port, "/live") == (200, "live\n")


@pytest.fixture
def lags(server: Standalone) -> group_lag.GroupLags:
    """What measures the lag of groups in a server."""
    assert server.group_lags is not None
    return server.group_lags


async def lag_of_audit(server: Standalone, lags: group_lag.GroupLags) -> dict[str, float]:
    """Measure, and return the metrics of group shop/audit by name."""
    lags.forget_listing()
    await lags.measure()
    prefix = "penstock_reader_group_"
    return {
        name.removeprefix(prefix): value
        for (name, labels), value in (await samples(server)).items()
        if name.startswith(prefix) and set(labels) == {"shop", "audit"}
    }


async def test_the_lag_of_reader_groups_is_reported_in_bytes_and_seconds(
    server: Standalone, lags: group_lag.GroupLags
) -> None:
    """It grows while nothing is read, and is 0 when everything is. A group that is made again is another one."""
    async with aio.connect(server.controller_uri) as client:
        await client.create_stream("shop/orders")
        async with client.event_writer("shop/orders") as writer:
            await writer.write(b"old")
        group = await client.reader_group("audit", ["shop/orders"], scope="shop")
        # Written before the first round: the lag in seconds is a lower bound.
        assert await lag_of_audit(server, lags) == {
            "lag_bytes": 11, "lag_seconds": 0, "lag_is_capped": 1, "readers": 0, "unassigned_segments": 1,
                "is_subscriber": 0,
        }  # fmt: skip
        async with group.reader("one") as reader:
            assert (await reader.read(timeout_s=WAIT_S)) is not None
            await reader.commit()
            assert await lag_of_audit(server, lags) == {
                "lag_bytes": 0, "lag_seconds": 0, "lag_is_capped": 0, "readers": 1, "unassigned_segments": 0,
                    "is_subscriber": 0,
            }  # fmt: skip
        async with client.event_writer("shop/orders") as writer:
            await writer.write(b"new")
        await lags.measure()
        await asyncio.sleep(0.1)
        found = await lag_of_audit(server, lags)
        assert (found["lag_bytes"], found["lag_is_capped"]) == (11, 0)
        assert found["lag_seconds"] >= 0.1
        await client.delete_reader_group("shop/audit")
        assert await lag_of_audit(server, lags) == {}
        await client.reader_group("audit", ["shop/orders"], scope="shop")
        assert (await lag_of_audit(server, lags))["lag_bytes"] == 22


async def test_a_lag_stays_while_it_cannot_be_measured(
    server: Standalone, lags: group_lag.GroupLags, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does it fall when a segment cannot be read, nor does the time that was measured begin again."""
    async with aio.connect(server.controller_uri) as client:
        await client.create_stream("shop/orders")
        await client.reader_group("audit", ["shop/orders"], scope="shop")
        await lag_of_audit(server, lags)
        async with client.event_writer("shop/orders") as writer:
            await writer.write(b"new")
        await lags.measure()
        await asyncio.sleep(0.1)
        known = await lag_of_audit(server, lags)
        assert (known["lag_bytes"], known["lag_is_capped"]) == (11, 0)

        async def no_lengths(names: Sequence[str]) -> list[PenstockError]:
            return [ContainerOfflineError(1, "planted") for _ in names]

        async def no_state(*arguments: object) -> None:
            raise ContainerOfflineError(1, "planted")

        with monkeypatch.context() as patch:
            patch.setattr(lags._segments, "segment_infos", no_lengths)
            assert await lag_of_audit(server, lags) == known
        with monkeypatch.context() as patch:
            patch.setattr(group_lag, "read_group", no_state)
            assert await lag_of_audit(server, lags) == known
        found = await lag_of_audit(server, lags)
        assert (found["lag_bytes"], found["lag_is_capped"]) == (11, 0)
        assert found["lag_seconds"] > known["lag_seconds"] > 0


@pytest.mark.parametrize("name", ["query-0123abcd", "export-orders"])
async def test_groups_of_programs_without_readers_are_marked(
    server: Standalone, lags: group_lag.GroupLags, name: str
) -> None:
    async with aio.connect(server.controller_uri) as client:
        await client.create_stream("shop/orders")
        await client.reader_group(name, ["shop/orders"], scope="shop")
        await lag_of_audit(server, lags)
        assert (await samples(server))["penstock_reader_group_is_subscriber", (name, "shop")] == 1


async def test_groups_beyond_the_limit_are_counted() -> None:
    settings = replace(SETTINGS, operations=OperationsSettings(is_enabled=True, port=0, groups_max=1))
    async with Standalone(settings) as server, aio.connect(server.controller_uri) as client:
        await client.create_stream("shop/orders")
        for name in ("a", "b", "c"):
            await client.reader_group(name, ["shop/orders"], scope="shop")
        assert server.group_lags is not None
        server.group_lags.forget_listing()
        await server.group_lags.measure()
        assert len(server.group_lags.lags) == 1
        assert (await samples(server))[("penstock_reader_groups_left_out", ())] == 2


async def test_an_unexpected_error_is_logged_and_the_lag_is_measured_again(
    server: Standalone, lags: group_lag.GroupLags, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = asyncio.Semaphore(0)

    async def measure() -> None:
        rounds.release()
        raise ZeroDivisionError("planted")

    await lags.stop()
    monkeypatch.setattr(group_lag, "ROUND_S", 0.0)
    monkeypatch.setattr(lags, "measure", measure)
    lags.start()
    async with asyncio.timeout(WAIT_S):
        for _ in range(2):
            await rounds.acquire()
    assert "ZeroDivisionError: planted" in caplog.text


async def test_an_encrypted_port_has_the_certificate_of_the_server(tmp_path: Path) -> None:
    """Plain HTTP and a client without the authority get no answer; ``doctor`` reads it."""
    security = SecuritySettings(
        tls="on", makes_missing_files=True, certificate=str(tmp_path / "server.crt"),
        private_key=str(tmp_path / "server.key"), accounts=str(tmp_path / "passwd"),
    )  # fmt: skip
    settings = replace(SETTINGS, security=security, operations=replace(SETTINGS.operations, tls=True))
    async with Standalone(settings) as running:
        assert running.operations is not None
        assert running.security is not None
        port, authority = running.operations.port, running.security.paths.authority.read_bytes()
        trusted = ClientSecurity(ca=authority).tls_context()

        def read(context: ssl.SSLContext) -> str:
            url = f"https://localhost:{port}/ready"
            with urllib.request.urlopen(url, timeout=WAIT_S, context=context) as reply:
                return str(reply.read().decode())

        assert (await asyncio.to_thread(read, trusted)).startswith("ready")
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            await asyncio.to_thread(read, ssl.create_default_context())
        with pytest.raises(OSError):
            await asyncio.to_thread(get, port, "/ready")
        found = await asyncio.to_thread(check_health, f"localhost:{port}", 60.0, is_required=True, tls=trusted)
        assert any("health at" in fact for fact in found.facts)


def test_an_encrypted_port_needs_a_certificate() -> None:
    with pytest.raises(InvalidArgumentError, match="there is no certificate"):
        replace(SETTINGS, operations=replace(SETTINGS.operations, tls=True))

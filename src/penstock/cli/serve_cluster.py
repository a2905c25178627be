"""Runs a process of a cluster until a signal: what ``penstock controller`` and ``penstock segment-store`` do."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from penstock.cli.serve import new_loop
from penstock.model.cluster_nodes import Endpoint
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.runtime.collector import settle_collector
from penstock.runtime.descriptors import raise_descriptor_limit
from penstock.runtime.heap import bound_heaps, keep_heap_small
from penstock.runtime.logs import log_to_standard_error
from penstock.runtime.service_manager import ServiceManager
from penstock.runtime.settings import load_settings
from penstock.runtime.version import penstock_version
from penstock.runtime.waits import cancel_and_wait
from penstock.server.cluster.controller import ClusterController
from penstock.server.cluster.store_host import StoreHost
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.child import exit_at_once

logger: logging.Logger = logging.getLogger(__name__)


class _Process(Protocol):
    async def start(self) -> None:
        """Start; return when it serves."""

    async def stop(self) -> None:
        """Stop cleanly."""


def load_cluster_settings(config: Path | None, flags: Mapping[str, object]) -> StandaloneSettings:
    """Return the settings of a process of a cluster. Raises `SettingsError`, `InvalidArgumentError`."""
    settings = load_settings(StandaloneSettings, file=config, environment=os.environ, flags=flags).checked()
    if settings.is_memory:
        raise InvalidArgumentError("a cluster has no --memory")
    if settings.security.makes_missing_files:
        raise InvalidArgumentError(
            "security.makes_missing_files: the files of a cluster are made once, with penstock security make, and "
            "copied to each machine"
        )
    listeners = settings.cluster.listeners_on(settings.host, 0, "")
    if not settings.security.has_auth and not settings.security.is_insecure_allowed:
        for each in listeners:
            if each.host != "localhost" and not each.host.startswith("127.") and each.host != "::1":
                raise InvalidArgumentError(
                    f"listener {each.name!r} would listen on {each.host or 'all addresses'} without authentication: "
                    "every program that reaches it could read and change all streams. Add --secure, or --insecure if "
                    "that is intended"
                )
    return settings


def serve_controller(settings: StandaloneSettings, *, started_s: float, as_json: bool) -> bool:
    """Run a controller until a signal; return whether the stop was in order. Raises what its start raises."""
    process = ClusterController(settings)

    def ready() -> tuple[dict[str, object], list[str]]:
        fields: dict[str, object] = {"name": process.name, "endpoints": _addresses(process.endpoints)}
        where = ", ".join(
            f"{'tls' if settings.security.has_tls else 'tcp'}://{each}"
            for each in _addresses(process.endpoints).values()
        )
        return fields, [f"penstock controller {process.name} is ready: {where}"]

    return _run(settings, process, ready, lambda: None, started_s=started_s, as_json=as_json)


def serve_stores(settings: StandaloneSettings, *, started_s: float, as_json: bool) -> bool:
    """Run segment stores until a signal; return whether the stop was in order. Raises what their start raises."""
    host = StoreHost(settings)

    def ready() -> tuple[dict[str, object], list[str]]:
        stores: list[dict[str, object]] = [
            {"name": each.name, "endpoints": _addresses(each.endpoints), "pid": each.pid} for each in host.stores
        ]
        lines = [
            f"segment store {each.name}: {', '.join(_addresses(each.endpoints).values())} (pid {each.pid})"
            for each in host.stores
        ]
        return {"stores": stores}, [*lines, "penstock segment-store is ready"]

    return _run(
        settings, host, ready, lambda: host.signal_all(signal.SIGTERM), started_s=started_s, as_json=as_json
    )  # fmt: skip


def _run(
    settings: StandaloneSettings,
    process: _Process,
    ready: Callable[[], tuple[dict[str, object], list[str]]],
    hurry: Callable[[], None],
    *,
    started_s: float,
    as_json: bool,
) -> bool:
    log_to_standard_error(settings.log_level, form=settings.log_format)
    logger.info("starting penstock %s, pid %d, cluster at %s", penstock_version(), os.getpid(),
                settings.cluster.zookeeper)  # fmt: skip
    bound_heaps()
    keep_heap_small()
    raise_descriptor_limit()

    manager = ServiceManager.of_environment(os.environ)

    def report_ready() -> None:
        fields, lines = ready()
        took_s = round(time.perf_counter() - started_s, 3)
        _say("ready", {**fields, "pid": os.getpid(), "start_s": took_s}, lines, as_json=as_json)
        manager.ready(lines[0])

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(_until_signal(process, manager, report_ready, hurry, as_json))


async def _until_signal(
    process: _Process,
    manager: ServiceManager,
    report_ready: Callable[[], None],
    hurry: Callable[[], None],
    as_json: bool,
) -> bool:
    """Start the process, and stop it at a signal; return whether the stop was in order."""
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    signals = 0

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals > 2:
            # What is acknowledged is in the log.
            exit_at_once(128 + number)
        if signals == 2:
            hurry()
        asked_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    start = asyncio.ensure_future(process.start())
    stop_asked = asyncio.ensure_future(asked_to_stop.wait())
    try:
        await asyncio.wait((start, stop_asked), return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            await cancel_and_wait(start)
            return True
        start.result()
        settle_collector()
        report_ready()
        await stop_asked
        manager.stopping()
    finally:
        stop_asked.cancel()
    try:
        await process.stop()
    except (TimeoutError, PenstockError) as error:
        sys.stderr.write(f"penstock: Shutdown failed: {error}; acknowledged data is safe.\n")
        return False
    _say("stopped", {}, [], as_json=as_json)
    return True


def _say(kind: str, fields: dict[str, object], lines: list[str], *, as_json: bool) -> None:
    text = json.dumps({"type": kind, **fields}) + "\n" if as_json else "".join(f"{line}\n" for line in lines)
    sys.stdout.write(text)
    sys.stdout.flush()


def _addresses(endpoints: Mapping[str, Endpoint]) -> dict[str, str]:
    return {
        name: f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}"
        for name, each in endpoints.items()
    }

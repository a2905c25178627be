"""Runs a `Standalone` until a signal: what ``penstock standalone`` does once its options are read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from penstock.cli.failure import code_of, fail
from penstock.model.errors import DataDirectoryLostError, InvalidArgumentError, LogTakenOverError, PenstockError
from penstock.runtime.collector import settle_collector
from penstock.runtime.descriptors import raise_descriptor_limit
from penstock.runtime.heap import bound_heaps, keep_heap_small
from penstock.runtime.logs import log_to_standard_error
from penstock.runtime.service_manager import ServiceManager
from penstock.runtime.settings import load_settings
from penstock.runtime.sockets import can_resolve
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from penstock.server.web_process import DERIVED_OFFSET, WebListener

logger: logging.Logger = logging.getLogger(__name__)

#: How long, in seconds, the start waits to find out whether the name that clients are given can be resolved.
_RESOLVE_TIMEOUT_S = 2.0


def serve(
    config: Path | None, pravega_config: Path | None, flags: Mapping[str, object], *, started_s: float, as_json: bool
) -> bool:
    """Load the settings, serve until a signal comes, return whether the stop was in order.

    `started_s`: when the process began, on `time.perf_counter`. Raises what settings and start raise.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if pravega_config is not None:
        given = {**flags_of_pravega(pravega_config), **given}
    settings = load_settings(StandaloneSettings, file=config, environment=os.environ, flags=given).checked()
    if settings.cluster.zookeeper:
        raise InvalidArgumentError(
            f"cluster.zookeeper is {settings.cluster.zookeeper!r}, and penstock standalone is no part of a cluster: "
            "start penstock controller and penstock segment-store"
        )
    log_to_standard_error(settings.log_level, form=settings.log_format)
    bound_heaps()
    keep_heap_small()
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(_serve(settings, started_s, as_json))


def flags_of_pravega(file: Path) -> dict[str, object]:
    """Return the settings of a file of Pravega as options, and report what has no meaning here."""
    from penstock.server.pravega_settings import read_pravega_settings

    found = read_pravega_settings(file)
    if found.ignored:
        sys.stderr.write(f"penstock: {file}: these settings have no effect here: {', '.join(found.ignored)}\n")
    flags: dict[str, object] = dict(found.values)
    if found.token_key is not None:
        flags["security.token_key"] = found.token_key
    return flags


async def _serve(settings: StandaloneSettings, started_s: float, as_json: bool) -> bool:
    """Run until a signal comes; return whether the stop was in order."""
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked_to_stop.is_set():
            # Asked twice: what is acknowledged is synced, so there is nothing to lose.
            os._exit(128 + number)
        logger.info("stopping on signal %s", signal.Signals(number).name)
        asked_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)

    server = Standalone(settings)
    manager = ServiceManager.of_environment(os.environ)
    start = asyncio.ensure_future(server.start())
    stop_asked = asyncio.ensure_future(asked_to_stop.wait())
    lost = asyncio.ensure_future(server.lost_directory())
    taken_over = asyncio.ensure_future(server.taken_over())
    taken_over.add_done_callback(lambda loss: None if loss.cancelled() else _end_at_once(loss.result(), as_json))
    # To the end of the stop, during which the directory can be lost, too.
    lost.add_done_callback(lambda loss: None if loss.cancelled() else _end_at_once(loss.result(), as_json))
    try:
        await asyncio.wait((start, stop_asked), return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait((start,))
            if as_json:
                _print_record("stopped", {})
            return True
        start.result()
        settle_collector()
        took_s = time.perf_counter() - started_s
        where = server.data_description
        logger.info("ready after %.2f s: controller %s, data in %s", took_s, server.controller_uri, where)
        await _warn_of_addresses(settings)
        web = _web_listener(server)
        web.start()
        _log_ports(server, web)
        _tell_ready(server, web, took_s, as_json)
        manager.ready(f"controller {server.controller_uri}")
        await stop_asked
        manager.stopping()
        await web.stop()
    finally:
        stop_asked.cancel()
    try:
        async with asyncio.timeout(settings.stop_timeout_s):
            await server.stop()
    except (TimeoutError, PenstockError) as error:
        is_late = isinstance(error, TimeoutError)
        what = f"Shutdown timed out after {settings.stop_timeout_s:g} s" if is_late else f"Shutdown failed: {error}"
        sys.stderr.write(f"penstock: {what}; acknowledged data is safe.\n")
        return False
    logger.info("stopped")
    if as_json:
        _print_record("stopped", {})
    return True


async def _warn_of_addresses(settings: StandaloneSettings) -> None:
    """Warn if every machine may connect without an account, or if clients may not find the segment store."""
    if settings.is_open_to_other_machines and not settings.security.has_auth:
        logger.warning(
            "listening on all addresses of this machine: every program that can connect may read and change all "
            "streams. The address given to clients is %s (set it with --advertise)",
            settings.advertised_host,
        )
    if not await can_resolve(settings.advertised_host, _RESOLVE_TIMEOUT_S):
        logger.warning(
            "this machine cannot resolve %s, the address given to clients: a client that cannot resolve it "
            "reaches the controller but no segment store. Start the server with --advertise and a host name or "
            "address that clients can reach",
            settings.advertised_host,
        )


def _end_at_once(loss: DataDirectoryLostError | LogTakenOverError, as_json: bool) -> None:
    """Say why, and end this process at once: an orderly stop would write where another server may write.

    Segment stores in child processes are killed with it. What is acknowledged is synced.
    """
    end = fail(str(loss), kind=type(loss).__name__, as_json=as_json, code=code_of(loss))
    sys.stderr.flush()
    os._exit(end.exit_code)


def _log_ports(server: Standalone, web: WebListener) -> None:
    """Log the ports of health and metrics and of REST and console, if there are any."""
    if web.port:
        scheme = "https" if server.settings.security.has_tls else "http"
        host = server.settings.advertised_host
        logger.info("REST and console at %s://%s:%d/", scheme, f"[{host}]" if ":" in host else host, web.port)
    if server.front is not None and server.front.certificate_port:
        logger.info("clients with a certificate: controller tls://%s:%d", server.settings.advertised_host,
                    server.front.certificate_port)  # fmt: skip
    if server.operations is not None:
        logger.info("health and metrics on port %d: /live, /ready, /v1/health, /metrics", server.operations.port)


def _web_listener(server: Standalone) -> WebListener:
    """Return the port of REST and console. Its process is a client of the server, and serves HTTPS if that has TLS."""
    settings = server.settings
    options = ["--uri", server.controller_uri, "--host", settings.host]
    environment: dict[str, str] = {}
    for name in dict.fromkeys((settings.advertised_host, *settings.web.hosts)):
        options += ["--allow-host", name]
    if server.security is not None and settings.security.has_tls:
        paths = server.security.paths
        options += ["--certificate", str(paths.certificate), "--private-key", str(paths.private_key)]
        if settings.security.requires_certificates:
            options.append("--present-certificate")
        from penstock.runtime.client_security import CA_VARIABLE, USER_VARIABLE

        has_certificates = settings.security.requires_certificates or settings.security.has_certificate_port
        if has_certificates and os.environ.get(USER_VARIABLE):
            # The web process has this account, and opens sessions with it for the accounts of the certificates.
            options += ["--client-ca", settings.security.client_ca]
            if settings.security.requires_certificates:
                options.append("--require-certificates")
        if paths.authority.exists():
            environment[CA_VARIABLE] = str(paths.authority)
    else:
        # The server itself was allowed to listen here.
        options.append("--insecure")
    derived_port = server.controller_port + DERIVED_OFFSET if settings.controller_port else 0
    return WebListener(settings.host, settings.web, derived_port, options, environment)


def _tell_ready(server: Standalone, web: WebListener, took_s: float, as_json: bool) -> None:
    failures = {str(container_id): error for container_id, error in server.failures.items()}
    if as_json:
        fields: dict[str, object] = {
            "controller": server.controller_uri,
            "segment_store": server.segment_store_address,
            "segment_stores": [asdict(store) for store in server.segment_stores],
            "data_dir": None
            if server.settings.is_memory or server.settings.log
            else os.path.abspath(server.settings.data_dir),
            "log": server.settings.log or None,
            "is_new_store": server.is_new_store,
            "metrics_port": None if server.operations is None else server.operations.port,
            "web_port": web.port or None,
            "certificate_port": (server.front.certificate_port if server.front is not None else 0) or None,
            "is_encrypted": server.settings.security.has_tls,
            "has_authentication": server.settings.security.has_auth,
            "pid": os.getpid(),
            "start_s": round(took_s, 3),
            "failures": failures,
        }
        _print_record("ready", fields)
        return
    for container_id, error in failures.items():
        sys.stderr.write(f"penstock: container {container_id} stays offline, its segments are not served: {error}\n")
    stores = server.segment_stores
    if len(stores) > 1:
        for number, store in enumerate(stores):
            containers = ", ".join(map(str, store.containers))
            _print_line(f"segment store {number}: {store.address}, containers {containers} (pid {store.pid})")
    if server.new_password is not None and server.security is not None:
        paths = server.security.paths
        _print_line(
            f"administrator: user admin, password {server.new_password} (also in {paths.administrator_password})"
        )
        _print_line(f"certificate authority for clients: {paths.authority}")
    where = f"segment store {server.segment_store_address}" if len(stores) == 1 else f"{len(stores)} segment stores"
    # A mistyped directory seems to be a store that has lost everything: say that it is new, and where.
    made = f"new store in {server.settings.log or os.path.abspath(server.settings.data_dir)}"
    data = made if server.is_new_store else f"data in {server.data_description}"
    _print_line(
        f"penstock is ready: controller {server.controller_uri}, {where}, {data} (pid {os.getpid()}, {took_s:.2f} s)"
    )


def _print_record(kind: str, fields: dict[str, object]) -> None:
    # `event`: the name that `type` had in these lines before.
    _print_line(json.dumps({"type": kind, "event": kind, **fields}))


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def new_loop() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where there is one (not on Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop

"""``penstock standalone``: controller and segment store in one process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.failure import EXIT_FAILED, failures_told
from penstock.model.errors import PenstockError
from penstock.runtime.settings import FILE_VARIABLE, load_settings
from penstock.settings import StandaloneSettings
from penstock.standalone import Standalone

_MIB = 1024 * 1024
#: glibc's mallopt parameter, and the number of heaps for it: one per thread would leave memory idle in each.
_M_ARENA_MAX = -8
_ARENA_COUNT_MAX = 2

LogLevel = Literal["debug", "info", "warning", "error"]


def standalone(
    data_dir: Annotated[
        str | None, typer.Option(help="Where everything is kept; made if absent. [default: penstock-data]")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep everything in memory, for tests: lost at exit.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    controller_port: Annotated[
        int | None, typer.Option(help="gRPC port of the controller; 0: any free one. [default: 9090]")
    ] = None,
    segment_store_port: Annotated[
        int | None, typer.Option(help="Port of the segment store; 0: any free one. [default: 6000]")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="Host under which clients reach this machine. [default: the --host]")
    ] = None,
    containers: Annotated[
        int | None, typer.Option(help="Segment containers; fixed once there are data. [default: 4]")
    ] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Memory for segment data, MiB. [default: 512]")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file, TOML.", envvar=FILE_VARIABLE)] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="How much to say on standard error. [default: warning]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events (ready, error, stopped) as JSON lines.")
    ] = False,
) -> None:
    """Run a whole Penstock in one process, until SIGTERM or Ctrl-C.

    Settings come from the file, then PENSTOCK_* variables, then these options; each overrides the one before.
    A second SIGTERM or Ctrl-C ends the process at once; acknowledged data are safe either way.
    """
    started_s = time.perf_counter()
    with failures_told(as_json=as_json):
        settings = load_settings(
            StandaloneSettings,
            file=config,
            environment=os.environ,
            flags={
                "data_dir": data_dir,
                "is_memory": memory or None,
                "host": host,
                "controller_port": controller_port,
                "segment_store_port": segment_store_port,
                "advertise": advertise,
                "segment_store.container_count": containers,
                "segment_store.cache.bytes_max": None if cache_mb is None else cache_mb * _MIB,
                "log_level": log_level,
            },
        )
        logging.basicConfig(
            stream=sys.stderr,
            level=settings.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        _bound_heaps()
        with asyncio.Runner(loop_factory=_new_loop()) as runner:
            is_clean = runner.run(_serve(settings, started_s, as_json))
    if not is_clean:
        raise typer.Exit(EXIT_FAILED)


async def _serve(settings: StandaloneSettings, started_s: float, as_json: bool) -> bool:
    """Run until a signal comes; return whether the stop was in order."""
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked_to_stop.is_set():
            # Asked twice: what is acknowledged is synced, so there is nothing to lose.
            os._exit(128 + number)
        asked_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)

    server = Standalone(settings)
    start = asyncio.ensure_future(server.start())
    stop_asked = asyncio.ensure_future(asked_to_stop.wait())
    try:
        await asyncio.wait((start, stop_asked), return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait((start,))
            return True
        start.result()
        # What the start left will live as long as the process: no collection needs to look at it again.
        gc.collect()
        gc.freeze()
        _tell_ready(server, time.perf_counter() - started_s, as_json)
        await stop_asked
    finally:
        stop_asked.cancel()
    try:
        async with asyncio.timeout(settings.stop_timeout_s):
            await server.stop()
    except (TimeoutError, PenstockError) as error:
        why = f"not done after {settings.stop_timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        sys.stderr.write(f"penstock: the stop was not in order ({why}); acknowledged data are safe\n")
        return False
    if as_json:
        _print_line(json.dumps({"event": "stopped"}))
    return True


def _tell_ready(server: Standalone, took_s: float, as_json: bool) -> None:
    failures = {str(container_id): str(error) for container_id, error in sorted(server.store.failures.items())}
    if as_json:
        event = {
            "event": "ready",
            "controller": server.controller_uri,
            "segment_store": server.segment_store_address,
            "data_dir": None if server.settings.is_memory else os.path.abspath(server.settings.data_dir),
            "pid": os.getpid(),
            "start_s": round(took_s, 3),
            "failures": failures,
        }
        _print_line(json.dumps(event))
        return
    for container_id, error in failures.items():
        sys.stderr.write(f"penstock: container {container_id} stays offline, its segments are not served: {error}\n")
    _print_line(
        f"penstock is ready: controller {server.controller_uri}, segment store {server.segment_store_address}, "
        f"data in {server.data_description} (pid {os.getpid()}, {took_s:.2f} s)"
    )


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _new_loop() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where there is one (not on Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _bound_heaps() -> None:
    """Keep glibc from giving every thread a heap of its own. Harmless where the C library is another one."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _ARENA_COUNT_MAX)

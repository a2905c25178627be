"""``penstock standalone``: controller and segment stores on one machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.failure import EXIT_FAILED, exit_on_error
from penstock.model.sizes import MIB

LogLevel = Literal["debug", "info", "warning", "error"]


def standalone(
    data_dir: Annotated[
        str | None, typer.Option(help="Data directory; created if missing. [default: penstock-data]")
    ] = None,
    tier2: Annotated[
        str | None,
        typer.Option(
            help="Long-term storage: s3://bucket/prefix (gs://, az://), hdfs://host:port/path, or a directory. "
            "[default: tier2 in --data-dir]"
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Durable log in a bucket: s3://bucket/prefix (gs://, az://), with --tier2. The server then keeps "
            "nothing on this machine. [default: tier1 in --data-dir]"
        ),
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep all data in memory, for tests; lost at exit.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    controller_port: Annotated[
        int | None, typer.Option(help="gRPC port of the controller; 0: any free port. [default: 9090]")
    ] = None,
    segment_store_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first segment store; further stores use the next ports. 0: any free port. [default: 6000]"
        ),
    ] = None,
    segment_stores: Annotated[
        int | None,
        typer.Option(help="Number of segment store processes; best one for each core. [default: 1]"),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="HTTP port for health and metrics (/live, /ready, /metrics), the first of several in a row; 0: any "
            "free one. [default: none]"
        ),
    ] = None,
    web_port: Annotated[
        int | None,
        typer.Option(help="HTTP port for REST and console. [default: the one after the controller's, if free]"),
    ] = None,
    no_web: Annotated[bool, typer.Option("--no-web", help="No REST and no console.")] = False,
    advertise: Annotated[
        str | None, typer.Option(help="Host name or address given to clients. [default: the --host]")
    ] = None,
    containers: Annotated[
        int | None, typer.Option(help="Number of segment containers; fixed once the store holds data. [default: 4]")
    ] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Cache for segment data, in MiB. [default: 512]")] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Encrypt all ports and require accounts. Makes what is missing in security/ of --data-dir."
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for other machines without authentication.")
    ] = False,
    certificate: Annotated[str | None, typer.Option(help="Certificate of the server, PEM.")] = None,
    private_key: Annotated[str | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
    accounts: Annotated[str | None, typer.Option(help="File of accounts, in Pravega's format.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file, TOML.", envvar="PENSTOCK_CONFIG")] = None,
    pravega_config: Annotated[Path | None, typer.Option(help="Settings file of Pravega's standalone server.")] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="Log level on standard error. [default: info]")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events (ready, error, stopped) as JSON lines.")
    ] = False,
) -> None:
    """Run a complete Penstock server in one or several processes until SIGTERM or Ctrl-C.

    Settings come from the file, then PENSTOCK_* variables, then these options; each source overrides the previous one.
    A second SIGTERM or Ctrl-C ends the process immediately; acknowledged data is safe in both cases.

    With --segment-stores N this process runs the controller, and N child processes run the segment stores. A store that
    ends is restarted; if that fails, the other stores take its containers. All child processes end with this process.
    """
    started_s = time.perf_counter()
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve import serve

    flags = {
        "data_dir": data_dir,
        "tier2": tier2,
        "log": log,
        "is_memory": memory or None,
        "host": host,
        "controller_port": controller_port,
        "segment_store_port": segment_store_port,
        "segment_stores": segment_stores,
        "advertise": advertise,
        "segment_store.container_count": containers,
        "segment_store.cache.bytes_max": None if cache_mb is None else cache_mb * MIB,
        "log_level": log_level,
        "operations.is_enabled": None if metrics_port is None else True,
        "operations.port": metrics_port,
        "web.is_enabled": False if no_web else None,
        "web.port": web_port,
        **_security_flags(secure, insecure, certificate, private_key, accounts),
    }
    with exit_on_error(as_json=as_json):
        is_clean = serve(config, pravega_config, flags, started_s=started_s, as_json=as_json)
    if not is_clean:
        raise typer.Exit(EXIT_FAILED)


def _security_flags(
    secure: bool, insecure: bool, certificate: object, private_key: object, accounts: object
) -> dict[str, object]:
    return {
        "security.tls": "on" if secure else None,
        "security.auth": "on" if secure else None,
        "security.makes_missing_files": secure or None,
        "security.is_insecure_allowed": insecure or None,
        "security.certificate": certificate,
        "security.private_key": private_key,
        "security.accounts": accounts,
    }

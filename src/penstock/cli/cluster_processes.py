"""``penstock controller`` and ``penstock segment-store``: the processes of a cluster on several machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import EXIT_FAILED, exit_on_error
from penstock.cli.standalone import LogLevel
from penstock.model.sizes import MIB

ZooKeeperOption = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOST:PORT[,...][/PATH]", help="Servers of ZooKeeper and path of the cluster."),
]
_Name = Annotated[
    str | None, typer.Option(help="Name of this process, unique in the cluster. [default: the host name]")
]
_Host = Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")]
_Advertise = Annotated[
    str | None,
    typer.Option(metavar="HOST[:PORT]", help="Address given to clients. [default: the --host, or the host name]"),
]
_Listeners = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=HOST:PORT[@HOST:PORT],...",
        help="Named listeners instead of --host and --port: where to listen, and the address given to clients of each.",
    ),
]
_MetricsPort = Annotated[
    int | None,
    typer.Option(help="HTTP port for health and metrics (/live, /ready, /metrics); 0: any free one. [default: none]"),
]
_DataDir = Annotated[
    str | None,
    typer.Option(help="Directory whose security/ has certificate, keys and accounts. [default: penstock-data]"),
]
_Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="Encrypt all ports and require accounts. Make the files before: penstock security make."
    ),
]
_Insecure = Annotated[bool, typer.Option("--insecure", help="Listen for other machines without authentication.")]
_Config = Annotated[Path | None, typer.Option(help="Settings file, TOML.", envvar="PENSTOCK_CONFIG")]
_LogLevel = Annotated[LogLevel | None, typer.Option(help="Log level on standard error. [default: info]")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print events (ready, error, stopped) as JSON lines.")]


def controller(
    zookeeper: ZooKeeperOption = None,
    name: _Name = None,
    host: _Host = None,
    port: Annotated[int | None, typer.Option(help="gRPC port; 0: any free one. [default: 9090]")] = None,
    advertise: _Advertise = None,
    listeners: _Listeners = None,
    metrics_port: _MetricsPort = None,
    data_dir: _DataDir = None,
    secure: _Secure = False,
    insecure: _Insecure = False,
    config: _Config = None,
    log_level: _LogLevel = None,
    as_json: _AsJson = False,
) -> None:
    """Run a controller of a cluster until SIGTERM or Ctrl-C.

    It keeps nothing on this machine. Any number of controllers share the work; one of them assigns the containers to
    the segment stores. Make the cluster with `penstock cluster init` before.
    """
    started_s = time.perf_counter()
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve_cluster import load_cluster_settings, serve_controller

    flags = {
        "cluster.zookeeper": zookeeper,
        "cluster.name": name,
        "host": host,
        "controller_port": port,
        "advertise": advertise,
        "cluster.listeners": listeners,
        "operations.is_enabled": None if metrics_port is None else True,
        "operations.port": metrics_port,
        "data_dir": data_dir,
        "security.tls": "on" if secure else None,
        "security.auth": "on" if secure else None,
        "security.is_insecure_allowed": insecure or None,
        "log_level": log_level,
    }
    with exit_on_error(as_json=as_json):
        is_clean = serve_controller(load_cluster_settings(config, flags), started_s=started_s, as_json=as_json)
    if not is_clean:
        raise typer.Exit(EXIT_FAILED)


def segment_store(
    zookeeper: ZooKeeperOption = None,
    name: _Name = None,
    host: _Host = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the first store, others use the next ones; 0: any free. [default: 6000]")
    ] = None,
    advertise: _Advertise = None,
    listeners: _Listeners = None,
    processes: Annotated[int | None, typer.Option(help="Segment stores; best one for each core. [default: 1]")] = None,
    zone: Annotated[str | None, typer.Option(help="Where it runs; lost containers go to zones with few.")] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Cache for segment data, in MiB. [default: 512]")] = None,
    metrics_port: _MetricsPort = None,
    data_dir: _DataDir = None,
    secure: _Secure = False,
    insecure: _Insecure = False,
    config: _Config = None,
    log_level: _LogLevel = None,
    as_json: _AsJson = False,
) -> None:
    """Run segment stores of a cluster until SIGTERM or Ctrl-C.

    SIGTERM hands the containers over to other stores before the processes end. A second one skips that. A store that
    ends is started again. Make the cluster with `penstock cluster init` before.
    """
    started_s = time.perf_counter()
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve_cluster import load_cluster_settings, serve_stores

    flags = {
        "cluster.zookeeper": zookeeper,
        "cluster.name": name,
        "cluster.zone": zone,
        "host": host,
        "segment_store_port": port,
        "segment_stores": processes,
        "advertise": advertise,
        "cluster.listeners": listeners,
        "segment_store.cache.bytes_max": None if cache_mb is None else cache_mb * MIB,
        "operations.is_enabled": None if metrics_port is None else True,
        "operations.port": metrics_port,
        "data_dir": data_dir,
        "security.tls": "on" if secure else None,
        "security.auth": "on" if secure else None,
        "security.is_insecure_allowed": insecure or None,
        "log_level": log_level,
    }
    with exit_on_error(as_json=as_json):
        is_clean = serve_stores(load_cluster_settings(config, flags), started_s=started_s, as_json=as_json)
    if not is_clean:
        raise typer.Exit(EXIT_FAILED)

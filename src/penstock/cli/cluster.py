"""``penstock cluster``: make, observe and change a cluster on several machines."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli import cluster_log
from penstock.cli.cluster_demo import demo
from penstock.cli.cluster_session import Config, DryRun, ZooKeeper, in_session, load
from penstock.cli.failure import exit_on_error
from penstock.cli.options import AsJson
from penstock.cli.output import table, tell

if TYPE_CHECKING:
    from penstock.model.assignment_plan import Move
    from penstock.model.cluster_nodes import Endpoint
    from penstock.server.cluster.administration import ClusterAdministration

cluster: typer.Typer = typer.Typer(name="cluster", no_args_is_help=True)
cluster.add_typer(cluster_log.log, name="log", help="List, enable or disable the logs of a cluster while it runs.")

T = TypeVar("T")

_StoreName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a segment store.", show_default=False)]


@cluster.command()
def init(
    log: Annotated[str, typer.Option(help="Durable log: s3://bucket/prefix (gs://, az://).", show_default=False)],
    tier2: Annotated[
        str,
        typer.Option(
            help="Long-term storage: s3://bucket/prefix (gs://, az://) or hdfs://host:port/path.", show_default=False
        ),
    ],
    zookeeper: ZooKeeper = None,
    containers: Annotated[int, typer.Option(help="Number of segment containers; it never changes.")] = 16,
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease-s", help="Seconds for which a store that has lost a container may answer reads from memory."
        ),
    ] = 4.0,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over the log of a cluster whose ZooKeeper has lost its data.")
    ] = False,
    dry_run: DryRun = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a cluster: write what it is to ZooKeeper, once. Again with the same values is accepted."""
    from penstock.administration.ledger_adoption import LedgerAdoption
    from penstock.server.cluster.initialisation import init_cluster

    with exit_on_error(as_json=as_json):
        settings = load(config, zookeeper)
        made = asyncio.run(
            init_cluster(
                settings,
                containers=containers,
                log=log,
                tier2=tier2,
                lease_s=lease_s,
                adopts=adopt,
                is_dry=dry_run,
                adoption=LedgerAdoption(),
            )
        )
    identity = made.identity
    what = "made" if made.is_new else "exists already"
    if dry_run and made.is_new:
        what = "would be made"
    tell(
        "cluster",
        {
            "cluster_id": identity.cluster_id, "containers": identity.container_count, "log": identity.log,
            "tier2": identity.tier2, "is_new": made.is_new, "dry_run": dry_run,
        },
        [
            f"cluster {identity.cluster_id} {what} at {settings.cluster.zookeeper}: {identity.container_count} "
            f"containers, log in {identity.log}, long-term storage in {identity.tier2}"
        ],
        as_json=as_json,
    )  # fmt: skip


@cluster.command()
def status(zookeeper: ZooKeeper = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show what a cluster is, its controllers and stores, and the containers that no store serves."""
    with exit_on_error(as_json=as_json):
        found = _run(config, zookeeper, lambda each: each.status())
    view, identity = found.view, found.identity
    fields: dict[str, object] = {
        "cluster_id": identity.cluster_id,
        "containers": identity.container_count,
        "log": identity.log,
        "tier2": identity.tier2,
        "leader": found.leader,
        "controllers": {name: _addresses(each.endpoints) for name, each in sorted(found.controllers.items())},
        "stores": sorted(view.hosts),
        "drains": sorted(view.drains),
        "unserved": found.unserved,
        "assignment": view.assignment.number,
    }
    lines = [
        f"cluster {identity.cluster_id}: {identity.container_count} containers, log in {identity.log}, "
        f"long-term storage in {identity.tier2}",
        f"controllers: {len(found.controllers)}, leader {found.leader or 'none'}",
        *(f"  {', '.join(_addresses(each.endpoints).values())}" for _, each in sorted(found.controllers.items())),
        f"stores: {', '.join(sorted(view.hosts)) or 'none'}"
        + (f"; drained: {', '.join(sorted(view.drains))}" if view.drains else ""),
        f"containers not served: {', '.join(map(str, found.unserved)) or 'none'}",
    ]
    tell("cluster", fields, lines, as_json=as_json)


@cluster.command()
def stores(zookeeper: ZooKeeper = None, config: Config = None, as_json: AsJson = False) -> None:
    """List the segment stores: addresses, zone, state, containers, and the share of time in which each works."""
    with exit_on_error(as_json=as_json):
        found = _run(config, zookeeper, lambda each: each.status())
    view = found.view
    rows: list[dict[str, object]] = [
        {
            "name": name,
            "endpoints": _addresses(host.endpoints),
            "zone": host.zone,
            "state": "draining" if name in view.drains else str(host.state),
            "version": host.version,
            "busy": view.loads[name].busy if name in view.loads else None,
            "log_problem_s": view.loads[name].log_problem_s if name in view.loads else None,
            "assigned": [number for number, owner in enumerate(view.assignment.owners) if owner == name],
            "serving": sorted(
                number for number, held in view.held.items() if held.owner == name and held.phase == "serving"
            ),
        }
        for name, host in sorted(view.hosts.items())
    ]
    cells = [
        (each["name"], ", ".join(_values(each["endpoints"])), each["zone"], each["state"], _count(each["assigned"]),
         _count(each["serving"]), "" if each["busy"] is None else f"{each['busy']:.0%}")
        for each in rows
    ]  # fmt: skip
    tell(
        "stores",
        {"stores": rows},
        table(("name", "address", "zone", "state", "assigned", "serving", "busy"), cells),
        as_json=as_json,
    )


@cluster.command()
def containers(zookeeper: ZooKeeper = None, config: Config = None, as_json: AsJson = False) -> None:
    """List the containers: the store that each belongs to, the one that holds it, phase, epoch and error."""
    with exit_on_error(as_json=as_json):
        found = _run(config, zookeeper, lambda each: each.status())
    rows: list[dict[str, object]] = []
    for number, owner in enumerate(found.view.assignment.owners):
        held = found.view.held.get(number)
        rows.append(
            {
                "container": number,
                "assigned": owner,
                "holder": "" if held is None else held.owner,
                "phase": "" if held is None else str(held.phase),
                "epoch": 0 if held is None else held.epoch,
                "error": "" if held is None else held.error,
            }
        )
    headers = ("container", "assigned", "holder", "phase", "epoch", "error")
    cells = [tuple(each[header] for header in headers) for each in rows]
    tell("containers", {"containers": rows}, table(headers, cells), as_json=as_json)


@cluster.command()
def drain(
    name: _StoreName,
    zookeeper: ZooKeeper = None,
    dry_run: DryRun = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Empty a segment store: its containers are handed over, a few at a time. Lasts until `undrain`."""
    _change(
        f"store {name} is drained",
        config,
        zookeeper,
        lambda each: each.drain(name, is_dry=dry_run),
        is_dry=dry_run,
        as_json=as_json,
    )


@cluster.command()
def undrain(
    name: _StoreName,
    zookeeper: ZooKeeper = None,
    dry_run: DryRun = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """End the drain of a segment store: it gets its part of the containers again."""
    _change(
        f"store {name} is not drained any more",
        config,
        zookeeper,
        lambda each: each.undrain(name, is_dry=dry_run),
        is_dry=dry_run,
        as_json=as_json,
    )


@cluster.command()
def move(
    container: Annotated[int, typer.Argument(metavar="CONTAINER", help="Its number.", show_default=False)],
    name: _StoreName,
    zookeeper: ZooKeeper = None,
    dry_run: DryRun = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Hand a container over to another segment store; if needed, another one takes its place."""
    _change(
        f"container {container} goes to store {name}",
        config,
        zookeeper,
        lambda each: each.move(container, name, is_dry=dry_run),
        is_dry=dry_run,
        as_json=as_json,
    )


@cluster.command()
def balance(
    zookeeper: ZooKeeper = None, dry_run: DryRun = False, config: Config = None, as_json: AsJson = False
) -> None:
    """Even out the containers of all segment stores at once, which the leader does a few at a time."""
    _change(
        "the stores are evened out",
        config,
        zookeeper,
        lambda each: each.balance(is_dry=dry_run),
        is_dry=dry_run,
        as_json=as_json,
    )


cluster.command()(cluster_log.sweep)
cluster.command()(demo)


def _run(config: Path | None, zookeeper: str | None, action: Callable[[ClusterAdministration], Awaitable[T]]) -> T:
    """Run an action of an administrator in a session of its own."""
    from penstock.server.cluster.administration import ClusterAdministration

    return in_session(
        config, zookeeper,
        lambda store, place, _, runtime: action(ClusterAdministration(store, place, runtime, socket.gethostname())),
    )  # fmt: skip


def _change(
    what: str,
    config: Path | None,
    zookeeper: str | None,
    action: Callable[[ClusterAdministration], Awaitable[Sequence[Move]]],
    *,
    is_dry: bool,
    as_json: bool,
) -> None:
    """Run an action that changes the assignment, and print its moves."""
    with exit_on_error(as_json=as_json):
        moves = _run(config, zookeeper, action)
    listed = [
        {"container": each.container_id, "source": each.source, "target": each.target, "reason": str(each.reason)}
        for each in moves
    ]
    lines = [
        ("dry run, nothing is changed: " if is_dry else "") + what + (", with these moves:" if moves else "; no moves"),
        *(
            f"  container {each.container_id}: {each.source or 'none'} -> {each.target} ({each.reason})"
            for each in moves
        ),
    ]
    tell("moves", {"what": what, "moves": listed, "dry_run": is_dry}, lines, as_json=as_json)


def _addresses(endpoints: dict[str, Endpoint]) -> dict[str, str]:
    return {name: f"{each.host}:{each.port}" for name, each in sorted(endpoints.items())}


def _values(addresses: object) -> list[str]:
    return [str(each) for each in addresses.values()] if isinstance(addresses, dict) else []


def _count(numbers: object) -> int:
    return len(numbers) if isinstance(numbers, list) else 0

"""``penstock cluster log`` and ``penstock cluster sweep``: the logs of a cluster, while it runs.

The place of the logs is read from ZooKeeper. What the commands are for: docs/guide/cluster.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.cluster_session import Config, DryRun, ZooKeeper, in_session, load
from penstock.cli.command_audit import CommandAudit, audited
from penstock.cli.failure import exit_on_error
from penstock.cli.options import AsJson
from penstock.cli.output import in_bytes, table, tell
from penstock.cli.salvage_output import refusal_reported, salvage_lines, tell_salvaged

if TYPE_CHECKING:
    from penstock.administration.bookkeeper_administration import BookKeeperAdministration, LedgerSweepReport
    from penstock.administration.cluster_logs import ClusterSweepReport
    from penstock.administration.object_log_administration import LogSweepReport, ObjectLogAdministration
    from penstock.model.cluster_nodes import HeldNode
    from penstock.runtime.coordination import CoordinationStore
    from penstock.runtime.runtime import Runtime
    from penstock.server.settings import StandaloneSettings

T = TypeVar("T")

#: Ends of processes that are listed by name.
_LISTED_MAX = 20

Container = Annotated[int, typer.Argument(metavar="CONTAINER", min=0, help="Number of the log's container.")]

log: typer.Typer = typer.Typer(name="log", no_args_is_help=True)


@log.command("list")
def list_logs(zookeeper: ZooKeeper = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show the state and size of each container's log, and the store that holds the container. Changes nothing."""
    with exit_on_error(as_json=as_json):
        reports, held = _with_logs(config, zookeeper, lambda logs: logs.reports())
    rows: list[dict[str, object]] = [
        {**asdict(each), "holder": _holder(held, each.container), "error": _error(held, each.container)}
        for each in reports
    ]
    cells = [
        (each["container"], each["state"], each["epoch"], each["file_count"], in_bytes(int(str(each["length_bytes"]))),
         each["holder"], each["problem"] or each["error"])
        for each in rows
    ]  # fmt: skip
    headers = ("container", "state", "epoch", "parts", "size", "held by", "problem")
    tell("logs", {"logs": rows}, table(headers, cells), as_json=as_json)


@log.command()
def enable(container: Container, zookeeper: ZooKeeper = None, config: Config = None, as_json: AsJson = False) -> None:
    """Enable a disabled log; its store opens it within a minute. Its frames are read first.

    A store disables a damaged log, so that nothing overwrites the evidence. A log that still is damaged stays disabled.
    """
    with exit_on_error(as_json=as_json), _audited(config, zookeeper, "log enable", f"log:{container}"):
        _, held = _with_logs(config, zookeeper, lambda logs: logs.enable(container))
    _tell_changed(container, "enabled", _holder(held, container), as_json=as_json)


@log.command()
def disable(container: Container, zookeeper: ZooKeeper = None, config: Config = None, as_json: AsJson = False) -> None:
    """Disable a log: the store that holds its container ends it, and no store opens it. No data is lost."""
    with exit_on_error(as_json=as_json), _audited(config, zookeeper, "log disable", f"log:{container}"):
        _, held = _with_logs(config, zookeeper, lambda logs: logs.disable(container))
    _tell_changed(container, "disabled", _holder(held, container), as_json=as_json)


@log.command()
def salvage(
    container: Container,
    zookeeper: ZooKeeper = None,
    config: Config = None,
    dry_run: DryRun = False,
    lost_bookies: Annotated[
        bool,
        typer.Option(
            "--lost-bookies", help="Entries that only bookies have that do not answer are lost: they never come back."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the intact part of a damaged log into a new log, and report the losses.

    No store may serve the container: disable its log first. Its store opens the new log within a minute. The damaged
    log is kept. If the command is interrupted, run it again.
    """
    from penstock.administration.cluster_log_salvage import salvage_cluster_log

    then = "its store opens it within a minute"
    with exit_on_error(as_json=as_json):
        with (
            refusal_reported(as_json=as_json),
            _audited(config, zookeeper, "log salvage", f"log:{container}", is_dry_run=dry_run) as audit,
        ):
            salvaged = in_session(
                config, zookeeper,
                lambda store, place, settings, runtime: salvage_cluster_log(
                    store, place, settings, runtime, container, is_dry_run=dry_run, is_without_absent=lost_bookies
                ),
            )  # fmt: skip
            audit.changes["losses"] = list(salvage_lines(container, salvaged, then=then, is_dry_run=False))
        tell_salvaged(container, salvaged, then=then, is_dry_run=dry_run, as_json=as_json)


@log.command()
def rebuild(
    zookeeper: ZooKeeper = None, dry_run: DryRun = False, config: Config = None, as_json: AsJson = False
) -> None:
    """Make records of logs in BookKeeper again that ZooKeeper has lost. Stop all segment stores first.

    The ledgers of each log are found by their labels, fenced, and read. Records that exist stay. Exits with 1 if a log
    is damaged. If the whole cluster is missing in ZooKeeper: penstock cluster init --adopt.
    """
    from penstock.administration.cluster_logs import rebuild_cluster_logs
    from penstock.administration.ledger_rebuild import RebuildState

    with exit_on_error(as_json=as_json), _audited(config, zookeeper, "log rebuild", is_dry_run=dry_run):
        found = in_session(
            config, zookeeper,
            lambda store, place, settings, runtime: rebuild_cluster_logs(
                store, place, settings, runtime, is_dry_run=dry_run
            ),
        )  # fmt: skip
    cells = [
        (each.container, each.state, len(each.ledgers), ", ".join(map(str, each.left_out)), each.problem)
        for each in found
    ]
    headers = ("container", "record", "ledgers", "left out", "problem")
    fields = {"logs": [asdict(each) for each in found], "dry_run": dry_run}
    tell("rebuilt_logs", fields, table(headers, cells), as_json=as_json)
    if any(each.state is RebuildState.DAMAGED for each in found):
        raise typer.Exit(1)


def sweep(zookeeper: ZooKeeper = None, dry_run: DryRun = False, config: Config = None, as_json: AsJson = False) -> None:
    """Delete what killed processes left: objects of the log that no container needs, and old proofs in ZooKeeper.

    The cluster may run: segment stores delete what they do not need any more; this deletes the rest. Seals are never
    deleted, 64 bytes for each process that was started.
    """
    from penstock.administration.cluster_logs import sweep_cluster

    with exit_on_error(as_json=as_json), _audited(config, zookeeper, "sweep", is_dry_run=dry_run):
        report = in_session(
            config, zookeeper,
            lambda store, place, settings, runtime: sweep_cluster(store, place, settings, runtime, is_dry_run=dry_run),
        )  # fmt: skip
    tell("cluster_sweep", asdict(report), _sweep_lines(report), as_json=as_json)


def _audited(
    config: Path | None, zookeeper: str | None, command: str, resource: str = "logs", *, is_dry_run: bool = False
) -> AbstractContextManager[CommandAudit]:
    """Record a command in the audit log that the settings name."""
    return audited(lambda: load(config, zookeeper), f"cluster {command}", resource, is_dry_run=is_dry_run)


def _with_logs(
    config: Path | None,
    zookeeper: str | None,
    call: Callable[[ObjectLogAdministration | BookKeeperAdministration], Awaitable[T]],
) -> tuple[T, Mapping[int, HeldNode]]:
    """Run `call` on the logs of the cluster; return its result, and who held the containers before."""

    async def run(
        store: CoordinationStore, place: str, settings: StandaloneSettings, runtime: Runtime
    ) -> tuple[T, Mapping[int, HeldNode]]:
        from penstock.administration.cluster_logs import cluster_logs
        from penstock.server.cluster.administration import ClusterAdministration

        async with cluster_logs(store, place, settings, runtime) as logs:
            found = await ClusterAdministration(store, place, runtime, "").status()
            return await call(logs), found.view.held

    return in_session(config, zookeeper, run)


def _holder(held: Mapping[int, HeldNode], container: int) -> str:
    return held[container].owner if container in held else ""


def _error(held: Mapping[int, HeldNode], container: int) -> str:
    return held[container].error if container in held else ""


def _tell_changed(container: int, what: str, holder: str, *, as_json: bool) -> None:
    by = f"; store {holder} had the container" if holder else "; no store had the container"
    line = f"the log of container {container} is {what}{by}"
    tell(what, {"container": container, "holder": holder}, [line], as_json=as_json)


def _object_lines(found: LogSweepReport, done: str) -> Iterator[str]:
    for journal in found.unnamed:
        yield f"journal {journal.journal}: {journal.object_count} objects, {in_bytes(journal.length_bytes)}"
    for key in found.foreign:
        yield f"{key} is not part of a log; it stays"
    yield (
        f"{found.object_count} objects with {in_bytes(found.length_bytes)} {done}; {found.kept_count} objects are "
        f"needed, {found.seal_count} seals and {found.foreign_count} other objects stay"
    )


def _ledger_lines(found: LedgerSweepReport, done: str) -> Iterator[str]:
    for ledger_id in found.unnamed:
        yield f"ledger {ledger_id}"
    yield (
        f"{len(found.unnamed)} ledgers {done}; {found.kept_count} are needed, {found.foreign_count} ledgers of others "
        "stay"
    )


def _sweep_lines(report: ClusterSweepReport) -> Iterator[str]:
    done = "would be deleted" if report.is_dry_run else "deleted"
    from penstock.administration.bookkeeper_administration import LedgerSweepReport

    found = report.log
    yield from _ledger_lines(found, done) if isinstance(found, LedgerSweepReport) else _object_lines(found, done)
    for incarnation in report.ends[:_LISTED_MAX]:
        yield f"proof of the end of {incarnation}"
    yield f"{len(report.ends)} proofs of ends of processes {done}; {report.kept_end_count} stay"
    for name in report.idle_drains:
        yield f"store {name} is drained and not live; if it will not return: penstock cluster undrain {name}"
    for path in report.foreign_nodes:
        yield f"node {path} is not part of a cluster; it stays"

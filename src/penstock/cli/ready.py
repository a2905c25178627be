"""``penstock ready``: a probe for scripts, containers and supervisors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.quantities import seconds_of
from penstock.runtime.settings import DEFAULT_URI


def ready(
    uri: Annotated[str, typer.Option(help="The controller.", envvar="PENSTOCK_URI")] = DEFAULT_URI,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            "--timeout-s",
            parser=seconds_of,
            metavar="DURATION",
            help="How long to wait for the server, as 5s or 1m; a plain number means seconds.",
        ),
    ] = 5.0,
    store: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Query this segment store alone, without a controller.")
    ] = None,
    controller: Annotated[bool, typer.Option("--controller", help="Query the controller alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Exit with 0 if the server serves clients; otherwise print the reason and exit with 1.

    Queries the controller and every segment store, to detect a container that is down or a full disk that blocks
    writes. Changes nothing. Repeats this until the timeout, so the server can be started just before.
    """
    # Only now: the help of all commands should not load a client.
    from penstock.cli.probe import probe, probe_store
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json):
        if store is not None and controller:
            raise InvalidArgumentError("--store and --controller: query one of them")
        if store is not None:
            found = asyncio.run(probe_store(store, timeout_s))
        else:
            found = asyncio.run(probe(uri, timeout_s, asks_stores=not controller))
    if as_json:
        typer.echo(json.dumps({"type": "ready", **asdict(found)}))
    else:
        parts = (("controller", found.controller), ("segment store", found.segment_store))
        typer.echo("ready: " + ", ".join(f"{what} {where}" for what, where in parts if where))

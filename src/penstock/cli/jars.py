"""``penstock jars``: fetches the jars of BookKeeper's client, which the log in BookKeeper needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import AsJson
from penstock.cli.output import tell


def jars(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Directory for the jars; made if it is missing.")],
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Time for the fetch.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Fetch the jars of BookKeeper's client through Maven, for a log in BookKeeper.

    Needs Maven (mvn) and Java. Set PENSTOCK_BOOKKEEPER__JARS to the directory for every segment store.
    """
    from penstock.server.client_jars import fetch_jars

    with exit_on_error(as_json=as_json):
        count = fetch_jars(to, timeout_s)
        place = str(to.resolve())
    lines = [f"{count} jars are in {place}", f"set PENSTOCK_BOOKKEEPER__JARS={place} for each segment store"]
    tell("jars", {"directory": place, "count": count}, lines, as_json=as_json)

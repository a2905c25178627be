"""``penstock version``."""

from __future__ import annotations

import json
import platform
from typing import Annotated

import typer

from penstock.runtime.version import penstock_version


def version(as_json: Annotated[bool, typer.Option("--json", help="Print the versions as JSON.")] = False) -> None:
    """Print the versions of Penstock and of Python."""
    versions = {"penstock": penstock_version(), "python": platform.python_version()}
    typer.echo(json.dumps(versions) if as_json else "\n".join(f"{name} {value}" for name, value in versions.items()))

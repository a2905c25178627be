"""The option ``--outage`` of jobs: how long each of their phases retries while the server is unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.cli.session import Session
    from penstock.client.settings import ClientSettings

#: Without the option.
OUTAGE_DEFAULT = "2m"

Outage = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long to retry while the server, or the catalogue of an export, is unavailable; if given, also if it "
        f"is at the start. [default: {OUTAGE_DEFAULT}]",
    ),
]


def outage_s_of(outage: str | None) -> float:
    """Return the option in seconds. Raises `InvalidArgumentError`: it is no duration."""
    from penstock.cli.quantities import milliseconds_of

    return milliseconds_of(outage or OUTAGE_DEFAULT) / 1000


@contextmanager
def job_session(uri: str, outage: str | None) -> Iterator[Session]:
    """Give a session whose calls outlast the outage, as the reads and writes of the job do.

    Without the option, a server that was never reached is reported at once: its address may be wrong.
    """
    from penstock.cli.session import connected
    from penstock.client.settings import ClientSettings
    from penstock.spark.store import outage_settings

    settings: ClientSettings = outage_settings(outage_s_of(outage))
    if outage is None:
        settings = replace(settings, first_contact_timeout_s=ClientSettings().first_contact_timeout_s)
    with connected(uri, settings) as session:
        yield session

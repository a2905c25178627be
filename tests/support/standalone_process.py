"""`StandaloneProcess` of `penstock.server.standalone_process`, and the warnings in a log of it."""

from __future__ import annotations

import re

from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    StandaloneProcess,
    child_environment,
    run_penstock,
)

__all__ = [
    "START_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "ServerProcessError",
    "StandaloneProcess",
    "child_environment",
    "run_penstock",
    "warnings_in",
]


def warnings_in(log: str) -> list[str]:
    """Return the lines of a server's log that are not of level INFO: warnings, errors, tracebacks, other output."""
    return [line for line in log.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO ", line)]

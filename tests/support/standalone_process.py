"""`StandaloneProcess` for tests: that of `penstock.server.standalone_process`, under the name tests know."""

from __future__ import annotations

from penstock.server.standalone_process import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    ServerProcessError,
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
]

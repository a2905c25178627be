"""`StandaloneProcess` for tests: that of `penstock.testing.processes`, under the name tests know."""

from __future__ import annotations

from penstock.testing.processes import (
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

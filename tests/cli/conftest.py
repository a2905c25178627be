"""A way to run commands against one server in memory, for all tests here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from penstock.testing.server import MemoryServer
from support.command_line import Ran, run_command

Run = Callable[..., Ran]


@pytest.fixture
def penstock(penstock_server: MemoryServer) -> Run:
    """Run ``penstock`` in this process, with `PENSTOCK_URI` set."""
    return partial(run_command, uri=penstock_server.uri)

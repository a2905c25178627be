"""Programs that are started beside a client, as PySpark starts Java: gRPC must not end them before they begin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import subprocess
import penstock
from penstock.testing import memory_server

# Searched for in very many directories: the child has the state of its parent for a while, except open files.
searched = ":".join([*(f"/nowhere/{number}" for number in range(3000)), "/usr/bin", "/bin"])
with memory_server() as server, penstock.connect(server.uri) as client:
    client.create_stream("started/stream")
    for number in range(20):
        # A function to call in the child makes subprocess fork, as PySpark does.
        ran = subprocess.run(["true"], preexec_fn=lambda: None, env={"PATH": searched}, stderr=subprocess.PIPE)
        assert (ran.returncode, ran.stderr) == (0, b""), (number, ran)
"""


def test_programs_that_are_started_beside_a_client_begin() -> None:
    """Not so where gRPC minds forks itself: its thread in the child crashes, and the child with it."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("before", "after"), [(None, "false"), ("true", "true")])
def test_support_of_forks_by_grpc_can_be_enabled(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    if before is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = before
    program = "import os, penstock; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.stdout.strip() == after

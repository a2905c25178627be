"""gRPC's core, which is not Python and knows no `logging`, says nothing on a user's terminal that is no error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.server.standalone_process import child_environment

#: Stops a server while calls of twenty clients are under way; each of them gets a GOAWAY.
PROGRAM = """
import penstock
import asyncio
import os
from random import Random
import grpc.aio
from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.rpc.controller_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server

CLIENTS = 20

class Hangs(ControllerServiceServicer):
    count = 0
    async def checkScopeExists(self, request, context):
        self.count += 1
        if self.count == CLIENTS:
            all_came.set()
        await asyncio.sleep(60)

async def main():
    global all_came
    all_came = asyncio.Event()
    server = grpc.aio.server()
    add_ControllerServiceServicer_to_server(Hangs(), server)
    port = server.add_insecure_port("0.0.0.0:0")
    await server.start()
    settings = ClientSettings(controller_attempt_count_max=1)
    # An address for each: channels to one address share a connection.
    clients = [
        ControllerClient.connect(f"tcp://127.0.0.{number}:{port}", settings, Random(number))
        for number in range(1, CLIENTS + 1)
    ]
    calls = [asyncio.ensure_future(client.scope_exists("a")) for client in clients]
    await all_came.wait()
    await server.stop(None)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, PenstockError) for end in ends), ends
    for client in clients:
        await client.close()
    print(os.environ["GRPC_VERBOSITY"])

asyncio.run(main())
"""


@pytest.mark.parametrize("verbosity", [None, "INFO"], ids=["by itself", "asked for"])
def test_grpc_logs_no_lost_server_unless_logging_is_enabled(verbosity: str | None) -> None:
    """With INFO, gRPC logs a GOAWAY only if it comes before the connection is closed; this is not checked."""
    environment = child_environment(**({} if verbosity is None else {"GRPC_VERBOSITY": verbosity}))
    if verbosity is None:
        environment.pop("GRPC_VERBOSITY", None)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert ended.stdout == f"{verbosity or 'ERROR'}\n", ended.stderr
    if verbosity is None:
        assert "goaway" not in ended.stderr.lower()

"""The unmodified PyPI client drives the control plane in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from controller.conftest import Wire

SCRIPT = """
import os, sys
import pravega_client as pravega
manager = pravega.StreamManager("tcp://127.0.0.1:" + sys.argv[1])
assert (manager.create_scope("s"), manager.create_scope("s")) == (True, False)
assert (manager.create_stream("s", "t", 2), manager.create_stream("s", "t", 2)) == (True, False)
by_rate = pravega.StreamScalingPolicy.auto_scaling_policy_by_event_rate(10, 2, 1)
by_size = pravega.StreamRetentionPolicy.by_size(1000)
assert manager.create_stream_with_policy("s", "u", by_rate, by_size, ["a", "b"])
assert manager.get_stream_tags("s", "u") == ["a", "b"]
assert manager.update_stream_with_policy("s", "u", by_rate, by_size, ["c"])
assert manager.get_stream_tags("s", "u") == ["c"]
assert sorted(manager.list_scope()) == ["_system", "s"]
assert sorted(manager.list_stream("s")) == ["_MARKt", "_MARKu", "t", "u"]
calls = [lambda: manager.get_stream_tags("s", "none"), lambda: manager.delete_scope("s")]
for call in [*calls, lambda: manager.create_scope("a_b")]:
    try:
        call()
    except ValueError:
        pass
    else:
        raise AssertionError("should fail")
for stream in ("t", "u"):
    assert manager.seal_stream("s", stream) and manager.delete_stream("s", stream)
assert manager.delete_scope("s")
# Not an ordinary end: a thread of the client that asks for the interpreter then aborts the process at times.
os._exit(0)
"""


@pytest.mark.interop
async def test_pypi_client_manages_scopes_and_streams(wire: Wire) -> None:
    """K-4 for the functions that need no segment store."""
    pytest.importorskip("pravega_client")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, str(wire.server.port), stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()

"""The parent of segment stores is asked to stop while a child starts: the child is asked to stop, too, not killed.

The child is a script, so that its start takes as long as the test wants.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from penstock.model.cluster_nodes import Endpoint
from penstock.runtime.settings import load_settings
from penstock.server.cluster.messages import MemberReady
from penstock.server.cluster.store_host import StoreHost
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.messages import encode_message
from support.cluster_processes import Cluster
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

pytestmark = pytest.mark.e2e

SETTINGS = """
[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[store_processes]
restart_delay_s = 0.01
"""
#: Begins when it has its order. The first child is ready at once if there is a file to say so; the others never are.
CHILD = """#!/bin/sh
cd {directory}
trap 'touch ended-$$; exit 0' TERM
read order
if [ -e ready ]; then cat ready; rm ready; fi
touch began-$$
while :; do sleep 0.02; done
"""


@pytest.fixture
def host(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoreHost:
    """The parent of one store whose process is the script. It is not started."""
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    settings = SETTINGS.format(endpoint=s3_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    place = f"{zookeeper_server.address}/{bucket}"
    cluster = Cluster(tmp_path, place, f"s3://{bucket}/log", f"s3://{bucket}/data", settings)
    cluster.init(2)
    script = tmp_path / "child"
    script.write_text(CHILD.format(directory=tmp_path))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    flags = {"cluster.zookeeper": place, "cluster.name": "a"}
    return StoreHost(load_settings(StandaloneSettings, file=cluster.config, environment={}, flags=flags))


async def began(directory: Path, count: int) -> list[int]:
    """Wait until so many children have begun; return their process ids."""
    while len(found := list(directory.glob("began-*"))) < count:  # noqa: ASYNC110  # made by other processes
        await asyncio.sleep(0.02)
    return [int(path.name.partition("-")[2]) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


async def test_a_stop_during_the_first_start_lets_the_child_end_by_itself(host: StoreHost, tmp_path: Path) -> None:
    starting = asyncio.create_task(host.start())
    (pid,) = await began(tmp_path, 1)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert (tmp_path / f"ended-{pid}").exists()


async def test_a_stop_during_a_restart_lets_the_child_end_by_itself(host: StoreHost, tmp_path: Path) -> None:
    (tmp_path / "ready").write_bytes(encode_message(MemberReady({"default": Endpoint("127.0.0.1", 1)})))
    await host.start()
    (first,) = await began(tmp_path, 1)
    os.kill(first, signal.SIGKILL)
    second = (await began(tmp_path, 2))[1]
    await host.stop()
    assert (tmp_path / f"ended-{second}").exists()

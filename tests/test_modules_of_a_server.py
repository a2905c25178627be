"""What a plain server loads: code that only other servers need stays out of its memory.

Each module takes memory for as long as the process lives. Parts that a server has by its settings (encryption, a log in
a bucket, several processes, ...) are imported where they are used. Measured as a list of modules, which is the same on
every machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: The plain server has this many modules of Penstock. More only for what every server needs; then raise it.
MODULES_MAX = 431

#: Prefixes of modules that a plain server does not load, by the part that needs them.
OTHERS = {
    "the client, of a server with several processes": ("penstock.client.statistics", "penstock.client.transport"),
    "several store processes": ("penstock.server.store_processes.",),
    "a cluster on several machines": (
        "penstock.controller.cluster.leader", "penstock.model.cluster_nodes", "penstock.server.cluster.", "kazoo",
    ),
    "a log in a bucket": (
        "penstock.segmentstore.tier1.object_log.factory", "penstock.server.bucket_log", "penstock.server.log_probe",
        "penstock.runtime.bucket_rules",
    ),
    "long-term storage in a bucket": (
        "penstock.segmentstore.tier2.object_storage.", "penstock.runtime.obstore_objects", "obstore",
        "penstock.runtime.directory_objects",
    ),
    "long-term storage in HDFS": ("penstock.segmentstore.tier2.hdfs_storage.", "penstock.runtime.hdfs_files", "httpx"),
    "a log in BookKeeper": (
        "penstock.segmentstore.tier1.bookkeeper.factory", "penstock.runtime.bookkeeper",
        "penstock.runtime.java_machine",
    ),
    "encryption and authentication": (
        "penstock.security.accounts", "penstock.security.certificates", "penstock.security.server_security",
        "penstock.security.tokens", "penstock.controller.grpc.guard", "penstock.controller.grpc.call_audit",
        "penstock.runtime.tls_listener", "cryptography",
    ),
    "metrics": ("penstock.operations.endpoint", "penstock.operations.metrics", "penstock.operations.group_lag"),
    "storage in memory": ("penstock.segmentstore.tier1.memory_log", "penstock.segmentstore.tier2.memory."),
    "repairs": ("penstock.administration", "penstock.segmentstore.container.log.salvage"),
    "other programs": ("penstock.web", "penstock.jobs", "penstock.spark", "penstock.quickstart", "numpy", "pyarrow"),
    "readers of metadata, XML and HTTP": ("importlib.metadata", "email", "xml.etree", "http.client", "urllib.request"),
}  # fmt: skip

_SERVER = """
import asyncio, json, sys
import penstock.cli, penstock.cli.standalone, penstock.cli.serve
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

async def run():
    async with Standalone(StandaloneSettings(data_dir=sys.argv[1], controller_port=0, segment_store_port=0)):
        print(json.dumps(sorted(sys.modules)))

asyncio.run(run())
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules of a server that has just started."""
    directory: Path = tmp_path_factory.mktemp("server")
    done = subprocess.run(
        [sys.executable, "-c", _SERVER, str(directory / "data")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    names: list[str] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("part", OTHERS)
def test_a_plain_server_loads_nothing_of_parts_that_it_does_not_have(part: str, loaded: list[str]) -> None:
    # A name that ends in a dot: this module and those below it, not all whose names begin with it.
    unwanted = [
        name for name in loaded if any(name == each.rstrip(".") or name.startswith(each) for each in OTHERS[part])
    ]
    assert unwanted == []


def test_a_plain_server_loads_few_modules(loaded: list[str]) -> None:
    own = [name for name in loaded if name.split(".")[0] == "penstock"]
    # It has a store, a controller and their servers.
    assert 300 < len(own) <= MODULES_MAX


def test_each_module_in_the_list_exists() -> None:
    for name in (each.rstrip(".") for part in OTHERS.values() for each in part if each.startswith("penstock")):
        path = Path(__file__).parent.parent / "src" / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), name

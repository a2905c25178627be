"""Nodes and objects of clusters of earlier commits are decoded by the code of today, each one; none has unknown fields.

`tests/support/old_cluster.py` made them. `tests/e2e/test_old_clusters.py` opens them with real processes.
"""

from __future__ import annotations

import pytest

from penstock.model.cluster_nodes import (
    AssignmentNode,
    CandidateNode,
    ClusterIdentity,
    ControllerNode,
    DrainNode,
    EndNode,
    HeldNode,
    HostNode,
    LoadNode,
    NodeContent,
    decode_node,
)
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord
from penstock.segmentstore.tier1.object_log.journal_format import decode_header, decode_section, decode_table
from penstock.segmentstore.tier1.object_log.server_claim import FORMAT_VERSION
from penstock.segmentstore.tier1.owned_record import decode_record
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from support.old_cluster import ARCHIVES, unpacked

KINDS: dict[str, type[NodeContent]] = {
    "identity": ClusterIdentity,
    "hosts": HostNode,
    "held": HeldNode,
    "assignment": AssignmentNode,
    "drains": DrainNode,
    "loads": LoadNode,
    "ends": EndNode,
    "controllers": ControllerNode,
    "election": CandidateNode,
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_each_node_of_an_earlier_commit_is_read(name: str) -> None:
    found: set[str] = set()
    for path, content in unpacked(name).nodes.items():
        if content:
            kind = path.split("/")[1]
            assert decode_node(KINDS[kind], path, content).extra == {}, path
            found.add(kind)
    assert found >= {"identity", "hosts", "held", "assignment", "controllers", "election"}


@pytest.mark.parametrize("name", ARCHIVES)
def test_each_object_of_the_log_of_an_earlier_commit_is_read(name: str) -> None:
    archive = unpacked(name)
    objects = archive.objects
    identity = decode_record(objects["log/identity"], "log/identity", FORMAT_VERSION)
    assert StorageIdentity.decode(objects["data/penstock-storage.toml"], "data").cluster_id == identity["cluster"]
    assert decode_record(objects["log/server"], "log/server", FORMAT_VERSION)["zookeeper"]
    frame_count = 0
    for key, content in objects.items():
        if key.startswith("log/r/"):
            record = ContainerRecord.decode(content, key, int(key.rpartition("/")[2]), str(identity["cluster"]))
            assert record.epoch > 0
        elif key.startswith("log/j/"):
            journal, slot = key.split("/")[2:]
            header = decode_header(content, key, bytes.fromhex(journal), int(slot, 16))
            for section in decode_table(header, content, key):
                data = content[section.offset : section.offset + section.length]
                frame_count += len(decode_section(section, data, key))
    assert frame_count > 0

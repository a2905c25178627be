"""Contents of nodes: their exact bytes, fields and versions of later releases, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.cluster_nodes import (
    AssignmentNode,
    CandidateNode,
    ClusterIdentity,
    ContainerLoad,
    ControllerNode,
    DrainNode,
    EndNode,
    Endpoint,
    HeldNode,
    HeldPhase,
    HostNode,
    HostState,
    LoadNode,
    MovedContainer,
    NodeContent,
    SecurityMark,
    decode_node,
    encode_node,
    host_node_name,
    split_host_node_name,
)
from penstock.model.errors.coordination import NodeFormatError

#: One of each kind, and its bytes: these are in stored clusters and never change.
GOLDEN: list[tuple[NodeContent, bytes]] = [
    (
        ClusterIdentity(
            cluster_id="00ff" * 8, container_count=8, log="s3://b/log", tier2="s3://b/data", ownership_lease_s_max=4.0
        ),
        b'{"v":1,"cluster_id":"00ff00ff00ff00ff00ff00ff00ff00ff","container_count":8,"log":"s3://b/log",'
        b'"tier2":"s3://b/data","ownership_lease_s_max":4.0}',
    ),
    (
        HostNode(
            endpoints={"default": Endpoint("store-1", 6000)}, zone="z", weight=2, version="0.1.0",
            state=HostState.DRAINING, admin_port=9999,
        ),
        b'{"v":1,"endpoints":{"default":{"host":"store-1","port":6000}},"zone":"z","weight":2,"version":"0.1.0",'
        b'"state":"draining","admin_port":9999}',
    ),
    (
        HeldNode(owner="a-0", incarnation="0f", phase=HeldPhase.SERVING, epoch=7),
        b'{"v":1,"owner":"a-0","incarnation":"0f","phase":"serving","epoch":7,"error":""}',
    ),
    (
        AssignmentNode(number=3, nonce="0a", owners=("a", ""), why=(MovedContainer(0, "b", "a", "lost"),)),
        b'{"v":1,"number":3,"nonce":"0a","owners":["a",""],'
        b'"why":[{"container_id":0,"source":"b","target":"a","reason":"lost"}]}',
    ),
    (DrainNode(by="admin", since_ms=17), b'{"v":1,"by":"admin","since_ms":17}'),
    (
        LoadNode(busy=0.5, containers={3: ContainerLoad(1.0, 2.0, 3.0, 4.0, 5)}, log_problem_s=0.0),
        b'{"v":1,"busy":0.5,"containers":{"3":{"bytes_in":1.0,"bytes_out":2.0,"operations_in":3.0,'
        b'"operations_out":4.0,"log_bytes":5}},"log_problem_s":0.0}',
    ),
    (EndNode(name="a-0", by="parent"), b'{"v":1,"name":"a-0","by":"parent"}'),
    (
        ControllerNode(endpoints={"default": Endpoint("c", 9090)}),
        b'{"v":1,"endpoints":{"default":{"host":"c","port":9090}}}',
    ),
    (
        ControllerNode(endpoints={}, security=SecurityMark(tls=True, auth=True, keys=("00ff00ff00ff00ff",))),
        b'{"v":1,"endpoints":{},"security":{"tls":true,"auth":true,"keys":["00ff00ff00ff00ff"]}}',
    ),
    (
        HostNode(endpoints={}, security=SecurityMark(tls=True)),
        b'{"v":1,"endpoints":{},"zone":"","weight":1,"version":"","state":"up","admin_port":0,'
        b'"security":{"tls":true,"auth":false,"keys":[]}}',
    ),
    (CandidateNode(name="ctl-1"), b'{"v":1,"name":"ctl-1"}'),
]  # fmt: skip


@pytest.mark.parametrize(("content", "golden"), GOLDEN, ids=lambda each: type(each).__name__)
def test_contents_have_these_bytes(content: NodeContent, golden: bytes) -> None:
    """Both ways."""
    assert encode_node(content) == golden
    assert decode_node(type(content), "/x", golden) == content


@pytest.mark.parametrize(("content", "golden"), GOLDEN, ids=lambda each: type(each).__name__)
def test_fields_of_a_later_release_are_kept(content: NodeContent, golden: bytes) -> None:
    """An older release that writes a node again does not take away what it does not know."""
    later = golden[:-1] + b',"later":{"deep":[1,null]}}'
    read = decode_node(type(content), "/x", later)
    assert read.extra == {"later": {"deep": [1, None]}}
    assert encode_node(read) == later


@pytest.mark.parametrize(("content", "golden"), GOLDEN, ids=lambda each: type(each).__name__)
def test_a_later_version_is_refused(content: NodeContent, golden: bytes) -> None:
    """The error says that it is not damage."""
    with pytest.raises(NodeFormatError, match=r"/some/path.*version 2.*later release"):
        decode_node(type(content), "/some/path", golden.replace(b'"v":1', b'"v":2'))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"{}", b'{"v":"1"}', b'{"v":1}', b'{"v":1,"owner":7}', b"\xff\xfe",
     b'{"v":1,"owner":"a","incarnation":"b","phase":"sleeping"}'],
)  # fmt: skip
def test_invalid_content_is_refused(content: bytes) -> None:
    """By the one error, which names the node."""
    with pytest.raises(NodeFormatError) as caught:
        decode_node(HeldNode, "/held/3", content)
    assert caught.value.path == "/held/3"


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    """Also bytes in the middle of a content."""
    for damaged in (content, b'{"v":1,"owners":[' + content + b"]}"):
        try:
            decode_node(AssignmentNode, "/assignment", damaged)
        except NodeFormatError:
            continue


def test_names_of_hosts() -> None:
    """The incarnation is after the last mark, as names may have one."""
    assert split_host_node_name(host_node_name("a~b", "0f")) == ("a~b", "0f")
    for wrong in ("a", "~0f", "a~"):
        with pytest.raises(NodeFormatError):
            split_host_node_name(wrong)

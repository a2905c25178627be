"""What a cluster of three controllers and three segment stores tells clients of each of its networks.

Log and data are in directories, so no S3 server is needed. Every process has two named listeners: `inside` on 127.0.0.1
and `outside` on 127.0.0.2; clients of one listener get addresses of that one only.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import penstock
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from support.cluster_processes import WAIT_S, Cluster
from support.zookeeper_server import ZooKeeperServers

pytestmark = [pytest.mark.interop, pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

STORES, CONTROLLERS = ("a", "b", "c"), ("c1", "c2", "c3")
INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"
SETTINGS = """
[object_log]
batch_interval_s = 0.02

[cluster]
internal_listener = "inside"

[cluster.leader]
join_delay_s = 1.0
first_wait_s = 1.0
"""


class ListeningCluster(Cluster):
    """A cluster whose processes have two listeners, on ports that they keep."""

    def start_each(self, *names: str) -> None:
        """Start processes, and wait until all containers are served."""
        started = []
        for name in names:
            port = self.ports.setdefault(name, _port())
            listeners = f"inside={INSIDE}:{port},outside={OUTSIDE}:{port}"
            start = self.start_controller if name in CONTROLLERS else self.start_store
            started.append(start(name, "--listeners", listeners))
        for process in started:
            process.wait_ready()
        self.wait_served()


def _port() -> int:
    with socket.socket() as probe:
        probe.bind((INSIDE, 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(zookeeper_server: ZooKeeperServers, tmp_path: Path) -> Iterator[ListeningCluster]:
    """Three stores and three controllers, which serve."""
    for name in ("log", "data"):
        (tmp_path / name).mkdir()
    log, tier2 = f"file://{tmp_path}/log", f"file://{tmp_path}/data"
    made = ListeningCluster(tmp_path, f"{zookeeper_server.address}/{tmp_path.name}", log, tier2, SETTINGS)
    made.init(6)
    made.start_each(*STORES, *CONTROLLERS)
    yield made
    made.stop()


def test_each_listener_gives_its_own_addresses(cluster: ListeningCluster) -> None:
    """The list of controllers, and the stores of segments."""
    with penstock.connect(cluster.uri("c1")) as client:
        client.create_stream("shop/orders", scaling=penstock.Scaling.fixed(6))
    segments = [
        pb.SegmentId(streamInfo=pb.StreamInfo(scope="shop", stream="orders"), segmentId=number) for number in range(6)
    ]
    for host in (INSIDE, OUTSIDE):
        for name in CONTROLLERS:
            with grpc.insecure_channel(f"{host}:{cluster.ports[name]}") as channel:
                stub = ControllerServiceStub(channel)
                listed = stub.getControllerServerList(pb.ServerRequest(), timeout=WAIT_S).nodeURI
                assert {(each.endpoint, each.port) for each in listed} == {
                    (host, cluster.ports[each]) for each in CONTROLLERS
                }
                stores = [stub.getURI(segment, timeout=WAIT_S) for segment in segments]
                assert {(each.endpoint, each.port) for each in stores} <= {
                    (host, cluster.ports[each]) for each in STORES
                }
                assert len({each.port for each in stores}) > 1

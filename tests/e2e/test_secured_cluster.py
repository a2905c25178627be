"""A cluster of real processes with TLS, accounts and tokens, and a ZooKeeper whose nodes are for its account alone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.settings import ClientSettings
from penstock.model.errors import AuthenticationError, PenstockError
from penstock.model.errors.coordination import CoordinationRefusedError
from penstock.runtime.client_security import Credentials
from penstock.runtime.coordination import CoordinationAccess, CoordinationPlace
from penstock.runtime.zookeeper import ZooKeeper
from penstock.server.standalone_process import run_penstock
from support.client_certificates import ClientAuthority
from support.cluster_processes import WAIT_S, Cluster, ClusterProcess, kill_process
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CONTAINERS = 4
SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.5

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[object_log]
batch_interval_s = 0.02

[cluster]
zookeeper_user = "penstock"
zookeeper_password_file = "{password_file}"

[cluster.leader]
join_delay_s = 1.0
first_wait_s = 1.0

[security]
token_ttl_s = 10
reload_interval_s = 0.5
"""


@pytest.fixture
def cluster(zookeeper_server: ZooKeeperServers, s3_server: S3Server, tmp_path: Path) -> Iterator[Cluster]:
    """A secured cluster that was made, without processes."""
    if not s3_server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    pytest.importorskip("cryptography", reason="needs the extra [security]")
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    (tmp_path / "zookeeper.password").write_text("zk secret\n")
    (tmp_path / "zookeeper.password").chmod(0o600)
    secrets = tmp_path / "secrets"
    done = run_penstock("security", "make", "--host", "store-1", "--data-dir", str(secrets), timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    made = Cluster(
        tmp_path,
        f"{zookeeper_server.address}/{bucket}",
        f"s3://{bucket}/log",
        f"s3://{bucket}/data",
        SETTINGS.format(
            endpoint=s3_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY,
            password_file=tmp_path / "zookeeper.password",
        ),
        secrets=secrets,
    )  # fmt: skip
    made.init(CONTAINERS)
    yield made
    made.stop()


def files(cluster: Cluster) -> Path:
    assert cluster.secrets is not None
    return cluster.secrets / "security"


def password(cluster: Cluster) -> str:
    return (files(cluster) / "admin.password").read_text().strip()


def client_of(cluster: Cluster, *controllers: str) -> penstock.Client:
    return penstock.connect(
        cluster.uri(*controllers), ClientSettings(retry_time_max_s=60.0),
        credentials=Credentials("admin", password(cluster)), ca=files(cluster) / "ca.crt",
    )  # fmt: skip


def write(client: penstock.Client, numbers: range) -> None:
    with client.event_writer("shop/orders") as writer:
        for number in numbers:
            writer.write(b"%d" % number, routing_key=str(number % 5))
        writer.flush(timeout_s=WAIT_S)


def numbers_of(client: penstock.Client) -> list[int]:
    with client.batch("shop/orders") as batch:
        return sorted(int(bytes(event.data)) for part in batch.ranges for event in batch.events(part))


PYPI = """
import os, sys
import pravega_client

manager = pravega_client.StreamManager(sys.argv[1], auth_enabled=True, tls_enabled=True)
writer = manager.create_writer("shop", "orders")
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    writer.write_event(f"{number}", routing_key="7")
writer.flush()
# Not an ordinary end: a thread of the client that asks for the interpreter then aborts the process at times.
os._exit(0)
"""


def write_with_pypi(cluster: Cluster, numbers: range) -> None:
    """Write with Pravega's client from PyPI, in a process: it reads its environment once."""
    environment = os.environ | {
        "pravega_client_tls_cert_path": str(files(cluster) / "ca.crt"), "pravega_client_auth_method": "Basic",
        "pravega_client_auth_username": "admin", "pravega_client_auth_password": password(cluster),
    }  # fmt: skip
    # Its TLS library accepts names only.
    controller = cluster.uri("c2").replace("127.0.0.1", "localhost")
    ran = subprocess.run(
        [sys.executable, "-c", PYPI, controller, str(numbers.start), str(numbers.stop)],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def start_all(cluster: Cluster) -> None:
    for name in "abc":
        cluster.start_store(name)
    for name in ("c1", "c2"):
        cluster.start_controller(name)
    for process in cluster.processes.values():
        process.wait_ready()
    cluster.wait_served()


def test_a_secured_cluster_survives_the_loss_of_a_store_and_a_controller(
    cluster: Cluster, zookeeper_server: ZooKeeperServers
) -> None:
    """With its own client and with Pravega's from PyPI; without credentials nothing is reached, also in ZooKeeper."""
    start_all(cluster)
    with client_of(cluster, "c1", "c2") as client:
        client.create_stream("shop/orders", scaling=penstock.Scaling.fixed(4))
        write(client, range(100))
        if importable("pravega_client"):
            write_with_pypi(cluster, range(100, 120))
        else:
            write(client, range(100, 120))
        kill_process(cluster.processes["a"].store_pids()[0])
        write(client, range(120, 160))
        cluster.processes["b"].kill()
        cluster.processes["c1"].kill()
        write(client, range(160, 260))
        client.create_stream("shop/later")
        assert numbers_of(client) == list(range(260))
    with pytest.raises(AuthenticationError), penstock.connect(
        cluster.uri("c2"), ca=files(cluster) / "ca.crt", credentials=Credentials("admin", "wrong")
    ) as wrong:  # fmt: skip
        wrong.create_stream("shop/wrong")
    with pytest.raises(PenstockError), penstock.connect(
        cluster.uri("c2").replace("tls", "tcp"), ClientSettings(first_contact_timeout_s=5)
    ) as plain:  # fmt: skip
        plain.create_stream("shop/plain")
    secrets = [password(cluster), "zk secret", (files(cluster) / "token.key").read_text().strip()]
    for process in cluster.processes.values():
        assert not any(secret in process.log for secret in secrets), process.name
    with pytest.raises(CoordinationRefusedError):
        asyncio.run(read_identity_of(cluster, CoordinationAccess()))
    with pytest.raises(CoordinationRefusedError):
        asyncio.run(read_identity_of(cluster, CoordinationAccess("penstock", "wrong")))
    assert json.loads(asyncio.run(read_identity_of(cluster, CoordinationAccess("penstock", "zk secret"))))["log"]


def importable(name: str) -> bool:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False)
    return done.returncode == 0


async def read_identity_of(cluster: Cluster, access: CoordinationAccess) -> bytes:
    session = await ZooKeeper(CoordinationPlace.parse(cluster.zookeeper), None, access).open_session()
    try:
        return (await session.get("/identity")).content
    finally:
        await session.close()


def refusal(process: ClusterProcess) -> str:
    """Return the error with which a process ends."""
    assert process.process is not None
    assert process.process.wait(WAIT_S) == 1
    (record,) = process.records
    return str(record.get("message", record))


@pytest.mark.nightly
def test_a_process_with_other_keys_or_without_security_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    """And keys are rotated in steps while processes run; one that starts in between has some of them."""
    cluster.start_store("a")
    cluster.start_controller("c1")
    for process in cluster.processes.values():
        process.wait_ready()
    right, other = cluster.secrets, tmp_path / "other"
    assert right is not None
    shutil.copytree(right, other)
    (other / "security" / "token.key").write_text("x" * 88 + "\n")
    for start in (cluster.start_store, cluster.start_controller):
        cluster.secrets = other
        text = refusal(start("d"))
        assert "Copy one token.key to all machines" in text
        cluster.secrets = None
        assert "security.auth is off here and on in another process" in refusal(start("e"))
    cluster.secrets = right
    (files(cluster) / "token.key").write_text((right / "security" / "token.key").read_text() + "y" * 88 + "\n")
    shutil.rmtree(other)
    shutil.copytree(right, other)
    lines = (right / "security" / "token.key").read_text().splitlines()
    (other / "security" / "token.key").write_text("".join(f"{line}\n" for line in reversed(lines)))
    cluster.secrets = other
    wait_for(lambda: all("read again" in cluster.processes[name].log for name in ("a", "c1")))
    cluster.start_store("f").wait_ready()


@pytest.mark.nightly
def test_client_certificates_prove_accounts_in_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Of a client at controller and stores, also after both have started again."""
    authority = ClientAuthority(tmp_path / "clients")
    ann = authority.issue("ann", ["ann"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = f"""
tls = "on"
auth = "on"
client_ca = "{authority.path}"
client_certificates = "optional"
certificate_port = {port}
"""
    cluster.config.write_text(cluster.config.read_text() + settings)
    with (files(cluster) / "passwd").open("a") as accounts:
        accounts.write("ann:!:prn::*,READ_UPDATE\n")
    uri, ca = f"tls://127.0.0.1:{port}", files(cluster) / "ca.crt"
    cluster.start_store("a")
    cluster.start_controller("c1")
    for process in cluster.processes.values():
        process.wait_ready()
    cluster.wait_served()
    with penstock.connect(
        uri, ClientSettings(retry_time_max_s=120.0), ca=ca, certificate=ann[0], private_key=ann[1]
    ) as client:
        client.create_stream("shop/orders")
        write(client, range(50))
        for name, start in (("a", cluster.start_store), ("c1", cluster.start_controller)):
            cluster.processes[name].kill()
            start(name).wait_ready()
        write(client, range(50, 100))
        assert numbers_of(client) == list(range(100))
    with pytest.raises(PenstockError), penstock.connect(
        uri, ClientSettings(first_contact_timeout_s=5), ca=ca, credentials=Credentials("admin", password(cluster))
    ) as without:  # fmt: skip
        without.create_stream("shop/without")


def wait_for(condition: object) -> None:
    import time

    deadline_s = time.monotonic() + WAIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s
        time.sleep(0.1)

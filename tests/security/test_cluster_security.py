"""Processes of a cluster: which of them fit together, and what they announce about their security."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from penstock.controller.ownership.zookeeper_coordinator import ZooKeeperCoordinator
from penstock.model.cluster_nodes import (
    CONTROLLERS_PATH,
    HOSTS_PATH,
    ControllerNode,
    Endpoint,
    HostNode,
    SecurityMark,
    decode_node,
    encode_node,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import CoordinationUnavailableError
from penstock.runtime.coordination import CoordinationAccess, ensure_node
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.security.key_rotation import KeyRotation
from penstock.security.secrets_directory import cluster_context, make_missing_files, read_token_keys, security_paths
from penstock.security.settings import SecuritySettings
from penstock.security.tokens import TokenKeys
from penstock.server.caller_checks import call_guard, token_access
from penstock.server.cluster.security import (
    check_marks,
    keep_announced,
    open_cluster_security,
    other_processes,
    security_mark,
)
from penstock.server.cluster_settings import ClusterSettings
from penstock.server.errors import ClusterMismatchError
from penstock.server.settings import StandaloneSettings
from support.coordination_backends import LONG, simulated_backend


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    made = real_runtime(2)
    yield made
    await made.work.close()


OFF, TLS = SecurityMark(), SecurityMark(tls=True)
ON = SecurityMark(tls=True, auth=True, keys=("a",))


def keyed(*keys: str) -> SecurityMark:
    return SecurityMark(tls=True, auth=True, keys=keys)


@pytest.mark.parametrize(
    ("own", "other", "problem"),
    [
        (None, None, ""), (None, OFF, ""), (TLS, TLS, ""), (ON, ON, ""),
        (None, ON, "security.auth is off here and on"), (ON, None, "security.auth is on here and off"),
        (TLS, None, "security.tls is on here and off"), (OFF, TLS, "security.tls is off here and on"),
        (keyed("a"), keyed("b"), "Copy one token.key"), (keyed("a"), keyed(), "Copy one token.key"),
        # Steps of a rotation: neighbouring ones fit.
        (keyed("a", "b"), keyed("a"), ""), (keyed("b", "a"), keyed("a", "b"), ""), (keyed("b"), keyed("b", "a"), ""),
        (keyed("b", "a"), keyed("a"), "Copy one token.key"), (keyed("b"), keyed("a", "b"), "Copy one token.key"),
    ],
)  # fmt: skip
def test_a_process_that_is_secured_otherwise_is_refused(
    own: SecurityMark | None, other: SecurityMark | None, problem: str
) -> None:
    node = HostNode(endpoints={"default": Endpoint("store-1", 6000)}, security=other)
    fitting = ControllerNode(security=own)
    others: dict[str, HostNode | ControllerNode] = {"/controllers/c": fitting, "/hosts/s~1": node}
    if not problem:
        check_marks(own, others, "zk")
        return
    with pytest.raises(ClusterMismatchError, match=problem) as refused:
        check_marks(own, others, "zk")
    assert "/hosts/s~1 at zk (store-1:6000)" in str(refused.value)


def test_a_fingerprint_identifies_a_key_without_revealing_it() -> None:
    keys = TokenKeys((b"k" * 64, b"o" * 64))
    first, second = keys.fingerprints(b"cluster")
    assert (first, second) == keys.fingerprints(b"cluster")
    assert TokenKeys((b"o" * 64,)).fingerprints(b"cluster") == (second,)
    assert len({first, second, *keys.fingerprints(b"other")}) == 4
    assert len(first) == 16


async def test_keys_that_are_rotated_are_announced(tmp_path: Path, runtime: Runtime) -> None:
    """By a controller, in the node that it has in the coordination service."""
    settings = SecuritySettings(tls="on", auth="on", reload_interval_s=0.02, token_ttl_s=1)
    paths = security_paths(settings, str(tmp_path))
    make_missing_files(paths, ["localhost"], os.urandom, datetime.datetime.now(datetime.UTC))
    now_s = [1000.0]
    rotation = KeyRotation(paths.token_keys, settings, os.urandom, lambda: now_s[0])
    server = StandaloneSettings(data_dir=str(tmp_path), security=settings)
    backend = simulated_backend()
    async with AsyncExitStack() as stops:
        security = open_cluster_security(server, runtime, stops, has_controller=True)
        assert security is not None
        assert security.peer_tls is not None
        assert call_guard(security) is not None
        assert token_access(security, runtime, None) is not None
        coordinator = ZooKeeperCoordinator(backend.service(LONG), {}, security_mark(security, "id"))
        await coordinator.join("c1")
        announcing = asyncio.ensure_future(keep_announced(security, "id", coordinator.announce))
        stops.callback(announcing.cancel)
        admin = await backend.open()
        for _ in range(3):
            rotation.advance()
            now_s[0] += 10_000
            wanted = read_token_keys(paths.token_keys).fingerprints(b"id")
            async with asyncio.timeout(30):
                while True:
                    node = await admin.get(f"{CONTROLLERS_PATH}/c1")
                    mark = decode_node(ControllerNode, "", node.content).security
                    assert mark is not None
                    if mark.keys == wanted:
                        break
                    await asyncio.sleep(0.01)
        await admin.close()


async def test_an_announcement_that_fails_is_repeated(tmp_path: Path, runtime: Runtime) -> None:
    settings = SecuritySettings(auth="on", token_key="k" * 64, reload_interval_s=0.001)
    (tmp_path / "security").mkdir()
    async with AsyncExitStack() as stops:
        server = StandaloneSettings(data_dir=str(tmp_path), security=settings)
        security = open_cluster_security(server, runtime, stops, has_controller=False)
        assert security is not None
        attempts: list[SecurityMark | None] = []

        async def announce(mark: SecurityMark | None) -> None:
            attempts.append(mark)
            if len(attempts) == 1:
                raise CoordinationUnavailableError("no server is reached")

        announcing = asyncio.ensure_future(keep_announced(security, "id", announce))
        await asyncio.sleep(0)
        security.keys = TokenKeys((b"o" * 64,))
        async with asyncio.timeout(60):
            while len(attempts) < 2:  # noqa: ASYNC110  # the repetition has no event
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        announcing.cancel()
        assert len(attempts) == 2
        assert attempts[0] == attempts[1]


async def test_processes_of_another_name_are_read() -> None:
    backend = simulated_backend()
    session = await backend.open()
    for parent in (HOSTS_PATH, CONTROLLERS_PATH):
        await ensure_node(session, parent)
    assert await other_processes(session, "a") == {}
    await session.create(f"{HOSTS_PATH}/a~1", encode_node(HostNode(endpoints={})))
    await session.create(f"{HOSTS_PATH}/b~1", encode_node(HostNode(endpoints={}, security=ON)))
    await session.create(f"{CONTROLLERS_PATH}/c", encode_node(ControllerNode(security=ON)))
    found = await other_processes(session, "a")
    assert {path: node.security for path, node in found.items()} == {"/hosts/b~1": ON, "/controllers/c": ON}
    await session.close()


def test_controllers_trust_the_authority_of_the_cluster_alone(tmp_path: Path) -> None:
    settings = SecuritySettings(tls="on")
    paths = security_paths(settings, str(tmp_path))
    assert cluster_context(paths).check_hostname  # Those of the system.
    make_missing_files(paths, ["localhost"], os.urandom, datetime.datetime.now(datetime.UTC))
    context = cluster_context(paths)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zookeeper_user": "ann"}, "given together"), ({"zookeeper_password_file": "x"}, "given together"),
        ({"zookeeper_tls": "yes"}, "on or off"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ClusterSettings(**changes)  # type: ignore[arg-type]  # all of them are texts


def test_the_password_for_zookeeper_is_read_from_its_file_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = ClusterSettings(zookeeper_user="ann", zookeeper_password_file=str(file), zookeeper_tls="on")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        settings.coordination_access()
    file.write_text("\n")
    with pytest.raises(InvalidArgumentError, match="is empty"):
        settings.coordination_access()
    file.write_text("pass word\nmore\n")
    access = settings.coordination_access()
    assert access == CoordinationAccess("ann", "pass word", has_tls=True)
    assert "pass word" not in repr(access)
    for values in ({"user": "a:b", "password": "x"}, {"user": "a"}, {"certificate": "a"}):
        with pytest.raises(InvalidArgumentError):
            CoordinationAccess(**values)  # type: ignore[arg-type]  # all of them are texts

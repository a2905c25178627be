"""Security of the processes of a cluster: files as on a single server, and a check that all processes have the same.

Controllers sign delegation tokens that stores verify, so all need the same keys. A process without authentication would
be an open door beside secured ones. So each process announces a `SecurityMark` in its node, and a process whose mark
does not fit those of the others does not start. Each one announces its mark before it reads the others', so of two
that start at the same time at least one sees the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from penstock.model.cluster_nodes import (
    CONTROLLERS_PATH,
    HOSTS_PATH,
    ControllerNode,
    HostNode,
    SecurityMark,
    decode_node,
)
from penstock.model.errors.coordination import CoordinationError, NoSuchNodeError
from penstock.runtime.coordination import CoordinationStore
from penstock.runtime.runtime import Runtime
from penstock.security.secrets_directory import security_paths
from penstock.security.server_security import ServerSecurity, open_security
from penstock.server.errors import ClusterMismatchError
from penstock.server.settings import StandaloneSettings

_log = logging.getLogger(__name__)

ProcessNode = HostNode | ControllerNode


def open_cluster_security(
    settings: StandaloneSettings, runtime: Runtime, stops: AsyncExitStack, *, has_controller: bool
) -> ServerSecurity | None:
    """Read the files, and follow their changes until `stops` is closed; None without TLS and authentication.

    Raises `SecurityFileError`.
    """
    if not (settings.security.has_tls or settings.security.has_auth):
        return None
    paths = security_paths(settings.security, settings.data_dir)
    security = open_security(
        settings.security, paths, runtime.work, lambda: runtime.wall_clock_ms() / 1000,
        has_controller=has_controller, is_cluster=True,
    )  # fmt: skip
    security.start()
    stops.push_async_callback(security.stop)
    return security


def security_mark(security: ServerSecurity | None, cluster_id: str) -> SecurityMark | None:
    """Return what a process announces about its security; None: it has none."""
    if security is None:
        return None
    keys = () if security.keys is None else security.keys.fingerprints(cluster_id.encode())
    return SecurityMark(security.settings.has_tls, security.settings.has_auth, keys)


async def other_processes(store: CoordinationStore, name: str) -> dict[str, ProcessNode]:
    """Return the nodes of all processes of the cluster but those of this name, by their paths."""
    found: dict[str, ProcessNode] = {}
    for parent, kind in ((HOSTS_PATH, HostNode), (CONTROLLERS_PATH, ControllerNode)):
        try:
            names = (await store.children(parent)).names
        except NoSuchNodeError:
            continue
        for each in sorted(names):
            path = f"{parent}/{each}"
            if each.rpartition("~")[0] == name:
                continue
            try:
                node = await store.get(path)
            except NoSuchNodeError:
                continue
            content = decode_node(kind, path, node.content)
            if isinstance(content, HostNode | ControllerNode):
                found[path] = content
    return found


def check_marks(own: SecurityMark | None, others: Mapping[str, ProcessNode], place: str) -> None:
    """Raise `ClusterMismatchError` if a process is secured in another way than the others of its cluster."""
    mine = own or SecurityMark()
    for path, node in others.items():
        other = node.security or SecurityMark()
        problem = _difference(mine, other)
        if problem:
            addresses = ", ".join(f"{each.host}:{each.port}" for each in node.endpoints.values())
            raise ClusterMismatchError(f"{problem}: see {path} at {place} ({addresses})")


def _difference(own: SecurityMark, other: SecurityMark) -> str:
    """Return how two processes of a cluster differ; empty: they fit."""
    for name, mine, theirs in (("security.auth", own.auth, other.auth), ("security.tls", own.tls, other.tls)):
        if mine != theirs:
            return (
                f"{name} is {'on' if mine else 'off'} here and {'on' if theirs else 'off'} in another process of this "
                "cluster. All have the same; to change it, stop all of them first"
            )
    signing_here, signing_there = set(own.keys[:1]), set(other.keys[:1])
    if own.auth and not (signing_here & set(other.keys) and signing_there & set(own.keys)):
        return (
            f"the keys of delegation tokens ({', '.join(own.keys)}) are not those of another process of this cluster "
            f"({', '.join(other.keys)}). Copy one token.key to all machines"
        )
    return ""


async def keep_announced(
    security: ServerSecurity, cluster_id: str, announce: Callable[[SecurityMark | None], Awaitable[None]]
) -> None:
    """Announce the mark whenever the keys have changed, until this is cancelled."""
    announced = security_mark(security, cluster_id)
    while True:
        await asyncio.sleep(security.settings.reload_interval_s)
        mark = security_mark(security, cluster_id)
        if mark == announced:
            continue
        try:
            await announce(mark)
        except CoordinationError as error:
            _log.info("the keys of this process are not announced yet: %s", error)
        else:
            announced = mark

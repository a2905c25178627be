"""The identity of a cluster: made once by ``penstock cluster init``, read by each process of it when it starts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from penstock.controller.cluster.view import make_cluster_nodes
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    HOSTS_PATH,
    IDENTITY_PATH,
    AssignmentNode,
    ClusterIdentity,
    decode_node,
    encode_node,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import (
    CoordinationOutcomeUnknownError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoSuchNodeError,
)
from penstock.runtime.coordination import CoordinationPlace, CoordinationService, CoordinationStore, ensure_node
from penstock.runtime.runtime import Runtime
from penstock.runtime.zookeeper import ZooKeeper
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import read_identity as read_log_identity
from penstock.server.cluster_settings import ClusterSettings
from penstock.server.errors import ClusterMismatchError, UnknownClusterError
from penstock.server.settings import StandaloneSettings

_log = logging.getLogger(__name__)

_RETRY_S = 1.0


def open_coordination(settings: ClusterSettings) -> ZooKeeper:
    """Return the coordination service. Raises `InvalidArgumentError` if its place is not set, or has no password."""
    if not settings.zookeeper:
        raise InvalidArgumentError("name the servers of ZooKeeper: --zookeeper host:port,host:port/path")
    return ZooKeeper(CoordinationPlace.parse(settings.zookeeper), settings.coordination, settings.coordination_access())


async def wait_for_session(
    service: CoordinationService, timeout_s: float, *, makes_root: bool = False
) -> CoordinationStore:
    """Open a session; repeat it while no server is reached, and report that.

    Raises `CoordinationUnavailableError` after `timeout_s`, `CoordinationRefusedError`.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while True:
        try:
            return await service.open_session(makes_root=makes_root)
        except (CoordinationUnavailableError, CoordinationOutcomeUnknownError) as error:
            if loop.time() + _RETRY_S >= until_s:
                raise CoordinationUnavailableError(
                    f"ZooKeeper at {service.place} was not reached within {timeout_s:g} s "
                    f"(cluster.connect_timeout_s): {error}"
                ) from error
            _log.warning("waiting for ZooKeeper at %s: %s", service.place, error)
        await asyncio.sleep(_RETRY_S)


async def read_identity(store: CoordinationStore, place: str) -> ClusterIdentity:
    """Return the identity. Raises `UnknownClusterError`, `CoordinationError`."""
    try:
        node = await store.get(IDENTITY_PATH)
    except NoSuchNodeError as error:
        raise UnknownClusterError(
            f"there is no cluster at {place}: check the path, or make one with penstock cluster init"
        ) from error
    return decode_node(ClusterIdentity, IDENTITY_PATH, node.content)


async def make_cluster(store: CoordinationStore, place: str, wanted: ClusterIdentity) -> tuple[ClusterIdentity, bool]:
    """Write the identity unless one exists; return the stored identity, and whether it is new.

    Raises `ClusterMismatchError` if another identity exists.
    """
    is_new = True
    try:
        await store.create(IDENTITY_PATH, encode_node(wanted))
    except NodeExistsError:
        is_new = False
    except CoordinationOutcomeUnknownError:
        pass  # Reading it tells.
    found = await read_identity(store, place)
    check_identity(place, found, containers=wanted.container_count, log=wanted.log, tier2=wanted.tier2)
    await make_cluster_nodes(store)
    return found, is_new and found.cluster_id == wanted.cluster_id


def check_identity(
    place: str, identity: ClusterIdentity, *, containers: int | None = None, log: str = "", tier2: str = ""
) -> None:
    """Check settings against the identity; None and empty ones are not given. Raises `ClusterMismatchError`."""
    pairs = (
        ("containers", containers, identity.container_count),
        ("log", log or None, identity.log),
        ("tier2", tier2 or None, identity.tier2),
    )
    for name, given, fixed in pairs:
        if given is not None and given != fixed:
            raise ClusterMismatchError(
                f"{name} is {given!r}, but the cluster at {place} was made with {fixed!r}, which never changes: leave "
                f"--{name} out, or make another cluster at another path"
            )


def cluster_settings(settings: StandaloneSettings, identity: ClusterIdentity, place: str) -> StandaloneSettings:
    """Return settings with what the identity of the cluster fixes. Raises `ClusterMismatchError`."""
    count = settings.segment_store.container_count
    is_default = count == SegmentStoreSettings().container_count
    check_identity(place, identity, containers=None if is_default else count, log=settings.log, tier2=settings.tier2)
    container = replace(settings.segment_store.container, ownership_lease_s=identity.ownership_lease_s_max)
    store = replace(settings.segment_store, container_count=identity.container_count, container=container)
    return replace(settings, segment_store=store, log=identity.log, tier2=identity.tier2)


async def demand_log(bucket: LogBucket, service: CoordinationService, timeout_s: float) -> None:
    """Raise `ClusterMismatchError` if stores of the cluster have written its log, and the log is not there any more.

    A store creates the identity of the log before it joins the cluster, so before a container is first assigned.
    `timeout_s`: for the session. Raises `CoordinationError`, and as `read_log_identity`.
    """
    if await read_log_identity(bucket) is not None:
        return
    session = await wait_for_session(service, timeout_s)
    try:
        # A change, so that the next answer is not older than it: a server of ZooKeeper may lag.
        await ensure_node(session, HOSTS_PATH)
        assignment = decode_node(AssignmentNode, ASSIGNMENT_PATH, (await session.get(ASSIGNMENT_PATH)).content)
    except NoSuchNodeError:
        return  # The cluster is being made.
    finally:
        await session.close()
    # Between the first answer and the assignment, another store may have created the identity and joined.
    if assignment.number and await read_log_identity(bucket) is None:
        raise ClusterMismatchError(
            f"the log of the cluster at {service.place} is missing: {bucket.place}/identity is not there, although "
            "stores have written the log. Put the bucket, or a copy of it, back; no new log was created. To begin "
            "without its data, make another cluster at another path of ZooKeeper"
        )


def new_identity(
    runtime: Runtime, *, containers: int, log: str, tier2: str, lease_s: float, cluster_id: str = ""
) -> ClusterIdentity:
    """Return an identity for a new cluster."""
    return ClusterIdentity(
        cluster_id=cluster_id or runtime.random_id().hex(),
        container_count=containers,
        log=log,
        tier2=tier2,
        ownership_lease_s_max=lease_s,
    )

"""What ``penstock doctor`` finds out about a running server: from its controller, its stores, and its health port."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator

from penstock.administration.machine import Measurement
from penstock.cli.errors import NotReadyError
from penstock.cli.probe import probe
from penstock.client.client import connect
from penstock.client.settings import ClientSettings
from penstock.client.statistics.statistics import ClusterStatistics
from penstock.model.errors import (
    AccessError,
    ContainerNotFoundError,
    PenstockError,
    StorageFullError,
)
from penstock.model.findings import Finding, FindingKind
from penstock.runtime.version import penstock_version

_HEALTH_BYTES_MAX = 1 << 20
_METRICS_BYTES_MAX = 1 << 24
_VERSION = re.compile(r'^penstock_build_info\{[^}]*version="([^"]+)"', re.MULTILINE)
_GIVEN_UP = re.compile(r"^penstock_work_given_up_total ([0-9.e+]+)", re.MULTILINE)
_KINDS = {kind.id: kind for kind in FindingKind}
#: A container or a full disk: then the server answers, and its statistics say more.
_ANSWERED = (ContainerNotFoundError, StorageFullError)


async def check_server(uri: str, timeout_s: float, *, is_required: bool) -> tuple[bool, Measurement]:
    """Return whether the controller at `uri` answers, and what its cluster reports.

    Without `is_required` a server that does not answer is one that does not run, which is no finding.
    """
    findings: list[Finding] = []
    facts: list[str] = []
    try:
        ready = await probe(uri, timeout_s)
        facts.append(f"{uri} serves, with segment store {ready.segment_store}")
    except NotReadyError as error:
        cause = error.__cause__
        if isinstance(cause, AccessError):
            return True, Measurement((Finding(FindingKind.CREDENTIALS_REFUSED, str(error)),))
        # A probe that got no answer may wait for a store, or for long-term storage. Statistics need neither.
        if isinstance(cause, TimeoutError):
            is_answered, found = await _statistics_of(uri, timeout_s)
            if is_answered:
                return True, found
        if not isinstance(cause, _ANSWERED):
            if is_required:
                return False, Measurement((Finding(FindingKind.CONTROLLER_UNREACHABLE, str(error)),))
            return False, Measurement(facts=(f"no server answers at {uri}: examined as a stopped one",))
        if isinstance(cause, StorageFullError):
            findings.append(Finding(FindingKind.WRITES_BLOCKED, str(cause)))
    _, found = await _statistics_of(uri, timeout_s)
    return True, Measurement((*findings, *found.findings), (*facts, *found.facts))


async def _statistics_of(uri: str, timeout_s: float) -> tuple[bool, Measurement]:
    """Return whether a cluster answers, and what it reports of itself; STORE_DOWN if it reports nothing.

    Reader groups are in tables of the controller: they are unknown while the store of these does not answer.
    """
    settings = ClientSettings(
        request_timeout_s=timeout_s, controller_request_timeout_s=timeout_s, retry_time_max_s=timeout_s
    )
    try:
        async with connect(uri, settings) as client:
            try:
                statistics = await client.statistics(groups="all")
                groups = f"{len(statistics.groups)} reader groups"
            except PenstockError as error:
                statistics = await client.statistics()
                groups = f"reader groups are not known: {error}"
    except PenstockError as error:
        return False, Measurement((Finding(FindingKind.STORE_DOWN, f"statistics of {uri}: {error}"),))
    return True, Measurement(tuple(findings_of(statistics)), (
        f"{len(statistics.containers)} of {statistics.container_count} containers run on "
        f"{len(statistics.stores)} segment stores; {groups}",
    ))  # fmt: skip


def findings_of(statistics: ClusterStatistics) -> Iterator[Finding]:
    """Yield what is wrong according to the statistics of a cluster."""
    failed: set[int] = set()
    for address, store in statistics.stores.items():
        if store.problem is not None:
            yield Finding(FindingKind.STORE_DOWN, f"segment store {address}: {store.problem}")
        if store.storage_problem is not None:
            yield Finding(FindingKind.STORAGE_UNAVAILABLE, f"segment store {address}: {store.storage_problem}")
        if store.log_problem is not None:
            yield Finding(FindingKind.LOG_UNAVAILABLE, f"segment store {address}: {store.log_problem}")
        for container, failure in store.failures.items():
            failed.add(container)
            yield Finding(FindingKind.CONTAINER_OFFLINE, f"container {container} on {address}: {failure}")
    for container in statistics.missing_containers:
        if container not in failed:
            yield Finding(FindingKind.CONTAINER_OFFLINE, f"container {container} runs on no segment store that answers")
    for container, load in statistics.containers.items():
        if load.held_append_count:
            yield Finding(FindingKind.APPENDS_HELD, f"container {container}: {load.held_append_count} appends wait")
        if load.is_log_long:
            yield Finding(FindingKind.LOG_LONG, f"container {container}: {load.log_bytes >> 20} MiB of log")
    for name, group in statistics.groups.items():
        if group.lacks_readers:
            yield Finding(FindingKind.GROUP_STUCK, f"{name}: {group.total_unread_bytes} bytes are unread")


def check_health(
    address: str, timeout_s: float, *, is_required: bool, tls: ssl.SSLContext | None = None
) -> Measurement:
    """Read the health tree and the version from a server's port for health and metrics, ``host:port``.

    `tls`: for a port that is encrypted.
    """
    try:
        tree = json.loads(_get(address, "/v1/health", timeout_s, _HEALTH_BYTES_MAX, tls))
        metrics = _get(address, "/metrics", timeout_s, _METRICS_BYTES_MAX, tls)
    except (OSError, ValueError, http.client.HTTPException) as error:
        text = f"health and metrics at {address}: {error or type(error).__name__}"
        if is_required:
            return Measurement((Finding(FindingKind.STORE_DOWN, text),))
        return Measurement(facts=(f"{text}; not examined",))
    findings = list(_findings_in(tree, ""))
    facts = [f"health at {address}: {tree['status']}"]
    given_up = _GIVEN_UP.search(metrics)
    if given_up is not None and (count := int(float(given_up[1]))):
        text = f"controller at {address}: {count} piece{'s' * (count != 1)} of work after its start"
        findings.append(Finding(FindingKind.WORK_GIVEN_UP, text))
    version = _VERSION.search(metrics)
    if version is not None:
        if version[1] == penstock_version():
            facts.append(f"the server runs penstock {version[1]}, as this command")
        else:
            text = f"the server runs penstock {version[1]}, this command is of {penstock_version()}"
            findings.append(Finding(FindingKind.VERSION_DIFFERS, text))
    return Measurement(tuple(findings), tuple(facts))


def _findings_in(tree: dict[str, object], path: str) -> Iterator[Finding]:
    """Yield the findings of a health tree: of each part that names one."""
    details, children = tree.get("details"), tree.get("children")
    if isinstance(details, dict) and (kind := _KINDS.get(str(details.get("finding", "")))) is not None:
        yield Finding(kind, f"{path or 'server'}: {details.get('problem', '')}")
    if isinstance(children, dict):
        for name, child in children.items():
            yield from _findings_in(child, f"{path}/{name}" if path else name)


def _get(address: str, path: str, timeout_s: float, bytes_max: int, tls: ssl.SSLContext | None) -> str:
    if tls is None:
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
    else:
        connection = http.client.HTTPSConnection(address, timeout=timeout_s, context=tls)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read(bytes_max)
        if reply.status != 200:
            raise ValueError(f"{path} is answered with status {reply.status}")
        return body.decode()
    finally:
        connection.close()

"""Queries whether a controller and its segment stores serve, for ``penstock ready``."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.cli.errors import NotReadyError
from penstock.client.controller.controller import ControllerClient, parse_controller_uri
from penstock.client.settings import ClientSettings
from penstock.client.transport.delegation_tokens import STATISTICS_SEGMENT
from penstock.client.transport.store_states import store_report
from penstock.model.errors import (
    ConnectionLostError,
    ContainerNotFoundError,
    ContainerOfflineError,
    PenstockError,
    StorageError,
    StorageFullError,
    UnsupportedOperationError,
)
from penstock.model.names import ContainerId, SegmentId, segment_name
from penstock.model.routing import container_of
from penstock.runtime.client_security import client_security
from penstock.server.cluster_settings import split_address
from penstock.wire.commands import GetStreamSegmentInfo, WrongHost
from penstock.wire.connection import open_connection
from penstock.wire.statistics import StoreReport

#: Segments that do not exist are asked for where stores do not report the number of containers. With so many, each
#: container of a store of usual size is hit: the odds of missing one of 16 are 1 in a million, of 32 they are 1 in 100.
_PROBE_COUNT = 256
#: Names that are tried to find one in each container, for each container.
_NAMES_OF_CONTAINER_MAX = 64
_PROBE_SCOPE = "_probe"
#: Between two times of asking.
_PAUSE_S = 0.1
#: For the first connection, twice as long each time: a server that just starts is found soon, a slow one at all.
_FIRST_CONTACT_S = 0.5
#: Not nothing, for a last attempt.
_LEFT_S_MIN = 0.001


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a probe found."""

    controller: str
    segment_store: str


#: Asks once, with the time that is left and that for the first connection.
_Ask = Callable[[float, float], Awaitable[Readiness]]


async def probe(uri: str, timeout_s: float, *, asks_stores: bool = True) -> Readiness:
    """Query the controller at `uri` and its segment stores repeatedly until they serve.

    `asks_stores`: False: the controller alone.

    Raises:
        NotReadyError: they do not after `timeout_s`; with the last reason.
    """
    return await _repeated(uri, timeout_s, lambda left_s, contact_s: _ask(uri, left_s, contact_s, asks_stores))


async def probe_store(address: str, timeout_s: float) -> Readiness:
    """Query the segment store at ``host:port`` repeatedly until it serves all of its containers. Errors as `probe`."""
    host, port = split_address(address, None)

    async def ask(left_s: float, contact_s: float) -> Readiness:
        settings = ClientSettings(connect_timeout_s=left_s, request_timeout_s=left_s)
        try:
            async with asyncio.timeout(left_s):
                await _ask_store(host, port, [], settings, None, "")
        except PenstockError as error:
            raise NotReadyError(f"segment store {address} is not ready: {error}") from error
        return Readiness("", address)

    return await _repeated(address, timeout_s, ask)


async def _repeated(what: str, timeout_s: float, ask: _Ask) -> Readiness:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    last: NotReadyError | None = None
    contact_s = _FIRST_CONTACT_S
    while True:
        try:
            return await ask(max(end_s - loop.time(), _LEFT_S_MIN), contact_s)
        except NotReadyError as error:
            last = error
        except TimeoutError as error:
            # What was found before says more than that the last attempt had no time left.
            if last is None:
                raise NotReadyError(f"{what} is not ready: no answer within {timeout_s:g} s") from error
            # The cause stays that of the reason, by which callers distinguish refusals.
            raise last from last.__cause__
        if loop.time() + _PAUSE_S >= end_s:
            raise last
        await asyncio.sleep(_PAUSE_S)
        contact_s *= 2


async def _ask(uri: str, timeout_s: float, contact_s: float, asks_stores: bool) -> Readiness:
    """Ask once. Raises `NotReadyError`, and `TimeoutError` without an answer in time."""
    settings = ClientSettings(
        connect_timeout_s=timeout_s,
        request_timeout_s=timeout_s,
        controller_request_timeout_s=timeout_s,
        controller_attempt_count_max=1,
        first_contact_timeout_s=contact_s,
    )
    security = client_security()
    controller = ControllerClient.connect(uri, settings, random.Random(), security)
    tls = security.tls_context() if parse_controller_uri(uri)[1] else None
    try:
        async with asyncio.timeout(timeout_s):
            token = ""
            if security.credentials is not None:
                token = await _statistics_token(controller)
            else:
                await controller.scope_exists(_PROBE_SCOPE)
            if not asks_stores:
                return Readiness(uri, "")
            first = await controller.endpoint_of(_name(0))
            report = await _report(*first, settings, tls, token)
            names = map(_name, range(_PROBE_COUNT)) if report is None else _names_in_each(report.container_count)
            hosts: dict[tuple[str, int], list[str]] = {}
            for name in names:
                hosts.setdefault(await controller.endpoint_of(name), []).append(name)
            for (host, port), segments in hosts.items():
                await _ask_store(host, port, segments, settings, tls, token)
    except PenstockError as error:
        raise NotReadyError(f"{uri} is not ready: {error}") from error
    finally:
        await controller.close()
    return Readiness(uri, ", ".join(f"{host}:{port}" for host, port in hosts))


async def _statistics_token(controller: ControllerClient) -> str:
    """Return a token for the reports of segment stores. Needs an account that may read the root, `prn::/`."""
    scope, stream = STATISTICS_SEGMENT.split("/")[:2]
    return await controller.delegation_token(scope, stream, False)


async def _ask_store(
    host: str, port: int, segments: list[str], settings: ClientSettings, tls: ssl.SSLContext | None, token: str
) -> None:
    """Raise why a store does not serve, or does not serve the containers of `segments`.

    Its report says so, and does not depend on long-term storage. A request for a segment that is not in memory waits
    while long-term storage is away, although appends are accepted.
    """
    address = f"{host}:{port}"
    report = await _report(host, port, settings, tls, token)
    if report is None:
        await _ask_containers(host, port, segments, settings, tls)
        return
    for container_id, failure in report.failures.items():
        raise ContainerNotFoundError(ContainerId(container_id), f"segment store {address}: {failure}")
    if report.starting:
        listed = ", ".join(map(str, report.starting))
        raise ContainerOfflineError(
            ContainerId(report.starting[0]), f"segment store {address} still opens containers {listed}"
        )
    running = {each.id for each in report.containers}
    for container in sorted({container_of(segment, report.container_count) for segment in segments}):
        if container not in running:
            raise ContainerNotFoundError(container, _not_running(address))
    if report.log_problem is not None:
        raise StorageError(f"segment store {address}: {report.log_problem}")
    if report.full_disk is not None:
        raise StorageFullError(f"disk full on segment store {address}: {report.full_disk}")


async def _report(
    host: str, port: int, settings: ClientSettings, tls: ssl.SSLContext | None, token: str
) -> StoreReport | None:
    """Return the report of a store. None: it has none; a store of Pravega's closes the connection at this request."""
    connection = await open_connection(host, port, settings=settings.connection(), ssl_context=tls)
    try:
        return await store_report(connection, f"{host}:{port}", token, with_containers=True)
    except (ConnectionLostError, UnsupportedOperationError):
        return None
    finally:
        await connection.close()


def _name(index: int) -> str:
    """Return the name of a segment that does not exist."""
    return segment_name(_PROBE_SCOPE, f"probe{index}", SegmentId(0))


def _names_in_each(container_count: int) -> list[str]:
    """Return the name of a segment in each container."""
    found: dict[ContainerId, str] = {}
    for name in map(_name, range(_NAMES_OF_CONTAINER_MAX * container_count)):
        found.setdefault(container_of(name, container_count), name)
        if len(found) == container_count:
            break
    return list(found.values())


async def _ask_containers(
    host: str, port: int, segments: list[str], settings: ClientSettings, tls: ssl.SSLContext | None
) -> None:
    """Ask a store without reports for segments that do not exist."""
    connection = await open_connection(host, port, settings=settings.connection(), ssl_context=tls)
    try:
        for segment in segments:
            request_id = connection.next_request_id()
            reply = await connection.request(request_id, GetStreamSegmentInfo(request_id, segment, ""))
            if isinstance(reply, WrongHost):
                raise ContainerNotFoundError(-1, _not_running(f"{host}:{port}"))
    finally:
        await connection.close()


def _not_running(address: str) -> str:
    return f"a container of segment store {address} is not running: see the server's log"

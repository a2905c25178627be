"""Asks a controller and the segment stores behind it whether they serve: what ``penstock ready`` does."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from penstock.client.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.model.errors import ContainerNotFoundError, PenstockError
from penstock.model.names import SegmentId, segment_name
from penstock.wire.commands import GetStreamSegmentInfo, WrongHost
from penstock.wire.connection import open_connection

#: Segments that don't exist are asked for. With so many, each container of a store of usual size is hit: the odds of
#: missing one of 16 are 1 in a million, of 32 they are 1 in 100.
_PROBE_COUNT = 256
_PROBE_SCOPE = "_probe"


class NotReadyError(PenstockError):
    """The server cannot serve clients now."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a probe found."""

    controller: str
    segment_store: str


async def probe(uri: str, timeout_s: float) -> Readiness:
    """Ask the controller at `uri` and the segment stores behind it. Raises `NotReadyError` with the reason."""
    settings = ClientSettings(
        connect_timeout_s=timeout_s,
        request_timeout_s=timeout_s,
        controller_request_timeout_s=timeout_s,
        controller_attempt_count_max=1,
    )
    controller = ControllerClient.connect(uri, settings, random.Random())
    try:
        async with asyncio.timeout(timeout_s):
            await controller.scope_exists(_PROBE_SCOPE)
            names = [segment_name(_PROBE_SCOPE, f"probe{index}", SegmentId(0)) for index in range(_PROBE_COUNT)]
            hosts: dict[tuple[str, int], list[str]] = {}
            for name in names:
                hosts.setdefault(await controller.endpoint_of(name), []).append(name)
            for (host, port), segments in hosts.items():
                await _ask_store(host, port, segments, settings)
    except TimeoutError as error:
        raise NotReadyError(f"{uri} is not ready: no answer within {timeout_s:g} s") from error
    except PenstockError as error:
        raise NotReadyError(f"{uri} is not ready: {error}") from error
    finally:
        await controller.close()
    return Readiness(uri, ", ".join(f"{host}:{port}" for host, port in hosts))


async def _ask_store(host: str, port: int, segments: list[str], settings: ClientSettings) -> None:
    connection = await open_connection(host, port, settings=settings.connection())
    try:
        for segment in segments:
            request_id = connection.next_request_id()
            reply = await connection.request(request_id, GetStreamSegmentInfo(request_id, segment, ""))
            if isinstance(reply, WrongHost):
                raise ContainerNotFoundError(-1, f"a container of segment store {host}:{port} is not running")
    finally:
        await connection.close()

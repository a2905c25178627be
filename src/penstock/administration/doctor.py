"""`examine_machine`: what ``penstock doctor`` finds on the machine of a server, whether it runs or not.

Nothing is changed, but for a probe of long-term storage with chunks of its own, as ``penstock storage probe`` makes.
"""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.administration.machine import (
    Measurement,
    check_clock,
    check_descriptors,
    check_disk_speed,
    check_memory,
    check_port,
    check_space,
    existing_parent,
    is_clock_unsynchronized,
    memory_limit_bytes,
)
from penstock.administration.storage_administration import cluster_chunks
from penstock.administration.storage_probe import probe_storage
from penstock.model.errors import InvalidArgumentError, PenstockError, StorageIdentityError
from penstock.model.findings import Finding, FindingKind
from penstock.runtime.descriptors import descriptor_limit, raise_descriptor_limit, share_descriptors
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import Runtime
from penstock.security.inspection import inspect_security
from penstock.security.secrets_directory import security_paths
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings

#: For each kind of storage.
STORAGE_TIMEOUT_S = 30.0
_PROBE_BYTES = 4096


async def examine_machine(settings: StandaloneSettings, runtime: Runtime, *, is_running: bool) -> list[Measurement]:
    """Check disk, space, descriptors, clock, memory, ports, certificates, accounts, log and long-term storage.

    `is_running`: whether the server answers; its ports are then in use by itself. A check that cannot be made is a
    finding: the call raises nothing but `CancelledError`.
    """
    found = [*await runtime.work.run(_local_checks, settings, runtime)]
    if not is_running:
        found += await runtime.work.run(lambda: list(_port_checks(settings)))
    identity, directory = await runtime.work.run(_identity, settings, runtime)
    found.append(directory)
    if settings.log:
        found.append(await _log_check(settings, runtime))
    if identity is not None or settings.tier2:
        found.append(await _storage_check(settings, runtime, identity))
    return found


def _local_checks(settings: StandaloneSettings, runtime: Runtime) -> list[Measurement]:
    space = settings.segment_store.container.space
    raise_descriptor_limit()
    limit = descriptor_limit()
    budget = share_descriptors(
        limit, settings.descriptors, has_segment_store=True, has_controller=settings.segment_stores == 1
    )
    checks: list[Callable[[], Measurement]] = [
        lambda: check_descriptors(budget.segment_store_connections, limit),
        lambda: check_memory(settings, memory_limit_bytes()),
    ]
    if not settings.is_memory and not settings.log:
        root = Path(settings.data_dir)
        place = existing_parent(root)
        checks += [
            lambda: check_disk_speed(place),
            lambda: check_space(space, runtime.disk.space(str(place)), str(place), is_log=True),
            lambda: check_clock(root, runtime.wall_clock_ms() / 1000, is_clock_unsynchronized()),
        ]
        storage = Path(settings.tier2)
        if settings.tier2 and "://" not in settings.tier2 and storage.is_dir():
            checks.append(lambda: check_space(space, runtime.disk.space(str(storage)), str(storage), is_log=False))
    if settings.security.has_tls or settings.security.has_auth:
        checks.append(lambda: _security_check(settings, runtime))
    return [_made(check) for check in checks]


def _made(check: Callable[[], Measurement]) -> Measurement:
    """Return what a check finds. An error of the operating system is about the data directory."""
    try:
        return check()
    except OSError as error:
        text = f"{error.filename or 'a file'}: {error.strerror or error}"
        return Measurement((Finding(FindingKind.DATA_DIRECTORY_UNUSABLE, text),))


def _port_checks(settings: StandaloneSettings) -> Iterator[Measurement]:
    host = settings.host
    yield check_port("controller", host, settings.controller_port)
    first = settings.segment_store_port
    for number in range(settings.segment_stores):
        yield check_port(f"segment store {number}", host, first + number if first else 0)
    operations = settings.operations
    if operations.is_enabled:
        count = 1 if settings.segment_stores == 1 else 1 + settings.segment_stores
        for number in range(count):
            port = operations.port + number if operations.port else 0
            yield check_port("health and metrics", operations.host or host, port)


def _identity(settings: StandaloneSettings, runtime: Runtime) -> tuple[Identity | None, Measurement]:
    """Return the identity of the data directory, if there is one, and whether a server can use the directory."""
    if settings.is_memory or settings.log:
        return None, Measurement()
    root = Path(settings.data_dir)
    try:
        if root.is_dir() and any(root.iterdir()):
            identity = DataDirectory(settings.data_dir, runtime).identity()
        elif root.exists() and not root.is_dir():
            raise InvalidArgumentError(f"{root} is not a directory")
        else:
            identity = None
    except (PenstockError, OSError) as error:
        return None, Measurement((Finding(FindingKind.DATA_DIRECTORY_UNUSABLE, str(error)),))
    if not os.access(existing_parent(root), os.W_OK | os.X_OK):
        text = f"this user may not write in {existing_parent(root)}"
        return identity, Measurement((Finding(FindingKind.DATA_DIRECTORY_UNUSABLE, text),))
    if identity is None:
        return None, Measurement(facts=(f"{root} holds no store yet: a start makes a new one",))
    return identity, Measurement(
        facts=(f"{root}: cluster {identity.cluster_id}, {identity.container_count} containers",)
    )


def _security_check(settings: StandaloneSettings, runtime: Runtime) -> Measurement:
    now = datetime.datetime.fromtimestamp(runtime.wall_clock_ms() / 1000, datetime.UTC)
    paths = security_paths(settings.security, settings.data_dir)
    inspected = inspect_security(settings.security, paths, settings.advertised_host, now)
    errors = [Finding(FindingKind.SECURITY_UNUSABLE, text) for text in inspected.errors]
    warnings = [Finding(FindingKind.SECURITY_DOUBTFUL, text) for text in inspected.warnings]
    return Measurement((*errors, *warnings), tuple(inspected.facts))


async def _log_check(settings: StandaloneSettings, runtime: Runtime) -> Measurement:
    """Read one page of the list of objects in the bucket of the log."""
    place = ObjectPlace.parse(settings.log)
    try:
        async with asyncio.timeout(STORAGE_TIMEOUT_S), AsyncExitStack() as held:
            objects = runtime.open_objects(place, settings.object_storage.store)
            held.push_async_callback(objects.close)
            async for _ in objects.list(f"{place.prefix}/".lstrip("/")):
                break
    except TimeoutError:
        text = f"{settings.log}: no answer within {STORAGE_TIMEOUT_S:g} s"
        return Measurement((Finding(FindingKind.LOG_UNAVAILABLE, text),))
    except PenstockError as error:
        return Measurement((Finding(FindingKind.LOG_UNAVAILABLE, str(error)),))
    return Measurement(facts=(f"{settings.log} can be read",))


async def _storage_check(settings: StandaloneSettings, runtime: Runtime, identity: Identity | None) -> Measurement:
    """Write, read and delete chunks in long-term storage, and compare its identity with the data directory's."""
    try:
        async with asyncio.timeout(STORAGE_TIMEOUT_S):
            report = await probe_storage(settings, runtime, chunk_bytes=_PROBE_BYTES)
            if identity is not None and report.has_identity:
                async with cluster_chunks(settings, DataDirectory(settings.data_dir, runtime), runtime, identity):
                    pass
    except TimeoutError:
        place = settings.tier2 or "the directory tier2"
        text = f"{place}: no answer within {STORAGE_TIMEOUT_S:g} s"
        return Measurement((Finding(FindingKind.STORAGE_UNAVAILABLE, text),))
    except StorageIdentityError as error:
        return Measurement((Finding(FindingKind.STORAGE_FOREIGN, str(error)),))
    except PenstockError as error:
        return Measurement((Finding(FindingKind.STORAGE_UNAVAILABLE, str(error)),))
    slowest = max(report.steps, key=lambda step: step.duration_s)
    return Measurement(
        facts=(f"{report.place} works; the slowest step is {slowest.name}, {slowest.duration_s * 1000:.0f} ms",)
    )

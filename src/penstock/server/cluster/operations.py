"""`start_operations`: health and metrics of a process of a cluster, over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from penstock.operations.health import Health
from penstock.operations.process_metrics import ProcessMetrics
from penstock.runtime.runtime import Runtime
from penstock.runtime.version import penstock_version
from penstock.server.settings import StandaloneSettings

if TYPE_CHECKING:
    from penstock.operations.endpoint import OperationsEndpoint


async def start_operations(
    settings: StandaloneSettings,
    runtime: Runtime,
    stops: AsyncExitStack,
    health: Callable[[], Health],
    *,
    port_offset: int = 0,
    tls: ssl.SSLContext | None = None,
) -> OperationsEndpoint | None:
    """Serve health and metrics if that is enabled, until `stops` is closed. `port_offset`: is added to a port above 0.
    `tls`: of the process; it is used if `operations.tls` is set.

    Raises `OSError` if the port is in use.
    """
    operations = settings.operations
    if not operations.is_enabled:
        return None
    # Only now: a process without this port does not load an HTTP library.
    from penstock.operations.endpoint import OperationsEndpoint

    endpoint = OperationsEndpoint(operations, health=health, work=runtime.work, tls=tls if operations.tls else None)
    port = operations.port + port_offset if operations.port else 0
    await endpoint.start(operations.host or settings.host, port)
    stops.push_async_callback(endpoint.stop)
    process = ProcessMetrics(runtime.resident_bytes, runtime.wall_clock_ms() / 1000, penstock_version())
    process.start()
    stops.push_async_callback(process.stop)
    endpoint.collectors.append(process.collect)
    return endpoint

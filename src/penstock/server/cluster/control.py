"""`SessionControl`: what a controller does for an administrator, in a session of its own for each call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from penstock.controller.cluster.control import ClusterStatus
from penstock.controller.errors import FinalArgumentError
from penstock.model.assignment_plan import Move
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock.model.errors.coordination import CoordinationError
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.runtime import Runtime
from penstock.server.cluster.administration import ClusterAdministration
from penstock.server.cluster.identity import wait_for_session
from penstock.server.errors import NoSuchStoreError


class SessionControl:
    """Implements `penstock.controller.cluster.control.ClusterControl`.

    `timeout_s`: how long a call waits for a session.
    """

    def __init__(self, service: CoordinationService, runtime: Runtime, timeout_s: float) -> None:
        self._service = service
        self._runtime = runtime
        self._timeout_s = timeout_s

    async def status(self) -> ClusterStatus:
        """See `ClusterControl.status`."""
        async with self._administration("") as administration:
            return await administration.status()

    async def drain(self, store: str, by: str, *, is_dry: bool) -> Sequence[Move]:
        """See `ClusterControl.drain`."""
        async with self._administration(by) as administration:
            return await administration.drain(store, is_dry=is_dry)

    async def undrain(self, store: str, by: str, *, is_dry: bool) -> Sequence[Move]:
        """See `ClusterControl.undrain`."""
        async with self._administration(by) as administration:
            return await administration.undrain(store, is_dry=is_dry)

    async def move(self, container_id: int, store: str, by: str, *, is_dry: bool) -> Sequence[Move]:
        """See `ClusterControl.move`."""
        async with self._administration(by) as administration:
            return await administration.move(container_id, store, is_dry=is_dry)

    async def balance(self, by: str, *, is_dry: bool) -> Sequence[Move]:
        """See `ClusterControl.balance`."""
        async with self._administration(by) as administration:
            return await administration.balance(is_dry=is_dry)

    @asynccontextmanager
    async def _administration(self, by: str) -> AsyncIterator[ClusterAdministration]:
        """Open a session, and have errors of this side named as the caller understands them."""
        try:
            session = await wait_for_session(self._service, self._timeout_s)
            try:
                yield ClusterAdministration(session, self._service.place, self._runtime, by)
            finally:
                await session.close()
        except (NoSuchStoreError, InvalidArgumentError) as error:
            raise FinalArgumentError(str(error)) from error
        except CoordinationError as error:
            raise ControllerUnavailableError(f"the coordination service: {error}") from error

"""`ZooKeeperCoordinator`: controllers of several processes find each other in a coordination service.

A member is a session of its own with an ephemeral node ``controllers/<name>``. `Membership.members` first sets that
node: a change goes through the quorum, which refuses it once the session has ended. The list that is read afterwards,
by the same session, is at least as new. So it has every member that joined before the call, and an expired member
gets no answer, even from a server that lags. (ZooKeeper's ``sync`` would not do: it needs no quorum.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import structs

from penstock.controller.errors import MembershipLostError
from penstock.controller.ownership.coordinator import Members
from penstock.model.cluster_nodes import CONTROLLERS_PATH, ControllerNode, Endpoint, SecurityMark, encode_node
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock.model.errors.coordination import (
    CoordinationError,
    CoordinationOutcomeUnknownError,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import (
    CheckNode,
    Children,
    CoordinationService,
    CoordinationStore,
    Session,
    ensure_node,
)

_log = logging.getLogger(__name__)


class ZooKeeperCoordinator:
    """`Coordinator` over a coordination service.

    `endpoints`: of this controller, by the name of the listener. `security`: how it is secured; None: it is not.
    """

    def __init__(
        self,
        service: CoordinationService,
        endpoints: dict[str, Endpoint] | None = None,
        security: SecurityMark | None = None,
    ) -> None:
        self._service = service
        self._node = ControllerNode(endpoints=endpoints or {}, security=security)
        self._latest: ZooKeeperMembership | None = None

    async def announce(self, security: SecurityMark | None) -> None:
        """Replace what the controller's node says about its security. Raises `CoordinationError`: repeat it then."""
        self._node = structs.replace(self._node, security=security)
        if self._latest is not None and not self._latest.is_over:
            await self._latest.set_content()

    def _content(self) -> bytes:
        return encode_node(self._node)

    async def join(self, name: str) -> ZooKeeperMembership:
        """See `Coordinator.join`. Raises `ControllerUnavailableError`: the member may exist until its session ends."""
        if not name or "/" in name or name in (".", ".."):
            raise InvalidArgumentError(f"{name!r} is no name of a controller: it has no slash and is not empty")
        try:
            store = await self._service.open_session()
        except CoordinationError as error:
            raise ControllerUnavailableError(f"controller {name} cannot join: {error}") from error
        path = f"{CONTROLLERS_PATH}/{name}"
        try:
            await ensure_node(store, CONTROLLERS_PATH)
            try:
                await store.create(path, self._content(), is_ephemeral=True)
            except CoordinationOutcomeUnknownError:
                # Otherwise the session is closed, and the node deleted with it if it is made later.
                if not await _is_made(store, path):
                    raise
        except NodeExistsError as error:
            await store.close()
            raise InvalidArgumentError(f"controller {name} is a member already: names are not given twice") from error
        except CoordinationError as error:
            await store.close()
            raise ControllerUnavailableError(f"controller {name} cannot join: {error}") from error
        except BaseException:
            await store.close()
            raise
        self._latest = ZooKeeperMembership(store, name, self._content)
        return self._latest


class ZooKeeperMembership:
    """`Membership` by a session. Made by `ZooKeeperCoordinator.join`."""

    def __init__(self, store: CoordinationStore, name: str, content: Callable[[], bytes]) -> None:
        self._store = store
        self._name = name
        self._content = content
        self._path = f"{CONTROLLERS_PATH}/{name}"
        self._is_over = False

    @property
    def name(self) -> str:
        """See `Membership.name`."""
        return self._name

    @property
    def is_over(self) -> bool:
        """See `Membership.is_over`."""
        return self._is_over or self._store.session is Session.EXPIRED

    async def members(self) -> Members:
        """See `Membership.members`. Raises `ControllerUnavailableError` when there is no answer."""
        return _members(await self._read())

    async def changed(self, version: int) -> Members:
        """See `Membership.changed`. Raises `ControllerUnavailableError` when the members cannot be read."""
        while (found := await self._read()).zxid == version:
            try:
                await self._store.changed(CONTROLLERS_PATH, found)
            except SessionExpiredError as error:
                raise self._lost() from error
            except CoordinationError as error:
                raise self._unavailable(error) from error
        return _members(found)

    async def leave(self) -> None:
        """See `Membership.leave`. If no server is reached, the session ends at its timeout."""
        self._is_over = True
        await self._store.close()

    async def set_content(self) -> None:
        """Set the member's node, which fails once its session has ended. Raises `CoordinationError`."""
        await self._store.set(self._path, self._content())

    async def _read(self) -> Children:
        if self.is_over:
            raise self._lost()
        try:
            await self.set_content()
            found = await self._store.children(CONTROLLERS_PATH)
        except (SessionExpiredError, NoSuchNodeError) as error:
            # Without its node it is not a member, even if its session is alive.
            if not self._is_over:
                self._is_over = True
                _log.warning("controller %s is not a member any more: %s", self._name, error)
                await self._store.close()
            raise self._lost() from error
        except CoordinationError as error:
            if self.is_over:
                raise self._lost() from error
            raise self._unavailable(error) from error
        if self.is_over:
            raise self._lost()
        return found

    def _lost(self) -> MembershipLostError:
        return MembershipLostError(f"controller {self._name} is not a member any more: it must join again")

    def _unavailable(self, error: CoordinationError) -> ControllerUnavailableError:
        return ControllerUnavailableError(f"controller {self._name} cannot read the members: {error}")


async def _is_made(store: CoordinationStore, path: str) -> bool:
    """Return whether a node is this session's, once a server is reached again."""
    try:
        async with asyncio.timeout(store.session_timeout_s):
            await store.session_changed(Session.SUSPENDED)
        # Goes through the quorum as every change, so the read is not older than the node.
        await store.multi([CheckNode(path)])
        return (await store.get(path)).owner == store.session_id
    except (TimeoutError, NoSuchNodeError):
        return False


def _members(found: Children) -> Members:
    return Members(found.zxid, found.names)

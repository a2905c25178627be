"""`ContainerHold`: one container at a segment store of a cluster, from its assignment until it is released.

The node ``held/<c>`` is made before the container's log is opened, and deleted after it is closed. So the next store
waits for the present one, if that is well; if not, it opens the log after a while anyway, which shuts the other out.
The node decides when a container moves. That there are never two that write is a matter of the log alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.cluster_nodes import HELD_PATH, HeldNode, HeldPhase, decode_node, encode_node
from penstock.model.errors import ContainerOfflineError, PenstockError
from penstock.model.errors.coordination import (
    CoordinationError,
    CoordinationOutcomeUnknownError,
    NodeExistsError,
    NodeFormatError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import (
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Node,
    Session,
)
from penstock.runtime.kept_session import KeptSession
from penstock.runtime.waits import first_of
from penstock.segmentstore.cluster.containers import ContainerCondition, MemberContainers
from penstock.segmentstore.cluster.settings import MemberSettings

_log = logging.getLogger(__name__)

#: Errors are cut to this length in a node.
_ERROR_CHARACTERS_MAX = 400


class ContainerHold:
    """See the module. `name`, `incarnation`: of the store; `on_granted` is called when `is_granted` has changed.

    Attributes:
        container_id: the container.
        is_wanted: whether it is assigned to this store. Set by `want`.
        is_granted: whether the store may have its log open.
        prepares: whether it is made ready for the next store before it is released; not if the process must end.
        is_log_silent: whether its log does not answer. Then it is not prepared, and the node is deleted before the
            container is closed: both would wait for the log, and the next store shuts this one out anyway.
    """

    def __init__(
        self,
        container_id: int,
        sessions: KeptSession,
        containers: MemberContainers,
        settings: MemberSettings,
        *,
        name: str,
        incarnation: str,
        on_granted: Callable[[], None],
    ) -> None:
        self.container_id = container_id
        self.is_wanted: bool = True
        self.is_granted: bool = False
        self.prepares: bool = True
        self.is_log_silent: bool = False
        self._path = f"{HELD_PATH}/{container_id}"
        self._sessions = sessions
        self._containers = containers
        self._settings = settings
        self._name = name
        self._incarnation = incarnation
        self._on_granted = on_granted
        #: Something may have changed: the assignment, or the container's condition.
        self._signal = asyncio.Event()
        #: Set when another store has the node.
        self._is_lost = False

    def want(self, is_wanted: bool) -> None:
        """Set whether the container is assigned to this store."""
        if self.is_wanted != is_wanted:
            self.is_wanted = is_wanted
            self._signal.set()

    def notify(self) -> None:
        """Note that the container's condition may have changed."""
        self._signal.set()

    async def run(self) -> None:
        """Hold the container while it is wanted, and release it."""
        while self.is_wanted:
            if not await self._acquire():
                break
            self._grant(True)
            await self._serve_until_prepared()
            await self._release()
        # The node may have been made although the container was not wanted any more.
        await self._delete()

    # -- acquiring ----------------------------------------------------------------------------------------------

    async def _acquire(self) -> bool:
        """Make the node of this store. Return False if the container is not wanted any more."""
        problem = ""
        while self.is_wanted:
            self._signal.clear()
            try:
                store = await self._connected()
                if store is not None and await self._try_to_acquire(store):
                    self._is_lost = False
                    return True
            except CoordinationError as error:
                if str(error) != problem:
                    problem = str(error)
                    _log.warning("container %d cannot be acquired yet: %s", self.container_id, error)
                await first_of(self._signal.wait(), timeout_s=self._settings.retry_s)
        return False

    async def _try_to_acquire(self, store: CoordinationStore) -> bool:
        found = await self._find(store)
        if found is None:
            try:
                await store.create(self._path, self._content(ContainerCondition(HeldPhase.OPENING)), is_ephemeral=True)
            except NodeExistsError:
                return False
            return True
        if found.owner == store.session_id:
            return True
        if self._is_own(found) or await self._waited(store, found):
            return await self._replace(store, self._content(ContainerCondition(HeldPhase.OPENING)))
        return False

    async def _waited(self, store: CoordinationStore, found: Node) -> bool:
        """Wait until the present holder has released the container. Return whether it had its time, and has not."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.handover_wait_s
        seen: Node | None = found
        while self.is_wanted and store.session is Session.CONNECTED:
            left_s = until_s - loop.time()
            if left_s <= 0:
                holder = self._holder(seen)
                _log.warning("container %d is not released by %s: it is taken over", self.container_id, holder)
                return True
            self._signal.clear()
            await first_of(self._signal.wait(), store.changed(self._path, seen), timeout_s=left_s)
            seen = await self._find(store)
            if seen is None or seen.owner == store.session_id:
                return False
        return False

    async def _replace(self, store: CoordinationStore, content: bytes) -> bool:
        """Put this store's node in the place of another one. Return False if the node was deleted meanwhile."""
        try:
            await store.multi([DeleteNode(self._path), CreateNode(self._path, content, is_ephemeral=True)])
        except NoSuchNodeError:
            return False
        return True

    # -- serving ------------------------------------------------------------------------------------------------

    async def confirm(self) -> None:
        """Check that the node is this store's, by a change, before the log is opened. Raises `PenstockError`."""
        store = self._sessions.store
        if store is None or store.session is not Session.CONNECTED:
            raise ContainerOfflineError(
                self.container_id, f"it is not opened while the cluster is not reached: {self._sessions.problem}"
            )
        found = await self._find(store)
        if found is None or found.owner != store.session_id:
            self._signal.set()
            raise ContainerOfflineError(self.container_id, f"it is held by {self._holder(found)}")
        # On the version: a stale read must not permit it.
        await store.set(self._path, self._content(ContainerCondition(HeldPhase.OPENING)), found.version)

    async def _serve(self) -> None:
        """Keep the node current until the container is not wanted any more, or another store has it."""
        while self.is_wanted and not self._is_lost:
            self._signal.clear()
            try:
                store = await self._connected()
                if store is not None and (node := await self._confirmed(store)) is not None:
                    await first_of(self._signal.wait(), store.changed(self._path, node))
            except CoordinationError as error:
                _log.debug("container %d: %s", self.container_id, error)
                await first_of(self._signal.wait(), timeout_s=self._settings.retry_s)

    async def _confirmed(self, store: CoordinationStore) -> Node | None:
        """Return the node, with the container's condition; None if another store has it: `_is_lost` is set then.

        After the end of a session the node is made again.
        """
        found = await self._find(store)
        content = self._content(self._containers.condition(self.container_id))
        if found is None:
            await store.create(self._path, content, is_ephemeral=True)
        elif found.owner != store.session_id:
            if not self._is_own(found):
                _log.warning("container %d is held by %s now: it ends here", self.container_id, self._holder(found))
                self._is_lost = True
                return None
            await self._replace(store, content)
        elif found.content != content:
            await store.set(self._path, content, found.version)
        else:
            return found
        return await store.get(self._path)

    # -- releasing ----------------------------------------------------------------------------------------------

    async def _serve_until_prepared(self) -> None:
        """Serve until the container may be released: also while it is prepared, as it may be wanted again by then."""
        while True:
            await self._serve()
            if self._is_lost or self.is_log_silent or not self.prepares:
                return
            try:
                async with asyncio.timeout(self._settings.prepare_s):
                    await self._containers.prepare(self.container_id)
            except (TimeoutError, PenstockError, OSError) as error:
                # The next start takes longer, that is all.
                _log.info("container %d was not prepared for its next store: %r", self.container_id, error)
            if not self.is_wanted:
                return

    async def _release(self) -> None:
        """Close the container, and delete the node afterwards."""
        await self._note_closing()
        self._grant(False)
        if self.is_log_silent and not self._is_lost:
            await self._delete()
        while self.container_id in self._containers.held:
            self._signal.clear()
            if self.container_id in self._containers.held:
                await self._signal.wait()
        if not self._is_lost:
            await self._delete()

    async def _note_closing(self) -> None:
        store = self._sessions.store
        if self._is_lost or store is None:
            return
        epoch = self._containers.condition(self.container_id).epoch
        try:
            found = await self._find(store)
            if found is not None and found.owner == store.session_id:
                content = self._content(ContainerCondition(HeldPhase.CLOSING, epoch))
                await store.set(self._path, content, found.version)
        except CoordinationError as error:
            _log.debug("container %d: %s", self.container_id, error)

    async def _delete(self) -> None:
        """Delete this store's node. If no server is reached, the end of the session deletes it."""
        while (store := self._sessions.store) is not None and store.session is not Session.EXPIRED:
            if not self.prepares and store.session is not Session.CONNECTED:
                return  # The process must end.
            try:
                found = await self._find(store)
                if found is None or found.owner != store.session_id:
                    return
                await store.delete(self._path, found.version)
            except SessionExpiredError:
                return
            except CoordinationOutcomeUnknownError:
                continue
            except CoordinationError as error:
                _log.debug("container %d: %s", self.container_id, error)
                await asyncio.sleep(self._settings.retry_s)
            else:
                return

    # -- parts --------------------------------------------------------------------------------------------------

    async def _connected(self) -> CoordinationStore | None:
        """Return a session that is CONNECTED; None if something else has changed before there is one."""
        store = self._sessions.store
        if store is None or store.session is not Session.CONNECTED:
            await first_of(self._signal.wait(), self._sessions.connected())
            store = self._sessions.store
        return store if store is not None and store.session is Session.CONNECTED else None

    async def _find(self, store: CoordinationStore) -> Node | None:
        try:
            return await store.get(self._path)
        except NoSuchNodeError:
            return None

    def _grant(self, is_granted: bool) -> None:
        self.is_granted = is_granted
        self._on_granted()

    def _content(self, condition: ContainerCondition) -> bytes:
        return encode_node(
            HeldNode(
                owner=self._name,
                incarnation=self._incarnation,
                phase=condition.phase,
                epoch=condition.epoch,
                error=condition.error[:_ERROR_CHARACTERS_MAX],
            )
        )

    def _is_own(self, found: Node) -> bool:
        """Return whether a node is of an earlier session of this process."""
        try:
            return decode_node(HeldNode, self._path, found.content).incarnation == self._incarnation
        except NodeFormatError:
            return False

    def _holder(self, found: Node | None) -> str:
        if found is None:
            return "no store"
        try:
            content = decode_node(HeldNode, self._path, found.content)
        except NodeFormatError as error:
            return str(error)
        return f"store {content.owner} (incarnation {content.incarnation})"

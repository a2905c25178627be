"""`ClusterMember`: a segment store in its cluster. It announces itself, and runs what is assigned to it.

Sessions end, and the coordination service may be away; neither stops a container. See ``docs/cluster.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

import msgspec

from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    DRAINS_PATH,
    ELECTION_PATH,
    HELD_PATH,
    HOSTS_PATH,
    AssignmentNode,
    DrainNode,
    HostNode,
    HostState,
    SecurityMark,
    decode_node,
    encode_node,
    host_node_name,
    split_host_node_name,
)
from penstock.model.errors import ContainerOfflineError
from penstock.model.errors.coordination import (
    CoordinationError,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import (
    Children,
    CoordinationService,
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Session,
    ensure_node,
)
from penstock.runtime.kept_session import KeptSession
from penstock.runtime.waits import cancel_and_wait, first_of
from penstock.segmentstore.cluster.containers import MemberContainers
from penstock.segmentstore.cluster.ends import KnownEnds, write_end
from penstock.segmentstore.cluster.hold import ContainerHold
from penstock.segmentstore.cluster.loads import LoadReporter, LoadSource
from penstock.segmentstore.cluster.settings import MemberSettings

_log = logging.getLogger(__name__)


class ClusterMember:
    """See the module.

    `name`: of the store, as assignments have it. `incarnation`: of its process, the token in hex under which it opens
    logs. `host`: what it announces. `ends`: is read before each open of a log.
    `wall_clock_ms`: for people. `loads`: what the store reports of its load; None: nothing, and it is never impaired.

    Attributes:
        problem: why it follows no assignment, for messages and probes; empty: it does.
        announced: set when its node in ``hosts`` was made once.
    """

    def __init__(
        self,
        service: CoordinationService,
        containers: MemberContainers,
        *,
        name: str,
        incarnation: str,
        host: HostNode,
        ends: KnownEnds,
        settings: MemberSettings | None = None,
        wall_clock_ms: Callable[[], int] = lambda: 0,
        loads: LoadSource | None = None,
    ) -> None:
        self.problem: str = ""
        self.announced: asyncio.Event = asyncio.Event()
        self._containers = containers
        self._name = name
        self._incarnation = incarnation
        self._host = host
        self._host_path = f"{HOSTS_PATH}/{host_node_name(name, incarnation)}"
        self._ends = ends
        self._wall_clock_ms = wall_clock_ms
        self._settings = settings or MemberSettings()
        self._sessions = KeptSession(service, f"segment store {name}", self._settings.retry_s)
        self._holds: dict[int, ContainerHold] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._background: list[asyncio.Task[None]] = []
        #: Of the assignment that was applied last. An older one is a stale read.
        self._number = -1
        self._wanted: frozenset[int] = frozenset()
        self._assigned: frozenset[int] = frozenset()
        self._is_stopping = False
        self._released = asyncio.Event()
        #: Set when what the store announces has changed.
        self._host_changed = asyncio.Event()
        self._reporter: LoadReporter | None = None
        if loads is not None:
            self._reporter = LoadReporter(
                loads,
                self._sessions,
                self._settings,
                name=name,
                on_changed=self._impairment_changed,
                on_silent=containers.end_waits,
            )
        containers.observe(self._before_open, self._conditions_changed)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def assigned(self) -> Collection[int]:
        """The containers that the cluster has assigned to this store, ascending."""
        return sorted(self._assigned)

    @property
    def held(self) -> Collection[int]:
        """The containers that this store holds, or is acquiring or releasing, ascending."""
        return sorted(self._holds)

    @property
    def coordination_problem(self) -> str:
        """Why the coordination service is not reached; empty: it is."""
        return self._sessions.problem

    @property
    def impaired(self) -> str:
        """Why other stores should serve the containers of this one; empty: it is well."""
        return "" if self._reporter is None else self._reporter.impaired

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Announce the store, and follow the assignment, in the background."""
        loop = asyncio.get_running_loop()
        self._background = [
            loop.create_task(self._sessions.run(), name=f"session of store {self._name}"),
            loop.create_task(self._announce(), name=f"announcement of store {self._name}"),
            loop.create_task(self._follow(), name=f"assignment of store {self._name}"),
        ]
        if self._reporter is not None:
            self._background.append(loop.create_task(self._reporter.run(), name=f"load of store {self._name}"))

    async def drain(self) -> bool:
        """Hand all containers over to other stores, if there are any. Return whether nothing is left.

        Ends after `drain_timeout_s`, and as soon as nothing can take the containers: no other store that is up, or no
        controller that leads.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.drain_timeout_s
        path = f"{DRAINS_PATH}/{self._name}"
        while self._holds and loop.time() < until_s:
            store = self._sessions.store
            if store is None or store.session is not Session.CONNECTED:
                break  # It would be waited for, and containers are away until then.
            try:
                if not await self._can_be_drained(store):
                    break
                try:
                    content = DrainNode(by=f"store {self._name}", since_ms=self._wall_clock_ms())
                    await store.create(path, encode_node(content), is_ephemeral=True)
                except NodeExistsError:
                    pass
            except CoordinationError as error:
                _log.warning("store %s cannot be drained: %s", self._name, error)
            self._released.clear()
            if self._holds:
                await first_of(self._released.wait(), timeout_s=self._settings.retry_s)
        return not self._holds

    async def stop(self) -> None:
        """Release all containers, and leave the cluster. The segment store has no container afterwards."""
        self._is_stopping = True
        await cancel_and_wait(*self._background[1:])
        for hold in self._holds.values():
            hold.prepares = False
            hold.want(False)
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        except TimeoutError:
            _log.warning("store %s: containers %s were not released in time", self._name, self.held)
        await cancel_and_wait(*self._tasks.values())
        store = self._sessions.store
        if store is not None and store.session is Session.CONNECTED and not self._containers.held:
            try:
                await write_end(store, self._name, self._incarnation, by="self")
            except CoordinationError as error:
                _log.info("store %s: its end was not recorded: %s", self._name, error)
        await cancel_and_wait(*self._background[:1])

    def announce_security(self, security: SecurityMark | None) -> None:
        """Replace what the store's node in ``hosts`` says about its security."""
        self._host = msgspec.structs.replace(self._host, security=security)
        self._host_changed.set()

    # -- announcement -------------------------------------------------------------------------------------------

    async def _announce(self) -> None:
        """Keep the store's node in ``hosts``."""
        while True:
            store = await self._sessions.connected()
            self._host_changed.clear()
            content = encode_node(self._host)
            try:
                await ensure_node(store, HOSTS_PATH)
                await ensure_node(store, HELD_PATH)
                await ensure_node(store, DRAINS_PATH)
                try:
                    found = await store.get(self._host_path)
                except NoSuchNodeError:
                    hosts = await store.children(HOSTS_PATH)
                    if self.announced.is_set() and self._rivals(hosts):
                        # Its session has ended, and another process has taken its name: that one is the newer.
                        await first_of(store.changed(HOSTS_PATH, hosts), timeout_s=self._settings.poll_s)
                    else:
                        await store.create(self._host_path, content, is_ephemeral=True)
                    continue
                if found.owner != store.session_id:
                    # Of a session of this process that has ended for it, but not yet for the service.
                    await store.multi(
                        [DeleteNode(self._host_path), CreateNode(self._host_path, content, is_ephemeral=True)]
                    )
                    continue
                # Only now: a creation without an answer may have been made.
                self.announced.set()
                if found.content != content:
                    await store.set(self._host_path, content, found.version)
                    continue
                await first_of(store.changed(self._host_path, found), self._host_changed.wait())
            except SessionExpiredError:
                await asyncio.sleep(0)
            except CoordinationError as error:
                _log.info("store %s cannot be announced yet: %s", self._name, error)
                await asyncio.sleep(self._settings.retry_s)

    def _impairment_changed(self) -> None:
        state = HostState.IMPAIRED if self.impaired else HostState.UP
        self._host = msgspec.structs.replace(self._host, state=state)
        self._host_changed.set()
        for hold in self._holds.values():
            hold.is_log_silent = self._is_log_silent

    @property
    def _is_log_silent(self) -> bool:
        return self._reporter is not None and self._reporter.is_log_silent

    # -- assignment ---------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read the assignment at each change, and at intervals."""
        while True:
            store = await self._sessions.connected()
            try:
                hosts = await store.children(HOSTS_PATH)
                node = await store.get(ASSIGNMENT_PATH)
                is_newest = await self._is_newest(store, hosts)
                self._apply(decode_node(AssignmentNode, ASSIGNMENT_PATH, node.content), is_newest=is_newest)
                await first_of(
                    store.changed(ASSIGNMENT_PATH, node),
                    store.changed(HOSTS_PATH, hosts),
                    timeout_s=self._settings.poll_s,
                )
            except NoSuchNodeError:
                self.problem = "no controller has assigned containers yet"
                await asyncio.sleep(self._settings.retry_s)
            except SessionExpiredError:
                await asyncio.sleep(0)
            except CoordinationError as error:
                if str(error) != self.problem:
                    self.problem = str(error)
                    _log.warning("store %s cannot read its assignment, nothing changes: %s", self._name, error)
                await asyncio.sleep(self._settings.retry_s)

    async def _is_newest(self, store: CoordinationStore, hosts: Children) -> bool:
        """Return whether no later process has this store's name. Its node was made after this one's."""
        rivals = self._rivals(hosts)
        if not rivals:
            return True
        try:
            own = await store.get(self._host_path)
        except NoSuchNodeError:
            return not self.announced.is_set()
        for path in rivals:
            try:
                # Not its last change: an earlier process may have changed its node since.
                if (await store.get(path)).created_zxid > own.created_zxid:
                    return False
            except NoSuchNodeError:
                continue
        return True

    def _rivals(self, hosts: Children) -> list[str]:
        """Return the nodes of other processes that have this store's name."""
        paths = [f"{HOSTS_PATH}/{each}" for each in sorted(hosts.names) if split_host_node_name(each)[0] == self._name]
        return [path for path in paths if path != self._host_path]

    def _apply(self, assignment: AssignmentNode, *, is_newest: bool) -> None:
        if assignment.number < self._number:
            return
        self._number = assignment.number
        self.problem = ""
        wanted = frozenset(number for number, owner in enumerate(assignment.owners) if owner == self._name)
        if not is_newest:
            self.problem = f"another process runs as store {self._name}: give each store a name of its own (--name)"
            if self._wanted:
                _log.error("%s", self.problem)
            wanted = frozenset()
        self._assigned = wanted
        self._set_wanted(wanted)

    def _set_wanted(self, wanted: frozenset[int]) -> None:
        self._wanted = wanted
        for container_id, hold in self._holds.items():
            hold.want(container_id in wanted)
        for container_id in sorted(wanted - self._holds.keys()):
            self._begin(container_id)

    def _begin(self, container_id: int) -> None:
        hold = ContainerHold(
            container_id,
            self._sessions,
            self._containers,
            self._settings,
            name=self._name,
            incarnation=self._incarnation,
            on_granted=self._grant,
        )
        hold.is_log_silent = self._is_log_silent
        self._holds[container_id] = hold
        task = asyncio.get_running_loop().create_task(hold.run(), name=f"hold of container {container_id}")
        self._tasks[container_id] = task
        task.add_done_callback(lambda _: self._ended(container_id, task))

    def _ended(self, container_id: int, task: asyncio.Task[None]) -> None:
        self._holds.pop(container_id, None)
        self._tasks.pop(container_id, None)
        self._released.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("container %d is not held any more", container_id, exc_info=error)
            asyncio.get_running_loop().call_later(self._settings.poll_s, self._begin_again, container_id)
        else:
            self._begin_again(container_id)
        self._grant()

    def _begin_again(self, container_id: int) -> None:
        """Hold a container that is assigned and not held."""
        if container_id in self._wanted and container_id not in self._holds and not self._is_stopping:
            self._begin(container_id)

    def _grant(self) -> None:
        self._containers.assign([number for number, hold in sorted(self._holds.items()) if hold.is_granted])

    # -- containers ---------------------------------------------------------------------------------------------

    async def _before_open(self, container_id: int) -> None:
        """Check that the store holds a container, and read which stores have ended. Raises `PenstockError`."""
        hold = self._holds.get(container_id)
        store = self._sessions.store
        if hold is None or store is None:
            raise ContainerOfflineError(container_id, "this store does not hold it")
        await hold.confirm()
        await self._ends.read(store)

    def _conditions_changed(self) -> None:
        for hold in self._holds.values():
            hold.notify()

    async def _can_be_drained(self, store: CoordinationStore) -> bool:
        """Return whether another store can take the containers, and a controller may lead."""
        names = {split_host_node_name(each)[0] for each in (await store.children(HOSTS_PATH)).names}
        others = names - (await store.children(DRAINS_PATH)).names - {self._name}
        try:
            return bool(others) and bool((await store.children(ELECTION_PATH)).names)
        except NoSuchNodeError:
            return False

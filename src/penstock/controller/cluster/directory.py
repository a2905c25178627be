"""`ClusterDirectory`: where the segment stores and controllers of a cluster are, kept in memory.

A process announces an address for each *listener*: for clients of one network. What is known is kept while the
coordination service is away; a request to a store that has gone fails there, and is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    AssignmentNode,
    ControllerNode,
    Endpoint,
    HeldNode,
    HostNode,
    NodeContent,
    decode_node,
    host_node_name,
    split_host_node_name,
)
from penstock.model.errors import ConnectionLostError
from penstock.model.errors.coordination import (
    CoordinationError,
    NodeFormatError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.model.routing import container_of
from penstock.runtime.coordination import Children, CoordinationStore, Node
from penstock.runtime.kept_session import KeptSession
from penstock.runtime.waits import first_of

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=NodeContent)

#: Paths that are remembered as reported.
_UNREADABLE_MAX = 1000


@dataclass(slots=True)
class ClusterPlaces:
    """What is known of a cluster.

    Attributes:
        container_count: number of containers.
        owners: name of the store that each container is assigned to.
        holders: node name in ``hosts`` of the store that holds a container, by container id.
        hosts: stores, by node name.
        newest: node name of the newest process of each store, by the store's name.
        controllers: by name.
    """

    container_count: int
    owners: tuple[str, ...] = ()
    holders: dict[int, str] = field(default_factory=dict)
    hosts: dict[str, HostNode] = field(default_factory=dict)
    newest: dict[str, str] = field(default_factory=dict)
    controllers: dict[str, ControllerNode] = field(default_factory=dict)

    def endpoint_of(self, container_id: int, listener: str) -> Endpoint | None:
        """Return where the store that holds a container is, else the one that it is assigned to; None: neither is."""
        host = self.hosts.get(self.holders.get(container_id, ""))
        if host is None and container_id < len(self.owners):
            host = self.hosts.get(self.newest.get(self.owners[container_id], ""))
        return None if host is None else host.endpoints.get(listener)

    def unsure_holders(self, listed: frozenset[int]) -> list[int]:
        """Return the containers whose holder has to be read: unknown, or not the newest process of their store.

        A store takes over only what is assigned to it, so the others have not changed.
        """
        return sorted(number for number in listed if not self._is_sure(number))

    def _is_sure(self, container_id: int) -> bool:
        holder = self.holders.get(container_id)
        if holder is None or holder not in self.hosts or container_id >= len(self.owners):
            return False
        return holder == self.newest.get(self.owners[container_id])


class ClusterDirectory:
    """See the module. `poll_s`: it is read at least this often; `retry_s`: pause after a failed read."""

    def __init__(
        self, sessions: KeptSession, container_count: int, *, poll_s: float = 10.0, retry_s: float = 0.5
    ) -> None:
        self.places: ClusterPlaces = ClusterPlaces(container_count)
        #: Set when the cluster was read once.
        self.is_known: asyncio.Event = asyncio.Event()
        self._sessions = sessions
        self._poll_s = poll_s
        self._retry_s = retry_s
        #: Paths of nodes that could not be read and were reported.
        self._unreadable: set[str] = set()

    def locator(self, listener: str) -> ListenerLocator:
        """Return the locator for clients of a listener."""
        return ListenerLocator(self, listener)

    def controllers(self, listener: str) -> list[tuple[str, int]]:
        """Return host and port of each live controller for clients of a listener."""
        found = [each.endpoints.get(listener) for _, each in sorted(self.places.controllers.items())]
        return [(each.host, each.port) for each in found if each is not None]

    async def run(self) -> None:
        """Read the cluster at each change and at intervals, until cancelled."""
        problem = ""
        while True:
            store = await self._sessions.connected()
            try:
                await self._read_and_wait(store)
                problem = ""
            except SessionExpiredError:
                await asyncio.sleep(0)
            except NoSuchNodeError:
                await asyncio.sleep(self._retry_s)  # No leader has made the nodes yet.
            except CoordinationError as error:
                if str(error) != problem:
                    problem = str(error)
                    _log.warning("the cluster cannot be read, its stores are taken to be where they were: %s", error)
                await asyncio.sleep(self._retry_s)

    async def _read_and_wait(self, store: CoordinationStore) -> None:
        # At the same time: clients wait for a container that moves until its next store is known here. What changes
        # between two of the answers is found by the waits below.
        assignment, host_list, held_list, controller_list = await asyncio.gather(
            store.get(ASSIGNMENT_PATH),
            store.children(HOSTS_PATH),
            store.children(HELD_PATH),
            store.children(CONTROLLERS_PATH),
        )
        places = self.places
        places.owners = decode_node(AssignmentNode, ASSIGNMENT_PATH, assignment.content).owners
        hosts, controllers = await asyncio.gather(
            self._read_all(store, HostNode, HOSTS_PATH, host_list),
            self._read_all(store, ControllerNode, CONTROLLERS_PATH, controller_list),
        )
        places.hosts = {name: host for name, (_, host) in hosts.items()}
        places.newest = {split_host_node_name(name)[0]: name for name, _ in sorted(hosts.items(), key=_zxid)}
        places.controllers = {name: each for name, (_, each) in controllers.items()}
        await self._read_holders(store, held_list)
        self.is_known.set()
        await first_of(
            store.changed(ASSIGNMENT_PATH, assignment),
            store.changed(HOSTS_PATH, host_list),
            store.changed(HELD_PATH, held_list),
            store.changed(CONTROLLERS_PATH, controller_list),
            timeout_s=self._poll_s,
        )

    async def _read_holders(self, store: CoordinationStore, held_list: Children) -> None:
        places = self.places
        listed = frozenset(int(name) for name in held_list.names if name.isdecimal())
        holders = {number: holder for number, holder in places.holders.items() if number in listed}
        unsure = places.unsure_holders(listed)
        names = Children(frozenset(map(str, unsure)), held_list.zxid)
        found = await self._read_all(store, HeldNode, HELD_PATH, names)
        for number in unsure:
            holders.pop(number, None)
            if (held := found.get(str(number))) is not None:
                holders[number] = host_node_name(held[1].owner, held[1].incarnation)
        places.holders = holders

    async def _read_all(
        self, store: CoordinationStore, kind: type[C], parent: str, listed: Children
    ) -> dict[str, tuple[int, C]]:
        """Return the zxid of its creation and the content of each child that still exists.

        One that cannot be read is passed over: a process of a later version wrote it, and the others are found.
        """
        names = sorted(listed.names)
        nodes = await asyncio.gather(*(_read(store, f"{parent}/{name}") for name in names))
        found: dict[str, tuple[int, C]] = {}
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                found[name] = node.created_zxid, decode_node(kind, f"{parent}/{name}", node.content)
            except NodeFormatError as error:
                self._note_unreadable(error)
        return found

    def _note_unreadable(self, error: NodeFormatError) -> None:
        """Report a node that cannot be read, each one once."""
        if len(self._unreadable) >= _UNREADABLE_MAX:
            self._unreadable.clear()
        if error.path not in self._unreadable:
            self._unreadable.add(error.path)
            _log.warning("a process of the cluster is not found by clients of this controller: %s", error)


class ListenerLocator:
    """`ContainerLocator` of a cluster, for clients of one listener."""

    def __init__(self, directory: ClusterDirectory, listener: str) -> None:
        self._directory = directory
        self._listener = listener

    @property
    def container_count(self) -> int:
        """See `ContainerLocator.container_count`."""
        return self._directory.places.container_count

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """See `ContainerLocator.endpoint_of`."""
        found = self._directory.places.endpoint_of(container_id, self._listener)
        return None if found is None else (found.host, found.port)

    async def resolve(self, segment: str) -> tuple[str, int]:
        """Return the endpoint of a segment, given by its full name; for connection pools.

        Raises `ConnectionLostError` if no store has its container; a retry is safe.
        """
        container_id = container_of(segment, self.container_count)
        found = self.endpoint_of(container_id)
        if found is None:
            raise ConnectionLostError(f"{segment}: no segment store runs container {container_id} now")
        return found


async def _read(store: CoordinationStore, path: str) -> Node | None:
    try:
        return await store.get(path)
    except NoSuchNodeError:
        return None


def _zxid(item: tuple[str, tuple[int, HostNode]]) -> int:
    return item[1][0]

"""`NodeTree`: the nodes of one simulated ZooKeeper server, and what changes do to them.

Versions and zxids are ZooKeeper's: `version` counts changes of the content, `pzxid` is the last change of the children.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.model.errors.coordination import (
    EphemeralParentError,
    NodeExistsError,
    NodeNotEmptyError,
    NodeVersionError,
    NoSuchNodeError,
)
from penstock.runtime.coordination import (
    ANY_VERSION,
    CheckNode,
    Children,
    CreateNode,
    DeleteNode,
    Node,
    NodeChange,
    SetNode,
    parent_of,
)

#: What a watch is set on: a node's path, and whether its children are meant.
Watched = tuple[str, bool]


@dataclass(slots=True)
class StoredNode:
    """One node. `created_count`: children created so far, which numbers sequential ones."""

    content: bytes
    zxid: int
    pzxid: int
    version: int = 0
    owner: int = 0
    created_count: int = 0
    created_zxid: int = 0
    children: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Changes made as one. `session`: owner of ephemeral nodes; `ended_session`: the session that it ends, or 0."""

    zxid: int
    session: int
    changes: tuple[NodeChange, ...]
    ended_session: int = 0


class NodeTree:
    """See the module. `zxid`: the last transaction applied."""

    def __init__(self) -> None:
        self.zxid: int = 0
        self.nodes: dict[str, StoredNode] = {"/": StoredNode(b"", 0, 0)}

    def copy(self) -> NodeTree:
        """Return an equal tree that shares nothing with this one."""
        return copy.deepcopy(self)

    def get(self, path: str) -> Node:
        """Return a node. Raises `NoSuchNodeError`."""
        node = self._node(path)
        return Node(node.content, node.version, node.zxid, node.owner, node.created_zxid)

    def children(self, path: str) -> Children:
        """Return a node's children. Raises `NoSuchNodeError`."""
        node = self._node(path)
        return Children(frozenset(node.children), node.pzxid)

    def owned_by(self, session: int) -> list[str]:
        """Return the paths of a session's ephemeral nodes."""
        return sorted(path for path, node in self.nodes.items() if node.owner == session)

    def number(self, path: str) -> str:
        """Return the path of the next sequential child with this prefix. Raises `NoSuchNodeError`."""
        return f"{path}{self._node(parent_of(path)).created_count:010d}"

    def check(self, session: int, changes: Sequence[NodeChange]) -> None:
        """Raise the `NodeError` of the first change that must be refused."""
        if len(changes) == 1:
            self._check(changes[0])
            return
        trial = self.copy()
        for change in changes:
            trial._check(change)
            list(trial._apply(change, trial.zxid + 1, session))

    def apply(self, transaction: Transaction) -> list[Watched]:
        """Make the changes of a transaction that was checked. Return the watches that they fire."""
        assert transaction.zxid > self.zxid
        self.zxid = transaction.zxid
        fired: list[Watched] = []
        for change in transaction.changes:
            fired.extend(self._apply(change, transaction.zxid, transaction.session))
        return fired

    def _check(self, change: NodeChange) -> None:
        path = change.path
        if isinstance(change, CreateNode):
            parent = self.nodes.get(parent_of(path))
            if path in self.nodes:
                raise NodeExistsError(path, "it exists already")
            if parent is None:
                raise NoSuchNodeError(path, f"cannot create {path}: its parent does not exist")
            if parent.owner:
                raise EphemeralParentError(path, f"{parent_of(path)} is ephemeral and can have no children")
            return
        node = self._node(path)
        if change.version not in (ANY_VERSION, node.version):
            raise NodeVersionError(path, "it was changed meanwhile")
        if isinstance(change, DeleteNode) and node.children:
            raise NodeNotEmptyError(path, "it has children and cannot be deleted")

    def _apply(self, change: NodeChange, zxid: int, session: int) -> Iterator[Watched]:
        path = change.path
        parent_path = parent_of(path)
        name = path.rpartition("/")[2]
        match change:
            case CreateNode():
                owner = session if change.is_ephemeral else 0
                self.nodes[path] = StoredNode(change.content, zxid, zxid, owner=owner, created_zxid=zxid)
                parent = self.nodes[parent_path]
                parent.children.add(name)
                parent.created_count += 1
                parent.pzxid = zxid
                yield path, False
                yield parent_path, True
            case SetNode():
                node = self.nodes[path]
                node.content, node.zxid, node.version = change.content, zxid, node.version + 1
                yield path, False
            case DeleteNode():
                del self.nodes[path]
                parent = self.nodes[parent_path]
                parent.children.discard(name)
                parent.pzxid = zxid
                yield path, False
                yield path, True
                yield parent_path, True
            case CheckNode():
                pass

    def _node(self, path: str) -> StoredNode:
        node = self.nodes.get(path)
        if node is None:
            raise NoSuchNodeError(path, "it does not exist")
        return node

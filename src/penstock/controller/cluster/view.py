"""`ClusterView`: what a leader reads of its cluster before it plans."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    DRAINS_PATH,
    ENDS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    IDENTITY_PATH,
    LOADS_PATH,
    AssignmentNode,
    ClusterIdentity,
    HeldNode,
    HostNode,
    LoadNode,
    NodeContent,
    decode_node,
    encode_node,
    split_host_node_name,
)
from penstock.model.errors.coordination import NodeExistsError, NodeFormatError, NoSuchNodeError
from penstock.runtime.coordination import Children, CoordinationStore, Node, ensure_node

C = TypeVar("C", bound=NodeContent)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as it was read, node by node: not at one moment.

    Attributes:
        assignment, version: the assignment, and the version of its node.
        hosts: the live stores, by name; of two incarnations of a name, the one whose node was made last.
        held: the holders of containers, by container id.
        drains: names of stores to empty.
        loads: of stores, by name.
        host_list, drain_list: what the lists were, for waits.
        host_nodes: the nodes of live stores as they were read, by path, for waits.
        incarnations: those of `hosts`, by name.
    """

    assignment: AssignmentNode
    version: int
    hosts: dict[str, HostNode]
    held: dict[int, HeldNode]
    drains: frozenset[str]
    loads: dict[str, LoadNode]
    host_list: Children
    drain_list: Children
    host_nodes: Mapping[str, Node] = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)


async def make_cluster_nodes(store: CoordinationStore) -> None:
    """Create the parents of all nodes, and an assignment without owners, unless they exist.

    Raises `NoSuchNodeError` if there is no ``identity``: the cluster was not made.
    """
    identity = decode_node(ClusterIdentity, IDENTITY_PATH, (await store.get(IDENTITY_PATH)).content)
    for path in (HOSTS_PATH, HELD_PATH, DRAINS_PATH, LOADS_PATH, ENDS_PATH, CONTROLLERS_PATH):
        await ensure_node(store, path)
    empty = AssignmentNode(number=0, nonce="", owners=("",) * identity.container_count)
    try:
        await store.create(ASSIGNMENT_PATH, encode_node(empty))
    except NodeExistsError:
        return


async def read_cluster(store: CoordinationStore) -> ClusterView:
    """Read a cluster. Raises `CoordinationError`, `NodeFormatError`."""
    node = await store.get(ASSIGNMENT_PATH)
    host_list, drain_list = await store.children(HOSTS_PATH), await store.children(DRAINS_PATH)
    host_nodes = await _read_nodes(store, HOSTS_PATH, host_list)
    hosts: dict[str, HostNode] = {}
    incarnations: dict[str, str] = {}
    for node_name, found in sorted(host_nodes.items(), key=lambda each: each[1].created_zxid):
        name, incarnation = split_host_node_name(node_name)
        hosts[name] = decode_node(HostNode, f"{HOSTS_PATH}/{node_name}", found.content)
        incarnations[name] = incarnation
    held = await _read_all(store, HeldNode, HELD_PATH, await store.children(HELD_PATH))
    loads = await _read_loads(store)
    return ClusterView(
        assignment=decode_node(AssignmentNode, ASSIGNMENT_PATH, node.content),
        version=node.version,
        hosts=hosts,
        held={int(name): content for name, content in held.items() if name.isdecimal()},
        drains=drain_list.names,
        # What a store wrote that is not live any more says nothing.
        loads={name: content for name, content in loads.items() if name in hosts},
        host_list=host_list,
        drain_list=drain_list,
        host_nodes={f"{HOSTS_PATH}/{name}": found for name, found in host_nodes.items()},
        incarnations=incarnations,
    )


async def _read_loads(store: CoordinationStore) -> dict[str, LoadNode]:
    """Return the loads by store. One that cannot be read, of a later version, is as one that was not reported."""
    found: dict[str, LoadNode] = {}
    for name, node in (await _read_nodes(store, LOADS_PATH, await store.children(LOADS_PATH))).items():
        try:
            found[name] = decode_node(LoadNode, f"{LOADS_PATH}/{name}", node.content)
        except NodeFormatError as error:
            _log.debug("the load of store %s is not known: %s", name, error)
    return found


async def _read_all(store: CoordinationStore, kind: type[C], parent: str, listed: Children) -> dict[str, C]:
    """Return the content of each child that still exists."""
    nodes = await _read_nodes(store, parent, listed)
    return {name: decode_node(kind, f"{parent}/{name}", node.content) for name, node in nodes.items()}


async def _read_nodes(store: CoordinationStore, parent: str, listed: Children) -> dict[str, Node]:
    """Return each child that still exists."""
    found = await asyncio.gather(*(_read(store, f"{parent}/{name}") for name in sorted(listed.names)))
    return {name: each for name, each in zip(sorted(listed.names), found, strict=True) if each is not None}


async def _read(store: CoordinationStore, path: str) -> Node | None:
    try:
        return await store.get(path)
    except NoSuchNodeError:
        return None

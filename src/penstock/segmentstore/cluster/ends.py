"""`KnownEnds`: which incarnations of segment stores are known to have ended, by the nodes in ``ends``.

A container that is opened after its former store has ended need not wait for that store's lease. The proof is written
by the store itself after an orderly stop, or by the process that has started it and has waited for its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.cluster_nodes import (
    ENDS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    EndNode,
    HeldNode,
    decode_node,
    encode_node,
    host_node_name,
    split_host_node_name,
)
from penstock.model.errors.coordination import NodeExistsError, NodeFormatError, NoSuchNodeError
from penstock.runtime.coordination import CoordinationStore, CreateNode, DeleteNode, NodeChange, ensure_node

#: The proofs are pruned when there are this share more than are kept, so that it is done rarely.
_PRUNE_SHARE = 10


class KnownEnds:
    """See the module. Incarnations are tokens, under which a process opens logs."""

    def __init__(self) -> None:
        self._ended: frozenset[str] = frozenset()

    def may_live(self, token: bytes) -> bool:
        """Return whether the process of a token may still run."""
        return token.hex() not in self._ended

    async def read(self, store: CoordinationStore) -> None:
        """Read the nodes. Raises `CoordinationError`."""
        try:
            self._ended = (await store.children(ENDS_PATH)).names
        except NoSuchNodeError:
            self._ended = frozenset()


async def write_end(store: CoordinationStore, name: str, incarnation: str, *, by: str) -> None:
    """Record that a store's process has ended, and delete its ephemeral nodes, whose session may last for a while.

    In one step: a store that finds a container free also finds the proof. Call it again after an error, which may be
    any `CoordinationError`; it does nothing if it was done.
    """
    await ensure_node(store, ENDS_PATH)
    path = f"{ENDS_PATH}/{incarnation}"
    try:
        await store.get(path)
    except NoSuchNodeError:
        pass
    else:
        return
    gone = [f"{HOSTS_PATH}/{each}" for each in await _children(store, HOSTS_PATH) if _is_host(each, name, incarnation)]
    for each in await _children(store, HELD_PATH):
        try:
            content = decode_node(HeldNode, f"{HELD_PATH}/{each}", (await store.get(f"{HELD_PATH}/{each}")).content)
        except (NoSuchNodeError, NodeFormatError):
            continue
        if content.incarnation == incarnation:
            gone.append(f"{HELD_PATH}/{each}")
    try:
        await store.multi(changes_of_end(name, incarnation, by, gone))
    except NodeExistsError:
        return


async def prune_ends(store: CoordinationStore, kept: int) -> int:
    """Delete all proofs but the newest, if there are some more than `kept`; return how many were deleted.

    A proof is needed until the containers of its process were opened again. If it is missing, a lease is waited for.
    Raises `CoordinationError`.
    """
    names = await _children(store, ENDS_PATH)
    if len(names) <= kept + kept // _PRUNE_SHARE:
        return 0
    made: list[tuple[int, str]] = []
    for name in names:
        try:
            made.append(((await store.get(f"{ENDS_PATH}/{name}")).zxid, name))
        except NoSuchNodeError:
            continue
    made.sort()
    gone = [name for _, name in made[: max(len(made) - kept, 0)]]
    for name in gone:
        try:
            await store.delete(f"{ENDS_PATH}/{name}")
        except NoSuchNodeError:
            continue
    return len(gone)


def changes_of_end(name: str, incarnation: str, by: str, gone: Iterable[str]) -> list[NodeChange]:
    """Return the changes that record an end. `gone`: paths of the ephemeral nodes of the process."""
    made = CreateNode(f"{ENDS_PATH}/{incarnation}", encode_node(EndNode(name=name, by=by)))
    return [made, *(DeleteNode(path) for path in sorted(gone))]


async def _children(store: CoordinationStore, path: str) -> list[str]:
    try:
        return sorted((await store.children(path)).names)
    except NoSuchNodeError:
        return []


def _is_host(node_name: str, name: str, incarnation: str) -> bool:
    try:
        return node_name == host_node_name(name, incarnation) or split_host_node_name(node_name)[1] == incarnation
    except NodeFormatError:
        return False

"""`ClusterAdministration`: what an administrator sees and changes of a cluster, through its coordination service.

Nothing is stopped for it. Changes of the assignment are made on the version that was read, as the leader does.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.cluster.control import ClusterStatus
from penstock.controller.cluster.view import ClusterView, read_cluster
from penstock.model.assignment_plan import UNASSIGNED, LiveStore, Loads, Move, MoveReason, plan
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    DRAINS_PATH,
    ELECTION_PATH,
    WHY_MAX,
    AssignmentNode,
    CandidateNode,
    ControllerNode,
    DrainNode,
    HostState,
    MovedContainer,
    decode_node,
    encode_node,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import (
    CoordinationOutcomeUnknownError,
    NodeExistsError,
    NodeVersionError,
    NoSuchNodeError,
)
from penstock.model.move_settings import MoveSettings
from penstock.runtime.coordination import CoordinationStore
from penstock.runtime.runtime import Runtime
from penstock.server.cluster.identity import read_identity
from penstock.server.errors import NoSuchStoreError

__all__ = ["ClusterAdministration", "ClusterStatus", "moved_owners", "planned"]

_ATTEMPTS_MAX = 10
#: Moves by an administrator wait for nothing.
_UNLIMITED = 1_000_000


class ClusterAdministration:
    """See the module. `place`: of the cluster, for messages; `by`: who administers it, for people."""

    def __init__(self, store: CoordinationStore, place: str, runtime: Runtime, by: str) -> None:
        self._store = store
        self._place = place
        self._runtime = runtime
        self._by = by

    async def status(self) -> ClusterStatus:
        """Read everything. Raises `CoordinationError`, `UnknownClusterError`."""
        identity = await read_identity(self._store, self._place)
        view = await self._view()
        controllers: dict[str, ControllerNode] = {}
        for name in await self._names(CONTROLLERS_PATH):
            path = f"{CONTROLLERS_PATH}/{name}"
            try:
                controllers[name] = decode_node(ControllerNode, path, (await self._store.get(path)).content)
            except NoSuchNodeError:
                continue
        return ClusterStatus(identity, view, controllers, await self._leader())

    async def drain(self, name: str, *, is_dry: bool) -> tuple[Move, ...]:
        """Have a store emptied; return the moves that follow. Nothing is changed if `is_dry`.

        Raises `NoSuchStoreError`, `CoordinationError`.
        """
        view = await self._view()
        _check_store(view, name)
        moves = planned(view, drains=view.drains | {name})
        if not is_dry:
            content = encode_node(DrainNode(by=self._by, since_ms=self._runtime.wall_clock_ms()))
            try:
                await self._store.create(f"{DRAINS_PATH}/{name}", content)
            except NodeExistsError:
                pass
        return moves

    async def undrain(self, name: str, *, is_dry: bool) -> tuple[Move, ...]:
        """End a drain; return the moves that follow. Nothing is changed if `is_dry`.

        Of a live store that is not drained only a dry run is refused: a request that is repeated after a lost reply
        finds that the drain has ended. Raises `NoSuchStoreError`, `CoordinationError`.
        """
        view = await self._view()
        if name not in view.drains and (is_dry or name not in view.hosts):
            raise NoSuchStoreError(f"store {name} is not drained: the drained stores are {sorted(view.drains)}")
        moves = planned(view, drains=view.drains - {name})
        if not is_dry:
            try:
                await self._store.delete(f"{DRAINS_PATH}/{name}")
            except NoSuchNodeError:
                pass
        return moves

    async def move(self, container_id: int, name: str, *, is_dry: bool) -> tuple[Move, ...]:
        """Assign a container to a store; return what else moves.

        If the leader would move it back, to even the stores out, another container of the store takes its place.
        Raises `NoSuchStoreError`, `InvalidArgumentError`, `CoordinationError`.
        """
        for _ in range(_ATTEMPTS_MAX):
            view = await self._view()
            _check_store(view, name)
            if not 0 <= container_id < len(view.assignment.owners):
                raise InvalidArgumentError(
                    f"there are {len(view.assignment.owners)} containers, and none {container_id}"
                )
            if name in view.drains:
                raise InvalidArgumentError(f"store {name} is drained: end that with penstock cluster undrain {name}")
            source = view.assignment.owners[container_id]
            if source == name:
                return ()
            owners, others = moved_owners(view, container_id, name)
            why = [MovedContainer(container_id, source, name, f"administrator {self._by}")]
            why += [MovedContainer(each.container_id, each.source, each.target, str(each.reason)) for each in others]
            if is_dry or await self._write(view, owners, why):
                return others
        raise self._contended()

    async def balance(self, *, is_dry: bool) -> tuple[Move, ...]:
        """Even out all stores at once, instead of a few containers at a time; return the moves.

        Raises `CoordinationError`.
        """
        for _ in range(_ATTEMPTS_MAX):
            view = await self._view()
            moves = planned(view, drains=view.drains)
            owners = list(view.assignment.owners)
            for move in moves:
                owners[move.container_id] = move.target
            why = [MovedContainer(each.container_id, each.source, each.target, str(each.reason)) for each in moves]
            if is_dry or not moves or await self._write(view, tuple(owners), why):
                return moves
        raise self._contended()

    async def _view(self) -> ClusterView:
        await read_identity(self._store, self._place)
        return await read_cluster(self._store)

    async def _write(self, view: ClusterView, owners: tuple[str, ...], why: list[MovedContainer]) -> bool:
        """Write an assignment; return False if another one was written meanwhile."""
        content = AssignmentNode(
            number=view.assignment.number + 1,
            nonce=self._runtime.random_id().hex(),
            owners=owners,
            why=tuple([*view.assignment.why, *why][-WHY_MAX:]),
            extra=view.assignment.extra,
        )
        try:
            await self._store.set(ASSIGNMENT_PATH, encode_node(content), view.version)
        except NodeVersionError:
            return False
        except CoordinationOutcomeUnknownError:
            node = await self._store.get(ASSIGNMENT_PATH)
            return decode_node(AssignmentNode, ASSIGNMENT_PATH, node.content).nonce == content.nonce
        return True

    async def _leader(self) -> str:
        for name in await self._names(ELECTION_PATH):
            path = f"{ELECTION_PATH}/{name}"
            try:
                return decode_node(CandidateNode, path, (await self._store.get(path)).content).name
            except NoSuchNodeError:
                continue
        return ""

    async def _names(self, path: str) -> list[str]:
        try:
            return sorted((await self._store.children(path)).names)
        except NoSuchNodeError:
            return []

    def _contended(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the assignment at {self._place} was changed {_ATTEMPTS_MAX} times meanwhile: try again"
        )


def planned(view: ClusterView, *, drains: frozenset[str]) -> tuple[Move, ...]:
    """Return all moves that a view leads to, one after the other; without those for load."""
    stores = {
        name: LiveStore(host.weight, host.zone, host.state is HostState.IMPAIRED) for name, host in view.hosts.items()
    }
    limits = MoveSettings(at_once=_UNLIMITED, per_store=_UNLIMITED)
    _, moves = plan(view.assignment.owners, stores, Loads(), drains, limits)
    return moves


def moved_owners(view: ClusterView, container_id: int, name: str) -> tuple[tuple[str, ...], tuple[Move, ...]]:
    """Return the owners after a move of one container to a store, and the other moves that even the stores out."""
    owners = list(view.assignment.owners)
    owners[container_id] = name
    after = replace(view, assignment=AssignmentNode(number=0, nonce="", owners=tuple(owners)))
    follow = planned(after, drains=view.drains)
    others = tuple(each for each in follow if each.container_id != container_id)
    back = next((each for each in follow if each.container_id == container_id), None)
    instead = next((number for number, owner in enumerate(view.assignment.owners) if owner == name), None)
    if back is not None and instead is not None:
        # It would be moved away again: another one goes instead.
        others = (*others, Move(instead, name, back.target, MoveReason.EVEN))
    for each in others:
        owners[each.container_id] = each.target
    return tuple(owners), others


def _check_store(view: ClusterView, name: str) -> None:
    if name not in view.hosts or name == UNASSIGNED:
        raise NoSuchStoreError(f"there is no segment store {name!r}: the live stores are {sorted(view.hosts)}")

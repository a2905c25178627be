"""`mixed_versions`: processes of a simulated cluster behave as different versions of Penstock, as in a rolling upgrade.

Each process takes one of two neighbouring versions when it starts, so a cluster is upgraded and downgraded again and
again, in every order. The present version is the code as it is. The others differ in what processes exchange:

| | an earlier version | a later version |
|---|---|---|
| calls that Penstock adds to the controller | answers UNIMPLEMENTED | as the present one |
| requests that Penstock adds to the segment store | closes the connection | as the present one |
| nodes of the cluster | leaves out fields that have their defaults; neither writes nor reads loads | adds fields |
| controller records that are maps of fields | as the present one | adds fields, also to maps inside |
| records of reader groups | as the present one | adds a field |

Fields of a later version must still be in the assignment after other leaders have written it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any, cast

import grpc
import msgspec

from penstock.client.groups.group_state import GroupState
from penstock.controller.cluster import view
from penstock.controller.metadata import codec
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    DRAINS_PATH,
    ELECTION_PATH,
    ENDS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    IDENTITY_PATH,
    LOADS_PATH,
    AssignmentNode,
    CandidateNode,
    ClusterIdentity,
    ControllerNode,
    DrainNode,
    EndNode,
    HeldNode,
    HostNode,
    LoadNode,
    NodeContent,
    decode_node,
    encode_node,
)
from penstock.model.errors import ProtocolError
from penstock.rpc import additions_pb2
from penstock.runtime.coordination import CoordinationStore, CreateNode, Node, NodeChange, SetNode
from penstock.segmentstore.cluster.loads import LoadReporter, StoreCounts
from penstock.segmentstore.connection import Connection
from penstock.wire.commands import GetChunkLayout, GetStatistics, ReturnChunkLease
from penstock_simulation.mutations.mutation import patched
from penstock_simulation.simulated.controller_calls import _Served
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedSession

#: Calls and requests that an earlier version does not have.
ADDED_CALLS = frozenset(additions_pb2.DESCRIPTOR.services_by_name["PenstockControllerService"].methods_by_name)
ADDED_REQUESTS = frozenset({GetStatistics.TYPE, GetChunkLayout.TYPE, ReturnChunkLease.TYPE})
#: A field that only the later version has.
LATER_FIELD = "later"

_KINDS: Mapping[str, type[NodeContent]] = {
    IDENTITY_PATH: ClusterIdentity,
    HOSTS_PATH: HostNode,
    HELD_PATH: HeldNode,
    ASSIGNMENT_PATH: AssignmentNode,
    DRAINS_PATH: DrainNode,
    LOADS_PATH: LoadNode,
    ENDS_PATH: EndNode,
    CONTROLLERS_PATH: ControllerNode,
    ELECTION_PATH: CandidateNode,
}


class Version(Enum):
    """A version of Penstock that a process behaves as."""

    EARLIER = "earlier"
    PRESENT = "present"
    LATER = "later"


#: The versions of one cluster.
PAIRS = ((Version.EARLIER, Version.PRESENT), (Version.PRESENT, Version.LATER))


class Versions:
    """The version of each process of one cluster. `counts`: what the versions did, for reports."""

    def __init__(self, seed: int) -> None:
        self.pair: tuple[Version, Version] = PAIRS[seed % len(PAIRS)]
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._drawn: dict[str, Version] = {}

    @property
    def current(self) -> Version:
        """The version of the process that runs now; the present one outside of processes."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimulatedLoop):
            return Version.PRESENT
        return self.of(loop.current.name)

    def of(self, process: str) -> Version:
        """Return the version of a process, by its name. Only servers and clients have different ones."""
        if not process.startswith(("store", "parent", "controller", "client")):
            return Version.PRESENT
        if process not in self._drawn:
            drawn = random.Random(f"{self._seed}/version of {process}").choice(self.pair)
            self._drawn[process] = drawn
            self.counts[f"versions: {drawn.value}"] += 1
        return self._drawn[process]

    # -- nodes --------------------------------------------------------------------------------------------------

    def written(self, path: str, content: bytes) -> bytes:
        """Return a node's content as the process that runs now writes it."""
        kind = _kind_of(path)
        version = self.current
        if kind is None or version is Version.PRESENT:
            return content
        node = decode_node(kind, path, content)
        if version is Version.EARLIER:
            return _without_defaults(content, kind)
        return encode_node(msgspec.structs.replace(node, extra={**node.extra, LATER_FIELD: {"of": path}}))

    def read(self, path: str, node: Node) -> Node:
        """Return a node as the code of the process that runs now has to see it: with what its version writes."""
        kind = _kind_of(path)
        version = self.current
        if kind is None or version is Version.PRESENT:
            return node
        content = decode_node(kind, path, node.content)
        if version is Version.LATER:
            extra = {name: value for name, value in content.extra.items() if name != LATER_FIELD}
            content = msgspec.structs.replace(content, extra=extra)
        return _with_content(node, encode_node(content))


def _kind_of(path: str) -> type[NodeContent] | None:
    return next((kind for parent, kind in _KINDS.items() if path == parent or path.startswith(f"{parent}/")), None)


def _without_defaults(content: bytes, kind: type[NodeContent]) -> bytes:
    """Return a content without the fields that have their defaults."""
    fields = msgspec.json.decode(content)
    defaults = {
        field.encode_name: msgspec.to_builtins(
            field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        )
        for field in msgspec.structs.fields(kind)
        if not field.required
    }
    return msgspec.json.encode(
        {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}
    )


def _with_content(node: Node, content: bytes) -> Node:
    return dataclasses.replace(node, content=content)


class _LaterRecords:
    """The encoder of controller records. In a process of a later version it adds fields."""

    def __init__(self, versions: Versions, plain: msgspec.msgpack.Encoder) -> None:
        self._versions = versions
        self._plain = plain

    def encode(self, record: object) -> bytes:
        """Return the fields of a record."""
        encoded = self._plain.encode(record)
        if self._versions.current is not Version.LATER:
            return encoded
        self._versions.counts["versions: records with later fields"] += 1
        return self._plain.encode(_with_later_fields(msgspec.msgpack.decode(encoded)))


def _with_later_fields(value: object, depth: int = 0) -> object:
    # A map with other keys, or an empty one, is no record.
    if not isinstance(value, dict) or not value or not all(isinstance(name, str) for name in value):
        return value
    return {**{name: _with_later_fields(each, depth + 1) for name, each in value.items()}, LATER_FIELD: depth}


@contextmanager
def mixed_versions(seed: int, found: Callable[[str], None]) -> Iterator[Versions]:
    """See the module. `found` is called for each violation."""
    versions = Versions(seed)
    with ExitStack() as patches:
        for owner, name, value in (
            *_coordination(versions, found),
            *_calls(versions),
            (codec, "_encoder", _LaterRecords(versions, codec._encoder)),
        ):
            patches.enter_context(patched(owner, name, value))
        yield versions


def _coordination(versions: Versions, found: Callable[[str], None]) -> Iterator[tuple[object, str, object]]:
    get, create, set_, multi = (
        SimulatedSession.get, SimulatedSession.create, SimulatedSession.set, SimulatedSession.multi
    )  # fmt: skip
    change, read_loads, report = SimulatedZooKeeper.change, view._read_loads, LoadReporter._report
    has_later = False

    async def get_as(self: SimulatedSession, path: str) -> Node:
        return versions.read(path, await get(self, path))

    async def create_as(self: SimulatedSession, path: str, content: bytes = b"", **options: bool) -> str:
        return await create(self, path, versions.written(path, content) if content else content, **options)

    async def set_as(self: SimulatedSession, path: str, content: bytes, *version: int) -> int:
        return await set_(self, path, versions.written(path, content), *version)

    async def multi_as(self: SimulatedSession, changes: Sequence[NodeChange]) -> None:
        await multi(self, [_as_written(versions, each) for each in changes])

    @functools.wraps(change)
    def change_and_check(
        self: SimulatedZooKeeper, session_id: int, changes: Sequence[NodeChange], is_sequential: bool = False
    ) -> tuple[int, str]:
        nonlocal has_later
        made = change(self, session_id, changes, is_sequential)
        for each in changes:
            if isinstance(each, SetNode) and each.path == ASSIGNMENT_PATH:
                has_now = LATER_FIELD in msgspec.json.decode(each.content)
                if has_later and not has_now:
                    found("an assignment lacks a field that a leader of a later version had written")
                elif has_later:
                    versions.counts["versions: assignments that keep later fields"] += 1
                has_later = has_now
        return made

    async def read_known_loads(store: CoordinationStore) -> dict[str, LoadNode]:
        return {} if versions.current is Version.EARLIER else await read_loads(store)

    async def report_load(self: LoadReporter, now_s: float, counts: StoreCounts, problem_s: float) -> None:
        if versions.current is not Version.EARLIER:
            await report(self, now_s, counts, problem_s)

    yield SimulatedSession, "get", get_as
    yield SimulatedSession, "create", create_as
    yield SimulatedSession, "set", set_as
    yield SimulatedSession, "multi", multi_as
    yield SimulatedZooKeeper, "change", change_and_check
    yield view, "_read_loads", read_known_loads
    yield LoadReporter, "_report", report_load


def _as_written(versions: Versions, change: NodeChange) -> NodeChange:
    if isinstance(change, CreateNode | SetNode) and change.content:
        return dataclasses.replace(change, content=versions.written(change.path, change.content))
    return change


def _calls(versions: Versions) -> Iterator[tuple[object, str, object]]:
    answer, handle, encode = _Served._answer, Connection._handle, GroupState.encode

    async def answer_known(self: _Served, number: int, name: str, header: str, payload: bytes) -> None:
        if name in ADDED_CALLS and versions.current is Version.EARLIER:
            versions.counts[f"versions: {name} refused"] += 1
            self._refuse(number, grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported by this controller")
            self._tasks.pop(number, None)
            return
        await cast(Callable[..., Awaitable[None]], answer)(self, number, name, header, payload)

    def handle_known(self: Connection, type_code: int, payload: memoryview, is_owned: bool) -> None:
        if type_code in ADDED_REQUESTS and versions.current is Version.EARLIER:
            versions.counts[f"versions: requests {type_code:#x} refused"] += 1
            raise ProtocolError(f"the type {type_code} is not known")
        handle(self, type_code, payload, is_owned)

    def encode_group(self: GroupState) -> bytes:
        encoded = encode(self)
        if versions.current is not Version.LATER:
            return encoded
        versions.counts["versions: groups with later fields"] += 1
        fields: dict[str, Any] = msgspec.json.decode(encoded)
        return msgspec.json.encode({**fields, LATER_FIELD: {"any": 1}})

    yield _Served, "_answer", answer_known
    yield Connection, "_handle", handle_known
    yield GroupState, "encode", encode_group

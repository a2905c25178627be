"""Contents of a cluster's nodes in its coordination service, as JSON. Byte-exact forms: ``docs/formats.md``.

Each content is an object with a version ``v``. Fields that this version does not know are kept in `extra` and written
again, so two versions of Penstock can run side by side. An unknown ``v`` is refused: `NodeFormatError`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TypeVar

import msgspec

from penstock.model.errors.coordination import NodeFormatError

#: The only version of each content so far.
NODE_VERSION = 1

#: Paths below a cluster's root.
IDENTITY_PATH = "/identity"
HOSTS_PATH = "/hosts"
HELD_PATH = "/held"
ASSIGNMENT_PATH = "/assignment"
DRAINS_PATH = "/drains"
LOADS_PATH = "/loads"
ENDS_PATH = "/ends"
CONTROLLERS_PATH = "/controllers"
ELECTION_PATH = "/election"
#: Between the name of a store and its incarnation.
INCARNATION_MARK = "~"


#: Moves that an assignment lists, for people.
WHY_MAX = 50


class Endpoint(msgspec.Struct, frozen=True):
    """Where clients of one listener reach a process."""

    host: str
    port: int


class SecurityMark(msgspec.Struct, frozen=True):
    """How a process is secured. Processes of a cluster have equal ones, but for keys that are being rotated.

    Attributes:
        tls, auth: whether its ports are encrypted, and whether callers need an account or a token.
        keys: a fingerprint of each key of delegation tokens that it verifies with; it signs with the first one.
    """

    tls: bool = False
    auth: bool = False
    keys: tuple[str, ...] = ()


class NodeContent(msgspec.Struct, frozen=True, kw_only=True):
    """What all contents have. `extra`: fields of a later version, by name."""

    extra: dict[str, object] = msgspec.field(default_factory=dict)


class ClusterIdentity(NodeContent, frozen=True, kw_only=True):
    """``identity``: what a cluster is; written once.

    Attributes:
        cluster_id: 32 hex digits.
        container_count: number of containers.
        log, tier2: URLs of the durable logs and of long-term storage.
        ownership_lease_s_max: the longest lease that a store of this cluster has ever used.
    """

    cluster_id: str
    container_count: int
    log: str
    tier2: str
    ownership_lease_s_max: float


class HostState(StrEnum):
    """What a store says about itself."""

    UP = "up"
    DRAINING = "draining"
    IMPAIRED = "impaired"


class HostNode(NodeContent, frozen=True, kw_only=True):
    """``hosts/<name>~<incarnation>``: a store that is live; ephemeral.

    Attributes:
        endpoints: by the name of the listener.
        zone: where it runs; empty: unknown.
        weight: its share of the containers, 1 for each process.
        version: of Penstock.
        state: see `HostState`.
        admin_port: of its administration; 0: none.
        security: None: it has none.
    """

    endpoints: dict[str, Endpoint]
    zone: str = ""
    weight: int = 1
    version: str = ""
    state: HostState = HostState.UP
    admin_port: int = 0
    security: SecurityMark | None = None


class HeldPhase(StrEnum):
    """How far a store is with a container."""

    OPENING = "opening"
    SERVING = "serving"
    CLOSING = "closing"


class HeldNode(NodeContent, frozen=True, kw_only=True):
    """``held/<c>``: the store that has a container's log open, or is about to; ephemeral.

    Attributes:
        owner: name of the store.
        incarnation: of the store.
        phase: see `HeldPhase`.
        epoch: of the container; 0 while it opens.
        error: why it could not be opened; empty: it could, or is still being opened.
    """

    owner: str
    incarnation: str
    phase: HeldPhase
    epoch: int = 0
    error: str = ""


class MovedContainer(msgspec.Struct, frozen=True):
    """A move, for people. `source` is empty for a container that had no owner."""

    container_id: int
    source: str
    target: str
    reason: str


class AssignmentNode(NodeContent, frozen=True, kw_only=True):
    """``assignment``: the store that should run each container; written by the leader on the version it read.

    Attributes:
        number: grows with each assignment.
        nonce: of the leader that wrote it, new each time; by it a leader recognises its own write.
        owners: name of each container's store, by container id; empty: none yet.
        why: the last moves, oldest first.
    """

    number: int
    nonce: str
    owners: tuple[str, ...]
    why: tuple[MovedContainer, ...] = ()


class DrainNode(NodeContent, frozen=True, kw_only=True):
    """``drains/<name>``: a store to be emptied. Ephemeral if the store itself wrote it.

    `by`: the administrator's host or the store; `since_ms`: wall clock, for people.
    """

    by: str
    since_ms: int


class ContainerLoad(msgspec.Struct, frozen=True):
    """Load of one container: bytes and operations per second, and the length of its log in bytes."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    operations_in: float = 0.0
    operations_out: float = 0.0
    log_bytes: int = 0


#: A store whose log has not answered for longer reports it at once, and gets no containers.
LOG_PROBLEM_S_MAX = 3.0


class LoadNode(NodeContent, frozen=True, kw_only=True):
    """``loads/<name>``: what a store does; ephemeral, written every some seconds.

    Attributes:
        busy: share of its time in which its event loop works, 0 to 1.
        containers: by container id.
        log_problem_s: for how long its log has taken no append that waits; 0: no problem. It is written at once when it
            passes `LOG_PROBLEM_S_MAX`, in either direction.
    """

    busy: float
    containers: dict[int, ContainerLoad] = msgspec.field(default_factory=dict)
    log_problem_s: float = 0.0


class EndNode(NodeContent, frozen=True, kw_only=True):
    """``ends/<incarnation>``: proof that a store's process has ended.

    `name`: of the store; `by`: ``self`` after an orderly stop, ``parent`` after its parent has waited for its end.
    """

    name: str
    by: str


class ControllerNode(NodeContent, frozen=True, kw_only=True):
    """``controllers/<name>``: a controller that is a member; ephemeral.

    `endpoints`: by the name of the listener; `security`: None: it has none.
    """

    endpoints: dict[str, Endpoint] = msgspec.field(default_factory=dict)
    security: SecurityMark | None = None


class CandidateNode(NodeContent, frozen=True, kw_only=True):
    """``election/n-<number>``: a controller that may lead; ephemeral and sequential. The lowest number leads.

    `name`: of the controller, for people.
    """

    name: str


C = TypeVar("C", bound=NodeContent)


def encode_node(content: NodeContent) -> bytes:
    """Return a node's content: JSON in UTF-8 without spaces, ``v`` first, then the fields, then those in `extra`.

    Fields that are None are left out.
    """
    found = msgspec.to_builtins(content, str_keys=True)
    extra = found.pop("extra")
    fields = {name: value for name, value in found.items() if value is not None}
    return msgspec.json.encode({"v": NODE_VERSION, **fields, **extra})


def decode_node(kind: type[C], path: str, content: bytes) -> C:
    """Return a node's content. Raises `NodeFormatError`, which names `path`."""
    try:
        fields = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise NodeFormatError(path, f"its content is no JSON ({error}); it was not changed") from error
    if not isinstance(fields, dict) or type(fields.get("v")) is not int:
        raise NodeFormatError(path, "its content has no version 'v': Penstock did not write it")
    version = fields.pop("v")
    if version != NODE_VERSION:
        raise NodeFormatError(
            path, f"its content has version {version}, this release reads {NODE_VERSION}: a later release wrote it"
        )
    known = _field_names(kind)
    extra = {name: fields.pop(name) for name in list(fields) if name not in known}
    try:
        return msgspec.convert({**fields, "extra": extra}, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise NodeFormatError(path, f"its content is damaged: {error}; it was not changed") from error


@cache
def _field_names(kind: type[NodeContent]) -> frozenset[str]:
    """Return the names of a content's fields. Finding them takes much longer than decoding a node."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind)) - {"extra"}


def host_node_name(name: str, incarnation: str) -> str:
    """Return the name of a store's node in ``hosts``."""
    return f"{name}{INCARNATION_MARK}{incarnation}"


def split_host_node_name(node_name: str) -> tuple[str, str]:
    """Return name and incarnation of a store by the name of its node in ``hosts``. Raises `NodeFormatError`."""
    name, mark, incarnation = node_name.rpartition(INCARNATION_MARK)
    if not mark or not name or not incarnation:
        raise NodeFormatError(f"{HOSTS_PATH}/{node_name}", "its name is not that of a store and its incarnation")
    return name, incarnation

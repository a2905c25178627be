"""`CoordinationStore`: one session with a coordination service; the part of the determinism seam for ZooKeeper.

The service keeps a tree of small nodes. Changes are totally ordered; each has a number, its *zxid*. A client holds a
session: the service ends it when it gets no sign of life for the session's timeout, and deletes the session's
*ephemeral* nodes. Production uses `penstock.runtime.zookeeper`; the simulation uses an ensemble in memory.

A store object is one session. After EXPIRED it is of no more use: close it and open another one with the service.

What holds, and what does not (``docs/coordination.md``):

- Changes go through a quorum and are linearizable. Reads are answered by one server, which may lag; a session never
  goes back in time, but another session may be ahead.
- A change without an answer (`CoordinationOutcomeUnknownError`) may have been made or not, or be made later while the
  session lives. Nothing is retried here.
- A client that is cut off does not learn of it at once: CONNECTED means that no silence has been noticed yet. It
  learns of the end of its session only from a server, when it reaches one again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import NodeExistsError

DEFAULT_PORT = 2181
#: Any version: the condition of an unconditional change.
ANY_VERSION = -1
#: ZooKeeper's default bound is 1 MiB for a whole request.
CONTENT_BYTES_MAX = 1_000_000


class Session(StrEnum):
    """State of a session, as far as this client knows.

    Attributes:
        CONNECTED: a server answers, or its silence has not been noticed yet.
        SUSPENDED: no server is reached; the session may be alive. Requests fail, nothing is sent.
        EXPIRED: the service has ended the session, or `close` has. Final.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read.

    Attributes:
        content: its bytes.
        version: number of changes of the content since the node was created.
        zxid: the change that created it or last set its content.
        owner: number of the session that an ephemeral node belongs to; 0: it is persistent.
        created_zxid: the change that created it.
    """

    content: bytes
    version: int
    zxid: int
    owner: int = 0
    created_zxid: int = 0


@dataclass(frozen=True, slots=True)
class Children:
    """The children of a node as they were read.

    Attributes:
        names: without the parent's path.
        zxid: the change that last created or deleted a child. Grows with each such change.
    """

    names: frozenset[str]
    zxid: int


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Create a node, in `CoordinationStore.multi`."""

    path: str
    content: bytes = b""
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetNode:
    """Set a node's content if it has this version, in `CoordinationStore.multi`."""

    path: str
    content: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Delete a node if it has this version, in `CoordinationStore.multi`."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckNode:
    """Require that a node has this version, in `CoordinationStore.multi`."""

    path: str
    version: int = ANY_VERSION


NodeChange = CreateNode | SetNode | DeleteNode | CheckNode


class CoordinationStore(Protocol):
    """One session. Paths are absolute, below the service's root.

    Every call may raise:

        CoordinationUnavailableError: nothing was done (session SUSPENDED), or a read got no answer in time.
        CoordinationOutcomeUnknownError: a change got no answer.
        CoordinationRefusedError: not permitted.
        SessionExpiredError: the session has ended; nothing was done.

    Cancelling a change leaves its outcome unknown.
    """

    @property
    def session(self) -> Session:
        """State of the session."""

    @property
    def session_id(self) -> int:
        """Number of the session; `Node.owner` of its ephemeral nodes. Unique among the sessions of the service."""

    @property
    def session_timeout_s(self) -> float:
        """The service ends the session after this silence, by its own clock. It may have changed what was requested."""

    @property
    def heard_s(self) -> float:
        """Loop time at which the last answered request was *sent*.

        Requests of the implementation renew it while nothing else is sent, about each third of the timeout. When
        `session_timeout_s` has passed since, the session may have ended. It is no proof that the session was alive: a
        server that lags may answer. Only a change proves that.
        """

    @property
    def request_count(self) -> int:
        """Requests sent so far, those of the implementation included, without heartbeats of a library."""

    async def get(self, path: str) -> Node:
        """Return a node. Raises `NoSuchNodeError`."""

    async def children(self, path: str) -> Children:
        """Return the children of a node. Raises `NoSuchNodeError`."""

    async def create(
        self, path: str, content: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """Create a node and return its path.

        `is_sequential`: a number of ten digits is appended to the path, growing with each child of the parent.
        Raises `NodeExistsError`, `NoSuchNodeError` (no parent), `EphemeralParentError`.
        """

    async def set(self, path: str, content: bytes, version: int = ANY_VERSION) -> int:
        """Set a node's content and return its new version. Raises `NoSuchNodeError`, `NodeVersionError`."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises `NoSuchNodeError`, `NodeVersionError`, `NodeNotEmptyError`."""

    async def multi(self, changes: Sequence[NodeChange]) -> None:
        """Make all changes as one, or none. Raises the error of the first change that was refused."""

    async def changed(self, path: str, seen: Node | Children | None) -> None:
        """Wait until a node differs from what was seen of it: its content, its children, or (None) that it is absent.

        Also returns when the session is CONNECTED again after SUSPENDED, and may return without a change: read again.
        Several changes are seen as one. While SUSPENDED it waits. Cancelling it leaves nothing behind.
        Raises `SessionExpiredError` as soon as the session is EXPIRED.
        """

    async def session_changed(self, seen: Session) -> Session:
        """Wait until the session's state is another one, and return it. Returns at once in state EXPIRED."""

    async def close(self) -> None:
        """End the session, so that its ephemeral nodes are deleted at once if a server is reached. Raises nothing.

        If no server is reached, they are deleted after the session's timeout.
        """


class CoordinationService(Protocol):
    """A coordination service, in which sessions are opened."""

    @property
    def place(self) -> str:
        """Its address, for messages."""

    async def open_session(self, *, makes_root: bool = False) -> CoordinationStore:
        """Open a session. `makes_root`: create the root of all paths unless it exists.

        Raises `CoordinationUnavailableError`, `CoordinationRefusedError`, `CoordinationOutcomeUnknownError` (of the
        root).
        """


@dataclass(frozen=True, slots=True)
class CoordinationSettings:
    """Bounds of sessions and requests.

    Attributes:
        session_timeout_s: requested; ZooKeeper allows 2 to 20 of its ticks.
        request_timeout_s: time for one request.
        open_timeout_s: time for opening a session.
        close_timeout_s: time for ending one.
        requests_max: requests in progress; further ones are refused by `CoordinationUnavailableError`.
    """

    session_timeout_s: float = 8.0
    request_timeout_s: float = 3.0
    open_timeout_s: float = 15.0
    close_timeout_s: float = 2.0
    requests_max: int = 1000

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if min(self.session_timeout_s, self.request_timeout_s, self.open_timeout_s, self.close_timeout_s) <= 0:
            raise InvalidArgumentError(f"time-outs of the coordination service are above 0: {self}")
        if self.requests_max < 1:
            raise InvalidArgumentError("requests_max of the coordination service is at least 1")


@dataclass(frozen=True, slots=True)
class CoordinationAccess:
    """How a service is reached that asks for credentials, or encrypts.

    Attributes:
        user, password: with a user, nodes are made for this user alone; empty: for all. The password is not shown.
        has_tls: encrypt connections, and check that the certificate is of the host that was connected to.
        authority: PEM file with trusted certificate authorities; empty: those of the system.
        certificate, private_key: PEM files of this client; empty: it has no certificate.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    has_tls: bool = False
    authority: str = ""
    certificate: str = ""
    private_key: str = ""

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if bool(self.user) != bool(self.password) or ":" in self.user:
            raise InvalidArgumentError("an account of ZooKeeper has a name without a colon, and a password")
        if bool(self.certificate) != bool(self.private_key):
            raise InvalidArgumentError("a certificate for ZooKeeper needs its private key, and the other way round")


@dataclass(frozen=True, slots=True)
class CoordinationPlace:
    """Where the service is, given as ``host:port,host:port/root``.

    Attributes:
        hosts: host and port of each server; an IPv6 address without brackets.
        root: all paths are below it; empty, or begins with a slash and does not end with one.
    """

    hosts: tuple[tuple[str, int], ...]
    root: str = ""

    @classmethod
    def parse(cls, text: str) -> CoordinationPlace:
        """Parse an address. Raises `InvalidArgumentError`."""
        listed, mark, rest = text.partition("/")
        root = mark + rest.rstrip("/") if rest else ""
        if root:
            check_path(root)
        return cls(tuple(_host(each.strip(), text) for each in listed.split(",")), root)

    @property
    def servers(self) -> str:
        """The servers, without the root."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    def __str__(self) -> str:
        return self.servers + self.root


def _host(text: str, whole: str) -> tuple[str, int]:
    host, mark, port = text.rpartition(":")
    if not mark or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgumentError(f"{whole!r}: write an IPv6 address in brackets, [::1]:{DEFAULT_PORT}")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidArgumentError(f"{whole!r} is no address of ZooKeeper: write host:port,host:port/root")
    return host, int(port)


def check_path(path: str) -> None:
    """Check the form of a path. Raises `InvalidArgumentError`."""
    if path == "/":
        return
    parts = path.split("/")
    if parts[0] or len(parts) == 1 or any(part in ("", ".", "..") for part in parts[1:]) or "\0" in path:
        raise InvalidArgumentError(f"{path!r} is no path of a node: it begins with a slash and has no empty parts")


def check_content(path: str, content: bytes) -> None:
    """Check the length of a node's content. Raises `InvalidArgumentError`."""
    if len(content) > CONTENT_BYTES_MAX:
        raise InvalidArgumentError(f"node {path} would have {len(content)} bytes, above {CONTENT_BYTES_MAX}")


def parent_of(path: str) -> str:
    """Return the path of a node's parent."""
    return path.rpartition("/")[0] or "/"


def may_have_ended(store: CoordinationStore, now_s: float) -> bool:
    """Return whether the service may have ended the session by now, by this process's clock. `now_s`: loop time."""
    return store.session is Session.EXPIRED or now_s - store.heard_s >= store.session_timeout_s


async def ensure_node(store: CoordinationStore, path: str) -> None:
    """Create a persistent, empty node and its parents, unless they exist.

    A lost answer is raised as `CoordinationOutcomeUnknownError`: call it again.
    """
    parts = path.split("/")[1:]
    for count in range(1, len(parts) + 1):
        try:
            await store.create("/" + "/".join(parts[:count]))
        except NodeExistsError:
            continue

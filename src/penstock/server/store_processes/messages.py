"""Messages between a server and the segment stores in its child processes: one JSON object per line, over pipes.

The parent writes an `Order` to the child's standard input, then a `HealthCheck` at intervals; the child answers on its
standard output with `Ready` or `Refusal`, then a `State` for each check. End of input means that the parent exited.
Fields that are unknown or of the wrong type are errors: both sides come from one installation.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.model.errors import ProtocolError

#: The longest line either side accepts; settings and a few thousand container ids need far less.
LINE_BYTES_MAX = 1024 * 1024
#: Error texts are cut to this length, so that a line has room for two thousand containers that fail together.
_FAILURE_CHARACTERS_MAX = 400


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    """One line."""


class Order(Message, frozen=True, tag="order"):
    """What the child runs.

    Attributes:
        store: number of the segment store.
        parent_pid: the parent's process id; the child exits with it.
        lock_descriptor: inherited; the lock of the data directory.
        port: where to listen; 0 takes any free port.
        containers: ids of the containers to begin with.
        settings: see `settings_values`.
        owner: the owner name under which it opens logs, 32 hex digits, new for each process.
        living: the owner names of all such processes that may be alive, itself included.
        lock_socket: inherited; receives the descriptor of a new lock, with one byte, when the parent had to take it
            again. Negative: there is none.
    """

    store: int
    parent_pid: int
    lock_descriptor: int
    port: int
    containers: tuple[int, ...]
    settings: dict[str, object]
    owner: str
    living: tuple[str, ...]
    lock_socket: int = -1


class HealthCheck(Message, frozen=True, tag="question"):
    """A health check with the containers to run from now on. Health checks have ascending numbers.

    `living`: as in `Order`, now. A process that is not listed has ended.
    """

    number: int
    containers: tuple[int, ...]
    living: tuple[str, ...]


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why an assigned container does not run. `kind` is the error's class name."""

    kind: str
    message: str


class State(Message, frozen=True, tag="state"):
    """The answer to a health check, sent after its assignment was applied.

    Attributes:
        number: of the check.
        running: ids of the containers that serve.
        held: those, and the ones being started or stopped; the process holds no other container.
        failures: see `Failure`.
        storage_problem: what is wrong with long-term storage; None: nothing.
        full_disk: why users' writes wait or are refused for lack of space; None: they do not.
    """

    number: int
    running: tuple[int, ...]
    held: tuple[int, ...]
    failures: dict[int, Failure]
    storage_problem: str | None = None
    full_disk: str | None = None


class Ready(Message, frozen=True, tag="ready"):
    """The child listens, and its first containers run or have failed."""

    port: int
    failures: dict[int, Failure]


class Refusal(Message, frozen=True, tag="error"):
    """The child exits without having been ready."""

    kind: str
    message: str


ToChild = Order | HealthCheck
FromChild = Ready | Refusal | State
M = TypeVar("M", bound=Message)


def encode_message(message: Message) -> bytes:
    """Encode a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    """Decode the parent's first line. Raises `ProtocolError`."""
    return _decode(line, Order)


def decode_health_check(line: bytes) -> HealthCheck:
    """Decode a later line of the parent. Raises `ProtocolError`."""
    return _decode(line, HealthCheck)


def decode_from_child(line: bytes) -> FromChild:
    """Decode a line of the child. Raises `ProtocolError`."""
    try:
        message: FromChild = msgspec.json.decode(line, type=FromChild)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a segment store process said {line[:200]!r}: {error}") from error
    return message


def _decode(line: bytes, kind: type[M]) -> M:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"expected a line with {kind.__name__.lower()}, found {line[:200]!r}: {error}") from error


def shortened(text: str | None) -> str | None:
    """Return a text of a length that may be sent."""
    return None if text is None else text[:_FAILURE_CHARACTERS_MAX]


def failures_of(failures: dict[int, BaseException]) -> dict[int, Failure]:
    """Return failures as they are sent."""
    return {
        container_id: Failure(type(error).__name__, str(error)[:_FAILURE_CHARACTERS_MAX])
        for container_id, error in sorted(failures.items())
    }

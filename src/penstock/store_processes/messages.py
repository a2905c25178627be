"""What a server and the segment stores in its child processes say to each other: one JSON object a line, over pipes.

The parent writes an `Order` to the child's standard input, then a `Question` now and again; the child answers on its
standard output with `Ready` or `Refusal`, then a `State` for each question. The end of its input is the parent's end.
Fields that are unknown or of the wrong type are errors: both sides come from one installation.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.model.errors import PenstockError, ProtocolError

#: The longest line either side takes; settings and a few thousand container ids are far below.
LINE_BYTES_MAX = 1024 * 1024
#: Of an error's text, what is told: a line has room for that of two thousand containers, which may fail together.
_FAILURE_CHARACTERS_MAX = 400


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    """A line."""


class Order(Message, frozen=True, tag="order"):
    """What to be.

    Attributes:
        store: number of the segment store.
        parent_pid: who asks; the child ends with it.
        lock_descriptor: inherited; the lock of the data directory.
        port: where to listen; 0 takes any free port.
        containers: ids of the containers to begin with.
        settings: see `settings_values`.
        owner: in whose name it opens logs, 32 hex digits, new for each process.
        living: the names of all such processes that may be alive, itself included.
        lock_socket: inherited; brings the descriptor of a new lock, with one byte, when the parent had to take it
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


class Question(Message, frozen=True, tag="question"):
    """How are you? And these are the containers to run from now on. Questions have ascending numbers.

    `living`: as in `Order`, now. Who is not among them answers nothing any more.
    """

    number: int
    containers: tuple[int, ...]
    living: tuple[str, ...]


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a container that is assigned does not run. `kind` is the error's name."""

    kind: str
    message: str


class State(Message, frozen=True, tag="state"):
    """The answer to a question: the assignment in it is in force.

    Attributes:
        number: of the question.
        running: ids of the containers that serve.
        held: those, and the ones being started or stopped; the process leaves all others alone.
        failures: see `Failure`.
    """

    number: int
    running: tuple[int, ...]
    held: tuple[int, ...]
    failures: dict[int, Failure]


class Ready(Message, frozen=True, tag="ready"):
    """The child listens, and its first containers run or have failed."""

    port: int
    failures: dict[int, Failure]


class Refusal(Message, frozen=True, tag="error"):
    """The child ends without having been ready."""

    kind: str
    message: str


ToChild = Order | Question
FromChild = Ready | Refusal | State
M = TypeVar("M", bound=Message)


def encode_message(message: Message) -> bytes:
    """Return the line of a message."""
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    """Read the parent's first line. Raises `ProtocolError`."""
    return _decode(line, Order)


def decode_question(line: bytes) -> Question:
    """Read a later line of the parent. Raises `ProtocolError`."""
    return _decode(line, Question)


def decode_from_child(line: bytes) -> FromChild:
    """Read a line of the child. Raises `ProtocolError`."""
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


def failures_of(failures: dict[int, BaseException]) -> dict[int, Failure]:
    """Return failures in the form that they are told in."""
    return {
        container_id: Failure(type(error).__name__, str(error)[:_FAILURE_CHARACTERS_MAX])
        for container_id, error in sorted(failures.items())
    }


class StoreProcessError(PenstockError):
    """A process with a segment store did not start, or did not stop in order."""


class StoreRefusedError(StoreProcessError):
    """A segment store refused to start. `kind` is the name of its error."""

    def __init__(self, store: int, kind: str, message: str) -> None:
        super().__init__(f"segment store {store} does not start: {message}")
        self.kind = kind

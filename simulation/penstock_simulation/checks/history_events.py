"""What clients write down while they work: calls, and what came of them. The records that the checkers judge.

A call has an *invocation*, and later at most one *completion*: ok (with what was returned), refused (its condition did
not hold), fail (it certainly had no effect, for another reason), or unknown (a lost reply: it may have had its effect,
or may have it later). A call without completion is unknown. Records are in the order in which things happened; their
index is their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import VERSION_ANY


class Outcome(Enum):
    """How a call ended."""

    OK = "ok"
    REFUSED = "refused"
    FAIL = "fail"
    UNKNOWN = "unknown"


# Calls. Events and values must be unique: that is what lets the checkers work in linear time.


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """Write `event` with routing key `key`. `transaction`: the one that it is part of."""

    stream: str
    key: str
    event: bytes
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class CommitTransaction:
    """Commit. Ok: it is committed, and will be visible."""

    stream: str
    transaction: str


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """Abort. Ok: it will never be visible."""

    stream: str
    transaction: str


@dataclass(frozen=True, slots=True)
class FullRead:
    """Read a stream from its head to its tail while nobody writes to it and no transaction is under way.

    What it saw are the `EventSeen` that name `read`. Ok: it reached the tail. Not `is_settled`: while everybody writes,
    up to a whole tail; what was decided before the read may be merged behind that.
    """

    stream: str
    read: str
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read bytes of a segment. Result: `bytes`, those from `offset` on."""

    segment: str
    offset: int


@dataclass(frozen=True, slots=True)
class GetLength:
    """Ask how long a segment is. Result: `int`."""

    segment: str


@dataclass(frozen=True, slots=True)
class AppendBytes:
    """Append to a segment. Result: `int`, the offset of the first byte; None if the client is not told."""

    segment: str
    data: bytes


@dataclass(frozen=True, slots=True)
class PutKey:
    """Put a table key if its version is `expected`. Result: `int`, the new version. `value` is unique per key."""

    table: str
    key: bytes
    value: bytes
    expected: int = VERSION_ANY


@dataclass(frozen=True, slots=True)
class RemoveKey:
    """Remove a table key if its version is `expected`. Result: none."""

    table: str
    key: bytes
    expected: int = VERSION_ANY


@dataclass(frozen=True, slots=True)
class GetKey:
    """Get a table key. Result: `KeyValue`, or None when it is absent."""

    table: str
    key: bytes


@dataclass(frozen=True, slots=True)
class KeyValue:
    """What a get returned."""

    value: bytes
    version: int


Call = (
    WriteEvent
    | CommitTransaction
    | AbortTransaction
    | FullRead
    | ReadRange
    | GetLength
    | AppendBytes
    | PutKey
    | RemoveKey
    | GetKey
)
Result = bytes | int | KeyValue | None

# Observations: true at the moment they are recorded, without begin and end.


@dataclass(frozen=True, slots=True)
class EventSeen:
    """Reading pass `read` of a stream met an event, after all those it recorded before.

    `key` as the event itself says. Passes of several readers of one group record in the order of their segments.
    `may_repeat`: members of the group die with events in hand, so the pass may meet an event again.
    """

    stream: str
    read: str
    segment: str
    offset: int
    event: bytes
    key: str
    may_repeat: bool = False


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """A client was told `offset` of `what` (a segment's length, a reader's position): it must never go back."""

    what: str
    offset: int


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """An incarnation of a container began to serve with this epoch."""

    container: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """A reader of `group` gave its user an event, in this `life`. That it was worked off is an `EventSeen`."""

    group: str
    life: str
    event: bytes


@dataclass(frozen=True, slots=True)
class PositionsStored:
    """A user was told that how far it is is stored: the first `count` events delivered in this `life`."""

    group: str
    life: str
    count: int


@dataclass(frozen=True, slots=True)
class ReaderLost:
    """A reader's `life` ended, or was taken for ended, without its user being told that everything is stored."""

    group: str
    life: str
    how: str


Observation = EventSeen | OffsetSeen | EpochStarted | EventDelivered | PositionsStored | ReaderLost


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call began."""

    index: int
    time_s: float
    client: str
    call: Call


@dataclass(frozen=True, slots=True)
class Completion:
    """A call ended. `error`: what was raised, in words."""

    index: int
    time_s: float
    invocation: Invocation
    outcome: Outcome
    result: Result
    error: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Something was seen."""

    index: int
    time_s: float
    client: str
    observation: Observation


Record = Invocation | Completion | Observed


@dataclass(frozen=True, slots=True)
class Ended:
    """A call with its end, as checkers want it. `end_index` is that of no record if it never ended."""

    invocation: Invocation
    outcome: Outcome
    result: Result
    end_index: int

    def __str__(self) -> str:
        """Return who, when and what, for violations."""
        call = self.invocation
        return f"{call.call} by {call.client} at {call.time_s:.6f} s (record {call.index}, {self.outcome.value})"


class History:
    """Append-only log of records. `now_s` gives the time, that of the loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.records: list[Record] = []
        self._now_s = now_s
        self._open: set[int] = set()

    def invoke(self, client: str, call: Call) -> Invocation:
        """Record that a call begins."""
        invocation = Invocation(len(self.records), self._now_s(), client, call)
        self._open.add(invocation.index)
        self.records.append(invocation)
        return invocation

    def ok(self, invocation: Invocation, result: Result = None) -> None:
        """Record success."""
        self._end(invocation, Outcome.OK, result, "")

    def refuse(self, invocation: Invocation, error: BaseException | str = "") -> None:
        """Record that the call had no effect because its condition did not hold."""
        self._end(invocation, Outcome.REFUSED, None, str(error))

    def fail(self, invocation: Invocation, error: BaseException | str) -> None:
        """Record that the call certainly had no effect and never will."""
        self._end(invocation, Outcome.FAIL, None, str(error))

    def unknown(self, invocation: Invocation, error: BaseException | str) -> None:
        """Record that the call may or may not have an effect."""
        self._end(invocation, Outcome.UNKNOWN, None, str(error))

    def see(self, client: str, observation: Observation) -> None:
        """Record an observation."""
        self.records.append(Observed(len(self.records), self._now_s(), client, observation))

    def calls(self) -> list[Ended]:
        """Return every call in order of invocation; those without end count as unknown, ending after everything."""
        ends = {record.invocation.index: record for record in self.records if isinstance(record, Completion)}
        found: list[Ended] = []
        for record in self.records:
            if isinstance(record, Invocation):
                end = ends.get(record.index)
                if end is None:
                    found.append(Ended(record, Outcome.UNKNOWN, None, len(self.records)))
                else:
                    found.append(Ended(record, end.outcome, end.result, end.index))
        return found

    def observations(self) -> Iterator[Observed]:
        """Yield the observations in order."""
        for record in self.records:
            if isinstance(record, Observed):
                yield record

    def _end(self, invocation: Invocation, outcome: Outcome, result: Result, error: str) -> None:
        if invocation.index not in self._open:
            raise InvalidArgumentError(f"{invocation.call} of {invocation.client} has ended already")
        self._open.remove(invocation.index)
        self.records.append(Completion(len(self.records), self._now_s(), invocation, outcome, result, error))

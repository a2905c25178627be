"""What each client checks during the soak run, in memory that does not grow with the run.

Each check gets what was observed, in order, and returns the broken promises as texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock_tools.soak.events import ABORT, InTransaction, Numbered

#: Ranges of numbers kept per key, each read by one reader: how far back an event may be delivered again.
RUNS_KEPT_MAX = 200


class KeyOrder:
    """One reader of all events sees each key's numbers once, from 0, without a gap."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self.count = 0

    def see(self, event: Numbered) -> Iterator[str]:
        """Check an event."""
        wanted = self._next.get(event.key, 0)
        if event.number < wanted:
            yield f"event {event.number} of key {event.key} was read again; the next one is {wanted}"
            return
        if event.number > wanted:
            yield f"events {wanted} to {event.number - 1} of key {event.key} are missing before {event.number}"
        self._next[event.key] = event.number + 1
        self.count += 1

    def missing(self, acknowledged: dict[str, int]) -> Iterator[str]:
        """Yield the keys of which fewer events were seen than were acknowledged. Call it at the end."""
        for key, count in acknowledged.items():
            seen = self._next.get(key, 0)
            if seen < count:
                yield f"{count} events of key {key} were acknowledged, and {seen} were read"


@dataclass(slots=True)
class _Run:
    """Consecutive events of a key that one reader has read: [first, end)."""

    first: int
    end: int
    reader: str


class GroupOnce:
    """The readers of a group see each event once; again only if the reader that had it ended without closing."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[_Run]] = {}
        self._dead: set[str] = set()
        self.count = 0
        self.repeated_count = 0

    def died(self, reader: str) -> None:
        """Note that a reader ended without closing. `reader` is a name that no other reader has or gets."""
        self._dead.add(reader)

    def see(self, reader: str, event: Numbered) -> Iterator[str]:
        """Check an event that a reader returned."""
        runs = self._runs.setdefault(event.key, deque(maxlen=RUNS_KEPT_MAX))
        wanted = runs[-1].end if runs else 0
        if event.number > wanted:
            yield f"the group missed events {wanted} to {event.number - 1} of key {event.key} (reader {reader})"
        elif event.number < wanted:
            yield from self._repeated(runs, event, reader)
        else:
            self.count += 1
        if runs and runs[-1].reader == reader and runs[-1].end == event.number:
            runs[-1].end += 1
        else:
            runs.append(_Run(event.number, event.number + 1, reader))

    def missing(self, acknowledged: dict[str, int]) -> Iterator[str]:
        """Yield the keys of which the group has not read all acknowledged events. Call it at the end."""
        for key, count in acknowledged.items():
            runs = self._runs.get(key)
            read = runs[-1].end if runs else 0
            if read < count:
                yield f"{count} events of key {key} were acknowledged, and the group has read {read}"

    def _repeated(self, runs: deque[_Run], event: Numbered, reader: str) -> Iterator[str]:
        """Check that all events from this one on were read by dead readers; forget that they were read."""
        self.repeated_count += runs[-1].end - event.number
        self.count -= runs[-1].end - event.number - 1
        while runs and runs[-1].end > event.number:
            last = runs[-1]
            if last.reader not in self._dead:
                yield (
                    f"reader {reader} got event {event.number} of key {event.key} again; reader {last.reader}, which "
                    "did not die, had it before"
                )
            if last.first < event.number:
                last.end = event.number
            else:
                runs.pop()
        if not runs and event.number:
            yield f"event {event.number} of key {event.key} was delivered again after many others"


@dataclass(slots=True)
class _Transaction:
    count: int
    plan: str
    outcome: str | None = None
    seen: set[int] = field(default_factory=set)


class TransactionsWhole:
    """Of a committed transaction all events are seen, once; of an aborted one none.

    A transaction is forgotten when it is complete; an aborted one after `ABORTED_KEPT_MAX` later ones.
    """

    ABORTED_KEPT_MAX = 2_000

    def __init__(self) -> None:
        self._open: dict[str, _Transaction] = {}
        self._aborted: deque[str] = deque()
        self.committed_count = 0
        self.committed_event_count = 0
        self.aborted_count = 0

    def begin(self, label: str, plan: str, count: int) -> None:
        """Note a transaction before its first event is written."""
        self._open[label] = _Transaction(count, plan)

    def end(self, label: str, *, is_committed: bool) -> Iterator[str]:
        """Note an outcome."""
        found = self._open[label]
        found.outcome = "committed" if is_committed else "aborted"
        if is_committed:
            self.committed_count += 1
            self.committed_event_count += found.count
            self._forget_complete(label, found)
            return
        self.aborted_count += 1
        if found.seen:
            yield f"transaction {label} is aborted, and {len(found.seen)} of its events were read"
        self._aborted.append(label)
        if len(self._aborted) > self.ABORTED_KEPT_MAX:
            del self._open[self._aborted.popleft()]

    def see(self, event: InTransaction) -> Iterator[str]:
        """Check an event that was read."""
        found = self._open.get(event.label)
        if event.plan == ABORT:
            yield f"an event of transaction {event.label} was read, which was never committed"
        elif found is None:
            yield f"event {event.index} of transaction {event.label} was read again after all of its events"
        elif found.outcome == "aborted":
            yield f"transaction {event.label} is aborted, and its event {event.index} was read"
        elif event.index in found.seen:
            yield f"event {event.index} of transaction {event.label} was read twice"
        else:
            found.seen.add(event.index)
            self._forget_complete(event.label, found)

    def _forget_complete(self, label: str, found: _Transaction) -> None:
        if found.outcome == "committed" and len(found.seen) == found.count:
            del self._open[label]

    @property
    def incomplete_count(self) -> int:
        """Committed transactions of which events were not read yet."""
        return sum(each.outcome == "committed" for each in self._open.values())

    def missing(self) -> Iterator[str]:
        """Yield the transactions that are not complete. Call it at the end."""
        for label, found in self._open.items():
            if found.outcome == "committed":
                yield f"transaction {label} is committed, and {len(found.seen)} of {found.count} events were read"
            elif found.outcome is None:
                yield f"the outcome of transaction {label} is not known"


class Register:
    """A key of a table that one client writes: a read returns the last value, or one of unknown outcome since."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._possible: set[str | None] = {None}

    def unknown(self, value: str) -> None:
        """Note a change whose outcome is not known."""
        self._possible.add(value)

    def changed(self, value: str) -> None:
        """Note an acknowledged change. It is conditional, so no earlier one can take effect after it."""
        self._possible = {value}

    def see(self, value: str | None) -> Iterator[str]:
        """Check a value that was read."""
        if value not in self._possible:
            yield f"key {self.key} has the value {value}; possible are {sorted(map(str, self._possible))}"
            self._possible = {value}


class SharedCounter:
    """A key of a table that several clients increment by conditional changes: no increment is lost or counted twice."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._recent: deque[int] = deque(maxlen=RUNS_KEPT_MAX)
        self._acknowledged_count = 0
        self._possible_count = 0

    def begin(self) -> None:
        """Note an increment before it is requested."""
        self._possible_count += 1

    def refused(self) -> None:
        """Note that the requested increment was not applied."""
        self._possible_count -= 1

    def changed(self, value: int) -> Iterator[str]:
        """Check the result of an acknowledged increment: no two have the same."""
        if value in self._recent:
            yield f"two increments of key {self.key} returned {value}"
        self._recent.append(value)
        self._acknowledged_count += 1

    @property
    def least(self) -> int:
        """The least value that a read which begins now may return."""
        return self._acknowledged_count

    def see(self, value: int, least: int) -> Iterator[str]:
        """Check a value that was read. `least`: as it was before the read."""
        if not least <= value <= self._possible_count:
            yield f"key {self.key} is {value}; {least} increments were acknowledged, {self._possible_count} requested"


class KeyRanges:
    """Batches of a query contain, of each key, consecutive numbers that follow those of the batch before."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self.count = 0

    def see(self, batch: str, key: str, first: int, last: int, count: int) -> Iterator[str]:
        """Check what a batch has of a key. The first batch with a key may begin anywhere."""
        if count != last - first + 1:
            yield f"batch {batch}: {count} events of key {key} in {first} to {last}"
        wanted = self._next.get(key, first)
        if first != wanted:
            yield f"batch {batch}: key {key} begins at {first}; the batches before end before {wanted}"
        self._next[key] = last + 1
        self.count += count

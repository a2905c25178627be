"""Model of Penstock's promises about streams and tables, as plain dictionaries.

For state-machine tests: apply the same operations to the model and to a real cluster, then compare. The model raises
the errors that a client gets. It has no segments: the promise is the order of the events of each routing key, so an
event stream is a list per key, and a stream cut is the number of events of each key before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.model.errors import (
    BadOffsetError,
    MetadataConflictError,
    NoSuchSegmentError,
    NoSuchStreamError,
    SegmentExistsError,
    StreamExistsError,
    StreamNotSealedError,
    StreamSealedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    TransactionError,
)
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableEntry, TableRemoval, TableUpdate

#: Events of each routing key before a position.
Cut = Mapping[str, int]


@dataclass(slots=True)
class StreamModel:
    """A stream.

    Attributes:
        tags: of its configuration.
            events: all committed events of each routing key, including truncated ones.
            head: number of truncated events of each key.
            transactions: events of the open ones, in the order written.
    """

    tags: tuple[str, ...] = ()
    events: dict[str, list[bytes]] = field(default_factory=dict)
    head: dict[str, int] = field(default_factory=dict)
    is_sealed: bool = False
    transactions: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)

    def visible(self) -> dict[str, list[bytes]]:
        """Return the events that a reader from the head gets, by key; keys without events are left out."""
        kept = {key: events[self.head.get(key, 0) :] for key, events in self.events.items()}
        return {key: events for key, events in kept.items() if events}

    def tail(self) -> Cut:
        """Return the cut at the tail."""
        return {key: len(events) for key, events in self.events.items()}


class StreamsModel:
    """The streams of one scope."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamModel] = {}

    def stream(self, name: str) -> StreamModel:
        """Return a stream. Raises `NoSuchStreamError`."""
        if name not in self.streams:
            raise NoSuchStreamError(f"stream {name} does not exist")
        return self.streams[name]

    def writable(self, name: str) -> StreamModel:
        """Return a stream that is not sealed. Raises `NoSuchStreamError`, `StreamSealedError`."""
        found = self.stream(name)
        if found.is_sealed:
            raise StreamSealedError(f"stream {name} is sealed")
        return found

    def create(self, name: str, tags: Sequence[str]) -> None:
        """Create a stream. Raises `StreamExistsError`."""
        if name in self.streams:
            raise StreamExistsError(f"stream {name} exists")
        self.streams[name] = StreamModel(tuple(tags))

    def update(self, name: str, tags: Sequence[str]) -> None:
        """Replace the tags. Raises `NoSuchStreamError`, `StreamSealedError`."""
        self.writable(name).tags = tuple(tags)

    def seal(self, name: str) -> None:
        """Seal; open transactions are aborted. No effect if it is sealed. Raises `NoSuchStreamError`."""
        found = self.stream(name)
        found.is_sealed = True
        found.transactions.clear()

    def delete(self, name: str) -> None:
        """Delete a sealed stream. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        if not self.stream(name).is_sealed:
            raise StreamNotSealedError(f"stream {name} is not sealed")
        del self.streams[name]

    def truncate(self, name: str, cut: Cut) -> None:
        """Truncate before `cut`. Raises `NoSuchStreamError`, `StreamSealedError`, `MetadataConflictError`."""
        found = self.writable(name)
        if any(cut.get(key, 0) < count for key, count in found.head.items()):
            raise MetadataConflictError(f"the cut lies before the head of {name}")
        found.head = dict(cut)

    def write(self, name: str, events: Sequence[tuple[str, bytes]]) -> None:
        """Write events. Raises `NoSuchStreamError`, `StreamSealedError`."""
        found = self.writable(name)
        for key, event in events:
            found.events.setdefault(key, []).append(event)

    def begin(self, name: str, transaction: str) -> None:
        """Begin a transaction. Raises `NoSuchStreamError`, `StreamSealedError`."""
        self.writable(name).transactions[transaction] = []

    def commit(self, name: str, transaction: str) -> None:
        """Make a transaction's events visible, after all others. Raises `NoSuchStreamError`, `TransactionError`."""
        self.write(name, self._end(name, transaction))

    def abort(self, name: str, transaction: str) -> None:
        """Discard a transaction's events. Raises `NoSuchStreamError`, `TransactionError`."""
        self._end(name, transaction)

    def _end(self, name: str, transaction: str) -> list[tuple[str, bytes]]:
        open_ones = self.stream(name).transactions
        if transaction not in open_ones:
            raise TransactionError(f"transaction {transaction} of {name} is not open")
        return open_ones.pop(transaction)


class GroupModel:
    """A reader group of one stream: how many events of each key it has read or skipped."""

    def __init__(self, stream: StreamModel, start: Cut) -> None:
        self._stream = stream
        self._read = dict(start)

    def unread(self) -> dict[str, list[bytes]]:
        """Return the unread events, by key."""
        places = ((key, max(self._read.get(key, 0), self._stream.head.get(key, 0))) for key in self._stream.events)
        left = {key: self._stream.events[key][place:] for key, place in places}
        return {key: events for key, events in left.items() if events}

    def has_lost(self) -> bool:
        """Return whether events were truncated before they were read."""
        return any(count > self._read.get(key, 0) for key, count in self._stream.head.items())

    def read(self, key: str, event: bytes) -> None:
        """Record an event that was read. Raises `AssertionError` unless it is the key's next."""
        following = self.unread().get(key, [None])[0]
        assert event == following, f"key {key}: {event!r} was read, {following!r} is next"
        self._read[key] = max(self._read.get(key, 0), self._stream.head.get(key, 0)) + 1


@dataclass(slots=True)
class TableModel:
    """A table segment. Versions are chosen by the store; they only have to grow.

    Attributes:
        entries: live keys.
        version_max: of all puts ever, -1 before the first.
    """

    entries: dict[bytes, TableEntry] = field(default_factory=dict)
    version_max: int = -1

    def check(self, name: str, conditions: Sequence[TableUpdate | TableRemoval]) -> None:
        """Raise `TableKeyMissingError`, else `TableKeyVersionError`, unless all conditions hold."""
        for condition in conditions:
            if condition.version >= 0 and condition.key not in self.entries:
                raise TableKeyMissingError(name, key=condition.key)
        for condition in conditions:
            actual = self.version(condition.key)
            if condition.version not in (VERSION_ANY, actual):
                raise TableKeyVersionError(name, key=condition.key, expected=condition.version, actual=actual)

    def version(self, key: bytes) -> int:
        """Return a key's version, `VERSION_ABSENT` without one."""
        return self.entries[key].version if key in self.entries else VERSION_ABSENT

    def put(self, updates: Sequence[TableUpdate], versions: Sequence[int]) -> None:
        """Record successful puts. Raises `AssertionError` for versions that don't grow."""
        for update, version in zip(updates, versions, strict=True):
            assert version > self.version_max, f"{update.key!r} got version {version}, {self.version_max} is taken"
            self.version_max = version
            self.entries[update.key] = TableEntry(update.key, update.value, version)

    def remove(self, removals: Sequence[TableRemoval]) -> None:
        """Record successful removals."""
        for removal in removals:
            self.entries.pop(removal.key, None)


class TablesModel:
    """Tables by full segment name."""

    def __init__(self) -> None:
        self.tables: dict[str, TableModel] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def table(self, name: str) -> TableModel:
        """Return a table. Raises `NoSuchSegmentError`."""
        if name not in self.tables:
            raise NoSuchSegmentError(name)
        return self.tables[name]

    def create(self, name: str) -> None:
        """Create a table. Raises `SegmentExistsError`."""
        if name in self.tables:
            raise SegmentExistsError(name)
        self.tables[name] = TableModel()

    def delete(self, name: str, *, must_be_empty: bool) -> None:
        """Delete a table. Raises `NoSuchSegmentError`, `TableNotEmptyError`."""
        if self.table(name).entries and must_be_empty:
            raise TableNotEmptyError(name)
        del self.tables[name]

    def check_length(self, name: str, expected: int, actual: int) -> None:
        """Raise `BadOffsetError` unless a table has the length that an update requires (-1: any)."""
        if expected >= 0 and expected != actual:
            raise BadOffsetError(name, expected=expected, actual=actual)

"""`LedgerStore`: ledgers of Apache BookKeeper; the part of the determinism seam for them.

A ledger is a sequence of entries, numbered from 0, with one writer. Each entry is stored by several *bookies*. Opening
a ledger with recovery fences its writer, and fixes its end permanently. Production uses
`penstock.runtime.bookkeeper` (the official Java client); the simulation uses bookies in memory.

All errors of requests are `LedgerError`, see `penstock.model.errors.ledgers`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.ledgers import LedgerError
from penstock.model.segments import Buffer
from penstock.runtime.coordination import CoordinationPlace
from penstock.runtime.work import BlockingWork

_SCHEME = "bookkeeper://"


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Where a BookKeeper cluster is, given as ``bookkeeper://host:port,host:port/ledgers``: its ZooKeeper and path."""

    zookeeper: CoordinationPlace

    @classmethod
    def parse(cls, text: str) -> LedgerPlace:
        """Parse a URL. Raises `InvalidArgumentError`."""
        if not is_ledger_place(text):
            raise InvalidArgumentError(
                f"{text!r} is no place of ledgers: write bookkeeper://host:port,host:port/ledgers"
            )
        place = CoordinationPlace.parse(text.removeprefix(_SCHEME))
        if not place.root:
            raise InvalidArgumentError(f"{text!r} has no path: BookKeeper's own is /ledgers")
        return cls(place)

    @property
    def service_uri(self) -> str:
        """The address as BookKeeper's client takes it."""
        return f"zk+hierarchical://{self.zookeeper.servers.replace(',', ';')}{self.zookeeper.root}"

    def __str__(self) -> str:
        return f"{_SCHEME}{self.zookeeper}"


def is_ledger_place(text: str) -> bool:
    """Return whether a URL names a BookKeeper cluster."""
    return text.startswith(_SCHEME)


@dataclass(frozen=True, slots=True)
class LedgerClientSettings:
    """Settings of the client.

    Attributes:
        password: of all ledgers.
        request_timeout_s: time for a request other than an append.
        in_flight_bytes_max: the caller has at most so many bytes of entries in flight. Twice as much may wait for one
            bookie that is slower than the others; further entries are not sent to it.
        is_rehearsed: some seconds after its start the client does once what a take-over of containers needs, see
            `penstock.runtime.ledger_rehearsal`. The simulation does not.
    """

    password: str
    request_timeout_s: float = 30.0
    in_flight_bytes_max: int = 32 * 1024 * 1024
    is_rehearsed: bool = False


@dataclass(frozen=True, slots=True)
class LedgerQuorum:
    """How a ledger is replicated.

    Attributes:
        ensemble: bookies of a ledger at a time; each entry is sent to all of them.
        ack: an entry is confirmed when so many of them have it on disk.
    """

    ensemble: int = 3
    ack: int = 2

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if not 1 <= self.ack <= self.ensemble:
            raise InvalidArgumentError(f"an entry is confirmed by 1 to {self.ensemble} bookies, not by {self.ack}")


class LedgerObserver(Protocol):
    """Gets the outcomes of the entries of one `LedgerWriter`, in turns of the event loop."""

    def confirmed(self, last_entry: int) -> None:
        """All entries up to and including `last_entry` are on disk of enough bookies. Numbers grow."""

    def failed(self, error: LedgerError) -> None:
        """An entry failed. Called once; no entry is confirmed any more. Entries in flight may still be stored."""


class LedgerEntry(Protocol):
    """An entry to append. Its bytes are put together where they are sent, not in the event loop's thread.

    Attributes:
        length: of its bytes.
    """

    length: int

    def parts(self) -> Sequence[Buffer]:
        """Return its bytes, in parts. Called once, at any time and in any thread after `LedgerWriter.append`."""


class LedgerWriter(Protocol):
    """The only writer of a ledger, from its creation on."""

    @property
    def ledger_id(self) -> int:
        """Number of the ledger, unique in the service."""

    @property
    def quorum(self) -> LedgerQuorum:
        """How the ledger is replicated."""

    @property
    def bookies(self) -> Collection[str]:
        """The bookies to which entries are sent now, as ``host:port``."""

    def append(self, entry: LedgerEntry) -> None:
        """Send an entry. Entries are numbered in the order of the calls, from 0. Raises `LedgerError`: nothing sent.

        Its bytes must not change any more: they may be read even after the ledger has failed.
        """

    async def close(self) -> None:
        """Append no more: entries in flight fail, and the ledger ends after the last confirmed one if that is possible.

        Only a success says that the ledger is closed; its end may have been fixed by another process before.
        Raises `LedgerError`.
        """


class LedgerReader(Protocol):
    """An existing ledger, opened for reading.

    Attributes:
        ledger_id: its number.
        labels: what its creator gave it.
        last_entry: opened with recovery: number of the last entry, permanently; -1: it is empty. Otherwise the last
            entry that is known to be confirmed, or -1; later ones may exist.
        length_bytes: of all entries up to `last_entry`.
        bookies: all that may have entries of it.
    """

    ledger_id: int
    labels: Mapping[str, bytes]
    last_entry: int
    length_bytes: int
    bookies: Collection[str]

    async def read(self, first: int, last: int) -> Sequence[bytes]:
        """Return entries up to `last_entry`, both ends included.

        Raises `NoSuchEntryError` only if all bookies that may have an entry have answered that they have not,
        `LedgerDigestError`, `LedgerUnavailableError`.
        """

    async def read_unconfirmed(self, entry: int) -> bytes | None:
        """Return an entry that may not be confirmed; None if no bookie that answers has it. Fences nothing."""

    async def close(self) -> None:
        """Release the handle. Raises nothing."""


class LedgerStore(Protocol):
    """A BookKeeper cluster as one process sees it."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    async def start(self) -> None:
        """Connect. Raises `LedgerError`."""

    async def bookies(self) -> Collection[str]:
        """Return the bookies that are registered and take entries. Raises `LedgerMetadataError`."""

    async def reach(self, bookies: Collection[str]) -> Collection[str]:
        """Return those of `bookies`, given as by `bookies`, that accept a connection of this process.

        Needs no metadata, and takes at most a second. One whose name is no address counts as reached. Raises nothing.
        """

    async def create(self, quorum: LedgerQuorum, labels: Mapping[str, bytes], observer: LedgerObserver) -> LedgerWriter:
        """Create a ledger. After an error it may still exist, with these labels and no entries.

        Raises `LedgerLostError` (too few bookies), `LedgerMetadataError`.
        """

    async def open(self, ledger_id: int, *, is_fencing: bool) -> LedgerReader:
        """Open a ledger. `is_fencing`: with recovery: its writer appends nothing any more, and its end is fixed.

        Raises `NoSuchLedgerError`, `LedgerUnavailableError` (too few of its bookies answer), `LedgerMetadataError`.
        """

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger; fine if it does not exist. Raises `LedgerMetadataError`."""

    def ledger_ids(self) -> AsyncIterator[int]:
        """Yield the numbers of all ledgers of the service, of any application. Raises `LedgerMetadataError`."""

    async def labels(self, ledger_id: int) -> Mapping[str, bytes]:
        """Return the labels of a ledger, without opening it. Raises `NoSuchLedgerError`, `LedgerMetadataError`."""

    async def close(self) -> None:
        """Disconnect. Writers that are not closed append nothing any more. Raises nothing."""


#: Opens the BookKeeper cluster at a place. Raises `InvalidArgumentError`: a part must be installed or started.
OpenLedgerStore = Callable[[LedgerPlace, LedgerClientSettings, BlockingWork], LedgerStore]

"""`SimulatedBookies`: a BookKeeper cluster in memory: bookies with their entries, and the metadata of ledgers.

Bookies keep what they have stored over a restart. Clients: `penstock_simulation.simulated.ledgers`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.model.errors.ledgers import LedgerError, ledger_error
from penstock.runtime.ledgers import LedgerQuorum

FENCED = -101
NO_ENTRY = -13
NO_LEDGER = -7
READ_ONLY = -104
OK = 0


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Times of the cluster, in seconds. Latencies are of one way.

    Attributes:
        latency_s_min, latency_s_max: of a message.
        add_timeout_s: a bookie that has not answered an entry for so long counts as lost for the ledger.
        request_timeout_s: the same for reads and requests to the metadata.
        session_s: a bookie that has died is registered for so long.
        forget_s: bookies keep what they know of a deleted ledger for so long.
        lost_reply_rate: share of changes of metadata that are made and not answered.
        stuck_rate: share of ledgers that at some entry cease to answer and to fail.
    """

    latency_s_min: float = 0.0
    latency_s_max: float = 0.0005
    add_timeout_s: float = 5.0
    request_timeout_s: float = 5.0
    session_s: float = 4.0
    forget_s: float = 0.0
    lost_reply_rate: float = 0.0
    stuck_rate: float = 0.0


class LedgerState(Enum):
    """State of a ledger in its metadata."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """What the metadata service has of a ledger. `ensembles`: first entry and bookies of each, ascending."""

    ledger_id: int
    quorum: LedgerQuorum
    labels: Mapping[str, bytes]
    ensembles: tuple[tuple[int, tuple[str, ...]], ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    length_bytes: int = 0
    version: int = 0

    def bookies_of(self, entry: int) -> tuple[str, ...]:
        """Return the bookies of an entry."""
        return next(bookies for first, bookies in reversed(self.ensembles) if first <= entry)

    @property
    def all_bookies(self) -> frozenset[str]:
        """All bookies that may have entries."""
        return frozenset(each for _, bookies in self.ensembles for each in bookies)


@dataclass(slots=True)
class Bookie:
    """One bookie.

    Attributes:
        is_up: it runs.
        is_read_only: it takes no entries, and is not registered for them.
        is_held: it runs, and handles no request until `is_held` is False; requests wait.
        delay_s: additional time of each entry.
        died_s: when it stopped.
        entries: by ledger and number: bytes, and the last confirmed entry that the writer knew.
        fenced: ledgers that take no more entries from their writers.
        damaged: ledger and entry whose bytes do not match their digest.
    """

    name: str
    is_up: bool = True
    is_read_only: bool = False
    is_held: bool = False
    delay_s: float = 0.0
    died_s: float = float("-inf")
    entries: dict[int, dict[int, tuple[bytes, int]]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    damaged: set[tuple[int, int]] = field(default_factory=set)

    def add(self, ledger_id: int, entry: int, data: bytes, lac: int, *, is_recovery: bool = False) -> int:
        """Store an entry; return the code of the answer."""
        if not is_recovery and ledger_id in self.fenced:
            return FENCED
        if self.is_read_only and not is_recovery:
            return READ_ONLY
        self.entries.setdefault(ledger_id, {})[entry] = (data, lac)
        return OK

    def read(self, ledger_id: int, entry: int, *, is_fencing: bool = False) -> bytes | int:
        """Return an entry, or the code of an error."""
        if is_fencing:
            self.fenced.add(ledger_id)
        found = self.entries.get(ledger_id, {}).get(entry)
        if found is None:
            return NO_ENTRY
        return found[0] if (ledger_id, entry) not in self.damaged else -5

    def last_confirmed(self, ledger_id: int, *, is_fencing: bool) -> int:
        """Return the last confirmed entry that an entry here names; -1: none."""
        if is_fencing:
            self.fenced.add(ledger_id)
        return max((lac for _, lac in self.entries.get(ledger_id, {}).values()), default=-1)


class SimulatedBookies:
    """See the module.

    Attributes:
        bookies: by name.
        ledgers: metadata by number.
        is_metadata_away: requests to the metadata are not answered.
        stalls: called at each point of a client where tests may have something happen; the argument names the point.
    """

    def __init__(self, rng: random.Random, count: int, settings: BookieSettings | None = None) -> None:
        self.settings: BookieSettings = settings or BookieSettings()
        self.bookies: dict[str, Bookie] = {f"bookie-{number}:3181": Bookie(f"bookie-{number}:3181")
                                           for number in range(1, count + 1)}  # fmt: skip
        self.ledgers: dict[int, LedgerMetadata] = {}
        self.is_metadata_away: bool = False
        self.rng: random.Random = rng
        self._next_id = 0

    def registered(self) -> list[str]:
        """Return the bookies that take entries as far as the metadata service knows."""
        now_s = asyncio.get_running_loop().time()
        return [
            each.name
            for each in self.bookies.values()
            if not each.is_read_only and (each.is_up or now_s - each.died_s < self.settings.session_s)
        ]

    def kill(self, name: str) -> None:
        """Stop a bookie at once. What it has acknowledged is on its disk."""
        bookie = self.bookies[name]
        bookie.is_up = False
        bookie.died_s = asyncio.get_running_loop().time()

    def start(self, name: str) -> None:
        """Start a bookie that was killed."""
        self.bookies[name].is_up = True

    # -- metadata ---------------------------------------------------------------------------------------------------

    def create(self, quorum: LedgerQuorum, labels: Mapping[str, bytes]) -> LedgerMetadata:
        """Create a ledger on bookies that are registered. Raises `LedgerLostError`."""
        registered = self.registered()
        if len(registered) < quorum.ensemble:
            raise ledger_error(-6, f"{len(registered)} bookies are registered, and {quorum.ensemble} are needed")
        chosen = tuple(self.rng.sample(registered, quorum.ensemble))
        self._next_id += 1
        made = LedgerMetadata(self._next_id, quorum, dict(labels), ((0, chosen),))
        self.ledgers[made.ledger_id] = made
        return made

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata of a ledger. Raises `NoSuchLedgerError`."""
        found = self.ledgers.get(ledger_id)
        if found is None:
            raise ledger_error(NO_LEDGER, f"ledger {ledger_id} does not exist")
        return found

    def change(self, seen: LedgerMetadata, change: Callable[[LedgerMetadata], LedgerMetadata]) -> LedgerMetadata:
        """Change metadata if they are still as seen. Raises `LedgerMetadataError`, `NoSuchLedgerError`."""
        if self.metadata(seen.ledger_id).version != seen.version:
            raise ledger_error(-17, f"the metadata of ledger {seen.ledger_id} have changed")
        changed = replace(change(seen), version=seen.version + 1)
        self.ledgers[seen.ledger_id] = changed
        return changed

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger. Its bookies forget it later, also that it is fenced, and take entries again then."""
        self.ledgers.pop(ledger_id, None)
        asyncio.get_running_loop().call_later(self.settings.forget_s, self._forget, ledger_id)

    def _forget(self, ledger_id: int) -> None:
        for bookie in self.bookies.values():
            bookie.entries.pop(ledger_id, None)
            bookie.fenced.discard(ledger_id)

    def without_bookies(self, grace_s: float) -> list[int]:
        """Return the ledgers that auto-recovery fences: open ones with a bookie that is down for `grace_s`."""
        now_s = asyncio.get_running_loop().time()
        lost = {each.name for each in self.bookies.values() if not each.is_up and now_s - each.died_s >= grace_s}
        return [
            each.ledger_id
            for each in self.ledgers.values()
            if each.state is LedgerState.OPEN and lost & set(each.ensembles[-1][1])
        ]


def worst(codes: list[int], what: str) -> LedgerError:
    """Return the error of a read that no bookie has answered with the entry: "no such entry" only if all say so."""
    others = [code for code in codes if code not in (NO_ENTRY, NO_LEDGER)]
    return ledger_error(others[0] if others else NO_ENTRY, what)

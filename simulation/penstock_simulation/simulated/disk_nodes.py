"""Files and directories of a `SimulatedDisk`: page cache, medium, and the unsynced changes between them.

`FileNode` determines the contents that a file may have after a power failure. Its unsynced changes are a list of writes
and truncations. A legal outcome is given by three choices (`FileOutcome`):

1. how many of the truncations took effect, oldest first;
2. the length: that of the last truncation that took effect, or up to the end of any write after it. Data may
   have reached the medium without the length that makes them visible, or the length without the data (zeros);
3. for each sector, which of its versions: the one on the medium, or the sector as it was after any of the writes that
   touched it. Sectors are written whole, from the page cache, so a later write never lands without the earlier
   ones of the same sector. A truncation that took effect voids earlier versions of sectors that it cut off; one that
   did not voids later ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """An unsynced write: whole sectors from `first_sector` on, as in the page cache. `end`: the write's end."""

    sequence: int
    first_sector: int
    data: bytes
    end: int


@dataclass(frozen=True, slots=True)
class PendingLength:
    """An unsynced truncation (`is_cut`) or extension to `length`.

    `edge`: the sector cut by a truncation, with zeros after the cut.
    """

    sequence: int
    length: int
    is_cut: bool
    edge: bytes


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """A legal content of a file after a crash; see the module. `versions`: sector to index among its candidates.

    Sectors that are not listed keep their first candidate.
    """

    truncation_count: int
    length: int
    versions: Mapping[int, int]


class FileNode:
    """A file. `live` is what reads see; `durable` is on the medium; `pending` is unsynced, oldest first."""

    __slots__ = ("bad_sectors", "durable", "link_count", "live", "number", "pending", "sector_bytes")

    def __init__(self, number: int, sector_bytes: int, content: bytes = b"") -> None:
        self.number: int = number
        self.sector_bytes: int = sector_bytes
        self.live: bytearray = bytearray(content)
        self.durable: bytearray = bytearray(content)
        self.pending: list[PendingWrite | PendingLength] = []
        self.link_count: int = 0
        #: Sectors that are unreadable until they are written again.
        self.bad_sectors: set[int] = set()

    def write(self, sequence: int, offset: int, data: bytes) -> None:
        """Write `data` to the page cache."""
        if not data:
            return
        put(self.live, offset, data)
        size = self.sector_bytes
        first, last = offset // size, -(-(offset + len(data)) // size)
        sectors = bytes(self.live[first * size : last * size]).ljust((last - first) * size, b"\0")
        self.pending.append(PendingWrite(sequence, first, sectors, offset + len(data)))
        self.bad_sectors.difference_update(range(first, last))

    def set_length(self, sequence: int, length: int) -> None:
        """Truncate or extend the file in the page cache."""
        edge = b""
        is_cut = length < len(self.live)
        if is_cut:
            del self.live[length:]
            if length % self.sector_bytes:
                start = length - length % self.sector_bytes
                edge = bytes(self.live[start:]).ljust(self.sector_bytes, b"\0")
        else:
            self.live.extend(bytes(length - len(self.live)))
        self.pending.append(PendingLength(sequence, length, is_cut, edge))

    def sync(self) -> None:
        """Sync everything to the medium."""
        if not self.pending:
            return
        for change in self.pending:
            if isinstance(change, PendingWrite):
                put(self.durable, change.first_sector * self.sector_bytes, change.data)
            else:
                del self.durable[change.length :]
                self.durable.extend(bytes(change.length - len(self.durable)))
                if change.edge:
                    put(self.durable, change.length - change.length % self.sector_bytes, change.edge)
        # Sectors are padded beyond the end; and the length reaches the medium even if bytes of it were lost before.
        del self.durable[len(self.live) :]
        self.durable.extend(bytes(len(self.live) - len(self.durable)))
        self.pending = []

    def sync_extent(self, offset: int, length: int) -> None:
        """Sync these bytes to the medium, with their whole sectors and the length that makes them visible.

        Other unsynced changes stay unsynced. After an unsynced truncation everything is synced, because order matters.
        """
        if any(isinstance(change, PendingLength) for change in self.pending):
            self.sync()
            return
        if not length:
            return
        size, end = self.sector_bytes, offset + length
        first, last = offset // size, -(-end // size)
        left: list[PendingWrite | PendingLength] = []
        for change in self.pending:
            assert isinstance(change, PendingWrite)
            start, stop = change.first_sector, change.first_sector + len(change.data) // size
            for low, high in ((start, min(stop, first)), (max(start, last), stop)):
                if low < high:
                    data = change.data[(low - start) * size : (high - start) * size]
                    left.append(PendingWrite(change.sequence, low, data, min(change.end, high * size)))
        self.pending = left
        durable_length = max(len(self.durable), end)
        self.durable.extend(bytes(durable_length - len(self.durable)))
        stop_byte = min(last * size, durable_length)
        self.durable[first * size : stop_byte] = self.live[first * size : stop_byte]

    def lose_pending(self, outcome: FileOutcome | None = None) -> None:
        """Mark everything unsynced as clean, with only `outcome` of it (None: nothing) on the medium."""
        if outcome is not None:
            self.durable = self.content_after(outcome)
        self.pending = []

    def copy(self) -> FileNode:
        """Return an equal file with no links."""
        node = FileNode(self.number, self.sector_bytes)
        node.live[:] = self.live
        node.durable[:] = self.durable
        node.pending = list(self.pending)
        node.bad_sectors = set(self.bad_sectors)
        return node

    # Outcomes of a crash.

    def content_after(self, outcome: FileOutcome) -> bytearray:
        """Return the content that `outcome` describes."""
        space = _OutcomeSpace(self, outcome.truncation_count)
        content = self.durable[: min(space.floor, outcome.length)]
        content.extend(bytes(outcome.length - len(content)))
        size = self.sector_bytes
        for sector in space.sectors:
            version = space.candidates(sector)[outcome.versions.get(sector, 0)]
            start = sector * size
            if version is not None and start < outcome.length:
                content[start : min(start + size, outcome.length)] = version[: outcome.length - start]
        return content

    def dropped(self) -> FileOutcome:
        """Return the outcome in which no unsynced change took effect."""
        return FileOutcome(0, len(self.durable), {})

    def kept(self) -> FileOutcome:
        """Return the outcome in which every unsynced change took effect."""
        return self.kept_before(None, 0)

    def kept_before(self, sequence: int | None, torn_sectors: int) -> FileOutcome:
        """Return the outcome with everything older than `sequence`, and that write's first `torn_sectors` sectors."""
        changes = [change for change in self.pending if sequence is None or change.sequence < sequence]
        torn = next((change for change in self.pending if change.sequence == sequence), None)
        truncation_count = sum(isinstance(change, PendingLength) for change in changes)
        length = len(self.durable)
        for change in changes:
            length = max(length, change.end) if isinstance(change, PendingWrite) else change.length
        count = len(changes)
        if isinstance(torn, PendingWrite) and torn_sectors:
            stop = torn.first_sector + torn_sectors
            length = max(length, min(torn.end, stop * self.sector_bytes))
        space = _OutcomeSpace(self, truncation_count)
        versions: dict[int, int] = {}
        for sector in space.sectors:
            is_torn_in = (
                isinstance(torn, PendingWrite) and torn.first_sector <= sector < torn.first_sector + torn_sectors
            )
            versions[sector] = space.place(sector, count + is_torn_in)
        return FileOutcome(truncation_count, length, versions)

    def random_outcome(self, rng: random.Random, keep_rate: float) -> FileOutcome:
        """Draw any legal outcome; each sector gets a newer version with probability `keep_rate`."""
        if not self.pending:
            return self.dropped()
        truncations = sum(isinstance(change, PendingLength) for change in self.pending)
        space = _OutcomeSpace(self, rng.randint(0, truncations))
        length = rng.choice(space.lengths())
        if rng.random() < 0.25:
            # Any length in between is legal too; file systems truncate at sector boundaries.
            low, high = space.lengths()[0], space.lengths()[-1]
            boundary = rng.randint(low, high) // self.sector_bytes * self.sector_bytes
            length = max(low, boundary)
        versions: dict[int, int] = {}
        for sector in space.sectors:
            newest = len(space.candidates(sector)) - 1
            if newest and rng.random() < keep_rate:
                versions[sector] = newest if rng.random() < 0.8 else rng.randint(1, newest)
        return FileOutcome(space.truncation_count, length, versions)

    def outcome_count(self) -> int:
        """Return how many outcomes `outcomes` yields."""
        if not self.pending:
            return 1
        total = 0
        for space in self._spaces():
            count = len(space.lengths())
            for sector in space.sectors:
                count *= len(space.candidates(sector))
            total += count
        return total

    def outcomes(self) -> Iterator[FileOutcome]:
        """Yield every legal outcome, with lengths that are ends of writes or sector boundaries between."""
        if not self.pending:
            yield self.dropped()
            return
        for space in self._spaces():
            ranges = [range(len(space.candidates(sector))) for sector in space.sectors]
            for length in space.lengths():
                for picked in product(*ranges):
                    yield FileOutcome(space.truncation_count, length, dict(zip(space.sectors, picked, strict=True)))

    def _spaces(self) -> Iterator[_OutcomeSpace]:
        for count in range(sum(isinstance(change, PendingLength) for change in self.pending) + 1):
            yield _OutcomeSpace(self, count)


class _OutcomeSpace:
    """Open choices, given that `truncation_count` truncations of a file took effect.

    `floor`: the content of the medium counts only up to here.
    """

    def __init__(self, node: FileNode, truncation_count: int) -> None:
        self.truncation_count = truncation_count
        self._node = node
        size = node.sector_bytes
        self._cuts = [(at, change) for at, change in enumerate(node.pending) if isinstance(change, PendingLength)]
        applied = self._cuts[:truncation_count]
        self.floor = min([len(node.durable), *(cut.length for _, cut in applied if cut.is_cut)])
        #: Versions of each sector: (index of the change in the list, content).
        self._versions: dict[int, list[tuple[int, bytes]]] = {}
        for at, change in enumerate(node.pending):
            if isinstance(change, PendingWrite):
                for index in range(len(change.data) // size):
                    self._versions.setdefault(change.first_sector + index, []).append(
                        (at, change.data[index * size : (index + 1) * size])
                    )
            elif change.edge:
                self._versions.setdefault(change.length // size, []).append((at, change.edge))
        self.sectors = sorted(self._versions)
        self._candidates: dict[int, list[tuple[int, bytes | None]]] = {}

    def candidates(self, sector: int) -> list[bytes | None]:
        """Return the candidate contents of a sector; None for the content on the medium."""
        return [content for _, content in self._of(sector)]

    def place(self, sector: int, change_count: int) -> int:
        """Return the index of the newest candidate made by the first `change_count` changes."""
        return max(
            (place for place, (at, _) in enumerate(self._of(sector)) if at < change_count),
            default=0,
        )

    def lengths(self) -> list[int]:
        """Return the lengths that the file may have, ascending."""
        node = self._node
        first = self._cuts[self.truncation_count - 1][0] if self.truncation_count else -1
        stop = self._cuts[self.truncation_count][0] if self.truncation_count < len(self._cuts) else len(node.pending)
        base = self._cuts[self.truncation_count - 1][1].length if self.truncation_count else len(node.durable)
        found = {base}
        for change in node.pending[first + 1 : stop]:
            if isinstance(change, PendingWrite) and change.end > base:
                found.add(change.end)
                middle = (base + change.end) // 2 // node.sector_bytes * node.sector_bytes
                found.add(max(base, middle))
        return sorted(found)

    def _of(self, sector: int) -> list[tuple[int, bytes | None]]:
        known = self._candidates.get(sector)
        if known is not None:
            return known
        end = (sector + 1) * self._node.sector_bytes
        low, stop = -1, len(self._node.pending)
        for index, (at, cut) in enumerate(self._cuts):
            if cut.is_cut and cut.length < end:
                if index < self.truncation_count:
                    low = at
                else:
                    stop = at
                    break
        found: list[tuple[int, bytes | None]] = [
            (at, content) for at, content in self._versions[sector] if low <= at < stop
        ]
        if not found or found[0][0] != low:
            found.insert(0, (-1, None))
        self._candidates[sector] = found
        return found


@dataclass(eq=False, slots=True)
class DirectoryNode:
    """A directory: its current names, and the durable ones."""

    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = FileNode | DirectoryNode


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """An unsynced creation, rename or removal, atomic: each (directory, name) is set to that node, or to nothing."""

    sequence: int
    text: str
    slots: tuple[tuple[DirectoryNode, str, Node | None], ...]
    moved: Node

    def touches(self, directory: DirectoryNode) -> bool:
        """Return whether the change affects this directory."""
        return any(slot[0] is directory for slot in self.slots)

    def must_follow(self, earlier: NameChange) -> bool:
        """Return whether this change depends on `earlier`: the same file, or the same name."""
        if self.moved is earlier.moved:
            return True
        return any(
            mine[0] is other[0] and mine[1] == other[1] for mine in self.slots for other in earlier.slots
        ) or any(slot[0] is earlier.moved for slot in self.slots)


def put(target: bytearray, offset: int, data: bytes) -> None:
    """Write `data` at `offset`, with zeros in a gap."""
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data

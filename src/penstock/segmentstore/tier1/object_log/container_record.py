"""`ContainerRecord`: the object that describes the log of one container. Changed by conditional replacement only.

The record says which ranges of which journals are the log (`LogPiece`), who has opened it last, and where it begins.
Format: docs/formats.md, "Container records".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.model.errors import CorruptionError
from penstock.segmentstore.tier1.object_log.journal_format import ID_LENGTH, split_address
from penstock.segmentstore.tier1.owned_record import OwnedRecord, decode_record, owned_fields

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A range of slots of a journal: ``[first, end)``. `end` is None while the journal's process may append to it.

    `ordinal`: pieces of a log are numbered in the order of their frames. Pieces of one journal with a gap between them
    may have one number: a frame's address does not depend on whether the gap is recorded yet.
    """

    ordinal: int
    journal: bytes
    first: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerRecord(OwnedRecord):
    """See the module.

    Attributes:
        pieces: oldest first. Only the last one may have no end.
    """

    pieces: tuple[LogPiece, ...] = ()

    @property
    def open_piece(self) -> LogPiece | None:
        """The piece without an end; None if there is none."""
        return self.pieces[-1] if self.pieces and self.pieces[-1].end is None else None

    def first_slot(self, piece: LogPiece) -> int:
        """Return the first slot of a piece that may have frames after the truncation."""
        ordinal, slot, _ = split_address(self.truncation)
        return max(piece.first, slot) if piece.ordinal == ordinal else piece.first

    def truncated(self, address: int) -> ContainerRecord:
        """Return the record after a truncation: pieces that lie before it are gone."""
        address = max(address, self.truncation)
        ordinal, slot, _ = split_address(address)
        pieces = tuple(
            piece
            for piece in self.pieces
            if piece.ordinal > ordinal or (piece.ordinal == ordinal and (piece.end is None or piece.end > slot))
        )
        return replace(self, truncation=address, pieces=pieces)

    def with_end(self, end: int, *, is_empty: bool) -> ContainerRecord:
        """Return the record with the open piece ended before slot `end`; without that piece if it `is_empty`."""
        piece = self.open_piece
        if piece is None:
            return self
        rest = self.pieces[:-1]
        if is_empty or end <= piece.first:
            return replace(self, pieces=rest)
        return replace(self, pieces=(*rest, replace(piece, end=end)))

    def with_piece(self, journal: bytes, first: int) -> ContainerRecord:
        """Return the record with another, open piece."""
        piece = LogPiece(self.next_ordinal, journal, first)
        return replace(self, pieces=(*self.pieces, piece), next_ordinal=self.next_ordinal + 1)

    def with_gap(self, end: int, first: int, *, is_empty: bool) -> ContainerRecord:
        """Return the record with the open piece ended before slot `end`, and continued from slot `first` on."""
        piece = self.open_piece
        assert piece is not None
        ended = self.with_end(end, is_empty=is_empty)
        return replace(ended, pieces=(*ended.pieces, replace(piece, first=first)))

    def encode(self) -> bytes:
        """Return the content of the object: one line of JSON, and one with the checksum of the first."""
        return self.encode_with(
            FORMAT_VERSION,
            {"pieces": [[piece.ordinal, piece.journal.hex(), piece.first, piece.end] for piece in self.pieces]},
        )

    @classmethod
    def decode(cls, data: bytes, path: str, container_id: int, cluster_id: str) -> ContainerRecord:
        """Decode the record of a container. `cluster_id`: empty accepts any cluster.

        Raises `CorruptionError`, `LaterVersionError`, `LogIdentityError`.
        """
        fields = decode_record(data, path, FORMAT_VERSION)
        record = cls(
            **owned_fields(fields, path, container_id, cluster_id),
            pieces=tuple(
                LogPiece(ordinal, bytes.fromhex(journal), first, end)
                for ordinal, journal, first, end in fields["pieces"]
            ),
        )
        _check(record.pieces, record.next_ordinal, path)
        return record


def record_key(prefix: str, container_id: int) -> str:
    """Return the key of a container's record below `prefix` (empty, or without a trailing slash)."""
    return f"{prefix}/r/{container_id}" if prefix else f"r/{container_id}"


def _check(pieces: Sequence[LogPiece], next_ordinal: int, path: str) -> None:
    before: LogPiece | None = None
    for piece in pieces:
        is_last = piece is pieces[-1]
        is_after = before is None or piece.ordinal > before.ordinal or _is_after_gap(before, piece)
        if piece.ordinal < 1 or not is_after or (piece.end is None and not is_last) or len(piece.journal) != ID_LENGTH:
            raise CorruptionError(path, 0, f"its pieces are not in order: {piece}")
        before = piece
    if before is not None and before.ordinal >= next_ordinal:
        raise CorruptionError(path, 0, f"its next piece is {next_ordinal}, although there is piece {before.ordinal}")


def _is_after_gap(before: LogPiece, piece: LogPiece) -> bool:
    is_same = piece.ordinal == before.ordinal and piece.journal == before.journal
    return is_same and before.end is not None and before.end <= piece.first

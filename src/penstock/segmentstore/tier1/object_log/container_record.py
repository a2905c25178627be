"""`ContainerRecord`: the object that describes the log of one container. Changed by conditional replacement only.

The record says which ranges of which journals are the log (`LogPiece`), who has opened it last, and where it begins.
Format: docs/formats.md, "Container records".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LogIdentityError
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier1.log_records import EPOCH_VERSION
from penstock.segmentstore.tier1.object_log.journal_format import ID_LENGTH, split_address

FORMAT_VERSION = 1
_REASON_LENGTH_MAX = 8 * 1024
_CHECKSUM_LENGTH = 8


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
class ContainerRecord:
    """See the module.

    Attributes:
        nonce: 16 bytes, new with each change: its writer recognises by it whether its change was made.
        epoch: how often the log was opened.
        owner: token of the process that opened it last, see `LogOwner`.
        is_enabled: whether it may be opened; `reason`: why not.
        is_settled: no incarnation before the owner's can answer reads any more.
        is_released: the owner has closed the log cleanly: the last piece has its end.
        truncation: frames at or before this address are forgotten; 0: none.
        next_ordinal: of the piece that is added next.
        pieces: oldest first. Only the last one may have no end.
        log_version: format version of all that the log leads to, see docs/formats.md, "The log version".
    """

    container_id: int
    cluster_id: str
    nonce: bytes
    epoch: int = 0
    owner: bytes = bytes(ID_LENGTH)
    is_enabled: bool = True
    reason: str = ""
    is_settled: bool = True
    is_released: bool = False
    truncation: int = 0
    next_ordinal: int = 1
    pieces: tuple[LogPiece, ...] = ()
    log_version: int = EPOCH_VERSION

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
        fields = {
            "v": FORMAT_VERSION,
            "log_version": self.log_version,
            "nonce": self.nonce.hex(),
            "cluster": self.cluster_id,
            "container": self.container_id,
            "enabled": self.is_enabled,
            "reason": self.reason[:_REASON_LENGTH_MAX],
            "epoch": self.epoch,
            "owner": self.owner.hex(),
            "settled": self.is_settled,
            "released": self.is_released,
            "truncation": self.truncation,
            "next_ordinal": self.next_ordinal,
            "pieces": [[piece.ordinal, piece.journal.hex(), piece.first, piece.end] for piece in self.pieces],
        }
        body = json.dumps(fields).encode() + b"\n"
        return body + b"%08x\n" % crc32c(body, 0)

    @classmethod
    def decode(cls, data: bytes, path: str, container_id: int, cluster_id: str) -> ContainerRecord:
        """Decode the record of a container. `cluster_id`: empty accepts any cluster.

        Raises `CorruptionError`, `LaterVersionError`, `LogIdentityError`.
        """
        body, checksum = data[: -_CHECKSUM_LENGTH - 1], data[-_CHECKSUM_LENGTH - 1 :]
        if checksum != b"%08x\n" % crc32c(body, 0):
            raise CorruptionError(path, max(len(body), 0), "the checksum does not match: it was edited or damaged")
        fields = json.loads(body)
        if fields["v"] != FORMAT_VERSION:
            raise version_error(path, fields["v"], (FORMAT_VERSION,))
        if fields["log_version"] != EPOCH_VERSION:
            raise version_error(path, fields["log_version"], (EPOCH_VERSION,), "log version")
        if cluster_id and fields["cluster"] != cluster_id:
            raise LogIdentityError(path, found=fields["cluster"], expected=cluster_id)
        if fields["container"] != container_id:
            raise CorruptionError(path, 0, f"it is the record of container {fields['container']}")
        record = cls(
            container_id=container_id,
            cluster_id=fields["cluster"],
            nonce=bytes.fromhex(fields["nonce"]),
            epoch=fields["epoch"],
            owner=bytes.fromhex(fields["owner"]),
            is_enabled=fields["enabled"],
            reason=fields["reason"],
            is_settled=fields["settled"],
            is_released=fields["released"],
            truncation=fields["truncation"],
            next_ordinal=fields["next_ordinal"],
            pieces=tuple(LogPiece(ordinal, bytes.fromhex(journal), first, end)
                         for ordinal, journal, first, end in fields["pieces"]),
        )  # fmt: skip
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

"""`LogRecord`: the node in the coordination service that describes the log of one container in BookKeeper.

The record lists the ledgers of the log, who has opened it last, and where it begins. It is changed by compare-and-set
only. Format: docs/formats.md, "Records of logs in BookKeeper".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.model.errors import CorruptionError
from penstock.segmentstore.tier1.bookkeeper.entry_format import split_address
from penstock.segmentstore.tier1.owned_record import OwnedRecord, decode_record, owned_fields

FORMAT_VERSION = 1
#: Parent of all records.
LOGS_PATH = "/logs"
APPLICATION = b"penstock"
#: First entry after the truncation of a ledger that is wholly before it.
FORGOTTEN: int = 1 << 62


@dataclass(frozen=True, slots=True)
class LogLedger:
    """A ledger of a log.

    Attributes:
        ordinal: ledgers of a log are numbered in the order of their frames, from 1.
        ledger_id: number of the ledger in BookKeeper.
        last_entry: its last entry; -1: it is empty; None: not recorded, it must be fenced before it is read.
    """

    ordinal: int
    ledger_id: int
    last_entry: int | None = None


@dataclass(frozen=True, slots=True)
class LogRecord(OwnedRecord):
    """See the module.

    Attributes:
        ledgers: oldest first.
        begins: ordinal of the first ledger of the log that a salvage has put in the place of a damaged one; 0: none
            has. Ledgers before it are evidence of the damage, and are not deleted.
    """

    ledgers: tuple[LogLedger, ...] = ()
    begins: int = 0

    def with_ledger(self, ledger_id: int) -> LogRecord:
        """Return the record with another ledger at the end."""
        ledger = LogLedger(self.next_ordinal, ledger_id)
        return replace(self, ledgers=(*self.ledgers, ledger), next_ordinal=self.next_ordinal + 1)

    def with_ends(self, ends: Mapping[int, int]) -> LogRecord:
        """Return the record with last entries by ordinal."""
        ledgers = [
            replace(each, last_entry=ends[each.ordinal]) if each.ordinal in ends else each for each in self.ledgers
        ]
        return replace(self, ledgers=tuple(ledgers))

    def truncated(self, address: int) -> LogRecord:
        """Return the record with another truncation, unless it is at a later one already."""
        return replace(self, truncation=max(address, self.truncation))

    def pruned(self, from_ordinal: int) -> LogRecord:
        """Return the record without the ledgers from an ordinal on that have no frames after the truncation."""
        kept = [
            each
            for each in self.ledgers
            if each.ordinal < from_ordinal or each.last_entry is None or each.last_entry >= self.first_entry(each)
        ]
        return replace(self, ledgers=tuple(kept))

    def first_entry(self, ledger: LogLedger) -> int:
        """Return the first entry of a ledger after the truncation."""
        ordinal, entry = split_address(self.truncation)
        if ledger.ordinal > ordinal:
            return 0
        return entry + 1 if ledger.ordinal == ordinal else FORGOTTEN

    def encode(self) -> bytes:
        """Return the content of the node: one line of JSON, and one with the checksum of the first."""
        parts: dict[str, object] = {
            "ledgers": [[each.ordinal, each.ledger_id, each.last_entry] for each in self.ledgers]
        }
        if self.begins:
            parts["begins"] = self.begins
        return self.encode_with(FORMAT_VERSION, parts)

    @classmethod
    def decode(cls, data: bytes, path: str, container_id: int, cluster_id: str) -> LogRecord:
        """Decode the record of a container. `cluster_id`: empty accepts any cluster.

        Raises `CorruptionError`, `LaterVersionError`, `LogIdentityError`.
        """
        fields = decode_record(data, path, FORMAT_VERSION)
        record = cls(
            **owned_fields(fields, path, container_id, cluster_id),
            ledgers=tuple(LogLedger(*each) for each in fields["ledgers"]),
            begins=fields.get("begins", 0),
        )
        _check(record.ledgers, record.next_ordinal, path)
        return record


@dataclass(frozen=True, slots=True)
class LedgerLabels:
    """What the metadata of a ledger say: whose it is.

    Attributes:
        epoch: of the log, when the ledger was made.
        begins: see `LogRecord`. In that of a draft: the ordinal of the first draft of the same salvage.
        is_draft: a salvage has made it; whether it became part of the log, the record shows.
    """

    cluster_id: str
    container_id: int
    ordinal: int
    epoch: int
    begins: int = 0
    is_draft: bool = False

    def encode(self) -> dict[str, bytes]:
        """Return them as BookKeeper stores them."""
        labels = {
            "application": APPLICATION,
            "cluster": self.cluster_id.encode(),
            "container": b"%d" % self.container_id,
            "ordinal": b"%d" % self.ordinal,
            "epoch": b"%d" % self.epoch,
        }
        if self.begins:
            labels["begins"] = b"%d" % self.begins
        if self.is_draft:
            labels["draft"] = b"1"
        return labels

    @classmethod
    def decode(cls, labels: Mapping[str, bytes]) -> LedgerLabels | None:
        """Return them; None for a ledger of another application."""
        if labels.get("application") != APPLICATION:
            return None
        try:
            return cls(
                labels["cluster"].decode(),
                int(labels["container"]),
                int(labels["ordinal"]),
                int(labels["epoch"]),
                int(labels.get("begins", b"0")),
                "draft" in labels,
            )
        except (KeyError, ValueError):
            return None


def record_path(container_id: int) -> str:
    """Return the path of a container's record, below the cluster's root."""
    return f"{LOGS_PATH}/{container_id // 10 % 10}/{container_id % 10}/{container_id}"


def _check(ledgers: Sequence[LogLedger], next_ordinal: int, path: str) -> None:
    ordinal = 0
    for ledger in ledgers:
        if ledger.ordinal <= ordinal or (ledger.last_entry is not None and ledger.last_entry < -1):
            raise CorruptionError(path, 0, f"its ledgers are not in order: {ledger}")
        ordinal = ledger.ordinal
    if ordinal >= next_ordinal:
        raise CorruptionError(path, 0, f"its next ledger is {next_ordinal}, although there is ledger {ordinal}")

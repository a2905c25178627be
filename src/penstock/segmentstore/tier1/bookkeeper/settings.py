"""`BookKeeperSettings`: sizes, times and bounds of the log in BookKeeper."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.fixed_values import fixed
from penstock.runtime.ledgers import LedgerQuorum

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    """Settings of the log in BookKeeper, per process.

    Attributes:
        jars: directory with the jars of BookKeeper's client, see ``penstock jars``.
        ensemble: bookies that each entry is sent to.
        ack: of these, the number that must have an entry on disk before it is acknowledged.
        ensemble_min: with fewer than `ensemble` bookies, ledgers on so many are used; `ensemble`: never on fewer.
        ensemble_wait_s: a smaller ensemble is used after a creation has failed for this long.
        password: of all ledgers; part of BookKeeper's protocol, not a protection.
        frame_length_max_bytes: the longest frame that `append` takes.
        in_flight_bytes_max: bytes of entries sent and not answered, of all logs of the process; more wait. Twice as
            much may wait for one bookie that is slower than the others.
        ledger_bytes: a log continues in another ledger after so many bytes ...
        ledger_entries: ... or entries.
        ledger_bytes_limit: without another ledger, because ZooKeeper is away, appends wait after so many bytes.
        append_stall_s: an append without an answer for this long is given up: the log continues in another ledger.
        degraded_roll_s: the log continues in another ledger when a bookie of the present one was gone for this long and
            another one can take its place. Less than BookKeeper's openLedgerRereplicationGracePeriod, 30 s.
        bookies_interval_s: how often the bookies of the present ledger are compared with the registered ones.
        retry_s: pause before a request is repeated. There is no last attempt.
        request_timeout_s: time for one request to BookKeeper, except appends.
        open_attempts_max: how often an open begins again because another process changed the record.
        read_entries_max: entries read at a time by a recovery.
        read_bytes: bytes read at a time by a recovery, about.
        kept_bytes_max: bytes of frames that an open reads for inspection and keeps for the recovery after it.
        truncate_interval_s: a truncation is recorded at most this often for each container, unless it frees a ledger.
        deletion_delay_s: a ledger of an earlier incarnation is not deleted before this long after the log was opened,
            because bookies forget with a deleted ledger that it is fenced. An owner that has confirmed nothing for half
            of it checks its record before it acknowledges. The same for all processes of a cluster.
        change_wait_s: how long a truncation or a close waits for its change of the record; it is made later then.
        heap_mb: memory of the Java virtual machine for objects.
        direct_mb: its memory for network buffers.
    """

    jars: str = ""
    ensemble: int = 3
    ack: int = 2
    ensemble_min: int = 2
    ensemble_wait_s: float = 5.0
    password: str = field(default="penstock", repr=False)
    frame_length_max_bytes: int = fixed(_MIB - 2 * _KIB)
    in_flight_bytes_max: int = fixed(32 * _MIB)
    ledger_bytes: int = 256 * _MIB
    ledger_entries: int = fixed(10_000_000)
    ledger_bytes_limit: int = fixed(4 * _GIB)
    append_stall_s: float = 15.0
    degraded_roll_s: float = 10.0
    bookies_interval_s: float = fixed(2.0)
    retry_s: float = fixed(1.0)
    request_timeout_s: float = 30.0
    open_attempts_max: int = fixed(16)
    read_entries_max: int = fixed(64)
    read_bytes: int = fixed(_MIB)
    kept_bytes_max: int = fixed(16 * _MIB)
    truncate_interval_s: float = fixed(10.0)
    deletion_delay_s: float = fixed(60.0)
    change_wait_s: float = fixed(5.0)
    heap_mb: int = 128
    direct_mb: int = 256

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        for name in (
            "frame_length_max_bytes", "in_flight_bytes_max", "ledger_bytes", "ledger_entries", "open_attempts_max",
            "read_entries_max", "read_bytes", "heap_mb", "direct_mb",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("ensemble_wait_s", "kept_bytes_max", "truncate_interval_s"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"{name} must not be negative, and is {getattr(self, name)}")
        for name in (
            "deletion_delay_s", "append_stall_s", "degraded_roll_s", "bookies_interval_s", "retry_s",
            "request_timeout_s", "change_wait_s",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name} must be above 0, and is {getattr(self, name)}")
        if not 1 <= self.ack <= self.ensemble_min <= self.ensemble:
            raise InvalidArgumentError(
                f"need 1 <= ack ({self.ack}) <= ensemble_min ({self.ensemble_min}) <= ensemble ({self.ensemble})"
            )
        if self.ledger_bytes > self.ledger_bytes_limit:
            raise InvalidArgumentError(
                f"ledger_bytes ({self.ledger_bytes}) must not exceed ledger_bytes_limit ({self.ledger_bytes_limit})"
            )
        if self.ledger_entries >= 1 << 31:
            raise InvalidArgumentError(f"ledger_entries must be below 2^31, not {self.ledger_entries}")

    @property
    def quorum(self) -> LedgerQuorum:
        """How ledgers are replicated while there are enough bookies."""
        return LedgerQuorum(self.ensemble, self.ack)

    @property
    def smaller_quorum(self) -> LedgerQuorum:
        """How they are with fewer bookies: no entry is acknowledged by fewer of them than otherwise."""
        return LedgerQuorum(self.ensemble_min, self.ack)

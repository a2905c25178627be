"""`ObjectLogSettings`: sizes, times and bounds of the log in a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.model.sizes import MIB
from penstock.runtime.fixed_values import fixed
from penstock.segmentstore.tier1.object_log.journal_format import SLOTS_MAX


@dataclass(frozen=True, slots=True)
class ObjectLogSettings:
    """Settings of the log in a bucket, per process.

    Attributes:
        batch_interval_s: time from the creation of an object to that of the next one, less the share of
            `batch_bytes_max` that the first one has. It bounds their number, and so the cost.
        gather_s: an append that comes alone waits this long for others.
        batch_bytes_max: an object of this many bytes of frames is created at once.
        in_flight_max: objects being created at a time; more wait.
        in_flight_bytes_max: the same in bytes; one object is always allowed.
        frame_length_max_bytes: the longest frame that `append` takes.
        hedge_s: a creation without an answer is sent a second time after this long; 0: never.
        hedge_percent_max: share of creations that are sent a second time, at most.
        retry_delay_s_first: pause before a request that failed is sent again; it doubles.
        retry_delay_s_max: the longest such pause. There is no last attempt.
        open_attempts_max: how often an open begins again because another process changed the record.
        read_slots_max: slots read at a time by a recovery, and at first by an open ...
        open_slots_max: ... which then doubles their number up to this: it does not know where the journal ends, and the
            lease of the former owner is only waited for after that.
        read_head_bytes: bytes of a slot that are read first, header and table among them.
        read_bytes_max: bytes of frames read ahead by a recovery; one object is always allowed.
        kept_bytes_max: bytes of frames that an open reads and keeps for the recovery after it.
        truncate_interval_s: a truncation is recorded at most this often for each container ...
        truncate_bytes: ... unless the container has appended this many bytes since. An idle container frees the journal
            after as many bytes of other containers.
        truncate_slots: a truncation is also recorded when the journal has this many slots more: the next open of the
            container reads each of them.
        hop_slots: an idle container also frees the journal after this many slots. One whose frames are spread over as
            many slots writes a checkpoint, so that it can be truncated, ...
        pieces_max: ... and so does one whose frames are in more pieces of journals than this.
        trim_interval_s: how often the process deletes what is not needed any more.
        reserve_bytes: objects without meaning that are kept in the bucket, and deleted when it is full, so that
            truncations and deletions continue; 0: none.
        full_retry_s: how often a full bucket is tried again.
        close_wait_s: how long a close waits for the record that says so. Without it the next owner waits for the lease.
        slots_max: slots of one journal; another journal follows.
    """

    batch_interval_s: float = 0.25
    gather_s: float = fixed(0.01)
    batch_bytes_max: int = fixed(8 * MIB)
    in_flight_max: int = fixed(4)
    in_flight_bytes_max: int = fixed(32 * MIB)
    frame_length_max_bytes: int = fixed(MIB)
    hedge_s: float = 0.4
    hedge_percent_max: int = fixed(5)
    retry_delay_s_first: float = fixed(0.05)
    retry_delay_s_max: float = fixed(1.0)
    open_attempts_max: int = fixed(16)
    read_slots_max: int = fixed(16)
    open_slots_max: int = fixed(128)
    read_head_bytes: int = fixed(64 * 1024)
    read_bytes_max: int = fixed(32 * MIB)
    kept_bytes_max: int = fixed(16 * MIB)
    truncate_interval_s: float = 60.0
    truncate_bytes: int = 64 * MIB
    truncate_slots: int = fixed(256)
    hop_slots: int = fixed(1024)
    pieces_max: int = fixed(8)
    trim_interval_s: float = 60.0
    reserve_bytes: int = 32 * MIB
    full_retry_s: float = fixed(5.0)
    close_wait_s: float = fixed(5.0)
    slots_max: int = fixed(SLOTS_MAX)

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        for name in (
            "batch_bytes_max", "in_flight_max", "in_flight_bytes_max", "frame_length_max_bytes", "open_attempts_max",
            "read_slots_max", "open_slots_max", "read_bytes_max", "truncate_bytes",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "batch_interval_s",
            "gather_s",
            "hedge_s",
            "truncate_interval_s",
            "kept_bytes_max",
            "reserve_bytes",
        ):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"{name} must not be negative, and is {getattr(self, name)}")
        for name in ("retry_delay_s_first", "retry_delay_s_max", "trim_interval_s", "full_retry_s", "close_wait_s"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name} must be above 0, and is {getattr(self, name)}")
        if not 1 <= self.slots_max <= SLOTS_MAX:
            raise InvalidArgumentError(f"slots_max is from 1 to {SLOTS_MAX}, not {self.slots_max}")
        if not 0 <= self.hedge_percent_max <= 100:
            raise InvalidArgumentError(f"hedge_percent_max is from 0 to 100, not {self.hedge_percent_max}")
        if self.read_head_bytes < 4 * 1024:
            raise InvalidArgumentError(f"read_head_bytes must be at least 4096, not {self.read_head_bytes}")

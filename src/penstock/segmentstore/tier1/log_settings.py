"""`LocalLogSettings`: sizes and bounds of a local log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.fixed_values import fixed
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH, FRAME_HEADER_LENGTH

_FILE_LENGTH_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class LocalLogSettings:
    """Sizes and bounds of a local log, per container.

    Attributes:
        frame_length_max_bytes: the longest frame that `append` takes.
        batch_length_max_bytes: maximum payload covered by one sync (a single frame is always accepted).
        threadless_batch_bytes_max: a batch of at most this much payload is checksummed by the event loop and written
            without a thread, where the system supports that (Linux with io_uring); 0: all batches are written by
            threads.
        file_length_bytes: length of a log file. Also the unit in which space is released.
        first_file_length_bytes: length of the first file after an open; each later one is four times as long, up to
            `file_length_bytes`, so that idle containers use little space.
        trailer_delay_s: after this long without an append, a trailer records that the last one was synced, so that
            damage to it can be distinguished from a torn write. Without the delay each single append would cost a
            second write.
        zero_chunk_length_bytes: files are zeroed ahead in synced pieces of this size; larger ones delay appends.
        spare_file_count_max: truncated files kept for re-use, while there is also free space for as many new ones.
        outstanding_bytes_max: advice to the caller: throttle while `LocalLog.outstanding_bytes` is above. Not enforced,
            because `append` cannot wait.
        lock_wait_s_max: how long to wait for another incarnation's metadata change before giving up.
        lock_retry_delay_s: pause between two attempts to take the lock.
        reserve_file_count: filled files kept beside the log, so that it can be opened, and written by its container,
            when the file system is full; 0: none.
        reserve_file_length_bytes: length of each; increased if necessary to fit a frame of the greatest length.
        reserve_record_count: small files kept to replace the records of owner and truncation when the disk is full.
        free_bytes_min: the log is not extended by a new file unless this much stays free; it uses the reserve ...
        free_percent_max: ... or this share of the file system, if that is less.
        space_check_interval_s: how often a log with too little space, or too little in reserve, checks again.
        files: the pool of each log for everything but the writing and syncing of appends, which uses a separate thread
            per log.
    """

    frame_length_max_bytes: int = fixed(1024 * 1024)
    batch_length_max_bytes: int = fixed(4 * 1024 * 1024)
    threadless_batch_bytes_max: int = fixed(16 * 1024)
    file_length_bytes: int = 64 * 1024 * 1024
    first_file_length_bytes: int = 4 * 1024 * 1024
    trailer_delay_s: float = fixed(0.02)
    zero_chunk_length_bytes: int = 1024 * 1024
    spare_file_count_max: int = 4
    outstanding_bytes_max: int = fixed(32 * 1024 * 1024)
    lock_wait_s_max: float = fixed(5.0)
    lock_retry_delay_s: float = fixed(0.01)
    reserve_file_count: int = 2
    reserve_file_length_bytes: int = fixed(2 * 1024 * 1024)
    reserve_record_count: int = fixed(8)
    free_bytes_min: int = 64 * 1024 * 1024
    free_percent_max: int = 2
    space_check_interval_s: float = 1.0
    files: PoolSettings = field(default_factory=lambda: PoolSettings(thread_count_max=1, hung_count_max=4))

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        for name in ("frame_length_max_bytes", "batch_length_max_bytes", "zero_chunk_length_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 4 * BLOCK_LENGTH <= self.first_file_length_bytes <= self.file_length_bytes <= _FILE_LENGTH_LIMIT:
            raise InvalidArgumentError(
                f"need {4 * BLOCK_LENGTH} <= first_file_length_bytes ({self.first_file_length_bytes}) "
                f"<= file_length_bytes ({self.file_length_bytes}) <= {_FILE_LENGTH_LIMIT}"
            )
        if self.frame_length_max_bytes > _FILE_LENGTH_LIMIT // 4:
            raise InvalidArgumentError(f"frame_length_max_bytes must not exceed {_FILE_LENGTH_LIMIT // 4}")
        counts = ("spare_file_count_max", "reserve_file_count", "reserve_record_count")
        for name in (*counts, "threadless_batch_bytes_max", "free_bytes_min"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"{name} must not be negative")
        if not 4 * BLOCK_LENGTH <= self.reserve_file_length_bytes <= _FILE_LENGTH_LIMIT:
            raise InvalidArgumentError(
                f"reserve_file_length_bytes must be from {4 * BLOCK_LENGTH} to {_FILE_LENGTH_LIMIT}"
            )
        if self.trailer_delay_s < 0 or not math.isfinite(self.trailer_delay_s):
            raise InvalidArgumentError(f"trailer_delay_s must be a time, not {self.trailer_delay_s}")
        if not 0 <= self.free_percent_max <= 100:
            raise InvalidArgumentError(f"free_percent_max is a share from 0 to 100, not {self.free_percent_max}")

    @property
    def reserve_length_bytes(self) -> int:
        """Length of a reserve file: a block each for header, link and trailer, and room for the longest frame."""
        blocks = -(-(FRAME_HEADER_LENGTH + self.frame_length_max_bytes) // BLOCK_LENGTH) + 3
        return min(max(self.reserve_file_length_bytes, blocks * BLOCK_LENGTH), _FILE_LENGTH_LIMIT)

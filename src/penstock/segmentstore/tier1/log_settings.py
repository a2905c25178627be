"""`LocalLogSettings`: sizes and bounds of a local log."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH

_FILE_LENGTH_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class LocalLogSettings:
    """Sizes and bounds of a local log, per container.

    Attributes:
        frame_length_max_bytes: the longest frame that `append` takes.
        batch_length_max_bytes: payload covered by one sync, at most (one frame always goes).
        file_length_bytes: length of a log file. Also the grain in which space is given back.
        first_file_length_bytes: length of the first file after an open; each next one is four times as long, up to
            `file_length_bytes`, so that idle containers take little room.
        zero_chunk_length_bytes: files are zeroed ahead in synced pieces of this size; larger ones delay appends.
        spare_file_count_max: truncated files kept for re-use.
        outstanding_bytes_max: advice to the caller: throttle while `LocalLog.outstanding_bytes` is above. Not enforced,
            because `append` cannot wait.
        lock_wait_s_max: how long to wait for another incarnation's metadata change before giving up.
        lock_retry_delay_s: pause between two attempts to take the lock.
    """

    frame_length_max_bytes: int = 1024 * 1024
    batch_length_max_bytes: int = 4 * 1024 * 1024
    file_length_bytes: int = 64 * 1024 * 1024
    first_file_length_bytes: int = 4 * 1024 * 1024
    zero_chunk_length_bytes: int = 1024 * 1024
    spare_file_count_max: int = 4
    outstanding_bytes_max: int = 32 * 1024 * 1024
    lock_wait_s_max: float = 5.0
    lock_retry_delay_s: float = 0.01

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
        if self.spare_file_count_max < 0:
            raise InvalidArgumentError("spare_file_count_max must not be negative")

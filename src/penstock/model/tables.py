"""`TableConfig`: the shape of a key-value table, fixed at creation."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import TABLE_KEY_LENGTH_MAX


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The shape of a key-value table; it never changes. Every key has exactly `key_length` bytes, in two parts.

    Pravega's segment stores take keys of 256 bytes at most, Penstock's of 8192.

    Attributes:
        primary_key_length: bytes of the first part, which selects the partition: 1 or more. Keys that are changed
            atomically share this part.
        secondary_key_length: bytes of the second part, 0 or more.
        partition_count: number of segments that share the keys, 1 or more. A table never scales.
        rollover_bytes: maximum length of a chunk in long-term storage; 0: the server's default.

    Source: Pravega KeyValueTableConfiguration.
    """

    primary_key_length: int
    secondary_key_length: int = 0
    partition_count: int = 1
    rollover_bytes: int = 0

    @property
    def key_length(self) -> int:
        """Bytes of a key, both parts."""
        return self.primary_key_length + self.secondary_key_length

    def checked(self) -> TableConfig:
        """Return this configuration. Raises `InvalidArgumentError`."""
        if self.partition_count < 1:
            raise InvalidArgumentError(f"{self.partition_count} partitions: a table has 1 or more")
        if self.primary_key_length < 1 or self.secondary_key_length < 0 or self.key_length > TABLE_KEY_LENGTH_MAX:
            raise InvalidArgumentError(
                f"keys of {self.primary_key_length} and {self.secondary_key_length} bytes: the first part needs 1 or "
                f"more, the second 0 or more, both together at most {TABLE_KEY_LENGTH_MAX}"
            )
        if self.rollover_bytes < 0:
            raise InvalidArgumentError(f"rollover size of {self.rollover_bytes} bytes: use 0 (the server's) or more")
        return self

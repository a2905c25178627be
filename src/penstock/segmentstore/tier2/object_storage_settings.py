"""`ObjectStorageSettings`: sizes, times and bounds of long-term storage in an object store."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.model.sizes import MIB
from penstock.runtime.fixed_values import fixed
from penstock.runtime.objects import ObjectStoreSettings


@dataclass(frozen=True, slots=True)
class ObjectStorageSettings:
    """Settings of long-term storage in an object store. Each write is an object, so writes are long and rare.

    Attributes:
        flush_bytes: replaces `ContainerSettings.flush_bytes`: the approximate length of an object.
        flush_age_s: replaces `ContainerSettings.flush_age_s`.
        read_ahead_range_bytes: replaces `ContainerSettings.read_ahead_range_bytes`: requests are billed.
        content_bytes_max: bytes of objects being created at a time, each of which is copied; more wait.
        put_attempts_max: how often a creation whose outcome is unknown is attempted.
        put_deadline_s: no further attempt is started this long after the first one.
        put_retry_delay_s: pause before the second attempt; it doubles.
        full_retry_s: how long users' bytes are not moved after a creation was refused because the bucket is full.
        store: connection to the store.
    """

    flush_bytes: int = 16 * MIB
    flush_age_s: float = 60.0
    read_ahead_range_bytes: int = 4 * MIB
    content_bytes_max: int = 128 * MIB
    put_attempts_max: int = 3
    put_deadline_s: float = fixed(90.0)
    put_retry_delay_s: float = fixed(0.2)
    full_retry_s: float = fixed(30.0)
    store: ObjectStoreSettings = field(default_factory=ObjectStoreSettings)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if min(self.put_attempts_max, self.flush_bytes, self.read_ahead_range_bytes) < 1:
            raise InvalidArgumentError(
                "put_attempts_max, flush_bytes and read_ahead_range_bytes of object storage are at least 1"
            )

"""`HdfsStorageSettings`: times and bounds of long-term storage in HDFS."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.runtime.files import FileStoreSettings
from penstock.runtime.fixed_values import fixed


@dataclass(frozen=True, slots=True)
class HdfsStorageSettings:
    """Settings of long-term storage in HDFS.

    Attributes:
        retries_max: how often a request is repeated after a broken connection.
        retry_delay_s: pause before the first retry; it doubles.
        lease_timeout_s: how long to wait for the recovery of a file's lease.
        lease_poll_s: pause between two polls of a lease.
        copy_buffer_bytes: how much is copied at a time if blocks cannot be moved.
        files: connection to the file system.
    """

    retries_max: int = 2
    retry_delay_s: float = fixed(0.2)
    lease_timeout_s: float = 30.0
    lease_poll_s: float = fixed(0.2)
    copy_buffer_bytes: int = fixed(4 * 1024 * 1024)
    files: FileStoreSettings = field(default_factory=FileStoreSettings)

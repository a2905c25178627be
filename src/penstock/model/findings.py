"""The findings about a server: what can be wrong, how severe it is, and what to do.

One list, which ``penstock doctor``, ``/v1/health`` and the operator's table in ``docs/guide/operations.md`` share.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "FindingKind", "Severity"]


class Severity(Enum):
    """How severe a finding is.

    `ERROR`: the server does not do a part of its work, or would not start. `WARNING`: it works, and this needs
    attention before it becomes an error.
    """

    ERROR = "error"
    WARNING = "warning"


class FindingKind(Enum):
    """All findings. The value is the id, which does not change between versions.

    Attributes:
        severity: how severe it is.
        meaning: what is wrong, in a few words.
        action: what to do.
    """

    SETTINGS_INVALID = (
        "settings-invalid", Severity.ERROR, "a server does not start with these settings",
        "correct the setting that is named; penstock settings show lists all with their sources",
    )  # fmt: skip
    DATA_DIRECTORY_UNUSABLE = (
        "data-directory-unusable", Severity.ERROR, "the data directory cannot be used",
        "name the right directory with --data-dir, or correct its owner and mode",
    )  # fmt: skip
    PORT_IN_USE = (
        "port-in-use", Severity.ERROR, "a port of the server cannot be listened on",
        "stop the program that uses the port, or choose another port in the settings",
    )  # fmt: skip
    CONTROLLER_UNREACHABLE = (
        "controller-unreachable", Severity.ERROR, "the controller does not answer",
        "start the server, or correct the address; its log has the reason if it did not start",
    )  # fmt: skip
    CREDENTIALS_REFUSED = (
        "credentials-refused", Severity.ERROR, "the server does not let this account see its state",
        "set the credentials of an account that may read prn::/ (PENSTOCK_USER and PENSTOCK_PASSWORD_FILE)",
    )  # fmt: skip
    STORE_DOWN = (
        "store-down", Severity.ERROR, "a segment store does not run or does not answer",
        "wait for its restart; if it repeats, check memory, dmesg and the server's log",
    )  # fmt: skip
    CONTAINER_OFFLINE = (
        "container-offline", Severity.ERROR, "a container does not run: its segments are not served",
        "follow the reason; a damaged or disabled log: penstock log list, then penstock log salvage",
    )  # fmt: skip
    STORAGE_UNAVAILABLE = (
        "storage-unavailable", Severity.WARNING, "long-term storage cannot be used; appends are kept in the log",
        "mount the directory, or check address, credentials and network with penstock storage probe",
    )  # fmt: skip
    STORAGE_FOREIGN = (
        "storage-foreign", Severity.ERROR, "long-term storage belongs to another cluster, or its identity is damaged",
        "name the long-term storage that this data directory was used with",
    )  # fmt: skip
    LOG_UNAVAILABLE = (
        "log-unavailable", Severity.ERROR, "the bucket or the bookies of the log cannot be used",
        "a bucket: check address, credentials and network with penstock storage probe --log; bookies: start them",
    )  # fmt: skip
    WRITES_BLOCKED = (
        "writes-blocked", Severity.ERROR, "writes wait or are refused because the disk is full",
        "truncate or delete streams, or enlarge the file system",
    )  # fmt: skip
    SPACE_SHORT = (
        "space-short", Severity.WARNING, "a file system of the server is nearly full",
        "truncate or delete streams, set a retention, or enlarge the file system",
    )  # fmt: skip
    DISK_SLOW = (
        "disk-slow", Severity.WARNING, "a sync of the log's disk takes long, and so does each append",
        "use a disk of its own for the data directory; check its health and its other users",
    )  # fmt: skip
    DESCRIPTORS_FEW = (
        "descriptors-few", Severity.WARNING, "the limit of file descriptors allows few connections",
        "raise LimitNOFILE of the service, or ulimit -Hn",
    )  # fmt: skip
    CLOCK_BACK = (
        "clock-back", Severity.WARNING, "the clock of this machine is before the last write of the server",
        "correct the clock; retention by time and certificates depend on it",
    )  # fmt: skip
    CLOCK_UNSYNCHRONIZED = (
        "clock-unsynchronized", Severity.WARNING, "the kernel reports that the clock is not synchronized",
        "run chrony or systemd-timesyncd; in a container: on the host",
    )  # fmt: skip
    MEMORY_SHORT = (
        "memory-short", Severity.WARNING, "the settings need more memory than this machine or container has",
        "lower segment_store.cache.bytes_max (--cache-mb), or give more memory",
    )  # fmt: skip
    SECURITY_UNUSABLE = (
        "security-unusable", Severity.ERROR, "a certificate, a key or the accounts cannot be used",
        "replace the file that is named; penstock security check repeats this part",
    )  # fmt: skip
    SECURITY_DOUBTFUL = (
        "security-doubtful", Severity.WARNING, "a certificate expires soon, or security is weaker than it could be",
        "follow the text; penstock security check repeats this part",
    )  # fmt: skip
    AUDIT_FAILING = (
        "audit-failing", Severity.WARNING, "the audit log cannot be written",
        "make room, or correct owner and mode of the file in the settings of the audit log",
    )  # fmt: skip
    APPENDS_HELD = (
        "appends-held", Severity.WARNING, "appends wait because long-term storage is too slow for their segments",
        "check the speed of long-term storage with penstock storage probe",
    )  # fmt: skip
    LOG_LONG = (
        "log-long", Severity.WARNING, "something prevents the truncation of a log, so a restart takes longer",
        "check that long-term storage works; the server's log has the reason",
    )  # fmt: skip
    GROUP_STUCK = (
        "group-stuck", Severity.WARNING, "a reader group has unread events and no reader",
        "start its readers, or delete the group if nothing uses it",
    )  # fmt: skip
    WORK_GIVEN_UP = (
        "work-given-up", Severity.WARNING, "the controller has given up work after an error that no repetition ends",
        "the server's log has the work and the reason; request the change again once the reason is removed",
    )  # fmt: skip
    VERSION_DIFFERS = (
        "version-differs", Severity.WARNING, "the server runs another version than this command",
        "install the same version, or restart the server after an upgrade",
    )  # fmt: skip

    def __init__(self, id: str, severity: Severity, meaning: str, action: str) -> None:
        self.id: str = id
        self.severity: Severity = severity
        self.meaning: str = meaning
        self.action: str = action


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its kind, and in `detail` where it is and what was measured, in plain words."""

    kind: FindingKind
    detail: str

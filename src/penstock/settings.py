"""`StandaloneSettings`: everything that can be set of a `penstock standalone`."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from penstock.controller.settings import ControllerSettings
from penstock.model.errors import InvalidArgumentError
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.local_log import LocalLogSettings
from penstock.segmentstore.tier2.directory import DirectoryChunkStorageSettings

CONTROLLER_PORT = 9090
SEGMENT_STORE_PORT = 6000

_WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """Settings of one process that is controller and segment store.

    Attributes:
        data_dir: directory of everything stored; created if absent.
        is_memory: keep everything in memory instead and lose it at the end. For tests.
        host: address both ports listen on.
        controller_port, segment_store_port: 0 takes any free port.
        advertise: host that clients are told to reach the segment store at. Empty: `host`, or this machine's name
            when that is a wildcard.
        log_level: debug, info, warning or error.
        stop_timeout_s: how long a graceful stop may take in all before it is given up.
        blocking_thread_count_max: threads for disk work.
        segment_store, controller, durable_log, long_term_storage: settings of the parts.
    """

    data_dir: str = "penstock-data"
    is_memory: bool = False
    host: str = "127.0.0.1"
    controller_port: int = CONTROLLER_PORT
    segment_store_port: int = SEGMENT_STORE_PORT
    advertise: str = ""
    log_level: str = "warning"
    stop_timeout_s: float = 30.0
    blocking_thread_count_max: int = 8
    segment_store: SegmentStoreSettings = field(default_factory=SegmentStoreSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    durable_log: LocalLogSettings = field(default_factory=LocalLogSettings)
    long_term_storage: DirectoryChunkStorageSettings = field(default_factory=DirectoryChunkStorageSettings)

    def __post_init__(self) -> None:
        """Check what no type says. Raises `InvalidArgumentError`."""
        for name in ("controller_port", "segment_store_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise InvalidArgumentError(f"{name} is {port}: a port is between 0 (any free one) and 65535")
        if self.controller_port == self.segment_store_port != 0:
            raise InvalidArgumentError(f"controller_port and segment_store_port are both {self.controller_port}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidArgumentError(f"log_level is {self.log_level!r}: it is debug, info, warning or error")
        if self.segment_store.container_count < 1:
            raise InvalidArgumentError(
                f"segment_store.container_count is {self.segment_store.container_count}: there is at least one"
            )
        if self.segment_store.cache.bytes_max < 16 * 1024 * 1024:
            raise InvalidArgumentError(
                f"segment_store.cache.bytes_max is {self.segment_store.cache.bytes_max}: it is at least 16 MiB"
            )
        if self.stop_timeout_s <= 0 or self.blocking_thread_count_max < 1:
            raise InvalidArgumentError("stop_timeout_s and blocking_thread_count_max are above 0")

    @property
    def advertised_host(self) -> str:
        """The host that clients are told."""
        if self.advertise:
            return self.advertise
        return socket.gethostname() if self.host in _WILDCARDS else self.host

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

#: Less than this is no cache for a segment store.
CACHE_BYTES_MIN = 16 * 1024 * 1024

_WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class StoreProcessSettings:
    """How segment stores in processes of their own are watched.

    Attributes:
        start_timeout_s: how long a process may take to be ready.
        health_interval_s: how often each is asked how it is, and told what to run.
        health_timeout_s: one that has not answered for so long hangs.
        is_hung_killed: end one that hangs and start it anew. Otherwise its containers move to the others, whose logs
            shut it out, and when it goes on it may answer some reads with what was true when it began to hang.
        restart_delay_s, restart_delay_s_max: pause before one that ended is started again, doubled each time.
        restart_count_max, restart_window_s: one that ended more often than that in so long is away: its containers
            move to the others ...
        return_delay_s: ... and back when it has been well for so long.
        lock_wait_s_max: how long a start waits for the segment stores of a server that was killed to end.
        retry_time_max_s: how long a request of the controller looks for the store that runs a container.
    """

    start_timeout_s: float = 120.0
    health_interval_s: float = 1.0
    health_timeout_s: float = 10.0
    is_hung_killed: bool = True
    restart_delay_s: float = 0.1
    restart_delay_s_max: float = 10.0
    restart_count_max: int = 3
    restart_window_s: float = 60.0
    return_delay_s: float = 5.0
    lock_wait_s_max: float = 5.0
    retry_time_max_s: float = 10.0

    def __post_init__(self) -> None:
        """Check what no type says. Raises `InvalidArgumentError`."""
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"store_processes.{name} is {getattr(self, name)}: it is at least 0")
        if not 0 < self.health_interval_s < self.health_timeout_s:
            raise InvalidArgumentError(
                f"store_processes.health_interval_s is {self.health_interval_s}: it is above 0, and below "
                f"health_timeout_s, {self.health_timeout_s}"
            )


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """Settings of one process that is controller and segment store, or controller and parent of segment stores.

    Attributes:
        data_dir: directory of everything stored; created if absent.
        is_memory: keep everything in memory instead and lose it at the end. For tests.
        host: address both ports listen on.
        controller_port, segment_store_port: 0 takes any free port.
        segment_stores: processes that run segment stores, at most one for each container. 1: this process does. Else
            they share containers and `segment_store.cache.bytes_max`, and listen on `segment_store_port` and the ports
            after it.
        advertise: host that clients are told to reach the segment store at. Empty: `host`, or this machine's name
            when that is a wildcard.
        log_level: debug, info, warning or error.
        stop_timeout_s: how long a graceful stop may take in all before it is given up.
        blocking_thread_count_max: threads for disk work.
        store_processes: how segment stores are watched when there are several.
        segment_store, controller, durable_log, long_term_storage: settings of the parts.
    """

    data_dir: str = "penstock-data"
    is_memory: bool = False
    host: str = "127.0.0.1"
    controller_port: int = CONTROLLER_PORT
    segment_store_port: int = SEGMENT_STORE_PORT
    segment_stores: int = 1
    advertise: str = ""
    log_level: str = "warning"
    stop_timeout_s: float = 30.0
    blocking_thread_count_max: int = 8
    store_processes: StoreProcessSettings = field(default_factory=StoreProcessSettings)
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
        if not 1 <= self.segment_stores <= self.segment_store.container_count:
            raise InvalidArgumentError(
                f"segment_stores is {self.segment_stores}: there is at least one, and a container for each of them; "
                f"segment_store.container_count is {self.segment_store.container_count}"
            )
        if self.segment_stores > 1:
            self._check_several_stores()
        cache, throttle = self.segment_store.cache, self.segment_store.throttle
        if not cache.target_percent + throttle.cache_margin_percent < cache.essential_percent <= 100:
            raise InvalidArgumentError(
                f"segment_store.cache.target_percent is {cache.target_percent} and essential_percent "
                f"{cache.essential_percent}: the first plus throttle.cache_margin_percent "
                f"({throttle.cache_margin_percent}) is below the second, and that at most 100"
            )
        if self.segment_store.cache.bytes_max < self.segment_stores * CACHE_BYTES_MIN:
            raise InvalidArgumentError(
                f"segment_store.cache.bytes_max is {self.segment_store.cache.bytes_max}: it is at least 16 MiB"
                + (f" for each of {self.segment_stores} segment stores" if self.segment_stores > 1 else "")
            )
        if self.stop_timeout_s <= 0 or self.blocking_thread_count_max < 1:
            raise InvalidArgumentError("stop_timeout_s and blocking_thread_count_max are above 0")

    def _check_several_stores(self) -> None:
        if self.is_memory:
            raise InvalidArgumentError(
                f"segment_stores is {self.segment_stores}, but what is in memory belongs to one process: "
                "use a data directory, or one segment store"
            )
        first, end = self.segment_store_port, self.segment_store_port + self.segment_stores
        if first and (end > 65536 or first <= self.controller_port < end):
            raise InvalidArgumentError(
                f"{self.segment_stores} segment stores would listen on ports {first} to {end - 1}: a port is at most "
                f"65535, and controller_port is {self.controller_port}"
            )

    @property
    def advertised_host(self) -> str:
        """The host that clients are told."""
        if self.advertise:
            return self.advertise
        return socket.gethostname() if self.host in _WILDCARDS else self.host

    @property
    def listening_host(self) -> str:
        """The host under which this machine reaches its own ports."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)

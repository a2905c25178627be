"""`StandaloneSettings`: all settings of `penstock standalone`."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass, field, fields, is_dataclass

from penstock.controller.settings import ControllerSettings
from penstock.model.errors import InvalidArgumentError
from penstock.operations.settings import OperationsSettings
from penstock.runtime.descriptors import DescriptorSettings
from penstock.runtime.files import FILE_SCHEMES, FilePlace
from penstock.runtime.fixed_values import fixed
from penstock.runtime.ledgers import LedgerPlace, is_ledger_place
from penstock.runtime.objects import ObjectPlace
from penstock.security.audit_log import AuditSettings
from penstock.security.settings import SecuritySettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier2.directory import DirectoryChunkStorageSettings
from penstock.segmentstore.tier2.hdfs_storage_settings import HdfsStorageSettings
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock.server.cluster_settings import WILDCARD_HOSTS, ClusterSettings
from penstock.server.web_process import WebServerSettings

CONTROLLER_PORT = 9090
SEGMENT_STORE_PORT = 6000

#: Minimum size of a segment store's cache.
CACHE_BYTES_MIN = 16 * 1024 * 1024


#: Settings that may be 0, besides those whose default is 0. With any other setting at 0 the server would stall, or
#: retry without a pause.
MAY_BE_ZERO = frozenset((
    "controller_port", "segment_store_port", "port",
    # Pauses and time limits.
    "restart_delay_s", "take_over_s", "return_delay_s", "restart_window_s", "lock_wait_s_max", "lock_retry_delay_s",
    "retry_time_max_s", "disabled_retry_s", "retry_delay_ms_first", "retry_delay_ms_max", "lease_slack_ms",
    "conflict_delay_ms_first", "conflict_delay_ms_max",
    "put_retry_delay_s", "put_deadline_s", "call_timeout_s", "retry_timeout_s",
    "mute_s", "cool_down_s", "quiet_told_s",
    "writer_retry_s", "timeout_s", "cancel_grace_s", "close_timeout_s", "table_index_retry_s",
    "table_index_wait_timeout_s", "active_segments_wait_s", "drain_timeout_s",
    # Ages and thresholds: 0 means always at once.
    "entry_age_s_max", "flush_age_s", "flush_age_index_s", "truncate_delay_s", "merge_delay_s", "flush_slow_s",
    "expiry_s", "checkpoint_log_bytes_idle", "table_compact_bytes",
    "table_index_min_bytes", "compact_slack_bytes", "truncate_bytes_min", "piece_bytes_min", "slow_reply_bytes",
    "small_append_length", "active_segments_idle_max", "completed_transaction_ttl_ms", "lease_ms_min",
    # Shares.
    "ownership_drift_percent",
    "cache_margin_percent", "carry_little_percent", "urgent_percent", "checkpoint_share_percent_max",
    "table_utilisation_percent", "table_index_percent", "attributes_flush_share_percent", "move_percent",
    # Counts and caches: 0 means none.
    "request_retries_max", "restart_count_max", "failures_max", "hung_count_max", "flush_slow_max",
    "read_ahead_count_max", "read_ahead_range_bytes",
    "read_ahead_segments_max", "whole_read_bytes", "index_entry_bytes", "index_segments_max",
    "attributes_in_memory_max", "attributes_cached_max",
    "backlog_operations_max", "pending_bytes_max", "move_pages_min", "redo_max", "spare_file_count_max",
    "reserve_file_count", "reserve_record_count", "reserved_count", "threadless_batch_bytes_max",
    "free_bytes_min", "free_percent_max",
    # Of the log in a bucket: no pause, no second copies, nothing kept.
    "batch_interval_s", "gather_s", "hedge_s", "hedge_percent_max", "truncate_interval_s", "kept_bytes_max",
    "log_free_bytes_min", "log_free_percent_max", "storage_free_bytes_min", "storage_free_percent_max",
    "open_files_max", "known_directories_max", "completed_transactions_listed_max",
    # Where several settings have the same name.
    "joins.interval_s",
    # Of a cluster: no delay, no limit.
    "join_delay_s", "first_wait_s", "absence_wait_s", "mass_wait_s", "prepare_s", "handover_wait_s", "hot_s",
    "load_interval_s", "rest_s", "hot_busy_percent",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreProcessSettings:
    """How segment stores in child processes are monitored.

    Attributes:
        start_timeout_s: how long a process may take to be ready.
        health_interval_s: interval of health checks, which also send the assignment of containers.
        health_timeout_s: a process that has not answered for this long counts as hung.
        is_hung_killed: kill a hung process and restart it. Otherwise its containers move to the other stores, whose
            logs fence it, and after it resumes it may answer some reads with stale data.
        restart_delay_s, restart_delay_s_max: pause before a process is restarted, doubled each time.
        restart_count_max, restart_window_s: a process that ended more often than that within this time is unavailable:
            its containers move to the other stores ...
        return_delay_s: ... and back after it has been healthy for this long.
        lock_wait_s_max: how long a start waits for the segment stores of a killed server to exit.
        retry_time_max_s: how long a request of the controller retries to find the store that runs a container.
    """

    start_timeout_s: float = 120.0
    health_interval_s: float = 1.0
    health_timeout_s: float = 10.0
    is_hung_killed: bool = True
    restart_delay_s: float = 0.1
    restart_delay_s_max: float = fixed(10.0)
    restart_count_max: int = 3
    restart_window_s: float = 60.0
    return_delay_s: float = 5.0
    lock_wait_s_max: float = fixed(5.0)
    retry_time_max_s: float = fixed(10.0)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
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
        tier2: where long-term storage is: a bucket (``s3://bucket/prefix``; also ``gs://``, ``az://``), a folder of
            HDFS (``hdfs://host:port/path``) or a directory. Empty: ``tier2`` in `data_dir`. Fixed once there are data.
        log: where the durable log is: a bucket (``s3://bucket/prefix``; also ``gs://``, ``az://``), which is reached as
            `object_storage.store` says. Then nothing is kept in `data_dir`, and `tier2` is needed. Empty: ``tier1`` in
            `data_dir`. Fixed once there are data.
        is_memory: keep everything in memory instead and lose it at the end. For tests.
        host: address both ports listen on.
        controller_port, segment_store_port: 0 takes any free port.
        segment_stores: processes that run segment stores, at most one for each container. 1: this process does. Else
            they share containers and `segment_store.cache.bytes_max`, and listen on `segment_store_port` and the ports
            after it.
        advertise: host name of the segment store that is given to clients. Empty: `host`, or this machine's name
            when that is a wildcard.
        log_level: debug, info, warning or error. info: the life of the server, connections of clients, and changes of
            streams, besides what needs attention. Of one message at most 20 lines at once and 1 per second after that
            are written; the rest is counted.
        log_format: text, or json: one object for each line, with times in UTC and stable names of events.
        stop_timeout_s: total time of a graceful stop before it is given up.
        lock_check_interval_s: how often the server checks that its data directory still exists and is locked by it.
        blocking_thread_count_max: threads for work that belongs to neither tier; those have pools of their own.
        descriptors: how the file descriptors of each process are divided.
        store_processes: how segment stores are monitored when there are several.
        security: encryption, authentication and authorization.
        audit: the log of changes and refusals.
        operations: the port on which each process reports its health and its metrics.
        web: the port of REST and console of `penstock standalone`.
        cluster: of `penstock controller` and `penstock segment-store`, which run on several machines.
        segment_store, controller, durable_log: settings of the parts.
        object_log: settings of a log in a bucket.
        bookkeeper: settings of a log in BookKeeper.
        long_term_storage: settings of long-term storage in a directory ...
        object_storage: ... in a bucket ...
        hdfs_storage: ... and in HDFS.
    """

    data_dir: str = "penstock-data"
    tier2: str = ""
    log: str = ""
    is_memory: bool = False
    host: str = "127.0.0.1"
    controller_port: int = CONTROLLER_PORT
    segment_store_port: int = SEGMENT_STORE_PORT
    segment_stores: int = 1
    advertise: str = ""
    log_level: str = "info"
    log_format: str = "text"
    stop_timeout_s: float = 30.0
    lock_check_interval_s: float = 1.0
    blocking_thread_count_max: int = fixed(8)
    descriptors: DescriptorSettings = field(default_factory=DescriptorSettings)
    store_processes: StoreProcessSettings = field(default_factory=StoreProcessSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    operations: OperationsSettings = field(default_factory=OperationsSettings)
    web: WebServerSettings = field(default_factory=WebServerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    segment_store: SegmentStoreSettings = field(default_factory=SegmentStoreSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    durable_log: LocalLogSettings = field(default_factory=LocalLogSettings)
    object_log: ObjectLogSettings = field(default_factory=ObjectLogSettings)
    bookkeeper: BookKeeperSettings = field(default_factory=BookKeeperSettings)
    long_term_storage: DirectoryChunkStorageSettings = field(default_factory=DirectoryChunkStorageSettings)
    object_storage: ObjectStorageSettings = field(default_factory=ObjectStorageSettings)
    hdfs_storage: HdfsStorageSettings = field(default_factory=HdfsStorageSettings)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        for name in ("controller_port", "segment_store_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise InvalidArgumentError(f"{name} is {port}: a port is between 0 (any free one) and 65535")
        if self.controller_port == self.segment_store_port != 0:
            raise InvalidArgumentError(f"controller_port and segment_store_port are both {self.controller_port}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidArgumentError(f"log_level is {self.log_level!r}: it is debug, info, warning or error")
        if self.log_format not in ("text", "json"):
            raise InvalidArgumentError(f"log_format is {self.log_format!r}: it is text or json")
        if self.operations.tls and not self.security.has_tls:
            raise InvalidArgumentError("operations.tls is set, and security.tls is off: there is no certificate")
        if self.segment_store.container_count < 1:
            raise InvalidArgumentError(
                f"segment_store.container_count is {self.segment_store.container_count}: there is at least one"
            )
        if not 1 <= self.segment_stores <= self.segment_store.container_count and not self.cluster.zookeeper:
            raise InvalidArgumentError(
                f"segment_stores is {self.segment_stores}: there is at least one, and a container for each of them; "
                f"segment_store.container_count is {self.segment_store.container_count}"
            )
        if self.segment_stores > 1:
            self._check_several_stores()
        if self.tier2 and self.is_memory:
            raise InvalidArgumentError(f"tier2 is {self.tier2!r}, but memory-only operation was requested: choose one")
        if self.is_hdfs_storage:
            FilePlace.parse(self.tier2)
        elif self.is_object_storage:
            ObjectPlace.parse(self.tier2)
        if self.log:
            self._check_log()
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
        if self.stop_timeout_s <= 0 or self.lock_check_interval_s <= 0 or self.blocking_thread_count_max < 1:
            raise InvalidArgumentError(
                "stop_timeout_s, lock_check_interval_s and blocking_thread_count_max are above 0"
            )
        admin = self.segment_store.admin
        if admin.is_enabled and not 0 <= admin.port <= 65536 - self.segment_stores:
            raise InvalidArgumentError(
                f"segment_store.admin.port is {admin.port}: it is 0 (any free one), or it and one more for each "
                "further segment store are at most 65535"
            )

        self._check_operations_port()

    def checked(self) -> StandaloneSettings:
        """Return these settings, or raise `InvalidArgumentError` for values that no part can work with.

        For settings written by people; settings made by programs are not checked.
        """
        _check_numbers(self, "")
        if not self.data_dir:
            raise InvalidArgumentError("data_dir is empty: name a directory")
        if not self.is_local and not self.security.has_auth and not self.security.is_insecure_allowed:
            raise InvalidArgumentError(
                f"this server would listen on {self.host or 'all addresses'} without authentication: every program "
                "that reaches it could read and change all streams. Add --secure, or --insecure if that is intended"
            )
        return self

    @property
    def is_log_in_ledgers(self) -> bool:
        """Whether the log is in BookKeeper."""
        return is_ledger_place(self.log)

    def _check_log(self) -> None:
        if self.is_log_in_ledgers:
            LedgerPlace.parse(self.log)
            if not self.cluster.zookeeper:
                raise InvalidArgumentError(
                    f"log is {self.log!r}: the log in BookKeeper is for a cluster, see penstock cluster init; a single "
                    "server keeps its log in the data directory or in a bucket"
                )
        else:
            ObjectPlace.parse(self.log)
        if self.is_memory:
            raise InvalidArgumentError(f"log is {self.log!r}, but memory-only operation was requested: choose one")
        if not (self.is_object_storage or self.is_hdfs_storage):
            where = repr(self.tier2) if self.tier2 else "not set"
            raise InvalidArgumentError(
                f"log is {self.log!r}, so nothing is kept on this machine, but tier2 is {where}: name a bucket or a "
                "folder in HDFS with --tier2, too"
            )
        if self.segment_stores > 1 and not self.cluster.zookeeper:
            raise InvalidArgumentError(
                f"segment_stores is {self.segment_stores}, but the log in {self.log} is written by one process: use "
                "one segment store, or a log in the data directory"
            )
        if self.is_object_storage and not self.is_log_in_ledgers:
            place = ObjectPlace.parse(self.log)
            other = ObjectPlace.parse(self.tier2)
            first, second = (f"{each.prefix}/".lstrip("/") for each in (place, other))
            is_one_bucket = (place.scheme, place.bucket) == (other.scheme, other.bucket)
            if is_one_bucket and (first.startswith(second) or second.startswith(first)):
                raise InvalidArgumentError(
                    f"log is {self.log!r} and tier2 is {self.tier2!r}: one is inside of the other; use two prefixes"
                )

    def _check_operations_port(self) -> None:
        """Raise `InvalidArgumentError` if ports of health and metrics are in use here, or too large."""
        operations = self.operations
        if operations.is_enabled and operations.port:
            # With several segment stores, each has a port of its own after the first.
            last = operations.port + (self.segment_stores if self.segment_stores > 1 else 0)
            first = self.segment_store_port
            used = {self.controller_port, *range(first, first + self.segment_stores)}
            if last > 65535 or used.intersection(range(operations.port, last + 1)):
                raise InvalidArgumentError(
                    f"operations.port is {operations.port}: health and metrics would use ports {operations.port} to "
                    f"{last}; a port is at most 65535, and these are not ports of the controller or a segment store"
                )

    def _check_several_stores(self) -> None:
        if self.is_memory:
            raise InvalidArgumentError(
                f"segment_stores is {self.segment_stores}, but what is in memory belongs to one process: "
                "use a data directory, or one segment store"
            )
        try:
            self.data_dir.encode()
        except UnicodeEncodeError as error:
            # Settings are passed to child processes as JSON.
            raise InvalidArgumentError(
                f"data_dir is {self.data_dir!a}: several segment stores need a path that is Unicode"
            ) from error
        first, end = self.segment_store_port, self.segment_store_port + self.segment_stores
        if first and (end > 65536 or first <= self.controller_port < end):
            raise InvalidArgumentError(
                f"{self.segment_stores} segment stores would listen on ports {first} to {end - 1}: a port is at most "
                f"65535, and controller_port is {self.controller_port}"
            )

    @property
    def is_object_storage(self) -> bool:
        """Whether long-term storage is a bucket."""
        return "://" in self.tier2 and not self.is_hdfs_storage

    @property
    def is_hdfs_storage(self) -> bool:
        """Whether long-term storage is in HDFS."""
        return self.tier2.partition("://")[0] in FILE_SCHEMES and "://" in self.tier2

    @property
    def advertised_host(self) -> str:
        """The host name given to clients."""
        if self.advertise:
            return self.advertise
        if self.security.has_tls and self.is_local:
            # Certificates name hosts: the TLS library of Pravega's Rust and Python clients accepts no addresses.
            return "localhost"
        return socket.gethostname() if self.host in WILDCARD_HOSTS else self.host

    @property
    def is_local(self) -> bool:
        """Whether the server listens on this machine's own addresses only."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"

    @property
    def is_open_to_other_machines(self) -> bool:
        """Whether the server listens on all addresses of this machine."""
        return self.host in WILDCARD_HOSTS

    @property
    def listening_host(self) -> str:
        """The host under which this machine reaches its own ports."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)


def may_be_zero(path: str) -> bool:
    """Return whether a setting, by its path, may be 0 although its default is another number."""
    parts = path.split(".")
    return parts[-1] in MAY_BE_ZERO or ".".join(parts[-2:]) in MAY_BE_ZERO


def _check_numbers(settings: object, above: str) -> None:
    """Check every number in `settings`, whose path is `above`, and in the tables below."""
    if not is_dataclass(settings):
        return
    for setting in fields(settings):
        value, name = getattr(settings, setting.name), f"{above}{setting.name}"
        if is_dataclass(value):
            _check_numbers(value, f"{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value) or value < 0:
                raise InvalidArgumentError(f"{name} is {value}: it is a finite number, and not negative")
            # A default of None depends on other settings; 0 is then a separate choice.
            is_choice = setting.default in (0, None) or may_be_zero(name)
            if value == 0 and not is_choice:
                raise InvalidArgumentError(f"{name} is 0: it is above that; the default is {setting.default}")

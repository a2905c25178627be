"""`DemoSettings`: what a demonstration consists of."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.objects import DIRECTORY_SCHEME, ObjectPlace

#: Settings of all processes. Objects leave soon: files of this machine cost nothing.
_SETTINGS = """\
[object_log]
batch_interval_s = {batch_interval_s}

[object_storage]
flush_bytes = 1048576
flush_age_s = 5.0

[cluster.leader]
join_delay_s = 1.0
first_wait_s = 2.0
"""
_BATCH_INTERVAL_S = 0.25
_FILE_BATCH_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """See the module.

    Attributes:
        directory: for logs of the processes, and for the data unless they are in a bucket.
        bucket: URL of a place in a bucket for log and data; empty: `directory`.
        zookeeper: address of a running ZooKeeper; empty: one is started.
        stores, controllers, containers: how many.
        events_per_s: of the load.
    """

    directory: Path
    bucket: str = ""
    zookeeper: str = ""
    stores: int = 3
    controllers: int = 2
    containers: int = 6
    events_per_s: float = 200.0
    #: Distinguishes demonstrations in one bucket and one ZooKeeper.
    name: str = field(default_factory=lambda: f"penstock-demo-{random.SystemRandom().randrange(16**8):08x}")

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if min(self.stores, self.controllers, self.containers) < 1 or self.events_per_s <= 0:
            raise InvalidArgumentError("a demonstration has at least one store, controller and container, and a load")
        if self.bucket:
            ObjectPlace.parse(self.bucket)

    @property
    def place(self) -> str:
        """URL of the place for log and data."""
        return f"{self.bucket.rstrip('/')}/{self.name}" if self.bucket else f"file://{self.directory.resolve()}/bucket"

    @property
    def log(self) -> str:
        """URL of the log."""
        return f"{self.place}/log"

    @property
    def tier2(self) -> str:
        """URL of long-term storage."""
        return f"{self.place}/data"

    def write(self) -> Path:
        """Write the settings file of the processes, and make the directories of a bucket; return the file."""
        is_file = self.place.startswith(f"{DIRECTORY_SCHEME}://")
        if is_file:
            for url in (self.log, self.tier2):
                Path(url.partition("://")[2]).mkdir(parents=True, exist_ok=True)
        config = self.directory / "settings.toml"
        config.write_text(_SETTINGS.format(batch_interval_s=_FILE_BATCH_INTERVAL_S if is_file else _BATCH_INTERVAL_S))
        return config


def free_ports(count: int) -> list[int]:
    """Return ports of loopback on which nothing listens. Another program may take one before it is used."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()

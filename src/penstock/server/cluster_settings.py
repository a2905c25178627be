"""`ClusterSettings`: how a process takes part in a cluster; and the listeners, by which clients reach it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.controller.cluster.settings import LeaderSettings
from penstock.model.errors import InvalidArgumentError
from penstock.runtime.coordination import CoordinationAccess, CoordinationPlace, CoordinationSettings
from penstock.runtime.fixed_values import fixed
from penstock.segmentstore.cluster.settings import MemberSettings

if TYPE_CHECKING:
    from penstock.model.cluster_nodes import Endpoint

#: The listener that there is if none is named.
DEFAULT_LISTENER = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Addresses that mean every interface of the machine.
WILDCARD_HOSTS = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on, and the one given to clients of the same network.

    `advertised_host`: empty: the host that is listened on, or this machine's name if that is a wildcard;
    `advertised_port`: 0: the port that is listened on.
    """

    name: str
    host: str
    port: int
    advertised_host: str = ""
    advertised_port: int = 0

    def endpoint(self, port: int, machine: str, *, has_tls: bool = False) -> Endpoint:
        """Return what is given to clients. `port`: that was taken; `machine`: name of this machine.

        `has_tls`: then an address of loopback is given as ``localhost``: the TLS library of Pravega's Rust and Python
        clients accepts no addresses.
        """
        from penstock.model.cluster_nodes import Endpoint

        host = self.advertised_host or (machine if self.host in WILDCARD_HOSTS else self.host)
        if has_tls and not self.advertised_host and is_loopback(host):
            host = "localhost"
        return Endpoint(host, self.advertised_port or port)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of `penstock controller` and `penstock segment-store`.

    Attributes:
        zookeeper: servers of ZooKeeper and the path of the cluster, ``host:port,host:port/path``. Empty: no cluster.
        zookeeper_user, zookeeper_password_file: account for ZooKeeper (scheme digest), and the file whose first line is
            its password. Then nodes are made for this account alone. Empty: none.
        zookeeper_tls: "on": connections to ZooKeeper are encrypted.
        zookeeper_authority: PEM file with the authorities of ZooKeeper's certificates. Empty: those of the system.
        zookeeper_certificate, zookeeper_private_key: PEM files, for a ZooKeeper that asks for a client's certificate.
        session_timeout_s: ZooKeeper ends the session of a process that is silent for this long. ZooKeeper allows 2 to
            20 of its ticks.
        request_timeout_s: time limit of one request to ZooKeeper.
        connect_timeout_s: how long a start waits for ZooKeeper.
        name: of this controller or segment store, unique in the cluster. Empty: the name of this machine.
        zone: where it runs; the containers of a lost store go to zones with few.
        listeners: ``name=host:port`` or ``name=host:port@advertised-host:port``, separated by commas. Empty: one,
            ``default``, on the port of the process.
        internal_listener: the one by which controllers reach segment stores.
        poll_s: a controller reads the cluster at least this often.
        member: of segment stores.
        leader: of the controller that assigns containers.
    """

    zookeeper: str = ""
    zookeeper_user: str = ""
    zookeeper_password_file: str = ""
    zookeeper_tls: str = "off"
    zookeeper_authority: str = ""
    zookeeper_certificate: str = ""
    zookeeper_private_key: str = ""
    session_timeout_s: float = 8.0
    request_timeout_s: float = fixed(3.0)
    connect_timeout_s: float = 60.0
    name: str = ""
    zone: str = ""
    listeners: str = ""
    internal_listener: str = DEFAULT_LISTENER
    poll_s: float = fixed(10.0)
    member: MemberSettings = field(default_factory=MemberSettings)
    leader: LeaderSettings = field(default_factory=LeaderSettings)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if self.zookeeper:
            CoordinationPlace.parse(self.zookeeper)
        if self.zookeeper_tls not in ("off", "on"):
            raise InvalidArgumentError(f"cluster.zookeeper_tls is {self.zookeeper_tls!r}: it is on or off")
        if bool(self.zookeeper_user) != bool(self.zookeeper_password_file):
            raise InvalidArgumentError("cluster.zookeeper_user and cluster.zookeeper_password_file are given together")
        if self.name:
            check_process_name(self.name)
        parse_listeners(self.listeners)

    @property
    def coordination(self) -> CoordinationSettings:
        """Bounds of sessions and requests."""
        return CoordinationSettings(session_timeout_s=self.session_timeout_s, request_timeout_s=self.request_timeout_s)

    def coordination_access(self) -> CoordinationAccess:
        """Return how ZooKeeper is reached; reads the password. Raises `InvalidArgumentError`."""
        return CoordinationAccess(
            self.zookeeper_user,
            _first_line(self.zookeeper_password_file) if self.zookeeper_user else "",
            self.zookeeper_tls == "on",
            self.zookeeper_authority,
            self.zookeeper_certificate,
            self.zookeeper_private_key,
        )

    def listeners_on(self, host: str, port: int, advertise: str) -> list[Listener]:
        """Return the listeners; the default one on `host`:`port`, given to clients as `advertise`.

        Raises `InvalidArgumentError` if the internal one is missing.
        """
        found = parse_listeners(self.listeners)
        if not found:
            advertised_host, advertised_port = split_address(advertise, 0) if advertise else ("", 0)
            found = [Listener(self.internal_listener, host, port, advertised_host, advertised_port)]
        if self.internal_listener not in {each.name for each in found}:
            raise InvalidArgumentError(
                f"cluster.listeners is {self.listeners!r}: it has no listener {self.internal_listener!r}, by which "
                "controllers reach segment stores (cluster.internal_listener)"
            )
        return found


def _first_line(path: str) -> str:
    """Return the first line of a file with a password. Raises `InvalidArgumentError`."""
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"cluster.zookeeper_password_file: {path} cannot be read: {error}") from error
    if not line:
        raise InvalidArgumentError(f"cluster.zookeeper_password_file: the first line of {path} is empty")
    return line


def check_process_name(name: str) -> None:
    """Check the name of a controller or segment store. Raises `InvalidArgumentError`."""
    if not _NAME.fullmatch(name) or len(name) > 200:
        raise InvalidArgumentError(
            f"{name!r} is no name of a process: it has letters, digits, '.', '_' and '-', begins with a letter or "
            "digit, and is at most 200 characters long"
        )


def parse_listeners(text: str) -> list[Listener]:
    """Parse the value of `ClusterSettings.listeners`. Raises `InvalidArgumentError`."""
    found: dict[str, Listener] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, mark, addresses = each.partition("=")
        bind, is_advertised, advertise = addresses.partition("@")
        if not mark or not _NAME.fullmatch(name):
            raise InvalidArgumentError(f"{each!r} is no listener: write name=host:port or name=host:port@host:port")
        if name in found:
            raise InvalidArgumentError(f"listener {name!r} is given twice: {text!r}")
        host, port = split_address(bind, None)
        advertised_host, advertised_port = split_address(advertise, 0) if is_advertised else ("", 0)
        found[name] = Listener(name, host, port, advertised_host, advertised_port)
    return list(found.values())


def split_address(text: str, default_port: int | None) -> tuple[str, int]:
    """Split ``host:port``; IPv6 addresses are in brackets. `default_port`: None: a port is needed.

    Raises `InvalidArgumentError`.
    """
    host, mark, port = text.rpartition(":")
    if not mark or text.endswith("]"):
        if default_port is None:
            raise InvalidArgumentError(f"{text!r} has no port: write host:port")
        host, port = text, str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgumentError(f"{text!r}: write an IPv6 address in brackets, [::1]:6000")
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgumentError(f"{text!r} has no port between 0 and 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only the own machine reaches an address."""
    return host in ("localhost", "::1", *WILDCARD_HOSTS) or host.startswith("127.")


def check_reachable(own: Mapping[str, Endpoint], others: Iterable[Endpoint]) -> None:
    """Refuse an own address of loopback beside processes on other machines. Raises `InvalidArgumentError`."""
    elsewhere = next((each for each in others if not is_loopback(each.host)), None)
    for name, endpoint in own.items():
        if elsewhere is not None and is_loopback(endpoint.host):
            raise InvalidArgumentError(
                f"clients of listener {name!r} would get the address {endpoint.host}:{endpoint.port}, which other "
                f"machines do not reach, but the cluster has a process at {elsewhere.host}:{elsewhere.port}: name an "
                "address of this machine with --advertise"
            )

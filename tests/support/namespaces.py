"""`Network`: hosts with addresses of their own on one machine, as network namespaces joined by a bridge.

A namespace lives as long as a process is in it. The first one reads from a pipe of this process, so the namespaces end
with it, however it ends. All traffic stays inside them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_PREFIX = "10.77.0"
_TABLE = "ip penstock_cut"
_PROGRAMS = ("ip", "nft", "unshare", "nsenter")


class NamespacesUnavailableError(Exception):
    """There are no network namespaces here; the message says why."""


class Direction(Enum):
    """Which packets a cut drops, as the host sees it."""

    BOTH = "both"
    IN = "in"
    OUT = "out"


class Namespace:
    """One network namespace, held by a process that does nothing."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            _, problem = self._holder.communicate()
            raise NamespacesUnavailableError(f"network namespaces are not permitted: {problem.decode().strip()}")

    @property
    def pid(self) -> int:
        """Process id of its holder."""
        return self._holder.pid

    def command(self, *arguments: str) -> list[str]:
        """Return a command that runs inside."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *arguments]

    def run(self, *arguments: str, stdin: str = "") -> str:
        """Run a command inside; return its output. Raises `NamespacesUnavailableError` if it fails."""
        done = subprocess.run(self.command(*arguments), input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NamespacesUnavailableError(f"{' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the sockets of this thread inside."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            Path("/proc/thread-self/ns/net").open("rb") as here,
            Path(f"/proc/{self.pid}/ns/net").open("rb") as there,
        ):
            if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
                raise NamespacesUnavailableError(f"setns: {os.strerror(ctypes.get_errno())}")
            try:
                yield
            finally:
                if libc.setns(here.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "the thread did not return to its network namespace")

    def close(self) -> None:
        """End the holder."""
        self._holder.kill()
        self._holder.communicate()


class Host(Namespace):
    """A host of a `Network`. `number`: last part of its address."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name = name
        self.address = f"{_PREFIX}.{number}"
        self._is_cut = False

    def cut(self, others: Iterable[Host] = (), direction: Direction = Direction.BOTH, port: int = 0) -> None:
        """Drop packets to and from other hosts (none given: all), silently. `port`: only those to this TCP port."""
        self.heal()
        which = f"{{ {', '.join(other.address for other in others)} }}" if others else f"{_PREFIX}.0/24"
        lines = []
        for name, field in (("input", "saddr"), ("output", "daddr")):
            is_dropped = direction is Direction.BOTH or (name == "input") == (direction is Direction.IN)
            service = ""
            if port:
                service = f" tcp {'sport' if name == 'input' else 'dport'} {port}"
            rule = f"ip {field} {which} ip {field} != {self.address}{service} drop" if is_dropped else ""
            lines.append(f"chain {name} {{ type filter hook {name} priority 0; policy accept; {rule} ; }}")
        self.run("nft", "-f", "-", stdin=f"table {_TABLE} {{\n" + "\n".join(lines) + "\n}\n")
        self._is_cut = True

    def heal(self) -> None:
        """End `cut`."""
        if self._is_cut:
            self.run("nft", "delete", "table", *_TABLE.split())
            self._is_cut = False


class Network:
    """Hosts joined by a bridge, in a namespace of its own. Raises `NamespacesUnavailableError` where not permitted."""

    def __init__(self) -> None:
        missing = [program for program in _PROGRAMS if shutil.which(program) is None]
        if missing:
            raise NamespacesUnavailableError(f"there is no program {', '.join(missing)}")
        self.hosts: dict[str, Host] = {}
        self._bridge = Namespace()
        try:
            self._bridge.run("ip", "link", "add", "br0", "type", "bridge")
            self._bridge.run("ip", "link", "set", "br0", "up")
        except BaseException:
            self.close()
            raise

    def add(self, name: str) -> Host:
        """Add a host."""
        host = Host(name, 10 + len(self.hosts))
        self.hosts[name] = host
        port = f"v{len(self.hosts)}"
        self._bridge.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        self._bridge.run("ip", "link", "set", port, "master", "br0", "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        host.run("nft", "list", "tables")
        return host

    def heal(self) -> None:
        """End all cuts."""
        for host in self.hosts.values():
            host.heal()

    def close(self) -> None:
        """End all hosts."""
        for namespace in (*self.hosts.values(), self._bridge):
            namespace.close()

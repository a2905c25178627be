"""`Links`: the links between simulated hosts, and their faults.

Hosts are addressed by name. Each direction of each pair of hosts is a separate link with a delay, a bandwidth and a
state, so partitions may be one way. A host can always reach itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock_simulation.simulated.loop import SimulatedLoop


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How the network behaves without faults.

    Attributes:
            delay_s_min: shortest delay of a packet from host to host.
            delay_s_mean_extra: mean of the additional delay; up to four times as much is drawn.
            loopback_delay_s: delay of a packet from a host to itself.
            bytes_per_s: bandwidth of each direction of a link, shared by its connections.
            kernel_buffer_bytes: bytes buffered by the kernels per direction of a connection.
            cut_rate: probability that a read returns less than is available.
            retransmission_delay_s_max: longest delay of retransmissions after a link has healed.
            retransmission_timeout_s: a connection without progress for this long ends.
            connect_timeout_s: timeout of an attempt to connect.
            connect_retry_s_first: a connect without an answer is retried after this, then after twice as long, ...
    """

    delay_s_min: float = 100e-6
    delay_s_mean_extra: float = 100e-6
    loopback_delay_s: float = 20e-6
    bytes_per_s: float = 1.25e9
    kernel_buffer_bytes: int = 256 * 1024
    cut_rate: float = 0.2
    retransmission_delay_s_max: float = 1.0
    retransmission_timeout_s: float = 120.0
    connect_timeout_s: float = 127.0
    connect_retry_s_first: float = 1.0


class _Link:
    """One direction between two hosts."""

    __slots__ = ("block_count", "bytes_per_s", "free_at_s", "slow_factor", "slow_s")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        #: Count of blocks; faults may overlap: the link is passable at 0.
        self.block_count = 0
        self.slow_factor = 1.0
        self.slow_s = 0.0
        self.free_at_s = 0.0


class LinkEnd(Protocol):
    """One end of a connection over a link."""

    local_host: str
    remote_host: str

    def link_changed(self) -> None:
        """Called when its link may have become passable."""

    def sever(self) -> None:
        """Reset its connection from outside."""

    def forget_flow(self, source: str) -> None:
        """From now on drop everything that its connection sends from the host `source`."""


class Links:
    """See the module. All random choices come from `rng`."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, settings: NetworkSettings | None = None) -> None:
        self.loop = loop
        self.settings: NetworkSettings = settings or NetworkSettings()
        self._rng = rng
        self._random = rng.random
        self._links: dict[tuple[str, str], _Link] = {}
        self._hosts: dict[str, bool] = {}
        self._ends: dict[LinkEnd, None] = {}
        #: Time of the last call of `forget_flows`.
        self.flows_forgotten_s: float = float("-inf")

    # -- hosts and links ----------------------------------------------------------------------------------------

    def add_host(self, name: str) -> None:
        """Connect a host."""
        self._hosts[name] = True

    def set_powered(self, name: str, is_powered: bool) -> None:
        """Return whether a host's kernel answers."""
        self._hosts[name] = is_powered
        if is_powered:
            self._links_changed(lambda one, other: name in (one, other))

    def _link(self, source: str, target: str) -> _Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = _Link(self.settings.bytes_per_s)
        return link

    def is_passable(self, source: str, target: str) -> bool:
        """Return whether packets from one host reach another now."""
        if source == target:
            return True
        hosts = self._hosts
        return hosts.get(source, True) and hosts.get(target, True) and not self._link(source, target).block_count

    def arrival_s(self, source: str, target: str, length_bytes: int) -> float:
        """Return when bytes sent now arrive, and reserve their bandwidth."""
        now_s = self.loop.now_s
        if source == target:
            return now_s + self.settings.loopback_delay_s * (0.5 + self._random())
        link = self._link(source, target)
        start_s = max(now_s, link.free_at_s)
        link.free_at_s = start_s + length_bytes * link.slow_factor / link.bytes_per_s
        settings = self.settings
        # Exponential with mean 1: short delays are more likely than long ones.
        tail = 4.0 * self._random() * self._random()
        return link.free_at_s + settings.delay_s_min + settings.delay_s_mean_extra * tail + link.slow_s * self._random()

    # -- faults -------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Block all packets from `source` to `target` until `unblock`. Calls add up."""
        self._link(source, target).block_count += 1
        self.note(f"block {source} {target}")

    def unblock(self, source: str, target: str) -> None:
        """Undo one `block`."""
        link = self._link(source, target)
        link.block_count -= 1
        assert link.block_count >= 0, f"{source} to {target} was not blocked"
        self.note(f"unblock {source} {target}")
        if not link.block_count:
            self._links_changed(lambda one, other: (one, other) in ((source, target), (target, source)))

    def partition(self, one: str, other: str) -> None:
        """Block both directions."""
        self.block(one, other)
        self.block(other, one)

    def heal(self, one: str, other: str) -> None:
        """Undo one `partition`."""
        self.unblock(one, other)
        self.unblock(other, one)

    def slow_down(self, source: str, target: str, *, delay_s: float = 0.0, factor: float = 1.0) -> None:
        """Add up to `delay_s` to every packet's delay and divide the bandwidth by `factor`. 0 and 1 undo that."""
        link = self._link(source, target)
        link.slow_s, link.slow_factor = delay_s, factor
        self.note(f"slow {source} {target} {delay_s:.6f} {factor:g}")

    def reset(self, one: str, other: str) -> int:
        """Reset every connection between two hosts; return their number. Bytes in flight may be lost."""
        count = 0
        for end in list(self._ends):
            if {end.local_host, end.remote_host} == {one, other}:
                count += 1
                end.sever()
        self.note(f"reset {one} {other} {count}")
        return count

    def forget_flows(self, source: str, target: str) -> int:
        """Drop everything that present connections send from `source` to `target` from now on; return their number.

        Models a firewall that lost its state: neither end is notified, and new connections work.
        """
        found = [end for end in self._ends if {end.local_host, end.remote_host} == {source, target}]
        for end in found:
            end.forget_flow(source)
        self.flows_forgotten_s = self.loop.now_s
        self.note(f"forget {source} {target} {len(found)}")
        return len(found)

    def _links_changed(self, concerns: Callable[[str, str], bool]) -> None:
        for end in list(self._ends):
            if concerns(end.local_host, end.remote_host):
                end.link_changed()

    def remember(self, end: LinkEnd) -> None:
        """Notify an end of a connection of changes of its links."""
        self._ends[end] = None

    def forget(self, end: LinkEnd) -> None:
        """Remove an end of a connection that has nothing more to send; bytes in flight still arrive."""
        self._ends.pop(end, None)

    # -- draws, for transports ----------------------------------------------------------------------------------

    def retransmission_delay_s(self) -> float:
        """Return the delay from the healing of its link to a connection's retransmission."""
        return self._random() * self.settings.retransmission_delay_s_max

    def draw_read_length(self, length_bytes: int) -> int:
        """Return how many of `length_bytes` one read gets; at least 1."""
        if length_bytes > 1 and self._random() < self.settings.cut_rate:
            return 1 + int(self._random() * (length_bytes - 1))
        return length_bytes

    def draw_is_inbox_lost(self) -> bool:
        """Draw whether a reset overtakes the bytes before it."""
        return self._random() < 0.5

    def draw_is_killed_by_reset(self) -> bool:
        """Draw whether the peer of a killed process sees a reset instead of end of file."""
        return self._random() < 0.5

    def note(self, text: str) -> None:
        """Add to the trace."""
        self.loop.trace.add(self.loop.now_s, text)

    def note_arrival(self, label: str, content: str) -> None:
        """Add an arrival to the trace."""
        self.loop.trace.add(self.loop.now_s, f"arrive {label} {content}")

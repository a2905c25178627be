"""`SimulatedTransport`: one end of an in-memory TCP connection, including the kernel's part.

Data path: `write` passes as much as fits to the kernel (`kernel_buffer_bytes` per direction, as a socket's send and
receive buffers together) and buffers the rest, which counts for back-pressure. The kernel sends chunks over the link;
they arrive in order and wait in the receiver's inbox until its process reads them, in pieces of random size. Reading
frees room for the sender.

Lost bytes stay with the sender's kernel, which retransmits them when the link has healed; after
`retransmission_timeout_s` without progress the connection ends with ETIMEDOUT. When a process dies, the kernel closes
its connections: the peer sees end of file or a reset, or nothing if the machine lost power. As on Linux, a close with
unread bytes resets the connection, and so does a byte that arrives after the close.

A flow forgotten by a middlebox (`Links.forget_flows`) delivers nothing more, although the link is up. An end that
probes its peer (`set_timeouts`) closes the connection after its timeout.
"""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import cast

from penstock.model.segments import Buffer
from penstock_simulation.simulated.links import Links
from penstock_simulation.simulated.process import Process

#: Maximum bytes per call of a protocol that takes `bytes`, as in asyncio.
_READ_BYTES_MAX = 256 * 1024
_HIGH_WATER_BYTES = 64 * 1024
_INSTANT_S = 1e-9


class _Signal(Enum):
    FIN = "fin"
    RESET = "reset"


_Item = bytes | _Signal


class SimulatedTransport(asyncio.Transport):
    """See the module. Created by `Network`; `attach` sets its protocol."""

    def __init__(
        self, links: Links, process: Process, local: tuple[str, int], remote: tuple[str, int], label: str
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._links = links
        self._loop = links.loop
        self.process = process
        self.label = label
        self.local_host: str = local[0]
        self.remote_host: str = remote[0]
        self.peer: SimulatedTransport
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_buffered = False
        process.sockets[self] = None
        # Sending: bytes the kernel has not accepted; bytes it has accepted and the peer has not read.
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._kernel_bytes = 0
        self._high_bytes = _HIGH_WATER_BYTES
        self._low_bytes = _HIGH_WATER_BYTES // 4
        self._is_protocol_paused = False
        self._is_eof_due = False
        self._is_eof_sent = False
        # In flight: nothing arrives before data sent earlier; data that cannot arrive waits in `_held`.
        self._last_arrival_s = 0.0
        self._held: deque[_Item] = deque()
        self._held_since_s: float | None = None
        self._is_retransmission_due = False
        # Bytes were lost permanently: nothing after them is delivered, except a reset.
        self._has_gap = False
        self._unacknowledged_bytes = 0
        #: A middlebox has forgotten the connection: nothing that this end sends arrives.
        self._is_forgotten = False
        #: Last time that this connection was forgotten in a direction.
        self.forgotten_s: float | None = None
        self._unacknowledged_timeout_s = links.settings.retransmission_timeout_s
        self._peer_timeout_s: float | None = None
        self._heard_s = self._loop.now_s
        #: Incremented when everything in flight is lost; arrivals of an older era are void.
        self._era = 0
        # Receiving.
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._is_reading = True
        self._is_read_due = False
        self._has_fin = False
        self._has_reset = False
        self._is_eof_handled = False
        # Ending: `_is_closing` as in asyncio; `is_gone` once the socket is closed.
        self._is_closing = False
        self._is_end_due = False
        self.is_gone: bool = False

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach a protocol and call its `connection_made`."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._schedule_read()

    def set_timeouts(self, peer_s: float | None, unacknowledged_s: float | None) -> None:
        """Set the kernel's timeouts: without packets from the peer, and without an acknowledgement.

        `peer_s` None: an idle end waits indefinitely; the other None: the network's default.
        """
        self._peer_timeout_s = peer_s
        if unacknowledged_s is not None:
            self._unacknowledged_timeout_s = unacknowledged_s

    # -- asyncio.Transport --------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See `asyncio.BaseTransport`."""
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See `asyncio.BaseTransport`."""
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._schedule_read()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See `asyncio.WriteTransport`."""
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and that at least 0")
        self._high_bytes, self._low_bytes = high, low
        self._check_full()

    def write(self, data: Buffer) -> None:
        """See `asyncio.WriteTransport`. The bytes are copied unless they are `bytes`."""
        if self._is_eof_due:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._is_end_due or not self.process.is_alive:
            return
        if self._has_reset:
            self._end(_reset_error())
            return
        self._unsent.append(data if type(data) is bytes else bytes(data))
        self._unsent_bytes += len(data)
        self._send()
        self._check_full()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """See `asyncio.WriteTransport`."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`."""
        if not self._is_closing and not self._is_eof_due:
            self._is_eof_due = True
            if not self._unsent:
                self._send_eof()

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if not self._is_closing:
            self._is_closing = True
            self._is_reading = False
            if not self._unsent:
                self._end(None)

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self._end(None)

    # -- sending ------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Pass as much as fits to the kernel."""
        room = self._links.settings.kernel_buffer_bytes - self._kernel_bytes
        if room <= 0 or not self._unsent:
            return
        if self._unsent_bytes <= room:
            chunk = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
        else:
            data = memoryview(b"".join(self._unsent))
            chunk = bytes(data[:room])
            self._unsent.clear()
            self._unsent.append(bytes(data[room:]))
        self._unsent_bytes -= len(chunk)
        self._kernel_bytes += len(chunk)
        self._transmit(chunk)

    def _transmit(self, item: _Item) -> None:
        length = 0 if isinstance(item, _Signal) else len(item)
        arrival_s = self._links.arrival_s(self.local_host, self.remote_host, length)
        # Strictly later: events at one instant have a drawn order.
        self._last_arrival_s = arrival_s = max(arrival_s, self._last_arrival_s + _INSTANT_S)
        self._loop.at(arrival_s, partial(self._arrive, item, self._era))

    def _arrive(self, item: _Item, era: int) -> None:
        if era != self._era or (self._has_gap and item is not _Signal.RESET):
            return
        if self._is_forgotten and item is _Signal.RESET:
            return  # It is sent once.
        if self._held or not self._is_passable_out:
            self._held.append(item)
            self._links.remember(self)
            self._start_patience()
        else:
            self.peer.take_in(item)

    def _start_patience(self) -> None:
        if self._held_since_s is None:
            self._held_since_s = now_s = self._loop.now_s
            self._loop.at(now_s + self._unacknowledged_timeout_s, partial(self._lose_patience, now_s))

    def _lose_patience(self, since_s: float) -> None:
        if self._held_since_s == since_s:
            self._links.note(f"timeout {self.label}")
            self._drop_wire()
            if self.is_gone:
                self._links.forget(self)
            else:
                self._end(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)), is_silent=True)

    @property
    def _is_passable_out(self) -> bool:
        """Whether data sent by this end arrives."""
        return not self._is_forgotten and self._links.is_passable(self.local_host, self.remote_host)

    @property
    def _is_passable_back(self) -> bool:
        """Whether data sent by the peer, including acknowledgements, arrives."""
        return not self.peer._is_forgotten and self._links.is_passable(self.remote_host, self.local_host)

    def forget_flow(self, source: str) -> None:
        """See `LinkEnd.forget_flow`. A world event."""
        now_s = self._loop.now_s
        sender = self if self.local_host == source else self.peer
        if sender._is_forgotten:
            return
        sender._is_forgotten = True
        for end in (self, self.peer):
            if end.forgotten_s is None and end._peer_timeout_s is not None:
                # Until now its probes were answered.
                end._heard_s = now_s
                end._loop.at(now_s + end._peer_timeout_s, end._check_peer)
            end.forgotten_s = now_s

    def _check_peer(self) -> None:
        """End the connection if nothing came from the peer within the timeout. A world event."""
        if self.is_gone or self._is_end_due or self._peer_timeout_s is None:
            return
        due_s = self._heard_s + self._peer_timeout_s
        if due_s > self._loop.now_s:
            self._loop.at(due_s, self._check_peer)
            return
        self._links.note(f"dead peer of {self.label}")
        self._drop_wire()
        self._transmit(_Signal.RESET)
        self._end(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)), is_silent=True)

    def link_changed(self) -> None:
        """Retransmit held data after a delay, if the link is passable now."""
        if self._unacknowledged_bytes and self._is_passable_back:
            self._kernel_bytes -= self._unacknowledged_bytes
            self._unacknowledged_bytes = 0
            if not self._held:
                self._held_since_s = None
            self._send_later()
        if self._held and not self._is_retransmission_due:
            self._is_retransmission_due = True
            self._loop.at(self._loop.now_s + self._links.retransmission_delay_s(), self._retransmit)

    def _retransmit(self) -> None:
        self._is_retransmission_due = False
        if not self._held or not self._is_passable_out:
            return
        held, self._held = self._held, deque()
        if not self._unacknowledged_bytes:
            self._held_since_s = None
        # All at once, so that data sent meanwhile cannot overtake it.
        for item in held:
            self.peer.take_in(item)
        if self.is_gone:
            self._links.forget(self)

    def _acknowledged(self, byte_count: int) -> None:
        """The peer's process has read some bytes: free their room after the delay of the acknowledgement."""
        if self.is_gone:
            return
        if not self._is_passable_back:
            self._unacknowledged_bytes += byte_count
            self._start_patience()
            return
        self._kernel_bytes -= byte_count
        if self._unsent or self._is_protocol_paused:
            self._send_later()

    def _send_later(self) -> None:
        self._loop.at(self._links.arrival_s(self.remote_host, self.local_host, 0), self._room_is_known)

    def _room_is_known(self) -> None:
        if not self.is_gone and (self._unsent or self._is_protocol_paused or self._is_closing):
            self._loop.post(self.process, self._write_ready)

    def _write_ready(self) -> None:
        if self._is_end_due:
            return
        self._send()
        if self._is_protocol_paused and self._unsent_bytes <= self._low_bytes:
            self._is_protocol_paused = False
            self._call(self.get_protocol().resume_writing)
        if not self._unsent:
            if self._is_eof_due:
                self._send_eof()
            if self._is_closing:
                self._end(None)

    def _send_eof(self) -> None:
        if not self._is_eof_sent:
            self._is_eof_sent = True
            self._transmit(_Signal.FIN)

    def _check_full(self) -> None:
        if self._unsent_bytes > self._high_bytes and not self._is_protocol_paused and not self._is_end_due:
            self._is_protocol_paused = True
            self._call(self.get_protocol().pause_writing)

    # -- receiving ----------------------------------------------------------------------------------------------

    def take_in(self, item: _Item) -> None:
        """Receive data from the link. A world event."""
        self._heard_s = self._loop.now_s
        self._links.note_arrival(self.peer.label, item.value if isinstance(item, _Signal) else _content(item))
        if self._has_reset:
            return  # The connection is closed; data after its reset must not look as if it were open.
        if item is _Signal.RESET:
            if self.is_gone:
                return
            self._has_reset = True
            # A kernel without the connection retransmits nothing. A reset by a middlebox is not its own.
            held_count = len(self._held)
            self._held = deque(held for held in self._held if held is _Signal.RESET)
            self._has_gap = self._has_gap or len(self._held) < held_count
            if self._links.draw_is_inbox_lost():
                self._inbox.clear()
                self._inbox_bytes = 0
            if self._is_reading:
                self._schedule_read()
            elif self._unsent or self._is_closing:
                self._loop.post(self.process, self._end, _reset_error())
        elif item is _Signal.FIN:
            self._has_fin = True
            self._schedule_read()
        elif self.is_gone or self._is_closing:
            if self.is_gone:
                self._transmit(_Signal.RESET)
            else:
                # It will never be read; the peer is notified when the socket closes.
                self._inbox.append(memoryview(item))
                self._inbox_bytes += len(item)
        else:
            self._inbox.append(memoryview(item))
            self._inbox_bytes += len(item)
            self._schedule_read()

    def _schedule_read(self) -> None:
        if not self._is_reading or self._is_read_due or self._protocol is None or self.is_gone:
            return
        if self._inbox or self._has_reset or (self._has_fin and not self._is_eof_handled):
            self._is_read_due = True
            self._loop.post(self.process, self._read)

    def _read(self) -> None:
        self._is_read_due = False
        if not self._is_reading or self._is_closing:
            return
        if self._inbox:
            self._call(self._deliver)
        elif self._has_reset:
            self._end(_reset_error())
        elif self._has_fin and not self._is_eof_handled:
            self._is_eof_handled = True
            self._call(self._deliver_eof)
        self._schedule_read()

    def _deliver(self) -> None:
        protocol = self._protocol
        if self._is_buffered:
            taker = cast(asyncio.BufferedProtocol, protocol)
            target = memoryview(cast(bytearray, taker.get_buffer(-1)))
            if not len(target):
                raise RuntimeError("get_buffer() returned an empty buffer")
            count = self._links.draw_read_length(min(self._inbox_bytes, len(target)))
            position = 0
            for piece in self._take_out(count):
                target[position : position + len(piece)] = piece
                position += len(piece)
            taker.buffer_updated(count)
        else:
            count = self._links.draw_read_length(min(self._inbox_bytes, _READ_BYTES_MAX))
            cast(asyncio.Protocol, protocol).data_received(b"".join(self._take_out(count)))

    def _take_out(self, byte_count: int) -> list[memoryview]:
        inbox = self._inbox
        pieces = []
        left = byte_count
        while left:
            piece = inbox[0]
            if len(piece) <= left:
                inbox.popleft()
            else:
                inbox[0] = piece[left:]
                piece = piece[:left]
            pieces.append(piece)
            left -= len(piece)
        self._inbox_bytes -= byte_count
        self.peer._acknowledged(byte_count)
        return pieces

    def _deliver_eof(self) -> None:
        if not cast(asyncio.Protocol, self._protocol).eof_received():
            self.close()

    def _call(self, function: Callable[[], object]) -> None:
        """Call the protocol; an error in it ends the connection, as in asyncio."""
        try:
            function()
        except Exception as error:  # noqa: BLE001  # reported, and handed to the protocol as the reason of the end
            self._loop.call_exception_handler(
                {"message": f"the protocol of {self.label} failed", "exception": error, "protocol": self._protocol}
            )
            self._end(error)

    # -- the end ------------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None, *, is_silent: bool = False) -> None:
        """End the connection at this side; the protocol is notified in its next turn."""
        if self._is_end_due:
            return
        self._is_closing = True
        self._is_reading = False
        self._is_end_due = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._loop.post(self.process, self._finish, error, is_silent)

    def _finish(self, error: Exception | None, is_silent: bool) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            self._close_socket(is_silent=is_silent or self._has_reset)

    def _close_socket(self, *, is_silent: bool) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self.process.sockets.pop(self, None)
        if not is_silent:
            if self._inbox:
                self._transmit(_Signal.RESET)
            else:
                self._send_eof()
        self._inbox.clear()
        if not self._held:
            self._links.forget(self)

    def kill(self, *, is_silent: bool) -> None:
        """See `Socket`: the process has died; data not yet passed to the kernel is lost."""
        self._unsent.clear()
        if is_silent:
            self._drop_wire()
        elif self._links.draw_is_killed_by_reset():
            self._inbox.append(memoryview(b""))
        self._close_socket(is_silent=is_silent)

    def abandon(self) -> None:
        """Reset a connection that never got a protocol."""
        self._inbox.append(memoryview(b""))
        self._close_socket(is_silent=False)

    def arrives_after(self, time_s: float) -> None:
        """Delay later data of this end until at least this time."""
        self._last_arrival_s = time_s

    def sever(self) -> None:
        """Reset the connection by a middlebox, as seen from this side. A world event.

        Data in flight to this side arrives before the reset, or is lost.
        """
        if self.is_gone:
            return
        if self._links.draw_is_inbox_lost():
            self.peer._drop_wire()
        self.peer._transmit(_Signal.RESET)

    def _drop_wire(self) -> None:
        self._era += 1
        self._held.clear()
        self._held_since_s = None


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


def _content(data: bytes) -> str:
    return f"{len(data)} {zlib.crc32(data):08x}"

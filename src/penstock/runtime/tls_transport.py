"""`TlsTransport`: an encrypted connection whose handshake was complete before: a socket, and a state of TLS.

The handshake is not a part of it, so that its computation can be elsewhere than in the event loop. See `TlsListener`.

Data are received and encrypted in pieces that stay in the cache of the processor. The protocol gets all data of a turn
in one call, as without TLS: up to the length of its buffer, however many records that takes. Records are full, since
each costs: a part of a write that is too short for one, or the rest of a long part, is joined with what follows.

A peer that ends the connection without TLS's own end gets the same treatment as one with it: frames have lengths, so
that a protocol recognizes an incomplete one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from penstock.model.segments import Buffer

#: Received in one call, and encrypted in one call.
RECEIVED_LENGTH = 64 * 1024
_ENCRYPTED_LENGTH = 64 * 1024
#: Data of one record of TLS. Parts that are shorter are joined.
_RECORD_LENGTH = 16 * 1024
#: Bytes that are encrypted in one turn of the loop for a connection; others are served in between.
_TURN_BYTES_MAX = 1024 * 1024
#: Bytes that are received and dropped in one turn, after this side has ended the connection.
_DROPPED_BYTES_MAX = 512 * 1024
#: Default of the buffer's upper limit, as of other transports.
_HIGH_WATER = 64 * 1024
#: For how long the end of the peer is waited for.
_END_TIMEOUT_S = 30.0


class TlsState:
    """The state of TLS of one connection of a server, which has no socket: its bytes are in memory.

    Attributes:
        tls: encrypts and decrypts.
        incoming, outgoing: encrypted bytes.
    """

    __slots__ = ("incoming", "outgoing", "tls")

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming: ssl.MemoryBIO = ssl.MemoryBIO()
        self.outgoing: ssl.MemoryBIO = ssl.MemoryBIO()
        self.tls: ssl.SSLObject = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def shake_hands(self) -> bool:
        """Process what was received; return whether the handshake is complete. Raises `ssl.SSLError`."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


class TlsTransport(asyncio.Transport):
    """See the module. `received`: memory for encrypted bytes, which all connections of a listener share."""

    def __init__(
        self, sock: socket.socket, state: TlsState, protocol: asyncio.BaseProtocol, received: memoryview
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._tls = state.tls
        self._incoming, self._outgoing = state.incoming, state.outgoing
        # Bound once, since a connection receives many thousand times a second. With a buffer, `read` returns a count.
        self._read = cast(Callable[[int, memoryview], int], state.tls.read)
        self._pending = state.tls.pending
        self._receive_into: Callable[[memoryview], int] = sock.recv_into
        self._protocol = _buffered(protocol)
        self._received = received
        #: What is not encrypted yet, and the encrypted bytes that the socket has not taken.
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._encrypted: memoryview | None = None
        self._is_reading = False
        #: A call of `_receive` is due: there are received bytes, which no socket reports.
        self._receive_is_due = False
        self._has_writer = False
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False
        #: Whether the end of TLS was encrypted, and whether that of the peer was received.
        self._has_ended = False
        self._has_peer_ended = False
        self._end: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tell the protocol about the connection, and begin to receive."""
        # Data may have come with the handshake. They are received in the next turn, unless the protocol pauses now.
        self.resume_reading()
        self._protocol.connection_made(self)

    # -- what the protocol uses -----------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        tls = self._tls
        match name:
            case "socket":
                return self._socket
            case "peername" | "sockname":
                try:
                    return self._socket.getpeername() if name == "peername" else self._socket.getsockname()
                except OSError:
                    return default
            case "ssl_object":
                return tls
            case "sslcontext":
                return tls.context
            case "peercert":
                return tls.getpeercert()
            case "cipher":
                return tls.cipher()
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See `asyncio.BaseTransport`."""
        self._protocol = _buffered(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See `asyncio.BaseTransport`."""
        return self._protocol.protocol if isinstance(self._protocol, _OfBytes) else self._protocol

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if self._is_reading and not self._is_closing:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if self._is_reading or self._is_closing or self._is_lost:
            return
        self._is_reading = True
        self._loop.add_reader(self._socket, self._receive)
        self._receive_rest()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high is {high} and low {low}: they must be in this order, and not negative")
        self._high, self._low = high, low
        self._control_writing()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`: bytes before and after encryption that the socket has not taken."""
        return self._waiting_bytes + (0 if self._encrypted is None else len(self._encrypted))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See `asyncio.WriteTransport`."""
        return self._low, self._high

    def write(self, data: Buffer) -> None:
        """See `asyncio.WriteTransport`. `data` must not change afterwards."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """See `asyncio.WriteTransport`. The parts must not change afterwards."""
        if self._is_closing or self._is_lost:
            return
        for data in list_of_data:
            if length := len(data):
                self._waiting.append(memoryview(data))
                self._waiting_bytes += length
        if not self._has_writer:  # Otherwise the socket is full, or others are served first.
            self._send()
        self._control_writing()

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`: TLS has no such state."""
        return False

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`, which asks for this error where `can_write_eof` returns False."""
        raise NotImplementedError

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing or self._is_lost

    def close(self) -> None:
        """See `asyncio.BaseTransport`: what was written is sent first."""
        if self._is_closing or self._is_lost:
            return
        self.pause_reading()
        self._is_closing = True
        if not self._has_writer:
            self._finish()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`: what was written and not sent is dropped."""
        self._lose(None)

    # -- receiving ------------------------------------------------------------------------------------------------

    def _receive_rest(self) -> None:
        """Continue in the next turn, if there are bytes that no socket reports."""
        if not self._is_closing and not self._receive_is_due and (self._incoming.pending or self._tls.pending()):
            self._receive_is_due = True
            self._loop.call_soon(self._receive_due)

    def _receive_due(self) -> None:
        self._receive_is_due = False
        self._receive()

    def _receive(self) -> None:
        if not self._is_reading or self._is_closing:
            return
        try:
            buffer = memoryview(self._protocol.get_buffer(-1))
            count, error = self._decrypt(buffer)
            if count:
                self._protocol.buffer_updated(count)
        except BaseException:
            self._lose(None)  # The protocol has failed; the loop reports why.
            raise
        if self._is_lost:
            return
        if self._outgoing.pending and not self._has_writer:
            self._send()  # TLS itself answers: to a change of keys, or with an alert.
        if error is not None:
            self._lose(error)
        elif self._has_peer_ended:
            self._end_of_peer()
        elif count == len(buffer):
            self._receive_rest()

    def _decrypt(self, buffer: memoryview) -> tuple[int, OSError | None]:
        """Fill `buffer` until it is full, or the socket is empty; return the count of bytes, and what failed then."""
        incoming, received, read, pending = self._incoming, self._received, self._read, self._pending
        count, length, is_drained = 0, len(buffer), False
        try:
            while count < length:
                if incoming.pending or pending():
                    try:
                        part = read(length - count, buffer[count:] if count else buffer)
                    except ssl.SSLWantReadError:
                        pass  # The rest of a record is still missing.
                    else:
                        if not part:
                            self._has_peer_ended = True
                            break
                        count += part
                        continue
                if is_drained:
                    break
                taken = self._receive_into(received)
                if not taken:
                    self._has_peer_ended = True
                    break
                incoming.write(received[:taken])
                is_drained = taken < len(received)
        except (BlockingIOError, InterruptedError):
            pass
        except ssl.SSLZeroReturnError:
            self._has_peer_ended = True
        except OSError as error:  # `SSLError` is one.
            return count, error
        return count, None

    def _end_of_peer(self) -> None:
        if self._is_closing:
            return
        try:
            self._protocol.eof_received()
        finally:
            self.close()

    # -- sending --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Encrypt and send until nothing is left, the socket is full, or the share of this turn is used up."""
        left = _TURN_BYTES_MAX
        outgoing, send = self._outgoing, self._socket.send
        try:
            while True:
                if self._encrypted is None:
                    if not outgoing.pending:
                        if not self._waiting or left <= 0:
                            break
                        left -= self._encrypt(min(left, _ENCRYPTED_LENGTH))
                    self._encrypted = memoryview(outgoing.read())
                try:
                    sent = send(self._encrypted)
                except (BlockingIOError, InterruptedError):
                    break
                if sent < len(self._encrypted):
                    self._encrypted = self._encrypted[sent:]
                    break
                self._encrypted = None
        except OSError as error:  # `SSLError` is one.
            self._lose(error)
            return
        has_rest = self._encrypted is not None or bool(self._waiting)
        if has_rest and not self._has_writer:
            self._loop.add_writer(self._socket, self._writable)
        elif self._has_writer and not has_rest:
            self._loop.remove_writer(self._socket)
        self._has_writer = has_rest

    def _encrypt(self, length: int) -> int:
        """Encrypt until nothing is left, or `length` bytes at least; return how many."""
        count = 0
        while self._waiting and count < length:
            piece = self._next_piece(_ENCRYPTED_LENGTH - count)
            self._tls.write(piece)
            count += len(piece)
        return count

    def _next_piece(self, room: int) -> Buffer:
        """Take what is encrypted next, up to `room` bytes: whole records of a long part, or short parts together.

        `room` is at least the length of a record: all pieces but the last one have whole records.
        """
        waiting = self._waiting
        first = waiting.popleft()
        length = len(first)
        piece: Buffer = first
        if length >= _RECORD_LENGTH:
            taken = min(length, room)
            if taken < length or waiting:
                taken -= taken % _RECORD_LENGTH
            if taken < length:
                waiting.appendleft(first[taken:])
                piece = first[:taken]
            length = taken
        elif waiting:
            parts = [first]
            while waiting and length < _RECORD_LENGTH:
                part = waiting.popleft()
                if len(part) > _RECORD_LENGTH - length:
                    waiting.appendleft(part[_RECORD_LENGTH - length :])
                    part = part[: _RECORD_LENGTH - length]
                parts.append(part)
                length += len(part)
            piece = b"".join(parts)
        self._waiting_bytes -= length
        return piece

    def _writable(self) -> None:
        self._send()
        if self._is_lost:
            return
        self._control_writing()
        if self._is_closing and not self._has_writer:
            self._finish()

    def _control_writing(self) -> None:
        if self._is_lost:
            return
        size = self.get_write_buffer_size()
        if size > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()
        elif self._is_paused and size <= self._low:
            self._is_paused = False
            if not self._is_closing:
                self._protocol.resume_writing()

    # -- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everything was sent: end the connection for this side, and wait for the end of the peer.

        A socket that is closed with unread bytes resets the connection, and the peer may lose what it has not read.
        """
        if not self._has_ended:
            self._has_ended = True
            with suppress(ssl.SSLError):  # The peer's end is not there yet, or data are before it.
                self._tls.unwrap()
            self._send()
            if self._is_lost or self._has_writer:
                return  # `_writable` continues.
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # The peer has reset the connection.
            self._lose(None)
            return
        if self._has_peer_ended:
            self._lose(None)
            return
        self._end = self._loop.call_later(_END_TIMEOUT_S, self._lose, None)
        self._loop.add_reader(self._socket, self._drop)
        self._is_reading = True

    def _drop(self) -> None:
        """Receive until the peer's end, and drop what is received."""
        left = _DROPPED_BYTES_MAX
        try:
            while left > 0:
                taken = self._socket.recv_into(self._received)
                if not taken:
                    self._lose(None)
                    return
                left -= taken
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        """Drop the connection; the protocol gets that in the next turn."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._end is not None:
            self._end.cancel()
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)
        if self._has_writer:
            self._has_writer = False
            self._loop.remove_writer(self._socket)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._encrypted = None
        self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            # It refers to this transport. Long-lived objects are rarely collected.
            self._protocol = _Nothing()


class _OfBytes(asyncio.BufferedProtocol):
    """A protocol without a buffer of its own, as those of streams."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol: asyncio.Protocol = protocol
        self._buffer = memoryview(bytearray(_RECORD_LENGTH))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self.protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.protocol.resume_writing()

    def eof_received(self) -> bool | None:
        """See `asyncio.BufferedProtocol`."""
        return self.protocol.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self.protocol.data_received(bytes(self._buffer[:nbytes]))


def _buffered(protocol: asyncio.BaseProtocol) -> asyncio.BufferedProtocol:
    if isinstance(protocol, asyncio.BufferedProtocol):
        return protocol
    assert isinstance(protocol, asyncio.Protocol)
    return _OfBytes(protocol)


class _Nothing(asyncio.BufferedProtocol):
    """The protocol of a connection that has ended."""

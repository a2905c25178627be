"""A socket that receives nothing any more: what its peer sends is discarded before the kernel sees it. Linux only."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct

_SO_ATTACH_FILTER = 26
#: One instruction of a packet filter: keep no byte.
_DISCARD = struct.pack("HBBI", 6, 0, 0, 0)


def deafen(writer: asyncio.StreamWriter) -> None:
    """Let the kernel discard each packet for the socket of `writer`, probes included, so that it answers none."""
    program = ctypes.create_string_buffer(_DISCARD)
    head = struct.pack("HL", 1, ctypes.addressof(program))
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)

"""A child process of `security.py`: peers without credentials. ``_strangers.py KIND PORT COUNT``; ends with its input.

`silent`: connections that send nothing. `partial`: that send a part of a handshake. `garbage`: that send bytes which
are no TLS, one after the other. `handshakes`: COUNT complete handshakes a second, closed afterwards.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import sys
import time

from penstock.runtime.descriptors import raise_descriptor_limit

_PART = b"\x16\x03\x01"


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def hold(port: int, count: int, sent: bytes) -> None:
    """Keep connections open, and open others for those that were closed, at most a thousand a second."""
    held: list[socket.socket] = []
    while not _is_over():
        for _ in range(min(50, count - len(held))):
            try:
                made = socket.create_connection(("127.0.0.1", port), timeout=5)
                made.sendall(sent)
            except OSError:
                break
            made.setblocking(False)
            held.append(made)
        if len(held) >= count:
            print(f"{count} connections were opened", file=sys.stderr)
            for each in held:
                each.close()
            held.clear()
        time.sleep(0.05)


def garbage(port: int) -> None:
    """Open connections that send garbage, a few hundred a second."""
    while not _is_over():
        for _ in range(20):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as made:
                    made.sendall(b"\x00garbage" * 500)
            except OSError:
                continue
        time.sleep(0.05)


async def handshakes(port: int, count: int) -> None:
    """Complete `count` handshakes a second."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    tasks: set[asyncio.Task[None]] = set()

    async def one() -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except OSError:
            return
        writer.transport.abort()

    while not _is_over():
        for _ in range(count // 10):
            task = asyncio.ensure_future(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    raise_descriptor_limit()
    kind, port_text, count_text = sys.argv[1:]
    match kind:
        case "silent":
            hold(int(port_text), int(count_text), b"")
        case "partial":
            hold(int(port_text), int(count_text), _PART)
        case "garbage":
            garbage(int(port_text))
        case _:
            asyncio.run(handshakes(int(port_text), int(count_text)))

"""The input of ``penstock cluster demo`` without a terminal: lines of bounded length, read in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

#: Bytes of one read.
_INPUT_BYTES = 65536
#: Bytes of a line that are kept: more than any command has, so the command is refused. The rest of the line is dropped.
LINE_BYTES_MAX = 4096


async def lines_of_input(descriptor: int) -> AsyncIterator[str]:
    """Yield lines, without empty ones, until the end of the input or ``quit``."""
    rest = b""
    while data := await _read_input(descriptor):
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[:LINE_BYTES_MAX]
        for line in lines:
            text = _text(line)
            if text == "quit":
                return
            if text:
                yield text
    if (text := _text(rest)) not in ("", "quit"):
        yield text


def _text(line: bytes) -> str:
    text = line[:LINE_BYTES_MAX].decode(errors="replace")
    # With its blanks if there was more: a command and the beginning of something else is not that command.
    return text.strip() if len(line) < LINE_BYTES_MAX else text


async def _read_input(descriptor: int) -> bytes:
    """Return the next bytes of the input; empty at its end.

    In a thread that does not hold up the end of the process: a loop waits for the threads of its executor, also for one
    that waits for input.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[bytes] = loop.create_future()

    def done(data: bytes, error: OSError | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(data)

    def read() -> None:
        data, error = b"", None
        try:
            data = os.read(descriptor, _INPUT_BYTES)
        except OSError as refused:
            error = refused
        with suppress(RuntimeError):  # The loop has ended meanwhile.
            loop.call_soon_threadsafe(done, data, error)

    threading.Thread(target=read, name="input", daemon=True).start()
    return await found

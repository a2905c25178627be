"""A consumer as a process of its own: ``python consumer.py URI STREAM GROUP NAME``. It says what it gets.

One line on standard output for each event when it is delivered, and one when it is worked off. Ctrl-C cancels it
wherever it waits.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from penstock import ClientSettings, aio

#: A member without a heartbeat for so long is dead for the others.
READER_TIMEOUT_S = 3.0
SETTINGS = ClientSettings(
    reader_timeout_s=READER_TIMEOUT_S, position_interval_s=0.2, reader_group_refresh_s=0.2, read_bytes=4096
)


def say(what: str, event: bytes) -> None:
    sys.stdout.write(f"{what} {event.decode()}\n")
    sys.stdout.flush()


async def consume(uri: str, stream: str, group_name: str, name: str) -> None:
    async with aio.connect(uri, SETTINGS) as client:
        group = await client.reader_group(group_name, [stream])
        async with await group.reader(name) as reader:
            while True:
                event = await reader.read(timeout_s=0.5)
                if event is None:
                    continue
                say("delivered", event.data)
                await asyncio.sleep(0.001)
                say("done", event.data)


if __name__ == "__main__":
    # Members taken for dead are reported on standard error.
    logging.basicConfig(level=logging.WARNING)
    # A shell lets what it starts in the background ignore Ctrl-C, and so does all that this starts in turn.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(consume(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(0)

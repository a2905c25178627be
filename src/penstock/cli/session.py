"""`Session`: one command's connection to a server. The client's loop runs beside the command, which may block.

So its connections are served while it waits for its input or for the reader of its output.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from penstock.cli.failure import log_as_lines
from penstock.client.client import Client, connect
from penstock.client.low_level import note_exception, open_client
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.runtime.portal import Portal

T = TypeVar("T")

#: How long a command that has failed takes to close what it has open.
_FAILED_CLOSE_TIMEOUT_S = 2.0


class Session:
    """See the module. Attributes: `client`, whose calls are run by `call` and `iterate`."""

    def __init__(self, client: Client, portal: Portal) -> None:
        self.client = client
        self._portal = portal

    def call(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a call of the client and return what it returns, or raise what it raises."""
        return self._portal.call(coroutine)

    def start(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        """Let a call of the client run while the command does something else; see `is_done`, and `cancel` it after."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._portal.loop)

    def is_done(self, future: Future[T], timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the end of what was started. Raises what it raised."""
        done, _ = wait([future], timeout_s)
        if not done:
            return False
        future.result()
        return True

    def cancel(self, future: Future[T]) -> None:
        """End what was started, if it still runs."""
        future.cancel()

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over what a call of the client yields."""
        return self._portal.iterate(source)


@contextmanager
def connected(uri: str, settings: ClientSettings | None = None) -> Iterator[Session]:
    """Give a session with the server at `uri`. Nothing is connected before the first call."""
    log_as_lines()
    portal = Portal("penstock-command")
    try:
        client = connect(uri, settings)
        portal.call_soon(partial(open_client, client))
        try:
            yield Session(client, portal)
        except BaseException:
            # It failed, or was interrupted: the command has said what became of its work, and waits for no more.
            note_exception(client)
            try:
                portal.call(client.close(_FAILED_CLOSE_TIMEOUT_S))
            except PenstockError:
                pass  # That something could not be closed is less than what is being told.
            raise
        portal.call(client.close())
    finally:
        portal.close()

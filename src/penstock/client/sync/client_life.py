"""`ClientLife`: the thread of a blocking client, from its opening to the end of the program."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from types import TracebackType

from penstock.client import client as aio
from penstock.client.sync.ack import Ack
from penstock.client.sync.handle import Handle
from penstock.model.errors import ClosedError, PenstockError
from penstock.runtime.portal import Portal
from penstock.runtime.program import ProgramPart, watch_program

_log = logging.getLogger(__name__)


class ClientLife(Handle[aio.Client]):
    """How the blocking client begins and ends. Make one with `penstock.connect`; use it as a context manager.

    It owns a thread with an event loop, until it is closed or dropped. At the end of the program it flushes what its
    writers have taken, for `exit_timeout_s`, and says on the log what it could not. It does not survive a fork.
    """

    def __init__(self, client: aio.Client) -> None:
        portal = Portal()
        try:
            # The program is watched here, where the thread is known that has to be waited for.
            portal.call_soon(
                partial(client.parts.open, watch_program=_watched_by_the_handle, ack_factory=partial(Ack, portal))
            )
        except BaseException:
            portal.close()
            raise
        super().__init__(None, portal, client)
        self._client: aio.Client = client
        watch_program(self)

    @property
    def parts(self) -> tuple[aio.Client, Portal]:
        """The asynchronous client, and the portal to its loop; see `penstock.client.low_level`."""
        return self._part, self._portal

    def close(self, timeout_s: float | None = None) -> None:
        """Close what was opened from here, which flushes; then all connections; then end the background thread.

        All within `timeout_s` (None: `close_timeout_s`). Calling again is fine. Raises what could not be finished.
        """
        try:
            super().close(timeout_s)
        finally:
            self._portal.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            # Interrupted: do not wait here. The end of the program waits, for a while.
            self._client.note_exception()
            self._portal.close_behind(self._client.close)
            return
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._portal.close()

    def _on_forked(self) -> None:
        """See `ProgramPart`."""
        self._client._on_forked()

    def _on_exit(self) -> None:
        """See `ProgramPart`."""
        # It is no longer known whether the events handed out by readers were processed.
        self._client.note_exception()
        if self._client.is_closed:
            return
        timeout_s = self._client.settings.exit_timeout_s
        try:
            # A little more than the closing has, which says better what is missing; one that began before has more.
            self._portal.call(self._client.close(timeout_s), timeout_s + 1.0)
        except ClosedError:
            pass  # It was being closed, and is now.
        except (PenstockError, TimeoutError) as error:
            why = str(error) or f"not within {timeout_s:g} s (exit_timeout_s)"
            _log.error("the program ended before everything was stored: %s", why)
        finally:
            self._portal.close()

    def __del__(self) -> None:
        client: aio.Client | None = getattr(self, "_client", None)
        if client is not None and client.is_open:
            warnings.warn(f"unclosed {client!r}", ResourceWarning, source=self, stacklevel=1)
            client.note_exception()
            self._portal.close_behind(client.close)


def _watched_by_the_handle(part: ProgramPart) -> None:
    """Replace `watch_program`: the client's handle is notified, and notifies the client."""

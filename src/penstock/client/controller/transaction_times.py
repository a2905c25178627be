"""`TransactionTimes`: the writer name under which a client's transactions note times. See ``docs/watermarks.md``."""

from __future__ import annotations

import logging
from random import Random
from uuid import UUID

from penstock.client.controller.controller import ControllerClient
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.times import NotedTime, noted_time

_log = logging.getLogger(__name__)

#: Streams, the latest, that are notified when the client leaves; the others wait for its writer until their time-out.
_STREAM_COUNT_MAX = 1000


def commit_time(time: NotedTime, what: str) -> int:
    """Return a time in the form that a commit notes; `what`: the transaction, in messages.

    Raises `InvalidArgumentError` for an invalid time, or one below 0, which clients use for "none".
    """
    noted = noted_time(time)
    if noted < 0:
        raise InvalidArgumentError(f"{what}: time={time!r} cannot be noted: use 0 or more")
    return noted


class TransactionTimes:
    """All transactions of a client are one writer. With a writer per transaction, watermarks would never advance."""

    def __init__(self, controller: ControllerClient, rng: Random) -> None:
        self._controller = controller
        self._rng = rng
        self._writer = ""
        self._streams: dict[tuple[str, str], None] = {}

    def writer(self, scope: str, stream: str) -> str:
        """Return the writer name for which a transaction of a stream notes a time. It is generated at the first use."""
        if not self._writer:
            self._writer = str(UUID(bytes=self._rng.randbytes(16), version=4))
        self._streams.pop((scope, stream), None)
        self._streams[scope, stream] = None
        while len(self._streams) > _STREAM_COUNT_MAX:
            del self._streams[next(iter(self._streams))]
        return self._writer

    async def leave(self) -> None:
        """Say that no more times will come. If that fails the controller waits for them, as long as a stream says."""
        streams, self._streams = self._streams, {}
        for scope, stream in streams:
            try:
                await self._controller.remove_writer(scope, stream, self._writer)
            except PenstockError as error:
                _log.warning("the transactions' writer %s of %s/%s could not be removed: %s",
                             self._writer, scope, stream, error)  # fmt: skip

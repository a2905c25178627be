"""`level_of`: the log level at which a server logs a failed request."""

from __future__ import annotations

import logging

from penstock.model.errors import PenstockError, StorageError, UnreadableDataError


def level_of(error: PenstockError) -> int:
    """Return the level at which a server logs the failure of a request.

    DEBUG for transient failures, which the client retries. WARNING for failures of the server or its storage, which may
    need its administrator. INFO for the rest: mistakes of clients, and requests that the state of a segment or a stream
    does not allow.
    """
    if isinstance(error, UnreadableDataError):
        return logging.WARNING
    if error.is_retriable:
        return logging.DEBUG
    return logging.WARNING if isinstance(error, StorageError) else logging.INFO

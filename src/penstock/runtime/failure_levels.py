"""`level_of`: how loudly a server logs that a request failed."""

from __future__ import annotations

import logging

from penstock.model.errors import PenstockError, StorageError, UnreadableDataError


def level_of(error: PenstockError) -> int:
    """Return the level at which a server logs the failure of a request.

    DEBUG for what passes by itself, and is retried by the client. WARNING for trouble of the server or its storage,
    which its administrator may have to end. INFO for the rest: mistakes of clients, and what the state of a segment or
    a stream forbids.
    """
    if isinstance(error, UnreadableDataError):
        return logging.WARNING
    if error.is_retriable:
        return logging.DEBUG
    return logging.WARNING if isinstance(error, StorageError) else logging.INFO

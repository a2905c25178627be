"""What a log line belongs to: the call of a client and its request id, passed on by context variables.

Tasks that a call starts keep its context, so the work that completes a change after the reply carries the id, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar

#: Metadata key under which clients, Pravega's as well, send the id of a request.
REQUEST_ID_KEY = "requestid"
#: Longer ids of clients are cut.
_ID_LENGTH_MAX = 64

#: Fields of JSON lines that are written in this context.
log_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default={})  # noqa: B039  # never changed


def request_id_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the id that a client sent with a call, without unprintable characters; empty without one."""
    for key, value in metadata:
        if key == REQUEST_ID_KEY:
            text = value if isinstance(value, str) else value.decode("latin-1")
            return "".join(filter(str.isprintable, text))[:_ID_LENGTH_MAX]
    return ""

"""`EVENTS`: stable names of the log lines that operators act on, for filters and alerts on JSON logs.

A line has an event if it contains the words of one; the words are those of the table in ``docs/guide/operations.md``.
The wording may change with a version, the name does not.
"""

from __future__ import annotations

#: Name -> words, the first that match count.
EVENTS: dict[str, tuple[str, ...]] = {
    "container.offline": ("stays offline",),
    "storage.unavailable": ("waiting for long-term storage", "long-term storage is unavailable"),
    "storage.available": ("is available again",),
    "data.corrupt": ("corrupt data in",),
    "storage.flush_failed": ("to long-term storage failed", "still fail"),
    "disk.full": ("waits for free space", "uses its reserve"),
    "disk.hung": ("does not answer",),
    "store.restarted": ("has not answered for", "restarting it"),
    "store.down": ("is down, its containers move to other stores",),
    "connection.refused": ("refused a connection",),
    "work.abandoned": ("is abandoned, it cannot be completed",),
    "server.ready": ("ready after",),
    "server.stopping": ("stopping on signal",),
    "client.connected": ("connects, program",),
}


def event_of(logger: str, text: str) -> str | None:
    """Return the name of a line's event; None if it has none. `text`: the line without arguments' line breaks."""
    if logger == "penstock.controller.change_log":
        return "change.done"
    for name, words in EVENTS.items():
        if any(each in text for each in words):
            return name
    return None

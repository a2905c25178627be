"""The log format of servers: one line for each record, to standard error, with times in UTC."""

from __future__ import annotations

import logging
import sys
import time


class UtcFormatter(logging.Formatter):
    """Formats times as ``2026-11-22T10:30:00.123Z``, whatever the time zone of the process is."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record. `datefmt`: another format, as `time.strftime` takes it."""
        moment = time.gmtime(record.created)
        if datefmt is not None:
            return time.strftime(datefmt, moment)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z"


def log_to_standard_error(level: str, *, process: str = "") -> None:
    """Write records of `level` (debug, info, warning or error) and above to standard error.

    `process` is put into each line, to distinguish the processes of one server.
    """
    origin = f"{process}: " if process else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(UtcFormatter(f"%(asctime)s %(levelname)s {origin}%(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])

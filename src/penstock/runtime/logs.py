"""The log of servers: one line for each record, to standard error, with times in UTC and at a bounded rate."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from typing import TextIO

from penstock.runtime.log_context import log_context
from penstock.runtime.log_events import event_of

#: Lines of one message that are written at once, before its rate is bounded.
BURST_LINES = 20
#: Lines of one message per second after that.
LINES_PER_S = 1.0
#: How long the count of lines that were left out may wait, in seconds.
COUNT_INTERVAL_S = 10.0
#: Messages whose rate is followed. Messages are constants of the program, so there are fewer.
_MESSAGES_MAX = 1024


class UtcFormatter(logging.Formatter):
    """Formats times as ``2026-11-22T10:30:00.123Z``, whatever the time zone of the process is."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record. `datefmt`: another format, as `time.strftime` takes it."""
        moment = time.gmtime(record.created)
        if datefmt is not None:
            return time.strftime(datefmt, moment)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z"


class JsonFormatter(UtcFormatter):
    """Formats a record as one line of JSON.

    Fields: ``ts``, ``level``, ``logger``, ``event`` (see `log_events`), ``msg``, ``process``, those of `log_context`
    (``call``, ``request_id``, ``peer``), and ``exc``, the traceback. Fields without a value are left out.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = record.getMessage()
        fields = {
            "ts": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event_of(record.name, text),
            "msg": text,
            "process": self._process,
            **log_context.get(),
            "exc": None if not record.exc_info else self.formatException(record.exc_info),
        }
        return json.dumps({name: value for name, value in fields.items() if value})


@dataclass(slots=True)
class _Rate:
    """The rate of one message: lines that may be written now, as of `at_s`, and what was left out since `since_s`."""

    lines: float
    at_s: float
    left_out_count: int = 0
    since_s: float = 0.0


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes records; of an INFO message, whatever its arguments, at most `BURST_LINES` and then `LINES_PER_S`.

    Many clients that connect, or many streams that are created, cannot fill a disk or hide a warning. The records left
    out are counted in a line of their own, which follows with a later record of any message, or at `close`. Records of
    other levels are always written: warnings have bounds of their own, and DEBUG is for a search.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._rates: dict[tuple[str, str], _Rate] = {}
        #: Messages of which records were left out, and the last of these.
        self._left_out: dict[tuple[str, str], logging.LogRecord] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        for key in [key for key in self._left_out if record.created >= self._rates[key].since_s + COUNT_INTERVAL_S]:
            self._write_count(key, record.created)
        if record.levelno != logging.INFO:
            super().emit(record)
            return
        key = (record.name, str(record.msg))
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) >= _MESSAGES_MAX:
                self._forget(record.created)
            rate = self._rates[key] = _Rate(BURST_LINES, record.created)
        # A clock that was set back adds nothing.
        rate.lines = min(BURST_LINES, rate.lines + max(0.0, record.created - rate.at_s) * LINES_PER_S)
        rate.at_s = record.created
        if rate.lines < 1:
            if not rate.left_out_count:
                rate.since_s = record.created
            rate.left_out_count += 1
            self._left_out[key] = record
            return
        rate.lines -= 1
        super().emit(record)

    def close(self) -> None:
        """Write the counts that wait. The stream stays open."""
        self.acquire()
        try:
            for key, record in list(self._left_out.items()):
                self._write_count(key, record.created)
        finally:
            self.release()
        super().close()

    def _write_count(self, key: tuple[str, str], now_s: float) -> None:
        last, rate = self._left_out.pop(key), self._rates[key]
        count, rate.left_out_count = rate.left_out_count, 0
        lines = "1 line" if count == 1 else f"{count} lines"
        text = f"{lines} of this kind left out, the last: {last.getMessage()}"
        counted = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)
        counted.created, counted.msecs = now_s, now_s % 1 * 1000
        super().emit(counted)

    def _forget(self, now_s: float) -> None:
        for key in list(self._left_out):
            self._write_count(key, now_s)
        self._rates.clear()


def log_to_standard_error(level: str, *, process: str = "", form: str = "text") -> None:
    """Write Penstock's records of `level` (debug, info, warning or error) and above to standard error.

    Other packages log from WARNING on, at `debug` everything. `process` is put into each line, to distinguish the
    processes of one server. `form`: ``text``, or ``json``, see `JsonFormatter`.
    """
    origin = f"{process}: " if process else ""
    handler = BoundedHandler(sys.stderr)
    as_text = UtcFormatter(f"%(asctime)s %(levelname)s {origin}%(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(process) if form == "json" else as_text)
    own, others = level.upper(), logging.WARNING
    if own in ("DEBUG", "ERROR"):
        others = logging.getLevelNamesMapping()[own]
    logging.basicConfig(level=others, handlers=[handler])
    logging.getLogger("penstock").setLevel(own)

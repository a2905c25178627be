"""``penstock write``: the lines of standard input as events of a stream."""

from __future__ import annotations

import fcntl
import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import (
    Interrupted,
    code_of,
    exit_code_of,
    exit_on_error,
    fail,
    hint_of,
    termination_interrupts,
)
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.output import tell

if TYPE_CHECKING:
    from penstock.cli.line_input import KeyField
    from penstock.cli.session import Session
    from penstock.client.transactions.transaction import Transaction
    from penstock.client.writing.event_writer import EventWriter

#: How many times a second a slowed-down writer writes.
_RATE_STEPS_PER_S = 20
#: What a pipe may hold, so that as much is read at once. Linux allows a user no more.
_PIPE_BYTES = 1024 * 1024


def write(
    stream: Stream,
    key: Annotated[str | None, typer.Option(help="The routing key of all lines. [default: none]")] = None,
    key_field: Annotated[
        str | None, typer.Option(help="Each line is a JSON object; this field is its routing key.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Maximum lines per second. [default: no limit]")] = None,
    transaction: Annotated[
        bool,
        typer.Option(
            "--transaction", help="Write all lines in one transaction: all become readable at the end, or none."
        ),
    ] = False,
    transaction_id: Annotated[
        str | None,
        typer.Option(help="Write into this transaction, begun with penstock transaction create, and leave it open."),
    ] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Write the lines of standard input to a stream, one event each.

    Returns when all lines are on the server's disk. On failure or interruption, reports how many lines are stored.
    """
    # Only now: the help of all commands should not load a client.
    from penstock.cli.line_input import KeyField
    from penstock.cli.session import connected
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json), termination_interrupts():
        if key is not None and key_field is not None:
            raise InvalidArgumentError("--key and --key-field exclude each other")
        if transaction and transaction_id is not None:
            raise InvalidArgumentError("--transaction and --transaction-id exclude each other")
        lines = _Lines(stream, key, None if key_field is None else KeyField(key_field), rate)
        if sys.stdin.isatty():
            sys.stderr.write("Each line that you type becomes an event. Ctrl-D ends.\n")
        with connected(uri) as session:
            if transaction_id is not None:
                _write_into(session, lines, transaction_id, as_json=as_json)
            elif transaction:
                _write_as_one(session, lines, as_json=as_json)
            else:
                _write(session, lines, as_json=as_json)


def _write(session: Session, lines: _Lines, *, as_json: bool) -> None:
    """Write all lines and report their number; on failure, report how many are stored."""
    from penstock.client.writing.event_writer import EventWriter
    from penstock.model.errors import PenstockError

    writer = session.client.event_writer(lines.stream)
    assert isinstance(writer, EventWriter)
    session.call(writer.__aenter__())
    stopped_by: Exception | KeyboardInterrupt | Interrupted | None = None
    is_flushed = False
    try:
        lines.copy(session, writer)
    except (PenstockError, OSError, KeyboardInterrupt, Interrupted) as error:
        stopped_by = error
    try:
        # Also what came before Ctrl-C, or before a line that is none: it was taken. A second Ctrl-C ends this.
        session.call(writer.flush())
        is_flushed = True
    except (PenstockError, KeyboardInterrupt, Interrupted) as error:
        stopped_by = stopped_by or error
    stored = writer.acknowledged_event_count
    if stopped_by is None:
        fields: dict[str, object] = {"stream": lines.stream, "lines": stored, "bytes": lines.length_bytes}
        tell("written", fields, [f"{_lines(stored)} stored in {lines.stream}"], as_json=as_json)
        return
    unsure = 0 if is_flushed else lines.count - stored
    how_far = f"{_lines(stored)} stored in {lines.stream}"
    if stored and lines.is_in_order:
        how_far = f"the first {how_far}"
    if unsure:
        how_far += f", {unsure} more may or may not be stored"
    raise _cut_off(stopped_by, how_far, {"lines_stored": stored, "lines_unsure": unsure}, as_json=as_json)


def _write_as_one(session: Session, lines: _Lines, *, as_json: bool) -> None:
    """Write all lines in a transaction, and commit it; or abort it when that cannot be."""
    from penstock.client.common.opening import awaiting
    from penstock.model.errors import OutcomeUnknownError, PenstockError

    transaction = session.call(awaiting(session.client.begin_transaction(lines.stream)))
    is_committing = False
    try:
        lines.copy(session, transaction)
        session.call(transaction.flush())
        is_committing = True
        session.call(transaction.commit())
    except (PenstockError, OSError, KeyboardInterrupt, Interrupted) as error:
        if is_committing and not _is_refused(error):
            what = f"whether transaction {transaction.id} commits is not known: see penstock transaction describe"
        else:
            what = f"transaction {transaction.id} is aborted; none of its lines will be readable"
            try:
                session.call(transaction.abort())
            except (PenstockError, KeyboardInterrupt, Interrupted) as other:
                is_lost = isinstance(other, OutcomeUnknownError) or not isinstance(other, PenstockError)
                what += "" if not is_lost else ", at the latest when its lease ends"
        raise _cut_off(error, what, {"transaction": transaction.id}, as_json=as_json) from error
    fields: dict[str, object] = {
        "stream": lines.stream, "lines": lines.count, "bytes": lines.length_bytes, "transaction": transaction.id,
    }  # fmt: skip
    what = f"{_lines(lines.count)} stored in {lines.stream}, in transaction {transaction.id}"
    tell("written", fields, [what], as_json=as_json)


def _write_into(session: Session, lines: _Lines, transaction_id: str, *, as_json: bool) -> None:
    """Write all lines into a transaction that others have begun, and leave it open, also when that cannot be."""
    from penstock.client.common.opening import awaiting
    from penstock.model.errors import PenstockError

    transaction = session.call(awaiting(session.client.transaction(lines.stream, transaction_id)))
    stopped_by: Exception | KeyboardInterrupt | Interrupted | None = None
    try:
        lines.copy(session, transaction)
    except (PenstockError, OSError, KeyboardInterrupt, Interrupted) as error:
        stopped_by = error
    try:
        session.call(transaction.detach())
    except (PenstockError, KeyboardInterrupt, Interrupted) as error:
        # Lines that were not flushed are lost, so a commit would be incomplete.
        what = f"not all lines are in transaction {transaction.id}, which is aborted"
        raise _cut_off(stopped_by or error, what, {"transaction": transaction.id}, as_json=as_json) from error
    if stopped_by is not None:
        what = f"transaction {transaction.id} is still open, with some of the lines in it"
        raise _cut_off(stopped_by, what, {"transaction": transaction.id}, as_json=as_json) from stopped_by
    fields: dict[str, object] = {
        "stream": lines.stream, "lines": lines.count, "bytes": lines.length_bytes, "transaction": transaction.id,
    }  # fmt: skip
    tell("written", fields, [f"{_lines(lines.count)} in transaction {transaction.id}"], as_json=as_json)


def _is_refused(error: BaseException) -> bool:
    """Say whether a commit that failed with `error` is known not to have happened."""
    from penstock.model.errors import TransactionError

    return isinstance(error, TransactionError)


def _cut_off(
    error: Exception | KeyboardInterrupt | Interrupted, how_far: str, details: dict[str, object], *, as_json: bool
) -> typer.Exit:
    """Tell why it ended early and how far it is; return the exit to raise."""
    from penstock.model.errors import PenstockError

    if isinstance(error, KeyboardInterrupt | Interrupted):
        return fail(
            f"interrupted; {how_far}", kind="Interrupted", as_json=as_json, code=exit_code_of(error), details=details
        )
    if not isinstance(error, PenstockError):
        why = f"standard input cannot be read: {error}\n  {how_far}"
        return fail(why, kind=type(error).__name__, as_json=as_json, details=details)
    return fail(
        f"{error}\n  {how_far}",
        kind=type(error).__name__,
        as_json=as_json,
        code=code_of(error),
        hint=hint_of(error),
        details=details,
    )


def _lines(count: int) -> str:
    return "1 line is" if count == 1 else f"{count} lines are"


class _Lines:
    """The lines of standard input, on their way to a stream.

    Attributes:
        stream: where to.
        count: lines given to the writer so far; of the last of them perhaps only some were taken.
        length_bytes: of them, without line feeds.
    """

    def __init__(self, stream: str, key: str | None, fields: KeyField | None, rate: float | None) -> None:
        self.stream: str = stream
        self.count: int = 0
        self.length_bytes: int = 0
        self._key = key
        self._fields = fields
        self._rate = rate

    @property
    def is_in_order(self) -> bool:
        """True when what is stored is the beginning of what was given: all lines have one routing key."""
        return self._key is not None

    def copy(self, session: Session, writer: EventWriter | Transaction) -> None:
        """Write the lines up to the end of standard input."""
        from penstock.cli.errors import InvalidLineError
        from penstock.cli.line_input import batches_of_lines
        from penstock.cli.progress import shown_progress

        source = sys.stdin.buffer
        assert isinstance(source, io.BufferedIOBase)
        total_bytes = _prepared(source)
        paced = _paced(self._rate) if self._rate is not None else _at_once
        with shown_progress(self.stream, total_bytes, is_wanted=not sys.stdin.isatty()) as progress:
            for lines in batches_of_lines(source, session.client.settings.large_event_bytes_max):
                keys: str | list[str] | None = self._key
                bad_line: InvalidLineError | None = None
                if self._fields is not None:
                    try:
                        keys = self._fields.keys_of(lines, self.count + 1)
                    except InvalidLineError as error:
                        keys, bad_line = error.keys, error
                        del lines[len(keys) :]
                for start, end in paced(len(lines)):
                    part = lines[start:end]
                    self.count += len(part)
                    self.length_bytes += sum(map(len, part))
                    session.call(writer.write_many(part, keys[start:end] if isinstance(keys, list) else keys))
                # With their line feeds, as the input counts.
                progress.note(self.count, self.length_bytes + self.count)
                if bad_line is not None:
                    raise bad_line


#: Given a number of lines, yields which of them to write now, `[start, end)`; waits in between.
_Pace = Callable[[int], Iterator[tuple[int, int]]]


def _at_once(count: int) -> Iterator[tuple[int, int]]:
    yield 0, count


def _paced(rate: float) -> _Pace:
    """Return a pace of `rate` lines per second. What input comes late is not caught up on."""
    step = max(1, int(rate / _RATE_STEPS_PER_S))
    due_s = time.monotonic()

    def pace(count: int) -> Iterator[tuple[int, int]]:
        nonlocal due_s
        for start in range(0, count, step):
            end = min(start + step, count)
            now_s = time.monotonic()
            if due_s > now_s:
                time.sleep(due_s - now_s)
            due_s = max(due_s, now_s) + (end - start) / rate
            yield start, end

    return pace


def _prepared(source: io.BufferedIOBase) -> int | None:
    """Let a pipe hold as much as is read at once, where it may; return the length of a file, None if it is none."""
    try:
        descriptor = source.fileno()
        status = os.fstat(descriptor)
    except (OSError, ValueError):
        return None  # Not a file of this process.
    if stat.S_ISFIFO(status.st_mode):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # The user has used up what they may have of it.
    return status.st_size if stat.S_ISREG(status.st_mode) else None

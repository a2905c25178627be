"""``penstock transaction``."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.moments import FORMS
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.output import in_bytes, in_time, table, tell
from penstock.cli.quantities import seconds_of
from penstock.client.low_level import cluster_of, controller_of

if TYPE_CHECKING:
    from penstock.client.controller.transaction_endings import TransactionInfo

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the transaction, 32 hexadecimal digits.", show_default=False)
]
Lease = Annotated[
    float,
    typer.Option(
        "--lease",
        "--lease-s",
        parser=seconds_of,
        metavar="DURATION",
        help="How long it stays open without a request, as 90s or 1m; a plain number means seconds.",
    ),
]
Limit = Annotated[
    float,
    typer.Option(
        "--limit",
        "--limit-s",
        parser=seconds_of,
        metavar="DURATION",
        help="How long it waits for commit or abort, as 10m or 1h; then it is aborted. A plain number means seconds.",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="TIME",
        help=f"Note this time at the end of the transaction: 0 or more in the writers' own unit, or a time ({FORMS}). "
        "See 'penstock stream watermark'.",
    ),
]

_REASONS = {
    "REQUESTED": "on request",
    "LEASE_ENDED": "its lease ran out",
    "STREAM_SEALED": "the stream was sealed",
}

transaction: typer.Typer = typer.Typer(name="transaction")


@transaction.command("list")
def list_transactions(
    stream: Stream,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Maximum number of open transactions to show.")
    ] = 1000,
    is_open_only: Annotated[bool, typer.Option("--open", help="Only open transactions.")] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """List the transactions of a stream: open ones with age, lease and size, then recently ended ones."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.client.controller.transaction_by_id import completed_transactions

        with connected(uri) as session:
            found = list(islice(session.iterate(session.client.open_transactions(stream)), count + 1))
            ended = {} if is_open_only else session.call(completed_transactions(controller_of(session.client), stream))
    has_more = len(found) > count
    open_ones = [_fields(info) for info in found[:count]]
    over = [{"transaction": name, "state": state} for name, state in sorted(ended.items())]
    headers = ("transaction", "state", "age s", "lease left s", "bytes", "writer")
    rows = [
        (each["transaction"], each["state"], *(_shown(each[key]) for key in ("age_s", "lease_left_s", "bytes")),
         each["writer"])
        for each in open_ones
    ]  # fmt: skip
    rows += [(each["transaction"], each["state"], "", "", "", "") for each in over]
    lines = [*table(headers, rows)]
    if has_more:
        lines.append(f"more than these {count} are open: raise --count to see them")
    fields: dict[str, object] = {
        "stream": stream, "transactions": [*open_ones, *over], "is_every_open_one_shown": not has_more,
    }  # fmt: skip
    tell("transactions", fields, lines, as_json=as_json)


def _fields(found: TransactionInfo) -> dict[str, object]:
    return {
        "transaction": found.id,
        "state": found.state,
        "age_s": found.age_s,
        "lease_s": found.lease_s,
        "lease_left_s": found.lease_left_s,
        "lifetime_left_s": found.lifetime_left_s,
        "bytes": found.length_bytes,
        "writer": found.writer,
        "abort_reason": found.abort_reason,
    }


def _shown(number: object) -> object:
    """Return a number for a table: seconds whole, and what is not known as a question mark."""
    return "?" if number is None else round(number) if isinstance(number, float) else number


@transaction.command()
def create(
    stream: Stream,
    lease_s: Lease = 90.0,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Begin a transaction and print its id, for penstock write --transaction-id, commit and abort.

    It is aborted when its lease ends; every request renews the lease.
    """
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.client.common.opening import awaiting

        with connected(uri) as session:
            opened = session.call(awaiting(session.client.begin_transaction(stream, lease_s=lease_s)))
            found = session.call(opened.detach())
    tell("created", {"stream": stream, "transaction": found, "lease_s": lease_s}, [found], as_json=as_json)


@transaction.command()
def update(
    stream: Stream,
    transaction: Id,
    lease_s: Lease = 90.0,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Renew the lease of an open transaction."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.client.common.opening import awaiting

        with connected(uri) as session:
            opened = session.call(awaiting(session.client.transaction(stream, transaction, lease_s=lease_s)))
            session.call(opened.detach())
    fields: dict[str, object] = {"stream": stream, "transaction": transaction, "lease_s": lease_s}
    tell("updated", fields, [f"transaction {transaction} on {stream}: open for {lease_s:g} s more"], as_json=as_json)


@transaction.command()
def describe(stream: Stream, transaction: Id, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Show the state, age, lease and size of a transaction, and why it was aborted."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.client.controller.transaction_by_id import TransactionById
        from penstock.client.transactions.open_transactions import with_length

        with connected(uri) as session:
            found = session.call(TransactionById(controller_of(session.client), stream, transaction).describe())
            if found.lease_s is not None:  # Otherwise it has ended, or is unknown.
                found = session.call(with_length(cluster_of(session.client), stream, found))
    tell("transaction", {"stream": stream, **_fields(found)}, _lines(stream, found), as_json=as_json)


def _lines(stream: str, found: TransactionInfo) -> list[str]:
    lines = [f"transaction {found.id} on {stream}: {found.state}"]
    if found.age_s is not None:
        since = "ended" if found.lease_s is None else "began"
        lines.append(f"  {since}    {_time(found.age_s)} ago")
    if found.lease_left_s is not None:
        left = f"{_time(found.lease_left_s)} left" if found.lease_left_s > 0 else "expired: it will be aborted"
        if found.lifetime_left_s is None:
            lines.append(f"  limit    {left} to commit or abort it")
        else:
            at_most = f"with renewals it may stay open for {_time(found.lifetime_left_s)} more"
            lines.append(f"  lease    {found.lease_s:g} s, {left}; {at_most}")
    if found.lease_s is not None:
        lines.append(f"  holds    {'?' if found.length_bytes is None else in_bytes(found.length_bytes)}")
    if found.writer:
        lines.append(f"  writer   {found.writer}")
    if found.abort_reason:
        lines.append(f"  aborted  {_REASONS.get(found.abort_reason, found.abort_reason)}")
    return lines


def _time(seconds: float) -> str:
    return in_time(max(round(seconds), 0) * 1000)


@transaction.command()
def prepare(
    stream: Stream,
    transaction: Id,
    limit_s: Limit = 86400.0,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Prepare a transaction: it takes no more events, and waits for commit or abort without a lease.

    Events that its writer has not flushed are not included. Preparing it again can extend the wait, never shorten it.
    """
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.client.controller.transaction_by_id import TransactionById

        with connected(uri) as session:
            known = TransactionById(controller_of(session.client), stream, transaction)
            left_s = session.call(known.prepare(limit_s))
    fields: dict[str, object] = {"stream": stream, "transaction": transaction, "state": "PREPARED", "left_s": left_s}
    text = f"transaction {transaction} on {stream}: prepared, to be decided within {left_s:.0f} s"
    tell("prepared", fields, [text], as_json=as_json)


@transaction.command()
def commit(
    stream: Stream,
    transaction: Id,
    time: Time = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Commit a transaction that another program has begun, with the events that the program has flushed."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.cli.positions import noted

        with connected(uri) as session:
            client = session.client
            at = None if time is None else noted(time)
            session.call(client.commit_transaction(stream, transaction, time=at))
            state = session.call(client.transaction_state(stream, transaction))
    _tell("committed", stream, transaction, state, as_json=as_json)


@transaction.command()
def abort(stream: Stream, transaction: Id, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Abort a transaction: none of its events will ever be read."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        session.call(session.client.abort_transaction(stream, transaction))
        state = session.call(session.client.transaction_state(stream, transaction))
    _tell("aborted", stream, transaction, state, as_json=as_json)


def _tell(event: str, stream: str, transaction: str, state: str, *, as_json: bool) -> None:
    fields: dict[str, object] = {"stream": stream, "transaction": transaction, "state": state}
    tell(event, fields, [f"transaction {transaction} on {stream}: {state}"], as_json=as_json)

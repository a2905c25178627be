"""``penstock transaction``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.failure import failures_told
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.output import table, tell

Id = Annotated[str, typer.Argument(metavar="ID", help="Of the transaction, 32 hexadecimal digits.", show_default=False)]
Lease = Annotated[float, typer.Option("--lease-s", min=0.001, help="Seconds that it stays open without a word.")]
Limit = Annotated[
    float, typer.Option("--limit-s", min=0.001, help="Seconds that it waits for its decision; then it is aborted.")
]

transaction: typer.Typer = typer.Typer(name="transaction")


@transaction.command("list")
def list_transactions(stream: Stream, uri: Uri = URI, as_json: AsJson = False) -> None:
    """List the transactions of a stream that ended lately, and how. Those under way are known by their ids alone."""
    from penstock.cli.session import connected

    with failures_told(as_json=as_json):
        from penstock.client.transaction_by_id import completed_transactions

        with connected(uri) as session:
            ended = session.call(completed_transactions(session.client._controller_client, stream))
            if not ended:
                # Of a stream that does not exist the controller knows of none either.
                session.call(session.client.stream_config(stream))
    rows = sorted(ended.items())
    fields: dict[str, object] = {
        "stream": stream, "transactions": [{"transaction": name, "state": state} for name, state in rows],
    }  # fmt: skip
    tell("transactions", fields, table(("transaction", "state"), rows), as_json=as_json)


@transaction.command()
def create(
    stream: Stream,
    lease_s: Lease = 90.0,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Begin a transaction and print its id, for penstock write --transaction-id, commit and abort.

    It is aborted when its lease ends before anybody has gone on with it.
    """
    from penstock.cli.session import connected

    with failures_told(as_json=as_json):
        from penstock.client.opening import awaiting

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

    with failures_told(as_json=as_json):
        from penstock.client.opening import awaiting

        with connected(uri) as session:
            opened = session.call(awaiting(session.client.transaction(stream, transaction, lease_s=lease_s)))
            session.call(opened.detach())
    fields: dict[str, object] = {"stream": stream, "transaction": transaction, "lease_s": lease_s}
    tell("updated", fields, [f"transaction {transaction} on {stream}: open for {lease_s:g} s more"], as_json=as_json)


@transaction.command()
def describe(stream: Stream, transaction: Id, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Tell the state of a transaction: OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED or UNKNOWN."""
    from penstock.cli.session import connected

    with failures_told(as_json=as_json):
        from penstock.client.transaction_by_id import TransactionById

        with connected(uri) as session:
            state = session.call(TransactionById(session.client._controller_client, stream, transaction).state())
    _tell("transaction", stream, transaction, state, as_json=as_json)


@transaction.command()
def prepare(
    stream: Stream,
    transaction: Id,
    limit_s: Limit = 86400.0,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Let nothing more be written into a transaction, and have it wait for commit or abort: no lease ends it.

    What its writer has not flushed is not in it. Prepared again it may wait for longer, never for less.
    """
    from penstock.cli.session import connected

    with failures_told(as_json=as_json):
        from penstock.client.transaction_by_id import TransactionById

        with connected(uri) as session:
            known = TransactionById(session.client._controller_client, stream, transaction)
            left_s = session.call(known.prepare(limit_s))
    fields: dict[str, object] = {"stream": stream, "transaction": transaction, "state": "PREPARED", "left_s": left_s}
    text = f"transaction {transaction} on {stream}: prepared, to be decided within {left_s:.0f} s"
    tell("prepared", fields, [text], as_json=as_json)


@transaction.command()
def commit(stream: Stream, transaction: Id, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Commit a transaction that another program has begun, with what that program has flushed."""
    _decide(stream, transaction, uri, is_commit=True, as_json=as_json)


@transaction.command()
def abort(stream: Stream, transaction: Id, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Abort a transaction: none of its events will ever be read."""
    _decide(stream, transaction, uri, is_commit=False, as_json=as_json)


def _decide(stream: str, transaction: str, uri: str, *, is_commit: bool, as_json: bool) -> None:
    from penstock.cli.session import connected

    with failures_told(as_json=as_json):
        from penstock.client.transaction_by_id import TransactionById

        with connected(uri) as session:
            known = TransactionById(session.client._controller_client, stream, transaction)
            session.call(known.commit() if is_commit else known.abort())
            state = session.call(known.state())
    _tell("committed" if is_commit else "aborted", stream, transaction, state, as_json=as_json)


def _tell(event: str, stream: str, transaction: str, state: str, *, as_json: bool) -> None:
    fields: dict[str, object] = {"stream": stream, "transaction": transaction, "state": state}
    tell(event, fields, [f"transaction {transaction} on {stream}: {state}"], as_json=as_json)

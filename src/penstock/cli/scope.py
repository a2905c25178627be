"""``penstock scope``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import URI, AsJson, Scope, Uri, Yes
from penstock.cli.output import confirm, tell

if TYPE_CHECKING:
    from penstock.cli.session import Session

scope: typer.Typer = typer.Typer(name="scope")


@scope.command("list")
def list_scopes(
    everything: Annotated[bool, typer.Option("--all", help="Include the server's own scopes.")] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """List the scopes."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        found = session.iterate(session.client.scopes())
        names = sorted(name for name in found if everything or not name.startswith("_"))
    tell("scopes", {"scopes": names}, names, as_json=as_json)


@scope.command()
def create(scope: Scope, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Create a scope. Creating a stream creates its scope, too."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        session.call(session.client.create_scope(scope))
    tell("created", {"scope": scope}, [f"scope {scope} is created"], as_json=as_json)


@scope.command()
def describe(scope: Scope, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Show the contents of a scope."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        held = _held(session, scope)
    fields: dict[str, object] = {"scope": scope, **{f"{kind}s": names for kind, names in held.items()}}
    lines = [f"{kind} {scope}/{name}" for kind, names in held.items() for name in names]
    tell("scope", fields, lines or [f"scope {scope} is empty"], as_json=as_json)


@scope.command()
def delete(
    scope: Scope,
    recursive: Annotated[bool, typer.Option("--recursive", help="Include its streams, groups and tables.")] = False,
    yes: Yes = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Delete a scope; it must be empty unless --recursive is given. Asks for confirmation."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        held = [
            f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
            for kind, names in _held(session, scope).items()
            if names
        ]
        what = f"{scope} ({', '.join(held)})" if recursive and held else scope
        confirm(f"Delete scope {what}?", what, is_agreed=yes, as_json=as_json)
        session.call(session.client.delete_scope(scope, recursive=recursive))
    tell("deleted", {"scope": scope}, [f"scope {scope} is deleted"], as_json=as_json)


def _held(session: Session, scope: str) -> dict[str, list[str]]:
    """Return the names of what a scope holds, by kind. Raises `NoSuchScopeError`."""
    client = session.client
    return {
        "stream": sorted(session.iterate(client.streams(scope))),
        "group": sorted(session.iterate(client.reader_groups(scope))),
        "table": sorted(session.iterate(client.tables(scope))),
    }

"""Names that a server knows, for shells that complete what is typed. Errors are silence there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import typer

from penstock.runtime.settings import DEFAULT_URI, URI_VARIABLE

if TYPE_CHECKING:
    from penstock.cli.session import Session

#: More names than a user reads.
_NAME_COUNT_MAX = 1000
#: How long a completion may take after the key press.
_TIMEOUT_S = 1.0


def complete_streams(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams whose names begin with what was typed."""
    return _found(context, incomplete, lambda session, scope: session.iterate(session.client.streams(scope)))


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the reader groups whose names begin with what was typed."""
    return _found(context, incomplete, lambda session, scope: session.iterate(session.client.reader_groups(scope)))


def complete_tables(context: typer.Context, incomplete: str) -> list[str]:
    """Return the tables whose names begin with what was typed."""
    return _found(context, incomplete, lambda session, scope: session.iterate(session.client.tables(scope)))


def complete_scopes(context: typer.Context, incomplete: str) -> list[str]:
    """Return the scopes whose names begin with what was typed."""
    return [scope.rstrip("/") for scope in _found(context, incomplete, lambda session, scope: iter([""]))]


def _found(context: typer.Context, incomplete: str, inside: Callable[[Session, str], Iterator[str]]) -> list[str]:
    from penstock.cli.session import connected
    from penstock.client.settings import ClientSettings
    from penstock.model.errors import PenstockError

    uri = context.params.get("uri") or os.environ.get(URI_VARIABLE) or DEFAULT_URI
    settings = ClientSettings(first_contact_timeout_s=_TIMEOUT_S, retry_time_max_s=_TIMEOUT_S)
    typed_scope, slash, _ = incomplete.partition("/")
    found: list[str] = []
    logging.disable()
    try:
        with connected(uri, settings) as session:
            for scope in session.iterate(session.client.scopes()):
                if scope == typed_scope if slash else scope.startswith(typed_scope) and not scope.startswith("_"):
                    names = (f"{scope}/{name}" for name in inside(session, scope))
                    left = _NAME_COUNT_MAX - len(found)
                    found += islice((name for name in names if name.startswith(incomplete)), left)
    except PenstockError:
        pass  # What was found until then is better than nothing.
    finally:
        logging.disable(logging.NOTSET)
    return found

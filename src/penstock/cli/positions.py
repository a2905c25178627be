"""Positions in a stream as people name them on a command line: earliest, latest, or a stream cut."""

from __future__ import annotations

from pathlib import Path

from penstock.client.client import Client
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import EARLIEST, LATEST, StreamCut

#: What the options say that take a position.
HELP = "'earliest', 'latest', a cut as penstock stream describe prints it, or @FILE that holds one."



def cut_text(at: str) -> str:
    """Return `at`, or what is in the file that it names with an ``@``. Raises `InvalidArgumentError`."""
    if not at.startswith("@"):
        return at
    try:
        return Path(at[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the cut cannot be read from {at[1:]}: {error}") from error


async def cut_at(client: Client, stream: str, at: str) -> StreamCut:
    """Return the cut of `stream` that `at` names.

    Raises `InvalidArgumentError` for what names none, or a cut of another stream.
    """
    scoped = "/".join(split_scoped_name(stream))
    text = cut_text(at)
    if text in EARLIEST:
        return await client.head(scoped)
    if text in LATEST:
        return await client.tail(scoped)
    if not text.startswith("{"):
        raise InvalidArgumentError(f"{at!r} is no position in a stream: use {HELP}")
    cut = StreamCut.from_text(text)
    if f"{cut.scope}/{cut.stream}" != scoped:
        raise InvalidArgumentError(f"the cut is one of {cut.scope}/{cut.stream}, not of {scoped}")
    if not cut.positions or not await client.controller.is_valid_cut(cut):
        raise InvalidArgumentError(f"the cut is none of {scoped}: its segments do not cover the keys once")
    return cut

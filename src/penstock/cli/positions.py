"""Positions in a stream as people name them on a command line: earliest, latest, a time, or a stream cut."""

from __future__ import annotations

from pathlib import Path

from penstock.client.client import Client
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import EARLIEST, LATEST, StreamCut, is_cut_text
from penstock.model.times import is_time

#: What the options say that take a position.
HELP = (
    "'earliest', 'latest', a time as 2026-11-22T10:30Z, noted:TIME for one that writers noted, a cut as stream "
    "describe prints it or Pravega's clients write it, or @FILE with one."
)
_NOTED = "noted:"


def cut_text(at: str) -> str:
    """Return `at`, or what is in the file that it names with an ``@``. Raises `InvalidArgumentError`."""
    if not at.startswith("@"):
        return at
    try:
        return Path(at[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the cut cannot be read from {at[1:]}: {error}") from error


async def cut_at(client: Client, stream: str, at: str, *, is_end: bool = False) -> StreamCut:
    """Return the cut of `stream` that `at` names. `is_end`: of a time, the cut behind it rather than before it.

    Raises `InvalidArgumentError` for what names none, or a cut of another stream.
    """
    scoped = "/".join(split_scoped_name(stream))
    text = cut_text(at)
    if text in EARLIEST:
        return await client.head(scoped)
    if text in LATEST:
        return await client.tail(scoped)
    if text.startswith(_NOTED):
        return await _cut_at_noted(client, scoped, text.removeprefix(_NOTED))
    if is_time(text):
        return await client.cut_at_time(scoped, text, is_end=is_end)
    if not is_cut_text(text):
        raise InvalidArgumentError(f"{at!r} is no position in a stream: use {HELP}")
    cut = StreamCut.from_text(text)
    if f"{cut.scope}/{cut.stream}" != scoped:
        raise InvalidArgumentError(f"the cut is one of {cut.scope}/{cut.stream}, not of {scoped}")
    if not cut.positions or not await client._controller_client.is_valid_cut(cut):
        raise InvalidArgumentError(f"the cut is none of {scoped}: its segments do not cover the keys once")
    return cut


def noted(text: str) -> int | str:
    """Return what `text` says of a time that writers note: a number in their own unit, or a moment as it stands."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() else text


async def _cut_at_noted(client: Client, stream: str, text: str) -> StreamCut:
    cut = await client.cut_at_noted_time(stream, noted(text))
    if cut is None:
        raise InvalidArgumentError(
            f"no watermark of {stream} has come to {text} yet: penstock stream watermark shows how far its writers are"
        )
    return cut

"""Positions in a stream as people name them on a command line: earliest, latest, a time, or a stream cut."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.moments import NOW, is_moment, moment_text
from penstock.cli.options import POSITION_HELP
from penstock.client.low_level import controller_of
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import EARLIEST, LATEST, StreamCut, is_cut_text

if TYPE_CHECKING:
    from penstock.client.client import Client

_NOTED = "noted:"


def position_text(at: str) -> str:
    """Return a position as the client takes it: times in ISO 8601 in UTC, and the content of ``@FILE``.

    Raises `InvalidArgumentError` for a time that is none, or a file that cannot be read.
    """
    text = at.strip()
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"cannot read the position from {text[1:]}: {error}") from error
    if text == NOW:
        # The server's clock may be behind this one, and it refuses times to come.
        return "latest"
    return moment_text(text, datetime.now().astimezone()) if is_moment(text) else text


async def cut_at(client: Client, stream: str, at: str, *, is_end: bool = False) -> StreamCut:
    """Return the cut of `stream` that `at` names. `is_end`: of a time, the cut after it rather than before it.

    Raises `InvalidArgumentError` for what names none, or a cut of another stream.
    """
    scoped = "/".join(split_scoped_name(stream))
    text = position_text(at)
    if text in EARLIEST:
        return await client.head(scoped)
    if text in LATEST:
        return await client.tail(scoped)
    if text.startswith(_NOTED):
        return await _cut_at_noted(client, scoped, text.removeprefix(_NOTED))
    if is_moment(text):
        return await client.cut_at_time(scoped, text, is_end=is_end)
    if not is_cut_text(text):
        raise InvalidArgumentError(f"{at!r} is not a position in a stream: write it as {POSITION_HELP}")
    cut = StreamCut.from_text(text)
    if f"{cut.scope}/{cut.stream}" != scoped:
        raise InvalidArgumentError(f"the cut belongs to {cut.scope}/{cut.stream}, not to {scoped}")
    if not cut.positions or not await controller_of(client).is_valid_cut(cut):
        raise InvalidArgumentError(f"not a valid cut of {scoped}: its segments do not cover every key exactly once")
    return cut


def noted(text: str) -> int | str:
    """Return a time that writers note: a number in their own unit, or a moment in ISO 8601.

    Raises `InvalidArgumentError`. A number is never seconds since 1970 here: its unit is the writers'.
    """
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal():
        return int(text)
    return moment_text(text, datetime.now().astimezone())


async def _cut_at_noted(client: Client, stream: str, text: str) -> StreamCut:
    cut = await client.cut_at_noted_time(stream, noted(text))
    if cut is None:
        raise PenstockError(
            f"no watermark of {stream} has reached {text} yet: see the writers' times with penstock stream watermark"
        )
    return cut

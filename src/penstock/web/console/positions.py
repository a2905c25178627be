"""Positions in a stream as a page takes them: earliest, latest, the last events, a time, or a stream cut."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from penstock import aio
from penstock.client.low_level import controller_of
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import EARLIEST, LATEST, StreamCut, is_cut_text
from penstock.web.console.formats import moment
from penstock.web.errors import BadRequestError

#: Of ``last:100``.
LAST: str = "last:"
LAST_MAX: int = 1000


def last_count(at: str) -> int | None:
    """Return the number of ``last:100``; None for another position. Raises `BadRequestError`."""
    if not at.startswith(LAST):
        return None
    digits = at.removeprefix(LAST)
    if not digits.isascii() or not digits.isdecimal() or not 0 < int(digits) <= LAST_MAX:
        raise BadRequestError(f"{at!r}: write last:1 to last:{LAST_MAX}")
    return int(digits)


def position_text(at: str, now: datetime) -> str:
    """Return a position as the client takes it: words and cuts as they are, times in ISO 8601.

    Raises `BadRequestError` for text that is no position. Cuts in the short form ``{"0": 123}`` are not taken.
    """
    if at in EARLIEST or at in LATEST or is_cut_text(at):
        return at
    return moment(at, now)


async def cut_at(client: aio.Client, stream: str, at: str, now: datetime) -> StreamCut:
    """Return the cut of a stream that `at` names; ``last:`` is not among them.

    Raises `BadRequestError` for what names none, and what the client raises.
    """
    scope, name = split_scoped_name(stream)
    if at in EARLIEST:
        return await client.head(stream)
    if at in LATEST:
        return await client.tail(stream)
    if not is_cut_text(at):
        return await client.cut_at_time(stream, moment(at, now))
    cut = _short_cut(scope, name, at) or StreamCut.from_text(at)
    if (cut.scope, cut.stream) != (scope, name):
        raise BadRequestError(f"the cut belongs to {cut.scope}/{cut.stream}, not to {stream}")
    if not cut.positions or not await controller_of(client).is_valid_cut(cut):
        raise BadRequestError(f"this is not a valid cut of {stream}: its segments do not cover every key exactly once")
    return cut


def _short_cut(scope: str, stream: str, text: str) -> StreamCut | None:
    try:
        positions: Mapping[int, int] = msgspec.json.decode(text.encode(), type=dict[int, int])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return StreamCut(scope, stream, positions)


def short_text(cut: StreamCut) -> str:
    """Return a cut as ``{"0":123}``, the form of the REST interface."""
    return msgspec.json.encode({str(segment): offset for segment, offset in cut.positions.items()}).decode()

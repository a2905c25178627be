"""A streaming query as a subscriber of its streams, so that retention by consumption keeps what it has not committed.

The subscriber is a reader group without readers, one for each checkpoint: its name ends in a number that the query's
offsets carry, so two queries never publish under one name. Its places are those of the micro-batch committed last,
and that is what it acknowledges.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.model.errors import NoSuchReaderGroupError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.spark.offsets import Cuts
from penstock.spark.options import StoreSettings
from penstock.spark.store import run_in_client

if TYPE_CHECKING:
    from penstock import aio


def new_number() -> str:
    """Return what tells a query's subscriber from those of other checkpoints."""
    return secrets.token_hex(4)


def hold(settings: StoreSettings, group: str, cuts: Cuts) -> None:
    """Let `group` (``scope/group``) keep what lies behind `cuts`, in the streams that it does not know yet.

    The group is made if there is none. Safe to repeat. Raises as `Client.reader_group`.
    """
    run_in_client(settings, partial(_hold, group, _stream_cuts(cuts)))


def release(settings: StoreSettings, group: str, cuts: Cuts) -> None:
    """Let `group` need nothing before `cuts` any more, and nothing of streams that are not there. Safe to repeat.

    Raises as `ReaderGroup.reset` and `ReaderGroup.acknowledge`.
    """
    run_in_client(settings, partial(_release, group, _stream_cuts(cuts)))


def _stream_cuts(cuts: Cuts) -> dict[str, StreamCut]:
    return {name: StreamCut(*split_scoped_name(name), dict(cut)) for name, cut in cuts.items()}


async def _hold(group: str, cuts: Mapping[str, StreamCut], client: aio.Client) -> None:
    if not cuts:
        return
    try:
        readers = await client.reader_group(group)
        known = set(await readers.stream_cuts())
    except NoSuchReaderGroupError:
        readers = await client.reader_group(group, sorted(cuts), start=cuts, retention="manual")
        known = set()
    async with readers:
        new = {name: cut for name, cut in cuts.items() if name not in known}
        if known and new:
            await readers.add_streams(sorted(new), start=new)
        if new:
            await readers.acknowledge(new)  # What lies before its beginning it never needs.


async def _release(group: str, cuts: Mapping[str, StreamCut], client: aio.Client) -> None:
    async with client.reader_group(group) as readers:
        known = await readers.stream_cuts()
        kept = {name: cut for name, cut in cuts.items() if name in known}
        if not kept:
            return
        if len(kept) < len(known):
            await readers.remove_streams(sorted(known.keys() - kept.keys()))
        # It acknowledges nothing beyond its places.
        await readers.reset(kept)
        await readers.acknowledge(kept)

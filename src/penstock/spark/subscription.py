"""A streaming query as a subscriber of its streams, so that retention by consumption keeps its uncommitted data.

The subscriber is a reader group without readers, one for each checkpoint: its name ends in a number that the query's
offsets carry, so two queries never publish under one name. Its positions are those of the micro-batch committed last,
which it acknowledges.
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
    """Return a unique number for a query's subscriber."""
    return secrets.token_hex(4)


def hold(settings: StoreSettings, group: str, cuts: Cuts) -> None:
    """Have `group` (``scope/group``) keep the data after `cuts`, in the streams that it does not know yet.

    The group is created if it does not exist. Idempotent. Raises as `Client.reader_group`.
    """
    run_in_client(settings, partial(_hold, group, _stream_cuts(cuts)))


def release(settings: StoreSettings, group: str, cuts: Cuts) -> None:
    """Have `group` release all data before `cuts`, and all data of streams that are not in `cuts`. Idempotent.

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
            await readers.acknowledge(new)  # It never needs data before its beginning.


async def _release(group: str, cuts: Mapping[str, StreamCut], client: aio.Client) -> None:
    async with client.reader_group(group) as readers:
        known = await readers.stream_cuts()
        kept = {name: cut for name, cut in cuts.items() if name in known}
        if not kept:
            return
        if len(kept) < len(known):
            await readers.remove_streams(sorted(known.keys() - kept.keys()))
        # It acknowledges nothing after its positions.
        await readers.reset(kept)
        await readers.acknowledge(kept)

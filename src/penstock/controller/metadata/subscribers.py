"""The subscribers of a stream: reader groups that hold back truncation of data that they have not read.

The set and a subscriber's record are in the stream's metadata table; changes of both are one write where necessary.
Source: controller-internals 10.
"""

from __future__ import annotations

import asyncio

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import Subscriber, SubscriberSet
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import MetadataConflictError
from penstock.model.segments import VERSION_ABSENT


async def _read(tables: StreamTables, subscriber: str) -> tuple[Versioned[SubscriberSet], Versioned[Subscriber] | None]:
    keys = [layout.SUBSCRIBER_SET, layout.subscriber_key(subscriber)]
    set_row, row = await tables.records.get_rows(tables.metadata, keys)
    everybody = tables.records.decoded(tables.metadata, set_row, SubscriberSet)
    return everybody or Versioned(SubscriberSet(), VERSION_ABSENT), tables.records.decoded(
        tables.metadata, row, Subscriber
    )


async def subscriber_names(tables: StreamTables) -> tuple[str, ...]:
    """Return the scoped names of the groups that subscribe to the stream, sorted. 2 reads in one request."""
    await tables.state()  # Raises if the stream is not completely created.
    found = await tables.records.get(tables.metadata, layout.SUBSCRIBER_SET, SubscriberSet)
    return () if found is None else found.record.subscribers


async def published_cuts(tables: StreamTables) -> dict[str, dict[int, int]]:
    """Return the cut of each subscriber, by its scoped name; an empty cut was never published. 2 reads in 2 requests.

    A group that subscribes meanwhile may be missing.
    """
    everybody = await tables.records.get(tables.metadata, layout.SUBSCRIBER_SET, SubscriberSet)
    names = () if everybody is None else everybody.record.subscribers
    if not names:
        return {}
    rows = await tables.records.get_rows(tables.metadata, [layout.subscriber_key(name) for name in names])
    cuts: dict[str, dict[int, int]] = {}
    for name, row in zip(names, rows, strict=True):
        found = tables.records.decoded(tables.metadata, row, Subscriber)
        if found is not None:
            cuts[name] = found.record.stream_cut
        await asyncio.sleep(0)  # A cut may have ten thousand segments.
    return cuts


async def read_subscriber(tables: StreamTables, subscriber: str) -> Versioned[Subscriber] | None:
    """Read a subscriber's record. 1 read."""
    return await tables.records.get(tables.metadata, layout.subscriber_key(subscriber), Subscriber)


async def put_subscriber(tables: StreamTables, subscriber: str, record: Subscriber, version: int) -> None:
    """Replace the record read at `version`."""
    await tables.records.put(tables.metadata, layout.subscriber_key(subscriber), record, version=version)


async def add_subscriber(
    tables: StreamTables, subscriber: str, generation: int, now_ms: int, attempts_max: int
) -> None:
    """Subscribe, or raise a subscriber's generation; its cut and a higher generation are kept."""
    for attempt in range(attempts_max):
        everybody, found = await _read(tables, subscriber)
        names = everybody.record.subscribers
        changes: list[tuple[str, object, int]] = []
        if subscriber not in names:
            joined = SubscriberSet(tuple(sorted([*names, subscriber])))
            changes.append((layout.SUBSCRIBER_SET, joined, everybody.version))
        if found is None or found.record.generation < generation:
            record = Subscriber(generation, {} if found is None else found.record.stream_cut, now_ms)
            version = VERSION_ABSENT if found is None else found.version
            changes.append((layout.subscriber_key(subscriber), record, version))
        if not changes:
            return
        try:
            await tables.records.put_all(tables.metadata, changes)
        except MetadataConflictError:
            if attempt + 1 == attempts_max:
                raise
        else:
            return


async def remove_subscriber(tables: StreamTables, subscriber: str, generation: int, attempts_max: int) -> None:
    """Unsubscribe; does nothing if there is no such subscriber, or it has a higher generation."""
    for attempt in range(attempts_max):
        everybody, found = await _read(tables, subscriber)
        if found is not None and generation < found.record.generation:
            return
        names = everybody.record.subscribers
        try:
            if subscriber in names:
                left = SubscriberSet(tuple(name for name in names if name != subscriber))
                await tables.records.put(tables.metadata, layout.SUBSCRIBER_SET, left, version=everybody.version)
            if found is not None:
                await tables.records.remove_version(tables.metadata, layout.subscriber_key(subscriber), found.version)
        except MetadataConflictError:
            if attempt + 1 == attempts_max:
                raise
        else:
            return

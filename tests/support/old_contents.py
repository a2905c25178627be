"""Compares what earlier commits wrote with what it should be, through the client of today. See `old_data_directory`."""

from __future__ import annotations

import pytest

import penstock
from support.old_data_directory import EVENTS, READ_COUNT, SEALED, TABLE, until_committed

WAIT_S = 60.0


def read_all(client: penstock.Client, stream: str) -> list[str]:
    """Return all events of a stream, those of a segment in order."""
    with client.batch(stream) as batch:
        return [event.data.decode() for part in batch.ranges for event in batch.events(part)]


def check_contents(client: penstock.Client, added: int = 0) -> None:
    """Compare all that is in a directory with what it should be; `added` events of each key came since."""
    found: dict[str, list[str]] = {}
    for text in read_all(client, "old/events"):
        found.setdefault(f"key-{text.partition(':')[0]}", []).append(text)
    new = [f"added-{number}" for number in range(added)]
    assert found == {key: [*texts, *(f"{key[4:]}:{text}" for text in new)] for key, texts in EVENTS.items()}
    assert read_all(client, "old/sealed") == SEALED
    with client.table("old/table", keys=penstock.TextKeys()) as table:
        assert {key: value.decode() for key, value in table.items()} == TABLE
    with pytest.raises(penstock.StreamSealedError), client.event_writer("old/sealed"):
        pass


def read_and_add(client: penstock.Client) -> None:
    """Read what the group `audit` has not read, and nothing else; add two events to each key, one by a transaction."""
    with client.reader_group("audit", ["old/events"]) as group, group.reader("two") as reader:
        total = sum(map(len, EVENTS.values()))
        unread = [reader.read(timeout_s=WAIT_S) for _ in range(total - READ_COUNT)]
        assert None not in unread
        assert reader.read(timeout_s=0.5) is None, "what the group had read before is not read again"
        reader.commit()
    with client.event_writer("old/events") as writer:
        for key in EVENTS:
            writer.write(f"{key[4:]}:added-0".encode(), routing_key=key)
    with client.begin_transaction("old/events") as transaction:
        for key in EVENTS:
            transaction.write(f"{key[4:]}:added-1".encode(), routing_key=key)
    until_committed(client, transaction.id)

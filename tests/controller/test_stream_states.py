"""Which state of a stream may become which: the lock that keeps its workflows apart."""

from __future__ import annotations

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import StateRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import MetadataConflictError, NoSuchStreamError
from penstock.model.policies import StreamConfig
from penstock_simulation.memory_store import MemoryMetadataStore

#: As in controller-internals 1. In addition a seal may be taken back for a transaction that was prepared meanwhile.
LEGAL = {
    "creating": {"active"},
    "active": {"scaling", "truncating", "committing_txn", "updating", "sealing", "sealed"},
    "scaling": {"active"},
    "truncating": {"active"},
    "committing_txn": {"active"},
    "updating": {"active"},
    "sealing": {"sealed", "active"},
    "sealed": set(),
}


@pytest.fixture
async def tables() -> StreamTables:
    """A stream without records."""
    made = StreamTables(RecordStore(MemoryMetadataStore()), "scope", "stream", "id")
    await made.create_tables()
    return made


@pytest.mark.parametrize("before", StreamState)
@pytest.mark.parametrize("after", StreamState)
async def test_only_permitted_state_transitions_are_made(
    tables: StreamTables, before: StreamState, after: StreamState
) -> None:
    """S-256: each of all pairs; a refused one leaves the state and its version alone, any state is written again."""
    assert {state.value for state in StreamState} == set(LEGAL)
    version = await tables.records.put(tables.metadata, layout.STATE, StateRecord(before))
    read = await tables.state()
    assert (read.record.state, read.version) == (before, version)
    if after is before or after.value in LEGAL[before.value]:
        written = await tables.set_state(after)
        assert await tables.state() == written
        assert written.record.state is after
        # A write based on the earlier version is too late, whatever it changes.
        with pytest.raises(MetadataConflictError):
            await tables.set_state(after, of=read)
    else:
        with pytest.raises(MetadataConflictError, match=f"is {before.value} and cannot become {after.value}"):
            await tables.set_state(after)
        assert await tables.state() == read


async def test_a_stream_without_a_state_is_completed_by_creation(tables: StreamTables) -> None:
    """S-256: nothing else comes out of nothing, and that only once."""
    for state in StreamState:
        with pytest.raises(NoSuchStreamError):
            await tables.set_state(state)
    assert await tables.create_records(StreamConfig(), 7, 0)
    assert (await tables.state()).record.state is StreamState.CREATING
    await tables.set_state(StreamState.ACTIVE)
    assert not await tables.create_records(StreamConfig(), 8, 0)
    assert (await tables.state()).record.state is StreamState.ACTIVE

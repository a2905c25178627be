"""The blocking client: the async one, run in a background event loop through a `Portal`.

Same names, same rules. Two paths do not cross into the loop per event: a writer adds events to their block in the
calling thread, and a reader hands out a whole chunk before it asks for the next. Safe to use from many threads, except
one reader, segment reader, byte reader, byte writer or transaction at a time.

Most modules here are generated; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from penstock.client.sync.ack import Ack
from penstock.client.sync.batch_reads import BatchReader
from penstock.client.sync.byte_stream import ByteReader, ByteWriter
from penstock.client.sync.client import Client
from penstock.client.sync.event_writer import EventWriter
from penstock.client.sync.reader import Reader
from penstock.client.sync.reader_group import ReaderGroup
from penstock.client.sync.revisioned_stream import RevisionedStream
from penstock.client.sync.segment_reader import SegmentReader
from penstock.client.sync.shared_state import SharedState
from penstock.client.sync.tables import Table
from penstock.client.sync.transaction import Transaction
from penstock.client.sync.value_reader import ValueReader
from penstock.client.sync.value_transaction import ValueTransaction
from penstock.client.sync.value_writer import ValueWriter

__all__ = [
    "Ack",
    "BatchReader",
    "ByteReader",
    "ByteWriter",
    "Client",
    "EventWriter",
    "Reader",
    "ReaderGroup",
    "RevisionedStream",
    "SegmentReader",
    "SharedState",
    "Table",
    "Transaction",
    "ValueReader",
    "ValueTransaction",
    "ValueWriter",
]

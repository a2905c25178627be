"""The async client: ``async with penstock.aio.connect("tcp://localhost:9090") as client: ...``.

The blocking client, `penstock.connect`, has the same names.
"""

from __future__ import annotations

from penstock.client.client import Client, connect
from penstock.client.common.opening import Opening
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.groups.value_reader import ValueBatch, ValueEvent, ValueReader
from penstock.client.reading.batch_reads import BatchReader
from penstock.client.reading.event import Event, EventBatch
from penstock.client.state.revisioned_stream import RevisionedStream
from penstock.client.state.shared_state import SharedState
from penstock.client.tables.tables import Table
from penstock.client.transactions.transaction import Transaction
from penstock.client.transactions.value_transaction import ValueTransaction
from penstock.client.transport.segment_reader import SegmentReader
from penstock.client.writing.ack import Ack
from penstock.client.writing.byte_stream import ByteReader, ByteWriter
from penstock.client.writing.event_writer import EventWriter
from penstock.client.writing.value_writer import ValueWriter

__all__ = [
    "Ack",
    "BatchReader",
    "ByteReader",
    "ByteWriter",
    "Client",
    "Event",
    "EventBatch",
    "EventWriter",
    "Opening",
    "Reader",
    "ReaderGroup",
    "RevisionedStream",
    "SegmentReader",
    "SharedState",
    "Table",
    "Transaction",
    "ValueBatch",
    "ValueEvent",
    "ValueReader",
    "ValueTransaction",
    "ValueWriter",
    "connect",
]

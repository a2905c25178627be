"""The async client: ``async with penstock.aio.connect("tcp://localhost:9090") as client: ...``.

The blocking client, `penstock.connect`, has the same names.
"""

from __future__ import annotations

from penstock.client.ack import Ack
from penstock.client.batch_reads import BatchReader
from penstock.client.byte_stream import ByteReader, ByteWriter
from penstock.client.client import Client, connect
from penstock.client.event import Event, EventBatch
from penstock.client.event_writer import EventWriter
from penstock.client.opening import Opening
from penstock.client.reader import Reader
from penstock.client.reader_group import ReaderGroup
from penstock.client.revisioned_stream import RevisionedStream
from penstock.client.segment_reader import SegmentReader
from penstock.client.shared_state import SharedState
from penstock.client.tables import Table
from penstock.client.transaction import Transaction
from penstock.client.value_reader import ValueBatch, ValueEvent, ValueReader
from penstock.client.value_transaction import ValueTransaction
from penstock.client.value_writer import ValueWriter

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

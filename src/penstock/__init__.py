"""Penstock: durable, ordered, elastic streams, compatible with Pravega.

::

    import penstock

    with penstock.connect("tcp://localhost:9090") as client:
        client.create_stream("retail/orders")
        with client.event_writer("retail/orders") as writer:
            writer.write(b'{"order": 1}', routing_key="customer-42")

Names are imported when they are first used, so ``import penstock`` is cheap.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import aio, serializers
    from penstock.client.connecting import connect
    from penstock.client.controller.group_overview import GroupOverview, StreamOfGroup
    from penstock.client.controller.stream_segments import SegmentRange
    from penstock.client.controller.transaction_endings import TransactionInfo
    from penstock.client.groups.positions import Positions
    from penstock.client.groups.reader_group import GroupDescription
    from penstock.client.groups.value_reader import ValueBatch, ValueEvent
    from penstock.client.reading.batch_reads import BatchRange
    from penstock.client.reading.event import Event, EventBatch
    from penstock.client.settings import ClientSettings
    from penstock.client.state.revisioned_stream import Revision
    from penstock.client.state.state_watch import StateChange
    from penstock.client.statistics.statistics import ClusterStatistics
    from penstock.client.streams.stream_history import SegmentLife, StreamEpoch, StreamHistory
    from penstock.client.streams.time_windows import TimeWindow
    from penstock.client.sync import (
        Ack,
        BatchReader,
        ByteReader,
        ByteWriter,
        Client,
        EventWriter,
        Reader,
        ReaderGroup,
        RevisionedStream,
        SegmentReader,
        SharedState,
        Table,
        Transaction,
        ValueReader,
        ValueTransaction,
        ValueWriter,
    )
    from penstock.client.tables.table_keys import BytesKeys, Entry, TextKeys, TextPairKeys
    from penstock.client.tables.tables import TableChange
    from penstock.model.errors import (
        AccessDeniedError,
        AuthenticationBusyError,
        AuthenticationError,
        BadOffsetError,
        ClosedError,
        CommitNeededError,
        ConnectionLostError,
        ControllerUnavailableError,
        CorruptionError,
        EventTooLargeError,
        ForkedError,
        InvalidArgumentError,
        InvalidNameError,
        LaterVersionError,
        MetadataConflictError,
        NoSuchReaderGroupError,
        NoSuchScopeError,
        NoSuchSegmentError,
        NoSuchStreamError,
        NoSuchTableError,
        NoSuchTransactionError,
        NotPicklableError,
        OutcomeUnknownError,
        PenstockError,
        PositionBeyondEndError,
        ReplyTooLongError,
        ScopeExistsError,
        ScopeNotEmptyError,
        SegmentStoreBusyError,
        SegmentTruncatedError,
        SerializationError,
        StorageFullError,
        StreamError,
        StreamExistsError,
        StreamNotSealedError,
        StreamSealedError,
        TableConditionError,
        TableExistsError,
        TableKeyMissingError,
        TableKeyVersionError,
        TokenExpiredError,
        TokenRefusedError,
        TransactionAbortedError,
        TransactionCommittedError,
        TransactionError,
        TransactionExpiredError,
        TransactionPreparedError,
        TransactionStreamDeletedError,
        TransactionStreamSealedError,
        UnacknowledgedStorageFullError,
        UndecodableEventError,
        UnsupportedOperationError,
        WriteTimeoutError,
    )
    from penstock.model.policies import GroupRetention, Retention, Scaling, StreamConfig
    from penstock.model.segments import SegmentInfo
    from penstock.model.stream_cuts import StreamCut
    from penstock.model.tables import TableConfig
    from penstock.runtime.client_security import Credentials

__all__ = [
    "AccessDeniedError",
    "Ack",
    "AuthenticationBusyError",
    "AuthenticationError",
    "BadOffsetError",
    "BatchRange",
    "BatchReader",
    "ByteReader",
    "ByteWriter",
    "BytesKeys",
    "Client",
    "ClientSettings",
    "ClosedError",
    "ClusterStatistics",
    "CommitNeededError",
    "ConnectionLostError",
    "ControllerUnavailableError",
    "CorruptionError",
    "Credentials",
    "Entry",
    "Event",
    "EventBatch",
    "EventTooLargeError",
    "EventWriter",
    "ForkedError",
    "GroupDescription",
    "GroupOverview",
    "GroupRetention",
    "InvalidArgumentError",
    "InvalidNameError",
    "LaterVersionError",
    "MetadataConflictError",
    "NoSuchReaderGroupError",
    "NoSuchScopeError",
    "NoSuchSegmentError",
    "NoSuchStreamError",
    "NoSuchTableError",
    "NoSuchTransactionError",
    "NotPicklableError",
    "OutcomeUnknownError",
    "PenstockError",
    "PositionBeyondEndError",
    "Positions",
    "Reader",
    "ReaderGroup",
    "ReplyTooLongError",
    "Retention",
    "Revision",
    "RevisionedStream",
    "Scaling",
    "ScopeExistsError",
    "ScopeNotEmptyError",
    "SegmentInfo",
    "SegmentLife",
    "SegmentRange",
    "SegmentReader",
    "SegmentStoreBusyError",
    "SegmentTruncatedError",
    "SerializationError",
    "SharedState",
    "StateChange",
    "StorageFullError",
    "StreamConfig",
    "StreamCut",
    "StreamEpoch",
    "StreamError",
    "StreamExistsError",
    "StreamHistory",
    "StreamNotSealedError",
    "StreamOfGroup",
    "StreamSealedError",
    "Table",
    "TableChange",
    "TableConditionError",
    "TableConfig",
    "TableExistsError",
    "TableKeyMissingError",
    "TableKeyVersionError",
    "TextKeys",
    "TextPairKeys",
    "TimeWindow",
    "TokenExpiredError",
    "TokenRefusedError",
    "Transaction",
    "TransactionAbortedError",
    "TransactionCommittedError",
    "TransactionError",
    "TransactionExpiredError",
    "TransactionInfo",
    "TransactionPreparedError",
    "TransactionStreamDeletedError",
    "TransactionStreamSealedError",
    "UnacknowledgedStorageFullError",
    "UndecodableEventError",
    "UnsupportedOperationError",
    "ValueBatch",
    "ValueEvent",
    "ValueReader",
    "ValueTransaction",
    "ValueWriter",
    "WriteTimeoutError",
    "aio",
    "connect",
    "serializers",
]

# gRPC's core prints to standard error itself, bypassing `logging`: a line for each server that disconnects. It reads
# this once, when `grpc` is imported, and nothing of Penstock is imported before this. The user's value takes
# precedence.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# gRPC's fork support starts a thread in the child, which crashes the child when its files are closed before an exec:
# PySpark starts Java so. A forked child cannot use gRPC here anyway (`ForkedError`). Source: issue 43055 of grpc/grpc.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_HOME = {
    "Ack": "penstock.client.sync",
    "BatchRange": "penstock.client.reading.batch_reads",
    "BatchReader": "penstock.client.sync",
    "ByteReader": "penstock.client.sync",
    "ByteWriter": "penstock.client.sync",
    "BytesKeys": "penstock.client.tables.table_keys",
    "Client": "penstock.client.sync",
    "ClientSettings": "penstock.client.settings",
    "ClusterStatistics": "penstock.client.statistics.statistics",
    "Credentials": "penstock.runtime.client_security",
    "Entry": "penstock.client.tables.table_keys",
    "Event": "penstock.client.reading.event",
    "EventBatch": "penstock.client.reading.event",
    "EventWriter": "penstock.client.sync",
    "GroupDescription": "penstock.client.groups.reader_group",
    "GroupOverview": "penstock.client.controller.group_overview",
    "GroupRetention": "penstock.model.policies",
    "Positions": "penstock.client.groups.positions",
    "Reader": "penstock.client.sync",
    "ReaderGroup": "penstock.client.sync",
    "Retention": "penstock.model.policies",
    "Revision": "penstock.client.state.revisioned_stream",
    "RevisionedStream": "penstock.client.sync",
    "Scaling": "penstock.model.policies",
    "SegmentInfo": "penstock.model.segments",
    "SegmentLife": "penstock.client.streams.stream_history",
    "SegmentRange": "penstock.client.controller.stream_segments",
    "SegmentReader": "penstock.client.sync",
    "SharedState": "penstock.client.sync",
    "StateChange": "penstock.client.state.state_watch",
    "StreamConfig": "penstock.model.policies",
    "StreamCut": "penstock.model.stream_cuts",
    "StreamEpoch": "penstock.client.streams.stream_history",
    "StreamHistory": "penstock.client.streams.stream_history",
    "StreamOfGroup": "penstock.client.controller.group_overview",
    "Table": "penstock.client.sync",
    "TableChange": "penstock.client.tables.tables",
    "TableConfig": "penstock.model.tables",
    "TextKeys": "penstock.client.tables.table_keys",
    "TextPairKeys": "penstock.client.tables.table_keys",
    "TimeWindow": "penstock.client.streams.time_windows",
    "Transaction": "penstock.client.sync",
    "TransactionInfo": "penstock.client.controller.transaction_endings",
    "ValueBatch": "penstock.client.groups.value_reader",
    "ValueEvent": "penstock.client.groups.value_reader",
    "ValueReader": "penstock.client.sync",
    "ValueTransaction": "penstock.client.sync",
    "ValueWriter": "penstock.client.sync",
    "connect": "penstock.client.connecting",
}


def __getattr__(name: str) -> object:
    if name in ("aio", "serializers"):
        return importlib.import_module(f"penstock.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME.get(name, "penstock.model.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

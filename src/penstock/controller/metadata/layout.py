"""Names of the controller's tables and of the keys in them.

Tables of a scope or a stream carry its UUID, so that a name that is deleted and created again never sees old rows.
Source: controller-internals 2 and 17.
"""

from __future__ import annotations

from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    INDEX_LEAF_EPOCHS,
    INDEX_ROOT_LEAVES,
    RETENTION_CHUNK_CUTS,
    SIZE_SHARD_EPOCHS,
    SIZE_SHARD_NUMBERS,
)
from penstock.model.names import segment_epoch, segment_number

_ROOT = "_system/_tables"
_ID = ".#."

#: scope -> ScopeRecord
SCOPES = f"{_ROOT}/scopes"
#: scope/stream -> LastSegment
DELETED_STREAMS = f"{_ROOT}/deletedStreams"
#: kind/scope/name -> PendingWork; bucket -> AnnouncementFence; slot -> GivenUpRecord; GIVEN_UP -> GivenUpCounter
PENDING_WORK = f"{_ROOT}/pendingWork"
#: scope/stream/transaction -> TransactionIndexEntry
TRANSACTION_INDEX = f"{_ROOT}/transactionIndex"
#: COUNTER, CONTROLLERS -> TransactionCounter
TRANSACTION_COUNTER = f"{_ROOT}/transactionCounter"
#: batch number -> CompletedBatch
COMPLETED_BATCHES = f"{_ROOT}/completedTransactionsBatches"
#: scope/stream -> ListedLife. Created when a writer first notes a time in the cluster.
MARKED_STREAMS = f"{_ROOT}/markedStreams"
#: scope/stream -> ListedLife. Created with the first stream in the cluster that has a retention policy.
RETAINED_STREAMS = f"{_ROOT}/retainedStreams"

#: Tables that exist for the whole cluster.
SYSTEM_TABLES = (
    SCOPES,
    DELETED_STREAMS,
    PENDING_WORK,
    TRANSACTION_INDEX,
    TRANSACTION_COUNTER,
    COMPLETED_BATCHES,
)

#: Keys of the counters of transactions and of starts of controllers.
COUNTER = "counter"
CONTROLLERS = "controllers"

# Keys of a stream's metadata table.
CREATION_TIME = "creationTime"
CONFIGURATION = "configuration"
STATE = "state"
CURRENT_EPOCH = "currentEpochRecord"
TRUNCATION = "truncation"
RETENTION = "retention"
EPOCH_TRANSITION = "epochTransition"
COMMITTING_TRANSACTIONS = "committingTxns"
SUBSCRIBER_SET = "subscriberset"

#: Key of the next position in a commit-order table; positions themselves are decimal numbers.
NEXT_POSITION = "next"


def is_metadata_table(name: str) -> bool:
    """Say whether a segment of this name is one of the controller's tables."""
    return name.startswith(_ROOT + "/")


def streams_in_scope(scope: str, scope_id: str) -> str:
    """Table: stream -> StreamEntry."""
    return f"{_ROOT}/{scope}/streamsInScope{_ID}{scope_id}"


def tags_in_scope(scope: str, scope_id: str) -> str:
    """Table: chunk and tag -> TagChunk."""
    return f"{_ROOT}/{scope}/streamTagsInScope{_ID}{scope_id}"


def reader_groups_in_scope(scope: str, scope_id: str) -> str:
    """Table: reader group -> ReaderGroupRecord."""
    return f"{_ROOT}/{scope}/readerGroupsInScope{_ID}{scope_id}"


def key_value_tables_in_scope(scope: str, scope_id: str) -> str:
    """Table: key-value table -> KeyValueTableRecord."""
    return f"{_ROOT}/{scope}/kvTablesInScope{_ID}{scope_id}"


def stream_metadata(scope: str, stream: str, stream_id: str) -> str:
    """Table of a stream's own records."""
    return f"{_ROOT}/{scope}/{stream}/metadata{_ID}{stream_id}"


def epochs_with_transactions(scope: str, stream: str, stream_id: str) -> str:
    """Table: epoch -> EpochWithTransactions."""
    return f"{_ROOT}/{scope}/{stream}/epochsWithTransactions{_ID}{stream_id}"


def transactions_in_epoch(scope: str, stream: str, stream_id: str, epoch: int) -> str:
    """Table: transaction -> ActiveTransaction."""
    return f"{_ROOT}/{scope}/{stream}/transactionsInEpoch-{epoch}{_ID}{stream_id}"


def commit_order(scope: str, stream: str, stream_id: str) -> str:
    """Table: position -> CommitPosition, and NEXT_POSITION -> CommitCounter."""
    return f"{_ROOT}/{scope}/{stream}/commitOrder{_ID}{stream_id}"


def writer_marks(scope: str, stream: str, stream_id: str) -> str:
    """Table: writer -> WriterMark. Created when the first writer notes a time."""
    return f"{_ROOT}/{scope}/{stream}/writersPositions{_ID}{stream_id}"


def completed_batch(number: int) -> str:
    """Table: scope/stream/transaction -> CompletedTransaction."""
    return f"{_ROOT}/completedTransactionsBatch-{number}"


def fence_key(bucket: int) -> str:
    """Key of the fence of a bucket of announcements. Unlike keys of announcements it has no slash."""
    return f"fence-{bucket}"


#: Key of the counter of given-up work.
GIVEN_UP = "givenUp"


def given_up_key(slot: int) -> str:
    """Key of a record of given-up work. Unlike keys of announcements it has no slash."""
    return f"{GIVEN_UP}-{slot}"


def epoch_key(epoch: int) -> str:
    """Key of an epoch record."""
    return f"epochRecord-{epoch}"


def history_chunk_key(epoch: int) -> str:
    """Key of the history chunk that contains the entry of `epoch`."""
    return f"historyTimeSeriesChunk-{epoch // HISTORY_CHUNK_EPOCHS}"


def index_leaf_key(epoch: int) -> str:
    """Key of the leaf of the history time index that contains the time of `epoch`."""
    return f"historyTimeIndexLeaf-{epoch // INDEX_LEAF_EPOCHS}"


def index_root_key(epoch: int) -> str:
    """Key of the root of the history time index that contains the leaf of `epoch`."""
    return f"historyTimeIndexRoot-{epoch // (INDEX_LEAF_EPOCHS * INDEX_ROOT_LEAVES)}"


def retention_chunk_key(cut: int) -> str:
    """Key of the chunk that contains the time and size of the recorded cut with this number."""
    return f"retentionChunk-{cut // RETENTION_CHUNK_CUTS}"


def retention_cut_key(recorded_ms: int) -> str:
    """Key of the cut that was recorded at a time."""
    return f"retentionCuts-{recorded_ms}"


def sealed_sizes_key(segment: int) -> str:
    """Key of the shard with the sealed size of a segment."""
    number, epoch = segment_number(segment) // SIZE_SHARD_NUMBERS, segment_epoch(segment) // SIZE_SHARD_EPOCHS
    return f"segmentsSealedSizeMapShard-{number}-{epoch}"


def early_sealed_sizes_key(segment: int) -> str:
    """Key of the shard in which early releases put the sealed size of a segment; it is no longer written."""
    return f"segmentsSealedSizeMapShard-{segment_epoch(segment) // 1000}"


def sealed_epoch_key(segment: int) -> str:
    """Key of the epoch in which a segment is no longer active."""
    return f"segmentSealedEpochPath-{segment}"


def subscriber_key(subscriber: str) -> str:
    """Key of a subscriber, a scoped reader group, of a stream."""
    return f"subscriber_{subscriber}"


def tag_key(chunk: int, tag: str) -> str:
    """Key of the streams with `tag` in one chunk."""
    return f"{chunk:02d}/{tag}"

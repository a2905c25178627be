from penstock.rpc import controller_pb2 as _controller_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[TransactionState]
    OPEN: _ClassVar[TransactionState]
    COMMITTING: _ClassVar[TransactionState]
    COMMITTED: _ClassVar[TransactionState]
    ABORTING: _ClassVar[TransactionState]
    ABORTED: _ClassVar[TransactionState]
    PREPARED: _ClassVar[TransactionState]
UNKNOWN: TransactionState
OPEN: TransactionState
COMMITTING: TransactionState
COMMITTED: TransactionState
ABORTING: TransactionState
ABORTED: TransactionState
PREPARED: TransactionState

class PrepareTransactionRequest(_message.Message):
    __slots__ = ("streamInfo", "txnId", "limitMillis")
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    TXNID_FIELD_NUMBER: _ClassVar[int]
    LIMITMILLIS_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    txnId: _controller_pb2.TxnId
    limitMillis: int
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ..., txnId: _Optional[_Union[_controller_pb2.TxnId, _Mapping[str, object]]] = ..., limitMillis: _Optional[int] = ...) -> None: ...

class PrepareTransactionReply(_message.Message):
    __slots__ = ("state", "leftMillis")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEFTMILLIS_FIELD_NUMBER: _ClassVar[int]
    state: TransactionState
    leftMillis: int
    def __init__(self, state: _Optional[_Union[TransactionState, str]] = ..., leftMillis: _Optional[int] = ...) -> None: ...

class DescribeTransactionRequest(_message.Message):
    __slots__ = ("streamInfo", "txnId")
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    TXNID_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    txnId: _controller_pb2.TxnId
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ..., txnId: _Optional[_Union[_controller_pb2.TxnId, _Mapping[str, object]]] = ...) -> None: ...

class TransactionDescription(_message.Message):
    __slots__ = ("txnId", "state", "ageMillis", "leaseMillis", "leaseLeftMillis", "lifetimeLeftMillis", "writerId", "abortReason")
    class AbortReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[TransactionDescription.AbortReason]
        REQUESTED: _ClassVar[TransactionDescription.AbortReason]
        LEASE_ENDED: _ClassVar[TransactionDescription.AbortReason]
        STREAM_SEALED: _ClassVar[TransactionDescription.AbortReason]
    NONE: TransactionDescription.AbortReason
    REQUESTED: TransactionDescription.AbortReason
    LEASE_ENDED: TransactionDescription.AbortReason
    STREAM_SEALED: TransactionDescription.AbortReason
    TXNID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGEMILLIS_FIELD_NUMBER: _ClassVar[int]
    LEASEMILLIS_FIELD_NUMBER: _ClassVar[int]
    LEASELEFTMILLIS_FIELD_NUMBER: _ClassVar[int]
    LIFETIMELEFTMILLIS_FIELD_NUMBER: _ClassVar[int]
    WRITERID_FIELD_NUMBER: _ClassVar[int]
    ABORTREASON_FIELD_NUMBER: _ClassVar[int]
    txnId: _controller_pb2.TxnId
    state: TransactionState
    ageMillis: int
    leaseMillis: int
    leaseLeftMillis: int
    lifetimeLeftMillis: int
    writerId: str
    abortReason: TransactionDescription.AbortReason
    def __init__(self, txnId: _Optional[_Union[_controller_pb2.TxnId, _Mapping[str, object]]] = ..., state: _Optional[_Union[TransactionState, str]] = ..., ageMillis: _Optional[int] = ..., leaseMillis: _Optional[int] = ..., leaseLeftMillis: _Optional[int] = ..., lifetimeLeftMillis: _Optional[int] = ..., writerId: _Optional[str] = ..., abortReason: _Optional[_Union[TransactionDescription.AbortReason, str]] = ...) -> None: ...

class OpenTransactionsRequest(_message.Message):
    __slots__ = ("streamInfo", "token")
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    token: str
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ..., token: _Optional[str] = ...) -> None: ...

class OpenTransactionsReply(_message.Message):
    __slots__ = ("transactions", "token")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionDescription]
    token: str
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionDescription, _Mapping[str, object]]]] = ..., token: _Optional[str] = ...) -> None: ...

class ExplainRetentionRequest(_message.Message):
    __slots__ = ("streamInfo",)
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ...) -> None: ...

class RetentionExplanation(_message.Message):
    __slots__ = ("policy", "isSealed", "isEnabled", "row", "head", "tail", "chosen", "bound", "minCut", "maxCut", "cuts", "cutCount", "subscribers", "subscriberCount", "isCutDue", "intervalMillis", "nextLookMillis")
    class Row(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[RetentionExplanation.Row]
        NO_CUTS: _ClassVar[RetentionExplanation.Row]
        SIZE_NO_SUBSCRIBERS: _ClassVar[RetentionExplanation.Row]
        SIZE_BELOW_MIN_WITHOUT_CUT: _ClassVar[RetentionExplanation.Row]
        SIZE_BELOW_MIN: _ClassVar[RetentionExplanation.Row]
        SIZE_BELOW_MIN_OVERLAPPING: _ClassVar[RetentionExplanation.Row]
        SIZE_BETWEEN: _ClassVar[RetentionExplanation.Row]
        SIZE_PAST_MAX: _ClassVar[RetentionExplanation.Row]
        SIZE_PAST_MAX_WITHOUT_GAIN: _ClassVar[RetentionExplanation.Row]
        TIME_NO_SUBSCRIBERS: _ClassVar[RetentionExplanation.Row]
        TIME_WITHOUT_CUT: _ClassVar[RetentionExplanation.Row]
        TIME_ABOVE_MIN: _ClassVar[RetentionExplanation.Row]
        TIME_MIN_OVERLAPPING: _ClassVar[RetentionExplanation.Row]
        TIME_BETWEEN: _ClassVar[RetentionExplanation.Row]
        TIME_PAST_MAX: _ClassVar[RetentionExplanation.Row]
        TIME_MAX_OVERLAPPING: _ClassVar[RetentionExplanation.Row]
    NONE: RetentionExplanation.Row
    NO_CUTS: RetentionExplanation.Row
    SIZE_NO_SUBSCRIBERS: RetentionExplanation.Row
    SIZE_BELOW_MIN_WITHOUT_CUT: RetentionExplanation.Row
    SIZE_BELOW_MIN: RetentionExplanation.Row
    SIZE_BELOW_MIN_OVERLAPPING: RetentionExplanation.Row
    SIZE_BETWEEN: RetentionExplanation.Row
    SIZE_PAST_MAX: RetentionExplanation.Row
    SIZE_PAST_MAX_WITHOUT_GAIN: RetentionExplanation.Row
    TIME_NO_SUBSCRIBERS: RetentionExplanation.Row
    TIME_WITHOUT_CUT: RetentionExplanation.Row
    TIME_ABOVE_MIN: RetentionExplanation.Row
    TIME_MIN_OVERLAPPING: RetentionExplanation.Row
    TIME_BETWEEN: RetentionExplanation.Row
    TIME_PAST_MAX: RetentionExplanation.Row
    TIME_MAX_OVERLAPPING: RetentionExplanation.Row
    class Place(_message.Message):
        __slots__ = ("cut", "sizeBytes")
        class CutEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: int
            value: int
            def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
        CUT_FIELD_NUMBER: _ClassVar[int]
        SIZEBYTES_FIELD_NUMBER: _ClassVar[int]
        cut: _containers.ScalarMap[int, int]
        sizeBytes: int
        def __init__(self, cut: _Optional[_Mapping[int, int]] = ..., sizeBytes: _Optional[int] = ...) -> None: ...
    class RecordedCut(_message.Message):
        __slots__ = ("ageMillis", "sizeBytes")
        AGEMILLIS_FIELD_NUMBER: _ClassVar[int]
        SIZEBYTES_FIELD_NUMBER: _ClassVar[int]
        ageMillis: int
        sizeBytes: int
        def __init__(self, ageMillis: _Optional[int] = ..., sizeBytes: _Optional[int] = ...) -> None: ...
    class Subscriber(_message.Message):
        __slots__ = ("name", "hasPublished", "place", "isLast")
        NAME_FIELD_NUMBER: _ClassVar[int]
        HASPUBLISHED_FIELD_NUMBER: _ClassVar[int]
        PLACE_FIELD_NUMBER: _ClassVar[int]
        ISLAST_FIELD_NUMBER: _ClassVar[int]
        name: str
        hasPublished: bool
        place: RetentionExplanation.Place
        isLast: bool
        def __init__(self, name: _Optional[str] = ..., hasPublished: bool = ..., place: _Optional[_Union[RetentionExplanation.Place, _Mapping[str, object]]] = ..., isLast: bool = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ISSEALED_FIELD_NUMBER: _ClassVar[int]
    ISENABLED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    MINCUT_FIELD_NUMBER: _ClassVar[int]
    MAXCUT_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    CUTCOUNT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERCOUNT_FIELD_NUMBER: _ClassVar[int]
    ISCUTDUE_FIELD_NUMBER: _ClassVar[int]
    INTERVALMILLIS_FIELD_NUMBER: _ClassVar[int]
    NEXTLOOKMILLIS_FIELD_NUMBER: _ClassVar[int]
    policy: _controller_pb2.RetentionPolicy
    isSealed: bool
    isEnabled: bool
    row: RetentionExplanation.Row
    head: RetentionExplanation.Place
    tail: RetentionExplanation.Place
    chosen: RetentionExplanation.Place
    bound: RetentionExplanation.Place
    minCut: RetentionExplanation.RecordedCut
    maxCut: RetentionExplanation.RecordedCut
    cuts: _containers.RepeatedCompositeFieldContainer[RetentionExplanation.RecordedCut]
    cutCount: int
    subscribers: _containers.RepeatedCompositeFieldContainer[RetentionExplanation.Subscriber]
    subscriberCount: int
    isCutDue: bool
    intervalMillis: int
    nextLookMillis: int
    def __init__(self, policy: _Optional[_Union[_controller_pb2.RetentionPolicy, _Mapping[str, object]]] = ..., isSealed: bool = ..., isEnabled: bool = ..., row: _Optional[_Union[RetentionExplanation.Row, str]] = ..., head: _Optional[_Union[RetentionExplanation.Place, _Mapping[str, object]]] = ..., tail: _Optional[_Union[RetentionExplanation.Place, _Mapping[str, object]]] = ..., chosen: _Optional[_Union[RetentionExplanation.Place, _Mapping[str, object]]] = ..., bound: _Optional[_Union[RetentionExplanation.Place, _Mapping[str, object]]] = ..., minCut: _Optional[_Union[RetentionExplanation.RecordedCut, _Mapping[str, object]]] = ..., maxCut: _Optional[_Union[RetentionExplanation.RecordedCut, _Mapping[str, object]]] = ..., cuts: _Optional[_Iterable[_Union[RetentionExplanation.RecordedCut, _Mapping[str, object]]]] = ..., cutCount: _Optional[int] = ..., subscribers: _Optional[_Iterable[_Union[RetentionExplanation.Subscriber, _Mapping[str, object]]]] = ..., subscriberCount: _Optional[int] = ..., isCutDue: bool = ..., intervalMillis: _Optional[int] = ..., nextLookMillis: _Optional[int] = ...) -> None: ...

class DescribeReaderGroupsRequest(_message.Message):
    __slots__ = ("scopeInfo", "token", "readerGroup", "isNamesOnly")
    SCOPEINFO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    READERGROUP_FIELD_NUMBER: _ClassVar[int]
    ISNAMESONLY_FIELD_NUMBER: _ClassVar[int]
    scopeInfo: _controller_pb2.ScopeInfo
    token: str
    readerGroup: str
    isNamesOnly: bool
    def __init__(self, scopeInfo: _Optional[_Union[_controller_pb2.ScopeInfo, _Mapping[str, object]]] = ..., token: _Optional[str] = ..., readerGroup: _Optional[str] = ..., isNamesOnly: bool = ...) -> None: ...

class DescribeReaderGroupsReply(_message.Message):
    __slots__ = ("groups", "token")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ReaderGroupOverview]
    token: str
    def __init__(self, groups: _Optional[_Iterable[_Union[ReaderGroupOverview, _Mapping[str, object]]]] = ..., token: _Optional[str] = ...) -> None: ...

class ReaderGroupOverview(_message.Message):
    __slots__ = ("name", "isPenstock", "retention", "generation", "streams")
    class StreamOfGroup(_message.Message):
        __slots__ = ("streamInfo", "isSubscribed", "cut", "ageMillis")
        class CutEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: int
            value: int
            def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
        STREAMINFO_FIELD_NUMBER: _ClassVar[int]
        ISSUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
        CUT_FIELD_NUMBER: _ClassVar[int]
        AGEMILLIS_FIELD_NUMBER: _ClassVar[int]
        streamInfo: _controller_pb2.StreamInfo
        isSubscribed: bool
        cut: _containers.ScalarMap[int, int]
        ageMillis: int
        def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ..., isSubscribed: bool = ..., cut: _Optional[_Mapping[int, int]] = ..., ageMillis: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ISPENSTOCK_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    isPenstock: bool
    retention: _controller_pb2.ReaderGroupConfiguration.RetentionType
    generation: int
    streams: _containers.RepeatedCompositeFieldContainer[ReaderGroupOverview.StreamOfGroup]
    def __init__(self, name: _Optional[str] = ..., isPenstock: bool = ..., retention: _Optional[_Union[_controller_pb2.ReaderGroupConfiguration.RetentionType, str]] = ..., generation: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[ReaderGroupOverview.StreamOfGroup, _Mapping[str, object]]]] = ...) -> None: ...

class WholeTailRequest(_message.Message):
    __slots__ = ("streamInfo",)
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ...) -> None: ...

class WholeTail(_message.Message):
    __slots__ = ("cut",)
    class CutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: _containers.ScalarMap[int, int]
    def __init__(self, cut: _Optional[_Mapping[int, int]] = ...) -> None: ...

class DescribeStreamRequest(_message.Message):
    __slots__ = ("streamInfo",)
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ...) -> None: ...

class StreamDescription(_message.Message):
    __slots__ = ("identity",)
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    identity: str
    def __init__(self, identity: _Optional[str] = ...) -> None: ...

class DescribeHistoryRequest(_message.Message):
    __slots__ = ("streamInfo", "before", "limit")
    STREAMINFO_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    streamInfo: _controller_pb2.StreamInfo
    before: int
    limit: int
    def __init__(self, streamInfo: _Optional[_Union[_controller_pb2.StreamInfo, _Mapping[str, object]]] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class StreamHistory(_message.Message):
    __slots__ = ("epochs", "currentEpoch", "isSealed")
    class Segment(_message.Message):
        __slots__ = ("id", "keyLow", "keyHigh")
        ID_FIELD_NUMBER: _ClassVar[int]
        KEYLOW_FIELD_NUMBER: _ClassVar[int]
        KEYHIGH_FIELD_NUMBER: _ClassVar[int]
        id: int
        keyLow: float
        keyHigh: float
        def __init__(self, id: _Optional[int] = ..., keyLow: _Optional[float] = ..., keyHigh: _Optional[float] = ...) -> None: ...
    class Epoch(_message.Message):
        __slots__ = ("epoch", "beganMillis", "created", "sealed")
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        BEGANMILLIS_FIELD_NUMBER: _ClassVar[int]
        CREATED_FIELD_NUMBER: _ClassVar[int]
        SEALED_FIELD_NUMBER: _ClassVar[int]
        epoch: int
        beganMillis: int
        created: _containers.RepeatedCompositeFieldContainer[StreamHistory.Segment]
        sealed: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, epoch: _Optional[int] = ..., beganMillis: _Optional[int] = ..., created: _Optional[_Iterable[_Union[StreamHistory.Segment, _Mapping[str, object]]]] = ..., sealed: _Optional[_Iterable[int]] = ...) -> None: ...
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    CURRENTEPOCH_FIELD_NUMBER: _ClassVar[int]
    ISSEALED_FIELD_NUMBER: _ClassVar[int]
    epochs: _containers.RepeatedCompositeFieldContainer[StreamHistory.Epoch]
    currentEpoch: int
    isSealed: bool
    def __init__(self, epochs: _Optional[_Iterable[_Union[StreamHistory.Epoch, _Mapping[str, object]]]] = ..., currentEpoch: _Optional[int] = ..., isSealed: bool = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("token", "expiresMillis")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRESMILLIS_FIELD_NUMBER: _ClassVar[int]
    token: str
    expiresMillis: int
    def __init__(self, token: _Optional[str] = ..., expiresMillis: _Optional[int] = ...) -> None: ...

class DescribeCallerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeCallerReply(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class DescribeMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterMembers(_message.Message):
    __slots__ = ("clusterId", "stores", "containers", "controllers", "leader", "latest")
    class Store(_message.Message):
        __slots__ = ("name", "addresses", "zone", "state", "version", "hasLoad", "busy", "assigned", "serving")
        NAME_FIELD_NUMBER: _ClassVar[int]
        ADDRESSES_FIELD_NUMBER: _ClassVar[int]
        ZONE_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        VERSION_FIELD_NUMBER: _ClassVar[int]
        HASLOAD_FIELD_NUMBER: _ClassVar[int]
        BUSY_FIELD_NUMBER: _ClassVar[int]
        ASSIGNED_FIELD_NUMBER: _ClassVar[int]
        SERVING_FIELD_NUMBER: _ClassVar[int]
        name: str
        addresses: _containers.RepeatedScalarFieldContainer[str]
        zone: str
        state: str
        version: str
        hasLoad: bool
        busy: float
        assigned: _containers.RepeatedScalarFieldContainer[int]
        serving: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., zone: _Optional[str] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., hasLoad: bool = ..., busy: _Optional[float] = ..., assigned: _Optional[_Iterable[int]] = ..., serving: _Optional[_Iterable[int]] = ...) -> None: ...
    class Container(_message.Message):
        __slots__ = ("id", "assigned", "holder", "phase", "epoch", "error")
        ID_FIELD_NUMBER: _ClassVar[int]
        ASSIGNED_FIELD_NUMBER: _ClassVar[int]
        HOLDER_FIELD_NUMBER: _ClassVar[int]
        PHASE_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        id: int
        assigned: str
        holder: str
        phase: str
        epoch: int
        error: str
        def __init__(self, id: _Optional[int] = ..., assigned: _Optional[str] = ..., holder: _Optional[str] = ..., phase: _Optional[str] = ..., epoch: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...
    CLUSTERID_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    clusterId: str
    stores: _containers.RepeatedCompositeFieldContainer[ClusterMembers.Store]
    containers: _containers.RepeatedCompositeFieldContainer[ClusterMembers.Container]
    controllers: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    latest: _containers.RepeatedCompositeFieldContainer[ContainerMove]
    def __init__(self, clusterId: _Optional[str] = ..., stores: _Optional[_Iterable[_Union[ClusterMembers.Store, _Mapping[str, object]]]] = ..., containers: _Optional[_Iterable[_Union[ClusterMembers.Container, _Mapping[str, object]]]] = ..., controllers: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., latest: _Optional[_Iterable[_Union[ContainerMove, _Mapping[str, object]]]] = ...) -> None: ...

class ContainerMove(_message.Message):
    __slots__ = ("container", "source", "target", "reason")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    container: int
    source: str
    target: str
    reason: str
    def __init__(self, container: _Optional[int] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangeAssignmentRequest(_message.Message):
    __slots__ = ("kind", "store", "container", "isDry")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOTHING: _ClassVar[ChangeAssignmentRequest.Kind]
        DRAIN: _ClassVar[ChangeAssignmentRequest.Kind]
        UNDRAIN: _ClassVar[ChangeAssignmentRequest.Kind]
        MOVE: _ClassVar[ChangeAssignmentRequest.Kind]
        BALANCE: _ClassVar[ChangeAssignmentRequest.Kind]
    NOTHING: ChangeAssignmentRequest.Kind
    DRAIN: ChangeAssignmentRequest.Kind
    UNDRAIN: ChangeAssignmentRequest.Kind
    MOVE: ChangeAssignmentRequest.Kind
    BALANCE: ChangeAssignmentRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    ISDRY_FIELD_NUMBER: _ClassVar[int]
    kind: ChangeAssignmentRequest.Kind
    store: str
    container: int
    isDry: bool
    def __init__(self, kind: _Optional[_Union[ChangeAssignmentRequest.Kind, str]] = ..., store: _Optional[str] = ..., container: _Optional[int] = ..., isDry: bool = ...) -> None: ...

class ChangeAssignmentReply(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[ContainerMove]
    def __init__(self, moves: _Optional[_Iterable[_Union[ContainerMove, _Mapping[str, object]]]] = ...) -> None: ...

class DescribeAccountsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AccountDescriptions(_message.Message):
    __slots__ = ("own", "hasAll", "accounts")
    class Account(_message.Message):
        __slots__ = ("name", "hasPassword", "entries")
        NAME_FIELD_NUMBER: _ClassVar[int]
        HASPASSWORD_FIELD_NUMBER: _ClassVar[int]
        ENTRIES_FIELD_NUMBER: _ClassVar[int]
        name: str
        hasPassword: bool
        entries: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, name: _Optional[str] = ..., hasPassword: bool = ..., entries: _Optional[_Iterable[str]] = ...) -> None: ...
    OWN_FIELD_NUMBER: _ClassVar[int]
    HASALL_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    own: AccountDescriptions.Account
    hasAll: bool
    accounts: _containers.RepeatedCompositeFieldContainer[AccountDescriptions.Account]
    def __init__(self, own: _Optional[_Union[AccountDescriptions.Account, _Mapping[str, object]]] = ..., hasAll: bool = ..., accounts: _Optional[_Iterable[_Union[AccountDescriptions.Account, _Mapping[str, object]]]] = ...) -> None: ...

class ReadAuditRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class AuditEntries(_message.Message):
    __slots__ = ("lines", "file", "problem", "lost")
    LINES_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    file: str
    problem: str
    lost: int
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., file: _Optional[str] = ..., problem: _Optional[str] = ..., lost: _Optional[int] = ...) -> None: ...

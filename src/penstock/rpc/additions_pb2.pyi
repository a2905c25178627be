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

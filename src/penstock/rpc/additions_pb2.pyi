from penstock.rpc import controller_pb2 as _controller_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
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

"""The root of the tree of errors, and those that are about no segment, no stream and no storage."""

from __future__ import annotations


class PicklableError(BaseException):
    """An exception that survives pickling and copying, whatever arguments its constructor takes.

    Python's exceptions are restored by a call of the constructor with `args`, the message. That fails where the
    constructor takes anything else, and a process pool that receives such an exception never answers.
    """

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self.args
        if isinstance(self, OSError) and self.filename is not None:
            arguments = (*arguments, self.filename)  # Python takes it out of `args`.
        return _restored, (type(self), arguments), self.__dict__


def _restored(kind: type[BaseException], arguments: tuple[object, ...]) -> BaseException:
    """Make an exception without a call of its constructor; pickle restores the attributes."""
    error = kind.__new__(kind, *arguments)
    if isinstance(error, OSError):
        OSError.__init__(error, *arguments)
    else:
        error.args = arguments
    return error


class PenstockError(PicklableError, Exception):
    """Root of every error that Penstock raises on purpose. It can be pickled."""

    #: True when the same request may be sent again without risk of being applied twice.
    is_retriable = False


class InvalidArgumentError(PenstockError, ValueError):
    """The caller passed something that can never work."""


class InvalidNameError(InvalidArgumentError):
    """A scope, stream, reader group, reader or writer name breaks the naming rules."""


class NotPicklableError(InvalidArgumentError, TypeError):
    """A client, or an object made by one, cannot be pickled or copied. Connect in the other process instead."""


class SerializationError(InvalidArgumentError):
    """A value is not one that the serializer can write, or the bytes of an event are not what it reads."""


class UndecodableEventError(SerializationError):
    """An event was read whose bytes are not what the serializer reads. It does not count as read, and comes again.

    Attributes:
        stream: ``scope/stream``.
        segment_id: 64-bit segment id.
        offset, position: bytes in the segment where the event begins, and where the next one does.
        data: the payload.
    """

    def __init__(self, *, stream: str, segment_id: int, offset: int, position: int, data: bytes, reason: str) -> None:
        super().__init__(
            f"the event of {stream} in segment {segment_id} at byte {offset} ({len(data)} bytes) cannot be decoded: "
            f"{reason}; it is still unread: read it as bytes with events.read() of the reader, and continue"
        )
        self.stream = stream
        self.segment_id = segment_id
        self.offset = offset
        self.position = position
        self.data = data


class EventTooLargeError(InvalidArgumentError):
    """An event is longer (`length_bytes`) than the writer's settings allow (`length_bytes_max`)."""

    def __init__(self, *, length_bytes: int, length_bytes_max: int) -> None:
        super().__init__(f"an event of {length_bytes} bytes is above large_event_bytes_max ({length_bytes_max})")
        self.length_bytes = length_bytes
        self.length_bytes_max = length_bytes_max


class ReplyTooLongError(InvalidArgumentError):
    """A controller's reply is longer than it may send, or than this client takes. Asking again changes nothing.

    A reply about a stream names it for each segment: ten thousand segments fit if scope and stream have 180 characters
    each. The limits are the controller's `message_bytes_max` and the client's `controller_reply_bytes_max`.
    """


class TableReadTooLongError(InvalidArgumentError):
    """A read of a table asks for more keys, or for more bytes of entries, than one reply may have. Ask for fewer.

    Up to `TABLE_READ_KEY_COUNT_SURE` keys fit, whatever they and their values are.
    """


class UnsupportedOperationError(PenstockError):
    """The operation is not built yet, or makes no sense for this kind of segment."""


class ProtocolError(PenstockError):
    """The bytes received are not the protocol. The connection must be closed."""


class OutcomeUnknownError(PenstockError):
    """The request may or may not have been applied. Find out before repeating it."""


class ConnectionLostError(OutcomeUnknownError):
    """The connection ended before the reply came.

    Attributes:
        silent_s: for how long nothing had been received when it was given up; 0: it was lost in another way.
        unresolved_host: the host name that this machine could not resolve; empty: the connection failed otherwise.
    """

    silent_s: float = 0.0
    unresolved_host: str = ""


class DataDirectoryInUseError(PenstockError):
    """Another process holds the data directory."""

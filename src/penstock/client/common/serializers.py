"""Serializers: conversion between the values of an application and the bytes of events.

`Client.event_writer` takes one; readers pass events through `deserialize`. An event contains only the serializer's
bytes, so other clients can read it. Any object with these two methods can be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from penstock.client.common.arrow import import_arrow
from penstock.model.errors import SerializationError

if TYPE_CHECKING:
    import pyarrow as pa

Value = TypeVar("Value")

#: The values that JSON can represent.
JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


class Serializer(Protocol[Value]):
    """Converts values to bytes and back."""

    def serialize(self, value: Value, /) -> bytes:
        """Return `value` as the payload of an event. Raises `SerializationError`."""

    def deserialize(self, data: bytes, /) -> Value:
        """Return the value whose payload is `data`. Raises `SerializationError`."""


class BytesSerializer:
    """Passes bytes through, for code that takes a serializer and has bytes."""

    def serialize(self, value: bytes, /) -> bytes:
        """See `Serializer`."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SerializationError(f"BytesSerializer takes bytes, not {type(value).__name__}")
        return bytes(value)

    def deserialize(self, data: bytes, /) -> bytes:
        """See `Serializer`."""
        return data


class TextSerializer:
    """Text in UTF-8, or in another `encoding`."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def serialize(self, value: str, /) -> bytes:
        """See `Serializer`."""
        if not isinstance(value, str):
            raise SerializationError(f"TextSerializer takes str, not {type(value).__name__}")
        try:
            return value.encode(self._encoding)
        except UnicodeError as error:
            raise SerializationError(f"text cannot be written in {self._encoding}: {error}") from error

    def deserialize(self, data: bytes, /) -> str:
        """See `Serializer`."""
        try:
            return data.decode(self._encoding)
        except UnicodeError as error:
            raise SerializationError(f"an event is not text in {self._encoding}: {error}") from error


class MsgspecSerializer(Generic[Value]):
    """Values of one type, validated when read, as JSON or MessagePack by msgspec.

    `kind`: a `msgspec.Struct`, a dataclass, or any other type that msgspec supports; `encoding`: ``json`` or
    ``msgpack``.
    """

    def __init__(self, kind: type[Value], encoding: Literal["json", "msgpack"] = "json") -> None:
        # Imported late: programs without this serializer need not load it.
        import msgspec

        self._what = f"{getattr(kind, '__name__', kind)} in {encoding}"
        self._errors: tuple[type[Exception], ...] = (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError)
        self._encode: Callable[[object], bytes]
        self._decode: Callable[[bytes], Value]
        if encoding == "json":
            self._encode, self._decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode
        else:
            self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode

    def serialize(self, value: Value, /) -> bytes:
        """See `Serializer`."""
        try:
            return self._encode(value)
        except self._errors as error:
            raise SerializationError(f"a {type(value).__name__} cannot be written as {self._what}: {error}") from error

    def deserialize(self, data: bytes, /) -> Value:
        """See `Serializer`."""
        try:
            return self._decode(data)
        except self._errors as error:
            raise SerializationError(f"an event is not {self._what}: {error}") from error


class JsonSerializer:
    """JSON values, as plain Python objects."""

    def __init__(self) -> None:
        self._any: MsgspecSerializer[object] = MsgspecSerializer(object)

    def serialize(self, value: JsonValue, /) -> bytes:
        """See `Serializer`."""
        return self._any.serialize(value)

    def deserialize(self, data: bytes, /) -> JsonValue:
        """See `Serializer`."""
        value: JsonValue = self._any.deserialize(data)  # type: ignore[assignment]  # of JSON nothing else is made
        return value


class PydanticModel(Protocol):
    """The methods that `PydanticSerializer` needs of a model; every `pydantic.BaseModel` has them."""

    def model_dump_json(self) -> str:
        """Return the model as JSON."""

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, /) -> Self:
        """Return a model from JSON; raises a `ValueError`."""


Model = TypeVar("Model", bound=PydanticModel)


class PydanticSerializer(Generic[Model]):
    """Models of one class, validated when read, as JSON by pydantic. `model`: the class."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model

    def serialize(self, value: Model, /) -> bytes:
        """See `Serializer`."""
        if not isinstance(value, self._model):
            raise SerializationError(f"a {type(value).__name__} is not a {self._model.__name__}")
        try:
            return value.model_dump_json().encode()
        except ValueError as error:
            raise SerializationError(f"a {self._model.__name__} cannot be written as JSON: {error}") from error

    def deserialize(self, data: bytes, /) -> Model:
        """See `Serializer`."""
        try:
            return self._model.model_validate_json(data)
        except ValueError as error:
            raise SerializationError(f"an event is not a {self._model.__name__} in JSON: {error}") from error


class ArrowSerializer:
    """A record batch per event, as an Arrow IPC stream, which contains its own schema. Needs ``penstock[arrow]``.

    For many small events, pass an array of payloads to `write_many` instead.
    """

    def __init__(self) -> None:
        self._arrow, _ = import_arrow()

    def serialize(self, value: pa.RecordBatch, /) -> bytes:
        """See `Serializer`."""
        arrow = self._arrow
        if not isinstance(value, arrow.RecordBatch):
            raise SerializationError(f"ArrowSerializer takes a pyarrow.RecordBatch, not {type(value).__name__}")
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    def deserialize(self, data: bytes, /) -> pa.RecordBatch:
        """See `Serializer`."""
        arrow = self._arrow
        try:
            with arrow.ipc.open_stream(data) as reader:
                batch: pa.RecordBatch = reader.read_next_batch()
                batch.validate(full=True)
                return batch
        except (arrow.ArrowException, OSError, StopIteration, ValueError) as error:
            raise SerializationError(f"an event is not a record batch in an Arrow IPC stream: {error}") from error

"""Serializers: values survive, others' bytes are refused, and writers take values of all kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ClosedError, SerializationError
from penstock.serializers import (
    ArrowSerializer,
    BytesSerializer,
    JsonSerializer,
    MsgspecSerializer,
    PydanticSerializer,
    TextSerializer,
)

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"


class Order(msgspec.Struct):
    """An order."""

    number: int
    items: list[str]


@dataclass
class Plain:
    """An order as a dataclass."""

    number: int


def pydantic_order() -> Any:
    """The same as a pydantic model."""
    pydantic = pytest.importorskip("pydantic")
    return pydantic.create_model("Order", number=(int, ...), items=(list[str], ...))


def cases() -> dict[str, tuple[Any, Any, Any, bytes | None]]:
    """Serializer, a value of it, something else, bytes that are not its own."""
    model = pydantic_order()
    arrow = pytest.importorskip("pyarrow")
    return {
        "bytes": (BytesSerializer(), b"x\0", "text", None),
        "text": (TextSerializer(), "größer", b"bytes", b"\xff"),
        "latin": (TextSerializer("latin-1"), "größer", "中", None),
        "json": (JsonSerializer(), {"a": [1, 2.5, None, True]}, {"a": object()}, b"{"),
        "msgspec json": (MsgspecSerializer(Order), Order(1, ["a"]), object(), b'{"number": "x", "items": []}'),
        "msgspec msgpack": (MsgspecSerializer(Order, "msgpack"), Order(1, ["a"]), object(), b"\xc1"),
        "dataclass": (MsgspecSerializer(Plain), Plain(3), object(), b"[]"),
        "pydantic": (PydanticSerializer(model), model(number=1, items=["a"]), 5, b'{"number": "x"}'),
        "arrow": (ArrowSerializer(), arrow.record_batch({"n": [1, 2]}), [1, 2], b"not arrow"),
    }


KINDS = ["bytes", "text", "latin", "json", "msgspec json", "msgspec msgpack", "dataclass", "pydantic", "arrow"]


@pytest.mark.parametrize("kind", KINDS)
def test_values_survive_and_others_are_refused(kind: str) -> None:
    serializer, value, other, garbage = cases()[kind]
    data = serializer.serialize(value)
    assert type(data) is bytes
    assert serializer.deserialize(data) == value
    with pytest.raises(SerializationError):
        serializer.serialize(other)
    if garbage is not None:
        with pytest.raises(SerializationError):
            serializer.deserialize(garbage)


@given(st.binary(max_size=60))
def test_no_bytes_make_a_serializer_fail_in_another_way(data: bytes) -> None:
    for serializer in (JsonSerializer(), TextSerializer(), MsgspecSerializer(Order, "msgpack"), ArrowSerializer()):
        try:
            serializer.deserialize(data)
        except SerializationError:
            pass


async def test_a_writer_with_a_serializer_takes_values(cluster: Cluster) -> None:
    serializer = MsgspecSerializer(Order)
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM, serializer=serializer) as writer:
            await (await writer.write(Order(0, []), "key"))
            with pytest.raises(SerializationError):
                await writer.write(object(), "key")  # type: ignore[arg-type]
            await writer.write_many([Order(number, ["x"]) for number in range(1, 2000)], "key")
            assert "ValueWriter" in repr(writer)
        with pytest.raises(ClosedError):
            await writer.write(Order(1, []))
        async with client.reader_group("audit", [STREAM]) as group, group.reader() as reader:
            found = [serializer.deserialize((await reader.read(20)).data) for _ in range(2000)]  # type: ignore[union-attr]
    assert [order.number for order in found] == list(range(2000))

"""The async classes that have a blocking twin, and their methods that are more than one call through the portal.

Read by `penstock_tools.generate_sync`. A new async class gets its twin by a line in `CLASSES`; see
``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Blocking:
    """How a blocking class is generated from an async one.

    Attributes:
        module: below `penstock.client`; the generated module has its last part as its name.
        name: of both classes.
        base: module below `penstock.client.sync` and base class of the blocking class. Members written there by hand
            are not generated. `Handle` and `PlainHandle` are of an async class; others have its type parameters.
        init: lines for `__init__`, where `part` is the async object.
        bodies: bodies of methods that are more than one call through the portal. Signatures and docstrings come from
            the async methods nevertheless.
        imports: names that the bodies need and the async module does not import, by module.
    """

    module: str
    name: str
    base: tuple[str, str] = ("handle", "Handle")
    init: str = ""
    bodies: Mapping[str, str] = field(default_factory=dict)
    imports: Mapping[str, str] = field(default_factory=dict)

    @property
    def twin(self) -> str:
        """The generated module's name below `penstock.client.sync`."""
        return self.module.rpartition(".")[2]


#: A single event is added to its block in the calling thread: no event crosses into the loop individually.
_WRITE = """\
writer = {writer}
if is_full(writer):
    self._portal.call(wait_for_space(writer, timeout_s))
# Its acks were made for this front end.
return cast(Ack, {put}(event, routing_key, on_delivery))
"""

_EVENT_WRITER, _READER = "penstock.client.writing.event_writer", "penstock.client.groups.reader"

#: A chunk's events are returned in the calling thread; the next chunk is requested when it is used up.
_CHUNK = "chunk = chunk_in_hand(self._part) or self._portal.call(next_chunk(self._part, timeout_s))\n"

#: A page crosses into the calling thread at once.
_PAGES = "for page in self.{method}({arguments}):\n    yield from page\n"
_SPAN = "primary=primary, prefix=prefix, start=start, end=end"

_VALUE_CHUNK = (
    "reader = self._part.events\nchunk = chunk_in_hand(reader) or self._portal.call(next_chunk(reader, timeout_s))\n"
)

#: The serializer belongs to the application, and runs in the application's thread, before anything is written.
_WRITE_VALUES = "self.events.write_many(list(map(self._serialize, values)), routing_keys, timeout_s=timeout_s)\n"

#: All classes of `penstock.aio`, except values and those written by hand in `penstock.client.sync`.
CLASSES: Sequence[Blocking] = (
    Blocking(
        "writing.event_writer",
        "EventWriter",
        init="self._put = put_of(part)\n",
        bodies={"write": _WRITE.format(writer="self._part", put="self._put")},
        imports={"cast": "typing"} | dict.fromkeys(("is_full", "put_of", "wait_for_space"), _EVENT_WRITER),
    ),
    Blocking(
        "writing.value_writer",
        "ValueWriter",
        base=("handle", "PlainHandle"),
        init="#: The writer of the bytes.\n"
        "self.events: EventWriter = EventWriter(client, portal, part.events)\n"
        "self._serialize = part.serializer.serialize\n",
        bodies={
            # The serializer belongs to the application, and runs in the application's thread.
            "write": "event = self._serialize(value)\n"
            "return self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)\n",
            "write_many": _WRITE_VALUES,
        },
    ),
    Blocking(
        "transactions.value_transaction",
        "ValueTransaction",
        base=("handle", "PlainHandle"),
        init="#: The transaction of the bytes.\n"
        "self.events: Transaction = Transaction(client, portal, part.events)\n"
        "self._serialize = part.serializer.serialize\n",
        bodies={
            "write": "event = self._serialize(value)\n"
            "return self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)\n",
            "write_many": _WRITE_VALUES,
        },
    ),
    Blocking(
        "groups.value_reader",
        "ValueReader",
        base=("handle", "PlainHandle"),
        init="#: The reader of the bytes.\n"
        "self.events: Reader = Reader(client, portal, part.events)\n"
        "self._deserialize = part.serializer.deserialize\n",
        bodies={
            # The serializer belongs to the application, and runs in the application's thread.
            "__iter__": "while (event := self.read()) is not None:\n    yield event\n",
            "read": _VALUE_CHUNK + "return None if chunk is None else take_value(chunk, self._deserialize)\n",
            "read_batch": _VALUE_CHUNK
            + "return None if chunk is None else take_values(chunk, self._deserialize, max_bytes)\n",
            "close": "self.events.close(timeout_s, is_done=is_done)\n",
        },
        imports={
            "chunk_in_hand": _READER,
            "next_chunk": _READER,
            "take_value": "penstock.client.groups.value_reader",
            "take_values": "penstock.client.groups.value_reader",
        },
    ),
    Blocking(
        "transactions.transaction",
        "Transaction",
        bodies={"write": _WRITE.format(writer="open_writer(self._part)", put="put_of(writer)")},
        imports={"cast": "typing", "open_writer": "penstock.client.transactions.transaction"}
        | dict.fromkeys(("is_full", "put_of", "wait_for_space"), _EVENT_WRITER),
    ),
    Blocking(
        "transport.segment_reader",
        "SegmentReader",
        base=("handle", "PlainHandle"),
    ),
    Blocking(
        "groups.reader",
        "Reader",
        bodies={
            "__iter__": "reader = self._part\n"
            "while True:\n"
            "    chunk = self._portal.call(next_chunk(reader))\n"
            "    if chunk is None:\n"
            "        return\n"
            "    yield from events_in_hand(reader, chunk)\n",
            "read": _CHUNK + "return None if chunk is None else chunk.hand_out()\n",
            "read_batch": _CHUNK + "return None if chunk is None else chunk.hand_out_many(max_bytes)\n",
            # After the client is closed nothing can be done here; and in the loop's own thread no exception is being
            # handled.
            "close": "if self._part.is_closed and self._portal.is_closed:\n"
            "    return\n"
            "if is_done is None:\n"
            "    is_done = sys.exception() is None\n"
            "self._portal.call(self._part.close(timeout_s, is_done=is_done))\n",
        },
        imports={"sys": ""} | dict.fromkeys(("chunk_in_hand", "events_in_hand", "next_chunk"), _READER),
    ),
    Blocking(
        "tables.tables",
        "Table",
        base=("table_handle", "TableHandle"),
        bodies={
            "scan": _PAGES.format(method="scan_pages", arguments=_SPAN),
            "keys": _PAGES.format(method="key_pages", arguments=_SPAN),
            "items": "for page in self.scan_pages():\n    for entry in page:\n        yield entry.key, entry.value\n",
        },
    ),
    Blocking(
        "reading.batch_reads",
        "BatchReader",
        bodies={
            "events": "for batch in self.read(part):\n"
            "    for event, offset, position in zip(batch.events, batch.offsets, batch.offsets[1:], strict=False):\n"
            "        yield Event(event, batch.segment_id, offset, batch.stream, position)\n",
        },
    ),
    Blocking("state.revisioned_stream", "RevisionedStream"),
    Blocking("state.shared_state", "SharedState"),
    Blocking("groups.reader_group", "ReaderGroup"),
    # The life cycle of a blocking client is written by hand; its operations are in three parts, each based on the
    # previous.
    Blocking(
        "client_core",
        "ClientCore",
        base=("client_life", "ClientLife"),
    ),
    Blocking("stream_calls", "StreamCalls", base=("client_core", "ClientCore")),
    Blocking(
        "client",
        "Client",
        base=("stream_calls", "StreamCalls"),
        bodies={
            # Type checkers cannot determine which overload applies.
            "table": "opened = self._opened(\n"
            "    lambda: cast(Opening[AsyncTable[Key, Value]], self._part.table(table, keys=keys, values=values))\n"
            ")\n"
            "return Table(self, self._portal, opened)\n",
            "revisioned_stream": "opened = self._opened(\n"
            "    lambda: cast(\n"
            "        Opening[AsyncRevisionedStream[Value]],\n"
            "        self._part.revisioned_stream(stream, serializer=serializer),\n"
            "    )\n"
            ")\n"
            "return RevisionedStream(self, self._portal, opened)\n",
            "shared_state": "async def opening() -> AsyncSharedState[State, Update]:\n"
            "    if updates is None or apply is None:\n"
            "        made = self._part.shared_state(stream, initial=initial, states=states)\n"
            "        return cast(AsyncSharedState[State, Update], await made)\n"
            "    return await self._part.shared_state(\n"
            "        stream, initial=initial, states=states, updates=updates, apply=apply\n"
            "    )\n"
            "\n"
            "return SharedState(self, self._portal, self._portal.call(opening()))\n",
        },
        imports={
            "cast": "typing",
            "Opening": "penstock.client.common.opening",
            "RevisionedStream as AsyncRevisionedStream": "penstock.client.state.revisioned_stream",
            "SharedState as AsyncSharedState": "penstock.client.state.shared_state",
            "Table as AsyncTable": "penstock.client.tables.tables",
        },
    ),
)

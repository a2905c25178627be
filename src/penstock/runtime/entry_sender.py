"""`EntrySender`: one thread of a BookKeeper client, which hands the entries of all its ledgers to Java.

A call of Java costs the event loop's thread several microseconds, and as much again in Java itself. So that thread only
queues an entry. The sender takes all that are queued, has their bytes and checksums put together, and sends them by one
call, during which other threads of Python run. The loop over the entries of a batch is a method handle, put together at
run time: Java needs no compiled class of Penstock.

Entries are copied to buffers of Netty's pool, long ones part by part. Java could use the memory of Python instead, but
frees it only when it collects garbage: then each entry is in new memory, which costs more than the copy. When the pool
is at its bound, because a bookie takes nothing, the entry fails with -105, and the log continues in another ledger.
"""

from __future__ import annotations

import queue
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.model.errors.ledgers import ledger_error
from penstock.model.segments import Buffer
from penstock.runtime.ledgers import LedgerEntry

#: Entries from this length on are sent one by one: to join them costs another copy.
ALONE_BYTES_MIN = 16 * 1024
#: Bounds of a batch. Its entries are confirmed together, and another ledger waits for one call.
BATCH_ENTRIES_MAX = 64
BATCH_BYTES_MAX = 256 * 1024

_LENGTH = struct.Struct(">i")


class EntrySource(Protocol):
    """A ledger with queued entries. See `JavaWriter`."""

    def send_batch(self) -> None:
        """Send what is queued, at most one batch, in the sender's thread. Raises nothing."""


class EntrySender:
    """See the module. Made in a thread of the pool; the virtual machine runs."""

    def __init__(self) -> None:
        import jpype

        self._new_buffer = jpype.JClass("io.netty.buffer.PooledByteBufAllocator").DEFAULT.directBuffer
        #: `memoryview` takes bytes in the order of the machine only.
        self._order = jpype.JClass("java.nio.ByteOrder").nativeOrder()
        self._no_memory = jpype.JClass("java.lang.OutOfMemoryError")
        self._append_each = _append_each()
        jpype.JClass("java.util.concurrent.CompletableFuture")
        self._begin()

    def _begin(self) -> None:
        # Each source is in it about once, so its bound is the number of open ledgers.
        self._woken: queue.SimpleQueue[EntrySource | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ledger entries", daemon=True).start()

    def wake(self, source: EntrySource) -> None:
        """Have `source` send its entries, after the sources that were woken before."""
        self._woken.put(source)

    def close(self) -> None:
        """End the thread, after the sources that were woken before."""
        self._woken.put(None)

    def _run(self) -> None:
        while (source := self._woken.get()) is not None:
            source.send_batch()
            del source  # Keep nothing of a ledger while waiting.

    def send(self, handle: Any, entries: Sequence[LedgerEntry]) -> Any:
        """Send entries, in order, to the ledger of a Java handle. Return the future of the last one.

        Raises `LedgerError`, or an exception of Java: some of them may have been sent.
        """
        if len(entries) == 1:
            entry = entries[0]
            return handle.appendAsync(self._copied(entry.parts(), entry.length))  # Java releases the buffer.
        parts: list[Buffer] = []
        for entry in entries:
            parts.append(_LENGTH.pack(entry.length))
            parts += entry.parts()
        joined = b"".join(parts)
        buffer = self._copied((joined,), len(joined))
        try:
            return self._append_each.apply(handle, buffer)
        finally:
            buffer.release()  # Each entry holds it, too.

    def _copied(self, parts: Sequence[Buffer], length: int) -> Any:
        """Return a buffer of Netty with `parts`, `length` bytes in all, to be released once."""
        try:
            buffer = self._new_buffer(length)
        except self._no_memory as error:
            raise ledger_error(-105, f"no memory for {length} bytes of entries: {error}") from error
        try:
            fill(memoryview(buffer.nioBuffer(0, length).order(self._order)).cast("B"), parts)
            return buffer.writerIndex(length)
        except BaseException:
            buffer.release()
            raise


def fill(memory: memoryview, parts: Sequence[Buffer]) -> None:
    """Copy `parts` to `memory`, one after the other. Raises `ValueError` if they are longer or shorter."""
    position = 0
    for part in parts:
        end = position + len(part)
        memory[position:end] = part
        position = end
    if position != len(memory):
        raise ValueError(f"an entry of {len(memory)} bytes has parts of {position} bytes")


def take_batch(entries: deque[LedgerEntry]) -> list[LedgerEntry]:
    """Remove the entries of the next call from a queue, which another thread may append to. Empty: it has none."""
    batch: list[LedgerEntry] = []
    length = 0
    while entries and len(batch) < BATCH_ENTRIES_MAX:
        following = entries[0]
        if not batch and following.length >= ALONE_BYTES_MIN:
            return [entries.popleft()]
        length += following.length
        if length > BATCH_BYTES_MAX or following.length >= ALONE_BYTES_MIN:
            break
        batch.append(entries.popleft())
    return batch


def _append_each() -> Any:
    """Return a Java function of a ledger's handle and a buffer: it appends each entry, and returns the last future.

    The buffer has entries, each after its length, an int32 big-endian. In Java, with the name of each part below:
    ``while (buffer.isReadable()) future = handle.appendAsync(buffer.readRetainedSlice(buffer.readInt()))``.
    """
    import jpype

    handles = jpype.JClass("java.lang.invoke.MethodHandles")
    method_type = jpype.JClass("java.lang.invoke.MethodType").methodType
    buffer = jpype.JClass("io.netty.buffer.ByteBuf").class_
    ledger = jpype.JClass("org.apache.bookkeeper.client.api.WriteHandle").class_
    future = jpype.JClass("java.util.concurrent.CompletableFuture").class_
    integer = jpype.JClass("java.lang.Integer").TYPE
    boolean = jpype.JClass("java.lang.Boolean").TYPE
    find = handles.publicLookup().findVirtual
    is_readable = find(buffer, "isReadable", method_type(boolean))
    length = find(buffer, "readInt", method_type(integer))
    part = find(buffer, "readRetainedSlice", method_type(buffer, integer))
    append = find(ledger, "appendAsync", method_type(future, buffer))
    # (ledger, buffer, integer) to future; then with the integer as the first argument, read from the buffer.
    append_part = handles.collectArguments(append, 1, part)
    append_part = handles.permuteArguments(append_part, method_type(future, integer, ledger, buffer), 1, 2, 0)
    append_next = handles.foldArguments(append_part, handles.dropArguments(length, 0, ledger))
    # The value of the loop, a future, is the first argument of its parts.
    loop = handles.whileLoop(
        None, handles.dropArguments(is_readable, 0, future, ledger), handles.dropArguments(append_next, 0, future)
    )
    proxies = jpype.JClass("java.lang.invoke.MethodHandleProxies")
    return proxies.asInterfaceInstance(jpype.JClass("java.util.function.BiFunction").class_, loop)

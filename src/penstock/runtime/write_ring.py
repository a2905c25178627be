"""`WriteRing`: small synced writes that need no thread, where the kernel has io_uring.

A thread that returns from a write has to acquire the interpreter's lock. Next to a busy event loop it waits for it,
wakes up without work, and waits again: some sixteen futex calls for each small batch of a log. Here the event loop
submits
the write to the kernel, whose own workers do it, and its completion arrives like bytes on a socket.

The work in the loop is bounded: the bytes are copied, and the kernel queues the write (`IOSQE_ASYNC`) without touching
the file. Each write in progress has a slot of memory, which belongs to the kernel until the write has ended; the kernel
may have as many workers as there are slots, so writes that hang do not delay others.

A thread does the writes that the ring does not accept or does not complete: see `WorkPool.write_synced`.

Needs Linux 5.19. Layout of the shared memory: `io_uring_setup(2)`, `io_uring_enter(2)`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import io
import logging
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Sequence

from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile, LocalFile, write_error

_log = logging.getLogger(__name__)

#: Maximum number of writes in progress; a power of two.
SLOT_COUNT = 64
#: Maximum length of a write, in bytes.
SLOT_LENGTH = 64 * 1024

_SETUP, _ENTER, _REGISTER = 425, 426, 427
_REGISTER_WORKERS_MAX = 19
#: Completion work in the kernel waits for the process's next system call instead of interrupting it (Linux 5.19).
_COOPERATIVE = 1 << 8
_SINGLE_MMAP = 1
_ENTRIES_OFFSET = 0x10000000
_WRITE = 23
_ASYNC = 1 << 4
_PARAMETERS = struct.Struct("<6I16x8IQ8IQ")
_ENTRY = struct.Struct("<BBHiQQIIQ24x")
_COMPLETION = struct.Struct("<QiI")
_UINT_MASK = 0xFFFFFFFF
#: The write was not done, and the disk is not the cause: a thread does it.
_NOT_DONE = (errno.EAGAIN, errno.EINTR, errno.ECANCELED, errno.ENOMEM)
#: The ring can never do the write; it is not used again.
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EACCES)

#: Called with the error, or None when the bytes are durable; `WriteNotDoneError` means that a thread has to write.
OnWritten = Callable[[BaseException | None], None]

#: Rings with writes in progress, kept alive because the kernel uses their memory.
_busy_rings: set[WriteRing] = set()


class WriteNotDoneError(Exception):
    """The kernel has not done the write, or not all of it."""


class WriteRing:
    """Writes of one event loop. Created by `open_write_ring`. All methods run on that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises `OSError` where the kernel has no io_uring, or does not let this process use it."""
        self.loop = loop
        self.is_usable: bool = True
        # `PyDLL` keeps the interpreter's lock during the call, which returns at once.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.argtypes = [ctypes.c_long] * 7
        self._call.restype = ctypes.c_long
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        _PARAMETERS.pack_into(parameters, 0, 0, 0, _COOPERATIVE, *(0,) * 21)
        self._descriptor = self._checked(_SETUP, SLOT_COUNT, ctypes.addressof(parameters))
        self._file = io.FileIO(self._descriptor, "r+")
        found = _PARAMETERS.unpack(parameters)
        entry_count, completion_count, features = found[0], found[1], found[5]
        submission, completion = found[6:15], found[15:24]
        if not features & _SINGLE_MMAP or entry_count < SLOT_COUNT:
            self._file.close()
            raise OSError(errno.ENOSYS, "this kernel's io_uring is too old")
        # Allow one worker per slot, so that writes that hang do not block others.
        counts = (ctypes.c_uint32 * 2)(SLOT_COUNT, 0)
        self._checked(_REGISTER, self._descriptor, _REGISTER_WORKERS_MAX, ctypes.addressof(counts), 2)
        self._rings = mmap.mmap(
            self._descriptor,
            max(submission[6] + 4 * entry_count, completion[5] + _COMPLETION.size * completion_count),
        )
        self._entries = mmap.mmap(self._descriptor, 64 * entry_count, offset=_ENTRIES_OFFSET)
        self._memory = mmap.mmap(-1, SLOT_COUNT * SLOT_LENGTH)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._numbers = memoryview(self._rings).cast("I")
        self._tail_at, self._entry_mask = submission[1] // 4, entry_count - 1
        self._head_at, self._end_at = completion[0] // 4, completion[1] // 4
        self._completions_at, self._completion_mask = completion[5], completion_count - 1
        for index in range(entry_count):
            self._numbers[submission[6] // 4 + index] = index
        self._free = list(range(SLOT_COUNT))
        self._on_written: dict[int, tuple[OnWritten, str, int]] = {}
        loop.add_reader(self._descriptor, self._poll)

    @property
    def count_under_way(self) -> int:
        """Number of writes that the kernel has not completed."""
        return len(self._on_written)

    def begin(self, file: DiskFile, offset: int, buffers: Sequence[Buffer], on_written: OnWritten) -> bool:
        """Start to write and sync; call `on_written` on the loop when that has ended. False: a thread is needed.

        The bytes are copied. The file must stay open until then: the kernel resolves its descriptor when a worker
        starts, and the number may have been reused by then. Returns False for files that are not files of the operating
        system.
        """
        length = sum(map(len, buffers))
        if not (
            self.is_usable
            and self._free
            and 0 < length <= SLOT_LENGTH
            and type(file) is LocalFile
            and LocalFile.knows_synced_writes
        ):
            return False
        slot = self._free.pop()
        position = begin = slot * SLOT_LENGTH
        for part in buffers:
            end = position + len(part)
            self._memory[position:end] = part
            position = end
        tail = self._numbers[self._tail_at]
        _ENTRY.pack_into(
            self._entries,
            (tail & self._entry_mask) * 64,
            *(_WRITE, _ASYNC, 0, file.descriptor, offset, self._address + begin, length, os.RWF_DSYNC, slot),
        )
        # The kernel reads the tail only during the call below.
        self._numbers[self._tail_at] = tail + 1 & _UINT_MASK
        if self._call(_ENTER, self._descriptor, 1, 0, 0, 0, 0) != 1:
            self._numbers[self._tail_at] = tail
            self._free.append(slot)
            return False
        self._on_written[slot] = on_written, file.path, length
        _busy_rings.add(self)
        return True

    def close(self) -> None:
        """Accept no more writes. Writes in progress continue, but are not reported; their memory is leaked."""
        self.is_usable = False
        if not self.loop.is_closed():
            self.loop.remove_reader(self._descriptor)
        if not self._on_written:
            self._file.close()

    def _poll(self) -> None:
        """Process completions."""
        numbers = self._numbers
        head = numbers[self._head_at]
        ended: list[tuple[OnWritten, BaseException | None]] = []
        # No memory barrier: `open_write_ring` excludes machines that reorder loads.
        while head != numbers[self._end_at]:
            at = self._completions_at + (head & self._completion_mask) * _COMPLETION.size
            slot, result, _ = _COMPLETION.unpack_from(self._rings, at)
            on_written, path, length = self._on_written.pop(slot)
            self._free.append(slot)
            head = head + 1 & _UINT_MASK
            ended.append((on_written, None if result == length else self._error(result, path, length)))
        numbers[self._head_at] = head
        if not self._on_written:
            _busy_rings.discard(self)
        for on_written, error in ended:
            try:
                on_written(error)
            except Exception as fault:  # noqa: BLE001 - a bug of one caller; the others must get their results
                self.loop.call_exception_handler({"message": "the end of a write was not taken", "exception": fault})

    def _error(self, result: int, path: str, length: int) -> BaseException:
        number = -result
        if number in _REFUSED:
            self.is_usable = False
            _log.info("threads write the logs: io_uring refuses it (%s)", os.strerror(number))
        if result >= 0 or number in _NOT_DONE or number in _REFUSED:
            return WriteNotDoneError()
        return write_error(OSError(number, os.strerror(number), path), length, path)

    def _checked(self, number: int, *arguments: int) -> int:
        result = int(self._call(number, *arguments, *(0,) * (6 - len(arguments))))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def open_write_ring(loop: asyncio.AbstractEventLoop) -> WriteRing | None:
    """Return a ring for the running loop, or None where io_uring is not available: threads write then."""
    # On other machines a completion may be seen before its result, and system call conventions differ.
    if sys.platform != "linux" or platform.machine() != "x86_64" or not LocalFile.knows_synced_writes:
        return None
    try:
        return WriteRing(loop)
    except (OSError, NotImplementedError) as error:
        _log.info("threads write the logs, since io_uring cannot be used: %s", error)
        return None

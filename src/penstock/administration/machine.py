"""Measures the machine of a server for ``penstock doctor``: disk, space, descriptors, clock and memory."""

from __future__ import annotations

import ctypes
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.model.findings import Finding, FindingKind
from penstock.model.sizes import MIB
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.container_settings import SpaceSettings
from penstock.server.settings import StandaloneSettings

#: A sync that takes longer is reported: each append waits for one.
SYNC_S_MAX = 0.05
_SYNC_COUNT = 20
_SYNC_TOTAL_S_MAX = 2.0
_SYNC_BYTES = 4096
#: A process needs this beside its cache.
PROCESS_BYTES = 150 * MIB
#: Fewer connections than this, in a segment store or a controller, are reported.
CONNECTIONS_GOOD = 500
#: Clocks of file systems and of the process may differ by this much.
CLOCK_SLACK_S = 5.0
#: Files of the log whose times are read.
_FILES_MAX = 10_000
#: Return value of `adjtimex` for a clock that is not synchronized. Source: adjtimex(2), TIME_ERROR.
_TIME_ERROR = 5
#: Longer than `struct timex` on any system.
_TIMEX_BYTES = 512
#: Above this, a limit of a control group of version 1 means that there is none.
_MEMORY_BYTES_MAX = 1 << 60


@dataclass(frozen=True, slots=True)
class Measurement:
    """Findings of one check, and in `facts` what was measured, for people."""

    findings: tuple[Finding, ...] = ()
    facts: tuple[str, ...] = ()


def existing_parent(path: Path) -> Path:
    """Return the directory itself, or the nearest one above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())


def sync_time_s(directory: Path) -> float:
    """Return the median time of a small write with its sync, in a file without a name. Raises `OSError`."""
    times: list[float] = []
    begin_s = time.perf_counter()
    with tempfile.TemporaryFile(dir=directory) as file:
        while len(times) < _SYNC_COUNT and time.perf_counter() - begin_s < _SYNC_TOTAL_S_MAX:
            start_s = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * _SYNC_BYTES, len(times) * _SYNC_BYTES)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def check_disk_speed(directory: Path) -> Measurement:
    """Measure the sync of the file system of `directory`, which exists. Raises `OSError`."""
    median_s = sync_time_s(directory)
    text = f"a sync of 4 KiB in {directory} takes {median_s * 1000:.1f} ms (median)"
    if median_s > SYNC_S_MAX:
        return Measurement((Finding(FindingKind.DISK_SLOW, text),))
    return Measurement(facts=(text,))


def check_space(settings: SpaceSettings, space: DiskSpace, place: str, *, is_log: bool) -> Measurement:
    """Compare the free space of a file system with the limits of the server."""
    if is_log:
        mark, percent = settings.log_free_bytes_min, settings.log_free_percent_max
    else:
        mark, percent = settings.storage_free_bytes_min, settings.storage_free_percent_max
    text = f"{place}: {space.free_bytes // MIB} MiB of {space.total_bytes // MIB} MiB are free"
    if space.is_below(mark, percent):
        kind = FindingKind.WRITES_BLOCKED if is_log else FindingKind.SPACE_SHORT
        limit = min(mark, space.total_bytes * percent // 100)
        return Measurement((Finding(kind, f"{text}; the limit is {limit // MIB} MiB"),))
    if space.is_below(2 * mark, min(2 * percent, 100)):
        return Measurement((Finding(FindingKind.SPACE_SHORT, text),))
    return Measurement(facts=(text,))


def check_descriptors(connections: int, limit: int) -> Measurement:
    """Report a limit of descriptors that leaves room for few connections."""
    text = f"{limit} file descriptors here allow {connections} connections to segments"
    if connections < CONNECTIONS_GOOD:
        return Measurement((Finding(FindingKind.DESCRIPTORS_FEW, f"{text}; a service has a limit of its own"),))
    return Measurement(facts=(text,))


def check_memory(settings: StandaloneSettings, limit_bytes: int | None) -> Measurement:
    """Compare the memory that the settings need with that of the machine. None: it is not known."""
    processes = 1 if settings.segment_stores == 1 else 1 + settings.segment_stores
    needed = settings.segment_store.cache.bytes_max + processes * PROCESS_BYTES
    if limit_bytes is None:
        return Measurement(facts=("the memory of this machine is not known",))
    text = f"cache and {processes} process{'es' * (processes > 1)} need {needed // MIB} MiB of {limit_bytes // MIB} MiB"
    if needed > limit_bytes:
        return Measurement((Finding(FindingKind.MEMORY_SHORT, text),))
    return Measurement(facts=(text,))


def check_clock(directory: Path, now_s: float, is_unsynchronized: bool | None) -> Measurement:
    """Compare the clock with the times of the server's files, and report what the kernel says of it."""
    findings = []
    newest_s = max(_file_times_s(directory), default=0.0)
    if newest_s > now_s + CLOCK_SLACK_S:
        text = f"a file in {directory} was written {newest_s - now_s:.0f} s after the present time of this machine"
        findings.append(Finding(FindingKind.CLOCK_BACK, text))
    if is_unsynchronized:
        findings.append(Finding(FindingKind.CLOCK_UNSYNCHRONIZED, "adjtimex reports TIME_ERROR"))
    known = "not known to be synchronized" if is_unsynchronized is None else "synchronized"
    return Measurement(tuple(findings), () if findings else (f"the clock is {known}",))


def check_port(name: str, host: str, port: int) -> Measurement:
    """Try to listen on a port for a moment. For a server that does not run."""
    if not port:
        return Measurement(facts=(f"{name}: any free port",))
    is_six = ":" in host
    try:
        with socket.socket(socket.AF_INET6 if is_six else socket.AF_INET, socket.SOCK_STREAM) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(1)
    except OSError as error:
        text = f"{name}: {host or 'all addresses'} port {port}: {error.strerror or error}"
        return Measurement((Finding(FindingKind.PORT_IN_USE, text),))
    return Measurement(facts=(f"{name}: port {port} is free",))


def memory_limit_bytes(groups: Path = Path("/sys/fs/cgroup"), total: int | None = None) -> int | None:
    """Return the memory of this machine, or the limit of its container if that is less. None: not known."""
    if total is None and sys.platform != "win32":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [total] if total else []
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (groups / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _MEMORY_BYTES_MAX:
            limits.append(int(text))
    return min(limits, default=None)


def is_clock_unsynchronized() -> bool | None:
    """Return what the kernel says of its clock; None: it does not say."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError, TypeError):
        return None
    return None if state < 0 else state == _TIME_ERROR


def _file_times_s(directory: Path) -> Iterator[float]:
    count = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            count += 1
            if count > _FILES_MAX:
                return
            try:
                yield os.stat(os.path.join(parent, name)).st_mtime
            except OSError:
                continue  # A running server deletes files of its log.

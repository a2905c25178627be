"""Crash-state explorer: check recovery from every state that a crash at any moment of a scenario may leave.

A scenario runs once on a `RecordingDisk`, which records every call that changes something, and the promises made to
the scenario (`mark`: an acknowledgement). `crash_states` replays the record and yields, for every moment, the states
that the fault model allows (docs/fault-model.md): all of them if they are few, else both extremes, cuts and a seeded
sample. `explore` recovers from each and calls a check with the promises made up to that moment.

Recovery may crash too: some recoveries (`CrashLimits`) are recorded themselves, and some of their crash states are
recovered and checked against the same promises. This finds writes that a killed process left in the page cache, that
recovery read, and that a later power loss dropped.

After ALICE (Pillai et al., OSDI 2014) and CrashMonkey (OSDI 2018), with a model instead of a block device.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Generic, TypeVar

from penstock.model.errors import PenstockError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile, DiskLock, DiskSpace, SharedByte
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_tree import CrashPlan

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded call. `handle`: index of the opened file, -1 without one."""

    call: str
    path: str = ""
    handle: int = -1
    target: str = ""
    offset: int = 0
    data: bytes = b""
    is_writable: bool = True

    def __str__(self) -> str:
        """Return the call as one line."""
        if self.call in ("write", "write synced"):
            return f"{self.call} {len(self.data)} bytes at {self.offset} of {self.path}"
        return " ".join(filter(None, (self.call, self.path, self.target)))


@dataclass(slots=True)
class Trace:
    """Calls of a scenario on a disk that began as `start`. `marks[i]` was made after `mark_steps[i]` steps."""

    start: SimulatedDisk
    steps: list[Step] = field(default_factory=list)
    marks: list[object] = field(default_factory=list)
    mark_steps: list[int] = field(default_factory=list)


class RecordingDisk:
    """`Disk` that forwards every call to a `SimulatedDisk` and records those that change something.

    A call that raises is not recorded: record with a disk that has no random faults.
    """

    def __init__(self, inner: SimulatedDisk) -> None:
        self.inner = inner
        self.trace: Trace = Trace(inner.fork())
        self._handle_count = 0

    def mark(self, promise: object) -> None:
        """Record that `promise` holds from now on, after any crash."""
        self.trace.marks.append(promise)
        self.trace.mark_steps.append(len(self.trace.steps))

    def note(self, step: Step) -> None:
        """Record a call that succeeded."""
        self.trace.steps.append(step)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> RecordingFile:
        """See `Disk.open`."""
        file = self.inner.open(path, create=create, exclusive=exclusive, writable=writable)
        self._handle_count += 1
        self.note(Step("open", path, self._handle_count, is_writable=writable, offset=int(create)))
        return RecordingFile(self, file, self._handle_count)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self.inner.make_directory(path)
        self.note(Step("make directory", path))

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        return self.inner.list_directory(path)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self.inner.exists(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self.inner.rename(source, target)
        self.note(Step("rename", source, target=target))

    def link(self, source: str, target: str) -> None:
        """See `Disk.link`."""
        self.inner.link(source, target)
        self.note(Step("link", source, target=target))

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.inner.remove(path)
        self.note(Step("remove", path))

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self.inner.remove_directory(path)
        self.note(Step("remove directory", path))

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self.inner.sync_directory(path)
        self.note(Step("sync directory", path))

    def space(self, path: str) -> DiskSpace:
        """See `Disk.space`."""
        return self.inner.space(path)

    def lock(self, path: str) -> DiskLock:
        """See `Disk.lock`."""
        is_new = not self.inner.exists(path)
        lock = self.inner.lock(path)
        if is_new:
            self._handle_count += 1
            self.note(Step("open", path, self._handle_count, offset=1))
        return lock


class RecordingFile:
    """`DiskFile` of a `RecordingDisk`."""

    def __init__(self, disk: RecordingDisk, inner: DiskFile, handle: int) -> None:
        self._disk = disk
        self._inner = inner
        self._handle = handle

    @property
    def path(self) -> str:
        """See `DiskFile.path`."""
        return self._inner.path

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write`."""
        data = b"".join(buffers)
        count = self._inner.write(offset, [data])
        self._disk.note(Step("write", self.path, self._handle, offset=offset, data=data))
        return count

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write_synced`. Two steps, because power may fail between the write and its sync."""
        data = b"".join(buffers)
        count = self._inner.write_synced(offset, [data])
        for call in ("write", "write synced"):
            self._disk.note(Step(call, self.path, self._handle, offset=offset, data=data))
        return count

    def read(self, offset: int, length: int) -> bytes:
        """See `DiskFile.read`."""
        return self._inner.read(offset, length)

    def length(self) -> int:
        """See `DiskFile.length`."""
        return self._inner.length()

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        self._inner.sync()
        self._disk.note(Step("sync", self.path, self._handle))

    def truncate(self, length: int) -> None:
        """See `DiskFile.truncate`."""
        self._inner.truncate(length)
        self._disk.note(Step("truncate", self.path, self._handle, offset=length))

    def is_linked(self) -> bool:
        """See `DiskFile.is_linked`."""
        return self._inner.is_linked()

    def share(self, offset: int) -> SharedByte | None:
        """See `DiskFile.share`."""
        return self._inner.share(offset)

    def close(self) -> None:
        """See `DiskFile.close`."""
        self._inner.close()


@dataclass(frozen=True, slots=True)
class CrashLimits:
    """Limits of the exploration.

    Attributes:
            exhaustive_max: if a moment has at most this many states, all are explored.
            sample_max: else this many are drawn.
            kill_rate: share of the moments at which a kill of the process alone is explored too.
            recovery_crash_rate: share of the recoveries from a power loss that are crashed themselves ...
            killed_recovery_crash_rate: ... and of those after a kill, which read bytes that are not on the medium ...
            recovery_crash_max: ... at this many states, drawn.
    """

    exhaustive_max: int = 64
    sample_max: int = 24
    kill_rate: float = 1.0
    recovery_crash_rate: float = 0.05
    killed_recovery_crash_rate: float = 0.5
    recovery_crash_max: int = 4


@dataclass(frozen=True, slots=True)
class CrashState:
    """A disk as recovery finds it. `promises`: marks made before the crash. `story`: a description of the crash."""

    disk: SimulatedDisk
    promises: Sequence[object]
    story: str
    is_power_loss: bool


def crash_states(trace: Trace, *, limits: CrashLimits, rng: random.Random) -> Iterator[CrashState]:
    """Yield the states that a crash may leave at each moment of `trace`, each one once per set of promises."""
    disk = trace.start.fork()
    files: dict[int, DiskFile] = {}
    seen: set[tuple[bytes, int]] = set()
    mark_count = 0
    for moment in range(len(trace.steps) + 1):
        if moment:
            _replay(trace.steps[moment - 1], disk, files)
        while mark_count < len(trace.marks) and trace.mark_steps[mark_count] <= moment:
            mark_count += 1
        # The crash may come just before or just after the promises of this very moment. The disk is the same, but
        # after them the check is stricter: so only that state is explored.
        promises = trace.marks[:mark_count]
        where = f"after step {moment} ({trace.steps[moment - 1] if moment else 'start'})"
        for plan in _plans(disk, limits, rng):
            state = disk.after_crash(plan)
            key = (state.fingerprint(), mark_count)
            if key not in seen:
                seen.add(key)
                yield CrashState(state, promises, f"power lost {where}: {plan.text}", True)
        if disk.tree.pending_sequences() and rng.random() < limits.kill_rate:
            # Its content equals "keep all", but none of it is on the medium yet.
            yield CrashState(disk.fork(), promises, f"process killed {where}", False)


def _plans(disk: SimulatedDisk, limits: CrashLimits, rng: random.Random) -> Iterator[CrashPlan]:
    yield CrashPlan("drop all", frozenset(), {})
    moments = disk.tree.pending_sequences()
    if not moments:
        return
    yield disk.tree.keep_plan()
    nodes = disk.tree.unsynced_files()
    names = disk.tree.name_choices()
    count = len(names)
    for node in nodes:
        count *= node.outcome_count()
    if count <= limits.exhaustive_max:
        for kept in names:
            for outcomes in product(*(list(node.outcomes()) for node in nodes)):
                files = {node.number: outcome for node, outcome in zip(nodes, outcomes, strict=True)}
                yield CrashPlan(f"names {sorted(kept)}, {files}", kept, files)
        return
    for at in range(limits.sample_max):
        if at % 3 == 0:
            yield disk.tree.tear_plan(rng.choice(moments[-8:]), rng.random())
        else:
            yield disk.tree.reorder_plan(rng)


def _replay(step: Step, disk: SimulatedDisk, files: dict[int, DiskFile]) -> None:
    match step.call:
        case "open":
            files[step.handle] = disk.open(step.path, create=bool(step.offset), writable=step.is_writable)
        case "write":
            files[step.handle].write(step.offset, [step.data])
        case "write synced":
            files[step.handle].write_synced(step.offset, [step.data])
        case "sync":
            files[step.handle].sync()
        case "truncate":
            files[step.handle].truncate(step.offset)
        case "make directory":
            disk.make_directory(step.path)
        case "rename":
            disk.rename(step.path, step.target)
        case "link":
            disk.link(step.path, step.target)
        case "remove":
            disk.remove(step.path)
        case "remove directory":
            disk.remove_directory(step.path)
        case "sync directory":
            disk.sync_directory(step.path)
        case _:
            raise AssertionError(f"no such step: {step.call}")


@dataclass(slots=True)
class Exploration:
    """Result of `explore`. `violations` is empty on success; at most `VIOLATIONS_MAX` are kept."""

    step_count: int = 0
    state_count: int = 0
    recovery_crash_count: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Exploration) -> None:
        """Add another exploration's counts and violations."""
        self.step_count += other.step_count
        self.state_count += other.state_count
        self.recovery_crash_count += other.recovery_crash_count
        self.violations += other.violations[: VIOLATIONS_MAX - len(self.violations)]


#: Exploration stops after this many violations, which usually have one cause.
VIOLATIONS_MAX = 10


class Explorer(Generic[R]):
    """Recovers states and checks the results; see `explore`."""

    def __init__(
        self,
        recover: Callable[[RecordingDisk], Awaitable[R]],
        check: Callable[[Sequence[object], R], Iterable[str]],
        *,
        limits: CrashLimits,
        rng: random.Random,
    ) -> None:
        self.found: Exploration = Exploration()
        self._recover = recover
        self._check = check
        self._limits = limits
        self._rng = rng

    async def try_state(self, state: CrashState, *, may_crash: bool) -> None:
        """Recover from one state, check, and perhaps crash that recovery."""
        self.found.state_count += 1
        disk = RecordingDisk(state.disk)
        try:
            recovered = await self._recover(disk)
            problems = list(self._check(state.promises, recovered))
        except (PenstockError, OSError, AssertionError) as error:
            problems = [f"recovery failed: {error!r}"]
        for problem in problems:
            self.found.violations.append(f"{state.story}: {problem}")
        if problems or not may_crash:
            return
        limits = self._limits
        rate = limits.recovery_crash_rate if state.is_power_loss else limits.killed_recovery_crash_rate
        if self._rng.random() >= rate:
            return
        # The result of a recovery has been observed; the next recovery must not contradict it.
        disk.mark(Seen(recovered))
        nested = list(crash_states(disk.trace, limits=CrashLimits(8, 2, 0.1), rng=self._rng))
        picked = self._rng.sample(nested[:-1], min(len(nested) - 1, limits.recovery_crash_max - 1))
        for inner in [*picked, nested[-1]]:
            self.found.recovery_crash_count += 1
            promises = [*state.promises, *inner.promises]
            story = f"{state.story}; recovered; {inner.story}"
            await self.try_state(CrashState(inner.disk, promises, story, inner.is_power_loss), may_crash=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """A promise made by recovery itself: the result of an earlier recovery of the same state."""

    recovered: object


async def explore(
    scenario: Callable[[RecordingDisk], Awaitable[None]],
    recover: Callable[[RecordingDisk], Awaitable[R]],
    check: Callable[[Sequence[object], R], Iterable[str]],
    *,
    disk: SimulatedDisk,
    limits: CrashLimits,
    rng: random.Random,
) -> Exploration:
    """Run `scenario` on `disk`, then recover from every explored crash state of it and check.

    `recover` opens the data of the scenario and returns its contents. `check` gets the promises made before the crash
    (marks of the scenario, and `Seen`) and the recovered contents, and returns violations in words. An error raised by
    `recover` is a violation.
    """
    recording = RecordingDisk(disk)
    await scenario(recording)
    explorer = Explorer(recover, check, limits=limits, rng=rng)
    explorer.found.step_count = len(recording.trace.steps)
    for state in crash_states(recording.trace, limits=limits, rng=rng):
        await explorer.try_state(state, may_crash=True)
        if len(explorer.found.violations) >= VIOLATIONS_MAX:
            break
    return explorer.found


__all__ = [
    "CrashLimits",
    "CrashState",
    "Exploration",
    "RecordingDisk",
    "Seen",
    "Step",
    "Trace",
    "crash_states",
    "explore",
]

"""A container against a small model: random operations, faults and crashes. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from penstock.model.errors import (
    BadOffsetError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    StorageError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import NO_VALUE, VERSION_ABSENT, VERSION_ANY, TableRemoval, TableUpdate
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.settings import CacheSettings
from support.containers import QUIET, Incarnations, append, evict_all, read_all, turns
from support.drawn_seeds import drawn_seeds
from support.inline_work import InlineWork

STREAMS = ["s/t/0.#epoch.0", "s/t/1.#epoch.0", f"s/t/0.#epoch.0#transaction.{'a' * 32}", "s/t/2.#epoch.0"]
TABLES = ["s/_tables/a", "s/_tables/b"]
KEYS = [b"k%d" % n for n in range(6)]
ATTRIBUTE = bytes(15) + b"\1"


@dataclass
class Stream:
    data: bytes = b""
    start: int = 0
    is_sealed: bool = False
    attribute: int = NO_VALUE


@dataclass
class Table:
    entries: dict[bytes, bytes] = field(default_factory=dict)


Model = dict[str, Stream | Table]


@dataclass
class Step:
    """One operation: its effect on the model (which may raise what the container must raise), and the call."""

    text: str
    apply: Callable[[Model], None]
    call: Callable[[SegmentContainer], Awaitable[object]]


def stream(model: Model, name: str) -> Stream:
    found = model.get(name)
    if found is None:
        raise NoSuchSegmentError(name)
    assert isinstance(found, Stream)
    return found


def create(name: str) -> Step:
    def apply(model: Model) -> None:
        if name in model:
            raise SegmentExistsError(name)
        model[name] = Table() if name in TABLES else Stream()

    flags = SegmentFlags.TABLE if name in TABLES else SegmentFlags.NONE
    return Step(f"create {name}", apply, lambda container: container.create(name, flags=flags))


def delete(name: str) -> Step:
    def apply(model: Model) -> None:
        if name not in model:
            raise NoSuchSegmentError(name)
        del model[name]

    return Step(f"delete {name}", apply, lambda container: container.delete(name))


def add(name: str, data: bytes, expected: int | None) -> Step:
    def apply(model: Model) -> None:
        found = stream(model, name)
        if found.is_sealed:
            raise SegmentSealedError(name)
        if expected is not None and expected != len(found.data):
            raise BadOffsetError(name, expected=expected, actual=len(found.data))
        found.data += data

    return Step(f"append {len(data)} to {name}", apply, lambda container: append(container, name, data, expected))


def seal(name: str) -> Step:
    def apply(model: Model) -> None:
        found = stream(model, name)
        if found.is_sealed:
            raise SegmentSealedError(name)
        found.is_sealed = True

    return Step(f"seal {name}", apply, lambda container: container.seal(name))


def truncate(name: str, offset: int) -> Step:
    def apply(model: Model) -> None:
        found = stream(model, name)
        if not found.start <= offset <= len(found.data):
            raise SegmentTruncatedError(name, start_offset=found.start, offset=offset)
        found.start = offset

    return Step(f"truncate {name} at {offset}", apply, lambda container: container.truncate(name, offset))


def merge(target: str, source: str) -> Step:
    def apply(model: Model) -> None:
        into = stream(model, target)
        if source not in model:
            return
        found = stream(model, source)
        if into.is_sealed:
            raise SegmentSealedError(target)
        if found is into or found.start:
            raise InvalidArgumentError("a truncated source, or itself")
        into.data += found.data
        del model[source]

    return Step(f"merge {source} into {target}", apply, lambda container: container.merges.merge(target, source))


def set_attribute(name: str, value: int, expected: int) -> Step:
    def apply(model: Model) -> None:
        found = stream(model, name)
        if found.is_sealed:
            raise SegmentSealedError(name)
        if found.attribute == expected:
            found.attribute = value

    return Step(
        f"attribute of {name}: {expected} -> {value}",
        apply,
        lambda container: container.update_attribute(name, ATTRIBUTE, value=value, expected=expected),
    )


def put(name: str, values: dict[bytes, bytes], *, is_insert: bool) -> Step:
    def apply(model: Model) -> None:
        found = model.get(name)
        if found is None:
            raise NoSuchSegmentError(name)
        assert isinstance(found, Table)
        if is_insert and any(key in found.entries for key in values):
            raise TableKeyVersionError(name, key=b"", expected=-1, actual=0)
        found.entries.update(values)

    async def call(container: SegmentContainer) -> object:
        version = VERSION_ABSENT if is_insert else VERSION_ANY
        updates = [TableUpdate(key, value, version) for key, value in values.items()]
        return await container.tables.put(container.segment(name), updates, -1)

    return Step(f"put {len(values)} into {name}", apply, call)


def remove(name: str, keys: list[bytes]) -> Step:
    def apply(model: Model) -> None:
        found = model.get(name)
        if found is None:
            raise NoSuchSegmentError(name)
        assert isinstance(found, Table)
        for key in keys:
            found.entries.pop(key, None)

    async def call(container: SegmentContainer) -> object:
        await container.tables.remove(container.segment(name), [TableRemoval(key) for key in keys], -1)
        return None

    return Step(f"remove {keys} from {name}", apply, call)


def random_step(rng: random.Random, model: Model) -> Step:
    name = rng.choice(STREAMS)
    found = model.get(name)
    length = len(found.data) if isinstance(found, Stream) else 0
    kind = rng.choices(
        ["add", "create", "put", "remove", "seal", "truncate", "merge", "delete", "attribute", "delete table"],
        [40, 12, 20, 6, 2, 8, 6, 2, 4, 1],
    )[0]
    match kind:
        case "add":
            data = rng.randbytes(rng.choice([0, 1, 10, 40, 100, 700]))
            return add(name, data, rng.choice([None, None, length, length + 1]))
        case "create":
            return create(rng.choice(STREAMS + TABLES))
        case "put":
            keys = rng.sample(KEYS, rng.randint(1, 4))
            values = {key: rng.randbytes(rng.choice([0, 5, 80])) for key in keys}
            return put(rng.choice(TABLES), values, is_insert=rng.random() < 0.2)
        case "remove":
            return remove(rng.choice(TABLES), rng.sample(KEYS, 2))
        case "seal":
            return seal(name)
        case "truncate":
            return truncate(name, rng.randint(0, length + 1))
        case "merge":
            return merge(*rng.sample(STREAMS, 2))
        case "attribute":
            old = found.attribute if isinstance(found, Stream) else NO_VALUE
            return set_attribute(name, rng.choice([7, NO_VALUE]), rng.choice([old, 8]))
        case "delete":
            return delete(name)
        case _:
            return delete(rng.choice(TABLES))


async def observed(container: SegmentContainer) -> Model:
    """Read everything that a container has, through the calls that clients use."""
    model: Model = {}
    for segment in container.segments():
        if segment.is_system:
            continue
        if segment.is_table:
            entries: dict[bytes, bytes] = {}
            token = b""
            while (page := await container.tables.entries(segment, limit=2, token=token)).entries:
                token = page.token
                for entry in page.entries:
                    assert entry.key not in entries
                    entries[entry.key] = entry.value
            assert (await container.tables.info(segment)).entry_count == len(entries)
            model[segment.name] = Table(entries)
            continue
        info = await container.info(segment.name)
        found = await read_all(container, segment)
        assert info.length - info.start_offset == len(found)
        attribute = await container.get_attribute(segment.name, ATTRIBUTE)
        model[segment.name] = Stream(bytes(info.start_offset) + found, info.start_offset, info.is_sealed, attribute)
    return model


def visible(model: Model) -> Model:
    """Blank what was truncated: no read returns it."""
    result: Model = {}
    for name, found in model.items():
        if isinstance(found, Stream):
            found = replace(found, data=bytes(found.start) + found.data[found.start :])
        result[name] = found
    return result


class Machine:
    """Drives one container's lives and the model side by side."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        settings = replace(
            QUIET,
            checkpoint_log_bytes=self.rng.choice([1500, 6000]),
            checkpoint_log_bytes_idle=500,
            flush_bytes=300,
            flush_age_s=0.0,
            flush_write_bytes_max=200,
            flush_concurrency=2,
            read_ahead_bytes=256,
            whole_read_bytes=self.rng.choice([0, 512]),
            table_compact_bytes=600,
            table_compact_step_bytes=200,
            checkpoints_max=4,
        )
        cache = CacheSettings(
            bytes_max=6000, target_percent=self.rng.choice([20, 50]), block_length=64, small_append_length=32
        )
        frame_length_max = self.rng.choice([200, 1000, 8000])
        # Without threads, so that a seed always gives the same run.
        delays = random.Random(seed)
        work = InlineWork(delay_turns=lambda: delays.choice([0, 0, 1, 3, 10]))
        self.lives = Incarnations(settings, cache=cache, frame_length_max=frame_length_max, seed=seed, work=work)
        self.model: Model = {}
        self.container: SegmentContainer
        self.log: list[str] = []

    async def start(self) -> None:
        self.lives.chunks.heal()
        self.container = await self.lives.start()
        for segment in self.container.segments():
            if segment.is_table:
                # The order in which operations are accepted is that of the calls only when no table has to be loaded.
                await self.container.tables.index_of(segment)

    async def check(self) -> None:
        assert await observed(self.container) == visible(self.model)

    async def batch(self) -> None:
        """Run a few operations at once; each must end as the model says, in the order of the calls."""
        steps: list[Step] = []
        states = [self.model]
        errors: list[type[BaseException] | None] = []
        for _ in range(self.rng.randint(1, 6)):
            step = random_step(self.rng, states[-1])
            state = copy.deepcopy(states[-1])
            error: type[BaseException] | None = None
            try:
                step.apply(state)
            except PenstockError as raised:
                error = type(raised)
            steps.append(step)
            states.append(state)
            errors.append(error)
        self.log += [f"{step.text} -> {error}" for step, error in zip(steps, errors, strict=True)]
        if self.rng.random() < 0.15:
            self.lives.logs.fail_append(0, nth=self.rng.randint(1, 5), has_effect=self.rng.random() < 0.5)
            self.log.append("log will fail")
        tasks = [asyncio.ensure_future(step.call(self.container)) for step in steps]
        if self.rng.random() < 0.15:
            await turns(self.rng.randint(0, 12))
            self.log.append("crash in the middle")
            acknowledged = self._count_acknowledged(tasks, states, errors, is_over=False)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.recover(states[acknowledged:])
            return
        await asyncio.wait(tasks)
        acknowledged = self._count_acknowledged(tasks, states, errors, is_over=True)
        if self.container.status is ContainerStatus.FAILED:
            self.log.append(f"failed: {self.container.failure}")
            await self.recover(states[acknowledged:])
        else:
            assert not any(isinstance(task.exception(), ContainerOfflineError) for task in tasks), self.log[-10:]
            self.model = states[-1]

    def _count_acknowledged(
        self,
        tasks: Sequence[asyncio.Future[object]],
        states: list[Model],
        errors: list[type[BaseException] | None],
        *,
        is_over: bool,
    ) -> int:
        """Return how many operations from the first on must be there: up to the last one acknowledged."""
        count = 0
        for at, (task, error) in enumerate(zip(tasks, errors, strict=True)):
            if not task.done():
                assert not is_over
                continue
            raised = task.exception()
            if isinstance(raised, ContainerOfflineError | OutcomeUnknownError):
                continue
            if error in (TableKeyVersionError, TableKeyMissingError):
                assert isinstance(raised, TableKeyVersionError | TableKeyMissingError), (self.log[-10:], raised)
            else:
                assert (None if raised is None else type(raised)) is error, (self.log[-10:], raised)
            # What changed nothing may be answered although what came before it elsewhere is not durable.
            if error is None and states[at] != states[at + 1]:
                count = at + 1
        return count

    async def recover(self, allowed: list[Model]) -> None:
        """Restart; the state must be that behind some operation not before the last acknowledged one."""
        self.lives.logs._get(0).fault = None
        if self.rng.random() < 0.5:
            await self.lives.crash(self.container)
        else:
            self.lives.live.remove(self.container)
            await self.container.stop()
            assert self.lives.cache.used_bytes == 0
        await self.start()
        found = await observed(self.container)
        for state in allowed:
            if found == visible(state):
                self.model = state
                return
        raise AssertionError(f"after {self.log[-30:]}: recovered {found}, allowed {[visible(s) for s in allowed]}")

    async def disturb(self) -> None:
        """Do something that no client sees; the log may fail under it."""
        try:
            await self._disturb()
        except (ContainerOfflineError, OutcomeUnknownError):
            assert self.container.status is ContainerStatus.FAILED
        self.lives.logs._get(0).fault = None
        await turns(10)
        if self.container.status is ContainerStatus.FAILED:
            self.log.append(f"failed: {self.container.failure}")
            await self.recover([self.model])

    async def _disturb(self) -> None:
        container, rng = self.container, self.rng
        match rng.choice(["flush", "wake", "checkpoint", "evict", "fault", "crash", "stop", "race", "none", "none"]):
            case "flush":
                self.log.append("flush")
                await container.flush()
            case "wake":
                container.writer._wake.set()
                await turns(rng.randint(1, 60))
            case "checkpoint":
                container.checkpoints.write()
                container.checkpoints.truncate_log()
                container.checkpoints.write_if_due(is_idle=rng.random() < 0.5)
            case "evict":
                evict_all(container)
            case "fault":
                operation = rng.choice(["write", "write", "delete", "read"])
                self.lives.chunks.fail(operation, has_effect=operation != "read" and rng.random() < 0.5)
                container.writer._wake.set()
                await turns(rng.randint(1, 60))
                self.lives.chunks.heal()
                self.log.append(f"{operation} failed")
            case "crash":
                self.log.append("crash")
                await self.recover([self.model])
            case "stop":
                self.log.append("stop")
                await self.lives.stop(container)
                assert self.lives.cache.used_bytes == 0
                await self.start()
            case "race":
                self.log.append("two flushes race")
                container.writer._wake.set()
                await asyncio.gather(container.flush(), container.flush(), return_exceptions=True)
            case _:
                pass


@pytest.mark.parametrize("seed", drawn_seeds(60, daily=20))
async def test_a_container_does_what_the_model_does_through_faults_and_crashes(seed: int) -> None:
    """Random batches of operations at once, flushes, evictions, checkpoints, failing chunks and logs, crashes.

    After each batch every call ended as the model says; after each recovery the state is that of the model behind
    the last acknowledged operation or a later one of the batch, never in between; reads give exact bytes wherever
    they lie. In the end everything is deleted and the cache is empty. SS-71, SS-36, SS-49, SS-50, SS-148, SS-118,
    SS-39.
    """
    machine = Machine(seed)
    await machine.start()
    for _ in range(60):
        await machine.batch()
        await machine.disturb()
        if machine.rng.random() < 0.3:
            await machine.check()
        for error in machine.lives.failures:
            assert isinstance(error, StorageError), error
            assert not isinstance(error, CorruptionError), error
    await machine.check()
    machine.lives.logs._get(0).fault = None
    container = machine.container
    for name in list(machine.model):
        await container.delete(name)
    await container.flush()
    await turns(50)
    assert not container.state.gone
    assert all(segment.is_system for segment in container.segments())
    left = [info.name for info in await machine.lives.chunks.list("s/")]
    earlier = [name for name in left if f".E-{container.log.epoch}-" not in name]
    orphans = await container.storage.unrecorded(earlier)
    assert [name for name in earlier if name not in orphans] == []
    await machine.lives.stop(container)
    assert machine.lives.cache.used_bytes == 0
    assert not list(machine.lives.cache.entries())
    await machine.lives.close()

"""`probe_log`: checks whether a bucket can hold a log: races of many callers for one object, and rules of the bucket.

A log in a bucket is fenced by objects that are created only if absent, and by records that are replaced on condition. A
store that checks a condition and writes in two steps loses acknowledged data, and does so only when several callers
come at the same moment. So the probe lets many callers race, in many rounds, each with a connection of its own.

1. The bucket is read: a missing one, or credentials that are refused, end the probe before anything is written.
2. Its lifecycle rules are read, where the service has them: one that deletes or archives objects of the log is an
   error.
3. Single requests: a second creation, a replacement, a stale one, one of a missing object.
4. Races of creations, of replacements, and of callers that read a counter and replace it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.model.errors import (
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    StorageError,
    StorageRefusedError,
    StorageUnsuitableError,
    UnsupportedOperationError,
)
from penstock.runtime.bucket_rules import BucketRules, read_bucket_rules
from penstock.runtime.object_changes import change_object
from penstock.runtime.objects import ObjectPlace, ObjectStore, ObjectStoreSettings, ObjectVersion
from penstock.runtime.runtime import Runtime

T = TypeVar("T")

#: The folder of the probe's objects, which no log reads.
PROBE_FOLDER = "_probe"
#: Clients with connections of their own that the racers share.
_CLIENTS = 4
#: Tries of a replacement that nothing competes with. A store may refuse one while it still works on an earlier request.
_REPLACEMENT_TRIES = 3
#: Increments of each racer; each is tried until it succeeds.
_INCREMENTS = 2
_COUNT_DIGITS = 8
#: Tries of an increment for each racer. With a fair store about half as many races are lost as there are racers.
_TRIES_PER_INCREMENT = 10


@dataclass(frozen=True, slots=True)
class LogProbeStep:
    """What was tried, and its duration."""

    name: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class LogProbeReport:
    """A probe that found nothing wrong.

    Attributes:
        place: for messages.
        racers: callers that raced for one object.
        rounds: races of creations, and as many of replacements.
        unclear_rounds: races whose winner did not get its answer; the rest had one winner each.
        versioning: of the bucket, see `BucketRules`.
        unknown: what could not be checked, and why.
        steps: what was tried, in order.
    """

    place: str
    racers: int
    rounds: int
    unclear_rounds: int
    versioning: str | None
    unknown: tuple[str, ...]
    steps: tuple[LogProbeStep, ...]


ReadRules = Callable[[ObjectPlace, ObjectStoreSettings], BucketRules]


async def probe_log(
    url: str,
    settings: ObjectStoreSettings,
    runtime: Runtime,
    *,
    racers: int = 20,
    rounds: int = 30,
    counts: bool = True,
    read_rules: ReadRules = read_bucket_rules,
) -> LogProbeReport:
    """Check the bucket at `url`. A server may run there meanwhile. The probe deletes its objects.

    `counts`: also let all callers increment a counter, the longest check.

    Raises:
        InvalidArgumentError: `url` is no place for objects.
        StorageRefusedError: the bucket is missing, or refuses the credentials. Nothing was written.
        StorageUnsuitableError: a log there would lose data; the message says which check failed.
        StorageError: the checks could not be made.
    """
    place = ObjectPlace.parse(url)
    clients = [runtime.open_objects(place, settings) for _ in range(_CLIENTS)]
    unique = uuid.UUID(bytes=runtime.rng.randbytes(16), version=4)
    probe = _Probe(str(place), clients, f"{place.prefix}/{PROBE_FOLDER}/{unique}".lstrip("/"), racers, rounds)
    try:
        await probe.step("read the bucket", lambda: _read(clients[0], place.prefix))
        rules = await probe.step("read its rules", lambda: runtime.work.run(read_rules, place, settings))
        demand_harmless(rules, place)
        try:
            await probe.run(counts=counts)
        finally:
            await asyncio.shield(probe.clean_up())
    finally:
        for client in clients:
            await client.close()
    return LogProbeReport(
        str(place), racers, rounds, probe.unclear_count, rules.versioning, rules.unknown, tuple(probe.steps)
    )


def demand_harmless(rules: BucketRules, place: ObjectPlace) -> None:
    """Raise `StorageUnsuitableError` if rules of the bucket delete or archive objects of a log in `place`."""
    if rules.harmful:
        raise StorageUnsuitableError(
            str(place),
            "its lifecycle rules delete or archive what a log still needs: "
            f"{'; '.join(rules.harmful)}. Remove them, or exclude this prefix; nothing was written",
        )


async def _read(objects: ObjectStore, prefix: str) -> None:
    async for _ in objects.list(prefix):
        return


class _Probe:
    """One probe. `folder`: of its objects. `steps`: what succeeded. `unclear_count`: see `LogProbeReport`."""

    def __init__(self, place: str, clients: Sequence[ObjectStore], folder: str, racers: int, rounds: int) -> None:
        self.steps: list[LogProbeStep] = []
        self.unclear_count: int = 0
        self._place = place
        self._clients = clients
        self._folder = folder
        self._racers = racers
        self._rounds = rounds
        self._made: list[str] = []

    async def step(self, name: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await `attempt` and note its duration."""
        begin_s = time.perf_counter()
        done = await attempt()
        self.steps.append(LogProbeStep(name, time.perf_counter() - begin_s))
        return done

    async def run(self, *, counts: bool) -> None:
        """Make all checks that write."""
        await self.step("single requests", self._check_requests)
        await self.step(f"{self._rounds} races of {self._racers} creations", self._race_creations)
        await self.step(f"{self._rounds} races of {self._racers} replacements", self._race_replacements)
        if counts:
            await self.step(f"{self._racers} callers that count", self._count)

    async def clean_up(self) -> None:
        """Delete the objects. Those that cannot be deleted stay: they are small, and nothing reads them."""
        try:
            await self._clients[0].delete_many(self._made)
        except StorageError:
            return

    async def _check_requests(self) -> None:
        objects, key = self._clients[0], self._new("request")
        await change_object(objects, key, b"first", None)
        try:
            await objects.put_new(key, b"other", "other")
        except ObjectExistsError:
            pass
        else:
            raise self._unsuitable("an object was created over one that existed: it ignores If-None-Match")
        first = await objects.get_versioned(key)
        if first.content != b"first":
            raise self._unsuitable("a creation that was refused replaced the object")
        second = await self._replaced(objects, key, b"second", first.version)
        for stale, why in ((first.version, "of an earlier version"), (ObjectVersion('"0"', "0"), "of another version")):
            try:
                await objects.put_if(key, b"other", stale)
            except ObjectChangedError:
                continue
            raise self._unsuitable(f"a replacement {why} was accepted: it ignores If-Match")
        found = await objects.get_versioned(key)
        if found.content != b"second" or not found.version.is_same(second):
            raise self._unsuitable("an object is not what was written last, or its version is not the one answered")
        missing = self._new("missing")
        try:
            await objects.put_if(missing, b"other", first.version)
        except ObjectChangedError:
            pass
        else:
            raise self._unsuitable("a replacement created an object that did not exist")
        await objects.delete(key)
        try:
            await objects.get(key)
        except NoSuchObjectError:
            return
        raise self._unsuitable("an object could be read after it was deleted")

    async def _replaced(self, objects: ObjectStore, key: str, content: bytes, version: ObjectVersion) -> ObjectVersion:
        problem: ObjectChangedError | None = None
        for _ in range(_REPLACEMENT_TRIES):
            try:
                return await objects.put_if(key, content, version)
            except UnsupportedOperationError as error:
                raise self._unsuitable(str(error)) from error
            except ObjectChangedError as error:
                problem = error
            found = await objects.get_versioned(key)
            if found.content == content:
                return found.version  # The library sent it twice.
        raise self._unsuitable(f"an object cannot be replaced in the version just read: {problem}") from problem

    async def _race_creations(self) -> None:
        for number in range(self._rounds):
            key = self._new(f"created/{number}")
            contents = self._contents(number)

            async def create(client: ObjectStore, content: bytes, key: str = key) -> None:
                await client.put_new(key, content, "racer")

            await self._race(f"creation race {number}", key, contents, create)

    async def _race_replacements(self) -> None:
        key = self._new("replaced")
        version = await change_object(self._clients[0], key, b"before all races", None)
        for number in range(self._rounds):
            contents = self._contents(number)

            async def replace(client: ObjectStore, content: bytes, version: ObjectVersion = version) -> None:
                await client.put_if(key, content, version)

            version = await self._race(f"replacement race {number}", key, contents, replace)

    async def _race(
        self,
        name: str,
        key: str,
        contents: Sequence[bytes],
        write: Callable[[ObjectStore, bytes], Awaitable[None]],
    ) -> ObjectVersion:
        """Let a caller write each content, with one condition. One succeeds, and its content stays."""

        async def one(number: int, content: bytes) -> bool | None:
            try:
                await write(self._clients[number % len(self._clients)], content)
            except (ObjectExistsError, ObjectChangedError):
                return False
            except StorageRefusedError:
                raise
            except StorageError:
                return None  # It may have won.
            return True

        ends = await asyncio.gather(*(one(number, content) for number, content in enumerate(contents)))
        winners = [number for number, end in enumerate(ends) if end]
        if len(winners) > 1:
            raise self._unsuitable(
                f"{name}: {len(winners)} of {len(contents)} callers succeeded where one may: it checks a condition and "
                "writes in two steps"
            )
        stored = await self._clients[0].get_versioned(key)
        if winners and stored.content != contents[winners[0]]:
            raise self._unsuitable(
                f"{name}: the content of the caller that succeeded is not there: it checks a condition and writes in "
                "two steps, or answers reads from an earlier state"
            )
        if not winners:
            # The winner's answer was lost, or the library sent its request twice.
            self.unclear_count += 1
            if self.unclear_count > self._rounds:
                raise StorageError(f"{self._place}: most races ended without a clear answer; try again later")
        return stored.version

    async def _count(self) -> None:
        """Let each racer read a counter and replace it. A version that belongs to another content loses increments."""
        key = self._new("counter")
        await change_object(self._clients[0], key, b"%0*d" % (_COUNT_DIGITS, 0), None)

        async def increment(number: int) -> None:
            objects = self._clients[number % len(self._clients)]
            for turn in range(_INCREMENTS):
                for _ in range(_TRIES_PER_INCREMENT * self._racers):
                    found = await objects.get_versioned(key)
                    count = int(found.content[:_COUNT_DIGITS]) + 1
                    content = b"%0*d by %d in %d" % (_COUNT_DIGITS, count, number, turn)
                    try:
                        await change_object(objects, key, content, found.version)
                        break
                    except ObjectChangedError:
                        continue
                else:
                    raise self._unsuitable("a version just read is never accepted for a replacement")

        await asyncio.gather(*(increment(number) for number in range(self._racers)))
        counted = int((await self._clients[0].get(key))[:_COUNT_DIGITS])
        if counted != self._racers * _INCREMENTS:
            raise self._unsuitable(
                f"{self._racers * _INCREMENTS} increments of a counter gave {counted}: it reports versions that belong "
                "to another content, or checks a condition and writes in two steps"
            )

    def _contents(self, number: int) -> list[bytes]:
        return [b"race %d, caller %d." % (number, racer) * 20 for racer in range(self._racers)]

    def _new(self, name: str) -> str:
        self._made.append(f"{self._folder}/{name}")
        return self._made[-1]

    def _unsuitable(self, message: str) -> StorageUnsuitableError:
        return StorageUnsuitableError(self._place, message)

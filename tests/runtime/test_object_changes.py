"""`change_object` when requests are lost, late, sent twice, refused or hang: on the simulated object store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

import pytest

from penstock.model.errors import (
    InvalidArgumentError,
    ObjectChangedError,
    StorageBucketMissingError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageThrottledError,
    StorageUnreachableError,
)
from penstock.model.segments import Buffer
from penstock.runtime.object_changes import ObjectChangeSettings, change_object
from penstock.runtime.objects import ObjectVersion, VersionedObject
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults, SimulatedBucket, SimulatedObjects
from support.object_races import lost_replacements

KEY = "log/r/0"
MINUTES_LATE = ObjectFaults(late_s_max=300.0)
Scenario = Callable[[SimulatedObjects, ObjectVersion], Coroutine[object, object, None]]


def simulate(scenario: Scenario, *, faults: ObjectFaults = MINUTES_LATE, seed: int = 1) -> SimulatedObjects:
    """Run a scenario in virtual time on an object with the content ``first``; return the client that it had."""
    objects = SimulatedObjects(SimulatedBucket(), random.Random(seed), faults)

    async def run() -> None:
        await scenario(objects, await change_object(objects, KEY, b"first", None))

    with Simulation(seed) as simulation:
        simulation.run(run)
    return objects


#: The faults after which one call of `change_object` still succeeds.
SURVIVED = [
    ObjectFault.SLOW, ObjectFault.THROTTLE, ObjectFault.LOST_REQUEST, ObjectFault.LOST_REPLY, ObjectFault.SENT_TWICE,
    ObjectFault.LATE, ObjectFault.CONFLICT, ObjectFault.LATE_COPY, ObjectFault.HANG,
]  # fmt: skip


@pytest.mark.parametrize("fault", SURVIVED)
@pytest.mark.parametrize("call", ["put_new", "put_if"])
def test_a_change_survives_each_fault_and_late_copies_of_it_change_nothing(call: str, fault: ObjectFault) -> None:
    """Another caller changes the object afterwards; copies that arrive minutes later are refused by the store."""

    async def scenario(objects: SimulatedObjects, first: ObjectVersion) -> None:
        objects.inject(call, fault)
        key = KEY if call == "put_if" else "log/r/1"
        version = await change_object(objects, key, b"second", first if call == "put_if" else None)
        found = await objects.get_versioned(key)
        assert found == VersionedObject(b"second", version)
        await change_object(objects, key, b"third", version)
        await asyncio.sleep(objects.faults.hang_s + objects.faults.late_s_max + 1)
        assert await objects.get(key) == b"third"

    assert simulate(scenario).fault_counts == {fault: 1}


def test_without_reading_back_a_lost_reply_would_be_taken_for_another_callers_change() -> None:
    """The plain request says "changed" about its own change: what `change_object` is for."""

    async def scenario(objects: SimulatedObjects, first: ObjectVersion) -> None:
        objects.inject("put_if", ObjectFault.SENT_TWICE)
        with pytest.raises(ObjectChangedError):
            await objects.put_if(KEY, b"second", first)
        assert await objects.get(KEY) == b"second"

    simulate(scenario)


def test_content_of_another_caller_is_an_error_and_is_kept() -> None:
    async def scenario(objects: SimulatedObjects, first: ObjectVersion) -> None:
        second = await change_object(objects, KEY, b"second", first)
        with pytest.raises(ObjectChangedError, match="another caller's content"):
            await change_object(objects, KEY, b"other", first)
        with pytest.raises(ObjectChangedError, match="another caller's content"):
            await change_object(objects, KEY, b"other", None)
        assert await objects.get_versioned(KEY) == VersionedObject(b"second", second)
        await objects.delete(KEY)
        with pytest.raises(ObjectChangedError, match="deleted"):
            await change_object(objects, KEY, b"other", second)

    simulate(scenario)


def test_an_unresolved_outcome_is_raised_as_unknown_and_the_call_can_be_repeated() -> None:
    """Not as a refusal, although the last attempts were refused: an earlier one may still arrive."""
    settings = ObjectChangeSettings(attempts_max=3)

    async def scenario(objects: SimulatedObjects, first: ObjectVersion) -> None:
        objects.inject("put_if", ObjectFault.LATE)
        objects.inject("put_if", *[ObjectFault.THROTTLE] * 2)
        with pytest.raises(StorageNotRespondingError):
            await change_object(objects, KEY, b"second", first, settings)
        await asyncio.sleep(objects.faults.late_s_max)
        assert (await change_object(objects, KEY, b"second", first, settings)).is_same(
            (await objects.get_versioned(KEY)).version
        )
        assert await objects.get(KEY) == b"second"

    simulate(scenario)


def test_a_change_known_to_have_no_effect_raises_its_own_error() -> None:
    settings = ObjectChangeSettings(attempts_max=3)

    async def scenario(objects: SimulatedObjects, first: ObjectVersion) -> None:
        objects.inject("put_if", *[ObjectFault.THROTTLE] * 3)
        with pytest.raises(StorageThrottledError):
            await change_object(objects, KEY, b"second", first, settings)
        objects.inject("put_if", *[ObjectFault.CONFLICT] * 3)
        with pytest.raises(StorageError, match="3 attempts were refused because of concurrent changes") as raised:
            await change_object(objects, KEY, b"second", first, settings)
        assert not isinstance(raised.value, ObjectChangedError)
        objects.faults = ObjectFaults(is_full=True)
        with pytest.raises(StorageFullError):
            await change_object(objects, KEY, b"second", first, settings)
        objects.faults = ObjectFaults(is_reachable=False)
        with pytest.raises(StorageUnreachableError, match="did not arrive") as unread:
            await change_object(objects, KEY, b"second", first, settings)
        assert any("cannot be read either" in note for note in unread.value.__notes__)
        objects.faults = ObjectFaults()
        assert await objects.get(KEY) == b"first"

    simulate(scenario)


class _Missing(SimulatedObjects):
    """A bucket that is deleted after `good_count` replacements whose replies are lost."""

    good_count = 0

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        self.good_count -= 1
        if self.good_count < 0:
            raise StorageBucketMissingError(f"{self.place} is not there")
        raise StorageUnreachableError("the reply was lost")


def test_a_refusal_of_the_first_attempt_is_raised_at_once_and_a_later_one_leaves_the_outcome_unknown() -> None:
    async def scenario() -> None:
        objects = _Missing(SimulatedBucket(), random.Random(1))
        first = await change_object(objects, KEY, b"first", None)
        with pytest.raises(StorageBucketMissingError):
            await change_object(objects, KEY, b"second", first)
        assert objects.good_count == -1
        objects.good_count = 1
        with pytest.raises(StorageUnreachableError):
            await change_object(objects, KEY, b"second", first)

    with Simulation(1) as simulation:
        simulation.run(scenario)


def test_content_that_is_repeated_gives_a_late_copy_its_version_back() -> None:
    """Why contents need a nonce: versions are checksums. The late copy of a change applies to equal content."""

    async def scenario(objects: SimulatedObjects, first: ObjectVersion) -> None:
        objects.inject("put_if", ObjectFault.LATE_COPY)
        second = await change_object(objects, KEY, b"second", first)
        assert (await change_object(objects, KEY, b"first", second)).is_same(first)
        await asyncio.sleep(objects.faults.late_s_max)
        assert await objects.get(KEY) == b"second"

    simulate(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_under_all_faults_changes_are_made_once_and_in_one_order(seed: int) -> None:
    """Four clients add lines to one object. A line whose call succeeded is there once, and stays; so is the content
    that the client had read. Lines of calls that failed are there once or not at all.
    """  # fmt: skip
    bucket = SimulatedBucket()
    rates = tuple((fault, 0.1) for fault in ObjectFault if fault is not ObjectFault.STALE_LIST)
    added: list[bytes] = []
    tried: list[bytes] = []

    async def client(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        objects = SimulatedObjects(bucket, rng, ObjectFaults(rates=rates, late_s_max=300.0))
        for count in range(12):
            line = b"client %d line %d\n" % (number, count)
            tried.append(line)
            try:
                found = await objects.get_versioned(KEY)
                await change_object(objects, KEY, found.content + line, found.version)
                added.append(line)
            except StorageError:
                await asyncio.sleep(rng.uniform(0, 100))

    async def scenario() -> None:
        await change_object(SimulatedObjects(bucket, random.Random(1)), KEY, b"start\n", None)
        await asyncio.gather(*map(client, range(4)))
        await asyncio.sleep(400)

    with Simulation(seed) as simulation:
        simulation.run(scenario)
    lines = bucket.contents[KEY][0].splitlines(keepends=True)
    assert len(set(lines)) == len(lines)
    assert set(added) <= set(lines) <= {b"start\n", *tried}
    assert len(added) > 10


def test_races_are_lost_on_a_store_that_checks_and_replaces_in_two_steps() -> None:
    """The race test that real stores pass can fail."""

    async def races(is_atomic: bool) -> list[str]:
        bucket, faults = SimulatedBucket(), ObjectFaults(is_atomic=is_atomic)
        clients = [SimulatedObjects(bucket, random.Random(number), faults) for number in range(4)]
        return await lost_replacements(clients, round_count=10, writer_count=20)

    with Simulation(1) as simulation:
        assert simulation.run(lambda: races(True)) == []
        assert simulation.run(lambda: races(False))


def test_versions_are_compared_by_their_common_parts() -> None:
    assert ObjectVersion("a", "1").is_same(ObjectVersion("a", None))
    assert not ObjectVersion("a", "1").is_same(ObjectVersion("b", "1"))
    assert ObjectVersion(None, "1").is_same(ObjectVersion("a", "1"))
    assert not ObjectVersion(None, "1").is_same(ObjectVersion(None, "2"))
    assert not ObjectVersion(None).is_same(ObjectVersion(None))


def test_limits_that_allow_no_attempt_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="attempts_max"):
        ObjectChangeSettings(attempts_max=0)

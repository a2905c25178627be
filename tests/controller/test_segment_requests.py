"""`SegmentRequests` over segments in memory: each request may be made again, and passing faults are no end of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.transport.replies import error_of
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ConnectionLostError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
    UnsupportedOperationError,
)
from penstock.model.policies import Scaling
from penstock.model.segments import NO_VALUE
from penstock.wire import commands as wire
from penstock_simulation.memory_segments import MemorySegments
from support.controller_faults import ScriptedSegments

SETTINGS = ControllerSettings(attempts_max=3, retry_delay_ms_first=0, retry_delay_ms_max=0)
A, B, MISSING = "s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/2.#epoch.0"
ATTRIBUTE = bytes(16)


@pytest.fixture
def store() -> ScriptedSegments:
    return ScriptedSegments(MemorySegments())


@pytest.fixture
def requests(store: ScriptedSegments) -> SegmentRequests:
    return SegmentRequests(store, SETTINGS, 4)


def calls(requests) -> dict[str, Callable[[], Any]]:
    """Return each request, about segment A or about A and B, as a call that can be made again and again."""
    return {
        "create_segment": lambda: requests.create(A, Scaling.by_event_rate(7), 0),
        "update_policy": lambda: requests.update_policy(A, Scaling.by_event_rate(9)),
        "truncate_segment": lambda: requests.truncate(A, 5),
        "truncate_segments": lambda: requests.truncate_all({A: 5, B: 0}),
        "segment_info": lambda: requests.info(A),
        "segment_infos": lambda: requests.infos([A, B]),
        "read": lambda: requests.read(A, 5, 100),
        "get_attribute": lambda: requests.get_attribute(A, ATTRIBUTE),
        "update_attribute": lambda: requests.update_attribute(A, ATTRIBUTE, value=3, expected=NO_VALUE),
        "merge_segments": lambda: requests.merge(A, [f"{A}#transaction.{'0' * 32}"]),
        "seal_segment": lambda: requests.seal(A),
        "delete_segment": lambda: requests.delete(A),
        "delete_segments": lambda: requests.delete_all([A, B]),
    }


@pytest.fixture
async def filled(store: ScriptedSegments) -> MemorySegments:
    """Segments A and B with ten bytes each."""
    for name in (A, B):
        await store.store.create_segment(name)
        await store.store.append(name, b"0123456789")
    return store.store


async def test_repeating_a_completed_request_is_no_error(requests: SegmentRequests, filled: MemorySegments) -> None:
    """S-243: created, sealed, truncated, merged, deleted twice; deleted and truncated where there is nothing."""
    for call in calls(requests).values():
        await call()
        await call()
    assert filled.segments == {}
    await requests.create(A, Scaling.by_event_rate(7), 0)
    await requests.create(A, Scaling.by_event_rate(8), 0)
    assert (filled.segments[A].scale_type, filled.segments[A].target_rate) == (2, 7)
    await requests.delete(MISSING)
    await requests.truncate(MISSING, 5)
    await requests.truncate_all({MISSING: 5})
    await requests.delete_all([MISSING])


async def test_requests_have_the_specified_effect(requests: SegmentRequests, filled: MemorySegments) -> None:
    """S-243: what each leaves of the segment, and what it answers."""
    source = f"{A}#transaction.{'0' * 32}"
    await requests.create(source, Scaling.fixed(1), 0)
    await filled.append(source, b"merged")
    assert await requests.merge(A, [source]) == [16]
    assert source not in filled.segments
    await requests.truncate(A, 5)
    await requests.truncate(A, 3)  # It begins later already.
    info = await requests.info(A)
    assert (info.start_offset, info.length, info.is_sealed) == (5, 16, False)
    with pytest.raises(SegmentTruncatedError):
        await requests.truncate(A, 17)
    assert await requests.get_attribute(A, ATTRIBUTE) == NO_VALUE
    await requests.update_attribute(A, ATTRIBUTE, value=3, expected=NO_VALUE)
    await requests.update_attribute(A, ATTRIBUTE, value=4, expected=NO_VALUE)  # It is another one by now: left alone.
    assert await requests.get_attribute(A, ATTRIBUTE) == 3
    await requests.update_policy(A, Scaling.by_event_rate(9))
    assert filled.segments[A].target_rate == 9
    await requests.seal(A)
    assert (await requests.info(A)).is_sealed
    await requests.delete(A)
    assert list(filled.segments) == [B]


async def test_a_segment_that_must_be_there_and_is_not_is_reported(
    requests: SegmentRequests, filled: MemorySegments
) -> None:
    """S-243: sealing, asking, merging into it, its attributes and its policy."""
    for call in (
        requests.seal(MISSING),
        requests.info(MISSING),
        requests.infos([A, MISSING]),
        requests.merge(MISSING, [B]),
        requests.get_attribute(MISSING, ATTRIBUTE),
        requests.update_attribute(MISSING, ATTRIBUTE, value=1, expected=NO_VALUE),
        requests.update_policy(MISSING, Scaling.fixed(1)),
        requests.read(MISSING, 0, 1),
    ):
        with pytest.raises(NoSuchSegmentError):
            await call


#: What a segment store answers, or what is known when it does not, and whether a request is made again for that.
FAULTS = {
    "wrong host": (error_of(wire.WrongHost(1, A, "", ""), A), True),
    "time-out": (OutcomeUnknownError("no answer within 30 s"), True),
    "connection lost": (ConnectionLostError("cut off"), True),
    "authentication failed": (error_of(wire.AuthTokenCheckFailed(1, "", 0), A), False),
    "unsupported": (UnsupportedOperationError("not here"), False),
}


class FailingOnA:
    """A rule for `ScriptedSegments`: requests about segment A fail with `error`, `count` times."""

    def __init__(self, error, count) -> None:
        self.error = error
        self.count = count
        self.attempts = 0

    def __call__(self, name, arguments):
        if arguments[0] != A:
            return None
        self.attempts += 1
        return self.error if self.attempts <= self.count else None


@pytest.mark.parametrize("name", calls(None))
@pytest.mark.parametrize("fault", FAULTS)
async def test_only_transient_errors_are_retried(
    store: ScriptedSegments, requests: SegmentRequests, filled: MemorySegments, name, fault
) -> None:
    """S-243: a wrong host, a time-out and a lost connection are retried; a refused token is raised at once."""
    error, is_tried_again = FAULTS[fault]
    store.rule = rule = FailingOnA(error, 2)
    if is_tried_again:
        await calls(requests)[name]()
        assert rule.attempts == 3
    else:
        with pytest.raises(PenstockError) as caught:
            await calls(requests)[name]()
        assert caught.value is error
        assert rule.attempts == 1


@pytest.mark.parametrize("name", calls(None))
async def test_attempts_have_an_end(
    store: ScriptedSegments, requests: SegmentRequests, filled: MemorySegments, name
) -> None:
    """S-243: a host that stays the wrong one is reported after the last of `attempts_max` attempts."""
    error, _ = FAULTS["wrong host"]
    store.rule = rule = FailingOnA(error, 1000)
    with pytest.raises(PenstockError) as caught:
        await calls(requests)[name]()
    assert caught.value is error
    assert rule.attempts == SETTINGS.attempts_max

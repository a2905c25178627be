"""`repeat`: what is tried again, how often, and after which pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from penstock.controller import retry
from penstock.controller.retry import may_repeat, repeat, with_several_stores
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ConnectionLostError,
    ContainerNotFoundError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentStoreBusyError,
    StorageFullError,
)


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses that were made; none of them takes time."""
    made: list[float] = []

    async def sleep(delay_s: float) -> None:
        made.append(delay_s)

    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=sleep))
    return made


class Call:
    """Fails with each of `errors` in turn, then returns "done"."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize(
    ("make", "is_repeated", "is_repeated_if_idempotent"),
    [
        (lambda: ContainerOfflineError(1), True, True),
        (lambda: ContainerNotFoundError(1), True, True),
        (lambda: MetadataConflictError("another was faster"), True, True),
        (lambda: OutcomeUnknownError("time is up"), False, True),
        (lambda: ConnectionLostError("the reply is lost"), False, True),
        (lambda: NoSuchSegmentError("s"), False, False),
        (lambda: StorageFullError("no room"), False, False),
        (lambda: SegmentStoreBusyError("s", "too many segments"), False, False),
        (lambda: InvalidArgumentError("never"), False, False),
        (lambda: CorruptionError("a table", 0, "damaged"), False, False),
    ],
)
async def test_transient_errors_cause_a_retry(
    pauses_s: list[float], make: Callable[[], PenstockError], is_repeated: bool, is_repeated_if_idempotent: bool
) -> None:
    """S-259: and lost replies where the request may be done twice; any other error is raised as it is, at once."""
    for is_idempotent, is_tried_again in ((False, is_repeated), (True, is_repeated_if_idempotent)):
        error = make()
        assert may_repeat(error, is_idempotent=is_idempotent) is is_tried_again
        call = Call(error)
        pauses_s.clear()
        if is_tried_again:
            assert await repeat("it", call, ControllerSettings(), is_idempotent=is_idempotent) == "done"
        else:
            with pytest.raises(PenstockError) as caught:
                await repeat("it", call, ControllerSettings(), is_idempotent=is_idempotent)
            assert caught.value is error
        assert call.count == 1 + is_tried_again
        assert len(pauses_s) == is_tried_again


@pytest.mark.parametrize("attempts_max", [1, 2, 5])
async def test_attempts_have_a_limit(pauses_s: list[float], attempts_max: int) -> None:
    """S-259: the last attempt's own error is raised, and no pause is made after it."""
    errors = [ContainerOfflineError(number) for number in range(attempts_max)]
    call = Call(*errors)
    with pytest.raises(ContainerOfflineError) as caught:
        await repeat("it", call, ControllerSettings(attempts_max=attempts_max), is_idempotent=True)
    assert caught.value is errors[-1]
    assert call.count == attempts_max
    assert len(pauses_s) == attempts_max - 1


async def test_pauses_grow_tenfold_to_a_limit(pauses_s: list[float]) -> None:
    """S-259: 100 ms, 1 s, then 10 s each, of ten attempts in all, if nothing else is set."""
    call = Call(*(ContainerOfflineError(1) for _ in range(9)))
    assert await repeat("it", call, ControllerSettings(), is_idempotent=False) == "done"
    assert pauses_s == [0.1, 1.0, *[10.0] * 7]
    pauses_s.clear()
    settings = ControllerSettings(attempts_max=4, retry_delay_ms_first=20, retry_delay_ms_max=150)
    assert await repeat("it", Call(*map(ContainerOfflineError, range(3))), settings, is_idempotent=False) == "done"
    assert pauses_s == [0.02, 0.15, 0.15]


async def test_pauses_are_short_and_as_long_in_all_where_several_stores_are(pauses_s: list[float]) -> None:
    """A container that moves is back within seconds. It may also stay away as long as with one store."""
    settings = with_several_stores(ControllerSettings())
    call = Call(*(ContainerOfflineError(1) for _ in range(settings.attempts_max - 1)))
    assert await repeat("it", call, settings, is_idempotent=False) == "done"
    assert pauses_s == [0.1, *[1.0] * 71]
    assert sum(pauses_s) == pytest.approx(0.1 + 1.0 + 7 * 10.0)
    for unchanged in (
        ControllerSettings(retry_delay_ms_max=500),
        ControllerSettings(retry_delay_ms_first=0, retry_delay_ms_max=0),
        ControllerSettings(attempts_max=1, retry_delay_ms_max=1_000),
    ):
        assert with_several_stores(unchanged) == unchanged
    odd = with_several_stores(ControllerSettings(attempts_max=3, retry_delay_ms_first=700, retry_delay_ms_max=2_500))
    assert (odd.attempts_max, odd.retry_delay_ms_max) == (5, 1_000)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyError("a bug")])
async def test_cancellations_and_bugs_pass_through(pauses_s: list[float], error: BaseException) -> None:
    """S-259: only the tree's own errors say whether a repetition is of use."""
    call = Call(error)
    with pytest.raises(type(error)):
        await repeat("it", call, ControllerSettings(), is_idempotent=True)
    assert (call.count, pauses_s) == (1, [])

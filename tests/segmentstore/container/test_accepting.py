"""An operation that was accepted and cannot be logged ends its container at once.

Its memory is ahead of the log then: a reader, a refusal or a checkpoint that rests on it would report something that
the next incarnation does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from penstock.model.errors import ContainerOfflineError, OutcomeUnknownError
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.attributes.updates import AttributeUpdate
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.log import pipeline as pipeline_module
from penstock.segmentstore.container.log.frames import FrameBuilder
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.metadata import MetadataSnapshot
from penstock.segmentstore.container.state import ContainerState
from support.containers import Incarnations, append, read_all, turns

A, B = "s/t/0.#epoch.0", "s/t/1.#epoch.0"
W = b"w" * 16


class InjectedFault(Exception):
    """An unexpected error."""


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


@dataclass(frozen=True)
class Case:
    """An operation, and the effect of it that fails half-way."""

    effect: str
    call: Callable[[SegmentContainer], Awaitable[object]]


async def _append(container: SegmentContainer) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(
        container.segment(A),
        AppendRequest(b"more", writer_id=W, event_number=9, first_event_number=9),
        completer(future),
    )
    await future


async def _deactivate(container: SegmentContainer) -> None:
    await container.flush()
    assert await container.catalog.deactivate([container.segment(B)], 1) == 1


async def _activate(container: SegmentContainer) -> None:
    await _deactivate(container)
    await container.find(B)


async def _spill(container: SegmentContainer) -> None:
    container.segment(A).attributes.update({bytes([n]) * 16: n for n in range(250)})
    for number in range(10):
        await container.update_attribute(A, bytes([240 + number]) * 8, value=1, expected=-(1 << 63))
    container.attributes.spill_if_due(container.segment(A))


async def _free(container: SegmentContainer) -> None:
    await container.delete(B)
    await container.writer.flush_all()


CASES = {
    "create": Case("accept_create", lambda container: container.create("s/t/2.#epoch.0")),
    "append": Case("accept_append", _append),
    "seal": Case("accept_seal", lambda container: container.seal(A)),
    "truncate": Case("accept_truncations", lambda container: container.truncate(A, 2)),
    "delete": Case("accept_delete", lambda container: container.delete(A)),
    "merge": Case("accept_merge", lambda container: container.merges.merge(A, B, [AttributeUpdate(W, 0, 1, 0)])),  # type: ignore[arg-type]
    "policy": Case("accept_policy", lambda container: container.update_policy(A, scale_type=1, target_rate=2)),
    "attribute": Case(
        "accept_attributes", lambda container: container.update_attribute(A, W, value=1, expected=-(1 << 63))
    ),
    "deactivate": Case("accept_deactivate", _deactivate),
    "activate": Case("accept_activate", _activate),
    "spill": Case("accept_spill", _spill),
    "forget": Case("accept_forget", _free),
    "storage record": Case("accept_pinned", lambda container: container.storage._persist_pinned([], [])),
}


async def _prepared(lives: Incarnations) -> SegmentContainer:
    container = await lives.start()
    for name in (A, B):
        await container.create(name)
        await append(container, name, b"12345")
    return container


async def _assert_ended(lives: Incarnations, container: SegmentContainer) -> None:
    """Nothing more is accepted or answered; the next incarnation has what was acknowledged, and only that."""
    assert isinstance(container.failure, InjectedFault)
    assert container.status is ContainerStatus.FAILED
    assert lives.failures == [container.failure]
    with pytest.raises(ContainerOfflineError):
        await container.info(A)
    with pytest.raises(ContainerOfflineError):
        container.pipeline.check_open()
    container = await lives.restart(container)
    assert await read_all(container, await container.find(A)) == b"12345"


@pytest.mark.parametrize("name", CASES)
async def test_a_fault_after_an_accepted_change_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The effect is there, and then something fails before the record is in the log's hands."""
    container = await _prepared(lives)
    case = CASES[name]
    effect = getattr(ContainerState, case.effect)

    def fails(state: ContainerState, *args: object, **more: object) -> None:
        effect(state, *args, **more)
        raise InjectedFault(case.effect)

    with monkeypatch.context() as patch:
        patch.setattr(ContainerState, case.effect, fails)
        with pytest.raises((InjectedFault, ContainerOfflineError)):
            await case.call(container)
    await _assert_ended(lives, container)


@pytest.mark.parametrize("name", [name for name in CASES if name != "append"])
async def test_an_operation_that_cannot_be_encoded_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every operation but an append is encoded after it was accepted."""
    container = await _prepared(lives)
    encode = pipeline_module.encode_operation  # type: ignore[attr-defined]
    kind = {
        "create": "Create",
        "seal": "Seal",
        "truncate": "Truncate",
        "delete": "Delete",
        "merge": "Merge",
        "policy": "UpdatePolicy",
        "attribute": "UpdateAttributes",
        "deactivate": "Deactivate",
        "activate": "Activate",
        "spill": "SpillAttributes",
        "forget": "Forget",
        "storage record": "UpdatePinned",
    }[name]

    def fails(number: int, operation: object) -> bytes:
        if type(operation).__name__ == kind:
            raise InjectedFault(kind)
        return encode(number, operation)  # type: ignore[arg-type]  # It is one.

    with monkeypatch.context() as patch:
        patch.setattr(pipeline_module, "encode_operation", fails)
        with pytest.raises((InjectedFault, ContainerOfflineError, OutcomeUnknownError)):
            await CASES[name].call(container)
    await _assert_ended(lives, container)


@pytest.mark.parametrize("step", ["add", "take"])
async def test_a_frame_that_cannot_be_built_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Adding the record to the frame fails at once; taking the frame fails at the end of the turn, without a caller."""
    container = await _prepared(lives)

    def fails(builder: FrameBuilder, *args: object) -> None:
        raise InjectedFault(step)

    heard: list[BaseException | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(FrameBuilder, step, fails)
        try:
            container.acceptor.append(container.segment(A), AppendRequest(b"more"), heard.append)
        except InjectedFault:
            heard.append(ContainerOfflineError(0, "told at once"))
        await turns()
    assert [type(error) for error in heard] == [ContainerOfflineError]
    await _assert_ended(lives, container)


async def test_a_log_that_fails_in_an_unforeseen_way_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callers of the frame get the error. Earlier, they waited without end and the container continued to serve."""
    container = await _prepared(lives)

    def fails(*args: object) -> None:
        raise InjectedFault("append")

    heard: list[BaseException | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(container.log, "append", fails)
        container.acceptor.append(container.segment(A), AppendRequest(b"more"), heard.append)
        await turns()
    assert [type(error) for error in heard] == [ContainerOfflineError]
    await _assert_ended(lives, container)


async def test_a_checkpoint_that_cannot_be_made_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the log would grow without bound, and no error would say why."""
    container = await _prepared(lives)

    def fails(cut: MetadataSnapshot, values_max: int) -> bytes:
        raise InjectedFault("snapshot")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataSnapshot, "next_part", fails)
        container.checkpoints._settings = lives.settings.__class__(checkpoint_log_bytes=1)
        container.acceptor.append(container.segment(A), AppendRequest(b""), lambda _: None)
        await turns()
    await _assert_ended(lives, container)

"""`CallSlots`: limits the calls that are served at the same time, in total, per subject and per container.

A call holds one of `rpc_concurrency_max` slots for at most `rpc_slot_s`. A longer call, for example because a segment
store does not answer, releases its slot and moves to a waiting room of `rpc_waiting_max` places. Slots and waiting room
together hold at most `rpc_share_max` calls about one subject, and as many that wait for one container, if a call in the
waiting room has waited for that container since before it moved there. A call beyond a limit is refused, and clients
retry it. So calls about one hanging container leave slots for others, and a burst of short calls is not refused.

Until the first of them moves to the waiting room, and again whenever the last of them has left it, calls about a
hanging container are not distinguishable from a burst. Calls that wait for the lock of a busy stream are one. Therefore
the second and each further call about one subject, and each that waits for one container, must leave one slot free for
every `_SLOTS_PER_FREE_SLOT` that they hold: three quarters of all at most, and less the more subjects and containers
are busy. So there are slots for calls about others at any time. In a cluster of one container only subjects count.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf.message import Message

from penstock.controller.container_waits import observer_of_call
from penstock.controller.errors import CallRefusedError
from penstock.controller.settings import ControllerSettings
from penstock.model.routing import container_of

_logger = logging.getLogger(__name__)

#: The fields that name a subject within its scope.
_NAME_FIELDS = ("stream", "readerGroupName", "readerGroup", "kvtName")
#: The fields of a request that may hold the message with the subject's name.
_HOLDER_FIELDS = ("streamInfo", "stream", "streamCut", "position")


def subject_of(request: Message) -> str:
    """Return the stream, reader group or key-value table of a request; empty if there is none, or a name is empty."""
    fields = request.DESCRIPTOR.fields_by_name
    if "scope" in fields and fields["scope"].message_type is None:
        for name in _NAME_FIELDS:
            if name in fields and getattr(request, name):
                return "/".join(getattr(request, field) for field in ("scope", name))
        return ""
    for name in _HOLDER_FIELDS:
        if name in fields and fields[name].message_type is not None and request.HasField(name):
            return subject_of(getattr(request, name))
    return ""


#: Calls about one subject, or that wait for one container, hold at most this many slots for each slot that is free.
_SLOTS_PER_FREE_SLOT = 3

#: Number of subjects whose calls were refused for a container that are remembered, the latest ones.
_REMEMBERED_MAX = 1024


class CallSlots:
    """The slots and the waiting room of one controller. `container_count`: number of containers in the cluster.

    Attributes:
        held_count: calls that hold a slot.
        waiting_count: calls in the waiting room.
    """

    def __init__(self, settings: ControllerSettings, container_count: int) -> None:
        self.held_count: int = 0
        self.waiting_count: int = 0
        self._settings = settings
        self._container_count = container_count
        # By subject and container: calls, those with a long wait, and those that hold a slot. A key without calls is
        # removed.
        self._calls: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._holding: Counter[str] = Counter()
        self._container_by_subject: dict[str, str] = {}

    @property
    def key_count(self) -> int:
        """Number of subjects and containers that currently have calls."""
        return len(self._calls)

    @asynccontextmanager
    async def hold(self, subject: str) -> AsyncIterator[None]:
        """Serve one call about `subject` (empty: none) within the limits.

        Raises `CallRefusedError` when a limit is reached. The block may have begun, and is then cancelled.
        """
        if self.held_count >= self._settings.rpc_concurrency_max:
            raise CallRefusedError(
                f"{self.held_count} calls are served at the same time (rpc_concurrency_max of the controller); "
                "repeat the call later"
            )
        key = f"calls about {subject}"
        if subject and (reason := self.refusal(key, is_of_subject=True) or self._refusal_by_container(key)):
            raise CallRefusedError(reason)
        call = _HeldCall(self, key if subject else "")
        observed = observer_of_call.set(call)
        try:
            async with asyncio.timeout(None) as scope:
                call.start(scope)
                if subject:
                    call.add(key)
                yield
        except TimeoutError:
            if not call.reason:
                raise
            raise CallRefusedError(f"{call.reason}; the work that the call started may still complete") from None
        finally:
            call.end()
            observer_of_call.reset(observed)

    def refusal(self, key: str, *, is_of_subject: bool, has_slot: bool = False) -> str:
        """Return why no further call may be counted under the key of a subject or container; empty: it may.

        `has_slot`: the call itself holds a slot already.
        """
        held = self._holding[key]
        free = self._settings.rpc_concurrency_max - self.held_count + has_slot
        is_shared = is_of_subject or self._container_count > 1
        if is_shared and held and held + 1 > _SLOTS_PER_FREE_SLOT * (free - 1):
            return (
                f"{held} {key} are served, and the slots that are free are for calls about others (rpc_concurrency_max "
                "of the controller); repeat the call later"
            )
        if self._calls[key] >= self._settings.rpc_share_max and (is_of_subject or self._waiting[key]):
            return (
                f"{self._calls[key]} {key} are served or wait (rpc_share_max of the controller); repeat the call later"
            )
        if self.is_room_full and self._waiting[key]:
            return (
                f"{self._waiting[key]} {key} wait for longer than {self._settings.rpc_slot_s:g} s, and no further call "
                "may wait (rpc_waiting_max of the controller); repeat the call later"
            )
        return ""

    def _refusal_by_container(self, subject_key: str) -> str:
        container_key = self._container_by_subject.get(subject_key)
        if container_key is None:
            return ""
        reason = self.refusal(container_key, is_of_subject=False)
        if not reason:
            del self._container_by_subject[subject_key]
        return reason

    def remember_refusal(self, subject_key: str, container_key: str) -> None:
        """Refuse further calls about a subject before they begin, while the container's share is used up."""
        self._container_by_subject.pop(subject_key, None)
        self._container_by_subject[subject_key] = container_key
        if len(self._container_by_subject) > _REMEMBERED_MAX:
            del self._container_by_subject[next(iter(self._container_by_subject))]

    @property
    def is_room_full(self) -> bool:
        """Whether the waiting room has no place left."""
        return self.waiting_count >= self._settings.rpc_waiting_max

    @property
    def slot_s(self) -> float:
        """Longest time that a call holds its slot, in seconds."""
        return self._settings.rpc_slot_s

    def key_of_container(self, segment: str) -> str:
        """Return the key of calls that wait for the container of a segment."""
        return f"calls that wait for container {container_of(segment, self._container_count)}"

    def has_room_for(self, key: str) -> bool:
        """Say whether a call under `key` may move to the waiting room."""
        return self._waiting[key] < self._settings.rpc_share_max

    def add(self, key: str, *, has_slot: bool) -> None:
        """Count a call under `key`; `has_slot`: it holds a slot, so it is not in the waiting room."""
        self._calls[key] += 1
        if has_slot:
            self._holding[key] += 1

    def add_long_wait(self, key: str) -> None:
        """Count a call under `key` that moves from its slot to the waiting room."""
        self._waiting[key] += 1
        _decrease(self._holding, key)

    def remove(self, key: str, *, is_long: bool, has_slot: bool) -> None:
        """Stop counting a call under `key`; `is_long`: it was also counted by `add_long_wait`."""
        _decrease(self._calls, key)
        if is_long:
            _decrease(self._waiting, key)
        if has_slot:
            _decrease(self._holding, key)


def _decrease(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class _HeldCall:
    """One call, and the `WaitObserver` of its waits. `reason`: why it was refused after it began."""

    def __init__(self, slots: CallSlots, subject_key: str) -> None:
        self._subject_key = subject_key
        self.reason: str = ""
        self._slots = slots
        self._keys: Counter[str] = Counter()
        self._long_keys: set[str] = set()
        self._is_waiting = False
        self._scope: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, scope: asyncio.Timeout) -> None:
        """Take a slot; `scope` cancels the call when it is refused."""
        self._scope = scope
        self._slots.held_count += 1
        self._timer = asyncio.get_running_loop().call_later(self._slots.slot_s, self._give_slot_back)

    def end(self) -> None:
        """Release everything. Tasks that the call has started may continue: their waits are no longer counted."""
        if self._scope is None:
            return
        self._scope = None
        if self._timer is not None:
            self._timer.cancel()
        for key in self._keys:
            self._slots.remove(key, is_long=key in self._long_keys, has_slot=not self._is_waiting)
        self._keys.clear()
        self._long_keys.clear()
        if self._is_waiting:
            self._slots.waiting_count -= 1
        else:
            self._slots.held_count -= 1

    def begin_wait(self, segment: str) -> None:
        """See `WaitObserver.begin_wait`. Refuses the call if too many wait for that container."""
        if self._scope is None:
            return
        key = self._slots.key_of_container(segment)
        if key not in self._keys and not self._is_waiting:
            self._refuse(self._slots.refusal(key, is_of_subject=False, has_slot=True), key)
        self.add(key)

    def end_wait(self, segment: str) -> None:
        """See `WaitObserver.end_wait`."""
        key = self._slots.key_of_container(segment)
        if key not in self._keys:
            return  # The call has ended.
        self._keys[key] -= 1
        if not self._keys[key]:
            del self._keys[key]
            self._slots.remove(key, is_long=key in self._long_keys, has_slot=not self._is_waiting)
            self._long_keys.discard(key)

    def add(self, key: str) -> None:
        """Count the call under `key`, once however often it is added."""
        self._keys[key] += 1
        if self._keys[key] == 1:
            self._slots.add(key, has_slot=not self._is_waiting)

    def _give_slot_back(self) -> None:
        if self._slots.is_room_full:
            self._refuse(
                f"the call takes longer than {self._slots.slot_s:g} s, and {self._slots.waiting_count} others do "
                "(rpc_waiting_max of the controller); repeat the call later"
            )
            return
        for key in self._keys:
            if not self._slots.has_room_for(key):
                self._refuse(f"too many {key} (rpc_share_max of the controller); repeat the call later", key)
                return
        self._is_waiting = True
        self._slots.held_count -= 1
        self._slots.waiting_count += 1
        for key in self._keys:
            self._slots.add_long_wait(key)
            self._long_keys.add(key)

    def _refuse(self, reason: str, key: str = "") -> None:
        if reason and self._scope is not None and not self.reason:
            if key and self._subject_key not in ("", key):
                self._slots.remember_refusal(self._subject_key, key)
            self.reason = reason
            self._scope.reschedule(asyncio.get_running_loop().time())

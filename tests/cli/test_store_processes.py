"""`StoreProcesses.arrange`: which store is ordered to run which containers, and when. The stores only record orders."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.model.errors import ConnectionLostError, ProtocolError, StorageError
from penstock.model.routing import container_of
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.messages import (
    LINE_BYTES_MAX,
    Failure,
    HealthCheck,
    Ready,
    Refusal,
    State,
    decode_from_child,
    decode_health_check,
    decode_order,
    encode_message,
    failures_of,
)
from penstock.server.store_processes.processes import StoreProcess, StoreProcesses


class Told(StoreProcess):
    """A store process that carries out its orders when the test says so."""

    def __init__(self, number: int, containers: Sequence[int]) -> None:
        super().__init__(number, 6000 + number)
        self.is_up = True
        self.granted = self.held = frozenset(containers)
        self.told: list[list[int]] = []

    def ask(self, containers: Sequence[int], living: Sequence[str]) -> None:
        """See `StoreProcess.ask`."""
        self.granted = frozenset(containers)
        self.held |= self.granted
        self.told.append(list(containers))

    def let_go(self) -> None:
        """Hold only the containers of the last order."""
        self.held = self.granted


@pytest.fixture
def processes() -> StoreProcesses:
    """Three stores with six containers, all at home."""
    settings = StandaloneSettings(segment_stores=3, segment_store=SegmentStoreSettings(container_count=6))
    made = StoreProcesses(settings, -1, real_runtime())
    made.stores = [Told(number, made.containers_of(made.stores[number])) for number in range(3)]
    return made


def told(processes: StoreProcesses) -> list[list[list[int]]]:
    """Return the orders of each store since the last call."""
    all_told = []
    for store in processes.stores:
        assert isinstance(store, Told)
        all_told.append(store.told)
        store.told = []
    return all_told


def let_go(store: StoreProcess) -> None:
    assert isinstance(store, Told)
    store.let_go()


def test_no_output_while_nothing_changes(processes: StoreProcesses) -> None:
    processes.arrange()
    assert told(processes) == [[], [], []]


def test_containers_are_given_only_when_their_holder_has_let_go(processes: StoreProcesses) -> None:
    """A store goes away and returns: it first gets an order to stop containers; the others start them afterwards.

    S-242: each store that a new assignment concerns gets it, and requests for a container's place use it at once.
    """
    away = processes.stores[0]
    away.is_available = False
    processes.arrange()
    assert told(processes) == [[[]], [], []]
    assert processes.locator.assignment.owners == (1, 1, 2, 2, 1, 2)
    processes.arrange()
    assert told(processes) == [[], [], []]
    let_go(away)
    processes.arrange()
    assert told(processes) == [[], [[0, 1, 4]], [[2, 3, 5]]]

    away.is_available = True
    processes.arrange()
    assert told(processes) == [[], [[1, 4]], [[2, 5]]]
    let_go(processes.stores[2])
    processes.arrange()
    assert told(processes) == [[[3]], [], []]
    let_go(processes.stores[1])
    processes.arrange()
    assert told(processes) == [[[0, 3]], [], []]
    assert processes.locator.assignment.owners == (0, 1, 2, 0, 1, 2)


def test_containers_of_a_dead_store_are_free_at_once(processes: StoreProcesses) -> None:
    """A store that is down gets no orders."""
    dead = processes.stores[2]
    dead.is_up = False
    dead.is_available = False
    dead.granted = dead.held = frozenset()
    processes.arrange()
    assert told(processes) == [[[0, 2, 3]], [[1, 4, 5]], []]


def test_a_new_owner_keeps_its_containers_when_a_sleeper_wakes_up_with_them(processes: StoreProcesses) -> None:
    """The one exception: a store that hangs was written off, and then says that it still holds what it had."""
    sleeper = processes.stores[0]
    sleeper.is_available = False
    sleeper.ask((), ())
    sleeper.held = frozenset()
    processes.arrange()
    assert told(processes) == [[[]], [[0, 1, 4]], [[2, 3, 5]]]
    sleeper.held = frozenset((0, 3))
    processes.arrange()
    assert told(processes) == [[], [], []]


async def test_the_locator_names_the_assigned_store_of_a_container(processes: StoreProcesses) -> None:
    """One address for clients, another for this process; none before the store has said where it listens."""
    locator = processes.locator
    segment = "shop/orders/0.#epoch.0"
    container_id = container_of(segment, 6)
    assert locator.endpoint_of(container_id) is None
    with pytest.raises(ConnectionLostError, match="has not started yet"):
        await locator.resolve_locally(segment)
    for number in range(3):
        locator.set_endpoint(number, "store.example", 6000 + number, local_host="127.0.0.1")
    owner = container_id % 3
    assert locator.endpoint_of(container_id) == ("store.example", 6000 + owner)
    assert await locator.resolve_locally(segment) == ("127.0.0.1", 6000 + owner)
    processes.stores[owner].is_available = False
    processes.arrange()
    now = locator.assignment.owner_of(container_id)
    assert now != owner
    assert locator.endpoint_of(container_id) == ("store.example", 6000 + now)


@pytest.mark.parametrize(
    "message",
    [
        Ready(6000, {}),
        Refusal("StorageError", "no"),
        State(7, (1, 2), (1, 2, 3), {4: Failure("StorageError", "broken")}),
    ],
)
def test_messages_of_a_child_are_decoded_as_encoded(message: Ready | Refusal | State) -> None:
    assert decode_from_child(encode_message(message)) == message


def test_lines_that_are_not_messages_are_refused() -> None:
    """Garbage, another message, a field too many, a field of another type."""
    assert decode_health_check(encode_message(HealthCheck(1, (2,), ()))) == HealthCheck(1, (2,), ())
    for line in (
        b"",
        b"\xff\n",
        b"{}\n",
        encode_message(Ready(1, {})),
        b'{"event": "question", "number": 1, "containers": [], "more": 1}',
        b'{"event": "question", "number": "1", "containers": []}',
    ):
        with pytest.raises(ProtocolError, match="healthcheck"):
            decode_health_check(line)
        with pytest.raises(ProtocolError, match="order"):
            decode_order(line)
    with pytest.raises(ProtocolError, match="said"):
        decode_from_child(encode_message(HealthCheck(1, (), ())))


def test_failures_are_reported_by_kind_and_message() -> None:
    assert failures_of({2: ValueError("two"), 1: OSError("one")}) == {
        1: Failure("OSError", "one"), 2: Failure("ValueError", "two"),
    }  # fmt: skip


def test_the_failures_of_two_thousand_containers_fit_in_a_line() -> None:
    """A longer line would be taken for nonsense, and the process that says it for broken."""
    failures: dict[int, BaseException] = {number: StorageError("no space left " * 100) for number in range(2000)}
    state = State(1, (), tuple(range(2000)), failures_of(failures))
    line = encode_message(state)
    assert len(line) <= LINE_BYTES_MAX
    assert decode_from_child(line) == state

"""Whole clusters of several machines: the processes of `penstock.server.cluster` on simulated hosts.

Stores, their parents, controllers, links, sessions and the coordination service fail, and operators drain and restart.
What holds then is in `penstock_simulation.checks.members`, besides what holds in each simulation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from penstock.controller.cluster.view import ClusterView
from penstock.model.assignment_plan import Move, MoveReason
from penstock.model.cluster_nodes import LOG_PROBLEM_S_MAX, AssignmentNode, HostNode, HostState, LoadNode
from penstock.runtime.coordination import Children
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock_simulation.checks.members import bound_of, moves_to_balance, needless_moves
from penstock_simulation.mutations.members import CLUSTER, LOADED
from penstock_simulation.runner import run
from penstock_simulation.simulated.faults import Fault, FaultPlan, PlannedFault
from penstock_simulation.simulated.member_faults import (
    ALL,
    ALL_SERVERS,
    CoordinationDown,
    Drain,
    MachineLost,
    SessionsEnd,
    SessionsEndForClient,
    StoreKilled,
)
from penstock_simulation.workloads.member_plans import ALL_MEMBER_KINDS, MemberHosts, draw_member_faults
from penstock_simulation.workloads.scenario import Scenario

HOSTS = MemberHosts(
    stores=["store-1", "store-2", "store-3"],
    controllers=["controller-1", "controller-2"],
    clients=["client-1", "client-2"],
    container_count=4,
    session_timeout_s=8.0,
)
#: A cluster without faults but those of the plan.
QUIET = CLUSTER.of_length(30.0)


def seed_with_sound_buckets() -> int:
    """Return the first seed whose buckets have no faults of their own: bounds are strict there."""
    for seed in range(100):
        cluster = Scenario.draw(seed, QUIET).cluster
        if cluster.bucket_log is not None and not any(rate for _, rate in cluster.bucket_log.faults.rates):
            return seed
    raise AssertionError("each cluster has faults of buckets")


@pytest.mark.parametrize("seed", [3, pytest.param(14, marks=pytest.mark.nightly)])
def test_a_cluster_of_several_machines_keeps_every_promise(seed: int) -> None:
    outcome = run(seed, CLUSTER.of_length(20.0))
    assert outcome.violations == ()
    assert outcome.counts["inside: claims of logs in a bucket"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1074, id="a log is read slot by slot"),
        pytest.param(1116, id="an answer to a take-over of work comes after the next take-over"),
        pytest.param(1084, id="an operator gets no answer to a drain, which has begun"),
    ],
)
def test_seeds_in_which_the_checks_were_wrong_pass(seed: int) -> None:
    assert run(seed, CLUSTER).violations == ()


def test_a_leader_moves_containers_for_load_within_its_limits() -> None:
    outcome = run(14, LOADED.of_length(25.0))
    assert outcome.violations == ()
    assert outcome.fault_counts["members: moves for load"]


def test_objects_of_the_log_that_no_record_names_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores keep what they no longer need: a sweep leaves it, because their journals have no seal yet."""

    async def keep(self: LogBucket, journal: bytes, slots: Sequence[int]) -> None:
        pass

    monkeypatch.setattr(LogBucket, "delete_slots", keep)
    violations = run(seed_with_sound_buckets(), QUIET).violations
    assert any("no record names the object" in violation for violation in violations)


@pytest.mark.parametrize(
    "fault",
    [
        StoreKilled("store-1"),
        MachineLost("store-1", 2.0),
        SessionsEnd(ALL),
        SessionsEndForClient("store-1"),
        CoordinationDown(ALL_SERVERS, 12.0),
        Drain("store-1", 6.0),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_each_container_is_served_again_within_the_bound_of_a_fault(fault: Fault) -> None:
    """The end of all sessions also moves nothing: one session of three was seen to end in an outage of ZooKeeper."""
    plan = FaultPlan((PlannedFault(1.0, fault),))
    outcome = run(seed_with_sound_buckets(), QUIET, plan=plan)
    assert outcome.violations == ()
    assert outcome.fault_counts[f"members: {type(fault).__name__} alone"] == 1
    assert bound_of(fault) <= 20.0


def test_plans_have_every_kind_and_are_text_and_back() -> None:
    drawn = [
        draw_member_faults(random.Random(seed), HOSTS, kinds=ALL_MEMBER_KINDS, mean_gap_s=1.0, duration_s=200.0)
        for seed in range(20)
    ]
    for faults in drawn:
        plan = FaultPlan().with_faults(faults)
        assert FaultPlan.parse(str(plan)) == plan
    kinds = {type(planned.fault).__name__ for faults in drawn for planned in faults}
    assert kinds == {
        "AdministratorMove", "AnswersLost", "CoordinationCut", "CoordinationDown", "CoordinationLag", "Crash",
        "DiskStall", "Drain", "MachineLost", "MachinePause", "OrderlyStop", "Partition", "Pause", "SessionsEnd",
        "SessionsEndForClient", "StoreKilled",
    }  # fmt: skip


def test_the_fewest_moves_are_those_of_a_search_over_all_assignments() -> None:
    rng = random.Random(7)
    for _ in range(40):
        stores = ["a", "b", "c"][: rng.randint(1, 3)]
        owners = [rng.choice(["a", "b", "c", ""]) for _ in range(rng.randint(1, 6))]
        fewest = min(
            sum(one != other for one, other in zip(owners, each, strict=True))
            for each in itertools.product(stores, repeat=len(owners))
            if max(map(each.count, stores)) - min(map(each.count, stores)) <= 1
        )
        assert moves_to_balance(owners, stores) == fewest


def view_of(
    owners: Sequence[str], *, silent: Sequence[str] = (), impaired: Sequence[str] = (), drains: Sequence[str] = ()
) -> ClusterView:
    """Return a cluster of three stores; the logs of `silent` have not answered for a while."""
    names = ("a", "b", "c")
    nothing = Children(frozenset(), 0)
    return ClusterView(
        AssignmentNode(number=1, nonce="", owners=tuple(owners)),
        1,
        {
            name: HostNode(endpoints={}, state=HostState.IMPAIRED if name in impaired else HostState.UP)
            for name in names
        },
        {},
        frozenset(drains),
        {name: LoadNode(busy=0.0, log_problem_s=LOG_PROBLEM_S_MAX + 1 if name in silent else 0.0) for name in names},
        nothing,
        nothing,
    )


def moves_between(before: Sequence[str], owners: Sequence[str], reason: MoveReason) -> tuple[Move, ...]:
    return tuple(
        Move(number, source, target, reason)
        for number, (source, target) in enumerate(zip(before, owners, strict=True))
        if source != target
    )


@pytest.mark.parametrize("kind", ["silent", "impaired"])
def test_new_containers_need_not_go_to_a_store_whose_log_does_not_answer(kind: str) -> None:
    """Seed 6: the store that got none had reported its log shortly before, and was counted as a target."""
    before, owners = ["", "", "", ""], ("a", "b", "a", "b")
    view = view_of(before, silent=["c"] if kind == "silent" else [], impaired=["c"] if kind == "impaired" else [])
    assert not list(needless_moves(view, owners, moves_between(before, owners, MoveReason.NEW)))


@pytest.mark.parametrize("kind", ["silent", "impaired", "missing"])
def test_others_are_evened_out_beside_a_store_that_keeps_its_containers(kind: str) -> None:
    keeper = "d" if kind == "missing" else "c"
    before, owners = [keeper, keeper, "a", "a"], (keeper, keeper, "b", "a")
    view = view_of(before, silent=["c"] if kind == "silent" else [], impaired=["c"] if kind == "impaired" else [])
    assert not list(needless_moves(view, owners, moves_between(before, owners, MoveReason.EVEN)))


@pytest.mark.parametrize(
    ("before", "owners", "drains", "found"),
    [
        (["c", "a", "b"], ("a", "a", "b"), [], ["container 0 from c, whose log may answer again"]),
        (["", "a", "b"], ("c", "a", "b"), [], ["1 moves: 1 are needed before them, and 1 after", "container 0 to c"]),
        (["a", "b", "b"], ("b", "a", "b"), [], ["2 moves: 0 are needed"]),
        (["c", "a", "b"], ("a", "a", "b"), ["c"], []),
    ],
    ids=["away from the silent store", "to the silent store", "an exchange", "the silent store is drained"],
)
def test_needless_moves_beside_a_store_whose_log_does_not_answer_are_found(
    before: Sequence[str], owners: tuple[str, ...], drains: Sequence[str], found: Sequence[str]
) -> None:
    view = view_of(before, silent=["c"], drains=drains)
    wrong = list(needless_moves(view, owners, moves_between(before, owners, MoveReason.LOST)))
    assert len(wrong) == len(found)
    assert all(text in each for text, each in zip(found, wrong, strict=True)), wrong

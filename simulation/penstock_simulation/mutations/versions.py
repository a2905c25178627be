"""A planted bug of releases that do not fit each other, and the profile that finds it. See `catalog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.client.controller.addition_calls import AdditionCalls
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.mutations.members import CLUSTER
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.profile import Profile

#: Operators replace processes all the time, as in a rolling upgrade; some are lost meanwhile.
_UPGRADES = ("store stopped", "store stopped", "controller", "controller", "store killed with its parent", "drain")

VERSIONS = replace(
    CLUSTER, name="versions", has_versions=True, member_kinds=_UPGRADES, member_fault_gap_s=2.0,
    workloads=(*CLUSTER.workloads, "added calls"), share=0.7,
)  # fmt: skip
"""Processes of two neighbouring versions of Penstock side by side, upgraded and downgraded again and again."""


def _of(name: str, *kinds: str, workloads: tuple[str, ...] = ("events",), gap_s: float = 1.5) -> Profile:
    """Return a short profile with few workloads, a sound bucket, and some kinds of faults."""
    return replace(
        VERSIONS, name=name, member_kinds=kinds, member_fault_gap_s=gap_s, workloads=workloads, share=1.0,
        log_fault_rates=(0.0,), plan=replace(VERSIONS.plan, duration_s=20.0), writing_s=24.0, scale_rate=0.0,
    )  # fmt: skip


def _demand_an_added_call() -> AbstractContextManager[None]:
    async def stream_identity(self: AdditionCalls, scope: str, stream: str) -> str | None:
        request = added.DescribeStreamRequest(streamInfo=pb.StreamInfo(scope=scope, stream=stream))
        return (await self._ask(self._stub.describeStream, request, f"identify stream {scope}/{stream}")).identity

    return patched(AdditionCalls, "stream_identity", stream_identity)


def _planted(name: str, breaks: str, apply: Callable[[], AbstractContextManager[None]], profile: Profile) -> Mutation:
    return Mutation(name, breaks, profile, apply)


VERSION_MUTATIONS: Sequence[Mutation] = (
    _planted(
        "demand a call that earlier controllers lack", "an added call is not needed where it is missing",
        _demand_an_added_call, _of("missing calls", "controller", workloads=("events", "streams", "added calls")),
    ),
)  # fmt: skip
"""Bugs of this kind. Profiles without `has_versions` do not find them."""

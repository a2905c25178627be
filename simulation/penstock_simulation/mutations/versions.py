"""Planted bugs of releases that do not fit each other, and the profile that finds them. See `catalog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

import msgspec

from penstock.client.controller.addition_calls import AdditionCalls
from penstock.controller.cluster import leader, view
from penstock.model.cluster_nodes import HOSTS_PATH, HostNode, HostState, NodeContent, decode_node, encode_node
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.coordination import Node
from penstock_simulation.mutations.members import CLUSTER
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.simulated.versions import Version, Versions
from penstock_simulation.workloads.profile import Profile

C = TypeVar("C", bound=NodeContent)

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


def _drop_unknown_fields() -> AbstractContextManager[None]:
    def without_extra(content: NodeContent) -> bytes:
        return encode_node(msgspec.structs.replace(content, extra={}))

    return patched(leader, "encode_node", without_extra)


def _demand_an_added_call() -> AbstractContextManager[None]:
    async def stream_identity(self: AdditionCalls, scope: str, stream: str) -> str | None:
        request = added.DescribeStreamRequest(streamInfo=pb.StreamInfo(scope=scope, stream=stream))
        return (await self._ask(self._stub.describeStream, request, f"identify stream {scope}/{stream}")).identity

    return patched(AdditionCalls, "stream_identity", stream_identity)


def _demand_a_field() -> AbstractContextManager[None]:
    def decode(kind: type[C], path: str, content: bytes) -> C:
        node = decode_node(kind, path, content)
        if isinstance(node, HostNode) and b'"state"' not in content:
            node = msgspec.structs.replace(node, state=HostState.DRAINING)
        return node

    return patched(view, "decode_node", decode)


@contextmanager
def _write_a_new_state() -> Iterator[None]:
    """A store of a later version has a state that others do not know, under the same version of the format."""
    written, read = Versions.written, Versions.read
    known, new = b'"state":"up"', b'"state":"serving"'

    def written_later(self: Versions, path: str, content: bytes) -> bytes:
        content = written(self, path, content)
        is_new = path.startswith(HOSTS_PATH) and self.current is Version.LATER
        return content.replace(known, new) if is_new else content

    def read_later(self: Versions, path: str, node: Node) -> Node:
        return read(self, path, replace(node, content=node.content.replace(new, known)) if self.is_later else node)

    with patched(Versions, "written", written_later), patched(Versions, "read", read_later):
        yield


def _planted(name: str, breaks: str, apply: Callable[[], AbstractContextManager[None]], profile: Profile) -> Mutation:
    return Mutation(name, breaks, profile, apply)


VERSION_MUTATIONS: Sequence[Mutation] = (
    _planted(
        "drop fields of a later version", "fields that a release does not know are written again",
        _drop_unknown_fields, _of("late fields", "controller", "move", "drain", gap_s=1.0),
    ),
    _planted(
        "demand a call that earlier controllers lack", "an added call is not needed where it is missing",
        _demand_an_added_call, _of("missing calls", "controller", workloads=("events", "streams", "added calls")),
    ),
    _planted(
        "demand a field that earlier stores leave out", "a field that is missing has its default",
        _demand_a_field, _of("missing fields", "store stopped"),
    ),
    _planted(
        "write a state that earlier controllers cannot read", "a new state needs a new version of the node",
        _write_a_new_state, _of("new states", "store stopped", "controller"),
    ),
)  # fmt: skip
"""Bugs of this kind. Profiles without `has_versions` do not find them."""

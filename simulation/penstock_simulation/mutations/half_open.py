"""Planted bugs in the detection of half-open connections, at either end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.segmentstore import server
from penstock.wire.connection import WireConnection
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.mutations.users import USERS
from penstock_simulation.simulated.late_requests import LateRequestSettings

HALF_OPEN = replace(
    USERS,
    name="half open",
    plan=replace(USERS.plan, duration_s=30.0, mean_gap_s_min=5.0, mean_gap_s_max=20.0, kinds=("HalfOpen",)),
    workloads=("events", "readers", "bytes", "steady calls"),
    writing_s=40.0,
    pace=0.5,
    late_requests=LateRequestSettings(duplicate_rate=0.0, stuck_rate=0.0),
    controller_attempts_max=10,
    has_usual_times=True,
)
"""Connections are forgotten in between, in one direction or both, nothing else fails. Clients have usual time-outs."""


def _send_no_keepalive() -> AbstractContextManager[None]:
    return patched(WireConnection, "_check_alive_at", lambda self, due_s: None)


def _never_probe_clients() -> AbstractContextManager[None]:
    return patched(server, "detect_dead_peers", lambda listener, settings: None)


HALF_OPEN_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "send no keep-alive", "a client continues within 15 s after its connections were forgotten",
        HALF_OPEN, _send_no_keepalive,
    ),
    Mutation(
        "never probe clients", "a connection whose peer is gone goes, with all that it holds",
        HALF_OPEN, _never_probe_clients,
    ),
)  # fmt: skip
"""Bugs of this kind."""

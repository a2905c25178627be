"""Seeds of secured clusters: accounts change, keys are rotated, tokens expire, while servers die and links fail.

Clients with permission notice nothing. An account that tries more than it may gets what it may, and nothing else. Each
day one store, within the time of a token; nightly whole clusters, also of several machines with files of their own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.security.secrets_directory import read_token_keys, security_paths
from penstock_simulation.mutations.security import GUEST, SECURED, SECURED_CLUSTER
from penstock_simulation.runner import run
from penstock_simulation.simulated.host_files import HostFiles
from penstock_simulation.simulated.security import SecurityFiles, SimulatedSecuritySettings

#: What each seed must have done.
DONE = (
    "accounts changed", "rotations of keys", "calls of a guest: done", "calls of a guest: UNAUTHENTICATED",
    "calls of a guest: PERMISSION_DENIED", "requests of a guest: no refusal", "requests of a guest: a refusal",
)  # fmt: skip
#: Of these, no seed within the time of a token rotates keys.
DONE_DAILY = tuple(each for each in DONE if each != "rotations of keys")


def test_a_secured_store_permits_what_its_accounts_may_and_nothing_else() -> None:
    outcome = run(3, GUEST)
    assert outcome.violations == ()
    for done in DONE_DAILY:
        assert outcome.counts[done], done


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 40))
def test_a_secured_cluster_permits_what_its_accounts_may_and_nothing_else(seed: int) -> None:
    outcome = run(seed, SECURED)
    assert outcome.violations == ()
    for done in DONE:
        assert outcome.counts[done], done


@pytest.mark.nightly
def test_secured_machines_with_files_of_their_own_permit_what_accounts_may_and_nothing_else() -> None:
    """Not every seed does everything: faults of machines delay the rotation, and the intruder."""
    counts: Counter[str] = Counter()
    for seed in range(1, 31):
        outcome = run(seed, SECURED_CLUSTER)
        assert outcome.violations == (), seed
        counts.update(outcome.counts)
    for done in DONE:
        assert counts[done], done


def test_an_administrator_copies_changes_to_one_machine_after_another() -> None:
    """Meanwhile the machines have different files, which the production code reads."""
    files = SecurityFiles(random.Random(1))
    pending: list[tuple[float, Callable[[], None]]] = []
    host_files = HostFiles(
        files,
        SimulatedSecuritySettings(),
        ["a", "b"],
        random.Random(2),
        lambda delay_s, copy: pending.append((delay_s, copy)),
    )
    keys = {name: read_token_keys(security_paths(*host_files.settings_of(name)).token_keys).all for name in "ab"}
    assert keys["a"] == keys["b"]
    files.set_keys((files.keys[0], files.new_key()))
    assert not host_files.have(files.version)
    assert len({delay_s for delay_s, _ in pending}) == 2
    for copied, (_, copy) in enumerate(pending, start=1):
        copy()
        counts = [len(read_token_keys(security_paths(*host_files.settings_of(name)).token_keys).all) for name in "ab"]
        assert sorted(counts) == [1, 2] if copied == 1 else counts == [2, 2]
    assert host_files.have(files.version)

"""Planted bugs are found: each mutation must make a seed fail that passes without it.

The seeds of a mutation are always the same, so these tests are as repeatable as the simulation itself.
"""

from __future__ import annotations

import pytest

from penstock.testing.mutations.catalog import MUTATIONS, seeds_of
from penstock.testing.mutations.mutation import Mutation
from penstock.testing.runner import run

#: What the promise is; each is found within far fewer, as its profile aims at it.
SEED_COUNT_MAX = 200


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_planted_bug_is_found(mutation: Mutation) -> None:
    for seed in seeds_of(mutation, SEED_COUNT_MAX):
        with mutation.apply():
            found = not run(seed, mutation.profile).is_ok
        if found:
            # The same seed without the planted bug must pass, or something else was found.
            assert run(seed, mutation.profile).violations == ()
            return
    pytest.fail(f"{mutation.name!r} was not found within {SEED_COUNT_MAX} seeds: {mutation.breaks}")


def test_there_are_at_least_ten_planted_bugs_with_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 10


def test_a_mutation_leaves_nothing_behind() -> None:
    for mutation in MUTATIONS:
        before = run(1, mutation.profile).digest
        with mutation.apply():
            pass
        assert run(1, mutation.profile).digest == before

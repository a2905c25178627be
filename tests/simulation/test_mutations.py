"""Planted bugs are found: each mutation must make a seed fail that passes without it.

The seeds of a mutation are always the same, so these tests are as repeatable as the simulation itself.
"""

from __future__ import annotations

import gc
import sys

import pytest

from penstock_simulation.mutations.catalog import MUTATIONS, seeds_of
from penstock_simulation.mutations.mutation import Mutation
from penstock_simulation.runner import run

#: What the promise is; each is found within far fewer, as its profile aims at it.
SEED_COUNT_MAX = 200

#: Each of these needs 2 s of CPU time or more until it is found: they run in nightly runs. One of each module stays
#: daily if it needs less than 6 s.
SLOW = {
    "verify with the first key",
    "check the expiry once",
    "keep the first keys of one store",
    "let writers outlive their tokens",
    "take a whole tail amid a commit",
    "record writes as they end",
    "join what has changed meanwhile",
    "forget the leases of earlier owners",
    "do not scan a table's tail",
    "skip the next turn at storage",
    "lose the reads of segments that were put away",
    "abort what the ledger names",
    "let each layer try for the whole time",
    "put segments away that have changed meanwhile",
    "remove commit positions before the batch is written",
    "use no reserve",
    "mark more of a table as indexed than is",
    "leave for as long as it takes",
    "take a poll for a heartbeat",
    "commit what a failed flush left",
    "count a change as told before it is",
    "take segments in the task of the reader",
    "take a refusal behind a lost reply for one",
    "encode a segment as it became after the checkpoint began",
    "balance in the time of a read",
    "take readers for dead too soon",
    "skip the checksums of the log",
    "keep the error of an outage",
    "end a prepared transaction with its lease",
    "merge transactions in another order into some segments",
    "let a stuck segment fill the cache",
    "withdraw everything announced",
    "answer set-up with what is accepted",
    "begin at the head when a start is not understood",
    "keep reading what was given away",
    "load attributes over newer values",
    "take what cannot be opened for missing",
    "leave acknowledgements unsettled",
    "use any place as long-term storage",
    "commit a transaction of a batch before the intent",
    "count an event as read though its user failed",
    "seal a stream with a prepared transaction",
    "use one pool of threads for everything",
    "read what followed a deleted segment",
    "announce without a fence",
    "hand a transaction on before it is stored",
    "take a roll that was cut short for done",
    "wait beyond the end of a stream",
    "drop segments before their records are written",
    "count what failed as read",
    "close a client without its writers",
    "remove the event number check",
    "leave what other attempts of a batch have prepared",
    "take over without compare-and-set",
    "publish what was handed out",
    "begin all streams again when one comes",
    "write a state on condition of what is there",
    "give work up after its retries",
    "take events while a writer is closed",
    "answer a flush without its image",
    "sweep chunks of other containers",
    "give away what is in hand",
    "write an intent without a condition",
    "forget the maximum",
    "pass over who has published nothing",
    "let each segment read ahead as far as a reader",
    "refuse a second close",
    "write states without a fence",
    "send no keep-alive",
    "wait for each stream of a cycle",
    "let calls about one stream hold all slots",
    "count an outage as the silence of others",
    "end leases by the wall clock",
    "wait until the clock has caught up with the cuts",
    "measure leases by the time of the loop",
    "count the interval of sweeps from each start",
    "keep all recorded cuts",
    "inspect a stream once a day",
    "write the assignment on any version",
    "remain a member after the end of the session",
    "acknowledge when accepted",
    "serve what is not durable",
    "activate by stale records",
    "store a merged segment from its beginning again",
    "unlist whatever has the name",
    "take everybody else for dead",
    "leave segments open that a roll replaces",
    "store positions before events are worked off",
    "release what is stored, checkpoint or not",
    "a checkpoint awaits readers that have died",
    "take the minimum for the maximum",
    "truncate where subscribers are, whatever the minimum",
    "leave the chunks of what is truncated",
    "acknowledge what the log does not answer in time",
    "let reads wait behind appends",
    "join chunks in another order",
    "keep the lease of a transaction that is given up",
    "count what is written before it is recorded",
    "record a write behind one that failed",
    "end a group at the tail",
    "round times to the wrong side",
    "keep positions by the name of a group",
    "blame the controller for a lease",
    "write for as long as there is room",
    "delete chunks that the last image leads to",
    "remove earlier images first",
    "never probe clients",
    "count a pause of the controller against leases",
    "seal after the last slot that is found",
    "skip the checksums of chunks",
    "ignore the fence",
    "forget the last frame of the log",
    "repeat changes whose reply was lost",
    "read a segment from its start",
    "send with new event numbers",
    "evict what storage lacks",
    "count as stored before the write",
    "register a change of streams and leave the record behind",
    "give each connection a budget of its own",
    "let transient segments take all slots",
    "read what a predecessor wrote late",
    "delete what chunks were joined to",
    "never check the lock of the directory",
    "give lost containers to the first store",
    "give the last drained container to a drained store",
    "open a container while suspended",
    "take any proof of an end for that of the predecessor",
    "move a container for load that has just moved",
    "store what memory has instead of what arrived",
    "leave the indexes of deleted segments",
    "forget changed attributes before the index has them",
    "merge without the attributes",
    "keep the records of deleted segments",
    "open a log without the last condition",
    "continue in another journal without a condition",
    "answer attributes before they are durable",
    "check the fence before the sync",
    "take a stream made again for the old one",
    "take a longer file for an append that was done",
    "cut an image one frame too far",
    "leave out of an image what waits for storage",
    "give readers of the root a token of servers",
    "count what a full disk cut short",
    "queue the chunk that a truncation ends in",
    "leave what a crash left of chunks",
    "delete chunks that are leased",
    "never carry forward what keeps the log",
    "carry the number of bytes but not the bytes",
    "demand a call that earlier controllers lack",
    "trust an old copy of a log",
    "trust an old record of the epoch",
}


@pytest.fixture(autouse=True)
def collections_of_this_test_alone() -> None:
    """Each run ends with a collection, which takes a second if it includes the objects that earlier tests left."""
    gc.freeze()  # Never unfrozen: later collections would scan these objects again.


PLANTED = [
    pytest.param(
        mutation, id=mutation.name.replace(" ", "-"), marks=[pytest.mark.nightly] if mutation.name in SLOW else []
    )
    for mutation in MUTATIONS
]


@pytest.mark.parametrize("mutation", PLANTED)
def test_planted_bug_is_found(mutation: Mutation) -> None:
    for seed in seeds_of(mutation, SEED_COUNT_MAX):
        with mutation.apply():
            found = not run(seed, mutation.profile).is_ok
        if found:
            # The same seed without the planted bug must pass, or something else was found.
            assert run(seed, mutation.profile).violations == ()
            return
    pytest.fail(f"{mutation.name!r} was not found within {SEED_COUNT_MAX} seeds: {mutation.breaks}")


def test_what_is_slow_is_planted() -> None:
    assert {mutation.name for mutation in MUTATIONS} >= SLOW


def test_there_are_at_least_ten_planted_bugs_with_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 10


def attributes_of_penstock() -> dict[tuple[str, str], object]:
    """Return everything that hangs on a module of Penstock or on one of its classes, by owner and name."""
    found: dict[tuple[str, str], object] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "penstock":
            for name, value in vars(module).items():
                found[module_name, name] = value
                if isinstance(value, type) and value.__module__ == module_name:
                    owner = f"{module_name}.{value.__qualname__}"
                    found |= {(owner, attribute): held for attribute, held in vars(value).items()}
    return found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_a_mutation_leaves_nothing_behind(mutation: Mutation) -> None:
    """It changes some attribute, of any module or class, and afterwards each is the very object that it was."""
    before = attributes_of_penstock()
    with mutation.apply():
        planted = attributes_of_penstock()
    after = attributes_of_penstock()
    assert any(planted[key] is not before.get(key) for key in planted)
    assert before.keys() == after.keys()
    assert [key for key in before if after[key] is not before[key]] == []

"""`measure_tls`: the CPU of an encrypted server for a byte, against a bare server of the loop, in both directions.

Five servers are in one process (`_security_server.py`), and each turn sends the same bytes to all of them, in the same
writes: 4 MiB of blocks of 64 KiB in, or as much in chunks of 1 MiB out. The order is drawn for each turn.

`transport`: the bare server with the TLS of the segment store, to the bare server with that of the loop: same protocol,
same bytes, so that only TLS differs. `added`: what TLS adds to the segment store, to what it adds to the bare server;
these are differences of large figures. Both are ratios of medians, with bounds of 95 % over draws of turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from _security_child import (
    BLOCK_BYTES,
    Child,
    append,
    bare_received,
    bare_sent,
    bounds,
    child,
    frames,
    greeted,
    read,
)
from _security_server import CHUNK_BYTES, SEGMENT
from _wire import say

_CHUNKS_PER_TURN = 4
_WRITERS = {"plain": b"p" * 16, "tls": b"s" * 16}


_CALLS = [
    f"{kind}-{direction}-{name}"
    for direction in ("in", "out")
    for kind, names in (("store", ("plain", "tls")), ("bare", ("plain", "tls", "own")))
    for name in names
]


def measure_tls(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Send the same bytes to all servers, in turns; compare their CPU. Each round has a new process."""
    rounds, turns = (1, 2) if arguments.quick else (arguments.rounds, 20 * arguments.turns)
    found: dict[str, list[float]] = {call: [] for call in _CALLS}
    for number in range(rounds):
        with child(directory, "all", has_tls=True) as server:
            _measure_round(server, turns, found, random.Random(number))
        say(f"tls: round {number}")
    groups = [[float(number * turns + turn) for turn in range(turns)] for number in range(rounds)]
    return {
        "cpu_s_per_gb": {name: round(statistics.median(values), 3) for name, values in found.items()},
        "turns": rounds * turns,
    } | {direction: _compared(found, direction, groups) for direction in ("in", "out")}


def _measure_round(server: Child, turns: int, found: dict[str, list[float]], rng: random.Random) -> None:
    """Add the CPU time in seconds per GB of each call and turn."""
    blocks = _CHUNKS_PER_TURN * CHUNK_BYTES // BLOCK_BYTES
    gigabytes = _CHUNKS_PER_TURN * CHUNK_BYTES / 1e9
    stores = {
        name: greeted(server, port, has_tls=name == "tls", writer=writer)
        for (name, writer), port in zip(_WRITERS.items(), server.ports[:2], strict=True)
    }
    bare = {
        name: server.connect(port, has_tls=name != "plain")
        for name, port in zip(("plain", "tls", "own"), server.ports[2:], strict=True)
    }
    parts = frames(1, blocks, BLOCK_BYTES, b"r" * 16)

    def run(call: str, turn: int) -> float:
        kind, direction, name = call.split("-")
        first = 1 + turn * blocks
        if kind == "bare":
            if direction == "in":
                return bare_sent(server, bare[name], parts)
            return bare_received(server, bare[name], _CHUNKS_PER_TURN)
        if direction == "in":
            return append(server, stores[name], frames(first, blocks, BLOCK_BYTES, _WRITERS[name]), first + blocks - 1)
        return read(server, stores[name], _CHUNKS_PER_TURN, SEGMENT)

    for turn in range(2 + turns):
        # What is read must be there.
        for call in rng.sample(_CALLS, len(_CALLS)) if turn else _CALLS:
            spent_s = run(call, turn)
            if call.startswith("store-in"):
                server.ask("settle")
            if turn >= 2:  # The first ones warm up.
                found[call].append(spent_s / gigabytes)


def _compared(found: dict[str, list[float]], direction: str, groups: Sequence[Sequence[float]]) -> dict[str, object]:
    def of(kind: str, name: str, turns: Sequence[float]) -> float:
        values = found[f"{kind}-{direction}-{name}"]
        return statistics.median([values[int(turn)] for turn in turns])

    def transport(turns: Sequence[float]) -> float:
        return of("bare", "own", turns) / of("bare", "tls", turns)

    def added(turns: Sequence[float]) -> float:
        return (of("store", "tls", turns) - of("store", "plain", turns)) / (
            of("bare", "tls", turns) - of("bare", "plain", turns)
        )

    every = [turn for group in groups for turn in group]
    ratios: dict[str, Callable[[Sequence[float]], float]] = {"transport": transport, "added": added}
    return {
        name: {
            "ratio": round(ratio(every), 3), "bounds": bounds(groups, ratio),
            "ratio_of_rounds": [round(ratio(group), 3) for group in groups],
        }
        for name, ratio in ratios.items()
    }  # fmt: skip

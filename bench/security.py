"""What TLS, tokens, and peers without credentials cost a segment store.

    python bench/security.py
    python bench/security.py --parts tokens,tls
    python bench/security.py --parts strangers --strangers 10000

The server is a child process with log and chunks in memory; CPU is that of the child, user and system, so a busy
machine changes it little. All figures are ratios of turns in one run, with the bounds of 95 % of the means that other
draws of the same pairs have.

`tokens`: CPU per small append with a token for each writer, to without, in pairs of short turns. Each round has new
processes, since two processes differ by their layout in memory. `tls`: the CPU that TLS adds for a byte, here and in a
bare server of asyncio, for appends and for reads. `strangers`: see `_security_strangers.py`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from _common import parser, raw_disk, report, work_directory
from _security_child import (
    BLOCK_BYTES,
    append,
    bare_received,
    bare_sent,
    child,
    greeted,
    read,
)
from _security_server import CHUNK_BYTES
from _security_strangers import measure_strangers
from _wire import say

_DRAWS = 2_000
_SMALL_BYTES = 100


def bounds(groups: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]) -> list[float]:
    """Return the bounds of 95 % of `of`, over draws of groups, and then of values of each."""
    rng = random.Random(1)
    found = sorted(
        of([value for group in rng.choices(groups, k=len(groups)) for value in rng.choices(group, k=len(group))])
        for _ in range(_DRAWS)
    )
    return [round(found[int(_DRAWS * share)], 4) for share in (0.025, 0.975)]


def measure_tokens(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare the CPU of small appends with tokens and without, in pairs of turns."""
    count = 2_000 if arguments.quick else 10_000
    rounds, turns = (1, 2) if arguments.quick else (arguments.rounds, 12 * arguments.turns)
    costs: dict[bool, list[float]] = {False: [], True: []}
    ratios: list[list[float]] = []
    for number in range(rounds):
        with (
            child(directory, "store", has_tls=False) as plain,
            child(directory, "store", has_tls=False, has_tokens=True) as checked,
        ):
            servers = {False: (plain, greeted(plain)), True: (checked, greeted(checked))}
            ratios.append([])
            for turn in range(1 + turns):
                spent: dict[bool, float] = {}
                for has_tokens in (False, True) if turn % 2 else (True, False):
                    server, connection = servers[has_tokens]
                    spent[has_tokens] = append(server, connection, 1 + turn * count, count, _SMALL_BYTES)
                if turn:  # The first one warms up.
                    ratios[-1].append(spent[True] / spent[False])
                    for has_tokens, spent_s in spent.items():
                        costs[has_tokens].append(1e6 * spent_s / count)
        say(f"tokens: round {number} {statistics.mean(ratios[-1]):.3f}")
    return {
        "cpu_us_per_append": {
            "plain": round(statistics.median(costs[False]), 3), "tokens": round(statistics.median(costs[True]), 3),
        },
        "pairs": sum(map(len, ratios)),
        "ratio_of_rounds": [round(statistics.mean(each), 3) for each in ratios],
        "ratio": round(statistics.mean([each for group in ratios for each in group]), 4),
        "ratio_bounds": bounds(ratios, statistics.mean),
    }  # fmt: skip


def measure_tls(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare the CPU that TLS adds here and in a bare server, in both directions, in turns."""
    chunks = 4 if arguments.quick else 40
    turns = 1 if arguments.quick else 10 * arguments.turns
    blocks = chunks * CHUNK_BYTES // BLOCK_BYTES
    gigabytes = chunks * CHUNK_BYTES / 1e9
    found: dict[str, list[float]] = {}
    with (
        child(directory, "store", has_tls=False) as plain,
        child(directory, "store", has_tls=True) as secured,
        child(directory, "bare", has_tls=False) as bare,
        child(directory, "bare", has_tls=True) as bare_secured,
    ):
        connections = {plain: greeted(plain), secured: greeted(secured)}
        for turn in range(1 + turns):
            spent: dict[str, float] = {}
            for name, server in (("plain", plain), ("tls", secured)):
                spent[f"append_{name}"] = append(
                    server, connections[server], 1 + turn * blocks, blocks, BLOCK_BYTES
                )  # fmt: skip
                spent[f"read_{name}"] = read(server, connections[server], chunks)
            for name, server in (("plain", bare), ("tls", bare_secured)):
                spent[f"bare_in_{name}"] = bare_sent(server, chunks * CHUNK_BYTES)
                spent[f"bare_out_{name}"] = bare_received(server, chunks)
            if turn or arguments.quick:  # The first one warms up.
                for name, spent_s in spent.items():
                    found.setdefault(name, []).append(spent_s / gigabytes)
            say(f"tls: turn {turn}")

    def added(ours: str, bare_name: str) -> dict[str, object]:
        pairs = list(zip(
            found[f"{ours}_tls"], found[f"{ours}_plain"], found[f"{bare_name}_tls"], found[f"{bare_name}_plain"],
            strict=True,
        ))  # fmt: skip

        def ratio(chosen: Sequence[float]) -> float:
            turns_of = [pairs[int(index)] for index in chosen]
            own_s, bare_s = (sum(each[at] - each[at + 1] for each in turns_of) for at in (0, 2))
            return own_s / max(bare_s, 1e-9)

        indexes = [float(index) for index in range(len(pairs))]
        return {"ratio": round(ratio(indexes), 3), "ratio_bounds": bounds([indexes], ratio)}

    return {
        "cpu_s_per_gb": {name: round(statistics.median(values), 3) for name, values in found.items()},
        "added_by_tls_to_bare": {"append": added("append", "bare_in"), "read": added("read", "bare_out")},
    }


def main() -> None:
    """Measure the chosen parts, print the report."""
    options = parser(__doc__ or "")
    options.add_argument("--parts", default="tokens,tls,strangers", help="which, separated by commas")
    options.add_argument("--strangers", type=int, default=10_000, help="connections without credentials")
    options.add_argument("--kinds", default="silent,partial,garbage,handshakes", help="of strangers")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--rounds", type=int, default=6, help="pairs of processes, for tokens")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.turns = 1
    parts = {"tokens": measure_tokens, "tls": measure_tls, "strangers": measure_strangers}
    with work_directory(arguments) as directory:
        figures: dict[str, object] = {"raw_disk": raw_disk(directory)}
        for name in arguments.parts.split(","):
            figures[name] = parts[name](directory, arguments)
    report("security", figures)


if __name__ == "__main__":
    main()

"""What TLS, tokens, and peers without credentials cost a segment store.

    python bench/security.py
    python bench/security.py --parts tokens,tls
    python bench/security.py --parts strangers --strangers 10000

The server is a child process with log and chunks in memory; CPU is that of the child, user and system, so a busy
machine changes it little. All figures are ratios of turns in one run, with the bounds of 95 % of the medians that other
draws of the same pairs have.

`tokens`: CPU per small append with a token for each writer, to without, in pairs of short turns, at two ports of one
process: two processes differ by their layout in memory. Each round has a new process. `tls`: see `_security_tls.py`.
`strangers`: see `_security_strangers.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from pathlib import Path

from _common import parser, raw_disk, report, work_directory
from _security_child import append, bounds, child, frames, greeted
from _security_server import LOOP_VARIABLE
from _security_strangers import measure_strangers
from _security_tls import measure_tls
from _wire import say

_SMALL_BYTES = 100


def measure_tokens(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare the CPU of small appends with tokens and without, in pairs of turns."""
    count = 2_000 if arguments.quick else 10_000
    rounds, turns = (1, 2) if arguments.quick else (arguments.rounds, 12 * arguments.turns)
    costs: dict[bool, list[float]] = {False: [], True: []}
    ratios: list[list[float]] = []
    rng = random.Random(1)
    for number in range(rounds):
        with child(directory, "store", has_tls=False, has_tokens=True) as server:
            writers = {True: b"c" * 16, False: b"p" * 16}
            connections = {
                checked: greeted(server, port, writer=writers[checked])
                for checked, port in zip((True, False), server.ports, strict=True)
            }
            ratios.append([])
            for turn in range(2 + turns):
                spent: dict[bool, float] = {}
                for checked in rng.sample((True, False), 2):
                    first = 1 + turn * count
                    parts = frames(first, count, _SMALL_BYTES, writers[checked])
                    spent[checked] = append(server, connections[checked], parts, first + count - 1)
                    server.ask("settle")
                if turn >= 2:  # The first ones warm up.
                    ratios[-1].append(spent[True] / spent[False])
                    for checked, spent_s in spent.items():
                        costs[checked].append(1e6 * spent_s / count)
        say(f"tokens: round {number} {statistics.median(ratios[-1]):.3f}")
    return {
        "cpu_us_per_append": {
            "plain": round(statistics.median(costs[False]), 3), "tokens": round(statistics.median(costs[True]), 3),
        },
        "pairs": sum(map(len, ratios)),
        "ratio_of_rounds": [round(statistics.median(each), 3) for each in ratios],
        "ratio": round(statistics.median([each for group in ratios for each in group]), 4),
        "ratio_bounds": bounds(ratios, statistics.median),
    }  # fmt: skip


def main() -> None:
    """Measure the chosen parts, print the report."""
    options = parser(__doc__ or "")
    options.add_argument("--parts", default="tokens,tls,strangers", help="which, separated by commas")
    options.add_argument("--strangers", type=int, default=10_000, help="connections without credentials")
    options.add_argument("--kinds", default="silent,partial,garbage,handshakes", help="of strangers")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument(
        "--loop", choices=("server", "asyncio"), default="server", help="event loop: as the server's, or asyncio's own"
    )
    options.add_argument("--rounds", type=int, default=6, help="processes, for tokens and TLS")
    arguments = options.parse_args()
    os.environ[LOOP_VARIABLE] = arguments.loop
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

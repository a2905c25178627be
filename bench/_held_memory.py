"""`held_memory`: memory that this machine has from its host, given to what is measured as it needs it.

A virtual machine's host takes back memory that is free for some seconds, and whoever is first to use a page again pays
for it: up to 3 s/GB here, half of what a server takes for all it does, and more or less of it from one run to the next.
A machine that has run for a while has no such pages: its memory is in use, as page cache if nothing else. So a process
takes all that is free, touches it, and gives it away in small pieces whenever less than a few hundred MB are free.

    python bench/_held_memory.py     (until it is killed; prints a line once it holds all)
"""

from __future__ import annotations

import argparse
import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PIECE_BYTES = 64 * 1024 * 1024
_PAGE_BYTES = 4096
#: So much is left free when it has taken what there is, and so much it keeps free afterwards.
_LEFT_MB, _FREE_MB = 600, 400
_POLL_S = 0.02


def add_option(options: argparse.ArgumentParser) -> None:
    """Add `--hold-memory`."""
    options.add_argument(
        "--hold-memory",
        action="store_true",
        help="use memory that a virtual machine has from its host already (takes a minute; Linux)",
    )


@contextmanager
def held_memory(is_wanted: bool) -> Iterator[None]:
    """Hold memory meanwhile, if that is wanted."""
    if not is_wanted:
        yield
        return
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


def _free_mb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) // 1024
    raise OSError("/proc/meminfo does not say what is free")


def main() -> None:
    held: list[mmap.mmap] = []
    while _free_mb() > _LEFT_MB:
        piece = mmap.mmap(-1, _PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for offset in range(0, _PIECE_BYTES, _PAGE_BYTES):
            piece[offset] = 1
        held.append(piece)
    print(f"holds {len(held) * _PIECE_BYTES // 1_000_000} MB", flush=True)
    while held:
        while held and _free_mb() < _FREE_MB:
            held.pop().close()
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()

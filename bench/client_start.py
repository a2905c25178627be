"""How long a program waits for `from penstock import connect`, for its first client, and to hear of a missing server.

    python bench/client_start.py --runs 20

Each run is a fresh interpreter; CPU is that of its process, user and system, which a busy machine changes little. The
baseline is an interpreter that does nothing.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time

from _common import parser, percentiles_ms, raw_disk, report, work_directory

_PROGRAMS = {
    "baseline: nothing": "",
    "import penstock": "import penstock",
    "from penstock import connect": "from penstock import connect",
    "import penstock.aio": "import penstock.aio",
    "connect and close": "import penstock; penstock.connect('tcp://127.0.0.1:{port}').close()",
    "no server": (
        "import penstock\n"
        "client = penstock.connect('tcp://127.0.0.1:{port}')\n"
        "try:\n"
        "    client.create_stream('a/b')\n"
        "except penstock.ControllerUnavailableError as error:\n"
        "    assert 'penstock standalone' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
        "client.close()\n"
    ),
    "no answer": (
        "import penstock\n"
        "client = penstock.connect('tcp://127.0.0.1:{silent}')\n"
        "try:\n"
        "    client.create_stream('a/b')\n"
        "except penstock.ControllerUnavailableError as error:\n"
        "    assert 'penstock standalone' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
        "client.close()\n"
    ),
}


def once(program: str) -> tuple[float, float]:
    """Run a program; return the seconds of CPU and by the clock that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    wall_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall_s


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--runs", type=int, default=10)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.runs = 1
    figures: dict[str, object] = {}
    with work_directory(arguments) as directory, socket.socket() as nobody, socket.socket() as silent:
        disk = raw_disk(directory)
        nobody.bind(("127.0.0.1", 0))  # Bound and not listening: connections are refused.
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # Connections are made, and nobody ever says anything.
        for name, program in _PROGRAMS.items():
            text = program.format(port=nobody.getsockname()[1], silent=silent.getsockname()[1])
            runs = [once(text) for _ in range(arguments.runs)]
            figures[name] = {
                "cpu": percentiles_ms([cpu_s for cpu_s, _ in runs]),
                "by_the_clock": percentiles_ms([wall_s for _, wall_s in runs]),
            }
    report("client_start", {"programs": figures, "raw_disk": disk})


if __name__ == "__main__":
    main()

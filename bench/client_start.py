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

#: A program that hears that no server is there, at a port that is filled in; it prints how long that took.
_MISSING = """
import time, penstock
client = penstock.connect("tcp://127.0.0.1:{port}")
begin_s = time.monotonic()
try:
    client.create_stream("a/b")
except penstock.ControllerUnavailableError as error:
    print(time.monotonic() - begin_s)
    assert "penstock standalone" in str(error), error
else:
    raise SystemExit("no error")
client.close()
"""
_PROGRAMS = {
    "baseline: nothing": "",
    "import penstock": "import penstock",
    "from penstock import connect": "from penstock import connect",
    "import penstock.aio": "import penstock.aio",
    "connect and close": "import penstock; penstock.connect('tcp://127.0.0.1:{refusing}').close()",
    "nothing listens": _MISSING.replace("{port}", "{refusing}"),
    "nothing answers": _MISSING.replace("{port}", "{silent}"),
}


def once(program: str) -> tuple[float, float, str]:
    """Run a program; return the seconds of CPU and by the clock that it took, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    wall_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall_s, done.stdout.strip()


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
        ports = {"refusing": str(nobody.getsockname()[1]), "silent": str(silent.getsockname()[1])}
        for name, program in _PROGRAMS.items():
            text = program
            for place, port in ports.items():
                text = text.replace(f"{{{place}}}", port)
            runs = [once(text) for _ in range(arguments.runs)]
            figures[name] = {
                "cpu": percentiles_ms([cpu_s for cpu_s, _, _ in runs]),
                "by_the_clock": percentiles_ms([wall_s for _, wall_s, _ in runs]),
                **({"error_after": percentiles_ms([float(said) for _, _, said in runs])} if runs[0][2] else {}),
            }
    report("client_start", {"programs": figures, "raw_disk": disk})


if __name__ == "__main__":
    main()

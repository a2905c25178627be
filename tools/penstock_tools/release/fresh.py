"""Times an installation of the wheel on a new Debian without caches, to the first event; prints JSON.

    python -m penstock_tools.release.fresh dist/penstock-VERSION-py3-none-any.whl

Making the Debian is not timed. ``cpu_s`` is the CPU time of all steps. Needs root, mmdebstrap and a package index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from penstock_tools.release.image import make_debian
from penstock_tools.release.sandbox import Unpacked, sandbox
from penstock_tools.release.steps import ReleaseError, needs

#: The promise: from the beginning of the installation to the first event that was read.
LIMIT_S = 60.0
_TIMEOUT_S = 1800.0
#: Variables by which this machine's pip finds its package index and its authority.
_VARIABLES = ("PIP_CERT", "PIP_INDEX_URL", "PIP_FIND_LINKS", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

_SCRIPT = """
set -eu
now() { date +%s.%N; }
begin=$(now)
python3 -m venv /tmp/venv
/tmp/venv/bin/pip install -q --no-cache-dir --disable-pip-version-check WHEEL
installed=$(now)
cd /tmp
options="--controller-port 0 --segment-store-port 0 --no-web --json"
/tmp/venv/bin/penstock standalone --data-dir /tmp/store $options > ready &
server=$!
while ! grep -q controller ready; do sleep 0.05; kill -0 $server; done
ready=$(now)
uri=$(/tmp/venv/bin/python -c 'import json; print(json.loads(open("ready").readline())["controller"])')
cat > first.py <<'END'
import penstock, sys
with penstock.connect(sys.argv[1]) as client:
    client.create_stream("retail/orders", exist_ok=True)
    with client.event_writer("retail/orders") as writer:
        writer.write(b'{"order": 1}', routing_key="customer-42")
    with client.reader_group("audit", ["retail/orders"]) as group, group.reader() as reader:
        assert reader.read(timeout_s=60).data == b'{"order": 1}'
END
/tmp/venv/bin/python first.py "$uri"
read=$(now)
kill $server
wait $server
echo "TIMES $begin $installed $ready $read"
"""


def measure(wheel: Path, root: Path) -> dict[str, float]:
    """Install a wheel in a Debian root and read an event there; return the seconds of each step, and those of CPU."""
    shutil.copyfile(wheel, root / wheel.name)
    for name in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copyfile(name, root / name.lstrip("/"))
    (root / "data").mkdir(exist_ok=True)
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ and name != "PIP_FIND_LINKS"}
    machine = Unpacked(root, 0, 0, (), {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", **variables})
    script = _SCRIPT.replace("WHEEL", f"/{wheel.name}")
    used_s = _cpu_s()
    done = sandbox(machine, ["sh", "-c", script], timeout_s=_TIMEOUT_S, reaches_network=True)
    last = done.stdout.splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("TIMES "):
        raise ReleaseError(f"the installation ended with {done.returncode}:\n{done.stdout[-3000:]}")
    begin, installed, ready, read = map(float, last[0].split()[1:])
    return {
        "install_s": round(installed - begin, 1),
        "start_s": round(ready - installed, 1),
        "first_event_s": round(read - ready, 1),
        "all_s": round(read - begin, 1),
        "cpu_s": round(_cpu_s() - used_s, 1),
    }


def _cpu_s() -> float:
    """Return the CPU time of all child processes that have ended. Unlike the other times, load hardly changes it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Run the command; return its exit code: 1 if the installation fails or exceeds the limit."""
    parser = argparse.ArgumentParser(prog="python -m penstock_tools.release.fresh", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--root", type=Path, help="a Debian root with python3-venv that exists, in place of a new one")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-fresh-") as scratch:
            root = options.root
            if root is None:
                needs("mmdebstrap", "apt-get install mmdebstrap")
                root = Path(scratch) / "root"
                make_debian(root, ("ca-certificates", "python3-venv"), epoch_s=0)
            found = measure(options.wheel, root)
    except ReleaseError as error:
        print(f"fresh: {error}", file=sys.stderr)  # noqa: T201
        return 1
    load = os.getloadavg()[0]
    print(json.dumps({"type": "fresh", **found, "limit_s": LIMIT_S, "load": round(load, 1)}))  # noqa: T201
    return int(found["all_s"] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())

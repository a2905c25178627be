"""schemathesis calls the REST interface as its OpenAPI document describes it, with good and with bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from penstock.server.standalone_process import child_environment
from penstock.testing import MemoryServer

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1500)]

#: Inputs for each operation and phase; by environment, for longer runs.
EXAMPLES = os.environ.get("PENSTOCK_SCHEMATHESIS_EXAMPLES", "20")
#: Replies never are a failure of the server, and have a status, a content type and a body of the document.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXCLUDED = "/tail$|/v1/audit$|/v1/cluster/(members|assignment)$"
#: schemathesis has no serializer for lines of JSON.
HOOKS = """
import json
import schemathesis

@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return "\\n".join(map(json.dumps, value if isinstance(value, list) else [value])).encode()
"""


def schemathesis_program() -> str:
    """Return the path of ``schemathesis``; skip the test without it."""
    script = Path(__file__).parents[1] / "support" / "schemathesis.sh"
    found = subprocess.run([str(script)], capture_output=True, text=True, timeout=600)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    return found.stdout.strip()


def test_replies_are_those_of_the_document(penstock_server: MemoryServer, tmp_path: Path) -> None:
    program = schemathesis_program()
    (tmp_path / "line_hooks.py").write_text(HOOKS)
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "line_hooks", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "penstock", "web", "--uri", penstock_server.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as running:
        try:
            assert running.stdout is not None
            address = json.loads(running.stdout.readline())["address"]
            with httpx.Client(base_url=address, timeout=60) as client:
                client.post("/v1/scopes", json={"scopeName": "shop"}).raise_for_status()
                policy = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
                stream = {"streamName": "orders", "scalingPolicy": policy}
                client.post("/v1/scopes/shop/streams", json=stream).raise_for_status()
            checked = subprocess.run(
                [
                    *(program, "run", f"{address}/v1/openapi.json", "--url", address, "--checks", CHECKS),
                    *("--max-examples", EXAMPLES, "--generation-deterministic", "--no-color", "--continue-on-failure"),
                    # A tail does not end. A server in memory answers 501 to the others: no audit log, no members.
                    *("--exclude-path-regex", EXCLUDED, "--request-timeout", "60", "--warnings", "off"),
                ],
                capture_output=True, text=True, timeout=1400, check=False, cwd=tmp_path, env=environment,
            )  # fmt: skip
        finally:
            running.kill()
    assert checked.returncode == 0, checked.stdout[-8000:] + checked.stderr
    assert re.search(r"[1-9]\d+ generated, [1-9]\d+ passed", checked.stdout), checked.stdout

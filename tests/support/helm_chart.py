"""Renders the Helm chart of the repository and writes the golden files of its tests.

``python tests/support/helm_chart.py`` writes ``tests/data/chart``, one file for each set of values in ``ci``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "penstock"
GOLDEN = ROOT / "tests" / "data" / "chart"
VALUES = sorted((CHART / "ci").glob("*.yaml"))


def find_helm() -> str | None:
    """Return the path of Helm: of this machine, or as ``helm.sh`` has fetched it. None: there is none."""
    if found := shutil.which("helm"):
        return found
    script = Path(__file__).with_name("helm.sh")
    where = subprocess.run([script, "--where"], capture_output=True, text=True, check=True).stdout.strip()
    return where if Path(where).exists() else None


def run_helm(helm: str, verb: str, *more: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``helm lint`` or ``helm template`` on the chart. Reaches no network."""
    words: dict[str, list[str | Path]] = {
        "lint": ["lint", "--strict", CHART],
        "template": ["template", "events", CHART, "--namespace", "streams"],
    }
    return subprocess.run([helm, *words[verb], *more], capture_output=True, text=True, timeout=120, check=False)


def documents(text: str) -> list[dict[str, Any]]:
    """Return the manifests in a rendered chart, sorted by kind and name."""
    found = [each for each in yaml.safe_load_all(text) if each]
    return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))


def golden(text: str) -> str:
    """Return a rendered chart in one form, without comments and in one order."""
    dumped: str = yaml.safe_dump_all(documents(text), sort_keys=True, width=200)
    return dumped


if __name__ == "__main__":
    program = find_helm()
    if program is None:
        sys.exit("there is no Helm: tests/support/helm.sh")
    GOLDEN.mkdir(exist_ok=True)
    for values in VALUES:
        rendered = run_helm(program, "template", "--values", values)
        if rendered.returncode:
            sys.exit(rendered.stderr)
        (GOLDEN / values.name).write_text(golden(rendered.stdout), encoding="utf-8")

"""The Penstock of an earlier commit beside that of this checkout, each from a wheel, without its dependencies.

A process gets one of them by its `PYTHONPATH`; all other packages are those of this environment.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BUILD_TIMEOUT_S = 900.0


def sources_of(commit: str, folder: Path) -> Path:
    """Return a new directory in `folder` with the sources of a commit. Skips the test where git does not have it."""
    target = folder / f"sources-{commit[:8]}"
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"git has no commit {commit[:8]} here: {done.stderr.decode(errors='replace').strip()[-200:]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:  # Before Python 3.11.4.
            archive.extractall(target)
    return target


def unpacked_wheel(sources: Path, folder: Path) -> Path:
    """Build the wheel of some sources, and return a new directory in `folder` with what it installs.

    Skips the test where pip does not get the package that builds wheels.
    """
    built, target = folder / f"wheel-of-{sources.name}", folder / f"installed-{sources.name}"
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "-w", str(built),
        str(sources),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip(f"no package index: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("penstock-*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(target)
    return target

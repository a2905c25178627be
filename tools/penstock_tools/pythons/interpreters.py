"""Finds the Python interpreters of this machine, one for each version that the project supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Bound for the answer of an interpreter or of uv. They answer in less than a second on an idle machine.
ANSWER_TIMEOUT_S = 60.0
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_QUESTION = "import sys, platform; print(sys.implementation.name, platform.python_version())"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter that starts.

    Attributes:
        version: major and minor number, such as ``3.13``.
        release: the whole version, such as ``3.13.0``.
        path: the program.
    """

    version: str
    release: str
    path: Path


def supported_versions(project_file: Path) -> list[str]:
    """Return the versions that the classifiers of a pyproject.toml name, such as ``3.13``, the oldest first."""
    classifiers = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]["classifiers"]
    found = [match[1] for text in classifiers if (match := _CLASSIFIER.fullmatch(text))]
    return sorted(found, key=_numbers)


def find_interpreter(version: str, environment: Mapping[str, str]) -> Interpreter | None:
    """Return the first interpreter of a version that starts, or None.

    Searched, in sequence: the running interpreter, ``python3.N`` in each directory of ``PATH``, pyenv's versions (the
    newest first), and what ``uv python find`` names.

    Args:
        version: major and minor number.
        environment: variables of the process: ``PATH``, ``PYENV_ROOT``, ``HOME``.
    """
    for path in _candidates(version, environment):
        release = _release_of(path)
        if release is not None and release.startswith(f"{version}."):
            return Interpreter(version, release, path)
    return None


def _candidates(version: str, environment: Mapping[str, str]) -> Iterator[Path]:
    if _numbers(version) == sys.version_info[:2]:
        yield Path(sys.executable)
    for folder in environment.get("PATH", "").split(os.pathsep):
        program = Path(folder or ".") / f"python{version}"
        # The commands of pyenv's `shims` end with an error unless their version is the chosen one.
        if os.access(program, os.X_OK):
            yield program
    root = environment.get("PYENV_ROOT") or f"{environment.get('HOME', '/root')}/.pyenv"
    kept = [path for path in Path(root).glob(f"versions/{version}.*") if re.fullmatch(r"[0-9.]+", path.name)]
    for path in sorted(kept, key=lambda path: _numbers(path.name), reverse=True):
        yield path / "bin" / "python"
    if uv := shutil.which("uv", path=environment.get("PATH")):
        printed = _output([uv, "python", "find", "--no-python-downloads", "--no-project", version])
        if printed:
            yield Path(printed)


def _release_of(program: Path) -> str | None:
    """Return the version of a CPython; None if it is another program or does not start."""
    name, _, release = (_output([str(program), "-I", "-c", _QUESTION]) or "").partition(" ")
    return release if name == "cpython" else None


def _output(command: list[str]) -> str | None:
    """Return what a command prints, without the end of the line; None if it fails or does not answer in time."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))

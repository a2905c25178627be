"""What all parts of a release use: its version and time, progress lines, commands with bounded time, digests."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
#: Bound for one command. The longest are installations of packages over the network.
COMMAND_TIMEOUT_S = 1800.0


class ReleaseError(Exception):
    """A part of the release cannot be built; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is built, and where.

    Attributes:
        version: of pyproject.toml; the only place where the project has it.
        epoch_s: time of the commit, in seconds; every file of an artefact has it.
        source: a copy of the committed files.
        output: the folder of the artefacts.
        scratch: a folder for intermediate files, deleted at the end.
    """

    version: str
    epoch_s: int
    source: Path
    output: Path
    scratch: Path
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Print a line of progress to standard error."""
        print(f"release: {time.monotonic() - self.began:6.1f} s  {text}", file=sys.stderr, flush=True)  # noqa: T201


def version_of(project_file: Path) -> str:
    """Return the version of the project."""
    version: str = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]["version"]
    return version


def committed_source(commit: str, folder: Path) -> int:
    """Write the files of a commit into `folder`; return the commit's time in seconds.

    Files that are not committed are in no artefact, so two checkouts of one commit give the same bytes.
    """
    git = ["git", "-C", str(REPOSITORY)]
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        raise ReleaseError(f"{REPOSITORY} is no git checkout: a release is built from a commit")
    epoch_s = int(run([*git, "log", "-1", "--format=%ct", commit]).strip())
    folder.mkdir(parents=True)
    packed = subprocess.run([*git, "archive", "--format=tar", commit], check=True, capture_output=True, timeout=300)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as content:
        if hasattr(tarfile, "data_filter"):
            content.extractall(folder, filter="data")
        else:  # Before Python 3.11.4.
            content.extractall(folder)
    return epoch_s


def run(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    more: Mapping[str, str] | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> str:
    """Run a command and return its standard output. Raises `ReleaseError` with its last lines if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise ReleaseError(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{' '.join(words[:4])} has not ended within {timeout_s:g} s") from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise ReleaseError(f"{' '.join(words[:6])} ended with {done.returncode}:\n{last}")
    return done.stdout


def needs(program: str, how: str) -> None:
    """Raise `ReleaseError` unless a program is installed. `how`: what installs it."""
    if shutil.which(program) is None:
        raise ReleaseError(f"{program} is not installed: {how}")


def sha256_of(path: Path) -> str:
    """Return the digest of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_checksums(files: Iterable[Path], place: Path) -> None:
    """Write what ``sha256sum --check`` reads, sorted by name."""
    lines = (f"{sha256_of(path)}  {path.name}\n" for path in sorted(files, key=lambda path: path.name))
    place.write_text("".join(lines), encoding="ascii")


def write_archive(place: Path, top: str, files: Mapping[str, bytes], epoch_s: int) -> None:
    """Write a gzipped tar archive with the same bytes at each call.

    Args:
        place: the archive.
        top: the folder in which all files are.
        files: contents by path below `top`.
        epoch_s: time of all files, in seconds.
    """
    import gzip

    with (
        place.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=epoch_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), epoch_s, 0o644
            archive.addfile(entry, BytesIO(content))

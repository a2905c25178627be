"""The archive of files for the system: units, manual pages, completions, compose files, rules for monitoring.

``python -m penstock_tools.release.system_files FILE VERSION SECONDS`` writes it, from the repository of this module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock_tools.release.completions import completion_scripts
from penstock_tools.release.manual import manual_pages
from penstock_tools.release.steps import REPOSITORY, Release, run, write_archive

#: Folders of the repository and their places in the archive, whose paths are those below /usr/local.
_FOLDERS = {
    "deploy/systemd": "lib/systemd/system",
    "deploy/sysusers": "lib/sysusers.d",
    "deploy/compose": "share/doc/penstock/compose",
    "deploy/prometheus": "share/doc/penstock/prometheus",
    "deploy/grafana": "share/doc/penstock/grafana",
}


def system_files(source: Path, version: str, epoch_s: int) -> dict[str, bytes]:
    """Return the contents of the archive by their paths below its top folder."""
    files = {f"share/man/man1/{name}": text.encode() for name, text in manual_pages(version, epoch_s).items()}
    files |= {f"share/{place}": text.encode() for place, text in completion_scripts().items()}
    for folder, place in _FOLDERS.items():
        for path in sorted((source / folder).iterdir()):
            if path.is_file() and not path.name.endswith("-test.yml"):
                files[f"{place}/{path.name}"] = path.read_bytes()
    files["share/doc/penstock/LICENSE"] = (source / "LICENSE").read_bytes()
    return files


def build_system_files(release: Release) -> list[Path]:
    """Write the archive; return its path."""
    release.say("writing units, manual pages and completions")
    place = release.output / f"penstock-{release.version}-system.tar.gz"
    # A process of its own: the commands in the manual are those of the commit, not those of this process.
    search = os.pathsep.join(str(release.source / folder) for folder in ("src", "tools"))
    command = [
        sys.executable,
        "-m",
        "penstock_tools.release.system_files",
        str(place),
        release.version,
        str(release.epoch_s),
    ]
    run(command, more={"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"})
    return [place]


if __name__ == "__main__":
    path, of_version, seconds = sys.argv[1:]
    top = Path(path).name.removesuffix(".tar.gz")
    write_archive(Path(path), top, system_files(REPOSITORY, of_version, int(seconds)), int(seconds))

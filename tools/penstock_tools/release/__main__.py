"""``./run release [PART]...``: build release artefacts of a commit into a folder, with checksums beside them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock_tools.release.chart import build_chart
from penstock_tools.release.image import JAVA, PLAIN, build_image
from penstock_tools.release.packages import build_packages, list_components
from penstock_tools.release.steps import (
    REPOSITORY,
    Release,
    ReleaseError,
    committed_source,
    sha256_of,
    version_of,
    write_checksums,
)
from penstock_tools.release.system_files import build_system_files

#: In the order in which they are built: later ones use the wheel of the first.
PARTS: dict[str, Callable[[Release], list[Path]]] = {
    "packages": build_packages,
    "components": lambda release: [list_components(release)],
    "system": build_system_files,
    "chart": build_chart,
    "image": lambda release: build_image(release, PLAIN),
    "image-java": lambda release: build_image(release, JAVA),
}


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(prog="./run release", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to build: {', '.join(PARTS)}; all by default")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist", help="folder of the artefacts")
    parser.add_argument("--commit", default="HEAD", help="what to build from; other changes are left out")
    parser.add_argument("--json", action="store_true", help="print the names, sizes and digests as JSON")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return options


def build(parts: list[str], output: Path, commit: str) -> Release:
    """Build parts of a release of a commit. Raises `ReleaseError` at the first part that cannot be built."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as scratch:
        source = Path(scratch) / "source"
        epoch_s = committed_source(commit, source)
        release = Release(version_of(source / "pyproject.toml"), epoch_s, source, output.resolve(), Path(scratch))
        release.say(f"Penstock {release.version}, {commit}, into {output}")
        for name, part in PARTS.items():
            if name in parts:
                for path in part(release):
                    release.say(f"{path.name}, {path.stat().st_size:,} bytes")
        # Of all artefacts of this version, so a part can be built again by itself.
        write_checksums(artefacts(output, release.version), output / "SHA256SUMS")
    return release


def artefacts(output: Path, version: str) -> list[Path]:
    """Return the artefacts of a version in a folder, sorted by name."""
    return sorted(path for path in output.glob(f"penstock-{version}[-.]*") if path.is_file())


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parsed(arguments)
    try:
        release = build(options.parts or list(PARTS), options.output, options.commit)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)  # noqa: T201
        return 1
    files = artefacts(options.output, release.version)
    if options.json:
        listed = [{"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files]
        result = {"type": "release", "version": release.version, "epoch_s": release.epoch_s, "artefacts": listed}
        print(json.dumps(result))  # noqa: T201
    else:
        print(f"{len(files)} artefacts and SHA256SUMS are in {options.output}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

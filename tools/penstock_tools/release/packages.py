"""The wheel, the source distribution, and the list of what the wheel installs."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

from penstock_tools.release.steps import Release, ReleaseError, run, sha256_of


def build_packages(release: Release) -> list[Path]:
    """Build the wheel and the source distribution twice, compare them, check their metadata; return both.

    The wheel is built from the source distribution, which therefore is complete.
    """
    built = [_build(release, number) for number in (1, 2)]
    digests = [{path.name: sha256_of(path) for path in files} for files in built]
    if digests[0] != digests[1]:
        raise ReleaseError(f"two builds differ: {digests[0]} and {digests[1]}")
    release.say("checking the metadata with twine")
    run([sys.executable, "-m", "twine", "check", "--strict", *built[0]])
    kept = [release.output / path.name for path in built[0]]
    for path, place in zip(built[0], kept, strict=True):
        shutil.copyfile(path, place)
    return kept


def _build(release: Release, number: int) -> list[Path]:
    """Build both from a copy of the source in a folder of its own; return their paths."""
    release.say(f"building the wheel and the source distribution ({number} of 2)")
    # Paths, and the time of the build, differ between the two: neither may be in the result.
    copy = release.scratch / f"build-{number}" / ("source" * number)
    shutil.copytree(release.source, copy)
    folder = release.scratch / f"built-{number}"
    run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy],
        more={"SOURCE_DATE_EPOCH": str(release.epoch_s)},
    )
    built = sorted(folder.iterdir())
    wanted = [f"penstock-{release.version}-py3-none-any.whl", f"penstock-{release.version}.tar.gz"]
    if [path.name for path in built] != wanted:
        raise ReleaseError(f"the build made {[path.name for path in built]} in place of {wanted}")
    return built


def wheel_in(folder: Path, version: str) -> Path:
    """Return the wheel of a version in a folder. Raises `ReleaseError` if it is not there."""
    wheel = folder / f"penstock-{version}-py3-none-any.whl"
    if not wheel.exists():
        raise ReleaseError(f"{wheel} is missing: build the part 'packages' too")
    return wheel


def install_wheel(wheel: Path, folder: Path, extras: str = "") -> Path:
    """Make a virtual environment without pip that has a wheel and what it requires; return its Python."""
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    wanted = f"penstock[{extras}] @ {wheel.as_uri()}" if extras else f"penstock @ {wheel.as_uri()}"
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", wanted])
    return python


def list_components(release: Release, extras: str = "") -> Path:
    """Write what the wheel installs, with versions and licences, as CycloneDX; return the file.

    The environment is a clean one, so only what the wheel requires is in it.
    """
    release.say("installing the wheel in a clean environment, to list its components")
    python = install_wheel(wheel_in(release.output, release.version), release.scratch / "components", extras)
    place = release.output / f"penstock-{release.version}.cdx.json"
    listing = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--spec-version", "1.6"]
    project = release.source / "pyproject.toml"
    run([*listing, "--output-format", "JSON", "--pyproject", project, "--output-file", place, python])
    [site] = (release.scratch / "components" / "lib").glob("python*/site-packages")
    complete_components(place, site)
    return place


def complete_components(place: Path, site: Path) -> None:
    """Change a list of components: no path of this machine, and a licence for each package that declares one.

    The tool that makes the list leaves out licences that are declared as free text. `site`: where the packages are.
    """
    listed = json.loads(place.read_text(encoding="utf-8"))
    declared = {each.name.lower(): each.metadata["License"] for each in distributions(path=[str(site)])}
    for component in listed.get("components", []):
        if not component.get("licenses") and (text := declared.get(component["name"].lower())):
            component["licenses"] = [{"license": {"name": text.splitlines()[0]}}]
        for reference in component.get("externalReferences", []):
            if reference.get("url", "").startswith("file://"):
                reference["url"] = Path(reference["url"]).name
    place.write_text(json.dumps(listed, indent=2, sort_keys=True) + "\n", encoding="utf-8")

"""The Helm chart, as the archive that ``helm install`` takes."""

from __future__ import annotations

from pathlib import Path

from penstock_tools.release.steps import Release, ReleaseError, write_archive

#: What is in the chart's folder and not in its archive (.helmignore).
_LEFT_OUT = ("ci/",)


def chart_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the chart's archive by their paths below its top folder."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if not name.startswith(_LEFT_OUT)}


def build_chart(release: Release) -> list[Path]:
    """Write the archive; return its path. The versions in Chart.yaml must be those of the project."""
    folder = release.source / "deploy" / "helm" / "penstock"
    lines = (folder / "Chart.yaml").read_text(encoding="utf-8").splitlines()
    for key in ("version", "appVersion"):
        if f"{key}: {release.version}" not in lines:
            raise ReleaseError(
                f"{key} in deploy/helm/penstock/Chart.yaml is not {release.version}, as in pyproject.toml"
            )
    release.say("packing the chart")
    # Not `helm package`: the same bytes at each build, and no need for Helm.
    place = release.output / f"penstock-{release.version}.chart.tgz"
    write_archive(place, "penstock", chart_files(folder), release.epoch_s)
    return [place]

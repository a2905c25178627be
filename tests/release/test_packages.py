"""The wheel and the source distribution of ``./run release``: reproducible, complete, with checksums and a summary."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock_tools.release import __main__ as command
from penstock_tools.release import packages
from penstock_tools.release.steps import Release, ReleaseError, sha256_of, write_archive, write_checksums

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
needs_tools = pytest.mark.skipif(
    not all(find_spec(name) for name in ("build", "hatchling", "twine", "cyclonedx_py")),
    reason="the extra 'release' is not installed: ./run install release",
)


def committed(folder: Path) -> Release:
    """Return a release of a small project with the same build system, whose two builds take little time."""
    source = folder / "source"
    (source / "src" / "penstock").mkdir(parents=True)
    (source / "src" / "penstock" / "__init__.py").write_text('"""Nothing."""\n')
    (source / "README.md").write_text("# Nothing\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "penstock"\nversion = "7.8.9"\ndescription = "Nothing"\n'
        'requires-python = ">=3.11"\nreadme = "README.md"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["src/penstock"]\n'
    )
    output, scratch = folder / "output", folder / "scratch"
    output.mkdir()
    scratch.mkdir()
    return Release("7.8.9", 1_700_000_000, source, output, scratch)


@needs_tools
def test_two_builds_in_two_folders_are_equal_and_have_the_time_of_the_commit(tmp_path: Path) -> None:
    release = committed(tmp_path)
    wheel, source = packages.build_packages(release)
    assert (wheel.name, source.name) == ("penstock-7.8.9-py3-none-any.whl", "penstock-7.8.9.tar.gz")
    with zipfile.ZipFile(wheel) as content:
        assert {entry.date_time for entry in content.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    with tarfile.open(source) as archive:
        assert {entry.mtime for entry in archive.getmembers()} == {1_700_000_000}


@needs_tools
def test_builds_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second build finds another file in its copy of the source."""
    release, build = committed(tmp_path), packages._build

    def unequal(release: Release, number: int) -> list[Path]:
        (release.source / "src" / "penstock" / f"build_{number}.py").touch()
        return build(release, number)

    monkeypatch.setattr(packages, "_build", unequal)
    with pytest.raises(ReleaseError, match="two builds differ"):
        packages.build_packages(release)
    assert list(release.output.iterdir()) == []


@needs_tools
@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_release_of_this_commit_has_checksums_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both builds of the project itself are equal, and nothing in them names a folder of this machine."""
    assert command.main(["packages", "system", "--output", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    names = {f"penstock-{VERSION}{end}" for end in ("-py3-none-any.whl", ".tar.gz", "-system.tar.gz")}
    assert summary["version"] == VERSION
    assert {entry["name"]: entry["sha256"] for entry in summary["artefacts"]} == {
        name: sha256_of(tmp_path / name) for name in names
    }
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert checked.stdout.count(": OK") == len(names)
    with zipfile.ZipFile(tmp_path / f"penstock-{VERSION}-py3-none-any.whl") as content:
        files = {name: content.read(name) for name in content.namelist()}
    assert not [name for name, text in files.items() if str(ROOT).encode() in text or b"penstock-release-" in text]
    with tarfile.open(tmp_path / f"penstock-{VERSION}.tar.gz") as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    left_out = set(tracked.splitlines()) - sources
    assert not left_out, f"the source distribution lacks {sorted(left_out)[:10]}"


@needs_tools
@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_the_list_of_components_has_each_package_that_the_wheel_requires(tmp_path: Path) -> None:
    """With version and licence; and the wheel itself without its path on this machine. Needs a package index."""
    release = command.build(["packages", "components"], tmp_path, "HEAD")
    listed = json.loads((tmp_path / f"penstock-{release.version}.cdx.json").read_text())
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "penstock")
    found = {entry["name"].lower().replace("_", "-"): entry for entry in listed["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        name = requirement.partition(">")[0].lower()
        assert found[name]["version"], name
        assert found[name].get("licenses"), f"{name} has no licence"
    assert not {"pyspark", "pytest", "twine"} & set(found)
    assert "file://" not in json.dumps(listed)


def test_a_licence_that_is_declared_as_text_is_in_the_list_of_components(tmp_path: Path) -> None:
    """As that of protobuf; one that the list has is kept, and a package that declares none has none."""
    for name, line in (("one", "License: 3-Clause BSD License\n"), ("two", "License: ignored\n"), ("three", "")):
        folder = tmp_path / "site" / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{line}")
    known = [{"license": {"id": "MIT"}}]
    place = tmp_path / "list.json"
    paths = [{"url": "file:///home/me/dist/three.whl"}]
    components = [{"name": "one"}, {"name": "two", "licenses": known}, {"name": "three", "externalReferences": paths}]
    place.write_text(json.dumps({"components": components}))
    packages.complete_components(place, tmp_path / "site")
    one, two, three = json.loads(place.read_text())["components"]
    assert one["licenses"] == [{"license": {"name": "3-Clause BSD License"}}]
    assert two["licenses"] == known
    assert three == {"name": "three", "externalReferences": [{"url": "three.whl"}]}


def test_an_archive_has_the_same_bytes_at_each_call(tmp_path: Path) -> None:
    for name in ("one.tar.gz", "two.tar.gz"):
        write_archive(tmp_path / name, "top", {"b": b"2", "a/c": b"1"}, 1_700_000_000)
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert archive.getnames() == ["top/a/c", "top/b"]


def test_checksums_find_a_changed_file(tmp_path: Path) -> None:
    files = [tmp_path / "b.whl", tmp_path / "a.tar.gz"]
    for path in files:
        path.write_text(path.name)
    write_checksums(files, tmp_path / "SHA256SUMS")
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    files[0].write_text("changed")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_a_wrong_part_or_commit_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["wheels"])
    assert ended.value.code == 2
    assert command.main(["system", "--commit", "no-such-commit", "--output", str(tmp_path)]) == 1
    assert "no-such-commit" in capsys.readouterr().err


def test_the_version_is_declared_once() -> None:
    """Files that repeat it, because a tool reads it there, have that of pyproject.toml."""
    for name in ("standalone.yaml", "cluster.yaml"):
        text = (ROOT / "deploy" / "compose" / name).read_text()
        assert text.count("penstock:") >= 1
        assert f"${{PENSTOCK_IMAGE:-penstock:{VERSION}}}" in text, name
    sources = [path for path in (ROOT / "src").rglob("*.py") if f'"{VERSION}"' in path.read_text()]
    assert sources == []

"""OCI images, without an engine: a Debian root by mmdebstrap, the wheel, put together by umoci, packed by skopeo."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from penstock_tools.release.packages import wheel_in
from penstock_tools.release.steps import Release, ReleaseError, needs, run

#: The account of the process; it owns nothing but /data.
UID = 10001
_DEBIAN = "bookworm"
#: The Python of that Debian, for which packages are fetched.
_PYTHON = "3.11"
_PLATFORMS = ("manylinux_2_36_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_PROGRAM = "/opt/penstock"
#: Files of Debian's packages that a server does not read. Licences stay.
_LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
_HOW = "apt-get install mmdebstrap umoci skopeo"


@dataclass(frozen=True, slots=True)
class Variant:
    """One image.

    Attributes:
        suffix: of its tag.
        extras: of the wheel.
        debian: packages besides Python.
    """

    suffix: str
    extras: str
    debian: tuple[str, ...]


PLAIN = Variant("", "hdfs,s3,security,web,zookeeper", ())
#: For a log in BookKeeper: Java, and the jars of its client.
JAVA = Variant("-java", "bookkeeper,hdfs,s3,security,web,zookeeper", ("openjdk-17-jre-headless",))
#: Where the jars are in `JAVA`.
JARS = "/opt/bookkeeper-jars"


def build_image(release: Release, variant: Variant) -> list[Path]:
    """Build an image of the wheel; return its archives, for OCI and for ``docker load``, and its list of packages."""
    for program in ("mmdebstrap", "umoci", "skopeo"):
        needs(program, _HOW)
    if os.geteuid() != 0:
        raise ReleaseError("images are built as root: files in them belong to several accounts")
    wheel = wheel_in(release.output, release.version)
    root = release.scratch / f"root{variant.suffix}"
    release.say(f"image{variant.suffix}: making a Debian {_DEBIAN} root")
    _make_root(release, variant, root)
    release.say(f"image{variant.suffix}: installing the wheel with {variant.extras}")
    _install(release, variant, wheel, root)
    if variant is JAVA:
        release.say(f"image{variant.suffix}: fetching the jars of BookKeeper's client")
        _fetch_jars(root)
    release.say(f"image{variant.suffix}: packing")
    return [*_pack(release, variant, root), _list_packages(release, variant, root)]


def make_debian(root: Path, packages: tuple[str, ...], *, epoch_s: int) -> None:
    """Unpack Debian's essential packages and others into a new folder. No file is later than `epoch_s`; 0: any time."""
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet"]
    command += [f"--dpkgopt={option}" for option in _LEFT_OUT]
    # Some packages of Java expect the folder of manual pages.
    command += [f"--include={','.join(packages)}", '--setup-hook=mkdir -p "$1/usr/share/man/man1"', _DEBIAN, str(root)]
    run(command, more={"SOURCE_DATE_EPOCH": str(epoch_s)} if epoch_s else {})


def _make_root(release: Release, variant: Variant, root: Path) -> None:
    """Make the Debian of an image, with the account and its folder."""
    make_debian(root, ("ca-certificates", "python3", *variant.debian), epoch_s=release.epoch_s)
    for name, line in (
        ("passwd", f"penstock:x:{UID}:{UID}::/data:/usr/sbin/nologin\n"),
        ("group", f"penstock:x:{UID}:\n"),
    ):
        with (root / "etc" / name).open("a", encoding="ascii") as file:
            file.write(line)
    (root / "data").mkdir()
    os.chown(root / "data", UID, UID)


def _install(release: Release, variant: Variant, wheel: Path, root: Path) -> None:
    """Install the wheel into a virtual environment of the root, from packages that this machine's pip fetches.

    Nothing in the root reaches the network. Modules are compiled without times in them, since the root is read-only.
    """
    packages = root / "packages"
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--dest", str(packages), "--only-binary=:all:"]
    fetch += ["--python-version", _PYTHON, "--implementation", "cp", "--abi", f"cp{_PYTHON.replace('.', '')}"]
    fetch += ["--abi", "abi3", "--abi", "none"]
    fetch += [word for platform in _PLATFORMS for word in ("--platform", platform)]
    run([*fetch, "pip", f"penstock[{variant.extras}] @ {wheel.as_uri()}"])
    [pip] = packages.glob("pip-*.whl")
    inside = ["chroot", str(root)]
    python = f"{_PROGRAM}/bin/python3"
    run([*inside, "/usr/bin/python3", "-m", "venv", "--without-pip", _PROGRAM])
    install = [*inside, python, f"/packages/{pip.name}/pip", "install", "-q", "--no-compile", "--no-index"]
    install += [
        "--find-links",
        "/packages",
        "--root-user-action=ignore",
        f"penstock[{variant.extras}]=={release.version}",
    ]
    run(install, more={"HOME": "/tmp"})
    run([*inside, python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", _PROGRAM])
    shutil.rmtree(packages)


def _fetch_jars(root: Path) -> None:
    """Put the jars of BookKeeper's client into the root, by the command for it on this machine."""
    run([sys.executable, "-m", "penstock", "jars", "--to", str(root / JARS.lstrip("/"))])


def _pack(release: Release, variant: Variant, root: Path) -> list[Path]:
    """Put the root into an image with one layer; return both archives."""
    tag = f"{release.version}{variant.suffix}"
    layout = release.scratch / f"layout{variant.suffix}"
    image = f"{layout}:{tag}"
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch_s))
    run(["umoci", "init", "--layout", layout])
    run(["umoci", "new", "--image", image])
    run(["umoci", "insert", "--image", image, "--history.created", created, root, "/"])
    config = ["umoci", "config", "--image", image, "--created", created, "--history.created", created]
    config += ["--config.user", f"{UID}:{UID}", "--config.workingdir", "/data", "--config.entrypoint", "penstock"]
    config += ["--config.cmd", "--help", "--config.env", f"PATH={_PROGRAM}/bin:/usr/local/bin:/usr/bin:/bin"]
    config += [
        "--config.env",
        "HOME=/data",
        "--config.env",
        "PYTHONDONTWRITEBYTECODE=1",
        "--config.env",
        "LANG=C.UTF-8",
    ]
    if variant is JAVA:
        config += ["--config.env", f"PENSTOCK_BOOKKEEPER__JARS={JARS}"]
    for port in (6000, 9090, 9091, 9600):
        config += ["--config.exposedports", f"{port}/tcp"]
    config += ["--config.label", f"org.opencontainers.image.version={release.version}"]
    config += ["--config.label", "org.opencontainers.image.title=penstock"]
    config += ["--config.label", "org.opencontainers.image.licenses=Apache-2.0", "--config.volume", "/data"]
    run(config)
    archives = []
    for kind in ("oci", "docker"):
        place = release.output / f"penstock-{release.version}-image{variant.suffix}.{kind}.tar"
        place.unlink(missing_ok=True)
        copy = ["skopeo", "copy", "--quiet", "--insecure-policy", f"oci:{image}"]
        run([*copy, f"{kind}-archive:{place}:penstock:{tag}"])
        archives.append(place)
    return archives


def _list_packages(release: Release, variant: Variant, root: Path) -> Path:
    """Write the packages of Debian and of Python in the image, with their versions; return the file."""
    debian = run(
        ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=deb ${Package} ${Version}\n"]
    )
    site = root / _PROGRAM.lstrip("/") / "lib" / f"python{_PYTHON}" / "site-packages"
    python = (path.name.removesuffix(".dist-info").partition("-") for path in site.glob("*.dist-info"))
    lines = [*debian.splitlines(), *(f"pypi {name} {version}" for name, _, version in python)]
    place = release.output / f"penstock-{release.version}-image{variant.suffix}.packages.txt"
    place.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    return place

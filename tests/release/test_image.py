"""The image starts in a sandbox as account 10001 with a read-only root, and serves an event."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from penstock_tools.release.__main__ import build
from penstock_tools.release.image import JARS, UID
from penstock_tools.release.sandbox import Unpacked, sandbox, unpack

PROGRAMS = ("mmdebstrap", "umoci", "skopeo", "unshare", "setpriv", "ip")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(os.geteuid() != 0, reason="images are made and started as root"),
    pytest.mark.skipif(
        not all(shutil.which(name) for name in PROGRAMS), reason=f"one of {', '.join(PROGRAMS)} is not installed"
    ),
]
_TIMEOUT_S = 900.0

#: A whole life: the root cannot be changed, the server starts, takes an event, gives it back, and stops in order.
LIFE = """
id -u
touch /changed 2>/dev/null && echo "the root can be changed"
touch /opt/penstock/changed 2>/dev/null && echo "the program can be changed"
penstock standalone --data-dir /data/store > /data/log 2>&1 &
server=$!
penstock ready --timeout 10m || { cat /data/log; exit 1; }
penstock stream create shop/orders
echo one | penstock write shop/orders
penstock read shop/orders
kill $server
wait $server
echo "ended with $?"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    """The image of this commit, or the OCI archive that PENSTOCK_TEST_IMAGE names."""
    folder = tmp_path_factory.mktemp("image")
    given = os.environ.get("PENSTOCK_TEST_IMAGE")
    if given:
        return unpack(Path(given), "tested", folder)
    pytest.importorskip("build", reason="the extra 'release' is not installed: ./run install release")
    release = build(["packages", "image"], folder / "output", "HEAD")
    return unpack(folder / "output" / f"penstock-{release.version}-image.oci.tar", "tested", folder)


def test_the_configuration_names_the_account_and_the_program(image: Unpacked) -> None:
    assert (image.uid, image.gid) == (UID, UID)
    assert image.arguments[0] == "penstock"
    assert image.environment["PATH"].startswith("/opt/penstock/bin:")


def test_the_image_serves_an_event_on_a_read_only_root(image: Unpacked) -> None:
    done = sandbox(image, ["sh", "-c", LIFE], timeout_s=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == str(UID)
    assert "one" in lines
    assert lines[-1] == "ended with 0"
    assert not [line for line in lines if "can be changed" in line]


def test_the_packages_of_a_cluster_are_there(image: Unpacked) -> None:
    script = "import kazoo, obstore, starlette, uvicorn, cryptography; print('all')"
    done = sandbox(image, ["/opt/penstock/bin/python3", "-I", "-c", script], timeout_s=_TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, "all\n")


@pytest.mark.skipif(not (shutil.which("mvn") and shutil.which("java")), reason="Maven or Java is not installed")
def test_the_image_with_java_has_the_client_of_bookkeeper(tmp_path: Path) -> None:
    """Its own Java loads the client's classes from its own jars. PENSTOCK_TEST_JAVA_IMAGE names a built archive."""
    archive = Path(os.environ.get("PENSTOCK_TEST_JAVA_IMAGE", ""))
    if not archive.name:
        pytest.importorskip("build", reason="the extra 'release' is not installed: ./run install release")
        release = build(["packages", "image-java"], tmp_path / "output", "HEAD")
        archive = tmp_path / "output" / f"penstock-{release.version}-image-java.oci.tar"
    image = unpack(archive, "tested", tmp_path)
    assert image.environment["PENSTOCK_BOOKKEEPER__JARS"] == JARS
    script = (
        "import jpype, glob; "
        f"jpype.startJVM(classpath=glob.glob('{JARS}/*.jar')); "
        "print(jpype.JClass('org.apache.bookkeeper.client.BookKeeper').class_.getSimpleName())"
    )
    done = sandbox(image, ["/opt/penstock/bin/python3", "-I", "-c", script], timeout_s=_TIMEOUT_S)
    assert done.stdout.splitlines()[-1:] == ["BookKeeper"], done.stdout
    done = sandbox(image, ["sh", "-c", LIFE], timeout_s=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    assert "one" in done.stdout.splitlines()


def test_a_command_in_a_sandbox_sees_no_other_processes_and_no_network(image: Unpacked) -> None:
    """The sandbox itself: what the tests above rely on."""
    script = "import os, socket; print(sorted(n for n in os.listdir('/proc') if n.isdigit()), flush=True); socket.create_connection(('192.0.2.1', 9), 5)"  # noqa: E501
    done = sandbox(image, ["/opt/penstock/bin/python3", "-I", "-c", script], timeout_s=_TIMEOUT_S)
    assert done.stdout.startswith("['1']\n")
    assert "Network is unreachable" in done.stdout
    assert sys.executable not in done.stdout

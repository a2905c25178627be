"""The wheel on a new Debian without caches: from the installation to the first event."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from penstock_tools.release import fresh
from penstock_tools.release.__main__ import build
from penstock_tools.release.image import make_debian
from penstock_tools.release.packages import wheel_in

PROGRAMS = ("mmdebstrap", "unshare", "setpriv")
#: The CPU time of all steps, on one core at a time: the promise of `fresh.LIMIT_S`, without the load of the machine.
CPU_S_MAX = 30.0


@pytest.mark.nightly
@pytest.mark.timeout(5400)
@pytest.mark.skipif(os.geteuid() != 0, reason="a Debian is made and entered as root")
@pytest.mark.skipif(
    not all(shutil.which(name) for name in PROGRAMS), reason=f"one of {', '.join(PROGRAMS)} is not installed"
)
def test_the_wheel_serves_an_event_on_a_new_debian(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="the extra 'release' is not installed: ./run install release")
    release = build(["packages"], tmp_path / "output", "HEAD")
    root = tmp_path / "root"
    make_debian(root, ("ca-certificates", "python3-venv"), epoch_s=0)
    found = fresh.measure(wheel_in(tmp_path / "output", release.version), root)
    assert 0 < found["cpu_s"] <= CPU_S_MAX
    assert found["all_s"] >= found["install_s"] > 0


@pytest.mark.parametrize(("all_s", "status"), [(fresh.LIMIT_S, 0), (fresh.LIMIT_S + 0.1, 1)])
def test_a_first_event_after_the_limit_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, all_s: float, status: int
) -> None:
    monkeypatch.setattr(fresh, "measure", lambda wheel, root: {"all_s": all_s})
    monkeypatch.setattr("sys.argv", ["fresh", "--root", str(tmp_path), "penstock.whl"])
    assert fresh.main() == status
    printed = json.loads(capsys.readouterr().out)
    assert (printed["type"], printed["all_s"], printed["limit_s"]) == ("fresh", all_s, fresh.LIMIT_S)

"""`S3Server`: versitygw, a real S3 server, on a directory and a free port. See `versitygw.sh`.

It is on loopback, or on a host of a `Network`.

`MinioServer` is a second one, for tests that compare servers. It is never built by a test: `minio.sh` builds it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

from penstock.runtime.objects import ObjectPlace, ObjectStoreSettings
from penstock.runtime.obstore_objects import ObstoreObjects, open_object_store
from support.namespaces import Host

ACCESS_KEY = "testak"
SECRET_KEY = "testsecret123"
_START_TIMEOUT_S = 60.0
_START_ATTEMPTS_MAX = 5


class S3UnavailableError(Exception):
    """There is no versitygw here; the message says why."""


class S3StartError(S3UnavailableError):
    """There is one, and it does not run."""


def find_program(name: str) -> Path:
    """Return the program of a server: versitygw or minio. Raises `S3UnavailableError`."""
    script = Path(__file__).with_name(f"{name}.sh")
    built = Path(subprocess.run([str(script), "--where"], check=True, capture_output=True, text=True).stdout.strip())
    if built.exists():
        return built
    if (found := shutil.which(name)) is not None:
        return Path(found)
    raise S3UnavailableError(f"{name} is not built: {script} does that, with Go")


def find_versitygw() -> Path:
    """Return the program. Raises `S3UnavailableError`."""
    return find_program("versitygw")


class S3Server:
    """One server at a time on `directory`, on loopback or on `host`. A bucket is a directory in it."""

    name: ClassVar[str] = "versitygw"
    health: ClassVar[str] = "/healthz"

    def __init__(self, directory: Path, host: Host | None = None, *, program: Path | None = None) -> None:
        self.directory = directory
        self.host = host
        self.address = "127.0.0.1" if host is None else host.address
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._program = find_program(self.name) if program is None else program

    @property
    def endpoint(self) -> str:
        """URL of the service."""
        return f"http://{self.address}:{self.port}"

    @property
    def settings(self) -> ObjectStoreSettings:
        """How it is reached."""
        return ObjectStoreSettings(
            endpoint=self.endpoint, region="us-east-1", access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY
        )

    @property
    def environment(self) -> dict[str, str]:
        """The same, as variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def make_bucket(self, name: str) -> ObjectPlace:
        """Make a bucket."""
        (self.directory / "data" / name).mkdir()
        return ObjectPlace("s3", name)

    def open(self, bucket: str) -> ObstoreObjects:
        """Return a client of its own, with its own connections."""
        return open_object_store(ObjectPlace("s3", bucket), self.settings)

    def start(self) -> S3Server:
        """Start it; a second time on the port that it had. Raises `S3UnavailableError`."""
        for name in ("data", "metadata"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        for _ in range(_START_ATTEMPTS_MAX):
            port = self.port or _free_port()
            with (self.directory / "log").open("ab") as log:
                command = [str(self._program), *self._options(port)]
                self.process = subprocess.Popen(
                    command if self.host is None else self.host.command(*command),
                    env={**os.environ, **self._variables},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            if self._is_ready(port):
                self.port = port
                return self
            self.kill()
        raise S3StartError(f"{self.name} does not run: {(self.directory / 'log').read_text()[-1000:]}")

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def hold(self) -> None:
        """Stop its process from running (SIGSTOP): it takes requests and does not answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End `hold`, if there was one."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def is_atomic(self) -> bool:
        """Whether an object's content and its version change in one step, as conditional replacements need it.

        versitygw keeps both in one file where the file system has extended attributes, else in two.
        """
        probe = self.directory / "attributes"
        probe.touch()
        try:
            os.setxattr(probe, "user.probe", b"1")
        except OSError:
            return False
        return True

    def _options(self, port: int) -> list[str]:
        beside = [] if self.is_atomic else ["--sidecar", str(self.directory / "metadata")]
        common = ["--port", f"{self.address}:{port}", "--quiet", "--health", self.health]
        return [*common, "posix", *beside, str(self.directory / "data")]

    @property
    def _variables(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def _is_ready(self, port: int) -> bool:
        url = f"http://{self.address}:{port}"
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while self.process is not None and self.process.poll() is None and time.monotonic() < deadline_s:
            try:
                entered = nullcontext() if self.host is None else self.host.entered()
                with entered, urllib.request.urlopen(f"{url}{self.health}", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                time.sleep(0.02)
        return False


class MinioServer(S3Server):
    """MinIO. A bucket is a directory here, too."""

    name: ClassVar[str] = "minio"
    health: ClassVar[str] = "/minio/health/ready"

    @property
    def is_atomic(self) -> bool:
        """See `S3Server.is_atomic`. Always."""
        return True

    def _options(self, port: int) -> list[str]:
        return ["server", "--quiet", "--address", f"{self.address}:{port}", str(self.directory / "data")]

    @property
    def _variables(self) -> dict[str, str]:
        user = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
        return {**user, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

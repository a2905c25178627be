"""Runs programs in the root of an image, in namespaces of their own, without an engine. Needs root."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_tools.release.steps import run

#: Devices that a container runtime gives to each container.
_DEVICES = ("full", "null", "random", "urandom", "zero")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An image on disk: its root, and what its configuration says of the process."""

    root: Path
    uid: int
    gid: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def unpack(archive: Path, tag: str, folder: Path) -> Unpacked:
    """Unpack an OCI archive into a new folder."""
    layout, bundle = folder / "layout", folder / "bundle"
    run(["skopeo", "copy", "--quiet", "--insecure-policy", f"oci-archive:{archive}", f"oci:{layout}:{tag}"])
    run(["umoci", "unpack", "--image", f"{layout}:{tag}", bundle])
    process = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["process"]
    environment = dict(line.split("=", 1) for line in process["env"])
    user = process["user"]
    return Unpacked(bundle / "rootfs", user["uid"], user["gid"], tuple(process["args"]), environment)


def sandbox(
    image: Unpacked,
    command: Sequence[str],
    *,
    timeout_s: float,
    reaches_network: bool = False,
    is_read_only: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command as the account of an image, with no way to more rights; return its output.

    The root is read-only, except for `/tmp` and `/data`, which are new and empty. The processes see no others, and no
    network but their own loopback. All of them end with the command.

    Args:
        image: the root, the account, the variables.
        command: and its arguments.
        timeout_s: after this time it is killed, and `subprocess.TimeoutExpired` is raised.
        reaches_network: it has the network of this machine.
        is_read_only: otherwise it may change the root as far as its account permits.
    """
    root = shlex.quote(str(image.root))
    lines = [
        "set -eu",
        "mount --make-rprivate /",
        f"mount --bind {root} {root}",
        *([f"mount -o remount,bind,ro {root}"] if is_read_only else []),
        f"mount -t proc proc {root}/proc",
        f"mount -t tmpfs -o mode=0755 tmpfs {root}/dev",
        *(f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}" for name in _DEVICES),
        f"mkdir -m 1777 {root}/dev/shm",
        f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
        f"mount -t tmpfs -o uid={image.uid},gid={image.gid},mode=0755 tmpfs {root}/data",
        *([] if reaches_network else ["ip link set lo up"]),
    ]
    inside = ["chroot", f"--userspec={image.uid}:{image.gid}", str(image.root), "/usr/bin/env", "-i", "-C", "/data"]
    inside += [*(f"{name}={value}" for name, value in image.environment.items()), *command]
    lines.append(f"exec setpriv --no-new-privs -- {shlex.join(inside)}")
    spaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    spaces += [] if reaches_network else ["--net"]
    return subprocess.run(
        [*spaces, "sh", "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip

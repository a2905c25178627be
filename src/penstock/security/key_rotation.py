"""Rotation of the key that signs delegation tokens, in steps between which servers read the file again.

1. The new key is added at the end: every server verifies with it, none signs with it.
2. Once all servers have read the file, it becomes the first one, which signs.
3. Once all tokens and sessions signed with the old key have expired, the old keys are removed.

A step that comes too early would make servers refuse good tokens, so it is refused. A file beside the keys records the
step. Each step can be repeated after a crash: the keys are written first, and the record names the new key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.security.errors import RotationTooEarlyError, SecurityFileError
from penstock.security.secrets_directory import read_token_keys, write_file
from penstock.security.sessions import TTL_S as SESSION_S
from penstock.security.settings import SecuritySettings

_KEY_LENGTH = 64
#: Servers check the file at an interval; they have read it after this many.
_INTERVALS = 2
#: Added to the life of a token: clocks differ, and an expired token is accepted for some seconds.
_MARGIN_S = 60.0


@dataclass(frozen=True, slots=True)
class RotationStep:
    """What a step has done, and when the next one is possible. `next_s` None: the rotation is complete."""

    number: int
    done: str
    next_s: float | None


class KeyRotation:
    """Rotates the keys in the file `path`. `wall_clock_s` returns the Unix time."""

    def __init__(
        self,
        path: Path,
        settings: SecuritySettings,
        random_bytes: Callable[[int], bytes],
        wall_clock_s: Callable[[], float],
    ) -> None:
        self._path = path
        self._record_path = path.with_name(path.name + ".rotation")
        self._settings = settings
        self._random_bytes = random_bytes
        self._wall_clock_s = wall_clock_s

    def advance(self) -> RotationStep:
        """Do the next step. Raises `SecurityFileError`, and `RotationTooEarlyError` if it is not possible yet."""
        if self._settings.token_key:
            raise SecurityFileError("security.token_key is one key: put it into security.token_key_file to rotate it")
        keys = list(read_token_keys(self._path).all)
        step, new, at_s = self._record()
        if step == 0 or not any(_fingerprint(key) == new for key in keys):
            key = base64.b64encode(self._random_bytes(_KEY_LENGTH))
            return self._write([*keys, key], 1, _fingerprint(key), "the new key is added: servers verify with it")
        wait_s = at_s + self._wait_s(step) - self._wall_clock_s()
        if wait_s > 0:
            raise RotationTooEarlyError(
                f"step {step + 1} of 3 is possible in {wait_s:.0f} s: nothing was changed. "
                + ("Servers have yet to read the new key" if step == 1 else "Tokens signed with the old key are valid")
            )
        first = [key for key in keys if _fingerprint(key) == new]
        if step == 1:
            others = [key for key in keys if _fingerprint(key) != new]
            return self._write([*first, *others], 2, new, "the new key signs")
        self._write_keys(first)
        self._record_path.unlink(missing_ok=True)
        return RotationStep(3, "the old keys are removed: the rotation is complete", None)

    def _wait_s(self, step: int) -> float:
        """Return the time between a step and the next one."""
        read_s = _INTERVALS * self._settings.reload_interval_s
        return read_s if step == 1 else read_s + max(self._settings.token_ttl_s, SESSION_S) + _MARGIN_S

    def _write(self, keys: list[bytes], step: int, new: str, done: str) -> RotationStep:
        self._write_keys(keys)
        now_s = self._wall_clock_s()
        write_file(self._record_path, json.dumps({"step": step, "key": new, "at_s": now_s}).encode(), 0o600)
        return RotationStep(step, done, self._wait_s(step))

    def _write_keys(self, keys: list[bytes]) -> None:
        write_file(self._path, b"".join(key + b"\n" for key in keys), 0o600)

    def _record(self) -> tuple[int, str, float]:
        """Return the last step, the fingerprint of the new key, and the Unix time of the step; step 0: none."""
        try:
            found = json.loads(self._record_path.read_bytes())
            return int(found["step"]), str(found["key"]), float(found["at_s"])
        except FileNotFoundError:
            return 0, "", 0.0
        except OSError as error:
            raise SecurityFileError(f"{self._record_path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SecurityFileError(
                f"{self._record_path} is damaged: remove it to begin the rotation again ({type(error).__name__})"
            ) from error


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]

"""Password hashes in the format of Pravega's accounts file: PBKDF2 with HMAC-SHA256.

An encoded hash is the hexadecimal form of the text ``<iterations>:<hex of salt>:<hex of hash>``.

Source: controller-api 12.3.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from penstock.security.errors import PasswordHashError

#: Iterations of new hashes, and the most that a file may ask for: more would block logins.
ITERATIONS = 200_000
ITERATIONS_MAX = 2_000_000
SALT_LENGTH = 32
HASH_LENGTH = 64
#: Replaces the hash of an account that cannot log in with a password.
NO_PASSWORD = "!"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A salted hash. Its text is secret: it never appears in messages."""

    iterations: int
    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        """Return a text without the hash."""
        return f"PasswordHash(iterations={self.iterations})"

    def verify(self, password: str) -> bool:
        """Return whether the password is right. Takes tenths of a second of CPU: call it in a thread."""
        found = _derive(password, self.salt, self.iterations, len(self.digest))
        return hmac.compare_digest(found, self.digest)

    def encode(self) -> str:
        """Return the text for an accounts file."""
        return f"{self.iterations}:{self.salt.hex()}:{self.digest.hex()}".encode().hex()


def hash_password(password: str, salt: bytes, iterations: int = ITERATIONS) -> PasswordHash:
    """Hash a password with a new random salt of `SALT_LENGTH` bytes."""
    return PasswordHash(iterations, salt, _derive(password, salt, iterations, HASH_LENGTH))


def decode_hash(text: str) -> PasswordHash:
    """Decode an encoded hash. Raises `PasswordHashError`, without the text."""
    try:
        parts = bytes.fromhex(text).decode("ascii").split(":")
        if len(parts) != 3:
            raise PasswordHashError("the password field has not three parts")
        iterations, salt, digest = int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, PasswordHashError):
            raise
        raise PasswordHashError("the password field is not a hexadecimal hash") from None
    if not 0 < iterations <= ITERATIONS_MAX:
        raise PasswordHashError(f"the password field has {iterations} iterations: 1 to {ITERATIONS_MAX} are supported")
    if not salt or not digest:
        raise PasswordHashError("the password field has an empty salt or hash")
    return PasswordHash(iterations, salt, digest)


def _derive(password: str, salt: bytes, iterations: int, length: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode("utf-8", "surrogatepass"), salt, iterations, length)

"""MurmurHash3 for 64-bit machines, 128 bits wide, with a 64-bit seed.

Libraries take 32-bit seeds and zero-extend them. Java's (Guava) sign-extends them, so its results for negative seeds
need a separate implementation. For short keys: a block of 16 bytes costs about 2 us.

Source: Austin Appleby's MurmurHash3_x64_128, which is in the public domain; Guava `Hashing.murmur3_128`.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = 16


def murmur3_first_64(data: bytes, seed: int) -> int:
    """Return the first 64 bits of the hash of `data`, as an unsigned number. `seed` is taken modulo 2**64."""
    h1 = h2 = seed & _MASK
    whole = len(data) - len(data) % _BLOCK
    for start in range(0, whole, _BLOCK):
        h1 ^= _first_half(int.from_bytes(data[start : start + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _second_half(int.from_bytes(data[start + 8 : start + _BLOCK], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    h2 ^= _second_half(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= _first_half(int.from_bytes(data[whole : whole + 8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _mixed(h1) + _mixed(h2) & _MASK


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _first_half(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _second_half(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33

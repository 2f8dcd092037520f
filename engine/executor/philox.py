"""Philox4x32-10: random numbers as a function of (seed, position). Salmon et al., "Parallel random numbers", SC'11."""

from __future__ import annotations

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds; all words have 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & _MASK, (left >> 32) ^ c3 ^ k1, left & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """In [0, 1), a multiple of 2**-24, for the token that will stand at `position`. `seed` has 64 bits."""
    word = philox4x32((position & _MASK, 0, 0, 0), (seed & _MASK, (seed >> 32) & _MASK))[0]
    return float(word >> 8) * 2.0**-24

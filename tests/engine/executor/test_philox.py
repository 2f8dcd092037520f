from __future__ import annotations

import pytest

from engine.executor.philox import philox4x32, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_gives_the_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = (int(word, 16) for word in counter.split())
    k0, k1 = (int(word, 16) for word in key.split())
    assert philox4x32((c0, c1, c2, c3), (k0, k1)) == tuple(int(word, 16) for word in expected.split())


def test_uniform_takes_the_seeds_low_word_first_and_24_bits() -> None:
    low, high = 0x299F31D0, 0xA4093822
    word = philox4x32((77, 0, 0, 0), (low, high))[0]
    assert uniform(high << 32 | low, 77) == (word >> 8) / (1 << 24)


def test_uniform_is_uniform_over_positions_and_seeds() -> None:
    for draws in ([uniform(5, p) for p in range(20_000)], [uniform(s << 20, 9) for s in range(20_000)]):
        counts = [0] * 20
        for draw in draws:
            counts[int(draw * 20)] += 1
        chi_square = sum((found - 1000) ** 2 / 1000 for found in counts)
        assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001

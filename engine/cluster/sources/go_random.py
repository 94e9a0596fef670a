"""The random numbers of Go's `math/rand` (version 1), for replays of a Go program's random choices.

The generator is an additive lagged Fibonacci sequence, y[k] = y[k-607] + y[k-273] mod 2^64 (D. P. Mitchell and
J. A. Reeds; Go's `rngSource`). Go xors each seed's first state with a table of 607 words; that table is the
generator's own state after 7.8e12 steps, so it is computed here (a polynomial power modulo x^607 = x^334 + 1) instead
of being copied.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LENGTH: Final = 607
_TAP: Final = 273
_OFFSET: Final = _LENGTH - _TAP - 1
_TABLE_STEPS: Final = 7_800_000_000_000
_MERSENNE_31: Final = (1 << 31) - 1
_MASK_64: Final = (1 << 64) - 1
_MASK_32: Final = (1 << 32) - 1


class GoRandom:
    """One seeded generator; every draw moves it by one step, a rejected draw by one more."""

    def __init__(self, seed: int) -> None:
        self._state = [int(word) for word in _first_state(seed, 40, 20) ^ _table()]
        self._tap = 0
        self._feed = _LENGTH - _TAP

    def uint64(self) -> int:
        """Return 64 random bits (`Uint64`)."""
        self._tap = (self._tap or _LENGTH) - 1
        self._feed = (self._feed or _LENGTH) - 1
        word = (self._state[self._feed] + self._state[self._tap]) & _MASK_64
        self._state[self._feed] = word
        return word

    def int63(self) -> int:
        """Return a number from 0 to 2^63 - 1 (`Int63`)."""
        return self.uint64() & (_MASK_64 >> 1)

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1 (`Intn`); the bound is positive and less than 2^31.

        Raises:
            ValueError: the bound is outside that range.
        """
        if not 0 < bound <= _MERSENNE_31:
            raise ValueError(f"a bound from 1 to {_MERSENNE_31} is needed, not {bound}")
        if bound & (bound - 1) == 0:
            return (self.int63() >> 32) & (bound - 1)
        top = _MERSENNE_31 - (1 << 31) % bound
        drawn = self.int63() >> 32
        while drawn > top:
            drawn = self.int63() >> 32
        return drawn % bound

    def shuffle(self, items: list[Any]) -> None:
        """Shuffle in place, from the end (`Shuffle`)."""
        for last in range(len(items) - 1, 0, -1):
            other = self._below_by_multiplication(last + 1)
            items[last], items[other] = items[other], items[last]

    def permutation(self, size: int) -> list[int]:
        """Return a permutation of 0 to `size` - 1 (`Perm`)."""
        result = [0] * size
        for place in range(size):
            other = self.below(place + 1)
            result[place] = result[other]
            result[other] = place
        return result

    def _below_by_multiplication(self, bound: int) -> int:
        # Lemire's method (Go's int31n), which Shuffle uses where Intn takes a remainder.
        product = (self.int63() >> 31) * bound
        low = product & _MASK_32
        if low < bound:
            threshold = ((1 << 32) - bound) % bound
            while low < threshold:
                product = (self.int63() >> 31) * bound
                low = product & _MASK_32
        return product >> 32


def _first_state(seed: int, first_shift: int, second_shift: int) -> NDArray[np.uint64]:
    value = seed % _MERSENNE_31 or 89482311

    def step() -> int:
        nonlocal value
        value = 48271 * value % _MERSENNE_31
        return value

    for _ in range(20):
        step()
    words = [((step() << first_shift) ^ (step() << second_shift) ^ step()) & _MASK_64 for _ in range(_LENGTH)]
    return np.array(words, dtype=np.uint64)


def _multiply(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    product = np.convolve(a, b)
    for degree in range(len(product) - 1, _LENGTH - 1, -1):
        value = product[degree]
        product[degree - _LENGTH + _OFFSET + 1] += value
        product[degree - _LENGTH] += value
    return product[:_LENGTH]


@cache
def _table() -> NDArray[np.uint64]:
    words = _first_state(1, 20, 10)
    sequence = np.zeros(2 * _LENGTH, dtype=np.uint64)
    for back in range(1, _LENGTH + 1):
        sequence[_LENGTH - back] = words[(_OFFSET + back) % _LENGTH]
    # Sums wrap modulo 2^64 by intent.
    with np.errstate(over="ignore"):
        for index in range(_LENGTH, 2 * _LENGTH):
            sequence[index] = sequence[index - _LENGTH] + sequence[index - _TAP]
        power = np.zeros(_LENGTH, dtype=np.uint64)
        power[0] = 1
        square = np.zeros(_LENGTH, dtype=np.uint64)
        square[1] = 1
        exponent = _TABLE_STEPS
        while exponent:
            if exponent & 1:
                power = _multiply(power, square)
            square = _multiply(square, square)
            exponent >>= 1
        table = np.zeros(_LENGTH, dtype=np.uint64)
        for index in range(_LENGTH):
            step = _TABLE_STEPS - _LENGTH + index
            table[(_OFFSET - step) % _LENGTH] = (power * sequence[index : index + _LENGTH]).sum(dtype=np.uint64)
    return table

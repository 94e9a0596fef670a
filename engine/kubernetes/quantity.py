"""Quantities exactly as Kubernetes parses, compares, adds and prints them.

The rules are those of `k8s.io/apimachinery/pkg/api/resource`: a decimal number with a decimal (`n u m k M G T P E`),
binary (`Ki Mi Gi Ti Pi Ei`) or exponent (`e3`, `E3`) suffix; amounts below one nano round *up* to one nano; results
are exact otherwise. That library keeps small amounts as int64 x 10^scale and others as big decimals, and a few of its
answers depend on which (`asInteger`): this module keeps the same distinction in `small`.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from koordpolicy.engine.cel.values.types import Type

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_SMALL_DIGITS: Final = 18
_LARGEST_EXPONENT: Final = 400  # beyond a double's range, and fast to compute
_LONGEST: Final = 1_000

_SHAPE: Final = re.compile(r"([+-]?)([0-9]*)(?:(\.)([0-9]*))?([eEinumkKMGTP]*(?:[+-]?[0-9]+)?)", re.ASCII)
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = ("", *_BINARY)


class QuantityFormat(enum.Enum):
    """The family of suffixes in which a quantity was written, and is printed."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """The amount `digits` x 10^`scale`, exact; equal to any other of the same amount, however written.

    `small` is true if Kubernetes' library stores the amount in its int64 form.
    """

    cel_type: ClassVar[Type] = Type("kubernetes.Quantity")

    digits: int
    scale: int = 0
    format: QuantityFormat = QuantityFormat.DECIMAL
    small: bool = True

    @staticmethod
    def parse(text: str) -> Quantity:
        """Return the quantity of a string; raise `ValueError` for any other string."""
        return _parse(text)

    @staticmethod
    def of(units: int) -> Quantity:
        """Return a quantity of `units` base units."""
        return Quantity(units, small=_INT64_MIN <= units <= _INT64_MAX)

    @property
    def value(self) -> int:
        """The amount in base units, rounded away from zero (Go's `Value`, without its 64-bit bound)."""
        return self._scaled(0)

    @property
    def milli(self) -> int:
        """The amount in thousandths, rounded away from zero (Go's `MilliValue`, without its 64-bit bound)."""
        return self._scaled(-3)

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.digits > 0) - (self.digits < 0)

    def _scaled(self, scale: int) -> int:
        if self.scale >= scale:
            amount: int = self.digits * 10 ** (self.scale - scale)
            return amount
        divisor: int = 10 ** (scale - self.scale)
        return -(-self.digits // divisor) if self.digits >= 0 else self.digits // divisor

    def integer(self) -> int | None:
        """Return the amount if Kubernetes treats it as an integer (Go's `AsInt64`), else None.

        `50k` is one; `1000m` and amounts that were written with more than 18 digits are not.
        """
        if not self.small or self.scale < 0:
            return None
        amount: int = self.digits * 10**self.scale
        return amount if _INT64_MIN <= amount <= _INT64_MAX else None

    def __float__(self) -> float:
        """Return the result of Go's `AsApproximateFloat64`: the digits rounded, times a power of ten; may be
        infinite.
        """
        try:
            base = float(self.digits)
        except OverflowError:
            base = math.inf * self.sign
        return base if self.scale == 0 else base * _power_of_ten(self.scale)

    def compare(self, other: Quantity) -> int:
        """Return -1, 0 or 1 as this amount is less than, equal to or greater than the other."""
        low = min(self.scale, other.scale)
        mine: int = self.digits * 10 ** (self.scale - low)
        theirs: int = other.digits * 10 ** (other.scale - low)
        return (mine > theirs) - (mine < theirs)

    def __eq__(self, other: object) -> bool:
        return self.compare(other) == 0 if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        digits, scale = _reduced(self.digits, self.scale)
        return hash((digits, scale))

    def __lt__(self, other: Quantity) -> bool:
        return self.compare(other) < 0

    def __le__(self, other: Quantity) -> bool:
        return self.compare(other) <= 0

    def __gt__(self, other: Quantity) -> bool:
        return self.compare(other) > 0

    def __ge__(self, other: Quantity) -> bool:
        return self.compare(other) >= 0

    def __abs__(self) -> Quantity:
        return -self if self.digits < 0 else self

    def __neg__(self) -> Quantity:
        return Quantity(-self.digits, self.scale, self.format, self.small)

    def __add__(self, other: Quantity) -> Quantity:
        format_ = other.format if self.digits == 0 else self.format
        if other.digits == 0 and other.small:
            return Quantity(self.digits, self.scale, format_, self.small)
        if self.digits == 0 and self.small and other.small:
            return Quantity(other.digits, other.scale, format_)
        low = min(self.scale, other.scale)
        mine = self.digits * 10 ** (self.scale - low)
        theirs = other.digits * 10 ** (other.scale - low)
        total = mine + theirs
        fits = all(_INT64_MIN <= each <= _INT64_MAX for each in (mine, theirs, total))
        return Quantity(total, low, format_, self.small and other.small and fits)

    def __sub__(self, other: Quantity) -> Quantity:
        return self + -other

    def __str__(self) -> str:
        """Return the canonical form: no fraction, the largest suffix that keeps all digits."""
        if self.digits == 0:
            return "0"
        digits, scale = _reduced(self.digits, self.scale)
        if self.format is QuantityFormat.BINARY and scale >= 0 and abs(digits * 10**scale) >= 1024:
            amount, power = digits * 10**scale, 0
            while amount % 1024 == 0 and power < len(_BINARY_SUFFIX) - 1:
                amount, power = amount // 1024, power + 1
            return f"{amount}{_BINARY_SUFFIX[power]}"
        digits, scale = digits * 10 ** (scale % 3), scale - scale % 3
        suffix = None if self.format is QuantityFormat.EXPONENT else _DECIMAL_SUFFIX.get(scale)
        if suffix is None:
            suffix = f"e{scale}" if scale else ""
        return f"{digits}{suffix}"

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"


def _power_of_ten(exponent: int) -> float:
    """Return the result of Go's `math.Pow10`: the product or quotient of two table entries, each rounded."""
    if exponent < -323:
        return 0.0
    if exponent > 308:
        return math.inf
    tens, rest = divmod(abs(exponent), 32)
    if exponent >= 0:
        return float(f"1e{32 * tens}") * float(f"1e{rest}")
    return float(f"1e-{32 * tens}") / float(f"1e{rest}")


def _reduced(digits: int, scale: int) -> tuple[int, int]:
    """Return the same amount without trailing zeros in its digits."""
    if digits == 0:
        return 0, 0
    while digits % 10 == 0:
        digits, scale = digits // 10, scale + 1
    return digits, scale


def _suffix(suffix: str, text: str) -> tuple[int, int, QuantityFormat]:
    """Return base, exponent and format of a suffix."""
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], QuantityFormat.DECIMAL
    if suffix in _BINARY:
        return 2, _BINARY[suffix], QuantityFormat.BINARY
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        raise ValueError(
            f"`{text}` is not a quantity: unknown suffix `{suffix}`, use one of n u m k M G T P E, Ki Mi Gi Ti Pi Ei",
        )
    exponent = int(match[1])
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"`{text}` is not a quantity: its exponent is out of range")
    return 10, exponent, QuantityFormat.EXPONENT


@lru_cache(maxsize=65_536)
def _parse(text: str) -> Quantity:
    if not isinstance(text, str):
        raise ValueError(f"`{text!r}` is not a quantity: it must be a string")  # noqa: TRY004 - one kind of complaint
    if len(text) > _LONGEST:
        raise ValueError(f"`{text[:20]}...` is not a quantity: it has {len(text)} characters")
    match = _SHAPE.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"`{text}` is not a quantity: write a number and a suffix, like `500m` or `1.5Gi`")
    minus, whole, point, fraction, suffix_text = match[1], match[2].lstrip("0"), match[3], match[4] or "", match[5]
    base, exponent, form = _suffix(suffix_text, text)
    whole_digits = whole or "0"
    if base == 10:
        precision, multiplier, scale = _SMALL_DIGITS - len(whole_digits) - len(fraction), 1, exponent
    elif fraction:
        precision, multiplier, scale = -1, 1 << exponent, 0
    else:
        precision, multiplier, scale = 15 - len(whole_digits) - exponent * 3 // 10 - 1, 1 << exponent, 0
    digits = int(whole_digits + fraction) * multiplier
    scale -= len(fraction)
    if minus == "-":
        digits = -digits
    if precision >= 0 and scale >= -9 and _INT64_MIN <= digits <= _INT64_MAX:
        return Quantity(digits, scale, form)
    if not match[2] and not point:  # only the int64 form reads a bare suffix as zero
        raise ValueError(f"`{text}` is not a quantity: it has no digits")
    if digits:
        # Big decimals are all in nanos.
        if scale < -9:
            divisor = 10 ** (-9 - scale)
            digits = -(-digits // divisor) if digits >= 0 else digits // divisor
        else:
            digits *= 10 ** (scale + 9)
        scale = -9
    amount = Quantity(digits, scale, form, small=False)
    if form is QuantityFormat.BINARY:
        if abs(amount).compare(_LARGEST_BINARY) > 0:
            amount = Quantity(_INT64_MAX * amount.sign, 0, form, small=False)
        elif abs(amount).compare(_ONE) < 0:
            amount = Quantity(digits, scale, QuantityFormat.DECIMAL, small=False)
    return amount


_ONE: Final = Quantity(1)
_LARGEST_BINARY: Final = Quantity(_INT64_MAX)

"""Semantic versions (apiserver `pkg/cel/library/semverlib.go`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import BOOL, INT, STRING, Type
from koordpolicy.engine.cel.values.values import EvaluationError

_COST: Final = Cost(0, ((0, 0.1),))
_VERSION: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?",
)
_LARGEST: Final = 2**64 - 1
"""Of an unsigned number; `major()`, `minor()` and `patch()` wrap around above an int's, as in Kubernetes."""


@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version; build metadata counts in its string form only."""

    cel_type: ClassVar[Type] = Type("kubernetes.Semver")

    major: int
    minor: int
    patch: int
    pre_release: tuple[int | str, ...] = ()
    build: str = ""

    @staticmethod
    def parse(text: str, *, normalize: bool = False) -> Semver:
        """Return the version of a string; raise `ValueError` for any other string.

        `normalize` drops a leading `v` and leading zeros and fills up missing numbers.
        """
        return _parse(_normalized(text) if normalize else text)

    def compare(self, other: Semver) -> int:
        """Return -1, 0 or 1 by precedence: a pre-release comes before its release, numbers before names."""
        mine, theirs = (self.major, self.minor, self.patch), (other.major, other.minor, other.patch)
        if mine != theirs:
            return 1 if mine > theirs else -1
        if not self.pre_release or not other.pre_release:
            return bool(other.pre_release) - bool(self.pre_release)
        for a, b in zip(self.pre_release, other.pre_release, strict=False):
            if a != b:
                if isinstance(a, int) != isinstance(b, int):
                    return -1 if isinstance(a, int) else 1
                return 1 if a > b else -1  # type: ignore[operator]
        return (len(self.pre_release) > len(other.pre_release)) - (len(self.pre_release) < len(other.pre_release))

    def __eq__(self, other: object) -> bool:
        return self.compare(other) == 0 if isinstance(other, Semver) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.major, self.minor, self.patch, self.pre_release))

    def __str__(self) -> str:
        pre = f"-{'.'.join(map(str, self.pre_release))}" if self.pre_release else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}{f'+{self.build}' if self.build else ''}"


def _normalized(text: str) -> str:
    head, dash, rest = text.removeprefix("v").partition("-")
    if not dash:
        head, dash, rest = head.partition("+")
    parts = head.split(".")
    if len(parts) < 3:
        if dash:
            raise ValueError(f"`{text[:64]}` is not a version: a short one cannot have a pre-release or build")
        parts += ["0"] * (3 - len(parts))
    return ".".join(part.lstrip("0") or ("0" if part else "") for part in parts) + dash + rest


@lru_cache(maxsize=4096)
def _parse(text: str) -> Semver:
    match = _VERSION.fullmatch(text) if len(text) <= 256 else None
    if match is None:
        raise ValueError(f"`{text[:64]}` is not a semantic version: write it as 1.2.3")
    numbers = [int(each) for each in match.groups()[:3]]
    if max(numbers) > _LARGEST:
        raise ValueError(f"`{text[:64]}` is not a semantic version: a number is too large")
    parts: list[int | str] = []
    for each in match[4].split(".") if match[4] else ():
        if not each or (each.isdigit() and len(each) > 1 and each[0] == "0"):
            raise ValueError(f"`{text[:64]}` is not a semantic version: bad pre-release")
        parts.append(int(each) if each.isdigit() else each)
    if match[5] and not all(match[5].split(".")):
        raise ValueError(f"`{text[:64]}` is not a semantic version: empty build metadata")
    return Semver(numbers[0], numbers[1], numbers[2], tuple(parts), match[5] or "")


def _semver(text: str, normalize: bool = False) -> Semver:
    try:
        return Semver.parse(text, normalize=normalize)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        Semver.parse(text, normalize=normalize)
    except ValueError:
        return False
    return True


def _wrapped(number: int) -> int:
    return number if number < 2**63 else number - 2**64


_SEMVER: Final = Semver.cel_type

SEMVER: Final = (
    Function(
        "semver",
        (
            Overload("string_to_semver", (STRING,), _SEMVER, _semver, cost=_COST),
            Overload("string_bool_to_semver", (STRING, BOOL), _SEMVER, _semver, cost=_COST),
        ),
        "The version of a string; with `true` a lenient reading of it.", "semver('v1.0', true) == semver('1.0.0')",
    ),
    Function(
        "isSemver",
        (
            Overload("is_semver_string", (STRING,), BOOL, _is_semver, cost=_COST),
            Overload("is_semver_string_bool", (STRING, BOOL), BOOL, _is_semver, cost=_COST),
        ),
        "True if a string is a semantic version.", "isSemver('1.2.3') && !isSemver('1.2')",
    ),
    Function(
        "major", (Overload("semver_major", (_SEMVER,), INT, lambda a: _wrapped(a.major), member=True),),
        "The first number.", "semver('1.2.3').major() == 1",
    ),
    Function(
        "minor", (Overload("semver_minor", (_SEMVER,), INT, lambda a: _wrapped(a.minor), member=True),),
        "The second number.", "semver('1.2.3').minor() == 2",
    ),
    Function(
        "patch", (Overload("semver_patch", (_SEMVER,), INT, lambda a: _wrapped(a.patch), member=True),),
        "The third number.", "semver('1.2.3').patch() == 3",
    ),
    Function(
        "isGreaterThan",
        (Overload("semver_is_greater_than", (_SEMVER, _SEMVER), BOOL, lambda a, b: a.compare(b) > 0, member=True),),
    ),
    Function(
        "isLessThan",
        (Overload("semver_is_less_than", (_SEMVER, _SEMVER), BOOL, lambda a, b: a.compare(b) < 0, member=True),),
    ),
    Function(
        "compareTo",
        (Overload("semver_compare_to", (_SEMVER, _SEMVER), INT, lambda a, b: a.compare(b), member=True),),
    ),
)

"""Random rows for an expression: objects that hold what it reads, or something else in its place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

from koordpolicy.engine.cel.check.checked_ast import Checked, Path
from koordpolicy.engine.cel.check.environment import Environment, Scope
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, Type

from .expressions import WORDS

_INTS: Final = (0, 1, -1, 2, 3, 7, 100, 4000, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 2**70)
_DOUBLES: Final = (0.0, -0.0, 0.5, 1.0, -2.5, 1e300, math.inf, -math.inf, math.nan, 2.0**63)
_TEXTS: Final = (*WORDS, "web-1", "1", "é😀", "NoSchedule", "Exists", "(" * 3, "a" * 300)
_DEEPEST: Final = 4


def rows_for(checked: Checked, random: Random, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the ROW variables of some rows, and the values of all others."""
    maker = _Maker(checked, random)
    variables = checked.environment.variables
    row_names = {name for name, each in variables.items() if each.scope is Scope.ROW}
    paths = sorted(checked.reads)
    values = maker.values([path for path in paths if path[0] not in row_names])
    oddity = random.choice((0.0, 0.02, 0.2))
    rows = []
    for _ in range(count):
        maker.oddity = oddity
        rows.append(maker.values([path for path in paths if path[0] in row_names]))
    return rows, values


class _Maker:
    def __init__(self, checked: Checked, random: Random) -> None:
        self._environment: Environment = checked.environment
        self._random = random
        self._words = frozenset(re.findall(r"\w+", checked.source.text))
        self.oddity = random.choice((0.0, 0.0, 0.1))

    def values(self, paths: list[Path]) -> dict[str, Any]:
        """Return variables that hold something at these paths."""
        values: dict[str, Any] = {}
        for path in paths:
            self._put(values, path)
        return values

    def _put(self, values: dict[str, Any], path: Path) -> None:
        type_ = self._environment.variables[path[0]].type
        holder: Any = values
        for position, step in enumerate(path):
            if position:
                type_ = self._field(type_, step)
            last = position == len(path) - 1
            if not last and self._random.random() >= self.oddity / 3:
                if not isinstance(holder.get(step), dict):
                    holder[step] = {}
                holder = holder[step]
                continue
            if self._random.random() >= self.oddity / 2:
                holder.setdefault(step, self.value(type_, 0))
            return

    def _field(self, type_: Type, name: str) -> Type:
        declared = self._environment.types.get(type_.name)
        if declared is not None:
            field = declared.fields.get(name)
            return field.type if field is not None else declared.index or DYN
        return type_.parameters[1] if type_.name == "map" and len(type_.parameters) == 2 else DYN

    def value(self, type_: Type, depth: int) -> Any:
        """Return a value of a type, or now and then of another."""
        random = self._random
        if random.random() < self.oddity:
            return self._anything(depth)
        simple: dict[str, Callable[[], Any]] = {
            INT.name: lambda: random.choice(_INTS) if random.random() < 0.3 else random.randrange(-2, 9000),
            DOUBLE.name: lambda: random.choice(_DOUBLES), STRING.name: lambda: random.choice(_TEXTS),
            BOOL.name: lambda: random.random() < 0.5,
            TIMESTAMP.name: lambda: random.choice(("2026-01-01T00:00:00Z", "2025-06-30T23:59:59.5+02:00", "soon")),
            DURATION.name: lambda: random.choice(("1h30m", "-2s", "0")),
        }
        if type_.name in simple:
            return simple[type_.name]()
        declared = self._environment.types.get(type_.name)
        if declared is not None:
            if depth >= _DEEPEST:
                return {}
            wanted = [name for name in declared.fields if name in self._words]
            others = random.sample(sorted(declared.fields), min(2, len(declared.fields)))
            return {
                name: self.value(declared.fields[name].type, depth + 1)
                for name in {*wanted, *others} if random.random() < 0.8
            }
        if type_.name == "list" and type_.parameters:
            return [self.value(type_.parameters[0], depth + 1) for _ in range(random.choice((0, 1, 1, 2, 3)))]
        if type_.name == "map" and type_.parameters:
            keys = random.sample(WORDS, random.randrange(4))
            return {key: self.value(type_.parameters[1], depth + 1) for key in keys}
        return self._anything(depth)

    def _anything(self, depth: int) -> Any:
        random = self._random
        kind = random.randrange(8 if depth < _DEEPEST else 6)
        match kind:
            case 0:
                return None
            case 1:
                return random.random() < 0.5
            case 2 | 3:
                return random.choice(_INTS)
            case 4:
                return random.choice(_DOUBLES)
            case 5:
                return random.choice(_TEXTS)
            case 6:
                return [self._anything(depth + 1) for _ in range(random.randrange(3))]
            case _:
                return {key: self._anything(depth + 1) for key in random.sample(WORDS, random.randrange(4))}

"""Vector code generator: a numeric expression as one function of numpy arrays, for rows without missing values.

Operators compute for each result the rows in which it is exact. Usually these are all rows, and the masks cost more
than the arithmetic. For that case the whole expression is compiled to one Python function. It returns None in any
other case (a bound beyond 64 bits, a divisor that may be 0, a comparison with NaN), and the operators run instead; so
the function needs neither errors nor masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import vectors
from .vectors import Operand

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_EXACT_DOUBLE: Final = 2**53
_MOST_LINES: Final = 500
_NAMESPACE: Final = {
    "divide": np.divide, "fmod": np.fmod, "int64": np.int64, "float64": np.float64,
    "isnan": np.isnan, "maximum": np.maximum, "minimum": np.minimum, "where": np.where,
    "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
}
_COMPARISONS: Final = {"_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_ROUNDINGS: Final = {"math.ceil": "ceil", "math.floor": "floor", "math.trunc": "trunc"}
_EXTREMES: Final = {"math.greatest": "maximum", "math.least": "minimum"}
_NAMES: Final = {function: name for name, function in vectors.OPERATORS.items()}

_BLOCK: Final = 8_192
"""Rows that are computed together: the columns of an expression, a dozen of 64 KiB, fit into the second-level cache of
the processor, and their memory is reused."""

Fused: TypeAlias = Callable[..., "NDArray[Any] | None"]
"""Takes values, lowest and highest of each input in turn; returns a new array, or None if it does not apply."""


class CannotFuse(Exception):  # not an error: the operators run instead
    """A part of the expression is not supported by generated code."""


class Fusible(Protocol):
    """A part of an expression."""

    def fuse(self, writing: Writing, /) -> Term:
        """Generate the part; raise `CannotFuse` if it is not supported."""
        ...


@dataclass(frozen=True, slots=True)
class Term:
    """The names of a part in the function: its values and, for ints, their bounds."""

    kind: str
    """The letter of numpy's kind: b, i or f."""
    values: str
    low: str = ""
    high: str = ""
    is_array: bool = True


class Writing:
    """A function that is being generated."""

    def __init__(self, kind_of: Callable[[Any], str] | None = None) -> None:
        """`kind_of` returns the present kind of a part whose type does not determine it."""
        self._kind_of = kind_of
        self.inputs: list[tuple[Any, str, bool]] = []
        """The parameters of the function: parts, each with its kind, and whether it is a column."""
        self.doubles = False
        self._terms: dict[tuple[Any, str], Term] = {}
        self._definitions: dict[Fusible, Term] = {}
        self._lines: list[str] = []
        self._constants: dict[str, object] = {}
        self._count = 0

    def input(self, part: Any, kind: str, *, is_array: bool) -> Term:
        """Return the term of a part that is a parameter of the function."""
        if kind == "?" and self._kind_of is not None:
            kind = self._kind_of(part)
        if kind not in {"b", "i", "f"}:
            raise CannotFuse
        known = self._terms.get((part, kind))
        if known is None:
            name = self._name()
            known = self._terms[part, kind] = Term(kind, name, f"{name}l", f"{name}h", is_array)
            self.inputs.append((part, kind, is_array))
            self.doubles = self.doubles or kind == "f"
        return known

    def definition(self, part: Fusible) -> Term:
        """Return the term of a variable that is computed by the function itself, once."""
        known = self._definitions.get(part)
        if known is None:
            known = self._definitions[part] = part.fuse(self)
        return known

    def constant(self, value: object) -> Term:
        """Return the term of a literal."""
        if value.__class__ is bool:
            return Term("b", repr(value), is_array=False)
        if isinstance(value, int) and _LOWEST <= value <= _HIGHEST:
            text = f"({value})"
            return Term("i", self._named(value), text, text, is_array=False)
        if isinstance(value, float) and math.isfinite(value):
            return Term("f", self._named(value), is_array=False)
        raise CannotFuse

    def call(self, function: Callable[..., Operand], parts: Sequence[Fusible]) -> Term:
        """Return the term of one of the functions of `vectors.OPERATORS`."""
        name = _NAMES.get(function, "")
        terms = [part.fuse(self) for part in parts]
        if not any(term.is_array for term in terms):
            raise CannotFuse
        kind = terms[0].kind
        if name == "double" and kind == "i":
            self.doubles = True
            return Term("f", self._line(f"{terms[0].values}.astype(float64)"))
        if name == "!_" and kind == "b":
            return Term("b", self._line(f"~{terms[0].values}"))
        if name in _ROUNDINGS and kind == "f":
            return Term("f", self._line(f"{_ROUNDINGS[name]}({terms[0].values})"))
        if any(term.kind != kind for term in terms):
            raise CannotFuse
        if name in _COMPARISONS:
            return self._compared(_COMPARISONS[name], *terms)
        if kind == "f" and name in {"_+_", "_-_", "_*_", "_/_"}:
            return Term("f", self._line(f"{terms[0].values} {name[1]} {terms[1].values}"))
        if kind == "f" and name in _EXTREMES:
            return self._extreme_double(_EXTREMES[name], terms)
        if kind == "i":
            return self._of_ints(name, terms)
        raise CannotFuse

    def logic(self, parts: Sequence[Fusible], *, conjunction: bool) -> Term:
        """Return the term of a chain of `&&` or `||`."""
        terms = [part.fuse(self) for part in parts]
        if any(term.kind != "b" for term in terms) or not any(term.is_array for term in terms):
            raise CannotFuse
        return Term("b", self._line((" & " if conjunction else " | ").join(term.values for term in terms)))

    def choose(self, condition: Fusible, first: Fusible, second: Fusible) -> Term:
        """Return the term of `condition ? first : second`."""
        held, a, b = condition.fuse(self), first.fuse(self), second.fuse(self)
        if held.kind != "b" or a.kind != b.kind or not (held.is_array or a.is_array or b.is_array):
            raise CannotFuse
        values = self._line(f"where({held.values}, {a.values}, {b.values})")
        return Term(a.kind, values) if a.kind != "i" else self._extreme(values, a, b, "min", "max")

    def within(self, item: Fusible, numbers: Sequence[int]) -> Term:
        """Return the term of `item in [...]`."""
        term = item.fuse(self)
        if term.kind != "i" or not term.is_array or not numbers:
            raise CannotFuse
        return Term("b", self._line(" | ".join(f"({term.values} == {self._named(number)})" for number in numbers)))

    def function(self, part: Fusible) -> Fused:
        """Return the generated function of a whole expression; raise `CannotFuse` if a part is not supported."""
        result = part.fuse(self)
        if not result.is_array or any(result.values == term.values for term in self._terms.values()):
            raise CannotFuse  # nothing to compute
        parameters = ", ".join(f"{term.values}, {term.low}, {term.high}" for term in self._terms.values())
        columns = [3 * at for at, (_, _, is_array) in enumerate(self.inputs) if is_array]
        first = next(term.values for term in self._terms.values() if term.is_array)
        lines = [
            f"if len({first}) > {2 * _BLOCK}:", f"    return in_blocks(fused, {columns}, ({parameters}))",
            *self._lines, f"return {result.values}",
        ]
        body = "\n    ".join(lines)
        namespace: dict[str, Any] = {**_NAMESPACE, **self._constants, "in_blocks": _in_blocks}
        exec(f"def fused({parameters}):\n    {body}\n", namespace)  # noqa: S102 - written above, of numbers and names of its own
        fused: Fused = namespace["fused"]
        return fused

    # Lines

    def _named(self, value: float) -> str:
        """Return the name of a number."""
        name = f"c{len(self._constants)}"
        self._constants[name] = operand_of(value)
        return name

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _line(self, value: str) -> str:
        name = self._name()
        self._write(f"{name} = {value}")
        return name

    def _write(self, line: str) -> None:
        if len(self._lines) >= _MOST_LINES:
            raise CannotFuse
        self._lines.append(line)

    def _compared(self, sign: str, a: Term, b: Term) -> Term:
        if a.kind == "f" and sign not in {"==", "!="}:
            self._write(f"if isnan({a.values} + {b.values}).any(): return None")
        return Term("b", self._line(f"{a.values} {sign} {b.values}"))

    def _bounded(self, value: str, low: str, high: str) -> Term:
        """Return the term of a computed int, with a check that its bounds fit into 64 bits."""
        name = self._name()
        self._write(f"{name}l = {low}; {name}h = {high}")
        self._write(f"if {name}l < {_LOWEST} or {name}h > {_HIGHEST}: return None")
        self._write(f"{name} = {value}")
        return Term("i", name, f"{name}l", f"{name}h")

    def _of_ints(self, name: str, terms: Sequence[Term]) -> Term:
        match name, terms:
            case "_+_", (a, b):
                return self._bounded(f"{a.values} + {b.values}", f"{a.low} + {b.low}", f"{a.high} + {b.high}")
            case "_-_", (a, b):
                return self._bounded(f"{a.values} - {b.values}", f"{a.low} - {b.high}", f"{a.high} - {b.low}")
            case "_*_", (a, b):
                products = ", ".join(f"{x} * {y}" for x in (a.low, a.high) for y in (b.low, b.high))
                corners = self._line(f"({products})")
                return self._bounded(f"{a.values} * {b.values}", f"min({corners})", f"max({corners})")
            case "-_", (a,):
                return self._bounded(f"-{a.values}", f"-{a.high}", f"-{a.low}")
            case "_/_", (a, b):
                return self._divided(a, b)
            case "_%_", (a, b):
                return self._rest(a, b)
            case "math.greatest", _:
                return self._folded(terms, "maximum", "max")
            case "math.least", _:
                return self._folded(terms, "minimum", "min")
            case _:
                raise CannotFuse

    def _divided(self, a: Term, b: Term) -> Term:
        self._check_divisor(b)
        most = self._line(f"max(-{a.low}, {a.high})")
        # See `vectors._quotient_of_doubles`.
        self._write(f"if {most} >= {_EXACT_DOUBLE}: return None")
        name = self._line(f"divide({a.values}, {b.values}).astype(int64)")
        self._write(f"if {a.low} >= 0 and {b.low} >= 0: "
                    f"{name}l = {a.low} // max({b.high}, 1); {name}h = {a.high} // max({b.low}, 1)")
        self._write(f"else: {name}l = -{most}; {name}h = {most}")
        return Term("i", name, f"{name}l", f"{name}h")

    def _rest(self, a: Term, b: Term) -> Term:
        self._check_divisor(b)
        # The negation of the lowest int overflows.
        self._write(f"if {a.low} == {_LOWEST} and {b.low} <= -1 <= {b.high}: return None")
        name = self._line(f"fmod({a.values}, {b.values})")
        self._write(f"{name}l = min({a.low}, 0); {name}h = max({a.high}, 0)")
        return Term("i", name, f"{name}l", f"{name}h")

    def _check_divisor(self, b: Term) -> None:
        zero = f"not {b.values}.all()" if b.is_array else "True"
        self._write(f"if {b.low} <= 0 <= {b.high} and {zero}: return None")

    def _folded(self, terms: Sequence[Term], function: str, of_bounds: str) -> Term:
        if len(terms) < 2:
            raise CannotFuse
        result = terms[0]
        for term in terms[1:]:
            if not (result.is_array or term.is_array):
                raise CannotFuse
            values = self._line(f"{function}({result.values}, {term.values})")
            result = self._extreme(values, result, term, of_bounds, of_bounds)
        return result

    def _extreme_double(self, function: str, terms: Sequence[Term]) -> Term:
        if len(terms) < 2:
            raise CannotFuse
        result = terms[0]
        for term in terms[1:]:
            if not (result.is_array or term.is_array):
                raise CannotFuse
            self._write(f"if isnan({result.values} + {term.values}).any(): return None")
            result = Term("f", self._line(f"{function}({result.values}, {term.values})"))
        return result

    def _extreme(self, values: str, a: Term, b: Term, low: str, high: str) -> Term:
        self._write(f"{values}l = {low}({a.low}, {b.low}); {values}h = {high}({a.high}, {b.high})")
        return Term("i", values, f"{values}l", f"{values}h")


def operand_of(value: object) -> object:
    """Return a number as a fused function computes with it fastest, any other value as it is.

    For a few rows, numpy takes twice as long for an operation with a Python number as for one with an array.
    """
    if isinstance(value, float) or (type(value) is int and _LOWEST <= value <= _HIGHEST):
        return np.array(value)
    return value


def _in_blocks(function: Fused, columns: Sequence[int], arguments: Sequence[Any]) -> NDArray[Any] | None:
    """Return the result of the function for long columns, by blocks; `columns` are the arguments that are columns."""
    size = len(arguments[columns[0]])
    whole: NDArray[Any] | None = None
    part = list(arguments)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        for at in columns:
            part[at] = arguments[at][start:stop]
        values = function(*part)
        if values is None:
            return None
        if whole is None:
            whole = np.empty(size, dtype=values.dtype)
        whole[start:stop] = values
    return whole

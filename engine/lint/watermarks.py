"""Watermarks: comparisons of a node's usage with a percentage of its allocatable; and the direction of scores.

`usage.cpu * 100 / allocatable.cpu < 65`, `usage.cpu < allocatable.cpu * params.percent / 100` and
`double(usage.cpu) / double(allocatable.cpu) < 0.65` are equivalent, and give the same watermark: cpu, below 65 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from koordpolicy.engine.cel.check.checked_ast import CallReference, Checked, DefinitionReference, path_of
from koordpolicy.engine.cel.syntax.ast import Call, Expr

from .ranges import COMPARISONS, MIRRORED, Analysis

Leaf: TypeAlias = tuple[str, str]
"""A resource list and a resource in it: `("usage", "cpu")`."""

_USAGES: Final = frozenset(("usage", "estimated"))
_SHARES: Final = _USAGES | {"requested"}
_LISTS: Final = frozenset(("usage", "estimated", "allocatable", "requested", "requests", "nonBestEffortUsage"))


@dataclass(frozen=True, slots=True)
class Watermark:
    """A comparison of an amount of a resource, `usage` or `requested`, with `percent` of the node's allocatable.

    `below`: the comparison is true for nodes with less. `node` is the comparison, in the tree of `checked`.
    """

    amount: str
    resource: str
    percent: Fraction
    below: bool
    checked: Checked
    node: Expr


@dataclass(frozen=True, slots=True)
class _Product:
    """A number times amounts, divided by amounts."""

    factor: Fraction
    above: tuple[Leaf, ...] = ()
    under: tuple[Leaf, ...] = ()

    def times(self, other: _Product) -> _Product:
        return _Product(self.factor * other.factor, self.above + other.above, self.under + other.under)

    def inverse(self) -> _Product | None:
        return _Product(1 / self.factor, self.under, self.above) if self.factor else None


def watermarks(analysis: Analysis) -> Iterator[Watermark]:
    """Yield the watermarks of a condition: those joined by `&&` and `||`, with negated ones inverted."""
    yield from _found(analysis, analysis.checked.root, positive=True)


def _found(analysis: Analysis, node: Expr, *, positive: bool) -> Iterator[Watermark]:
    checked = analysis.checked
    reference = checked.references.get(node.id)
    if isinstance(reference, DefinitionReference):
        below = analysis.definition(reference.name)
        yield from _found(below, below.checked.root, positive=positive)
    elif not isinstance(node, Call):
        return
    elif node.function == "!_":
        yield from _found(analysis, node.args[0], positive=not positive)
    elif node.function in ("_&&_", "_||_"):
        for each in node.args:
            yield from _found(analysis, each, positive=positive)
    elif COMPARISONS.get(node.function) in MIRRORED and node.function not in ("_==_", "_!=_"):
        left, right = (_product(analysis, each) for each in node.args)
        inverse = right.inverse() if right is not None else None
        if left is None or inverse is None:
            return
        found = _ratio(left.times(inverse))
        if found is not None:
            (amount, resource), percent, upright = found
            smaller = COMPARISONS[node.function] in ("<", "<=")
            kind = "requested" if amount == "requested" else "usage"
            yield Watermark(kind, resource, percent, (smaller == upright) == positive, checked, node)


def _ratio(product: _Product) -> tuple[Leaf, Fraction, bool] | None:
    """Return the amount, the percentage and whether it is the numerator, for a product that is compared with 1."""
    if len(product.above) != 1 or len(product.under) != 1 or product.factor <= 0:
        return None
    (top, resource), (bottom, other) = product.above[0], product.under[0]
    if resource != other:
        return None
    if top in _SHARES and bottom == "allocatable":
        return (top, resource), 100 / product.factor, True
    if bottom in _SHARES and top == "allocatable":
        return (bottom, resource), 100 * product.factor, False
    return None


def _product(analysis: Analysis, node: Expr) -> _Product | None:
    constant = analysis.constant(node)
    if constant is not None:
        value = constant[0]
        finite = isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
        return _Product(Fraction(str(value))) if finite else None
    checked = analysis.checked
    path = path_of(checked, node)
    if path is not None:
        return _Product(Fraction(1), ((path[0], path[-1]),)) if len(path) > 1 and path[0] in _LISTS else None
    reference = checked.references.get(node.id)
    if isinstance(reference, DefinitionReference):
        below = analysis.definition(reference.name)
        return _product(below, below.checked.root)
    if not isinstance(node, Call):
        return None
    if node.function in ("double", "int") and len(node.args) == 1:
        return _product(analysis, node.args[0])
    if node.function == "_?_:_":  # `allocatable.cpu > 0 ? ratio : 100` guards a division
        branches = [_product(analysis, each) for each in node.args[1:]]
        known = [each for each in branches if each is not None and each.above]
        return known[0] if len(known) == 1 and None not in branches else None
    if node.function in ("_*_", "_/_", "percent"):
        left, right = (_product(analysis, each) for each in node.args)
        if right is not None and node.function != "_*_":
            right = right.inverse()
        if left is None or right is None:
            return None
        return left.times(right).times(_Product(Fraction(100 if node.function == "percent" else 1)))
    return None


def suppression(analysis: Analysis) -> tuple[str, Fraction, Expr] | None:
    """Return resource, percentage and place of a target of the form `allocatable.cpu * 65 / 100 - something`."""
    node: Expr = analysis.checked.root
    while isinstance(node, Call) and node.function in ("_-_", "math.greatest", "greatest"):
        node = node.args[0] if node.function == "_-_" else node.args[-1]
    product = _product(analysis, node)
    if product is None or product.under or len(product.above) != 1 or product.above[0][0] != "allocatable":
        return None
    return product.above[0][1], product.factor * 100, node


# -- directions of scores ----------------------------------------------------------------------------------------------

Slopes: TypeAlias = dict[Leaf, int]
"""By amount: 1 if more of it makes the value larger, -1 if smaller, 0 if that depends."""


def slopes(analysis: Analysis) -> Slopes:
    """Return the amounts on which a number depends, with the direction. Amounts are never negative."""
    return _slopes(analysis, analysis.checked.root, {})


def _slopes(analysis: Analysis, node: Expr, known: dict[str, Slopes]) -> Slopes:
    checked = analysis.checked
    if analysis.constant(node) is not None:
        return {}
    path = path_of(checked, node)
    if path is not None:
        return {(path[0], path[-1]): 1} if len(path) > 1 and path[0] in _LISTS else {}
    reference = checked.references.get(node.id)
    if isinstance(reference, DefinitionReference):
        if reference.name not in known:
            below = analysis.definition(reference.name)
            known[reference.name] = _slopes(below, below.checked.root, known)
        return known[reference.name]
    if not isinstance(node, Call) or not isinstance(reference, CallReference | None):
        return {}
    arguments = [_slopes(analysis, each, known) for each in node.args]
    match node.function:
        case "_+_" | "greatest" | "least" | "double" | "int":
            return _joined(*arguments)
        case "_-_":
            return _joined(arguments[0], _turned(arguments[1]))
        case "-_":
            return _turned(arguments[0])
        case "_?_:_":
            return _joined(*arguments[1:])
        case "percent":
            return _joined(arguments[0], _turned(arguments[1]))
        case "_*_" | "_/_":
            left, right = node.args
            signs = [_sign(analysis, each) for each in (left, right)]
            second = _turned(arguments[1]) if node.function == "_/_" else arguments[1]
            return _joined(_scaled(arguments[0], signs[1]), _scaled(second, signs[0]))
        case _:
            return {leaf: 0 for each in arguments for leaf in each}


def _sign(analysis: Analysis, node: Expr) -> int:
    found = analysis.range(node)
    if found is None:
        return 0
    return 1 if found.low >= 0 else -1 if found.high <= 0 else 0


def _scaled(found: Slopes, sign: int) -> Slopes:
    return {leaf: slope * sign for leaf, slope in found.items()}


def _turned(found: Slopes) -> Slopes:
    return _scaled(found, -1)


def _joined(*found: Slopes) -> Slopes:
    merged: Slopes = {}
    for each in found:
        for leaf, slope in each.items():
            merged[leaf] = slope if merged.get(leaf, slope) == slope else 0
    return merged

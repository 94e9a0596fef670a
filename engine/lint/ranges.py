"""Certain knowledge about the values of expressions: constants, intervals, and constant conditions.

A result holds for every row for which the expression has a value; if nothing is certain, nothing is claimed. Params are
unknown unless they are given, as profiles may change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.check.checked_ast import (
    LEAVES,
    CallReference,
    Checked,
    DefinitionReference,
    Path,
    path_of,
    reads_of,
)
from koordpolicy.engine.cel.check.folding import Folding
from koordpolicy.engine.cel.syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    OptionalMap,
    Select,
    children,
)
from koordpolicy.engine.cel.syntax.unparse import unparse
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, INT
from koordpolicy.engine.cel.values.values import INT64_MAX, INT64_MIN, EvaluationError

Number: TypeAlias = int | float
Truth: TypeAlias = frozenset[bool]

EITHER: Final[Truth] = frozenset((True, False))
ALWAYS: Final[Truth] = frozenset((True,))
NEVER: Final[Truth] = frozenset((False,))
MEASURED: Final = frozenset((
    "usage", "podUsage", "estimated", "bestEffortUsage", "bestEffortCPU", "nonBestEffortUsage", "systemUsage",
    "containerUsage", "classUsage", "metricAge", "nodeMetric",
))
"""Measured values are independent of declared ones: a node may use more than its pods request."""
COMPARISONS: Final = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">=", "_==_": "==", "_!=_": "!="}
MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_AMOUNTS: Final = frozenset(("ResourceList", "MeasuredList", "Usage"))
_COUNTS: Final = frozenset((
    ("nodeInfo", "pods"), ("nodeInfo", "gpuFree"), ("nodeInfo", "gpuTotal"), ("nodeInfo", "gpuFreeDevices"),
    ("nodeInfo", "gpuDevices"), ("podInfo", "gpuCount"), ("podInfo", "gpuShare"), ("podInfo", "gpuRequest"),
))
_BINDING: Final = frozenset((Comprehension, Bind, OptionalMap))
_BARE: Final = frozenset((Literal, Ident))


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, both included.

    `exact`: both ends are reached by some input. `groups` are the kinds of inputs that were read; ranges with a common
    group are not independent. `unit` is the resource whose amount this is.
    """

    low: Number
    high: Number
    exact: bool = True
    groups: frozenset[str] = frozenset()
    unit: str = ""

    @property
    def constant(self) -> bool:
        """True if the range holds exactly one number."""
        return self.low == self.high


_MOST_STEPS: Final = 50_000

WHOLE: Final = Range(INT64_MIN, INT64_MAX, exact=False)


@dataclass(frozen=True, slots=True)
class Known:
    """The knowledge about parts of an expression, by their text, from the conditions around it."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    local: frozenset[str] = frozenset()
    """The parts that mention variables of loops."""

    def inside_loop(self) -> Known:
        """Return the knowledge that is valid inside another loop, whose variable may hide one outside."""
        if not self.local:
            return self
        return Known(
            {key: each for key, each in self.ranges.items() if key not in self.local},
            {key: each for key, each in self.texts.items() if key not in self.local},
        )


NOTHING: Final = Known()


@dataclass(slots=True)
class Analysis:
    """The analysis of one checked expression. Given `params` are constants.

    Variables that it reads are analysed once for all analyses of the same `Analyses`.
    """

    checked: Checked
    params: Mapping[str, Any] | None = None
    _shared: Analyses | None = None
    _left: int = _MOST_STEPS
    """The remaining steps: nested conditions are analysed under many assumptions."""
    _texts: dict[int, str] = field(default_factory=dict)
    _constants: dict[int, tuple[Any] | None] = field(default_factory=dict)
    _ranges: dict[int, Range | None] = field(default_factory=dict)
    _truths: dict[int, Truth] = field(default_factory=dict)

    # -- constants -------------------------------------------------------------------------------------------------

    def constant(self, node: Expr) -> tuple[Any] | None:
        """Return the value of a constant expression, as a tuple of one; None for others."""
        if node.id not in self._constants:
            self._constants[node.id] = self._constant(node)
        return self._constants[node.id]

    def _constant(self, node: Expr) -> tuple[Any] | None:
        if isinstance(node, Literal):
            return None if node.unsigned else (node.value,)
        if isinstance(node, ListLiteral) and not node.optional:
            found = [self.constant(each) for each in node.elements]
            return ([each[0] for each in found if each is not None],) if None not in found else None
        if self.params is not None:
            path = path_of(self.checked, node)
            if path is not None and path[0] == "params" and len(path) > 1:
                value: Any = self.params
                for step in path[1:]:
                    if not isinstance(value, Mapping) or step not in value:
                        return None
                    value = value[step]
                return (value,)
        reference = self.checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            below = self.definition(reference.name)
            return below.constant(below.checked.root)
        if not isinstance(node, Call) or not isinstance(reference, CallReference) or len(reference.overloads) != 1:
            return None
        overload = reference.overloads[0]
        parts = node.args if reference.qualified or node.target is None else (node.target, *node.args)
        values = [self.constant(each) for each in parts]
        if not overload.pure or None in values or not parts:
            return None
        try:
            return (self._siblings.folding.evaluate(overload, tuple(each[0] for each in values if each is not None)),)
        except (EvaluationError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
            return None

    # -- numbers ---------------------------------------------------------------------------------------------------

    def range(self, node: Expr, known: Known = NOTHING) -> Range | None:
        """Return the range of an int or double; None if nothing is known."""
        if known is NOTHING:
            if node.id not in self._ranges:
                self._ranges[node.id] = self._range(node, known)
            return self._ranges[node.id]
        found = self._range(node, known)
        bound = known.ranges.get(self.text(node)) if known.ranges else None
        if bound is None:
            return found
        if found is None:
            return replace(bound, exact=False)
        return replace(found, low=max(found.low, bound.low), high=min(found.high, bound.high), exact=False)

    def _range(self, node: Expr, known: Known) -> Range | None:
        self._left -= 1
        if self._left < 0:
            return WHOLE if self.checked.types.get(node.id) == INT else None
        constant = self.constant(node)
        if constant is not None:
            value = constant[0]
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
                return None
            return Range(value, value)
        reference = self.checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            below = self.definition(reference.name)
            return below.range(below.checked.root)
        path = path_of(self.checked, node)
        if path is not None:
            return self._leaf(node, path)
        if isinstance(node, Call) and isinstance(reference, CallReference):
            if node.function == "_?_:_":
                return self._choice(node, known)
            compute = _ARITHMETIC.get(node.function)
            if compute is not None and len(node.args) == 2 and node.target is None:
                left, right = (self.range(each, known) for each in node.args)
                kind = self.checked.types.get(node.id)
                if left is None or right is None or kind not in (INT, DOUBLE):
                    return WHOLE if kind == INT else None
                return _met(compute(left, right, whole=kind == INT), left, right, whole=kind == INT)
            return self._call(node, reference, known)
        if isinstance(node, Call) and node.function == "_?_:_":
            return self._choice(node, known)
        return WHOLE if self.checked.types.get(node.id) == INT else None

    def _leaf(self, node: Expr, path: Path) -> Range | None:
        root = path[0]
        if root == "params" or self.checked.types.get(node.id) != INT:
            return WHOLE if self.checked.types.get(node.id) == INT else None
        variable = self.checked.environment.variables.get(root)
        groups = frozenset(("measured" if root in MEASURED else "declared",))
        if variable is not None and variable.type.name in _AMOUNTS and len(path) > 1:
            high = 100 if root in MEASURED and path[-1] == "throttled" else INT64_MAX  # percent
            return Range(0, high, groups=groups, unit=path[-1])
        if path in _COUNTS:
            return Range(0, INT64_MAX, groups=groups)
        if root == "podInfo" and len(path) == 3 and path[1] in ("requests", "limits"):
            return Range(0, INT64_MAX, groups=groups, unit=path[-1])
        return WHOLE

    def _choice(self, node: Call, known: Known) -> Range | None:
        condition, yes, no = node.args
        truth = self.truth(condition, known)
        if truth == ALWAYS:
            return self.range(yes, self.given(condition, known, truth=True))
        if truth == NEVER:
            return self.range(no, self.given(condition, known, truth=False))
        left = self.range(yes, self.given(condition, known, truth=True))
        right = self.range(no, self.given(condition, known, truth=False))
        if left is None or right is None:
            return None
        read = frozenset(
            "measured" if path[0] in MEASURED else "declared" for path in reads_of(self.checked, condition)
            if path != ("nodeInfo", "measured")
        )
        groups = left.groups | right.groups
        exact = left.exact and right.exact and read.isdisjoint(groups)
        unit = left.unit if left.unit == right.unit else ""
        return Range(min(left.low, right.low), max(left.high, right.high), exact, groups | read, unit)

    def _call(self, node: Call, reference: CallReference, known: Known) -> Range | None:
        kind = self.checked.types.get(node.id)
        parts = node.args if reference.qualified or node.target is None else (node.target, *node.args)
        if node.function in ("size", "indexOf", "lastIndexOf"):
            low = 0 if node.function == "size" else -1
            return Range(low, INT64_MAX, groups=frozenset(("declared",)))
        name = reference.function
        if name == "percent":
            part, whole = (self.range(each, known) for each in parts)
            if part is None or whole is None or part.low < 0 or whole.low < 0:
                return WHOLE
            exact = part.exact and whole.exact and part.groups.isdisjoint(whole.groups)
            high = INT64_MAX if whole.low <= 1 else 100 * int(part.high) // int(whole.low) + 1
            return Range(0, min(high, INT64_MAX), exact and part.low == 0, part.groups | whole.groups)
        if name in ("double", "int", "math.greatest", "math.least", "-_", "math.abs"):
            found = [self.range(each, known) for each in parts]
            ranges = [each for each in found if each is not None]
            if len(ranges) == len(found) and ranges:
                if name == "double":
                    return replace(ranges[0], low=float(ranges[0].low), high=float(ranges[0].high))
                if name == "int":
                    return replace(ranges[0], low=int(ranges[0].low), high=int(ranges[0].high))
                if name == "-_":
                    return replace(ranges[0], low=-ranges[0].high, high=-ranges[0].low)
                if name == "math.abs":
                    each = ranges[0]
                    least = 0 if each.low <= 0 <= each.high else min(abs(each.low), abs(each.high))
                    return replace(each, low=least, high=max(abs(each.low), abs(each.high)), exact=False)
                return _extreme(ranges, greatest=name == "math.greatest")
            if ranges and name.startswith("math."):  # a known argument bounds the result on one side
                if name == "math.greatest":
                    return Range(max(each.low for each in ranges), INT64_MAX, exact=False) if kind == INT else None
                return Range(INT64_MIN, min(each.high for each in ranges), exact=False) if kind == INT else None
        return WHOLE if kind == INT else None

    # -- truths ----------------------------------------------------------------------------------------------------

    def truth(self, node: Expr, known: Known = NOTHING) -> Truth:
        """Return the possible values of a bool, if it has a value."""
        if known is not NOTHING:
            return self._truth(node, known)
        if node.id not in self._truths:
            self._truths[node.id] = self._truth(node, known)
        return self._truths[node.id]

    def _truth(self, node: Expr, known: Known) -> Truth:
        self._left -= 1
        if self._left < 0:
            return EITHER
        constant = self.constant(node)
        if constant is not None:
            return frozenset((constant[0],)) if isinstance(constant[0], bool) else EITHER
        reference = self.checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            below = self.definition(reference.name)
            return below.truth(below.checked.root) if below.checked.type == BOOL else EITHER
        if not isinstance(node, Call):
            return EITHER
        if node.function in ("_&&_", "_||_"):
            left, right = node.args
            conjunction = node.function == "_&&_"
            first = self.truth(left, known)
            second = self.truth(right, self.given(left, known, truth=conjunction))
            return _both(first, second) if conjunction else _inverse(_both(_inverse(first), _inverse(second)))
        if node.function == "!_":
            return _inverse(self.truth(node.args[0], known))
        if node.function == "_?_:_":
            condition, yes, no = node.args
            found: Truth = frozenset()
            truths = self.truth(condition, known)
            for value, branch in ((True, yes), (False, no)):
                if value in truths:
                    found |= self.truth(branch, self.given(condition, known, truth=value))
            return found or EITHER
        if node.function in COMPARISONS and len(node.args) == 2:
            return self._comparison(node, known)
        if node.function == "@in":
            allowed = self._allowed(node.args[1])
            texts = known.texts.get(self.text(node.args[0]))
            if allowed is not None and texts is not None:
                return ALWAYS if texts <= allowed else NEVER if not texts & allowed else EITHER
            if allowed is not None and not allowed and isinstance(node.args[1], ListLiteral):
                return NEVER
        return EITHER

    def _comparison(self, node: Call, known: Known) -> Truth:
        left, right = node.args
        operator = COMPARISONS[node.function]
        kinds = [self.checked.types.get(each.id) for each in node.args]
        if DOUBLE not in kinds and self.text(left) == self.text(right):  # a double may be NaN, which has no equal
            return ALWAYS if operator in ("==", "<=", ">=") else NEVER
        if operator in ("==", "!="):
            for one, other in ((left, right), (right, left)):
                texts, constant = known.texts.get(self.text(one)), self.constant(other)
                if texts is not None and constant is not None and isinstance(constant[0], str):
                    same = ALWAYS if texts == {constant[0]} else NEVER if constant[0] not in texts else EITHER
                    return same if operator == "==" else _inverse(same)
        if not all(kind in (INT, DOUBLE) for kind in kinds):
            return EITHER
        a, b = self.range(left, known), self.range(right, known)
        if a is None or b is None or a.low > a.high or b.low > b.high:
            return EITHER
        return _compare(operator, a, b)

    def _allowed(self, node: Expr) -> frozenset[str] | None:
        constant = self.constant(node)
        if constant is None or not isinstance(constant[0], list) or not all(isinstance(e, str) for e in constant[0]):
            return None
        return frozenset(constant[0])

    def given(self, condition: Expr, known: Known, *, truth: bool) -> Known:
        """Return the knowledge under a condition that holds (or does not)."""
        ranges, texts, local = dict(known.ranges), dict(known.texts), set(known.local)
        for node, operator, value in self._facts(condition, truth=truth):
            key = self.text(node)
            if node.id in self.checked.locals:
                local.add(key)
            if isinstance(value, frozenset):
                texts[key] = texts[key] & value if key in texts else value
                continue
            whole = self.checked.types.get(node.id) == INT
            if not whole and self.checked.types.get(node.id) != DOUBLE:
                continue
            before = ranges.get(key) or self.range(node, known) or (WHOLE if whole else None)
            if before is None:
                continue
            ranges[key] = _narrowed(before, operator, value, whole=whole)
        return known if not ranges and not texts else Known(ranges, texts, frozenset(local))

    def _facts(self, node: Expr, *, truth: bool) -> Iterator[tuple[Expr, str, Any]]:
        if not isinstance(node, Call):
            return
        if node.function == "!_":
            yield from self._facts(node.args[0], truth=not truth)
        elif node.function == ("_&&_" if truth else "_||_"):
            for each in node.args:
                yield from self._facts(each, truth=truth)
        elif node.function in COMPARISONS and len(node.args) == 2:
            operator = COMPARISONS[node.function] if truth else NEGATED[COMPARISONS[node.function]]
            for one, other, comparison in (
                (node.args[0], node.args[1], operator), (node.args[1], node.args[0], MIRRORED[operator]),
            ):
                constant = self.constant(other)
                if constant is None or self.constant(one) is not None:
                    continue
                value = constant[0]
                if isinstance(value, str) and comparison == "==":
                    yield one, comparison, frozenset((value,))
                elif isinstance(value, int | float) and not isinstance(value, bool) and comparison != "!=":
                    yield one, comparison, value
        elif node.function == "@in" and truth:
            allowed = self._allowed(node.args[1])
            if allowed is not None:
                yield node.args[0], "in", allowed

    # -- names -----------------------------------------------------------------------------------------------------

    def text(self, node: Expr) -> str:
        """Return the canonical text of a part, which is the same for equal parts."""
        if node.id not in self._texts:
            try:
                self._texts[node.id] = unparse(node)
            except ValueError:
                self._texts[node.id] = f"#{node.id}"
        return self._texts[node.id]

    def definition(self, name: str) -> Analysis:
        """Return the analysis of a variable that the expression reads."""
        return self._siblings.of(self.checked.definition(name))

    @property
    def _siblings(self) -> Analyses:
        if self._shared is None:
            self._shared = Analyses(self.params)
        return self._shared

    def determined(self) -> Sequence[tuple[Expr, bool | None]]:
        """Return the outermost parts that are always true or always false, and unreachable branches (None)."""
        found: list[tuple[Expr, bool | None]] = []
        self._determine(self.checked.root, NOTHING, found)
        return found

    def _determine(self, node: Expr, known: Known, found: list[tuple[Expr, bool | None]]) -> None:
        references = self.checked.references
        while isinstance(node, Select) and node.id not in references:
            node = node.operand
        if not isinstance(node, Call):
            loop = node.__class__ in _BINDING
            inner = known.inside_loop() if loop else known
            if loop or references.get(node.id).__class__ not in LEAVES:
                for each in children(node):
                    if each.__class__ not in _BARE:
                        self._determine(each, inner, found)
            return
        if self.checked.types.get(node.id) == BOOL:
            truth = self.truth(node, known)
            if len(truth) == 1:
                found.append((node, next(iter(truth))))
                return
        if node.function in ("_&&_", "_||_"):
            for each, inner in (
                (node.args[0], known),
                (node.args[1], self.given(node.args[0], known, truth=node.function == "_&&_")),
            ):
                if isinstance(each, Literal) and isinstance(each.value, bool):
                    found.append((each, each.value))
                else:
                    self._determine(each, inner, found)
        elif node.function == "_?_:_":
            condition, yes, no = node.args
            truth = self.truth(condition, known)
            if len(truth) == 1:
                found.append((no if True in truth else yes, None))
            else:
                self._determine(condition, known, found)
            for value, branch in ((True, yes), (False, no)):
                if value in truth:
                    self._determine(branch, self.given(condition, known, truth=value), found)
        else:
            reference = references.get(node.id)
            if reference is None or isinstance(reference, CallReference):
                qualified = reference is not None and reference.qualified
                for each in node.args if qualified else children(node):
                    if each.__class__ not in _BARE:
                        self._determine(each, known, found)


@dataclass(slots=True)
class Analyses:
    """The analyses of a document's expressions, one for each. Given `params` are constants.

    An expression that reads no params has the same analysis with and without them: that of `unknown`.
    """

    params: Mapping[str, Any] | None = None
    unknown: Analyses | None = None
    folding: Folding = field(default_factory=Folding)
    _found: dict[Checked, Analysis] = field(default_factory=dict)

    def of(self, checked: Checked) -> Analysis:
        """Return the analysis of an expression."""
        found = self._found.get(checked)
        if found is None:
            if self.unknown is not None and not any(path[0] == "params" for path in checked.reads):
                found = self.unknown.of(checked)
            else:
                found = Analysis(checked, self.params, self)
            self._found[checked] = found
        return found


def _both(first: Truth, second: Truth) -> Truth:
    if NEVER in (first, second):
        return NEVER
    return ALWAYS if first == ALWAYS and second == ALWAYS else EITHER


def _inverse(truth: Truth) -> Truth:
    return frozenset(not each for each in truth)


def _compare(operator: str, a: Range, b: Range) -> Truth:
    if operator in (">", ">="):
        operator, a, b = MIRRORED[operator], b, a
    if operator == "<":
        return ALWAYS if a.high < b.low else NEVER if a.low >= b.high else EITHER
    if operator == "<=":
        return ALWAYS if a.high <= b.low else NEVER if a.low > b.high else EITHER
    apart = a.high < b.low or b.high < a.low
    same = a.constant and b.constant and a.low == b.low
    equal = NEVER if apart else ALWAYS if same else EITHER
    return equal if operator == "==" else _inverse(equal)


def _narrowed(before: Range, operator: str, value: Number, *, whole: bool) -> Range:
    low, high = before.low, before.high
    step = 1 if whole and isinstance(value, int) else 0
    if operator in ("<", "<=", "=="):
        high = min(high, value - step if operator == "<" else value)
    if operator in (">", ">=", "=="):
        low = max(low, value + step if operator == ">" else value)
    return Range(low, high, False, before.groups, before.unit)


def _met(found: Range | None, left: Range, right: Range, *, whole: bool) -> Range | None:
    if found is None:
        return WHOLE if whole else None
    low, high = found.low, found.high
    if whole:  # larger numbers are overflow errors, not values
        low, high = max(low, INT64_MIN), min(high, INT64_MAX)
    exact = left.exact and right.exact and found.exact and left.groups.isdisjoint(right.groups)
    return Range(low, high, exact, left.groups | right.groups, found.unit)


def _add(a: Range, b: Range, *, whole: bool) -> Range:  # noqa: ARG001 - one shape for the table
    return Range(a.low + b.low, a.high + b.high, unit=_shared_unit(a, b))


def _subtract(a: Range, b: Range, *, whole: bool) -> Range:  # noqa: ARG001 - one signature for all operators
    return Range(a.low - b.high, a.high - b.low, unit=_shared_unit(a, b))


def _shared_unit(a: Range, b: Range) -> str:
    return a.unit if a.unit == b.unit else ""


def _multiply(a: Range, b: Range, *, whole: bool) -> Range:  # noqa: ARG001 - one signature for all operators
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    scale = b if a.unit else a
    unit = (a.unit or b.unit) if scale.constant and scale.low >= 1 else ""
    return Range(min(products), max(products), unit=unit)


def _divide(a: Range, b: Range, *, whole: bool) -> Range | None:
    low, high = b.low, b.high
    if whole:
        low, high = (1 if low == 0 else low), (-1 if high == 0 else high)
        if low > high:
            return None
        if low < 0 < high:
            most = max(abs(a.low), abs(a.high))
            return Range(-most, most, exact=False)
        quotients = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x in (a.low, a.high) for y in (low, high)]
        return Range(min(quotients), max(quotients))
    if low <= 0 <= high:
        return None
    found = [x / y for x in (a.low, a.high) for y in (low, high)]
    return Range(min(found), max(found))


def _modulo(a: Range, b: Range, *, whole: bool) -> Range | None:
    if not whole:
        return None
    most = max(abs(b.low), abs(b.high)) - 1
    return Range(0 if a.low >= 0 else -most, 0 if a.high <= 0 else most, exact=False)


def _extreme(ranges: list[Range], *, greatest: bool) -> Range:
    pick: Callable[..., Number] = max if greatest else min
    groups: frozenset[str] = frozenset()
    exact = True
    for each in ranges:
        exact = exact and each.exact and groups.isdisjoint(each.groups)
        groups |= each.groups
    units = {each.unit for each in ranges if not each.constant}
    return Range(pick(each.low for each in ranges), pick(each.high for each in ranges), exact, groups,
                 units.pop() if len(units) == 1 else "")


_ARITHMETIC: Final[Mapping[str, Callable[..., Range | None]]] = {
    "_+_": _add, "_-_": _subtract, "_*_": _multiply, "_/_": _divide, "_%_": _modulo,
}


def parts(checked: Checked, node: Expr | None = None) -> Iterator[Expr]:
    """Yield an expression and all of its evaluated parts (without function names), outermost first."""
    references = checked.references
    pending = [checked.root if node is None else node]
    while pending:
        each = pending.pop()
        yield each
        if each.__class__ is Literal:
            continue
        reference = references.get(each.id)
        if isinstance(reference, CallReference) and reference.qualified and isinstance(each, Call):
            pending.extend(each.args[::-1])
        elif reference.__class__ not in LEAVES:
            pending.extend(children(each)[::-1])

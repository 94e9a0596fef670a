"""Units: inference of measures through an expression, and detection of incompatible numbers.

The table of points has the unit of each variable (`points.unit_of_field`). If nothing is certain (a param that may
have a unit, a weight, an unknown function), nothing is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    VariableReference,
    reads_of,
)
from koordpolicy.engine.cel.syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    Macro,
    MapLiteral,
    OptionalMap,
    Select,
    children,
)
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT
from koordpolicy.engine.compile import AggregateProgram, CgroupProgram, Compiled, CompiledQoS, EvictProgram
from koordpolicy.engine.compile.room import entries
from koordpolicy.engine.documents import AggregateFunction, Normalize, ScoreItem
from koordpolicy.engine.framework.variable_types import unit_of_field, unit_of_resource

from .edits import replacement
from .measures import (
    ONE,
    PERCENT,
    Measure,
    Origin,
    UnitFault,
    absurd,
    absurd_part,
    amount,
    either,
    product,
    scaled,
    share,
    total,
    unlike,
)
from .ranges import COMPARISONS, MIRRORED, Analysis
from .subject import LintSubject, Placed, TextEdit, Violation

_ORIGINS: Final[Mapping[str, Origin]] = {
    "allocatable": Origin.CAPACITY, "usage": Origin.NODE, "requested": Origin.NODE, "estimated": Origin.NODE,
    "nonZeroRequested": Origin.NODE,
    "nonBestEffortUsage": Origin.NODE, "metricAge": Origin.NODE, "requests": Origin.POD, "limits": Origin.POD,
    "nonZeroRequests": Origin.POD, "podInfo": Origin.POD, "existingPodInfo": Origin.POD,
}
_CAPACITIES: Final = frozenset(("gpuTotal", "gpuDevices", "total"))
_OF_ONE_DEVICE: Final = frozenset(("free", "gpuShare"))
_QUANTITIES: Final = frozenset(("requests", "limits", "allocatable", "capacity"))
_SAME: Final = frozenset((
    "double", "int", "uint", "string", "math.ceil", "math.floor", "math.round", "math.trunc", "math.abs", "sort",
    "reverse", "slice", "distinct", "first", "last", "value", "optional.of", "flatten", "min", "max", "dyn",
))
"""Functions whose result has the measure of their first argument."""
_NUMBERS: Final = frozenset((INT, UINT, DOUBLE))
_SETS: Final = frozenset(("sets.contains", "sets.equivalent", "sets.intersects"))
_SPANS: Final = {
    "getMilliseconds": "milliseconds", "getSeconds": "seconds", "getMinutes": "minutes", "getHours": "hours",
}
_CHAINED: Final = frozenset((Ident, Select))
_UNCOUNTED: Final = frozenset((STRING, BOOL))
_TEXTUAL: Final = frozenset(("_==_", "_!=_"))
_LOGIC: Final = frozenset(("_&&_", "_||_", "!_"))
_LOCALS: Final[Mapping[str, Measure]] = MappingProxyType({})
_JOINS: Final = frozenset(("max", "min", "sum", "math.greatest", "math.least"))
"""Functions that combine the elements of a list to one number."""
_TESTS: Final = frozenset((Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE))
_RANGES: Final = frozenset((Macro.FILTER, Macro.SORT_BY))


def _is_device(resource: str) -> bool:
    """Return whether an extended resource counts GPUs; Koordinator counts hundredths of them."""
    vendor, _, name = resource.rpartition("/")
    return bool(vendor) and name == "gpu" and vendor != "koordinator.sh"


@dataclass(frozen=True, slots=True)
class _UnitFinding:
    """A fault with its place."""

    node: Expr
    fault: UnitFault


@dataclass(slots=True)
class _Walk:
    """The measures of one checked expression; faults are added to `found`."""

    units: Units
    checked: Checked
    analysis: Analysis
    found: list[_UnitFinding] = field(default_factory=list)

    def measure(self, node: Expr, known: Mapping[str, Measure] = _LOCALS) -> Measure | None:
        """Return the measure of a part; None if it is not known, and for constants."""
        kind = node.__class__
        if kind is Literal:
            return None
        if kind is Call:
            return self._call(node, known)  # type: ignore[arg-type]
        reference = self.checked.references.get(node.id)
        if reference is None and kind is Select:
            return self._select(node, known)  # type: ignore[arg-type]
        if reference is not None:
            if isinstance(reference, VariableReference):
                return self._variable(reference.name)
            if isinstance(reference, LocalReference):
                return known.get(reference.name)
            if isinstance(reference, DefinitionReference):
                return self.units.definition(reference.name, self.checked)
        match node:
            case ListLiteral():
                return self._elements(node, known, joined=False)
            case MapLiteral():
                return self._entries(node, known)
            case Comprehension():
                return self._comprehension(node, known)
            case Bind(variable=name, init=init, body=body):
                return self.measure(body, self._with(known, name, self.measure(init, known)))
            case OptionalMap(target=target, variable=name, body=body):
                return self.measure(body, self._with(known, name, self.measure(target, known)))
            case _:
                for each in children(node):
                    self.measure(each, known)
                return None

    def _elements(self, node: ListLiteral, known: Mapping[str, Measure], *, joined: bool) -> Measure | None:
        """Return the common measure of a list's elements; `joined`: a call combines them to one number."""
        found = [self.measure(each, known) for each in node.elements]
        return self._alike(found, node.elements, joined=joined)

    def _entries(self, node: MapLiteral, known: Mapping[str, Measure], key: object = None) -> Measure | None:
        """Return the measure of a literal's value under a key, or the common one of all of its values."""
        found = []
        for each in node.entries:
            self.measure(each.key, known)
            found.append(self.measure(each.value, known))
        for each, measure in zip(node.entries, found, strict=True):
            if isinstance(each.key, Literal) and key is not None and each.key.value == key:
                return measure
        return self._alike(found, tuple(each.value for each in node.entries), joined=False)

    def _with(self, known: Mapping[str, Measure], name: str, measure: Measure | None) -> Mapping[str, Measure]:
        if measure is None and name not in known:
            return known
        changed = {key: each for key, each in known.items() if key != name}
        return changed if measure is None else {**changed, name: measure}

    def _variable(self, name: str) -> Measure | None:
        return amount("seconds", Origin.NODE) if name == "metricAge" else None

    def _select(self, node: Select, known: Mapping[str, Measure]) -> Measure | None:
        reference = self.checked.references.get(node.operand.id)
        if isinstance(reference, VariableReference) and reference.name == "aggregates":
            return self.units.aggregate(node.field)
        if node.operand.__class__ in _CHAINED and (node.test or self.checked.types[node.id] in _UNCOUNTED):
            return None
        if isinstance(node.operand, MapLiteral):
            return self._entries(node.operand, known, node.field)
        below = self.measure(node.operand, known)
        return None if node.test else self._field(node.operand, node.field) or below

    def _field(self, holder: Expr, name: str) -> Measure | None:
        declared = self.checked.environment.types.get(self.checked.types[holder.id].name)
        unit = unit_of_field(declared, name) if declared is not None else ""
        if not unit and declared is not None and declared.index is not None and _is_device(name):
            unit = "devices"
        return amount(unit, self._origin(holder, name)) if unit else None

    def _origin(self, holder: Expr, name: str) -> Origin:
        if name in _CAPACITIES:
            return Origin.CAPACITY
        if name in _OF_ONE_DEVICE:
            return Origin.MEASURED
        if name.startswith("gpu"):
            return Origin.NODE
        root = holder
        while isinstance(root, Select) or (isinstance(root, Call) and root.args and root.function == "_[_]"):
            root = root.operand if isinstance(root, Select) else root.args[0]
        reference = self.checked.references.get(root.id)
        return _ORIGINS.get(reference.name, Origin.MEASURED) if isinstance(reference, VariableReference) \
            else Origin.MEASURED

    def _comprehension(self, node: Comprehension, known: Mapping[str, Measure]) -> Measure | None:
        elements = self.measure(node.range, known)
        is_map = self.checked.types[node.range.id].name == "map"
        inner = known
        if node.variable2 is not None:
            inner = self._with(self._with(known, node.variable, None), node.variable2, elements)
        else:
            inner = self._with(known, node.variable, None if is_map else elements)
        if node.predicate is not None:
            self.measure(node.predicate, inner)
        made = self.measure(node.transform, inner) if node.transform is not None else None
        if node.macro in _TESTS:
            return None
        return elements if node.macro in _RANGES else made

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(  # noqa: C901 - a table of functions, one `if` each
        self, node: Call, known: Mapping[str, Measure],
    ) -> Measure | None:
        reference = self.checked.references.get(node.id)
        qualified = isinstance(reference, CallReference) and reference.qualified
        arguments = node.args if node.target is None or qualified else (node.target, *node.args)
        function = reference.function if isinstance(reference, CallReference) else node.function
        if function in _TEXTUAL and arguments[0].__class__ in _CHAINED and arguments[1].__class__ is Literal \
                and self.checked.types[arguments[0].id] in _UNCOUNTED:
            return None
        if function in ("_[_]", "_[?_]"):
            return self._index(node, known)
        if function == "quantity" and len(arguments) == 1:
            return self._quantity(arguments[0])
        found = [
            None if each.__class__ is Literal
            else self._elements(each, known, joined=True) if function in _JOINS and isinstance(each, ListLiteral)
            else self.measure(each, known)
            for each in arguments
        ]
        if function in _LOGIC:
            return None
        if function in COMPARISONS and len(arguments) == 2:
            self._compare(node, arguments, found, COMPARISONS[function])
            return None
        if function in ("_+_", "_-_"):
            return self._sum(node, arguments, found) if len(arguments) == 2 \
                and self.checked.types[node.id] != STRING else None
        if function == "-_":
            return scaled(found[0], -ONE) if found[0] is not None else None
        if function == "_%_" and len(arguments) == 2:
            self._remainder(node, found)
            return None
        if function in ("_*_", "_/_"):
            return self._product(arguments, found, divided=function == "_/_")
        if function == "_?_:_":
            return self._joined(arguments[1:], found[1:])
        if function == "percent" and len(arguments) == 2:
            return self._percent(node, found)
        if function in ("math.greatest", "math.least"):
            if len(arguments) == 1:
                return found[0]
            for each, measure in zip(arguments, found, strict=True):
                if measure is not None:
                    for other, beside in zip(arguments, found, strict=True):
                        if beside is None:
                            self._hold(measure, each, other, "clamp")
            return self._alike(found, arguments)
        if function in ("isLessThan", "isGreaterThan", "compareTo"):
            left, right = found[:2]
            if left is None or right is None:
                return None
            if left.dimensions != right.dimensions:  # both are quantities, which have no factor
                left, right = replace(left, factor=ONE), replace(right, factor=ONE)
            self._mixed(node, left, right, "compared")
            return None
        if function == "@in" or function in _SETS:
            self._among(node, arguments, found)
            return None
        if function in _SAME:
            return self._same(function, arguments, found)
        if function in ("sum", "asApproximateFloat", "asInteger", "add", "sub"):
            measure = found[0] if found else None
            return replace(measure, origin=min(measure.origin, Origin.NODE)) \
                if function == "sum" and measure is not None and measure.origin is Origin.POD else measure
        if function == "orValue" and len(arguments) == 2:
            return self._joined(arguments, found)
        if function in _SPANS and self.checked.types[arguments[0].id] == DURATION:
            return amount(_SPANS[function], Origin.MEASURED)
        return None

    def _among(self, node: Call, arguments: tuple[Expr, ...], found: list[Measure | None]) -> None:
        """Compare a number, or the elements of a list, with the elements of another list."""
        left, right = found
        if left is not None and right is not None:
            self._mixed(node, left, right, "compared")
        one, two = arguments
        for measure, holder, other in ((left, one, two), (right, two, one)):
            if measure is not None:
                for each in other.elements if isinstance(other, ListLiteral) else (other,):
                    self._hold(measure, holder, each, "==")

    def _remainder(self, node: Call, found: list[Measure | None]) -> None:
        """Compare what is divided with the divisor."""
        left, right = found
        if left is not None and right is not None:
            self._mixed(node, left, right, "divided")

    def _same(self, function: str, arguments: tuple[Expr, ...], found: list[Measure | None]) -> Measure | None:
        if function == "string" and self.checked.types[arguments[0].id] not in _NUMBERS:
            return None  # the digits of a duration are seconds
        if function in ("int", "double") and arguments:
            kind = self.checked.types[arguments[0].id]
            if kind == TIMESTAMP:
                return amount("seconds since 1970")
            if kind == DURATION:
                return amount("nanoseconds")
        return found[0] if found else None

    def _index(self, node: Call, known: Mapping[str, Measure]) -> Measure | None:
        holder, key = node.args
        if isinstance(holder, MapLiteral) and isinstance(key, Literal):
            return self._entries(holder, known, key.value)
        below = self.measure(holder, known)
        self.measure(key, known)
        if isinstance(key, Literal) and isinstance(key.value, str):
            return self._field(holder, key.value) or below
        return below

    def _quantity(self, text: Expr) -> Measure | None:
        """Return the measure of a quantity of an API object, where cpu is in cores."""
        holder = text.operand if isinstance(text, Select) else None
        name = text.field if isinstance(text, Select) else ""
        if isinstance(text, Call) and text.function == "_[_]" and isinstance(text.args[1], Literal):
            holder, name = text.args[0], str(text.args[1].value)
        if not isinstance(holder, Select) or holder.field not in _QUANTITIES or name.endswith("batch-cpu"):
            return None
        unit = unit_of_resource(name)
        origin = Origin.CAPACITY if holder.field in ("allocatable", "capacity") else Origin.POD
        return amount("cores" if unit == "milli-cores" and name == "cpu" else unit, origin) if unit else None

    def _joined(self, nodes: tuple[Expr, ...], found: list[Measure | None]) -> Measure | None:
        """Return the common measure of two values; a constant has the measure of the other one."""
        left, right = found
        if left is None and right is not None and self._constant(nodes[0]) is not None:
            return right
        if right is None and left is not None and self._constant(nodes[1]) is not None:
            return left
        return either(left, right)

    def _alike(
        self, found: list[Measure | None], nodes: tuple[Expr, ...], *, joined: bool = True,
    ) -> Measure | None:
        """Return the common measure of combined values: arguments of `greatest`, elements of a list."""
        first: Measure | None = None
        known = True
        for measure, node in zip(found, nodes, strict=True):
            if measure is None:
                known = known and self._constant(node) is not None
            elif first is None:
                first = measure
            else:
                if joined:
                    self._mixed(node, first, measure, "taken together")
                merged = either(first, measure)
                known, first = known and merged is not None, merged or first
        return first if known else None

    def _constant(self, node: Expr) -> Fraction | None:
        """Return the constant number of a part, with the params as written."""
        if isinstance(node, Literal) and node.unsigned:
            return Fraction(str(node.value))
        constant = self.analysis.constant(node)
        value = constant[0] if constant is not None else None
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            return None
        return Fraction(str(value))

    def _plain(self, node: Expr) -> bool:
        """Return whether a constant is written in the expression and does not come from a param."""
        return not reads_of(self.checked, node)

    def _percent(self, node: Call, found: list[Measure | None]) -> Measure:
        left, right = found
        if left is None or right is None:
            return share(PERCENT, of_whole=right is not None and right.origin <= Origin.CAPACITY)
        if not left.loose and not right.loose and left.dimension and right.dimension and (
            left.dimensions != right.dimensions or (left.unit != right.unit and left.in_unit and right.in_unit)
        ):
            self._report(node, UnitFault(f"{left.unit} of {right.unit} are no percentage", "give both in one unit"))
        return share(PERCENT, of_whole=right.origin <= Origin.CAPACITY)

    def _product(
        self, nodes: tuple[Expr, ...], found: list[Measure | None], *, divided: bool,
    ) -> Measure | None:
        left, right = found
        if left is not None and right is not None:
            return product(left, right, divided=divided)
        if left is not None:
            by = self._constant(nodes[1])
            if by is None or (divided and not by):
                return None
            return scaled(left, 1 / by if divided else by, loose=not self._plain(nodes[1]))
        if right is not None:
            by = self._constant(nodes[0])
            if by is None:
                return None
            if not divided:
                return scaled(right, by, loose=not self._plain(nodes[0]))
        return None

    def _sum(self, node: Call, nodes: tuple[Expr, ...], found: list[Measure | None]) -> Measure | None:
        left, right = found
        subtracted = node.function == "_-_"
        if left is not None and right is not None:
            if left.dimension == "instant" and right.dimension == "time":
                return left
            if self._mixed(node, left, right, "subtracted" if subtracted else "added"):
                return None
            return total(left, right, subtracted=subtracted)
        for measure, other in ((left, nodes[1]), (right, nodes[0])):
            if measure is None:
                continue
            value = self._constant(other)
            if value is None:
                return None
            if measure.is_share and subtracted and measure is right and (value, measure.factor) in _UPSIDE:
                self._report(node, UnitFault(f"{measure.unit} is subtracted from {_UPSIDE[value, measure.factor]}",
                                       "both sides must be fractions of 1, or both percentages"))
                return None
            return measure
        return None

    # -- findings ---------------------------------------------------------------------------------------------

    def _compare(
        self, node: Call, nodes: tuple[Expr, ...], found: list[Measure | None], operator: str,
    ) -> None:
        left, right = found
        if left is not None and right is not None:
            if not self._mixed(node, left, right, "compared"):
                self._report(node, absurd_part(left, right))
        elif left is not None:
            self._hold(left, nodes[0], nodes[1], operator)
        elif right is not None:
            self._hold(right, nodes[1], nodes[0], MIRRORED[operator])

    def _hold(self, measure: Measure, node: Expr, other: Expr, operator: str) -> None:
        """Compare a measure with a number, or with the interval that contains it."""
        value = self._constant(other)
        turned = measure.factor is not None and measure.factor < 0
        if turned:
            measure, operator = scaled(measure, -ONE), MIRRORED.get(operator, operator)
            value = None if value is None else -value
        if value is not None:
            fault = absurd(measure, value, operator)
            plain = self._plain(other)
            if fault is not None and (turned or not (plain and isinstance(other, Literal))):
                fault = replace(fault, meant="")
            if fault is not None and not plain:
                fault = replace(fault, message=f"{fault.message} (`{self.analysis.text(other)}` is {float(value):g})")
            self._report(other, fault)
            offset = self._offset(node)
            if fault is None and offset is not None and operator != "clamp":
                self._report(offset[1], absurd(measure, offset[0], "offset"))
            return
        found = self.analysis.range(other) if self.checked.types.get(other.id) in (INT, DOUBLE) else None
        if turned or found is None or found.low <= 0 or found.high - found.high != 0:
            return
        faults = [absurd(measure, Fraction(str(end)), operator) for end in (found.low, found.high)]
        if faults[0] is not None and faults[1] is not None:
            self._report(other, replace(faults[1], meant=""))

    def _offset(self, node: Expr) -> tuple[Fraction, Expr] | None:
        """Return the offset that is added to an amount before it is compared."""
        if isinstance(node, Call) and node.function in ("_+_", "_-_") and len(node.args) == 2:
            for each in node.args[::-1]:
                value = self._constant(each)
                if value is not None:
                    return value, each
        return None

    def _mixed(self, node: Expr, left: Measure, right: Measure, how: str) -> bool:
        """Return whether two measures are incompatible, and report it."""
        fault = unlike(left, right, joined=how not in ("compared", "divided"))
        if fault is not None:
            self._report(node, replace(fault, message=f"{fault.message} cannot be {how}"))
        return fault is not None

    def _report(self, node: Expr, fault: UnitFault | None) -> None:
        if fault is not None:
            self.found.append(_UnitFinding(node, fault))


_UPSIDE: Final[Mapping[tuple[Fraction, Fraction | None], str]] = {(ONE, PERCENT): "1", (PERCENT, ONE): "100"}


@dataclass(slots=True)
class Units:
    """The measures of a document: of its variables, its aggregates and all its expressions."""

    subject: LintSubject
    _definitions: dict[str, Measure | None] = field(default_factory=dict)
    _aggregates: dict[str, Measure | None] = field(default_factory=dict)

    def walk(self, checked: Checked) -> _Walk:
        """Return a new walk over an expression."""
        return _Walk(self, checked, self.subject.as_written.of(checked))

    def learn(self, name: str, measure: Measure | None) -> None:
        """Record the measure of a variable."""
        self._definitions[name] = measure

    def definition(self, name: str, reader: Checked) -> Measure | None:
        """Return the measure of a variable."""
        if name not in self._definitions:
            below = reader.definition(name)
            self._definitions[name] = self.walk(below).measure(below.root)
        return self._definitions[name]

    def aggregate(self, name: str) -> Measure | None:
        """Return the measure of an aggregate, or of the values of a grouped one."""
        if name not in self._aggregates:
            self._aggregates[name] = None
            for program in self.subject.compiled.aggregates if self.subject.compiled is not None else ():
                if program.name == name:
                    self._aggregates[name] = self._of(program)
        return self._aggregates[name]

    def _of(self, program: AggregateProgram) -> Measure | None:
        if program.program is None or program.function is AggregateFunction.COUNT:
            return None
        checked = program.program.checked
        measure = self.walk(checked).measure(checked.root)
        if measure is None or program.function is not AggregateFunction.SUM:
            return measure
        return None if measure.is_share else replace(measure, origin=Origin.CLUSTER)


def wrong_units(subject: LintSubject) -> Iterator[Violation]:
    """Find values that cannot be compared or added, and numbers that a measure cannot sensibly be compared with."""
    if subject.compiled is None:
        return
    units = Units(subject)
    room: dict[str, Measure | None] = {}
    for placed in subject.everything:
        if placed.role == "message":
            continue
        checked = placed.checked
        walk = units.walk(checked)
        measure = walk.measure(checked.root)
        if placed.role == "variable":
            units.learn(placed.name, measure)
        result = _of_result(placed, measure, subject.compiled)
        of_parts = tuple(walk.found)
        of_whole = (_UnitFinding(checked.root, result),) if result is not None else ()
        for each in (*of_parts, *of_whole, *_of_amounts(placed, walk, room)):
            yield Violation(
                each.fault.message, placed.span(each.node), each.fault.help,
                fix=functools.partial(_written, placed, each) if each.fault.meant else None,
            )


def _written(placed: Placed, finding: _UnitFinding) -> TextEdit | None:
    """Return the edit that writes the intended number, as an int or a double as before."""
    node = finding.node
    old = placed.checked.source.text[node.start : node.end]
    return replacement(placed.span(node), old, finding.fault.meant)


def _of_result(placed: Placed, measure: Measure | None, compiled: Compiled) -> UnitFault | None:
    """Return the fault of an expression's result if its slot requires another unit."""
    if measure is None:
        return None
    if placed.role == "score" and isinstance(placed.item, ScoreItem):
        if placed.item.normalize is Normalize.IDENTITY and measure.is_share and measure.of_whole \
                and measure.factor == ONE:
            return UnitFault("this score is a fraction of 1, and scores go from 0 to 100", "multiply by 100")
        return None
    if placed.role == "setting" and str(placed.item).endswith("Percent") and measure.is_share and measure.of_whole \
            and measure.factor == ONE:
        return UnitFault(f"`{placed.item}` is a fraction of 1 here, and percent are expected", "multiply by 100")
    return _unexpected(measure, _expected(placed, compiled))


def _of_amounts(placed: Placed, walk: _Walk, room: dict[str, Measure | None]) -> Iterator[_UnitFinding]:
    """Yield the entries of the room of targets, and of what a pod takes, that are in another unit than expected.

    That is the unit of the resource with the entry's name, else that of the entry of `room`, where targets' are kept.
    """
    if placed.role not in ("room", "taken"):
        return
    for name, (_, value) in (entries(placed.checked.root) or {}).items():
        measure, expected = walk.measure(value), amount(unit_of_resource(name)) or room.get(name)
        if placed.role == "room":
            room[name] = measure
        fault = None if measure is None else _unexpected(measure, expected)
        if fault is not None:
            yield _UnitFinding(value, fault)


def _unexpected(measure: Measure, expected: Measure | None) -> UnitFault | None:
    """Return the fault of a number where an amount in another unit is expected; None if all is well, or not known."""
    if expected is None or expected.loose or measure.loose:
        return None
    if measure.dimensions != expected.dimensions:
        if not measure.is_share and not measure.dimension:
            return None
        return UnitFault(f"{expected.unit} are expected here, and this is {_article(measure)}", "write an amount")
    if measure.in_unit and measure.unit != expected.unit:
        message = f"{expected.unit} are expected here, and this is in {measure.unit}"
        return UnitFault(message, "leave the conversion out")
    return None


def _article(measure: Measure) -> str:
    return measure.unit if measure.is_share else f"in {measure.unit}"


_BYTES: Final = frozenset(f"memory.{name}" for name in ("min", "low", "high", "max", "limit_in_bytes"))
"""Files whose values are bytes."""


def _expected(placed: Placed, compiled: Compiled) -> Measure | None:
    if placed.role == "target":
        return amount("milli-cores")
    if placed.role in ("amount", "setting") and isinstance(compiled, CompiledQoS):
        for action in compiled.actions:
            if action.name == placed.name and isinstance(action.effect, EvictProgram) and action.effect.release:
                unit = unit_of_resource(action.effect.release.resource)
                return amount(unit) if unit else None
            if action.name == placed.name and isinstance(action.effect, CgroupProgram) and \
                    action.effect.file in _BYTES:
                return amount(unit_of_resource("memory") or "")
    return None

"""Rules about single expressions: constant results, lost precision, certain errors, and cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import (
    LEAVES,
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    reads_of,
)
from koordpolicy.engine.cel.check.cost import estimate
from koordpolicy.engine.cel.check.environment import InvalidLiteralError, Overload, Scope, UnknownArgument
from koordpolicy.engine.cel.syntax.ast import Call, Comprehension, Expr, Literal, Select, children
from koordpolicy.engine.cel.values.types import INT, STRING
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.metrics import duration_text, is_window
from koordpolicy.engine.compile import CompiledScheduler
from koordpolicy.engine.documents import Normalize, ScoreItem
from koordpolicy.engine.explanation import shown
from koordpolicy.engine.framework.points import HIGHEST_SCORE
from koordpolicy.engine.framework.variable_types import USAGE_DURATIONS

from .ranges import ALWAYS, COMPARISONS, NEVER, Analysis, Range, parts
from .subject import LintSubject, Placed, Violation

_QUANTITY: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)")
_QUANTITIES: Final = frozenset(("requests", "limits", "allocatable", "capacity", "allocated", "resources"))
_ORDERINGS: Final = ("<", "<=", ">", ">=")
_UNITS: Final = {"cpu": "milli-cores", "memory": "bytes", "ephemeral-storage": "bytes", "pods": "pods"}
_NEAR: Final = 2
"""An expression whose cost may exceed the limit divided by this number is near the limit."""


def _by_intent(subject: LintSubject, placed: Placed) -> bool:
    """Return whether a bare `true` or `false` is intended: the document's `match` selects the rows."""
    match = subject.spec.match
    return isinstance(placed.checked.root, Literal) and (
        match.pods is not None or match.nodes is not None or bool(subject.spec.match_conditions)
    )


def constant_conditions(subject: LintSubject) -> Iterator[tuple[Placed, Expr, bool | None]]:
    """Yield the constant parts of expressions, and (None) branches that are never taken."""
    for placed, node, value in subject.constant_truths:
        bare = isinstance(placed.checked.root, Literal)
        if not bare or (placed.role != "variable" and not _by_intent(subject, placed)):
            yield placed, node, value


def always_true(subject: LintSubject) -> Iterator[Violation]:
    """Find conditions that are true whatever the row is."""
    for placed, node, value in constant_conditions(subject):
        if value is True:
            whole = node is placed.checked.root
            yield Violation(
                f"`{placed.name or placed.role}` is always true" if whole else "this part is always true",
                placed.span(node), "it decides nothing: remove it, or compare with what was meant",
            )


def always_false(subject: LintSubject) -> Iterator[Violation]:
    """Find conditions that are true for no row."""
    for placed, node, value in constant_conditions(subject):
        if value is False:
            whole = node is placed.checked.root
            if not isinstance(node, Literal):
                hint = "no value meets it: are the bounds the right way round?"
            elif whole:
                hint = "`match` says for which rows a bare `false` is meant; or else write the condition, or remove it"
            else:
                hint = "write the condition that is meant, or remove it"
            yield Violation(
                f"`{placed.name or placed.role}` is never true" if whole else "this part is never true",
                placed.span(node), hint,
            )


def unreachable(subject: LintSubject) -> Iterator[Violation]:
    """Find branches that are never taken."""
    for placed, node, value in constant_conditions(subject):
        if value is None:
            yield Violation("this branch is never taken: its condition is always the same", placed.span(node),
                        "remove it, or mend the condition")


def filters_without_node(subject: LintSubject) -> Iterator[Violation]:
    """Find filters with the same result for all nodes."""
    if not isinstance(subject.compiled, CompiledScheduler) or subject.spec.match.nodes is not None:
        return
    if any(each.role == "condition" and each.checked.scope is Scope.ROW for each in subject.placed):
        return  # the conditions choose the nodes
    for placed in subject.placed:
        if placed.role == "filter" and placed.checked.scope is not Scope.ROW and not _settled(subject, placed):
            yield Violation(
                f"the filter `{placed.name}` reads no node: it is evaluated once per node with the same result",
                placed.span(), "move it to `preFilter`, which is evaluated once per pod",
            )


def scores_without_node(subject: LintSubject) -> Iterator[Violation]:
    """Find scores that are the same for all nodes."""
    if not isinstance(subject.compiled, CompiledScheduler) or subject.spec.match.nodes is not None:
        return
    if any(each.role == "condition" and each.checked.scope is Scope.ROW for each in subject.placed):
        return  # nodes that the document does not match get 0
    for placed in subject.placed:
        if placed.role == "score" and placed.checked.scope is not Scope.ROW:
            yield Violation(f"the score `{placed.name}` reads no node: all nodes get the same", placed.span(),
                        "read a variable of the node, or remove the score")


def _settled(subject: LintSubject, placed: Placed) -> bool:
    return subject.analyses.of(placed.checked).truth(placed.checked.root) in (ALWAYS, NEVER)


def scores_out_of_range(subject: LintSubject) -> Iterator[Violation]:
    """Find scores that are outside of 0..100 after their normalisation, for inputs that a cluster has."""
    for placed in subject.placed:
        if placed.role != "score" or not isinstance(placed.item, ScoreItem):
            continue
        found = subject.as_written.of(placed.checked).range(placed.checked.root)
        if found is not None and (fault := _score_fault(found, placed.item.normalize)):
            message, hint = fault
            yield Violation(f"the score `{placed.name}` {message}", placed.span(), hint)


def _score_fault(found: Range, how: Normalize) -> tuple[str, str] | None:
    scale = "`normalize: MinMax` brings any numbers to 0..100"
    if how in (Normalize.MIN_MAX, Normalize.MIN_MAX_REVERSE):
        return None
    if how is not Normalize.IDENTITY:
        if found.low < 0 and (found.exact or found.high < 0):
            return f"may be negative, which `normalize: {how.value}` does not bring into 0..100", scale
        return None
    if found.low > HIGHEST_SCORE or found.high < 0:
        return f"is never within 0..100: it is {_side(found)}", scale
    if found.unit and found.high > HIGHEST_SCORE:
        unit = _UNITS.get(found.unit, "units of the resource")
        return f"is an amount in {unit}, not 0..100", f"divide by what the node has, or write `normalize: Max`; {scale}"
    if found.exact and found.high > HIGHEST_SCORE:
        return "may be above 100", f"`math.least(100, ...)` keeps it there; {scale}"
    if found.exact and found.low < 0:
        return "may be below 0", f"`math.greatest(0, ...)` keeps it there; {scale}"
    return None


def _side(found: Range) -> str:
    return f"at least {found.low}" if found.low > HIGHEST_SCORE else f"at most {found.high}"


def lossy_divisions(subject: LintSubject) -> Iterator[Violation]:
    """Find divisions of integers that lose an intended fraction."""
    calls: dict[Placed, list[Call]] = {}
    for placed, node in subject.calls:
        calls.setdefault(placed, []).append(node)
    for placed, nodes in calls.items():
        analysis = subject.analyses.of(placed.checked)
        for node in nodes:
            if node.function == "_*_" and placed.checked.types.get(node.id) == INT:
                for one, other in (node.args, node.args[::-1]):
                    if _divides(placed.checked, one, but=analysis.text(other), analysis=analysis):
                        yield Violation(
                            "the division loses its fraction before it is multiplied", placed.span(one),
                            "integers are divided to integers: multiply first, `a * 100 / b`, or divide doubles",
                        )
            elif node.function == "double" and _divides(placed.checked, node.args[0], analysis=analysis):
                yield Violation(
                    "the division has lost its fraction when it becomes a double",
                    placed.span(node.args[0]),
                    "`double(a) / double(b)` keeps it",
                )
            elif COMPARISONS.get(node.function) in _ORDERINGS \
                    and _compares_share(analysis, subject.as_written.of(placed.checked), node):
                yield Violation(
                    "the quotient of these integers is 0 for every share below 100 %",
                    placed.span(node),
                    "compare percents: `a * 100 / b`",
                )


def _divides(checked: Checked, node: Expr, *, analysis: Analysis, but: str = "") -> bool:
    """Return whether a part is a division of integers (except by `but`, which rounds down on purpose)."""
    reference = checked.references.get(node.id)
    if isinstance(reference, DefinitionReference):
        below = checked.definition(reference.name)
        return _divides(below, below.root, analysis=analysis.definition(reference.name), but=but)
    if not isinstance(node, Call) or node.function != "_/_" or checked.types.get(node.id) != INT:
        return False
    if but and analysis.text(node.args[1]) == but:
        return False
    if _scaled(checked, node.args[0]):
        return False  # the lost part is less than 1 %
    constants = [analysis.constant(each) for each in node.args]
    if constants[0] is not None and constants[1] is not None:
        return bool(constants[1][0]) and constants[0][0] % constants[1][0] != 0
    return True


_KEEPING: Final = frozenset(("_/_", "_+_", "_-_", "_?_:_", "greatest", "least", "max", "min", "sum", "abs", "-_"))


def _scaled(checked: Checked, node: Expr) -> bool:
    """Return whether a number was multiplied before, so that the loss of its division is negligible.

    This includes quotients and sums of such numbers: half of a percentage loses half a percent.
    """
    pending, seen = [(checked, node)], set[str]()
    while pending:
        owner, part = pending.pop()
        reference = owner.references.get(part.id)
        if isinstance(reference, DefinitionReference) and reference.name not in seen:
            seen.add(reference.name)
            below = owner.definition(reference.name)
            pending.append((below, below.root))
        elif isinstance(part, Call) and part.function in ("_*_", "percent"):
            return True
        elif isinstance(part, Call) and part.function in _KEEPING:
            result_args = {"_/_": part.args[:1], "_?_:_": part.args[1:]}.get(part.function, part.args)
            pending.extend((owner, each) for each in result_args)
    return False


def _compares_share(analysis: Analysis, as_written: Analysis, node: Call) -> bool:
    """Return whether a quotient of amounts is compared with a number from 0 to 1, or with another such quotient."""
    for one, other in (node.args, node.args[::-1]):
        if not _is_lost_share(analysis, one):
            continue
        bound = analysis.constant(other) or as_written.constant(other)
        if bound is None:
            if _is_lost_share(analysis, other):
                return True
            continue
        if isinstance(bound[0], int | float) and not isinstance(bound[0], bool) and 0 <= bound[0] <= 1:
            return True
    return False


def _is_lost_share(analysis: Analysis, node: Expr) -> bool:
    """Return whether a part is a quotient of two amounts of one kind, as an integer, and not a percentage."""
    checked = analysis.checked
    reference = checked.references.get(node.id)
    if isinstance(reference, DefinitionReference):
        below = analysis.definition(reference.name)
        return _is_lost_share(below, below.checked.root)
    if not isinstance(node, Call) or node.function != "_/_" or checked.types.get(node.id) != INT:
        return False
    if _scaled(checked, node.args[0]):
        return False
    left, right = (analysis.range(each) for each in node.args)
    return left is not None and right is not None and bool(left.unit) and left.unit == right.unit


_READING: Final = frozenset((
    "duration", "timestamp", "quantity", "matches", "find", "findAll", "ip", "cidr", "containsIP", "containsCIDR",
    "semver", "url", "int", "uint", "double", "bool", "format", "resourceList", "replace", "substring",
    "charAt", "decode",
    "getHours", "getMinutes", "getDate", "getDayOfWeek", "getDayOfMonth", "getDayOfYear", "getFullYear", "getMonth",
))
"""Functions that fail for some strings."""


_SPELLED: Final = re.compile(
    r"([0-9]+(?:\.[0-9]*)?)\s*(?:(d)(?:ays?)?|(h)(?:ours?|rs?)?|(m)(?:in(?:ute)?s?)?|(s)(?:ec(?:ond)?s?)?)[\s,]*",
)
_SECONDS_SPELLED: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_LONGEST_SPELLED: Final = 40  # characters


def window_fault(text: str) -> str:
    """Return the correction of a key of `usage.over` that is no duration: `5m` for `5 minutes`.

    It is empty for a duration of at least a second, such as `5m`, `300s` and `1h30m`.
    """
    if is_window(text):
        return ""
    seconds = 0.0
    if len(text) < _LONGEST_SPELLED and re.fullmatch(f"(?:{_SPELLED.pattern})+", text.strip().lower()):
        seconds = sum(float(number) * _SECONDS_SPELLED["".join(units)]
                      for number, *units in _SPELLED.findall(text.lower()))
    return duration_text(seconds) if seconds >= 1 else "5m"


def unknown_windows(subject: LintSubject) -> Iterator[Violation]:
    """Find keys of `usage.over` that are no durations, with the params as written."""
    for placed, node in subject.calls:
        if node.function not in ("_[_]", "_[?_]"):
            continue
        owner = placed.checked.types.get(node.args[0].id)
        key = subject.as_written.of(placed.checked).constant(node.args[1]) if owner == USAGE_DURATIONS.type else None
        if key is not None and isinstance(key[0], str) and (better := window_fault(key[0])):
            yield Violation(
                f"{shown(key[0])} is no duration, so no NodeMetric has it", placed.span(node.args[1]),
                f"did you mean `'{better}'`? Durations are such as `30s`, `5m` and `1h30m`",
            )


def unreadable_params(subject: LintSubject) -> Iterator[Violation]:
    """Find calls that always fail with the params as written."""
    if subject.compiled is None or not subject.params:
        return
    reading: dict[Placed, list[Call]] = {}
    for placed, node in subject.calls:
        if node.function in _READING:
            reading.setdefault(placed, []).append(node)
    for placed, nodes in reading.items():
        if any(path[0] == "params" for path in placed.checked.reads) \
                and any(_depends_on_params(placed.checked, node) for node in nodes):
            found: list[Violation] = []
            _Unreadable(placed, subject.as_written.of(placed.checked), found).look(placed.checked.root, {})
            yield from found


def _depends_on_params(checked: Checked, node: Expr) -> bool:
    """Return whether a part reads a param, or a loop's variable, whose range may be one."""
    return any(path[0] == "params" for path in reads_of(checked, node)) \
        or any(isinstance(checked.references.get(each.id), LocalReference) for each in parts(checked, node))


@dataclass(frozen=True, slots=True)
class _Unreadable:
    placed: Placed
    analysis: Analysis
    found: list[Violation]

    def look(self, node: Expr, elements: Mapping[str, tuple[object, ...]]) -> None:
        """Add the violations in a part to `found`; `elements` are the known values of loop variables."""
        if node.__class__ is Literal:
            return
        reference = self.placed.checked.references.get(node.id)
        if reference.__class__ in LEAVES:
            return
        if isinstance(node, Call):
            if node.function in ("_&&_", "_||_", "_?_:_"):
                self._reached(node, elements)
                return
            if isinstance(reference, CallReference) and not node.function.startswith(("_", "@")):
                self._call(node, reference, elements)
        elif isinstance(node, Comprehension):
            self.look(node.range, elements)
            values = self.analysis.constant(node.range)
            inner = {name: each for name, each in elements.items() if name not in (node.variable, node.variable2)}
            if values is not None and isinstance(values[0], list | tuple):
                inner[node.variable2 or node.variable] = tuple(values[0])
            for each in (node.predicate, node.transform):
                if each is not None:
                    self.look(each, inner)
            return
        qualified = isinstance(reference, CallReference) and reference.qualified
        for each in node.args if isinstance(node, Call) and qualified else children(node):
            self.look(each, elements)

    def _reached(self, node: Call, elements: Mapping[str, tuple[object, ...]]) -> None:
        """Look at the parts that are evaluated with these params."""
        if node.function == "_?_:_":
            truth = self.analysis.truth(node.args[0])
            for value, branch in ((True, node.args[1]), (False, node.args[2])):
                if value in truth:
                    self.look(branch, elements)
            self.look(node.args[0], elements)
            return
        settling = NEVER if node.function == "_&&_" else ALWAYS
        if all(self.analysis.truth(each) != settling for each in node.args):
            for each in node.args:
                self.look(each, elements)

    def _call(self, node: Call, reference: CallReference, elements: Mapping[str, tuple[object, ...]]) -> None:
        arguments = node.args if reference.qualified or node.target is None else (node.target, *node.args)
        if len(reference.overloads) != 1 or not reference.overloads[0].pure:
            return
        constants = [self.analysis.constant(each) for each in arguments]
        choices: list[tuple[object, ...]] = []
        for each, constant in zip(arguments, constants, strict=True):
            local = self.placed.checked.references.get(each.id)
            if constant is not None:
                choices.append(constant)
            elif isinstance(local, LocalReference) and local.name in elements:
                choices.append(elements[local.name])
            else:
                choices.append((UnknownArgument(self.placed.checked.types[each.id]),))
        for number, (each, values) in enumerate(zip(arguments, choices, strict=True)):
            if isinstance(each, Literal):
                continue
            for value in values:
                tried = [value if number == place else found[0] for place, found in enumerate(choices) if found]
                if len(tried) != len(choices) or isinstance(value, UnknownArgument):
                    continue
                fault = _fails(reference.overloads[0], tuple(tried), number)
                if fault:
                    text = self.analysis.text(each)
                    self.found.append(Violation(f"`{text}` is {shown(value)}: {fault}", self.placed.span(each),
                                                "as it is written, this call fails for every row"))
                    return


def _fails(overload: Overload, arguments: tuple[object, ...], number: int) -> str:
    """Return why a call always fails because of one of its arguments; an empty string if it may have a value."""
    try:
        if overload.validate is not None:
            overload.validate(arguments)
        if not any(isinstance(each, UnknownArgument) for each in arguments):
            overload.evaluate(*arguments)
    except InvalidLiteralError as fault:
        return fault.message if not fault.path or fault.path[0] == number else ""
    except EvaluationError as error:
        return "" if error.final else error.message
    except (ArithmeticError, ValueError, TypeError, AttributeError):
        return ""
    return ""


def quantities_as_text(subject: LintSubject) -> Iterator[Violation]:
    """Find quantities that are compared or converted as strings."""
    hint = "use `quantity(a).isLessThan(quantity(b))`, or the ready numbers: `requests.cpu`, `allocatable.cpu`"
    for placed, node in subject.calls:
        if COMPARISONS.get(node.function) in _ORDERINGS:
            if any(_is_quantity(placed.checked, each) for each in node.args):
                yield Violation("a quantity is compared as a string: '9' is greater than '10', and '1' is not '1000m'",
                            placed.span(node), hint)
        elif node.function in ("int", "double") and _is_field(placed.checked, node.args[0]):
            yield Violation(
                f"`{node.function}` cannot read a quantity such as '500m' or '1Gi'", placed.span(node), hint,
            )


def _is_quantity(checked: Checked, node: Expr) -> bool:
    if isinstance(node, Literal):
        return isinstance(node.value, str) and _QUANTITY.fullmatch(node.value) is not None
    if isinstance(node, Call) and node.function == "dyn" and len(node.args) == 1:
        return _is_quantity(checked, node.args[0])
    return _is_field(checked, node)


def _is_field(checked: Checked, node: Expr) -> bool:
    """Return whether a part is a quantity of an API object, which serves them as strings."""
    if checked.types.get(node.id) != STRING:
        return False
    holder = node.operand if isinstance(node, Select) else None
    if isinstance(node, Call) and node.function == "_[_]":
        holder = node.args[0]
    return isinstance(holder, Select) and holder.field in _QUANTITIES


def _loops(node: Comprehension) -> bool:
    """Return whether there is another loop inside of this one."""
    pending = [*children(node)]
    while pending:
        each = pending.pop()
        if isinstance(each, Comprehension):
            return True
        pending.extend(children(each))
    return False


def near_limit(subject: LintSubject) -> Iterator[Violation]:
    """Find expressions with a cost near the limit."""
    for placed, nodes in subject.parts:
        if not any(isinstance(node, Comprehension) and _loops(node) for node in nodes):
            continue  # one loop over the assumed size costs a hundredth of the limit
        limit = placed.checked.environment.limits.estimated_cost
        cost = estimate(placed.checked).high
        if cost * _NEAR > limit:
            yield Violation(
                f"may cost {cost:,} of the {limit:,} that are allowed", placed.span(),
                "look only at what is needed (`filter` first), or compute parts of it once under `variables`",
            )

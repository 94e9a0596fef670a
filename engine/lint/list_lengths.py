"""Lengths of lists: how many elements a list has at least, and which conditions guarantee more.

Reading an element that a list does not have is an error, as for an absent key; so are `min()` and `max()` of an empty
list. Lists of API objects have at least one element where they are present: the API server omits empty ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    VariableReference,
)
from koordpolicy.engine.cel.syntax.ast import Call, Comprehension, Expr, ListLiteral, Macro, Select
from koordpolicy.engine.cel.syntax.unparse import unparse

from .ranges import COMPARISONS, MIRRORED, NEGATED, Analysis
from .split_parts import parts_matching, parts_with

UNKNOWN: Final = 1 << 32
"""The length of a list of which nothing is known: no read of it is reported."""
_MOST_GUARANTEED: Final = 64
"""The maximum number of elements that a condition guarantees."""
_MOST_STEPS: Final = 100
"""The maximum number of nested lists that are followed."""
ELEMENT_READS: Final = frozenset(("_[_]", "min", "max", "greatest", "least", "math.greatest", "math.least", "value"))
"""Names of the calls that may read an element."""
ELEMENT_READ: Final = re.compile(r"[\w)\]]\s*\[|\b(?:min|max|value)\s*\(|\b(?:greatest|least)\s*\(\s*[a-z]")
"""The text of expressions in which an element may be read."""
_MOST_VALUES: Final = 64
"""The maximum number of values of a list of constants that are compared with a text."""
_AS_LONG: Final = frozenset(("sort", "reverse", "dyn"))
_EXTREMES: Final = frozenset(("min", "max", "math.greatest", "math.least"))
_CONTAINING: Final = frozenset(("startsWith", "endsWith", "contains"))
_POSITIONS: Final = frozenset(("indexOf", "lastIndexOf"))
_PARTS_OF_ANY: Final = "split(*)"
"""Ends the canonical text of the parts that a test guarantees whose pattern or text is not known."""


@dataclass(slots=True)
class Lengths:
    """The lists of one checked expression. `key` returns the canonical text of a part."""

    checked: Checked
    analysis: Analysis
    key: Callable[[Expr], str]
    definition: Callable[[str], Lengths]
    bound: dict[str, Expr] = field(default_factory=dict)
    """The lists that `cel.bind` names."""

    # -- reads -----------------------------------------------------------------------------------------------------

    def read(self, node: Call) -> tuple[Expr, int] | None:
        """Return the list from which a call reads, and the number of elements that it needs; None for other calls."""
        function, arguments = self._called(node)
        if function == "_[_]" and self._is_list(arguments[0]):
            needed = self._needed(*arguments)
            return (arguments[0], needed) if needed else None
        if len(arguments) != 1:
            return None
        if function in _EXTREMES and self._is_list(arguments[0]):
            return arguments[0], 1
        if function == "value" and isinstance(arguments[0], Call):
            below, parts = self._called(arguments[0])
            if below in ("first", "last") and self._is_list(parts[0]):
                return parts[0], 1
            if below == "_[?_]" and self._is_list(parts[0]):
                needed = self._needed(*parts)
                return (parts[0], needed) if needed else None
        return None

    def _needed(self, holder: Expr, index: Expr) -> int:
        """Return the number of elements that the read of an index needs; 0 if it is not known."""
        constant = self.analysis.constant(index)
        if constant is not None:
            value = constant[0]
            return value + 1 if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
        if isinstance(index, Call) and index.function == "_-_" and len(index.args) == 2:
            sized, less = self._sized(index.args[0]), self.analysis.constant(index.args[1])
            if sized is not None and less is not None and isinstance(less[0], int) and less[0] > 0:
                return less[0] if sized == self.text(holder) else 0
        return 0

    def least(self, node: Expr) -> int:
        """Return the number of elements that a list has at least; `UNKNOWN` if nothing is known."""
        return self.shortest(node, _MOST_STEPS)

    def shortest(self, node: Expr, steps: int) -> int:
        """Return the same as `least`, following no more than so many nested lists."""
        steps -= 1
        if steps < 0:
            return UNKNOWN
        constant = self.analysis.constant(node)
        if constant is not None:
            return len(constant[0]) if isinstance(constant[0], list) else UNKNOWN
        reference = self.checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            below = self.definition(reference.name)
            return below.shortest(below.checked.root, steps)
        if isinstance(reference, LocalReference):
            init = self.bound.get(reference.name)
            return self.shortest(init, steps) if init is not None else UNKNOWN
        if isinstance(reference, VariableReference):
            return 0
        if isinstance(node, ListLiteral):
            return len(node.elements) - len(node.optional)
        if isinstance(node, Comprehension):
            if node.macro is Macro.SORT_BY or (node.macro is Macro.MAP and node.predicate is None):
                return self.shortest(node.range, steps) if self._is_list(node.range) else 0
            return 0 if node.macro in (Macro.MAP, Macro.FILTER, Macro.TRANSFORM_LIST) else UNKNOWN
        if isinstance(node, Select):
            of_objects = self.checked.types[node.operand.id].name.startswith(("kubernetes.", "koordinator."))
            return 1 if of_objects else UNKNOWN
        if not isinstance(node, Call):
            return UNKNOWN
        function, arguments = self._called(node)
        if function in _AS_LONG:
            return self.shortest(arguments[0], steps)
        if function == "distinct":
            return min(1, self.shortest(arguments[0], steps))
        if function == "split":
            return 1
        if function == "findAll":
            return 0
        if function == "_+_":
            return sum(self.shortest(each, steps) for each in arguments)
        if function == "_?_:_":
            return min(self.shortest(each, steps) for each in arguments[1:])
        if function == "orValue":
            return min(1, self.shortest(arguments[1], steps))
        if function == "lists.range":
            found = self.analysis.range(arguments[0])
            return max(0, int(found.low)) if found is not None and found.low > 0 else 0
        return UNKNOWN

    # -- canonical texts ---------------------------------------------------------------------------------------

    def text(self, node: Expr) -> str:
        """Return the canonical text of the list that is as long as this one."""
        for _ in range(_MOST_STEPS):
            reference = self.checked.references.get(node.id)
            if isinstance(reference, DefinitionReference):
                below = self.definition(reference.name)
                return below.text(below.checked.root)
            if isinstance(reference, LocalReference) and reference.name in self.bound:
                node = self.bound[reference.name]
            elif isinstance(node, Comprehension) and node.variable2 is None and self._is_list(node.range):
                if node.macro in (Macro.FILTER, Macro.MAP) and node.predicate is not None:
                    return self._filtered(node.range, node.variable, node.predicate)
                if node.macro not in (Macro.SORT_BY, Macro.MAP):
                    return self.key(node)
                node = node.range
            elif isinstance(node, Call):
                function, arguments = self._called(node)
                if function == "split" and len(arguments) == 2:
                    return self._split(arguments[0], self.key(arguments[1]))
                if function not in _AS_LONG:
                    return self.key(node)
                node = arguments[0]
            else:
                return self.key(node)
        return self.key(node)

    def _filtered(self, source: Expr, variable: str, predicate: Expr) -> str:
        try:
            test = re.sub(rf"(?<![\w'.]){re.escape(variable)}\b", "@", unparse(predicate))
        except ValueError:
            test = f"#{id(self.checked)}:{predicate.id}"
        return f"{self.text(source)}.filter({test})"

    def keys_of_read(self, node: Expr, needed: int) -> tuple[str, ...]:
        """Return the canonical texts of an element that a list must have; any of them guarantees it."""
        return (f"{self.text(node)}[#{needed - 1}]", *self.parts_of_read(node, needed, _MOST_STEPS))

    def parts_of_read(self, node: Expr, needed: int, steps: int) -> Iterator[str]:
        """Yield further canonical texts of an element of a list if it is as long as the parts of a text.

        No more than so many nested lists are followed.
        """
        reference = self.checked.references.get(node.id)
        if steps <= 0:
            return
        if isinstance(reference, DefinitionReference):
            below = self.definition(reference.name)
            yield from below.parts_of_read(below.checked.root, needed, steps - 1)
        elif isinstance(reference, LocalReference) and reference.name in self.bound:
            yield from self.parts_of_read(self.bound[reference.name], needed, steps - 1)
        elif isinstance(node, Call):
            function, arguments = self._called(node)
            if function in _AS_LONG:
                yield from self.parts_of_read(arguments[0], needed, steps - 1)
            elif function == "split":
                yield f"{self.key(arguments[0])}.{_PARTS_OF_ANY}"
                if len(arguments) == 3 and self._may_have(arguments[2], needed):
                    yield f"{self._split(arguments[0], self.key(arguments[1]))}[#{needed - 1}]"

    def _may_have(self, limit: Expr, needed: int) -> bool:
        """Return whether the third argument of `split` permits so many parts; -1 permits all."""
        constant = self.analysis.constant(limit)
        return constant is not None and isinstance(constant[0], int) and (constant[0] < 0 or constant[0] >= needed)

    def _split(self, text: Expr, separator: str) -> str:
        """Return the canonical text of the parts of a text."""
        return f"{self.key(text)}.split({separator})"

    def _parts(self, text: Expr, parts: Mapping[str, int] | None) -> Iterator[str]:
        """Yield the canonical texts of the parts that a text has at least, by separator; of any for None."""
        if parts is None:
            yield f"{self.key(text)}.{_PARTS_OF_ANY}"
            return
        for separator, number in parts.items():
            held = self._split(text, repr(separator))
            for index in range(1, min(number, _MOST_GUARANTEED)):
                yield f"{held}[#{index}]"

    def _parts_of_all(self, text: Expr, values: object) -> Iterator[str]:
        """Yield the parts of a text that is one of these values."""
        texts = [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
        if isinstance(values, list) and 0 < len(values) == len(texts) <= _MOST_VALUES:
            first, *others = map(parts_with, texts)
            yield from self._parts(text, {
                separator: min(number, *(each.get(separator, 1) for each in others)) if others else number
                for separator, number in first.items()
            })

    def _text_of(self, node: Expr) -> str | None:
        """Return the value of a constant text; None if it is not known."""
        constant = self.analysis.constant(node)
        return constant[0] if constant is not None and isinstance(constant[0], str) else None

    def _resolved(self, node: Expr) -> Expr:
        """Return the expression that a name is bound to."""
        for _ in range(_MOST_STEPS):
            reference = self.checked.references.get(node.id)
            if not isinstance(reference, LocalReference) or reference.name not in self.bound:
                break
            node = self.bound[reference.name]
        return node

    # -- guarantees of conditions ------------------------------------------------------------------------------

    def at_least(self, node: Expr, number: int) -> Iterator[str]:
        """Yield the canonical texts of the elements that a list of so many elements has."""
        for _ in range(_MOST_STEPS):
            held = self.text(node)
            for index in range(min(number, _MOST_GUARANTEED)):
                yield f"{held}[#{index}]"
            node = self._resolved(node)
            # What is filtered comes from a list that is at least as long.
            if not isinstance(node, Comprehension) or not self._is_list(node.range) or node.macro not in (
                Macro.FILTER, Macro.MAP, Macro.SORT_BY,
            ):
                return
            node = node.range

    def implied(self, node: Expr, *, truth: bool) -> Iterator[str]:
        """Yield the canonical texts of the elements that lists have if a condition is true (or false)."""
        if isinstance(node, Comprehension):
            yield from self._implied_by_loop(node, truth=truth)
            return
        if not isinstance(node, Call):
            return
        function, arguments = self._called(node)
        if function == "@in" and truth and self._is_list(arguments[1]):
            yield from self.at_least(arguments[1], 1)
            constant = self.analysis.constant(arguments[1])
            if constant is not None:
                yield from self._parts_of_all(arguments[0], constant[0])
        elif function in _CONTAINING and truth and len(arguments) == 2:
            text = self._text_of(arguments[1])
            yield from self._parts(arguments[0], parts_with(text) if text is not None else None)
        elif function == "matches" and truth and len(arguments) == 2:
            text = self._text_of(arguments[1])
            yield from self._parts(arguments[0], parts_matching(text) if text is not None else None)
        elif function == "hasValue" and truth and isinstance(arguments[0], Call):
            below, parts = self._called(arguments[0])
            if below in ("first", "last") and self._is_list(parts[0]):
                yield from self.at_least(parts[0], 1)
            elif below == "_[?_]" and self._is_list(parts[0]):
                yield from self.at_least(parts[0], self._needed(*parts))
        elif function in COMPARISONS and len(arguments) == 2:
            operator = COMPARISONS[function] if truth else NEGATED[COMPARISONS[function]]
            for one, other, comparison in (
                (arguments[0], arguments[1], operator), (arguments[1], arguments[0], MIRRORED[operator]),
            ):
                yield from self._compared(one, other, comparison)

    def _implied_by_loop(self, node: Comprehension, *, truth: bool) -> Iterator[str]:
        is_expected = node.macro in (Macro.EXISTS, Macro.EXISTS_ONE) if truth else node.macro is Macro.ALL
        if not is_expected or node.predicate is None or not self._is_list(node.range):
            return
        yield from self.at_least(node.range, 1)
        predicate = node.predicate
        if node.macro is Macro.ALL:
            if not isinstance(predicate, Call) or predicate.function != "!_":
                return
            predicate = predicate.args[0]
        if node.variable2 is not None:
            return
        pending = [predicate]
        while pending:
            each = pending.pop()
            yield f"{self._filtered(node.range, node.variable, each)}[#0]"
            if isinstance(each, Call) and each.function == "_&&_":
                pending.extend(each.args)

    def _compared(self, one: Expr, other: Expr, operator: str) -> Iterator[str]:
        constant = self.analysis.constant(other)
        value = constant[0] if constant is not None else None
        part = self._resolved(one)
        if isinstance(part, Call) and isinstance(value, int) and not isinstance(value, bool):
            yield from self._found_at(part, operator, value)
        if isinstance(value, str) and operator == "==":
            yield from self._parts(one, parts_with(value))
        if isinstance(value, list) and self._is_list(one):
            if (operator == "==" and value) or (operator == "!=" and not value):
                yield from self.at_least(one, max(1, len(value)))
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            if operator == ">" or (operator == "!=" and value == 0):
                number = int(value) + 1
            elif operator in (">=", "=="):
                number = -int(-value // 1)
            else:
                return
            reader, sized = self.list_of_size(one)
            if sized is not None:
                yield from reader.at_least(sized, number)

    def _found_at(self, node: Call, operator: str, value: int) -> Iterator[str]:
        """Yield the parts of a text in which another one is found, as a comparison of its position proves."""
        function, arguments = self._called(node)
        least = {">": value + 1, ">=": value, "==": value, "!=": 0 if value == -1 else -1}.get(operator, -1)
        if function in _POSITIONS and least >= 0:
            text = self._text_of(arguments[1])
            yield from self._parts(arguments[0], parts_with(text) if text is not None else None)

    def _sized(self, node: Expr) -> str | None:
        """Return the canonical text of the list whose size is read."""
        reader, sized = self.list_of_size(node)
        return reader.text(sized) if sized is not None else None

    def list_of_size(self, node: Expr) -> tuple[Lengths, Expr | None]:
        """Return the list whose size an expression is, and the lists of the expression that has it."""
        part = self._resolved(node)
        reference = self.checked.references.get(part.id)
        if isinstance(reference, DefinitionReference):
            below = self.definition(reference.name)
            return below.list_of_size(below.checked.root)
        if isinstance(part, Call):
            function, arguments = self._called(part)
            if function == "size" and len(arguments) == 1 and self._is_list(arguments[0]):
                return self, arguments[0]
        return self, None

    def _called(self, node: Call) -> tuple[str, tuple[Expr, ...]]:
        """Return the function of a call, and its arguments with its receiver."""
        reference = self.checked.references.get(node.id)
        if isinstance(reference, CallReference):
            if reference.qualified or node.target is None:
                return reference.function, node.args
            return reference.function, (node.target, *node.args)
        return node.function, node.args if node.target is None else (node.target, *node.args)

    def _is_list(self, node: Expr) -> bool:
        return self.checked.types[node.id].name == "list"

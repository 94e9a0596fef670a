"""Reads of keys, optional fields and elements that may be absent and that no guard precedes.

`false && error` is false and `true || error` is true in either order, so a guard may stand on either side.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeVar

from koordpolicy.engine.cel.check.checked_ast import (
    LEAVES,
    VALUES,
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    VariableReference,
)
from koordpolicy.engine.cel.check.environment import Scope
from koordpolicy.engine.cel.syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Literal,
    Macro,
    MapLiteral,
    OptionalMap,
    Select,
    children,
)
from koordpolicy.engine.cel.syntax.unparse import unparse
from koordpolicy.engine.cel.values.traversal import deep_size
from koordpolicy.engine.cel.values.types import BOOL, DYN, Type
from koordpolicy.engine.compile import AggregateProgram
from koordpolicy.engine.framework.variable_types import TYPES
from koordpolicy.engine.kubernetes import types as kubernetes_types

from .list_lengths import ELEMENT_READ, ELEMENT_READS, Lengths
from .non_zero import proves_non_zero
from .ranges import COMPARISONS, MEASURED, MIRRORED, NEGATED, Analysis
from .subject import LintSubject

_T = TypeVar("_T")
Key: TypeAlias = str
"""A read key or field as canonical text: `node['metadata']['labels']['pool']`, however it is written."""

_ALWAYS: Final = frozenset((
    *(f"node['metadata']['labels']['kubernetes.io/{name}']" for name in ("hostname", "os", "arch")),
    "node['metadata']['labels']", "node['metadata']['annotations']", "node['status']['allocatable']",
    "node['status']['capacity']",
    *(f"node['status']['{held}']['{name}']" for held in ("allocatable", "capacity") for name in (
        "cpu", "memory", "pods", "ephemeral-storage",
    )),
))
"""The labels and amounts that the kubelet sets on every node, and the maps that they are in."""
_OBJECTS: Final = ("kubernetes.", "koordinator.")
_SERVED: Final[Mapping[str, frozenset[str]]] = {
    "kubernetes.ObjectMeta": frozenset((
        "name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation",
    )),
    "kubernetes.PodSpec": frozenset((
        "restartPolicy", "dnsPolicy", "schedulerName", "serviceAccountName", "serviceAccount", "securityContext",
        "terminationGracePeriodSeconds", "enableServiceLinks", "priority", "preemptionPolicy", "tolerations",
    )),
    "kubernetes.PodStatus": frozenset(("phase", "qosClass")),
    "kubernetes.Container": frozenset(("resources", "imagePullPolicy", "image")),
    "kubernetes.NodeStatus": frozenset(("conditions", "nodeInfo", "addresses", "daemonEndpoints", "images")),
}
"""Optional fields that the API server or the kubelet fills in."""
_OF_EVERY_OBJECT: Final = frozenset(("apiVersion", "kind", "metadata", "spec", "status"))
_LONGEST: Final = 2_000
_MOST_ELEMENTS: Final = 1_000
_MOST_OPEN: Final = 64
"""The maximum number of reported reads of one variable."""


@dataclass(frozen=True, slots=True)
class UnguardedRead:
    """An unguarded read of a key, a field or an element; `holder` is the map, object or list that it is read from."""

    checked: Checked
    node: Expr
    key: Key
    holder: Key
    parent: Expr | None
    """The enclosing call, which may have a default for an absent value."""
    needed: int = 0
    """The number of elements that the list must have; 0 for keys and fields."""
    of: Expr | None = None
    """The list."""
    or_keys: tuple[Key, ...] = ()
    """Other keys that guarantee the element."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """The keys that are known to be present: those of one guard, and of the guards around it.

    `counts` is the number of terms of a chain of `&&` that guarantee a key; a term does not guard itself (`own`).
    """

    counts: Mapping[Key, int]
    own: frozenset[Key] = frozenset()
    around: _Scope | None = None
    hidden: str = ""
    """A loop's variable: knowledge about another variable of its name does not apply."""

    def __contains__(self, key: Key) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if scope.counts.get(key, 0) > (key in scope.own):
                return True
            if scope.hidden and re.search(rf"(?<![\w'.]){re.escape(scope.hidden)}\b", key):
                return False
            scope = scope.around
        return False


_NON_ZERO: Final = "optional.ofNonZeroValue"
EMPTY_OPTIONALS: Final = frozenset(("optional.none", _NON_ZERO))
"""The functions whose optional holds nothing, or may."""
_CONDITIONS: Final = frozenset((Call, Select, Comprehension))
NOTHING: Final = _Scope({})
_NO_KEYS: Final[frozenset[Key]] = frozenset()


@dataclass(slots=True)
class _Reader:
    """The reads of one checked expression."""

    absences: Absences
    checked: Checked
    analysis: Analysis
    found: list[UnguardedRead] = field(default_factory=list)
    _keys: dict[int, Key] = field(default_factory=dict)
    _facts: dict[tuple[int, bool], frozenset[Key]] = field(default_factory=dict)
    _bound: dict[str, Key] = field(default_factory=dict)
    _held: dict[str, Expr] = field(default_factory=dict)
    """The values of the variables of `cel.bind` around a part."""
    _lengths: Lengths | None = None

    @property
    def lengths(self) -> Lengths:
        """The lists of the expression."""
        if self._lengths is None:
            self._lengths = Lengths(self.checked, self.analysis, self.key_text, self._lengths_of)
        return self._lengths

    def _lengths_of(self, name: str) -> Lengths:
        return self.absences.reader(name, self.checked).lengths

    # -- canonical texts -------------------------------------------------------------------------------------------

    def key(self, node: Expr) -> Key:
        """Return the canonical text of a part."""
        if node.id not in self._keys:
            found = self._key(node)
            # Nested definitions may grow exponentially: a longer text is never a key.
            self._keys[node.id] = found if len(found) <= _LONGEST else f"#{id(self.checked)}:{node.id}"
        return self._keys[node.id]

    def _key(self, node: Expr) -> Key:
        reference = self.checked.references.get(node.id)
        if isinstance(reference, VariableReference):
            return reference.name
        if isinstance(reference, LocalReference):
            return self._bound.get(reference.name, reference.name)
        if isinstance(reference, DefinitionReference):
            below = self.absences.reader(reference.name, self.checked)
            return below.key(below.checked.root)
        if isinstance(node, Select):
            return f"{self.key(node.operand)}[{node.field!r}]"
        if isinstance(node, Call) and node.function in ("_[_]", "_[?_]"):
            return f"{self.key(node.args[0])}[{self.key_text(node.args[1])}]"
        if isinstance(node, Call) and called_of(self.checked, node) == _NON_ZERO:
            return self._key_of_non_zero(node.args[0])
        try:
            return unparse(node)
        except ValueError:
            return f"#{id(self.checked)}:{node.id}"

    def key_text(self, node: Expr) -> str:
        """Return the canonical text of a key: its value if that is constant."""
        constant = self._constant(node)
        return _text_of(constant[0]) if constant is not None else self.key(node)

    def _key_of_non_zero(self, node: Expr) -> Key:
        """Return the canonical text of the optional that holds a part if that is not zero."""
        return f"{_NON_ZERO}({self.key(node)})"

    def _constant(self, node: Expr) -> tuple[object] | None:
        """Return the value of a constant, or of a name that `cel.bind` gives to one, as a tuple of one."""
        return self.analysis.constant(self._resolved(node))

    def _resolved(self, node: Expr) -> Expr:
        """Return the expression that a name is bound to; any other part itself."""
        reference = self.checked.references.get(node.id)
        return self._held.get(reference.name, node) if isinstance(reference, LocalReference) else node

    # -- guarantees of conditions -------------------------------------------------------------------------------

    def facts(self, node: Expr, *, truth: bool) -> frozenset[Key]:
        """Return the keys that are present if a condition is true (or false)."""
        if node.__class__ not in _CONDITIONS:
            return _NO_KEYS
        known = self._facts.get((node.id, truth))
        if known is None:
            known = self._facts[node.id, truth] = self._facts_of(node, truth=truth)
        return known

    def _facts_of(self, node: Expr, *, truth: bool) -> frozenset[Key]:
        return self._of_keys(node, truth=truth).union(self.lengths.implied(node, truth=truth))

    def _of_keys(self, node: Expr, *, truth: bool) -> frozenset[Key]:
        reference = self.checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            below = self.absences.reader(reference.name, self.checked)
            return below.facts(below.checked.root, truth=truth)
        if isinstance(node, Select):
            return self._implied(node) if node.test and truth else _NO_KEYS
        if isinstance(node, Comprehension):
            return self._implied_by_loop(node, truth=truth)
        if not isinstance(node, Call):
            return _NO_KEYS
        match node.function:
            case "!_":
                return self.facts(node.args[0], truth=not truth)
            case "_&&_" | "_||_":
                found = [self.facts(each, truth=truth) for each in _chain(node)]
                return frozenset[str]().union(*found) if (node.function == "_&&_") is truth \
                    else found[0].intersection(*found[1:])
            case "_?_:_":
                condition, yes, no = node.args
                if _is_bool(no, value=not truth):
                    return self.facts(condition, truth=True) | self.facts(yes, truth=truth)
                if _is_bool(yes, value=not truth):
                    return self.facts(condition, truth=False) | self.facts(no, truth=truth)
                return self.facts(yes, truth=truth) & self.facts(no, truth=truth)
            case "@in":
                if truth and self.checked.types[node.args[1].id].name == "map":
                    key = f"{self.key(node.args[1])}[{self.key_text(node.args[0])}]"
                    return frozenset((key,)) | self._implied(node.args[1])
            case "hasValue":
                return self._implied(node.target) if truth and node.target is not None else _NO_KEYS
            case "_==_" | "_!=_":
                return self._compared(node, same=(node.function == "_==_") is truth) | self._non_zero(node, truth=truth)
            case "_<_" | "_<=_" | "_>_" | "_>=_":
                return self._non_zero(node, truth=truth)
            case _:
                pass
        return _NO_KEYS

    def _implied_by_loop(self, node: Comprehension, *, truth: bool) -> frozenset[Key]:
        """Return the keys that `all` and `exists` over a list of constants guarantee: its condition, element by
        element.
        """
        if node.macro not in (Macro.ALL, Macro.EXISTS) or node.predicate is None or node.variable2 is not None:
            return _NO_KEYS
        constant = self.analysis.constant(node.range)
        elements = constant[0] if constant is not None else None
        if not isinstance(elements, list) or not 0 < len(elements) <= self.absences.elements_left:
            return _NO_KEYS
        self.absences.elements_left -= len(elements)
        found = []
        for each in elements:
            bound = {**self._bound, node.variable: _text_of(each)}
            # Canonical texts depend on the element.
            held = _without(self._held, (node.variable,))
            reader = replace(self, found=[], _keys={}, _facts={}, _bound=bound, _held=held, _lengths=None)
            found.append(reader.facts(node.predicate, truth=truth))
        return frozenset[str]().union(*found) if (node.macro is Macro.ALL) is truth \
            else found[0].intersection(*found[1:])

    def _compared(self, node: Call, *, same: bool) -> frozenset[Key]:
        """Return the keys that are present if a condition, or an optional value with a default, is (not) equal to a
        constant.
        """
        for one, other in (node.args, node.args[::-1]):
            called = called_of(self.checked, self._resolved(other))
            if called == ("optional.of" if same else "optional.none"):
                return self._implied(one)
            constant = self.analysis.constant(other)
            if constant is not None and isinstance(constant[0], bool) and self.checked.types[one.id] == BOOL:
                found = self.facts(one, truth=constant[0] is same)
                if found:
                    return found
            if constant is None or not isinstance(one, Call) or one.target is None:
                continue
            if one.function == "orValue":
                default = self.analysis.constant(one.args[0])
                if default is not None and _is_small(default[0]) and _is_small(constant[0]) \
                        and (default[0] == constant[0]) is not same:
                    return self._implied(one.target)
        return _NO_KEYS

    def _non_zero(self, node: Call, *, truth: bool) -> frozenset[Key]:
        """Return the optionals of values that a comparison with a constant proves not to be zero."""
        operator = COMPARISONS[node.function] if truth else NEGATED[COMPARISONS[node.function]]
        for one, other, comparison in (
            (node.args[0], node.args[1], operator), (node.args[1], node.args[0], MIRRORED[operator]),
        ):
            constant = self._constant(other)
            if constant is None and isinstance(other, MapLiteral) and not other.entries:
                constant = ({},)
            if constant is None or not proves_non_zero(self.checked.types[one.id], comparison, constant[0]):
                continue
            part = self._resolved(one)
            found = {self._key_of_non_zero(one)}
            if isinstance(part, Call) and called_of(self.checked, part) == "size":
                found.add(self._key_of_non_zero(part.args[0] if part.target is None else part.target))
            return frozenset(found)
        return _NO_KEYS

    def _implied(self, node: Expr) -> frozenset[Key]:
        """Return the keys that are present if a part has a value: its own, and those that it is read from."""
        found = {self.key(node)}
        while isinstance(node, Select) or (isinstance(node, Call) and node.function in ("_[_]", "_[?_]")):
            node = holder_of(node)
            found.add(self.key(node))
        return frozenset(found)

    # -- reads -----------------------------------------------------------------------------------------------------

    def read(self, node: Expr, scope: _Scope, parent: Expr | None = None) -> None:
        """Collect the unguarded reads of a part."""
        if node.__class__ is Literal:
            return
        reference = self.checked.references.get(node.id)
        if reference.__class__ in LEAVES:
            if isinstance(reference, DefinitionReference):
                for each in self.absences.open(reference.name, self.checked):
                    if each.key not in scope and not any(key in scope for key in each.or_keys):
                        self.found.append(each)
            return
        match node:
            case Select():
                self._select(node, scope, parent)
            case Call():
                self._call(node, scope, parent, reference)
            case Comprehension():
                self._loop(node, scope)
            case Bind(variable=name, init=init, body=body):
                self.read(init, scope)
                with self._named(name, init=init):
                    self.read(body, scope, parent)
            case OptionalMap(target=target, variable=name, body=body):
                self.read(target, scope)
                with self._named(name):
                    self.read(body, _Scope({}, around=scope, hidden=name))
            case _:
                for part in children(node):
                    self.read(part, scope)

    @contextmanager
    def _named(self, *names: str, init: Expr | None = None) -> Iterator[None]:
        """Give names to a value of `cel.bind`, or to those of a loop, which hide others of the same names."""
        before = self._bound, self._held, self.lengths.bound
        bound, held, lists = _without(before[0], names), _without(before[1], names), _without(before[2], names)
        if init is not None:
            # A name that is bound to another one is bound to the value of that: both may be the same.
            value = self._resolved(init)
            bound.update(dict.fromkeys(names, self.key(init)))
            held.update(dict.fromkeys(names, value))
            lists.update(dict.fromkeys(names, value))
        self._bound, self._held, self.lengths.bound = bound, held, lists
        try:
            yield
        finally:
            self._bound, self._held, self.lengths.bound = before

    def _select(self, node: Select, scope: _Scope, parent: Expr | None) -> None:
        self.read(node.operand, scope, node)
        kind = self.checked.types[node.operand.id]
        if not node.test and not node.optional and (
            kind.name == "map" or kind == DYN or may_be_absent(kind, node.field, maps=not _is_keyed(node, parent))
        ):
            self._note(node, node.operand, scope, parent)

    def _call(self, node: Call, scope: _Scope, parent: Expr | None, reference: object) -> None:
        if node.function in ("_&&_", "_||_"):
            self._junction(node, scope)
        elif node.function == "_?_:_":
            condition, yes, no = node.args
            self.read(condition, scope, node)
            for truth, branch in ((True, yes), (False, no)):
                known = self.facts(condition, truth=truth)
                self.read(branch, _guarded(known, scope) if known else scope, node)
        else:
            qualified = isinstance(reference, CallReference) and reference.qualified
            for each in node.args if node.target is None or qualified else (node.target, *node.args):
                self.read(each, scope, node)
            if node.function == "_[_]" and self.checked.types[node.args[0].id].name == "map":
                self._note(node, node.args[0], scope, parent)
            elif node.function == "value" and (target := self._optional_of(node)) is not None:
                self._value(node, target, scope, parent)
            elif node.function in ELEMENT_READS:
                self._element(node, scope, parent)

    def _optional_of(self, node: Call) -> Expr | None:
        """Return the optional whose value a call of `value` reads, if it may hold none; None if nothing is known."""
        target = node.target
        if target is None:
            return None
        if called_of(self.checked, target) in EMPTY_OPTIONALS:
            return target
        part, absent = target, False
        while True:
            if isinstance(part, Select) and not part.test:
                kind, name = _within(self.checked.types[part.operand.id]), part.field
                absent |= kind.name == "map" or kind == DYN or may_be_absent(kind, name, maps=True)
                part = part.operand
            elif isinstance(part, Call) and part.function in ("_[?_]", "_[_]"):
                kind = _within(self.checked.types[part.args[0].id])
                if kind.name not in ("map", "dyn"):
                    return None
                absent |= not self._is_entry(part)
                part = part.args[0]
            else:
                return target if absent and part is not target and _is_read(self.checked, part) else None

    def _value(self, node: Call, target: Expr, scope: _Scope, parent: Expr | None) -> None:
        """Collect the read of an optional's value."""
        key = self.key(target)
        if key not in _ALWAYS and key not in scope and not self.absences.is_there(key) and len(self.found) < _MOST_OPEN:
            holder = self.key(holder_of(target)) if called_of(self.checked, target) not in EMPTY_OPTIONALS else ""
            self.found.append(UnguardedRead(self.checked, node, key, holder, parent))

    def _is_entry(self, node: Expr) -> bool:
        """Return whether a map in which a key is read is a literal, or a variable of one, that has the key."""
        return self._entry(node) is not None

    def _entry(self, node: Expr) -> tuple[_Reader, Expr] | None:
        """Return the value of a key that is read from a literal, with the reader of its expression."""
        if isinstance(node, Select) and not node.test:
            name: object = node.field
        elif isinstance(node, Call) and node.function in ("_[_]", "_[?_]"):
            constant = self._constant(node.args[1])
            if constant is None:
                return None
            name = constant[0]
        else:
            return None
        reader, holder = self._literal(holder_of(node))
        if not isinstance(holder, MapLiteral):
            return None
        for each in holder.entries:
            key = reader._constant(each.key)  # noqa: SLF001 - of the same class
            if key is not None and not each.optional and type(key[0]) is type(name) and key[0] == name:
                return reader, each.value
        return None

    def _literal(self, node: Expr) -> tuple[_Reader, Expr]:
        """Return the value of a variable, or of the entry of a literal, with the reader of its expression."""
        reference = self.checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            below = self.absences.reader(reference.name, self.checked)
            return below._literal(below.checked.root)  # noqa: SLF001 - of the same class
        if isinstance(reference, LocalReference):
            held = self._held.get(reference.name)
            return self._literal(held) if held is not None else (self, node)
        found = self._entry(node) if reference is None or isinstance(node, Call) else None
        return (self, node) if found is None else found[0]._literal(found[1])  # noqa: SLF001 - of the same class

    def _element(self, node: Call, scope: _Scope, parent: Expr | None) -> None:
        """Collect the read of an element of a list that may have fewer ones."""
        found = self.lengths.read(node)
        if found is None or self.checked.scopes[node.id] is Scope.CONSTANT:
            return
        held, needed = found
        if self.lengths.least(held) >= needed:
            return
        keys = self.lengths.keys_of_read(held, needed)
        if any(key in scope or self.absences.is_there(key) for key in keys) or len(self.found) >= _MOST_OPEN:
            return
        self.found.append(UnguardedRead(
            self.checked, node, keys[0], self.lengths.text(held), parent, needed, held, keys[1:],
        ))

    def _junction(self, node: Call, scope: _Scope) -> None:
        terms = _chain(node)
        truth = node.function == "_&&_"
        found = [self.facts(each, truth=truth) for each in terms]
        counts: dict[Key, int] = {}
        for known in found:
            for key in known:
                counts[key] = counts.get(key, 0) + 1
        for each, own in zip(terms, found, strict=True):
            self.read(each, _Scope(counts, own, scope) if counts else scope, node)

    def _loop(self, node: Comprehension, scope: _Scope) -> None:
        self.read(node.range, scope)
        element = node.variable if node.variable2 is None else node.variable2
        inner = _Scope({}, around=scope, hidden=element)
        known: set[Key] = set()
        if self.checked.types[node.range.id].name == "list":
            known.update(self.lengths.at_least(node.range, 1))
        source = node.range
        while isinstance(source, Comprehension) and source.macro is Macro.FILTER and source.predicate is not None:
            if source.variable == element:
                known |= self.facts(source.predicate, truth=True)
            source = source.range
        if self.checked.types[source.id].name == "map" and (source is node.range or node.variable2 is None):
            known.add(f"{self.key(source)}[{node.variable}]")
        inner = _guarded(known, inner)
        with self._named(node.variable, element):
            if node.predicate is not None:
                self.read(node.predicate, inner)
            if node.transform is not None:
                implied = self.facts(node.predicate, truth=True) if node.predicate is not None else _NO_KEYS
                self.read(node.transform, _guarded(implied, inner))

    def _note(self, node: Expr, holder: Expr, scope: _Scope, parent: Expr | None) -> None:
        if self.checked.scopes[node.id] is Scope.CONSTANT or not _is_read(self.checked, holder) or self._is_entry(node):
            return
        key, held = self.key(node), self.key(holder)
        if key in _ALWAYS or key in scope or self.absences.is_there(key):
            return
        if len(self.found) < _MOST_OPEN:
            self.found.append(UnguardedRead(self.checked, node, key, held, parent))


def _without(known: Mapping[str, _T], names: Collection[str]) -> dict[str, _T]:
    return {name: each for name, each in known.items() if name not in names}


def _is_small(value: object) -> bool:
    """Return whether a constant may be compared and printed: lists that contain those of other definitions twice grow
    exponentially.
    """
    return deep_size(value) <= _LONGEST


def _text_of(value: object) -> str:
    """Return a text that only equal constants share; that of a large one is its identity."""
    return repr(value) if _is_small(value) else f"#{id(value)}"


@functools.lru_cache(maxsize=4096)
def may_be_absent(kind: Type, name: str, *, maps: bool = False) -> bool:
    """Return whether a field of an API object is optional without a default; maps are excluded, unless `maps`."""
    if not kind.name.startswith(_OBJECTS):
        return False
    declared = kubernetes_types.load().get(kind.name)
    field = declared.fields.get(name) if declared is not None else None
    if field is None or field.required or (field.type.name == "map" and not maps):
        return False
    is_object = declared is not None and "metadata" in declared.fields
    return name not in _SERVED.get(kind.name, ()) and not (is_object and name in _OF_EVERY_OBJECT)


def _within(kind: Type) -> Type:
    """Return the type of what an optional holds; that of anything else."""
    return kind.parameters[0] if kind.name == "optional_type" and kind.parameters else kind


def called_of(checked: Checked, node: Expr) -> str:
    """Return the name of the function that a part calls; empty if it is no call of one."""
    reference = checked.references.get(node.id)
    return reference.function if isinstance(node, Call) and isinstance(reference, CallReference) else ""


def _is_keyed(node: Expr, parent: Expr | None) -> bool:
    """Return whether a key is read from a map, which is reported instead of the map itself."""
    if isinstance(parent, Select):
        return not parent.test and not parent.optional
    return isinstance(parent, Call) and parent.function == "_[_]" and parent.args[0] is node


def _guarded(keys: Iterable[Key], around: _Scope) -> _Scope:
    return _Scope(dict.fromkeys(keys, 1), around=around)


def _chain(node: Call) -> tuple[Expr, ...]:
    """Return the terms of a chain of the same junction."""
    terms: list[Expr] = []
    pending: list[Expr] = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, Call) and each.function == node.function:
            pending.extend(reversed(each.args))
        else:
            terms.append(each)
    return tuple(terms)


def _is_bool(node: Expr, *, value: bool) -> bool:
    return isinstance(node, Literal) and node.value is value


def _is_read(checked: Checked, node: Expr) -> bool:
    """Return whether a map is read or a literal: nothing is known of maps that functions return."""
    while True:
        if checked.references.get(node.id).__class__ in VALUES:
            return True
        if isinstance(node, Select) and not node.optional:
            node = node.operand
        elif isinstance(node, Call) and node.function == "_[_]":
            node = node.args[0]
        else:
            return isinstance(node, MapLiteral)


@dataclass(slots=True)
class Absences:
    """The analysis of a document's unguarded reads."""

    subject: LintSubject
    there: set[Key] = field(default_factory=set)
    """The keys that the document's `match`, its conditions and its earlier rules guarantee."""
    elements_left: int = _MOST_ELEMENTS
    """The remaining number of elements of constant lists for which conditions are analysed."""
    _readers: dict[str, _Reader] = field(default_factory=dict)
    _open: dict[str, tuple[UnguardedRead, ...]] = field(default_factory=dict)
    _harmless: set[str] = field(default_factory=set)
    """The variables of which no read, nor one of the variables below, could be absent."""

    def reader(self, name: str, reader: Checked) -> _Reader:
        """Return the reader of a variable."""
        if name not in self._readers:
            self._readers[name] = self.of(reader.definition(name))
        return self._readers[name]

    def of(self, checked: Checked) -> _Reader:
        """Return a reader of an expression."""
        return _Reader(self, checked, self.subject.as_written.of(checked))

    def may_be_absent(self, checked: Checked) -> bool:
        """Return whether any read of an expression, or of its variables, could be absent: most read only amounts."""
        if _reads_absent(self.subject, checked):
            return True
        pending, seen = [checked], set[str]()
        while pending:
            reader = pending.pop()
            for each in reader.references.values():
                if not isinstance(each, DefinitionReference) or each.name in seen or each.name in self._harmless:
                    continue
                below = reader.definition(each.name)
                if _reads_absent(self.subject, below):
                    return True
                seen.add(each.name)
                pending.append(below)
        self._harmless |= seen
        return False

    def open(self, name: str, reader: Checked) -> tuple[UnguardedRead, ...]:
        """Return the unguarded reads of a variable."""
        if name not in self._open:
            below = self.reader(name, reader)
            if self.may_be_absent(below.checked):
                below.read(below.checked.root, NOTHING)
            distinct = {each.key: each for each in reversed(below.found)}
            self._open[name] = tuple(reversed(distinct.values()))
        return self._open[name]

    def is_there(self, key: Key) -> bool:
        """Return whether the document guarantees a key before its rules are evaluated."""
        return key in self.there


def is_field(access: UnguardedRead) -> bool:
    """Return whether a field of an API object is read, not a key of a map."""
    node = access.node
    return isinstance(node, Select) and access.checked.types[node.operand.id].name.startswith(_OBJECTS)


def _reads_absent(subject: LintSubject, checked: Checked) -> bool:
    """Return whether any read of an expression itself could be absent."""
    if "{" in checked.source.text or ELEMENT_READ.search(checked.source.text):
        return True
    variables = checked.environment.variables
    for path in checked.reads:
        root = path[0]
        if root == "params":
            value: object = subject.params
            for step in path[1:]:
                value = value.get(step) if isinstance(value, Mapping) else None
            if isinstance(value, Mapping):
                return True
        elif root == "aggregates":
            if subject.compiled is None or any(each.is_keyed for each in subject.compiled.aggregates):
                return True
        elif root in variables and _leads_to_a_map(variables[root].type, path[1:]):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _leads_to_a_map(kind: Type, path: tuple[str, ...]) -> bool:
    """Return whether a path goes through a map or ends above one."""
    declared = {**kubernetes_types.load(), **{each.name: each for each in TYPES}}
    for step in path:
        if kind.name == "map" or kind == DYN or may_be_absent(kind, step):
            return True
        holder = declared.get(kind.name)
        if holder is None or (step not in holder.fields and holder.index is None):
            return kind.name == "list"
        kind = holder.fields[step].type if step in holder.fields else holder.index or DYN
    pending, seen = [kind], {kind}
    while pending:
        each = pending.pop()
        if each.name == "map" or each == DYN:
            return True
        holder = declared.get(each.name)
        if holder is not None and any(may_be_absent(each, name) for name in holder.fields):
            return True
        below = {field.type for field in holder.fields.values()} if holder is not None else set(each.parameters)
        pending.extend(below - seen)
        seen |= below
    return False


def is_measured(aggregate: AggregateProgram) -> bool:
    """Return whether an aggregate reads measured values: it omits rows without a metric."""
    programs = (aggregate.program, aggregate.group_by)
    return any(path[0] in MEASURED for each in programs if each is not None for path in each.checked.reads)


def holder_of(node: Expr) -> Expr:
    """Return the part that a key or field is read from."""
    if isinstance(node, Select):
        return node.operand
    assert isinstance(node, Call)
    return node.args[0]

"""Rules about what a document declares: names, descriptions, variables, params, labels."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.cel.syntax.ast import Bind, Call, Comprehension, Expr, Literal, OptionalMap, Select, children
from koordpolicy.engine.compile import Rule
from koordpolicy.engine.documents import LabelSelector, ParamsSpec, PluginSpec
from koordpolicy.engine.documents.json_schema import JsonSchema
from koordpolicy.engine.documents.schema_keywords import idle_keywords
from koordpolicy.engine.kubernetes import vocabulary, well_known
from koordpolicy.engine.source import Span, did_you_mean
from koordpolicy.engine.texts import quoted_list

from .edits import removal, replacement
from .ranges import COMPARISONS
from .subject import LintSubject, Placed, TextEdit, Violation, Whole

_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LISTS: Final = frozenset(("ResourceList", "MeasuredList", "Usage"))
_OWN: Final = "policy.koordinator.sh/"
_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "qosClass": frozenset((*vocabulary.QOS_CLASSES, "")),
    "priorityBand": frozenset((*vocabulary.PRIORITY_BANDS, "")),
    "kubernetesQoS": frozenset(("Guaranteed", "Burstable", "BestEffort")),
}
_PRIORITIES: Final = (*vocabulary.PRIORITY_BANDS, "system-cluster-critical", "system-node-critical")
DEPRECATED_KEYS: Final[Mapping[str, str]] = {
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "scheduler.alpha.kubernetes.io/critical-pod": "",
    "node-role.kubernetes.io/master": "node-role.kubernetes.io/control-plane",
}
"""Deprecated labels and annotations of Kubernetes, with their replacements."""


def unused_variables(subject: LintSubject) -> Iterator[Violation]:
    """Find variables that no expression reads."""
    if subject.compiled is None:
        return
    for number, each in enumerate(subject.spec.variables):
        if each.name not in subject.used:
            yield Violation(
                f"nothing reads the variable `{each.name}`", subject.place("spec", "variables", number, "name"),
                "remove it", fix=functools.partial(_remove, subject, ("spec", "variables", number)),
            )


def unused_aggregates(subject: LintSubject) -> Iterator[Violation]:
    """Find aggregates that no expression reads."""
    if subject.compiled is None or not subject.spec.aggregates:
        return
    paths = {path[:2] for each in subject.everything for path in each.checked.reads if path[0] == "aggregates"}
    if ("aggregates",) in paths:
        return
    for number, each in enumerate(subject.spec.aggregates):
        if ("aggregates", each.name) not in paths:
            yield Violation(
                f"nothing reads the aggregate `{each.name}`", subject.place("spec", "aggregates", number, "name"),
                "remove it", fix=functools.partial(_remove, subject, ("spec", "aggregates", number)),
            )


def unused_params(subject: LintSubject) -> Iterator[Violation]:
    """Find params of a plugin that no expression reads."""
    if subject.compiled is None or subject.params_read is None:
        return
    unknown = subject.params_read - set(subject.spec.params)
    for name in subject.spec.params:
        if name not in subject.params_read:
            hint = did_you_mean(name, unknown)
            yield Violation(
                f"nothing reads the param `{name}`",
                subject.place("spec", "params", name),
                hint or "remove it",
                fix=functools.partial(_remove, subject, ("spec", "params", name)),
            )


def _remove(subject: LintSubject, path: tuple[str | int, ...]) -> TextEdit | None:
    return removal(subject.node, path) if subject.node is not None else None


_LOOPS: Final = frozenset((Comprehension, Bind, OptionalMap))


def misspelt_priority_classes(subject: LintSubject) -> Iterator[Violation]:
    """Find misspelt priority classes of Koordinator or Kubernetes; a cluster may have other ones."""
    if subject.compiled is None or subject.spec.match.pods is None:
        return
    named = subject.spec.match.pods.priority_classes or frozenset()
    for name in sorted(named):
        near = near_priority_class(name)
        if near and near not in named:
            yield Violation(
                f"the priority class `{name}` is almost `{near}`, and is none of Koordinator or Kubernetes",
                subject.place("spec", "match", "pods", "priorityClasses"), f"did you mean `{near}`?",
            )


def near_priority_class(name: str) -> str:
    """Return the priority class of Koordinator or Kubernetes that a name misspells, or an empty string."""
    if name in _PRIORITIES:
        return ""
    near = difflib.get_close_matches(name.lower()[:64], _PRIORITIES, n=1, cutoff=0.85)
    # A cluster may have its own classes with similar names.
    return near[0] if near and not name.startswith(f"{near[0]}-") else ""


def shadowing(subject: LintSubject) -> Iterator[Violation]:
    """Find loop variables that hide another variable, also one of an outer loop."""
    for placed, nodes in subject.parts:
        known = placed.checked.environment.variables
        loops = [name for node in nodes if node.__class__ in _LOOPS for name in _variables_of(node)]
        if len(set(loops)) == len(loops) and known.keys().isdisjoint(loops) \
                and placed.checked.environment.definitions_name not in loops:
            continue
        pending: list[tuple[Expr, frozenset[str]]] = [(placed.checked.root, frozenset())]
        while pending:
            node, outer = pending.pop()
            names = _variables_of(node)
            for name in names:
                if name in known or name in outer or name == placed.checked.environment.definitions_name:
                    what = "the variable of the loop around it" if name in outer else f"`{name}` of {placed.role}"
                    yield Violation(
                        f"the loop's variable `{name}` hides {what}", placed.span(node), "give it another name",
                    )
            below = children(node)
            # The range of a loop does not see its variable.
            pending.extend((each, outer if number == 0 else outer | set(names)) for number, each in enumerate(below))


def _variables_of(node: Expr) -> tuple[str, ...]:
    """Return the variables that a loop, or another macro, declares."""
    if isinstance(node, Comprehension):
        return (node.variable,) if node.variable2 is None else (node.variable, node.variable2)
    return (node.variable,) if isinstance(node, Bind | OptionalMap) else ()


def shadowed_params(whole: Whole) -> Iterator[Violation]:
    """Find params with several origins, of which the last one wins, and own ones that repeat a referenced value."""
    shared = {each.document.name: each.params for each in whole.subjects if each.compiled is None}
    for subject in whole.subjects:
        if subject.compiled is None:
            continue
        origins: dict[str, tuple[str, Any]] = {}
        for reference in subject.spec.params_from:
            for name, value in shared.get(reference.name, {}).items():
                before = origins.get(name)
                if before is not None and before[1] != value:
                    yield Violation(
                        f"`{reference.name}` overrides the param `{name}` of `{before[0]}` with another value",
                        reference.span, "give it in one place, or in the document's own `params`",
                    )
                origins[name] = reference.name, value
        for name, value in subject.spec.params.items():
            if name in origins and origins[name][1] == value:
                yield Violation(
                    f"the param `{name}` hides the same value of `{origins[name][0]}`",
                    subject.place("spec", "params", name), "remove it, so that a change there is one here",
                    fix=functools.partial(_remove, subject, ("spec", "params", name)),
                )


def missing_descriptions(subject: LintSubject) -> Iterator[Violation]:
    """Find documents without a description."""
    if not subject.document.metadata.description.strip():
        yield Violation(f"`{subject.document.name}` has no description", subject.document.span,
                    "annotate it with `policy.koordinator.sh/description`")


# -- keys of labels and annotations, and the values of labels ----------------------------------------------------------


def _keys_in_expressions(subject: LintSubject) -> Iterator[tuple[str, Span, str]]:
    """Yield literal keys of labels, annotations, taints and resource lists, with their places and kinds."""
    for placed, node in subject.calls:
        if node.function in ("_[_]", "_[?_]"):
            holder, key = node.args
        elif node.function == "@in":
            key, holder = node.args
        elif node.function in ("_==_", "_!=_"):
            yield from _compared_keys(placed, node)
            continue
        else:
            continue
        if not isinstance(key, Literal) or not isinstance(key.value, str):
            if node.function == "@in":
                yield from _compared_keys(placed, node)
            continue
        if isinstance(holder, Select) and holder.field in _KEYED:
            yield key.value, placed.span(key), holder.field
        elif placed.checked.types[holder.id].name in _LISTS:
            yield key.value, placed.span(key), "resources"


_KEYED: Final = frozenset(("labels", "annotations", "matchLabels", "nodeSelector"))
_TAINTS: Final = frozenset(("kubernetes.Taint", "kubernetes.Toleration"))


def _compared_keys(placed: Placed, node: Call) -> Iterator[tuple[str, Span, str]]:
    """Yield the strings that the key of a taint or toleration is compared with."""
    for one, other in (node.args, node.args[::-1]):
        if isinstance(one, Select) and one.field == "key" and placed.checked.types[one.operand.id].name in _TAINTS:
            for literal in (other, *children(other)):
                if isinstance(literal, Literal) and isinstance(literal.value, str):
                    yield literal.value, placed.span(literal), "taints"


_SELECTORS: Final = {"namespaceSelector": "namespace_selector", "labelSelector": "label_selector"}


def _selectors(subject: LintSubject) -> Iterator[tuple[tuple[str, ...], LabelSelector]]:
    match = subject.spec.match
    for who, names in (("pods", ("namespaceSelector", "labelSelector")), ("nodes", ("labelSelector",))):
        of = match.pods if who == "pods" else match.nodes
        for name in names:
            found = None if of is None else getattr(of, _SELECTORS[name])
            if found is not None:
                yield ("spec", "match", who, name), found


def _declared_keys(subject: LintSubject) -> Iterator[tuple[str, tuple[str | int, ...], str, str | None]]:
    """Yield key, path, kind and (of labels) value of the document's own declarations."""
    metadata = subject.document.metadata
    for key, value in metadata.labels.items():
        yield key, ("metadata", "labels", key), "labels", value
    for key in metadata.annotations:
        yield key, ("metadata", "annotations", key), "annotations", None
    if subject.compiled is None:
        return
    for path, selector in _selectors(subject):
        for key, value in selector.match_labels.items():
            yield key, (*path, "matchLabels", key), "labels", value
        for number, requirement in enumerate(selector.match_expressions):
            place: tuple[str | int, ...] = (*path, "matchExpressions", number)
            yield requirement.key, (*place, "key"), "labels", None
            for value in sorted(requirement.values):
                yield requirement.key, (*place, "values"), "labels", value


def _key_fault(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and (not _PREFIX.fullmatch(prefix) or len(prefix) > 253):
        return f"`{prefix}` is not a domain in lower case"
    if not _NAME.fullmatch(name) or len(name) > 63:
        return f"`{name}` is not 1 to 63 letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit"
    return ""


def bad_names(subject: LintSubject) -> Iterator[Violation]:
    """Find names, keys and values that no object of a cluster can have."""
    for key, span, kind in _keys_in_expressions(subject):
        fault = _key_fault(key)
        if fault:
            yield Violation(f"no object has the key `{key}` in its {kind}", span, fault)
    for key, path, kind, value in _declared_keys(subject):
        fault = _key_fault(key)
        if fault:
            yield Violation(f"Kubernetes allows no {kind[:-1]} `{key}`", subject.place(*path), fault)
        if value and (not _NAME.fullmatch(value) or len(value) > 63):
            yield Violation(f"Kubernetes allows no label with the value `{value}`", subject.place(*path),
                        "at most 63 letters, digits, `-`, `_` and `.`")
    name = subject.document.name
    if not _PREFIX.fullmatch(name):
        yield Violation(f"Kubernetes rejects an object named `{name}`", subject.document.span,
                    "lower-case letters, digits, `-` and `.`, so that it may be named after its ConfigMap key")
    if subject.compiled is None:
        return
    match = subject.spec.match
    for namespace in sorted(match.pods.namespaces or ()) if match.pods is not None else ():
        if not _LABEL.fullmatch(namespace) or len(namespace) > 63:
            place = subject.place("spec", "match", "pods", "namespaces")
            yield Violation(
                f"no namespace can be named `{namespace}`", place, "1 to 63 lower-case letters, digits and `-`",
            )
    for node in sorted(match.nodes.names or ()) if match.nodes is not None else ():
        if not _PREFIX.fullmatch(node) or len(node) > 253:
            yield Violation(f"no node can be named `{node}`", subject.place("spec", "match", "nodes", "names"),
                        "lower-case letters, digits, `-` and `.`")


@functools.cache
def known_keys() -> frozenset[str]:
    """Return the labels, annotations, taints and resource names of Koordinator and Kubernetes."""
    texts = (value for name, value in vars(vocabulary).items() if name.isupper())
    return well_known.KEYS | well_known.RESOURCES | frozenset(
        each for value in texts for each in (value if isinstance(value, tuple) else (value,))
        if isinstance(each, str) and ("/" in each or "." in each)
    )


@functools.cache
def near_key(key: str, kind: str = "") -> str:
    """Return the known key that a key misspells, or an empty string."""
    if key in known_keys() or key.startswith(_OWN) or len(key) > _LONGEST:
        return ""
    if "koord" in key.lower() or "batch-" in key or "mid-" in key:
        lower = {each.lower(): each for each in known_keys() if "koord" in each or "batch-" in each or "mid-" in each}
        if key.lower() in lower:
            return lower[key.lower()]
        found = difflib.get_close_matches(key.lower(), lower, n=1, cutoff=0.85)
        if found:
            return lower[found[0]]
    candidates = well_known.RESOURCES if kind == "resources" else well_known.KEYS
    return min(
        ((distance, each) for each in sorted(candidates) if (distance := _misspelt(key, each)) is not None),
        default=(0, ""),
    )[1]


_LONGEST: Final = 128
_MOST_SLIPS: Final = 2


def _misspelt(key: str, known: str) -> int | None:
    """Return the edit distance of a key from a known one, None if it is too large.

    Prefix and name each must be close: one edit in a short name, two in a long one.
    """
    prefix, _, name = key.rpartition("/")
    known_prefix, _, known_name = known.rpartition("/")
    if bool(prefix) is not bool(known_prefix) or len(name) < 3:
        return None
    slips = 0
    for given, correct in ((prefix.replace("k8s.io", "kubernetes.io"), known_prefix), (name, known_name)):
        if given.lower() == correct.lower():
            continue
        most = _MOST_SLIPS if len(correct) > 7 else 1
        found = _slips(given.lower(), correct.lower(), most)
        if found > most:
            return None
        slips += found
    return slips if slips <= _MOST_SLIPS else None


def _slips(one: str, other: str, most: int) -> int:
    """Return the restricted Damerau-Levenshtein distance; any number above `most` stands for a larger one."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, start=1):
        last, before, row = before, row, [number]
        for place, correct in enumerate(other, start=1):
            cost = min(row[-1] + 1, before[place] + 1, before[place - 1] + (letter != correct))
            if number > 1 and place > 1 and letter == other[place - 2] and one[number - 2] == correct:
                cost = min(cost, last[place - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


def misspelt_keys(subject: LintSubject) -> Iterator[Violation]:
    """Find keys that are nearly, but not quite, one of Koordinator's or Kubernetes'."""
    for key, span, kind in _keys_in_expressions(subject):
        near = near_key(key, kind)
        if near:
            yield misspelling(key, near, kind, span)
    for key, path, kind, _ in _declared_keys(subject):
        near = near_key(key, kind)
        if near:
            yield misspelling(key, near, kind, subject.place(*path))
    spec = subject.document.spec
    for path, text in _texts(spec.params if isinstance(spec, ParamsSpec | PluginSpec) else {}):
        near = near_key(text) if "/" in text and "." in text else ""
        if near:
            yield misspelling(text, near, "labels, annotations and taints", subject.place("spec", "params", *path))


def _texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the strings in plain data, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, (*path, key))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _texts(each, (*path, number))


def misspelling(key: str, near: str, kind: str, span: Span) -> Violation:
    """Return the violation of a misspelt key, with its fix; `kind` is in the plural."""
    whose = "Kubernetes" if near in well_known.KEYS or near in well_known.RESOURCES else "Koordinator"
    return Violation(f"`{key}` is not among the known {kind} of {whose}", span, f"did you mean `{near}`?",
                 fix=functools.partial(replacement, span, key, near))


def unknown_classes(subject: LintSubject) -> Iterator[Violation]:
    """Find comparisons with a QoS class or band that does not exist."""
    for placed, node in subject.calls:
        if node.function not in ("_==_", "_!=_", "@in"):
            continue
        for one, other in (node.args, node.args[::-1]):
            field = one.field if isinstance(one, Select) else ""
            if field not in _CLASSES or placed.checked.types[one.id].name != "string":
                continue
            for literal in (other, *children(other)):
                value = literal.value if isinstance(literal, Literal) else ""
                if isinstance(value, str) and value not in _CLASSES[field]:
                    known = sorted(_CLASSES[field] - {""})
                    hint = did_you_mean(value, known) or f"one of {quoted_list(known)}"
                    yield Violation(f"there is no {field} `{value}`", placed.span(literal), hint)


def deprecated(subject: LintSubject) -> Iterator[Violation]:
    """Find deprecated fields, labels and annotations of Kubernetes."""
    for each, nodes in subject.parts:
        types = each.checked.environment.types
        for node in nodes:
            if not isinstance(node, Select):
                continue
            holder = each.checked.types.get(node.operand.id)
            declared = types.get(holder.name) if holder is not None else None
            field = declared.fields.get(node.field) if declared is not None else None
            if field is None or "deprecated" not in field.doc.lower():
                continue
            alias = re.search(r"alias for (\w+)", field.doc)
            new = alias[1][0].lower() + alias[1][1:] if alias is not None else ""
            span = each.span(node)
            yield Violation(
                f"the field `{node.field}` is deprecated: {field.doc}", span,
                f"write `{new}`" if new else "read something else",
                fix=functools.partial(_replace_field, each, node, new) if new else None,
            )
    for key, span, kind in _keys_in_expressions(subject):
        if key in DEPRECATED_KEYS:
            yield _deprecated_key(key, kind, span)
    for key, path, kind, _ in _declared_keys(subject):
        if key in DEPRECATED_KEYS:
            yield _deprecated_key(key, kind, subject.place(*path))


def _replace_field(placed: Placed, node: Select, new: str) -> TextEdit | None:
    return replacement(placed.checked.source.span(node.operand.end, node.end), node.field, new)


def _deprecated_key(key: str, kind: str, span: Span) -> Violation:
    new = DEPRECATED_KEYS[key]
    return Violation(f"`{key}` among {kind} is deprecated", span, f"write `{new}`" if new else "",
                 fix=functools.partial(replacement, span, key, new) if new else None)


def silent_messages(subject: LintSubject) -> Iterator[Violation]:
    """Find messages without the value that was compared."""
    for each in subject.placed:
        if each.role == "message" and not each.checked.reads:
            yield Violation(f"the message of `{each.name}` shows no value", each.span(),
                        "put in what was compared: `string(...)`, or write it as `message`")
        rule = each.item
        if each.role in ("message", "condition") or not isinstance(rule, Rule):
            continue
        if rule.message and rule.message_program is None and _compares_number(each, each.checked.root):
            yield Violation(
                f"the message of `{each.name}` shows no value, though a number decides", rule.span,
                "write a `messageExpression` with `string(...)`; without either, values are shown",
            )


def _compares_number(placed: Placed, node: Expr) -> bool:
    if not isinstance(node, Call):
        return False
    if node.function in ("_&&_", "_||_", "!_"):
        return any(_compares_number(placed, each) for each in node.args)
    return COMPARISONS.get(node.function) in ("<", "<=", ">", ">=") and all(
        placed.checked.types[each.id].name in ("int", "double") for each in node.args
    )


def idle_schema_keywords(subject: LintSubject) -> Iterator[Violation]:
    """Find keywords of a `paramsSchema` that JSON Schema does not have, and those without effect on params."""
    spec = subject.document.spec
    declared = spec.params_schema if isinstance(spec, ParamsSpec | PluginSpec) else None
    if not isinstance(declared, Mapping):
        return
    for each in idle_keywords(JsonSchema(declared)):
        span = subject.place("spec", "paramsSchema", *each.path)
        fix = functools.partial(replacement, span, str(each.path[-1]), each.similar) if each.similar else None
        yield Violation(f"{each.message}, in the schema of the params", span, each.help, fix=fix)


def unread_params(whole: Whole) -> Iterator[Violation]:
    """Find PolicyParams, and single params of them, that no plugin reads."""
    readers: dict[str, list[LintSubject]] = {}
    for subject in whole.subjects:
        if subject.compiled is not None:
            for reference in subject.spec.params_from:
                readers.setdefault(reference.name, []).append(subject)
    for subject in whole.subjects:
        if not isinstance(subject.document.spec, ParamsSpec):
            continue
        found = readers.get(subject.document.name)
        if not found:
            yield Violation(f"no document takes params from `{subject.document.name}`", subject.document.span,
                        "name it under `paramsFrom`, or remove it")
            continue
        read: set[str] = set()
        for reader in found:
            read |= set(subject.params) if reader.params_read is None else reader.params_read
        for name in subject.params:
            if name not in read:
                yield Violation(f"nothing reads the param `{name}` of `{subject.document.name}`",
                            subject.place("spec", "params", name), "remove it",
                            fix=functools.partial(_remove, subject, ("spec", "params", name)))

"""Conversion of v1alpha2 nodes to the internal form: defaults, durations in nanoseconds, expressions with places.

Nodes are validated against their schema before, so types are not checked again. All defaults are declared by the
schema. Rules that a schema cannot express (duplicate names, fields that exclude each other, features that are not
implemented) are checked here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

from koordpolicy.engine.cel.check.patterns import PatternBudget
from koordpolicy.engine.framework.points import Code, Enforcement, FailurePolicy, Proof
from koordpolicy.engine.source import Problems, Source, Span

from .json_schema import JsonSchema
from .nodes import YamlNode, to_plain
from .schema_run import Steps
from .specs import (
    GROUP,
    INTERNAL,
    NOTHING,
    Action,
    Aggregate,
    AggregateFunction,
    Anomaly,
    BlkIO,
    CgroupFile,
    Check,
    Condition,
    CPUBurstAction,
    Criterion,
    DeschedulerSpec,
    DeschedulerType,
    Document,
    Effect,
    EvictAction,
    EvictionExpressions,
    EvictionLimits,
    EvictionRelease,
    Expression,
    Kind,
    LabelRequirement,
    LabelSelector,
    Match,
    Metadata,
    NamedExpression,
    NodeMatch,
    NodeRoles,
    Normalize,
    Otherwise,
    Over,
    ParamsReference,
    ParamsSpec,
    PodMatch,
    QoSSpec,
    Resctrl,
    RoomExpressions,
    SchedulerSpec,
    ScoreItem,
    SelectorOperator,
    SortKey,
    SortOrder,
    SortScope,
    Spec,
    Subject,
    SuppressCPU,
    Sysctl,
    Threshold,
    parse_duration,
)
from .suite_conversion import convert_suite
from .suites import TestSpec
from .validation import Schema, prune, read_schema, schema, validate, validate_against, validate_plain

_DESCRIPTION: Final = f"{GROUP}/description"
_INT64_MAX: Final = 2**63 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Fields:
    """A validated mapping; missing fields have the schema's defaults."""

    node: YamlNode
    schema: Schema
    path: str
    problems: Problems

    def value(self, name: str) -> Any:
        """Return a field or its default as plain data; None if it has neither."""
        node = self.node.fields.get(name)
        return self.schema["properties"][name].get("default") if node is None else to_plain(node)

    def whole(self, name: str) -> Any:
        """Return a whole number, which may be written `5.0`, or its default; None if it has neither."""
        value = self.value(name)
        return None if value is None else int(value)

    def share(self, name: str) -> int | str | None:
        """Return a whole number or a percentage; None without the field."""
        value = self.value(name)
        return value if value is None or isinstance(value, str) else int(value)

    def text(self, name: str) -> str:
        return str(self.value(name) or "")

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}"

    def duration(self, name: str) -> int:
        text = self.value(name)
        try:
            return parse_duration(text) if text is not None else 0
        except ValueError as error:
            self.problem(str(error), self.node.fields[name].span)
            return 0

    def expression(self, name: str) -> Expression | None:
        node = self.node.fields.get(name)
        return None if node is None else Expression(node.part, self.path_of(name))

    def required(self, name: str) -> Expression:
        return Expression(self.node.fields[name].part, self.path_of(name))

    def sub(self, name: str) -> _Fields | None:
        node = self.node.fields.get(name)
        if node is None:
            return None
        return _Fields(node, self.schema["properties"][name], self.path_of(name), self.problems)

    def items(self, name: str) -> tuple[_Fields, ...]:
        node = self.node.fields.get(name)
        if node is None:
            return ()
        rule = self.schema["properties"][name]["items"]
        return tuple(
            _Fields(each, rule, f"{self.path_of(name)}[{number}]", self.problems)
            for number, each in enumerate(node.items)
        )

    def each(self, name: str, make: Callable[[_Fields], T]) -> tuple[T, ...]:
        """Make the items of a list; names must be unique."""
        found = self.items(name)
        seen: dict[str, Span] = {}
        for item in found:
            named = item.node.fields.get("name")
            if named is None:
                continue
            if named.text not in seen:
                seen[named.text] = named.span
                continue
            line = seen[named.text].place[1]
            self.problem(
                f"`{self.path_of(name)}` has two items named `{named.text}`, the first in line {line}", named.span,
                "rename one", code="duplicate-name",
            )
        return tuple(make(item) for item in found)

    def texts(self, name: str) -> frozenset[str] | None:
        value = self.value(name)
        return None if value is None else frozenset(value)

    def problem(self, message: str, span: Span, hint: str = "", code: str = "invalid-value") -> None:
        self.problems.add(message, span, help=hint, code=code)

    def place(self, name: str) -> Span:
        """Return the place of a field's key, or of the mapping if the field is missing."""
        node = self.node.fields.get(name)
        return node.place if node is not None else self.node.place


_LARGE: Final = 1 << 16
"""Texts with more characters are serialised in pieces."""
_PIECES: Final = 5
"""The number of levels that are split: those of a list or mapping in params, and of the rules of a document."""


def convert(node: YamlNode, kind: Kind, problems: Problems) -> Document | None:
    """Return the document of a node, or None if too little of it is valid.

    If there are problems, the document is `faulty`: it has the valid parts only.

    Raises:
        TooManyStatesError: the patterns of its `paramsSchema` exceed the thread's current `PatternBudget`.
    """
    before = len(problems.found)
    complaints = list(validate(node, kind.value))
    problems.extend(complaints)
    left = prune(node, kind.value) if complaints else node
    if left is None:
        return None
    node = left
    found = Problems()
    top = _Fields(node, schema(kind.value), "", found)
    metadata = _metadata(top)
    spec_fields = top.sub("spec")
    assert spec_fields is not None
    with PatternBudget() as patterns:
        spec = _SPECS[kind](_Fields(spec_fields.node, spec_fields.schema, "spec", found))
    # A missing part may have been removed as invalid.
    problems.extend(each for each in found.found if not (complaints and each.code == "missing-field"))
    faulty = len(problems.found) > before
    name = node.at("metadata", "name")
    assert name is not None
    plain = {
        "apiVersion": f"{GROUP}/{INTERNAL}", "kind": kind.value, "metadata": _plain(metadata), "spec": _plain(spec),
    }
    faults = [] if faulty else list(validate_plain(plain, kind.value))
    for fault in faults:
        problems.add(
            f"the internal form of `{metadata.name}` is not valid: {fault}", name.span,
            help="this is a fault of koord-policy, not of the document: please report it", code="internal",
        )
    if faults:
        return None
    digest = hashlib.sha256()
    for text in canonical(plain, _PIECES if len(node.source.text) > _LARGE else 0):
        digest.update(text.encode())
    return Document(kind, metadata, spec, name.span, digest.hexdigest(), node.source.name, plain=plain, faulty=faulty,
                    patterns=patterns.patterns)


def canonical(value: Any, pieces: int = 0) -> Iterator[str]:
    """Yield the pieces of a value's canonical JSON text (sorted keys); the top `pieces` levels are split.

    A single call that serialises a megabyte would block other threads for 20 ms.
    """
    if not pieces or not value or not isinstance(value, dict | list | tuple):
        yield json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    elif isinstance(value, dict):
        before = "{"
        for key in sorted(value):
            yield f"{before}{json.dumps(key, ensure_ascii=False)}:"
            yield from canonical(value[key], pieces - 1)
            before = ","
        yield "}"
    else:
        before = "["
        for each in value:
            yield before
            yield from canonical(each, pieces - 1)
            before = ","
        yield "]"


def _metadata(top: _Fields) -> Metadata:
    fields = top.sub("metadata")
    assert fields is not None
    annotations = fields.value("annotations") or NOTHING
    return Metadata(
        fields.text("name"), fields.value("labels") or NOTHING, annotations, annotations.get(_DESCRIPTION, ""),
    )


def _selector(fields: _Fields | None) -> LabelSelector | None:
    if fields is None:
        return None
    requirements = tuple(
        LabelRequirement(
            item.text("key"), SelectorOperator(item.value("operator")), item.texts("values") or frozenset(),
        )
        for item in fields.items("matchExpressions")
    )
    return LabelSelector(fields.value("matchLabels") or NOTHING, requirements)


def _match(fields: _Fields | None) -> Match:
    if fields is None:
        return Match()
    pods, nodes = fields.sub("pods"), fields.sub("nodes")
    return Match(
        PodMatch(
            pods.texts("namespaces"), _selector(pods.sub("namespaceSelector")), _selector(pods.sub("labelSelector")),
            pods.texts("qosClasses"), pods.texts("priorityClasses"),
        ) if pods is not None else None,
        NodeMatch(nodes.texts("names"), _selector(nodes.sub("labelSelector"))) if nodes is not None else None,
    )


def _params(fields: _Fields) -> tuple[Mapping[str, Any], Any]:
    """Return params and their schema: None if there is none, the names of the params if it is faulty."""
    node, declared = fields.node.fields.get("params"), fields.node.fields.get("paramsSchema")
    _check_range(fields, node)
    params: dict[str, Any] = to_plain(node) if node is not None else {}
    if declared is None:
        return params or NOTHING, None
    rules = to_plain(declared)
    schema = read_schema(declared, rules, fields.problems)
    if schema is None:
        names = declared.at("properties")
        return params or NOTHING, {"properties": {name: {} for name in names.fields} if names is not None else {}}
    steps = Steps.for_values(declared.size + (node.size if node is not None else 0))
    defaults: dict[str, Any] = {}
    if isinstance(rules, Mapping):
        defaults, faulty = _defaults(fields, declared, schema, steps)
        whole = dict(rules)
        if faulty:  # they are not missing
            whole["required"] = [name for name in rules.get("required", ()) if name not in faulty]
        if "paramsFrom" in fields.node.fields:
            # Rules about all params together are checked when those of other documents are merged, in compilation.
            whole = {key: rule for key, rule in whole.items() if key in _OF_SINGLE_PARAMS}
        schema = schema.part(whole)
    fields.problems.extend(validate_against(node or declared, defaults | params, schema, steps))
    return params or NOTHING, rules


def _check_range(fields: _Fields, node: YamlNode | None) -> None:
    for below in node.walk() if node is not None else ():
        if isinstance(below.scalar, int) and below.scalar > _INT64_MAX:
            message = f"`{below.text}` is more than an expression can count to"
            fields.problem(message, below.span, f"at most {_INT64_MAX}")


def _defaults(
    fields: _Fields, declared: YamlNode, schema: JsonSchema, steps: Steps,
) -> tuple[dict[str, Any], set[str]]:
    """Return the valid defaults of a schema, and the names of the others, which are reported."""
    found: dict[str, Any] = {}
    faulty: set[str] = set()
    properties = declared.at("properties")
    for name, rule in (properties.fields if properties is not None else {}).items():
        default = rule.at("default")
        if default is None:
            continue
        _check_range(fields, default)
        value = to_plain(default)
        # Treated as a given value, so that problems name the param and point at the default.
        given = replace(declared, value={name: default})
        alone = schema.part({"properties": {name: to_plain(rule)}})
        faults = list(validate_against(given, {name: value}, alone, steps))
        fields.problems.extend(faults)
        if faults:
            faulty.add(name)
        else:
            found[name] = value
    return found, faulty


_OF_SINGLE_PARAMS: Final = frozenset(("properties", "patternProperties", "additionalProperties"))


def _aggregate(item: _Fields) -> Aggregate:
    function = AggregateFunction(item.value("function"))
    if "percentile" in item.node.fields and function is not AggregateFunction.PERCENTILE:
        item.problem(
            f"`percentile` means nothing for the function `{function.value}`", item.place("percentile"), "remove it",
        )
    return Aggregate(
        item.text("name"), Over(item.value("over")), function, item.expression("expression"),
        item.expression("groupBy"), item.whole("percentile"), item.node.fields["name"].span,
    )


def _common(fields: _Fields) -> dict[str, Any]:
    params, params_schema = _params(fields)
    return {
        "match": _match(fields.sub("match")),
        "match_conditions": fields.each(
            "matchConditions", lambda item: Condition(item.text("name"), item.required("expression")),
        ),
        "variables": fields.each(
            "variables", lambda item: NamedExpression(item.text("name"), item.required("expression")),
        ),
        "params": params,
        "params_schema": params_schema,
        "params_from": fields.each(
            "paramsFrom", lambda item: ParamsReference(item.text("name"), item.node.fields["name"].span),
        ),
        "aggregates": fields.each("aggregates", _aggregate),
        "failure_policy": FailurePolicy(fields.value("failurePolicy")),
        "enforcement": Enforcement(fields.value("enforcement")),
        "profiles": fields.texts("profiles"),
        "order": fields.whole("order"),
        "replaces": fields.value("replaces"),
    }


def _check(item: _Fields) -> Check:
    return Check(
        item.text("name"), item.required("expression"), item.text("message"), item.expression("messageExpression"),
        Code(item.value("reason")), item.node.fields["name"].span,
    )


def _score(item: _Fields) -> ScoreItem:
    return ScoreItem(
        item.text("name"), item.required("expression"), item.whole("weight"), Normalize(item.value("normalize")),
        item.node.fields["name"].span,
    )


def _criterion(item: _Fields) -> Criterion:
    return Criterion(
        item.text("name"), item.required("expression"), item.text("message"), item.expression("messageExpression"),
        item.node.fields["name"].span,
    )


def _sort(item: _Fields) -> SortKey:
    return SortKey(item.required("expression"), SortOrder(item.value("order")))


def _not_available(fields: _Fields, names: Iterable[str]) -> None:
    for name in names:
        node = fields.node.fields.get(name)
        if node is not None:
            fields.problem(f"`{name}` is not available yet", node.place, "remove it", code="not-available")


_SCHEDULER_POINTS: Final = ("preEnqueue", "preFilter", "filter", "score")
_RESERVATION_POINTS: Final = ("reservationFilter", "reservationScore")


def _scheduler(fields: _Fields) -> SchedulerSpec:
    _not_available(fields, _RESERVATION_POINTS)
    if not any(name in fields.node.fields for name in (*_SCHEDULER_POINTS, *_RESERVATION_POINTS)):
        listed = ", ".join(f"`{name}`" for name in _SCHEDULER_POINTS)
        fields.problem("the plugin does nothing", fields.node.place, f"give it one of {listed}", "missing-field")
    return SchedulerSpec(
        **_common(fields),
        weight=fields.whole("weight"),
        pre_enqueue=fields.each("preEnqueue", _check),
        pre_filter=fields.each("preFilter", _check),
        filter=fields.each("filter", _check),
        score=fields.each("score", _score),
    )


def _threshold(item: _Fields) -> Threshold:
    return Threshold(
        item.text("name"), item.required("expression"), item.duration("for"), item.duration("holdFor"),
        item.duration("coolDown"), item.text("message"), item.expression("messageExpression"),
        item.node.fields["name"].span,
    )


def _suppress_cpu(fields: _Fields) -> Effect:
    band = fields.whole("deadBandPercent")
    return SuppressCPU(fields.required("target"), fields.text("policy"), band)


def _evict(fields: _Fields) -> Effect:
    release = fields.sub("release")
    return EvictAction(
        fields.each("criteria", _criterion), fields.each("sort", _sort),
        EvictionRelease(release.text("resource"), release.required("amount"), release.text("measure"))
        if release is not None else None,
        fields.duration("coolDown"), fields.expression("pastBudget"),
    )


def _cpu_burst(fields: _Fields) -> Effect:
    return CPUBurstAction(
        fields.text("policy"), fields.expression("cpuBurstPercent"), fields.expression("cfsQuotaBurstPercent"),
        fields.duration("cfsQuotaBurstPeriod") if "cfsQuotaBurstPeriod" in fields.node.fields else None,
        fields.expression("sharePoolThresholdPercent"), fields.node.place,
    )


def _cgroup(fields: _Fields) -> Effect:
    return CgroupFile(fields.text("file"), fields.required("value"))


def _resctrl(fields: _Fields) -> Effect:
    return Resctrl(
        fields.expression("catRangeStartPercent"), fields.expression("catRangeEndPercent"),
        fields.expression("mbaPercent"), fields.node.place,
    )


def _blkio(fields: _Fields) -> Effect:
    return BlkIO(fields.text("device"), fields.text("kind"), span=fields.node.place, **{
        field: fields.expression(key) for field, key in _BLKIO_KEYS.items()
    })


def _sysctl(fields: _Fields) -> Effect:
    return Sysctl(fields.text("name"), fields.required("value"), fields.node.fields["name"].span)


@dataclass(frozen=True, slots=True)
class _EffectKind:
    """One kind of action: its key and its constructor."""

    key: str
    type: type[Any]
    make: Callable[[_Fields], Effect]


_BLKIO_KEYS: Final = {
    "read_iops": "readIOPS", "write_iops": "writeIOPS", "read_bps": "readBPS", "write_bps": "writeBPS",
    "io_weight_percent": "ioWeightPercent",
}

EFFECTS: Final = (
    _EffectKind("suppressCPU", SuppressCPU, _suppress_cpu),
    _EffectKind("evict", EvictAction, _evict),
    _EffectKind("cpuBurst", CPUBurstAction, _cpu_burst),
    _EffectKind("cgroup", CgroupFile, _cgroup),
    _EffectKind("resctrl", Resctrl, _resctrl),
    _EffectKind("blkio", BlkIO, _blkio),
    _EffectKind("sysctl", Sysctl, _sysctl),
)
"""All kinds of QoS actions."""


def _action(item: _Fields) -> Action:
    kind = next(each for each in EFFECTS if each.key in item.node.fields)
    fields = item.sub(kind.key)
    assert fields is not None
    return Action(
        item.text("name"), kind.make(fields), item.expression("when"), Otherwise(item.value("otherwise")),
        item.node.fields["name"].span,
    )


def _qos(fields: _Fields) -> QoSSpec:
    if "profiles" in fields.node.fields:
        fields.problem("`profiles` means nothing here: the QoS manager has none", fields.place("profiles"), "remove it")
    times = {name: fields.duration(name) for name in ("interval", "window", "staleAfter")}
    for name in ("interval", "window"):
        if times[name] == 0 and name in fields.node.fields:
            fields.problem(f"`{name}` is 0", fields.node.fields[name].span, "write a duration such as `1s`")
    return QoSSpec(
        **_common(fields),
        feature_gate=fields.text("featureGate"),
        interval_ns=times["interval"],
        for_each=Subject(fields.value("forEach")),
        window_ns=times["window"],
        stale_after_ns=times["staleAfter"],
        thresholds=fields.each("thresholds", _threshold),
        actions=fields.each("actions", _action),
    )


_MEANINGLESS: Final = {
    DeschedulerType.DESCHEDULE: ("nodes", "until", "eviction"),
    DeschedulerType.BALANCE: ("sortScope", "eviction"),
    DeschedulerType.EVICTION_FILTER: ("nodes", "sort", "sortScope", "until", "limits", "proof"),
}
_NEEDED: Final = {
    DeschedulerType.DESCHEDULE: "criteria",
    DeschedulerType.BALANCE: "nodes",
    DeschedulerType.EVICTION_FILTER: "criteria",
}


def _descheduler(fields: _Fields) -> DeschedulerSpec:
    kind = DeschedulerType(fields.value("type"))
    for name in _MEANINGLESS[kind]:
        if name in fields.node.fields:
            fields.problem(f"`{name}` means nothing for the type `{kind.value}`", fields.place(name), "remove it")
    if _NEEDED[kind] not in fields.node.fields and "eviction" not in fields.node.fields:
        fields.problem(
            f"missing field `{_NEEDED[kind]}` for the type `{kind.value}`", fields.place("type"), "add it",
            "missing-field",
        )
    nodes, limits, eviction = fields.sub("nodes"), fields.sub("limits"), fields.sub("eviction")
    return DeschedulerSpec(
        **_common(fields),
        type=kind,
        nodes=_node_roles(nodes) if nodes else NodeRoles(),
        criteria=fields.each("criteria", _criterion),
        sort=fields.each("sort", _sort),
        sort_scope=SortScope(fields.value("sortScope")),
        until=fields.expression("until"),
        limits=EvictionLimits(
            limits.whole("perNode"), limits.whole("perNamespace"), limits.share("perWorkload"),
            limits.share("perOwner"), limits.whole("total"),
        ) if limits else EvictionLimits(),
        proof=Proof(fields.text("proof") or (Proof.ENFORCE if kind is DeschedulerType.BALANCE else Proof.OFF).value),
        eviction=EvictionExpressions(
            eviction.expression("mode"), eviction.expression("gracePeriodSeconds"),
        ) if eviction else EvictionExpressions(),
    )


def _node_roles(nodes: _Fields) -> NodeRoles:
    for name in ("fit", "room"):
        if name in nodes.node.fields and "target" not in nodes.node.fields:
            nodes.problem(
                f"`{name}` is about targets, and there is no `target`", nodes.place(name),
                "add `target`, which says what nodes may take pods", "missing-field",
            )
    anomaly, room = nodes.sub("anomaly"), nodes.sub("room")
    return NodeRoles(
        nodes.expression("source"), nodes.expression("target"),
        Anomaly(anomaly.whole("consecutive"), anomaly.duration("timeout")) if anomaly is not None else None,
        nodes.expression("fit"),
        RoomExpressions(room.required("ofTarget"), room.required("ofPod")) if room is not None else None,
        nodes.each("sort", _sort),
    )


def _shared_params(fields: _Fields) -> ParamsSpec:
    return ParamsSpec(*_params(fields))


def _test(fields: _Fields) -> TestSpec:
    return convert_suite(fields.node, fields.problems)


_SPECS: Final[Mapping[Kind, Callable[[_Fields], Spec]]] = {
    Kind.SCHEDULER: _scheduler,
    Kind.QOS: _qos,
    Kind.DESCHEDULER: _descheduler,
    Kind.PARAMS: _shared_params,
    Kind.TEST: _test,
}

_KEYS: Final = {**_BLKIO_KEYS}


def _key(name: str) -> str:
    if name not in _KEYS:
        first, *rest = name.split("_")
        _KEYS[name] = first + "".join(each.capitalize() for each in rest)
    return _KEYS[name]


_ATOMS: Final = frozenset((type(None), bool, int, float, str))


@cache
def _keys_of(of: type) -> tuple[tuple[str, str], ...] | None:
    """Return the keys of a dataclass with the names of their fields; None for any other class."""
    if not is_dataclass(of):
        return None
    return tuple((_key(each.name), each.name) for each in fields(of) if each.name != "span")


def _plain(value: Any) -> Any:
    """Return a part of the internal form as plain data, without places."""
    if value.__class__ in _ATOMS:
        return value
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Source):
        return value.text
    keys = _keys_of(value.__class__)
    if keys is not None:
        plain = {key: _plain(getattr(value, name)) for key, name in keys}
        if isinstance(value, Action):
            effect = next(each for each in EFFECTS if isinstance(value.effect, each.type))
            plain["effect"] = {effect.key: plain["effect"]}
        return plain
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value

"""Compilation of documents to registry entries, with all problems of all documents at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.check.environment import Function
from koordpolicy.engine.cel.check.patterns import PatternBudget, TooManyStatesError
from koordpolicy.engine.cluster.kinds import WORKLOAD_READS, FieldPath, Read
from koordpolicy.engine.documents import (
    DeschedulerSpec,
    DeschedulerType,
    Document,
    Documents,
    EvictAction,
    Kind,
    Over,
    PodMatch,
    QoSSpec,
    SchedulerSpec,
)
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.framework.slots import Slot
from koordpolicy.engine.kubernetes.vocabulary import NAMESPACE_NAME_LABEL
from koordpolicy.engine.source import Problems

from .effects import compile_effect, compile_sort
from .expressions import Expressions
from .params import ParamsSchema, gather, override, type_of
from .programs import (
    ActionProgram,
    Compiled,
    CompiledDescheduler,
    CompiledQoS,
    CompiledScheduler,
    ScoreProgram,
    ThresholdProgram,
)
from .room import compile_room

_MEASURED: Final = frozenset(("usage", "estimated", "nodeMetric", "metricAge"))
"""The variables that are read from a NodeMetric."""
_OBJECTS: Final[Mapping[str, tuple[str, FieldPath]]] = {
    "node": ("Node", ()), "pod": ("Pod", ()), "existingPod": ("Pod", ()), "container": ("Pod", ("spec", "containers")),
    "nodeMetric": ("NodeMetric", ()), "nodeSLO": ("NodeSLO", ()),
}
"""The variables that are objects, with their kinds and where they are in them."""
_LABELS: Final = frozenset({("metadata", "labels")})
_PLUGINS: Final = (Kind.SCHEDULER, Kind.QOS, Kind.DESCHEDULER)
Make = Callable[[Mapping[str, Any]], Any]
"""Makes an instance from valid params."""
Given = tuple[Mapping[str, Any], ParamsSchema | None]
"""Params and their schemas."""
_Made = tuple[Plugin, Compiled]
_Extensions = tuple[Function, ...]


def compile_documents(
    documents: Documents | Iterable[Document], problems: Problems | None = None, *,
    shared: Iterable[Document] = (), observe: Callable[[Compiled], object] | None = None,
    extensions: tuple[Function, ...] = (),
) -> tuple[Plugin, ...]:
    """Return the plugins of documents, in order; PolicyParams and PolicyTests are none.

    `shared` are PolicyParams documents of other sources that `paramsFrom` may name. With `problems`, problems are added
    to it (except those of loading) and the valid plugins are returned; without, `PolicyError` is raised with all of
    them, including those of loading. Documents after the one whose patterns (those of expressions and of schemas) are
    too large together with those before are not compiled. `observe` is called with the programs of every valid
    document, for analyses of expressions. `extensions` are the functions of Python plugins.
    """
    gathered = Problems() if problems is None else problems
    if isinstance(documents, Documents):
        if problems is None:
            gathered.extend(documents.problems)
        documents = documents.documents
    documents = tuple(documents)
    repeated = check_names(documents, gathered)
    params = {each.name: each for each in (*shared, *documents) if each.kind is Kind.PARAMS}
    plugins: list[Plugin] = []
    try:
        with PatternBudget() as patterns:
            for document in documents:
                patterns.add(document.patterns)
                if document.kind in _PLUGINS:
                    found = Problems()
                    plugin, compiled = _COMPILERS[document.kind](document, params, found, extensions)
                    gathered.extend(found.found)
                    if not document.faulty and not found.errors and all(document is not each for each in repeated):
                        plugins.append(plugin)
                        if observe is not None:
                            observe(compiled)
    except TooManyStatesError as error:
        gathered.found.append(error.problem)
    if problems is None:
        gathered.raise_errors()
    return tuple(plugins)


def check_names(documents: Iterable[Document], problems: Problems) -> list[Document]:
    """Report and return the documents with the kind and name of an earlier one."""
    first: dict[tuple[Kind, str], Document] = {}
    found: list[Document] = []
    for document in documents:
        other = first.setdefault((document.kind, document.name), document)
        if other is not document:
            found.append(document)
            problems.add(
                f"the {document.kind.value} `{document.name}` is declared twice, also at {other.origin}", document.span,
                help="rename one of them", code="duplicate-name",
            )
    return found


def _plugin(
    document: Document, framework: Framework, points: Sequence[Point], make: Make, given: Given, *,
    expressions: Expressions,
) -> Plugin:
    spec, (params, schema) = document.spec, given
    assert isinstance(spec, SchedulerSpec | QoSSpec | DeschedulerSpec)

    def merged(args: Mapping[str, Any]) -> Mapping[str, Any]:
        return override(document.name, params, schema, args)

    def made(args: Mapping[str, Any], handle: Any) -> Any:  # noqa: ARG001 - documents do not use the handle
        return make(merged(args))

    # Shared params and their types affect decisions: changing them changes the plugin's digest.
    text = f"{document.digest} {sorted(params.items(), key=lambda item: item[0])!r} {schema!r}"
    return Plugin(
        document.name, framework, tuple(points), made, document.origin,
        hashlib.sha256(text.encode()).hexdigest(),
        source=document.source_name, span=document.span, description=document.metadata.description,
        order=spec.order, weight=spec.weight if isinstance(spec, SchedulerSpec) else 1, profiles=spec.profiles,
        replaces=spec.replaces, enforcement=spec.enforcement, check_args=merged,
        reads=_reads_of(framework, expressions, spec),
    )


def _reads_of(
    framework: Framework, expressions: Expressions, spec: SchedulerSpec | QoSSpec | DeschedulerSpec,
) -> tuple[Read, ...]:
    found = _fields_of(framework, expressions.reads, spec.match.pods)
    limits = spec.limits if isinstance(spec, DeschedulerSpec) else None
    counts = limits is not None and (limits.per_workload is not None or limits.per_owner is not None)
    return (*(Read(kind, fields=found[kind]) for kind in sorted(found)), *(WORKLOAD_READS if counts else ()))


def reads_of_paths(paths: Iterable[Path]) -> tuple[Read, ...]:
    """Return the reads of an expression over nodes and pods of a cluster, by the paths that it reads."""
    found = _fields_of(Framework.SCHEDULER, tuple(paths), None)
    return tuple(Read(kind, fields=found[kind]) for kind in sorted(found))


def _fields_of(
    framework: Framework, paths: Collection[Path], match: PodMatch | None,
) -> dict[str, frozenset[FieldPath] | None]:
    found: dict[str, frozenset[FieldPath] | None] = {"Node": frozenset(), "Pod": frozenset()}
    for kind in kinds_of(framework, paths, match):
        found[kind] = _LABELS if kind == "Namespace" else frozenset()
    for name, *below in paths:
        if name in _OBJECTS:
            kind, within = _OBJECTS[name]
            path, known = (*within, *below), found.get(kind, frozenset[FieldPath]())
            found[kind] = known | {path} if path and known is not None else None
    return found


def kinds_of(framework: Framework, paths: Iterable[Path], match: PodMatch | None) -> Iterator[str]:
    """Yield the kinds of objects that a document depends on, other than nodes and pods."""
    for path in paths:
        if path[0] == "nodeSLO":
            yield "NodeSLO"
        # The node agent has its own measurements.
        elif framework is not Framework.QOS and (path[0] in _MEASURED or path[:2] == ("nodeInfo", "measured")):
            yield "NodeMetric"
    selector = None if match is None else match.namespace_selector
    if selector is not None:
        keys = {*selector.match_labels, *(each.key for each in selector.match_expressions)}
        if keys - {NAMESPACE_NAME_LABEL}:  # the name is known from the pod
            yield "Namespace"


def _slots(*choices: tuple[Slot, object]) -> tuple[Slot, ...]:
    return tuple(slot for slot, used in choices if used)


def _compile_scheduler(
    document: Document, shared: Mapping[str, Document], problems: Problems, extensions: _Extensions,
) -> _Made:
    spec = document.spec
    assert isinstance(spec, SchedulerSpec)
    given = gather(document, shared, problems)
    slots = _slots(
        (Slot.FILTER, spec.filter), (Slot.SCORE, spec.score), (Slot.PRE_FILTER, spec.pre_filter),
        (Slot.PRE_ENQUEUE, spec.pre_enqueue),
    )
    expressions = Expressions(spec, type_of(*given), slots, problems, extensions=extensions)
    over = {Over.NODES: Slot.SCHEDULER_NODES, Over.PODS: Slot.SCHEDULER_PODS}
    aggregates = expressions.compile_aggregates((each, over[each.over]) for each in spec.aggregates)
    # If all rules read only the pod, conditions cannot read a node.
    narrowest = slots[-1] if slots else Slot.FILTER
    scores = [(item, expressions.program(item.expression, Slot.SCORE)) for item in spec.score]
    compiled = CompiledScheduler(
        document, spec, given[0],
        expressions.rules(spec.match_conditions, narrowest),
        aggregates,
        expressions.rules(spec.pre_enqueue, Slot.PRE_ENQUEUE),
        expressions.rules(spec.pre_filter, Slot.PRE_FILTER),
        expressions.rules(spec.filter, Slot.FILTER),
        tuple(ScoreProgram(item, program) for item, program in scores if program is not None),
    )
    expressions.finish()
    points = [point for point, used in (
        (Point.PRE_ENQUEUE, spec.pre_enqueue), (Point.PRE_FILTER, spec.pre_enqueue or spec.pre_filter),
        (Point.FILTER, spec.filter), (Point.SCORE, spec.score),
    ) if used]
    return (
        _plugin(document, Framework.SCHEDULER, points, lambda args: replace(compiled, params=args), given,
                expressions=expressions),
        compiled,
    )


def _key(document: Document, *parts: str) -> str:
    """Return the key of an item's state: it is the same while document, item and text are the same."""
    return hashlib.sha256("\0".join((document.kind.value, document.name, *parts)).encode()).hexdigest()[:16]


def _compile_qos(
    document: Document, shared: Mapping[str, Document], problems: Problems, extensions: _Extensions,
) -> _Made:
    spec = document.spec
    assert isinstance(spec, QoSSpec)
    given = gather(document, shared, problems)
    names = tuple(each.name for each in spec.thresholds)
    evicting = any(isinstance(each.effect, EvictAction) for each in spec.actions)
    slots = (Slot.THRESHOLD, *_slots((Slot.QOS_CRITERIA, evicting)))
    expressions = Expressions(
        spec, type_of(*given), slots, problems, subject=spec.for_each.value, thresholds=names,
        extensions=extensions,
    )
    for each in spec.aggregates:
        if each.over is Over.NODES:
            problems.add(f"`{each.name}` runs over nodes, but a QoSPlugin sees one node", each.span,
                         help="write `over: pods`", code="invalid-value")
    aggregates = expressions.compile_aggregates(
        (each, Slot.QOS_PODS) for each in spec.aggregates if each.over is Over.PODS)
    thresholds = []
    for threshold in spec.thresholds:
        rule = expressions.rule(threshold, Slot.THRESHOLD)
        if rule is not None:
            key = _key(document, threshold.name, threshold.expression.text)
            times = threshold.for_ns, threshold.hold_for_ns, threshold.cool_down_ns
            thresholds.append(ThresholdProgram(rule, *times, key))
    plain_actions = {each["name"]: each for each in document.plain["spec"]["actions"]}
    actions = []
    for action in spec.actions:
        when = expressions.optional(action.when, Slot.WHEN)
        effect = compile_effect(action.effect, spec, expressions)
        if effect is not None:
            key = _key(document, action.name, repr(plain_actions[action.name]))
            actions.append(ActionProgram(action.name, effect, when, action.otherwise, action.span, key))
    compiled = CompiledQoS(
        document, spec, given[0], expressions.rules(spec.match_conditions, Slot.THRESHOLD),
        aggregates, tuple(thresholds), tuple(actions),
    )
    expressions.finish()
    compiled = replace(compiled, reads=_reads_of(Framework.QOS, expressions, spec))
    return (
        _plugin(document, Framework.QOS, (Point.STRATEGY,), lambda args: replace(compiled, params=args), given,
                expressions=expressions),
        compiled,
    )


def _compile_descheduler(
    document: Document, shared: Mapping[str, Document], problems: Problems, extensions: _Extensions,
) -> _Made:
    spec = document.spec
    assert isinstance(spec, DeschedulerSpec)
    given = gather(document, shared, problems)
    slots = (Slot.CRITERIA, *_slots((Slot.SOURCE, spec.nodes.source)))
    expressions = Expressions(spec, type_of(*given), slots, problems, extensions=extensions)
    over = {Over.NODES: Slot.DESCHEDULER_NODES, Over.PODS: Slot.DESCHEDULER_PODS}
    aggregates = expressions.compile_aggregates((each, over[each.over]) for each in spec.aggregates)
    source = spec.nodes.source
    compiled = CompiledDescheduler(
        document, spec, given[0],
        expressions.rules(spec.match_conditions, Slot.CRITERIA),
        aggregates,
        expressions.optional(source, Slot.SOURCE),
        expressions.optional(spec.nodes.target, Slot.DESTINATION),
        _key(document, "anomaly", source.text if source is not None else ""),
        expressions.rules(spec.criteria, Slot.CRITERIA),
        compile_sort(expressions, spec.sort, Slot.SORT),
        expressions.optional(spec.until, Slot.UNTIL),
        expressions.optional(spec.nodes.fit, Slot.FIT),
        compile_room(spec.nodes.room, expressions),
        compile_sort(expressions, spec.nodes.sort, Slot.SOURCE_SORT),
        expressions.optional(spec.eviction.mode, Slot.EVICTION_MODE),
        expressions.optional(spec.eviction.grace_period_seconds, Slot.EVICTION_GRACE_PERIOD),
    )
    expressions.finish()
    return _plugin(document, Framework.DESCHEDULER, (_DESCHEDULER_POINTS[spec.type],),
                   lambda args: replace(compiled, params=args), given, expressions=expressions), compiled


_DESCHEDULER_POINTS: Final = MappingProxyType({
    DeschedulerType.DESCHEDULE: Point.DESCHEDULE,
    DeschedulerType.BALANCE: Point.BALANCE,
    DeschedulerType.EVICTION_FILTER: Point.EVICTION_FILTER,
})
_COMPILERS: Final[Mapping[Kind, Callable[[Document, Mapping[str, Document], Problems, _Extensions], _Made]]] = {
    Kind.SCHEDULER: _compile_scheduler, Kind.QOS: _compile_qos, Kind.DESCHEDULER: _compile_descheduler,
}

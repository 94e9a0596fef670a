"""Rules about the whole set: documents and component configurations that contradict each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeVar, cast

from koordpolicy.engine.agent.qos_manager.conflicts import ADVICE, conflicts, document_writers
from koordpolicy.engine.cel.check.checked_ast import Checked, DefinitionReference, VariableReference, path_of
from koordpolicy.engine.cel.syntax.ast import Call, Expr, Literal
from koordpolicy.engine.compile import CompiledQoS, CompiledScheduler, EvictProgram
from koordpolicy.engine.documents import (
    LabelSelector,
    NodeMatch,
    Normalize,
    PodMatch,
    ScoreItem,
    YamlNode,
    to_plain,
)
from koordpolicy.engine.documents.overlaps import are_apart, nodes_meet, pods_meet
from koordpolicy.engine.framework.points import Enforcement, Framework
from koordpolicy.engine.kubernetes.vocabulary import BATCH, BE, FREE, PRIORITY_BANDS, SLO_CONFIG
from koordpolicy.engine.source import Severity, Span, did_you_mean

from . import slo
from .ranges import parts
from .subject import LintSubject, Violation, Whole, span_of
from .watermarks import slopes, suppression, watermarks

_T = TypeVar("_T")
_MOST_PAIRS: Final = 1_000_000
_MOST_LISTED: Final = 10
"""The maximal number of other documents that a rule names for one."""

PLACE: Final = "place"
"""Pods are placed on nodes with less usage."""
DRAIN: Final = "drain"
"""Pods are evicted from nodes with more usage."""
FILL: Final = "fill"
"""Pods of drained nodes are moved to nodes with less usage."""
UNTIL: Final = "until"
"""Draining a node ends at less usage."""
SUPPRESS: Final = "suppress"
"""Best-effort pods are limited so that the node stays below."""
EVICT: Final = "evict"
"""Pods are evicted from a node with more usage."""


@dataclass(frozen=True, slots=True)
class UtilizationLevel:
    """A threshold of a node's utilization, in percent, above or below which an action on its pods follows."""

    role: str
    resource: str
    percent: Fraction
    span: Span
    who: str
    pods: PodMatch | None = None
    nodes: NodeMatch | None = None
    best_effort: bool = False
    """True if only best-effort pods are meant."""
    subject: LintSubject | None = None
    written: bool = True
    """True if the share is given as a number; false if it defaults to the whole."""

    def __str__(self) -> str:
        return f"{float(self.percent):g} %"


def utilization_levels(whole: Whole) -> tuple[UtilizationLevel, ...]:
    """Return the thresholds of usage of documents and component configurations."""
    found = whole.cache.get("levels")
    if found is None:
        found = whole.cache["levels"] = (*_of_documents(whole), *_of_configurations(whole))
    return tuple(found)


def _of_documents(whole: Whole) -> Iterator[UtilizationLevel]:
    for subject in whole.subjects:
        compiled = subject.compiled
        if compiled is None or subject.spec.enforcement is not Enforcement.ENFORCE:
            continue
        evicting = isinstance(compiled, CompiledQoS) and any(
            isinstance(each.effect, EvictProgram) for each in compiled.actions
        )
        for placed in subject.placed:
            role, below = {
                "filter": (PLACE, True), "source": (DRAIN, False), "destination": (FILL, True), "until": (UNTIL, True),
                "threshold": (EVICT if evicting else "", False),
            }.get(placed.role, ("", False))
            for mark in watermarks(subject.as_written.of(placed.checked)) if role else ():
                if mark.below is below and mark.amount == "usage":
                    yield _level(subject, role, mark.resource, mark.percent, span_of(mark.checked, mark.node),
                                 written=_gives_number(mark.checked, mark.node))
        for placed in subject.placed:
            target = suppression(subject.as_written.of(placed.checked)) if placed.role == "target" else None
            if target is not None:
                resource, percent, node = target
                yield _level(subject, SUPPRESS, resource, percent, placed.span(node), best_effort=True,
                             written=_gives_number(placed.checked, node))


def _gives_number(checked: Checked, node: Expr) -> bool:
    """Return whether a part, or a variable that it reads, has a number or a param in it."""
    pending, seen = [(checked, node)], set[str]()
    while pending:
        owner, part = pending.pop()
        for each in parts(owner, part):
            reference = owner.references.get(each.id)
            if isinstance(each, Literal) or (isinstance(reference, VariableReference) and reference.name == "params"):
                return True
            if isinstance(reference, DefinitionReference) and reference.name not in seen:
                seen.add(reference.name)
                below = owner.definition(reference.name)
                pending.append((below, below.root))
    return False


def _level(
    subject: LintSubject, role: str, resource: str, percent: Fraction, span: Span, *, written: bool,
    best_effort: bool = False,
) -> UtilizationLevel:
    match = subject.spec.match
    return UtilizationLevel(
        role,
        resource,
        percent,
        span,
        f"`{subject.document.name}`",
        match.pods,
        match.nodes,
        best_effort,
        subject,
        written,
    )


# -- component configurations ------------------------------------------------------------------------------------------

_THRESHOLDS: Final = {
    "LoadAwareScheduling": (("usageThresholds", PLACE), ("prodUsageThresholds", PLACE)),
    "LowNodeLoad": (("highThresholds", DRAIN), ("lowThresholds", FILL)),
}
_SLO: Final[Mapping[str, tuple[str, str]]] = dict(
    zip(slo.COMPARED, ((SUPPRESS, "cpu"), (EVICT, "cpu"), (EVICT, "memory")), strict=True))


def _of_configurations(whole: Whole) -> Iterator[UtilizationLevel]:
    for node in whole.configurations:
        for profile, holder in _profiles(node):
            for entry in _items(holder, "pluginConfig"):
                name, args = _text(entry, "name"), entry.at("args")
                if args is None:
                    continue
                for pool in (args, *_items(args, "nodePools")):
                    who = f"`{name}` of the profile `{profile}`"
                    for field, role in _THRESHOLDS.get(name, ()):
                        yield from _shares(pool.at(field), role, who, _selector_of(pool))
        yield from _of_slo(node)


def _shares(node: YamlNode | None, role: str, who: str, nodes: NodeMatch | None) -> Iterator[UtilizationLevel]:
    for resource, value in (node.fields if node is not None else {}).items():
        if isinstance(value.scalar, int | float) and not isinstance(value.scalar, bool):
            yield UtilizationLevel(role, resource, Fraction(str(value.scalar)), value.span, who, nodes=nodes)


def _of_slo(node: YamlNode) -> Iterator[UtilizationLevel]:
    for field, percent, place in slo.thresholds(node):
        role, resource = _SLO[field]
        yield UtilizationLevel(role, resource, Fraction(percent), place, f"`{field}` of {SLO_CONFIG}", best_effort=True)


def _profiles(node: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    for profile in _items(node, "profiles"):
        yield _text(profile, "name") or _text(profile, "schedulerName"), profile


def _items(node: YamlNode, name: str) -> tuple[YamlNode, ...]:
    below = node.at(name)
    return below.items if below is not None else ()


def _text(node: YamlNode, name: str) -> str:
    below = node.at(name)
    return below.text if below is not None else ""


def _selector_of(pool: YamlNode) -> NodeMatch | None:
    node = pool.at("nodeSelector")
    if node is None:
        return None
    plain: Any = to_plain(node)
    labels = plain.get("matchLabels") if isinstance(plain, Mapping) else None
    if not isinstance(labels, Mapping) or plain.get("matchExpressions"):
        return NodeMatch(names=frozenset())  # not supported: treated as disjoint from all others, so nothing is claimed
    return NodeMatch(label_selector=LabelSelector({str(key): str(value) for key, value in labels.items()}))


# -- overlapping matches
# ----------------------------------------------------------------------------------------------------


class Pairs:
    """The remaining pairs that one rule may compare."""

    def __init__(self) -> None:
        self.left = _MOST_PAIRS
        self.first_left_out: Span | None = None

    def of(self, place: Span, others: Iterable[_T]) -> Iterator[_T]:
        """Yield the others to compare with the item at a place, as long as there are pairs left."""
        for each in others:
            if not self.left:
                self.first_left_out = self.first_left_out or place
                return
            self.left -= 1
            yield each

    def reported(self) -> Iterator[Violation]:
        """Report the place after which pairs were not compared, if any."""
        if self.first_left_out is not None:
            yield Violation(
                f"the documents have more than {_MOST_PAIRS:,} pairs to compare here: from this one on they were not"
                " compared", self.first_left_out, "lint them in several parts",
            )


def first_listed(found: Iterator[Violation]) -> Iterator[Violation]:
    """Yield the first violations, and one that says so if there are more."""
    yield from itertools.islice(found, _MOST_LISTED)
    further = next(found, None)
    if further is not None:
        yield Violation(f"there are more than {_MOST_LISTED} findings like this: from this one on they are not listed",
                        further.span, "they are listed once the others are mended", further.related)


def _takes_best_effort(pods: PodMatch | None) -> bool:
    if pods is None:
        return True
    if pods.qos_classes is not None and BE not in pods.qos_classes:
        return False
    bands = pods.priority_classes
    return bands is None or not bands <= set(PRIORITY_BANDS) - {BATCH, FREE}


def _levels_meet(first: UtilizationLevel, second: UtilizationLevel) -> bool:
    if first.resource != second.resource or not nodes_meet(first.nodes, second.nodes):
        return False
    for one, other in ((first, second), (second, first)):
        if one.best_effort and not _takes_best_effort(other.pods):
            return False
    return pods_meet(first.pods, second.pods)


_HARMS: Final = {
    DRAIN: "drains nodes from {}", EVICT: "evicts pods from {}", SUPPRESS: "suppresses best-effort pods from {}",
}


def watermarks_crossed(whole: Whole) -> Iterator[Violation]:
    """Find scheduling up to a higher share than that of evictions or suppression.

    For draining, eviction and suppression, the lowest threshold each is reported.
    """
    levels, pairs = utilization_levels(whole), Pairs()
    harms: dict[str, list[UtilizationLevel]] = {}
    for level in sorted(levels, key=lambda each: each.percent):
        if level.role in _HARMS:
            harms.setdefault(level.resource, []).append(level)
    for place in levels:
        reported: set[str] = set()
        for harm in pairs.of(place.span, harms.get(place.resource, ())) if place.role == PLACE else ():
            if place.percent <= harm.percent:
                break
            if harm.role not in reported and _levels_meet(place, harm):
                reported.add(harm.role)
                what = _HARMS[harm.role].format(str(harm))
                again = "a pod may be suppressed as soon as it is placed" if harm.role == SUPPRESS \
                    else "a pod may be evicted and placed back for ever"
                yield Violation(
                    f"pods are placed on nodes of up to {place} {place.resource}, but {harm.who} {what}: {again}",
                    place.span, f"place below {harm}, with some distance", (harm.span,),
                )
    yield from pairs.reported()


def off_by_a_hundred(whole: Whole) -> Iterator[Violation]:
    """Find shares of 100 %, which do not disable a threshold: usage may exceed a node's allocatable."""
    for each in utilization_levels(whole):
        if each.percent == 100 and each.role != UNTIL and each.written:
            yield Violation(f"100 % of {each.resource} is not `off`: usage may be above what the node has for pods",
                        each.span, "to disable the threshold, leave the comparison out")


def thresholds_upside_down(whole: Whole) -> Iterator[Violation]:
    """Find lower thresholds that are not below the upper ones of the same plugin."""
    drains: dict[tuple[str, str], list[UtilizationLevel]] = {}
    for level in utilization_levels(whole):
        if level.role == DRAIN:
            drains.setdefault((level.who, level.resource), []).append(level)
    pairs = Pairs()
    for low in utilization_levels(whole):
        uppers = drains.get((low.who, low.resource), ()) if low.role in (FILL, UNTIL) else ()
        for high in pairs.of(low.span, uppers):
            if high.nodes != low.nodes:
                continue
            if low.role == FILL and low.percent >= high.percent:
                yield Violation(
                    f"nodes take pods up to {low} {low.resource}, and lose them from {high} on: the same pods are"
                    " evicted again",
                    low.span, f"the lower threshold must be under {high}", (high.span,),
                )
            elif low.role == UNTIL and low.percent > high.percent:
                yield Violation(
                    f"draining ends below {low} {low.resource}, but begins at {high}: it ends before it begins",
                    low.span, f"at most {high}", (high.span,),
                )
    yield from pairs.reported()


# -- node pools --------------------------------------------------------------------------------------------------------


def _required_labels(subject: LintSubject) -> Iterator[tuple[str, str, Span]]:
    """Yield key, value and place of the node labels that a filter requires."""
    for placed in subject.placed:
        if placed.role == "filter":
            yield from _equalities(placed.checked, placed.checked.root)


def _equalities(checked: Checked, node: Expr) -> Iterator[tuple[str, str, Span]]:
    if not isinstance(node, Call):
        return
    if node.function == "_&&_":
        for each in node.args:
            yield from _equalities(checked, each)
    elif node.function == "_==_":
        for one, other in (node.args, node.args[::-1]):
            default = isinstance(one, Call) and one.function == "orValue" and one.target is not None
            path = path_of(checked, one.target if default else one)  # type: ignore[union-attr, arg-type]
            if path is None or not isinstance(other, Literal) or not isinstance(other.value, str):
                continue
            if path[:3] == ("node", "metadata", "labels") and len(path) == 4:
                yield path[3], other.value, span_of(checked, node)
            elif path in (("nodeInfo", "zone"), ("nodeInfo", "region")):
                yield f"topology.kubernetes.io/{path[1]}", other.value, span_of(checked, node)


def _within(first: NodeMatch | None, second: NodeMatch | None) -> bool:
    """Return whether `second` certainly matches every node that `first` matches."""
    if second is None:
        return first is None or first.names != frozenset()
    if first is None:
        return False
    if second.names is not None and (first.names is None or not first.names <= second.names):
        return False
    if second.label_selector is None:
        return True
    if first.label_selector is None or second.label_selector.match_expressions:
        return first.label_selector == second.label_selector
    return second.label_selector.match_labels.items() <= first.label_selector.match_labels.items()


def pools_at_odds(whole: Whole) -> Iterator[Violation]:
    """Find pools of nodes that contradict each other or overlap."""
    yield from _contradictions(whole)
    drains, pairs = [each for each in utilization_levels(whole) if each.role == DRAIN], Pairs()
    for number, second in enumerate(drains):
        yield from first_listed(_overlaps(second, pairs.of(second.span, itertools.islice(drains, number))))
    yield from pairs.reported()


def _overlaps(second: UtilizationLevel, others: Iterable[UtilizationLevel]) -> Iterator[Violation]:
    for first in others:
        one, other = first.nodes, second.nodes
        if first.resource != second.resource or first.percent == second.percent or first.span == second.span:
            continue
        if first.who == second.who and first.nodes == second.nodes:
            continue
        if (_within(one, other) or _within(other, one)) and pods_meet(first.pods, second.pods):
            yield Violation(
                f"a node of both pools is drained from {first} {first.resource} by {first.who}, and from {second}"
                f" by {second.who}", second.span, "let the pools exclude each other", (first.span,),
            )


def _contradictions(whole: Whole) -> Iterator[Violation]:
    demands: dict[str, list[tuple[LintSubject, str, Span]]] = {}
    pairs = Pairs()
    for subject in whole.of(CompiledScheduler):
        if subject.spec.enforcement is not Enforcement.ENFORCE or subject.spec.match_conditions:
            continue
        for key, value, span in _required_labels(subject):
            others = demands.setdefault(key, [])
            other = next((each for each in pairs.of(span, others) if each[1] != value and _together(each[0], subject)),
                         None)
            if other is not None:
                yield Violation(
                    f"`{subject.document.name}` wants nodes with `{key}: {value}`, `{other[0].document.name}` those"
                    f" with `{other[1]}`: no node passes both", span, "let their `match` exclude each other",
                    (other[2],),
                )
            others.append((subject, value, span))
    yield from pairs.reported()


def _together(first: LintSubject, second: LintSubject) -> bool:
    """Return whether two documents may decide about the same pod and node."""
    one, other = first.spec, second.spec
    return (
        pods_meet(one.match.pods, other.match.pods) and nodes_meet(one.match.nodes, other.match.nodes)
        and not are_apart(one.profiles, other.profiles)
    )


# -- conflicting plugins
# ------------------------------------------------------------------------------------------------


def score_directions(subject: LintSubject) -> dict[tuple[str, str], tuple[int, Span]]:
    """Return the direction of a document's score by amount, up (1) or down (-1), and its place."""
    found: dict[tuple[str, str], tuple[int, Span]] = {}
    for placed in subject.placed:
        if placed.role != "score" or not isinstance(placed.item, ScoreItem):
            continue
        turn = -1 if placed.item.normalize in (Normalize.MAX_REVERSE, Normalize.MIN_MAX_REVERSE) else 1
        for leaf, slope in slopes(subject.as_written.of(placed.checked)).items():
            if slope and leaf[0] in ("usage", "estimated", "requested"):
                amount = "usage" if leaf[0] == "estimated" else leaf[0]
                found.setdefault((amount, leaf[1]), (slope * turn, placed.span()))
    return found


def fights(whole: Whole) -> Iterator[Violation]:
    """Find plugins that prefer the opposite of each other, so that they undo each other.

    Of all plugins that prefer the opposite, the first is reported.
    """
    pairs = Pairs()
    liking: dict[tuple[tuple[str, str], int], list[tuple[LintSubject, Span]]] = {}
    for subject in whole.of(CompiledScheduler):
        if subject.spec.enforcement is not Enforcement.ENFORCE:
            continue
        liked, reported = score_directions(subject), False
        for leaf in sorted(liked):
            slope, span = liked[leaf]
            opposite = pairs.of(span, liking.get((leaf, -slope), ()))
            other = next((each for each in opposite if _together(each[0], subject)), None)
            if other is not None and not reported:
                more, less = (subject, other[0]) if slope > 0 else (other[0], subject)
                reported = True
                yield Violation(
                    f"`{more.document.name}` prefers nodes with more `{leaf[0]}.{leaf[1]}`, `{less.document.name}`"
                    " those with less: in one profile they undo each other", span,
                    "limit them to different `profiles`, or keep one", (other[1],),
                )
            liking.setdefault((leaf, slope), []).append((subject, span))
    yield from pairs.reported()


# -- profiles of component configurations ------------------------------------------------------------------------------

UPSTREAM: Final = frozenset((
    # kube-scheduler's
    "DefaultBinder", "DefaultPreemption", "DynamicResources", "GangScheduling", "ImageLocality", "InterPodAffinity",
    "NodeAffinity", "NodeDeclaredFeatures", "NodeName", "NodePorts", "NodeResourcesBalancedAllocation",
    "NodeResourcesFit", "NodeUnschedulable", "NodeVolumeLimits", "PodTopologySpread", "PrioritySort",
    "SchedulingGates", "TaintToleration", "VolumeBinding", "VolumeRestrictions", "VolumeZone",
    # koord-scheduler's
    "Coscheduling", "DefaultPreBind", "DeviceShare", "ElasticQuota", "LoadAwareScheduling", "NodeNUMAResource",
    "NodeResourcesFitPlus", "Reservation", "ScarceResourceAvoidance", "SchedulingHint",
    # descheduler's and koord-descheduler's
    "CustomPriority", "DefaultEvictor", "HighNodeUtilization", "LowNodeLoad", "LowNodeUtilization",
    "MigrationController", "PodLifeTime", "RemoveDuplicates", "RemoveFailedPods", "RemovePodsHavingTooManyRestarts",
    "RemovePodsViolatingInterPodAntiAffinity", "RemovePodsViolatingNodeAffinity", "RemovePodsViolatingNodeTaints",
    "RemovePodsViolatingTopologySpreadConstraint",
))
"""Plugins of other components that read the same file."""

_FRAMEWORKS: Final = {
    "KubeSchedulerConfiguration": Framework.SCHEDULER, "DeschedulerConfiguration": Framework.DESCHEDULER,
    "DeschedulerPolicy": Framework.DESCHEDULER,
}


def two_writers(whole: Whole) -> Iterator[Violation]:
    """Find enforcing QoSPlugins that may write one file of a node."""
    writers = [
        writer for each in whole.of(CompiledQoS) if each.spec.enforcement is Enforcement.ENFORCE
        for writer in document_writers(cast("CompiledQoS", each.compiled))
    ]
    yield from first_listed(
        Violation(f"{second} may write `{file}`, which {first} writes too", second.span, ADVICE,
                  (first.span,) if first.span is not None else ())
        for first, second, file in conflicts(writers))


def unknown_plugins(whole: Whole) -> Iterator[Violation]:
    """Find unknown plugins in profiles of component configurations."""
    for node in whole.configurations:
        framework = _FRAMEWORKS.get(_text(node, "kind"))
        if framework is None:
            continue
        known = whole.plugins.get(framework, frozenset()) | UPSTREAM
        for profile, holder in _profiles(node):
            plugins = holder.at("plugins")
            for point, chosen in (plugins.fields if plugins is not None else {}).items():
                for field in ("enabled", "disabled"):
                    for entry in _items(chosen, field):
                        name = entry.at("name") if entry.fields else entry  # a DeschedulerPolicy lists bare names
                        if name is not None and name.text not in known and name.text != "*":
                            yield Violation(
                                f"the profile `{profile}` names the plugin `{name.text}` under `{point}.{field}`, which"
                                " does not exist", name.span, did_you_mean(name.text, sorted(known)),
                                severity=None if field == "enabled" else Severity.WARNING,
                            )

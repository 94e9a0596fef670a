"""Explanations: the reasons why a pod runs on a node and not on the others, distances, and counterfactuals.

The result is a tree of findings (see `engine.explanation`), the same for the command line, for HTTP and for events.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.explain.clauses import Clause, Distance, alternatives, distance_of
from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.edits import amount_unit
from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.documents import Normalize
from koordpolicy.engine.evaluation.distances import distances_of
from koordpolicy.engine.explanation import (
    Finding,
    Mark,
    Table,
    counted,
    heading,
    left_out,
    listed,
    plain,
    shortened,
    shown,
)
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.explain import ExplainsWaiting
from koordpolicy.engine.framework.points import Code, Enforcement, Point, Refusal
from koordpolicy.engine.framework.scheduler import CycleState, Nomination
from koordpolicy.engine.framework.slots import unit_of
from koordpolicy.engine.kubernetes.vocabulary import GPU_CORE, GPU_MEMORY_RATIO
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler

from ..cycle.plugin_calls import call_plugin
from ..cycle.schedule_one import decide
from ..cycle.tie_break import FIRST_BY_NAME, TieBreak
from ..profiles.profile import Active, Profile
from ..verdict.verdict import Filtered, Scored, Verdict
from .counterfactuals import MOST_TRIALS, Counterfactual, counterfactuals, passing, rule_of

_GATES: Final = "SchedulingGates"
_NAMES: Final = 3
_MEASURED: Final = 500
"""The maximum number of refused nodes per rule whose distance from passing is computed."""
_MOST_ERRORS: Final = 20
_MOST_COUNTERFACTUALS: Final = 5
_REPRESENTATIVES: Final = 4
"""The maximum number of nodes, each with other reasons, for which counterfactuals are searched if no node takes the
pod."""
_SHORT: Final = frozenset(("requested", "used", "capacity"))
"""The values that NodeResourcesFit reports for a resource."""
_LOADED: Final = frozenset(("percent", "threshold"))
"""The values that LoadAwareScheduling reports for a resource."""


_TRIAL_SHARE: Final = 0.75
"""The part of the remaining time that is spent on trying changes."""
_NO_CHANGE: Final = (Finding("none", "(no change of the pod or of a node was found)"),)
_OUT_OF_TIME: Final = Finding("cut", "(no more changes were tried: the time was up)")


@dataclass(frozen=True, slots=True)
class Explained:
    """A verdict for which every filter ran on every node (`decide` with `exhaustive`), and its inputs."""

    verdict: Verdict
    profile: Profile
    snapshot: Snapshot
    current: str = ""
    """The node that the pod is on; it was decided as if it were pending."""
    _state: CycleState = field(default_factory=CycleState, repr=False)

    @property
    def pod(self) -> PodInfo:
        """The pod that was decided about."""
        return self.verdict.pod


def explain_pod(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, rule: TieBreak = FIRST_BY_NAME) -> Explained:
    """Decide about a pod with all reasons, as if it were pending: a running pod is removed from its node first.

    Nothing changes. `rule` breaks ties between equally good nodes.
    """
    row = snapshot.index.get(pod.node_name)
    if row is not None and pod.key in snapshot.row(row).pods:
        snapshot = snapshot.overlay({pod.node_name: NodeChange(remove=[pod.key])})
    return Explained(decide(profile, pod.unbound(), snapshot, tie_break=rule, exhaustive=True), profile, snapshot,
                     pod.node_name)


def explain_decision(explained: Explained, *, best: int = 5, trials: int = MOST_TRIALS) -> Finding:
    """Return why a pod runs where it does, or nowhere: the choice, scores, refusals by reason, counterfactuals, errors.

    `best` limits the nodes whose scores are shown, `trials` the number of changes tried per node; with 0 none are.
    Under a deadline fewer are tried, which is reported.

    Raises:
        OverdueError: the deadline of the thread passed before that.
    """
    verdict = explained.verdict
    refused = len(verdict.names) - len(verdict.passed)
    parts = [*_head(explained), _choice(verdict), heading("it waits for", tuple(_waiting(explained)), kind="waiting")]
    if len(verdict.passed):
        parts.append(_scores(explained, [name for name, _ in verdict.best(best)]))
    refusals = tuple(_refusals(explained))
    if refusals:
        of = f"{refused:,} of {counted(len(verdict.names), 'node')} refused" if refused else "not enforced"
        parts.append(heading(of, refusals, kind="refusals"))
    if verdict.node is None and trials:
        found = _tried(lambda: _cluster_counterfactuals(explained, trials))
        parts.append(heading("it would run if", found, kind="changes"))
    parts.append(heading("errors", tuple(_errors(verdict)), kind="errors"))
    return Finding("decision", facts={"pod": verdict.pod.key, "node": verdict.node}, parts=tuple(parts))


def explain_node(explained: Explained, node: str, *, trials: int = MOST_TRIALS) -> Finding:
    """Return the result of each plugin for one node: passed or refused, with values and distances; scores; changes.

    Raises:
        KeyError: there is no such node.
        OverdueError: the deadline of the thread passed before changes were tried.
    """
    verdict = explained.verdict
    row = explained.snapshot.index[node]
    passed = bool((verdict.passed == row).any())
    outcome = "is chosen for" if verdict.node == node else "could take" if passed else "is refused for"
    parts = [Finding("choice", f"{node} {outcome} {verdict.pod.key}", Mark.PLAIN,
                     {"node": node, "passed": passed, "chosen": verdict.node == node}), *_head(explained)]
    if verdict.refusal is not None:
        parts += [_whole_refusal(explained)]
    else:
        parts.append(heading("filters", tuple(_filters(explained, row)), kind="filters"))
    if passed:
        parts.append(_scores(explained, [node], every=True))
        parts.append(_rank(verdict, node))
    elif trials:
        found = _tried(lambda: map(_counterfactual, counterfactuals(
            explained.profile, verdict.pod, explained.snapshot, node, trials=trials)))
        parts.append(heading("it would run there if", found, kind="changes"))
    parts.append(heading("errors", tuple(_errors(verdict, node)), kind="errors"))
    return Finding("node", facts={"pod": verdict.pod.key, "node": node}, parts=tuple(parts))


# The head


def _head(explained: Explained) -> Iterator[Finding]:
    pod, verdict = explained.pod, explained.verdict
    words = [pod.key, *filter(None, (" ".join(filter(None, (pod.priority_band, pod.qos_class))),)),
             f"requests {requested(pod)}", f"profile {verdict.profile}"]
    yield Finding("pod", "  ".join(words), facts={
        "pod": pod.key, "priorityBand": pod.priority_band, "qosClass": pod.qos_class, "requests": dict(pod.requests),
        "profile": verdict.profile, "generation": verdict.generation,
    })
    if explained.current:
        yield Finding("current", f"it is on {explained.current}; decided as if it were pending",
                      facts={"node": explained.current})


def _waiting(explained: Explained) -> Iterator[Finding]:
    """Yield the reasons other than nodes for which a pod waits: preEnqueue plugins, and explanations of plugins."""
    pod = explained.pod
    if explained.current:
        return
    gates = [str(each.get("name")) for each in (pod.object.get("spec") or {}).get("schedulingGates") or ()]
    if gates:
        yield Finding("gates", f"its scheduling gates: {listed(gates, _NAMES)}", facts={"gates": gates})
    whole = "" if explained.verdict.refusal is None else explained.verdict.refusal[0]
    for active in explained.profile.at[Point.PRE_ENQUEUE]:
        if active.name in (_GATES, whole) or isinstance(active.instance, ExplainsWaiting):
            continue  # what refuses the pod is shown elsewhere
        refusal = call_plugin([], active, Point.PRE_ENQUEUE, active.instance.pre_enqueue, pod, explained.snapshot,
                              kinds=())
        if refusal is not None:
            yield Finding("gate", f"{active.name}: {_said(refusal)}{_watched(active.plugin.enforcement)}",
                          facts={"plugin": active.name, "rule": refusal.rule})
    for active in explained.profile.made:
        if not isinstance(active.instance, ExplainsWaiting):
            continue
        try:
            yield from active.instance.explain_waiting(pod)
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            yield Finding("error", f"{active.name}: {describe(error)}", Mark.ERROR, {"plugin": active.name})


def requested(pod: PodInfo) -> str:
    """Return the requests of a pod: `cpu 0.5, memory 1Gi`; resources without their domain, cpu in cores."""
    requests = [
        f"{name.rpartition('/')[2]} {shown(amount, amount_unit(name)).partition(' ')[0]}"
        for name, amount in sorted(pod.requests.items())
        # Koordinator's pods always request both; users think of a share of a GPU as one resource.
        if amount and not (name == GPU_MEMORY_RATIO and amount == pod.requests[GPU_CORE])
    ]
    return ", ".join(requests) or "nothing"


def _choice(verdict: Verdict) -> Finding:
    passed, size = len(verdict.passed), len(verdict.names)
    facts: dict[str, Any] = {"node": verdict.node, "passed": passed, "nodes": size}
    if verdict.node is None:
        facts["message"] = verdict.message()
        return Finding("choice", f"no node fits {verdict.pod.key}: {passed:,} of {size:,} nodes pass", facts=facts,
                       parts=(Finding("message", verdict.message()), *_room(verdict)))
    devices = f", GPUs {', '.join(map(str, verdict.devices))}" if verdict.devices else ""
    text = f"{verdict.pod.key} would run on {verdict.node}{devices}: {passed:,} of {size:,} nodes pass"
    tie = verdict.tie
    if tie is not None and tie.among > 1:
        rule = "the first by name is taken" if tie.rule == "first" else f"one is drawn with seed {tie.seed}"
        text += f", {tie.among:,} of them share the best score and {rule}"
        facts["tieBreak"] = {"rule": tie.rule, "among": tie.among, "seed": tie.seed}
    return Finding("choice", text, Mark.PLAIN, facts)


def room_of(nomination: Nomination) -> str:
    """Return the result of a preemption that helps."""
    victims = [victim.key for victim in nomination.victims]
    return f"room can be made on {nomination.node} by evicting {listed(victims, _NAMES)}"


def _room(verdict: Verdict) -> Iterator[Finding]:
    """Yield the result of preemption, if it was tried."""
    if verdict.nomination is not None:
        victims = [victim.key for victim in verdict.nomination.victims]
        yield Finding("room", room_of(verdict.nomination), facts={"node": verdict.nomination.node, "victims": victims})
    message = verdict.message()
    for plugin, refusal in verdict.post_filter_refusals:
        if refusal.message not in message:
            yield Finding("room", f"{plugin} makes no room: {_said(refusal)}", facts={"plugin": plugin})


# Scores


def _scores(explained: Explained, nodes: Sequence[str], *, every: bool = False) -> Finding:
    """Return the scores of nodes as a table: plugins, weights, and below them items before and after normalisation."""
    verdict = explained.verdict
    if not verdict.scores:
        return heading("scores", (Finding("score", "no plugin scores"),), kind="scores")
    index = explained.snapshot.index
    rows = [index[name] for name in nodes]
    lines: list[tuple[str | int, ...]] = []
    for step in verdict.scores:
        lines.append((step.plugin + _watched(step.enforcement), step.weight,
                      *(int(step.scores.values[row]) for row in rows)))
        lines += _item_lines(explained, step, rows, every=every)
    totals = dict(verdict.best())
    weights = sum(step.weight for step in verdict.scores if step.enforcement is Enforcement.ENFORCE)
    lines.append(("total, weighted", weights, *(totals[name] for name in nodes)))
    table = Table(("plugin", "weight", *nodes), tuple(lines))
    rest = len(verdict.passed) - len(nodes)
    more: tuple[Finding, ...] = ()
    if rest > 0 and not every:
        more = (Finding("more", f"and {counted(rest, 'more node')} that pass", facts={"leftOut": rest}),)
    return heading("scores", more, table=table, kind="scores")


def _item_lines(
    explained: Explained, step: Scored, rows: Sequence[int], *, every: bool,
) -> Iterator[tuple[str | int, ...]]:
    scores = step.scores
    items = _items_of(explained, step.plugin)
    for name, (weight, normalize) in items.items():
        if name not in scores.items:
            if name in scores.errors:
                yield (f"  {name}, left out: it failed", weight, *("-" for _ in rows))
            continue
        after = [int(scores.items[name][row]) for row in rows]
        before = [_before(scores.raw.get(name), row) for row in rows]
        changes = normalize is not Normalize.IDENTITY
        if changes or len(items) > 1:
            how = f" ({normalize.value})" if changes else ""
            yield (f"  {name}{how}", weight, *(
                f"{raw} -> {value}" if changes and raw is not None else value
                for raw, value in zip(before, after, strict=True)
            ))
    if every and "" in scores.raw:
        yield ("  before it is normalised", "", *(_before(scores.raw[""], row) or 0 for row in rows))


def _items_of(explained: Explained, name: str) -> Mapping[str, tuple[int, Normalize]]:
    plugin = _document(explained.profile.scores, name)
    if plugin is None:
        return {}
    return {each.item.name: (each.item.weight, each.item.normalize) for each in plugin.compiled.score}


def _before(values: Any, row: int) -> int | None:
    if values is None:
        return None
    value = values[row]
    return None if isinstance(value, EvaluationError) or value is None else int(value)


def _rank(verdict: Verdict, node: str) -> Finding:
    totals = dict(verdict.best())
    if node not in totals:
        return Finding("standing")
    place = sum(1 for total in totals.values() if total > totals[node]) + 1
    best, most = verdict.best(1)[0]
    if verdict.node == node:
        text = f"chosen of {counted(len(totals), 'node')} that pass"
    else:
        chosen = verdict.node if verdict.node in totals else best
        text = f"place {place:,} of {len(totals):,}: {chosen} has {most}, {most - totals[node]} more"
        if most == totals[node] and verdict.tie is not None:
            text = f"as good as {chosen}, which {'comes first by name' if verdict.tie.rule == 'first' else 'was drawn'}"
    return Finding("standing", text, facts={"place": place, "total": totals[node], "best": best, "bestTotal": most})


# Refusals


def _refusals(explained: Explained) -> Iterator[Finding]:
    verdict = explained.verdict
    if verdict.refusal is not None:
        yield _whole_refusal(explained)
        return
    for step in verdict.filters:
        groups = sorted(_groups(step).items(), key=lambda item: (-len(item[1]), item[0]))
        for reason, rows in groups:
            yield _group(explained, step, reason, rows)


def _groups(step: Filtered) -> Mapping[str, Rows]:
    """Return the refused rows by reason in fixed words; see `Verdict.reasons`."""
    rows, answer = step.refused, step.answer
    if not len(rows):
        return {}
    group = answer.brief or answer.reasons
    if group is not None:
        with contextlib.suppress(Exception):  # the border between framework and plugin: then row by row
            return group(rows)
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        refusal = _why(step, row)
        found.setdefault(refusal.message or refusal.rule, []).append(row)
    return {reason: np.array(each, np.intp) for reason, each in found.items()}


def _group(explained: Explained, step: Filtered, reason: str, rows: Rows) -> Finding:
    verdict = explained.verdict
    names = [str(verdict.names[row]) for row in rows.tolist()]
    ranked = sorted(((_how_far(explained, step, row, reason), row) for row in rows[:_MEASURED].tolist()),
                    key=lambda pair: pair[0])
    nearest, refusal = ranked[0][1], _why(step, ranked[0][1])
    where = "all nodes" if len(names) == len(verdict.names) > 1 else listed(names, _NAMES)
    parts = [Finding("nodes", where)]
    details = _details(explained, step, nearest, refusal, reason)
    if details:
        # Their inputs are reported for a single node only.
        among = f" of the first {_MEASURED}" if len(names) > _MEASURED else ""
        whose = f"nearest{among} is {verdict.names[nearest]}: " if len(names) > 1 else f"{names[0]}: "
        parts = parts if len(names) > 1 else []
        parts += [each if each.kind == "more" else replace(each, text=whose + each.text, parts=()) for each in details]
    rule = f" ({refusal.rule})" if refusal.rule else ""
    # The fixed messages summarize many nodes; one node has the actual message. NodeResourcesFit has one per resource.
    message = refusal.message if len(names) == 1 and step.answer.brief is not None else reason
    code = f"{refusal.code.value}: " if refusal.code is Code.ERROR else ""
    return Finding(
        "refusal", f"{step.plugin}{rule}{_watched(step.enforcement)}: {code}{shortened(message)}", Mark.PLAIN, {
            "plugin": step.plugin, "rule": refusal.rule, "reason": reason, "code": refusal.code.value,
            "enforcement": step.enforcement.value, "count": len(names), "nodes": names,
            "nearest": verdict.names[nearest],
        }, tuple(parts), lead=f"{len(names):,}".rjust(max(3, len(f"{len(verdict.names):,}"))) + "  ",
    )


def _has_numbers(value: object, keys: frozenset[str]) -> bool:
    """Return whether a plugin reports numbers under exactly these keys."""
    return isinstance(value, dict) and value.keys() == keys and all(type(each) is int for each in value.values())


def _why(step: Filtered, row: int) -> Refusal:
    """Return why a filter refused a node; a failure to explain does not undo the refusal."""
    try:
        return step.answer.explain(row)
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        return Refusal("", f"why is not known: {describe(error)}", Code.ERROR)


def _how_far(explained: Explained, step: Filtered, row: int, reason: str) -> float:
    """Return a node's distance from passing: 0 to 1 if a smaller amount would pass, else more."""
    Deadline.poll()
    refusal = _why(step, row)
    value: Any
    for name, value in refusal.values:
        if _has_numbers(value, _SHORT) and (reason.endswith(f" {name}") or name == "pods"):
            return float((value["requested"] - value["capacity"] + value["used"]) / max(value["requested"], 1))
        if _has_numbers(value, _LOADED):
            return float(value["percent"] - value["threshold"]) / 100
    ways = _ways(explained, step.plugin, Point.FILTER, refusal.rule, row)
    return min((max(map(_relative, way)) for way in ways if way), default=math.inf)


def _relative(distance: Distance | None) -> float:
    if distance is None or distance.difference is None or not isinstance(distance.limit, int | float):
        return math.inf
    return distance.difference / max(abs(distance.limit), 1)


def _ways(
    explained: Explained, name: str, point: Point, rule: str, row: int | None,
) -> list[tuple[Distance | None, ...]]:
    return [
        tuple(distance_of(clause, bindings, unit_of) for clause in way)
        for way, bindings in _failing(explained, name, point, rule, row)
    ]


def _failing(
    explained: Explained, name: str, point: Point, rule: str, row: int | None,
) -> Iterator[tuple[tuple[Clause, ...], Mapping[str, object]]]:
    actives = explained.profile.filters if point is Point.FILTER else explained.profile.pre_filters
    plugin = _document(actives, name)
    found = None if plugin is None else rule_of(plugin, point, rule)
    if plugin is None or found is None:
        return
    bindings = plugin.inputs(explained._state, explained.pod, explained.snapshot, found.program, row)  # noqa: SLF001 - of this module
    for way in alternatives(found.program.checked, bindings):
        yield way, bindings


def _document(actives: Iterable[Active], name: str) -> DocumentScheduler | None:
    found = next((active.instance for active in actives if active.name == name), None)
    return found if isinstance(found, DocumentScheduler) else None


def _whole_refusal(explained: Explained) -> Finding:
    assert explained.verdict.refusal is not None
    name, point, refusal = explained.verdict.refusal
    rule = f" ({refusal.rule})" if refusal.rule else ""
    details = tuple(distances_of(_failing(explained, name, point, refusal.rule, None)))
    parts = [*details, *_values(refusal, details)]
    return Finding(
        "refusal", f"{name}{rule} refuses the pod at {point.value}: {_said(refusal)}", Mark.PLAIN,
        {"plugin": name, "point": point.value, "rule": refusal.rule, "reason": refusal.message,
         "code": refusal.code.value}, tuple(parts),
    )


def _filters(explained: Explained, row: int) -> Iterator[Finding]:
    """Yield the plugins that passed a node in one finding, then one finding for each that refused it."""
    verdict = explained.verdict
    refusing = {step.plugin: step for step in verdict.filters if (step.refused == row).any()}
    passed = [active.name for active in explained.profile.filters if active.name not in refusing]
    if passed:
        yield Finding("plugins", ", ".join(passed), Mark.PASSED, {"plugins": passed})
    for name, step in refusing.items():
        refusal = _why(step, row)
        rule = f" ({refusal.rule})" if refusal.rule else ""
        enforced = step.enforcement is Enforcement.ENFORCE
        mark = Mark.WATCHED if not enforced else Mark.ERROR if refusal.code is Code.ERROR else Mark.REFUSED
        details = _details(explained, step, row, refusal, "")
        yield Finding("plugin", f"{name}{rule}{_watched(step.enforcement)}: {shortened(refusal.message)}", mark, {
            "plugin": name, "rule": refusal.rule, "reason": refusal.message, "code": refusal.code.value,
            "enforcement": step.enforcement.value,
        }, (*details, *_values(refusal, details)))


def _details(
    explained: Explained, step: Filtered, row: int, refusal: Refusal, reason: str,
) -> tuple[Finding, ...]:
    """Return the distance of a node from passing, as reported by its plugin or by the rule's clauses."""
    amounts = tuple(_amounts(refusal, reason))
    if refusal.error is not None and refusal.error.reason == "NoMetric":
        return (_metric(explained.snapshot, row),)
    return amounts or tuple(distances_of(_failing(explained, step.plugin, Point.FILTER, refusal.rule, row)))


def _metric(snapshot: Snapshot, row: int) -> Finding:
    """Return the age of a node's metric, and the age at which it expires."""
    metric, expiry = snapshot.row(row).metric, snapshot.cluster.metric_expiry / NANOSECONDS
    if metric is None or metric.updated is None:
        return Finding("distance", "it has no NodeMetric", facts={"what": "metricAge", "value": None})
    age = (snapshot.now - metric.updated) / NANOSECONDS
    if not expiry or age < expiry:
        return Finding("distance", "its NodeMetric does not say that", facts={"what": "metricAge", "value": age})
    text = f"its NodeMetric is {shown(age, 'seconds')} old, and counts below {shown(expiry, 'seconds')}"
    return Finding(
        "distance", f"{text}: over by {shown(age - expiry, 'seconds')}",
        facts={"what": "metricAge", "value": age, "relation": "below", "limit": expiry, "difference": age - expiry,
               "unit": "seconds"},
    )


def _amounts(refusal: Refusal, reason: str) -> Iterator[Finding]:
    value: Any
    for name, value in refusal.values:
        unit = amount_unit(name)
        if _has_numbers(value, _SHORT) and (not reason or reason.endswith(f" {name}") or name == "pods"):
            requests, free, capacity = value["requested"], value["capacity"] - value["used"], value["capacity"]
            text = f"{name} {shown(requests, unit)} requested, {shown(free, unit)} of {shown(capacity, unit)} free"
            yield Finding("distance", f"{text}: {shown(requests - free, unit)} short", facts={
                "what": f"requests.{name}", "value": requests, "relation": "at most", "limit": free,
                "difference": requests - free, "unit": unit,
            })
        elif _has_numbers(value, _LOADED):
            percent, threshold = value["percent"], value["threshold"]
            text = f"{name} {percent} % with the pod, must be at most {threshold} %: over by {percent - threshold} %"
            yield Finding("distance", text, facts={
                "what": name, "value": percent, "relation": "at most", "limit": threshold,
                "difference": percent - threshold, "unit": "%",
            })


def _values(refusal: Refusal, details: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the sub-expressions of the rule with their values, one line each: the innermost not reported yet."""
    known = {detail.facts.get(key) for detail in details for key in ("what", "bound")}
    simple = [(text, plain(value)) for text, value in refusal.values
              if not isinstance(value, dict) and value != refusal.message]
    inner = [(text, value) for text, value in simple
             if not any(other != text and other in text for other, _ in simple)
             and text.removeprefix("variables.") not in known]
    if inner:
        listed_values = ", ".join(f"{shortened(text, 80)} = {shown(value)}" for text, value in inner)
        yield Finding("values", f"where {listed_values}", facts={"values": dict(refusal.values)})


def _said(refusal: Refusal) -> str:
    text = shortened(refusal.message)
    return f"{refusal.code.value}: {text}" if refusal.code is Code.ERROR else text


def _watched(enforcement: Enforcement) -> str:
    return "" if enforcement is Enforcement.ENFORCE else f" [{enforcement.value.lower()} only]"


# Counterfactuals


def _tried(find: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    """Return the findings within a part of the remaining time; a note reports if that was not enough."""
    current = Deadline.current()
    with Deadline(math.inf if current is None else current.remaining * _TRIAL_SHARE) as deadline:
        found = tuple(find())
        cut = deadline.passed
    return (*found, _OUT_OF_TIME) if cut else found or _NO_CHANGE


def _time_is_up() -> bool:
    deadline = Deadline.current()
    return deadline is not None and deadline.passed


def _cluster_counterfactuals(explained: Explained, trials: int) -> tuple[Finding, ...]:
    """Return the changes that would let the pod run on any node, smallest first: tried on the nearest node of each
    kind.
    """
    verdict, profile, pod, snapshot = explained.verdict, explained.profile, explained.pod, explained.snapshot
    found: dict[tuple[str, ...], Counterfactual] = {}
    if verdict.refusal is not None:
        tried = counterfactuals(profile, pod, snapshot, trials=trials)
        found = {tuple(edit.text for edit in each.edits): each for each in tried}
    else:
        try:
            representatives = _representatives(explained)
        except OverdueError:
            return ()
        for node in representatives:
            for each in counterfactuals(profile, pod, snapshot, node, most=2, trials=trials):
                whose = () if each.of_pod else (node,)
                found.setdefault((*whose, *sorted(edit.text for edit in each.edits)), each)
    ordered = sorted(found.values(), key=lambda each: each.size)
    findings: list[Finding] = []
    for each in ordered[:_MOST_COUNTERFACTUALS]:
        nodes = passing(profile, each, snapshot) if each.of_pod else (each.node,)
        if not each.of_pod or not _time_is_up():
            findings.append(_counterfactual(each, nodes))
    if len(ordered) > _MOST_COUNTERFACTUALS:
        findings.append(left_out(len(ordered) - _MOST_COUNTERFACTUALS, "change"))
    return tuple(findings)


def _representatives(explained: Explained) -> list[str]:
    """Return the nearest node of each kind: those that are refused for the same reasons are of one kind."""
    verdict = explained.verdict
    reasons: dict[int, list[tuple[str, str]]] = {}
    steps = [step for step in verdict.filters if step.enforcement is Enforcement.ENFORCE]
    for step in steps:
        for reason, rows in _groups(step).items():
            for row in rows.tolist():
                reasons.setdefault(row, []).append((step.plugin, reason))
    kinds: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for row, refused_for in reasons.items():
        kinds.setdefault(tuple(refused_for), []).append(row)
    by_name = {step.plugin: step for step in steps}
    ranked = []
    for kind, mine in kinds.items():
        far, row = min(
            (sum(min(_how_far(explained, by_name[plugin], row, reason), 10.0) for plugin, reason in kind), row)
            for row in mine[:_MEASURED // 10]
        )
        ranked.append((len(kind), far, row))
    return [str(verdict.names[row]) for _, _, row in sorted(ranked)[:_REPRESENTATIVES]]


def _counterfactual(counterfactual: Counterfactual, nodes: Sequence[str] = ()) -> Finding:
    whose = {True: "the pod", False: f"node {counterfactual.node}"}
    texts = []
    for of_pod in (True, False):
        mine = [edit.text for edit in counterfactual.edits if (edit.node is None) is of_pod]
        if mine:
            texts.append(f"{whose[of_pod]} {' and '.join(mine)}")
    text = ", and ".join(texts)
    if counterfactual.of_pod and len(nodes) > 1:
        text += f": then on {counted(len(nodes), 'node')}, {listed(nodes, _NAMES)}"
    elif counterfactual.of_pod and nodes:
        text += f": then on {nodes[0]}"
    return Finding("change", text, Mark.CHANGE, {
        "edits": [{"of": "pod" if edit.node is None else "node", "text": edit.text, **(edit.facts or {})}
                  for edit in counterfactual.edits],
        "node": counterfactual.node or None, "nodes": list(nodes) or [counterfactual.node],
    }, lead="- ")


# Errors


def _errors(verdict: Verdict, node: str = "") -> Iterator[Finding]:
    found = verdict.errors()
    if node:  # failures of filters are reported with their findings
        found = tuple(each for each in found if node in (each.nodes or (node,))
                      and not (each.point is Point.FILTER and each.nodes))
    for each in found[:_MOST_ERRORS]:
        where = f" on {listed(each.nodes, _NAMES)}" if each.nodes and not node else ""
        rule = f" ({each.rule})" if each.rule else ""
        text = f"{each.plugin}{rule} at {each.point.value}: {shortened(each.message)}{where}"
        yield Finding("error", text, Mark.ERROR,
                      {"plugin": each.plugin, "rule": each.rule, "point": each.point.value, "message": each.message,
                       "nodes": list(each.nodes), "origin": each.origin})
    if len(found) > _MOST_ERRORS:
        yield left_out(len(found) - _MOST_ERRORS, "error")
    if any(each.message.startswith("no such key") for each in found):
        yield Finding("hint", "if a field or key may be absent: `has(x.y)`, `'key' in x` or `x.?y.orValue(z)`")

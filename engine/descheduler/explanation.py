"""Explanations of the descheduler: the result of each plugin for a pod, and its distance from being evicted.

The requested number of dry cycles is run. For each plugin the first reason is reported why it does not evict the pod:
its node is not a source, it is not chosen, a filter vetoes, a limit is reached, or its eviction would come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import Rule
from koordpolicy.engine.documents import DeschedulerType
from koordpolicy.engine.evaluation.distances import distances_to
from koordpolicy.engine.evaluation.pod_selection import accepts_pod
from koordpolicy.engine.explanation import Finding, Mark, heading, left_out, shortened
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.descheduler import EvictionFilter, PreEvictionFilter
from koordpolicy.engine.framework.explain import ExplainsNode
from koordpolicy.engine.framework.points import Enforcement, Proof

from .document_cycle import DocumentCycle, NodeState
from .documents import DocumentPlugin
from .framework import ready_rows, run_cycle, select_rows
from .limits import CycleLimits
from .profile import DeschedulerProfile, RunningPlugin
from .proof.prove import CycleProof, ProofCandidate, Proving
from .proof.verdicts import EvictionProof, ProofResult
from .results import PROOF, WAITING, CycleResult

_WIDTH: Final = 10


@dataclass(frozen=True, slots=True)
class ExplainEvictionRequest:
    """A request to explain why a pod is not evicted by these profiles, in the last of several cycles over a
    snapshot.
    """

    pod: PodInfo
    profiles: Sequence[DeschedulerProfile]
    snapshot: Snapshot
    limits: CycleLimits = CycleLimits()  # noqa: RUF009 - frozen
    node_selector: Mapping[str, Any] | None = None
    cycles: int = 1
    proving: Proving | None = None
    """The means to prove evictions; None: they are not proved."""
    result: CycleResult | None = None
    """The result of the last cycle; None: the cycles are run."""


def explain_eviction(request: ExplainEvictionRequest) -> tuple[bool, Finding]:
    """Return whether the pod would be evicted, and the result of each plugin of each profile for it."""
    pod, snapshot = request.pod, request.snapshot
    result = request.result or CycleResult(0, dry_run=True, nodes=0)
    for _ in range(max(request.cycles, 1) if request.result is None else 0):
        # Each of them plans evictions on a snapshot of its own: to the next one they have not happened.
        result = run_cycle(request.profiles, snapshot.overlay({}), limits=request.limits,
                           node_selector=request.node_selector, proving=request.proving)
    evicted = [each for each in result.evicted if each.pod == pod.key]
    kind = " ".join(filter(None, (pod.priority_band, pod.qos_class)))
    where = f"on {pod.node_name}" if pod.node_name else "on no node"
    parts = [Finding("pod", f"{pod.key}  {kind}  {where}", facts={"pod": pod.key, "node": pod.node_name or None})]
    if evicted:
        decision = evicted[0].decision
        text = f"it would be evicted by {decision.plugin}: {shortened(decision.reason)}"
    else:
        text = "it stays" if request.cycles <= 1 else f"it stays, also in the last of {request.cycles} cycles"
    parts.append(Finding("choice", text, facts={"evicted": bool(evicted), "cycles": request.cycles}))
    if result.error:
        parts.append(Finding("error", f"the cycle ended early: {shortened(result.error)}", Mark.ERROR))
    for profile in request.profiles:
        parts += _profile(request, profile, result)
    proved = any(each.decision.proof is not None for each in result.outcomes if each.pod == pod.key)
    if request.proving is not None and pod.node_name in snapshot.index and not proved:
        parts += _unproved(pod, snapshot, request.proving)
    return bool(evicted), Finding("eviction", facts={"pod": pod.key, "evicted": bool(evicted)}, parts=tuple(parts))


def _unproved(pod: PodInfo, snapshot: Snapshot, proving: Proving) -> Iterator[Finding]:
    """Yield the proof of an eviction that no plugin has in mind: the pod's cool-down, or the node of its successor."""
    proof = CycleProof(snapshot, proving).prove(ProofCandidate(pod, "an eviction"))
    if proof is not None:
        yield heading("if it were evicted", (_proof(proof),), kind="proof")


def _proof(proof: EvictionProof) -> Finding:
    """Return a proof as a finding: its result, the scorers that bring the pod back, or the nodes that refuse it."""
    loop = proof.loop
    parts: list[Finding] = []
    if loop is not None:
        parts.append(_said("evicts", loop.evicted_by))
        if not loop.same_node:
            parts.append(_said("clears", f"{loop.node}: {shortened(loop.cleared)}"))
        parts += [_said("prefers", f"profile {loop.profile}: {each}") for each in loop.preferred_by]
        if loop.preferred_by_left_out:
            parts.append(left_out(loop.preferred_by_left_out, "scorer"))
    refused = proof.reasons or (loop.refused if loop is not None else {})
    parts += [_said("refuses", f"{number} node{'s' if number > 1 else ''}: {shortened(reason)}")
              for reason, number in refused.items()]
    effect = "" if proof.effect is Proof.ENFORCE else f" [{proof.effect.value.lower()}]"
    return _said(_PROOFS[proof.result], f"proof{effect}: {shortened(proof.message, 400)}",
                 facts={"proof": proof.to_json()}, parts=parts)


_PROOFS: Final = {
    ProofResult.HELPS: "helps", ProofResult.LOOP: "loop", ProofResult.NO_NODE: "no node",
    ProofResult.COOL_DOWN: "cool-down", ProofResult.UNPROVED: "unproved",
}


def _profile(request: ExplainEvictionRequest, profile: DeschedulerProfile, result: CycleResult) -> Iterator[Finding]:
    pod, snapshot = request.pod, request.snapshot
    rows = select_rows(snapshot, ready_rows(snapshot, request.node_selector), profile.node_selector)
    found: list[Finding] = []
    excluded = _excluded(request, profile, rows)
    if excluded:
        found.append(_said("not seen", excluded))
    else:
        for point, plugins in (("deschedule", profile.deschedule), ("balance", profile.balance)):
            for running in plugins:
                look = _Look(request, profile, result, rows)
                found.append(_plugin(look, running, point))
    yield heading(f"profile {profile.name}", found or (_said("idle", "no plugin is active in it"),), kind="profile")
    vetoes = tuple(_vetoes(profile, pod, snapshot.overlay({})))
    yield heading("who may veto it", vetoes, kind="vetoes")


def _excluded(request: ExplainEvictionRequest, profile: DeschedulerProfile, rows: Rows) -> str:
    """Return why a profile excludes the pod's node; empty if it does not."""
    pod, index = request.pod, request.snapshot.index
    if not pod.node_name:
        return "it is on no node: there is nothing to evict it from"
    if pod.node_name not in index:
        return f"its node {pod.node_name} is not known"
    row = index[pod.node_name]
    if row in rows:
        return ""
    if row not in ready_rows(request.snapshot):
        return f"its node {pod.node_name} is not ready"
    chosen = request.node_selector is None or row in ready_rows(request.snapshot, request.node_selector)
    return f"the node selector of {f'profile {profile.name}' if chosen else 'the configuration'} leaves its node out"


@dataclass(frozen=True, slots=True)
class _Look:
    request: ExplainEvictionRequest
    profile: DeschedulerProfile
    result: CycleResult
    rows: Rows

    @property
    def pod(self) -> PodInfo:
        return self.request.pod

    def notes(self, running: RunningPlugin) -> Iterator[tuple[str, str]]:
        """Yield the roles that a plugin recorded for the pod's node, with reasons."""
        for note in self.result.node_notes:
            if (note.profile, note.plugin, note.node) == (self.profile.name, running.name, self.pod.node_name):
                yield note.role, note.message


def _plugin(look: _Look, running: RunningPlugin, point: str) -> Finding:
    pod = look.pod
    outcome = next((each for each in look.result.outcomes if each.pod == pod.key
                    and (each.decision.profile, each.decision.plugin) == (look.profile.name, running.name)), None)
    watched = "" if running.enforcement is Enforcement.ENFORCE else f" [{running.enforcement.value.lower()} only]"
    name = f"{running.name}{watched}"
    facts: dict[str, Any] = {"plugin": running.name, "point": point}
    if outcome is not None:
        facts |= {"outcome": outcome.to_json()}
        decision = outcome.decision
        proof = () if decision.proof is None else (_proof(decision.proof),)
        if decision.evicted:
            return _said("evicts", f"{name}: {shortened(decision.reason or decision.rule)}", facts=facts, parts=proof)
        stopper = ": ".join(filter(None, (decision.stopped_by, decision.stopped_rule)))
        by = f" ({stopper})" if decision.stopped_by != running.name else ""
        chosen = f"chosen by {decision.rule}, but " if decision.rule else ""
        why = "its eviction does not help" if decision.stopped_by == PROOF else shortened(decision.message)
        return _said(_STOPS.get(decision.stopped_by, "stays"), f"{name}: {chosen}{why}{by}", facts=facts, parts=proof)
    failed = [each for each in look.result.failures if (each.profile, each.plugin) == (look.profile.name, running.name)
              and each.subject in ("", pod.key, pod.node_name)]
    if isinstance(running.instance, DocumentPlugin):
        state, text, parts = _document(look, running, point)
    elif isinstance(running.instance, ExplainsNode):
        state, text, parts = _evaluated(look, running)
    else:
        roles = [f"{role}{f': {message}' if message else ''}" for role, message in look.notes(running)]
        state, text, parts = "not chosen", f"its node was found {'; '.join(roles)}" if roles else "", ()
    parts += tuple(_said("failed", f"{f'{each.rule}: ' if each.rule else ''}{shortened(each.message)}", Mark.ERROR)
                   for each in failed)
    return _said(state, f"{name}{f': {text}' if text else ''}", facts=facts, parts=parts)


_STOPS: Final = {"limits": "limit", "enforcement": "watched"}
"""The word for an outcome by what stopped it; all others are `stays`."""


def _evaluated(look: _Look, running: RunningPlugin) -> tuple[str, str, tuple[Finding, ...]]:
    roles = dict(look.notes(running))
    try:
        parts = tuple(running.instance.explain_node(look.request.snapshot, look.rows, look.pod.node_name))
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        parts = (_said("failed", describe(error), Mark.ERROR),)
    if WAITING in roles:
        return "waits", f"{look.pod.node_name} has not been a source for long enough", parts
    if "source" in roles:
        return "not chosen", f"{look.pod.node_name} is a source, and the pod is none that it gives up", parts
    return "not source", f"{look.pod.node_name} is none that pods leave", parts


def _document(look: _Look, running: RunningPlugin, point: str) -> tuple[str, str, tuple[Finding, ...]]:
    """Return the first reason why a document does not choose the pod."""
    plugin, pod, snapshot = running.instance, look.pod, look.request.snapshot
    compiled = plugin.compiled
    cycle: DocumentCycle = plugin.cycle(snapshot, look.rows)
    state = NodeState(snapshot.index[pod.node_name], pod.node_name)
    if not cycle.matches_node(state):
        return "not source", "`match.nodes` does not take its node", ()
    roles = dict(look.notes(running))
    if "unmeasured" in roles:
        return "unmeasured", f"{pod.node_name}: {roles['unmeasured']}", ()
    source = compiled.source
    if source is not None and not _is_true(source, cycle.of_node(state)):
        return "not source", f"{pod.node_name} is none", distances_to(source, cycle.of_node(state))
    above = () if source is None else distances_to(source, cycle.of_node(state))
    if WAITING in roles:
        return "waits", f"{pod.node_name} is {roles['waiting']}", above
    if not accepts_pod(compiled.spec.match.pods, pod, snapshot):
        return "not chosen", "`match.pods` does not take it", ()
    for what, rules in (("matchConditions ", compiled.match_conditions), ("criterion ", compiled.criteria)):
        for rule in rules:
            if not _is_true(rule.program, cycle.of_pod(state, pod)):
                return "not chosen", f"{what}{rule.name} is false", _why(rule, cycle.of_pod(state, pod))
    pods = cycle.assigned.active(state.row) if point == "balance" else cycle.assigned.all(state.row)
    if all(each.key != pod.key for each in pods):
        return "not chosen", "it has finished, or is leaving already", ()
    if source is not None and "source" not in roles:
        if any((each.plugin, each.rule, each.subject) == (running.name, "nodes.sort", pod.node_name)
               for each in look.result.failures):
            return "not source", f"{pod.node_name} has no place in the order of sources", above
        return "stays", f"what others evict from {pod.node_name} in this cycle is enough for it", above
    return "stays", "others came first, and `until` is true of its node", above


def _is_true(program: Program, bindings: Mapping[str, object]) -> bool:
    try:
        return program.evaluate(bindings) is True
    except EvaluationError:
        return False


def _why(rule: Rule, bindings: Mapping[str, object]) -> tuple[Finding, ...]:
    try:
        rule.program.evaluate(bindings)
    except EvaluationError as error:
        return (_said("failed", shortened(error.message), Mark.ERROR),)
    return distances_to(rule.program, bindings)


def _vetoes(profile: DeschedulerProfile, pod: PodInfo, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield each filter's result for the pod, even if no plugin has chosen it."""
    for running in profile.filters:
        refusals = []
        for protocol, ask in ((EvictionFilter, "eviction_filter"), (PreEvictionFilter, "pre_eviction_filter")):
            if not isinstance(running.instance, protocol):
                continue
            try:
                refusal = getattr(running.instance, ask)(pod, snapshot)
            except BaseException as error:  # the border between framework and plugin
                must_be_survived(error)
                yield _said("failed", f"{running.name}: {describe(error)}", Mark.ERROR)
                continue
            if refusal is not None:
                refusals.append(refusal)
        watched = "" if running.enforcement is Enforcement.ENFORCE else f" [{running.enforcement.value.lower()} only]"
        for refusal in refusals:
            yield _said("vetoes", f"{running.name}{watched}: {shortened(refusal.message)}", facts={
                "plugin": running.name, "rule": refusal.rule, "message": refusal.message,
            }, parts=_veto_distances(running, refusal.rule, pod, snapshot))
        if not refusals:
            yield _said("allows", running.name, facts={"plugin": running.name})


def _veto_distances(running: RunningPlugin, name: str, pod: PodInfo, snapshot: Snapshot) -> tuple[Finding, ...]:
    plugin = running.instance
    if not isinstance(plugin, DocumentPlugin) or plugin.compiled.spec.type is not DeschedulerType.EVICTION_FILTER:
        return ()
    rule = next((each for each in plugin.compiled.criteria if each.name == name), None)
    row = snapshot.index.get(pod.node_name, -1)
    if rule is None:
        return ()
    return _why(rule, plugin.cycle(snapshot, _every_row(snapshot)).of_pod(NodeState(row, pod.node_name), pod))


def _every_row(snapshot: Snapshot) -> Rows:
    return select_rows(snapshot, ready_rows(snapshot), None)


def _said(
    word: str, text: str, mark: Mark = Mark.PLAIN, facts: Mapping[str, Any] | None = None,
    parts: Iterable[Finding] = (),
) -> Finding:
    found = Finding("state", text, Mark.PLAIN, {"state": word, **(facts or {})}, tuple(parts),
                    lead=f"{word.ljust(_WIDTH)}  ")
    return replace(found, facts={**found.facts, "failed": True}) if mark is Mark.ERROR else found

"""Audit: policies and rules that have no effect in a cluster, refuse everything, or fail, and the coverage of policies.

Every rule is evaluated alone on all nodes, for every kind of running or pending pod, so that a refusal by another rule
does not hide its result. System pods that are exempt from a policy do not count for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import CompiledDescheduler, CompiledQoS, CompiledScheduler
from koordpolicy.engine.compile.programs import Rule
from koordpolicy.engine.descheduler import config as descheduling
from koordpolicy.engine.descheduler.documents import DocumentPlugin
from koordpolicy.engine.documents import DeschedulerSpec, DeschedulerType, NodeMatch, QoSSpec, SchedulerSpec
from koordpolicy.engine.evaluation.pod_selection import accepts_pod, exempt
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.points import Enforcement, Framework, Proof
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.framework.scheduler import CycleState
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.documents.context import CONDITIONS
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler
from koordpolicy.engine.scheduler.profiles.profile import Profile
from koordpolicy.engine.testing.instruments import compiled_of, programs_of

from .audit_results import Audit, AuditFinding, AuditLevel, PolicyCoverage, RuleUse, What
from .eligibility import Scorer
from .failures import FailureCount
from .outcome import Outcome, outcome
from .shapes import FieldReads, shapes_of

FEW_PERCENT: Final = 1.0
_MEASURED: Final = frozenset(("usage", "estimated", "metricAge", "nodeMetric", "podUsage"))
_EXAMPLES: Final = 3

_Progress = Callable[[float], None]


def audit(
    registry: Registry, cluster: Cluster, *, now: int, settings: Settings | None = None,
    descheduler: descheduling.DeschedulerConfiguration | None = None, gates: Mapping[str, bool] | None = None,
    few_percent: float = FEW_PERCENT, proves: bool = False, progress: _Progress = lambda _: None,
) -> Audit:
    """Audit the documents of a registry over a cluster at `now` (ns since the epoch).

    A policy that matches fewer than `few_percent` of the nodes or pods is reported. The other arguments are those of
    `outcome`; the cluster is not changed.

    Raises:
        PolicyError: a plugin of the registry cannot be made.
    """
    found = outcome(registry, cluster, now=now, settings=settings, descheduler=descheduler, gates=gates,
                    proves=proves, progress=lambda part: progress(part / 2))
    snapshot = cluster.snapshot(now)
    running = [pod for row in range(snapshot.size) for pod in snapshot.pods(row)]
    pods = (*cluster.pending, *running)
    auditor = _Auditor(registry, snapshot, pods, found, few_percent)
    scheduler = Scheduler(cluster, Live(registry), settings, clock=lambda: now)
    try:
        auditor.look_at_scheduling(scheduler, lambda part: progress((1 + part) / 2))
    finally:
        scheduler.close()
    auditor.look_at_qos()
    auditor.look_at_descheduling((descheduler or descheduling.default()).profiles)
    auditor.look_at_metrics()
    order = [AuditLevel.WARNING, AuditLevel.NOTE]
    findings = sorted(auditor.findings, key=lambda each: (order.index(each.level), each.framework, each.policy))
    policies = sorted(auditor.coverages, key=lambda each: (each.framework, each.policy))
    progress(1.0)
    return Audit(tuple(findings), tuple(policies), len(pods), snapshot.size)


class _Auditor:
    def __init__(
        self, registry: Registry, snapshot: Snapshot, pods: tuple[PodInfo, ...], found: Outcome, few_percent: float,
    ) -> None:
        self._registry = registry
        self._snapshot = snapshot
        self._pods = pods
        self._found = found
        self._few = few_percent / 100
        self.findings: list[AuditFinding] = []
        self.coverages: list[PolicyCoverage] = []

    def _documents(self, framework: Framework) -> Iterator[Plugin]:
        return (plugin for plugin in self._registry.of_framework(framework) if plugin.source)

    def _cover(self, plugin: Plugin, match: NodeMatch | None) -> PolicyCoverage:
        coverage = PolicyCoverage(plugin.name, plugin.framework.value, plugin.enforcement, plugin.origin)
        coverage.nodes = self._snapshot.size if match is None else sum(
            match.accepts(name, self._snapshot.node(row)["metadata"].get("labels") or {})
            for row, name in enumerate(self._snapshot.names)
        )
        self.coverages.append(coverage)
        return coverage

    def _warn(
        self, coverage: PolicyCoverage, what: What, message: str, *, rule: str = "", examples: Iterable[str] = (),
    ) -> None:
        level = AuditLevel.WARNING
        if coverage.enforcement is not Enforcement.ENFORCE and what in _HARMLESS_WATCHED:
            level, message = AuditLevel.NOTE, f"{message} (it is only watched: {coverage.enforcement.value})"
        self._add(coverage, level, what, (message, rule, tuple(examples)))

    def _note(self, coverage: PolicyCoverage, what: What, message: str, *, rule: str = "") -> None:
        self._add(coverage, AuditLevel.NOTE, what, (message, rule, ()))

    def _add(
        self, coverage: PolicyCoverage, level: AuditLevel, what: What, text: tuple[str, str, tuple[str, ...]],
    ) -> None:
        message, rule, examples = text
        self.findings.append(
            AuditFinding(
                level,
                what,
                message,
                coverage.policy,
                coverage.framework,
                rule,
                coverage.origin,
                examples[:_EXAMPLES],
                len(examples[_EXAMPLES:]),
            ),
        )

    def _report_matches(self, coverage: PolicyCoverage, *, pods: bool = True) -> bool:
        """Report if `match` selects nothing or little; return whether it selects anything."""
        if not coverage.nodes:
            self._warn(coverage, What.MATCHES_NOTHING, "`match.nodes` takes none of "
                       f"{counted(self._snapshot.size, 'node')}")
            return False
        if pods and not coverage.pods:
            whom = f"no pod but {counted(coverage.exempt, 'pod')} of the system, which it leaves alone" \
                if coverage.exempt else f"none of {counted(len(self._pods), 'pod')}"
            self._warn(coverage, What.MATCHES_NOTHING, f"`match.pods` takes {whom}")
            return False
        for count, whole, kind in ((coverage.nodes, self._snapshot.size, "node"),
                                   (coverage.pods, len(self._pods), "pod")):
            if (kind == "node" or pods) and count < whole * self._few:
                self._note(coverage, What.MATCHES_FEW, f"it is about {count:,} of {counted(whole, kind)}")
        return True

    # Scheduling

    def look_at_scheduling(self, scheduler: Scheduler, progress: _Progress) -> None:
        """Evaluate every rule of every document on all nodes, for every kind of pod."""
        subjects: dict[str, _Subject] = {}
        for plugin in self._documents(Framework.SCHEDULER):
            compiled = compiled_of(plugin, {})
            assert isinstance(compiled, CompiledScheduler)
            spec = compiled.spec
            assert isinstance(spec, SchedulerSpec)
            subjects[plugin.name] = _Subject(self._cover(plugin, spec.match.nodes), compiled)
        instances = {profile.name: _instances(profile) for profile in scheduler.profiles}
        groups = shapes_of(self._pods, FieldReads.of(scheduler.profiles))
        rows = np.arange(self._snapshot.size, dtype=np.intp)
        deciding: set[str] = set()
        for number, group in enumerate(groups, start=1):
            pod = group[0].unbound()
            profile = scheduler.profile_of(pod).name
            deciding.add(profile)
            for name, instance in instances[profile].items():
                subjects[name].ask(instance, pod, [each.key for each in group], self._snapshot, rows)
            progress(number / len(groups))
        for scorer in self._found.scorers:
            plugin = self._registry.plugins[Framework.SCHEDULER, scorer.plugin]
            # Plugins that are active by default were not configured by the user.
            if not plugin.source and not plugin.enabled and scorer.shapes and scorer.constant == scorer.shapes:
                self.findings.append(AuditFinding(
                    AuditLevel.WARNING, What.CONSTANT_SCORE, _constant(scorer), plugin.name, plugin.framework.value,
                    origin=plugin.origin,
                ))
        for name, subject in subjects.items():
            at_work = {profile for profile, of in instances.items() if name in of}
            self._report_scheduling(subject, at_work, deciding, bool(groups))

    def _report_scheduling(self, subject: _Subject, at_work: set[str], deciding: set[str], any_pod: bool) -> None:
        coverage = subject.coverage
        coverage.rules = [use for use in coverage.rules if use.failed or use.point != CONDITIONS]
        if any_pod and not at_work & deciding:
            coverage.active = False
            where = ", ".join(f"`{name}`" for name in sorted(at_work)) or "no profile that is set up here"
            self._warn(coverage, What.NEVER_ACTIVE, f"it is active in {where}, which decides about no pod")
            return
        if not self._report_matches(coverage):
            return
        if not coverage.met:
            self._warn(coverage, What.MATCHES_NOTHING, "`matchConditions` hold for no pod and node")
        for use in coverage.rules:
            self._report_rule(coverage, use)
        for scorer in self._found.scorers:
            if scorer.plugin == coverage.policy and scorer.shapes and scorer.constant == scorer.shapes:
                self._warn(coverage, What.CONSTANT_SCORE, _constant(scorer))
        self._report_faults(coverage, {use.name for use in coverage.rules if use.failed})

    def _report_rule(self, coverage: PolicyCoverage, use: RuleUse) -> None:
        if use.failed:
            share = "always" if use.failed == use.evaluated else f"{use.failed:,} of {use.evaluated:,} times"
            self._warn(coverage, What.FAILS, f"it fails {share}: {use.error}", rule=use.name)
        if use.failed == use.evaluated or use.point in _REFUSES_NOBODY:
            return
        if use.refused == use.evaluated - use.failed:
            self._warn(coverage, What.REFUSES_EVERYTHING, f"it refuses all {use.refused:,} pairs of a pod and a node "
                       "that it is about", rule=use.name, examples=use.stranded)
        elif use.stranded:
            message = f"it refuses every node to {counted(len(use.stranded), 'pod')} of {coverage.pods:,}"
            self._warn(coverage, What.STRANDS_PODS, message, rule=use.name, examples=use.stranded)
        elif not use.refused:
            self._note(coverage, What.REFUSES_NOTHING, f"it refuses none of {use.evaluated:,} pairs of a pod and a "
                       "node", rule=use.name)

    def _report_faults(self, coverage: PolicyCoverage, reported: set[str]) -> None:
        rules: dict[str, list[FailureCount]] = {}
        for fault in self._found.faults:
            if fault.plugin == coverage.policy and fault.rule not in reported:
                rules.setdefault(fault.rule, []).append(fault)
        for rule, faults in rules.items():
            times, most = sum(each.times for each in faults), max(faults, key=lambda each: each.times)
            mostly = "" if len(faults) == 1 else "mostly "
            self._warn(coverage, What.FAILS, f"it fails {counted(times, 'time')}: {mostly}{most.message}", rule=rule,
                       examples=(most.example,))

    # Quality of service

    def look_at_qos(self) -> None:
        """Report thresholds that are never true, and actions without effect."""
        measured = self._found.summary.measured
        for plugin in self._documents(Framework.QOS):
            compiled = compiled_of(plugin, {})
            assert isinstance(compiled, CompiledQoS)
            spec = compiled.spec
            assert isinstance(spec, QoSSpec)
            coverage = self._cover(plugin, spec.match.nodes)
            placed = (pod for pod in self._pods if pod.node_name)
            coverage.pods = sum(accepts_pod(spec.match.pods, pod, self._snapshot) for pod in placed)
            if not self._report_matches(coverage):
                continue
            use = self._found.qos.get(plugin.name)
            if use is None:
                if measured:
                    coverage.active = False
                    gate = f"its feature gate `{spec.feature_gate}` is off" if spec.feature_gate else "it is off"
                    self._warn(coverage, What.NEVER_ACTIVE, gate)
                continue
            coverage.met = True
            for threshold in compiled.thresholds:
                if not use.true[threshold.rule.name]:
                    self._note(coverage, What.NEVER_ACTS, "it is true on none of "
                               f"{counted(measured, 'measured node')}", rule=threshold.rule.name)
            for action in compiled.actions:
                if not use.acted[action.name]:
                    self._note(coverage, What.NEVER_ACTS, "it has nothing to do on "
                               f"{counted(measured, 'measured node')}", rule=action.name)
            self._report_faults(coverage, set())

    # Descheduling

    def look_at_descheduling(self, profiles: Iterable[Any]) -> None:
        """Report documents without source, target or candidate, and vetoes that never or always hold."""
        names = {profile.name for profile in profiles}
        cycle = self._found.cycle
        for plugin in self._documents(Framework.DESCHEDULER):
            compiled = compiled_of(plugin, {})
            assert isinstance(compiled, CompiledDescheduler)
            spec = compiled.spec
            assert isinstance(spec, DeschedulerSpec)
            coverage = self._cover(plugin, spec.match.nodes)
            matched = [pod for pod in self._pods if pod.node_name and accepts_pod(spec.match.pods, pod, self._snapshot)]
            coverage.pods = len(matched)
            if plugin.profiles is not None and not plugin.profiles & names:
                coverage.active = False
                where = ", ".join(f"`{name}`" for name in sorted(plugin.profiles))
                self._warn(coverage, What.NEVER_ACTIVE, f"it is active in {where}, which is not set up")
                continue
            if not self._report_matches(coverage):
                continue
            coverage.met = True
            if spec.type is DeschedulerType.EVICTION_FILTER:
                self._report_vetoes(coverage, DocumentPlugin(compiled), matched)
            else:
                roles = {note.role for note in cycle.node_notes if note.plugin == plugin.name}
                self._report_moves(coverage, compiled, roles)
            self._report_faults(coverage, set())

    def _report_vetoes(self, coverage: PolicyCoverage, plugin: DocumentPlugin, pods: list[PodInfo]) -> None:
        vetoes: dict[str, list[str]] = {}
        for pod in pods:
            refusal = plugin.eviction_filter(pod, self._snapshot)
            if refusal is not None:
                vetoes.setdefault(refusal.rule, []).append(pod.key)
        count = sum(map(len, vetoes.values()))
        if not count:
            self._note(coverage, What.REFUSES_NOTHING, f"it keeps none of {counted(len(pods), 'pod')} from being "
                       "evicted")
        elif count == len(pods):
            rule, keys = max(vetoes.items(), key=lambda item: len(item[1]))
            self._warn(coverage, What.REFUSES_EVERYTHING, f"it keeps all {counted(count, 'pod')} that it is "
                       "about from being evicted", rule=rule, examples=keys)

    def _report_moves(self, coverage: PolicyCoverage, compiled: CompiledDescheduler, roles: set[str]) -> None:
        if self._found.cycle.error:
            self._note(coverage, What.NEVER_ACTS, f"the cycle ended early: {self._found.cycle.error}")
            return
        if compiled.source is not None and "source" not in roles:
            self._note(coverage, What.NEVER_ACTS, f"it is true of none of {counted(coverage.nodes, 'node')}",
                       rule="nodes.source")
            return
        if compiled.target is not None and "target" not in roles:
            self._warn(coverage, What.NO_TARGET, "no node takes what the sources would give up",
                       rule="nodes.target")
        mine = [each for each in self._found.cycle.outcomes if each.decision.plugin == coverage.policy]
        useless = [(each, proof) for each in mine if (proof := each.decision.proof) is not None and proof.useless]
        if useless:
            first, made = useless[0][1], sum(each.decision.evicted for each, _ in useless)
            count, level = counted(len(useless), "eviction"), AuditLevel.WARNING
            text = f"{count} would not help, {made:,} would be made (`proof: {first.effect.value}`): {first.message}"
            if first.effect is Proof.OFF:
                level = AuditLevel.NOTE
            self._add(coverage, level, What.USELESS, (text, "", tuple(each.pod for each, _ in useless)))
        unproved = [each for each in self._found.cycle.unproved if each.decision.plugin == coverage.policy]
        if unproved:
            proof = unproved[0].decision.proof
            why = "not proved: no scheduler of the pods is known" if proof is None else proof.message
            text = f"{counted(len(unproved), 'eviction')} would be made without a proof: {why}"
            self._warn(coverage, What.UNPROVED, text, examples=(each.pod for each in unproved))
        if not any(each.decision.evicted for each in mine):
            stops: dict[str, int] = {}
            for each in mine:
                stops[each.decision.message] = stops.get(each.decision.message, 0) + 1
            commonest = max(stops, key=lambda text: stops[text], default="")
            why = f": {counted(len(mine), 'candidate')} stay, mostly because {commonest}" if mine else ""
            self._note(coverage, What.NEVER_ACTS, f"it would evict nobody{why}")

    # Metrics

    def look_at_metrics(self) -> None:
        """Report nodes without a metric or with an expired one, and the policies that read them."""
        snapshot = self._snapshot
        expired: list[tuple[int, str]] = []
        never: list[str] = []
        for row, name in enumerate(snapshot.names):
            metric = snapshot.row(row).metric
            if metric is None or metric.updated is None:
                never.append(name)
            elif not snapshot.is_fresh(row):
                expired.append(((snapshot.now - metric.updated) // NANOSECONDS, name))
        readers = sorted({
            plugin.name for framework in Framework for plugin in self._documents(framework)
            for program in programs_of(compiled_of(plugin, {}))
            if any(path[0] in _MEASURED for path in program.checked.reads)
        })
        reading = f"; read by {', '.join(f'`{name}`' for name in readers)}" if readers else ""
        if expired:
            age = max(expired)[0]
            self.findings.append(AuditFinding(
                AuditLevel.WARNING, What.EXPIRED_METRICS,
                f"the metric of {counted(len(expired), 'node')} of {snapshot.size:,} is expired, the oldest of {age:,} "
                f"s{reading}", examples=tuple(name for _, name in expired[:_EXAMPLES]),
                others=len(expired[_EXAMPLES:]),
            ))
        if never and readers:
            self.findings.append(AuditFinding(
                AuditLevel.WARNING if len(never) == snapshot.size else AuditLevel.NOTE, What.NO_METRICS,
                f"{counted(len(never), 'node')} of {snapshot.size:,} {'was' if len(never) == 1 else 'were'} never "
                f"measured{reading}",
                examples=tuple(never[:_EXAMPLES]), others=len(never[_EXAMPLES:]),
            ))


_REFUSES_NOBODY: Final = ("score", CONDITIONS)
_HARMLESS_WATCHED: Final = frozenset((What.REFUSES_EVERYTHING, What.STRANDS_PODS, What.CONSTANT_SCORE))


@dataclass(slots=True)
class _Subject:
    """A SchedulerPlugin document, and each of its rules as a separate document."""

    coverage: PolicyCoverage
    compiled: CompiledScheduler
    _alone: dict[tuple[int, str, str], DocumentScheduler] = field(default_factory=dict)
    _uses: dict[tuple[str, str], RuleUse] = field(default_factory=dict)

    def ask(
        self, instance: DocumentScheduler, pod: PodInfo, keys: list[str], snapshot: Snapshot, rows: Any,
    ) -> None:
        """Evaluate every rule for one kind of pods."""
        coverage, match = self.coverage, self.compiled.spec.match.pods
        if not accepts_pod(match, pod, snapshot):
            return
        checked = self.compiled.filter or self.compiled.pre_filter or self.compiled.pre_enqueue
        if checked and not self.compiled.score and exempt(match, pod):
            coverage.exempt += len(keys)
            return
        coverage.pods += len(keys)
        state = CycleState()
        about = instance.concerns(state, pod, snapshot)
        unknown = instance.failed_conditions(state, pod, snapshot, rows)
        conditions = self._use(CONDITIONS, CONDITIONS)
        conditions.evaluated += len(rows) * len(keys)
        conditions.failed += len(unknown) * len(keys)
        conditions.error = conditions.error or next((each.message for each in unknown.values()), "")
        if not about.any():
            return
        coverage.met = True
        for item, errors in self._failed_scores(instance, pod, snapshot, rows):
            use = self._use("score", item)
            use.evaluated += int(about.sum()) * len(keys)
            use.failed += len(errors) * len(keys)
            use.error = use.error or next((each.message for each in errors.values()), "")
        if exempt(match, pod):
            return
        every = bool(about.all())
        for point, rules in (("preEnqueue", self.compiled.pre_enqueue), ("preFilter", self.compiled.pre_filter),
                             ("filter", self.compiled.filter)):
            for rule in rules:
                use = self._use(point, rule.name)
                alone = self._by_itself(instance, point, rule)
                use.evaluated += int(about.sum()) * len(keys)
                if point == "filter":
                    answer = alone.filter(CycleState(), pod, snapshot, rows)
                    errors = answer.errors.get(rule.name, {})
                    refused = about & ~answer.passed
                    refused[list(errors)] = False
                    failed = len(errors)
                    error = next(iter(errors.values())).message if errors else ""
                else:
                    refusal = alone.pre_filter(CycleState(), pod, snapshot)
                    failing = refusal is not None and refusal.error is not None
                    refused = about if refusal is not None and not failing else np.zeros_like(about)
                    failed = int(about.sum()) if failing else 0
                    error = refusal.message if refusal is not None and failing else ""
                use.refused += int(refused.sum()) * len(keys)
                use.failed += failed * len(keys)
                use.error = use.error or error
                if every and refused.all():
                    use.stranded += keys

    def _failed_scores(
        self, instance: DocumentScheduler, pod: PodInfo, snapshot: Snapshot, rows: Any,
    ) -> Iterator[tuple[str, Mapping[int, EvaluationError]]]:
        """Yield the score items with their errors, by row."""
        if self.compiled.score:
            scores = instance.score(CycleState(), pod, snapshot, rows)
            for each in self.compiled.score:
                yield each.item.name, scores.errors.get(each.item.name, {})

    def _use(self, point: str, name: str) -> RuleUse:
        key = (point, name)
        if key not in self._uses:
            self._uses[key] = RuleUse(name, point)
            self.coverage.rules.append(self._uses[key])
        return self._uses[key]

    def _by_itself(self, instance: DocumentScheduler, point: str, rule: Rule) -> DocumentScheduler:
        """Return the document with this rule alone, and the params that the instance has."""
        key = (id(instance), point, rule.name)
        if key not in self._alone:
            at = {"preEnqueue": "pre_enqueue", "preFilter": "pre_filter", "filter": "filter"}[point]
            rules: dict[str, Any] = {"pre_enqueue": (), "pre_filter": (), "filter": (), "score": (), at: (rule,)}
            self._alone[key] = DocumentScheduler(replace(instance.compiled, **rules))
        return self._alone[key]


def _instances(profile: Profile) -> dict[str, DocumentScheduler]:
    """Return the active documents of a profile, by name."""
    active = (*profile.pre_filters, *profile.filters, *profile.scores)
    return {each.name: each.instance for each in active if isinstance(each.instance, DocumentScheduler)}


def _constant(scorer: Scorer) -> str:
    values = f"{scorer.low}" + (f" to {scorer.high}, by pod" if scorer.high != scorer.low else "")
    return f"to every pod it says the same of all nodes: {values}"

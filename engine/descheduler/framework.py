"""One descheduling cycle over a snapshot: profiles, their plugins, the evictor that they receive, and the result.

All Deschedule plugins of all profiles run before all Balance plugins; every candidate's outcome is recorded, so that a
cycle reports for each pod what would evict it or what stopped that. (Koordinator pkg/descheduler semantics.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import Lack, Read, lacking
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.cluster.state import ClusterState
from koordpolicy.engine.compile import CompiledDescheduler
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.descheduler import Balance, Deschedule, Evict, EvictionFilter, PreEvictionFilter
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.points import Enforcement, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

from .documents import DocumentPlugin, SourceStreaks

TOO_SMALL: Final = "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation"


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """The maximum numbers of evictions in one cycle; None is no limit, 0 refuses all."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


class EvictionLimiter:
    """Counts the evictions of one cycle against limits (pkg/descheduler/evictions semantics)."""

    def __init__(self, limits: EvictionLimits) -> None:
        self._limits = limits
        self.per_node: dict[str, int] = {}
        self.per_namespace: dict[str, int] = {}
        self.total = 0

    def refusal(self, node: str, namespace: str) -> str:
        """Return the limit that one more eviction would exceed, or an empty text."""
        limits = self._limits
        if node and limits.per_node is not None and self.per_node.get(node, 0) + 1 > limits.per_node:
            return f"at most {limits.per_node} pods of one node per cycle"
        if limits.per_namespace is not None and self.per_namespace.get(namespace, 0) + 1 > limits.per_namespace:
            return f"at most {limits.per_namespace} pods of one namespace per cycle"
        if limits.total is not None and self.total + 1 > limits.total:
            return f"at most {limits.total} pods per cycle"
        return ""

    def done(self, node: str, namespace: str) -> None:
        """Count an eviction."""
        if node:
            self.per_node[node] = self.per_node.get(node, 0) + 1
        self.per_namespace[namespace] = self.per_namespace.get(namespace, 0) + 1
        self.total += 1

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether the node's limit is used up."""
        return self._limits.per_node is not None and self.per_node.get(node, 0) == self._limits.per_node


@dataclass(frozen=True, slots=True)
class EvictionOutcome:
    """The outcome of one candidate of one plugin.

    `rule` names the criterion or the phase that chose the pod. If the pod stays, `stopped_by` names the plugin or the
    limit that stopped the eviction, `stopped_rule` its rule, and `message` is the reason.
    """

    pod: str
    node: str
    profile: str
    plugin: str
    evicted: bool
    rule: str = ""
    reason: str = ""
    stopped_by: str = ""
    stopped_rule: str = ""
    message: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the outcome as plain data; fields that do not apply are omitted."""
        head = {"pod": self.pod, "node": self.node, "profile": self.profile, "plugin": self.plugin}
        rest = {"rule": self.rule, "reason": self.reason, "stoppedBy": self.stopped_by,
                "stoppedRule": self.stopped_rule, "message": self.message}
        return {**head, "evicted": self.evicted, **{key: value for key, value in rest.items() if value}}


@dataclass(frozen=True, slots=True)
class DeschedulerFailure:
    """A plugin that failed as a whole, or an expression that failed on a pod or a node."""

    profile: str
    plugin: str
    message: str
    rule: str = ""
    subject: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the failure as plain data; fields that do not apply are omitted."""
        values = {"profile": self.profile, "plugin": self.plugin, "rule": self.rule, "subject": self.subject}
        return {**{key: value for key, value in values.items() if value}, "message": self.message}


@dataclass(frozen=True, slots=True)
class NodeNote:
    """The role of a node for a plugin: `source`, `target`, `waiting` (not a source yet) or `unmeasured`."""

    node: str
    profile: str
    plugin: str
    role: str
    message: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the note as plain data."""
        head: dict[str, object] = {
            "node": self.node, "profile": self.profile, "plugin": self.plugin, "role": self.role,
        }
        return head | ({"message": self.message} if self.message else {})


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of one cycle, dry or not. `outcomes` are in the order in which they were decided."""

    generation: int
    dry_run: bool
    nodes: int
    outcomes: tuple[EvictionOutcome, ...] = ()
    failures: tuple[DeschedulerFailure, ...] = ()
    node_notes: tuple[NodeNote, ...] = ()
    error: str = ""
    """The reason why the cycle ended early; empty if it completed."""
    lacks: tuple[Lack, ...] = ()
    """The plugins whose evictions were refused, as they read kinds that the source of the cluster does not contain."""

    @property
    def evicted(self) -> tuple[EvictionOutcome, ...]:
        """The evictions."""
        return tuple(outcome for outcome in self.outcomes if outcome.evicted)

    @property
    def kept(self) -> tuple[EvictionOutcome, ...]:
        """The candidates that stay."""
        return tuple(outcome for outcome in self.outcomes if not outcome.evicted)

    def to_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        return {
            "generation": self.generation, "dryRun": self.dry_run, "nodes": self.nodes,
            "evicted": [outcome.to_json() for outcome in self.evicted],
            "kept": [outcome.to_json() for outcome in self.kept],
            "failures": [failure.to_json() for failure in self.failures],
            "nodeNotes": [note.to_json() for note in self.node_notes],
            **({"lacking": [lack.to_json() for lack in self.lacks]} if self.lacks else {}),
            **({"error": self.error} if self.error else {}),
        }


@dataclass(frozen=True, slots=True)
class DeschedulerProfileSpec:
    """A profile to build: its plugins by point, in order, and their arguments.

    `args` are by plugin name; those in `complete` are already in internal form, all others are checked and completed by
    the plugin itself.
    """

    name: str
    node_selector: Mapping[str, Any] | None = None
    deschedule: tuple[str, ...] = ()
    balance: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    filter: tuple[str, ...] = ()
    disabled: frozenset[str] = frozenset()
    """Names of documents that are not active in this profile; `*` for all of them."""
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()
    has_plugins: bool = True
    """False if the profile has no plugins section; such a profile is refused."""
    configured: tuple[str, ...] = ()
    """The plugin names of its arguments as written, to find duplicates."""


@dataclass(frozen=True, slots=True)
class RunningPlugin:
    """A plugin of a profile with its instance."""

    name: str
    instance: Any
    enforcement: Enforcement = Enforcement.ENFORCE
    reads: tuple[Read, ...] = ()
    """The kinds of objects that it reads; if the cluster lacks one of them, it evicts no pod and, as a filter, vetoes
    all evictions."""


@dataclass(frozen=True, slots=True)
class DeschedulerProfile:
    """A built profile."""

    name: str
    node_selector: Mapping[str, Any] | None
    deschedule: tuple[RunningPlugin, ...]
    balance: tuple[RunningPlugin, ...]
    filters: tuple[RunningPlugin, ...]
    evict: RunningPlugin | None


LACKING: Final = "lacking"
"""The rule of refusals of evictions that depend on kinds which the source of the cluster does not contain."""
_POINTS: Final[Mapping[str, tuple[Point, tuple[type, ...], str]]] = {
    "deschedule": (Point.DESCHEDULE, (Deschedule,), "DeschedulePlugin"),
    "balance": (Point.BALANCE, (Balance,), "BalancePlugin"),
    "evict": (Point.EVICTION_FILTER, (Evict,), "EvictPlugin"),
    "filter": (Point.EVICTION_FILTER, (EvictionFilter, PreEvictionFilter), "FilterPlugin"),
}


class CycleEvictor:
    """The evictor of the plugins of one profile during one cycle (implements `Evictor`)."""

    def __init__(
        self, profile: DeschedulerProfile, snapshot: Snapshot, limiter: EvictionLimiter, record: CycleRecord,
    ) -> None:
        self._profile = profile
        self._snapshot = snapshot
        self._limiter = limiter
        self._record = record
        self._plugin = ""
        self._enforcement = Enforcement.ENFORCE
        self._lacks = {each.plugin: each for each in lacks_of(profile, snapshot.cluster)}

    def hand_to(self, plugin: RunningPlugin) -> CycleEvictor:
        """Return this evictor for calls by that plugin."""
        self._plugin, self._enforcement = plugin.name, plugin.enforcement
        return self

    def filter(self, pod: PodInfo) -> Refusal | None:
        """Return the first veto on evicting the pod at all, or None."""
        return self._ask(pod, EvictionFilter, lambda each: each.eviction_filter(pod, self._snapshot))

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        """Return the first veto on evicting the pod now, or None."""
        return self._ask(pod, PreEvictionFilter, lambda each: each.pre_eviction_filter(pod, self._snapshot))

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        """Evict the pod unless a limit stops it; in a dry run it only counts."""
        if self._enforcement is not Enforcement.ENFORCE:
            message = f"would be evicted: {reason}"
            self._note(pod, rule=rule, by="enforcement", stopped_rule=self._enforcement.value, message=message)
            return False
        for name in (self._plugin, *(each.name for each in self._profile.filters if _counts(each))):
            if name in self._lacks:
                self._note(pod, rule=rule, by=name, stopped_rule=LACKING, message=self._lacks[name].message)
                return False
        other = self._record.evicted_by(pod.key)
        if other is not None and other != (self._profile.name, self._plugin):
            self._note(pod, rule=rule, by=other[1], stopped_rule="evicted", message="evicted already in this cycle")
            return False
        over = self._limiter.refusal(pod.node_name, pod.namespace)
        if over:
            self._note(pod, rule=rule, by="limits", stopped_rule="", message=over)
            return False
        if not self._record.dry_run:
            evictor = self._profile.evict
            if evictor is None:
                self._note(pod, rule=rule, by="evict", stopped_rule="", message="no evict plugin is enabled")
                return False
            if not evictor.instance.evict(pod, reason):
                self._note(pod, rule=rule, by=evictor.name, stopped_rule="", message="the eviction failed")
                return False
        self._limiter.done(pod.node_name, pod.namespace)
        self._record.put(EvictionOutcome(
            pod.key, pod.node_name, self._profile.name, self._plugin, evicted=True, rule=rule, reason=reason,
        ))
        return True

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        """Record that the calling plugin itself keeps a candidate."""
        self._note(pod, rule=rule, by=self._plugin, stopped_rule=refusal.rule, message=refusal.message)

    def observe(self, node: str, role: str, message: str = "") -> None:
        """Record the role of a node for the calling plugin."""
        note = NodeNote(node, self._profile.name, self._plugin, role, message)
        self._record.notes[note.profile, note.plugin, node, role] = note

    def fail(self, rule: str, subject: str, message: str) -> None:
        """Record that an expression of the calling plugin failed on a pod or a node."""
        self._record.failures.append(DeschedulerFailure(self._profile.name, self._plugin, message, rule, subject))

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether the limit of evictions from the node is used up."""
        return self._limiter.node_limit_exceeded(node)

    def is_leaving(self, pod: PodInfo) -> bool:
        """Return whether any plugin evicted the pod in this cycle."""
        return self._record.evicted_by(pod.key) is not None

    def _ask(self, pod: PodInfo, protocol: type, question: Callable[[Any], Refusal | None]) -> Refusal | None:
        for each in self._profile.filters:
            if not isinstance(each.instance, protocol):
                continue
            lack = self._lacks.get(each.name)
            try:
                # The inputs of a veto are unknown, so the pod stays.
                refusal = question(each.instance) if lack is None else Refusal(LACKING, lack.message)
            except BaseException as error:
                must_be_survived(error)
                self._record.failures.append(
                    DeschedulerFailure(self._profile.name, each.name, str(error), subject=pod.key),
                )
                refusal = Refusal("error", str(error))
            if refusal is None:
                continue
            if each.enforcement is Enforcement.ENFORCE:
                self._note(pod, rule="", by=each.name, stopped_rule=refusal.rule, message=refusal.message)
                return refusal
            self._record.audit(self._profile.name, each.name, pod.key, refusal)
        return None

    def _note(self, pod: PodInfo, *, rule: str, by: str, stopped_rule: str, message: str) -> None:
        self._record.put(EvictionOutcome(
            pod.key, pod.node_name, self._profile.name, self._plugin, evicted=False, rule=rule, stopped_by=by,
            stopped_rule=stopped_rule, message=message,
        ))


def lacks_of(profile: DeschedulerProfile, cluster: ClusterState) -> tuple[Lack, ...]:
    """Return the plugins of a profile that read kinds which the source of the cluster does not contain."""
    active = (*profile.deschedule, *profile.balance, *profile.filters)
    return lacking({each.name: each.reads for each in active}, cluster)


def _counts(plugin: RunningPlugin) -> bool:
    return plugin.enforcement is Enforcement.ENFORCE


class CycleRecord:
    """The state of a cycle: the last outcome per profile, plugin and pod; an eviction is final."""

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.outcomes: dict[tuple[str, str, str], EvictionOutcome] = {}
        self.failures: list[DeschedulerFailure] = []
        self.notes: dict[tuple[str, str, str, str], NodeNote] = {}
        self._evicted: dict[str, tuple[str, str]] = {}

    def put(self, outcome: EvictionOutcome) -> None:
        """Record an outcome."""
        key = (outcome.profile, outcome.plugin, outcome.pod)
        if outcome.evicted:
            self._evicted.setdefault(outcome.pod, (outcome.profile, outcome.plugin))
        known = self.outcomes.pop(key, None)
        self.outcomes[key] = known if known is not None and known.evicted else outcome

    def evicted_by(self, pod: str) -> tuple[str, str] | None:
        """Return profile and plugin that evicted the pod in this cycle, if any did."""
        return self._evicted.get(pod)

    def audit(self, profile: str, plugin: str, pod: str, refusal: Refusal) -> None:
        """Record a veto that is not enforced, as its document only warns or audits."""
        # Not a failure, but the only list of the result that is not about the calling plugin's candidates.
        self.failures.append(DeschedulerFailure(profile, plugin, f"would stay: {refusal.message}", refusal.rule, pod))


def build_profiles(
    specs: Iterable[DeschedulerProfileSpec], registry: Registry, *, dry_run: bool,
    snapshot: Callable[[], Snapshot] = lambda: Cluster().snapshot(), memory: SourceStreaks | None = None,
) -> tuple[DeschedulerProfile, ...]:
    """Make the plugins of all profiles; `memory` stores the state of documents that outlives a generation.

    `snapshot` returns the current cluster, for the plugins' handle; without it they see an empty one.

    Raises:
        PolicyError: a profile without a name or with a duplicate one, a plugin that does not exist, that does not
        implement the point it is enabled for, or whose arguments are invalid; or no evict plugin outside of a dry
        run, or several. All problems are collected.
    """
    problems: list[Problem] = []
    profiles: list[DeschedulerProfile] = []
    seen: set[str] = set()
    memory = memory or SourceStreaks()
    for spec in specs:
        log = logging.getLogger(f"koordpolicy.descheduler.{spec.name}")
        handle = Handle(spec.name, snapshot, lambda: snapshot().now, log)
        builder = _ProfileBuilder(spec, registry, handle, memory)
        profile = builder.build(dry_run=dry_run)
        problems += builder.problems
        if not spec.name:
            problems.append(Problem("descheduler name is needed", help="give each profile a `name`", code="profile"))
        elif not spec.has_plugins:
            message = f"plugins required for profile with descheduler name `{spec.name}`"
            problems.append(Problem(message, code="profile"))
        elif spec.name in seen:
            problems.append(Problem(f"duplicate profile with descheduler name `{spec.name}`", code="profile"))
        seen.add(spec.name)
        profiles.append(profile)
    if not profiles and not problems:
        problems.append(Problem("at least one profile is required", code="profile"))
    if problems:
        raise PolicyError(problems)
    return tuple(profiles)


class _ProfileBuilder:
    def __init__(self, spec: DeschedulerProfileSpec, registry: Registry, handle: Handle, memory: SourceStreaks) -> None:
        self._memory = memory
        self._spec = spec
        self._registry = registry
        self._handle = handle
        self._made: dict[str, RunningPlugin | None] = {}
        self.problems: list[Problem] = []

    def build(self, *, dry_run: bool) -> DeschedulerProfile:
        spec = self._spec
        for name in sorted({each for each in spec.configured if spec.configured.count(each) > 1}):
            self._complain(f"repeated config for plugin `{name}`")
        self._complain_unknown()
        lists = {point: self._named(point, getattr(spec, point), dry_run=dry_run) for point in _POINTS}
        for plugin in self._registry.of_framework(Framework.DESCHEDULER):
            point = self._document_list(plugin)
            if point is not None and all(each.name != plugin.name for each in lists[point]):
                active = self._make(plugin)
                if active is not None:
                    lists[point].append(active)
        if len(lists["evict"]) > 1:
            self._complain("only one evict plugin can be enabled")
        elif not spec.evict and spec.has_plugins and not dry_run:
            self._complain("no evict plugin is enabled")
        return DeschedulerProfile(
            spec.name, spec.node_selector, tuple(lists["deschedule"]), tuple(lists["balance"]), tuple(lists["filter"]),
            lists["evict"][0] if lists["evict"] else None,
        )

    def _named(self, point: str, names: Sequence[str], *, dry_run: bool) -> list[RunningPlugin]:
        _, protocols, interface = _POINTS[point]
        found: list[RunningPlugin] = []
        for name in names:
            plugin = self._registry.plugins.get((Framework.DESCHEDULER, name))
            if plugin is None:
                known = [each.name for each in self._registry.of_framework(Framework.DESCHEDULER)]
                self._complain(f"{interface} `{name}` does not exist", did_you_mean(name, known))
                continue
            if any(each.name == name for each in found):
                self._complain(f"plugin `{name}` already registered as `{interface}`")
                continue
            active = self._make(plugin)
            if active is None:
                continue
            # A dry run never calls `evict`, so an evictor that implements only the filter suffices.
            if not isinstance(active.instance, protocols) and not (point == "evict" and dry_run):
                hint = "evictions are not available yet, but dry runs are" if point == "evict" else ""
                self._complain(f"plugin `{name}` does not extend {interface} plugin", hint)
                continue
            found.append(active)
        return found

    def _complain_unknown(self) -> None:
        """Report names of unknown plugins; names in lists are reported there."""
        spec = self._spec
        known = [plugin.name for plugin in self._registry.of_framework(Framework.DESCHEDULER)]
        listed = {name for point in _POINTS for name in getattr(spec, point)}
        for name in sorted(spec.disabled - {"*", *known}):
            self._complain(f"it disables the plugin `{name}`, which does not exist", did_you_mean(name, known))
        for name in spec.args:
            if name not in known and name not in listed:
                self._complain(f"it has arguments for the plugin `{name}`, which does not exist",
                               did_you_mean(name, known))

    def _document_list(self, plugin: Plugin) -> str | None:
        """Return the list in which a plugin is active without being named, or None."""
        spec = self._spec
        if not plugin.enabled or spec.disabled & {plugin.name, "*"}:
            return None
        if plugin.profiles is not None and spec.name not in plugin.profiles:
            return None
        lists = (name for name, (point, _, _) in _POINTS.items() if name != "evict" and point in plugin.points)
        return next(lists, None)

    def _make(self, plugin: Plugin) -> RunningPlugin | None:
        if plugin.name not in self._made:
            args = self._spec.args.get(plugin.name, {})
            try:
                if plugin.name not in self._spec.complete and plugin.check_args is not None:
                    args = plugin.check_args(args)
                made = plugin.make(args, self._handle)
                document = isinstance(made, CompiledDescheduler)
                instance = DocumentPlugin(made, self._memory, self._spec.name) if document else made
                self._made[plugin.name] = RunningPlugin(plugin.name, instance, plugin.enforcement, plugin.reads)
            except PolicyError as error:
                self.problems += error.problems
                self._made[plugin.name] = None
            except BaseException as error:
                must_be_survived(error)
                self._complain(f"initializing plugin `{plugin.name}`: {error}")
                self._made[plugin.name] = None
        return self._made[plugin.name]

    def _complain(self, message: str, hint: str = "") -> None:
        self.problems.append(Problem(f"profile `{self._spec.name}`: {message}", help=hint, code="profile"))


def run_cycle(
    profiles: Sequence[DeschedulerProfile],
    snapshot: Snapshot,
    *,
    limits: EvictionLimits = EvictionLimits(),
    dry_run: bool = True,
    node_selector: Mapping[str, Any] | None = None,
    generation: int = 0,
) -> CycleResult:
    """Run one cycle over a snapshot, at the snapshot's time.

    A plugin that raises does not stop the others of its point; but then the cycle ends after its profile, so that no
    balancing follows an incomplete descheduling.
    """
    rows = ready_rows(snapshot, node_selector)
    if len(rows) < 2:
        return CycleResult(generation, dry_run, len(rows), error=TOO_SMALL)
    limiter, record = EvictionLimiter(limits), CycleRecord(dry_run=dry_run)
    error = ""
    for point in ("deschedule", "balance"):
        for profile in profiles:
            evictor = CycleEvictor(profile, snapshot, limiter, record)
            error = run_plugins(profile, point, snapshot, select_rows(snapshot, rows, profile.node_selector), evictor)
            if error:
                break
        if error:
            break
    return CycleResult(
        generation, dry_run, len(rows), tuple(record.outcomes.values()), tuple(dict.fromkeys(record.failures)),
        tuple(record.notes.values()), error,
        tuple(dict.fromkeys(lack for profile in profiles for lack in lacks_of(profile, snapshot.cluster))),
    )


def run_plugins(profile: DeschedulerProfile, point: str, snapshot: Snapshot, rows: Rows, evictor: CycleEvictor) -> str:
    """Run a profile's plugins at `deschedule` or `balance`; return their errors as one text, empty for none."""
    errors: list[str] = []
    for each in profile.deschedule if point == "deschedule" else profile.balance:
        run = each.instance.deschedule if point == "deschedule" else each.instance.balance
        try:
            run(snapshot, rows, evictor.hand_to(each))
        except BaseException as error:
            must_be_survived(error)
            evictor.fail("", "", str(error) or type(error).__name__)
            errors.append(str(error) or type(error).__name__)
    return aggregate(errors)


def aggregate(errors: Iterable[str]) -> str:
    """Return several errors as one text: a single one as it is, several in brackets, each once (Kubernetes'
    aggregate).
    """
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]" if unique else ""


def ready_rows(snapshot: Snapshot, selector: Mapping[str, Any] | None = None) -> Rows:
    """Return the rows of nodes that are ready by their conditions and match a selector, including cordoned ones."""
    ready = np.array([row for row in range(snapshot.size) if _is_ready(snapshot.node(row))], dtype=np.intp)
    return select_rows(snapshot, ready, selector)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


def select_rows(snapshot: Snapshot, rows: Rows, selector: Mapping[str, Any] | None) -> Rows:
    """Return the rows whose nodes match a label selector; all of them without one."""
    if selector is None:
        return rows
    labels = {row: snapshot.node(row)["metadata"].get("labels") or {} for row in rows.tolist()}
    return np.array([row for row, of_row in labels.items() if matches_labels(selector, of_row)], dtype=np.intp)

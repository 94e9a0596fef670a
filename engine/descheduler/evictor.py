"""The evictor that the plugins of a profile receive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from koordpolicy.engine.cluster.kinds import Lack
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import must_be_survived, sound, text_of
from koordpolicy.engine.framework.descheduler import (
    ChoosesEviction,
    Evict,
    EvictionChoice,
    EvictionFilter,
    EvictionResult,
    EvictOptions,
    EvictWithOptions,
    PlanEviction,
    PreEvictionFilter,
    RefusesTemplates,
    ReservesNodes,
    RestartsPods,
    TemplateFilter,
)
from koordpolicy.engine.framework.handle import Client, EvictionRefusedError
from koordpolicy.engine.framework.points import Enforcement, Refusal

from .background import BackgroundEvictions
from .ledger import LEDGER, CycleLedger, LedgerEntry
from .limits import EvictionLimiter
from .profile import DeschedulerProfile, RunningPlugin, lacks_of
from .proof.prove import Clears, CycleProof, ProofCandidate
from .proof.verdicts import EvictionProof
from .results import PROOF, CycleRecord, Decision, DeschedulerFailure, NodeNote, ObjectChange
from .templates import PodTemplate, template_of
from .workload_limits import PodOwners, WorkloadBudget, WorkloadLimits

LACKING: Final = "lacking"
"""The rule of refusals of evictions that depend on kinds which the source of the cluster does not contain."""
_NO_CHOICE: Final = EvictionChoice()


@dataclass(frozen=True, slots=True)
class SharedEvictions:
    """The evictions of all replicas in one cycle, where several run it."""

    ledger: CycleLedger
    count: Callable[[LedgerEntry], object]
    """Counts the eviction of another replica against the limits."""


class _Filter(NamedTuple):
    """A filter of the profile, looked up once: the check of a protocol takes longer than most filters."""

    plugin: RunningPlugin
    call: Callable[[PodInfo, Snapshot], Refusal | None]
    passing: _Templates | None
    """The templates of which it refuses no pod, if it decides about templates."""


class _Veto(NamedTuple):
    """The veto of a filter."""

    by: str
    refusal: Refusal


_PER_POD: Final = _Veto("", Refusal("", "it depends on the pod"))


class _Templates(dict[PodTemplate, bool]):
    """By template, whether a template filter passes all of its pods; computed when first read."""

    def __init__(self, passes: Callable[[PodInfo], bool]) -> None:
        self._passes = passes

    @staticmethod
    def of(plugin: RunningPlugin, snapshot: Snapshot, *, now: bool) -> _Templates | None:
        instance = plugin.instance
        if not isinstance(instance, TemplateFilter):
            return None
        return _Templates(lambda pod: instance.passes_template(pod, snapshot, now=now))

    def __missing__(self, template: PodTemplate) -> bool:
        found = self[template] = self._passes(template.pod)
        return found


class _Verdicts(dict[PodTemplate, _Veto | None]):
    """By template, the joint verdict of all filters: None if none refuses any of its pods or fails for one; the first
    veto if all of its pods get the same one; else `_PER_POD`. Computed when first read.
    """

    def __init__(self, filters: Iterable[_Filter], lacks: Mapping[str, Lack], snapshot: Snapshot, *, now: bool) -> None:
        self._filters = tuple(filters)
        self._lacks = lacks
        self._snapshot = snapshot
        self._now = now

    def __missing__(self, template: PodTemplate) -> _Veto | None:
        try:
            found = self._found(template)
        except BaseException as error:
            must_be_survived(error)
            found = _PER_POD  # the filter is called again for each pod, and its failure is recorded there
        self[template] = found
        return found

    def _found(self, template: PodTemplate) -> _Veto | None:
        for each in self._filters:
            name, instance = each.plugin.name, each.plugin.instance
            if name in self._lacks:
                refusal: Refusal | None = Refusal(LACKING, self._lacks[name].message)
            elif each.passing is not None and each.passing[template]:
                continue
            else:
                refusal = instance.refuses_template(template.pod, self._snapshot, now=self._now) \
                    if isinstance(instance, RefusesTemplates) else None
            # A veto that is not enforced is recorded for each pod.
            return _PER_POD if refusal is None or not _counts(each.plugin) else _Veto(name, sound(refusal))
        return None


class CycleEvictor:
    """The evictor of the plugins of one profile during one cycle (implements `Evictor`)."""

    def __init__(
        self, profile: DeschedulerProfile, snapshot: Snapshot, limiter: EvictionLimiter, record: CycleRecord,
        client: Client | None = None, *, background: BackgroundEvictions | None = None,
        workloads: WorkloadBudget | None = None, proof: CycleProof | None = None,
        shared: SharedEvictions | None = None, interval: int = 0,
    ) -> None:
        """`proof` proves the evictions; with None they are not proved. With `shared` each needs a reservation."""
        self.interval = interval
        self._shared = shared
        self._workloads = workloads or WorkloadBudget(WorkloadLimits(), PodOwners(snapshot))
        self._is_unlimited = limiter.is_unlimited and self._workloads.is_unlimited
        self._client = client
        self._background = background or BackgroundEvictions()
        self._in_background = {pod.key for pod in self._background.pods(snapshot)}
        self._proof = proof
        self._running: RunningPlugin | None = None
        self._clears: Clears | None = None
        self._profile = profile
        self._snapshot = snapshot
        self._limiter = limiter
        self._record = record
        self._plugin = ""
        self._by = (profile.name, "")
        self._turn = record.turn_of(profile.name, "")
        self._decisions: dict[tuple[str, str, str, str], Decision] = {}
        """The running plugin's decisions to keep pods, by rule, what stopped the eviction, its rule and message."""
        self._evictions: dict[tuple[str, str, str], Decision] = {}
        """Its decisions to evict pods without a proof, by rule, reason and mode."""
        self._enforcement = Enforcement.ENFORCE
        self._lacks = {each.plugin: each for each in lacks_of(profile, snapshot.cluster)}
        self._filters = tuple(
            _Filter(each, each.instance.eviction_filter, _Templates.of(each, snapshot, now=False))
            for each in profile.filters if isinstance(each.instance, EvictionFilter)
        )
        self._pre_filters = tuple(
            _Filter(each, each.instance.pre_eviction_filter, _Templates.of(each, snapshot, now=True))
            for each in profile.filters if isinstance(each.instance, PreEvictionFilter)
        )
        self._verdicts = _Verdicts(self._filters, self._lacks, snapshot, now=False)
        self._verdicts_now = _Verdicts(self._pre_filters, self._lacks, snapshot, now=True)
        self._plans = profile.evict is not None and isinstance(profile.evict.instance, PlanEviction)
        self._default_choice = EvictionChoice(None, profile.grace_period_s)
        self._choosers = tuple(
            each for each in profile.filters if isinstance(each.instance, ChoosesEviction) and _counts(each)
        )

    def hand_to(self, plugin: RunningPlugin, clears: Clears | None = None) -> CycleEvictor:
        """Return this evictor for calls by that plugin; `clears` says from which nodes it would evict again."""
        self._plugin, self._enforcement = plugin.name, plugin.enforcement
        self._running, self._clears = plugin, clears
        self._by = (self._profile.name, plugin.name)
        self._turn = self._record.turn_of(*self._by)
        self._decisions, self._evictions = {}, {}
        return self

    def filter(self, pod: PodInfo) -> Refusal | None:
        """Return the first veto on evicting the pod at all, or None."""
        veto = self._verdicts[template_of(pod)]
        return None if veto is None else self._vetoed(pod, veto, self._filters)

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        """Return the first veto on evicting the pod now, or None."""
        veto = self._verdicts_now[template_of(pod)]
        return None if veto is None else self._vetoed(pod, veto, self._pre_filters)

    def passes_template(self, pod: PodInfo, *, now: bool) -> bool:
        """Return True if `filter`, or with `now` `pre_eviction_filter`, refuses no pod of this one's template."""
        return (self._verdicts_now if now else self._verdicts)[template_of(pod)] is None

    def refused(self, pods: Sequence[PodInfo], *, now: bool) -> Sequence[bool]:
        """Return for each pod whether `filter` refuses it, or with `now` `pre_eviction_filter`."""
        found, alike = [], dict[PodInfo, Decision]()
        for pod in pods:
            template = template_of(pod)
            veto = self._verdicts[template] or (self._verdicts_now[template] if now else None)
            if veto is _PER_POD:
                self._turn.put_each(alike)  # in the order of the pods
                alike = {}
                found.append(self.filter(pod) is not None or (now and self.pre_eviction_filter(pod) is not None))
                continue
            if veto is not None:
                alike[pod] = self._decision_to_stay("", veto.by, veto.refusal.rule, veto.refusal.message)
            found.append(veto is not None)
        self._turn.put_each(alike)
        return found

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        """Evict the pod unless a limit stops it; in a dry run it only counts.

        Returns True also if another component was requested to remove the pod, now or in an earlier cycle.
        """
        if self._enforcement is not Enforcement.ENFORCE:
            message = f"would be evicted: {reason}"
            self._note(pod, rule=rule, by="enforcement", stopped_rule=self._enforcement.value, message=message)
            return False
        if self._lacks:
            for name in (self._plugin, *(each.name for each in self._profile.filters if _counts(each))):
                if name in self._lacks:
                    self._note(pod, rule=rule, by=name, stopped_rule=LACKING, message=self._lacks[name].message)
                    return False
        other = self._record.evicted_by(pod.key)
        if other is not None and other != self._by:
            self._note(pod, rule=rule, by=other[1], stopped_rule="evicted", message="evicted already in this cycle")
            return False
        if pod.key in self._in_background:
            self._requested(pod, _NO_CHOICE, rule, reason, "another component moves it already")
            return True
        over = self._over(pod)
        if over:
            self._note(pod, rule=rule, by="limits", stopped_rule="", message=over)
            return False
        choice = self._choice(pod, rule) if self._choosers else self._default_choice
        evictor = self._profile.evict
        if choice is None or (evictor is not None and not self._can_carry_out(evictor, choice, pod, rule)):
            return False
        result = EvictionResult.EVICTED
        candidate = None if self._proof is None or other is not None else self._candidate(pod, rule)
        proof = None if candidate is None or self._proof is None else self._proof.prove(candidate)
        if proof is not None and proof.stops:
            self._note(pod, rule=rule, by=PROOF, stopped_rule=proof.result.value, message=proof.message, proof=proof)
            return False
        if self._record.dry_run:
            if evictor is not None and other is None and not self._planned(evictor, pod, rule):
                return False
        else:
            if evictor is None:
                self._note(pod, rule=rule, by="evict", stopped_rule="", message="no evict plugin is enabled")
                return False
            reserved = None if self._shared is None else self._shared.ledger.reserve(
                pod, lambda: self._over(pod), self._shared.count)
            if reserved is not None:
                self._note(pod, rule=rule, by="limits" if not reserved.rule else LEDGER, stopped_rule=reserved.rule,
                           message=reserved.message)
                return False
            try:
                result = self._evicted_by(evictor, pod, EvictOptions(
                    reason, self._profile.name, self._plugin, rule, choice, self._profile.reports_failures,
                ))
            except EvictionRefusedError as refused:
                if refused.may_leave:
                    self._count(pod, candidate, made=False)
                else:
                    self._record_outcome(pod, made=False)
                self._note(pod, rule=rule, by=evictor.name, stopped_rule=refused.rule, message=str(refused))
                return False
            if result is EvictionResult.FAILED:
                self._note(pod, rule=rule, by=evictor.name, stopped_rule="", message="the eviction failed")
                return False
            self._record_outcome(pod, made=True)
        self._count(pod, candidate, made=not self._record.dry_run and result is EvictionResult.EVICTED)
        if result is EvictionResult.REQUESTED:
            self._background.request(pod, self._snapshot.now)
            self._in_background.add(pod.key)
            self._requested(pod, choice, rule, reason, "another component removes it")
            return True
        key = rule, reason, _mode(choice)
        decision = self._evictions.get(key) if proof is None else None
        if decision is None:
            decision = Decision(*self._by, evicted=True, rule=rule, reason=reason, mode=key[2], proof=proof)
            if proof is None:
                self._evictions[key] = decision
        self._turn.put(pod, decision)
        self._record.note_leaving(pod, self._by)
        return True

    def _over(self, pod: PodInfo) -> str:
        """Return the limit of the cycle that one more eviction would exceed; empty if none."""
        if self._is_unlimited:
            return ""
        return self._limiter.refusal(pod.node_name, pod.namespace) or self._workloads.refusal(pod)

    def _record_outcome(self, pod: PodInfo, *, made: bool) -> None:
        """Record the outcome of an eviction in the ledger; without one it stays reserved there, as it may be made."""
        if self._shared is not None:
            self._shared.ledger.record_outcome(pod, made=made)

    def _count(self, pod: PodInfo, candidate: ProofCandidate | None, *, made: bool) -> None:
        """Count an eviction against the limits, and let later proofs consider the pod as evicted."""
        if not self._is_unlimited:
            self._limiter.done(pod.node_name, pod.namespace)
            self._workloads.done(pod)
        if candidate is not None and self._proof is not None:
            self._proof.evicted(candidate, made=made)

    def _requested(self, pod: PodInfo, choice: EvictionChoice, rule: str, reason: str, message: str) -> None:
        self._turn.put(pod, Decision(
            *self._by, evicted=False, rule=rule, reason=reason, message=message, requested=True, mode=_mode(choice)))
        self._record.note_leaving(pod, self._by)

    def _choice(self, pod: PodInfo, rule: str) -> EvictionChoice | None:
        """Return how the filters choose to evict the pod, or None after a failure of one, which keeps the pod."""
        found = _NO_CHOICE
        for each in self._choosers:
            try:
                given: EvictionChoice = each.instance.choose_eviction(pod, self._snapshot)
                found = EvictionChoice(
                    given.mode if found.mode is None else found.mode,
                    given.grace_period_s if found.grace_period_s is None else found.grace_period_s,
                )
            except BaseException as error:
                must_be_survived(error)
                message = text_of(error) or type(error).__name__
                self._record.failures.append(
                    DeschedulerFailure(self._profile.name, each.name, message, subject=pod.key),
                )
                self._note(pod, rule=rule, by=each.name, stopped_rule="eviction", message=message)
                return None
        if found.grace_period_s is None:
            found = EvictionChoice(found.mode, self._profile.grace_period_s)
        return found

    def _can_carry_out(self, evictor: RunningPlugin, choice: EvictionChoice, pod: PodInfo, rule: str) -> bool:
        instance = evictor.instance
        if choice == _NO_CHOICE or not isinstance(instance, (Evict, EvictWithOptions)):
            return True
        if isinstance(instance, EvictWithOptions):
            if choice.mode is None or choice.mode in instance.eviction_modes:
                return True
            message = f"it cannot evict by `{choice.mode}`, only by {', '.join(sorted(instance.eviction_modes))}"
        else:
            message = "it takes no mode and no grace period of an eviction"
        self._note(pod, rule=rule, by=evictor.name, stopped_rule="eviction", message=message)
        return False

    def _candidate(self, pod: PodInfo, rule: str) -> ProofCandidate | None:
        running, evictor = self._running, self._profile.evict
        if running is None:
            return None
        instance = running.instance
        return ProofCandidate(
            pod, f"{running.name} ({rule})" if rule else running.name, running.proof,
            restarts=isinstance(instance, RestartsPods) and instance.restarts_pods,
            avoids_home=(evictor is not None and isinstance(evictor.instance, ReservesNodes)
                         and evictor.instance.avoids_node(pod)),
            **({} if self._clears is None else {"clears": self._clears}),
        )

    def _planned(self, evictor: RunningPlugin, pod: PodInfo, rule: str) -> bool:
        """Let the evict plugin count an eviction of a dry run; return whether it would carry it out."""
        if not self._plans:
            return True
        try:
            refusal = evictor.instance.plan_eviction(pod, self._snapshot)
        except BaseException as error:
            must_be_survived(error)
            self.fail(rule, pod.key, f"{evictor.name}: {error or type(error).__name__}")
            return False
        if refusal is not None:
            self._note(pod, rule=rule, by=evictor.name, stopped_rule=refusal.rule, message=refusal.message)
        return refusal is None

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        """Record that the calling plugin itself keeps a candidate."""
        self._note(pod, rule=rule, by=self._plugin, stopped_rule=refusal.rule, message=refusal.message)

    def keep_all(self, pods: Iterable[PodInfo], refusal: Refusal, *, rule: str = "") -> None:
        """Record that the calling plugin itself keeps candidates, for one reason."""
        self._turn.put_all(pods, self._decision_to_stay(rule, self._plugin, refusal.rule, refusal.message))

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

    def total_limit_exceeded(self) -> bool:
        """Return whether the limit of all evictions is used up."""
        return self._limiter.total_limit_exceeded()

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any], message: str) -> bool:
        """Change an object by the client; in a dry run only record it."""
        change = ObjectChange(
            str(original.get("kind", "")), _key_of(original), self._profile.name, self._plugin, message,
        )
        if not self._record.dry_run:
            try:
                if self._client is None:
                    raise OSError("nothing writes to the cluster")  # noqa: TRY301 - one kind of failure
                self._client.patch(original, modified)
            except OSError as error:
                self.fail("", change.key, f"{message}: {text_of(error)}")
                return False
        self._record.changes.append(change)
        return True

    def is_leaving(self, pod: PodInfo) -> bool:
        """Return whether any plugin evicted the pod in this cycle."""
        return self._record.evicted_by(pod.key) is not None

    def leaving(self) -> Collection[str]:
        """Return the keys of all pods that any plugin evicted in this cycle."""
        return self._record.leaving()

    def leaving_pods(self) -> Sequence[PodInfo]:
        """Return those of them that the snapshot has, in order; always the same list, which grows."""
        return self._record.leaving_pods()

    def _evicted_by(self, evictor: RunningPlugin, pod: PodInfo, options: EvictOptions) -> EvictionResult:
        instance, message = evictor.instance, ""
        try:
            takes_options = isinstance(instance, EvictWithOptions)
            result = instance.evict_with_options(pod, options) if takes_options else instance.evict(pod, options.reason)
            if isinstance(result, EvictionResult):
                return result
            if isinstance(result, bool):
                return EvictionResult.EVICTED if result else EvictionResult.FAILED
            message = f"the answer must be a bool or an EvictionResult, not {type(result).__name__}"
        except EvictionRefusedError:
            raise
        except BaseException as error:
            must_be_survived(error)
            message = text_of(error) or type(error).__name__
        self._record.failures.append(
            DeschedulerFailure(self._profile.name, evictor.name, message, options.rule, pod.key),
        )
        return EvictionResult.FAILED

    def _vetoed(self, pod: PodInfo, veto: _Veto, filters: Iterable[_Filter]) -> Refusal | None:
        """Return and record the veto on a pod, which is that of its template where that has one."""
        if veto is _PER_POD:
            return self._first_veto(pod, filters)
        refusal = veto.refusal
        self._note(pod, rule="", by=veto.by, stopped_rule=refusal.rule, message=refusal.message)
        return refusal

    def _first_veto(self, pod: PodInfo, filters: Iterable[_Filter]) -> Refusal | None:
        snapshot, lacks = self._snapshot, self._lacks
        for each, call, passing in filters:
            try:
                if lacks and each.name in lacks:
                    refusal: Refusal | None = Refusal(LACKING, lacks[each.name].message)  # a veto's inputs are unknown
                elif passing is not None and passing[template_of(pod)]:
                    continue
                else:
                    refusal = call(pod, snapshot)
                if refusal is None:
                    continue
                refusal = sound(refusal)
            except BaseException as error:
                must_be_survived(error)
                self._record.failures.append(
                    DeschedulerFailure(self._profile.name, each.name, text_of(error), subject=pod.key),
                )
                refusal = Refusal("error", text_of(error))
            if each.enforcement is Enforcement.ENFORCE:
                self._note(pod, rule="", by=each.name, stopped_rule=refusal.rule, message=refusal.message)
                return refusal
            self._record.audit(self._profile.name, each.name, pod.key, refusal)
        return None

    def _note(
        self, pod: PodInfo, *, rule: str, by: str, stopped_rule: str, message: str, proof: EvictionProof | None = None,
    ) -> None:
        if proof is None:
            decision = self._decision_to_stay(rule, by, stopped_rule, message)
        else:
            decision = Decision(*self._by, False, rule, "", by, stopped_rule, message, proof=proof)
        self._turn.put(pod, decision)

    def _decision_to_stay(self, rule: str, by: str, stopped_rule: str, message: str) -> Decision:
        """Return the running plugin's decision that pods stay for this reason."""
        key = rule, by, stopped_rule, message
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = Decision(*self._by, False, rule, "", by, stopped_rule, message)
        return decision


def _key_of(item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _mode(choice: EvictionChoice) -> str:
    return "" if choice.mode is None else choice.mode.value


def _counts(plugin: RunningPlugin) -> bool:
    return plugin.enforcement is Enforcement.ENFORCE

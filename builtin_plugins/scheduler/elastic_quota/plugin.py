"""ElasticQuota: keeps pods within their quotas; quotas may borrow the unused part of others.

The behaviour is Koordinator's (pkg/scheduler/plugins/elasticquota). Requests and usage of quotas are counted by events;
the cost of a pod's check is proportional to the depth of its quota's tree, plus the sharing among changed siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from koordpolicy.engine.cluster.edits import amount_unit
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.node_rows import allocatable_of
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.explanation import Finding, Mark, Table, shown
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.vocabulary import PREEMPTIBLE_LABEL, QUOTA_NAME_LABEL
from koordpolicy.plugin import SKIP, CycleState, Event, Handle, Nomination, OnlyNodes, Refused, Skip

from ..kubernetes.default_preemption import make_room
from .amounts import added, exceeded, masked, printed, subtracted
from .args import check_args, convert, default_args, ignored_args
from .controllers import QuotaStatus, RevokeOverused
from .tree import DEFAULT, ROOT, SYSTEM, Counted, Quota, QuotaSpec, QuotaTree, summary

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_RESERVE_POD: Final = "scheduling.koordinator.sh/reserve-pod"
_NO_OVERHEAD: Final = "ElasticQuotaIgnorePodOverhead"


class QuotaHook(Protocol):
    """A hook that is evaluated in addition to the quota's own check."""

    def check_pod(self, quota: str, pod: PodInfo) -> str:
        """Return why the pod may not use the quota; empty if it may."""
        ...


HOOK_FACTORIES: Final[dict[str, Callable[[str], QuotaHook]]] = {}
"""Factories of hooks by the `factoryKey` of the arguments; empty by default."""


class ElasticQuota:
    """PreFilter, postFilter, reserve. For the arguments see docs/plugins/elastic-quota.md."""

    name = "ElasticQuota"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._args = convert(default_args(args))
        self._handle = handle
        self._gates = handle.feature_gates
        self._hooks = [(hook.key, self._hook(hook.factory)(hook.args)) for hook in self._args.hooks]
        self._specs: dict[str, QuotaSpec] = {}
        self._names: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        self._own: set[tuple[str, str]] = set()
        self.trees: dict[str, QuotaTree] = {"": self._new_tree()}
        self._tree_of: dict[str, str] = {}
        self.pods: dict[str, Counted] = {}
        self._by_quota: dict[tuple[str, str], dict[str, None]] = {}
        self._nodes: dict[str, ResourceList] = {}
        handle.events.on(("Node", "ElasticQuota", "Pod"), self._on_event)

    @staticmethod
    def _hook(key: str) -> Callable[[str], QuotaHook]:
        if key not in HOOK_FACTORIES:
            raise ValueError(f"`hookPlugins`: there is no hook factory `{key}`")
        return HOOK_FACTORIES[key]

    def _new_tree(self) -> QuotaTree:
        return QuotaTree(
            scale_minimums=self._args.scale_min, guarantees="ElasticQuotaGuaranteeUsage" in self._gates,
            default_maximum=self._args.default_max, system_maximum=self._args.system_max,
        )

    # The quota of a pod

    def quota_name(self, pod: PodInfo) -> str:
        """Return the name of the pod's quota; empty if it names none and there is no default.

        The label's, else the quota named like the pod's namespace in that namespace, else the first that names the
        namespace, else the default quota. With the gate DisableDefaultQuota only the label counts.
        """
        label = ((pod.object["metadata"].get("labels")) or {}).get(QUOTA_NAME_LABEL)
        if label or "DisableDefaultQuota" in self._gates:
            return label or ""
        if (pod.namespace, pod.namespace) in self._own:
            return pod.namespace
        return self._namespaces.get(pod.namespace, DEFAULT)

    def quota_of(self, pod: PodInfo) -> tuple[str, str] | None:
        """Return tree and name of the quota that counts the pod; an unknown name means the default quota, or none."""
        name = self.quota_name(pod)
        tree = self._tree_of.get(name, "")
        known = name in self.trees[tree] if tree in self.trees else name in self._specs
        if known:
            return tree, name
        return None if "DisableDefaultQuota" in self._gates else ("", DEFAULT)

    # The scheduling cycle

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Reject the pod if its quota has not enough left for it."""
        found = self.quota_of(pod)
        if found is None:
            return SKIP
        tree_id, name = found
        tree = self.trees.get(tree_id)
        if tree is None:
            message = f"Could not find the specified ElasticQuotaManager for quota: {name}, tree: {tree_id}"
            return Refusal("quota", message, Code.ERROR)
        quota = tree.quota(name)
        request = masked(self._request(pod), quota.spec.maximum)
        changes = list(self._overlaid(snapshot))
        used, fixed_used = self._used(tree, name, changes)
        limit = self._limit(tree, name)
        if over := exceeded(added(used, request), limit):
            return _insufficient(f"quotaName: {name}", limit, used, request, over)
        if _is_fixed(pod) and (over := exceeded(added(fixed_used, request), quota.spec.minimum)):
            return Refusal("non-preemptible", (
                f"Insufficient non-preemptible quotas, quotaName: {name}, min: {printed(quota.spec.minimum)},"
                f" nonPreemptibleUsed: {printed(fixed_used)}, pod's request: {printed(request)},"
                f" exceedDimensions: [{' '.join(over)}]"
            ))
        for key, hook in self._hooks:
            if why := hook.check_pod(name, pod):
                return Refusal("hook", f"CheckPod failed for hook plugin {key}, err: {why}")
        return self._check_parents(tree, name, request, changes) if self._args.check_parents else None

    def _check_parents(
        self, tree: QuotaTree, name: str, request: ResourceList, changes: list[tuple[PodInfo, int]],
    ) -> Refusal | None:
        topology: list[str] = []
        for each in tree.path(name):
            topology.insert(0, each.name)
            used, _ = self._used(tree, each.name, changes)
            limit = self._limit(tree, each.name)
            if over := exceeded(added(used, request), limit):
                return _insufficient(f"quotaNameTopo: [{' '.join(topology)}]", limit, used, request, over)
        return None

    def _limit(self, tree: QuotaTree, name: str) -> ResourceList:
        return tree.runtime(name) if self._args.runtime else tree.quota(name).spec.maximum

    def _used(
        self, tree: QuotaTree, name: str, changes: Iterable[tuple[PodInfo, int]],
    ) -> tuple[ResourceList, ResourceList]:
        """Return the usage of a quota in a snapshot, in total and by non-preemptible pods."""
        quota = tree.quota(name)
        used, fixed_used = quota.used, quota.fixed_used
        for pod, sign in changes:
            found = self.quota_of(pod)
            if found is None or self.trees.get(found[0]) is not tree:
                continue
            if all(each is not quota for each in tree.path(found[1])):
                continue
            amounts = masked(self._request(pod), quota.spec.maximum)
            used = added(used, amounts) if sign > 0 else subtracted(used, amounts, least=0)
            if _is_fixed(pod):
                fixed_used = added(fixed_used, amounts) if sign > 0 else subtracted(fixed_used, amounts, least=0)
        return used, fixed_used

    def _overlaid(self, snapshot: Snapshot) -> Iterator[tuple[PodInfo, int]]:
        """Yield the pods that a what-if adds to nodes (1) or removes (-1)."""
        changes = list(snapshot.pod_changes())
        put_on = {(row, pod.key) for row, pod, sign in changes if sign > 0}
        taken_off = {(row, pod.key) for row, pod, sign in changes if sign < 0}
        for row, pod, sign in changes:
            if (row, pod.key) in put_on & taken_off:
                continue  # the pod stays, with another object
            counted = self.pods.get(pod.key)
            is_counted = counted is not None and counted.assigned
            if is_counted if sign < 0 else not is_counted and not _is_reserve_pod(pod):
                yield pod, sign

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal | None:
        """Preempt pods of the same quota with lower priority."""
        found = self.quota_of(pod)
        same = () if found is None else (self.pods[key] for key in self._by_quota.get(found, ()))
        victims = {each.pod.key for each in same if each.assigned and self.can_preempt(pod, each.pod)}
        if not victims:  # known without looking at nodes
            return Refusal("preemption", "preemption: no pod of the same quota may be preempted")
        return make_room(pod, snapshot, refused, may_take=lambda victim: victim.key in victims)

    def can_preempt(self, pod: PodInfo, victim: PodInfo) -> bool:
        """Return whether a pod may preempt another one: of lower priority, preemptible, in the same quota."""
        quota = self.quota_of(victim)
        return (
            not _is_fixed(victim) and quota is not None and victim.priority < pod.priority
            and not (self._args.spare_default and quota[1] == DEFAULT) and quota == self.quota_of(pod)
        )

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Add the pod to the usage of its quota, if that is known."""
        found = self.quota_of(pod)
        if found is not None and found[0] not in self.trees:
            message = f"quota manager not found, quota: {found[1]}, tree: {found[0]}"
            return Refusal("quota", message, Code.ERROR)
        if self._knows(pod):
            self._assign(pod.key, assigned=True)
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Remove the pod from the usage of its quota."""
        self.forget_pod(pod)

    def forget_pod(self, pod: PodInfo) -> None:
        """Remove the pod from the usage of its quota; a new pod of its name is not affected."""
        if self._knows(pod):
            self._assign(pod.key, assigned=False)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether an event may help: a change of a quota, a node or the pod itself, or a pod that left.

        With `enableQueueHint`, only on the path of the pod's own quota.
        """
        left = event.old_pod is not None and bool(event.old_pod.node_name) and (
            event.new_pod is None or not event.new_pod.node_name)
        if event.kind == "Pod" and event.key == pod.key:
            return event.old != event.new
        if event.kind not in ("Node", "ElasticQuota") and not left:
            return False
        found = self.quota_of(pod)
        if event.kind == "Node" or not self._args.queue_hint or found is None or found[0] not in self.trees:
            return event.new is not None or event.kind != "Node"
        tree = self.trees[found[0]]
        path = {quota.name for quota in tree.path(found[1])}
        if event.kind == "ElasticQuota":
            return any(item is not None and item["metadata"]["name"] in path for item in (event.old, event.new))
        theirs = self.quota_of(event.old_pod) if event.old_pod is not None else None
        return theirs is not None and theirs[0] == found[0] and any(
            quota.name in path for quota in tree.path(theirs[1]))

    # Accounting

    def _on_event(self, event: Event) -> None:
        if event.kind == "Pod":
            if event.new_pod is None or (event.new or {}).get("status", {}).get("phase") in _FINISHED:
                self._uncount(event.key)
            else:
                self._count(event.new_pod)
        elif event.kind == "Node":
            self._on_node(event)
        else:
            self._on_quota(event)

    def _on_node(self, event: Event) -> None:
        before = self._nodes.pop(event.key, ResourceList())
        after = ResourceList() if event.new is None else allocatable_of(event.new)
        if event.new is not None:
            self._nodes[event.key] = after
        if before != after:
            self.trees[""].add_total(subtracted(after, before))

    def _on_quota(self, event: Event) -> None:
        old = self._specs.pop(event.key, None)
        new = None
        if event.new is not None:
            new = self._specs[event.key] = QuotaSpec.of(event.new)
        if new != old:
            self._rebuild()

    def _rebuild(self) -> None:
        """Rebuild the trees, and recount the pods whose quota has changed."""
        self._own = {(spec.namespace, spec.name) for spec in self._specs.values() if spec.namespace}
        self._namespaces = {}
        by_tree: dict[str, list[QuotaSpec]] = {"": []}
        apart = ResourceList()
        multiple = "MultiQuotaTree" in self._gates
        self._tree_of = {}
        for key in sorted(self._specs):
            spec = self._specs[key]
            for namespace in spec.namespaces:
                self._namespaces.setdefault(namespace, spec.name)
            tree_id = spec.tree if multiple else ""
            by_tree.setdefault(tree_id, []).append(spec)
            self._tree_of[spec.name] = tree_id
        for tree_id, specs in by_tree.items():
            tree = self.trees.get(tree_id)
            if tree is None:
                tree = self.trees[tree_id] = self._new_tree()
            for spec in specs:
                if spec.name in (DEFAULT, SYSTEM) and spec.maximum:
                    tree.change_maximum(spec.name, spec.maximum)
                if tree_id and spec.is_root:
                    tree.set_total(spec.total)
                    apart = apart if spec.apart else added(apart, spec.total)
            tree.replace(specs)
        for tree_id in set(self.trees) - set(by_tree):
            del self.trees[tree_id]
        self.trees[""].set_total(self._total_without(apart))
        for counted in list(self.pods.values()):
            where, assigned = (counted.tree, counted.quota), counted.assigned
            if self.quota_of(counted.pod) != where or counted.tree not in self.trees:
                self._uncount(counted.pod.key)
                self._count(counted.pod, assigned=assigned)

    def _total_without(self, apart: ResourceList) -> ResourceList:
        total = ResourceList()
        for allocatable in self._nodes.values():
            total = added(total, allocatable)
        return subtracted(total, apart, least=0) if apart else total

    def _count(self, pod: PodInfo, *, assigned: bool | None = None) -> None:
        found = None if _is_reserve_pod(pod) or self._is_ignored(pod) else self.quota_of(pod)
        known = self.pods.get(pod.key)
        if found is None:
            self._uncount(pod.key)
            return
        request, fixed = self._request(pod), _is_fixed(pod)
        assigned = bool(pod.node_name) if assigned is None else assigned
        if known is not None and (known.tree, known.quota) == found and known.request == request \
                and known.fixed == fixed:
            known.pod = pod
            self._assign(pod.key, assigned=assigned)
            return
        self._uncount(pod.key)
        self.pods[pod.key] = Counted(pod, found[1], found[0], request, fixed, False)
        self._by_quota.setdefault(found, {})[pod.key] = None
        self.trees[found[0]].ask(found[1], request, fixed=fixed)
        self._assign(pod.key, assigned=assigned)

    def _uncount(self, key: str) -> None:
        if key not in self.pods:
            return
        self._assign(key, assigned=False)
        counted = self.pods.pop(key)
        del self._by_quota[counted.tree, counted.quota][key]
        if counted.tree in self.trees:
            self.trees[counted.tree].ask(counted.quota, _negative(counted.request), fixed=counted.fixed)

    def _knows(self, pod: PodInfo) -> bool:
        counted = self.pods.get(pod.key)
        return counted is not None and counted.pod.uid == pod.uid

    def _assign(self, key: str, *, assigned: bool) -> None:
        counted = self.pods.get(key)
        if counted is None or counted.assigned is assigned:
            return
        counted.assigned = assigned
        if counted.tree in self.trees:
            change = counted.request if assigned else _negative(counted.request)
            self.trees[counted.tree].use(counted.quota, change, fixed=counted.fixed)

    def _request(self, pod: PodInfo) -> ResourceList:
        if _NO_OVERHEAD not in self._gates or not (pod.object.get("spec") or {}).get("overhead"):
            return pod.requests
        spec = {key: value for key, value in pod.object["spec"].items() if key != "overhead"}
        return PodInfo.of({**pod.object, "spec": spec}).requests

    def _is_ignored(self, pod: PodInfo) -> bool:
        terminating = pod.object["metadata"].get("deletionTimestamp")
        if not terminating:
            return False
        if "ElasticQuotaImmediateIgnoreTerminatingPod" in self._gates:
            return True
        return "ElasticQuotaIgnoreTerminatingPod" in self._gates and (
            nanoseconds(terminating, "metadata.deletionTimestamp") <= self._handle.now())

    # Controllers and endpoints

    def controllers(self) -> tuple[QuotaStatus | RevokeOverused, ...]:
        """Return the controllers: the writer of statuses and, if enabled, the one that revokes overused quotas."""
        status = QuotaStatus(self._handle, self.trees, self._specs)
        if not (self._args.monitor and self._args.runtime):
            return (status,)
        return status, RevokeOverused(
            self._handle, self.trees, self.pods, self._args.delay_evict, self._args.revoke_interval,
        )

    # Explanations

    def explain_waiting(self, pod: PodInfo) -> Sequence[Finding]:
        """Return the pod's quota, with what is used and what may be, and those above it if they are checked, too."""
        found = self.quota_of(pod)
        if found is None or found[0] not in self.trees or found[1] in (DEFAULT, SYSTEM):
            return ()
        tree, name = self.trees[found[0]], found[1]
        request = masked(self._request(pod), tree.quota(name).spec.maximum)
        checked = tree.path(name) if self._args.check_parents else (tree.quota(name),)
        return tuple(self._state_of(tree, quota, request) for quota in checked if quota.name != ROOT)

    def _state_of(self, tree: QuotaTree, quota: Quota, request: ResourceList) -> Finding:
        """Return one quota as a finding, with a row for each resource that it limits."""
        limit, names = self._limit(tree, quota.name), sorted(quota.spec.maximum)
        over = exceeded(added(quota.used, request), limit)
        amounts = {each: {"request": request[each], "used": quota.used[each], "limit": limit[each],
                          "min": quota.spec.minimum[each], "max": quota.spec.maximum[each]} for each in names}
        rows = tuple((each, *(shown(value, amount_unit(each)) for value in amounts[each].values())) for each in names)
        text = f"quota {quota.name}: not enough {', '.join(over)} left" if over else f"quota {quota.name}: enough left"
        table = Table(("resource", "request", "used", "limit", "min", "max"), rows)
        return Finding("quota", text, Mark.PLAIN, {
            "name": quota.name, "exceeded": list(over), "resources": amounts}, (), table)

    def endpoints(self) -> Mapping[str, Any]:
        """Return the endpoints of all quotas (`quotas`), and of one (`quotas/{name}`)."""
        return {"quotas": self._summaries, "quotas/{name}": self._summary}

    def _summaries(self, tree: str = "", includePods: str = "") -> dict[str, Any]:  # noqa: N803 - the query's name
        found = self.trees.get(tree)
        return {} if found is None else {
            quota.name: self._described(found, quota.name, includePods == "true") for quota in found.quotas()
        }

    def _summary(self, name: str) -> dict[str, Any] | None:
        for tree in self.trees.values():
            if name in tree and name != ROOT:
                return self._described(tree, name, pods=True)
        return None

    def _described(self, tree: QuotaTree, name: str, pods: bool) -> dict[str, Any]:
        found = summary(tree, tree.quota(name))
        if pods:
            found["podCache"] = {
                key: {"isAssigned": counted.assigned, "request": dict(counted.request)}
                for key, counted in sorted(self.pods.items())
                if counted.quota == name and self.trees.get(counted.tree) is tree
            }
        return found


def _insufficient(
    where: str, limit: ResourceList, used: ResourceList, request: ResourceList, over: list[str],
) -> Refusal:
    return Refusal("quota", (
        f"Insufficient quotas, {where}, runtime: {printed(limit)}, used: {printed(used)},"
        f" pod's request: {printed(request)}, exceedDimensions: [{' '.join(over)}]"
    ))


def _is_fixed(pod: PodInfo) -> bool:
    return ((pod.object["metadata"].get("labels")) or {}).get(PREEMPTIBLE_LABEL) == "false"


def _is_reserve_pod(pod: PodInfo) -> bool:
    return ((pod.object["metadata"].get("annotations")) or {}).get(_RESERVE_POD) == "true"


def _negative(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: -amount for name, amount in amounts.items()}

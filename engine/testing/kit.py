"""Test kit for Python plugins: objects, a cluster, a fake framework, and whole decisions.

This is the public kit, imported as `koordpolicy.testing`; its fixtures are in `koordpolicy.testing.fixtures`. Times are
nanoseconds since the epoch, and nothing here reads the system's clock: `FakeClock` has the time.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from koordpolicy.engine.agent.logical_directory import logical_directory
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.points import Framework, Refusal
from koordpolicy.engine.framework.qos import Evictions, Host
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.kubernetes.release import release_of
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.source import Problems

SECOND: Final = 1_000_000_000
NOW: Final = 1_767_225_600 * SECOND
"""The start of the year 2026, in UTC: the default time of tests."""

Json = Mapping[str, Any]


# Objects, as the API server serves them


def node(
    name: str = "node", *, cpu: str = "32", memory: str = "64Gi", pods: str = "110",
    labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
    taints: Sequence[Json] = (), allocatable: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a Node; `allocatable` adds further resources (`{"nvidia.com/gpu": "8"}`)."""
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **(allocatable or {})}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(
    name: str = "pod", *, namespace: str = "default", node: str = "", cpu: str = "1", memory: str = "1Gi",
    labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None, priority: int | None = None,
    requests: Mapping[str, str] | None = None, **spec: Any,
) -> dict[str, Any]:
    """Return a Pod with one container; `node` is the node it runs on, `requests` adds resources, `spec` further
    fields.
    """
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory, **(requests or {})}}}
    full: dict[str, Any] = {"containers": [container], **spec}
    if node:
        full["nodeName"] = node
    if priority is not None:
        full["priority"] = priority
    return {
        "apiVersion": "v1", "kind": "Pod", "spec": full,
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-of-{namespace}-{name}", "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
    }


def node_metric(
    name: str = "node", *, cpu: str = "1", memory: str = "1Gi", at: int = NOW,
    pods: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return a NodeMetric that was taken `at`; `pods` maps `namespace/name` to what the pod used."""
    of_pods = [
        {"namespace": key.partition("/")[0], "name": key.partition("/")[2], "podUsage": {"resources": dict(used)}}
        for key, used in (pods or {}).items()
    ]
    stamp = datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
        "status": {"updateTime": stamp, "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": memory}}},
                   "podsMetric": of_pods},
    }


class FakeClock:
    """A clock that returns the time it was set to, in nanoseconds since the epoch."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time by `seconds`."""
        self.now += round(seconds * SECOND)


# A framework that decides nothing


class FakeFramework:
    """A cluster and the plugins that are made over it, which are notified of every change immediately.

    The effects of plugins are recorded: `waiting.allowed`, `queue.activated`, `client.bound`, `counted`.
    """

    def __init__(
        self, *objects: Json, clock: Callable[[], int] | None = None, feature_gates: Collection[str] = (),
        profile: str = "koord-scheduler",
    ) -> None:
        self.clock = clock or FakeClock()
        self.cluster = Cluster()
        self.profile = profile
        self.feature_gates = frozenset(feature_gates)
        self.plugins: list[Any] = []
        self.counted: dict[str, float] = {}
        """The counters of plugins, by name."""
        self.waiting = FakeWaiting()
        self.queue = FakeQueue(self.cluster)
        self.nominator = FakeNominator()
        self.client = FakeClient(self)
        self._listeners: list[tuple[frozenset[str], Callable[[Event], None]]] = []
        self.cluster.listen(self._publish)
        for item in objects:
            self.cluster.upsert(item)

    def make(self, factory: Callable[[Json, Handle], Any], args: Json | None = None) -> Any:
        """Return a plugin made as the scheduler makes it: from its arguments and a handle."""
        made = factory(args or {}, self.handle(getattr(factory, "__name__", "plugin")))
        self.plugins.append(made)
        return made

    def handle(self, name: str = "plugin") -> Handle:
        """Return a handle of this framework."""

        def count(name: str, amount: float = 1, /, **labels: str) -> None:  # noqa: ARG001 - they are not looked at
            self.counted[name] = self.counted.get(name, 0) + amount

        def peers(capability: Any) -> Any:
            return tuple(plugin for plugin in self.plugins if isinstance(plugin, capability))

        return Handle(
            self.profile, self.snapshot, self.clock, logging.getLogger(name), count=count, events=self,
            waiting=self.waiting, queue=self.queue, nominator=self.nominator, client=self.client, peers=peers,
            feature_gates=self.feature_gates, kubernetes=release_of(self.profile),
        )

    # What plugins see

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster; valid until it changes."""
        return self.cluster.snapshot(self.clock())

    @property
    def rows(self) -> Rows:
        """The row numbers of all nodes."""
        return np.arange(len(self.cluster.names), dtype=np.intp)

    def row(self, name: str) -> int:
        """Return the row number of a node."""
        return self.cluster.index[name]

    def pod(self, key: str) -> PodInfo:
        """Return a pod by `namespace/name`, or by the name of one in `default`."""
        found = self.cluster.pod(key if "/" in key else f"default/{key}")
        assert found is not None, f"there is no pod `{key}`"
        return found

    # What happens

    def upsert(self, item: Json) -> None:
        """Add an object to the cluster, or change it."""
        self.cluster.upsert(item)

    def delete(self, kind: str, key: str) -> None:
        """Remove an object."""
        self.cluster.delete(kind, key)

    def assume(self, pod: PodInfo, node: str) -> None:
        """Place a pod, as the scheduler does once it is reserved."""
        self.cluster.assume(pod, node)

    def forget(self, pod: PodInfo) -> None:
        """Undo `assume`."""
        self.cluster.forget(pod.key)

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Report existing objects, nodes first and pods last, and then every change (see `Events`)."""
        for kind in sorted(kinds, key=lambda each: (each == "Pod", each != "Node", each)):
            for key, item in list(self.cluster.objects(kind).items()):
                callback(Event(kind, key, None, item, None, self.cluster.pod(key) if kind == "Pod" else None))
        self._listeners.append((frozenset(kinds), callback))

    def _publish(self, event: Event) -> None:
        for kinds, callback in self._listeners:
            if event.kind in kinds:
                callback(event)


class FakeWaiting:
    """The pods that permit plugins hold: a test adds keys to `held`; allowed and rejected ones are recorded."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.allowed: list[str] = []
        self.rejected: dict[str, str] = {}

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the pods that wait."""
        return tuple(self.held)

    def allow(self, key: str, plugin: str) -> bool:
        """Allow a pod."""
        if key not in self.held:
            return False
        self.held.remove(key)
        self.allowed.append(key)
        return True

    def reject(self, key: str, plugin: str, message: str) -> bool:
        """Reject a pod."""
        if key not in self.held:
            return False
        self.held.remove(key)
        self.rejected[key] = message
        return True


class FakeQueue:
    """A queue of the pods without a node; activations are recorded."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.activated: list[str] = []

    def activate(self, keys: Collection[str]) -> None:
        """Record the activation of these pods."""
        self.activated.extend(sorted(keys))

    def pods(self) -> tuple[PodInfo, ...]:
        """Return all pods that wait."""
        return self._cluster.pending


class FakeNominator:
    """The nominated nodes, by the pod's key."""

    def __init__(self) -> None:
        self.nominations: dict[str, tuple[PodInfo, str]] = {}

    def nominated(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods that are nominated for the node."""
        return tuple(pod for pod, nominated in self.nominations.values() if nominated == node)

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nominate the pod for the node."""
        self.nominations[pod.key] = (pod, node)

    def withdraw(self, pod: PodInfo) -> None:
        """Withdraw the nomination."""
        self.nominations.pop(pod.key, None)


class FakeClient:
    """A client that records writes; it raises the `failures` first, one per call."""

    def __init__(self, framework: FakeFramework) -> None:
        self._framework = framework
        self.patches: list[tuple[Json, Json]] = []
        self.bound: dict[str, str] = {}
        self.evicted: dict[str, str] = {}
        self.preempted: dict[str, str] = {}
        self.failures: list[OSError] = []
        self.answer: Json | None = None
        """The result of `patch`."""

    def patch(self, original: Json, modified: Json) -> Json | None:
        """Record a patch."""
        self._fail()
        self.patches.append((copy.deepcopy(original), copy.deepcopy(modified)))
        return self.answer

    def bind(self, pod: PodInfo, node: str) -> None:
        """Record a binding."""
        self._fail()
        self.bound[pod.key] = node

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Record an eviction."""
        self._fail()
        self.evicted[pod.key] = reason

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Record a victim."""
        self._fail()
        self.preempted[pod.key] = f"preempted by {preemptor.key} on {node}"

    def delete(self, item: Json) -> None:
        """Delete an object from the cluster."""
        self._fail()
        metadata = item["metadata"]
        namespace = metadata.get("namespace")
        self._framework.delete(item["kind"], f"{namespace}/{metadata['name']}" if namespace else metadata["name"])

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class FakeEvictor:
    """An evictor of a descheduling plugin (see `Evictor`) that records all calls.

    `vetoes` maps pod keys to the reasons why they must stay; `limit` is the total number of evictions; `interval` is
    the time between cycles in nanoseconds.
    """

    def __init__(
        self, vetoes: Mapping[str, str] | None = None, limit: int | None = None, interval: int = 0,
    ) -> None:
        self.vetoes = dict(vetoes or {})
        self.limit = limit
        self.interval = interval
        self.evicted: dict[str, str] = {}
        self._leaving: list[PodInfo] = []
        self.kept: dict[str, str] = {}
        self.observed: dict[str, str] = {}
        self.failures: list[tuple[str, str, str]] = []
        self.changes: list[tuple[str, str]] = []

    def filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod must stay, or None."""
        return Refusal("veto", self.vetoes[pod.key]) if pod.key in self.vetoes else None

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        """Return None."""
        return None

    def passes_template(self, pod: PodInfo, *, now: bool) -> bool:
        """Return whether nothing is vetoed, or with `now` True."""
        return now or not self.vetoes

    def refused(self, pods: Sequence[PodInfo], *, now: bool) -> Sequence[bool]:
        """Return for each pod whether it is vetoed."""
        return [self.filter(pod) is not None for pod in pods]

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        """Record an eviction, unless the limit is reached."""
        if self.limit is not None and len(self.evicted) >= self.limit:
            return False
        if pod.key not in self.evicted:
            self._leaving.append(pod)
        self.evicted[pod.key] = reason
        return True

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        """Record that a candidate stays."""
        self.kept[pod.key] = refusal.message

    def keep_all(self, pods: Iterable[PodInfo], refusal: Refusal, *, rule: str = "") -> None:
        """Record that candidates stay."""
        for pod in pods:
            self.keep(pod, refusal, rule=rule)

    def observe(self, node: str, role: str, message: str = "") -> None:
        """Record a node's role."""
        self.observed[node] = role

    def fail(self, rule: str, subject: str, message: str) -> None:
        """Record that a rule failed."""
        self.failures.append((rule, subject, message))

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any], message: str) -> bool:
        """Record a change of an object: its name, and what is changed."""
        self.changes.append((str(original["metadata"]["name"]), message))
        return True

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether the limit is reached."""
        return self.limit is not None and len(self.evicted) >= self.limit

    def total_limit_exceeded(self) -> bool:
        """Return whether the limit is reached."""
        return self.limit is not None and len(self.evicted) >= self.limit

    def is_leaving(self, pod: PodInfo) -> bool:
        """Return whether the pod was evicted already."""
        return pod.key in self.evicted

    def leaving(self) -> Collection[str]:
        """Return the keys of the pods that were evicted."""
        return self.evicted.keys()

    def leaving_pods(self) -> Sequence[PodInfo]:
        """Return the pods that were evicted."""
        return self._leaving


class FakeReadings:
    """The readings of one node at one time for a QoS plugin (see `Readings`); usages are quantities.

    A usage that is not given is the error `NoMetric`. All statistics and windows of a usage have the given value.
    """

    def __init__(
        self, node: Json, *, usage: Mapping[str, str] | None = None, pods: Iterable[Json] = (),
        pod_usage: Mapping[str, Mapping[str, str]] | None = None, files: Mapping[str, str] | None = None,
        objects: Iterable[Json] = (), now: int = NOW, evictions: Evictions | None = None,
        container_usage: Mapping[str, Mapping[str, str]] | None = None, best_effort: Mapping[str, str] | None = None,
        host: Host | None = None,
    ) -> None:
        """`best_effort` is the CPU of the best-effort tier: `usage`, `request`, `realLimit`."""
        self.node = node
        self.now = now
        self.collect_interval = SECOND
        self.host = host or Host()
        self.evictions = evictions or Evictions()
        self.pods = tuple(map(PodInfo.of, pods))
        self.files: Mapping[str, str] = dict(files or {})
        self._usage = _amounts(usage or {})
        self._of_pods = {key: _amounts(used) for key, used in (pod_usage or {}).items()}
        self._of_containers = {key: _amounts(used) for key, used in (container_usage or {}).items()}
        self._best_effort = {
            name: canonical_amount("cpu", amount, name) for name, amount in (best_effort or {}).items()
        }
        self._objects = {each["kind"]: each for each in objects}

    def object(self, kind: str) -> Json | None:
        """Return the object of that kind, if there is one."""
        return self._objects.get(kind)

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the node's usage."""
        return _measured(self._usage, resource, "the node")

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the pod's usage."""
        return _measured(self._of_pods.get(key, {}), resource, f"the pod `{key}`")

    def application_usage(
        self, name: str, resource: str, statistic: str = "last", window: int = 0,
    ) -> float:
        """Raise the error `NoMetric`: host applications are not measured."""
        return _measured({}, resource, f"the application `{name}`")

    def container_usage(
        self, key: str, resource: str, statistic: str = "last", window: int = 0,
    ) -> float:
        """Return the usage of a container (`namespace/pod/container`)."""
        return _measured(self._of_containers.get(key, {}), resource, f"the container `{key}`")

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float:
        """Return the CPU of the best-effort tier; a count of samples is 1."""
        amount = _measured(self._best_effort, allocation, "the best-effort tier")
        return 1 if statistic == "count" else amount

    def directory(self, pod: PodInfo, container: str = "") -> str:
        """Return the logical directory of a pod or of one of its containers."""
        return logical_directory(pod, container)


def _amounts(quantities: Mapping[str, str]) -> dict[str, float]:
    return {name: canonical_amount(name, quantity, name) for name, quantity in quantities.items()}


def _measured(amounts: Mapping[str, float], resource: str, of_what: str) -> float:
    if resource not in amounts:
        raise EvaluationError(f"nobody measured `{resource}` of {of_what}", reason="NoMetric")
    return amounts[resource]


# Whole decisions


def schedule(
    asked: Json, *objects: Json, plugins: Iterable[Plugin] = (), policies: Iterable[str | Path] = (),
    settings: Settings | None = None, now: int = NOW,
) -> Verdict:
    """Return the decision about a pod in a cluster of these objects, by these plugins and policy files alone.

    Without `settings` all of them are enabled, also plugins that a profile would have to name.

    Raises:
        PolicyError: an object or a policy is invalid.
    """
    problems = Problems()
    loaded = load_paths(list(policies), source_name="policies")
    problems.extend(loaded.problems)
    compiled = compile_documents(loaded.documents, problems)
    problems.raise_errors()
    plugins = tuple(plugins)
    waiting = tuple(
        PluginChoice(each.name) for each in plugins if not each.enabled and each.framework is Framework.SCHEDULER
    )
    settings = settings or Settings((ProfileSpec(enabled=waiting),))
    live = Live(Registry.of([*plugins, *compiled], generation=1))
    scheduler = Scheduler(Cluster(objects), live, settings, clock=lambda: now)
    try:
        return scheduler.decide(PodInfo.of(asked), exhaustive=True)
    finally:
        scheduler.close()


def assert_placed(verdict: Verdict, *nodes: str) -> None:
    """Check that the pod got a node: one of these, if any are named."""
    assert verdict.node is not None, verdict.summary()
    assert not nodes or verdict.node in nodes, f"{verdict.summary()}, not on {' or '.join(nodes)}; {verdict.best(5)}"


def assert_refused(verdict: Verdict, node: str, *, by: str = "", rule: str = "", message: str = "") -> None:
    """Check that a node was refused: by that plugin and rule, with that message, as far as they are given."""
    found = [(plugin, refusal.rule, refusal.message) for plugin, refusal in verdict.why_not(node)]
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        found.append((plugin, refusal.rule, refusal.message))
    pattern = (by, rule, message)
    fits = [each for each in found if all(want in ("", got) for want, got in zip(pattern, each, strict=True))]
    assert fits, f"{node} was refused by {found or 'nobody'}, and that is not {pattern}"


def assert_scored(verdict: Verdict, plugin: str, **scores: int) -> None:
    """Check a plugin's scores by node name, with `_` for `-`; compares all named nodes at once."""
    assert scores, f"no node is named that `{plugin}` should have scored"
    found = {name: verdict.score_of(name.replace("_", "-")).get(plugin) for name in scores}
    assert found == scores, f"`{plugin}` gave {found}, not {scores}"

"""The subjects of a document's thresholds and actions on one node in one round, with their variables."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.check.analysis import is_pure
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cluster.objects.metrics import MeasuredList, Unmeasured, unmeasured
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.pod_variables import pod_values
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.documents import Subject
from koordpolicy.engine.evaluation.facts import Facts, summarize_rows
from koordpolicy.engine.evaluation.pod_selection import accepts_pod
from koordpolicy.engine.kubernetes.vocabulary import BE, QOS_CLASSES

from ..metric_cache.series import STATISTICS
from ..pod_facts import PodFacts
from ..readings import NodeReadings
from .bursting import excluded_cpu, shared_usage
from .suppression import owned_cpus

_NODE: Final = ("node", "nodeInfo", "allocatable", "requested")
QOS_CLASS_TIERS: Final[Mapping[str, str]] = {"BE": "besteffort", "LS": "burstable"}
"""The directories of Kubernetes' QoS classes, by the class whose settings they have; the others have none."""
_ALLOCATIONS: Final = ("usage", "request", "realLimit")
"""The CPU of the best-effort tier, as readings and expressions name it."""


_CONSTANT: Final = frozenset({"pod", "podInfo", "requests", "limits", "container", "params"})
"""The variables that are the same as long as a pod is the same version."""
_UNKNOWN: Final = object()
_VARIES: Final = object()
"""The value of an expression that reads other variables, or calls a function that is not pure."""


THROTTLED: Final = "throttled"
"""The share of CFS periods in which a pod or a container was throttled."""


@dataclass(frozen=True, slots=True)
class QoSSubject:
    """A subject of thresholds and actions: its name for messages, its variables, and its pods."""

    name: str
    bindings: Mapping[str, object]
    pods: tuple[PodInfo, ...]
    directory: str = ""
    """The logical directory of its control groups; that of all pods for a node, and empty if it has none of its own."""


class RoundBindings(dict[str, object]):
    """Variables by name, each computed when it is first read.

    `known` has values of expressions that read constants of the subject alone (`evaluate`); it outlives the round.
    """

    def __init__(
        self, values: Mapping[str, object], readers: Mapping[str, Callable[[], object]],
        known: dict[int, object] | None = None,
    ) -> None:
        super().__init__(values)
        self._readers = readers
        self._known = known

    def __missing__(self, name: str) -> object:
        value = self[name] = self._readers[name]()
        return value

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._readers

    def get(self, key: str, default: Any = None) -> Any:
        """Return a variable, `default` without one."""
        try:
            return self[key]
        except KeyError:
            return default

    def evaluate(self, program: Program, of: Callable[[Any], object] | None = None) -> Any:
        """Return an expression's value, or what `of` makes of it, which depends on the value alone.

        For an expression that reads nothing but the version of the subject that there is, and parameters, by functions
        that are pure, this is done once. The program must live as long as the subject's values. What is raised is
        raised again each time.
        """
        known = self._known
        found = _UNKNOWN if known is None else known.get(id(program), _UNKNOWN)
        if found is _UNKNOWN or found is _VARIES:
            value = program.evaluate(self)
            value = value if of is None else of(value)
            if known is not None and found is _UNKNOWN:
                known[id(program)] = value if _is_constant(program) else _VARIES
            return value
        return found


def _is_constant(program: Program) -> bool:
    return _CONSTANT.issuperset(program.variables) and is_pure(program.checked)


class _PodBindings(RoundBindings):
    """The variables of a pod, or of a container, and the node."""

    def __init__(
        self, view: RoundView, pod: PodInfo, known: dict[int, object], container: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__({}, {}, known)
        self._view = view
        self._pod = pod
        self._container = container
        self._begun = False

    def __missing__(self, name: str) -> object:
        if not self._begun:
            self._begin()
            if dict.__contains__(self, name):
                return self[name]
        return super().__missing__(name)

    def __contains__(self, name: object) -> bool:
        if not self._begun:
            self._begin()
        return super().__contains__(name)

    def _begin(self) -> None:
        """Compute what all rounds read: an expression whose value is known needs none of it."""
        self._begun = True
        values, self._readers = self._view.values_of(self._pod, self._container)
        for name, value in values.items():
            self.setdefault(name, value)


class ComputedAmounts(Mapping[str, int]):
    """Measured amounts by resource, each computed when it is first read; a resource without one is an error."""

    def __init__(self, resources: Iterable[str], compute: Callable[[str], int]) -> None:
        self._amounts: dict[str, int | None] = dict.fromkeys(resources)
        self._compute = compute

    def __getitem__(self, name: str) -> int:
        if name not in self._amounts:
            raise unmeasured(f"no metric of `{name}`")
        amount = self._amounts[name]
        if amount is None:
            amount = self._amounts[name] = self._compute(name)
        return amount

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - absence is an error, never a default
        """Return the amount; raise `EvaluationError` (NoMetric) if there is none."""
        return self[key]

    def __contains__(self, name: object) -> bool:
        return name in self._amounts

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)


class SelectedPods:
    """Facts of pods that a document needs in every round: which of them it matches, and which CPUs are theirs."""

    def __init__(self, compiled: CompiledQoS) -> None:
        match = compiled.spec.match.pods
        self._match = match
        self._by_namespace = match is not None and match.namespace_selector is not None
        self._matching = PodFacts(lambda pod: accepts_pod(match, pod, _NO_OBJECTS))
        self._known: PodFacts[dict[str, dict[int, object]]] = PodFacts(lambda _: {})
        self._excluded = PodFacts(excluded_cpu)
        self._owned = PodFacts(lambda pod: owned_cpus(pod.object))

    def matching(self, readings: NodeReadings) -> tuple[PodInfo, ...]:
        """Return the pods that the document matches; labels of namespaces may change while the pods do not."""
        pods = readings.pods
        if self._by_namespace:
            return tuple(pod for pod in pods if accepts_pod(self._match, pod, readings.variables))
        return tuple(pod for pod, matches in zip(pods, self._matching.of(pods), strict=True) if matches)

    def known(self, pods: tuple[PodInfo, ...]) -> tuple[dict[str, dict[int, object]], ...]:
        """Return for each of the matching pods the known values of it, and of its containers by name."""
        return self._known.of(pods)

    def excluded(self, readings: NodeReadings) -> list[tuple[str, int]]:
        """Return the keys of pods that use no shared CPUs, with their `excluded_cpu`."""
        of_pods = zip(readings.pods, self._excluded.of(readings.pods), strict=True)
        return [(pod.key, cpu) for pod, cpu in of_pods if cpu is not None]

    def owned(self, readings: NodeReadings) -> tuple[Mapping[int, str], ...]:
        """Return the `owned_cpus` of each pod on the node."""
        return self._owned.of(readings.pods)


class _NoObjects:
    """Knows no object (implements `KnownObjects`)."""

    def object(self, kind: str, key: str) -> None:  # noqa: ARG002 - the parameters of the protocol
        return None


_NO_OBJECTS: Final = _NoObjects()


class RoundView:
    """The variables of expressions for one node in one round."""

    def __init__(self, compiled: CompiledQoS, readings: NodeReadings, selection: SelectedPods) -> None:
        self.compiled = compiled
        self.readings = readings
        self._selection = selection
        self.node = str(readings.node["metadata"]["name"])
        self._variables = readings.variables
        self._averages: dict[str, Mapping[str, float]] = {}
        """The averages of pods over the window, by the pod's key, as far as they were needed."""
        self._by_class: dict[str, tuple[int, int]] = {}
        self._values: dict[str, object] = {"params": compiled.params, "now": Timestamp(readings.now)}
        self._facts: Facts | None = None

    @functools.cached_property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods that the document matches."""
        return self._selection.matching(self.readings)

    def subjects(self) -> Iterator[QoSSubject]:
        """Yield the document's subjects."""
        match self.compiled.spec.for_each:
            case Subject.NODE:
                yield QoSSubject(self.node, self.of_node(), self.pods, "guaranteed")
            case Subject.POD:
                for pod, known in zip(self.pods, self._selection.known(self.pods), strict=True):
                    bindings = _PodBindings(self, pod, known.setdefault("", {}))
                    yield QoSSubject(pod.key, bindings, (pod,), self.readings.directory(pod))
            case Subject.CONTAINER:
                for pod, known in zip(self.pods, self._selection.known(self.pods), strict=True):
                    for container in (pod.object.get("spec") or {}).get("containers") or ():
                        yield self._container(pod, container, known)
            case Subject.QOS_CLASS:
                for name in QOS_CLASSES:
                    yield self._qos_class(name)

    @property
    def owned_cpus(self) -> tuple[Mapping[int, str], ...]:
        """The CPUs that are allocated to each pod on the node (`suppression.owned_cpus`)."""
        return self._selection.owned(self.readings)

    @functools.cached_property
    def shared_cpu(self) -> tuple[float | None, float]:
        """The usage and amount of the CPUs that pods share, in milli-cores (`bursting.shared_usage`)."""
        return shared_usage(self.readings, self._selection.excluded(self.readings), self.compiled.spec.interval_ns)

    def of_node(self) -> RoundBindings:
        """Return the variables of the node."""
        return RoundBindings(self._values, self._readers)

    def of_pod(self, pod: PodInfo) -> RoundBindings:
        """Return the variables of a pod and the node."""
        return RoundBindings(*self.values_of(pod))

    def values_of(
        self, pod: PodInfo, container: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, object], Mapping[str, Callable[[], object]]]:
        """Return the variables of a pod or container and the node: values, and functions that compute others."""
        values: dict[str, object] = {**self._values, **pod_values(pod)}
        readers: dict[str, Callable[[], object]] = {
            **self._readers, "podUsage": functools.partial(self._measured, "pod", pod.key)}
        if container is not None:
            values["container"] = container
            readers["containerUsage"] = functools.partial(self._measured, "container", _name_of(pod, container))
        return values, readers

    def _container(
        self, pod: PodInfo, container: Mapping[str, Any], known: dict[str, dict[int, object]],
    ) -> QoSSubject:
        name = str(container.get("name", ""))
        bindings = _PodBindings(self, pod, known.setdefault(f"/{name}", {}), container)
        return QoSSubject(_name_of(pod, container), bindings, (pod,), self.readings.directory(pod, name))

    def _qos_class(self, name: str) -> QoSSubject:
        pods = tuple(pod for pod in self.pods if pod.qos_class == name)
        readers: dict[str, Callable[[], object]] = {
            **self._readers, "classRequests": functools.partial(_requests_of, pods),
            "classUsage": functools.partial(self._sum, pods)}
        bindings = RoundBindings({**self._values, "qosClass": name}, readers)
        return QoSSubject(name, bindings, pods, QOS_CLASS_TIERS.get(name, ""))

    @functools.cached_property
    def _readers(self) -> Mapping[str, Callable[[], object]]:
        rows: dict[str, Callable[[], object]] = {name: functools.partial(self._row_value, name) for name in _NODE}
        return {
            **rows, "usage": self._usage, "metricAge": self._metric_age, "nodeSLO": self._node_slo,
            "bestEffortUsage": self._best_effort, "bestEffortCPU": self._best_effort_cpu,
            "nonBestEffortUsage": self._non_best_effort, "systemUsage": self._system, "aggregates": self._aggregates,
        }

    def _row_value(self, name: str) -> object:
        value = self._variables.value(name)
        if name == "nodeInfo":
            info: Any = value
            return {**info, "measured": not isinstance(self._usage(), Unmeasured)}
        return value

    @functools.cached_property
    def _node_usage(self) -> Mapping[str, object]:
        usage = self._measured("node", self.node)
        if isinstance(usage, Unmeasured):
            return usage
        statistics = {name: self._measured("node", self.node, name) for name in STATISTICS if name != "last"}
        return MeasuredList({**usage, **statistics})

    def _usage(self) -> Mapping[str, object]:
        return self._node_usage

    def _measured(self, what: str, name: str, statistic: str = "avg") -> Mapping[str, object]:
        """Return the measured amounts over the window, by resource."""
        amounts = self.readings.measured(what, name, statistic, self.compiled.spec.window_ns)
        if not amounts:
            return Unmeasured(f"no sample of {what} `{name}` in the window")
        return MeasuredList({resource: _whole(resource, amount) for resource, amount in amounts.items()})

    def _metric_age(self) -> int:
        return self.readings.age() // 1_000_000_000

    def _node_slo(self) -> Mapping[str, Any]:
        return self.readings.object("NodeSLO") or Unmeasured(f"node `{self.node}` has no NodeSLO")

    def _sum(self, pods: Iterable[PodInfo]) -> Mapping[str, object]:
        """Return the total usage of pods; a pod without a sample counts as 0."""
        node = self._usage()
        if isinstance(node, Unmeasured):
            return node
        total = {resource: 0 for resource, amount in node.items() if isinstance(amount, int)}
        for pod in pods:
            used = self._averages.get(pod.key)
            if used is None:
                used = self.readings.measured("pod", pod.key, "avg", self.compiled.spec.window_ns)
                self._averages[pod.key] = used
            for resource, amount in used.items():
                if resource != THROTTLED:  # shares of pods have no sum
                    total[resource] = total.get(resource, 0) + int(amount)
        return MeasuredList(total)

    def _split(self, combine: Callable[[int, int, int], int]) -> Mapping[str, object]:
        """Return the result of `combine` for the usage of the node, of its best-effort pods and of its other pods."""
        node = self._usage()
        if isinstance(node, Unmeasured):
            return node
        amounts = {resource: amount for resource, amount in node.items() if isinstance(amount, int)}
        return ComputedAmounts(amounts, lambda name: combine(amounts[name], *self._usage_by_class(name)))

    def _usage_by_class(self, resource: str) -> tuple[int, int]:
        """Return the usage of best-effort pods and of the others; a pod without a sample counts as 0."""
        found = self._by_class.get(resource)
        if found is None:
            best = others = 0
            for pod in self.readings.pods:
                try:
                    used = int(self.readings.pod_usage(pod.key, resource, "avg", self.compiled.spec.window_ns))
                except EvaluationError:
                    continue
                if pod.qos_class == BE:
                    best += used
                else:
                    others += used
            found = self._by_class[resource] = best, others
        return found

    def _best_effort(self) -> Mapping[str, object]:
        return self._sum(pod for pod in self.readings.pods if pod.qos_class == BE)

    def _best_effort_cpu(self) -> Mapping[str, object]:
        found = {}
        for name in _ALLOCATIONS:
            with contextlib.suppress(EvaluationError):
                found[name] = int(self.readings.best_effort_cpu(name, "avg", self.compiled.spec.window_ns))
        return MeasuredList(found) if found else Unmeasured("no sample of the best-effort tier in the window")

    def _non_best_effort(self) -> Mapping[str, object]:
        # The pods' measured usage counts, even if the node's own sample is smaller.
        return self._split(lambda node, best, others: max(node - best, others))

    def _system(self) -> Mapping[str, object]:
        return self._split(lambda node, best, others: max(node - best - others, 0))

    def _aggregates(self) -> Facts:
        if self._facts is None:
            self._facts = Facts()  # aggregates read those before
            summarize_rows(self._facts, self.compiled.aggregates, lambda _: map(self.of_pod, self.pods))
        return self._facts


def _name_of(pod: PodInfo, container: Mapping[str, Any]) -> str:
    return f"{pod.key}/{container.get('name', '')}"


def _requests_of(pods: Iterable[PodInfo]) -> ResourceList:
    """Return the sum of the requests of pods."""
    requests = ResourceList()
    for pod in pods:
        for resource, amount in pod.requests.items():
            requests[resource] += amount
    return requests


def _whole(resource: str, amount: float) -> int:
    """Return a measured amount as expressions see it: `throttled`, a share from 0 to 1, in percent."""
    return round(amount * 100) if resource == THROTTLED else int(amount)

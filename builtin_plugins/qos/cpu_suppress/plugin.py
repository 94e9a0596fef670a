"""BECPUSuppress: keeps a node's CPU usage near a threshold by limiting all best-effort pods together.

The behaviour is koordlet's (cpu_suppress.go); it reads `spec.resourceUsedThresholdWithBE` of the node's NodeSLO and the
annotations of its NodeResourceTopology. The arithmetic of the limit is in `engine.agent.qos_manager.suppression`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.agent.cpuset import parse_cpuset
from koordpolicy.engine.agent.pod_facts import PodFacts
from koordpolicy.engine.agent.qos_manager.node_slo import SLOSection, node_name, node_slo
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.agent.qos_manager.suppression import (
    CPUSET_FILE,
    QUOTA_FILE,
    Writes,
    best_effort_cpus,
    choose_best_effort_cpus,
    owned_cpus,
    read_annotation,
    recover_cpus,
    recover_quota,
    set_cpus,
    set_quota,
    topology_of,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import (
    BE,
    NODE_RESERVATION_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    kubernetes_qos_class,
    raw_qos_class,
)

_DEFAULT_THRESHOLD: Final = 65
_MANAGER_GATE: Final = "BECPUManager"


@dataclass(frozen=True, slots=True)
class UsageSplit:
    """A node's usage by origin, in the given unit: see `split_usage`."""

    filtered_pods: float
    filtered_applications: float
    system: float


def split_usage(
    node: float, reserved: float, pods: Iterable[tuple[float, bool]], applications: Iterable[tuple[float, bool]],
) -> UsageSplit:
    """Split a node's usage.

    Pods and host applications are pairs of a usage and whether it counts as filtered. The rest is the system's usage:
    at least its reservation, and never below 0.
    """
    pods, applications = list(pods), list(applications)
    system = node - sum(used for used, _ in pods) - sum(used for used, _ in applications)
    return UsageSplit(
        filtered_pods=sum(used for used, counts in pods if counts),
        filtered_applications=sum(used for used, counts in applications if counts),
        system=max(system, 0, reserved),
    )


def suppress_amount(
    capacity_milli: int, threshold_percent: int, cores: UsageSplit, min_percent: int | None = None,
) -> int:
    """Return the milli-cores that all best-effort pods together may use; may be negative on a node under pressure.

    `cores` is the usage without the best-effort tier.
    """
    amount = capacity_milli * threshold_percent // 100
    amount -= int(cores.filtered_pods * 1000) + int(cores.filtered_applications * 1000) + int(cores.system * 1000)
    return amount if min_percent is None else max(amount, capacity_milli * min_percent // 100)


def pod_counts(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is not in the best-effort tier: by its label and by Kubernetes' QoS class."""
    return raw_qos_class(pod) != BE and kubernetes_qos_class(pod) != "BestEffort"


def application_counts(application: Mapping[str, Any]) -> bool:
    """Return whether a declared host application is not in the best-effort tier."""
    base = (application.get("cgroupPath") or {}).get("base")
    return not (application.get("qos") == BE and base == "KubepodsBesteffort")


def reserved_milli(node: Mapping[str, Any]) -> int:
    """Return the CPU reserved for the system: capacity less allocatable, or the node's reservation annotation.

    Raises `EvaluationError` if a quantity or the annotation is malformed.
    """
    status = node.get("status") or {}
    capacity, allocatable = ((status.get(key) or {}).get("cpu", "0") for key in ("capacity", "allocatable"))
    reservation = SLOSection(read_annotation(node, NODE_RESERVATION_ANNOTATION), NODE_RESERVATION_ANNOTATION)
    resources = reservation.sub("resources")
    try:
        unallocatable = canonical_amount("cpu", capacity, "status.capacity.cpu")
        unallocatable -= canonical_amount("cpu", allocatable, "status.allocatable.cpu")
        declared = resources.values.get("cpu", "0") if resources is not None else "0"
        reserved = canonical_amount("cpu", declared, f"metadata.annotations.{NODE_RESERVATION_ANNOTATION}")
        if cpus := reservation.text("reservedCPUs"):
            reserved = len(parse_cpuset(cpus)) * 1000
    except ValueError as error:
        raise EvaluationError(str(error)) from None
    return max(unallocatable, 0, reserved)


@dataclass(frozen=True, slots=True)
class BECPUSuppressArgs:
    """The arguments of the strategy; its thresholds are in the NodeSLO."""

    interval: int
    """The interval between two rounds, in nanoseconds."""
    cpu_manager: bool = False
    """Another component owns best-effort CPU sets, so all limits are recovered; the feature gate BECPUManager says the
    same."""

    @staticmethod
    def of(args: Mapping[str, Any]) -> BECPUSuppressArgs:
        """Read plain arguments.

        Raises:
            ValueError: an unknown argument, or one of a wrong type or out of range.
        """
        managed = args.get("cpuManager", False)
        if not isinstance(managed, bool):
            raise ValueError(f"`cpuManager`: `{managed}` is not true or false")  # noqa: TRY004 - of arguments
        return BECPUSuppressArgs(read_interval(args, ("cpuManager",)), managed)


class BECPUSuppress:
    """The strategy, with the state of both limits on each node."""

    name = "BECPUSuppress"

    def __init__(self, args: Mapping[str, Any], handle: Any = None) -> None:
        self._args = BECPUSuppressArgs.of(args)
        self._managed = self._args.cpu_manager or _MANAGER_GATE in getattr(handle, "feature_gates", ())
        self._counting = PodFacts(lambda pod: pod_counts(pod.object))
        self._cpus = PodFacts(lambda pod: owned_cpus(pod.object))
        self.status: dict[tuple[str, str], str] = {}
        """`using` or `recovered` by (node, `cpuset` or `cfsQuota`); absent if it was never changed."""

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._args.interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Limit the best-effort tier, or recover all limits if the strategy is disabled."""
        section = _section(readings)
        if self._managed:
            return self._recover(readings, "best-effort CPU sets are managed elsewhere (BECPUManager)", managed=True)
        if not section.flag("enable"):
            return self._recover(readings, "disabled in the NodeSLO")
        if not readings.pods:
            return ()
        amount, cores, values = _measure(readings, section, self._counting)
        capacity = values["capacity"]
        if section.text("cpuSuppressPolicy") == "cfsQuota":
            writes = set_quota(amount, readings.files, capacity)
            self._set(readings, "cfsQuota", "using")
            return (
                *_adjustments("suppressCPU", readings, _reason(amount, section, cores), values, writes),
                *self._give_back_cpus(readings, "the CFS quota is in use instead"),
            )
        topology = topology_of(readings, self._cpus.of(readings.pods))
        cpus = choose_best_effort_cpus(amount, best_effort_cpus(readings.files), topology)
        writes = set_cpus(cpus, readings.files, topology) if cpus else ()
        self._set(readings, "cpuset", "using")
        return (
            *_adjustments("suppressCPU", readings, _reason(amount, section, cores), values, writes),
            *self._give_back_quota(readings, "the CPU set is in use instead"),
        )

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the limit with its inputs, and the current limit of the best-effort tier."""
        section = _section(readings)
        if self._managed:
            return (Finding("state", "best-effort CPU sets are managed elsewhere (BECPUManager)"),)
        if not section.flag("enable"):
            return (Finding("state", "disabled in the NodeSLO: `resourceUsedThresholdWithBE.enable` is false"),)
        if not readings.pods:
            return (Finding("state", "there are no pods on the node"),)
        amount, cores, values = _measure(readings, section, self._counting)
        quota = section.text("cpuSuppressPolicy") == "cfsQuota"
        file = QUOTA_FILE if quota else CPUSET_FILE
        least = section.whole("cpuSuppressMinPercent")
        floor = "" if least is None else f", at least {least} % of it"
        now = readings.files.get(file, "").strip() or "nothing"
        using = self._get(readings, "cfsQuota" if quota else "cpuset") or "never changed"
        return (
            Finding("target", f"{_reason(amount, section, cores)}{floor}", facts={"values": values}),
            Finding("current", f"by {'CFS quota' if quota else 'CPU set'}: {file} is {now} ({using})",
                    facts={"file": file, "text": now, "status": using}),
        )

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Recover both the quota and the CPU set."""
        return self._recover(readings, "the plugin is removed")

    def _recover(self, readings: Readings, reason: str, *, managed: bool = False) -> tuple[Adjustment, ...]:
        return (
            *self._give_back_quota(readings, reason),
            *self._give_back_cpus(readings, reason, managed=managed),
        )

    def _give_back_quota(self, readings: Readings, reason: str) -> tuple[Adjustment, ...]:
        if self._get(readings, "cfsQuota") == "recovered":
            return ()
        self._set(readings, "cfsQuota", "recovered")
        return _adjustments("suppressCPU", readings, reason, {}, recover_quota(readings.files), recovers=True)

    def _give_back_cpus(self, readings: Readings, reason: str, *, managed: bool = False) -> tuple[Adjustment, ...]:
        skipped = _pinned_directories(readings) if managed else frozenset()
        writes = recover_cpus(readings.files, topology_of(readings, self._cpus.of(readings.pods)), except_for=skipped)
        self._set(readings, "cpuset", "recovered")
        return _adjustments("suppressCPU", readings, reason, {}, writes, recovers=True)

    def _get(self, readings: Readings, policy: str) -> str | None:
        return self.status.get((node_name(readings), policy))

    def _set(self, readings: Readings, policy: str, status: str) -> None:
        self.status[node_name(readings), policy] = status


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    BECPUSuppressArgs.of(args)
    return args


def make(args: Mapping[str, Any], handle: object) -> BECPUSuppress:
    """Make the strategy for one profile."""
    return BECPUSuppress(args, handle)


def _section(readings: Readings) -> SLOSection:
    section = node_slo(readings).sub("resourceUsedThresholdWithBE")
    if section is None or section.flag("enable") is None:
        raise EvaluationError(
            f"the NodeSLO of `{node_name(readings)}` does not say `resourceUsedThresholdWithBE.enable`",
        )
    return section


def _measure(
    readings: Readings, section: SLOSection, counting: PodFacts[bool],
) -> tuple[int, UsageSplit, dict[str, Any]]:
    used = readings.node_usage("cpu") / 1000
    pods = [
        (cores, counts) for pod, counts in zip(readings.pods, counting.of(readings.pods), strict=True)
        if (cores := _pod_cores(readings, pod)) is not None
    ]
    applications = []
    for each in node_slo(readings).each("hostApplications"):
        try:
            cores = readings.application_usage(each.text("name"), "cpu") / 1000
        except EvaluationError:
            continue
        applications.append((cores, application_counts(each.values)))
    try:
        capacity = canonical_amount(
            "cpu", ((readings.node.get("status") or {}).get("capacity") or {}).get("cpu", "0"), "status.capacity.cpu",
        )
    except ValueError as error:
        raise EvaluationError(str(error)) from None
    split = split_usage(used, reserved_milli(readings.node) / 1000, pods, applications)
    amount = suppress_amount(capacity, _threshold(section), split, section.whole("cpuSuppressMinPercent"))
    values = {
        "capacity": capacity, "nodeUsage": int(used * 1000), "nonBestEffortUsage": int(split.filtered_pods * 1000),
        "systemUsage": int(split.system * 1000), "target": amount,
    }
    return amount, split, values


def _threshold(section: SLOSection) -> int:
    threshold = section.whole("cpuSuppressThresholdPercent")
    return _DEFAULT_THRESHOLD if threshold is None else threshold


def _pod_cores(readings: Readings, pod: PodInfo) -> float | None:
    # A pod that has just started has no sample yet; the node must stay protected.
    try:
        return readings.pod_usage(pod.key, "cpu") / 1000
    except EvaluationError:
        return None


def _pinned_directories(readings: Readings) -> frozenset[str]:
    """Return the container directories of pods with exclusive CPUs or NUMA nodes."""
    pinned = {readings.directory(pod) for pod in readings.pods if _is_pinned(pod)}
    names = (name.removesuffix("/cpuset.cpus") for name in readings.files if name.endswith("/cpuset.cpus"))
    return frozenset(name for name in names if name.count("/") == 2 and name.rpartition("/")[0] in pinned)


def _is_pinned(pod: PodInfo) -> bool:
    try:
        status = read_annotation(pod.object, RESOURCE_STATUS_ANNOTATION)
    except EvaluationError:
        return False
    return bool(status.get("cpuset") or status.get("numaNodeResources"))


def _reason(amount: int, section: SLOSection, cores: UsageSplit) -> str:
    return (
        f"{amount}m is left for best-effort pods: {_threshold(section)}% of the node's cpu less "
        f"{int(cores.filtered_pods * 1000)}m of other pods and {int(cores.system * 1000)}m of the system"
    )


def _adjustments(
    kind: str, readings: Readings, reason: str, values: Mapping[str, object], writes: Writes, *, recovers: bool = False,
) -> tuple[Adjustment, ...]:
    if not writes:
        return ()
    return (Adjustment(kind, node_name(readings), reason, values=values, writes=writes, recovers=recovers),)

"""GroupIdentity: the scheduling priority of pods, tiers and host applications (`cpu.bvt_warp_ns`).

The behaviour is that of koordlet's runtime hook (groupidentity), by reconciling alone. It reads the `cpuQOS` of each
class in `spec.resourceQOSStrategy` of the node's NodeSLO. Only kernels with group identity have the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.memory_qos import is_active
from koordpolicy.engine.agent.qos_manager.node_slo import node_name, node_slo
from koordpolicy.engine.agent.qos_manager.reconciling import (
    INTERVAL_SECONDS,
    DesiredFile,
    FileReconciler,
)
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import BE, LS, LSE, LSR, SYSTEM, raw_qos_class

FILE: Final = "cpu.bvt_warp_ns"
ENABLED_FILE: Final = "proc/sys/kernel/sched_group_identity_enabled"
CORE_SCHEDULING_FILE: Final = "proc/sys/kernel/sched_core"
"""Core scheduling, which excludes group identity."""

_CLASSES: Final[Mapping[str, str]] = {LSE: "lsrClass", LSR: "lsrClass", LS: "lsClass", BE: "beClass"}


def identities(strategy: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the group identity of each class of a `resourceQOSStrategy`; 0 for those that are not enabled.

    All are 0 if the CPU policy is another one.

    Raises:
        ValueError: an identity is not a whole number.
    """
    policy = (strategy.get("policies") or {}).get("cpuPolicy") or "groupIdentity"
    found = {}
    for name in dict.fromkeys(_CLASSES.values()):
        section = (strategy.get(name) or {}).get("cpuQOS") or {}
        value = section.get("groupIdentity") or 0
        if isinstance(value, bool) or not isinstance(value, int):
            path = f"resourceQOSStrategy.{name}.cpuQOS.groupIdentity"
            raise ValueError(f"`{path}` must be a whole number, not {value!r}")  # noqa: TRY004 - about content
        found[name] = value if section.get("enable") is True and policy == "groupIdentity" else 0
    return found


def identity_of(pod: PodInfo, values: Mapping[str, int], strategy: Mapping[str, Any]) -> int:
    """Return the group identity of a pod.

    A guaranteed pod without a QoS class has that of LSR pods if it is enabled, else that of LS pods.
    """
    qos = raw_qos_class(pod.object)
    if qos:
        return values.get(_CLASSES.get(qos, ""), 0)
    if pod.kubernetes_qos == "Guaranteed":
        enabled = ((strategy.get("lsrClass") or {}).get("cpuQOS") or {}).get("enable") is True
        return values["lsrClass" if enabled else "lsClass"]
    return values["lsClass" if pod.kubernetes_qos == "Burstable" else "beClass"]


class GroupIdentity:
    """The reconciler of group identities."""

    name = "GroupIdentity"

    def __init__(self, args: Mapping[str, Any], handle: object = None) -> None:
        self._interval = read_interval(args, default=INTERVAL_SECONDS)
        self._files = FileReconciler("groupIdentity")

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Set the group identities of tiers, pods and host applications."""
        slo = node_slo(readings).values
        strategy = slo.get("resourceQOSStrategy")
        if strategy is None:
            return ()
        try:
            values = identities(strategy)
        except ValueError as error:
            raise EvaluationError(f"the NodeSLO: {error}", reason="InvalidSettings") from None
        desired = tuple(_desired(readings, slo, values))
        return self._files.reconcile(readings, desired, "group identity of the QoS class")

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Restore the former identities."""
        return self._files.recover(readings)


def _desired(readings: Readings, slo: Mapping[str, Any], values: Mapping[str, int]) -> Iterator[DesiredFile]:
    strategy, node = slo["resourceQOSStrategy"], node_name(readings)
    system = (slo.get("systemStrategy") or {}).get("schedGroupIdentityEnabled")
    if any(values.values()):
        if readings.files.get(CORE_SCHEDULING_FILE, "0").strip() != "0":
            yield DesiredFile(node, CORE_SCHEDULING_FILE, "0")
        if system is None:
            yield DesiredFile(node, ENABLED_FILE, "1")
    for tier, value in (("guaranteed", 0), ("burstable", values["lsClass"]), ("besteffort", values["beClass"])):
        yield DesiredFile(node, f"{tier}/{FILE}", str(value))
    for pod in readings.pods:
        if is_active(pod):
            yield DesiredFile(pod.key, f"{readings.directory(pod)}/{FILE}", str(identity_of(pod, values, strategy)))
    for each in slo.get("hostApplications") or ():
        qos = each.get("qos")
        if each.get("name") and qos in (*_CLASSES, SYSTEM):
            yield DesiredFile(node, f"applications/{each['name']}/{FILE}", str(values.get(_CLASSES.get(qos, ""), 0)))


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args, default=INTERVAL_SECONDS)
    return args


def make(args: Mapping[str, Any], handle: object) -> GroupIdentity:
    """Make the strategy for one profile."""
    return GroupIdentity(args, handle)

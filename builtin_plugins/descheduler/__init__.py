"""The Python-coded plugins of the descheduler, in one table.

Each is active only where a profile names it. Modules are imported when a plugin is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import WORKLOAD_READS, Read, field_paths
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin


def _plugin(
    name: str, module: str, make: str, points: tuple[Point, ...], description: str, *, check: str = "",
    reads: tuple[Read, ...] = (), reads_for: str = "",
) -> Plugin:
    def load(attribute: str) -> Any:
        return getattr(import_module(f".{module}", __name__), attribute)

    def made(args: Mapping[str, Any], handle: Any) -> Any:
        return load(make)(args, handle)

    def checked(args: Mapping[str, Any]) -> Mapping[str, Any]:
        result: Mapping[str, Any] = load(check)(args)
        return result

    def read(args: Mapping[str, Any]) -> tuple[Read, ...]:
        result: tuple[Read, ...] = load(reads_for)(args)
        return result

    return Plugin(
        name, Framework.DESCHEDULER, points, made, origin="built-in", digest=f"built-in/{name}/1",
        description=description, enabled=False, check_args=checked if check else None, reads=reads,
        reads_for=read if reads_for else None,
    )


def _of_folder(name: str, point: Point, description: str, *, reads_for: str = "") -> Plugin:
    folder = re.sub("(?<!^)(?=[A-Z])", "_", name).lower()
    return _plugin(name, f"{folder}.plugin", "make", (point,), description, check="check_args", reads_for=reads_for)


def _deschedule(name: str, description: str) -> Plugin:
    return _of_folder(name, Point.DESCHEDULE, description)


def _balance(name: str, description: str, *, reads_for: str = "") -> Plugin:
    return _of_folder(name, Point.BALANCE, description, reads_for=reads_for)


PLUGINS: Final[tuple[Plugin, ...]] = (
    _plugin("LowNodeLoad", "low_node_load.plugin", "make", (Point.BALANCE,),
            "Moves pods from nodes whose measured load is high to nodes whose load is low.", check="check_args",
            reads=(Read("NodeMetric"),)),
    _plugin("CustomPriority", "custom_priority.plugin", "make", (Point.BALANCE,),
            "Moves pods from expensive nodes to cheaper ones, by levels of nodes.", check="check_args"),
    _plugin("FragmentationAware", "fragmentation_aware.plugin", "make", (Point.BALANCE,),
            "Evicts at most one pod per node, to even out how much of each resource is allocated.", check="check_args"),
    _plugin("ScaleDownBinPack", "scale_down_bin_pack.plugin", "make", (Point.BALANCE,),
            "Ranks pods so that a scale-down empties whole nodes, by deletion costs or by evictions.",
            check="check_args"),
    _plugin("DefaultEvictor", "default_evictor.plugin", "make_default_evictor", (Point.EVICTION_FILTER,),
            "Keeps pods that are system-critical, bare, of a daemon set, or use local storage, as Kubernetes' does.",
            check="check_default_evictor_args", reads_for="reads_of"),
    _plugin("MigrationController", "migration_controller.plugin", "make", (Point.EVICTION_FILTER,),
            "Keeps pods that Koordinator would not migrate now: by the pod, its workload, and the jobs in flight.",
            check="check_args", reads=(
                # Whole: jobs are written back, and reservations tell how far a migration is.
                Read("PodMigrationJob", refines=True), Read("Reservation", refines=True),
                Read("Pod", refines=True, fields=frozenset()),
                Read("PodDisruptionBudget", refines=True, fields=field_paths("status.disruptionsAllowed")),
                *WORKLOAD_READS),
            reads_for="reads_of"),
    _deschedule("PodLifeTime", "Evicts pods that are too old, or in a state or condition for too long."),
    _deschedule("RemoveFailedPods", "Evicts failed pods."),
    _deschedule("RemovePodsHavingTooManyRestarts", "Evicts pods whose containers restart again and again."),
    _deschedule("RemovePodsViolatingNodeTaints", "Evicts pods that do not tolerate a taint of their node."),
    _deschedule("RemovePodsViolatingNodeAffinity", "Evicts pods whose node does not match their node affinity."),
    _deschedule("RemovePodsViolatingInterPodAntiAffinity", "Evicts pods beside pods that they avoid."),
    _balance("RemoveDuplicates", "Spreads the pods of an owner evenly over the nodes that take them."),
    _balance("RemovePodsViolatingTopologySpreadConstraint",
             "Evicts pods of domains with more pods than a topology spread constraint allows."),
    _balance("LowNodeUtilization", "Moves pods from nodes of which much is requested to those that are almost empty.",
             reads_for="reads_of"),
    _balance("HighNodeUtilization", "Evicts the pods of nodes of which little is requested, so that fewer are needed."),
)

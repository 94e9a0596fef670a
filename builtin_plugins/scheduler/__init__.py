"""The Python-coded plugins of the scheduler, in one table.

What is not `enabled` here is active only where a profile names it. Modules are imported when a plugin is made. They are
asked in the table's order and, by their `order`, before documents of which none is said: what is cheap and refuses much
comes first, and what refuses a node is the reason that people are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from koordpolicy.engine.points import Framework, Point
from koordpolicy.engine.registry import Plugin

_FILTER: Final = (Point.FILTER,)
_SCORE: Final = (Point.SCORE,)


def _plugin(
    name: str, module: str, points: tuple[Point, ...], description: str, *, enabled: bool = True,
) -> Plugin:
    def load(attribute: str) -> Any:
        return getattr(import_module(f".{module}", __name__), attribute)

    def make(args: Mapping[str, Any], handle: Any) -> Any:
        return load(name)(args, handle)

    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        check: Callable[[Mapping[str, Any]], Mapping[str, Any]] = load(name).check_args
        return check(args)

    return Plugin(name, Framework.SCHEDULER, points, make, origin="built-in", digest=f"built-in/{name}/1",
                  description=description, enabled=enabled, check_args=check_args)


_TABLE: Final[tuple[Plugin, ...]] = (
    _plugin("NodeUnschedulable", "node_unschedulable", _FILTER,
            "Keeps pods off nodes that are cordoned, unless they tolerate that."),
    _plugin("NodeName", "node_name", _FILTER, "Lets a pod that names its node run there only."),
    _plugin("TaintToleration", "taint_toleration", (Point.FILTER, Point.SCORE),
            "Keeps pods off nodes with taints that they do not tolerate; prefers nodes with fewer soft ones."),
    _plugin("NodeAffinity", "node_affinity", (Point.FILTER, Point.SCORE),
            "Node selector and required node affinity; prefers what the preferred affinity names."),
    _plugin("NodeResourcesFit", "node_resources_fit", _FILTER, "Free resources and pod count of the node suffice."),
    _plugin("LoadAwareScheduling", "load_aware_scheduling", (Point.FILTER, Point.SCORE, Point.RESERVE),
            "Keeps pods off nodes whose measured load, with what is expected to come, is high.", enabled=False),
    # Before GpuShare, which chooses the devices only where nobody has.
    _plugin("FragmentationGradient", "fragmentation_gradient", (Point.SCORE, Point.RESERVE),
            "Pods go where they leave the least GPU that the workload's typical pods could not use.", enabled=False),
    _plugin("GpuShare", "gpu_share", (Point.FILTER, Point.RESERVE),
            "Whole and fractional GPUs: the node has them free, and the pod gets the ones that fit tightest."),
    _plugin("GpuClustering", "gpu_clustering", _SCORE,
            "Nodes that hold GPU pods of the same kind come first, then the fuller ones.", enabled=False),
    _plugin("NodeResourcesFitPlus", "node_resources_fit_plus", _SCORE,
            "Packs or spreads each resource by a strategy and a weight of its own.", enabled=False),
    _plugin("ScarceResourceAvoidance", "scarce_resource_avoidance", _SCORE,
            "Keeps nodes with scarce resources for the pods that request them.", enabled=False),
    _plugin("RandomScore", "random_score", _SCORE, "One of the nodes, drawn with equal chance.", enabled=False),
    _plugin("DefaultPreBind", "default_pre_bind", (Point.PRE_BIND,),
            "Sends what other plugins changed of a pod or a Reservation before it is bound, in one patch.",
            enabled=False),
    _plugin("ElasticQuota", "elastic_quota", (Point.PRE_FILTER, Point.POST_FILTER, Point.RESERVE),
            "Keeps pods within the quota that they belong to; quotas lend what they do not use.", enabled=False),
    _plugin("NodeNUMAResource", "node_numa_resource",
            (Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE, Point.RESERVE, Point.PRE_BIND),
            "Gives pods cpus of their own, and resources of NUMA nodes that lie together; amplifies cpu.",
            enabled=False),
)

PLUGINS: Final[tuple[Plugin, ...]] = tuple(
    replace(plugin, order=place - len(_TABLE)) for place, plugin in enumerate(_TABLE)
)

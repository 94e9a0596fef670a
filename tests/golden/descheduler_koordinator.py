"""Golden cases of Koordinator's CustomPriority, FragmentationAware and ScaleDownBinPack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.descheduler.custom_priority import args as custom_priority_args
from koordpolicy.builtin_plugins.descheduler.custom_priority.args import NodeLevel
from koordpolicy.builtin_plugins.descheduler.custom_priority.placement import TargetRoom
from koordpolicy.builtin_plugins.descheduler.custom_priority.plugin import by_level, eviction_key, split_by_fit
from koordpolicy.builtin_plugins.descheduler.fragmentation_aware.imbalance import imbalance, requests_of
from koordpolicy.builtin_plugins.descheduler.scale_down_bin_pack.plugin import evict_ranked, set_deletion_costs
from koordpolicy.builtin_plugins.descheduler.scale_down_bin_pack.ranking import BinPackNode, RankedPod, rank_pods
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount, resource_list
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.argument_faults import refuse
from koordpolicy.engine.descheduler.arguments import KINDS
from koordpolicy.engine.descheduler.evictor import CycleEvictor
from koordpolicy.engine.descheduler.fitting_nodes import FittingNodes
from koordpolicy.engine.descheduler.framework import select_rows
from koordpolicy.engine.descheduler.limits import CycleLimits, EvictionLimiter
from koordpolicy.engine.descheduler.pods import annotations_of
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, RunningPlugin
from koordpolicy.engine.descheduler.results import CycleRecord
from koordpolicy.engine.descheduler.target_pods import TargetPods
from koordpolicy.engine.descheduler.templates import DELETION_COST_ANNOTATION
from koordpolicy.engine.framework.handle import Nothing

from .descheduler_plugins import Case, Found, plugin_of

_NAMES = ("CustomPriority", "FragmentationAware", "ScaleDownBinPack")


def runners(
    cluster_of: Callable[[Case], Snapshot], balance: Callable[[Case, Any], Found],
) -> Mapping[tuple[str, str], Callable[[Case], Found]]:
    """Return the runners; `cluster_of` makes the snapshot of a case, `balance` runs an instance over it."""
    table: dict[tuple[str, str], Callable[[Case], Found]] = {
        ("CustomPriority", "filter_nodes"): lambda case: _filter_nodes(case, cluster_of(case)),
        ("CustomPriority", "classify_nodes"): lambda case: _classify_nodes(case, cluster_of(case)),
        ("CustomPriority", "find_evictable"): lambda case: _find_evictable(case, cluster_of(case)),
        ("CustomPriority", "node_remaining"): lambda case: _node_remaining(case, cluster_of(case)),
        ("CustomPriority", "sort_pods"): _sort_pods,
        ("FragmentationAware", "score_node_imbalance"): _score_node_imbalance,
        ("FragmentationAware", "score_removal_gain"): _score_removal_gain,
        ("ScaleDownBinPack", "rank_pods"): _rank_pods,
        ("ScaleDownBinPack", "is_target_pod"): _is_target_pod,
        ("ScaleDownBinPack", "patch_deletion_costs"): _patch_deletion_costs,
        ("ScaleDownBinPack", "evict_ranked"): _evict_ranked,
    }
    for name in _NAMES:
        table[name, "config_default"] = lambda case: {"config": KINDS[case["plugin"]].default(case["args"])}
        table[name, "config_validate"] = table[name, "new_framework"] = _validate
        table[name, "pod_selector_filter"] = _selects
        table[name, "balance"] = lambda case: _balance(case, balance)
    return table


def _internal(case: Case) -> Mapping[str, Any]:
    kind, given = KINDS[case["plugin"]], case.get("args") or {}
    return given if case.get("internal") else kind.convert(kind.default(given))


def _validate(case: Case) -> Found:
    try:
        refuse(KINDS[case["plugin"]].check(_internal(case)))
    except ValueError as error:
        return {"error": str(error)}
    return {}


def _selects(case: Case) -> Found:
    target = next((pod for pod in case.get("pods") or () if pod["metadata"]["name"] == case["target"]), case["target"])
    return {**_validate(case), "result": TargetPods.of(_internal(case)).selects(PodInfo.of(target))}


def _balance(case: Case, balance: Callable[[Case, Any], Found]) -> Found:
    instance: Any = plugin_of(case).make(_internal(case), None)
    found = balance(case, instance)
    if case["plugin"] == "ScaleDownBinPack":
        found |= _ranking(instance.ranked, case["expect"])
    return found


# CustomPriority


def _all_rows(snapshot: Snapshot, case: Case) -> Any:
    return np.array([snapshot.index[node["metadata"]["name"]] for node in case["nodes"]], dtype=np.intp)


def _filter_nodes(case: Case, snapshot: Snapshot) -> Found:
    rows = select_rows(snapshot, _all_rows(snapshot, case), _internal(case).get("nodeSelector"))
    names = [snapshot.names[row] for row in rows.tolist()]
    return {"result": names, "nodes": names}


def _classify_nodes(case: Case, snapshot: Snapshot) -> Found:
    levels = [NodeLevel(each["name"], each["nodeSelector"]) for each in case["args"]["evictionOrder"]]
    found = by_level(snapshot, _all_rows(snapshot, case).tolist(), levels)
    names = {level.name: [snapshot.names[row] for row in rows] for level, rows in found}
    return {"result": names, "nodes": names}


def _find_evictable(case: Case, snapshot: Snapshot) -> Found:
    pods = [PodInfo.of(pod) for pod in case["pods"]]
    if custom_priority_args.read_args(_internal(case)).node_fit:
        pods = split_by_fit(pods, FittingNodes(snapshot, _all_rows(snapshot, case).tolist()))[0]
    return {"order": [pod.name for pod in pods]}


def _node_remaining(case: Case, snapshot: Snapshot) -> Found:
    found = TargetRoom.of(snapshot, _all_rows(snapshot, case).tolist()).at(0)
    wanted = case["expect"]["result"]
    same = all(found[name] == canonical_amount(name, amount, name) for name, amount in wanted.items())
    return {"result": wanted if same else found}


def _sort_pods(case: Case) -> Found:
    return {"order": [pod.name for pod in sorted(map(PodInfo.of, case["pods"]), key=eviction_key)]}


# FragmentationAware


def _imbalance(given: Case, pods: list[PodInfo]) -> float:
    if given["node"] is None:
        return 0.0
    resources = given["resources"] or ()
    limits = resource_list(given["node"].get("status") or {}, "allocatable", "status")
    return imbalance(requests_of(pods, resources), limits, resources)


def _bounded(result: float, expect: Case) -> Found:
    return {
        "result": result,
        **{key: expect[key] for key, holds in (("resultBelow", result.__lt__), ("resultAbove", result.__gt__))
           if key in expect and holds(expect[key])},
    }


def _score_node_imbalance(case: Case) -> Found:
    given = case["input"]
    return _bounded(_imbalance(given, [PodInfo.of(pod) for pod in given["pods"]]), case["expect"])


def _score_removal_gain(case: Case) -> Found:
    given = case["input"]
    pods = [PodInfo.of(pod) for pod in given["pods"]]
    target = given["targetPod"]
    if target is None:
        return _bounded(0.0, case["expect"])
    uid = PodInfo.of(target).uid if isinstance(target, Mapping) else next(p.uid for p in pods if p.name == target)
    rest = [pod for pod in pods if pod.uid != uid]
    return _bounded(_imbalance(given, pods) - _imbalance(given, rest), case["expect"])


# ScaleDownBinPack


def _ranking(ranked: tuple[RankedPod, ...], expect: Case) -> Found:
    names = [each.pod.name for each in ranked]
    found: Found = {"order": names, "ranked": names}
    if "rankedSet" in expect and set(names) == set(expect["rankedSet"]):
        found["rankedSet"] = expect["rankedSet"]
    scores = {each.pod.name: each.score for each in ranked}
    found["scores"] = {
        name: wanted if _is_score(scores.get(name), wanted) else scores.get(name)
        for name, wanted in (expect.get("scores") or {}).items()
    }
    return found


def _is_score(score: float | None, wanted: float | str) -> bool:
    if score is None:
        return False
    if isinstance(wanted, str):
        return math.isinf(score) if wanted == "+Inf" else 0 < score < math.inf
    return math.isclose(score, wanted, abs_tol=1e-9)


def _rank_pods(case: Case) -> Found:
    given = case["input"]

    def on(node: str, of: str) -> tuple[PodInfo, ...]:
        pods = [PodInfo.of(pod) for pod in given.get(of) or ()]
        return tuple(pod for pod in pods if pod.node_name == node)

    nodes = [
        BinPackNode(
            name := node["metadata"]["name"], resource_list(node.get("status") or {}, "allocatable", "status"),
            on(name, "eligible"), on(name, "skipped"), on(name, "nonTarget"),
        )
        for node in given["nodes"]
    ]
    return _ranking(rank_pods(nodes, given.get("resourceWeights") or {}), case["expect"])


def _is_target_pod(case: Case) -> Found:
    return {"result": TargetPods.of(_internal(case)).has_labels_of_target(PodInfo.of(case["target"]))}


class _Server(Nothing):
    """Notes the deletion costs that are written."""

    def __init__(self) -> None:
        self.costs: dict[str, str] = {}

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> None:
        self.costs[modified["metadata"]["name"]] = annotations_of(PodInfo.of(modified))[DELETION_COST_ANNOTATION]


class _Hands:
    """Evicts all that it is asked to."""

    def __init__(self) -> None:
        self.evicted: list[str] = []

    def evict(self, pod: PodInfo, reason: str) -> bool:
        self.evicted.append(pod.name)
        return True


def _pod(name: str) -> PodInfo:
    return PodInfo.of({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}})


def _evictor(case: Case, server: _Server, hands: _Hands) -> CycleEvictor:
    record = CycleRecord(dry_run=bool(case["input"].get("dryRun")))
    profile = DeschedulerProfile("golden", None, (), (), (), RunningPlugin("Hands", hands))
    snapshot = Cluster().snapshot()
    return CycleEvictor(profile, snapshot, EvictionLimiter(CycleLimits()), record, server).hand_to(
        RunningPlugin("ScaleDownBinPack", None))


def _ranked(case: Case) -> tuple[RankedPod, ...]:
    return tuple(RankedPod(_pod(each["pod"]), each["rank"], 0.0) for each in case["input"]["ranked"])


def _patch_deletion_costs(case: Case) -> Found:
    server = _Server()
    skipped = map(_pod, case["input"].get("skipped") or ())
    set_deletion_costs(_ranked(case), skipped, _evictor(case, server, _Hands()))
    wanted = case["expect"]["annotations"]
    plain = {
        name: value.get(DELETION_COST_ANNOTATION) if isinstance(value, Mapping) else value
        for name, value in wanted.items()
    }
    return {"annotations": wanted if server.costs == plain else server.costs}


def _evict_ranked(case: Case) -> Found:
    hands = _Hands()
    evict_ranked(_ranked(case), (case.get("args") or {}).get("maxPodsToEvict"), _evictor(case, _Server(), hands))
    return {"evicted": hands.evicted}

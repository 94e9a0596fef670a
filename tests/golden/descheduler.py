"""Golden cases of the descheduler: one function per plugin and point, by name in one table.

A plugin or point that has no entry in the table is not built, and each of its cases says so. A runner returns what came
out in the shape of the case's `expect`, or what differs as a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.descheduler.default_evictor.plugin import DefaultEvictor, EvictorFilter
from koordpolicy.builtin_plugins.descheduler.default_evictor.protections import effective_protections
from koordpolicy.builtin_plugins.descheduler.low_node_load.plugin import (
    LowNodeLoad,
    NodeLoad,
    PoolThresholds,
    eviction_reason,
    raw_allocatable,
    select_nodes,
    sort_by_load,
)
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, canonical_amount
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.anomaly import AnomalyCondition, Detector, Detectors
from koordpolicy.engine.descheduler.argument_faults import field_path
from koordpolicy.engine.descheduler.arguments import (
    NodePool,
    check_low_node_load,
    complete,
    default_low_node_load,
    read_low_node_load,
)
from koordpolicy.engine.descheduler.config import read_plain
from koordpolicy.engine.descheduler.evictor import CycleEvictor
from koordpolicy.engine.descheduler.framework import ready_rows, run_plugins
from koordpolicy.engine.descheduler.limits import CycleLimits, EvictionLimiter
from koordpolicy.engine.descheduler.profile import (
    DeschedulerProfile,
    DeschedulerProfileSpec,
    RunningPlugin,
    build_profiles,
)
from koordpolicy.engine.descheduler.results import CycleRecord
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.framework.handle import NOTHING
from koordpolicy.engine.framework.points import Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError

from . import descheduler_balance, descheduler_deschedule, descheduler_koordinator, descheduler_migration
from .result import Result
from .suites import read_cases

Case = Mapping[str, Any]


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of each case of the file."""
    for case in read_cases(path):
        yield _result(case)


def _result(case: Case) -> Result:
    runner = RUNNERS.get((str(case.get("plugin")), str(case.get("point"))))
    if runner is None:
        return Result(
            "descheduler", case["id"], False, f"point `{case.get('point')}` of `{case.get('plugin')}` is not built yet",
        )
    try:
        difference = _difference(runner(case), case["expect"])
    except Exception as error:
        difference = f"stopped by {type(error).__name__}: {error}"
    return Result("descheduler", case["id"], not difference, difference)


def _difference(found: Mapping[str, Any], expect: Mapping[str, Any]) -> str:
    differences = []
    for key, wanted in expect.items():
        if key == "error":
            # Our messages quote in backticks what the source quotes in double quotes.
            text = (found.get("error") or "").replace("`", '"') or None
            if text is None or (wanted != "*" and wanted not in text):
                differences.append(f"error: expected {wanted!r}, got {text!r}")
        elif key == "valid":
            if found.get("error") is not None:
                differences.append(f"expected it to be valid, got {found['error']!r}")
        elif key == "reasonContains":
            if not all(wanted in reason for reason in found["reasons"]):
                differences.append(f"reasons: expected {wanted!r} in {found['reasons']!r}")
        elif not _same(found.get(key), wanted):
            differences.append(f"{key}: expected {wanted!r}, got {found.get(key)!r}")
    return "; ".join(differences)


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and isinstance(found, str) and found != wanted:
        return _is_same_duration(found, wanted)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and isinstance(found, list):
        return len(found) == wanted
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_same(found.get(key, 0 if isinstance(value, int) else None), value) for key, value in wanted.items())
    return found == wanted


def _is_same_duration(found: str, wanted: str) -> bool:
    try:
        return parse_duration(found) == parse_duration(wanted)
    except ValueError:
        return False


# What a case holds


def _now(case: Case) -> int:
    text = case.get("now")
    return 0 if not text else int(datetime.fromisoformat(text).timestamp()) * 1_000_000_000


def _snapshot(case: Case) -> Snapshot:
    nodes = [{"kind": "Node", **node} for node in case.get("nodes") or []]
    pods = [{"kind": "Pod", **pod} for pod in case.get("pods") or []]
    if case.get("listing") == "byName":
        pods.sort(key=lambda pod: pod["metadata"]["name"])
    return Cluster([*nodes, *pods, *(case.get("objects") or [])]).snapshot(_now(case))


def _rows(case: Case, snapshot: Snapshot) -> Any:
    """Return the rows in the order in which the case lists its nodes."""
    return np.array([snapshot.index[node["metadata"]["name"]] for node in case.get("nodes") or []], dtype=np.intp)


class _Stub:
    """A filter plugin with constant answers."""

    def __init__(self, of: Case) -> None:
        self._of = of

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        answer = self._of.get("filter", True)
        passed = pod.name not in answer["reject"] if isinstance(answer, dict) else answer
        return None if passed else Refusal("stub", "no")

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        return None if self._of.get("preEvictionFilter", True) else Refusal("stub", "no")

    def evict(self, pod: PodInfo, reason: str) -> bool:
        return bool(self._of.get("evict", True))


def _evictor(case: Case, snapshot: Snapshot) -> tuple[CycleEvictor, CycleRecord]:
    of = case.get("evictor") or {"name": "Stub"}
    instance = DefaultEvictor(of.get("args") or {}) if of["name"] == "DefaultEvictor" else _Stub(of)
    filters, evict = RunningPlugin(of["name"], instance), RunningPlugin("Stub", _Stub(of))
    record = CycleRecord(dry_run=False)
    limits = case.get("limits") or {}
    limiter = EvictionLimiter(_limits(limits))
    profile = DeschedulerProfile("golden", None, (), (), (filters,), evict)
    evictor = CycleEvictor(profile, snapshot, limiter, record, NOTHING)
    return evictor.hand_to(RunningPlugin(str(case["plugin"]), None)), record


def _limits(given: Case) -> CycleLimits:
    return CycleLimits(*(given.get(f"maxNoOfPodsToEvict{each}") for each in ("PerNode", "PerNamespace", "Total")))


def _target(case: Case) -> PodInfo:
    target = case["target"]
    if isinstance(target, str):
        target = next(pod for pod in case["pods"] if pod["metadata"]["name"] == target)
    return PodInfo.of(target)


def _amounts(quantities: Mapping[str, Any] | None) -> ResourceList:
    return ResourceList({name: canonical_amount(name, each, name) for name, each in (quantities or {}).items()})


# LowNodeLoad


def _low_node_load_balance(case: Case) -> dict[str, Any]:
    snapshot = _snapshot(case)
    evictor, record = _evictor(case, snapshot)
    plugin = LowNodeLoad(read_low_node_load(complete("LowNodeLoad", case["args"])))
    plugin.balance(snapshot, _rows(case, snapshot), evictor)
    return _evicted(record)


def _deschedule(case: Case, plugin: Any) -> dict[str, Any]:
    snapshot = _snapshot(case)
    evictor, record = _evictor(case, snapshot)
    plugin.deschedule(snapshot, _rows(case, snapshot), evictor)
    return _evicted(record)


def _balance(case: Case, plugin: Any) -> dict[str, Any]:
    snapshot = _snapshot(case)
    evictor, record = _evictor(case, snapshot)
    plugin.balance(snapshot, _rows(case, snapshot), evictor)
    found, wanted = _evicted(record), case["expect"].get("evicted")
    # The order of evictions is not part of these cases.
    same = isinstance(wanted, list) and sorted(wanted) == sorted(found["evicted"])
    return {**found, "evicted": wanted} if same else found


def _evicted(record: CycleRecord) -> dict[str, Any]:
    evicted = record.decisions.which(lambda each: each.evicted)
    return {
        "evicted": [outcome.pod.partition("/")[2] for outcome in evicted],
        "reasons": [outcome.decision.reason for outcome in evicted],
    }


def _low_node_load_validate(case: Case) -> dict[str, Any]:
    try:
        if not case.get("internal"):
            complete("LowNodeLoad", case["args"])
            return {}
        faults = [f"{field_path(path)}: {message}" for path, message in check_low_node_load(case["args"])]
    except ValueError as error:
        return {"error": str(error)}
    return {"error": "; ".join(faults)} if faults else {}


def _low_node_load_default(case: Case) -> dict[str, Any]:
    return {"config": default_low_node_load(case["args"])}


def _load(case: Case, name: str, usage: Any, prod_usage: Any = None) -> NodeLoad:
    node = next(node for node in case["nodes"] if node["metadata"]["name"] == name)
    return NodeLoad(0, node, raw_allocatable(node), dict(_amounts(usage)), dict(_amounts(prod_usage)), (), {})


def _eviction_reason(case: Case) -> dict[str, Any]:
    given = case["input"]
    pool = NodePool(
        low=given["highThresholds"], high=given["highThresholds"],
        prod_low=given["prodHighThresholds"], prod_high=given["prodHighThresholds"],
    )
    thresholds = PoolThresholds.of(pool)
    load = _load(case, case["nodes"][0]["metadata"]["name"], given["usage"], given["prodUsage"])
    load.bounds = thresholds.bounds(load, {}, {})
    return {"reason": eviction_reason(load, thresholds, prod=given["prod"])}


def _filter_nodes(case: Case) -> dict[str, Any]:
    given, nodes = case["input"], case["nodes"]
    chosen = select_nodes(nodes, given["nodeSelector"], given["processedNodes"] or ())
    return {"nodes": [nodes[index]["metadata"]["name"] for index in chosen]}


def _anomaly_condition(case: Case) -> AnomalyCondition | None:
    given = case["args"].get("anomalyCondition")
    if given is None:
        return None
    return AnomalyCondition(
        given.get("consecutiveAbnormalities", 0), given.get("consecutiveNormalities", 0),
        parse_duration(given.get("timeout") or "0"),
    )


def _anomaly_detector(case: Case) -> dict[str, Any]:
    condition = _anomaly_condition(case)
    detectors = Detectors(parse_duration(case["args"].get("detectorCacheTimeout") or "5m0s"))
    now, rounds = 0, []
    for step in case["input"]["rounds"]:
        if step["op"] == "filter":
            rounds.append([name for name in step["nodes"] if detectors.observe_abnormal(name, condition, now)])
        elif step["op"] == "mark_normal":
            for name in step["nodes"]:
                detectors.observe_normal(name, now)
        else:
            raise ValueError(f"unknown step `{step['op']}`")
    return {"rounds": rounds}


def _detector_script(case: Case) -> dict[str, Any]:
    given = case["input"]
    condition = _anomaly_condition(case) or AnomalyCondition(
        given.get("consecutiveAbnormalities", 0), given.get("consecutiveNormalities", 0),
        parse_duration(given.get("timeout") or "0"),
    )
    detector, now, states = Detector(condition), 0, []
    for step, wanted in zip(given["steps"], case["expect"]["states"], strict=True):
        if "sleep" in step:
            now += parse_duration(step["sleep"])
            state = detector.state(now)
        else:
            state = detector.mark_normal(now) if step["mark"] else detector.mark_abnormal(now)
        states.append(None if wanted is None else state.value)
    return {"states": states}


def _raw_allocatable(case: Case) -> dict[str, Any]:
    found, wanted = raw_allocatable(case["nodes"][0]), case["expect"]["allocatable"]
    return {"allocatable": wanted if found == _amounts(wanted) else dict(found)}


def _sort_nodes(case: Case) -> dict[str, Any]:
    given = case["input"]
    prod = given.get("prod", False)
    loads = [
        _load(case, name, None if prod else usage, usage if prod else None) for name, usage in given["usage"].items()
    ]
    ordered = sort_by_load(
        loads, case["args"]["resourceWeights"], prod=prod, ascending=given.get("ascending", False),
    )
    return {"order": [load.name for load in ordered]}


def _usage_percentages(case: Case) -> dict[str, Any]:
    load = _load(case, case["nodes"][0]["metadata"]["name"], case["input"]["usage"])
    return {"floorPercent": {name: int(percent) for name, percent in load.percentages().items()}}


# Evictability


def _default_evictor_filter(case: Case) -> dict[str, Any]:
    return {"result": DefaultEvictor(case["args"]).eviction_filter(_target(case), _snapshot(case)) is None}


def _default_evictor_pre_filter(case: Case) -> dict[str, Any]:
    return {"result": DefaultEvictor(case["args"]).pre_eviction_filter(_target(case), _snapshot(case)) is None}


def _evictor_filter(case: Case) -> dict[str, Any]:
    return {"result": EvictorFilter(case["args"]).eviction_filter(_target(case), _snapshot(case)) is None}


def _effective_protections(case: Case) -> dict[str, Any]:
    found, wanted = effective_protections(case["args"]), case["expect"]["protections"]
    return {"protections": wanted if found == set(wanted) else sorted(found)}


# Framework


def _eviction_limiter(case: Case) -> dict[str, Any]:
    limiter, allowed = EvictionLimiter(_limits(case["args"])), []
    for pod in case["input"]["sequence"]:
        node, namespace = pod.get("node", ""), pod["namespace"]
        allowed.append(not limiter.refusal(node, namespace))
        if allowed[-1]:
            limiter.done(node, namespace)
    exceeded = case["expect"].get("nodeLimitExceeded") or {}
    return {
        "allowed": allowed, "perNode": limiter.per_node, "perNamespace": limiter.per_namespace, "total": limiter.total,
        "nodeLimitExceeded": {node: limiter.node_limit_exceeded(node) for node in exceeded},
    }


_METHODS: Mapping[str, tuple[str, Point]] = {
    "deschedule": ("deschedule", Point.DESCHEDULE), "balance": ("balance", Point.BALANCE),
    "evict": ("evict", Point.EVICTION_FILTER), "filter": ("eviction_filter", Point.EVICTION_FILTER),
}


def _registry(case: Case, made: list[str]) -> Registry:
    given = case.get("registry") or {}
    points = given if isinstance(given, dict) else dict.fromkeys(given, tuple(_METHODS))

    def plugin(name: str, of: tuple[str, ...]) -> Plugin:
        def make(args: Mapping[str, Any], handle: object) -> Any:
            made.append(name)
            methods = {_METHODS[point][0]: lambda *_: None for point in of}
            return type("Fake", (), methods)()

        found = tuple(dict.fromkeys(_METHODS[point][1] for point in of))
        return Plugin(name, Framework.DESCHEDULER, found, make, origin="test", digest=name, enabled=False)

    return Registry.of([plugin(name, tuple(of)) for name, of in points.items()], generation=1)


def _profile_specs(case: Case) -> list[DeschedulerProfileSpec]:
    def names(profile: Case, point: str) -> tuple[str, ...]:
        lists = (profile.get("plugins") or {}).get(point) or {}
        return tuple(each["name"] for each in lists.get("enabled") or ())

    return [
        DeschedulerProfileSpec(
            profile.get("name", ""), profile.get("nodeSelector"),
            *(names(profile, point) for point in ("deschedule", "balance", "evict", "filter")),
            has_plugins=profile.get("plugins") is not None,
            configured=tuple(each["name"] for each in profile.get("pluginConfig") or ()),
        )
        for profile in case["args"].get("profiles") or []
    ]


def _build(case: Case) -> dict[str, Any]:
    made: list[str] = []
    try:
        profiles = build_profiles(_profile_specs(case), _registry(case, made), dry_run=False)
    except PolicyError as error:
        return {"error": "; ".join(problem.message for problem in error.problems)}
    running = {each.name for profile in profiles for each in (*profile.deschedule, *profile.balance, *profile.filters)}
    running |= {profile.evict.name for profile in profiles if profile.evict is not None}
    once = sorted(made) == sorted(running)
    return {"profiles": len(profiles), "initTimes": "every needed plugin exactly once" if once else made}


def _run_plugins(case: Case) -> dict[str, Any]:
    def failing(message: str | None) -> Any:
        def method(self: object, *_: object) -> None:
            if message is not None:
                raise RuntimeError(message)

        return type("Fake", (), {"deschedule": method, "balance": method})()

    plugins = tuple(
        RunningPlugin(f"plugin-{number}", failing(message))
        for number, message in enumerate(case["input"]["pluginErrors"])
    )
    profile = DeschedulerProfile("golden", None, plugins, plugins, (), None)
    snapshot = Cluster().snapshot()
    evictor = CycleEvictor(profile, snapshot, EvictionLimiter(CycleLimits()), CycleRecord(dry_run=True))
    error = run_plugins(profile, case["input"]["point"], snapshot, ready_rows(snapshot), evictor)
    return {"error": error or None}


def _configuration(case: Case) -> dict[str, Any]:
    try:
        read_plain(case["args"])
    except PolicyError as error:
        return {"error": "; ".join(problem.message for problem in error.problems)}
    return {}


RUNNERS: Mapping[tuple[str, str], Callable[[Case], dict[str, Any]]] = {
    ("LowNodeLoad", "balance"): _low_node_load_balance,
    ("LowNodeLoad", "config_validate"): _low_node_load_validate,
    ("LowNodeLoad", "config_default"): _low_node_load_default,
    ("LowNodeLoad", "eviction_reason"): _eviction_reason,
    ("LowNodeLoad", "filter_nodes"): _filter_nodes,
    ("LowNodeLoad", "anomaly_detector"): _anomaly_detector,
    ("LowNodeLoad", "detector_script"): _detector_script,
    ("LowNodeLoad", "raw_allocatable"): _raw_allocatable,
    ("LowNodeLoad", "sort_nodes"): _sort_nodes,
    ("LowNodeLoad", "usage_percentages"): _usage_percentages,
    ("DefaultEvictor", "filter"): _default_evictor_filter,
    ("DefaultEvictor", "pre_eviction_filter"): _default_evictor_pre_filter,
    ("DefaultEvictor", "effective_protections"): _effective_protections,
    ("EvictorFilter", "filter"): _evictor_filter,
    ("EvictionLimiter", "eviction_limiter"): _eviction_limiter,
    ("DeschedulerConfiguration", "profile_map"): _build,
    ("DeschedulerConfiguration", "new_framework"): _build,
    ("DeschedulerConfiguration", "run_plugins"): _run_plugins,
    ("DeschedulerConfiguration", "config_validate"): _configuration,
    **descheduler_deschedule.runners(_deschedule),
    **descheduler_balance.runners(_balance),
    **descheduler_koordinator.runners(_snapshot, _balance),
    **descheduler_migration.RUNNERS,
}

"""Golden cases of DefaultPreBind and ElasticQuota: one function per point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.builtin_plugins.scheduler.elastic_quota.fair_share import Share, redistribute, scale_minimums
from koordpolicy.engine.cluster.objects.pods import resource_list
from koordpolicy.plugin import SKIP, CycleState
from tests.fake_framework import FakeFramework

from .scheduler_objects import Case, Runner, answer, framework, make, pod_info, pod_object


def _apply_patch(case: Case) -> Mapping[str, Any]:
    found = FakeFramework()
    found.client.answer = case["state"]["modified"]  # as an API server does
    plugin = make(case, found)
    refusal = plugin.apply_patch(CycleState(), case["state"]["original"], case["state"]["modified"])
    status = {"status": "Skip"} if refusal is SKIP else answer(refusal)
    return {**status, "patched": bool(found.client.patches)}


def _quota(case: Case) -> tuple[FakeFramework, Any]:
    """Return framework and plugin; a quota's runtime is the given one where the case says so."""
    state = case.get("state") or {}
    known = [
        {"kind": "ElasticQuota", "metadata": {"name": name, "namespace": "kube-system"}, "spec": {}}
        for name in state.get("knownQuotas") or ()
    ]
    # A pod that is decided about is known to wait, and counted as asking.
    waiting = [pod_object(case["pod"])] if case["point"] in ("prefilter", "check_parents") else []
    found = framework(case, *known, *waiting)
    plugin = make(case, found)
    tree = plugin.trees[""]
    if "clusterTotal" in state:
        tree.set_total(resource_list(state, "clusterTotal", "state"))
    given = {name: resource_list(state["runtime"], name, "runtime") for name in state.get("runtime") or ()}
    computed = tree.runtime
    tree.runtime = lambda name: given[name] if name in given else computed(name)
    return found, plugin


def _pre_filter(case: Case) -> Mapping[str, Any]:
    found, plugin = _quota(case)
    refusal = plugin.pre_filter(CycleState(), pod_info(case["pod"]), found.snapshot())
    return {"status": "Skip"} if refusal is SKIP else answer(refusal)


def _check_parents(case: Case) -> Mapping[str, Any]:
    return _pre_filter({**case, "args": {**(case.get("args") or {}), "enableCheckParentQuota": True}})


def _name(case: Case) -> Mapping[str, Any]:
    return {"status": "Success", "value": _quota(case)[1].quota_name(pod_info(case["pod"]))}


def _can_preempt(case: Case) -> Mapping[str, Any]:
    plugin = _quota(case)[1]
    value = plugin.can_preempt(pod_info(case["pod"]), pod_info(case["state"]["victim"]))
    return {"status": "Success", "value": value}


def _runtime(case: Case) -> Mapping[str, Any]:
    tree = _quota(case)[1].trees[""]
    wrong = []
    for step in case["steps"]:
        match step["op"]:
            case "add_request":
                tree.ask(step["quota"], resource_list(step, "request", ""))
            case "add_total":
                tree.add_total(resource_list(step, "total", ""))
            case "expect_runtime":
                wrong += _differences(step["runtime"], tree.runtime)
            case "expect_scaled_min":
                for name in step["min"]:
                    tree.runtime(name)
                wrong += _differences(step["min"], lambda name: tree.quota(name).scaled_minimum)
            case other:
                raise ValueError(f"there is no step `{other}`")
    return {"status": "; ".join(wrong) or "Success"}


def _differences(wanted: Mapping[str, Any], found: Any) -> list[str]:
    differences = []
    for name in wanted:
        amounts, got = resource_list(wanted, name, ""), found(name)
        if any(got[resource] != amount for resource, amount in amounts.items()):
            differences.append(f"{name}: expected {amounts}, got {got}")
    return differences


def _redistribute(case: Case) -> Mapping[str, Any]:
    shares = [
        Share(each["name"], each["request"], each["min"], each["sharedWeight"], each.get("guarantee", 0),
              each.get("allowLent", True))
        for each in case["state"]["children"]
    ]
    return {"status": "Success", "runtime": redistribute(case["state"]["total"], shares)}


def _scaled_min(case: Case) -> Mapping[str, Any]:
    children = case["state"]["children"]
    total = resource_list(case["state"], "parentTotal", "state")
    found = scale_minimums(
        total, {each["name"]: resource_list(each, "min", "") for each in children},
        {each["name"]: each.get("enableScale", True) for each in children},
    )
    wanted = case["expect"]["value"]
    same = {
        name: None if amounts is None else resource_list(wanted, name, "") for name, amounts in wanted.items()
    } == {name: found[name] for name in wanted}
    return {"status": "Success", "value": wanted if same else found}


RUNNERS: Mapping[tuple[str, str], Runner] = {
    ("DefaultPreBind", "apply_patch"): _apply_patch,
    ("ElasticQuota", "prefilter"): _pre_filter,
    ("ElasticQuota", "check_parents"): _check_parents,
    ("ElasticQuota", "quota_name"): _name,
    ("ElasticQuota", "can_preempt"): _can_preempt,
    ("ElasticQuota", "runtime"): _runtime,
    ("ElasticQuota", "redistribute"): _redistribute,
    ("ElasticQuota", "scaled_min"): _scaled_min,
}
"""By (plugin, point): returns the answer under the keys of `expect`."""

from __future__ import annotations

import json

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.agent.qos_manager.explanation import explain_round
from koordpolicy.engine.agent.recording import load
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load as load_documents
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source
from tests.output_schemas import check_part

SECOND = 1_000_000_000
NODE = {"kind": "Node", "metadata": {"name": "n"}, "spec": {}, "status": {
    "capacity": {"cpu": "4"}, "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}


def pod(name, qos):
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]}}


@pytest.fixture
def recording(tmp_path):
    def write(usages, *objects):
        path = tmp_path / "recording.jsonl"
        lines = [NODE, pod("web", "LS"), pod("batch", "BE"), *objects, *(
            {"time": f"{second}s", "node": "n", "usage": {"cpu": cpu, "memory": "1Gi"},
             "pods": {"shop/web": {"cpu": cpu}, "shop/batch": {"cpu": "500m"}}} for second, cpu in usages.items()
        )]
        path.write_text("\n".join(map(json.dumps, lines)))
        return load(path)

    return write


def document(name="hot", **spec):
    text = json.dumps({"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "QoSPlugin", "metadata": {"name": name},
                       "spec": {"interval": "1s", "window": "2s", **spec}})
    return compile_documents(load_documents([Source("p.yaml", text)]))


HOT = {
    "forEach": "node",
    "thresholds": [{"name": "hot", "expression": "usage.cpu > 3000", "for": "3s", "coolDown": "10s"}],
    "actions": [{"name": "out", "when": "thresholds.hot", "evict": {
        "criteria": [{"name": "best-effort", "expression": "podInfo.qosClass == 'BE' && podUsage.cpu > 600"}]}}],
}


def told(found):
    check_part("explain", "finding", json.loads(json.dumps(found.to_json())))
    return [line.rstrip() for line in found.as_text().splitlines()]


def test_a_threshold_says_how_far_it_is_and_where_its_timer_stands(recording):
    recorded = recording({second: "2" if second < 5 else "3500m" for second in range(12)})
    registry = Registry.of(document(**HOT), generation=1)
    assert told(explain_round(recorded, registry, "n", at=3 * SECOND)) == [
        "n at 3s",
        "",
        "hot did nothing at 3s",
        "  false       hot",
        "              usage.cpu 2 cores, must be above 3 cores: short by 1 core",
        "  idle        out: `when` is false (recover)",
        "              `thresholds.hot` is false",
    ]
    assert told(explain_round(recorded, registry, "n", at=8 * SECOND))[3:5] == [
        "  waits       hot (true for 1s of 3s)",
        "              usage.cpu 3.5 cores, until at most 3 cores: over by 0.5 cores",
    ]
    assert told(explain_round(recorded, registry, "n"))[3:9] == [
        "  holds       hot (true for 4s)",
        "              usage.cpu 3.5 cores, until at most 3 cores: over by 0.5 cores",
        "  idle        out: 2 pods looked at",
        "              stays       shop/web: best-effort is false",
        "                          podInfo.qosClass is 'LS', must be 'BE'",
        "              stays       shop/batch: best-effort is false",
    ]


def test_a_threshold_that_ceased_cools_down(recording):
    recorded = recording({second: "3500m" if second < 6 or second > 9 else "1" for second in range(15)})
    lines = told(explain_round(recorded, Registry.of(document(**HOT), generation=1), "n"))
    assert lines[3] == "  waits       hot (true for 2s of 3s, it ceased 8s ago and cools down for another 2s)"


def test_what_nobody_measured_is_told_with_its_age(recording):
    recorded = recording({0: "2", 1: "2", 20: "2"})
    assert told(explain_round(recorded, Registry.of(document(**HOT), generation=1), "n", at=9 * SECOND))[2:5] == [
        "hot failed at 9s",
        "  unmeasured  no sample of the node within the window of 2s: the last one is 8s old",
        "  failed      hot: no sample of node `n` in the window; what was done before stays for at most 1m",
    ]


def test_gates_matches_and_enforcement_are_told(recording):
    recorded = recording({0: "2"})
    gated = document("gated", featureGate="BECPUEvict", **HOT)
    other = document("other", match={"nodes": {"names": ["m"]}}, **HOT)
    audited = document("audited", enforcement="Audit", **HOT)
    registry = Registry.of((*gated, *other, *audited, *builtins()), generation=1)
    lines = told(explain_round(recorded, registry, "n"))
    assert "audited did nothing at 0s [audit only: what it would do is not done]" in lines
    assert "  no match    `match.nodes` does not take this node" in lines
    assert set(lines[lines.index("not active") + 1:]) >= {
        "  BECPUSuppress: it is not active by itself, and not enabled by name",
        "  CPUEvict: it is not active by itself, and not enabled by name",
        "  gated: its feature gate BECPUEvict is off",
    }


def test_a_built_in_strategy_says_its_numbers_also_where_it_does_nothing(recording):
    slo = {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {"resourceUsedThresholdWithBE": {
        "enable": False, "cpuSuppressThresholdPercent": 65}}}
    lines = told(explain_round(recording({0: "2"}, slo), Registry.of(builtins(), generation=1), "n",
                               enable=["BECPUSuppress"]))
    assert lines[3] == "  disabled in the NodeSLO: `resourceUsedThresholdWithBE.enable` is false"
    lines = told(
        explain_round(recording({0: "2"}), Registry.of(builtins(), generation=1), "n", enable=["BECPUSuppress"]),
    )
    assert lines[2:4] == ["BECPUSuppress failed at 0s", "  failed      node `n` has no NodeSLO"]


def test_one_plugin_can_be_asked_about_and_a_moment_before_the_start_is_the_start(recording):
    registry = Registry.of((*document("a", **HOT), *document("b", **HOT)), generation=1)
    found = explain_round(recording({0: "2", 5: "2"}), registry, "n", at=0, plugin="b")
    assert [each.facts["plugin"] for each in found.find("plugin")] == ["b"]
    json.dumps(found.to_json())
    with pytest.raises(KeyError):
        explain_round(recording({0: "2"}), registry, "elsewhere")


def test_pods_that_may_not_be_evicted_are_told_and_what_was_done_only_once(recording):
    kept = pod("kept", "BE")
    kept["metadata"]["annotations"] = {"koordinator.sh/eviction-policy": "[]"}
    recorded = recording(dict.fromkeys(range(2), "3500m"), kept)
    evicting = {"featureGate": "BEMemoryEvict", "forEach": "node", "actions": [{"name": "out", "evict": {
        "criteria": [{"name": "best-effort", "expression": "podInfo.qosClass == 'BE'"}]}}]}
    found = explain_round(
        recorded, Registry.of(document(**evicting), generation=1), "n", at=0, gates={"BEMemoryEvict": True},
    )
    assert told(found) == [
        "n at 0s",
        "",
        "hot acted at 0s",
        "  acts        out: 3 pods looked at",
        "              stays       shop/web: best-effort is false",
        "                          podInfo.qosClass is 'LS', must be 'BE'",
        "              leaving     shop/batch",
        "              stays       shop/kept: its annotation does not allow evictions by BEMemoryEvict",
        "              did         evict shop/batch",
    ]


def test_of_many_pods_the_first_are_told_and_how_many_more_there_are(recording):
    recorded = recording({0: "1"}, *(pod(f"more-{number}", "LS") for number in range(98)))
    evicting = {"forEach": "node", "actions": [{"name": "out", "evict": {
        "criteria": [{"name": "best-effort", "expression": "podInfo.qosClass == 'SYSTEM'"}]}}]}
    found = explain_round(recorded, Registry.of(document(**evicting), generation=1), "n")
    lines = told(found)
    assert lines[3] == "  idle        out: 100 pods looked at"
    assert [line for line in lines if "best-effort is false" in line] == [
        f"              stays       shop/{name}: best-effort is false"
        for name in ("web", "batch", "more-0", "more-1", "more-2")
    ]
    assert lines[-1] == "              and 95 more pods"
    assert [each.to_json() for each in found.find("more")] == [
        {"kind": "more", "text": "and 95 more pods", "leftOut": 95},
    ]

from __future__ import annotations

import pytest

from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.replay import replay
from tests.engine.agent.conftest import pod

SQUEEZE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {{name: squeeze}}
spec:
  interval: 1s
  window: 1s
  staleAfter: 3s
  {extra}
  thresholds:
  - {{name: hot, expression: "usage.cpu > 5000", for: 2s, coolDown: 4s, message: it is hot}}
  actions:
  - name: bound
    suppressCPU: {{target: "8000 - nonBestEffortUsage.cpu", policy: CFSQuota}}
    when: thresholds.hot
    otherwise: {otherwise}
"""
EVICT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: evict}
spec:
  featureGate: MyEvict
  interval: 1s
  window: 1s
  actions:
  - name: relieve
    evict:
      criteria: [{name: best-effort, expression: "podInfo.qosClass == 'BE'"}]
      sort: [{expression: podUsage.cpu, order: Descending}]
      release: {resource: cpu, amount: "usage.cpu - 4000"}
    when: usage.cpu > 4000
"""


def squeeze(otherwise: str = "Recover", extra: str = "match: {}") -> str:
    return SQUEEZE.format(otherwise=otherwise, extra=extra)


def quotas(rounds) -> list[tuple[int, str, bool]]:
    return [
        (int(each.elapsed / 1e9), adjustment.writes[0][1], adjustment.recovers)
        for each in rounds for adjustment in each.adjustments
    ]


def load_of(*cores: int) -> list[tuple[float, int, dict[str, int]]]:
    """Samples a second apart."""
    return [(second, milli, {}) for second, milli in enumerate(cores)]


def test_a_threshold_holds_after_its_time_without_a_break(registry, recording):
    rounds = list(replay(recording(*load_of(6000, 6000, 4000, 6000, 6000, 6000, 6000)), registry(squeeze())))
    assert [[(state.true, state.holds) for state in each.thresholds] for each in rounds] == [
        [(True, False)], [(True, False)], [(False, False)], [(False, False)], [(True, False)], [(True, False)],
        [(True, True)],
    ]


def test_an_action_recovers_when_its_condition_ceases_and_waits_for_the_cool_down(registry, recording):
    samples = load_of(6000, 6000, 6000, 2000, 2000, 6000, 6000, 6000, 6000, 6000, 6000)
    # Averages over one second blend neighbours: hot from 0 to 3, again from 6 on; ceased at 3, cool until 7.
    assert quotas(replay(recording(*samples), registry(squeeze()))) == [
        (2, "200000", False), (3, "-1", True), (8, "200000", False),
    ]


def test_hold_leaves_the_last_values_in_place(registry, recording):
    samples = load_of(6000, 6000, 6000, 2000, 2000)
    assert quotas(replay(recording(*samples), registry(squeeze("Hold")))) == [(2, "200000", False)]


def test_without_metrics_nothing_is_done_until_stale_after_and_then_everything_is_given_back(registry, recording):
    samples = [*load_of(6000, 6000, 6000), (20, 6000, {})]
    rounds = list(replay(recording(*samples), registry(squeeze())))
    assert quotas(rounds) == [(2, "200000", False), (7, "-1", True)]
    failing = [int(each.elapsed / 1e9) for each in rounds if each.errors]
    assert failing == list(range(4, 20))
    assert {(error.item, error.reason) for each in rounds for error in each.errors} == {
        ("hot", "NoMetric"), ("bound", "NoMetric"),
    }


def test_a_node_that_the_document_is_not_about_is_left_alone(registry, recording):
    text = squeeze(extra="match: {nodes: {names: [other]}}")
    assert not any(each.eventful for each in replay(recording(*load_of(6000, 6000, 6000)), registry(text)))


def test_an_eviction_takes_the_largest_candidates_until_enough_is_released_and_no_pod_twice(registry, recording):
    pods = (pod("small", "BE"), pod("large", "BE"), pod("web", "LS"), pod("other", "BE"),
            pod("kept", "BE", **{"koordinator.sh/eviction-policy": '["Another"]'}))
    used = {"small": 500, "large": 1500, "web": 3000, "other": 700, "kept": 2000}
    rounds = list(replay(recording((0, 6000, used), (1, 6000, used), pods=pods), registry(EVICT)))
    assert [[(each.subject, each.values["released"]) for each in round_.adjustments] for round_ in rounds] == [
        [("d/large", 1500), ("d/other", 700)], [],
    ]
    assert rounds[0].adjustments[1].reason == (
        "evicted by best-effort to release 2000 of cpu, 2200 so far"
    )


def test_a_document_about_pods_is_asked_for_each_of_them(registry, recording):
    text = EVICT.replace("interval: 1s", "interval: 1s\n  forEach: pod").replace(
        "usage.cpu > 4000", "podUsage.cpu > 1000",
    )
    text = text.replace('      release: {resource: cpu, amount: "usage.cpu - 4000"}\n', "")
    pods = (pod("small", "BE"), pod("large", "BE"))
    rounds = list(replay(recording((0, 6000, {"small": 500, "large": 1500}), pods=pods), registry(text)))
    assert [each.subject for round_ in rounds for each in round_.adjustments] == ["d/large"]


@pytest.mark.parametrize(("share", "percent"), [(0.0, 0), (0.004, 0), (0.25, 25), (0.999, 100), (1.0, 100)])
def test_throttled_is_a_percentage(registry, recording, share, percent):
    found = recording((0, 1000, {"a": 500}), pods=(pod("a", "LS"),))
    for name in ("throttled", "cpu"):
        series = MetricSeries()
        series.add(0, share if name == "throttled" else 500.0)
        found.series.setdefault(("n", "container", "d/a/c"), {})[name] = series
    text = squeeze(extra="forEach: container").replace("usage.cpu > 5000", f"containerUsage['throttled'] == {percent}")
    text = text[:text.index("  actions:")] + (
        "  actions:\n  - {name: out, evict: {criteria: [{name: never, expression: 'false'}]}, when: thresholds.hot}\n")
    (round_,) = replay(found, registry(text))
    assert [state.subject for state in round_.thresholds if state.true] == ["d/a/c"]


@pytest.mark.parametrize("name", ["bestEffortUsage", "nonBestEffortUsage", "systemUsage"])
def test_a_resource_that_was_not_measured_is_an_error(registry, recording, name):
    text = squeeze().replace("usage.cpu > 5000", f"{name}['example.com/gpu'] > 5000")
    (round_,) = replay(recording((0, 6000, {"a": 500}), pods=(pod("a", "BE"),)), registry(text))
    assert (round_.errors[0].message, round_.errors[0].reason) == ("no metric of `example.com/gpu`", "NoMetric")


@pytest.mark.parametrize(("subject", "expression", "true"), [
    ("container", "containerUsage.cpu > 300 && container.name == 'c'", []),
    ("qosClass", "classUsage.cpu > 1000 && classRequests.cpu == 2000", ["BE"]),
    ("node", "bestEffortUsage.cpu == 2000 && systemUsage.cpu == 1000 && nonBestEffortUsage.cpu == 4000", ["n"]),
    ("node", "has(systemUsage.cpu) && nonBestEffortUsage['cpu'] == 4000", ["n"]),
    ("node", "nodeInfo.measured && nodeInfo.pods == 3 && requested.cpu == 3000 && metricAge == 0", ["n"]),
    ("node", "usage.p90.cpu == 6000 && aggregates.most == 3000", ["n"]),
    ("node", "aggregates.named == 1 && aggregates.asked['cpu'] == 3000", ["n"]),
])
def test_every_subject_sees_its_own_numbers(registry, recording, subject, expression, true):
    text = squeeze(extra=(
        f"forEach: {subject}\n  aggregates:\n  - {{name: named, over: pods, function: count, "
        "expression: podUsage.cpu == aggregates.most}\n  - {name: asked, over: pods, function: sum, "
        "expression: requests}\n  - {name: most, over: pods, function: max, expression: podUsage.cpu}"
    ))
    text = text.replace("usage.cpu > 5000", expression)
    start = text.index("  actions:")
    text = text[:start] + (
        "  actions:\n  - {name: out, evict: {criteria: [{name: never, expression: 'false'}]}, when: thresholds.hot}\n"
    )
    pods = (pod("a", "BE"), pod("b", "BE"), pod("web", "LS"))
    rounds = list(replay(recording((0, 6000, {"a": 500, "b": 1500, "web": 3000}), pods=pods), registry(text)))
    assert [state.subject for state in rounds[0].thresholds if state.true] == true

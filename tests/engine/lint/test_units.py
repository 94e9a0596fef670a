"""Units: what cannot be compared or added is found, and what people write on purpose is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import descheduler_policy, filtering, findings, marked, mended, scheduler_policy, scoring

_RULE = "KP022"


def wrong(text: str) -> list[tuple[str, str, str]]:
    """Return marked text, message and help of what the rule finds."""
    return [(marked(each), each.found.message, each.found.help) for each in findings(text) if each.rule.id == _RULE]


@pytest.mark.parametrize("expression", [
    "usage.cpu < 8",
    "allocatable.cpu >= 16",
    "requests.cpu > 4",
    "8 > usage.cpu",
    "usage.cpu < 80",
    "usage.cpu * 1000 <= 65000",
    "nodeInfo.pods > 3 || requested.cpu > 90",
    "usage.cpu + requested.cpu < 70",
    "usage.cpu < 64 || nodeInfo.pods > 3",
    "allocatable.memory - usage.memory > 16",
    "usage.memory < 0.85",
    "usage.cpu > 0.5",
    "requests.memory > 512",
    "allocatable.memory > 16777216",
    "percent(usage.cpu, allocatable.cpu) < 0.6",
    "usage.cpu * 100 / allocatable.cpu < 0.6",
    "double(usage.cpu) * 100.0 / double(allocatable.cpu) < 0.65",
    "double(usage.cpu) / double(allocatable.cpu) < 60",
    "double(usage.cpu) / double(allocatable.cpu) < 60.0",
    "usage.cpu + usage.memory < 100000000",
    "usage.cpu < allocatable.memory",
    "usage.cpu < percent(usage.cpu, allocatable.cpu)",
    "percent(usage.cpu, allocatable.memory) < 60",
    "usage.cpu * 100 / allocatable.memory < 60",
    "metricAge < 180000",
    "metricAge > duration('5m').getMilliseconds()",
    "metricAge * 1000 < duration('5m').getSeconds()",
    "metricAge > usage.cpu",
    "usage.cpu / 1000 > requested.cpu",
    "percent(usage.cpu, allocatable.cpu) > double(requested.cpu) / double(allocatable.cpu)",
    "1 - percent(usage.cpu, allocatable.cpu) > 0",
    "100.0 - double(usage.cpu) / double(allocatable.cpu) > 3.0",
    "nodeInfo.gpuFree > 4",
    "nodeInfo.gpuFree >= podInfo.gpuCount",
    "podInfo.gpuCount > 1000",
    "devices.exists(d, d.free < 0.5)",
    "devices.exists(d, d.free >= podInfo.gpuCount)",
    "math.greatest(usage.cpu, usage.memory) > 3000000",
    "math.least(usage.cpu, 8) > 3",
    "[usage.cpu, usage.memory].max() > 5000000",
    "math.greatest([usage.cpu, usage.memory]) > 5000000",
    "[usage.cpu, requested.memory].sum() > 5000000",
    "quantity(node.status.allocatable['cpu']).asApproximateFloat() > double(usage.cpu)",
    "quantity(node.status.allocatable['cpu']).isLessThan(quantity(node.status.allocatable['memory']))",
    "usage.p95.cpu < 8",
    "podInfo.requests.cpu > 2",
    "usage['cpu'] < 8",
    "requests['kubernetes.io/batch-cpu'] > 8",
    "nodeInfo.pods > usage.cpu",
    "int(now) - int(timestamp(node.metadata.creationTimestamp)) > metricAge * 1000",
    "(nodeInfo.measured ? usage.cpu : requested.cpu) < 8",
    "cel.bind(x, usage.cpu, x < 8)",
    "[usage.cpu, requested.cpu].all(x, x < 8)",
    "[usage.cpu, requested.cpu].map(x, x * 100).max() < allocatable.memory * 100",
    "allocatable.cpu - 2 > usage.cpu + requests.cpu && allocatable.cpu - 2 > 5000",
    "usage.cpu < allocatable.cpu * 65",
    "usage.cpu > quantity('8').asInteger()",
    "nodeInfo.pods < 0.8",
    "usage.cpu < 8589934592",
    "usage.cpu in [2, 4]",
    "nodeInfo.images['x'] > 16",
    "double(usage.cpu) < double(allocatable.cpu) * 85.0",
    "usage.cpu * 100 < allocatable.memory * 65",
    "pod.spec.tolerations.exists(t, t.tolerationSeconds > 300 && metricAge > t.tolerationSeconds * 1000)",
    "uint(usage.cpu) < 8u",
    "uint(usage.memory) < 16u",
    "double(uint(usage.cpu)) < 8.0",
    "-usage.cpu > -8",
    "-8 < -usage.cpu",
    "-usage.cpu + usage.memory > 5",
    "sets.contains([usage.cpu], [8])",
    "sets.intersects([2, 4], [usage.cpu])",
    "sets.equivalent([usage.cpu], [usage.memory])",
    "8 in [usage.cpu, requested.cpu]",
    "usage.memory in [usage.cpu]",
    "int(string(usage.cpu)) < 8",
    "{'a': usage.cpu, 'b': usage.memory}.a < 8",
    "{'a': usage.cpu, 'b': usage.memory}['a'] < 8",
    "{'a': usage.cpu, 'b': requested.cpu}.all(k, v, v < 8)",
    "cel.bind(m, {'a': usage.cpu}, m[?'a'].orValue(0) < 8)",
    "double(string(usage.cpu)) < 8.0",
    "usage.memory / 1073741824 < 16000000",
    "usage.memory / 1024 / 1024 < 1000000000",
    "usage.memory < 16000000000000000",
    "requested['nvidia.com/gpu'] > 100000000",
    "requested['nvidia.com/gpu'] >= nodeInfo.gpuFree",
    "nodeInfo.pods > 20000",
    "usage.cpu / usage.memory > 2",
    "usage.memory / usage.cpu > 4",
    "double(usage.cpu) / double(usage.memory) > 0.7",
    "usage.cpu % usage.memory == 0",
])
def test_what_mixes_units_or_compares_with_an_absurd_number_is_found(expression: str):
    assert wrong(filtering(expression)) != []


@pytest.mark.parametrize("expression", [
    "usage.cpu < 8000",
    "usage.cpu < 100",
    "usage.cpu < 20",
    "usage.cpu - 80 < 8000",
    "math.greatest(usage.cpu, 80) < 8000",
    "requests.cpu < 80 || nodeInfo.pods > 5",
    "requests.cpu >= 1",
    "requests.cpu < 1 || nodeInfo.pods > 0",
    "requests.cpu > 0",
    "requests.cpu <= 50 || nodeInfo.pods > 5",
    "allocatable.memory - usage.memory > 17179869184",
    "allocatable.memory - requested.memory >= requests.memory",
    "allocatable.memory - usage.memory > 16 * 1024 * 1024 * 1024",
    "usage.memory / 1073741824 < 64",
    "allocatable.memory / 1024 / 1024 / 1024 >= 16",
    "allocatable.cpu / 1000 >= 16",
    "usage.memory * 100 < allocatable.memory * 85",
    "usage.memory < allocatable.memory * 85 / 100",
    "double(usage.memory) < 0.85 * double(allocatable.memory)",
    "double(usage.memory) / double(allocatable.memory) < 0.85",
    "percent(usage.cpu, allocatable.cpu) < 60",
    "percent(usage.cpu, allocatable.cpu) < 1",
    "percent(usage.cpu, allocatable.cpu) + percent(usage.memory, allocatable.memory) < 150",
    "(percent(usage.cpu, allocatable.cpu) + percent(usage.memory, allocatable.memory)) / 2 < 70",
    "(double(usage.cpu) / double(allocatable.cpu) + double(usage.memory) / double(allocatable.memory)) / 2.0 < 0.7",
    "(double(usage.cpu) / double(allocatable.cpu) + double(usage.memory) / double(allocatable.memory)) * 50.0 < 70.0",
    (
        "(double(usage.cpu) / double(allocatable.cpu) + double(usage.memory) / double(allocatable.memory)) / 2.0 * "
        "100.0 < 70.0"
    ),
    "percent(usage.cpu, allocatable.cpu) - percent(usage.memory, allocatable.memory) < 20",
    "double(usage.cpu) / double(allocatable.cpu) - double(usage.memory) / double(allocatable.memory) < 0.2",
    "math.abs(percent(usage.cpu, allocatable.cpu) - percent(usage.memory, allocatable.memory)) < 20",
    "100 - percent(usage.cpu, allocatable.cpu) > 20",
    "1.0 - double(usage.cpu) / double(allocatable.cpu) > 0.2",
    "100.0 - double(usage.cpu) * 100.0 / double(allocatable.cpu) > 20.0",
    "100.0 - double(percent(usage.cpu, allocatable.cpu)) > 20.0",
    "100.0 * (1.0 - double(usage.cpu) / double(allocatable.cpu)) > 20.0",
    "metricAge < 180",
    "metricAge < 86400",
    "metricAge * 1000 < duration('5m').getMilliseconds()",
    "metricAge < duration('5m').getSeconds()",
    "metricAge / 60 < 5",
    "metricAge / 60 < duration('5m').getMinutes()",
    "now - timestamp(node.metadata.creationTimestamp) > duration('24h')",
    "(now - timestamp(node.metadata.creationTimestamp)).getSeconds() > 2592000",
    "(now - timestamp(node.metadata.creationTimestamp)).getHours() > 24",
    "int(now) - int(timestamp(node.metadata.creationTimestamp)) > 3600",
    "int(now - timestamp(node.metadata.creationTimestamp)) > 3600000000000",
    "requests.memory <= requests.cpu * 4294967 || nodeInfo.pods > 3",
    "requests.memory / 1073741824 <= requests.cpu / 1000 * 4 || nodeInfo.pods > 3",
    "allocatable.memory / allocatable.cpu > 4000000",
    "double(allocatable.memory) / 1073741824.0 / (double(allocatable.cpu) / 1000.0) > 4.0",
    "nodeInfo.pods < 110",
    "nodeInfo.pods < allocatable.pods",
    "nodeInfo.pods * 100 / allocatable.pods < 90",
    "nodeInfo.pods * 100 < allocatable.cpu",
    "nodeInfo.gpuFree >= podInfo.gpuRequest",
    "nodeInfo.gpuFree >= podInfo.gpuCount * podInfo.gpuShare",
    "nodeInfo.gpuFree >= podInfo.gpuCount * 1000",
    "nodeInfo.gpuFree / 1000 >= podInfo.gpuCount",
    "nodeInfo.gpuFree > 500",
    "nodeInfo.gpuFreeDevices >= podInfo.gpuCount",
    "nodeInfo.gpuFreeDevices > 4",
    "podInfo.gpuCount > 8 || nodeInfo.gpuDevices < 8",
    "devices.exists(d, d.free >= podInfo.gpuShare)",
    "devices.filter(d, d.free == 1000).size() >= podInfo.gpuCount",
    "devices.map(d, d.free).sum() >= podInfo.gpuRequest",
    "devices.map(d, 1000 - d.free).sum() < 4000",
    "[usage.cpu, usage.memory].all(x, x > 0)",
    "[requests.cpu, requests.memory] != [0, 0] && usage.cpu < 5000",
    "nodeInfo.gpuTotal > 0 && (nodeInfo.gpuTotal - nodeInfo.gpuFree) * 100 / nodeInfo.gpuTotal < 80",
    "podInfo.gpuRequest * 8 < allocatable.cpu",
    "math.greatest(usage.cpu, requested.cpu) * 100 / math.greatest(1, allocatable.cpu) < 80",
    "math.greatest(usage.cpu * 100 / allocatable.cpu, usage.memory * 100 / allocatable.memory) < 80",
    "[usage.cpu * 100 / allocatable.cpu, usage.memory * 100 / allocatable.memory].max() < 80",
    "['cpu', 'memory'].all(r, usage[r] * 100 / allocatable[r] < 80)",
    "['cpu', 'memory'].all(r, requested[r] + requests[r] <= allocatable[r])",
    "quantity(node.status.allocatable['cpu']).asApproximateFloat() > 8.0",
    "quantity(node.status.allocatable['memory']).isGreaterThan(quantity('16Gi'))",
    "quantity(node.status.allocatable['cpu']).isGreaterThan(quantity('16'))",
    "double(usage.cpu) / 1000.0 < quantity(node.status.allocatable['cpu']).asApproximateFloat()",
    (
        "pod.spec.containers.all(c, "
        "quantity(c.resources.requests['cpu']).isLessThan(quantity(node.status.allocatable['cpu'])))"
    ),
    "(usage.cpu * 100 + allocatable.cpu - 1) / allocatable.cpu < 80",
    "(usage.cpu * 100 + allocatable.cpu / 2) / allocatable.cpu < 80",
    "(requests.cpu + 999) / 1000 <= allocatable.cpu / 1000",
    "(requests.memory + 1048575) / 1048576 <= allocatable.memory / 1048576",
    "usage.cpu * 1000 / allocatable.cpu < 650",
    "usage.cpu * 65 < allocatable.cpu * 100",
    "requested.cpu < allocatable.cpu * 2",
    "requested.cpu + requests.cpu <= allocatable.cpu * 150 / 100",
    "limits.cpu > requests.cpu * 20 || nodeInfo.pods < 3",
    "requests.cpu * 1000 > allocatable.cpu",
    "usage.cpu / requests.cpu > 30",
    "usage.cpu * 100 / requests.cpu > 2000",
    "double(limits.cpu) / double(requests.cpu) > 20.0 || nodeInfo.pods == 1",
    "double(usage.cpu * params.weight + usage.memory * params.other) < 10.0",
    "usage.cpu - 100 < 8000",
    "allocatable.cpu - 500 - usage.cpu > 2000",
    "usage.cpu + 500 < allocatable.cpu",
    "percent(usage.cpu, allocatable.cpu) + 5 < 80",
    "podInfo.priority < 10",
    "nodeInfo.images.size() < 10",
    "pod.spec.containers.size() < usage.cpu",
    "node.metadata.labels.size() > 2",
    "aggregates.total > 0 || usage.cpu > 0",
    "requests['example.com/gpu'] > 4 || nodeInfo.pods > 2",
    "requests['hugepages-2Mi'] > 4 || nodeInfo.pods > 2",
    "allocatable['nvidia.com/gpu'] >= 8",
    "usage.cpu == requested.cpu",
    "usage.cpu % 1000 < 8",
    "usage.cpu % requests.cpu == 0",
    "uint(usage.cpu) < 8000u",
    "-usage.cpu > -8000",
    "-usage.cpu < 8",
    "allocatable.cpu + -usage.cpu > 2000",
    "sets.contains([usage.cpu], [8000, requested.cpu])",
    "8000 in [usage.cpu]",
    "usage.cpu in [requested.cpu, 4000]",
    "string(usage.cpu) == '8'",
    "string(usage.cpu) + string(usage.memory) != ''",
    "int(string(usage.cpu)) < 8000",
    "{'a': usage.cpu, 'b': nodeInfo.pods}.b < 8",
    "{'a': usage.cpu, 'b': 8}[?'b'].orValue(0) < 9",
    "int(string(now - now)) < 8",
    "usage.memory / 1073741824 < 16000",
    "usage.memory < 9223372036854775807",
    "requested['nvidia.com/gpu'] > 16",
    "requested['nvidia.com/gpu'] * 1000 <= nodeInfo.gpuFree",
    "requested['koordinator.sh/gpu'] > 800",
    "requested['example.com/bandwidth'] > 100000000000",
    "nodeInfo.pods > 500",
    "usage.memory / usage.cpu > 4294967",
    "usage.memory / 1024 / 1024 / usage.cpu > 4",
    "double(usage.cpu) / double(usage.memory) > 0.000001",
    "usage.cpu != 0",
    "pod.spec.?terminationGracePeriodSeconds.orValue(30) < 3600 || nodeInfo.pods > 3",
    "cel.bind(used, usage.cpu * 100 / allocatable.cpu, used < 65)",
    "lists.range(3).all(i, usage.cpu > i * 1000)",
    "percent(usage.cpu, allocatable.cpu) * params.weight < 300",
    "(percent(usage.cpu, allocatable.cpu) * 2 + percent(usage.memory, allocatable.memory)) / 3 < 60",
    "percent(usage.cpu * 3 + usage.cpu, allocatable.cpu) < 60",
    "(allocatable.cpu - usage.cpu) * 100 / allocatable.cpu > 20",
    "requests.memory > 0 ? percent(usage.memory, allocatable.memory) < 80 : percent(usage.cpu, allocatable.cpu) < 80",
    "(nodeInfo.measured ? usage.cpu * 100 / allocatable.cpu : 0) < 65",
    "(requests.cpu > 1000 ? 65 : 80) > percent(usage.cpu, allocatable.cpu)",
])
def test_what_people_write_on_purpose_is_not_found(expression: str):
    assert wrong(scheduler_policy(
        "params: {weight: 3, other: 7}\n"
        "aggregates:\n- {name: total, over: nodes, function: sum, expression: usage.cpu}\n"
        f"filter:\n- name: it\n  expression: >-\n    {expression}",
    )) == []


@pytest.mark.parametrize(("expression", "found"), [
    ("usage.cpu < 8", ("8", "8 milli-cores is 0.008 cores", "did you mean 8000?")),
    ("usage.cpu < 80",
     ("80", "80 milli-cores is 0.08 cores", "for 80 %, compare a share: `percent(usage.cpu, allocatable.cpu)`")),
    ("allocatable.memory - usage.memory > 16",
     ("16", "16 bytes is next to nothing", "did you mean 17179869184 (16Gi)?")),
    ("percent(usage.cpu, allocatable.cpu) < 0.6",
     ("0.6", "a percentage is compared with 0.6: that is 0.6 of 100", "did you mean 60?")),
    ("double(usage.cpu) / double(allocatable.cpu) < 60",
     ("60", "a fraction is compared with 60: that is 60 times the whole",
      "did you mean 0.6? Or multiply by 100 first, for a percentage")),
    ("usage.memory < 0.85",
     ("0.85", "0.85 bytes is next to nothing",
      "compare with a share of an amount (`allocatable.memory * 85 / 100`), or with bytes")),
    ("usage.cpu / 1000 < 8000", ("8000", "8000 cores is more than any node has", "did you mean 8?")),
    ("double(usage.cpu) / 1000.0 < 0.008", ("0.008", "0.008 cores is next to nothing", "the number is in cores")),
    ("-usage.cpu > -8", ("-8", "8 milli-cores is 0.008 cores", "did you mean 8000?")),
    ("usage.memory / 1073741824 < 16000000",
     ("16000000", "16000000 GiB is more than any node has", "the number is in GiB")),
    ("usage.memory < 2000000000000000",
     ("2000000000000000", "2000000000000000 bytes is 1818.989Ti", "memory is in bytes")),
    ("requested['nvidia.com/gpu'] > 100000000",
     ("100000000", "100000000 devices are more than any node has", "did you mean 100000?")),
    ("nodeInfo.pods > 20000", ("20000", "20000 pods are more than any node runs", "")),
    ("usage.cpu / usage.memory > 2",
     ("2", "2 milli-cores per byte is more than any node or pod has",
      "divide by an amount of the same resource; memory by cpu is in bytes per milli-core")),
    ("usage.memory / usage.cpu > 4",
     ("4", "4 bytes per milli-core is next to nothing",
      "divide by an amount of the same resource; memory by cpu is in bytes per milli-core")),
    ("usage.cpu % usage.memory == 0",
     ("usage.cpu % usage.memory", "milli-cores and bytes cannot be divided", "compare amounts of one resource")),
    ("usage.memory / 1024 > 16", ("16", "16 KiB is next to nothing", "the number is in KiB")),
    ("metricAge < 180000",
     ("180000", "180000 seconds is 2.08 days", "did you mean 180 (milliseconds are a thousandth of it)?")),
    ("metricAge > duration('5m').getMilliseconds()",
     ("metricAge > duration('5m').getMilliseconds()", "seconds and milliseconds cannot be compared",
      "convert one of them: 1 second is 1000 milliseconds")),
    ("usage.cpu + usage.memory > 100000000",
     ("usage.cpu + usage.memory", "milli-cores and bytes cannot be added",
      "bring both to shares first: `percent(part, whole)`")),
])
def test_a_message_names_the_unit_and_the_value_in_readable_terms(expression: str, found: tuple[str, str, str]):
    assert wrong(filtering(expression)) == [found]


@pytest.mark.parametrize(("before", "after"), [
    ("usage.cpu < 8", "usage.cpu < 8000"),
    ("requests.cpu + 100 >= 4", "requests.cpu + 100 >= 4000"),
    ("percent(usage.cpu, allocatable.cpu) < 0.6", "percent(usage.cpu, allocatable.cpu) < 60"),
    ("double(usage.cpu) / double(allocatable.cpu) < 60", "double(usage.cpu) / double(allocatable.cpu) < 0.6"),
    ("metricAge < 180000", "metricAge < 180"),
    ("nodeInfo.gpuFree >= 4", "nodeInfo.gpuFree >= 4000"),
])
def test_a_number_whose_unit_is_clear_is_mended(before: str, after: str):
    assert mended(_RULE, filtering(before)) == filtering(after)
    assert wrong(filtering(after)) == []


@pytest.mark.parametrize("expression", [
    "allocatable.memory - usage.memory > 16", "usage.memory < 0.85", "usage.cpu > 0.5", "usage.cpu < requested.memory",
])
def test_what_may_be_meant_in_two_ways_is_not_mended(expression: str):
    assert mended(_RULE, filtering(expression)) == filtering(expression)
    assert wrong(filtering(expression)) != []


def test_a_param_is_taken_as_it_is_written_and_named_and_left_alone():
    text = scheduler_policy(
        "params: {most: 0.6}\nfilter:\n- {name: it, expression: 'percent(usage.cpu, allocatable.cpu) < params.most'}",
    )
    assert wrong(text) == [(
        "params.most", "a percentage is compared with 0.6: that is 0.6 of 100 (`params.most` is 0.6)",
        "did you mean 60?",
    )]
    assert mended(_RULE, text) == text


def test_a_variable_an_aggregate_and_a_loop_variable_count_what_their_expressions_do():
    assert wrong(scheduler_policy(
        "variables:\n- {name: share, expression: 'percent(usage.cpu, allocatable.cpu)'}\n"
        "- {name: twice, expression: variables.share * 2 / 2}\n"
        "aggregates:\n- {name: byZone, over: nodes, groupBy: nodeInfo.zone, function: avg, expression: usage.memory}\n"
        "- {name: used, over: nodes, function: sum, expression: usage.cpu}\n"
        "- {name: all, over: nodes, function: sum, expression: allocatable.cpu}\n"
        "filter:\n"
        "- {name: a, expression: variables.twice < 0.6}\n"
        '- {name: b, expression: "aggregates.byZone[?nodeInfo.zone].orValue(0.0) > usage.cpu"}\n'
        "- {name: c, expression: aggregates.used * 100 / aggregates.all < 0.5}\n"
        "- {name: d, expression: \"['cpu'].map(r, usage.cpu).exists(x, x > 4)\"}\n"
        "- {name: e, expression: aggregates.used < 300000000}",
    )) == [
        ("0.6", "a percentage is compared with 0.6: that is 0.6 of 100", "did you mean 60?"),
        ("aggregates.byZone[?nodeInfo.zone].orValue(0.0) > usage.cpu", "bytes and milli-cores cannot be compared",
         "compare amounts of one resource"),
        ("0.5", "a percentage is compared with 0.5: that is 0.5 of 100", "did you mean 50?"),
        ("4", "4 milli-cores is 0.004 cores", "did you mean 4000?"),
    ]


def test_an_interval_that_is_absurd_as_a_whole_is_found_and_one_that_is_not_is_not():
    assert wrong(filtering("usage.cpu < (nodeInfo.zone == '' ? 4 : 8)")) == [
        ("nodeInfo.zone == '' ? 4 : 8", "8 milli-cores is 0.008 cores", "did you mean 8000?"),
    ]
    assert wrong(filtering("usage.cpu < (nodeInfo.zone == '' ? 4 : 8000)")) == []


def test_a_score_that_is_a_fraction_of_one_is_found_but_for_one_that_is_normalised():
    fraction = "double(requested.cpu) / double(allocatable.cpu)"
    assert wrong(scoring(fraction)) == [
        (fraction, "this score is a fraction of 1, and scores go from 0 to 100", "multiply by 100"),
    ]
    assert wrong(scoring(fraction + " * 100.0")) == []
    assert wrong(scoring(f"100.0 - ({fraction}) * 100.0 - double(nodeInfo.pods)")) == []


@pytest.mark.parametrize(("target", "message"), [
    ("usage.cpu * 100 / allocatable.cpu", "milli-cores are expected here, and this is a percentage"),
    ("allocatable.memory", "milli-cores are expected here, and this is in bytes"),
    ("allocatable.cpu / 1000", "milli-cores are expected here, and this is in cores"),
    ("allocatable.cpu * 65 / 100 - nonBestEffortUsage.cpu", ""),
])
def test_what_a_target_yields_must_be_in_its_unit(target: str, message: str):
    text = scheduler_policy(
        f"forEach: node\nactions:\n- name: squeeze\n  when: 'true'\n  suppressCPU: {{target: '{target}'}}",
    ).replace("SchedulerPlugin", "QoSPlugin")
    assert [each[1] for each in wrong(text)] == ([message] if message else [])


@pytest.mark.parametrize(("of_target", "of_pod", "messages"), [
    ("{'cpu': allocatable.cpu - usage.cpu, 'memory': allocatable.memory}", "{'cpu': podUsage.cpu, 'memory': 1}", []),
    ("{'cpu': allocatable.cpu * 80 / 100}", "{'cpu': podUsage.cpu / 1000}",
     ["milli-cores are expected here, and this is in cores"]),
    ("{'cpu': usage.cpu * 100 / allocatable.cpu}", "{'cpu': podUsage.memory}", [
        "milli-cores are expected here, and this is a percentage",
        "milli-cores are expected here, and this is in bytes",
    ]),
    ("{'load': allocatable.cpu - usage.cpu}", "{'load': requests.memory}",
     ["milli-cores are expected here, and this is in bytes"]),
    ("{'load': allocatable.cpu - usage.cpu}", "{'load': requests.cpu}", []),
])
def test_what_a_target_adds_to_the_room_and_a_pod_takes_must_be_in_one_unit(of_target, of_pod, messages):
    text = scheduler_policy(
        "type: Balance\nnodes:\n  source: 'true'\n  target: 'true'\n  room:\n"
        f'    ofTarget: "{of_target}"\n    ofPod: "{of_pod}"',
    ).replace("SchedulerPlugin", "DeschedulerPlugin")
    assert [each[1] for each in wrong(text)] == messages


@pytest.mark.parametrize(("action", "message"), [
    ('cpuBurst: {sharePoolThresholdPercent: "double(usage.cpu) / double(allocatable.cpu)"}',
     "`sharePoolThresholdPercent` is a fraction of 1 here, and percent are expected"),
    ('cpuBurst: {sharePoolThresholdPercent: "100 * usage.cpu / allocatable.cpu"}', None),
    ("cgroup: {file: memory.high, value: requests.cpu}", "bytes are expected here, and this is in milli-cores"),
    ("cgroup: {file: memory.high, value: requests.memory / 2}", None),
    ("cgroup: {file: cpu.weight, value: requests.cpu}", None),
])
def test_what_a_setting_yields_must_be_in_its_unit(action: str, message: str | None):
    text = scheduler_policy(f"forEach: pod\nactions:\n- name: set\n  {action}")
    found = wrong(text.replace("SchedulerPlugin", "QoSPlugin"))
    assert [each[1] for each in found] == ([] if message is None else [message])


def test_what_one_pod_was_seen_to_use_may_be_next_to_nothing():
    text = "type: Deschedule\ncriteria:\n- {{name: it, expression: podUsage.cpu < {}}}"
    assert wrong(descheduler_policy(text.format(5))) == []
    assert [each[0] for each in wrong(descheduler_policy(text.format(2)))] == ["2"]


# -- valid idioms, made up -----------------------------------------------------------------------------------------

_RESOURCES = st.sampled_from(["cpu", "memory"])
_USED = st.sampled_from(["usage", "requested", "estimated"])


_PERCENTAGES = st.builds(
    lambda form, used, name: form.format(f"{used}.{name}", f"allocatable.{name}"),
    st.sampled_from([
        "percent({0}, {1})", "{0} * 100 / {1}", "100 * {0} / {1}", "int(double({0}) * 100.0 / double({1}))",
        "int(math.round(double({0}) / double({1}) * 100.0))", "math.least(100, {0} * 100 / {1})",
        "({1} > 0 ? {0} * 100 / {1} : 100)", "({0} + {0}) * 50 / {1}", "100 - ({1} - {0}) * 100 / {1}",
        "cel.bind(x, {0}, x * 100 / {1})", "[{0}].map(x, x * 100 / {1}).max()",
    ]),
    _USED, _RESOURCES,
)


_COMBINED = st.builds(
    str.format,
    st.sampled_from([
        "({0} + {1}) / 2", "math.greatest({0}, {1})", "[{0}, {1}].sum() / 2", "(nodeInfo.pods > 3 ? {0} : {1})",
        "100 - ({0})", "(({0}) * {2} + ({1})) / ({2} + 1)", "{0} + {1}", "[{0}, {1}].min()", "math.abs({0} - ({1}))",
    ]),
    _PERCENTAGES, _PERCENTAGES, st.integers(1, 9),
)
_OPERATORS = st.sampled_from(["<", "<=", ">", ">="])


@given(st.one_of(_PERCENTAGES, _COMBINED), st.integers(2, 99), _OPERATORS)
def test_a_percentage_compared_with_a_percentage_is_never_found(text: str, percent: int, operator: str):
    assert wrong(filtering(f"{text} {operator} {percent}")) == []


@given(_PERCENTAGES, st.integers(1, 99), _OPERATORS)
def test_a_percentage_compared_with_a_fraction_is_always_found(text: str, percent: int, operator: str):
    assert [each[0] for each in wrong(filtering(f"{text} {operator} {percent / 100}"))] == [f"{percent / 100}"]


@given(_USED, st.integers(1, 256), st.sampled_from([1, 2, 3]), _OPERATORS)
def test_amounts_converted_to_the_unit_of_the_bound_are_never_found(
    used: str, number: int, power: int, operator: str,
):
    assert wrong(filtering(f"{used}.cpu {operator} {number * 1000}")) == []
    assert wrong(filtering(f"{used}.cpu / 1000 {operator} {number}")) == []
    assert wrong(filtering(f"{used}.memory {operator} {number * 2**30}")) == []
    assert wrong(filtering(f"{used}.memory / {1024**power} {operator} {number * 1024 ** (3 - power)}")) == []

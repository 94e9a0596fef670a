"""The table of points and slots."""

from __future__ import annotations

import pytest

from koordpolicy.engine.cel.check.environment import Scope
from koordpolicy.engine.cel.scalar.program import compile  # noqa: A004 - the name of our function
from koordpolicy.engine.cel.values.types import BOOL
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.pod_variables import pending_pod_values
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.slots import POINTS, SLOTS, Slot, environment, seen
from koordpolicy.engine.framework.variable_types import DEVICE, NODE_INFO, POD_INFO


def test_every_point_and_every_slot_is_in_its_table() -> None:
    assert set(POINTS) == set(Point)
    assert set(SLOTS) == set(Slot)
    assert {slot for spec in POINTS.values() for slot in spec.slots} == {
        slot for slot in Slot if "aggregates" not in slot.value
    }
    assert all(spec.doc for spec in POINTS.values())


@pytest.mark.parametrize("slot", list(Slot))
def test_every_variable_has_a_type_that_is_known_and_says_what_it_is(slot: Slot) -> None:
    for subject in ("node", "pod", "container", "qosClass"):
        found = environment(slot, subject=subject)
        assert list(found.variables) == list(dict.fromkeys(each.name for each in seen(slot, subject=subject)))
        for each in seen(slot, subject=subject):
            assert each.doc.endswith(".")
            assert each.type.name in found.types or each.type.name in (
                "int", "string", "list", "google.protobuf.Timestamp",
            )


def test_what_the_cluster_gives_is_what_the_table_says() -> None:
    objects = [
        {"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "1", "nvidia.com/gpu": "2"}}},
    ]
    frame = Cluster(objects).snapshot().frame({})
    info = frame.row_value("nodeInfo", 0)
    assert isinstance(info, dict)
    assert set(info) == set(NODE_INFO.fields)
    devices = frame.row_value("devices", 0)
    assert isinstance(devices, list)
    assert set(devices[0]) == set(DEVICE.fields)
    pod = PodInfo.of({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    values = pending_pod_values(pod)
    facts = values["podInfo"]
    assert isinstance(facts, dict)
    assert set(facts) == set(POD_INFO.fields)
    given = {each.name for each in seen(Slot.FILTER) if each.scope is Scope.DECISION}
    assert {*values, "now"} == given


@pytest.mark.parametrize(("slot", "expression"), [
    (Slot.FILTER, "requests['nvidia.com/gpu'] <= allocatable['nvidia.com/gpu'] - requested['nvidia.com/gpu']"),
    (Slot.FILTER, "usage.p90.cpu * 100 / allocatable.cpu < 65 && estimated.memory < allocatable.memory"),
    (Slot.FILTER, "devices.exists(d, d.type == 'gpu' && d.free >= podInfo.gpuShare)"),
    (Slot.FILTER, "now - timestamp(pod.metadata.creationTimestamp) > duration('5m') && metricAge < 60"),
    (Slot.FILTER, "quantity(node.status.allocatable['cpu']).isGreaterThan(quantity('2'))"),
    (Slot.SCORE, "math.greatest(0, 100 - nodeInfo.pods) == 1"),
    (Slot.CRITERIA, "podUsage.cpu > requests.cpu && nodeInfo.measured"),
    (Slot.THRESHOLD, "nonBestEffortUsage.cpu + bestEffortUsage.cpu > allocatable.cpu"),
])
def test_what_the_design_shows_compiles(slot: Slot, expression: str) -> None:
    assert compile(expression, environment(slot)).type == BOOL

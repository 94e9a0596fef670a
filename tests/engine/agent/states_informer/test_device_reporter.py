from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.agent.host.devices import GPU, RDMA, HostDevice
from koordpolicy.engine.agent.states_informer.device_reporter import DeviceReporter, device_entries
from koordpolicy.engine.agent.states_informer.node_objects import DEVICE
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult
from koordpolicy.engine.framework.qos import Processor
from tests.engine.client.object_server import ObjectServer
from tests.waiting import until

from .conftest import informed, node

BOTH = frozenset({GPU, RDMA})
PROCESSORS = (Processor(0, 0, 0, 0), Processor(1, 1, 1, 1))
FIRST = HostDevice(GPU, 0, "card0", "0000:3b:00.0", "amdgpu", 1, healthy=True, directory=Path("/none"),
                   identity="5a", root="pci0000:3a", memory=17179869184)
SECOND = HostDevice(GPU, 1, "0000:af:00.0", "0000:af:00.0", "amdgpu", -1, healthy=True, directory=Path("/none"))
ADAPTER = HostDevice(RDMA, 0, "mlx5_0", "0000:5e:00.0", "mlx5_core", 0, healthy=True, directory=Path("/none"),
                     root="pci0000:5d", functions=("0000:5e:00.1", "0000:5e:00.2"))
GPU_ENTRY = {
    "type": "gpu", "minor": 0, "id": "5a", "health": True,
    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                  "koordinator.sh/gpu-memory": "17179869184"},
    "topology": {"socketID": 1, "nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"}}
SECOND_ENTRY = {
    "type": "gpu", "minor": 1, "id": "0000:af:00.0", "health": True,
    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"},
    "topology": {"socketID": -1, "nodeID": -1, "pcieID": "", "busID": "0000:af:00.0"}}
ADAPTER_ENTRY = {
    "type": "rdma", "minor": 0, "id": "0000:5e:00.0", "health": True, "resources": {"koordinator.sh/rdma": "100"},
    "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:5d", "busID": "0000:5e:00.0"},
    "vfGroups": [{"vfs": [{"minor": 0, "busID": "0000:5e:00.1"}, {"minor": 1, "busID": "0000:5e:00.2"}]}]}


def entries(*found: HostDevice, known: Sequence[Any] = (), types: frozenset[str] = BOTH) -> list[dict[str, Any]]:
    return device_entries(found, known, types, {0: 0, 1: 1})


class Machine:
    """The devices of a machine, which a test changes."""

    def __init__(self, *devices: HostDevice) -> None:
        self.devices: Sequence[HostDevice] | None = devices


@contextmanager
def reporting(
    api: ObjectServer, machine: Machine, types: frozenset[str] = BOTH,
) -> Iterator[tuple[StatesInformer, DeviceReporter]]:
    with informed(api, started=False, follow=frozenset({DEVICE})) as states:
        reporter = DeviceReporter(states, ClusterWriter(states._transport), lambda: machine.devices,
                                  lambda: PROCESSORS, types)
        states.start()
        until(lambda: states.synced and states._followed[DEVICE].heard > 0)
        yield states, reporter


def report(states: StatesInformer, reporter: DeviceReporter) -> WriteResult | None:
    return states._io.submit(reporter.report()).result(60)


@pytest.fixture(autouse=True)
def objects(api: ObjectServer) -> None:
    api.put(node())


def device(*listed: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "node", **metadata}, "spec": {"devices": list(listed)}}


def test_devices_have_what_they_offer_and_their_place_on_the_board():
    assert entries(ADAPTER, FIRST, SECOND) == [GPU_ENTRY, SECOND_ENTRY, ADAPTER_ENTRY]


def test_a_device_that_went_away_is_unhealthy_and_the_others_keep_their_minors():
    remaining = replace(SECOND, minor=0)
    known = entries(FIRST, SECOND)
    assert entries(remaining, known=known) == [{**GPU_ENTRY, "health": False}, SECOND_ENTRY]
    added = replace(SECOND, minor=1, address="0000:d8:00.0")
    assert [(each["minor"], each["health"], each["topology"]["busID"]) for each in entries(
        remaining, added, known=known)] == [
        (0, False, "0000:3b:00.0"), (1, True, "0000:af:00.0"), (2, True, "0000:d8:00.0")]
    assert entries(FIRST, SECOND, known=entries(remaining, known=known)) == known


def test_what_the_machine_does_not_say_stays():
    more = {"labels": {"model": "big"}, "moduleID": 3, "conditions": [{"type": "Tested", "status": "True"}]}
    known = {**SECOND_ENTRY, **more, "resources": {
        "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
        "koordinator.sh/gpu-memory": "80Gi"}}
    assert entries(SECOND, known=[known]) == [known]


def test_an_equal_amount_in_another_unit_is_no_change():
    known = {**GPU_ENTRY, "resources": {**GPU_ENTRY["resources"], "koordinator.sh/gpu-memory": "16Gi"}}
    assert entries(FIRST, known=[known]) == [known]
    known["resources"]["koordinator.sh/gpu-memory"] = "much"
    assert entries(FIRST, known=[known]) == [GPU_ENTRY]


def test_an_entry_without_an_address_is_that_of_its_id_or_of_its_minor():
    assert entries(FIRST, known=[{"type": "gpu", "minor": 7, "id": "5a"}]) == [{**GPU_ENTRY, "minor": 7}]
    assert entries(FIRST, known=[{"type": "gpu", "minor": 0}]) == [GPU_ENTRY]


def test_entries_of_other_types_and_what_is_no_entry_are_left_alone():
    other = {"type": "fpga", "minor": 0, "id": "x"}
    assert entries(FIRST, ADAPTER, known=[ADAPTER_ENTRY, other], types=frozenset({GPU})) == [
        ADAPTER_ENTRY, other, GPU_ENTRY]
    assert entries(known=["text", other]) == [other]


def test_groups_of_virtual_functions_keep_their_labels():
    group = {"labels": {"type": "fast"}, "vfs": [{"minor": 1, "busID": "0000:5e:00.2"},
                                                 {"minor": 5, "busID": "0000:5e:00.7"}]}
    found, = entries(ADAPTER, known=[{**ADAPTER_ENTRY, "vfGroups": [group]}])
    assert found["vfGroups"] == [
        {"labels": {"type": "fast"}, "vfs": [{"minor": 1, "busID": "0000:5e:00.2"}]},
        {"vfs": [{"minor": 0, "busID": "0000:5e:00.1"}]}]
    gone, = entries(replace(ADAPTER, functions=()), known=[ADAPTER_ENTRY])
    assert gone["vfGroups"] == []


def test_a_device_is_created_and_then_written_only_when_it_changes(api: ObjectServer):
    machine = Machine(FIRST, ADAPTER)
    with reporting(api, machine) as (states, reporter):
        result = report(states, reporter)
        assert result is not None
        assert result.done
        until(lambda: states.device)
        made = api.objects(DEVICE)["node"]
        assert made["metadata"]["labels"] == {
            "app.kubernetes.io/managed-by": "Koordinator", "node.koordinator.sh/gpu-vendor": "amd"}
        assert made["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": (states.node or {})["metadata"]["uid"]}]
        assert made["spec"] == {"devices": [GPU_ENTRY, ADAPTER_ENTRY]}
        machine.devices = (replace(FIRST), replace(ADAPTER))  # listed again
        assert [report(states, reporter) for _ in range(3)] == [None, None, None]
        machine.devices = (FIRST, replace(ADAPTER, healthy=False))
        assert report(states, reporter) is not None
        assert [(method, body.keys()) for method, _, body in api.writes] == [
            ("POST", {"apiVersion", "kind", "metadata", "spec"}), ("PATCH", {"metadata", "spec"})]
        assert api.objects(DEVICE)["node"]["spec"] == {"devices": [GPU_ENTRY, {**ADAPTER_ENTRY, "health": False}]}
        assert reporter.writes == 2


def test_the_order_of_devices_is_no_change_and_labels_of_others_stay(api: ObjectServer):
    labels = {"node.koordinator.sh/gpu-vendor": "amd", "node.koordinator.sh/gpu-model": "MI300X"}
    api.put(device(ADAPTER_ENTRY, GPU_ENTRY, labels=labels))
    machine = Machine(FIRST, ADAPTER)
    with reporting(api, machine) as (states, reporter):
        until(lambda: states.device)
        assert report(states, reporter) is None
        item = api.objects(DEVICE)["node"]
        del item["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"]
        version = api.put(item)["metadata"]["resourceVersion"]
        until(lambda: (states.device or {})["metadata"]["resourceVersion"] == version)
        assert report(states, reporter) is not None
        assert api.writes[-1][2] == {"metadata": {"labels": {"node.koordinator.sh/gpu-vendor": "amd"}}}
        assert api.objects(DEVICE)["node"]["metadata"]["labels"] == labels


def test_a_conflict_is_repeated_in_the_next_round(api: ObjectServer, caplog: pytest.LogCaptureFixture):
    api.put(device())
    with reporting(api, Machine(FIRST)) as (states, reporter):
        until(lambda: states.device)
        version = (states.device or {})["metadata"]["resourceVersion"]
        api.refusals = [409]
        assert report(states, reporter) is not None
        assert (reporter.writes, "could not be reported" in caplog.text) == (0, False)
        assert api.writes[0][2]["metadata"]["resourceVersion"] == version
        assert report(states, reporter) is not None
        assert reporter.writes == 1


def test_a_missing_right_is_logged_with_the_right(api: ObjectServer, caplog: pytest.LogCaptureFixture):
    with reporting(api, Machine(FIRST)) as (states, reporter):
        api.refusals = [403]
        report(states, reporter)
        assert "grant `create` and `patch` on `devices`" in caplog.text


def test_of_a_machine_without_devices_or_that_was_not_listed_nothing_is_created(api: ObjectServer):
    machine = Machine()
    with reporting(api, machine) as (states, reporter):
        assert report(states, reporter) is None
        machine.devices = None
        assert report(states, reporter) is None
        machine.devices = (ADAPTER,)
        reporter._types = frozenset({GPU})
        assert report(states, reporter) is None
    assert api.writes == []


def test_without_the_kind_nothing_is_reported():
    with ObjectServer(absent=[DEVICE]) as api:
        api.put(node())
        with informed(api, started=False, follow=frozenset({DEVICE})) as states:
            reporter = DeviceReporter(states, ClusterWriter(states._transport), lambda: (FIRST,), tuple, BOTH)
            states.start()
            until(lambda: states.synced and states.faults.get(DEVICE))
            assert report(states, reporter) is None
        assert api.writes == []


def test_the_object_is_followed_only_if_it_is_demanded(api: ObjectServer):
    with informed(api) as states:
        until(lambda: states.synced)
        assert states.device is None
    assert [path for _, path, _ in api.requests if "devices" in path] == []

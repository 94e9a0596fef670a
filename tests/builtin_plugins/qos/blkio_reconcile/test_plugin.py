from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos.blkio_reconcile.plugin import BlkIOReconcile
from koordpolicy.engine.framework.qos import Host, Storage
from tests.builtin_plugins.qos.machine import Machine, pod

HOST = Host(storage=Storage(
    devices={"/dev/vda": "253:0", "vdb": "253:16"}, volume_groups={"data": "253:16"},
    mounts={"/var/lib/kubelet/pods/train/volumes/kubernetes.io~csi/pv-1/mount": "253:32",
            "/var/lib/kubelet/pods/train/volumes/kubernetes.io~csi/scratch/mount": "253:48"},
    claims={"d/claim": "pv-1", "d/train-own": "pv-1"},
))
THROTTLES = ("read_iops", "read_bps", "write_iops", "write_bps")


def files_of(directory: str, **texts: str) -> dict[str, str]:
    names = {f"{directory}/blkio.throttle.{name}_device": texts.get(name, "") for name in THROTTLES}
    return {**names, f"{directory}/blkio.cost.weight": texts.get("weight", "")}


def block(name: str, kind: str = "device", **numbers: int | bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "ioCfg": numbers}


def strategy(*blocks: dict[str, Any], enable: bool = True, of: str = "beClass") -> dict[str, Any]:
    return {"resourceQOSStrategy": {of: {"blkioQOS": {"enable": enable, "blocks": list(blocks)}}}}


def test_limits_of_a_device_are_written_and_zero_only_where_there_is_a_limit() -> None:
    machine = Machine(strategy(block("/dev/vda", readIOPS=1000, writeBPS=0, ioWeightPercent=60)),
                      files_of("besteffort", write_iops="253:0 5"), host=HOST)
    plugin = BlkIOReconcile({})
    assert machine.after(plugin.adjust) == [("best-effort pods", False, (
        ("besteffort/blkio.throttle.read_iops_device", "253:0 1000"),
        ("besteffort/blkio.throttle.write_iops_device", "253:0 0"),
        ("besteffort/blkio.cost.weight", "253:0 60"),
    ))]
    assert machine.after(plugin.adjust) == []


def test_a_disk_that_is_not_configured_any_more_loses_its_limits() -> None:
    before = files_of("besteffort", read_bps="253:0 1\n253:16 2", weight="default 100\n253:16 30")
    machine = Machine(strategy(block("vda", readBPS=1)), before, host=HOST)
    assert machine.after(BlkIOReconcile({}).adjust) == [("best-effort pods", False, (
        ("besteffort/blkio.throttle.read_bps_device", "253:16 0"),
        ("besteffort/blkio.cost.weight", "253:0 100"), ("besteffort/blkio.cost.weight", "253:16 100"),
    ))]


@pytest.mark.parametrize("spec", [strategy(block("vda", readBPS=1), enable=False), {"resourceQOSStrategy": {}}])
def test_a_disabled_or_absent_section_drops_all_limits(spec: dict[str, Any]) -> None:
    machine = Machine(spec, files_of("besteffort", read_bps="253:0 1"), host=HOST)
    assert machine.after(BlkIOReconcile({}).adjust) == [
        ("best-effort pods", True, (("besteffort/blkio.throttle.read_bps_device", "253:0 0"),)),
    ]


def test_the_root_gets_latency_targets_and_cost_models() -> None:
    files = {"root/blkio.cost.qos": "253:32 enable=1 ctrl=user rpct=1 rlat=1 wpct=1 wlat=1\n253:48 enable=0",
             "root/blkio.cost.model": ""}
    model = {"modelReadBPS": 1, "modelReadSeqIOPS": 2, "modelReadRandIOPS": 3, "modelWriteBPS": 4,
             "modelWriteSeqIOPS": 5, "modelWriteRandIOPS": 6}
    machine = Machine(strategy(
        block("data", "volumegroup", enableUserModel=True, **model),
        block("vda", readLatency=10, readLatencyPercent=90),
        of="cgroupRoot",
    ), files, host=HOST)
    plugin = BlkIOReconcile({})
    assert machine.after(plugin.adjust) == [("all control groups", False, (
        ("root/blkio.cost.qos", "253:16 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000"),
        ("root/blkio.cost.qos", "253:0 enable=1 ctrl=user rpct=90 rlat=10 wpct=95 wlat=3000"),
        ("root/blkio.cost.qos", "253:32 enable=0"),
        ("root/blkio.cost.model",
         "253:16 ctrl=user rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"),
        ("root/blkio.cost.model", "253:0 ctrl=auto"),
    ))]
    assert machine.after(plugin.adjust) == []


def annotated(*blocks: dict[str, Any], volume: dict[str, Any] | None = None, qos: str = "BE") -> dict[str, Any]:
    text = json.dumps({"blocks": list(blocks)})
    return pod("train", qos, annotations={"koordinator.sh/blkioQOS": text}, volumes=[volume] if volume else [])


@pytest.mark.parametrize(("volume", "disk"), [
    ({"name": "own", "persistentVolumeClaim": {"claimName": "claim"}}, "253:32"),
    ({"name": "own", "ephemeral": {}}, "253:32"),
    ({"name": "scratch", "csi": {"driver": "x"}}, "253:48"),
])
def test_a_pods_volume_is_limited_by_its_disk(volume: dict[str, Any], disk: str) -> None:
    running = annotated(block(volume["name"], "podvolume", readIOPS=9), volume=volume)
    machine = Machine({"resourceQOSStrategy": {}}, files_of("besteffort/podtrain"), host=HOST, pods=[running])
    assert machine.after(BlkIOReconcile({}).adjust) == [("d/train", False, (
        ("besteffort/podtrain/blkio.throttle.read_iops_device", f"{disk} 9"),
        ("besteffort/podtrain/blkio.cost.weight", f"{disk} 100"),
    ))]


def test_a_pod_that_loses_its_annotation_loses_its_limits() -> None:
    machine = Machine({"resourceQOSStrategy": {}}, files_of("besteffort/podtrain"), host=HOST,
                      pods=[annotated(block("vda", writeIOPS=3))])
    plugin = BlkIOReconcile({})
    machine.after(plugin.adjust)
    machine.run_pods([pod("train")])
    assert machine.after(plugin.adjust) == [
        ("d/train", True, (("besteffort/podtrain/blkio.throttle.write_iops_device", "253:0 0"),)),
    ]
    assert machine.after(plugin.adjust) == []


@pytest.mark.parametrize(("blocks", "message"), [
    ([block("vdz", readIOPS=1)], "the disk of device `vdz` is not known"),
    ([block("x", "podvolume", readIOPS=1)], "block `x`: only a pod has a `podvolume`"),
    ([block("x", "disk")], "block `x`: there is no type `disk`, only `device`, `volumegroup` and `podvolume`"),
    ([block("vda", readIOPS=-1)], "blocks[0].ioCfg.readIOPS` must be at least 0, not -1"),
    ([block("vda", ioWeightPercent=0)], "ioWeightPercent` must be 1 to 100, not 0"),
    ([block("vda", enableUserModel=True, modelReadBPS=1)], "needs `modelReadSeqIOPS`, `modelReadRandIOPS`"),
])
def test_a_block_that_cannot_be_resolved_leaves_its_directory_as_it_is(
    blocks: list[dict[str, Any]], message: str, caplog: pytest.LogCaptureFixture,
) -> None:
    files = {**files_of("besteffort", read_bps="253:16 7"), **files_of("besteffort/podtrain")}
    machine = Machine(strategy(block("vdb", readBPS=1), *blocks), files, host=HOST,
                      pods=[annotated(block("vda", readIOPS=1))])
    if "blocks[0]" in message:
        machine.use(strategy(*blocks))
    plugin = BlkIOReconcile({})
    assert [subject for subject, _, _ in machine.after(plugin.adjust)] == ["d/train"]
    machine.after(plugin.adjust)
    (record,) = caplog.records
    assert message in record.getMessage()


@pytest.mark.parametrize("given", [
    annotated(block("vda", readIOPS=1), qos=""),
    {**annotated(block("vda", readIOPS=1)), "status": {"phase": "Pending"}},
    pod("train", annotations={"koordinator.sh/blkioQOS": "{"}),
], ids=["no class", "not running", "not JSON"])
def test_pods_without_a_class_or_a_readable_annotation_are_left_alone(given: dict[str, Any]) -> None:
    machine = Machine({"resourceQOSStrategy": {}}, files_of("besteffort/podtrain"), host=HOST, pods=[given])
    assert machine.after(BlkIOReconcile({}).adjust) == []


def test_files_that_the_kernel_lacks_are_left_out() -> None:
    machine = Machine(strategy(block("vda", readIOPS=1)), {}, host=HOST)
    assert machine.after(BlkIOReconcile({}).adjust) == []


def test_recovery_drops_all_limits_once() -> None:
    before = {**files_of("besteffort"), **files_of("besteffort/podtrain"), "root/blkio.cost.qos": ""}
    spec = strategy(block("vda", readIOPS=1, ioWeightPercent=5))
    spec["resourceQOSStrategy"]["cgroupRoot"] = {"blkioQOS": {"enable": True, "blocks": [block("vda")]}}
    machine = Machine(spec, before, host=HOST, pods=[annotated(block("vda", readBPS=1))])
    plugin = BlkIOReconcile({})
    machine.after(plugin.adjust)
    assert {subject for subject, _, _ in machine.after(plugin.recover)} == {
        "best-effort pods", "all control groups", "d/train",
    }
    weight = "253:0 100"
    assert machine.files == {**files_of("besteffort", weight=weight), **files_of("besteffort/podtrain", weight=weight),
                             "root/blkio.cost.qos": "253:0 enable=0"}
    assert machine.after(plugin.recover) == []


def test_sections_of_other_classes_are_reported_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    BlkIOReconcile({}).adjust(Machine(strategy(of="lsClass"), {}, host=HOST).readings)
    assert [record.getMessage() for record in caplog.records] == [
        "n: lsClass: `blkioQOS` of this class has no effect: only `beClass` and `cgroupRoot` have one",
    ]


def test_an_explanation_has_the_disks_of_each_directory() -> None:
    running = annotated(block("data", "volumegroup"))
    machine = Machine(strategy(block("vda"), block("vdz")), {}, host=HOST, pods=[running])
    assert [each.text for each in BlkIOReconcile({}).explain_round(machine.readings)] == [
        "best-effort pods: left as it is: the disk of device `vdz` is not known", "all control groups: no limits",
        "d/train: data (253:16)",
    ]

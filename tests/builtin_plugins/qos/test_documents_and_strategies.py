"""A strategy in Python and the document that says the same make the same files of the same readings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.blkio_reconcile.plugin import BlkIOReconcile
from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import BECPUSuppress
from koordpolicy.builtin_plugins.qos.resctrl_reconcile.plugin import RdtResctrl
from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.qos import Host, Processor, Storage
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source
from tests.builtin_plugins.qos.machine import Machine, pod

DOCUMENT: Final = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {{name: same}}
spec:
  interval: 1s
  window: 1s
  forEach: {subject}
  actions:
{actions}
"""
HOST: Final = Host(
    processors=tuple(Processor(cpu, cpu // 2, cpu // 8, cpu // 8) for cpu in range(16)), vendor="GenuineIntel",
    cbm_mask="7ff", flags=frozenset(("cat_l3", "mba")), l3_caches=(0, 1), storage=Storage(devices={"vda": "8:0"}),
)


class Twins:
    """Two machines with the same readings: on one the strategy runs, on the other one the document."""

    def __init__(self, plugin: Any, subject: str, actions: str, files: Mapping[str, str], spec: Mapping[str, Any],
                 *pods: Mapping[str, Any]) -> None:
        self.machines = [Machine(spec, files, host=HOST, pods=pods) for _ in range(2)]
        for each in self.machines:
            each.recording.nodes["n"] = {"kind": "Node", "metadata": {"name": "n"}, "status": {
                key: {"cpu": "16", "memory": "64Gi"} for key in ("capacity", "allocatable")
            }}
        text = DOCUMENT.format(subject=subject, actions=actions)
        self.plugin, self.manager = plugin, Manager()
        self.manager.use(Registry.of(compile_documents(load([Source("same.yaml", text)])), generation=1))

    def use(self, node: int, pods: Mapping[str, int]) -> None:
        """Replace the measurements, in milli-cores."""
        for each in self.machines:
            each.recording.series["n", "node", "n"] = {"cpu": MetricSeries([0], [node])}
            for name, used in pods.items():
                each.recording.series["n", "pod", f"d/{name}"] = {"cpu": MetricSeries([0], [used])}

    def files(self) -> tuple[dict[str, str], dict[str, str]]:
        """Run a round on both; return their files, with lines in the same order."""
        one, other = self.machines
        one.after(self.plugin.adjust)
        report, _ = self.manager.run("same", other.readings)
        assert report.errors == ()
        other.after(lambda _: report.adjustments)
        one_files, other_files = ({name: "\n".join(sorted(text.split("\n"))) for name, text in each.files.items()}
                                  for each in (one, other))
        return one_files, other_files


# koordlet computes in cores, as floats: eighths of a core are exact.
_EIGHTHS = st.integers(0, 40).map(lambda number: number * 125)
_LOADS = st.lists(st.tuples(_EIGHTHS, _EIGHTHS, _EIGHTHS), min_size=1, max_size=6)


def _suppressed(policy: str, loads: list[tuple[int, int, int]], percent: int) -> None:
    spec = {"resourceUsedThresholdWithBE": {
        "enable": True, "cpuSuppressThresholdPercent": percent, "cpuSuppressPolicy": policy,
    }}
    kind = {"cpuset": "CPUSet", "cfsQuota": "CFSQuota"}[policy]
    twins = Twins(
        BECPUSuppress({}), "node",
        f"  - name: squeeze\n    suppressCPU: {{target: allocatable.cpu * {percent} / 100 - nonBestEffortUsage.cpu, "
        f"policy: {kind}}}",
        {"besteffort/cpuset.cpus": "0-15", "besteffort/podtrain/cpuset.cpus": "0-15",
         "besteffort/cpu.cfs_quota_us": "-1"},
        spec, pod("train"), {**pod("web", "LS"), "status": {"phase": "Running", "qosClass": "Burstable"}},
    )
    for system, web, train in loads:
        twins.use(system + web + train, {"web": web, "train": train})
        one, other = twins.files()
        assert one == other


@settings(max_examples=40)
@given(_LOADS, st.integers(0, 100))
def test_cpu_sets_of_best_effort_pods(loads: list[tuple[int, int, int]], percent: int) -> None:
    _suppressed("cpuset", loads, percent)


@settings(max_examples=40)
@given(_LOADS, st.integers(0, 100))
def test_quotas_of_best_effort_pods(loads: list[tuple[int, int, int]], percent: int) -> None:
    _suppressed("cfsQuota", loads, percent)


_GROUP = st.tuples(st.integers(0, 8), st.integers(10, 100), st.integers(1, 100))


@settings(max_examples=40)
@given(st.fixed_dictionaries({"LSR": _GROUP, "LS": _GROUP, "BE": _GROUP}))
def test_cache_and_bandwidth_of_classes(groups: dict[str, tuple[int, int, int]]) -> None:
    classes = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}
    spec = {"resourceQOSStrategy": {classes[group]: {"resctrlQOS": {
        "enable": True, "catRangeStartPercent": start, "catRangeEndPercent": end, "mbaPercent": share,
    }} for group, (start, end, share) in groups.items()}}
    actions = "\n".join(
        f"  - name: of-{group.lower()}\n    when: qosClass == '{group}'\n"
        f"    resctrl: {{catRangeStartPercent: '{start}', catRangeEndPercent: '{end}', mbaPercent: '{share}'}}"
        for group, (start, end, share) in groups.items()
    )
    files = {f"resctrl/{group}/schemata": "L3:0=7ff;1=7ff\nMB:0=100;1=100" for group in groups}
    files |= {f"besteffort/pod{name}/main/tasks": str(number) for number, name in enumerate("abcd")}
    twins = Twins(RdtResctrl({}), "qosClass", actions, files, spec, pod("a"), pod("b", "LS"), pod("c", "LSR"),
                  pod("d", "SYSTEM"))
    one, other = twins.files()
    assert one == other
    assert twins.files() == (one, other)


@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(1, 100))
def test_limits_of_a_disk(read: int, write: int, read_bytes: int, write_bytes: int, weight: int) -> None:
    numbers = {"readIOPS": read, "writeIOPS": write, "readBPS": read_bytes, "writeBPS": write_bytes,
               "ioWeightPercent": weight}
    spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [
        {"name": "vda", "type": "device", "ioCfg": numbers},
    ]}}}}
    given_numbers = ", ".join(f"{name}: '{value}'" for name, value in numbers.items())
    files = {f"besteffort/blkio.throttle.{name}_device": "8:0 7\n8:16 0"
             for name in ("read_iops", "read_bps", "write_iops", "write_bps")}
    twins = Twins(BlkIOReconcile({}), "node", f"  - name: limit\n    blkio: {{device: vda, {given_numbers}}}",
                  {**files, "besteffort/blkio.cost.weight": "8:0 100"}, spec)
    one, other = twins.files()
    assert one == other


@settings(max_examples=40)
@given(st.integers(2, 1000), st.integers(10, 400))
def test_settings_of_the_kernel(factor: int, scale: int) -> None:
    spec = {"systemStrategy": {"minFreeKbytesFactor": factor, "watermarkScaleFactor": scale}}
    actions = (
        "  - name: keep-free\n    sysctl: {name: vm.min_free_kbytes, "
        f"value: \"int(quantity(node.status.capacity['memory']).asApproximateFloat()) * {factor} / 10240000\"}}\n"
        f"  - name: reclaim\n    sysctl: {{name: vm.watermark_scale_factor, value: '{scale}'}}"
    )
    files = {"proc/sys/vm/min_free_kbytes": "1", "proc/sys/vm/watermark_scale_factor": "1"}
    twins = Twins(SystemConfig({}), "node", actions, files, spec)
    one, other = twins.files()
    assert one == other


def test_twins_differ_if_the_document_says_something_else() -> None:
    spec = {"systemStrategy": {"watermarkScaleFactor": 20}}
    twins = Twins(SystemConfig({}), "node", "  - {name: a, sysctl: {name: vm.watermark_scale_factor, value: '21'}}",
                  {"proc/sys/vm/watermark_scale_factor": "10"}, spec)
    one, other = twins.files()
    assert one != other

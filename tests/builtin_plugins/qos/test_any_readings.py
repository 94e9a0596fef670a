"""Whatever is read of a node, a strategy fails with `EvaluationError` only, and reverts its writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.blkio_reconcile.plugin import BlkIOReconcile
from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import BECPUSuppress
from koordpolicy.builtin_plugins.qos.resctrl_reconcile.plugin import RdtResctrl
from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Host, Processor, Storage
from tests.builtin_plugins.qos.machine import Machine, pod

STRATEGIES: Final[tuple[Callable[[Mapping[str, Any]], Any], ...]] = (
    BECPUSuppress, RdtResctrl, BlkIOReconcile, SystemConfig,
)
CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")
TEXTS = ("", "0", "0-3", "-1", "max", "8:0 1", "L3:0=ff", "MB:0=x", "A NO_B", "1\n2\nx", "7-", "\N{SNOWMAN}")
_ODD = st.sampled_from((None, True, -1, 0, 1, 30, 65, 100, 10**20, "x", "cfsQuota", "8:0", [], {}, [1], 0.5))


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of the right type, and now and then any other."""
    return st.integers(0, 19).flatmap(lambda number: _ODD if number == 0 else usual)


_FLAG = mostly(st.booleans())
_SHARE = mostly(st.sampled_from((-1, 0, 1, 30, 65, 100, 101, 500)))
_BLOCK = st.fixed_dictionaries({
    "name": mostly(st.sampled_from(("vda", "vdb", "data"))),
    "type": mostly(st.sampled_from(("device", "device", "podvolume", "x"))),
    "ioCfg": mostly(st.fixed_dictionaries({"readIOPS": _SHARE}, optional={
        "writeBPS": _SHARE, "ioWeightPercent": _SHARE, "enableUserModel": _FLAG})),
})
_BLKIO = mostly(st.fixed_dictionaries({"enable": _FLAG, "blocks": mostly(st.lists(_BLOCK, max_size=2))}))
_RESCTRL = mostly(st.fixed_dictionaries({
    "enable": _FLAG, "catRangeStartPercent": mostly(st.just(0)), "catRangeEndPercent": _SHARE, "mbaPercent": _SHARE,
}))
_CLASS = mostly(st.fixed_dictionaries({"resctrlQOS": _RESCTRL, "blkioQOS": _BLKIO}))
_SPEC = mostly(st.fixed_dictionaries({
    "resourceUsedThresholdWithBE": mostly(st.fixed_dictionaries(
        {"enable": _FLAG, "cpuSuppressThresholdPercent": _SHARE,
         "cpuSuppressPolicy": mostly(st.sampled_from(("cpuset", "cfsQuota")))},
        optional={"cpuSuppressMinPercent": _SHARE},
    )),
    "resourceQOSStrategy": mostly(st.fixed_dictionaries(dict.fromkeys(CLASSES, _CLASS))),
    "systemStrategy": mostly(st.fixed_dictionaries({
        "minFreeKbytesFactor": _SHARE, "watermarkScaleFactor": _SHARE, "schedIdleSaverWmark": _SHARE,
        "schedFeatures": mostly(st.dictionaries(st.sampled_from(("A", "B", "x y")), _FLAG)),
    })),
}, optional={"hostApplications": st.one_of(_ODD, st.lists(_ODD, max_size=2))}))
_FILES = st.dictionaries(st.sampled_from((
    "besteffort/cpuset.cpus", "besteffort/podtrain/cpuset.cpus", "besteffort/podtrain/main/cpuset.cpus",
    "besteffort/cpu.cfs_quota_us", "besteffort/podtrain/main/tasks", "resctrl/BE/schemata", "resctrl/BE/tasks",
    "besteffort/blkio.throttle.read_iops_device", "besteffort/blkio.cost.weight", "root/blkio.cost.qos",
    "besteffort/podtrain/blkio.throttle.write_bps_device", "proc/sys/vm/min_free_kbytes",
    "proc/sys/vm/watermark_scale_factor", "sys/kernel/debug/sched_features",
)), st.sampled_from(TEXTS))
_ANNOTATION = st.sampled_from((
    "", "{", "[]", "null", "7", '{"cpuset": "0"}', '{"cpuset": 5}', '{"blocks": 3}', '{"reservedCPUs": "x"}',
    '{"resources": 1}', '{"resources": {"cpu": "x"}}', '{"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}]}',
    '{"detail": [{"id": "a", "core": 0, "socket": 0, "node": 0}]}', '{"detail": {"a": 1}}', '{"policy": "static"}',
    '{"blocks": [{"name": "vda", "type": "device", "ioCfg": {"readIOPS": 5}}]}', '{"enable": 1}',
))
_POD = st.builds(
    lambda name, qos, phase, texts: pod(name, qos, phase=phase, annotations=texts),
    st.sampled_from(("train", "web")), st.sampled_from(("BE", "LS", "LSE", "LSR", "SYSTEM", "", "?")),
    st.sampled_from(("Running", "Pending", "Failed", "")),
    st.dictionaries(st.sampled_from((
        "scheduling.koordinator.sh/resource-status", "koordinator.sh/blkioQOS", "node.koordinator.sh/resctrl",
    )), _ANNOTATION),
)
_HOST = st.builds(
    Host,
    processors=st.integers(0, 4).map(lambda count: tuple(Processor(cpu, cpu, 0, 0) for cpu in range(count))),
    vendor=st.sampled_from(("", "GenuineIntel", "AuthenticAMD")),
    flags=st.sampled_from((frozenset(("cat_l3", "mba")), frozenset[str]())),
    cbm_mask=st.sampled_from(("ff", "7ff", "", "101", "zz")), l3_caches=st.sampled_from(((), (0,), (0, 1))),
    storage=st.sampled_from((Storage(), Storage(devices={"vda": "8:0"}))),
)


def machine(
    spec: Any, files: dict[str, str], pods: list[dict[str, Any]], host: Host, node: dict[str, str],
    topology: dict[str, str], used: int | None,
) -> Machine:
    made = Machine(spec, files, host=host, pods=pods)
    made.recording.nodes["n"] = {**made.recording.nodes["n"], "metadata": {"name": "n", "annotations": node}}
    made.recording.objects["NodeResourceTopology", "n"] = {"metadata": {"name": "n", "annotations": topology}}
    if used is not None:
        made.recording.series["n", "node", "n"] = {"cpu": MetricSeries([0], [used])}
    return made


MACHINES = st.builds(
    machine, _SPEC, _FILES, st.lists(_POD, max_size=3), _HOST,
    st.dictionaries(st.just("node.koordinator.sh/reservation"), _ANNOTATION),
    st.dictionaries(st.sampled_from((
        "node.koordinator.sh/reservation", "node.koordinator.sh/system-qos-resource",
        "node.koordinator.sh/cpu-topology", "kubelet.koordinator.sh/cpu-manager-policy",
    )), _ANNOTATION),
    st.one_of(st.none(), st.integers(0, 8000)),
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.__name__)
@settings(max_examples=150)
@given(MACHINES)
def test_a_strategy_fails_with_an_evaluation_error_only(strategy: Callable[..., Any], machine: Machine) -> None:
    plugin = strategy({})
    for call in (plugin.explain_round, plugin.adjust, plugin.adjust, plugin.recover, plugin.recover):
        with contextlib.suppress(EvaluationError):
            if call == plugin.explain_round:
                call(machine.readings)
            else:
                machine.after(call)


TIER = {"besteffort/cpuset.cpus": "0-3", "besteffort/podtrain/cpuset.cpus": "0-3", "besteffort/cpu.cfs_quota_us": "-1"}
GROUPS = {f"resctrl/{group}/schemata": "L3:0=ff;1=ff\nMB:0=100;1=100" for group in ("LSR", "LS", "BE")}
DISKS = {"besteffort/blkio.throttle.read_iops_device": "", "besteffort/blkio.cost.weight": "8:0 100\n8:16 100",
         "besteffort/podtrain/blkio.throttle.read_iops_device": ""}
HOST = Host(processors=tuple(Processor(cpu, cpu, 0, 0) for cpu in range(4)), vendor="GenuineIntel", cbm_mask="ff",
            flags=frozenset(("cat_l3", "mba")), l3_caches=(0, 1),
            storage=Storage(devices={"vda": "8:0", "vdb": "8:16"}))
_PERCENT = st.integers(1, 100)
_LIMITS = st.fixed_dictionaries({"enable": st.booleans(), "catRangeStartPercent": st.just(0),
                                 "catRangeEndPercent": _PERCENT, "mbaPercent": _PERCENT})
_BLOCKS = st.lists(st.builds(
    lambda name, iops, weight: {"name": name, "type": "device", "ioCfg": {"readIOPS": iops, "ioWeightPercent": weight}},
    st.sampled_from(("vda", "vdb")), st.integers(0, 9), _PERCENT,
), unique_by=lambda each: str(each["name"]))
_VALID = st.fixed_dictionaries({
    "resourceUsedThresholdWithBE": st.fixed_dictionaries({
        "enable": st.booleans(), "cpuSuppressPolicy": st.sampled_from(("cpuset", "cfsQuota")),
        "cpuSuppressThresholdPercent": st.integers(0, 100),
    }),
    "resourceQOSStrategy": st.fixed_dictionaries({
        name: st.fixed_dictionaries({"resctrlQOS": _LIMITS, "blkioQOS": st.fixed_dictionaries({
            "enable": st.booleans(), "blocks": _BLOCKS,
        })}) for name in ("lsrClass", "lsClass", "beClass")
    }),
})


@pytest.mark.parametrize("strategy", [BECPUSuppress, RdtResctrl, BlkIOReconcile], ids=lambda each: each.__name__)
@settings(max_examples=60)
@given(st.lists(st.tuples(_VALID, st.integers(0, 4000), _BLOCKS), min_size=1, max_size=4))
def test_recovery_gives_back_the_files_after_any_rounds(
    strategy: Callable[..., Any], rounds: list[tuple[dict[str, Any], int, list[dict[str, Any]]]],
) -> None:
    before = {**TIER, **GROUPS, **DISKS}
    plugin, node = strategy({}), Machine({}, before, host=HOST)
    for spec, used, blocks in rounds:
        node.use(spec)
        node.run_pods([pod("train", annotations={"koordinator.sh/blkioQOS": json.dumps({"blocks": blocks})})])
        node.recording.series["n", "node", "n"] = {"cpu": MetricSeries([0], [used])}
        node.after(plugin.adjust)
    node.after(plugin.recover)
    assert {name: sorted(text.split()) for name, text in node.files.items()} == {
        name: sorted(text.split()) for name, text in before.items()
    }

"""Strategies with the executor of a node, on plain files: each write is accepted, and each file given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos.blkio_reconcile.plugin import BlkIOReconcile
from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import BECPUSuppress
from koordpolicy.builtin_plugins.qos.resctrl_reconcile.plugin import RdtResctrl
from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.recording import RecordedReadings
from koordpolicy.engine.agent.resource_executor.tree import FilesView
from koordpolicy.engine.framework.qos import Host, Processor, Storage
from tests.builtin_plugins.qos.machine import Machine, pod
from tests.engine.agent.resource_executor.conftest import Machine as Files

HOST = Host(processors=tuple(Processor(cpu, cpu, 0, 0) for cpu in range(4)), vendor="GenuineIntel", cbm_mask="fff",
            flags=frozenset(("cat_l3", "mba")), l3_caches=(0, 1), storage=Storage(devices={"vda": "8:0"}))
SECOND = 1_000_000_000


def rounds(
    directory: Path, version: int, plugin: Any, spec: Mapping[str, Any],
    prepare: Callable[[Files], None] = lambda _: None,
) -> tuple[list[str], list[str], list[str]]:
    """Run two rounds and the recovery; return the statuses of the writes of each."""
    files, node = Files(directory, version), Machine(spec, {}, host=HOST, pods=[{
        **pod("p"), "metadata": {**pod("p")["metadata"], "uid": "u1"},
        "spec": {"nodeName": "n", "containers": [{"name": "c1"}]},
    }])
    node.recording.series["n", "node", "n"] = {"cpu": MetricSeries([0], [1500])}
    prepare(files)
    found = []
    for number, call in enumerate((plugin.adjust, plugin.adjust, plugin.recover)):
        readings = RecordedReadings(node.recording, "n", 0, FilesView(files.executor.tree))
        done = files.executor.apply(tuple(call(readings)), files.now + number * SECOND)
        found.append([write.status.value for each in done for write in each.writes])
    first, second, last = found
    return first, second, last


THRESHOLD = {"enable": True, "cpuSuppressThresholdPercent": 90}


# In control groups v2 the kernel shows the CPUs in effect in a second file, which plain files do not follow.
@pytest.mark.parametrize(("version", "policy", "count"), [(1, "cfsQuota", 1), (2, "cfsQuota", 1), (1, "cpuset", 3)])
def test_best_effort_pods_are_suppressed_and_freed(tmp_path: Path, version: int, policy: str, count: int) -> None:
    spec = {"resourceUsedThresholdWithBE": {**THRESHOLD, "cpuSuppressPolicy": policy}}
    done = rounds(tmp_path, version, BECPUSuppress({}), spec)
    assert done == (["written"] * count, [], ["written"] * count)


@pytest.mark.parametrize("version", [1, 2])
def test_cache_and_bandwidth_are_allocated_and_given_back(tmp_path: Path, version: int) -> None:
    spec = {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {
        "enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": 30, "mbaPercent": 50,
    }}}}
    # Plain files have the text of the last line that was written, and of the last task.
    first, _, last = rounds(tmp_path, version, RdtResctrl({}), spec)
    assert (set(first), set(last)) == ({"written"}, {"written"})
    assert len(first) == 4


def test_a_disk_is_limited_and_freed(tmp_path: Path) -> None:
    def prepare(files: Files) -> None:
        for name in ("throttle.read_iops_device", "cost.weight"):
            files.path(f"besteffort/blkio.{name}").write_text("")
        (files.root / "cgroup/blkio/blkio.cost.qos").write_text("")
        (files.root / "cgroup/blkio/blkio.cost.model").write_text("")

    block = {"name": "vda", "type": "device", "ioCfg": {"readIOPS": 5, "readBPS": 7, "ioWeightPercent": 60}}
    section = {"blkioQOS": {"enable": True, "blocks": [block]}}
    spec = {"resourceQOSStrategy": {"beClass": section, "cgroupRoot": section}}
    first, second, last = rounds(tmp_path, 1, BlkIOReconcile({}), spec, prepare)
    assert (first, second) == (["written"] * 5, [])
    assert last == ["written"] * 4  # the cost model stays


@pytest.mark.parametrize("version", [1, 2])
def test_settings_of_the_kernel_are_changed_and_restored(tmp_path: Path, version: int) -> None:
    spec = {"systemStrategy": {"minFreeKbytesFactor": 200, "schedFeatures": {"GENTLE": False, "WAKEUP": True}}}
    first, _, last = rounds(tmp_path, version, SystemConfig({}), spec)
    assert (first, set(last)) == (["written"] * 3, {"written"})

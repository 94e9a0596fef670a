"""The node agent as a process, with the state of a node: an API server and a kubelet on loopback, and files.

Files of procfs and of sysfs are plain ones in a temporary directory, so that an agent that enforces changes nothing of
the machine. Files of control groups v1 are plain ones too, or the kernel's of empty groups made for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from koordpolicy.engine.agent.host.control_groups import SYSTEMD, ContainerId, ControlGroups
from koordpolicy.engine.agent.host.detection import SUBSYSTEMS
from tests.engine.agent.states_informer.fake_kubelet import FakeKubelet, pod_list
from tests.engine.client.object_server import ObjectServer
from tests.process_figures import memory_mib, processor_time

from .agent_tree import linked_hierarchies, make_group, write_group

NODE = "bench"
_PROC = ("cpuinfo", "meminfo", "stat", "mounts", "sys/kernel/osrelease")
_CLASSES = {"guaranteed": "LSR", "burstable": "LS", "besteffort": "BE"}
_TIERS = ("guaranteed", "burstable", "besteffort")
ALL_GATES = ",".join(f"{gate}=true" for gate in (
    "BECPUEvict", "BEMemoryEvict", "CPUEvict", "MemoryEvict", "CPUAllocatableEvict", "MemoryAllocatableEvict",
    "CgroupReconcile", "BlkIOReconcile", "SystemConfig", "PSICollector"))
"""The feature gates of strategies and collectors that are off by default."""
ROOM = 110
"""The pods that kubelet runs at most by default."""


def node_slo() -> dict[str, Any]:
    """Return a NodeSLO in which everything is on."""
    memory = {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 50, "throttlingPercent": 80, "wmarkRatio": 95,
              "wmarkScalePermill": 20, "wmarkMinAdj": 0}
    classes = {
        name: {"cpuQOS": {"enable": True, "groupIdentity": identity}, "memoryQOS": memory,
               "resctrlQOS": {"enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": end, "mbaPercent": 90}}
        for name, identity, end in (("lsrClass", 2, 100), ("lsClass", 2, 100), ("beClass", -1, 30))}
    classes["beClass"]["blkioQOS"] = {
        "enable": True, "blocks": [{"name": "sda", "type": "device", "ioCfg": {"readIOPS": 1000}}]}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": NODE}, "spec": {
            "resourceUsedThresholdWithBE": {
                "enable": True, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset",
                "cpuEvictBESatisfactionLowerPercent": 20, "cpuEvictBESatisfactionUpperPercent": 40,
                "cpuEvictBEUsageThresholdPercent": 90, "cpuEvictTimeWindowSeconds": 60, "cpuEvictThresholdPercent": 95,
                "cpuEvictLowerPercent": 90, "memoryEvictThresholdPercent": 95, "memoryEvictLowerPercent": 90,
                "cpuAllocatableEvictThresholdPercent": 95, "cpuAllocatableEvictLowerPercent": 90,
                "memoryAllocatableEvictThresholdPercent": 95, "memoryAllocatableEvictLowerPercent": 90,
                "evictEnabledPriorityThreshold": 5999, "allocatableEvictPriorityThreshold": 5999},
            "resourceQOSStrategy": {"policies": {"cpuPolicy": "groupIdentity"}, **classes},
            "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300,
                                 "cfsQuotaBurstPeriodSeconds": -1, "sharePoolThresholdPercent": 50},
            "systemStrategy": {"minFreeKbytesFactor": 100, "watermarkScaleFactor": 150}}}


def node() -> dict[str, Any]:
    """Return the Node: 32 CPUs, with room for batch pods."""
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110",
               "kubernetes.io/batch-cpu": "20000", "kubernetes.io/batch-memory": "64Gi"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"pool": "bench"}},
            "status": {"capacity": amounts, "allocatable": amounts,
                       "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}}


def pod(number: int, containers: int = 2) -> dict[str, Any]:
    """Return a running pod of about 6 KiB, as the kubelet serves it; a third of each QoS class."""
    tier = _TIERS[number % 3]
    uid, name = _uid(number), f"pod-{number:03}"
    cpu, memory = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory") if tier == "besteffort" else (
        "cpu", "memory")
    requests = {cpu: "100", memory: "128Mi"} if tier == "besteffort" else {cpu: "100m", memory: "128Mi"}
    limits = {name: {"100": "200", "100m": "200m"}.get(amount, "256Mi") for name, amount in requests.items()}
    if tier == "guaranteed":
        limits = requests
    names = [f"c{each}" for each in range(containers)]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "bench", "uid": uid,
                     "labels": {"koordinator.sh/qosClass": _CLASSES[tier], "app": "bench"},
                     "annotations": {"example.com/notes": "x" * 1000}},
        "spec": {"nodeName": NODE, "priority": {"LS": 9500, "LSR": 9100, "BE": 5500}[_CLASSES[tier]], "containers": [
            {"name": each, "image": "example/image:1", "resources": {"requests": requests, "limits": limits},
             "env": [{"name": f"VARIABLE_{at}", "value": "x" * 40} for at in range(20)]} for each in names]},
        "status": {"phase": "Running", "qosClass": {"guaranteed": "Guaranteed", "burstable": "Burstable"}.get(
            tier, "BestEffort"), "containerStatuses": [
                {"name": name, "containerID": f"containerd://{_id(number, at)}", "image": "example/image:1",
                 "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "ready": True}
                for at, name in enumerate(names)]}}


def _uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


def _id(number: int, container: int) -> str:
    return f"{number:032x}{container:032x}"


def write_files(root: Path, pods: int = ROOM, containers: int = 2, *, kernel: bool = False) -> None:
    """Write the machine's files below a directory: `cgroup`, `proc` and `sys`.

    With `kernel`, control groups below `cgroup` are the kernel's, in hierarchies that the caller has linked there.
    """
    groups = ControlGroups(1, SYSTEMD, {name: str(root / "cgroup" / name) for name in SUBSYSTEMS})
    directories = [groups.tier(tier) for tier in _TIERS]
    for number in range(pods):
        tier, uid = _TIERS[number % 3], _uid(number)
        ids = [ContainerId("containerd", _id(number, each)) for each in range(containers)]
        directories += [groups.pod(tier, uid), *(groups.container(tier, uid, each) for each in ids)]
    for directory in directories:
        if kernel:
            make_group(groups, directory)
        else:
            write_group(groups, directory)
            write_written(groups, directory)
    for number in range(pods):
        _limit_as_kubelet(groups, number, containers)
    for name in _PROC:
        path = root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Path("/proc", name).read_bytes())
    for name, text in {"vm/min_free_kbytes": "67584", "vm/watermark_scale_factor": "10"}.items():
        path = root / "proc" / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    resctrl = root / "resctrl"
    (resctrl / "info" / "L3").mkdir(parents=True)
    (resctrl / "info" / "L3" / "cbm_mask").write_text("7ff\n")
    shutil.copytree("/sys/devices/system/cpu", root / "sys/devices/system/cpu", symlinks=True,
                    ignore=lambda folder, names: [each for each in names if not each.startswith(
                        ("cpu", "topology", "online", "core", "thread", "physical")) or each in ("cpufreq", "cpuidle")],
                    ignore_dangling_symlinks=True)


def _limit_as_kubelet(groups: ControlGroups, number: int, containers: int) -> None:
    """Set the quotas of the limits of CPU; kubelet knows none of batch pods."""
    tier, uid = _TIERS[number % 3], _uid(number)
    quota = {"guaranteed": 10_000, "burstable": 20_000}.get(tier)
    if quota is None:
        return
    root = Path(groups.roots["cpu"])
    for each in range(containers):
        container = groups.container(tier, uid, ContainerId("containerd", _id(number, each)))
        (root / container / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (root / groups.pod(tier, uid) / "cpu.cfs_quota_us").write_text(f"{quota * containers}\n")


def write_written(groups: ControlGroups, directory: str) -> None:
    """Write the files of a control group that strategies change."""
    files = {
        "cpu": {"cpu.shares": "1024", "cpu.cfs_burst_us": "0", "cpu.bvt_warp_ns": "0"},
        "cpuset": {"cpuset.mems": "0", "tasks": "", "cgroup.procs": ""},
        "memory": dict.fromkeys(
            ("memory.min", "memory.low", "memory.high", "memory.wmark_ratio", "memory.wmark_min_adj"), "0") | {
                "memory.wmark_scale_factor": "50", "memory.limit_in_bytes": "9223372036854771712"},
        "blkio": {"blkio.throttle.read_iops_device": "", "blkio.throttle.write_iops_device": "",
                  "blkio.throttle.read_bps_device": "", "blkio.throttle.write_bps_device": ""},
    }
    for subsystem, texts in files.items():
        folder = Path(groups.roots[subsystem]) / directory
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(f"{text}\n")


class AgentProcess:
    """A running agent."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def resident(self) -> float:
        """Its resident memory in MiB."""
        return memory_mib(self.process.pid)

    @property
    def most_resident(self) -> float:
        """The largest resident memory that it had, in MiB."""
        return memory_mib(self.process.pid, "VmHWM")

    @property
    def processor_time(self) -> float:
        """The seconds of processor time that it has used."""
        return processor_time(self.process.pid)


@contextmanager
def running(
    root: Path, *options: str, pods: int = ROOM, program: str = "", kernel: bool = False,
) -> Iterator[AgentProcess]:
    """Run `koord-policy agent` with these options on a node with pods; yields once it is ready.

    `program` is Python that the process runs before, in place of nothing. With `kernel`, control groups below
    `root/cgroup` are the kernel's (`linked_hierarchies`).
    """
    write_files(root, pods, kernel=kernel)
    listed = [pod(number) for number in range(pods)]
    with ObjectServer() as server, FakeKubelet() as kubelet:
        for each in (node(), node_slo()):
            server.put(each)
        kubelet.answer = lambda: pod_list(*listed)
        configuration = root / "kubeconfig"
        configuration.write_text(json.dumps(_kubeconfig(server.server)))
        with (root / "agent.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{program}\nfrom koordpolicy.__main__ import main; main()", "agent",
                 "--node-name", NODE, "--state-dir", str(root / "state"), "--cgroup-root", str(root / "cgroup"),
                 "--proc-root", str(root / "proc"), "--sys-root", str(root / "sys"),
                 "--resctrl-root", str(root / "resctrl"), "--kubelet-read-only-port", str(kubelet.port), *options],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, "KUBECONFIG": str(configuration)})
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith("ready:"):
                        break
                else:
                    raise RuntimeError((root / "agent.log").read_text())
                yield AgentProcess(process, root / "agent.log")
            finally:
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                process.stdout.close()


def _kubeconfig(server: str) -> Mapping[str, Any]:
    return {"apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": server}}], "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}]}


def measured(root: Path, seconds: float, *options: str, kernel: bool = False) -> tuple[float, float, float]:
    """Return milliseconds of processor time per second, resident memory at the end, and the most before, in MiB.

    With `kernel`, control groups are the kernel's; raises `OSError` if they cannot be made here.
    """
    with linked_hierarchies(root / "cgroup") if kernel else nullcontext(), running(
            root, *options, kernel=kernel) as agent:
        time.sleep(10)  # the first rounds write what has to be written
        before, began = agent.processor_time, time.monotonic()
        time.sleep(seconds)
        spent = (agent.processor_time - before) / (time.monotonic() - began) * 1000
        return spent, agent.resident, agent.most_resident

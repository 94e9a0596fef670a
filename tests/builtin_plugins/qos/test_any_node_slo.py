"""Whatever a field of a NodeSLO has, the object is refused with its path, or a strategy fails as one of its rounds."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from koordpolicy.builtin_plugins.qos.batch_resource.plugin import BatchResource
from koordpolicy.builtin_plugins.qos.blkio_reconcile.plugin import BlkIOReconcile
from koordpolicy.builtin_plugins.qos.cgroup_reconcile.plugin import CgroupReconcile
from koordpolicy.builtin_plugins.qos.cpu_burst.plugin import CPUBurst
from koordpolicy.builtin_plugins.qos.cpu_evict.plugin import CPUEvict
from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import BECPUSuppress
from koordpolicy.builtin_plugins.qos.cpuset_allocator.plugin import CPUSetAllocator
from koordpolicy.builtin_plugins.qos.group_identity.plugin import GroupIdentity
from koordpolicy.builtin_plugins.qos.memory_evict.plugin import MemoryEvict
from koordpolicy.builtin_plugins.qos.resctrl_reconcile.plugin import RdtResctrl
from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.resource_executor.table import FILES
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Host, Processor, Storage
from koordpolicy.engine.slo.effective import SECTIONS, effective_spec
from koordpolicy.engine.slo.settings import MalformedSetting, Path, Setting, SettingType
from tests.builtin_plugins.qos.machine import Machine

SECOND: Final = 1_000_000_000
EVICTIONS: Final = {
    "CPUEvict": ["BECPUEvict", "CPUEvict", "CPUAllocatableEvict"],
    "MemoryEvict": ["BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict"],
}
STRATEGIES: Final[tuple[Callable[[Mapping[str, Any]], Any], ...]] = (
    BatchResource, BlkIOReconcile, CgroupReconcile, CPUBurst, CPUEvict, BECPUSuppress, CPUSetAllocator, GroupIdentity,
    MemoryEvict, RdtResctrl, SystemConfig,
)
READERS: Final[Mapping[str, tuple[Callable[[Mapping[str, Any]], Any], ...]]] = {
    "resourceUsedThresholdWithBE": (BatchResource, CPUEvict, BECPUSuppress, MemoryEvict),
    "resourceQOSStrategy": (BlkIOReconcile, CgroupReconcile, GroupIdentity, RdtResctrl),
    "cpuBurstStrategy": (CPUBurst,), "systemStrategy": (GroupIdentity, SystemConfig),
}
"""The strategies that read a section; all of them read what is not named here."""
ABSURD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 3, 101, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 0.5, 1e308, "", "x", "65", "1e99",
    [], [1], [{}], {}, {"x": 1}, [None], [[]],
)
HOST: Final = Host(
    processors=tuple(Processor(cpu, cpu, 0, 0) for cpu in range(4)), vendor="GenuineIntel", cbm_mask="ff",
    flags=frozenset(("cat_l3", "mba")), l3_caches=(0, 1), storage=Storage(devices={"vda": "8:0"}))


NAMED: Final[Mapping[str, Any]] = {
    "evictEnabledPriorityThreshold": 5999, "allocatableEvictPriorityThreshold": 5999, "policy": "auto",
    "cpuPolicy": "groupIdentity", "type": "device", "cpuSuppressPolicy": "cfsQuota",
    "catRangeStartPercent": 0, "minFreeKbytesFactor": 150,
}
"""The usual values of settings that need a certain one to take effect."""


def usual(setting: Setting) -> Any:
    """Return a value that a setting may have, so that all around the absurd one takes effect."""
    match setting.type:
        case SettingType.OBJECT:
            return {name: NAMED.get(name, 20 if "Lower" in name else usual(each))
                    for name, each in setting.fields.items()}
        case SettingType.LIST:
            return [] if setting.item is None else [usual(setting.item)]
        case SettingType.MAP:
            return {}
        case SettingType.BOOL:
            return True
        case SettingType.TEXT:
            return setting.choices[0] if setting.choices else "vda"
        case SettingType.QUANTITY:
            return "1"
        case _:
            return min(max(30, setting.low or 0), 100 if setting.high is None else setting.high)


def paths(setting: Setting, at: Path) -> Iterator[Path]:
    """Yield the path of a setting and of all settings below it."""
    yield at
    for name, each in setting.fields.items():
        yield from paths(each, (*at, name))
    if setting.item is not None and setting.type is SettingType.LIST:
        yield from paths(setting.item, (*at, 0))


USUAL: Final[Mapping[str, Any]] = {name: usual(each) for name, each in SECTIONS.items()}
PATHS: Final = [(), *(path for name, each in SECTIONS.items() for path in paths(each, (name,))), ("hostApplications",)]


def replaced(path: Path, value: Any) -> Any:
    """Return the usual spec with another value at a path."""
    whole = [copy.deepcopy(dict(USUAL))]
    container: Any = whole
    for step in (0, *path)[:len(path)]:
        container = container[step]
    container[path[-1] if path else 0] = value
    return whole[0]


def pod(name: str, qos: str, kube: str, resources: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": name,
                     "labels": {"koordinator.sh/qosClass": qos, "koordinator.sh/eviction-enabled": "true"}},
        "spec": {"nodeName": "n", "priority": 5500 if qos == "BE" else 9500,
                 "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running", "qosClass": kube, "containerStatuses": [
            {"name": "main", "containerID": f"containerd://{name}", "state": {"running": {}}}]},
    }


BATCH = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1Gi"}
PODS: Final = [
    pod("train", "BE", "BestEffort", {"requests": BATCH, "limits": BATCH}),
    pod("web", "LS", "Burstable", {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
    pod("db", "LSR", "Guaranteed", {each: {"cpu": "1", "memory": "1Gi"} for each in ("requests", "limits")}),
]
DIRECTORIES: Final = ("guaranteed", "burstable", "besteffort", "besteffort/podtrain", "besteffort/podtrain/main",
                      "burstable/podweb", "burstable/podweb/main", "guaranteed/poddb", "guaranteed/poddb/main")
TEXTS: Final = {"cpuset.cpus": "0-3", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "9223372036854771712"}


@functools.cache
def series(**values: float) -> dict[str, MetricSeries]:
    """Return series of constant values; no strategy changes them."""
    times = [each * SECOND for each in range(590, 700)]
    return {name: MetricSeries(times, [value] * len(times)) for name, value in values.items()}


def machine(spec: Any) -> Machine:
    """Return a node under pressure: most strategies have something to do."""
    files = {f"{directory}/{name}": TEXTS.get(name, "0") for directory in DIRECTORIES for name in FILES}
    files |= {f"resctrl/{group}/schemata": "L3:0=ff;1=ff\nMB:0=100;1=100" for group in ("LSR", "LS", "BE")}
    files |= {"proc/sys/vm/min_free_kbytes": "1", "proc/sys/vm/watermark_scale_factor": "10"}
    made = Machine(spec, files, host=HOST, pods=PODS)
    made.now = 600 * SECOND
    of = made.recording.series
    of["n", "node", "n"] = series(cpu=3900, memory=0.99 * 2**30)
    of["n", "bestEffort", "n"] = series(usage=1900, request=2000, realLimit=200)
    for each in PODS:
        name = each["metadata"]["name"]
        of["n", "pod", f"d/{name}"] = series(cpu=1300, memory=0.3 * 2**30, throttled=0.5)
        of["n", "container", f"d/{name}/main"] = series(cpu=1300, memory=0.3 * 2**30, throttled=0.5)
    return made


def run(strategy: Callable[..., Any], spec: Any) -> int:
    """Run a strategy's rounds under a spec; return the number of adjustments. Raises what is no EvaluationError."""
    plugin, node, found = strategy({"features": EVICTIONS[strategy.__name__]} if strategy.__name__ in EVICTIONS
                                   else {}), machine(spec), 0
    for call in (plugin.adjust, plugin.adjust, plugin.recover):
        with contextlib.suppress(EvaluationError):
            found += len(node.after(call))
        node.now += 30 * SECOND
    return found


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.__name__)
def test_the_usual_values_take_effect(strategy: Callable[..., Any]) -> None:
    if strategy is not CPUSetAllocator:  # which reads no setting but those of the NodeResourceTopology
        assert run(strategy, effective_spec(USUAL)) > 0


def fault_of(spec: Any) -> Path | None:
    """Return the path of the setting for which a spec is refused; None if it is not."""
    try:
        effective_spec(spec)
    except MalformedSetting as error:
        return error.fault.path
    return None


@pytest.mark.parametrize("value", ABSURD, ids=repr)
def test_a_spec_is_merged_or_refused_with_the_path_of_a_field(value: Any) -> None:
    for path in PATHS:
        fault = fault_of(replaced(path, value))
        assert fault is None or fault[:len(path)] == path[:len(fault)]


def absurd_specs() -> Iterator[tuple[Path, Any, Any]]:
    """Yield every path with an absurd value, and the effective spec, of those that are not refused."""
    as_usual = effective_spec(USUAL)
    for path in PATHS:
        if "lsrClass" in path or "systemClass" in path:
            continue  # the strategies read them as they do the other classes
        seen = [as_usual]
        for value in ABSURD:
            with contextlib.suppress(MalformedSetting):
                spec = effective_spec(replaced(path, value))
                if spec not in seen:
                    seen.append(spec)
                    yield path, value, spec


def test_an_absurd_value_is_an_error_of_the_round() -> None:
    for path, value, spec in absurd_specs():
        for strategy in READERS.get(str(path[0]) if path else "", STRATEGIES):
            try:
                run(strategy, spec)
            except Exception as error:
                raise AssertionError(f"{strategy.__name__}: {path} = {value!r}") from error

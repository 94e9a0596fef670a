"""Actions on a machine: cache and memory bandwidth of QoS classes, limits of block devices, settings of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import BlkIOProgram, ResctrlProgram, SysctlProgram, settings_of
from koordpolicy.engine.documents import Subject
from koordpolicy.engine.framework.qos import UNSUPPORTED, Adjustment, Readings
from koordpolicy.engine.kubernetes.kernel_settings import KERNEL_SETTINGS

from .action_kinds import ActionContext, Adjustments, Recovery, restore_originals
from .block_io import DEVICE, POD_VOLUME, VOLUME_GROUP, device_writes, disk_of
from .block_io import restoring_writes as restored_limits
from .resctrl import (
    GROUP_OF_QOS,
    TaskSchedule,
    active_pods,
    bandwidth_writes,
    cache_writes,
    read_tasks,
    task_directories,
    task_writes,
    unsupported,
)
from .resctrl import restoring_writes as restored_schemata
from .suppression import ROOT, Writes

KIND_OF_DEVICE: Final[Mapping[str, str]] = {
    "Device": DEVICE, "VolumeGroup": VOLUME_GROUP, "PodVolume": POD_VOLUME,
}


def allocate_cache(program: ResctrlProgram, context: ActionContext) -> Adjustments:
    """Give a QoS class a range of the cache and a share of the bandwidth, and move its pods' tasks into its group.

    LSE has the group of LSR, which only LSR writes; SYSTEM has none.
    """
    readings, qos = context.readings, context.subject.name
    group = GROUP_OF_QOS.get(qos)
    if group is None:
        return ()
    lack = unsupported(readings.host)
    if lack:
        raise EvaluationError(f"`{context.item}` allocates nothing: {lack}", reason=UNSUPPORTED)
    writes: list[tuple[str, str]] = []
    values: dict[str, object] = {}
    if qos == group:
        start, end = program.cat_range_start_percent, program.cat_range_end_percent
        if start is not None or end is not None:
            values["catRangeStartPercent"] = first = _percent(start, "catRangeStartPercent", context, 0)
            values["catRangeEndPercent"] = last = _percent(end, "catRangeEndPercent", context, 100)
            writes += cache_writes(group, first, last, readings.host, readings.files)
        if program.mba_percent is not None:
            values["mbaPercent"] = share = _percent(program.mba_percent, "mbaPercent", context, 100)
            writes += bandwidth_writes(group, share, readings.host, readings.files)
    writes += _moved_tasks(group, context)
    if not writes:
        return ()
    return (Adjustment("resctrl", qos, f"group {group} of class {qos}", context.item, values, tuple(writes)),)


def _percent(program: Program | None, name: str, context: ActionContext, default: int) -> int:
    return default if program is None else int(context.number(program, name))


def _moved_tasks(group: str, context: ActionContext) -> Writes:
    readings = context.readings
    schedule = context.memory.task_schedules.setdefault((context.action.key, context.subject.name), TaskSchedule())
    pods = schedule.due(readings, active_pods(context.subject.pods))
    if not pods:
        return ()
    listed = task_directories(readings.files)
    present = read_tasks(readings.files.get(f"resctrl/{group}/tasks", ""))
    found: list[tuple[str, str]] = []
    for pod in pods:
        writes = task_writes(group, pod, readings, present, listed)
        if writes:
            schedule.again(readings, pod)
            found += writes
    return tuple(found)


def recover_cache(program: ResctrlProgram, recovery: Recovery) -> Adjustments:
    """Give a group back its lines of `schemata`; tasks stay in the group, which limits nothing any more."""
    group, readings = recovery.subject, recovery.readings
    if GROUP_OF_QOS.get(group) != group:
        return ()
    kinds = [] if program.cat_range_start_percent is None and program.cat_range_end_percent is None else ["L3"]
    kinds += [] if program.mba_percent is None else ["MB"]
    return _reverted("resctrl", recovery, restored_schemata(
        group, kinds, recovery.originals, readings.host, readings.files,
    ))


def limit_device(program: BlkIOProgram, context: ActionContext) -> Adjustments:
    """Limit a block device for the subject; files that do not exist are left out."""
    readings, subject = context.readings, context.subject
    pod = subject.pods[0] if context.compiled.spec.for_each is not Subject.NODE else None
    disk = disk_of(program.device, KIND_OF_DEVICE[program.kind], readings.host.storage, pod)
    numbers = {name: int(context.number(each, name)) for name, each in settings_of(program).items()}
    directory = ROOT
    if pod is not None:
        bindings = cast("Mapping[str, Any]", subject.bindings)
        container = bindings["container"]["name"] if context.compiled.spec.for_each is Subject.CONTAINER else ""
        directory = readings.directory(pod, container)
    writes = device_writes(directory, disk, numbers, readings.files)
    if not writes:
        return ()
    values = {"device": program.device, "disk": disk, **numbers}
    return (Adjustment("blkio", subject.name, f"limits of {program.device}", context.item, values, writes),)


def recover_device(program: BlkIOProgram, recovery: Recovery) -> Adjustments:
    """Give the device back its limits, unless its pod is gone."""
    readings = recovery.readings
    try:
        pod = _pod_of(recovery.subject, readings)
        disk = disk_of(program.device, KIND_OF_DEVICE[program.kind], readings.host.storage, pod)
    except EvaluationError:
        return ()
    return _reverted("blkio", recovery, restored_limits(disk, recovery.originals, readings.files))


def _pod_of(subject: str, readings: Readings) -> PodInfo | None:
    """Return the pod of a subject: `namespace/pod` or `namespace/pod/container`."""
    key = "/".join(subject.split("/")[:2])
    return next((pod for pod in readings.pods if pod.key == key), None)


def change_setting(program: SysctlProgram, context: ActionContext) -> Adjustments:
    """Give a setting of the kernel its value.

    Raises `EvaluationError` if the value is out of range, or this kernel has no such setting.
    """
    setting, files = KERNEL_SETTINGS[program.name], context.readings.files
    value = int(context.number(program.value, "value"))
    if not setting.accepts(value):
        raise EvaluationError(
            f"{value} is out of range for `{setting.name}`, which takes {setting.lowest} to {setting.largest}",
        )
    present = files.get(setting.file)
    if present is None:
        raise EvaluationError(f"this kernel has no `{setting.name}`", reason=UNSUPPORTED)
    if present.strip() == str(value):
        return ()
    reason = f"`{setting.name}` must be {value}"
    values = {"value": value, **context.values_read(program.value)}
    writes = ((setting.file, str(value)),)
    return (Adjustment("sysctl", context.subject.name, reason, context.item, values, writes),)


def recover_setting(program: SysctlProgram, recovery: Recovery) -> Adjustments:  # noqa: ARG001 - one signature
    """Restore the text from before the first change."""
    return restore_originals("sysctl", recovery)


def _reverted(kind: str, recovery: Recovery, writes: Writes) -> Adjustments:
    if not writes:
        return ()
    return (Adjustment(kind, recovery.subject, recovery.reason, recovery.item, {}, writes, recovers=True),)

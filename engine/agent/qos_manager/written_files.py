"""The files that actions of documents may write, as far as the document's text says it, and parts of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.compile import (
    BlkIOProgram,
    CgroupProgram,
    CPUBurstProgram,
    ResctrlProgram,
    SuppressCPUProgram,
    SysctlProgram,
    settings_of,
)
from koordpolicy.engine.documents import QoSSpec, Subject
from koordpolicy.engine.framework.file_sets import CONTAINER, POD, TIER, TIERS, FileSet
from koordpolicy.engine.kubernetes.kernel_settings import KERNEL_SETTINGS
from koordpolicy.engine.kubernetes.vocabulary import BURST_CLASSES

from ..resource_executor.table import logical_name
from .block_io import file_of
from .bursting import BURST_FILE, QUOTA_FILE
from .resctrl import GROUPS
from .subjects import QOS_CLASS_TIERS
from .suppression import ROOT
from .sysctl import SCHED_FEATURES_FILE

LEVELS: Final[Mapping[Subject, str]] = {Subject.POD: POD, Subject.CONTAINER: CONTAINER}


def directories_of(spec: QoSSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tiers and the levels of the control groups of a document's subjects.

    Pods of any QoS class may be in any tier: their label says nothing about their requests.
    """
    level = LEVELS.get(spec.for_each)
    return ((ROOT,), (TIER,)) if level is None else (TIERS, (level,))


def suppression_files(program: SuppressCPUProgram, spec: QoSSpec) -> tuple[FileSet, ...]:  # noqa: ARG001 - one signature for the table
    """Return the files of `suppressCPU`."""
    if program.policy == "CFSQuota":
        return (FileSet.of((ROOT,), ("cpu.cfs_quota_us",)),)
    return (FileSet.of((ROOT,), ("cpuset.cpus",), (TIER, POD, CONTAINER)),)


def burst_files(program: CPUBurstProgram, spec: QoSSpec) -> tuple[FileSet, ...]:  # noqa: ARG001 - one signature for the table
    """Return the files of `cpuBurst`: all policies write them, if only to give bursts back."""
    return (FileSet.of(TIERS, (BURST_FILE, QUOTA_FILE), (POD, CONTAINER), labels=BURST_CLASSES),)


def cgroup_files(program: CgroupProgram, spec: QoSSpec) -> tuple[FileSet, ...]:
    """Return the file of `cgroup`."""
    names = [logical_name(program.file)]
    if program.file == "cpu.max":
        names.append("cpu.cfs_period_us")
    level = LEVELS.get(spec.for_each)
    if level is not None:
        return (FileSet.of(TIERS, names, (level,)),)
    return (FileSet.of(("guaranteed",) if spec.for_each is Subject.NODE else QOS_CLASS_TIERS.values(), names),)


def resctrl_files(program: ResctrlProgram, spec: QoSSpec) -> tuple[FileSet, ...]:  # noqa: ARG001 - one signature for the table
    """Return the files of `resctrl`: the class of a subject is known when it runs, so those of all groups."""
    groups = [f"resctrl/{group}" for group in GROUPS]
    lines = [] if program.cat_range_start_percent is None and program.cat_range_end_percent is None else ["L3"]
    lines += [] if program.mba_percent is None else ["MB"]
    return tuple(FileSet.of(groups, ("schemata",), part=line) for line in lines)


def blkio_files(program: BlkIOProgram, spec: QoSSpec) -> tuple[FileSet, ...]:
    """Return the files of `blkio`, of its device only."""
    tiers, levels = directories_of(spec)
    device = f"{program.kind} {program.device}"
    return (FileSet.of(tiers, (file_of(name) for name in settings_of(program)), levels, device),)


def sysctl_files(program: SysctlProgram, spec: QoSSpec) -> tuple[FileSet, ...]:  # noqa: ARG001 - one signature for the table
    """Return the file of `sysctl`."""
    return FileSet.host((KERNEL_SETTINGS[program.name].file,))


def written_part(file: str, text: str) -> str:
    """Return the part of a file that a write changes: a line, a disk, a feature; empty for all of it."""
    name = file.rpartition("/")[2]
    if name == "schemata":
        return text.partition(":")[0]
    if name.startswith("blkio."):
        return text.partition(" ")[0]
    return text.strip().removeprefix("NO_") if file == SCHED_FEATURES_FILE else ""

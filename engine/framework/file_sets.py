"""Sets of files on a node that a QoS plugin may write; known before it runs, so that two writers of one are found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

TIERS: Final = ("guaranteed", "burstable", "besteffort")
"""The directories of Kubernetes' QoS classes."""
TIER: Final = "tier"
POD: Final = "pod"
CONTAINER: Final = "container"


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files with these names in these directories.

    `directories` are the tops of logical names (`besteffort`, `root`), or for files outside of control groups, whole
    directories (`resctrl/BE`, `proc/sys/vm`). `levels` say where below a tier: its own directory, those of pods, those
    of containers; they mean nothing elsewhere. `part` is the part of each file that is written (a disk, a line); empty
    for all of it. `labels` are the QoS classes by label (empty without one) of the pods whose files, and whose
    containers' files, are in the set; None for all pods.
    """

    directories: frozenset[str]
    names: frozenset[str]
    levels: frozenset[str] = frozenset((TIER,))
    part: str = ""
    labels: frozenset[str] | None = None

    @staticmethod
    def of(
        directories: Iterable[str], names: Iterable[str], levels: Iterable[str] = (TIER,), part: str = "",
        labels: Iterable[str] | None = None,
    ) -> FileSet:
        """Make a set of any iterables."""
        return FileSet(frozenset(directories), frozenset(names), frozenset(levels), part,
                       None if labels is None else frozenset(labels))

    def of_pods(self, labels: frozenset[str] | None) -> FileSet:
        """Return those of the files that are of pods with these QoS classes by label; None changes nothing."""
        if labels is None:
            return self
        return replace(self, labels=labels if self.labels is None else self.labels & labels)

    @staticmethod
    def host(files: Iterable[str]) -> tuple[FileSet, ...]:
        """Return the sets of single files outside of control groups, by their logical names."""
        return tuple(FileSet.of((file.rpartition("/")[0],), (file.rpartition("/")[2],)) for file in files)

    def shared_with(self, other: FileSet) -> str:
        """Return an example of a file that is in both sets; empty if there is none."""
        directories, names = self.directories & other.directories, self.names & other.names
        levels = self.levels & other.levels
        if self.labels is not None and other.labels is not None and not self.labels & other.labels:
            levels &= {TIER}
        if not directories or not names or not levels:
            return ""
        if self.part and other.part and self.part != other.part:
            return ""
        directory, name = min(directories), min(names)
        level = next(each for each in (TIER, POD, CONTAINER) if each in levels)
        below = {TIER: "", POD: "/POD", CONTAINER: "/POD/CONTAINER"}[level] if directory in TIERS else ""
        return f"{directory}{below}/{name}"


def first_shared(one: Iterable[FileSet], other: Iterable[FileSet]) -> str:
    """Return an example of a file that both may write; empty if there is none."""
    others = tuple(other)
    return next((file for each in one for each_other in others if (file := each.shared_with(each_other))), "")

"""Two writers of one file: found before they run, from the files that each may write.

Two QoS plugins that write the same file undo each other's changes. What is certain is compared: directories and names
of files, the nodes and pods that documents match. A conflict that shows only in the written files is reported at run
time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.documents import QoSSpec, Subject
from koordpolicy.engine.documents.overlaps import nodes_meet, pods_meet, qos_labels
from koordpolicy.engine.framework.file_sets import FileSet, first_shared
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Problem, Span

from .actions import ACTION_KINDS

SHARED: Final[Mapping[frozenset[str], str]] = {
    frozenset(("BECPUSuppress", "CPUSetAllocator")):
        "CPUSetAllocator leaves the CPU sets of best-effort pods to BECPUSuppress",
    frozenset(("BECPUSuppress", "BatchResource")):
        "BatchResource sets no quota of best-effort pods while BECPUSuppress uses quotas",
    frozenset(("GroupIdentity", "SystemConfig")):
        "GroupIdentity leaves the kernel's switch to SystemConfig where the NodeSLO sets it",
}
"""Pairs of strategies that share files by design, with the rule by which each write belongs to one of them."""

_ROLES: Final[Mapping[str, str]] = {"suppressCPU": "BECPUSuppress", "cpuBurst": "CPUBurst"}
"""The strategies in whose place documents act, by the key of the action: for `SHARED`."""
_BELOW_PODS: Final = (Subject.POD, Subject.CONTAINER)
_OF_PODS: Final = "cpuBurst"
"""The action applies to whatever pods its subject has."""


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A strategy, or an action of a document, with the files that it may write.

    `role` is the strategy whose rules of sharing hold. `spec` and `span` are those of a document.
    """

    plugin: str
    role: str
    files: tuple[FileSet, ...]
    action: str = ""
    spec: QoSSpec | None = None
    span: Span | None = None
    per_pod: bool = False
    """True if it writes files of matched pods and their containers only."""

    def __str__(self) -> str:
        return f"action `{self.action}` of `{self.plugin}`" if self.action else f"`{self.plugin}`"

    @property
    def place(self) -> str:
        """Its place in a file for messages; empty for a strategy in Python."""
        if self.span is None:
            return ""
        file, line, _ = self.span.place
        return f" ({file}:{line})"


def writers_of(plugin: Plugin, compiled: CompiledQoS | None) -> tuple[FileWriter, ...]:
    """Return the writers of a plugin; none for one in Python that does not declare its files."""
    if compiled is not None:
        return document_writers(compiled)
    return (FileWriter(plugin.name, plugin.name, plugin.writes),) if plugin.writes else ()


def document_writers(compiled: CompiledQoS) -> tuple[FileWriter, ...]:
    """Return the writers of a document: one per action that writes files."""
    found = []
    for action in compiled.actions:
        kind = ACTION_KINDS[type(action.effect)]
        files = kind.files(action.effect, compiled.spec)
        per_pod = compiled.spec.for_each in _BELOW_PODS or kind.key == _OF_PODS
        if per_pod:
            files = tuple(each.of_pods(qos_labels(compiled.spec.match.pods)) for each in files)
        if files:
            found.append(FileWriter(
                compiled.name, _ROLES.get(kind.key, compiled.name), files, action.name, compiled.spec, action.span,
                per_pod=per_pod))
    return tuple(found)


def conflicts(writers: Iterable[FileWriter]) -> Iterator[tuple[FileWriter, FileWriter, str]]:
    """Yield each pair of plugins that may write one file, with a file, once per pair of plugins.

    The second one has a place unless both are in Python.
    """
    seen: set[frozenset[str]] = set()
    for first, second in itertools.combinations(writers, 2):
        names = frozenset((first.plugin, second.plugin))
        if len(names) == 1 or names in seen or frozenset((first.role, second.role)) in SHARED:
            continue
        if not _meet(first, second):
            continue
        file = first_shared(first.files, second.files)
        if file:
            seen.add(names)
            yield (first, second, file) if second.span is not None else (second, first, file)


def _meet(first: FileWriter, second: FileWriter) -> bool:
    """Return whether both may write for the same nodes and pods: a strategy in Python may write for all."""
    if first.spec is None or second.spec is None:
        return True
    one, other = first.spec.match, second.spec.match
    if not nodes_meet(one.nodes, other.nodes):
        return False
    return not (first.per_pod and second.per_pod) or pods_meet(one.pods, other.pods)


def problem_of(first: FileWriter, second: FileWriter, file: str) -> Problem:
    """Return the problem of a conflict, at the place of the second writer."""
    return Problem(
        f"{second} may write `{file}`, which {first}{first.place} writes too: each would undo what the other does",
        second.span, ADVICE, code="conflict",
    )


ADVICE: Final = "turn one of them off, let their `match` exclude each other, or set one to `enforcement: Audit`"

"""The control groups of pods and containers: version, driver, and the names of directories.

The names are those of kubelet and the container runtimes. Logical directories (`besteffort/podUID/CONTAINER`,
`applications/NAME`) are the same for both versions and drivers, see `engine.framework.qos.Readings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo

SYSTEMD: Final = "systemd"
CGROUPFS: Final = "cgroupfs"
GUARANTEED: Final = "guaranteed"
BURSTABLE: Final = "burstable"
BEST_EFFORT: Final = "besteffort"
TIERS: Final = (GUARANTEED, BURSTABLE, BEST_EFFORT)
"""The logical directories of Kubernetes' QoS classes; `guaranteed` is the one above the others."""
APPLICATIONS: Final = "applications"
ROOT: Final = "root"
"""The logical directory of the hierarchy's root."""
TIER_OF_QOS: Final[Mapping[str, str]] = {
    "Guaranteed": GUARANTEED, "Burstable": BURSTABLE, "BestEffort": BEST_EFFORT,
}
SCOPES: Final[Mapping[str, str]] = {
    "containerd": "cri-containerd", "docker": "docker", "cri-o": "crio", "pouch": "pouch",
}
"""The prefix of a container's scope, by the runtime in its id (`containerd://...`)."""

_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CONTAINER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_SCOPE: Final = re.compile(
    rf"(?:{'|'.join(SCOPES.values())})-(?!conmon-)({_CONTAINER_ID.pattern}?)(?:\.scope)?",
)
_UNSAFE: Final = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|[\x00\n]|^/|//")
_BASES: Final[Mapping[str, str]] = {
    "CgroupRoot": "", "Kubepods": GUARANTEED, "KubepodsBurstable": BURSTABLE, "KubepodsBesteffort": BEST_EFFORT,
}


@dataclass(frozen=True, slots=True)
class ContainerId:
    """A container's id and its runtime, out of a container status (`containerd://ID`)."""

    runtime: str
    id: str

    @staticmethod
    def parse(text: str) -> ContainerId:
        """Read `RUNTIME://ID`; raise `ValueError` for an unknown runtime or an id that cannot be a directory's name."""
        runtime, separator, found = text.partition("://")
        if not separator or runtime not in SCOPES:
            raise ValueError(f"`{text}` is not a container id of {', '.join(SCOPES)}")
        if not _CONTAINER_ID.fullmatch(found):
            raise ValueError(f"`{text}` has no valid id after `{runtime}://`")
        return ContainerId(runtime, found)


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The control groups of a machine.

    `roots` are the directories of the subsystems' hierarchies by name (v1), or the one root with the name "" (v2).
    `kubepods` is the name of kubelet's root without `.slice`, with its parents if kubelet has a `--cgroup-root`.
    """

    version: int
    driver: str
    roots: Mapping[str, str]
    kubepods: str = "kubepods"

    def root(self, subsystem: str) -> str | None:
        """Return the root of a subsystem's hierarchy; None if it is not mounted."""
        return self.roots.get("" if self.version == 2 else subsystem)

    def tier(self, tier: str) -> str:
        """Return the directory of a QoS class, relative to the hierarchy's root."""
        parent, base = self._kubepods
        if self.driver == SYSTEMD:
            top = f"{parent}{base}.slice"
            return top if tier == GUARANTEED else f"{top}/{base}-{tier}.slice"
        return f"{parent}{base}" if tier == GUARANTEED else f"{parent}{base}/{tier}"

    def pod(self, tier: str, uid: str) -> str:
        """Return the directory of a pod, relative to the hierarchy's root."""
        if self.driver != SYSTEMD:
            return f"{self.tier(tier)}/pod{uid}"
        base = self._kubepods[1]
        of_tier = base if tier == GUARANTEED else f"{base}-{tier}"
        return f"{self.tier(tier)}/{of_tier}-pod{uid.replace('-', '_')}.slice"

    def container(self, tier: str, uid: str, container: ContainerId) -> str:
        """Return the directory of a container, relative to the hierarchy's root."""
        return f"{self.pod(tier, uid)}/{self.container_name(container)}"

    def container_name(self, container: ContainerId) -> str:
        """Return the name of a container's directory."""
        return f"{SCOPES[container.runtime]}-{container.id}.scope" if self.driver == SYSTEMD else container.id

    def application(self, declared: Mapping[str, Any]) -> str:
        """Return the directory of a host application that a NodeSLO declares, relative to the hierarchy's root.

        Raises:
            ValueError: it has no name, an unknown base, or a path that leaves the hierarchy.
        """
        name, place = declared.get("name"), declared.get("cgroupPath")
        if not isinstance(name, str) or not name:
            raise ValueError("a host application has no `name`")
        if not isinstance(place, Mapping):
            parent = {"LSE": "host-latency-sensitive/", "LSR": "host-latency-sensitive/",
                      "LS": "host-latency-sensitive/", "BE": "host-best-effort/"}.get(str(declared.get("qos")), "")
            path = f"{parent}{name}"
        else:
            base = place.get("base") or "CgroupRoot"
            if base not in _BASES:
                raise ValueError(f"host application `{name}`: unknown base `{base}`; known are {', '.join(_BASES)}")
            tier = _BASES[base]
            parts = (self.tier(tier) if tier else "", place.get("parentDir"), place.get("relativePath"))
            path = "/".join(str(part).strip("/") for part in parts if part)
        if not path or is_unsafe(path):
            raise ValueError(f"host application `{name}`: `{path}` is no path below the control groups' root")
        return path

    def parse_pod(self, name: str) -> str | None:
        """Return the UID in the name of a pod's directory; None for the name of anything else."""
        if self.driver == SYSTEMD:
            base = re.escape(self._kubepods[1])
            found = re.fullmatch(rf"{base}(?:-{BURSTABLE}|-{BEST_EFFORT})?-pod({_UID.pattern})\.slice", name)
            return found[1].replace("_", "-") if found else None
        uid = name.removeprefix("pod")
        return uid if uid != name and _UID.fullmatch(uid) else None

    def parse_container(self, name: str) -> str | None:
        """Return the container's id in the name of its directory; None for the name of anything else.

        Sandboxes have the same names as containers.
        """
        if self.driver == SYSTEMD:
            found = _SCOPE.fullmatch(name)
            return found[1] if found and (name.endswith(".scope") or name.startswith("crio-")) else None
        return name if _CONTAINER_ID.fullmatch(name) and not name.startswith("crio-conmon-") else None

    @property
    def _kubepods(self) -> tuple[str, str]:
        parent, separator, base = self.kubepods.rpartition("/")
        return parent + separator, base


def is_unsafe(path: str) -> bool:
    """Return whether a relative path could leave its root, or is no path at all."""
    return not path or _UNSAFE.search(path) is not None


@dataclass(slots=True)
class _PodGroups:
    """The directories of a pod: its tier, and the current directory names of its containers, both ways."""

    object: Mapping[str, Any]
    tier: str
    directory: str
    names: Mapping[str, str]
    containers: Mapping[str, str]


@dataclass(slots=True)
class LogicalDirectories:
    """Translates logical directories into directories below a hierarchy's root, and back.

    Containers have logical names by the current container of that name; a container that no known pod has, such as a
    sandbox, has its id for a name.
    """

    groups: ControlGroups
    generation: int = 0
    """Counts the changes of pods and applications, after which directories may have other paths."""
    _pods: dict[str, _PodGroups] = field(default_factory=dict)
    _applications: dict[str, str] = field(default_factory=dict)
    _paths: dict[str, str | None] = field(default_factory=dict)

    def use_pods(self, pods: Iterable[PodInfo]) -> None:
        """Take over the current pods, with their container ids."""
        found: dict[str, _PodGroups] = {}
        changed = False
        for pod in pods:
            uid = pod.uid
            known = self._pods.get(uid)
            if known is None or known.object is not pod.object:
                known = self._groups_of(pod)
                changed = True
            found[uid] = known
        if changed or found.keys() != self._pods.keys():
            self._pods = found
            self._paths = {}
            self.generation += 1

    def use_applications(self, declared: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """Take over the host applications of a NodeSLO; return complaints about those that are malformed."""
        found, complaints = {}, []
        for each in declared:
            try:
                found[str(each.get("name"))] = self.groups.application(each)
            except (ValueError, AttributeError) as error:
                complaints.append(str(error))
        if found != self._applications:
            self._applications = found
            self._paths = {}
            self.generation += 1
        return tuple(complaints)

    def path(self, directory: str) -> str | None:
        """Return the directory below the hierarchy's root ("" for `root`); None for one that is not known."""
        paths = self._paths
        try:
            return paths[directory]
        except KeyError:  # another thread may take over other pods meanwhile, which have a cache of their own
            path = paths[directory] = self._translate(directory)
            return path

    def _translate(self, directory: str) -> str | None:
        head, *rest = directory.split("/")
        if head in TIERS and len(rest) <= 2 and not (rest and is_unsafe("/".join(rest))):
            return self._translate_tier(head, rest)
        if head == APPLICATIONS and len(rest) == 1:
            return self._applications.get(rest[0])
        return "" if directory == ROOT else None

    def _translate_tier(self, tier: str, rest: list[str]) -> str | None:
        if not rest:
            return self.groups.tier(tier)
        uid = rest[0].removeprefix("pod")
        if not _UID.fullmatch(uid) or uid == rest[0]:
            return None
        known = self._pods.get(uid)
        of_pod = known.directory if known is not None and known.tier == tier else self.groups.pod(tier, uid)
        if len(rest) == 1:
            return of_pod
        name = known.containers.get(rest[1]) if known is not None else None
        if name is None:
            name = self._name_by_id(rest[1])
        return None if name is None else f"{of_pod}/{name}"

    def _name_by_id(self, identifier: str) -> str | None:
        """Return the directory's name of a container without a known name: its logical name then is its own one."""
        return identifier if self.groups.parse_container(identifier) is not None else None

    def pod_name(self, name: str) -> str | None:
        """Return the logical name (`podUID`) of a pod's directory; None for the name of anything else."""
        uid = self.groups.parse_pod(name)
        return None if uid is None else f"pod{uid}"

    def container_name(self, pod: str, name: str) -> str | None:
        """Return the logical name of a container's directory in the pod `podUID`; None for the name of anything else.

        It is the container's name, or the directory's own name if no container of a known pod has it.
        """
        known = self._pods.get(pod.removeprefix("pod"))
        if known is not None and (found := known.names.get(name)) is not None:
            return found
        return name if self.groups.parse_container(name) is not None else None

    def _groups_of(self, pod: PodInfo) -> _PodGroups:
        tier = TIER_OF_QOS.get(pod.kubernetes_qos, GUARANTEED)
        containers: dict[str, str] = {}
        for name, container in container_ids(pod.object).items():
            containers[name] = self.groups.container_name(container)
        return _PodGroups(
            pod.object, tier, self.groups.pod(tier, pod.uid), {each: name for name, each in containers.items()},
            containers,
        )


def container_ids(pod: Mapping[str, Any]) -> dict[str, ContainerId]:
    """Return the current ids of a pod's containers by name; without those that have none, or a malformed one."""
    found: dict[str, ContainerId] = {}
    status = pod.get("status")
    if not isinstance(status, Mapping):
        return found
    for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for each in status.get(key) or ():
            try:
                found[str(each["name"])] = ContainerId.parse(str(each.get("containerID") or ""))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return found

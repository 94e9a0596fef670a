"""The members of PodGroups that have succeeded or failed, which a feed follows beside all other pods.

Finished pods are not in the watch of pods, as in kube-scheduler: a watcher that sees one leave cannot know whether it
finished or was deleted, and after a restart it sees nothing of it. A PodGroup counts its finished members, so these are
followed by a stream of their own with the few fields that this takes. The two streams never have a pod in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.kubernetes.vocabulary import POD_GROUP_LABEL

from ..kinds import FieldSets, field_paths

STREAM: Final = "FinishedMember"
"""The name of the stream among the kinds that a feed follows; its objects are Pods."""
FIELD_SELECTOR: Final = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
LABEL_SELECTOR: Final = POD_GROUP_LABEL
_FIELDS: Final = field_paths("metadata.labels", "spec.nodeName", "spec.containers.name", "status.phase")
_PHASES: Final = frozenset({"Succeeded", "Failed"})


def with_finished_members(reads: FieldSets) -> FieldSets:
    """Return the reads, with the stream if PodGroups are among them."""
    return {**reads, STREAM: _FIELDS} if "PodGroup" in reads and "Pod" in reads else reads


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has succeeded or failed."""
    return (pod.get("status") or {}).get("phase") in _PHASES


def is_member(pod: Mapping[str, Any]) -> bool:
    """Return whether the stream would select a finished pod."""
    return POD_GROUP_LABEL in ((pod.get("metadata") or {}).get("labels") or {})

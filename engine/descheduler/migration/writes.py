"""The writes of a step of a migration, in the order in which they have to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create this PodMigrationJob."""

    job: Json


@dataclass(frozen=True, slots=True)
class UpdateJob:
    """Write the metadata and the spec of the job."""

    job: Json


@dataclass(frozen=True, slots=True)
class UpdateJobStatus:
    """Write the status of the job."""

    job: Json


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job; that it is gone already is no fault."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreateReservation:
    """Create this reservation; if it exists, it must be one of the job's, by its owner or name."""

    reservation: Json


@dataclass(frozen=True, slots=True)
class UpdateReservation:
    """Write the labels of the reservation."""

    reservation: Json


@dataclass(frozen=True, slots=True)
class DeleteReservation:
    """Delete the reservation; that it is gone already is no fault."""

    name: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict the pod by `policy`; its UID is a precondition, so that no successor of the same name is evicted."""

    pod: Json
    policy: str
    reason: str
    trigger: str
    delete_options: Json | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        return str(self.pod["metadata"].get("namespace") or "default")

    @property
    def name(self) -> str:
        """The name of the pod."""
        return str(self.pod["metadata"].get("name") or "")

    @property
    def uid(self) -> str:
        """The UID of the pod."""
        return str(self.pod["metadata"].get("uid") or "")

    @property
    def node(self) -> str:
        """The node of the pod, or an empty string."""
        return str((self.pod.get("spec") or {}).get("nodeName") or "")


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record an event about the job."""

    job: Json
    reason: str
    message: str
    warning: bool = False


Write: TypeAlias = (
    CreateJob | UpdateJob | UpdateJobStatus | DeleteJob | CreateReservation | UpdateReservation | DeleteReservation
    | EvictPod | RecordEvent
)

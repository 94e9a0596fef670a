"""Reservations of migrations: the object that holds the new place of a pod, and what its status says."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from . import jobs
from .settings import SECOND
from .workloads import controller_of

Json = Mapping[str, Any]

API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
KIND: Final = "Reservation"
CREATED_BY_LABEL: Final = "app.kubernetes.io/created-by"
CREATED_BY: Final = "koord-descheduler"
ORDER_LABEL: Final = "scheduling.koordinator.sh/reservation-order"

RESULT_ANNOTATIONS: Final = frozenset({
    "scheduling.koordinator.sh/resource-status", "scheduling.koordinator.sh/device-allocated",
    "scheduling.koordinator.sh/reservation-allocated", "scheduling.koordinator.sh/soft-eviction",
    jobs.ARBITRATING_ANNOTATION, "kubectl.kubernetes.io/last-applied-configuration",
})
"""Annotations that say what became of the old pod."""


def reservation_name(job: Json) -> str:
    """Return the name of the reservation that a job makes: its template's, or the job's UID.

    It is the same after every restart, so that a reservation that was made just before one is found again.
    """
    return str((_template(job).get("metadata") or {}).get("name") or jobs.uid_of(job))


def new_reservation(job: Json, pod: Json, now: int) -> dict[str, Any]:
    """Return the reservation to create for a job and its pod.

    The job's template comes first; what it lacks is the pod's. It never allocates on the pod's present node. The job
    owns it, so that it ends with the job whatever happens to this process.
    """
    template = _template(job)
    metadata = copy.deepcopy(dict(template.get("metadata") or {}))
    metadata["name"] = reservation_name(job)
    metadata["labels"] = {
        **(metadata.get("labels") or {}), CREATED_BY_LABEL: CREATED_BY, ORDER_LABEL: str(now // (SECOND // 1000)),
    }
    metadata["ownerReferences"] = [{
        "apiVersion": jobs.API_VERSION, "kind": jobs.KIND, "name": jobs.name_of(job), "uid": jobs.uid_of(job),
        "controller": True, "blockOwnerDeletion": False,
    }]
    spec = copy.deepcopy(dict(template.get("spec") or {}))
    spec.setdefault("template", _pod_template(pod))
    spec["template"] = _elsewhere(spec["template"], str((pod.get("spec") or {}).get("nodeName") or ""))
    if not spec.get("owners"):
        spec["owners"] = _owners(pod)
    spec["allocateOnce"] = True
    if not spec.get("ttl") and not spec.get("expires") and jobs.ttl_of(job) > 0:
        spec["ttl"] = jobs.duration_text(jobs.ttl_of(job))
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _template(job: Json) -> Json:
    options = (job.get("spec") or {}).get("reservationOptions") or {}
    return options.get("template") or {}


def _pod_template(pod: Json) -> dict[str, Any]:
    """Return the template of the pod's successor: its labels, its user's annotations, and its spec."""
    of = jobs.metadata_of(pod)
    metadata: dict[str, Any] = {"namespace": of.get("namespace") or "default"}
    for field in ("labels", "annotations"):
        inherited = {key: value for key, value in (of.get(field) or {}).items() if key not in RESULT_ANNOTATIONS}
        if inherited:
            metadata[field] = inherited
    return {"metadata": metadata, "spec": copy.deepcopy(dict(pod.get("spec") or {}))}


def _elsewhere(template: Json, node: str) -> dict[str, Any]:
    spec = copy.deepcopy(dict(template.get("spec") or {}))
    spec.pop("nodeName", None)
    if node:
        affinity = spec["affinity"] = dict(spec.get("affinity") or {})
        of_node = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
        required = dict(of_node.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
        of_node["requiredDuringSchedulingIgnoredDuringExecution"] = required
        other = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
        terms = required.get("nodeSelectorTerms") or [{}]
        required["nodeSelectorTerms"] = [
            {**term, "matchFields": [*(each for each in term.get("matchFields") or () if each != other), other]}
            for term in terms
        ]
    return {**template, "spec": spec}


def _owners(pod: Json) -> list[dict[str, Any]]:
    of = jobs.metadata_of(pod)
    namespace = of.get("namespace") or "default"
    scheduled = jobs.condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        return [{"object": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": of.get("name"), "uid": of.get("uid"),
        }}]
    owner = controller_of(pod)
    return [] if owner is None else [{"controller": {**owner, "namespace": namespace}}]


def is_of(reservation: Json, job: Json) -> bool:
    """Return whether the reservation was made for the job: the job owns it, or it bears the job's UID as its name."""
    uid = jobs.uid_of(job)
    owners = jobs.metadata_of(reservation).get("ownerReferences") or ()
    return bool(uid) and (jobs.name_of(reservation) == uid or any(each.get("uid") == uid for each in owners))


def owning_jobs(reservation: Json) -> list[tuple[str, str]]:
    """Return the names and UIDs of the jobs that own the reservation."""
    owners = jobs.metadata_of(reservation).get("ownerReferences") or ()
    return [(str(each.get("name") or ""), str(each.get("uid") or "")) for each in owners
            if each.get("kind") == jobs.KIND]


def phase_of(reservation: Json) -> str:
    """Return the reservation's phase; Pending at first."""
    return str((reservation.get("status") or {}).get("phase") or "Pending")


def node_of(reservation: Json) -> str:
    """Return the node of the reservation, or an empty string."""
    return str((reservation.get("status") or {}).get("nodeName") or "")


def bound_pod(reservation: Json) -> Json | None:
    """Return the reference to the pod that took the reservation, or None."""
    owners = (reservation.get("status") or {}).get("currentOwners") or ()
    return owners[0] if owners else None


def is_scheduled(reservation: Json) -> bool:
    """Return whether the scheduler found a node for the reservation."""
    found = jobs.condition(reservation, "Scheduled")
    return bool(node_of(reservation)) and jobs.is_true(found) and (found or {}).get("reason") == "Scheduled"


def unschedulable(reservation: Json) -> Json | None:
    """Return the condition that says that no node takes the reservation, or None."""
    found = jobs.condition(reservation, "Scheduled")
    return found if found is not None and found.get("reason") == "Unschedulable" else None


def is_expired(reservation: Json) -> bool:
    """Return whether the reservation failed because its time was over."""
    found = jobs.condition(reservation, "Ready")
    return phase_of(reservation) == "Failed" and found is not None and found.get("reason") == "Expired"


def is_taken_by_other(reservation: Json, pod: Json) -> bool:
    """Return whether the reservation succeeded with another pod than this one."""
    bound = bound_pod(reservation)
    if phase_of(reservation) != "Succeeded" or bound is None:
        return False
    return (bound.get("uid") or "") != jobs.uid_of(pod) or (bound.get("name") or "") != jobs.name_of(pod)


def is_free_for(reservation: Json, pod: Json) -> bool:
    """Return whether the pod's successor may still take the reservation."""
    return phase_of(reservation) != "Failed" and not is_taken_by_other(reservation, pod)


def waits_for_pending_pod(reservation: Json) -> bool:
    """Return whether the reservation is for one pod that is pending, which needs no eviction."""
    owners = (reservation.get("spec") or {}).get("owners") or ()
    return any(each.get("object") and not each.get("controller") and not each.get("labelSelector") for each in owners)

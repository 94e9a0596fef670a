"""PodMigrationJobs as API objects: their phases, conditions and annotations, and changed copies of them.

Nothing here changes an object that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from koordpolicy.engine.descheduler.pods import moment
from koordpolicy.engine.documents import parse_duration

from .settings import SECOND, MigrationSettings

Json = Mapping[str, Any]

API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
KIND: Final = "PodMigrationJob"

REASON_ANNOTATION: Final = "koordinator.sh/evict-reason"
TRIGGER_ANNOTATION: Final = "koordinator.sh/evict-trigger"
CREATED_BY_ANNOTATION: Final = "koordinator.sh/job-created-by"
PASSED_ANNOTATION: Final = "descheduler.koordinator.sh/passed-arbitration"
ARBITRATING_ANNOTATION: Final = "descheduler.koordinator.sh/pod-arbitrating"
EVICT_ANNOTATION: Final = "descheduler.alpha.kubernetes.io/evict"
SOFT_EVICTION_ANNOTATION: Final = "scheduling.koordinator.sh/soft-eviction"
POLICY_LABEL: Final = "koordinator.sh/evict-policy"

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
TERMINAL: Final = frozenset({SUCCEEDED, FAILED, "Aborted"})
COMPLETE: Final = "Complete"


def metadata_of(item: Json) -> Json:
    """Return an object's metadata."""
    return item.get("metadata") or {}


def annotations_of(item: Json) -> Mapping[str, str]:
    """Return an object's annotations."""
    return metadata_of(item).get("annotations") or {}


def uid_of(item: Json) -> str:
    """Return an object's UID, or an empty string."""
    return str(metadata_of(item).get("uid") or "")


def name_of(item: Json) -> str:
    """Return an object's name."""
    return str(metadata_of(item).get("name") or "")


def pod_ref(job: Json) -> Json:
    """Return the reference to the pod that the job migrates."""
    return (job.get("spec") or {}).get("podRef") or {}


def pod_key(job: Json) -> str:
    """Return the key of the pod that the job migrates, `namespace/name`."""
    of = pod_ref(job)
    return f"{of.get('namespace') or ''}/{of.get('name') or ''}"


def reservation_ref(job: Json) -> str:
    """Return the name of the reservation that the job refers to, or an empty string."""
    options = (job.get("spec") or {}).get("reservationOptions") or {}
    return str((options.get("reservationRef") or {}).get("name") or "")


def phase_of(job: Json) -> str:
    """Return the job's phase; a new job is Pending."""
    return str((job.get("status") or {}).get("phase") or PENDING)


def mode_of(job: Json, settings: MigrationSettings) -> str:
    """Return the job's mode."""
    return str((job.get("spec") or {}).get("mode") or settings.default_mode)


def has_passed(job: Json) -> bool:
    """Return whether the job passed arbitration."""
    return annotations_of(job).get(PASSED_ANNOTATION) == "true"


def is_migrating(job: Json) -> bool:
    """Return whether the job passed arbitration or runs already."""
    return has_passed(job) or phase_of(job) == RUNNING


def ttl_of(job: Json) -> int:
    """Return the job's time to live in ns; 0 if it has none."""
    return parse_duration(str((job.get("spec") or {}).get("ttl") or "0s"))


def created_at(job: Json) -> int:
    """Return when the job was created, ns since the epoch; 0 if it does not say."""
    text = metadata_of(job).get("creationTimestamp")
    return moment(str(text)) if text else 0


def condition(item: Json, of: str) -> Json | None:
    """Return an object's condition of that type, or None."""
    found = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == of), None)


def is_true(found: Json | None) -> bool:
    """Return whether a condition exists and is true."""
    return found is not None and found.get("status") == "True"


def with_spec(job: Json, **fields: Any) -> dict[str, Any]:
    """Return a copy of the job with these fields of its spec."""
    return {**job, "spec": {**(job.get("spec") or {}), **fields}}


def with_status(job: Json, **fields: Any) -> dict[str, Any]:
    """Return a copy of the job with these fields of its status."""
    return {**job, "status": {**(job.get("status") or {}), **fields}}


def with_annotations(job: Json, **annotations: str) -> dict[str, Any]:
    """Return a copy of the job with these annotations too."""
    metadata = {**metadata_of(job), "annotations": {**annotations_of(job), **annotations}}
    return {**job, "metadata": metadata}


def with_condition(job: Json, of: str, status: str, *, reason: str, message: str, now: int) -> dict[str, Any]:
    """Return the job with a condition, which becomes its status, reason and message.

    The job is returned as it is if the condition is there already: repeating a step writes nothing.
    """
    known = condition(job, of)
    desired = {"type": of, "status": status, "reason": reason, "message": message}
    old = job.get("status") or {}
    if known is not None and all((known.get(key) or "") == value for key, value in desired.items()):
        return dict(job)
    time = rfc3339(now)
    same = known is not None and known.get("status") == status
    since = (known or {}).get("lastTransitionTime") if same else time
    new = {**desired, "lastProbeTime": time, "lastTransitionTime": since or time}
    conditions = [new if each.get("type") == of else each for each in old.get("conditions") or ()]
    if known is None:
        conditions.append(new)
    return with_status(job, conditions=conditions, status=of, reason=reason, message=message)


def rfc3339(now: int) -> str:
    """Return a time, ns since the epoch, as API objects have it: whole seconds, UTC."""
    return datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration_text(nanoseconds: int) -> str:
    """Return a duration as API objects have it: `5m0s`, `1.5s`."""
    seconds, rest = divmod(nanoseconds, SECOND)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    tail = f"{seconds % 60}" + (f".{rest:09d}".rstrip("0") if rest else "") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + tail


def new_job(
    pod: Json, settings: MigrationSettings, *, name: str, reason: str, trigger: str,
    delete_options: Json | None = None, labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None, mode: str = "", ttl: int | None = None,
) -> dict[str, Any]:
    """Return the PodMigrationJob that asks for the pod's migration.

    `labels` and `annotations` are added to the controller's own; `mode` and `ttl` (ns) replace its defaults.
    """
    of = metadata_of(pod)
    own = {REASON_ANNOTATION: reason, TRIGGER_ANNOTATION: trigger, CREATED_BY_ANNOTATION: settings.instance}
    metadata: dict[str, Any] = {"name": name, "annotations": {**own, **(annotations or {})}}
    if labels:
        metadata["labels"] = dict(labels)
    ref = {"namespace": of.get("namespace") or "default", "name": of.get("name") or "", "uid": of.get("uid") or ""}
    spec: dict[str, Any] = {
        "paused": False, "mode": mode or settings.default_mode,
        "ttl": duration_text(settings.default_ttl if ttl is None else ttl), "podRef": ref,
    }
    options = delete_options or settings.default_delete_options
    if options:
        spec["deleteOptions"] = dict(options)
    return {
        "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec, "status": {"phase": PENDING},
    }


def reason_of(job: Json) -> str:
    """Return why the pod migrates: the reason that the job was given, or who asked for it."""
    annotations = annotations_of(job)
    return annotations.get(REASON_ANNOTATION) or annotations.get(TRIGGER_ANNOTATION) or "NotSet"


def policy_of(job: Json, pod: Json, settings: MigrationSettings) -> str:
    """Return how the pod is evicted: by its label, the job's label, or the default."""
    for item in (pod, job):
        given = (metadata_of(item).get("labels") or {}).get(POLICY_LABEL)
        if given in EVICTION_POLICIES:
            return str(given)
    return settings.eviction_policy


EVICTION_POLICIES: Final = ("Eviction", "Delete", "SoftEviction")

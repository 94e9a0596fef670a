"""One step of a migration, as a pure function: what a job and the cluster are now, and what to write next.

The order of steps, phases, conditions and texts are those of Koordinator's controllers/migration. A step may be
repeated at any time, also after its writes were made in part or by a process that ended:

- the reservation has a name that follows from the job, and belongs to it, so that it is found again and never
  made twice;
- before a pod is evicted the job's condition Eviction becomes Unknown, and the request names the pod's UID: after a
  restart the state of the pod shows whether the request was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import jobs, reservations
from .migration_step import REQUEUE, MigrationStep, MigrationView, combined, release, reservation_failed
from .settings import EVICT_DIRECTLY, SECOND, MigrationSettings
from .writes import (
    CreateReservation,
    DeleteReservation,
    EvictPod,
    RecordEvent,
    UpdateJob,
    UpdateJobStatus,
    UpdateReservation,
    Write,
)

Json = Mapping[str, Any]


def reconcile_step(job: Json, world: MigrationView, settings: MigrationSettings) -> MigrationStep:
    """Return the next step of a job; a step without writes and without `requeue_after` waits for a change."""
    migration = Migration(job, world, settings)
    migration.run()
    return migration.step()


class Migration:
    """One pass over a job: each method is one step, and returns whether the pass goes on."""

    def __init__(self, job: Json, world: MigrationView, settings: MigrationSettings) -> None:
        self.job: Json = job
        self._world = world
        self._settings = settings
        self._writes: list[Write] = []
        self.requeue_after: int | None = None
        self.error = ""

    def step(self) -> MigrationStep:
        """Return the result of the pass."""
        return MigrationStep(self.job, combined(self._writes), self.requeue_after, self.error)

    def run(self) -> None:
        """Take the job as far as it gets now."""
        job = self.job
        if (job.get("spec") or {}).get("paused") or jobs.phase_of(job) in jobs.TERMINAL:
            return
        if jobs.metadata_of(job).get("deletionTimestamp") is not None or self.abort_if_timeout():
            return
        if self._settings.arbitration and jobs.phase_of(job) == jobs.PENDING and not jobs.has_passed(job):
            return
        self._adopt()
        if not self.prepare() or not self.respect_limits():
            return
        if jobs.mode_of(self.job, self._settings) == EVICT_DIRECTLY:
            if self.evict_pod(None):
                self._succeed(f'Pod "{jobs.pod_key(self.job)}" has been evicted', quiet=True)
            return
        self._migrate_to_reservation()

    def _migrate_to_reservation(self) -> None:
        if not jobs.reservation_ref(self.job):
            self.reserve()
            return
        reservation = self._world.reservation(jobs.reservation_ref(self.job))
        if not self.reservation_exists(reservation) or reservation is None:
            return
        if not self.reservation_scheduled(reservation):
            return
        if reservations.waits_for_pending_pod(reservation):
            self.wait_for_pending_pod(reservation)
            return
        if not self.evict_pod(reservation) or not self.wait_for_bound_pod(reservation):
            return
        if self.wait_for_ready_pod(reservation):
            name = jobs.name_of(reservation)
            bound = reservations.bound_pod(reservation) or {}
            key = f"{bound.get('namespace') or ''}/{bound.get('name') or ''}"
            message = f'Bind Pod "{key}" in Reservation "{name}"'
            self._condition("BoundPodReady", "True", "", "")
            self._condition("PodBoundReservation", "True", "", message)
            self._succeed(message)

    def _adopt(self) -> None:
        creator, own = jobs.annotations_of(self.job).get(jobs.CREATED_BY_ANNOTATION), self._settings.instance
        if creator and own and creator != own:
            self.job = jobs.with_annotations(self.job, **{jobs.CREATED_BY_ANNOTATION: own})
            self._writes.append(UpdateJob(self.job))

    def abort_if_timeout(self) -> bool:
        """End the job and its reservation if its time is over; return whether it is."""
        ttl = jobs.ttl_of(self.job)
        if ttl <= 0 or self._world.now - jobs.created_at(self.job) < ttl:
            return False
        self._writes += release(self.job)
        self._fail("Timeout", "Abort job caused by timeout")
        return True

    def prepare(self) -> bool:
        """Begin a pending job."""
        if jobs.phase_of(self.job) != jobs.PENDING:
            return True
        ref = jobs.pod_ref(self.job)
        if not ref.get("namespace") or not ref.get("name"):
            self._fail("InvalidPodRef", "Abort job caused by invalid PodRef")
            self.error = "Abort job caused by invalid PodRef"
            return False
        pod = self._pod()
        if pod is None:
            return self._fail_without_pod()
        if (ref.get("uid") or "") != jobs.uid_of(pod):
            self.job = jobs.with_spec(self.job, podRef={**ref, "uid": jobs.uid_of(pod)})
            self._writes.append(UpdateJob(self.job))
        self.job = jobs.with_status(self.job, phase=jobs.RUNNING)
        self._writes.append(UpdateJobStatus(self.job))
        return True

    def respect_limits(self) -> bool:
        """Wait while the evictions of the pod's workload or namespace are used up."""
        if jobs.EVICT_ANNOTATION in jobs.annotations_of(self.job) or jobs.condition(self.job, "Eviction") is not None:
            return True
        pod = self._pod()
        if pod is None or not self._world.limited(pod):
            return True
        self.requeue_after = REQUEUE
        return False

    def reserve(self) -> bool:
        """Create the reservation, and write down which one it is."""
        name = reservations.reservation_name(self.job)
        reservation = self._world.reservation(name)
        if reservation is None:
            pod = self._whole_pod()
            if pod is None:
                return self._fail_without_pod()
            reservation = reservations.new_reservation(self.job, pod, self._world.now)
            self._writes.append(CreateReservation(reservation))
        elif not reservations.is_of(reservation, self.job):
            step = reservation_failed(self.job, f'Reservation "{name}" exists and is not of this job', self._world.now)
            self.job, self.error, self.requeue_after = step.job, step.error, step.requeue_after
            self._writes += step.writes
            return False
        options = {**((self.job.get("spec") or {}).get("reservationOptions") or {})}
        options["reservationRef"] = {
            "apiVersion": reservations.API_VERSION, "kind": reservations.KIND, "name": name,
        }
        self.job = jobs.with_spec(self.job, reservationOptions=options)
        self._writes.append(UpdateJob(self.job))
        self.requeue_after = 0
        return False

    def reservation_exists(self, reservation: Json | None) -> bool:
        """Note that the reservation was created; fail without it."""
        name = jobs.reservation_ref(self.job)
        if self._condition("ReservationCreated", "True", "", ""):
            self._event("ReservationCreated", f'Successfully create Reservation "{name}"')
        if reservation is None:
            self._fail("MissingReservation", f'Abort job caused by missing Reservation "{name}"')
            return False
        labels = jobs.metadata_of(reservation).get("labels") or {}
        if not jobs.is_true(jobs.condition(self.job, "Eviction")) and reservations.ORDER_LABEL not in labels:
            order = str(self._world.now // (SECOND // 1000))
            metadata = {**jobs.metadata_of(reservation), "labels": {**labels, reservations.ORDER_LABEL: order}}
            self._writes.append(UpdateReservation({**reservation, "metadata": metadata}))
        return True

    def reservation_scheduled(self, reservation: Json) -> bool:
        """Wait until the reservation has a node; fail if it will get none, or the pod's own."""
        if jobs.is_true(jobs.condition(self.job, "ReservationScheduled")):
            return not self.reservation_expired(reservation)
        self.copy_unschedulable(reservation)
        if reservations.phase_of(reservation) == "Pending":
            self.requeue_after = REQUEUE
            return False
        if self.reservation_expired(reservation):
            return False
        if not reservations.is_scheduled(reservation):
            found = reservations.unschedulable(reservation) or {}
            self._fail("Unschedulable", str(found.get("message") or "no node takes the Reservation"))
            return False
        return not self.abort_on_same_node(reservation) and self.note_node(reservation)

    def copy_unschedulable(self, reservation: Json) -> None:
        """Note why no node takes the reservation yet."""
        found = reservations.unschedulable(reservation)
        if found is not None:
            message = str(found.get("message") or "")
            if self._condition("ReservationScheduled", "False", "Unschedulable", message):
                self._event("Unschedulable", message, warning=True)

    def reservation_expired(self, reservation: Json) -> bool:
        """Fail if the reservation's time was over before its pod came; return whether it was."""
        if not reservations.is_expired(reservation):
            return False
        self._fail("ReservationExpired", "Reservation expired", quiet=True)
        return True

    def abort_on_same_node(self, reservation: Json) -> bool:
        """Fail if the reservation is on the pod's present node; return whether it is."""
        pod = self._pod()
        node = (pod.get("spec") or {}).get("nodeName") if pod is not None else None
        if not node or node != reservations.node_of(reservation):
            return False
        name = jobs.name_of(reservation)
        self.error = f'Scheduler assignes the Reservation "{name}" on the same node as the Pod'
        self._fail("ForbiddenMigratePod", self.error)
        return True

    def note_node(self, reservation: Json) -> bool:
        """Write down the node of the reservation."""
        node = reservations.node_of(reservation)
        message = f'Assigned Reservation "{jobs.name_of(reservation)}" to node "{node}"'
        self.job = jobs.with_status(self.job, nodeName=node)
        if self._condition("ReservationScheduled", "True", "", message):
            self._event("ReservationScheduled", message)
        return True

    def wait_for_pending_pod(self, reservation: Json | None) -> bool:
        """Wait until a pending pod takes the reservation; nothing is evicted."""
        pod, key = self._pod(), jobs.pod_key(self.job)
        if pod is None:
            return self._fail_without_pod()
        scheduled = jobs.condition(pod, "PodScheduled")
        if scheduled is None or scheduled.get("status") != "True":
            if reservation is not None and reservations.is_taken_by_other(reservation, pod):
                return self._fail("ForbiddenMigratePod", "Reservation is already bound by another Pod")
            message = str((scheduled or {}).get("message") or "")
            if self._condition("PodScheduled", "False", "Unschedulable", message):
                self._event("Unschedulable", message, warning=True)
            self.requeue_after = REQUEUE
            return False
        node = (pod.get("spec") or {}).get("nodeName") or (reservations.node_of(reservation) if reservation else "")
        message = f'Assign Pod "{key}" to node "{node}"'
        self._condition("PodScheduled", "True", "", message)
        self._succeed(message)
        return True

    def evict_pod(self, reservation: Json | None) -> bool:
        """Evict the pod, once; return whether it is gone."""
        known = jobs.condition(self.job, "Eviction")
        if jobs.is_true(known):
            return True
        pod: Json | None = self._pod()
        key, expected_uid = jobs.pod_key(self.job), jobs.pod_ref(self.job).get("uid") or ""
        taken = pod is not None and reservation is not None and reservations.is_taken_by_other(reservation, pod)
        if taken and known is not None:
            pod = self._whole_pod()  # it may have been evicted before, while the view of pods lags behind
        if pod is None or (expected_uid and expected_uid != jobs.uid_of(pod)):
            # Another pod of this name has taken the place of the one that was to go.
            if known is None or (self.job.get("status") or {}).get("status") != "Eviction":
                return self._fail_without_pod()
            if self._condition("Eviction", "True", "EvictComplete", f'Pod "{key}" has been evicted'):
                self._event("EvictComplete", f'Pod "{key}" has been evicted')
            return True
        if known is not None and known.get("status") == "False" and known.get("reason") == "Evicting":
            self.requeue_after = REQUEUE
            return False
        if taken and (known is None or jobs.metadata_of(pod).get("deletionTimestamp") is None):
            return self._fail("ForbiddenMigratePod", "Reservation is already bound by another Pod")
        latest = None if reservation is None else self._world.latest_reservation(jobs.name_of(reservation))
        if reservation is None or (latest is not None and reservations.is_free_for(latest, pod)):
            self._request_eviction(pod, key)
        # Else the reservation has ended, which the cluster will show.
        self.requeue_after = REQUEUE
        return False

    def _request_eviction(self, pod: Json, key: str) -> None:
        reason, node = jobs.reason_of(self.job), str((pod.get("spec") or {}).get("nodeName") or "")
        policy = jobs.policy_of(self.job, pod, self._settings)
        leaves = jobs.metadata_of(pod).get("deletionTimestamp") is not None or (
            policy == "SoftEviction" and jobs.SOFT_EVICTION_ANNOTATION in jobs.annotations_of(pod)
        )
        if not leaves:
            self._condition("Eviction", "Unknown", "Evicting", f'Pod "{key}" is about to be evicted')
            self._writes.append(EvictPod(
                pod, policy, reason, jobs.annotations_of(self.job).get(jobs.TRIGGER_ANNOTATION) or "NotSet",
                (self.job.get("spec") or {}).get("deleteOptions"),
            ))
        message = f'Pod "{key}" evicted from node "{node}" by the reason "{reason}"'
        if self._condition("Eviction", "False", "Evicting", message):
            self._event("Evicting", message)

    def wait_for_bound_pod(self, reservation: Json) -> bool:
        """Wait until a pod takes the reservation; return whether one did."""
        if jobs.is_true(jobs.condition(self.job, "PodBoundReservation")):
            return True
        bound = reservations.bound_pod(reservation)
        if bound is None:
            message = "Waiting for a Pod to bind the Reservation"
            if self._condition("PodBoundReservation", "False", "WaitForPodBindReservation", message):
                self._event("WaitForPodBindReservation", message)
            self.requeue_after = REQUEUE
            return False
        key = f"{bound.get('namespace') or ''}/{bound.get('name') or ''}"
        message = f'Bind Pod "{key}" in Reservation "{jobs.name_of(reservation)}"'
        self.job = jobs.with_status(self.job, podRef=dict(bound))
        if self._condition("ReservationBound", "True", "", message):
            self._event("PodBoundReservation", message)
        return True

    def wait_for_ready_pod(self, reservation: Json) -> bool:
        """Wait until the pod that took the reservation is ready, or gone; return whether it is."""
        bound = reservations.bound_pod(reservation) or {}
        pod = self._world.pod(str(bound.get("namespace") or ""), str(bound.get("name") or ""))
        if pod is None or jobs.is_true(jobs.condition(pod, "Ready")):
            return True
        message = f'Waiting for Pod "{bound.get("namespace")}/{bound.get("name")}" to be ready'
        if self._condition("BoundPodReady", "False", "WaitForBoundPodReady", message):
            self._event("WaitForBoundPodReady", message)
        self.requeue_after = REQUEUE
        return False

    # What the steps share

    def _pod(self) -> Json | None:
        ref = jobs.pod_ref(self.job)
        return self._world.pod(str(ref.get("namespace") or ""), str(ref.get("name") or ""))

    def _whole_pod(self) -> Json | None:
        ref = jobs.pod_ref(self.job)
        return self._world.whole_pod(str(ref.get("namespace") or ""), str(ref.get("name") or ""))

    def _condition(self, of: str, status: str, reason: str, message: str) -> bool:
        changed = jobs.with_condition(
            self.job, of, status, reason=reason, message=message, now=self._world.now,
        )
        if changed == self.job:
            return False
        self.job = changed
        self._writes.append(UpdateJobStatus(changed))
        return True

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._writes.append(RecordEvent(self.job, reason, message, warning))

    def _fail_without_pod(self) -> bool:
        return self._fail("MissingPod", f'Abort job caused by missing Pod "{jobs.pod_key(self.job)}"')

    def _fail(self, reason: str, message: str, *, quiet: bool = False) -> bool:
        """End the job; its own reservation goes first, unless a pod has it already. Always returns False."""
        for name in dict.fromkeys((jobs.reservation_ref(self.job), reservations.reservation_name(self.job))):
            reservation = self._world.reservation(name) if name else None
            if reservation is None or not reservations.is_of(reservation, self.job):
                continue
            if reservations.bound_pod(reservation) is None and DeleteReservation(name) not in self._writes:
                self._writes.append(DeleteReservation(name))
        self.job = jobs.with_status(self.job, phase=jobs.FAILED, reason=reason, message=message)
        self._writes.append(UpdateJobStatus(self.job))
        if not quiet:
            self._event(reason, message, warning=True)
        return False

    def _succeed(self, message: str, *, quiet: bool = False) -> None:
        self.job = jobs.with_status(
            self.job, phase=jobs.SUCCEEDED, status=jobs.COMPLETE, reason="", message=message,
        )
        self._writes.append(UpdateJobStatus(self.job))
        if not quiet:
            self._event("Complete", message)

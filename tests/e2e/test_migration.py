"""Migrations on a real API server: their requests, the death of their process after each of them, and what others do.

The scheduler, kubelets and the controller of the pods are played by the test, except where the test says otherwise.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.killed import Killed

from .build import binary
from .control_plane import AdminClient, ApiError, ControlPlane
from .custom_resources import ALL, MIGRATION_JOB, RESERVATION, await_kinds, define
from .migration_host import MigrationHost
from .nodes import add_node
from .roles import DEPLOY, account_kubeconfig, create_roles, scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until
from .test_descheduler import DeschedulerProcess, add_budget, set_budget

SCHEDULER = Path(__file__).parents[2] / "examples" / "14-koord-scheduler" / "scheduler.yaml"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ARGS = {"arbitrationArgs": {"interval": "10ms"}, "evictBurst": 10, "maxMigratingPerNode": 0,
        "skipEvictionGates": ["BarePods"], "objectLimiters": {"workload": {"duration": "0s"}}}
READY = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
SEQUENCE = [
    "create_job", "update_job",  # passed arbitration
    "update_job_status",  # Running
    "create_reservation", "update_job",  # its reference
    "update_job_status",  # ReservationCreated
    "update_job_status", "evict", "update_job_status",  # ReservationScheduled, Evicting
    "update_job_status",  # EvictComplete
    "update_job_status",  # ReservationBound
    "update_job_status",  # Succeeded
]
"""The writes of a migration in Koordinator's order. The UID of the pod is written only if it is not that of the job."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if os.environ.get("KOORD_POLICY_E2E_KUBECONFIG"):
        pytest.skip("stops the API server, and deletes all jobs and reservations")
    with ControlPlane(binary(), tmp_path_factory.mktemp("control-plane")) as running:
        for item in yaml.safe_load_all((DEPLOY / "koordinator" / "crds.yaml").read_text()):
            running.admin.create(CRDS, item)
        await_kinds(running.admin, MIGRATION_JOB, RESERVATION)
        define(running.admin, *(kind for kind in ALL if kind not in (MIGRATION_JOB, RESERVATION)))
        create_roles(running.admin, "descheduler")
        for name in ("one", "two"):
            add_node(running.admin, name)
        yield running


def new_host(plane: ControlPlane) -> MigrationHost:
    return MigrationHost(plane.kubeconfig(), ARGS, instance=secrets.token_hex(4))


@pytest.fixture
def admin(plane: ControlPlane) -> AdminClient:
    return plane.admin


class Scene:
    """A workload with one pod to migrate, and all others that act on it."""

    def __init__(self, plane: ControlPlane, namespace: str, name: str = "web") -> None:
        self.plane = plane
        self.admin = plane.admin
        self.namespace = namespace
        self.name = name
        made = self.admin.create(f"/apis/apps/v1/namespaces/{namespace}/replicasets", {
            "metadata": {"name": name}, "spec": {
                "replicas": 9, "selector": {"matchLabels": {"app": name}}, "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "main", "image": "example/main"}]}}}})
        self.owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": made["metadata"]["uid"],
                      "controller": True}
        self.pod = self.add(f"{name}-old", "one")
        self.job = ""

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def add(self, name: str, node: str, *, ready: bool = True) -> Any:
        made = self.admin.create(self.pods, {
            "metadata": {"name": name, "labels": {"app": self.name}, "ownerReferences": [self.owner]},
            "spec": {**({"nodeName": node} if node else {}), "schedulerName": "koord-scheduler", "containers": [
                {"name": "main", "image": "example/main", "resources": {"requests": {"cpu": "100m"}}}]}})
        if node:
            self.set_ready(name, ready=ready)
        return made

    def set_ready(self, name: str, *, ready: bool) -> None:
        self.admin.merge(f"{self.pods}/{name}/status", {"status": {
            "phase": "Running", "conditions": READY if ready else READY[1:]}})

    def find(self, path: str) -> Any:
        try:
            return self.admin.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    # The controller

    def request(self, host: MigrationHost) -> None:
        """Let the plugin create the job."""
        self.job = f"{self.namespace}-{self.name}"
        key = f"{self.namespace}/{self.name}-old"
        host.see(lambda snapshot: snapshot.object("Pod", key))
        host.request(key, self.job)

    def user_job(self, **spec: Any) -> Any:
        """Create a job as a user does."""
        self.job = f"{self.namespace}-{self.name}"
        return self.admin.create(MIGRATION_JOB.path(), {
            "apiVersion": MIGRATION_JOB.api_version, "kind": "PodMigrationJob", "metadata": {"name": self.job},
            "spec": {"podRef": {"namespace": self.namespace, "name": f"{self.name}-old"}, **spec}})

    @property
    def status(self) -> dict[str, Any]:
        found = self.find(MIGRATION_JOB.path("", self.job))
        return (found or {}).get("status") or {}

    def conditions(self) -> dict[str, tuple[str, str]]:
        return {each["type"]: (each["status"], each.get("reason", "")) for each in self.status.get("conditions") or ()}

    def ended(self) -> bool:
        return self.status.get("phase") in ("Succeeded", "Failed")

    @property
    def reservation(self) -> Any:
        uid = self.find(MIGRATION_JOB.path("", self.job))["metadata"]["uid"]
        return self.find(RESERVATION.path("", uid))

    # The others

    def report(self, name: str, **status: Any) -> None:
        self.admin.merge(f"{RESERVATION.path('', name)}/status", {"status": status})

    def schedule(self) -> bool:
        """Find a node for the reservation, as the scheduler does."""
        found = self.reservation
        if found is None or (found.get("status") or {}).get("nodeName"):
            return False
        self.report(found["metadata"]["name"], phase="Available", nodeName="two", conditions=[
            {"type": "Scheduled", "status": "True", "reason": "Scheduled"},
            {"type": "Ready", "status": "True", "reason": "Available"}])
        return True

    def end_pod(self) -> bool:
        """End the pod that is being deleted, as its kubelet does."""
        path = f"{self.pods}/{self.name}-old"
        found = self.find(path)
        if found is None or not found["metadata"].get("deletionTimestamp"):
            return False
        self.admin.delete(f"{path}?gracePeriodSeconds=0")
        return True

    def replace(self) -> bool:
        """Create the successor in the reservation, as its controller and the scheduler do."""
        found, name = self.reservation, f"{self.name}-new"
        if found is None or self.find(f"{self.pods}/{self.name}-old") or self.find(f"{self.pods}/{name}"):
            return False
        made = self.add(name, "two", ready=False)
        self.report(found["metadata"]["name"], phase="Succeeded", currentOwners=[
            {"namespace": self.namespace, "name": name, "uid": made["metadata"]["uid"]}])
        return True

    def act_in_turn(self) -> None:
        """Act on what the job's status waits for only."""
        conditions = self.conditions()
        if conditions.get("BoundPodReady") == ("False", "WaitForBoundPodReady"):
            self.set_ready(f"{self.name}-new", ready=True)
        elif conditions.get("PodBoundReservation") == ("False", "WaitForPodBindReservation"):
            self.replace()
        elif conditions.get("Eviction") == ("False", "Evicting"):
            self.end_pod()
        elif conditions.get("ReservationCreated") == ("True", ""):
            self.schedule()

    def act_at_once(self) -> None:
        """Act on everything, whatever the job's status says."""
        if self.find(MIGRATION_JOB.path("", self.job)) is None:
            return
        while self.schedule() or self.end_pod() or self.replace():
            pass
        if self.find(f"{self.pods}/{self.name}-new"):
            self.set_ready(f"{self.name}-new", ready=True)


@pytest.fixture
def namespace(admin: AdminClient) -> Iterator[str]:
    name = f"e2e-{secrets.token_hex(4)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    admin.delete(f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
    for kind in (MIGRATION_JOB, RESERVATION):
        admin.delete(kind.path())


@pytest.fixture
def scene(plane: ControlPlane, namespace: str) -> Scene:
    return Scene(plane, namespace)


def evictions(admin: AdminClient, path: str, since: str) -> dict[str, set[str]]:
    """Return the deletions with a grace period of the pods of a path, by name, of all changes since a version.

    A kubelet, and the test, delete without one.
    """
    last = admin.create(path, {"metadata": {"name": f"last-{secrets.token_hex(4)}"}, "spec": {
        "schedulerName": "nobody", "containers": [{"name": "main", "image": "example/main"}]}})["metadata"]
    items: list[dict[str, Any]] = []
    seconds = 1
    while last["uid"] not in {each["uid"] for each in items}:  # the watch may end before it is complete
        text = admin.request("GET", f"{path}?watch=1&resourceVersion={since}&timeoutSeconds={seconds}")
        lines = (text if isinstance(text, str) else json.dumps(text)).splitlines()
        items, seconds = [json.loads(line)["object"]["metadata"] for line in lines], seconds * 2
    found: dict[str, set[str]] = {}
    for metadata in items:
        if metadata.get("deletionGracePeriodSeconds"):
            found.setdefault(metadata["name"], set()).add(f"{metadata['uid']} {metadata['deletionTimestamp']}")
    return found


def permitted(admin: AdminClient, path: str, since: str) -> dict[str, list[int]]:
    """Return the disruptions that each budget permitted, in the order of all changes since a version."""
    last = admin.create(path, {"metadata": {"name": "last"}, "spec": {"selector": {"matchLabels": {"app": "none"}}}})
    names: list[str] = []
    found: dict[str, list[int]] = {}
    seconds = 1
    while last["metadata"]["name"] not in names:  # the watch may end before it is complete
        text = admin.request("GET", f"{path}?watch=1&resourceVersion={since}&timeoutSeconds={seconds}")
        lines = (text if isinstance(text, str) else json.dumps(text)).splitlines()
        items, seconds, found = [json.loads(line)["object"] for line in lines], seconds * 2, {}
        names = [each["metadata"]["name"] for each in items]
        for each in items:
            number = each.get("status", {}).get("disruptionsAllowed")
            known = found.setdefault(each["metadata"]["name"], [])
            if each["status"].get("observedGeneration") and known[-1:] != [number]:
                known.append(number)
    return {name: known for name, known in found.items() if name != "last"}


def test_l54_the_writes_of_a_migration_are_in_koordinators_order(scene: Scene):
    with new_host(scene.plane) as host:
        scene.request(host)
        host.run(scene.act_in_turn, scene.ended)
        host.flush_events()
    assert host.api.calls == SEQUENCE
    status = scene.status
    assert (status["phase"], status["status"], status["nodeName"], status["podRef"]["name"]) == (
        "Succeeded", "Complete", "two", "web-new")
    assert {name: of for name, (of, _) in scene.conditions().items()} == dict.fromkeys((
        "ReservationCreated", "ReservationScheduled", "Eviction", "PodBoundReservation", "ReservationBound",
        "BoundPodReady"), "True")
    events = scene.admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    found = [each["reason"] for each in sorted(events, key=lambda each: each["eventTime"])
             if each["regarding"]["name"] == scene.job]
    assert found == ["ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete",
                     "WaitForPodBindReservation", "PodBoundReservation", "WaitForBoundPodReady", "Complete"]


@pytest.mark.parametrize("others_go_on", [True, False], ids=["others-go-on", "all-stands-still"])
def test_l54_a_process_that_dies_after_any_write_is_followed_by_one_that_ends_the_migration(
    plane: ControlPlane, namespace: str, others_go_on: bool,
):
    admin = plane.admin
    pods = f"/api/v1/namespaces/{namespace}/pods"
    since = admin.get(pods)["metadata"]["resourceVersion"]
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    first = admin.get(budgets)["metadata"]["resourceVersion"]
    results = []
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(new_host(plane))
        for number in range(1, len(SEQUENCE)):
            scene = Scene(plane, namespace, f"web{number}")
            add_budget(admin, namespace, scene.name, allowed=1, app=scene.name)
            host.api.calls.clear()
            host.api.kill_after = number
            with contextlib.suppress(Killed):
                scene.request(host)
                host.run(scene.act_in_turn, scene.ended)
            assert len(host.api.calls) == number
            calls = host.api.calls
            stack.close()
            if others_go_on:
                scene.act_at_once()
            host = stack.enter_context(new_host(plane))
            host.run(scene.act_at_once, scene.ended)
            results.append((number, scene.status["phase"], [*calls, *host.api.calls].count("evict")))
    assert results == [(number, "Succeeded", 1) for number in range(1, len(SEQUENCE))]
    found = evictions(admin, pods, since)
    assert {name: len(times) for name, times in found.items()} == {
        f"web{number}-old": 1 for number in range(1, len(SEQUENCE))}
    taken = [(each["status"]["phase"], len(each["status"]["currentOwners"]))
             for each in admin.get(RESERVATION.path())["items"]]
    assert taken == [("Succeeded", 1)] * len(results)
    assert permitted(admin, budgets, first) == {f"web{number}": [1, 0] for number in range(1, len(SEQUENCE))}


class Watched:
    """Evictions and permissions in all changes of a namespace's pods and budgets, over restarts of the API server."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.evicted: dict[str, set[str]] = {}
        self.permitted: dict[str, list[int]] = {}
        self._plane = plane
        self._paths = (f"/api/v1/namespaces/{namespace}/pods",
                       f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")
        self.begin()

    def begin(self) -> None:
        """Watch from now on."""
        self._since = [self._plane.admin.get(path)["metadata"]["resourceVersion"] for path in self._paths]

    def end(self) -> None:
        """Add what changed since then."""
        admin, (pods, budgets) = self._plane.admin, self._paths
        for name, times in evictions(admin, pods, self._since[0]).items():
            self.evicted.setdefault(name, set()).update(times)
        for name, numbers in permitted(admin, budgets, self._since[1]).items():
            known = self.permitted.setdefault(name, [])
            known += numbers if known[-1:] != numbers[:1] else numbers[1:]
        admin.delete(f"{budgets}/last")


RESTARTED_AFTER = (4, 8, 9)
"""The writes after whose kill the API server restarts: the reservation, the eviction, and the status of it."""


def test_no_budget_is_violated_though_processes_die_budgets_are_edited_and_the_api_server_restarts(
    plane: ControlPlane, namespace: str,
):
    watched = Watched(plane, namespace)
    results, server = [], plane.components["kube-apiserver"]
    numbers = range(1, len(SEQUENCE) + 1)
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(new_host(plane))
        for number in numbers:
            scene = Scene(plane, namespace, f"web{number}")
            add_budget(plane.admin, namespace, scene.name, allowed=1, app=scene.name)
            host.api.calls.clear()
            host.api.kill_after = number
            with contextlib.suppress(Killed):
                scene.request(host)
                host.run(scene.act_in_turn, scene.ended)
            calls = list(host.api.calls)
            stack.close()
            set_budget(plane.admin, namespace, scene.name, 0)
            if number in RESTARTED_AFTER:
                watched.end()
                server.stop(kill=True)
                server.start()
                plane.wait_until_ready()
                scene.admin = plane.admin
                watched.begin()
            host = stack.enter_context(new_host(plane))
            if "evict" not in calls:
                tried = host.api.calls
                host.run(scene.act_at_once, partial(operator.contains, tried, "evict"))
                assert scene.find(f"{scene.pods}/{scene.name}-old")["metadata"].get("deletionTimestamp") is None
                set_budget(plane.admin, namespace, scene.name, 1)
            host.run(scene.act_at_once, scene.ended)
            results.append((number, scene.status["phase"], len(calls)))
    watched.end()
    assert results == [(number, "Succeeded", number) for number in numbers]
    assert {name: len(times) for name, times in watched.evicted.items()} == {
        f"web{number}-old": 1 for number in numbers}
    # 0 by the edit or by an eviction, and 1 by the test again: each eviction took what its budget permitted.
    evict = SEQUENCE.index("evict") + 1
    assert watched.permitted == {f"web{number}": [1, 0, 1, 0] if number < evict else [1, 0] for number in numbers}
    assert [(each["status"]["phase"], len(each["status"]["currentOwners"]))
            for each in plane.admin.get(RESERVATION.path())["items"]] == [("Succeeded", 1)] * len(results)


def test_l55_a_job_that_is_over_fails_and_its_reservation_is_gone(scene: Scene):
    scene.user_job(ttl="1h")
    with new_host(scene.plane) as host:
        host.run(lambda: None, lambda: "create_reservation" in host.api.calls)
        assert scene.reservation is not None
        scene.admin.merge(MIGRATION_JOB.path("", scene.job), {"spec": {"ttl": "1s"}})
        host.run(lambda: None, scene.ended)
    assert (scene.status["phase"], scene.status["reason"]) == ("Failed", "Timeout")
    assert scene.reservation is None
    assert scene.find(f"{scene.pods}/web-old")["metadata"].get("deletionTimestamp") is None


@pytest.mark.parametrize("runs", [True, False], ids=["while-it-runs", "before-it-starts"])
def test_l55_the_reservation_of_a_deleted_job_is_deleted(scene: Scene, runs: bool):
    uid = scene.user_job()["metadata"]["uid"]
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(new_host(scene.plane))
        host.run(lambda: None, lambda: "create_reservation" in host.api.calls)
        if not runs:
            stack.close()
        scene.admin.delete(MIGRATION_JOB.path("", scene.job))
        if not runs:
            host = stack.enter_context(new_host(scene.plane))
        host.run(lambda: None, lambda: scene.find(RESERVATION.path("", uid)) is None)
    assert scene.find(f"{scene.pods}/web-old")["metadata"].get("deletionTimestamp") is None


def test_a_budget_holds_an_eviction_up_until_it_permits_it(scene: Scene):
    budgets = f"/apis/policy/v1/namespaces/{scene.namespace}/poddisruptionbudgets"

    def permit(disruptions: int) -> None:
        found = scene.admin.get(f"{budgets}/web")
        scene.admin.merge(f"{budgets}/web/status", {"status": {
            "observedGeneration": found["metadata"]["generation"], "disruptionsAllowed": disruptions,
            "currentHealthy": 1, "desiredHealthy": 1 - disruptions, "expectedPods": 1}})

    scene.admin.create(budgets, {"metadata": {"name": "web"}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}})
    permit(0)
    with new_host(scene.plane) as host:
        scene.request(host)
        host.run(scene.act_in_turn, lambda: "evict" in host.api.calls)
        assert scene.conditions()["Eviction"] == ("Unknown", "Evicting")
        # Its status is out of date now: the server asks to wait for ten seconds.
        scene.admin.merge(f"{budgets}/web", {"spec": {"minAvailable": 0}})
        tried = host.api.calls.count("evict")
        host.run(scene.act_in_turn, lambda: host.api.calls.count("evict") > tried)
        assert scene.find(f"{scene.pods}/web-old")["metadata"].get("deletionTimestamp") is None
        permit(1)
        host.run(scene.act_in_turn, scene.ended)
    assert scene.status["phase"] == "Succeeded"
    assert scene.admin.get(f"{budgets}/web")["status"]["disruptionsAllowed"] == 0


def test_a_migration_survives_a_restart_of_the_api_server(plane: ControlPlane, scene: Scene):
    with new_host(scene.plane) as host:
        scene.request(host)
        host.run(lambda: None, lambda: "create_reservation" in host.api.calls)
        scene.schedule()
        uid = scene.reservation["metadata"]["uid"]
        host.see(lambda snapshot: any(
            each["metadata"]["uid"] == uid and each.get("status") for each in snapshot.objects("Reservation").values()))
        server = plane.components["kube-apiserver"]
        server.stop(kill=True)
        failures = host.migrations.figures.failures
        host.run(lambda: None, lambda: host.migrations.figures.failures > failures)
        server.start()
        plane.wait_until_ready()
        scene.admin = plane.admin
        host.run(scene.act_in_turn, scene.ended)
    assert scene.status["phase"] == "Succeeded"
    assert host.api.calls.count("evict") == 1


def configuration(namespace: str) -> str:
    """Return the configuration of a descheduler that migrates the pods of a namespace with the label `move`."""
    return json.dumps({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "deschedulingInterval": "1s",
        "profiles": [{
            "name": "koord-descheduler",
            "plugins": {
                "deschedule": {"enabled": [{"name": "PodLifeTime"}]}, "balance": {"disabled": [{"name": "*"}]},
                "evict": {"enabled": [{"name": "MigrationController"}], "disabled": [{"name": "*"}]},
                "filter": {"enabled": [{"name": "MigrationController"}], "disabled": [{"name": "*"}]}},
            "pluginConfig": [
                {"name": "MigrationController", "args": {
                    "apiVersion": "descheduler/v1alpha2", "kind": "MigrationControllerArgs", **ARGS}},
                {"name": "PodLifeTime", "args": {
                    "apiVersion": "descheduler/v1alpha2", "kind": "PodLifeTimeArgs", "states": ["Running"],
                    "namespaces": {"include": [namespace]}, "labelSelector": {"matchLabels": {"move": "yes"}}}},
            ]}]})


def test_a_pod_moves_into_the_place_that_our_scheduler_reserved_though_the_descheduler_is_killed_meanwhile(
    plane: ControlPlane, scene: Scene, tmp_path: Path,
):
    admin = plane.admin
    config = tmp_path / "descheduler.json"
    config.write_text(configuration(scene.namespace))
    kubeconfig = account_kubeconfig(plane, "koord-policy-descheduler", tmp_path)
    old, new = f"{scene.pods}/web-old", f"{scene.pods}/web-new"
    since = admin.get(scene.pods)["metadata"]["resourceVersion"]
    scheduler = SchedulerProcess(scheduler_kubeconfig(plane, tmp_path), tmp_path, "--config", str(SCHEDULER))
    with scheduler, contextlib.ExitStack() as stack:
        scheduler.until_ready()
        admin.merge(old, {"metadata": {"labels": {"move": "yes"}}})
        first = stack.enter_context(DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config)))
        until(lambda: first.alive() and admin.get(old)["metadata"].get("deletionTimestamp"), 60)
        first.process.kill()
        first.process.wait()
        (job,) = admin.get(MIGRATION_JOB.path())["items"]
        scene.job = job["metadata"]["name"]
        reservation = scene.reservation
        assert (reservation["status"]["phase"], reservation["status"]["nodeName"]) == ("Available", "two")

        admin.delete(f"{old}?gracePeriodSeconds=0")
        second = stack.enter_context(DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config)))
        until(lambda: second.alive() and scene.conditions().get("PodBoundReservation") == (
            "False", "WaitForPodBindReservation"), 60)
        made = scene.add("web-new", "", ready=False)
        bound = until(lambda: (found := admin.get(new))["spec"].get("nodeName") and found)
        assert bound["spec"]["nodeName"] == "two"
        assert json.loads(bound["metadata"]["annotations"][ALLOCATED]) == {
            "name": reservation["metadata"]["name"], "uid": reservation["metadata"]["uid"]}
        until(lambda: scene.conditions().get("BoundPodReady") == ("False", "WaitForBoundPodReady"))
        scene.set_ready("web-new", ready=True)
        until(scene.ended)
    status = scene.status
    assert (status["phase"], status["podRef"]["uid"], status["nodeName"]) == (
        "Succeeded", made["metadata"]["uid"], "two")
    assert {name: of for name, (of, _) in scene.conditions().items()} == dict.fromkeys((
        "ReservationCreated", "ReservationScheduled", "Eviction", "PodBoundReservation", "ReservationBound",
        "BoundPodReady"), "True")
    assert job["metadata"]["annotations"]["koordinator.sh/evict-trigger"] == "PodLifeTime"
    assert {name: len(times) for name, times in evictions(admin, scene.pods, since).items()} == {"web-old": 1}
    assert len(admin.get(MIGRATION_JOB.path())["items"]) == 1

"""Two live schedulers with one Lease, and a scheduler that is started again among many pods."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from .control_plane import AdminClient, ApiError, ControlPlane
from .nodes import add_node, add_pod
from .proxy import FaultProxy
from .scheduler_process import SchedulerProcess, until

APPS = "/api/v1/namespaces/apps/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/koord-policy-scheduler"
LEASE_S = 15
LAG_S = 7
TIMES = (f"--leader-elect-lease-duration={LEASE_S}s", "--leader-elect-renew-deadline=10s",
         "--leader-elect-retry-period=1s")


@pytest.fixture
def admin(own_control_plane: ControlPlane) -> AdminClient:
    admin = own_control_plane.admin
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    until(lambda: admin.get("/api/v1/namespaces/kube-system"))
    add_node(admin, "one", cpu="100", pods=1000)
    return admin


def node_of(admin: AdminClient, name: str) -> str:
    return str(admin.get(f"{APPS}/{name}")["spec"].get("nodeName") or "")


def is_refused(admin: AdminClient, name: str) -> bool:
    conditions = admin.get(f"{APPS}/{name}")["status"].get("conditions") or ()
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def holder(admin: AdminClient) -> str:
    with contextlib.suppress(ApiError):  # nobody has made it yet
        return str(admin.get(LEASE)["spec"].get("holderIdentity") or "")
    return ""


def both(plane: ControlPlane, directory: Path, *times: str) -> tuple[SchedulerProcess, SchedulerProcess]:
    first, second = (SchedulerProcess(plane.kubeconfig(), directory / name, *(times or TIMES), leader_elect=True)
                     for name in ("first", "second"))
    return first, second


def test_l18_a_standby_takes_over_when_the_leader_is_killed(
    own_control_plane: ControlPlane, admin: AdminClient, tmp_path: Path,
):
    first, second = both(own_control_plane, tmp_path)
    with first:
        first.until_ready()
        add_pod(admin, "apps", "a")
        assert until(lambda: node_of(admin, "a")) == "one"
        leader = until(lambda: holder(admin))
        with second:
            second.until_ready()
            first.process.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            add_pod(admin, "apps", "b")
            assert until(lambda: node_of(admin, "b")) == "one"
            took = time.monotonic() - killed
            spec = admin.get(LEASE)["spec"]
            # The last renewal may have been a retry period before the kill.
            assert (took > LEASE_S - 2, spec["leaseTransitions"], spec["holderIdentity"] == leader) == (True, 1, False)


def test_l19_l63_a_leader_that_is_stopped_releases_the_lease_and_the_standby_leads_soon(
    own_control_plane: ControlPlane, admin: AdminClient, tmp_path: Path,
):
    # A Lease that is not released is taken over much later than this test waits.
    first, second = both(own_control_plane, tmp_path, "--leader-elect-lease-duration=1h", *TIMES[1:])
    with first:
        first.until_ready()
        until(lambda: holder(admin))
        with second:
            second.until_ready()
            leader = holder(admin)
            assert first.stop() == 0
            until(lambda: holder(admin) not in {"", leader})
            add_pod(admin, "apps", "a")
            assert until(lambda: node_of(admin, "a")) == "one"
            assert second.stop() == 0
            lease = admin.get(LEASE)["spec"]
            assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("", 1)


def test_l43_a_scheduler_that_starts_among_bound_pods_counts_all_of_them_first(
    own_control_plane: ControlPlane, admin: AdminClient, tmp_path: Path,
):
    for number in range(300):
        name = f"p{number}"
        add_pod(admin, "apps", name, cpu="330m")
        admin.create(f"{APPS}/{name}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": "one"}})
    add_node(admin, "two", cpu="1")
    # 1 of the 100 CPUs of the first node is free: each node has room for one of these.
    for name in ("x", "y", "z"):
        add_pod(admin, "apps", name, cpu="900m")
    with SchedulerProcess(own_control_plane.kubeconfig(), tmp_path) as process:
        process.until_ready()
        until(lambda: sum(bool(node_of(admin, name)) for name in "xyz") == 2)
        until(lambda: any(
            (each["reason"] == "FailedScheduling") for each in admin.get(
                "/apis/events.k8s.io/v1/namespaces/apps/events")["items"]))
        assert sorted(node_of(admin, name) for name in "xyz") == ["", "one", "two"]


def test_l44_a_new_leader_whose_watch_lags_waits_for_the_bindings_of_the_last_one(
    own_control_plane: ControlPlane, admin: AdminClient, tmp_path: Path,
):
    plane, small = own_control_plane, {"nodeSelector": {"size": "small"}}
    add_node(admin, "small", cpu="1", labels={"size": "small"})
    with FaultProxy(plane.url, plane.certificate_authority, tmp_path) as proxy:
        proxy.faults.pod_lag_s = LAG_S
        behind = plane.kubeconfig(url=proxy.url, authority=proxy.certificate_authority)
        first = SchedulerProcess(plane.kubeconfig(), tmp_path / "first", *TIMES, leader_elect=True)
        second = SchedulerProcess(behind, tmp_path / "second", *TIMES, "--scheduler-name", "other", leader_elect=True)
        with first:
            first.until_ready()
            leader = until(lambda: holder(admin))
            with second:
                second.until_ready()
                # The first one leaves this pod alone, and the second one knows it when it begins to lead.
                add_pod(admin, "apps", "waits", cpu="900m", scheduler="other", **small)
                time.sleep(LAG_S + 1)
                add_pod(admin, "apps", "bound", cpu="900m", **small)
                assert until(lambda: node_of(admin, "bound")) == "small"
                first.process.send_signal(signal.SIGKILL)
                # As if it had released the Lease: the second one leads before it can have seen the binding.
                admin.merge(LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
                until(lambda: holder(admin) not in {"", leader})
                until(lambda: is_refused(admin, "waits"))
                assert node_of(admin, "waits") == ""


def test_l38_lower_pods_are_tried_again_when_a_nominated_pod_is_deleted(
    own_control_plane: ControlPlane, admin: AdminClient, tmp_path: Path,
):
    for name, value in (("high", 1000), ("middle", 100)):
        admin.create_priority_class(name, value)
    add_node(admin, "small", cpu="1", labels={"size": "small"})
    small = {"nodeSelector": {"size": "small"}}
    with SchedulerProcess(own_control_plane.kubeconfig(), tmp_path) as process:
        process.until_ready()
        add_pod(admin, "apps", "victim", cpu="900m", terminationGracePeriodSeconds=30, **small)
        until(lambda: node_of(admin, "victim"))
        admin.merge(f"{APPS}/victim/status", {"status": {"phase": "Running"}})
        add_pod(admin, "apps", "high", cpu="900m", priorityClassName="high", **small)
        until(lambda: admin.get(f"{APPS}/high")["status"].get("nominatedNodeName"))
        # Beside the victim there is room, which the nominated pod takes.
        add_pod(admin, "apps", "waits", cpu="50m", priorityClassName="middle", **small)
        until(lambda: is_refused(admin, "waits"))
        admin.delete(f"{APPS}/high?gracePeriodSeconds=0")
        assert until(lambda: node_of(admin, "waits")) == "small"

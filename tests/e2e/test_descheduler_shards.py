"""Two replicas of `koord-policy descheduler --shards=2` on a real API server, with the shipped role."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .build import binary
from .control_plane import AdminClient, ApiError, ControlPlane
from .custom_resources import ALL, define
from .nodes import add_node
from .roles import NAMESPACE, account_kubeconfig, create_roles
from .scheduler_process import until
from .test_descheduler import DeschedulerProcess, add_pod, configuration

NODES = tuple(f"node-{number}" for number in range(6))
PODS = 36
MOST = 2
LEDGER = f"/api/v1/namespaces/{NAMESPACE}/configmaps/koord-descheduler"
TIMES = ("--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s")


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(binary(), tmp_path_factory.mktemp("shards-plane")) as running:
        define(running.admin, *ALL)
        create_roles(running.admin, "descheduler")
        for name in NODES:
            add_node(running.admin, name)
        yield running


def leaving(admin: AdminClient, namespace: str) -> set[str]:
    """The pods that were evicted: nothing ends them, so they stay as terminating."""
    found = admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {each["metadata"]["name"] for each in found if each["metadata"].get("deletionTimestamp")}


def begun(admin: AdminClient) -> int:
    """The number of the cycles that have begun."""
    try:
        cycle: int = json.loads(admin.get(LEDGER)["data"]["eviction-ledger.json"])["cycle"]
    except ApiError as error:
        if error.status == 404:
            return 0
        raise
    return cycle


@pytest.mark.parametrize("killed", ["leader", "member"])
def test_l54_the_share_of_a_killed_replica_is_taken_over_and_the_budget_is_kept(
    plane: ControlPlane, tmp_path: Path, killed: str,
):
    admin, namespace = plane.admin, "apps"
    admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for number in range(PODS):
        add_pod(admin, namespace, f"web-{number}", node=NODES[number % len(NODES)], grace=3600)
    config = configuration(tmp_path, namespace, interval="1s", maxNoOfPodsToEvictTotal=MOST)
    kubeconfig = account_kubeconfig(plane, "koord-policy-descheduler", tmp_path)
    options = ("--config", str(config), "--shards=2", *TIMES)

    def keeps_budget() -> bool:
        evicted = len(leaving(admin, namespace))
        assert evicted <= MOST * begun(admin)  # read later, so it can only be greater
        return True

    with (DeschedulerProcess(kubeconfig, tmp_path, *options, leader_elect=True) as first,
          DeschedulerProcess(kubeconfig, tmp_path, *options, leader_elect=True) as second):
        both = first, second
        for process in both:
            process.until_ready()
        until(lambda: all(len(each.status()["shards"]["members"]) == 2 for each in both), 60)
        until(lambda: keeps_budget() and all(each.status()["evictions"] for each in both), 60)
        assert {each.status()["shards"]["lease"] for each in both} == {
            "koord-descheduler-shard-0", "koord-descheduler-shard-1"}
        leader, member = both if first.status()["leading"] else (second, first)
        ended, left = (leader, member) if killed == "leader" else (member, leader)
        ended.process.send_signal(signal.SIGKILL)
        ended.process.wait(10)
        assert len(leaving(admin, namespace)) < PODS
        until(lambda: keeps_budget() and len(leaving(admin, namespace)) == PODS, 120)
        status = until(lambda: (found := left.status())["leading"] and found, 30)
        assert len(status["shards"]["members"]) == 1
        assert "koord_policy_descheduler_shard_members 1.0" in left.get("/metrics")
        assert left.stop() == 0
    recorded = admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    counted = Counter(each["regarding"]["name"] for each in recorded if each["reason"] == "Descheduled")
    # The killed one may have evicted a pod and not said so.
    assert (set(counted.values()), len(counted) >= PODS - MOST) == ({1}, True)
    assert not any(each.get("series") for each in recorded)
    lease = admin.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/koord-descheduler")["spec"]
    assert lease["holderIdentity"] == ""

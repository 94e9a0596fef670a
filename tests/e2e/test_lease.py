"""Processes elect a leader by a Lease on a real API server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.leader_election import LeaderElection, LeaseSettings

from .control_plane import AdminClient, ControlPlane
from .scheduler_process import until

HOLDER = """
import signal, sys, threading
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.leader_election import LeaderElection, LeaseSettings

kubeconfig, namespace, identity = sys.argv[1:]
ended = threading.Event()
election = LeaderElection(
    lambda: load_connection(configuration_file=kubeconfig), LeaseSettings(namespace, "scheduler", identity),
    on_started=lambda: print("leads", flush=True), on_stopped=ended.set)
signal.signal(signal.SIGTERM, lambda *_: ended.set())
election.start()
ended.wait()
gave_up = election.state.gave_up
election.stop(120)
sys.exit(1 if gave_up else 0)
"""


@contextmanager
def holder(kubeconfig: Path, namespace: str, identity: str) -> Iterator[subprocess.Popen[str]]:
    """A process that takes part in the election, and prints "leads" once it does."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(kubeconfig), namespace, identity],
                          stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_leads(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "leads\n"


def lease(admin: AdminClient, namespace: str) -> dict[str, Any]:
    spec: dict[str, Any] = admin.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/scheduler")["spec"]
    return spec


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def election_of(kubeconfig: Path, namespace: str, identity: str) -> LeaderElection:
    return LeaderElection(lambda: load_connection(configuration_file=kubeconfig),
                          LeaseSettings(namespace, "scheduler", identity))


def test_l18_another_process_takes_over_from_a_killed_leader_after_the_lease_has_run_out(
    cluster: ControlPlane, admin: AdminClient, namespace: str,
):
    with ExitStack() as stack:
        first = stack.enter_context(holder(cluster.kubeconfig(), namespace, "first"))
        until_it_leads(first)
        created = lease(admin, namespace)
        assert (created["holderIdentity"], created["leaseDurationSeconds"], created["leaseTransitions"]) == (
            "first", 15, 0)
        second = election_of(cluster.kubeconfig(), namespace, "second")
        second.start()
        stack.callback(second.stop, 120)
        until(lambda: second.state.holder == "first")
        first.kill()
        first.wait()
        left = lease(admin, namespace)
        assert not second.leads()
        until(second.leads)
        taken = lease(admin, namespace)
        assert (taken["holderIdentity"], taken["leaseTransitions"]) == ("second", 1)
        assert at(taken["acquireTime"]) - at(left["renewTime"]) >= timedelta(seconds=15)


def test_l19_a_leader_that_is_stopped_releases_the_lease_and_the_next_one_leads(
    cluster: ControlPlane, admin: AdminClient, namespace: str,
):
    first = election_of(cluster.kubeconfig(), namespace, "first")
    first.start()
    until(first.leads)
    with holder(cluster.kubeconfig(), namespace, "second") as second:
        # A thread that computes all the time must not keep the leader from its renewals.
        renewals = first.state.renewals
        until_then = time.monotonic() + 8
        while time.monotonic() < until_then:
            sum(range(1000))
        assert first.state.renewals > renewals
        assert first.leads()

        assert first.stop(120)
        released = lease(admin, namespace)
        until_it_leads(second)
        taken = lease(admin, namespace)
        # The second one may have taken it before we looked.
        assert (released.get("holderIdentity", ""), released["leaseDurationSeconds"]) in {("", 1), ("second", 15)}
        assert (taken["holderIdentity"], taken["leaseTransitions"]) == ("second", 1)

        second.send_signal(signal.SIGTERM)
        assert second.wait(120) == 0
    released = lease(admin, namespace)
    assert (released.get("holderIdentity", ""), released["leaseDurationSeconds"]) == ("", 1)


def test_l20_a_leader_ends_if_the_api_server_does_not_answer(own_control_plane: ControlPlane):
    with holder(own_control_plane.kubeconfig(), "default", "first") as process:
        until_it_leads(process)
        own_control_plane.components["kube-apiserver"].signal(signal.SIGSTOP)
        assert process.wait(120) == 1

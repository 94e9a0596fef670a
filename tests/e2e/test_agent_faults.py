"""The node agent while something that it needs is away: the API server, or room on the disk of its state.

`KOORD_POLICY_E2E_OUTAGE` is the length of the API server's absence in seconds, 8 without it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from .control_plane import ControlPlane
from .scheduler_process import until
from .test_agent import (
    BUSY,
    FREE,
    IDLE,
    AgentProcess,
    Machine,
    agent,
    burner,
    machine,
    node,
    policies,
)

__all__ = ["agent", "burner", "machine", "node", "policies"]
OUTAGE_S = float(os.environ.get("KOORD_POLICY_E2E_OUTAGE", "8"))


@pytest.fixture
def cluster(own_control_plane: ControlPlane) -> ControlPlane:
    return own_control_plane


def complaints(running: AgentProcess) -> Counter[str]:
    """Return the warnings of an agent, without what differs between two of one cause."""
    lines = [line for line in running.log.read_text().splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
    return Counter(re.sub(r"^\S+ \S+ |\d+", "", line) for line in lines)


def follow_the_load(machine: Machine, burner: tuple[str, str]) -> None:
    machine.burn(*burner)
    until(lambda: machine.quota == BUSY)
    machine.rest()
    until(lambda: machine.quota == IDLE)


def test_while_the_api_server_is_away_strategies_go_on_and_each_cause_is_one_line(
    machine, burner, agent, policies, cluster,
):
    with agent("--policies", str(policies)) as running:
        until(lambda: machine.quota == IDLE)
        before = running.resident_mib
        cluster.components["kube-apiserver"].stop()
        follow_the_load(machine, burner)
        time.sleep(OUTAGE_S)
        follow_the_load(machine, burner)
        found = complaints(running)
        cluster.components["kube-apiserver"].start()
        cluster.wait_until_ready()
        print(f"{before:.1f} MiB before, {running.resident_mib:.1f} MiB after {OUTAGE_S:g} s", dict(found), sep="\n")
        assert {line for line, times in found.items() if times > 1} == set()
        assert running.resident_mib < before + 5
        assert running.stop() == 0
    assert machine.quota == FREE


def test_on_a_full_disk_nothing_is_changed_until_there_is_room(machine, burner, cluster, node, policies, tmp_path):
    state = tmp_path / "agent" / "state"
    state.mkdir(parents=True, mode=0o700)
    fill = f'mount -t tmpfs -o size=64k,mode=700 tmpfs {state} && {{ head -c 1M /dev/zero > {state}/x; exec "$@"; }}'
    inside = ["unshare", "-m", "--", "sh", "-c", fill, "sh"]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("mounts cannot be made here")
    with AgentProcess(cluster.kubeconfig(), machine, node, tmp_path / "agent", "--policies", str(policies),
                      wrapper=inside) as running:
        until(lambda: "No space left on device" in running.log.read_text())
        assert machine.quota == FREE
        found = complaints(running)
        assert {line for line, times in found.items() if times > 1} == set()
        Path(f"/proc/{running.process.pid}/root{state}/x").unlink()
        until(lambda: machine.quota == IDLE)
        assert running.stop() == 0
    assert machine.quota == FREE

"""The node agent as a process: on control groups of the machine's kernel, with a real API server.

A pod that is in the API server has a control group of its own, in which the tests run a busy process: what the agent
measures is what the kernel accounts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from tests.process_figures import memory_mib

from .control_plane import AdminClient, ControlPlane, NamedCluster
from .nodes import add_node
from .scheduler_process import GRACE_S, until

SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: squeeze}
spec:
  interval: 1s
  forEach: node
  window: 2s
  match: {nodes: {names: [%s]}}
  aggregates:
  - {name: used, over: pods, function: sum, expression: podUsage.cpu}
  actions:
  - name: squeeze
    suppressCPU: {target: "aggregates.used > 300.0 ? 1000.0 : 3000.0", policy: CFSQuota}
    otherwise: Recover
"""
BUSY, IDLE, FREE = "100000", "300000", "-1"


class Machine:
    """A tree of control groups v1 as kubelet makes it, of its own name; use as a context manager."""

    def __init__(self) -> None:
        self.name = f"koord-policy-{secrets.token_hex(4)}"
        self._busy: subprocess.Popen[bytes] | None = None

    def path(self, subsystem: str, below: str = "") -> Path:
        return Path("/sys/fs/cgroup") / subsystem / self.name / below

    def __enter__(self) -> Self:
        for subsystem in SUBSYSTEMS:
            for below in ("", "burstable", "besteffort"):
                self.make(subsystem, below)
        return self

    def make(self, subsystem: str, below: str) -> None:
        path = self.path(subsystem, below)
        path.mkdir()
        if subsystem == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (path / file).write_text((path.parent / file).read_text())

    def add_pod(self, uid: str, container: str) -> None:
        for subsystem in SUBSYSTEMS:
            self.make(subsystem, f"burstable/pod{uid}")
            self.make(subsystem, f"burstable/pod{uid}/{container}")

    def burn(self, uid: str, container: str) -> None:
        """Run a process in a container that uses as much CPU as it gets."""
        self._busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for subsystem in SUBSYSTEMS:
            (self.path(subsystem, f"burstable/pod{uid}/{container}") / "cgroup.procs").write_text(str(self._busy.pid))

    def rest(self) -> None:
        if self._busy is not None:
            self._busy.kill()
            self._busy.wait()
            self._busy = None

    @property
    def quota(self) -> str:
        return (self.path("cpu", "besteffort") / "cpu.cfs_quota_us").read_text().strip()

    def __exit__(self, *_exception: object) -> None:
        self.rest()
        for subsystem in SUBSYSTEMS:
            for path, _, _ in os.walk(self.path(subsystem), topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()


class AgentProcess:
    """The agent on a machine; use as a context manager. Standard output and error are in files."""

    def __init__(self, kubeconfig: Path, machine: Machine, node: str, directory: Path, *options: str,
                 wrapper: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.out = directory / f"agent-{time.monotonic_ns()}.out"
        self.log = self.out.with_suffix(".log")
        command = [*wrapper, sys.executable, "-m", "koordpolicy", "agent", "--node-name", node, "--pods-from", "api",
                   "--kubepods", machine.name, "--state-dir", str(directory / "state"), *options]
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                                            env={**os.environ, "KUBECONFIG": str(kubeconfig)})

    def __enter__(self) -> Self:
        until(lambda: self._alive() and "ready: node" in self.out.read_text())
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def resident_mib(self) -> float:
        return memory_mib(self.process.pid)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GRACE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return True


@pytest.fixture
def machine() -> Iterator[Machine]:
    root = Path("/sys/fs/cgroup/cpu")
    if not (os.access(root, os.W_OK) and (root / "cpu.shares").exists()):
        pytest.skip("needs control groups v1 that this user may write")
    with Machine() as made:
        yield made


@pytest.fixture
def node(admin: AdminClient) -> Iterator[str]:
    name = f"node-{secrets.token_hex(4)}"
    add_node(admin, name, cpu="8", memory="16Gi")
    yield name
    admin.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def burner(admin: AdminClient, namespace: str, node: str, machine: Machine) -> tuple[str, str]:
    """A burstable pod on the node: its UID and the id of its container."""
    path, container = f"/api/v1/namespaces/{namespace}/pods", secrets.token_hex(32)
    pod = admin.create(path, {"metadata": {"name": "burner"}, "spec": {
        "nodeName": node, "containers": [{"name": "main", "image": "example/main",
                                          "resources": {"requests": {"cpu": "1"}}}]}})
    admin.merge(f"{path}/burner/status", {"status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [
        {"name": "main", "image": "example/main", "imageID": "", "ready": True, "restartCount": 0,
         "containerID": f"containerd://{container}", "state": {"running": {}}}]}})
    uid = pod["metadata"]["uid"]
    machine.add_pod(uid, container)
    return uid, container


@pytest.fixture
def policies(tmp_path: Path, node: str) -> Path:
    path = tmp_path / "policies"
    path.mkdir()
    (path / "squeeze.yaml").write_text(POLICY % node)
    return path


@pytest.fixture
def agent(cluster: ControlPlane | NamedCluster, machine: Machine, node: str, tmp_path: Path):
    def start(*options: str) -> AgentProcess:
        return AgentProcess(cluster.kubeconfig(), machine, node, tmp_path / "agent", *options)

    return start


def test_suppression_follows_the_load_and_the_end_gives_back(machine, burner, agent, policies):
    with agent("--policies", str(policies)) as running:
        until(lambda: machine.quota == IDLE)
        machine.burn(*burner)
        until(lambda: machine.quota == BUSY)
        machine.rest()
        until(lambda: machine.quota == IDLE)
        print(f"{running.resident_mib:.1f} MiB resident")
        assert running.resident_mib < 80
        assert running.stop() == 0
    assert machine.quota == FREE


def test_a_policy_that_is_removed_gives_back_and_one_that_comes_back_suppresses(machine, burner, agent, policies):
    with agent("--policies", str(policies), "--allow-empty"):
        until(lambda: machine.quota == IDLE)
        text = (policies / "squeeze.yaml").read_text()
        (policies / "squeeze.yaml").unlink()
        until(lambda: machine.quota == FREE)
        (policies / "squeeze.yaml").write_text(text)
        until(lambda: machine.quota == IDLE)


def test_what_a_killed_agent_left_is_given_back_by_the_next_one(machine, burner, agent, policies):
    with agent("--policies", str(policies)) as running:
        until(lambda: machine.quota == IDLE)
        running.kill()
    assert machine.quota == IDLE
    with agent("--policies", str(policies), "--feature-gates", "squeeze=false") as running:
        until(lambda: machine.quota == FREE)
        assert running.stop() == 0


def test_a_restart_decides_anew_at_once_and_knows_the_original_value(machine, burner, agent, policies):
    with agent("--policies", str(policies)) as running:
        until(lambda: machine.quota == IDLE)
        running.kill()
    with agent("--policies", str(policies)) as running:
        until(lambda: machine.quota == IDLE)
        assert running.stop() == 0
    assert machine.quota == FREE


def test_values_may_stay_for_the_next_process(machine, burner, agent, policies):
    with agent("--policies", str(policies), "--keep-on-exit") as running:
        until(lambda: machine.quota == IDLE)
        assert running.stop() == 0
    assert machine.quota == IDLE
    with agent("--policies", str(policies)) as running:
        assert running.stop() == 0
    assert machine.quota == FREE


def test_a_dry_run_changes_nothing_and_says_what_it_would(machine, burner, agent, policies):
    with agent("--policies", str(policies), "--dry-run") as running:
        until(lambda: "dry run: `squeeze` would suppressCPU" in running.log.read_text())
        assert machine.quota == FREE
        assert running.stop() == 0
    assert machine.quota == FREE


def test_a_second_agent_with_the_same_state_is_refused(machine, burner, agent, policies):
    with agent("--policies", str(policies)):
        second = agent("--policies", str(policies))
        assert second.process.wait(120) == 3
        assert "another agent uses the state directory" in second.log.read_text()


def test_a_koordlet_on_the_node_is_not_disturbed(machine, burner, agent, policies, tmp_path):
    # A real process would be seen by the agents of other tests, too.
    proc = tmp_path / "proc"
    (proc / "77").mkdir(parents=True)
    (proc / "77" / "cmdline").write_bytes(b"/koordlet\0")
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            (proc / path.name).symlink_to(path)
    refused = agent("--policies", str(policies), "--proc-root", str(proc))
    assert refused.process.wait(120) == 2
    assert "the process 77 is a koordlet" in refused.log.read_text()
    with agent("--policies", str(policies), "--proc-root", str(proc), "--own-strategies", "squeeze"):
        until(lambda: machine.quota == IDLE)


def test_an_agent_gives_back_what_it_changed_and_ends_if_a_koordlet_starts_later(
    machine, burner, agent, policies, tmp_path,
):
    proc = tmp_path / "proc"
    proc.mkdir()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            (proc / path.name).symlink_to(path)
    running = agent("--policies", str(policies), "--proc-root", str(proc))
    until(lambda: machine.quota == IDLE, 60)
    (proc / "77").mkdir()
    (proc / "77" / "cmdline").write_bytes(b"/koordlet\0")
    assert running.process.wait(120) == 2
    assert (machine.quota, "the process 77 is a koordlet: both would write" in running.log.read_text()) == (FREE, True)


def test_once_ends_by_itself(machine, burner, agent, policies):
    running = agent("--policies", str(policies), "--once")
    assert running.process.wait(120) == 0
    assert machine.quota == FREE

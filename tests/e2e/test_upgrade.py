"""A Deployment is upgraded to another version of the wheel, and rolled back, while pods arrive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .control_plane import AdminClient, ControlPlane
from .nodes import add_node, add_pod
from .periodic import Periodic
from .scheduler_process import SchedulerProcess, until

PROJECT = Path(__file__).parents[2]
ROOM = 40
"""The number of pods that a node has room for."""
TIMES = ("--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=1s")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """This version and a later one, each installed from its wheel into a directory of its own."""
    work = tmp_path_factory.mktemp("versions")
    return install(work / "old", "1.0.0"), install(work / "new", "1.1.0")


def install(directory: Path, version: str) -> Path:
    source, wheels, installed = directory / "source", directory / "wheels", directory / "installed"
    source.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=PROJECT,
                            check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to((PROJECT / name).readlink() if (PROJECT / name).is_symlink() else PROJECT / name)
    module = source / "src" / "koordpolicy" / "__init__.py"
    text = module.read_text(encoding="utf-8")
    module.unlink()
    lines = [f'__version__ = "{version}"' if line.startswith("__version__ = ") else line for line in text.splitlines()]
    module.write_text("\n".join(lines) + "\n", encoding="utf-8")
    python = [sys.executable, "-m"]
    subprocess.run([*python, "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source)],
                   check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*python, "pip", "install", "--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check",
                    "--target", str(installed), str(wheel)], check=True, capture_output=True)
    return installed


class Arrivals(Periodic):
    """Pods that are created all the while, until the end of the context or `stop`."""

    def __init__(self, admin: AdminClient) -> None:
        self.names: list[str] = []
        self._admin = admin
        super().__init__(self._create, 0.1)

    def _create(self) -> None:
        name = f"pod-{len(self.names)}"
        add_pod(self._admin, "apps", name, cpu="1", scheduler="koord-policy")
        self.names.append(name)


def bound(admin: AdminClient) -> dict[str, str]:
    """The node of each pod that has one."""
    pods = admin.get("/api/v1/namespaces/apps/pods")["items"]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}


def bindings(admin: AdminClient) -> Counter[str]:
    """The number of events of each pod that say that it was bound."""
    events = admin.get("/apis/events.k8s.io/v1/namespaces/apps/events")["items"]
    return Counter(event["regarding"]["name"] for event in events if event["reason"] == "Scheduled")


def test_an_upgrade_and_a_rollback_lose_no_pod_and_bind_none_twice(
    own_control_plane: ControlPlane, tmp_path: Path, versions: tuple[Path, Path],
):
    admin, (old, new) = own_control_plane.admin, versions
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    until(lambda: admin.get("/api/v1/namespaces/kube-system"))
    for number in range(50):
        add_node(admin, f"node-{number}", cpu=str(ROOM), pods=1000)

    def scheduler(name: str, installed: Path) -> SchedulerProcess:
        return SchedulerProcess(own_control_plane.kubeconfig(), tmp_path / name, *TIMES, leader_elect=True,
                                installed=installed)

    def replace(running: SchedulerProcess, following: SchedulerProcess) -> None:
        """As a rolling update does it: the next replica is ready before the last one is stopped."""
        following.until_ready()
        assert running.stop() == 0
        seen = len(arrivals.names)
        until(lambda: len(bound(admin)) > seen)

    with Arrivals(admin) as arrivals, scheduler("first", old) as first:
        first.until_ready()
        until(lambda: len(bound(admin)) >= 10)
        with scheduler("upgraded", new) as upgraded:
            replace(first, upgraded)
            with scheduler("rolled-back", old) as rolled_back:
                replace(upgraded, rolled_back)
                arrivals.stop()
                until(lambda: len(bound(admin)) == len(arrivals.names))
                assert rolled_back.stop() == 0
    nodes = bound(admin)
    assert nodes.keys() == set(arrivals.names)
    assert max(Counter(nodes.values()).values()) <= ROOM
    assert set(bindings(admin).values()) == {1}


def test_the_versions_are_two(versions: tuple[Path, Path]):
    assert [version_of(installed) for installed in versions] == ["koord-policy 1.0.0", "koord-policy 1.1.0"]


def version_of(installed: Path) -> str:
    return subprocess.run([sys.executable, "-m", "koordpolicy", "--version"], check=True, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(installed)}).stdout.strip()

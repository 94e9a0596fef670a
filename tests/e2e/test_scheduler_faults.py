"""Bindings that are refused or whose answer is lost: no pod is bound twice, and none is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from .control_plane import AdminClient, ApiError, ControlPlane
from .nodes import add_node, add_pod
from .proxy import FaultProxy
from .scheduler_process import SchedulerProcess, until

APPS = "/api/v1/namespaces/apps/pods"


class Interceptor(FaultProxy):
    """A proxy that calls `before_binding` with the pod's name before the first binding of each pod goes on."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.before_binding: dict[str, Callable[[], None]] = {}
        self.bindings: list[tuple[str, int]] = []
        """The pod and the server's answer of each binding."""
        self.lost_answers: set[str] = set()
        """The pods whose first binding gets no answer though it is carried out."""
        self.refused_paths: tuple[str, ...] = ()
        """Requests with such a part in their path are answered 500."""
        self.observe = self._note

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if any(part in request.path for part in self.refused_paths):
            return web.Response(status=500, text="etcd is gone")
        name = request.path.split("/")[-2] if request.path.endswith("/binding") else ""
        if (change := self.before_binding.pop(name, None)) is not None:
            change()
        answer = await super()._answer(request)
        if name in self.lost_answers:
            self.lost_answers.discard(name)
            return self._reset(request, "reset after")
        return answer

    def _note(self, _method: str, path: str, _body: bytes, status: int) -> None:
        if path.endswith("/binding"):
            self.bindings.append((path.split("/")[-2], status))


@pytest.fixture
def admin(own_control_plane: ControlPlane) -> AdminClient:
    admin = own_control_plane.admin
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    add_node(admin, "one", cpu="1")
    return admin


@pytest.fixture
def proxy(own_control_plane: ControlPlane, tmp_path: Path) -> Iterator[Interceptor]:
    with Interceptor(own_control_plane.url, own_control_plane.certificate_authority, tmp_path) as running:
        yield running


@pytest.fixture
def kubeconfig(own_control_plane: ControlPlane, proxy: Interceptor) -> Path:
    return own_control_plane.kubeconfig(url=proxy.url, authority=proxy.certificate_authority)


@pytest.fixture
def scheduler(kubeconfig: Path, admin: AdminClient, tmp_path: Path) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(kubeconfig, tmp_path / "scheduler") as running:
        running.until_ready()
        yield running


def node_of(admin: AdminClient, name: str) -> str:
    with contextlib.suppress(ApiError):
        return str(admin.get(f"{APPS}/{name}")["spec"].get("nodeName") or "")
    return ""


def bind(admin: AdminClient, name: str, node: str) -> None:
    admin.create(f"{APPS}/{name}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}})


@pytest.mark.usefixtures("scheduler")
def test_l23_a_pod_that_another_one_has_bound_leaves_its_room_and_is_not_bound_again(
    admin: AdminClient, proxy: Interceptor,
):
    add_node(admin, "two", cpu="1", labels={"for": "others"})
    proxy.before_binding["a"] = lambda: bind(admin, "a", "two")
    add_pod(admin, "apps", "a", cpu="900m", nodeSelector={"kubernetes.io/hostname": "one"})
    until(lambda: proxy.bindings)
    # The room on the node that was guessed is free again.
    add_pod(admin, "apps", "b", cpu="900m", nodeSelector={"kubernetes.io/hostname": "one"})
    assert until(lambda: node_of(admin, "b")) == "one"
    add_pod(admin, "apps", "c", cpu="50m", nodeSelector={"kubernetes.io/hostname": "one"})
    until(lambda: node_of(admin, "c") and len(proxy.bindings) == 3)
    assert (node_of(admin, "a"), [pod for pod, _ in proxy.bindings]) == ("two", ["a", "b", "c"])


@pytest.mark.usefixtures("scheduler")
def test_l24_a_binding_whose_answer_is_lost_is_found_by_reading_the_pod_and_not_repeated(
    admin: AdminClient, proxy: Interceptor,
):
    proxy.lost_answers.add("a")
    add_pod(admin, "apps", "a")
    assert until(lambda: node_of(admin, "a")) == "one"
    events = "/apis/events.k8s.io/v1/namespaces/apps/events"
    until(lambda: [each for each in admin.get(events)["items"] if each["reason"] == "Scheduled"])
    add_pod(admin, "apps", "b")
    until(lambda: node_of(admin, "b") and len(proxy.bindings) == 2)
    assert (proxy.bindings, proxy.counts["reset after"]) == ([("a", 201), ("b", 201)], 1)
    until(lambda: len(admin.get(events)["items"]) > 1)
    assert [each["reason"] for each in admin.get(events)["items"]] == ["Scheduled", "Scheduled"]


@pytest.mark.usefixtures("scheduler")
def test_l25_a_pod_that_is_gone_is_forgotten_and_its_successor_is_bound_by_its_own_uid(
    admin: AdminClient, proxy: Interceptor,
):
    def delete(name: str) -> None:
        admin.delete(f"{APPS}/{name}?gracePeriodSeconds=0")

    def replace() -> None:
        delete("b")
        add_pod(admin, "apps", "b", cpu="800m")

    proxy.before_binding["a"] = lambda: delete("a")
    add_pod(admin, "apps", "a", cpu="900m")
    until(lambda: proxy.bindings)
    proxy.before_binding["b"] = replace
    add_pod(admin, "apps", "b", cpu="900m")
    assert until(lambda: node_of(admin, "b")) == "one"
    until(lambda: len(proxy.bindings) == 3)
    assert proxy.bindings == [("a", 404), ("b", 409), ("b", 201)]


def test_l20_a_leader_that_cannot_renew_its_lease_ends_with_1_and_binds_nothing_afterwards(
    admin: AdminClient, proxy: Interceptor, kubeconfig: Path, tmp_path: Path,
):
    times = ("--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=1s")
    with SchedulerProcess(kubeconfig, tmp_path / "scheduler", *times, leader_elect=True) as process:
        process.until_ready()
        add_pod(admin, "apps", "a")
        assert until(lambda: node_of(admin, "a")) == "one"
        proxy.refused_paths = ("/leases",)
        assert process.process.wait(120) == 1
        assert "the Lease was lost" in process.log.read_text()
    add_pod(admin, "apps", "b")
    assert node_of(admin, "b") == ""


@pytest.mark.usefixtures("scheduler")
def test_pods_are_bound_after_an_outage_of_the_api_server_and_cut_watches(admin: AdminClient, proxy: Interceptor):
    proxy.faults.down = True
    proxy.cut_watches()
    for number in range(5):
        add_pod(admin, "apps", f"p{number}", cpu="50m")
    proxy.faults.down = False
    for number in range(5):
        assert until(lambda number=number: node_of(admin, f"p{number}")) == "one"
    proxy.cut_watches()
    proxy.faults.throttled = 0.5
    for number in range(5):
        add_pod(admin, "apps", f"q{number}", cpu="50m")
    for number in range(5):
        assert until(lambda number=number: node_of(admin, f"q{number}")) == "one"
    assert sorted(pod for pod, status in proxy.bindings if status == 201) == sorted(
        [*(f"p{number}" for number in range(5)), *(f"q{number}" for number in range(5))])

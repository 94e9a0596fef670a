from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.client.object_server import ObjectServer
from tests.output_schemas import read_output

from .conftest import SPREAD, Run, metric, node, pod

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "a"}}}
CRDS = ("Device", "ElasticQuota", "NodeSLO", "PodGroup", "Reservation")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer(absent=CRDS, page=3) as running:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": running.server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield running


def fill(server: ObjectServer, pods: int = 7) -> None:
    managed = node("b")
    managed["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    for each in (node("a"), managed, NAMESPACE, metric("a", "1"), *(pod(f"p{number}", "1") for number in range(pods))):
        server.put(each)


def test_a_dump_has_all_that_the_plugins_read_and_other_commands_take_it(
    run: Run, server: ObjectServer, tmp_path: Path, policies: Path,
):
    fill(server)
    path = tmp_path / "cluster.json"
    done = run("dump", "--cluster", "kube", "--policies", policies, "--out", path, "--output", "json")
    assert (done.exit, done.err) == (0, "")
    found = read_output("dump", done.out)
    assert {kind: count for kind, count in found["objects"].items() if count} == {
        "Node": 2, "Pod": 7, "Namespace": 1, "NodeMetric": 1}
    assert list(found["objects"])[:3] == ["Node", "Pod", "Namespace"]
    assert {kind for kind, why in found["omitted"].items() if why == "the cluster does not have it"} == set(CRDS)
    assert found["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    items = json.loads(path.read_text())["items"]
    assert [(item["apiVersion"], item["kind"]) for item in items[:3]] == [("v1", "Node"), ("v1", "Node"), ("v1", "Pod")]
    assert "managedFields" not in path.read_text()
    placed = run("scheduler", "--cluster", path, "--policies", policies, "--output", "json")
    assert (placed.exit, placed.json["pending"]) == (0, 7)
    assert "Namespace" not in str(placed.json.get("lacking"))


def test_the_text_says_what_is_in_the_dump_and_what_is_not(run: Run, server: ObjectServer, tmp_path: Path):
    fill(server, pods=0)
    done = run("dump", "--cluster", "kube", "--out", tmp_path / "cluster.json")
    lines = done.out.splitlines()
    assert any(line.split() == ["Node", "2"] for line in lines)
    assert any(line.split() == ["Pod", "0"] for line in lines)
    assert any(line.split(maxsplit=1) == ["ElasticQuota", "the cluster does not have it"] for line in lines)
    assert "4 objects of" in lines[-1]
    assert "\ndumping" not in done.err


def test_a_link_at_the_path_is_replaced_and_not_followed(run: Run, server: ObjectServer, tmp_path: Path):
    fill(server)
    target, path = tmp_path / "target", tmp_path / "cluster.json"
    target.write_text("untouched")
    path.symlink_to(target)
    assert run("dump", "--cluster", "kube", "--out", path).exit == 0
    assert target.read_text() == "untouched"
    assert not path.is_symlink()


def test_a_failed_dump_leaves_the_old_one(run: Run, server: ObjectServer, tmp_path: Path):
    path = tmp_path / "cluster.json"
    path.write_text("old")
    server.absent.add("Pod")
    done = run("dump", "--cluster", "kube", "--out", path)
    assert done.exit == 3
    assert "pods cannot be listed: the cluster does not have it" in done.err
    assert path.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cluster.json", "kubeconfig"]


def test_a_cluster_that_does_not_answer_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with ObjectServer() as stopped:
        url = stopped.server
    (tmp_path / "kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}]}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    done = run("dump", "--cluster", "kube", "--out", tmp_path / "cluster.json")
    assert done.exit == 3
    assert f"the cluster at {url} cannot be reached" in done.err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--cluster", "dump.json", "--out", "x"),
     "`--cluster` takes `kube[:CONTEXT]` here: a dump is made of a live cluster"),
    (("--cluster", "kube", "--out", "/"), "cannot write `/`: it is not a file"),
    (("--cluster", "kube", "--out", "gone/x"), "cannot write `gone/x`: no such file or directory"),
])
def test_usage_errors_say_what_is_wrong(
    run: Run, server: ObjectServer, arguments: tuple[str, ...], message: str,
):
    done = run("dump", *arguments)
    assert (done.exit, done.err) == (2, f"koord-policy: {message}\n")


def test_invalid_policies_are_reported_before_the_cluster_is_read(run: Run, server: ObjectServer, tmp_path: Path):
    (tmp_path / "bad.yaml").write_text(SPREAD.replace("usage.cpu", "nothing"))
    done = run("dump", "--cluster", "kube", "--policies", tmp_path / "bad.yaml", "--out", tmp_path / "x")
    assert done.exit == 3
    assert server.requests == []

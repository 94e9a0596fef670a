"""Commands take policies from an API server as they take files: listed once, with problems by key or field."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.cli.cluster_loading import context_of
from koordpolicy.engine.documents.crd import definitions
from tests.engine.client.fake_api_server import api_server

GROUP = "/apis/policy.koordinator.sh/v1alpha2"
EMPTY = {"metadata": {"resourceVersion": "1"}, "items": []}
PLURALS = ("schedulerplugins", "qosplugins", "deschedulerplugins", "policyparams")

Json = dict[str, Any]


def plugin(name: str, expression: str = "true") -> Json:
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin",
            "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "1", "generation": 1},
            "spec": {"filter": [{"name": "f", "expression": expression}]}}


def objects(*items: Json) -> dict[str, Json]:
    """Return the lists of all kinds, with these SchedulerPlugins."""
    return {f"{GROUP}/{plural}": EMPTY for plural in PLURALS} | {
        f"{GROUP}/schedulerplugins": {**EMPTY, "items": list(items)}}


def configmap(**data: str) -> dict[str, Json]:
    item = {"metadata": {"namespace": "team", "name": "p", "uid": "u", "resourceVersion": "1"}, "data": data}
    return {"/api/v1/namespaces/team/configmaps": {**EMPTY, "items": [item]}}


def answering(lists: dict[str, Json]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a handler that answers lists, streams none, and has no other kinds."""
    async def answer(request: web.Request) -> web.StreamResponse:
        code = 404 if request.path not in lists else 400 if "watch" in request.query else 200
        if code != 200:
            return web.json_response({"kind": "Status", "status": "Failure", "code": code}, status=code)
        return web.json_response(lists[request.path])

    return answer


@contextmanager
def served(lists: dict[str, Json]) -> Iterator[str]:
    """Run an API server in a thread of its own; yields its URL."""
    loop, stop, urls = asyncio.new_event_loop(), asyncio.Event(), queue.SimpleQueue[str]()

    async def serve() -> None:
        async with api_server(answering(lists)) as fake:
            urls.put(fake.server)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield urls.get(timeout=60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command beside an API server with some lists, by path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    def run(lists: dict[str, Json], *arguments: str) -> tuple[int, str, str]:
        with served(lists) as url:
            (tmp_path / "kubeconfig").write_text(json.dumps({
                "apiVersion": "v1", "kind": "Config",
                "current-context": "other" if "kube:here" in arguments else "here",
                "clusters": [{"name": "c", "cluster": {"server": url}},
                             {"name": "o", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}},
                             {"name": "other", "context": {"cluster": "o", "user": "u"}}]}))
            code = cli.main(arguments, builtins)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_lint_checks_objects_and_names_their_fields(run):
    assert run(objects(plugin("a")), "lint", "crd")[0] == 0
    code, out, _ = run(objects(plugin("a"), plugin("b", "nodes.x")), "lint", "crd")
    assert code == 3
    assert "crd:SchedulerPlugin/b: spec.filter[0].expression: error: no variable `nodes`" in out
    code, out, _ = run(objects(plugin("b", "nodes.x")), "lint", "crd", "--output", "json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["file"], problem["field"]) == (3, "crd:SchedulerPlugin/b", "spec.filter[0].expression")


def test_lint_checks_a_configmap_and_names_key_line_and_column(run):
    text = yaml.safe_dump({key: plugin("a", "nodes.x")[key] for key in ("apiVersion", "kind", "spec")}
                          | {"metadata": {"name": "a"}})
    code, out, _ = run(configmap(**{"a.yaml": text}), "lint", "configmap:team/p")
    assert (code, "configmap:team/p/a.yaml:7:17: error: no variable `nodes`" in out) == (3, True)


def test_plugins_of_files_and_of_a_cluster_are_listed_together(run, tmp_path):
    body = plugin("of-a-file")
    body["metadata"] = {"name": "of-a-file"}
    (tmp_path / "crd").mkdir()
    (tmp_path / "crd" / "a.json").write_text(json.dumps(body))
    code, out, _ = run(objects(plugin("of-the-cluster")), "plugins", "--policies", "crd", "--policies", "./crd",
                       "--output", "json")
    found = {each["name"]: each["origin"] for each in json.loads(out)["plugins"]
             if each["name"].startswith("of-")}
    assert (code, found) == (0, {
        "of-a-file": "crd/a.json:1", "of-the-cluster": "crd:SchedulerPlugin/of-the-cluster"})


def test_policies_come_from_the_context_of_the_cluster(run):
    node = {"metadata": {"name": "n", "uid": "n", "resourceVersion": "1"}, "status": {"allocatable": {"cpu": "1"}}}
    lists = objects(plugin("a")) | {"/api/v1/nodes": {**EMPTY, "items": [node]}, "/api/v1/pods": EMPTY}
    code, out, _ = run(lists, "scheduler", "--cluster", "kube:here", "--dry-run", "--policies", "crd", "-o", "json")
    assert (code, json.loads(out)["pending"]) == (0, 0)
    assert [context_of(each) for each in (None, "kube", "kube:", "kube:a:b", "dump:x")] == [
        None, None, None, "a:b", None]


def test_what_a_cluster_has_is_compared_with_files(run, tmp_path):
    node = {"metadata": {"name": "n", "uid": "n", "resourceVersion": "1"},
            "status": {"allocatable": {"cpu": "1", "pods": "9"}}}
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "p", "resourceVersion": "1"},
           "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}
    body = plugin("a", "false")
    body["metadata"] = {"name": "a"}
    (tmp_path / "new.json").write_text(json.dumps(body))
    lists = configmap(**{"a.json": json.dumps(body).replace("false", "true")}) | objects(plugin("a")) | {
        "/api/v1/nodes": {**EMPTY, "items": [node]}, "/api/v1/pods": {**EMPTY, "items": [pod]}}
    for old in ("crd", "configmap:team/p"):
        code, out, _ = run(lists, "diff", old, "new.json", "--cluster", "kube:here", "--output", "json")
        found = json.loads(out)
        assert (code, found["old"], found["difference"]["counts"]["nowPending"]) == (0, old, 1), found


@pytest.mark.parametrize(("lists", "arguments", "code", "message"), [
    ({}, ("plugins", "--policies", "crd"), 3, "`crd` cannot be read: the cluster does not have it"),
    ({}, ("lint", "crd"), 3, "koord-policy crd | kubectl apply"),
    (objects(), ("plugins", "--policies", "crd"), 3, "there is no policy document in `crd`"),
    (objects(), ("lint", "crd"), 3, "there is no document in `crd`"),
    ({"/api/v1/namespaces/team/configmaps": EMPTY}, ("plugins", "--policies", "configmap:team/p"), 3,
     "there is no ConfigMap `p` in the namespace `team`"),
    ({}, ("plugins", "--policies", "configmap:p"), 2, "names no ConfigMap: write `configmap:NAMESPACE/NAME`"),
    ({}, ("plugins", "--policies", "crd", "--policies", "crd"), 2, "`crd` is named twice"),
    ({}, ("scheduler", "--extender", "--policies", "x", "--shadow", "crd"), 2, "policies in the shadow come from"),
    ({}, ("scheduler", "--extender", "--policies", "crd", "--bind", "127.0.0.1:0"), 3,
     "`crd` cannot be read: the cluster does not have it"),
])
def test_what_cannot_be_read_is_said_with_what_to_do(run, tmp_path, lists, arguments, code, message):
    (tmp_path / "x").mkdir()
    found, out, err = run(lists, *arguments)
    assert (found, message in out + err) == (code, True), (out, err)


@pytest.mark.parametrize("text", ["", "a", "a/", "/b", "a/b/c"])
def test_a_lease_has_a_namespace_and_a_name(run, capsys, text):
    with pytest.raises(SystemExit) as stop:
        cli.main(["scheduler", "--extender", "--policies", "crd", "--status-lease", text], builtins)
    assert stop.value.code == 2
    assert "is not a Lease such as kube-system/koord-policy-status" in capsys.readouterr().err


def test_crd_prints_each_definition_as_a_yaml_document_without_aliases(capsys):
    assert cli.main(["crd"], builtins) == 0
    text = capsys.readouterr().out
    assert list(yaml.safe_load_all(text)) == [json.loads(json.dumps(each)) for each in definitions()]
    assert " *id0" not in text

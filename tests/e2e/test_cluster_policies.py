"""Policies stored in a real API server: its validation, what servers make of them, their status, and who may write."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.documents.crd import definitions
from koordpolicy.engine.documents.objects import PLURALS

from . import roles
from .control_plane import AdminClient, ApiError, ControlPlane, NamedCluster
from .processes import process
from .scheduler_process import GRACE_S, until
from .test_control_plane import node

ROOT = Path(__file__).parents[2]
GROUP = "/apis/policy.koordinator.sh/v1alpha2"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {kind.value: plural for kind, plural in PLURALS.items()}
SHIPPED = sorted(path for path in (ROOT / "policies").rglob("*.yaml") if not path.name.endswith(".test.yaml"))

Json = dict[str, Any]


def path_of(each: Mapping[str, Any], name: str = "") -> str:
    return f"{GROUP}/{KINDS[each['kind']]}" + (f"/{name}" if name else "")


def create(admin: AdminClient, each: Json, *, dry_run: bool = False) -> Json:
    query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
    return dict(admin.create(path_of(each) + query, each))


@pytest.fixture
def kinds(admin: AdminClient) -> Iterator[AdminClient]:
    """The kinds are installed, and no objects of them are left before and after a test."""
    for each in definitions():
        try:
            admin.create(f"{CRDS}?fieldValidation=Strict", each)
        except ApiError as error:
            if error.status != 409:
                raise
    until(lambda: all(served(admin, plural) for plural in KINDS.values()))
    remove_all(admin)
    yield admin
    remove_all(admin)


def served(admin: AdminClient, plural: str) -> bool:
    try:
        admin.get(f"{GROUP}/{plural}")
    except ApiError:
        return False
    return True


def remove_all(admin: AdminClient) -> None:
    for plural in KINDS.values():
        admin.delete(f"{GROUP}/{plural}")


def plugin(name: str, expression: str = "true", **spec: Any) -> Json:
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": name},
            "spec": {"filter": [{"name": "f", "expression": expression}], **spec}}


def params(name: str, **values: Any) -> Json:
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "PolicyParams", "metadata": {"name": name},
            "spec": {"params": values}}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT / "policies")))
def test_the_api_server_takes_every_shipped_policy(kinds: AdminClient, path: Path):
    for each in yaml.safe_load_all(path.read_text()):
        assert create(kinds, each, dry_run=True)["spec"] == each["spec"]
        name = path_of(each, each["metadata"]["name"])
        applied = kinds.request("PATCH", f"{name}?fieldManager=e2e&fieldValidation=Strict&dryRun=All", each,
                                content_type="application/apply-patch+yaml")
        assert applied["spec"] == each["spec"]


def aggregate(**fields: Any) -> Json:
    return plugin("a", aggregates=[{"name": "x", "over": "nodes", **fields}])


REQUIREMENT = {"key": "k", "operator": "In"}
BROKEN = {
    "an unknown field": (plugin("a", filters=[]), 'unknown field "spec.filters"'),
    "no expression": (plugin("a", filter=[{"name": "f"}]), "spec.filter[0].expression: Required value"),
    "a wrong type": (plugin("a", weight="1"), "spec.weight"),
    "out of range": (plugin("a", weight=101), "should be less than or equal to 100"),
    "an unknown word": (plugin("a", enforcement="Maybe"), "spec.enforcement: Unsupported value"),
    "a duplicate name": (plugin("a", filter=[{"name": "f", "expression": "true"}] * 2), "Duplicate value"),
    "a duplicate value": (plugin("a", profiles=["p", "p"]), "Duplicate value"),
    "a name that is no name": (plugin("a", filter=[{"name": "f f", "expression": "true"}]), "spec.filter[0].name"),
    "a long name": (plugin("a" * 64), "a policy's name has at most 63 characters"),
    "a percentile without its number": (
        aggregate(function="percentile", expression="1"), "where `function` is `percentile`, `percentile` is needed"),
    "a sum of nothing": (aggregate(function="sum"), "`expression` is needed"),
    "a requirement without values": (
        plugin("a", match={"pods": {"labelSelector": {"matchExpressions": [REQUIREMENT]}}}),
        "`values` has at least 1 item"),
    "no spec": ({**plugin("a"), "spec": None}, "spec"),
    "two actions at once": (
        {**plugin("a"), "kind": "QoSPlugin", "spec": {"actions": [
            {"name": "a", "suppressCPU": {"target": "1"}, "blkio": {"device": "d"}}]}},
        "exactly one of `suppressCPU`"),
    "no limit": (
        {**plugin("a"), "kind": "DeschedulerPlugin", "spec": {"type": "Balance", "limits": {}}}, "spec.limits"),
    "params that are a list": ({**params("a"), "spec": {"params": []}}, "spec.params"),
}


@pytest.mark.parametrize(("each", "message"), BROKEN.values(), ids=BROKEN)
def test_the_api_server_refuses_broken_policies(kinds: AdminClient, each: Json, message: str):
    with pytest.raises(ApiError) as caught:
        create(kinds, each, dry_run=True)
    assert caught.value.status in {400, 422}
    assert message in json.loads(caught.value.body)["message"]


class Served:
    """A server that is running: its URL and its process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def status(self) -> Json:
        with urllib.request.urlopen(f"{self.url}/status", timeout=60) as answer:
            return dict(json.load(answer)["policies"])


EXTENDER = ("--extender", "--bind", "127.0.0.1:0")


@contextmanager
def serving(kubeconfig: Path, *arguments: str, role: tuple[str, ...] = EXTENDER) -> Iterator[Served]:
    """Run `koord-policy scheduler` until the block ends; it must end in order."""
    command = [sys.executable, "-m", "koordpolicy", "scheduler", *role, "--compile-timeout", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                               env={**os.environ, "KUBECONFIG": str(kubeconfig)})
    try:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            if found := re.match(r"listening on (\S+)", line):
                url = found.group(1)
            if line.startswith("ready: "):
                break
        assert bool(url) == (role == EXTENDER)
        assert process.poll() is None
        yield Served(process, url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GRACE_S) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def replaced(admin: AdminClient, each: Json) -> Json:
    """Change the spec of an object, and return it."""
    name = each["metadata"]["name"]
    before = admin.get(path_of(each, name))
    return dict(admin.request("PUT", path_of(each, name), {**before, "spec": each["spec"]}))


def reported(admin: AdminClient, kind: str, name: str, generation: int) -> Json:
    """Return the status of an object once it is about a generation."""
    def find() -> Json | None:
        status = admin.get(f"{GROUP}/{KINDS[kind]}/{name}").get("status") or {}
        return status if status.get("observedGeneration") == generation else None

    return dict(until(find))


def active(status: Json) -> tuple[str, str, int | None]:
    (condition,) = status["conditions"]
    assert condition["type"] == "Active"
    return condition["status"], condition["reason"], status.get("activeGeneration")


def test_objects_are_applied_edited_broken_and_deleted_each_by_itself(
    cluster: ControlPlane | NamedCluster, kinds: AdminClient, namespace: str,
):
    create(kinds, plugin("a"))
    create(kinds, plugin("b", "params.x > 1", paramsFrom=[{"name": "shared"}]))
    create(kinds, params("shared", x=2))
    with serving(cluster.kubeconfig(), "--policies", "crd", "--status-lease", f"{namespace}/status") as server:
        for kind, name in (("SchedulerPlugin", "a"), ("SchedulerPlugin", "b"), ("PolicyParams", "shared")):
            status = reported(kinds, kind, name, 1)
            assert active(status) == ("True", "Active", 1)
            assert status["hash"] == status["activeHash"]
        good = reported(kinds, "SchedulerPlugin", "a", 1)["hash"]

        replaced(kinds, plugin("a", "true && nonsense"))
        broken = reported(kinds, "SchedulerPlugin", "a", 2)
        assert active(broken) == ("False", "Invalid", 1)
        assert (broken["activeHash"], broken["hash"] == good) == (good, False)
        (error,) = broken["errors"]
        assert (error["field"], "nonsense" in error["message"]) == ("spec.filter[0].expression", True)

        replaced(kinds, params("shared", x=3))  # while `a` is broken
        assert active(reported(kinds, "PolicyParams", "shared", 2)) == ("True", "Active", 2)
        replaced(kinds, params("shared", x="three"))
        shared = reported(kinds, "PolicyParams", "shared", 3)
        assert active(shared) == ("False", "Invalid", 2)
        assert {each["object"] for each in shared["errors"]} == {"SchedulerPlugin/b"}
        assert active(reported(kinds, "SchedulerPlugin", "b", 1)) == ("True", "Active", 1)

        replaced(kinds, plugin("a", "1 < 2"))
        assert active(reported(kinds, "SchedulerPlugin", "a", 3)) == ("True", "Active", 3)
        assert "errors" not in reported(kinds, "SchedulerPlugin", "a", 3)

        kinds.delete(f"{GROUP}/schedulerplugins/a")
        replaced(kinds, params("shared", x=4))
        assert active(reported(kinds, "PolicyParams", "shared", 4)) == ("True", "Active", 4)
        expressions = until(lambda: server.status() if server.status()["healthy"] else None)
        assert expressions["sources"][0]["path"] == "crd"

        assert [row[:4] for row in table(kinds, f"{GROUP}/policyparams")] == [["shared", "True", 4, "Active"]]
        versions = [resource_versions(kinds), time.sleep(5), resource_versions(kinds)]
        assert versions[0] == versions[2]


def table(admin: AdminClient, path: str) -> list[list[Any]]:
    """Return the rows that `kubectl get` prints."""
    request = urllib.request.Request(admin.url + path, headers={
        **admin._headers, "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    with urllib.request.urlopen(request, timeout=30, context=admin._context) as answer:
        return [row["cells"] for row in json.load(answer)["rows"]]


def resource_versions(admin: AdminClient) -> dict[str, str]:
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"]
            for plural in KINDS.values() for each in admin.get(f"{GROUP}/{plural}")["items"]}


def test_one_of_two_servers_writes_and_the_other_takes_over(
    cluster: ControlPlane | NamedCluster, kinds: AdminClient, namespace: str,
):
    create(kinds, plugin("a"))
    options = ("--policies", "crd", "--status-lease", f"{namespace}/status")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/status"
    with serving(cluster.kubeconfig(), *options) as second:
        with serving(cluster.kubeconfig(), *options):
            reported(kinds, "SchedulerPlugin", "a", 1)
            holder = kinds.get(lease)["spec"]["holderIdentity"]
            replaced(kinds, plugin("a", "1 < 2"))
            reported(kinds, "SchedulerPlugin", "a", 2)
            before = resource_versions(kinds)
            until(lambda: second.status()["healthy"])
            time.sleep(2)
            assert (resource_versions(kinds), kinds.get(lease)["spec"]["holderIdentity"]) == (before, holder)
        replaced(kinds, plugin("a", "nonsense"))
        # The second one holds the Lease from the start, or takes it at its next attempt.
        status = until(lambda: (found := kinds.get(f"{GROUP}/schedulerplugins/a")["status"])
                       and found["observedGeneration"] == 3 and found)
        assert active(status) == ("False", "Invalid", 2)


def test_the_example_is_as_its_readme_says(
    cluster: ControlPlane | NamedCluster, kinds: AdminClient, namespace: str,
):
    def document(name: str) -> Json:
        return dict(yaml.safe_load((ROOT / "examples" / "15-policies-in-a-cluster" / f"{name}.yaml").read_text()))

    name = "keep-off-hot-nodes"
    create(kinds, document("limits"))
    create(kinds, document(name))
    with serving(cluster.kubeconfig(), "--policies", "crd", "--status-lease", f"{namespace}/status"):
        assert active(reported(kinds, "SchedulerPlugin", name, 1)) == ("True", "Active", 1)
        replaced(kinds, document("edited"))
        edited = reported(kinds, "SchedulerPlugin", name, 2)
        assert active(edited) == ("False", "Invalid", 1)
        assert edited["errors"] == [{
            "code": "cel-name", "field": "spec.filter[0].expression", "help": "did you mean `allocatable`?",
            "message": "no variable `alocatable` at filter"}]
        replaced(kinds, document(name))
        assert active(reported(kinds, "SchedulerPlugin", name, 3)) == ("True", "Active", 3)


def test_a_configmap_is_followed_without_a_mount(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str,
):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    text = yaml.safe_dump(plugin("a"))
    admin.create(path, {"metadata": {"name": "policies"}, "data": {"a.yaml": text, "README": "no policy"}})
    with serving(cluster.kubeconfig(), "--policies", f"configmap:{namespace}/policies") as server:
        first = server.status()
        assert (first["healthy"], [each["path"] for each in first["sources"]]) == (
            True, [f"configmap:{namespace}/policies"])
        admin.merge(f"{path}/policies", {"data": {"a.yaml": text.replace("'true'", "1 <")}})
        broken = until(lambda: (found := server.status()) and not found["healthy"] and found)
        (problem,) = broken["sources"][0]["problems"]
        assert (problem["file"], problem["line"]) == (f"configmap:{namespace}/policies/a.yaml", 7)
        admin.merge(f"{path}/policies", {"data": {"a.yaml": text.replace("'true'", "1 < 2")}})
        second = until(lambda: (found := server.status()) and found["healthy"] and found)
        assert second["generation"] == first["generation"] + 1
        admin.delete(f"{path}/policies")
        gone = until(lambda: (found := server.status()) and not found["healthy"] and found)
        assert (gone["digest"], gone["sources"][0]["problems"][0]["code"]) == (second["digest"], "emptied")


def test_a_scheduler_of_a_live_cluster_follows_objects(
    cluster: ControlPlane | NamedCluster, kinds: AdminClient, namespace: str,
):
    create(kinds, plugin("a"))
    role = ("--cluster", "kube", "--scheduler-name", namespace, "--leader-elect=false")
    with serving(cluster.kubeconfig(), "--policies", "crd", "--status-lease", f"{namespace}/status", role=role):
        assert active(reported(kinds, "SchedulerPlugin", "a", 1)) == ("True", "Active", 1)
        replaced(kinds, plugin("a", "true &&"))
        assert active(reported(kinds, "SchedulerPlugin", "a", 2)) == ("False", "Invalid", 1)
        replaced(kinds, plugin("a", "1 < 2"))
        assert active(reported(kinds, "SchedulerPlugin", "a", 3)) == ("True", "Active", 3)


def test_commands_that_read_once_list_the_objects(
    cluster: ControlPlane | NamedCluster, kinds: AdminClient, namespace: str,
):
    if not isinstance(cluster, ControlPlane):
        pytest.skip("names the context of the kubeconfig")

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "koordpolicy", *arguments], capture_output=True, text=True, cwd=ROOT,
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}, check=False)
        return done.returncode, done.stdout + done.stderr

    create(kinds, plugin("in-the-cluster"))
    assert run("lint", "crd")[0] == 0
    code, text = run("plugins", "--policies", "crd", "--framework", "scheduler")
    assert (code, "in-the-cluster" in text) == (0, True)
    kinds.create("/api/v1/nodes", {
        "metadata": {"name": f"{namespace}-node"},
        "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}})
    try:
        code, text = run("scheduler", "--cluster", "kube:e2e", "--dry-run", "--policies", "crd")
        assert (code, "pending pods placed on 1 nodes" in text) == (0, True), text
    finally:
        kinds.delete(f"/api/v1/nodes/{namespace}-node")
    create(kinds, plugin("broken", "true &&"))
    code, text = run("lint", "crd")
    assert (code, "crd:SchedulerPlugin/broken: spec.filter[0].expression: error: " in text) == (3, True)
    code, text = run("lint", f"configmap:{namespace}/absent")
    assert (code, "there is no ConfigMap `absent` in the namespace" in text) == (3, True)


def test_the_roles_separate_authors_and_suffice_for_the_server(
    cluster: ControlPlane | NamedCluster, kinds: AdminClient, tmp_path: Path,
):
    if not isinstance(cluster, ControlPlane):
        pytest.skip("makes cluster roles and the namespace koordinator-system")
    manifests = list(yaml.safe_load_all((ROOT / "deploy" / "policies" / "rbac.yaml").read_text()))
    space = roles.NAMESPACE
    # Tests of deployments make the namespace too.
    roles.create(kinds, {"kind": "Namespace", "metadata": {"name": space}})
    roles.create(kinds, {"kind": "ServiceAccount", "metadata": {"name": "koord-policy"}})
    for each in manifests:
        roles.create(kinds, each)
    for author in ("scheduling", "eviction"):
        kinds.create(f"{RBAC}/clusterrolebindings", {
            "metadata": {"name": f"{author}-author"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": f"koord-policy-{author}-author"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": author}]})

    def may(user: str, verb: str, resource: str, subresource: str = "") -> bool:
        review = kinds.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {
            "user": user, "resourceAttributes": {
                "group": "policy.koordinator.sh", "verb": verb, "resource": resource, "subresource": subresource}}})
        return bool(review["status"]["allowed"])

    until(lambda: may("scheduling", "create", "schedulerplugins") and may("eviction", "create", "qosplugins"))
    writable = {user: {plural for plural in KINDS.values() if may(user, "patch", plural)}
                for user in ("scheduling", "eviction", f"system:serviceaccount:{space}:koord-policy")}
    assert writable == {
        "scheduling": {"schedulerplugins"}, "eviction": {"qosplugins", "deschedulerplugins", "policyparams"},
        f"system:serviceaccount:{space}:koord-policy": set()}
    assert not may("scheduling", "patch", "schedulerplugins", "status")

    token = kinds.create(f"/api/v1/namespaces/{space}/serviceaccounts/koord-policy/token",
                         {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    kubeconfig = json.loads(cluster.kubeconfig().read_text())
    kubeconfig["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    create(kinds, plugin("a"))
    # The role that the page has for one ConfigMap.
    page = (ROOT / "docs" / "cluster-policies.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (role,) = (yaml.safe_load(block) for block in blocks if "kind: Role" in block)
    role["metadata"]["namespace"] = space
    kinds.create(f"{RBAC}/namespaces/{space}/roles", role)
    kinds.create(f"{RBAC}/namespaces/{space}/rolebindings", {
        "metadata": {"name": "configmap"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "koord-policy", "namespace": space}]})
    (name,) = role["rules"][0]["resourceNames"]
    kinds.create(f"/api/v1/namespaces/{space}/configmaps", {
        "metadata": {"name": name}, "data": {"b.yaml": yaml.safe_dump(plugin("b"))}})

    with serving(tmp_path / "kubeconfig", "--policies", "crd", "--policies", f"configmap:{space}/{name}",
                 "--status-lease", f"{space}/koord-policy-status"):
        assert active(reported(kinds, "SchedulerPlugin", "a", 1)) == ("True", "Active", 1)


def test_with_the_shipped_role_the_console_is_refused_nothing(
    kinds: AdminClient, cluster: ControlPlane | NamedCluster, namespace: str, tmp_path: Path,
):
    roles.create_roles(cluster.admin, "console")
    own = roles.account_kubeconfig(cluster, "koord-policy-console", tmp_path)
    ana = Caller(roles.user(cluster, namespace, "ana", "koord-policy-console-operator"))
    log, (one, two) = tmp_path / "console.log", (f"{namespace}-{number}" for number in (1, 2))
    with ExitStack() as stack:
        def add(name: str) -> None:
            cluster.admin.create("/api/v1/nodes", node(name))
            stack.callback(cluster.admin.delete, f"/api/v1/nodes/{name}")

        add(one)
        with process(log, "console", "--cluster", "kube", "--policies", "crd", "--bind", "127.0.0.1:0",
                     "--authentication-kubeconfig", str(own), KUBECONFIG=str(own)) as url:
            def shown() -> list[str]:
                answer = ana.ask(url, "/api/v1/policies")
                assert answer.ok, answer
                return [each["name"] for each in answer.data["policies"]]

            assert shown() == []
            create(kinds, plugin("not-in-batch"))
            until(lambda: shown() == ["not-in-batch"])
            add(two)
            until(lambda: {one, two} <= set(ana.ask(url, "/api/v1/map").data["nodes"]))
    assert "forbidden" not in log.read_text().lower()

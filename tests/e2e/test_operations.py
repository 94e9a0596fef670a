"""The live scheduler's endpoints on a real control plane: health, metrics, and access to them."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.engine.scheduler.observe import metric_table as table
from koordpolicy.engine.serving import process_metrics

from .control_plane import AdminClient, ControlPlane, NamedCluster
from .nodes import FakeKubelet, add_node, add_pod
from .scheduler_process import SchedulerProcess, until

NAME = "koord-policy-operations"
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: avoid}}
spec:
  filter:
  - name: pool
    expression: allocatable.cpu >= {number}
"""


def command(*arguments: object) -> tuple[int, str]:
    """Run `koord-policy`; return its exit code and standard output."""
    done = subprocess.run([sys.executable, "-m", "koordpolicy", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, check=False)
    return done.returncode, done.stdout


class Endpoint:
    """A server's address, read with a token or without."""

    def __init__(self, url: str, authority: Path, token: str | None = None) -> None:
        self.url = url
        self._context = ssl.create_default_context(cafile=str(authority)) if url.startswith("https") else None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __call__(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        status, text = self("/metrics")
        assert status == 200, text
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text) for sample in family.samples}

    def types(self) -> dict[str, str]:
        lines = self("/metrics")[1].splitlines()
        return {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE ")}


@contextmanager
def served(kubeconfig: Path, directory: Path, *options: str) -> Iterator[tuple[SchedulerProcess, str]]:
    """A live scheduler that is ready, and the URL of its endpoints."""
    with SchedulerProcess(kubeconfig, directory, "--bind", "127.0.0.1:0", *options, name=NAME) as process:
        process.until_ready()
        first = process.out.read_text().splitlines()[0]
        assert first.startswith("listening on ")
        yield process, first.removeprefix("listening on ")


def token(cluster: ControlPlane | NamedCluster, namespace: str, account: str) -> str:
    """A new service account's token."""
    base = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.admin.create(base, {"metadata": {"name": account}})
    made = cluster.admin.create(f"{base}/{account}/token", {"spec": {"expirationSeconds": 3600}})
    return str(made["status"]["token"])


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Files of a server's certificate, its key, and its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt"
    issued.cert_chain_pems[0].write_to_path(files[0])
    issued.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(files[2])
    return files


def test_l45_all_metrics_are_there_after_a_success_a_failure_and_a_preemption(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, tmp_path: Path,
):
    node = f"{namespace}-a"
    add_node(admin, node, labels={"scene": namespace}, cpu="2")
    selector = {"nodeSelector": {"scene": namespace}}
    admin.create_priority_class(namespace, 1000)
    try:
        with FakeKubelet(admin), served(cluster.kubeconfig(), tmp_path) as (_, url):
            endpoint = Endpoint(url, tmp_path)
            assert [endpoint(path) for path in ("/healthz", "/livez", "/readyz")] == [(200, "ok")] * 3
            assert endpoint("/readyz?verbose")[1] == (
                "[+]ping ok\n[+]leaderElection ok\n[+]shutdown ok\n[+]sched-handler-sync ok\n[+]policies ok\n"
                "readyz check passed\n")
            add_pod(admin, namespace, "fits", cpu="1500m", scheduler=NAME, **selector)
            profile = ("profile", NAME)
            until(lambda: endpoint.samples().get(
                ("scheduler_schedule_attempts_total", (profile, ("result", "scheduled"))), 0) >= 1)
            add_pod(admin, namespace, "never", cpu="64", scheduler=NAME, **selector)
            until(lambda: endpoint.samples().get(
                ("scheduler_schedule_attempts_total", (profile, ("result", "unschedulable"))), 0) >= 1)
            add_pod(admin, namespace, "urgent", cpu="1500m", priorityClassName=namespace, scheduler=NAME,
                    **selector)
            until(lambda: endpoint.samples().get(("scheduler_preemption_victims_count", ()), 0) >= 1)
            types, samples = endpoint.types(), endpoint.samples()
            expected = {spec.name: "gauge" if spec.type.value == "info" else spec.type.value
                        for spec in (*table.SCHEDULER, *table.LIVE, *process_metrics.TABLE)
                        if spec not in {table.LEADER, table.SLOW_PATHS}}
            assert types == expected
            assert samples["scheduler_unschedulable_pods", (("plugin", "NodeResourcesFit"), profile)] >= 1
            host = ("host", cluster.url.partition("//")[2])
            assert samples["rest_client_requests_total", (("code", "201"), host, ("method", "POST"))] >= 1
            assert samples["scheduler_framework_extension_point_duration_seconds_count",
                           (("extension_point", "Bind"), profile, ("status", "Success"))] >= 1
            resources = endpoint("/metrics/resources")[1]
            assert f'kube_pod_resource_request{{namespace="{namespace}",node="",pod="never"' in resources
            configuration = json.loads(endpoint("/configz")[1])["componentconfig"]
            assert configuration["profiles"][0]["schedulerName"] == NAME
            assert configuration["leaderElection"] == {"leaderElect": False}
    finally:
        admin.delete(f"/api/v1/nodes/{node}")
        admin.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{namespace}")


def test_metrics_and_configuration_need_a_role_and_probes_do_not(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, tmp_path: Path,
    certificate: tuple[Path, Path, Path],
):
    known, stranger = token(cluster, namespace, "prometheus"), token(cluster, namespace, "stranger")
    roles = "/apis/rbac.authorization.k8s.io/v1"
    role: dict[str, Any] = {"metadata": {"name": namespace}, "rules": [
        {"nonResourceURLs": ["/metrics", "/configz"], "verbs": ["get"]}]}
    admin.create(f"{roles}/clusterroles", role)
    admin.create(f"{roles}/clusterrolebindings", {
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}]})
    try:
        with served(cluster.kubeconfig(), tmp_path, "--tls-cert", str(certificate[0]), "--tls-key",
                    str(certificate[1])) as (_, url):
            nobody, reader, other, forged = (
                Endpoint(url, certificate[2], each) for each in (None, known, stranger, "forged"))
            assert [nobody(path) for path in ("/healthz", "/livez", "/readyz")] == [(200, "ok")] * 3
            assert [reader(path)[0] for path in ("/metrics", "/configz", "/metrics/slis")] == [200, 200, 403]
            assert [each("/metrics")[0] for each in (nobody, other, forged)] == [403, 403, 401]
            user = f"system:serviceaccount:{namespace}:stranger"
            assert json.loads(other("/metrics")[1])["error"].startswith(f'user "{user}" cannot get path "/metrics"')
    finally:
        admin.delete(f"{roles}/clusterrolebindings/{namespace}")
        admin.delete(f"{roles}/clusterroles/{namespace}")


def test_status_reload_and_rollback_reach_a_live_scheduler(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, tmp_path: Path,
):
    node = f"e2e-{secrets.token_hex(4)}"
    add_node(admin, node)
    policies, token_file = tmp_path / "policies", tmp_path / "token"
    policies.mkdir()
    token_file.write_text(secrets.token_hex(16))
    (policies / "avoid.yaml").write_text(POLICY.format(number=1))
    first = command("hash", policies)[1].split()[0]
    try:
        with served(cluster.kubeconfig(), tmp_path, "--policies", str(policies), "--admin-token-file",
                    str(token_file)) as (_, url):
            (policies / "avoid.yaml").write_text(POLICY.format(number=2))
            waited = command("reload", "--wait-for", policies, "--endpoints", url)
            assert (waited[0], waited[1].splitlines()[-1][:10]) == (0, "1 of 1 run")
            code, text = command("status", "--endpoints", url, "--output", "json")
            status = json.loads(text)[0]["status"]
            assert (code, status["ready"], status["leading"], status["generation"]) == (0, True, True, 2)
            assert status["cluster"]["kinds"].keys() >= {"Node", "Pod"}
            assert command("rollback", "--endpoints", url, "--token-file", tmp_path / "other")[0] == 2
            code, text = command("rollback", "--endpoints", url, "--token-file", token_file)
            assert (code, "generation 1 is active again, as generation 3" in text) == (0, True)
            assert command("reload", "--wait", first, "--timeout", "10s", "--endpoints", url)[0] == 0
    finally:
        admin.delete(f"/api/v1/nodes/{node}")


def test_logs_are_json_with_the_generation(
    cluster: ControlPlane | NamedCluster, namespace: str, tmp_path: Path,
):
    with served(cluster.kubeconfig(), tmp_path, "--log-format", "json") as (process, _):
        assert process.stop() == 0
        lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)

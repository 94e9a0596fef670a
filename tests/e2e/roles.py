"""The shipped accounts and roles on a control plane, so that tests run servers with exactly these rights."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools import generate_deployment

from .control_plane import AdminClient, ApiError, ControlPlane, NamedCluster

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "koordinator-system"
PATHS = {
    "Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services", "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}
"""The paths at which the kinds of the manifests are created."""


def manifests(folder: str) -> list[dict[str, Any]]:
    """The objects of a folder of deploy/, but those of kinds of the Prometheus operator."""
    found: list[dict[str, Any]] = []
    for path in sorted((DEPLOY / folder).glob("*.yaml")):
        found += [each for each in yaml.safe_load_all(path.read_text()) if each and each["kind"] in PATHS]
    return sorted(found, key=lambda item: item["kind"] != "Namespace")


def pod_spec(folder: str) -> dict[str, Any]:
    """The spec of the pods of the server of a folder of deploy/."""
    (workload,) = (each for each in manifests(folder) if each["kind"] in ("Deployment", "DaemonSet"))
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def shipped_options(folder: str, places: Mapping[str, str], *, without: tuple[str, ...] = ()) -> list[str]:
    """The options of the server of a folder with other places, but those that begin with one of `without`.

    Each of the places must be in the options.
    """
    (container,) = pod_spec(folder)["containers"]
    found = [each for each in container["args"][1:] if not each.startswith(without)]
    for before, after in places.items():
        assert any(before in each for each in found), before
        found = [each.replace(before, after) for each in found]
    return found


def create(admin: AdminClient, item: dict[str, Any], query: str = "") -> None:
    """Creates an object of the manifests, unless it is there."""
    try:
        admin.create(PATHS[item["kind"]].format(NAMESPACE) + query, item)
    except ApiError as error:
        if error.status != 409:
            raise


def create_definitions(admin: AdminClient, folder: str) -> None:
    """Creates the definitions of the kinds that a folder of deploy/ has."""
    for item in yaml.safe_load_all((DEPLOY / folder / "crds.yaml").read_text()):
        admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", item)


def create_roles(admin: AdminClient, folder: str) -> None:
    """Creates the namespace, the account and the roles of a server."""
    for item in manifests(folder):
        if item["kind"] in ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
            create(admin, item)


def create_optional_roles(admin: AdminClient, component: str, **values: bool) -> None:
    """Creates the roles that a component of the chart has with these values."""
    template = generate_deployment.CHART / "templates" / f"{component}-rbac.yaml"
    defaults = yaml.safe_load((generate_deployment.CHART / "values.yaml").read_text())
    defaults[component] |= {"enabled": True, **values}
    text = generate_deployment.render(
        template.read_text(), defaults, namespace=NAMESPACE, files=generate_deployment.CHART)
    for item in yaml.safe_load_all(text):
        create(admin, item)


def scheduler_kubeconfig(cluster: ControlPlane | NamedCluster, directory: Path) -> Path:
    """The kubeconfig of the scheduler's account, with the shipped roles."""
    create_roles(cluster.admin, "scheduler")
    return account_kubeconfig(cluster, "koord-policy-scheduler", directory)


def account_kubeconfig(cluster: ControlPlane | NamedCluster, account: str, directory: Path) -> Path:
    """The kubeconfig of a service account of the namespace."""
    token = cluster.admin.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
                                 {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    config = yaml.safe_load(cluster.kubeconfig().read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = directory / f"{account}-{secrets.token_hex(4)}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def user(cluster: ControlPlane | NamedCluster, namespace: str, name: str, role: str | None) -> str:
    """A user of the cluster: the token of a service account, which has a role."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.admin.create(accounts, {"metadata": {"name": name}})
    if role is not None:
        bind(cluster, namespace, name, role)
    token: str = cluster.admin.create(f"{accounts}/{name}/token", {"spec": {}})["status"]["token"]
    return token


def bind(cluster: ControlPlane | NamedCluster, namespace: str, name: str, role: str) -> None:
    cluster.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
        "metadata": {"name": f"{namespace}-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]})

"""A live cluster's objects, listed once and read-only through the official client.

The client finds the cluster and proves who asks (kubeconfig with its plugins, or the pod's service account); the
objects are taken as the JSON that the server sends, since building the client's models takes several times as long and
changes what expressions would see.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ..source import PolicyError, Problem

_LOG: Final = logging.getLogger(__name__)
_PAGE: Final = 500
_TIMEOUT_S: Final = (5.0, 60.0)
_RESTARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of one kind are listed; `group` is empty for the core ones."""

    kind: str
    group: str
    version: str
    plural: str
    required: bool = False
    """Whether there is no deciding without it: if not, it is left out where the cluster has or shows none."""

    @property
    def api_version(self) -> str:
        """As objects of this kind name it."""
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES: Final = (
    Resource("Node", "", "v1", "nodes", required=True),
    Resource("Pod", "", "v1", "pods", required=True),
    Resource("Namespace", "", "v1", "namespaces"),
    Resource("Service", "", "v1", "services"),
    Resource("ReplicationController", "", "v1", "replicationcontrollers"),
    Resource("ReplicaSet", "apps", "v1", "replicasets"),
    Resource("StatefulSet", "apps", "v1", "statefulsets"),
    Resource("PersistentVolume", "", "v1", "persistentvolumes"),
    Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    Resource("StorageClass", "storage.k8s.io", "v1", "storageclasses"),
    Resource("CSINode", "storage.k8s.io", "v1", "csinodes"),
    Resource("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    Resource("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses"),
    Resource("NodeMetric", "slo.koordinator.sh", "v1alpha1", "nodemetrics"),
    Resource("NodeSLO", "slo.koordinator.sh", "v1alpha1", "nodeslos"),
    Resource("Device", "scheduling.koordinator.sh", "v1alpha1", "devices"),
    Resource("Reservation", "scheduling.koordinator.sh", "v1alpha1", "reservations"),
    Resource("PodMigrationJob", "scheduling.koordinator.sh", "v1alpha1", "podmigrationjobs"),
    Resource("PodGroup", "scheduling.sigs.k8s.io", "v1alpha1", "podgroups"),
    Resource("ElasticQuota", "scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas"),
    Resource("NodeResourceTopology", "topology.node.k8s.io", "v1alpha1", "noderesourcetopologies"),
)
KINDS: Final = tuple(resource.kind for resource in RESOURCES)


def load(
    context: str | None,
    *,
    kinds: Sequence[str] = KINDS,
    configuration_file: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = _LOG.warning,
    page: int = _PAGE,
) -> tuple[Mapping[str, Any], ...]:
    """Return all objects of these kinds, in this order, each with its `apiVersion` and `kind`.

    `context` is one of the kubeconfig's, None its current one (inside a pod without a kubeconfig: the cluster it runs
    in). `page` objects are asked for at a time. Kinds that the cluster does not have, or does not let us list, are left
    out with a `note`; nodes and pods are not. `metadata.managedFields` is dropped, as kubectl does.

    Raises `PolicyError` if the configuration is wrong, the server cannot be reached, or refuses nodes or pods.
    """
    known = {resource.kind: resource for resource in RESOURCES}
    objects: list[Mapping[str, Any]] = []
    with _client(context, configuration_file) as client:
        for kind in kinds:
            try:
                objects += _listed(client, known[kind], page)
            except _RefusedError as refused:
                if known[kind].required:
                    raise PolicyError([Problem(str(refused), help=refused.help, code="cluster")]) from None
                note(f"{refused}; going on without")
    return tuple(objects)


class _RefusedError(Exception):
    def __init__(self, message: str, help: str) -> None:  # noqa: A002
        super().__init__(message)
        self.help = help


@contextlib.contextmanager
def _client(context: str | None, configuration_file: str | os.PathLike[str] | None) -> Iterator[Any]:
    client: Any = import_module("kubernetes.client")  # half a second that only those pay who ask a cluster
    config: Any = import_module("kubernetes.config")

    default = os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    name = os.fspath(configuration_file) if configuration_file is not None else default
    inside = context is None and configuration_file is None and "KUBERNETES_SERVICE_HOST" in os.environ and not any(
        Path(part).expanduser().exists() for part in name.split(os.pathsep) if part)
    try:
        if inside:
            settings = client.Configuration()
            config.load_incluster_config(client_configuration=settings)
            made = client.ApiClient(settings)
        else:
            made = config.new_client_from_config(config_file=name, context=context)
    except Exception as error:  # the client raises its own errors, YAML's and the system's for a wrong file
        text = str(error).removeprefix("Invalid kube-config file. ").rstrip(".")
        raise PolicyError([Problem(
            f"no way into the cluster{f' `{context}`' if context else ''}: {text}",
            help="name a context of the kubeconfig (`kubectl config get-contexts`)", code="cluster")]) from None
    try:
        yield made
    finally:
        made.close()


def _listed(client: Any, resource: Resource, page: int) -> list[Mapping[str, Any]]:
    for _ in range(_RESTARTS):
        objects: list[Mapping[str, Any]] = []
        token: str | None = None
        while True:
            answer = _page(client, resource, page, token)
            if answer is None:
                break  # the list that was begun is too old to go on with
            for item in answer.get("items") or ():
                item.get("metadata", {}).pop("managedFields", None)
                objects.append({"apiVersion": resource.api_version, "kind": resource.kind} | item)
            token = (answer.get("metadata") or {}).get("continue") or None
            if token is None:
                return objects
    raise _RefusedError(f"the list of {resource.plural} expires before it is read", help="ask for larger pages")


def _page(client: Any, resource: Resource, page: int, token: str | None) -> dict[str, Any] | None:
    """Return one page as the server sends it; None if its token has expired."""
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    options: dict[str, Any] = {"limit": page, "_preload_content": False, "_request_timeout": _TIMEOUT_S}
    if token is not None:
        options["_continue"] = token
    try:
        answer = json.loads(_request(client, resource)(**options).data)
    except ApiException as error:
        if error.status == 410 and token is not None:
            return None
        if error.status == 404:
            raise _RefusedError(f"the cluster has no {resource.plural} ({resource.api_version})",
                                help="is this a Kubernetes API server?") from None
        reason = "may not be listed" if error.status in (401, 403) else "cannot be listed"
        raise _RefusedError(f"{resource.plural} {reason}: {_message(error)}",
                            help=f"grant `list` on `{resource.plural}` cluster-wide") from None
    except (HTTPError, OSError) as error:
        cause = getattr(error, "reason", None) or error
        raise PolicyError([Problem(f"the cluster at {client.configuration.host} cannot be reached: {cause}",
                                   help="check the address and the network", code="cluster")]) from None
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("items") or [], list):
        raise PolicyError([Problem(
            f"the cluster at {client.configuration.host} answers with something else than a list of {resource.plural}",
            help="is this a Kubernetes API server?", code="cluster")])
    return answer


def _request(client: Any, resource: Resource) -> Callable[..., Any]:
    apis: Any = import_module("kubernetes.client")
    listing: Callable[..., Any]
    match resource.kind:
        case "Node":
            listing = apis.CoreV1Api(client).list_node
        case "Pod":
            listing = apis.CoreV1Api(client).list_pod_for_all_namespaces
        case "Namespace":
            listing = apis.CoreV1Api(client).list_namespace
        case "PersistentVolume":
            listing = apis.CoreV1Api(client).list_persistent_volume
        case "PersistentVolumeClaim":
            listing = apis.CoreV1Api(client).list_persistent_volume_claim_for_all_namespaces
        case "Service":
            listing = apis.CoreV1Api(client).list_service_for_all_namespaces
        case "ReplicationController":
            listing = apis.CoreV1Api(client).list_replication_controller_for_all_namespaces
        case _:
            # Any group's objects can be asked for as a custom resource's: the path is the same.
            listing = functools.partial(apis.CustomObjectsApi(client).list_cluster_custom_object, resource.group,
                                        resource.version, resource.plural)
    return listing


def _message(error: Any) -> str:
    body = error.body.decode("utf-8", "replace") if isinstance(error.body, bytes) else error.body
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"

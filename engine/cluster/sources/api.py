"""A live cluster through the official client: lists objects kind by kind, and binds pods.

The client finds the cluster and authenticates (kubeconfig with its plugins, or the pod's service account). Objects are
the JSON of the server, as building the client's models takes several times as long and changes the values of
expressions. Each is decoded by itself, so that an odd one costs itself.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.connection import load_settings
from koordpolicy.engine.client.faults import ApiFault, FaultError, of_exception, of_status
from koordpolicy.engine.client.resources import BY_KIND, HEADS, RESOURCES, ApiResource
from koordpolicy.engine.source import PolicyError, Problem

from ..kinds import Objects

_LOG: Final = logging.getLogger(__name__)

_PAGE: Final = 500
_TIMEOUT_S: Final = (5.0, 60.0)
_RESTARTS: Final = 3

KINDS: Final = tuple(resource.kind for resource in RESOURCES)
_ABSENT: Final = "the cluster has no"


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of a pod to a node."""

    namespace: str
    name: str
    uid: str
    node: str


def load(
    context: str | None,
    *,
    kinds: Sequence[str] = KINDS,
    configuration_file: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = lambda _: None,
    page: int = _PAGE,
) -> Objects:
    """Return all objects of these kinds, in this order, each with its `apiVersion` and `kind`.

    `context` is one of the kubeconfig's, None its current one (inside a pod without a kubeconfig: the cluster it runs
    in). Lists are read in pages of `page` objects. Kinds that the cluster does not have, or forbids to list, are
    omitted, and one `note` names them; nodes and pods are required. The others are contained, with objects or without.
    `metadata.managedFields` is dropped, as kubectl does.

    Raises `PolicyError` if the configuration is wrong, the server cannot be reached, or refuses nodes or pods.
    """
    objects: list[Mapping[str, Any]] = []
    failed: dict[str, Problem] = {}
    with _client(context, configuration_file) as client:
        for kind in kinds:
            resource = BY_KIND[kind]
            try:
                objects += _listed(client, resource, page)
            except FaultError as error:
                fault = error.fault
                failed[kind] = Problem(fault.message, help=fault.help, code="cluster")
                if fault.everywhere:
                    raise PolicyError([failed[kind]]) from None
    for kind, problem in failed.items():
        if BY_KIND[kind].required:
            raise PolicyError([problem])
    if failed:
        note(_without(failed))
    return Objects.of(tuple(objects), frozenset(kinds) - failed.keys())


def _without(failed: Mapping[str, Problem]) -> str:
    """Return one line about kinds that could not be listed."""
    absent = [BY_KIND[kind].plural for kind, problem in failed.items() if problem.message.startswith(_ABSENT)]
    others = [problem.message for problem in failed.values() if not problem.message.startswith(_ABSENT)]
    parts = ([f"{_ABSENT} {', '.join(absent)}"] if absent else []) + others
    return f"{'; '.join(parts)}; going on without"


def binder(
    context: str | None, *, configuration_file: str | os.PathLike[str] | None = None,
) -> Callable[[Binding], None]:
    """Return a function that binds a pod to a node; several threads may call it at once; it raises `PolicyError`.

    The pod must have the UID of the binding: another one of its name is left alone.
    """
    opened = contextlib.ExitStack()
    client = opened.enter_context(_client(context, configuration_file))

    def bind(binding: Binding) -> None:
        body = {
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": binding.name, "namespace": binding.namespace, "uid": binding.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        core: Any = import_module("kubernetes.client").CoreV1Api(client)
        try:
            with _faults(client, "create", "pods/binding", f"{binding.namespace}/{binding.name}"):
                core.create_namespaced_pod_binding(
                    binding.name, binding.namespace, body, _preload_content=False, _request_timeout=_TIMEOUT_S)
        except FaultError as error:
            raise PolicyError([Problem(error.fault.message, help=error.fault.help, code="cluster")]) from None

    return bind


@contextlib.contextmanager
def _client(context: str | None, configuration_file: str | os.PathLike[str] | None) -> Iterator[Any]:
    client: Any = import_module("kubernetes.client")
    settings = load_settings(context, configuration_file=configuration_file)
    if not settings.verify_ssl:
        # The user set `insecure-skip-tls-verify` on purpose; the library would warn at every request.
        urllib3: Any = import_module("urllib3")
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    made = client.ApiClient(settings)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def _faults(client: Any, verb: str, resource: str, subject: str) -> Iterator[None]:
    """Translate the client's exceptions to faults; `subject` names the request in messages."""
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        yield
    except ApiException as error:
        fault = of_status(error.status or 0, error.body, verb=verb, resource=resource)
        raise FaultError(ApiFault(f"{subject}: {fault.message}", fault.help, fault.everywhere)) from None
    except (HTTPError, OSError) as error:
        fault = of_exception(error)
        raise FaultError(ApiFault(f"the cluster at {client.configuration.host} cannot be reached: {fault.message}",
                                fault.help, fault.everywhere)) from None


class _ListMetadata(msgspec.Struct):
    next: str | None = msgspec.field(default=None, name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata | None = None
    items: list[msgspec.Raw] | None = None


_lists: Final = msgspec.json.Decoder(_List)


def _listed(client: Any, resource: ApiResource, page: int) -> list[Mapping[str, Any]]:
    """Return the objects of a kind; one that cannot be decoded is left out, and logged."""
    for _ in range(_RESTARTS):
        objects: list[Mapping[str, Any]] = []
        token: str | None = None
        while True:
            answer = _page(client, resource, page, token)
            if answer is None:
                break  # the list that was begun has expired
            for item in answer.items or ():
                try:
                    head = HEADS.decode(item).metadata
                except (ValueError, RecursionError):
                    raise _no_list(client, resource) from None
                try:
                    objects.append(_decoded(resource, item))
                except (ValueError, RecursionError) as error:
                    why = "it is nested too deeply" if isinstance(error, RecursionError) else error
                    name = f"{head.namespace}/{head.name}" if head.namespace else head.name
                    _LOG.warning("%s `%s`: it cannot be read, and is left out: %s", resource.kind, name, why)
            token = (answer.metadata.next if answer.metadata is not None else None) or None
            if token is None:
                return objects
    raise FaultError(ApiFault(f"the list of {resource.plural} expires before it is read", "ask for larger pages"))


def _decoded(resource: ApiResource, text: msgspec.Raw) -> Mapping[str, Any]:
    """Return an object of a list with its `apiVersion` and `kind`, and without `metadata.managedFields`."""
    item: dict[str, Any] = msgspec.json.decode(text)
    if isinstance(item.get("metadata"), dict):
        item["metadata"].pop("managedFields", None)
    return {"apiVersion": resource.api_version, "kind": resource.kind} | item


def _page(client: Any, resource: ApiResource, page: int, token: str | None) -> _List | None:
    """Return one page as the server sends it; None if its token has expired."""
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415

    options: dict[str, Any] = {"limit": page, "_preload_content": False, "_request_timeout": _TIMEOUT_S}
    if token is not None:
        options["_continue"] = token
    with _faults(client, "list", resource.plural, f"{resource.plural} cannot be listed"):
        try:
            text = _request(client, resource)(**options).data
        except ApiException as error:
            if error.status == 410 and token is not None:
                return None
            if error.status == 404:
                raise FaultError(ApiFault(
                    f"{_ABSENT} {resource.plural} ({resource.api_version})",
                    "is this a Kubernetes API server?" if resource.required else "install what defines them")) from None
            if error.status == 403:
                fault = of_status(403, error.body, verb="list", resource=resource.plural)
                raise FaultError(ApiFault(f"{resource.plural} may not be listed: {fault.message}",
                                        f"grant `list` on `{resource.plural}` cluster-wide")) from None
            raise
    try:
        return _lists.decode(text)
    except (ValueError, RecursionError):
        raise _no_list(client, resource) from None


def _no_list(client: Any, resource: ApiResource) -> FaultError:
    return FaultError(ApiFault(
        f"the cluster at {client.configuration.host} answers with something else than a list of {resource.plural}",
        "is this a Kubernetes API server?"))


def _request(client: Any, resource: ApiResource) -> Callable[..., Any]:
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

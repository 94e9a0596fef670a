"""A live cluster that is listed once, kind by kind. An object is decoded by itself, so that an odd one costs itself."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.faults import ApiFault, FaultError, of_status
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.resources import BY_KIND, HEADS, RESOURCES, ApiResource, declared_kinds
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError, Problem

from ..kinds import Objects

_LOG: Final = logging.getLogger(__name__)

_PAGE: Final = 500
_TIMEOUT_S: Final = 60.0
_RESTARTS: Final = 3

KINDS: Final = tuple(resource.kind for resource in RESOURCES)
_ABSENT: Final = "the cluster has no"


def load(
    context: str | None,
    *,
    kinds: Sequence[str] | None = None,
    configuration_file: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = lambda _: None,
    page: int = _PAGE,
) -> Objects:
    """Return all objects of these kinds, in this order, each with its `apiVersion` and `kind`; None for all known ones.

    `context` is one of the kubeconfig's, None its current one (inside a pod without a kubeconfig: the cluster it runs
    in). Lists are read in pages of `page` objects. Kinds that the cluster does not have, or forbids to list, are
    omitted, and one `note` names them; nodes and pods are required. The others are contained, with objects or without.
    `metadata.managedFields` is dropped, as kubectl does.

    Raises `PolicyError` if the configuration is wrong, the server cannot be reached, or refuses nodes or pods.
    """
    connection = load_connection(context, configuration_file=configuration_file)

    async def run() -> Objects:
        async with Transport(connection, rate=0) as transport:
            return await _load(transport, (*KINDS, *declared_kinds()) if kinds is None else kinds, note, page)

    return asyncio.run(run())


async def _load(transport: Transport, kinds: Sequence[str], note: Callable[[str], None], page: int) -> Objects:
    objects: list[Mapping[str, Any]] = []
    failed: dict[str, Problem] = {}
    for kind in kinds:
        try:
            objects += await _listed(transport, BY_KIND[kind], page)
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


class _ListMetadata(msgspec.Struct):
    next: str | None = msgspec.field(default=None, name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata | None = None
    items: list[msgspec.Raw] | None = None


_lists: Final = msgspec.json.Decoder(_List)


async def _listed(transport: Transport, resource: ApiResource, page: int) -> list[Mapping[str, Any]]:
    """Return the objects of a kind; one that cannot be decoded is left out, and logged."""
    for _ in range(_RESTARTS):
        objects: list[Mapping[str, Any]] = []
        token: str | None = None
        while True:
            answer = await _page(transport, resource, page, token)
            if answer is None:
                break  # the list that was begun has expired
            for item in answer.items or ():
                try:
                    head = HEADS.decode(item).metadata
                except (ValueError, RecursionError):
                    raise _no_list(transport, resource) from None
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


async def _page(transport: Transport, resource: ApiResource, page: int, token: str | None) -> _List | None:
    """Return one page as the server sends it; None if its token has expired."""
    query = {"limit": str(page), **({} if token is None else {"continue": token})}
    try:
        text = await transport.request("GET", resource.path(), query=query, timeout=_TIMEOUT_S, retries=0)
    except ApiError as error:
        if error.code == 410 and token is not None:
            return None
        raise FaultError(_fault_of(error, resource)) from None
    except ConnectionFailed as error:
        raise FaultError(ApiFault(
            f"the cluster at {transport.connection.server} cannot be reached: {error.fault.message}", error.fault.help,
            error.fault.everywhere)) from None
    try:
        return _lists.decode(text)
    except (ValueError, RecursionError):
        raise _no_list(transport, resource) from None


def _fault_of(error: ApiError, resource: ApiResource) -> ApiFault:
    if error.code == 404:
        return ApiFault(f"{_ABSENT} {resource.plural} ({resource.api_version})",
                        "is this a Kubernetes API server?" if resource.required else "install what defines them")
    fault = of_status(error.code, json.dumps({"message": error.message}), verb="list", resource=resource.plural)
    if error.code == 403:
        return ApiFault(f"{resource.plural} may not be listed: {fault.message}",
                        f"grant `list` on `{resource.plural}` cluster-wide")
    return ApiFault(f"{resource.plural} cannot be listed: {fault.message}", fault.help, fault.everywhere)


def _no_list(transport: Transport, resource: ApiResource) -> FaultError:
    return FaultError(ApiFault(
        f"the cluster at {transport.connection.server} answers with something else than a list of {resource.plural}",
        "is this a Kubernetes API server?"))

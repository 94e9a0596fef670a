"""Questions to an API server about this client's own rights (SelfSubjectAccessReview)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Final

from .permissions import Permission
from .transport import Transport

_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def missing(
    transport: Transport, permissions: Iterable[Permission], *, namespace: str = "",
) -> list[tuple[Permission, str]]:
    """Return the permissions, each with the verb, that the server does not grant; with `namespace` those in one.

    Raises `ApiError`, `ConnectionFailed` or `PolicyError` if the server does not answer.
    """
    reviews = [(each, verb) for each in permissions for verb in each.verbs]
    granted = await asyncio.gather(*(_is_granted(transport, each, verb, namespace) for each, verb in reviews))
    return [review for review, yes in zip(reviews, granted, strict=True) if not yes]


async def _is_granted(transport: Transport, permission: Permission, verb: str, namespace: str) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    attributes = {"verb": verb, "group": permission.group, "resource": resource, "subresource": subresource,
                  "namespace": namespace, "name": permission.name}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
              "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}}}
    answer = json.loads(await transport.request("POST", _PATH, body=json.dumps(review).encode()))
    return bool((answer.get("status") or {}).get("allowed"))

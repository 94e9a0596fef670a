"""Permissions for requests to an API server, as the rules of roles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission for requests: verbs on a resource (`pods`) or a subresource (`pods/status`), and the reason."""

    group: str
    """Empty for the core group."""
    resource: str
    verbs: tuple[str, ...]
    reason: str
    name: str = ""
    """The only object that it covers; empty for all."""


REVIEWS: Final = (
    Permission("authentication.k8s.io", "tokenreviews", ("create",), "who reads metrics and configuration"),
    Permission("authorization.k8s.io", "subjectaccessreviews", ("create",), "whether that user may"),
)
"""For servers that authenticate readers."""


def lease(name: str) -> tuple[Permission, ...]:
    """Return the permissions for a Lease, in its namespace."""
    group = "coordination.k8s.io"
    return (Permission(group, "leases", ("create",), "leader election"),
            Permission(group, "leases", ("get", "update"), "leader election", name))


def rules(permissions: Iterable[Permission]) -> list[dict[str, Any]]:
    """Return permissions as the rules of a role; resources of a group with the same verbs share one."""
    by_resource: dict[tuple[str, str, str], list[str]] = {}
    for each in permissions:
        verbs = by_resource.setdefault((each.group, each.resource, each.name), [])
        verbs += [verb for verb in each.verbs if verb not in verbs]
    together: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for (group, resource, name), found in by_resource.items():
        together.setdefault((group, tuple(found), name), []).append(resource)
    named: dict[tuple[str, tuple[str, ...], tuple[str, ...], bool], list[str]] = {}
    for (group, allowed, name), resources in together.items():
        names = named.setdefault((group, tuple(resources), allowed, bool(name)), [])
        names += [name] if name else []
    return [
        {"apiGroups": [group], "resources": list(plurals), **({"resourceNames": names} if names else {}),
         "verbs": list(permitted)} for (group, plurals, permitted, _), names in named.items()]

"""Checks the API server before a descheduler begins: that it has the eviction subresource, and grants the rights.

Without the check, a missing right shows as a kind that is never listed, or as evictions that all fail.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Final

from koordpolicy.engine.client.access_reviews import missing
from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.leader_election import LeaseSettings
from koordpolicy.engine.client.permissions import Permission
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError, Problem

from .permissions import of_leases, of_memory

_LOG: Final = logging.getLogger(__name__)
_EVICTION: Final = "pods/eviction"


def check_permissions(
    connection: Connection, permissions: Iterable[Permission], election: LeaseSettings | None, shards: int = 0,
    memory: tuple[str, str] | None = None,
) -> None:
    """Check that the API server grants these permissions cluster-wide, and those for the Lease, for shards and for the
    `memory`, the namespace and name of a ConfigMap.

    If the check itself fails, a warning is logged, and the descheduler begins.

    Raises:
        PolicyError: with a problem for each right that is missing.
    """
    try:
        problems = asyncio.run(_problems(connection, permissions, election, shards, memory))
    except (ApiError, ConnectionFailed, ValueError) as error:
        _LOG.warning("the permissions could not be checked: %s", error)
        return
    if problems:
        raise PolicyError(problems)


async def _problems(
    connection: Connection, permissions: Iterable[Permission], election: LeaseSettings | None, shards: int,
    memory: tuple[str, str] | None,
) -> list[Problem]:
    permissions = tuple(permissions)
    async with Transport(connection, user_agent="koord-policy/descheduler", rate=0) as transport:
        found = [_problem(each, verb, "") for each, verb in await missing(transport, permissions)]
        if any(each.resource == _EVICTION for each in permissions) and not await _has_evictions(transport):
            found.append(Problem(
                "the API server does not support evictions: it has no resource `pods/eviction`", code="unsupported",
                help="use an API server of Kubernetes 1.22 or later"))
        local = [] if election is None else [(election.namespace, of_leases(election.name, shards))]
        if memory is not None:
            local.append((memory[0], of_memory(memory[1])))
        for namespace, rights in local:
            lacking = await missing(transport, dict.fromkeys(rights), namespace=namespace)
            found += [_problem(each, verb, namespace) for each, verb in lacking]
    return found


async def _has_evictions(transport: Transport) -> bool:
    resources = json.loads(await transport.request("GET", "/api/v1")).get("resources") or ()
    return any(each.get("name") == _EVICTION for each in resources)


def _problem(permission: Permission, verb: str, namespace: str) -> Problem:
    resource = f"{permission.resource}.{permission.group}" if permission.group else permission.resource
    where = f"in the namespace `{namespace}`" if namespace else "cluster-wide"
    return Problem(
        f"the API server does not permit to `{verb}` {resource} {where}: {permission.reason}",
        help=f"grant `{verb}` on `{permission.resource}` to the user or service account (deploy/descheduler has the "
             "whole role), or start with `--check-permissions=false`", code="forbidden")

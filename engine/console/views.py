"""The views that are answered by GET, as a table: the name in the path, the function, and the cost of a request.

A view is computed by the thread that owns the state, within a deadline (`view_thread`). What needs more than a state
and a query, such as a body or a running server, is a set of routes of its own (`routes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from . import nodes, pods, policies
from .colours import colour
from .models.model import Model
from .rights import CLUSTER, READING, Right
from .state import ConsoleState

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """A view at `/api/v1/NAME`."""

    name: str
    of: Callable[[ConsoleState, Query], Model]
    """Raises `UnknownNameError`, `PolicyError` or `ValueError` for a query without an answer."""
    rights: frozenset[Right] = READING
    """The rights that a user needs to see it."""
    cost: float = 1.0
    """The number of requests that one of these counts for (`guard.RateLimit`)."""


VIEWS: Final = (
    View("overview", lambda state, _: policies.overview(state), CLUSTER),
    View("map", lambda state, query: nodes.cluster_map(state, query.get("group", "zone")), CLUSTER),
    View("colour", lambda state, query: colour(state, query.get("expression", ""), query.get("pod", "")), CLUSTER),
    View("node", lambda state, query: nodes.node_view(state, query.get("name", "")), CLUSTER),
    View("pod", lambda state, query: pods.pod_view(state, query.get("key", "")), CLUSTER),
    View("pod-node", lambda state, query: pods.pod_node_view(state, query.get("key", ""), query.get("node", "")),
         CLUSTER),
    View("policies", lambda state, _: policies.policies_view(state), frozenset({Right.POLICIES})),
    View("file", lambda state, query: policies.file_view(state, query.get("name", "")), frozenset({Right.POLICIES})),
    View("search", lambda state, query: pods.search(state, query.get("text", "")), CLUSTER),
)
"""All views; paths are unique."""

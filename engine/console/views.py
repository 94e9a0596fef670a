"""The views as a table: the name in the path, the function, and the cost of a request.

Views are answered by GET; those of what a user has typed also by POST, with the parameters as a JSON object.

A view is computed by the thread that owns the state, within a deadline (`view_thread`). What needs more than a state
and a query, such as a body or a running server, is a set of routes of its own (`routes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from . import nodes, pods, policies
from .colours import colour
from .guard import NotPermitted
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
    times: float = 1.0
    """The time that it may take, in times of another view's."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """The parameters that a query must name, with the form of each."""
    typed: bool = False
    """True if it evaluates what a user has typed, which may be long: it is answered by POST, too."""

    def check(self, query: Query) -> None:
        """Check that a query names what is needed; raise `NotPermitted` with what to ask for."""
        missing = [name for name in self.needs if not query.get(name)]
        if missing:
            words = "&".join(f"{name}={form}" for name, form in self.needs.items())
            raise NotPermitted(400, f"the query lacks {' and '.join(f'`{name}`' for name in missing)}: "
                             f"ask for `/api/v1/{self.name}?{words}`")


def _evictions(state: ConsoleState, _: Query) -> Model:
    from .evictions import evictions_view  # noqa: PLC0415 - a second of imports that the first page does not need

    return evictions_view(state)


def _eviction(state: ConsoleState, query: Query) -> Model:
    from .evictions import eviction_view  # noqa: PLC0415 - as above

    return eviction_view(state, query["key"])


def _node_policies(state: ConsoleState, query: Query) -> Model:
    from .node_policies import node_policies  # noqa: PLC0415 - as above

    return node_policies(state, query["name"])


_LONG: Final = 4.0
"""The time of views of whole cycles, in times of another view's."""
_POLICIES: Final = frozenset({Right.POLICIES})
_NODE: Final = {"name": "NODE"}
_POD: Final = {"key": "NAMESPACE/POD"}


VIEWS: Final = (
    View("overview", lambda state, _: policies.overview(state), CLUSTER),
    View("map", lambda state, query: nodes.cluster_map(state, query.get("group", "zone")), CLUSTER),
    View("colour", lambda state, query: colour(state, query["expression"], query.get("pod", "")), CLUSTER,
         needs={"expression": "EXPRESSION"}, typed=True),
    View("node", lambda state, query: nodes.node_view(state, query["name"]), CLUSTER, needs=_NODE),
    View("pod", lambda state, query: pods.pod_view(state, query["key"]), CLUSTER, needs=_POD),
    View("pod-node", lambda state, query: pods.pod_node_view(state, query["key"], query["node"]), CLUSTER,
         needs={**_POD, "node": "NODE"}),
    View("evictions", _evictions, cost=5.0, times=_LONG),
    View("eviction", _eviction, cost=5.0, times=_LONG, needs=_POD),
    View("node-policies", _node_policies, cost=5.0, times=_LONG, needs=_NODE),
    View("policies", lambda state, _: policies.policies_view(state), _POLICIES),
    View("file", lambda state, query: policies.file_view(state, query["name"]), _POLICIES, needs={"name": "FILE"}),
    View("search", lambda state, query: pods.search(state, query.get("text", "")), CLUSTER),
)
"""All views; paths are unique."""

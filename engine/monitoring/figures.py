"""Figures of one server in its `/status`: the policies that it decides by, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.client.server_calls import EndpointAnswer


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The figures of a server."""

    endpoint: str
    healthy: bool
    generation: int | None
    hash: str
    nodes: int | None
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"endpoint": self.endpoint, "healthy": self.healthy, "generation": self.generation,
                "hash": self.hash or None, "nodes": self.nodes, "problems": list(self.problems)}


def is_healthy(answer: EndpointAnswer) -> bool:
    """Return whether a server responds, decides, runs the versions of its directories, and has a current cluster."""
    cluster, policies = answer.data.get("cluster") or {}, answer.data.get("policies") or {}
    return (answer.ok and bool(answer.data.get("ready")) and bool(policies.get("healthy"))
            and not cluster.get("stale"))


def server_figures(answer: EndpointAnswer) -> ServerFigures:
    """Return the figures in a server's `/status`."""
    policies, cluster = answer.data.get("policies"), answer.data.get("cluster") or {}
    if not answer.ok or not policies:
        return ServerFigures(answer.endpoint, False, None, "", None,
                             (answer.error or "policies and cluster are not loaded yet",))
    problems = [str(problem["message"]) for source in policies["sources"] for problem in source["problems"]]
    problems += troubles(answer.data)
    return ServerFigures(answer.endpoint, is_healthy(answer), policies["generation"], policies["digest"],
                         cluster.get("nodes"), tuple(problems))


def troubles(status: Mapping[str, Any]) -> list[str]:
    """Return the faults of a server, without the problems of its policies."""
    policies, cluster = status.get("policies") or {}, status.get("cluster") or {}
    found = [*policies["warnings"], *(status.get("fault") or ()), *(status.get("trouble") or ())]
    found += [f"{kind} is known as of {view['age']:.0f} s ago: {view['fault']}"
              for kind, view in (cluster.get("kinds") or {}).items() if view["fault"] and view["age"] is not None]
    return found

"""State of plugins by path, and flags that are switched at run time, without HTTP.

Paths and flags are koord-scheduler's (Koordinator `pkg/scheduler/frameworkext/services`). All functions are called in
the deciding thread.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.scheduler import Endpoints
from koordpolicy.engine.source import did_you_mean

from ..cycle.schedule_one import Debug, Scheduler

ROOT: Final = "/apis/v1"
FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "s": ("top_scores", "how many of the best nodes are written to the log with their scores; 0 for none"),
    "f": ("filters", "whether it is written to the log who refused which nodes"),
    "d": ("diagnosis", "whether the diagnosis of every pod that finds no node is written to the log, as JSON"),
    "t": ("trace", "whether every call of a plugin is written to the log"),
}
"""The flags by koord-scheduler's letter: the switched field and its description."""

_LOG: Final = logging.getLogger(__name__)
_MOST_SCORES: Final = 1000
_PART: Final = re.compile(r"\{(\w+)\}")
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


class UnknownPathError(LookupError):
    """No endpoint at a path; the message lists the endpoints."""


def paths(scheduler: Scheduler) -> list[str]:
    """Return the paths that answer, sorted."""
    return sorted([f"{ROOT}/__services__", f"{ROOT}/nodes/{{nodeName}}", *_services(scheduler)])


def answer(scheduler: Scheduler, path: str, query: Mapping[str, str]) -> Any:
    """Return the response of the endpoint at a path, as plain data.

    Raises:
        UnknownPathError: there is no endpoint, or its object is unknown.
        ValueError: the query has a parameter that the path does not take.
    """
    if path == f"{ROOT}/__services__":
        return {"GET": paths(scheduler)}
    node = re.fullmatch(f"{re.escape(ROOT)}/nodes/([^/]+)", path)
    if node is not None:
        return _node(scheduler, node[1])
    for pattern, ask in _services(scheduler).items():
        found = re.fullmatch(_expression(pattern), path)
        if found is None:
            continue
        known = set(inspect.signature(ask).parameters) - found.groupdict().keys()
        for name in query.keys() - known:
            hint = did_you_mean(name, known) or (f"there are {', '.join(sorted(known))}" if known else "there is none")
            raise ValueError(f"`{name}` is not a parameter of `{path}`: {hint}")
        result = ask(**found.groupdict(), **query)
        if result is None:
            raise UnknownPathError(f"nothing is known of `{path}`")
        return result
    hint = did_you_mean(path, paths(scheduler)) or f"ask {ROOT}/__services__"
    raise UnknownPathError(f"there is no `{path}`: {hint}")


def switched(debug: Debug, letter: str, text: str) -> Debug:
    """Return the flags with one of them set from a text.

    Raises:
        UnknownPathError: there is no such flag.
        ValueError: the value is invalid.
    """
    if letter not in FLAGS:
        known = ", ".join(f"`{each}` ({what})" for each, (_, what) in FLAGS.items())
        raise UnknownPathError(f"there is no flag `{letter}`: there are {known}")
    name = FLAGS[letter][0]
    if isinstance(getattr(debug, name), bool):
        if text.strip().lower() not in _TRUTH:
            raise ValueError(f"the flag `{letter}` is `true` or `false`, not `{text[:40]}`")
        return _with(debug, name, _TRUTH[text.strip().lower()])
    number = text.strip()
    if not (number.isascii() and number.isdecimal()) or int(number[:9]) > _MOST_SCORES or len(number) > 9:
        raise ValueError(f"the flag `{letter}` is a whole number from 0 to {_MOST_SCORES}, not `{text[:40]}`")
    return _with(debug, name, int(number))


def _with(debug: Debug, name: str, value: Any) -> Debug:
    changes: dict[str, Any] = {name: value}
    return replace(debug, **changes)


def _expression(pattern: str) -> str:
    """Return a pattern (`gang/{namespace}/{name}`) as a regular expression with a group for each part."""
    pieces = _PART.split(pattern)
    return "".join(f"(?P<{piece}>[^/]+)" if place % 2 else re.escape(piece) for place, piece in enumerate(pieces))


def _services(scheduler: Scheduler) -> dict[str, Callable[..., Any]]:
    """Return the plugins' endpoints by path; if several profiles have a plugin, those of the first one."""
    found: dict[str, Callable[..., Any]] = {}
    for profile in scheduler.profiles:
        for active in profile.having(Endpoints):
            try:
                endpoints = dict(active.instance.endpoints())
            except BaseException as error:  # the border between framework and plugin: the others still answer
                must_be_survived(error)
                _LOG.exception("the plugin `%s` failed to say what it answers", active.name)
                continue
            for path, ask in endpoints.items():
                found.setdefault(f"{ROOT}/plugins/{active.name}/{path}", ask)
    return found


def _node(scheduler: Scheduler, name: str) -> dict[str, Any]:
    cluster = scheduler.cluster
    if name not in cluster.index:
        hint = did_you_mean(name, cluster.index) or f"the cluster has {len(cluster.names)} others"
        raise UnknownPathError(f"there is no node `{name}`: {hint}")
    row = cluster.rows[cluster.index[name]]
    return {
        "name": name, "allocatable": dict(row.allocatable), "requested": dict(row.requested),
        "pods": [
            {"namespace": pod.namespace, "name": pod.name, "requests": dict(pod.requests)} for pod in row.pods.values()
        ],
        "devices": row.devices(),
        "metricUpdated": None if row.metric is None or row.metric.updated is None else row.metric.updated / 1e9,
    }

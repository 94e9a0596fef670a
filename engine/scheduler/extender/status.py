"""The status of the extender, as `/status` returns it."""

from __future__ import annotations

import time
from typing import Any

from koordpolicy.engine.cluster.kinds import Lack, lacking
from koordpolicy.engine.serving.daemons import Daemons

from ..observe.counters import expressions_of
from .bindings import bindings_under_way
from .loaded import Loaded
from .protocol import Extender


def status_of(loaded: Loaded, pod: str | None = None, *, binder: Daemons | None = None) -> dict[str, Any]:
    """Return the extender's status and its last decisions, newest first; of one `pod` with all exact totals.

    `binder` are the threads of /bind.
    """
    extender = loaded.extender
    scheduler = extender.scheduler
    fault = scheduler.hot_swap.fault
    lacks = lacks_of(extender)
    bindings = bindings_under_way(extender, binder)
    policies = loaded.reloader.status()  # once, so that all parts are consistent
    return {
        "ready": not policies.emptied,
        "generation": scheduler.profiles[0].generation,
        "profiles": [
            {"name": profile.name, "generation": profile.generation,
             "preFilters": [each.name for each in profile.pre_filters],
             "filters": [each.name for each in profile.filters],
             "scores": [{"plugin": each.name, "weight": each.weight} for each in profile.scores]}
            for profile in scheduler.profiles
        ],
        "fault": None if fault is None else [problem.message for problem in fault.problems],
        "trouble": list(scheduler.hot_swap.trouble),
        "cluster": {"source": loaded.source, "nodes": len(extender.cluster.names)} | _views_of(loaded)
        | ({"lacking": [lack.to_json() for lack in lacks]} if lacks else {}),
        "pinnedPods": extender.pins,
        "assumedPods": len(extender.placements),
        "bindingPods": bindings.pods,
        "oldestBindingSeconds": round(bindings.oldest_seconds, 3),
        "policies": policies.to_json() | {"reloadSeconds": round(loaded.reloader.seconds_at_work, 3)},
        "expressions": expressions_of(scheduler.profiles),
        "shadow": None if extender.shadow is None else extender.shadow.to_json(),
        "audits": extender.audits.to_json(),
        "decisions": [
            record.to_json(every=pod is not None) for record in reversed(extender.recent)
            if pod is None or pod in (record.pod, record.uid)
        ],
    }


def lacks_of(extender: Extender) -> tuple[Lack, ...]:
    """Return the kinds that active plugins read and the source of the cluster does not contain."""
    active = {each.name: each.plugin.reads for profile in extender.scheduler.profiles for each in profile.made}
    return lacking(active, extender.cluster)


def _views_of(loaded: Loaded) -> dict[str, Any]:
    """Return the state of each kind, for a cluster that is watched."""
    if loaded.watched is None:
        return {}
    now, views = time.time(), loaded.watched.views
    return {
        "lagSeconds": round(loaded.watched.lag_s, 3),
        "stale": [kind for kind, view in views.items() if view.stale],
        "kinds": {kind: {"listed": view.listed or None, "age": round(now - view.listed, 3) if view.listed else None,
                         "fault": view.fault or None} for kind, view in views.items()},
    }

"""The part of `/status` that is the same for every server that schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cluster.kinds import Lack, lacking
from koordpolicy.engine.reload.reloader import Reloader

from .cycle.schedule_one import Scheduler
from .observe.counters import expressions_of


def scheduler_status(scheduler: Scheduler, reloader: Reloader, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the basis of a scheduler's decisions: its profiles, policies with their problems, and expressions.

    `cluster` has the facts about the source of the cluster; the kinds that it lacks are added.
    """
    fault = scheduler.hot_swap.fault
    lacks = lacks_of(scheduler)
    policies = reloader.status()  # once, so that all parts are consistent
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
        "cluster": {**cluster, **({"lacking": [lack.to_json() for lack in lacks]} if lacks else {})},
        "policies": policies.to_json() | {"reloadSeconds": round(reloader.seconds_at_work, 3)},
        "expressions": expressions_of(scheduler.profiles),
    }


def lacks_of(scheduler: Scheduler) -> tuple[Lack, ...]:
    """Return the kinds that active plugins read and the source of the cluster does not contain."""
    active = {each.name: each.plugin.reads for profile in scheduler.profiles for each in profile.made}
    return lacking(active, scheduler.cluster)

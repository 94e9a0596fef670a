"""The cluster that `--cluster` names: its objects, the time of a decision about it, one pod, and what it lacks."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.cluster.kinds import Lack, Objects, describe, lacking
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Severity, did_you_mean, in_order, render

from .exits import Exit, Stop
from .terminal import warn

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.documents import YamlNode
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.verdict.verdict import Verdict


LIVE_CLUSTER: Final = "kube"
"""The value of `--cluster` for the cluster of the kubeconfig, with an optional `:CONTEXT`."""
_BUDGET: Final = "PodDisruptionBudget"
_SHOWN_REPEATS: Final = 3
_MINUTE: Final = 60_000_000_000
_LATE: Final = 60 * _MINUTE
"""An object that is newer than all others by more than this is reported, as it sets the time of the decision."""
_STAMPS: Final = (("status", "updateTime"), ("metadata", "creationTimestamp"))


def context_of(source: str | None) -> str | None:
    """Return the kubeconfig's context that `--cluster` names; None for the current one."""
    kind, _, context = (source or "").partition(":")
    return context or None if kind == LIVE_CLUSTER else None


def cluster_of(source: str, *, may_be_empty: bool = False) -> Cluster:
    """Return the cluster that `--cluster` names. Malformed objects are omitted and reported on standard error.

    With `may_be_empty`, a cluster without nodes is reported there, too.

    Raises:
        Stop: there is no such source, no node in it, or the live cluster does not answer.
        PolicyError: a file is not a dump.
    """
    return cluster_from(objects_of(source), source, may_be_empty=may_be_empty)


def cluster_from(objects: Iterable[Mapping[str, Any]], source: str, *, may_be_empty: bool = False) -> Cluster:
    """Return a cluster of objects; see `cluster_of`."""
    if isinstance(objects, Objects) and source.partition(":")[0] != LIVE_CLUSTER:
        _warn_of_repeats(objects)
    from koordpolicy.engine.cluster.cluster import Cluster  # numpy, which few commands need

    cluster = Cluster(kinds=objects.kinds if isinstance(objects, Objects) else None)
    problems = cluster.upsert_all(objects)
    if problems:
        warn(render([replace(problem, severity=Severity.WARNING) for problem in problems]))
    if not cluster.names:
        live = source.partition(":")[0] == LIVE_CLUSTER
        empty = f"there is no usable node in `{source}`" + (
            "" if live else ": a dump is what `kubectl get nodes,pods,nodemetrics -A -o yaml` prints")
        if not may_be_empty:
            raise Stop(empty, Exit.INVALID)
        warn(f"warning: {empty}")
    return cluster


def _warn_of_repeats(objects: Objects) -> None:
    """Report objects of one kind and name with unlike contents, of which the last one counts."""
    from koordpolicy.engine.cluster.sources.changes import Key, key_of

    found: dict[Key, Mapping[str, Any]] = {}
    repeated: dict[Key, None] = {}
    for each in objects:
        key = key_of(each)
        if key is None:
            continue
        if key in found and found[key] != each:
            repeated[key] = None
        found[key] = each
    if repeated:
        names = [f"{kind} `{name}`" for kind, name in repeated]
        more = f" and {len(names) - _SHOWN_REPEATS} more" if len(names) > _SHOWN_REPEATS else ""
        warn("warning: more than once and with unlike contents the dump has "
             f"{', '.join(names[:_SHOWN_REPEATS])}{more}: the last one of each counts")


def preemption_lacks(verdicts: Iterable[Verdict], cluster: Cluster) -> tuple[Lack, ...]:
    """Return the lack of PodDisruptionBudgets if there are victims: it is not known which ones they protect."""
    victims = any(verdict.nomination is not None and verdict.nomination.victims for verdict in verdicts)
    return (Lack("preemption", (_BUDGET,)),) if victims and cluster.lacks(_BUDGET) else ()


def warn_of_lacks(lacks: Iterable[Lack]) -> dict[str, list[dict[str, object]]]:
    """Report on standard error the kinds that plugins read and the source lacks; return the JSON field `lacking`.

    An eviction that depends on a lacking kind is refused; all other decisions are made as if there were no such
    objects.
    """
    lacks = tuple(dict.fromkeys(lacks))
    if lacks:
        warn(f"warning: {describe(lacks)}: add them to it, or do not rely on what these plugins say")
    return {"lacking": [lack.to_json() for lack in lacks]} if lacks else {}


def warn_of_settings(
    objects: Iterable[tuple[Mapping[str, Any], YamlNode | None]], registries: Iterable[Registry],
    gates: Mapping[str, bool] | None = None, enable: Iterable[str] = (),
) -> None:
    """Report on standard error the settings of the QoS manager that no running plugin of any registry reads.

    Objects come with their node in a file, or None. Nothing is reported where no QoS plugin runs.

    Raises:
        PolicyError: a plugin cannot be activated, or a gate is unknown.
    """
    from koordpolicy.engine.agent.settings import (  # not every command has them
        running_reads,
        settings_without_effect,
    )

    enable = frozenset(enable)
    reads = [found for each in registries if (found := running_reads(each, gates or {}, enable)) is not None]
    if reads and (problems := settings_without_effect(objects, (read for found in reads for read in found))):
        warn(render(in_order(problems)))


def settings_in(cluster: Cluster) -> Iterator[tuple[Mapping[str, Any], None]]:
    """Yield the NodeSLOs and ConfigMaps of a cluster, for `warn_of_settings`."""
    for kind in ("NodeSLO", "ConfigMap"):
        yield from ((each, None) for each in cluster.objects(kind).values())


def scheduling_lacks(settings: Settings, registry: Registry, cluster: Cluster) -> tuple[Lack, ...]:
    """Return the kinds that active plugins of these profiles read and the source lacks."""
    from koordpolicy.engine.scheduler.profiles.profile import reads_of  # not every command schedules

    return lacking({name: reads for spec in settings.profiles for name, reads in reads_of(spec, registry).items()},
                   cluster)


def all_lacks(settings: Settings, registry: Registry, cluster: Cluster) -> tuple[Lack, ...]:
    """Return `scheduling_lacks`, and the lacking kinds that documents of the other frameworks read."""
    others = {plugin.name: plugin.reads for plugin in registry.plugins.values()
              if plugin.framework is not Framework.SCHEDULER and plugin.source}
    return scheduling_lacks(settings, registry, cluster) + lacking(others, cluster)


def objects_of(source: str, note: Callable[[str], None] = warn) -> Iterable[Mapping[str, Any]]:
    """Return the objects of the cluster that `--cluster` names; `note` is called with the kinds that a live cluster
    does not list.

    Raises as `cluster_of` does.
    """
    kind, _, context = source.partition(":")
    if kind == LIVE_CLUSTER:
        from koordpolicy.engine.cluster.sources import api  # for a live cluster only

        return api.load(context or None, note=note)
    if not Path(source).exists():
        raise Stop(f"there is no file or directory `{source}`: `--cluster` takes a dump, or kube[:CONTEXT]")
    from koordpolicy.engine.cluster.sources import files

    return files.load(Path(source))


def moment_of(text: str | None, source: str, cluster: Cluster) -> int:
    """Return the time of the decision in nanoseconds since the epoch; see `add_cluster` for the default.

    Raises:
        Stop: the text is not a time.
    """
    from koordpolicy.engine.cluster.objects.metrics import nanoseconds

    if text is not None:
        try:
            return nanoseconds(text, "--now")
        except ValueError as error:
            raise Stop(str(error)) from None
    if source.partition(":")[0] == LIVE_CLUSTER:
        return time.time_ns()
    times: list[tuple[int, str]] = []
    for kind in ("NodeMetric", "Pod", "Node"):
        for key, each in cluster.objects(kind).items():
            newest = 0
            for section, name in _STAMPS:
                stamp = (each.get(section) or {}).get(name)
                if isinstance(stamp, str):
                    try:
                        newest = max(newest, nanoseconds(stamp, name))
                    except ValueError:
                        continue  # that object has been reported, or its time is not read
            if newest:
                times.append((newest, f"{kind} `{key}`"))
    _warn_of_outlier(times)
    return max(times)[0] if times else 0


def _warn_of_outlier(times: Sequence[tuple[int, str]]) -> None:
    """Report that the one newest object of a dump sets a time at which the metrics of all others have expired."""
    from koordpolicy.engine.kubernetes.times import rfc3339

    if len(times) < 2:
        return
    (newest, who), (before, _) = heapq.nlargest(2, times)
    if newest - before > _LATE and any(name.startswith("NodeMetric ") and name != who for _, name in times):
        warn(f"warning: the time of the decision is {rfc3339(newest)}, of {who}, {(newest - before) // _MINUTE} min "
             "after all else in the dump: metrics of then have expired (`--now` sets another time)")


def pod_of(cluster: Cluster, name: str) -> PodInfo:
    """Return a pod by `namespace/name`, or by its name if that is unique.

    Raises:
        Stop: there is none, or several.
    """
    keys = cluster.objects("Pod")
    if name not in keys:
        named = sorted(key for key in keys if key.partition("/")[2] == name)
        if not named:
            known = keys if "/" in name else [key.partition("/")[2] for key in keys]
            # A pod's own name is less often wrong than its namespace.
            elsewhere = sorted(key for key in keys if "/" in name and key.partition("/")[2] == name.partition("/")[2])
            hint = f"did you mean `{elsewhere[0]}`?" if elsewhere else (
                did_you_mean(name, known) or f"it has {len(keys)} pods")
            raise Stop(f"there is no pod `{name}` in the cluster: {hint}")
        if len(named) > 1:
            raise Stop(f"several pods are called `{name}`: name one of {', '.join(f'`{key}`' for key in named[:5])}")
        name = named[0]
    pod = cluster.pod(name)
    if pod is None:
        raise Stop(f"the pod `{name}` has finished: there is nothing to decide about it")
    return pod


def node_of(cluster: Cluster, name: str) -> int:
    """Return the row of a node.

    Raises:
        Stop: there is no such node.
    """
    if name not in cluster.index:
        hint = did_you_mean(name, cluster.index) or f"it has {len(cluster.names)} nodes"
        raise Stop(f"there is no node `{name}` in the cluster: {hint}")
    return cluster.index[name]

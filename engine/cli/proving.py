"""The options of commands that prove evictions, and the means that they name: scheduling profiles, and the memory."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from koordpolicy.engine.comparison.placements import SchedulerPlacements
from koordpolicy.engine.descheduler.live.server import SchedulerOfPods
from koordpolicy.engine.descheduler.proof.memory import UselessEvictionMemory
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.proof.store import KEY, FileMemoryStore, decoded
from koordpolicy.engine.descheduler.results import EvictionOutcome
from koordpolicy.engine.files import reason_of
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec, all_reads_of
from koordpolicy.engine.source import in_order, render

from .cluster_loading import LIVE_CLUSTER
from .composition import DEFAULT_PROFILE, knows_scheduler, need_file
from .exits import Stop
from .terminal import warn
from .verdicts import names

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.cluster import Cluster

_CONFIG_MAP: Final = "configmap:"
_NOT_FOUND: Final = 404


@contextmanager
def proving(options: argparse.Namespace, registry: Registry, cluster: Cluster, now: int) -> Iterator[Proving | None]:
    """Return the means of proofs, valid in the block; None if the options name none.

    Raises:
        Stop: there is no such file, or the memory cannot be read.
        PolicyError: the configuration or the memory is not valid.
    """
    memory = _memory(options.memory, options.cluster)
    settings = _settings(options.scheduler_config, registry)
    if settings is None:
        yield None if memory is None else Proving(memory=memory)
        return
    placements = SchedulerPlacements(Scheduler(cluster, Live(registry), settings, clock=lambda: now))
    try:
        yield Proving(placements, memory=memory)
    finally:
        placements.close()


def scheduler_of_pods(path: Path | None, live: Live) -> SchedulerOfPods:
    """Return the scheduler of a live cluster's pods by the file of `--scheduler-config` and the policies.

    Without a file kube-scheduler's default plugins are taken for those of `default-scheduler`, and for those of the
    profiles that SchedulerPlugins name.

    Raises:
        Stop: there is no such file.
        PolicyError: it is not valid.
    """
    settings = _settings(path, live.registry) or _default_settings(live.registry)
    return SchedulerOfPods(
        lambda registry: all_reads_of(settings.profiles, registry),
        lambda cluster, clock: SchedulerPlacements(Scheduler(cluster, live, settings, clock=clock)),
        assumed=path is None)


def save_memory(options: argparse.Namespace, memory: UselessEvictionMemory | None) -> None:
    """Write the memory to the file of `--memory`, if there is one; a ConfigMap is left to the live descheduler.

    Raises:
        Stop: it cannot be written.
    """
    if options.memory is None or memory is None or options.memory.startswith(_CONFIG_MAP):
        return
    try:
        FileMemoryStore(Path(options.memory)).save(memory)
    except OSError as error:
        raise Stop(f"the memory cannot be written to `{options.memory}`: {reason_of(error)}") from None


def warn_of_proofs(outcomes: Iterable[EvictionOutcome]) -> None:
    """Report on standard error the evictions that are made with a warning."""
    found: dict[str, list[str]] = {}
    for pod, _, decision in outcomes:
        if decision.evicted and decision.proof is not None and decision.proof.warns:
            found.setdefault(decision.proof.message, []).append(pod)
    for message, pods in found.items():
        warn(f"warning: {names(pods)} would be evicted: {message}")


def how_to_prove(option: str, policies: str) -> str:
    """Return the message for evictions that should have been proved where no scheduler is known.

    `option` takes the file of its profiles, `policies` says where SchedulerPlugins are named.
    """
    return (f"no eviction was proved: name the profiles of the pods' scheduler with `{option}`, or SchedulerPlugins "
            f"{policies}")


def _settings(path: Path | None, registry: Registry) -> Settings | None:
    """Return the settings of the scheduler; None if nothing is known of it.

    kube-scheduler chooses at random among equal nodes.
    """
    if path is not None:
        need_file(path, "`--scheduler-config` takes a KubeSchedulerConfiguration")
        found = configuration.load(path, registry)
        if found.warnings:
            warn(render(in_order(found.warnings)))
        return Settings(found.profiles, tie_break="random", foreign_pods=False)
    return _default_settings(registry) if knows_scheduler(None, registry) else None


def _default_settings(registry: Registry) -> Settings:
    """Return kube-scheduler's default plugins, for its default profile and those that policies name."""
    named = {name for each in registry.of_framework(Framework.SCHEDULER) for name in each.profiles or ()}
    profiles = (DEFAULT_PROFILE, *sorted(named - {DEFAULT_PROFILE}))
    return Settings(tuple(ProfileSpec(name) for name in profiles), tie_break="random", foreign_pods=False)


def config_map_of(text: str) -> tuple[str, str] | None:
    """Return namespace and name of the ConfigMap that `--memory` names; None if it names none."""
    namespace, _, name = text.removeprefix(_CONFIG_MAP).partition("/")
    return (namespace, name) if text.startswith(_CONFIG_MAP) and namespace and name and "/" not in name else None


def _memory(text: str | None, cluster: str) -> UselessEvictionMemory | None:
    """Return the memory that `--memory` names; None without the option."""
    if text is None or not text.startswith(_CONFIG_MAP):
        return None if text is None else _read(Path(text))
    place = config_map_of(text)
    kind, _, context = cluster.partition(":")
    if place is None or kind != LIVE_CLUSTER:
        raise Stop(f"`--memory {text}`: write `configmap:NAMESPACE/NAME` of a live cluster (`--cluster kube`), or name "
                   "a file")
    return asyncio.run(_memory_of_config_map(context or None, *place))


async def _memory_of_config_map(context: str | None, namespace: str, name: str) -> UselessEvictionMemory:
    # For a live cluster only.
    from koordpolicy.engine.client.kubeconfig import load_connection
    from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport

    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
    try:
        async with Transport(load_connection(context), user_agent="koord-policy/descheduler") as transport:
            content = json.loads(await transport.request("GET", path))
    except (ApiError, ConnectionFailed) as error:
        if isinstance(error, ApiError) and error.code == _NOT_FOUND:
            return UselessEvictionMemory()  # a descheduler has not written it yet
        raise Stop(f"the ConfigMap `{namespace}/{name}` of `--memory` cannot be read: {error}") from None
    text = (content.get("data") or {}).get(KEY)
    return UselessEvictionMemory() if text is None else decoded(
        text.encode("utf-8", "surrogatepass"), f"the ConfigMap `{namespace}/{name}`")


def _read(path: Path) -> UselessEvictionMemory:
    try:
        return FileMemoryStore(path).load()
    except OSError as error:
        raise Stop(f"the memory `{path}` cannot be read: {reason_of(error)}") from None

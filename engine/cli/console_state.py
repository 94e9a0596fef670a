"""The state of `koord-policy console`: the cluster and the policies of its options, which are followed from then on."""

from __future__ import annotations

import argparse
import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koordpolicy.engine.documents import Documents, files_of, load, read_file
from koordpolicy.engine.source import PolicyError, Problem

from . import cluster_policies
from .cluster_loading import LIVE_CLUSTER, all_lacks, cluster_of, context_of, moment_of, warn_of_lacks
from .composition import access_of, descheduler_configuration, discovered_plugins, need_policies_path, settings_of
from .exits import Stop
from .policy_sources import (
    PolicyAccess,
    bundle_options,
    bundle_sources,
    followed,
    is_elsewhere,
    need_bundle,
    read_elsewhere,
)
from .terminal import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
    from koordpolicy.engine.console.following import ClusterFollowing, PolicyFollowing
    from koordpolicy.engine.console.past import Past
    from koordpolicy.engine.console.policy_set import PolicySet
    from koordpolicy.engine.console.state import ConsoleState
    from koordpolicy.engine.console.view_thread import ViewThread
    from koordpolicy.engine.framework.discovery import DiscoveredPlugins
    from koordpolicy.engine.framework.registry import Registry
    from koordpolicy.engine.reload.source_state import SourceReader
    from koordpolicy.engine.reload.vet import Vetter
    from koordpolicy.engine.source import Source

    from . import Builtins


@dataclass(frozen=True)
class ConsoleSources:
    """The first state of the console, and the sources that change it."""

    options: argparse.Namespace
    state: ConsoleState
    discovered: DiscoveredPlugins
    watched: WatchedCluster | None = None
    """The live cluster, if it is followed."""
    past: Past | None = None

    def follow(self, views: ViewThread, vetter: Vetter | None) -> tuple[ClusterFollowing | PolicyFollowing, ...]:
        """Return the followers that bring changes to the thread of the views; they are not started yet."""
        from koordpolicy.engine.console.following import (
            ClusterFollowing,
            PolicyFollowing,
            console_reads,
        )

        options, watched = self.options, self.watched
        objects = cluster_policies.sources_of(options.policies)
        bundles = bundle_sources(options.policies, bundle_options(options))
        sources: dict[str, SourceReader] = {**objects, **bundles}
        follower = cluster_policies.follower_of(objects.values(), context_of(options.cluster)) if objects else None

        def cover(registry: Registry) -> None:
            if watched is not None:
                current = views.state
                watched.cover(console_reads(current.settings, registry),
                              active=console_reads(current.settings, current.policies.registry))

        policies = PolicyFollowing(
            [sources.get(str(path), str(path)) for path in options.policies], views, self._policies, self._restated,
            python_plugins=self.discovered.plugins, follower=follower,
            bundles=followed(bundles.values(), None) if bundles else None, vetter=vetter, cover=cover)
        return (policies,) if watched is None else (policies, ClusterFollowing(watched, views))

    def _policies(self, loaded: Documents, sources: Sequence[Source]) -> PolicySet:
        from koordpolicy.engine.console.policy_set import PolicySet

        return PolicySet.of(loaded, sources, self.discovered, self.state.policies.settings)

    def _restated(self, state: ConsoleState, policies: PolicySet) -> ConsoleState:
        if self.options.cluster is None:
            assert self.past is not None
            return self.past.last_state(policies, _time_of(self.options.now))
        return _state(self.options, state.cluster, policies, state.now, self.watched)


def sources_of(options: argparse.Namespace, builtins: Builtins, past: Past | None = None) -> ConsoleSources:
    """Return the cluster and the policies of the options. Invalid policies are part of it, and do not decide.

    A live cluster is followed, unless `--now` names a time. Without `--cluster` it is the end of the recording, or the
    time of `--now` in it.
    """
    from koordpolicy.engine.console.policy_set import PolicySet

    from .lint import lint_settings

    discovered = discovered_plugins(builtins)
    loaded, sources = _policies(options.policies, access_of(options))
    policies = PolicySet.of(loaded, sources, discovered, lint_settings(options.lint_settings))
    if any(each.severity == 0 for each in policies.problems):
        warn("warning: some policies are invalid and do not decide: the page shows them under `Policies`")
    if options.cluster is None:
        assert past is not None
        return ConsoleSources(options, past.last_state(policies, _time_of(options.now)), discovered, past=past)
    watched = None
    if options.cluster.partition(":")[0] == LIVE_CLUSTER and options.now is None:
        watched = _watched(options, policies.registry)
    cluster = cluster_of(options.cluster, may_be_empty=True) if watched is None else watched.cluster
    now = moment_of(options.now, options.cluster, cluster) if watched is None else watched.now()
    return ConsoleSources(options, _state(options, cluster, policies, now, watched), discovered, watched, past)


def _state(
    options: argparse.Namespace, cluster: Cluster, policies: PolicySet, now: int, watched: WatchedCluster | None,
) -> ConsoleState:
    from koordpolicy.engine.console.state import ConsoleState

    descheduler = None
    if options.descheduler_config is not None:
        descheduler = descheduler_configuration(options.descheduler_config, "--descheduler-config")
    settings = settings_of(options, policies.registry, cluster)
    lacks = all_lacks(settings, policies.registry, cluster)
    warn_of_lacks(lacks)
    return ConsoleState(cluster, policies, now=now, name=options.cluster, settings=settings, descheduler=descheduler,
                        lacking=tuple(dict.fromkeys(kind for each in lacks for kind in each.kinds)),
                        watches=dict if watched is None else lambda: watched.views)


def _watched(options: argparse.Namespace, registry: Registry) -> WatchedCluster:
    from koordpolicy.engine.client.kubeconfig import load_connection  # for a live cluster only
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
    from koordpolicy.engine.console.following import USER_AGENT, console_reads

    cluster = Cluster(kinds=frozenset({"Node", "Pod"}))
    with contextlib.redirect_stderr(io.StringIO()):  # policies without pods are reported once there are pods
        settings = settings_of(options, registry, cluster)
    watched = WatchedCluster(load_connection(context_of(options.cluster)), cluster, console_reads(settings, registry),
                             user_agent=USER_AGENT)
    watched.start()
    if not cluster.names:
        warn(f"warning: there is no usable node in `{options.cluster}` yet")
    return watched


def _time_of(text: str | None) -> int | None:
    from koordpolicy.engine.console.past import time_of

    try:
        return None if text is None else time_of(text)
    except ValueError as error:
        raise Stop(f"`--now`: {error}") from None


def _policies(paths: Sequence[str], access: PolicyAccess) -> tuple[Documents, list[Source]]:
    """Return the documents of all paths, and the files."""
    loaded, sources = Documents(), []
    need_bundle(paths, access.bundles)
    elsewhere = read_elsewhere(paths, access)
    for path in paths:
        problems: list[Problem] = []
        found: list[Source] = []
        if (version := elsewhere.get(str(path))) is not None and is_elsewhere(path):
            problems += version.problems
            found += version.files.values()
        else:
            need_policies_path(path)
            for file in files_of(Path(path), problems):
                try:
                    found.append(read_file(file))
                except PolicyError as error:
                    problems += error.problems
        documents = load(found, source_name=str(path))
        loaded += Documents(problems=tuple(problems))
        loaded += documents
        sources += found
    return loaded, sources

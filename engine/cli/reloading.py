"""The policies of a server: the options of reloading, and the reloader that they describe."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from . import cluster_policies, policy_sources
from .cluster_loading import context_of
from .composition import discovered_plugins, need_policies_path
from .exits import Stop, refuse_given
from .numbers import number, seconds_or_none, share

if TYPE_CHECKING:
    from koordpolicy.engine.framework.registry import Live, Plugin
    from koordpolicy.engine.reload.build import Builder
    from koordpolicy.engine.reload.reloader import Reloader, ReloadObserver
    from koordpolicy.engine.reload.settings import ReloadSettings
    from koordpolicy.engine.reload.source_state import SourceReader, SourceState
    from koordpolicy.engine.reload.swap import Stage
    from koordpolicy.engine.reload.vet import VettedBuild, Vetter

    from . import Builtins

T = TypeVar("T")

OPTIONS: Final = ("state_dir", "invalid_at_start", "reload_unit", "max_error_rate", "compile_timeout", "allow_empty",
                  "status_lease", "registry_interval")


def add_arguments(
    parser: argparse.ArgumentParser, *, state_dir: str = "where the last good policies are stored",
    compile_timeout: str = "default: 10",
) -> None:
    """Declare the options of reloading; `state_dir` is the help of that option, `compile_timeout` the default's."""
    group = parser.add_argument_group(
        "reloading", "while the process serves, the paths of `--policies` are watched, and changes become active "
        "without a restart.\nSee docs/reload.md",
    )
    group.add_argument("--state-dir", metavar="DIR", type=Path, help=state_dir)
    group.add_argument("--invalid-at-start", choices=("refuse", "last-good"),
                       help="the action if the policies are invalid at start (default: refuse)")
    group.add_argument("--allow-empty", action="store_const", const=True,
                       help="a `--policies` path may hold no policy; without it, the last good policies of one that is "
                            "emptied stay active, and the server is not ready")
    group.add_argument("--reload-unit", choices=("source", "file"),
                       help="the unit that keeps its previous version as a whole if a part of it is invalid: a "
                            "`--policies` path, or one file with the PolicyParams that its documents reference "
                            "(default: source)")
    group.add_argument("--status-lease", metavar="NAMESPACE/NAME", type=cluster_policies.lease,
                       help="the Lease by which one of several servers writes the status of the objects of `--policies "
                            "crd` (default: koord-policy-status in the namespace of the pod, or in kube-system)")
    group.add_argument("--registry-interval", metavar="SECONDS", type=_interval,
                       help="the time between two reads of a bundle's tag (default: 60)")
    group.add_argument("--max-error-rate", metavar="RATE", type=share,
                       help="roll policies back if the expressions failed in more than this share (0..1) of their "
                            "first 100 calls")
    group.add_argument("--compile-timeout", metavar="SECONDS", type=seconds_or_none,
                       help="how long a file of policies may take to be checked, in a process of its own; 0 compiles "
                            f"without that process ({compile_timeout})")


def refuse_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options that mean nothing to a process that ends by itself."""
    refuse_given(options, OPTIONS, "goes with `--extender`, or a live cluster without `--dry-run`")


def check_paths(options: argparse.Namespace) -> None:
    """Raise `Stop` for a path of `--policies` that does not exist, unless the last good policies may replace it, and
    for options of bundles, or of objects in a cluster, without one.
    """
    policy_sources.need_bundle(options.policies, policy_sources.bundle_options(options))
    if cluster_policies.CRD not in options.policies:
        refuse_given(options, ("status_lease",), "goes with `--policies crd`: only these objects have a status")
    if not any(map(policy_sources.is_bundle, options.policies)):
        refuse_given(options, ("registry_interval",), "goes with a bundle, and none is named: "
                     f"`{policy_sources.BUNDLE}REGISTRY/REPOSITORY:TAG` is one")
    if options.invalid_at_start != "last-good":
        for path in options.policies:
            need_policies_path(path)


def load_vetted(options: argparse.Namespace, load: Callable[[Vetter | None], T], *, shadow: str | None = None) -> T:
    """Return the result of `load`, which is called with the started process that compiles policies, or None.

    Without paths of `--policies`, or of policies in the `shadow`, there is nothing to compile, ever, and no process. If
    `load` raises, it is ended.
    """
    from koordpolicy.engine.reload.vet import SECONDS, Vetter  # only servers pay for it

    if options.compile_timeout == 0 or not (options.policies or shadow):
        return load(None)
    vetter = Vetter(seconds=options.compile_timeout or SECONDS)
    try:
        vetter.start()  # imports its modules concurrently with this process
        return load(vetter)
    except BaseException:
        vetter.close()
        raise


class _Follower(Protocol):
    """Follows sources that are not on the disk, beside a reloader."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function after each change; it must not block."""

    def started(self) -> None:
        """Begin: the reloader starts its thread."""

    def published(self, states: Sequence[SourceState], /) -> None:
        """Take the states of the sources after a pass."""

    def closed(self) -> None:
        """End: the reloader has ended."""


class PolicyLoader:
    """Makes reloaders of the policies that the options name."""

    def __init__(
        self, options: argparse.Namespace, builtins: Builtins, vetter: Vetter | None,
        after_reload: Callable[[int], None] = lambda _: None, *, interval: float = 1.0,
    ) -> None:
        """`after_reload` is called after each reload (see `Reloader`).

        `interval` is that between looks at the sources, in seconds, where no file event comes.
        """
        from koordpolicy.engine.framework.registry import Live
        from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc

        self.live: Live = Live()
        """The active policies."""
        self.discovered = discovered_plugins(builtins)
        self.low_latency = LowLatencyGc()
        self._options = options
        self._vetter = vetter
        self._after_reload = after_reload
        self._interval = interval

    def begin(self, python_plugins: Iterable[Plugin], check: Stage) -> Reloader:
        """Activate the policies of `--policies` and return the reloader, which is not started yet.

        Raises:
            PolicyError: they are invalid, and there is no last good version that may be used.
        """
        from koordpolicy.engine.reload.settings import ReloadSettings
        from koordpolicy.engine.reload.source_state import ReloadUnit
        from koordpolicy.engine.reload.startup import InvalidAtStart

        options = self._options
        if options.state_dir is not None and options.state_dir.exists() and not options.state_dir.is_dir():
            raise Stop(f"`--state-dir {options.state_dir}` is no directory")
        settings = ReloadSettings(
            interval=self._interval, unit=ReloadUnit(options.reload_unit or "source"),
            invalid_at_start=InvalidAtStart(options.invalid_at_start or "refuse"),
            allow_empty=bool(options.allow_empty), max_error_rate=options.max_error_rate)
        objects = cluster_policies.sources_of(options.policies)
        bundles = policy_sources.bundle_sources(options.policies, policy_sources.bundle_options(options))
        sources: dict[str, SourceReader] = {**objects, **bundles}
        followers: list[_Follower] = []
        try:
            if objects:
                followers.append(cluster_policies.ClusterPolicies(
                    objects.values(), context_of(options.cluster), options.status_lease))
            if bundles:
                followers.append(policy_sources.followed(bundles.values(), options.registry_interval))
            reloader = self.reloader(
                self.live, [sources.get(path, str(path)) for path in options.policies], settings, python_plugins,
                check, state_dir=options.state_dir, observers=followers)
            for each in followers:
                each.on_change(reloader.wake)
            reloader.begin(time.monotonic())
        except BaseException:
            for each in followers:
                each.closed()
            raise
        return reloader

    def reloader(
        self, live: Live, paths: Sequence[str | SourceReader], settings: ReloadSettings,
        python_plugins: Iterable[Plugin], check: Stage, *, state_dir: Path | None = None,
        observers: Iterable[ReloadObserver] = (), log: logging.Logger | None = None,
    ) -> Reloader:
        """Return a reloader of the policies at these paths, and of these other sources; its other arguments are those
        of `Reloader`.
        """
        from koordpolicy.engine.reload.reloader import Reloader

        return Reloader(live, paths, self._builder(), settings, python_plugins=python_plugins, check=check,
                        state_dir=state_dir, low_latency=self.low_latency, after_reload=self._after_reload,
                        observers=observers, log=log or logging.getLogger("koordpolicy.engine.reload.reloader"))

    def _builder(self) -> Builder | VettedBuild:
        from koordpolicy.engine.compile import compile_documents
        from koordpolicy.engine.reload.build import Builder
        from koordpolicy.engine.reload.vet import SECONDS, VettedBuild

        builder = Builder(partial(compile_documents, extensions=self.discovered.functions),
                          seconds=self._options.compile_timeout or SECONDS, pause=self.low_latency.pause)
        return builder if self._vetter is None else VettedBuild(builder, self._vetter)


def _interval(text: str) -> float:
    return number(text, "number of seconds from 1 to 86400", lambda value: 1 <= value <= 86_400)

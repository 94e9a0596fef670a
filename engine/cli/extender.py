"""The part of `koord-policy scheduler` that serves kube-scheduler as an extender."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.texts import camel

from . import delegation, reloading, serving
from .cluster_loading import LIVE_CLUSTER, cluster_of, moment_of, scheduling_lacks, warn_of_lacks
from .composition import DEFAULT_PROFILE, check_enabled, choice_of, report_idle
from .ending import Ending, leave
from .exits import Exit, Stop, refuse_given
from .logs import start_server_logs
from .numbers import number, seconds_or_none, share
from .policy_sources import is_elsewhere
from .reloading import PolicyLoader, check_paths, load_vetted
from .serving import EXTENDER_ADDRESS, address, tls_of
from .terminal import warn, write

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.kinds import Read
    from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
    from koordpolicy.engine.framework.registry import Plugin, Registry
    from koordpolicy.engine.reload.vet import Vetter
    from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
    from koordpolicy.engine.scheduler.extender.loaded_extender import Loaded
    from koordpolicy.engine.scheduler.extender.pod_binder import PodBinder
    from koordpolicy.engine.scheduler.extender.server import Server

    from . import Builtins

EXAMPLES: Final = """\
as an extender:
  koord-policy scheduler --extender --policies policies/scheduler --cluster examples/cluster
  koord-policy scheduler --extender --bind 0.0.0.0:8443 --policies /etc/policies --cluster kube \\
      --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt --state-dir /var/lib/koord-policy
"""

_MEGABYTE: Final = 1024 * 1024
ASSUMED_SECONDS: Final = 60.0
"""Seconds for which a placement is assumed until the cluster shows it."""
_GRACE_SECONDS: Final = 20.0
_CLOSE_SHARE: Final = 0.25
"""The part of the grace period for closing what is loaded; the rest is for calls in progress."""
_SWITCH_INTERVAL_S: Final = 0.001
_HEARTBEAT_SECONDS: Final = 1.0
_OPTIONS: Final = ("priorities", "refresh", "assume", "bind_pods",
                   "max_body", "shadow", "shadow_share", "decision_timeout", "stuck_timeout",
                   "grace_period")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--extender` and the options that go with it."""
    group = parser.add_argument_group(
        "extender", "kube-scheduler asks over HTTP which nodes a pod may run on and how good they are. It has applied "
        "its own filters by\nthen, so only the documents decide here, and the built-in plugins that --enable names. "
        "See docs/extender.md",
    )
    group.add_argument("--extender", action="store_true", help="serve the extender protocol until SIGTERM")
    group.add_argument("--priorities", choices=("MinMax", "Max"),
                       help="how totals are scaled to 0..10 over the nodes of a request: from the lowest to the "
                            "highest total, or in proportion to the highest (default: MinMax)")
    group.add_argument("--refresh", metavar="SECONDS", type=seconds_or_none,
                       help="0 reads a live cluster once instead of watching it; other values mean nothing any more")
    group.add_argument("--assume", metavar="SECONDS", type=seconds_or_none,
                       help="how long a pod is assumed to be on the best node of its answer until the cluster shows "
                            f"its node; 0 for never (default: {ASSUMED_SECONDS:g} for a live cluster, else 0)")
    group.add_argument("--bind-pods", action="store_true", default=None,
                       help="answer `bindVerb: bind` too: bind the pods that kube-scheduler sends, so that every "
                            "placement is known; needs a live cluster and the right to create `pods/binding`")
    group.add_argument(
        "--shadow",
        metavar="PATH",
        help="policies that are evaluated beside the active ones, without effect: differences are counted "
        "and sampled in /status and /metrics, and `koord-policy promote` activates them",
    )
    group.add_argument("--shadow-share", metavar="RATE", type=share,
                       help="the share (0..1) of the scheduling thread's time that the shadow may use (default: "
                            "0.25)")
    group.add_argument("--decision-timeout", metavar="SECONDS", type=_positive,
                       help="how long a call waits for its result: then it gets 503, the server is not ready, and "
                            "the document at fault is rolled back (default: 3)")
    group.add_argument("--stuck-timeout", metavar="SECONDS", type=_positive,
                       help="how long after `--decision-timeout` /healthz fails too, so that the kubelet restarts the "
                            "server (default: 30)")
    group.add_argument("--grace-period", metavar="SECONDS", type=_positive,
                       help="how long the process may take to end after SIGTERM, whatever is under way "
                            f"(default: {_GRACE_SECONDS:g})")
    group.add_argument("--max-body", metavar="MIB", type=_megabytes, help="maximum size of a request body (default: "
                                                                          "64)")


def refuse_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options that mean nothing without `--extender`."""
    refuse_given(options, _OPTIONS, "goes with `--extender`")


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Serve until a signal ends it."""
    if options.output != "text" or options.dry_run or options.tie_break != "first":
        raise Stop("`--output`, `--dry-run` and `--tie-break` mean nothing to an extender: kube-scheduler chooses, "
                   "and the responses are in /status")
    if not options.policies and not options.enable:
        raise Stop("nothing would decide: name policies with `--policies`, or built-in plugins with `--enable`")
    shadow: str | None = options.shadow
    policies: list[str] = options.policies
    check_paths(options)
    if shadow is not None and is_elsewhere(shadow):
        raise Stop(f"`--shadow {shadow}`: policies in the shadow come from a directory or a file")
    for path in policies if shadow is not None else ():
        if is_elsewhere(path):
            continue
        real, beside = os.path.realpath(path), os.path.realpath(shadow or "")
        if os.path.commonpath([real, beside]) in (real, beside):
            raise Stop(f"`--shadow {options.shadow}` and `--policies {path}` are one within the other: what is in the "
                       "shadow must not be active, so keep them apart")
    if options.bind_pods and (options.cluster or "").partition(":")[0] != LIVE_CLUSTER:
        raise Stop("`--bind-pods` needs a live cluster: `--cluster kube[:CONTEXT]`")
    host, port = options.bind or address(EXTENDER_ADDRESS)
    server = server_of(options, builtins)
    start_server_logs(options.log_format, lambda: server.generation)
    if options.tls_cert is None and host not in ("127.0.0.1", "::1", "localhost"):
        warn(f"warning: {host} can be reached from elsewhere, and whoever reaches it is answered: use `--tls-cert`, "
             "`--tls-key` and `--client-ca`")

    grace: float = options.grace_period or _GRACE_SECONDS

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ending = Ending(stop, grace)
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, ending)
        loop.add_signal_handler(signal.SIGUSR2, server.request_dump)
        beating = asyncio.create_task(_beat(grace))
        try:
            await server.run(host, port, stop, bound=_say_bound, ready=_say_ready)
        finally:
            beating.cancel()
            faulthandler.cancel_dump_traceback_later()

    interval = sys.getswitchinterval()
    # The loop that answers probes, and a decision after it, wait for a thread that computes this long, instead of 5 ms.
    sys.setswitchinterval(min(interval, _SWITCH_INTERVAL_S))
    try:
        asyncio.run(serve())
    except OSError as error:
        if not isinstance(error, socket.gaierror) and "attempting to bind" not in str(error.strerror):
            raise
        other = " (or `--health-bind`)" if options.health_bind is not None else ""
        raise Stop(f"cannot listen: {error.strerror}: name another address with `--bind`{other}") from None
    finally:
        sys.setswitchinterval(interval)
    if server.abandoned:
        # A thread that does not return may keep the interpreter from ending in order.
        leave(Exit.OK)
    return Exit.OK


async def _beat(most: float) -> None:
    """Let the process end if no Python code has run for `most` seconds, in which no signal handler would run either.

    A single call into C code may hold the interpreter. A thread without Python watches for that, and writes the stack
    of each thread to standard error.
    """
    while True:
        faulthandler.dump_traceback_later(most, exit=True)
        await asyncio.sleep(_HEARTBEAT_SECONDS)


def server_of(options: argparse.Namespace, builtins: Builtins) -> Server:
    """Return the server of the options; raises `Stop` for unusable TLS files."""
    from koordpolicy.engine.scheduler.extender.server import (  # 150 ms that only servers pay
        DECISION_SECONDS,
        DEFAULT_MAX_BODY,
        STUCK_SECONDS,
        Server,
    )
    from koordpolicy.engine.serving.garbage_collection import ShortCollections

    max_body = DEFAULT_MAX_BODY if options.max_body is None else options.max_body
    collections = ShortCollections()
    return Server(loader(options, builtins, collections.freeze), max_body=max_body, tls=tls_of(options),
                  health=options.health_bind, token=serving.admin_token_of(options),
                  decision_seconds=options.decision_timeout or DECISION_SECONDS,
                  stuck_seconds=options.stuck_timeout or STUCK_SECONDS,
                  close_seconds=(options.grace_period or _GRACE_SECONDS) * _CLOSE_SHARE,
                  binds=bool(options.bind_pods), collections=collections, access=delegation.access_of(options),
                  configuration=_configuration(options))


def _configuration(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options for /configz; none of them is a secret."""
    names = ("policies", "enable", "cluster", "profile", "seed", *_OPTIONS, *serving.OPTIONS, *reloading.OPTIONS)
    found = {name: getattr(options, name) for name in names}
    return {"kind": "ExtenderOptions"} | {
        camel(name): value if isinstance(value, bool | int | float | list | tuple) else str(value)
        for name, value in found.items() if value is not None}


def loader(
    options: argparse.Namespace, builtins: Builtins, after_reload: Callable[[int], None] = lambda _: None,
) -> Callable[[], Loaded]:
    """Return the function that loads policies and cluster; it raises `Stop` and `PolicyError` as other commands do.

    `after_reload` is called after each reload (see `Reloader`).
    """

    def load() -> Loaded:
        return load_vetted(options, load_with, shadow=options.shadow)

    def load_with(vetter: Vetter | None) -> Loaded:
        from koordpolicy.engine.cluster.cluster import Cluster
        from koordpolicy.engine.framework.registry import Live
        from koordpolicy.engine.reload.settings import ReloadSettings
        from koordpolicy.engine.reload.startup import InvalidAtStart
        from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
        from koordpolicy.engine.scheduler.extender.loaded_extender import Loaded
        from koordpolicy.engine.scheduler.extender.placements import Placements
        from koordpolicy.engine.scheduler.extender.protocol import Extender, Priorities
        from koordpolicy.engine.scheduler.extender.shadow import SHARE, Shadow
        from koordpolicy.engine.scheduler.observe.counters import Counters
        from koordpolicy.engine.scheduler.profiles.profile import (
            ProfileSpec,
            all_reads_of,
            check_profiles,
        )

        policies = PolicyLoader(options, builtins, vetter, after_reload)
        live, plugins = policies.live, policies.discovered.plugins
        enabled = tuple(map(choice_of, options.enable or ()))
        names = tuple(choice.name for choice in enabled)
        args = {choice.name: choice.args for choice in enabled if choice.args}
        settings = Settings((ProfileSpec(options.profile or DEFAULT_PROFILE, args=args),), seed=options.seed,
                            kubernetes=options.kubernetes)
        check = partial(check_profiles, settings.profiles)
        reloader = policies.begin(_enabled(plugins, names), check)
        report_idle(live.registry, {settings.profiles[0].name}, names, log=logging.getLogger(__name__))
        cluster, clock = Cluster(kinds=frozenset({"Node", "Pod"})), time.time_ns
        watched: WatchedCluster | None = None
        beside = Live()  # the shadow's policies
        is_live = (options.cluster or "").partition(":")[0] == LIVE_CLUSTER
        if options.refresh:
            warn("`--refresh` means nothing any more: a live cluster is watched (0 still reads it once)")
        if is_live and options.refresh != 0:
            watched = _watched(options.cluster, cluster, all_reads_of(settings.profiles, live.registry))
            clock = watched.now
        elif options.cluster is not None:
            cluster = cluster_of(options.cluster)
            if options.now is not None or not is_live:
                # The metrics of a dump are current only at the time of the dump.
                moment = moment_of(options.now, options.cluster, cluster)
                clock = lambda: moment  # noqa: E731 - one of three clocks
        warn_of_lacks(scheduling_lacks(settings, live.registry, cluster))
        counters = Counters()
        scheduler = Scheduler(cluster, live, settings, clock=clock, count=counters)

        def stage(into: Scheduler, registry: Registry) -> None:
            if watched is not None:  # the new policies may be refused, and the active ones go on
                watched.cover(all_reads_of(settings.profiles, registry),
                              active=all_reads_of(settings.profiles, live.registry, beside.registry))
            into.hot_swap.stage(registry)

        shadow = None
        if options.shadow is not None:
            # The same plugins with other documents, over the same cluster, in the thread that owns it.
            below = Scheduler(cluster, beside, settings, clock=clock)
            follows = policies.reloader(
                beside, [options.shadow], ReloadSettings(invalid_at_start=InvalidAtStart.WAIT),
                _enabled(plugins, names), check, log=logging.getLogger("koordpolicy.shadow"))
            share = SHARE if options.shadow_share is None else options.shadow_share
            shadow = Shadow(below, beside, live, follows, timer=time.monotonic, share=share)
            follows.stage_with(lambda registry: stage(below, registry))
            follows.start()
        assumed = options.assume if options.assume is not None else ASSUMED_SECONDS if watched is not None else 0.0
        extender = Extender(scheduler, clock=clock, timer=time.monotonic, shadow=shadow,
                            priorities=Priorities(options.priorities or "MinMax"),
                            placements=Placements(cluster, time.monotonic, seconds=assumed))
        reloader.stage_with(lambda registry: stage(scheduler, registry))
        reloader.start()
        source = options.cluster or "the nodes of the requests"
        if not options.bind_pods:
            return Loaded(extender, reloader, source, watched, counters, vetter)
        binder = _binder(source)
        return Loaded(extender, reloader, source, watched, counters, vetter, binder, binder.close)

    return load


def _watched(source: str, cluster: Cluster, reads: Iterable[Read]) -> WatchedCluster:
    """Return a live cluster that is watched and listed; raises `PolicyError` if it cannot be reached."""
    from koordpolicy.engine.client.kubeconfig import load_connection  # for a live cluster only
    from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster

    watched = WatchedCluster(load_connection(source.partition(":")[2] or None), cluster, reads)
    watched.start()
    return watched


def _binder(source: str) -> PodBinder:
    from koordpolicy.engine.client.kubeconfig import load_connection  # for a live cluster only
    from koordpolicy.engine.scheduler.extender.pod_binder import PodBinder

    return PodBinder(load_connection(source.partition(":")[2] or None))


def _enabled(plugins: tuple[Plugin, ...], names: tuple[str, ...] | list[str]) -> tuple[Plugin, ...]:
    """Return the Python plugins; those of the scheduler are enabled only if they are named. kube-scheduler already has
    its default plugins; a named one has the weight of a document, not its weight there.
    """
    check_enabled(names, plugins)
    return tuple(
        plugin if plugin.framework is not Framework.SCHEDULER
        else replace(plugin, enabled=plugin.name in names, default_weight=None)
        for plugin in plugins
    )


def _say_bound(url: str) -> None:
    write(f"listening on {url}")
    _flush()


def _say_ready(loaded: Loaded) -> None:
    extender = loaded.extender
    profile = extender.scheduler.profiles[0]
    write(f"ready: generation {profile.generation}, plugins {', '.join(profile.plugins()) or 'none'}; "
          f"{len(extender.cluster.names)} nodes from {loaded.source}")
    _flush()


def _flush() -> None:
    sys.stdout.flush()  # the parent process waits for this line, also through a pipe


def _positive(text: str) -> float:
    return number(text, "number of seconds from 0.1 to 3600", lambda value: 0.1 <= value <= 3600)


def _megabytes(text: str) -> int:
    """Read an option's value in MiB; return bytes."""
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 1 to 1024")
    return int(text) * _MEGABYTE

"""The part of `koord-policy scheduler` that schedules and binds the pods of a live cluster."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .client_options import LEASE_OPTIONS, LIMIT_OPTIONS, add_lease_arguments, add_limit_arguments, lease_of
from .composition import DEFAULT_PROFILE, check_enabled, choice_of, need_file, report_idle
from .durations import positive_seconds
from .exits import Exit, Stop, refuse_given
from .live_serving import LiveServing
from .logs import start_server_logs
from .observing import Observing, observing_of, recorded_reads
from .reloading import PolicyLoader, load_vetted
from .serving import add_console_url
from .terminal import warn, write

if TYPE_CHECKING:
    from koordpolicy.engine.framework.registry import Registry
    from koordpolicy.engine.reload.reloader import Reloader
    from koordpolicy.engine.reload.vet import Vetter
    from koordpolicy.engine.scheduler.cycle.loop import Attempt
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.live.operations import Operations
    from koordpolicy.engine.scheduler.live.server import LiveServer, ServerSettings

    from . import Builtins

EXAMPLES: Final = """\
as a scheduler of a live cluster:
  koord-policy scheduler --cluster kube --policies policies/scheduler --scheduler-name koord-policy
  koord-policy scheduler --cluster kube:staging --policies /etc/policies --config scheduler.yaml \\
      --leader-elect-resource-namespace scheduling --state-dir /var/lib/koord-policy
"""

_GRACE_S: Final = 10.0
_BIND_S: Final = 60.0
_LEASE_NAME: Final = "koord-policy-scheduler"
_LEASE_NAMESPACE: Final = "kube-system"
OPTIONS: Final = ("scheduler_name", "leader_elect", *LEASE_OPTIONS, "bind_timeout", *LIMIT_OPTIONS, "console_url")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a scheduler of a live cluster."""
    group = parser.add_argument_group(
        "live cluster", "without `--dry-run` the pods of a live cluster are bound until SIGTERM. See docs/live.md")
    group.add_argument("--scheduler-name", metavar="NAME", action="append", type=_scheduler_name,
                       help="schedule the pods whose `spec.schedulerName` this is, with the default plugins and all "
                            "policies; may be repeated. With `--config` the profiles of the file say which (default: "
                            f"{DEFAULT_PROFILE}, which is also kube-scheduler's: do not let both run with one name)")
    add_lease_arguments(group, verb="schedule", name=_LEASE_NAME, namespace=_LEASE_NAMESPACE)
    group.add_argument("--bind-timeout", metavar="TIME", type=positive_seconds,
                       help="how long the binding of a pod may take before the pod is tried again (default: 60s)")
    add_limit_arguments(group, qps=50, burst=100)
    add_console_url(group, "events about pods that find no node end with the address of the decision in this console")


def refuse_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options that mean nothing where no pods of a live cluster are bound."""
    refuse_given(options, OPTIONS, "goes with a live cluster, without `--dry-run` and `--extender`")


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Schedule and bind the pods of a live cluster until a signal ends it."""
    if options.output != "text" or options.now is not None:
        raise Stop("`--output` and `--now` mean nothing to a scheduler of a live cluster: add `--dry-run`, or look at "
                   "its events and logs")
    if options.config is not None and (options.scheduler_name or options.profile):
        raise Stop("`--scheduler-name` and `--profile` go without `--config`: its profiles have names")
    serving = LiveServing(options)
    # The process that compiles starts first: most modules of this one are imported beside it.
    loaded = load_vetted(options, partial(_load, options, builtins, serving))
    signal.signal(signal.SIGUSR2, lambda *_: loaded.server.scheduler.request_dump())
    interval = sys.getswitchinterval()
    try:
        serving.run(loaded, loaded.operations.endpoints, name="scheduler", grace_s=_GRACE_S)
    finally:
        sys.setswitchinterval(interval)
    return Exit.OK


class _Loaded:
    """The server, and what keeps its policies up to date (implements `LiveProcess`)."""

    def __init__(
        self, server: LiveServer, operations: Operations, reloader: Reloader, vetter: Vetter | None,
        observed: Observing,
    ) -> None:
        self.server = server
        self.operations = operations
        self.reloader = reloader
        self.run = server.run
        self.stop = server.stop
        self._observed = observed
        self._vetter = vetter

    def start(self) -> None:
        """Begin to follow the policies."""
        self.reloader.start()

    def close(self) -> None:
        """End the observers, the compiling process, so that nothing waits for it, and then the reloading thread."""
        self._observed.close()
        if self._vetter is not None:
            self._vetter.close()
        self.reloader.close()


class _FailingExpressions:
    """Counts the attempts of a generation, for `--max-error-rate`; in the deciding thread."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    def observe(self, attempt: Attempt) -> None:
        """Count an attempt, and whether an expression failed in it."""
        verdict = attempt.verdict
        self._reloader.observe(verdict.generation, 1, 1 if verdict.errors() else 0)


def _load(
    options: argparse.Namespace, builtins: Builtins, serving: LiveServing, vetter: Vetter | None,
) -> _Loaded:
    from koordpolicy.engine.scheduler.cycle.schedule_one import Debug
    from koordpolicy.engine.scheduler.live.operations import Operations
    from koordpolicy.engine.scheduler.live.server import LiveServer
    from koordpolicy.engine.scheduler.observe.counters import Counters
    from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec, check_profiles
    from koordpolicy.engine.serving.garbage_collection import ShortCollections

    operations = Operations(counters=Counters(), access=serving.access())
    _start_logs(options, operations)
    profiles: tuple[ProfileSpec, ...] = ()
    collections = ShortCollections()
    policies = PolicyLoader(options, builtins, vetter, collections.freeze)
    reloader = policies.begin(policies.discovered.plugins, lambda registry: check_profiles(profiles, registry))
    registry = policies.live.registry
    written, settings = _settings(options, registry)
    profiles = settings.profiles
    check_profiles(profiles, registry)
    report_idle(registry, {profile.name for profile in profiles}, log=logging.getLogger(__name__))

    def ready(server: LiveServer) -> None:
        observed.start(server.scheduler.cluster)
        operations.measure()
        # Requests and watches wait less for a decision that computes. Not before: while lists are read and applied,
        # threads that take turns every 5 ms get more done.
        policies.low_latency.keep_turns_short()
        _say_ready(server, policies.live.registry)

    def now() -> int:
        return server.feed.now()  # the loop's clock: recorded changes and decisions are in one order

    observed = observing_of(options, policies.live, settings, now)
    debug = Debug(options.debug_scores, options.debug_filters, options.trace, options.debug_diagnosis)
    server = LiveServer(serving.connect, policies.live, settings, server=server_settings(options, written),
                        count=operations.counters, debug=debug, ready=ready, requests=operations.requests,
                        observers=[] if options.max_error_rate is None else [_FailingExpressions(reloader)],
                        cycle_observers=observed.observers,
                        reads=recorded_reads(options, registry),
                        collections=collections)
    reloader.stage_with(server.stage)
    operations.follow(server, reloader)
    return _Loaded(server, operations, reloader, vetter, observed)


def _settings(options: argparse.Namespace, registry: Registry) -> tuple[Mapping[str, Any], Settings]:
    """Return the configuration as plain data, empty without one, and the profiles and the queue of the options."""
    from koordpolicy.engine.framework.points import Framework
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.profiles import configuration
    from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
    from koordpolicy.engine.source import in_order, render

    timeout = int((_BIND_S if options.bind_timeout is None else options.bind_timeout) * 1e9)
    if options.config is None:
        enabled = tuple(map(choice_of, options.enable or ()))
        check_enabled((choice.name for choice in enabled), registry.of_framework(Framework.SCHEDULER))
        names = options.scheduler_name or [options.profile or DEFAULT_PROFILE]
        return {}, Settings(
            tuple(ProfileSpec(name, enabled) for name in dict.fromkeys(names)), tie_break=options.tie_break,
            seed=options.seed, binding_timeout=timeout, foreign_pods=False, kubernetes=options.kubernetes)
    if options.enable:
        raise Stop("`--enable` goes without `--config`: name the plugin in the configuration")
    need_file(options.config, "`--config` takes a KubeSchedulerConfiguration")
    found = configuration.load(options.config, registry, live=True)
    if found.warnings:
        warn(render(in_order(found.warnings)))
    return found.plain, Settings(
        found.profiles, tie_break=options.tie_break, seed=options.seed, initial_backoff=found.initial_backoff,
        longest_backoff=found.longest_backoff, binding_timeout=timeout, foreign_pods=False,
        kubernetes=options.kubernetes)


def server_settings(options: argparse.Namespace, written: Mapping[str, Any] | None = None) -> ServerSettings:
    """Return the limits of the client and the Lease: of the options, else of the configuration `written`.

    Raises:
        Stop: times of the Lease contradict each other.
    """
    from koordpolicy.engine.scheduler.live.server import BURST, QPS, ServerSettings
    from koordpolicy.engine.serving.console_links import ConsoleLinks

    connection = (written or {}).get("clientConnection") or {}
    qps = options.kube_api_qps
    if qps is None:
        qps = max(0.0, float(connection["qps"])) if connection.get("qps") else QPS  # below 0 there is no limit
    return ServerSettings(qps=qps, burst=options.kube_api_burst or connection.get("burst") or BURST,
                          links=options.console_url or ConsoleLinks(),
                          lease=lease_of(options, name=_LEASE_NAME, namespace=_LEASE_NAMESPACE,
                                         written=(written or {}).get("leaderElection")))


def _scheduler_name(text: str) -> str:
    if not text:  # no pod has it: the API server writes `default-scheduler` into a pod that names none
        raise argparse.ArgumentTypeError(f"a scheduler's name is not empty: such as {DEFAULT_PROFILE}")
    return text


def _start_logs(options: argparse.Namespace, operations: Operations) -> None:
    start_server_logs(options.log_format, lambda: operations.generation)
    root = "koordpolicy.scheduler"
    for plugin, level in options.log:
        logging.getLogger(root if plugin == "*" else f"{root}.{plugin}").setLevel(level)


def _say_ready(server: LiveServer, registry: Registry) -> None:
    loop = server.scheduler.loop
    assert loop is not None
    names = ", ".join(profile.name for profile in loop.scheduler.profiles)
    lease = server.settings.lease
    waits = f"; waits for the Lease {lease.namespace}/{lease.name}" if lease is not None else ""
    write(f"ready: generation {registry.generation}, schedules pods of {names}; "
          f"{len(server.scheduler.cluster.names)} nodes{waits}")
    sys.stdout.flush()  # the parent process may wait for this line, also through a pipe

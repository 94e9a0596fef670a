"""The part of `koord-policy scheduler` that schedules and binds the pods of a live cluster."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import delegation
from .composition import DEFAULT_PROFILE, check_enabled, choice_of, need_file, report_idle
from .durations import seconds
from .ending import Ending, leave
from .exits import Exit, Stop, refuse_given
from .logs import start_server_logs
from .numbers import number
from .observing import Observing, observing_of, recorded_reads
from .reloading import PolicyLoader, check_paths, load_vetted
from .serving import admin_token_of, tls_of
from .terminal import warn, write

if TYPE_CHECKING:
    from koordpolicy.engine.client.connection import Connection
    from koordpolicy.engine.client.leader_election import LeaseSettings
    from koordpolicy.engine.framework.registry import Registry
    from koordpolicy.engine.reload.admin import RollbackEndpoint
    from koordpolicy.engine.reload.reloader import Reloader
    from koordpolicy.engine.reload.vet import Vetter
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.live.operations import Operations
    from koordpolicy.engine.scheduler.live.server import LiveServer, ServerSettings
    from koordpolicy.engine.serving.listeners import ListenerThread

    from . import Builtins

EXAMPLES: Final = """\
as a scheduler of a live cluster:
  koord-policy scheduler --cluster kube --policies policies/scheduler --scheduler-name koord-policy
  koord-policy scheduler --cluster kube:staging --policies /etc/policies --config scheduler.yaml \\
      --leader-elect-resource-namespace scheduling --state-dir /var/lib/koord-policy
"""

_GRACE_S: Final = 10.0
_SWITCH_INTERVAL_S: Final = 0.0001
_LEASE_NAME: Final = "koord-policy-scheduler"
_LEASE_NAMESPACE: Final = "kube-system"
_LEASE_OPTIONS: Final = (
    "leader_elect_lease_duration", "leader_elect_renew_deadline", "leader_elect_retry_period",
    "leader_elect_resource_name", "leader_elect_resource_namespace")
OPTIONS: Final = ("scheduler_name", "leader_elect", *_LEASE_OPTIONS, "bind_timeout", "kube_api_qps", "kube_api_burst")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a scheduler of a live cluster."""
    group = parser.add_argument_group(
        "live cluster", "without `--dry-run` the pods of a live cluster are bound until SIGTERM. See docs/live.md")
    group.add_argument("--scheduler-name", metavar="NAME", action="append",
                       help="schedule the pods whose `spec.schedulerName` this is, with the default plugins and all "
                            "policies; may be repeated. With `--config` the profiles of the file say which (default: "
                            f"{DEFAULT_PROFILE}, which is also kube-scheduler's: do not let both run with one name)")
    group.add_argument("--leader-elect", metavar="BOOL", nargs="?", const=True, type=_boolean,
                       help="schedule only while this process holds the Lease, and end with exit code 1 when it is "
                            "lost; `--leader-elect=false` for a single process (default: true)")
    group.add_argument("--leader-elect-lease-duration", metavar="TIME", type=seconds,
                       help="how long others wait before they take over a Lease that is not renewed (default: 15s)")
    group.add_argument("--leader-elect-renew-deadline", metavar="TIME", type=seconds,
                       help="how long the leader tries to renew the Lease before it gives up (default: 10s)")
    group.add_argument("--leader-elect-retry-period", metavar="TIME", type=seconds,
                       help="the time between two attempts to acquire or renew the Lease (default: 2s)")
    group.add_argument("--leader-elect-resource-name", metavar="NAME",
                       help=f"the name of the Lease (default: {_LEASE_NAME})")
    group.add_argument("--leader-elect-resource-namespace", metavar="NAMESPACE",
                       help=f"its namespace (default: {_LEASE_NAMESPACE})")
    group.add_argument("--bind-timeout", metavar="TIME", type=seconds,
                       help="how long the binding of a pod may take before the pod is tried again (default: 60s)")
    group.add_argument("--kube-api-qps", metavar="N", type=_rate,
                       help="requests per second to the API server, watches aside; events have a limit of their own, "
                            "of the same size; 0 for no limit (default: 50)")
    group.add_argument("--kube-api-burst", metavar="N", type=_burst,
                       help="requests that may be sent at once after a pause (default: 100)")


def refuse_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options that mean nothing where no pods of a live cluster are bound."""
    refuse_given(options, OPTIONS, "goes with a live cluster, without `--dry-run` and `--extender`")


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Schedule and bind the pods of a live cluster until a signal ends it."""
    from koordpolicy.engine.client.plain_connection import load_plain_connection  # noqa: PLC0415
    from koordpolicy.engine.reload.admin import RollbackEndpoint  # noqa: PLC0415
    from koordpolicy.engine.scheduler.live.operations import Operations  # noqa: PLC0415
    from koordpolicy.engine.scheduler.live.owner import Ended  # noqa: PLC0415
    from koordpolicy.engine.scheduler.observe.counters import Counters  # noqa: PLC0415

    if options.output != "text" or options.now is not None:
        raise Stop("`--output` and `--now` mean nothing to a scheduler of a live cluster: add `--dry-run`, or look at "
                   "its events and logs")
    if options.config is not None and (options.scheduler_name or options.profile):
        raise Stop("`--scheduler-name` and `--profile` go without `--config`: its profiles have names")
    check_paths(options)
    connect = partial(load_plain_connection, options.cluster.partition(":")[2] or None)
    tls, token = tls_of(options, certificates_optional=True), admin_token_of(options)
    operations = Operations(counters=Counters(), access=delegation.access_of(options, connect) if _protects(options)
                            else None)
    _start_logs(options, operations)
    loaded = load_vetted(options, partial(_load, options, builtins, operations, connect))
    server = loaded.server
    listeners = _listen(options, operations, RollbackEndpoint(lambda: loaded.reloader, token), tls)
    stop = _StopFlag(server.stop)
    ending = Ending(stop, _GRACE_S)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ending())
    signal.signal(signal.SIGUSR2, lambda *_: server.scheduler.request_dump())
    interval = sys.getswitchinterval()
    # Requests and watches wait for a decision that computes this long, instead of 5 ms.
    sys.setswitchinterval(min(interval, _SWITCH_INTERVAL_S))
    try:
        loaded.reloader.start()
        ended = server.run()
    finally:
        sys.setswitchinterval(interval)
        loaded.observed.close()
        loaded.close()
        for listener in listeners:
            listener.close()
        operations.endpoints.close()
    if ended is Ended.LOST_LEASE:
        logging.getLogger(__name__).error("the Lease was lost: another scheduler may lead now")
        # Threads that hang must not keep a process alive that others believe to be gone.
        leave(Exit.UNEXPECTED)
    return Exit.OK


class _StopFlag:
    """The flag that a signal sets; implements `ending.Stoppable`."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._set = threading.Event()

    def is_set(self) -> bool:
        return self._set.is_set()

    def set(self) -> None:
        self._set.set()
        self._stop()


class _Loaded:
    """The server, and what keeps its policies up to date."""

    def __init__(self, server: LiveServer, reloader: Reloader, vetter: Vetter | None, observed: Observing) -> None:
        self.server = server
        self.observed = observed
        self.reloader = reloader
        self._vetter = vetter

    def close(self) -> None:
        """End the compiling process, so that nothing waits for it, and then the reloading thread."""
        if self._vetter is not None:
            self._vetter.close()
        self.reloader.close()


def _protects(options: argparse.Namespace) -> bool:
    """Return whether readers are authenticated: where tokens are encrypted on their way, or it is demanded."""
    return options.tls_cert is not None or options.authentication_kubeconfig is not None


def _listen(
    options: argparse.Namespace, operations: Operations, rollback: RollbackEndpoint, tls: ssl.SSLContext | None,
) -> list[ListenerThread]:
    """Serve the endpoints where the options say, and changes at `--bind` only.

    Raises:
        Stop: an address is not available.
    """
    from aiohttp import web  # noqa: PLC0415

    from koordpolicy.engine.serving.listeners import ListenerThread  # noqa: PLC0415

    found: list[ListenerThread] = []
    for address, context in ((options.bind, tls), (options.health_bind, None)):
        if address is None:
            continue
        host, port = address
        app = web.Application()
        operations.endpoints.add_to(app)
        if address is options.bind:
            rollback.add_to(app)
        listener = ListenerThread(app, host, port, context)
        try:
            url = listener.start()
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno is not None and error.errno > 0:  # a failed look-up of a name has a negative one
                why = os.strerror(error.errno)
            option = "--bind" if address is options.bind else "--health-bind"
            raise Stop(f"cannot listen on {host}:{port}: {why.lower()}: name another address with `{option}`") from None
        write(f"listening on {url}")
        sys.stdout.flush()
        found.append(listener)
    return found


def _load(
    options: argparse.Namespace, builtins: Builtins, operations: Operations, connect: Callable[[], Connection],
    vetter: Vetter | None,
) -> _Loaded:
    from koordpolicy.engine.scheduler.cycle.schedule_one import Debug  # noqa: PLC0415
    from koordpolicy.engine.scheduler.live.server import LiveServer  # noqa: PLC0415
    from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec, check_profiles  # noqa: PLC0415
    from koordpolicy.engine.serving.garbage_collection import ShortCollections  # noqa: PLC0415

    profiles: tuple[ProfileSpec, ...] = ()
    collections = ShortCollections()
    policies = PolicyLoader(options, builtins, vetter, collections.settle)
    reloader = policies.begin(policies.discovered.plugins, lambda registry: check_profiles(profiles, registry))
    registry = policies.live.registry
    written, settings = _settings(options, registry)
    profiles = settings.profiles
    check_profiles(profiles, registry)
    report_idle(registry, {profile.name for profile in profiles}, log=logging.getLogger(__name__))

    def ready(server: LiveServer) -> None:
        observed.start(server.scheduler.cluster)
        operations.measure()
        _say_ready(server, policies.live.registry)

    def now() -> int:
        return server.feed.now()  # the loop's clock: recorded changes and decisions are in one order

    observed = observing_of(options, policies.live, settings, now)
    debug = Debug(options.debug_scores, options.debug_filters, options.trace, options.debug_diagnosis)
    server = LiveServer(connect, policies.live, settings, server=server_settings(options, written),
                        count=operations.counters, debug=debug, ready=ready, requests=operations.requests,
                        cycle_observers=observed.observers, reads=recorded_reads(options, registry),
                        collections=collections)
    reloader.stage_with(server.stage)
    operations.follow(server, reloader)
    return _Loaded(server, reloader, vetter, observed)


def _settings(options: argparse.Namespace, registry: Registry) -> tuple[Mapping[str, Any], Settings]:
    """Return the configuration as plain data, empty without one, and the profiles and the queue of the options."""
    from koordpolicy.engine.framework.points import Framework  # noqa: PLC0415
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings  # noqa: PLC0415
    from koordpolicy.engine.scheduler.profiles import configuration  # noqa: PLC0415
    from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec  # noqa: PLC0415
    from koordpolicy.engine.source import in_order, render  # noqa: PLC0415

    timeout = int((options.bind_timeout or 60.0) * 1e9)
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
    from koordpolicy.engine.scheduler.live.server import BURST, QPS, ServerSettings  # noqa: PLC0415

    connection = (written or {}).get("clientConnection") or {}
    qps = options.kube_api_qps
    if qps is None:
        qps = max(0.0, float(connection["qps"])) if connection.get("qps") else QPS  # below 0 there is no limit
    return ServerSettings(qps=qps, burst=options.kube_api_burst or connection.get("burst") or BURST,
                          lease=_lease(options, (written or {}).get("leaderElection") or {}))


def _lease(options: argparse.Namespace, written: Mapping[str, Any]) -> LeaseSettings | None:
    from koordpolicy.engine.client.leader_election import LeaseSettings, new_identity  # noqa: PLC0415

    elects = written.get("leaderElect", True) if options.leader_elect is None else options.leader_elect
    if not elects:
        refuse_given(options, _LEASE_OPTIONS, "goes without `--leader-elect=false`")
        return None
    try:
        times = {
            name: seconds(str(written[field])) if given is None else given
            for name, field, given in (
                ("lease_s", "leaseDuration", options.leader_elect_lease_duration),
                ("renew_s", "renewDeadline", options.leader_elect_renew_deadline),
                ("retry_s", "retryPeriod", options.leader_elect_retry_period))
            if given is not None or written.get(field)}
        return LeaseSettings(
            options.leader_elect_resource_namespace or written.get("resourceNamespace") or _LEASE_NAMESPACE,
            options.leader_elect_resource_name or written.get("resourceName") or _LEASE_NAME, new_identity(), **times)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise Stop(f"the leader election: {error}") from None


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


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise argparse.ArgumentTypeError(f"`{text}` is not true or false")
    return text.lower() == "true"


def _rate(text: str) -> float:
    return number(text, "number of requests per second, or 0 for no limit", lambda value: 0 <= value <= 1e6)


def _burst(text: str) -> int:
    return int(number(text, "whole number above 0", lambda value: value >= 1 and value == int(value)))

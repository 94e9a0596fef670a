"""The part of `koord-policy descheduler` that evicts pods of a live cluster, in cycles."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .client_options import LEASE_OPTIONS, LIMIT_OPTIONS, add_lease_arguments, add_limit_arguments, boolean, lease_of
from .composition import need_file
from .durations import seconds
from .exits import Exit, Stop
from .live_serving import LiveServing
from .logs import start_server_logs
from .numbers import number
from .reloading import PolicyLoader, load_vetted
from .terminal import warn, write

if TYPE_CHECKING:
    from koordpolicy.engine.client.connection import Connection
    from koordpolicy.engine.descheduler.config import DeschedulerConfiguration
    from koordpolicy.engine.descheduler.live.loop import CycleReport
    from koordpolicy.engine.descheduler.live.operations import DeschedulerOperations
    from koordpolicy.engine.descheduler.live.server import DeschedulerServer, DeschedulerSettings
    from koordpolicy.engine.framework.registry import Live, Registry
    from koordpolicy.engine.reload.followed_file import FollowedFile
    from koordpolicy.engine.reload.reloader import Reloader
    from koordpolicy.engine.reload.vet import Vetter
    from koordpolicy.engine.source import Source

    from . import Builtins

EXAMPLES: Final = """\
as a descheduler of a live cluster:
  koord-policy descheduler --cluster kube --config descheduler.yaml --dry-run --interval 1m
  koord-policy descheduler --cluster kube --config descheduler.yaml --policies /etc/policies \\
      --health-bind 0.0.0.0:10251
  koord-policy descheduler --cluster kube --config descheduler.yaml --once --leader-elect=false
"""

_GRACE_S: Final = 30.0
_INTERVAL_S: Final = 60.0
_LEAST_STALENESS_S: Final = 75.0
_SHARDS_ELECT: Final = "`--shards` goes without `--leader-elect=false`: one replica must lead the others"
_LEASE_NAME: Final = "koord-descheduler"
_LEASE_NAMESPACE: Final = "koordinator-system"
_MOST_SHARDS: Final = 8
OPTIONS: Final = (
    "interval", "max_staleness", "shards", "check_permissions", "leader_elect", *LEASE_OPTIONS, *LIMIT_OPTIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a descheduler of a live cluster."""
    group = parser.add_argument_group(
        "live cluster", "without `--once --dry-run` cycles run until SIGTERM. See docs/descheduling.md")
    group.add_argument("--interval", metavar="TIME", type=seconds,
                       help="the time from the start of a cycle to the start of the next one; 0s for one cycle, after "
                            "which the process stays for migration jobs (default: `deschedulingInterval` of "
                            "`--config`, without one 60s)")
    group.add_argument("--max-staleness", metavar="TIME", type=seconds,
                       help="evict nothing if nothing was heard of a kind for longer (default: 180s; a watch without "
                            "changes is heard of about once a minute)")
    group.add_argument("--shards", metavar="N", type=_shards,
                       help="let N replicas at most share the nodes, each with a Lease of its own, instead of one that "
                            "works while the others wait; they keep the limits of a cycle together")
    group.add_argument("--check-permissions", metavar="BOOL", nargs="?", const=True, type=boolean,
                       help="ask the API server at start whether it permits what the configuration needs, and end with "
                            "what to grant if it does not (default: true)")
    add_lease_arguments(group, verb="deschedule", name=_LEASE_NAME, namespace=_LEASE_NAMESPACE)
    add_limit_arguments(group, qps=50, burst=100)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Deschedule a live cluster until a signal ends it, or for one cycle."""
    from koordpolicy.engine.descheduler.live.operations import DeschedulerOperations

    if options.output != "text" or options.now is not None or options.cycles != 1:
        raise Stop("`--output`, `--now` and `--cycles` mean nothing to a descheduler of a live cluster: add `--once "
                   "--dry-run`, or look at its /status, events and logs")
    if options.max_staleness is not None and options.max_staleness < _LEAST_STALENESS_S:
        raise Stop(f"`--max-staleness` must be {_LEAST_STALENESS_S:g}s at least: a watch without changes is heard of "
                   "about once a minute")
    if options.shards is not None and options.once:
        raise Stop("`--shards` goes without `--once`: a single cycle is run by one process")
    if options.shards is not None and options.leader_elect is False:
        raise Stop(_SHARDS_ELECT)
    _memory_of(options.memory)  # before policies are compiled and anything is logged
    serving = LiveServing(options)
    operations = DeschedulerOperations(access=serving.access())
    start_server_logs(options.log_format, lambda: operations.generation)
    loaded = load_vetted(options, partial(_load, options, builtins, operations, serving.connect))
    serving.run(loaded, operations.endpoints, name="descheduler", grace_s=_GRACE_S)
    last = loaded.server.descheduler.view.last
    return Exit.IMPOSSIBLE if options.once and last is not None and last.result.error else Exit.OK


class _Loaded:
    """The server, and what keeps its policies and its configuration up to date (implements `LiveProcess`)."""

    def __init__(
        self, server: DeschedulerServer, reloader: Reloader, vetter: Vetter | None,
        file: FollowedFile[DeschedulerConfiguration] | None,
    ) -> None:
        self.server = server
        self.reloader = reloader
        self.run = server.run
        self.stop = server.stop
        self._vetter = vetter
        self._file = file

    def start(self) -> None:
        """Begin to follow the policies and the configuration."""
        self.reloader.start()
        if self._file is not None:
            self._file.start(self.server.descheduler.wake)

    def close(self) -> None:
        """End the compiling process, so that nothing waits for it, and then the threads."""
        if self._vetter is not None:
            self._vetter.close()
        if self._file is not None:
            self._file.close()
        self.reloader.close()


class _FailingExpressions:
    """Counts the decisions of a generation, for `--max-error-rate`; in the descheduler's thread."""

    def __init__(self, reloader: Reloader, live: Live) -> None:
        self._reloader = reloader
        self._live = live

    def observe(self, report: CycleReport) -> None:
        """Count the decisions of a cycle, at least one, and those in which a rule of a document failed."""
        from koordpolicy.engine.framework.points import Framework

        result = report.result
        documents = self._live.registry.documents_of(Framework.DESCHEDULER)
        failed = sum(bool(each.rule) and not each.audited and each.plugin in documents for each in result.failures)
        if not report.stale:
            self._reloader.observe(result.generation, max(len(result.outcomes) + failed, 1), failed)


def _load(
    options: argparse.Namespace, builtins: Builtins, operations: DeschedulerOperations,
    connect: Callable[[], Connection], vetter: Vetter | None,
) -> _Loaded:
    from koordpolicy.engine.descheduler import config
    from koordpolicy.engine.descheduler.live.preflight import check_permissions
    from koordpolicy.engine.descheduler.live.server import DeschedulerServer
    from koordpolicy.engine.framework.points import Framework
    from koordpolicy.engine.reload.followed_file import FollowedFile
    from koordpolicy.engine.serving.garbage_collection import ShortCollections

    from .proving import scheduler_of_pods

    def read(source: Source) -> DeschedulerConfiguration:
        return _with_options(options, config.read(source, live=True))

    file: FollowedFile[DeschedulerConfiguration] | None = None
    fixed = None
    if options.config is None:
        fixed = _with_options(options, replace(config.default(), interval=int(_INTERVAL_S * 1e9)))
    else:
        need_file(options.config, "`--config` takes a DeschedulerConfiguration or a DeschedulerPolicy")
        file = FollowedFile(options.config, read)
        if file.value.warnings:
            from koordpolicy.engine.source import in_order, render

            warn(render(in_order(file.value.warnings)))

    def configuration() -> DeschedulerConfiguration:
        if file is not None:
            return file.value
        assert fixed is not None
        return fixed

    collections = ShortCollections()
    policies = PolicyLoader(options, builtins, vetter, collections.freeze)
    reloader = policies.begin(policies.discovered.plugins, lambda _: None)
    server = DeschedulerServer(
        connect, policies.live, configuration, settings=_settings(options, configuration()),
        requests=operations.requests, observers=[operations, *(
            [] if options.max_error_rate is None else [_FailingExpressions(reloader, policies.live)])],
        on_attempt=[operations.attempted],
        ready=lambda made: _say_ready(made, policies.live.registry), collections=collections,
        scheduler=scheduler_of_pods(options.scheduler_config, policies.live))
    if options.check_permissions is not False:
        settings = server.settings
        check_permissions(connect(), server.permissions(), settings.lease, settings.shards, settings.memory)
    reloader.stage_with(lambda registry: server.vet(registry=registry))
    if file is not None:
        file.accept = lambda value: server.vet(configuration=value)
    operations.follow(server, reloader, file)
    registry = policies.live.registry
    if not any(plugin.enabled for plugin in registry.of_framework(Framework.DESCHEDULER)) and not any(
            spec.deschedule or spec.balance for spec in configuration().profiles):
        warn("no plugin is active: name documents with `--policies`, or plugins in a `--config`")
    return _Loaded(server, reloader, vetter, file)


def _with_options(options: argparse.Namespace, found: DeschedulerConfiguration) -> DeschedulerConfiguration:
    """Return a configuration with the options that override it."""
    return replace(found, dry_run=found.dry_run or options.dry_run,
                   interval=found.interval if options.interval is None else int(options.interval * 1e9))


def _settings(options: argparse.Namespace, found: DeschedulerConfiguration) -> DeschedulerSettings:
    from koordpolicy.engine.descheduler.live.server import (
        BURST,
        LONGEST_STALENESS_S,
        QPS,
        DeschedulerSettings,
    )

    connection: Any = found.plain.get("clientConnection") or {}
    qps = options.kube_api_qps
    if qps is None:
        qps = max(0.0, float(connection.get("qps") or QPS))  # below 0 there is no limit
    lease = lease_of(options, name=_LEASE_NAME, namespace=_LEASE_NAMESPACE, written=_lease_written(found))
    if options.shards is not None and lease is None:
        raise Stop(_SHARDS_ELECT)  # the configuration switches the election off
    return DeschedulerSettings(
        qps=qps, burst=options.kube_api_burst or connection.get("burst") or BURST, lease=lease,
        shards=options.shards or 0,
        longest_staleness_s=LONGEST_STALENESS_S if options.max_staleness is None else options.max_staleness,
        once=options.once, memory=_memory_of(options.memory))


def _shards(text: str) -> int:
    return int(number(text, f"whole number from 1 to {_MOST_SHARDS}",
                      lambda value: 1 <= value <= _MOST_SHARDS and value == int(value)))


def _memory_of(text: str | None) -> tuple[str, str] | None:
    """Return namespace and name of the ConfigMap that `--memory` names."""
    from .proving import config_map_of

    if text is None:
        return None
    place = config_map_of(text)
    if place is None:
        raise Stop(f"`--memory {text}`: a descheduler of a live cluster keeps it in a ConfigMap, for the next leader: "
                   "write `configmap:NAMESPACE/NAME`")
    return place


def _lease_written(found: DeschedulerConfiguration) -> dict[str, Any]:
    """Return the leader election of a configuration with its times as durations."""
    written: dict[str, Any] = dict(found.plain.get("leaderElection") or {})
    for key in ("leaseDuration", "renewDeadline", "retryPeriod"):
        if isinstance(written.get(key), int):
            written[key] = f"{written[key] / 1e9:g}s"
    return written


def _say_ready(server: DeschedulerServer, registry: Registry) -> None:
    view, lease = server.descheduler.view, server.settings.lease
    waits = f"; waits for the Lease {lease.namespace}/{lease.name}" if lease is not None else ""
    waits += f", and for one of {server.settings.shards} shards" if server.settings.shards else ""
    mode = "; dry run: nothing is evicted" if server.configuration.dry_run else ""
    write(f"ready: generation {registry.generation}, {view.nodes} nodes, {view.pods} pods{mode}{waits}")
    sys.stdout.flush()  # the parent process may wait for this line, also through a pipe

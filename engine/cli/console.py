"""Show a cluster, its decisions and its policies in a browser, and try policies there.

One page with views: the overview, a map of all nodes, the decision matrix of a pod, the policies with their findings,
a playground that evaluates a policy while it is written, and the timeline of a flight recording, whose time is replayed
under other policies. Nothing is changed anywhere, neither in the cluster nor in files, without `--allow-changes`.
Without `--tokens` the console listens on this machine's own addresses only. SIGTERM or Ctrl-C ends it.
See docs/console.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.files import reason_of

from . import delegation
from .composition import add_choice, add_cluster, add_policies
from .console_state import sources_of
from .ending import Ending
from .endpoints import add_endpoints, caller_of, token_of, words_of
from .exits import Exit, Stop, refuse_given
from .logs import add_format_argument, start_server_logs
from .serving import address, tls_of, unavailable
from .terminal import is_standard_output, warn, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koordpolicy.engine.client.server_calls import Caller
    from koordpolicy.engine.console.changes import ChangeRoutes
    from koordpolicy.engine.console.following import ClusterFollowing, PolicyFollowing
    from koordpolicy.engine.console.guard import Guard
    from koordpolicy.engine.console.node_time import NodeTimes
    from koordpolicy.engine.console.past import Past
    from koordpolicy.engine.console.server import ConsoleServer, Static
    from koordpolicy.engine.console.users import Users
    from koordpolicy.engine.monitoring.monitor import ServerMonitor

    from . import Builtins

EXAMPLES: Final = """\
examples:
  koord-policy console --cluster examples/cluster --policies policies --open
  koord-policy console --cluster dump.yaml --policies my-policies --bind 127.0.0.1:8080
  koord-policy console --cluster kube --policies crd --endpoints dns+http://koord-policy-scheduler:10259
  koord-policy console --recorded /var/lib/koord-policy/flight --policies policies/scheduler
  koord-policy console --cluster kube --policies crd --bind 0.0.0.0:8443 --tokens tokens.csv \\
      --tls-cert tls.crt --tls-key tls.key --host-name console.example.org
  koord-policy console --cluster kube --policies crd --authentication-kubeconfig in-cluster --allow-changes \\
      --endpoints dns+https://koord-policy:8888 --ca ca.crt --admin-token-file token --audit-log audit.log

exit codes: 0 after SIGTERM, 2 usage, 3 the dump is invalid (policies may be: the page shows what is wrong)
"""

_OF_CLUSTERS: Final = ("profile", "config", "enable", "kubernetes")
ADDRESS: Final = "127.0.0.1:8890"
_SECONDS: Final = 5.0
_JOB_SECONDS: Final = 300.0
_OF_CALLS: Final = ("token_file", "ca", "server_name", "cert", "key")
_GRACE_S: Final = 5.0
_CHANGE_SECONDS: Final = 70.0
"""A server answers within 60 s, and has changed nothing, or says that it is not sure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_cluster(parser, required=False, live="which is followed (default: the end of `--recorded`)")
    add_policies(parser)
    add_choice(parser)
    parser.add_argument("--descheduler-config", metavar="FILE", type=Path,
                        help="a DeschedulerConfiguration (descheduler/v1alpha2) for what would be evicted (default: "
                             "one profile of the policies)")
    parser.add_argument("--lint-settings", metavar="FILE", type=Path,
                        help="the linter's settings, as `--settings` of `koord-policy lint` (default: the nearest "
                             "koord-policy.yaml)")
    parser.add_argument("--recorded", metavar="DIR", type=Path,
                        help="a flight recording to show, also while it is written: the directory of `scheduler "
                             "--record`")
    parser.add_argument("--agent-recording", metavar="PATH", type=Path, action="append", default=[],
                        help="a recording of a node agent (`agent --record`), or a directory of them: the node's "
                             "usage, and what its QoSPlugins changed; may be repeated")
    servers = parser.add_argument_group("running servers")
    add_endpoints(servers, default="none")
    servers.add_argument("--endpoints-interval", metavar="SECONDS", type=_seconds,
                         help="call the servers this often, whatever the number of viewers (default: 5)")
    servers.add_argument("--agents", metavar="URL[,URL...]", action="append", default=[],
                         help="endpoints of node agents with an audit log (`agent --http --audit-log-dir`), which is "
                              "shown for their nodes; may be repeated")
    servers.add_argument("--allow-changes", action="store_true",
                         help="users who may can promote the shadow of these servers and roll them back in the view "
                              "`Policies`. Goes with --endpoints, --admin-token-file, --audit-log, and --tokens or "
                              "--authentication-kubeconfig")
    servers.add_argument("--admin-token-file", metavar="FILE", type=Path,
                         help="holds the token that the servers were given as `--admin-token-file`; it is read for "
                              "each change. Without --allow-changes it is for differences of generations, which take "
                              "dry runs")
    servers.add_argument("--audit-log", metavar="FILE", type=Path,
                         help="a line of JSON is appended before and after each change: who made it, from where, the "
                              "hashes before and after, and the result on each server. Without it nothing is changed")
    group = parser.add_argument_group("serving")
    group.add_argument("--bind", metavar="HOST:PORT", type=address, default=address(ADDRESS),
                       help=f"address to listen on; port 0 chooses a free port (default: {ADDRESS})")
    group.add_argument("--open", action="store_true", help="open the page in the browser")
    group.add_argument("--tokens", metavar="FILE", type=Path,
                       help="a file with lines TOKEN,USER or TOKEN,USER,ROLE with a role of viewer (the default) or "
                            "operator: every request needs one of the tokens. This or --authentication-kubeconfig is "
                            "required for an address that other machines reach")
    delegation.add_review_arguments(
        group, "ask this API server whose token a request has (TokenReview) and what that user may see and do "
        "(SubjectAccessReview)")
    group.add_argument("--host-name", metavar="NAME", action="append", default=[],
                       help="a further name under which browsers reach the console; requests to other names are "
                            "rejected; may be repeated")
    group.add_argument("--tls-cert", metavar="FILE", help="serve https with this certificate (PEM)")
    group.add_argument("--tls-key", metavar="FILE", help="its private key")
    group.add_argument("--view-timeout", metavar="SECONDS", type=_seconds, default=_SECONDS,
                       help="the processor time that an evaluation may take; a cycle of the descheduler may take four "
                            f"times as much (default: {_SECONDS:g})")
    group.add_argument("--analysis-timeout", metavar="SECONDS", type=_long_seconds, default=_JOB_SECONDS,
                       help="how long an audit may take, or the comparison of a draft with the active policies, in the "
                            f"background (default: {_JOB_SECONDS:g})")
    group.add_argument("--replay-timeout", metavar="SECONDS", type=_long_seconds,
                       help="how long a replay of the recording may take, in the background "
                            f"(default: {_JOB_SECONDS:g})")
    add_format_argument(group)


def _seconds(text: str, most: float = 600) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= most:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of seconds above 0 and up to {most:g}")
    return found


def _long_seconds(text: str) -> float:
    return _seconds(text, 86_400)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    guard = _guard(options)
    options.client_ca = None
    context = tls_of(options)
    monitor = _monitor(options)
    past = _past(options)
    node_times = _node_times(options)
    changes = _changes(options, guard)
    sources = sources_of(options, builtins, past)
    gc.freeze()  # the collector would visit hundreds of thousands of loaded objects again and again
    static = _static()
    start_server_logs(options.log_format)

    from koordpolicy.engine.console.server import ConsoleServer
    from koordpolicy.engine.reload.vet import Vetter

    vetter = Vetter()
    server = ConsoleServer(sources.state, guard, static, vetter=vetter, seconds=options.view_timeout, past=past,
                           replay_seconds=options.replay_timeout or _JOB_SECONDS,
                           analysis_seconds=options.analysis_timeout, node_times=node_times, monitor=monitor,
                           more=() if changes is None else (changes,))
    following = sources.follow(server.views, vetter)
    try:
        return asyncio.run(_serve(server, following, options, context))
    finally:
        server.close()
        for each in following:
            each.close()


def _monitor(options: argparse.Namespace) -> ServerMonitor | None:
    """Return the monitor of the servers of `--endpoints`; None without any."""
    if not options.endpoints:
        refuse_given(options, ("endpoints_interval", *(() if options.agents else _OF_CALLS)),
                     "goes with `--endpoints`")
        return None
    from koordpolicy.engine.monitoring.monitor import (
        INTERVAL_S,
        LONGEST_ANSWER,
        TIMEOUT_S,
        ServerMonitor,
    )

    words = words_of(options.endpoints, "--endpoints")
    first = replace(caller_of(options, seconds=TIMEOUT_S), largest=LONGEST_ANSWER)
    return ServerMonitor(words, lambda: replace(first, token=_token(options.token_file)),
                         interval=options.endpoints_interval or INTERVAL_S)


def _token(file: Path | None) -> str:
    """Return the token of a file at present; raises `OSError` or `ValueError` if it cannot be read."""
    try:
        return "" if file is None else token_of(file)
    except Stop as error:
        raise ValueError(str(error)) from None


def _node_times(options: argparse.Namespace) -> NodeTimes:
    from koordpolicy.engine.console.node_time import (
        LONGEST_ANSWER,
        SUFFIXES,
        NodeTimes,
    )

    for path in options.agent_recording:
        if not path.exists() or not (path.is_dir() or path.suffix in SUFFIXES):
            what = f"`{path}` is no recording" if path.exists() else f"there is no `{path}`"
            raise Stop(f"{what}: `--agent-recording` takes what `agent --record` wrote (a name that ends with "
                       f"{', '.join(SUFFIXES)}), or a directory of such files")
    agents = words_of(options.agents, "--agents") if options.agents else []
    if agents:
        caller_of(options)  # raises for files that cannot be used
    return NodeTimes(options.agent_recording, agents, lambda: replace(caller_of(options), largest=LONGEST_ANSWER))


def _past(options: argparse.Namespace) -> Past | None:
    if options.recorded is None:
        if options.cluster is None:
            raise Stop("name a cluster with `--cluster`, or a flight recording with `--recorded`")
        refuse_given(options, ("replay_timeout",), "goes with `--recorded`")
        return None
    if not options.recorded.is_dir():
        raise Stop(f"there is no directory `{options.recorded}`: `--recorded` takes that of `scheduler --record`")
    if options.cluster is None:
        from koordpolicy.engine.flight_recorder.recording import FlightRecording

        refuse_given(options, _OF_CLUSTERS, "goes with `--cluster`: without it, settings are those of the recording")
        FlightRecording.open(options.recorded)  # raises if there is none
    from koordpolicy.engine.console.past import Past

    return Past(options.recorded)


def _guard(options: argparse.Namespace) -> Guard:
    from koordpolicy.engine.console.guard import Guard, is_loopback

    host, _ = options.bind
    users = _users(options)
    if users is None and not is_loopback(host):
        raise Stop(f"`--bind {host}` lets other machines in: name a file of tokens with `--tokens`, or the cluster of "
                   f"the users with `--authentication-kubeconfig`, or listen on {ADDRESS}")
    names = options.host_name if is_loopback(host) else [host, *options.host_name]
    return Guard(hosts=names, users=users)


def _changes(options: argparse.Namespace, guard: Guard) -> ChangeRoutes | None:
    """Return the routes about generations of servers, with `--allow-changes` also those that change them."""
    if not options.allow_changes:
        refuse_given(options, ("audit_log",), "goes with `--allow-changes`")
    if not options.endpoints and not options.allow_changes:
        refuse_given(options, ("admin_token_file",), "goes with `--endpoints`")
        return None
    lacking = [f"`--{name.replace('_', '-')}`" for name in ("endpoints", "admin_token_file", "audit_log")
               if options.allow_changes and not getattr(options, name)]
    if lacking:
        raise Stop(f"`--allow-changes` needs {' and '.join(lacking)}")
    if options.allow_changes and guard.users is None:
        raise Stop("`--allow-changes` is for users who are known: name a file of tokens with `--tokens`, or the "
                   "cluster of the users with `--authentication-kubeconfig`")
    from koordpolicy.engine.console.audit_file import AuditFile
    from koordpolicy.engine.console.changes import ChangeableServers, ChangeRoutes

    if options.admin_token_file is not None:
        token_of(options.admin_token_file)
    reader = caller_of(options)

    def read() -> Caller:
        return replace(reader, token=_token(options.token_file))

    def changer() -> Caller:
        return replace(reader, token=_token(options.admin_token_file), seconds=_CHANGE_SECONDS)

    try:
        audit = AuditFile(options.audit_log) if options.allow_changes else None
    except OSError as error:
        raise Stop(f"`--audit-log {options.audit_log}` cannot be written: {reason_of(error)}",
                   ) from None
    return ChangeRoutes(ChangeableServers(tuple(words_of(options.endpoints, "--endpoints")), read,
                                          None if options.admin_token_file is None else changer), audit)


def _users(options: argparse.Namespace) -> Users | None:
    """Return the authenticator of users; None if no token is needed."""
    from koordpolicy.engine.console.users import ClusterUsers, UserTokens

    if options.authentication_kubeconfig is not None:
        if options.tokens is not None:
            raise Stop("`--tokens` and `--authentication-kubeconfig` are two ways to know the users: name one")
        return ClusterUsers(delegation.reviews_of(options))
    refuse_given(options, delegation.REVIEW_OPTIONS, "goes with `--authentication-kubeconfig`")
    if options.tokens is None:
        return None
    try:
        return UserTokens(options.tokens)
    except ValueError as error:
        raise Stop(f"`--tokens`: {error}") from None


def _static() -> Static:
    from koordpolicy.engine.console.server import Static

    try:
        return Static()
    except FileNotFoundError:
        raise Stop("the pages are not built: run `make web` in the repository, or install the wheel of a "
                   "release") from None


async def _serve(
    server: ConsoleServer, following: Sequence[ClusterFollowing | PolicyFollowing], options: argparse.Namespace,
    context: object,
) -> int:
    from koordpolicy.engine.console.server import LONGEST_LINE
    from koordpolicy.engine.serving.listeners import serving

    stop = asyncio.Event()
    ending = Ending(stop, _GRACE_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending)
    host, port = options.bind
    try:
        async with serving(server.application(), host, port, context,  # type: ignore[arg-type]
                           longest_line=LONGEST_LINE) as url:
            # Who reads the audit log from there reads lines of JSON.
            (warn if is_standard_output(options.audit_log) else write)(f"the console is at {url}/")
            sys.stdout.flush()
            server.start()
            for each in following:
                each.start()
            if options.open:
                _open(f"{url}/")
            await stop.wait()
    except OSError as error:
        raise unavailable((host, port), "--bind", error) from None
    finally:
        ending.timer.cancel()
    return Exit.OK


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        warn("warning: no browser was found: open the page yourself")

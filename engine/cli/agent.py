"""Run the node agent: measure this node, and run its QoS strategies.

Like koordlet, it runs on each node, as a DaemonSet: it follows the node's objects, measures usage by control groups,
and writes what policies (`--policies`) and built-in strategies (`--enable`, `--feature-gates`) decide. Without either
nothing is changed. At SIGTERM all changed values are given back; after a crash the next start does so. See
docs/agent.md
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.framework.points import Framework, Point

from . import delegation, reloading
from .agent_observing import Observed, check_serving
from .cluster_loading import LIVE_CLUSTER, context_of
from .composition import add_policies, check_enabled, need_file
from .durations import seconds
from .ending import end_at_signals
from .exits import Exit, Stop
from .logs import add_format_argument, start_server_logs
from .numbers import whole
from .qos import enabled_strategies, gates_from_option, read_gates, strategy_args, warn_of_gates
from .terminal import warn, write

if TYPE_CHECKING:
    from koordpolicy.engine.agent.daemon import Conclusion
    from koordpolicy.engine.agent.node_agent import NodeAgent, NodeAgentSettings
    from koordpolicy.engine.framework.registry import Registry

    from . import Builtins

EXAMPLES: Final = """\
examples:
  koord-policy agent --node-name node-a --policies /etc/policies --dry-run
  koord-policy agent --policies configmap:koordinator-system/qos --http 9316   # needs list and watch of configmaps
  koord-policy agent --enable '*' --feature-gates BECPUEvict=true,BEMemoryEvict=true
  koord-policy agent --config qos.yaml --feature-gates BEMemoryEvict=true   # with arguments, as docs/agent.md has them
  koord-policy agent --policies policies/qos --pods-from api --for 60s --record metrics.jsonl
  koord-policy agent --own-strategies my-suppression --policies policies/qos   # beside a koordlet

exit codes: 0 after SIGTERM, or when `--once` or `--for` is over, 1 unexpected, or a second signal, 2 usage, or a
koordlet runs here, 3 policies, the kubeconfig or the state directory are invalid
"""

STATE_DIR: Final = Path("/var/run/koord-policy")
_GRACE_S: Final = 10.0
_LOOK_S: Final = 5.0
"""Seconds between looks at policies without a file event: on each of thousands of nodes a look costs its share."""
_LOG: Final = logging.getLogger(__name__)
_HTTP_PORT: Final = 9316
_MOST_PORT: Final = 65535
_RESCTRL: Final = "/sys/fs/resctrl"
_BOTH_WRITE: Final = ("both would write the same files. Remove it from this node, try `--dry-run`, or name the "
                      "strategies that only this agent runs with `--own-strategies`")
_COLLECTORS: Final = ("psi", "coldmemoryresource", "resctrl", "nodestorageinfo", "pagecache", "devices")
"""The collectors that are off by default; the advisor, which has them, is imported only when the command runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command, and the flags of installed extensions."""
    parser.add_argument("--node-name", metavar="NAME", default=os.environ.get("NODE_NAME", ""),
                        help="the name of this node's objects (default: the environment variable NODE_NAME)")
    parser.add_argument("--cluster", metavar="kube[:CONTEXT]", default=LIVE_CLUSTER, type=_cluster,
                        help="the cluster of the kubeconfig (KUBECONFIG), or of the pod that this is (default: kube)")
    add_policies(parser)
    parser.add_argument("--enable", metavar="STRATEGY", action="append", default=[],
                        help="run a built-in strategy; may be repeated; `*` for all, so that their gates decide as in "
                             "koordlet")
    parser.add_argument("--feature-gates", metavar="NAME=true|false,...", default="",
                        help="gates that differ from koordlet's defaults; a gate that is set to true also enables the "
                             "built-in strategy that it is of")
    parser.add_argument("--config", metavar="FILE", type=Path,
                        help="a QoSManagerConfiguration: the arguments of strategies in Python")
    parser.add_argument("--qos-extension-plugins", metavar="NAME=true|false,...", default="",
                        help="run these extensions of installed distributions (default: none)")
    parser.add_argument("--own-strategies", metavar="NAME,...",
                        help="run beside a koordlet, and only these strategies: it must not run them too")
    parser.add_argument("--dry-run", action="store_true", help="write and evict nothing, and log what would be done")
    parser.add_argument("--keep-on-exit", action="store_true",
                        help="leave the changed values at SIGTERM, for the next process to go on")
    parser.add_argument("--once", action="store_true", help="end when each strategy had one round")
    parser.add_argument("--for", dest="seconds", metavar="TIME", type=seconds, help="end after this time, such as 60s")
    parser.add_argument("--record", metavar="FILE", type=Path,
                        help="write a recording for `koord-policy qos --replay` (JSON lines, FILE.jsonl)")
    parser.add_argument("--audit-log-dir", metavar="DIR", type=Path,
                        help="write what was done as lines of JSON there (default: none; koordlet's is "
                             "/var/log/koordlet)")
    _add_serving(parser)
    _add_node(parser)
    reloading.add_arguments(
        parser, compile_timeout="default: 0",
        state_dir=f"where the journal, the last states and the last good policies are stored (default: {STATE_DIR})")
    add_format_argument(parser.add_argument_group("log"))
    _add_prediction(parser)
    _add_extensions(parser)


def _add_prediction(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prediction", "of what prod pods request and will not use, in NodeMetrics; the "
                                                    "names and defaults are koordlet's")
    group.add_argument("--prediction-cold-start-duration", metavar="TIME", type=seconds, default=86400.0,
                       help="how long a pod must have been observed (default: 24h)")
    group.add_argument("--prediction-safety-margin-percent", metavar="PERCENT", type=_percent, default=10.0,
                       help="add this to each peak (default: 10)")
    group.add_argument("--prediction-cpu-histogram-decay-halflife", metavar="TIME", type=_half_life, default=43200.0,
                       help="after this time a usage of CPU weighs half as much (default: 12h)")
    group.add_argument("--prediction-memory-histogram-decay-halflife", metavar="TIME", type=_half_life,
                       default=86400.0, help="the same of memory (default: 24h)")


def _add_serving(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serving", "Health is open to everybody. With `--tls-cert` or "
                                                 "`--authentication-kubeconfig` the rest is for those\nwhom the API "
                                                 "server permits it")
    group.add_argument("--http", metavar="[HOST:]PORT", type=_http,
                       help="answer /healthz, /livez, /readyz, /metrics (also its halves, /internal-metrics and "
                            f"/external-metrics) and /events there; koordlet's port is {_HTTP_PORT} (default host: "
                            "127.0.0.1; without it the agent does not listen)")
    group.add_argument("--tls-cert", metavar="FILE",
                       help="serve https with this certificate (PEM), which is read again when the file changes")
    group.add_argument("--tls-key", metavar="FILE", help="its private key")
    group.add_argument("--client-ca", metavar="FILE", help="take client certificates of this authority, too")
    delegation.add_arguments(group)


def _add_node(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("node", "the machine and its kubelet. In a container the roots are mounts of the "
                                              "host's directories")
    group.add_argument("--interval", metavar="TIME", type=_interval, default=1.0,
                       help="the interval of the measurements (default: 1s)")
    group.add_argument("--collect", metavar="NAME", action="append", default=[], choices=_COLLECTORS,
                       help=f"measure these too, may be repeated: {', '.join(_COLLECTORS)} (default: those of the "
                            "feature gates PSICollector, ColdPageCollector, ResctrlCollector, BlkIOReconcile, "
                            "Accelerators, RDMADevices)")
    group.add_argument("--cgroup-root", metavar="DIR", default="/sys/fs/cgroup", help="(default: %(default)s)")
    group.add_argument("--kubepods", metavar="NAME", default="kubepods",
                       help="the name of kubelet's root of control groups, without `.slice` (default: %(default)s)")
    group.add_argument("--cgroup-driver", choices=("systemd", "cgroupfs"), default="",
                       help="kubelet's driver, while neither its directories nor its process are seen (default: ask "
                            "kubelet)")
    group.add_argument("--proc-root", metavar="DIR", default="/proc", help="(default: %(default)s)")
    group.add_argument("--sys-root", metavar="DIR", default="/sys", help="(default: %(default)s)")
    group.add_argument("--resctrl-root", metavar="DIR", default=_RESCTRL, help="(default: %(default)s)")
    group.add_argument("--pods-from", choices=("kubelet", "api"), default="kubelet",
                       help="list the pods of the kubelet, or of the API server (default: kubelet)")
    group.add_argument("--kubelet-address", metavar="HOST[:PORT]", default="",
                       help="(default: the address and port that the Node names)")
    group.add_argument("--kubelet-certificate-authority", metavar="FILE",
                       help="verifies the kubelet's certificate, or is that certificate (default: the authority of the "
                            "API server)")
    group.add_argument("--kubelet-server-name", metavar="NAME",
                       help="the name in the kubelet's certificate, if that is not its address")
    group.add_argument("--kubelet-read-only-port", metavar="PORT", type=whole, default=0,
                       help="list the pods by plain HTTP from this port of the kubelet, without a token")
    group.add_argument("--kubelet-insecure-tls", action="store_true",
                       help="do not verify the kubelet's certificate: whoever answers there gets the agent's token")


def _add_extensions(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the extensions of installed distributions; one that fails is left out."""
    from koordpolicy.engine.framework.border import describe, must_be_survived
    from koordpolicy.engine.framework.discovery import discover

    for plugin in discover(lambda _: None).plugins:
        if Point.EXTENSION in plugin.points and plugin.framework is Framework.QOS:
            try:
                plugin.make({}, None).init_flags(parser.add_argument_group(f"extension {plugin.name}"))
            except BaseException as error:  # foreign code: the command works without its flags
                must_be_survived(error)
                warn(f"warning: the extension `{plugin.name}` of {plugin.origin} declares no flags: {describe(error)}")


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if not options.node_name:
        raise Stop("which node? name it with `--node-name`, or in the environment variable NODE_NAME")
    reloading.check_paths(options)
    check_serving(options)
    _check_files(options)
    own = None if options.own_strategies is None else frozenset(filter(None, options.own_strategies.split(",")))
    _refuse_two_agents(options, own)
    start_server_logs(options.log_format)
    loaded = _load(options, builtins, own)
    agent = loaded.agent
    end_at_signals(agent.stop, _GRACE_S)
    try:
        loaded.begin()
        agent.run(lambda: _say_ready(agent, loaded.registry()), seconds=options.seconds or float("inf"))
    finally:
        loaded.close()
    if agent.rival:
        raise Stop(f"{agent.rival}: {_BOTH_WRITE}")
    if agent.outdated:
        sys.stdout.flush()
        os.execv(sys.executable, [*sys.orig_argv, "--cgroup-driver", agent.driver])  # noqa: S606 - this command
    return Exit.OK


class _Loaded:
    """The agent with what is around it, in the order in which it begins."""

    def __init__(self, agent: NodeAgent, registry: Callable[[], Registry]) -> None:
        self.agent = agent
        self.registry = registry
        self.parts: list[tuple[Callable[[], object], Callable[[], object]]] = []
        """Functions that begin and end the parts besides the agent."""
        self._begun: list[Callable[[], object]] = []

    def begin(self) -> None:
        self._begun.append(self.agent.close)
        self.agent.start()
        for start, close in self.parts:
            start()
            self._begun.append(close)

    def close(self) -> None:
        for close in reversed(self._begun):
            close()


def _load(options: argparse.Namespace, builtins: Builtins, own: frozenset[str] | None) -> _Loaded:
    from koordpolicy.engine.agent.host.files import raise_descriptor_limit
    from koordpolicy.engine.agent.node_agent import NodeAgent
    from koordpolicy.engine.agent.qos_manager.lives import check_extension_gates, plugins_at
    from koordpolicy.engine.agent.qos_manager.manager import Manager
    from koordpolicy.engine.client.kubeconfig import load_connection
    from koordpolicy.engine.framework.qos import UNSUPPORTED

    gates = dict(read_gates(options.feature_gates))
    extensions = dict(_read_extensions(options.qos_extension_plugins))
    policies = reloading.PolicyLoader(_reload_options(options), builtins, None, interval=_LOOK_S)
    plugins = policies.discovered.plugins
    enable = enabled_strategies(options.enable, gates, plugins)

    args = strategy_args(options.config, plugins)

    def check(registry: Registry) -> None:
        Manager(gates, enable, args, on_node=True, only=own).use(registry)

    with gates_from_option():
        reloader = policies.begin(plugins, check)
        check(policies.live.registry)
        warn_of_gates(gates, policies.live.registry)
    if own is not None and not options.allow_empty:  # with it a document may come later
        check_enabled(sorted(own), plugins_at(policies.live.registry, Point.STRATEGY), Framework.QOS,
                      option="--own-strategies")
    check_extension_gates(extensions, [each.name for each in plugins_at(policies.live.registry, Point.EXTENSION)])
    settings = replace(_settings(options, gates, enable, own, extensions), args=args)
    raise_descriptor_limit()  # files of control groups stay open
    observed = Observed(options)

    def count(conclusion: Conclusion, _: object) -> None:
        # A reload in the middle of a pass counts its rounds for the new generation.
        registry = policies.live.registry
        documents = registry.documents_of(Framework.QOS)
        if conclusion.plugin in documents or not documents:  # errors of strategies in Python say nothing of policies
            failed = any(each.reason != UNSUPPORTED for each in conclusion.report.errors)
            reloader.observe(registry.generation, 1, int(failed and bool(documents)))

    agent = NodeAgent(lambda: load_connection(context_of(options.cluster)), policies.live, settings,
                      observers=[*observed.observers, *([] if options.max_error_rate is None else [count])],
                      on_attempt=observed.on_attempt, metric=observed.metric,
                      counts=observed.counts, recorder=observed.recorder(lambda: agent.host),
                      requests=observed.requests, kubelet_requests=observed.kubelet_requests)
    loaded = _Loaded(agent, lambda: policies.live.registry)
    loaded.parts.append((reloader.start, reloader.close))
    loaded.parts += observed.parts(agent, reloader)
    return loaded


def _settings(
    options: argparse.Namespace, gates: Mapping[str, bool], enable: frozenset[str], own: frozenset[str] | None,
    extensions: Mapping[str, bool],
) -> NodeAgentSettings:
    from koordpolicy.engine.agent.daemon import AgentSettings
    from koordpolicy.engine.agent.host.detection import HostRoots
    from koordpolicy.engine.agent.node_agent import NodeAgentSettings
    from koordpolicy.engine.agent.prediction.predictor import PredictorSettings
    from koordpolicy.engine.agent.states_informer.kubelet import KubeletSettings
    from koordpolicy.engine.agent.states_informer.settings import StatesSettings

    half_life = {"cpu": options.prediction_cpu_histogram_decay_halflife,
                 "memory": options.prediction_memory_histogram_decay_halflife}
    host, _, port = options.kubelet_address.rpartition(":")
    if not (host and port.isdigit()):
        host, port = options.kubelet_address, "0"
    _check_port("--kubelet-address", options.kubelet_address, int(port))
    _check_port("--kubelet-read-only-port", options.kubelet_read_only_port, options.kubelet_read_only_port)
    try:
        states = StatesSettings(options.node_name, options.pods_from, KubeletSettings(
            address=host, port=int(port), certificate_authority=options.kubelet_certificate_authority,
            read_only_port=options.kubelet_read_only_port, server_name=options.kubelet_server_name,
            verify=not options.kubelet_insecure_tls))
    except ValueError as error:
        raise Stop(str(error)) from None
    return NodeAgentSettings(
        states=states, state_dir=options.state_dir or STATE_DIR,
        roots=HostRoots(options.cgroup_root, options.proc_root, options.sys_root, options.resctrl_root),
        kubepods=options.kubepods, driver=options.cgroup_driver, interval=options.interval,
        collect=frozenset(options.collect),
        prediction=PredictorSettings(
            safety_margin_percent=options.prediction_safety_margin_percent,
            cold_start=options.prediction_cold_start_duration, half_life=half_life),
        reports=not options.dry_run and own is None, gates=gates, enable=enable, only=own,
        agent=AgentSettings(dry_run=options.dry_run, restore_on_exit=not options.keep_on_exit, once=options.once,
                            extension_gates=extensions, options=options),
    )


def _check_port(option: str, given: object, port: int) -> None:
    if port > _MOST_PORT:
        raise Stop(f"`{option} {given}`: a port is a number up to {_MOST_PORT}")


def _reload_options(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options of reloading: a directory of its own, and no second process unless it is demanded."""
    found = copy.copy(options)
    found.state_dir = (options.state_dir or STATE_DIR) / "policies"
    found.compile_timeout = options.compile_timeout or 0
    return found


def _read_extensions(text: str) -> Iterable[tuple[str, bool]]:
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value not in ("true", "false"):
            raise Stop(f"`--qos-extension-plugins {part}`: expected NAME=true or NAME=false")
        yield name, value == "true"


def _check_files(options: argparse.Namespace) -> None:
    """Raise `Stop` for a root or a file that is not there; without resctrl its usual root is not."""
    roots = ["cgroup_root", "proc_root", "sys_root"]
    if options.resctrl_root != _RESCTRL:
        roots.append("resctrl_root")
    for name in roots:
        if not Path(getattr(options, name)).is_dir():
            raise Stop(f"`--{name.replace('_', '-')}`: there is no directory `{getattr(options, name)}`")
    if options.kubelet_certificate_authority is not None:
        need_file(Path(options.kubelet_certificate_authority),
                  "`--kubelet-certificate-authority` takes certificates in PEM")


def _refuse_two_agents(options: argparse.Namespace, own: frozenset[str] | None) -> None:
    from koordpolicy.engine.agent.koordlet import find_koordlet

    found = find_koordlet(Path(options.proc_root))
    if found and own is None and not options.dry_run:
        raise Stop(f"{found}: {_BOTH_WRITE}")
    if found:
        warn(f"warning: {found}")


def _say_ready(agent: NodeAgent, registry: Registry) -> None:
    names = ", ".join(sorted(agent.manager.running)) or "none (name policies with `--policies`, or `--enable` some)"
    version = agent.tree.groups.version
    mode = "; dry run: nothing is written" if agent.settings.agent.dry_run else ""
    write(f"ready: node {agent.settings.node}, control groups v{version} ({agent.tree.groups.driver}), "
          f"{len(agent.states.pods)} pods; generation {registry.generation}, strategies: {names}{mode}")
    sys.stdout.flush()  # the parent process may wait for this line, also through a pipe


def _cluster(text: str) -> str:
    if text.partition(":")[0] != LIVE_CLUSTER:
        raise argparse.ArgumentTypeError(f"`{text}` is not kube or kube:CONTEXT: an agent runs on a node")
    return text


def _interval(text: str) -> float:
    value = seconds(text)
    if not 0.1 <= value <= 60:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time from 100ms to 60s")
    return value


def _half_life(text: str) -> float:
    value = seconds(text)
    if not 60 <= value <= 30 * 86400:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time from 1m to 720h")
    return value


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"`{text}` is not a percentage from 0 to 1000")
    return value


def _http(text: str) -> tuple[str, int]:
    from .serving import address

    found: Any = address(text if ":" in text.rpartition("]")[2] else f"127.0.0.1:{text}")
    return found[0], found[1]

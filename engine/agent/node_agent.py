"""The agent of a live node: its rooms made and connected, from the API client to the control groups.

Network is in the event loop of one I/O thread; collectors, strategies and writes are in the thread that calls `run`.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.event_recorder import EventRecorder, end_recording
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import RequestObserver, Transport
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.cluster.kinds import FieldPath, FieldSets
from koordpolicy.engine.files import make_own_directory
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.qos import Host
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.framework.states import CallbackTarget, StateType
from koordpolicy.engine.slo.effective import effective_spec
from koordpolicy.engine.source import PolicyError, Problem

from .counts import AgentCounts
from .daemon import Agent, AgentSettings, Conclusion
from .host.detection import HostRoots, detect_control_groups
from .host.facts import read_host
from .host.kubelet_driver import DriverQuestion
from .host.resctrl import has_resctrl, mount_resctrl
from .koordlet import find_koordlet
from .live_readings import LiveReadings
from .metric_cache.cache import MetricCache
from .metrics_advisor.advisor import DEVICE_GATES, AdvisorSettings, MetricsAdvisor
from .metrics_advisor.collector import Sources
from .metrics_advisor.devices import DeviceUsage
from .metrics_advisor.pleg import LifecycleEvent, LifecycleWatcher
from .node_recorder import NodeRecorder
from .parts import AgentParts, PeriodicCollector, SystemClock
from .prediction.predictor import Prediction, PredictorSettings
from .qos_manager.evictor import EvictionAttempt, EvictorOptions, PodEvictor
from .qos_manager.manager import Manager
from .resource_executor.executor import ResourceExecutor
from .resource_executor.journal import ResourceJournal, read_boot
from .resource_executor.results import MetricHook
from .resource_executor.tree import FileTree
from .states_informer.device_reporter import DeviceReporter
from .states_informer.kubelet import KubeletObserver
from .states_informer.node_metric_reporter import NodeMetricReporter
from .states_informer.node_objects import DEVICE
from .states_informer.node_topology_reporter import NodeTopologyReporter, TopologySettings
from .states_informer.settings import FROM_KUBELET, StatesSettings
from .states_informer.state_store import StateStore
from .states_informer.states_informer import StatesInformer

if TYPE_CHECKING:
    from .qos_manager.configuration import StrategyArgs

_LOG: Final = logging.getLogger(__name__)

JOURNAL: Final = "journal.jsonl"
_LOCK: Final = "agent.lock"
_LOOK_S: Final = 10.0
"""Seconds between two looks for a kubelet that has not started, as koordlet's."""
_GUARD_S: Final = 60.0
"""Seconds between two looks for a koordlet: each one reads the command lines of all processes."""
_LONGEST_WAIT_S: Final = 10.0
"""Seconds after which the watcher of control groups sees that the agent has ended, if none appears before."""
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NodeAgentSettings:
    """The settings of an agent; `interval` (seconds) is that of the collectors, `qps` and `burst` limit requests."""

    states: StatesSettings
    state_dir: Path
    roots: HostRoots = field(default_factory=HostRoots)
    kubepods: str = "kubepods"
    driver: str = ""
    """kubelet's driver, if neither its directories nor its process are seen; empty to ask kubelet."""
    interval: float = 1.0
    gates: Mapping[str, bool] = field(default_factory=dict)
    enable: frozenset[str] = frozenset()
    args: Mapping[str, StrategyArgs] = field(default_factory=dict)
    """The arguments of strategies in Python, by name."""
    only: frozenset[str] | None = None
    """The strategies that may run beside a koordlet; None for all."""
    agent: AgentSettings = field(default_factory=AgentSettings)
    collect: frozenset[str] = frozenset()
    """The collectors that run besides those that always do, and those of gates."""
    reports: bool = True
    """False to write neither NodeMetric nor NodeResourceTopology nor Device: a dry run, or koordlet does."""
    prediction: PredictorSettings = field(default_factory=PredictorSettings)
    qps: float = 20.0
    burst: int = 30

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.states.node

    @property
    def reported_devices(self) -> frozenset[str]:
        """The types of devices that are reported: those of koordlet's gates, or all if the collector is named."""
        if not self.reports:
            return frozenset()
        if DeviceUsage.name in self.collect:
            return frozenset(DEVICE_GATES)
        return frozenset(kind for kind, gate in DEVICE_GATES.items() if self.gates.get(gate, False))


Observer = Callable[[Conclusion, LiveReadings], object]


class NodeAgent:
    """The agent of one node; `start` it, `run` it, and `close` it."""

    def __init__(
        self, connect: Callable[[], Connection], policies: Live, settings: NodeAgentSettings, *,
        observers: Sequence[Observer] = (), on_attempt: Sequence[Callable[[EvictionAttempt], object]] = (),
        metric: MetricHook | None = None, counts: AgentCounts | None = None, recorder: NodeRecorder | None = None,
        requests: RequestObserver | None = None, kubelet_requests: KubeletObserver | None = None,
    ) -> None:
        """`observers` are called with each round, `on_attempt` with each eviction, `metric` with each write.

        `requests` is called with each request to the API server, `kubelet_requests` with each one to the kubelet.

        Raises:
            PolicyError: the state directory cannot be used, or another agent uses it.
        """
        self.settings = settings
        self.outdated = False
        """True if `run` ended since the agent must be made anew: kubelet's driver is another one than was assumed."""
        self.rival = ""
        """The signs of a koordlet that began to write the same files, for which `run` ended; empty for none."""
        self._recorded: Future[object] | None = None
        """The writing of events; None before `start`."""
        self._driver_known = False
        self.driver = settings.driver
        """kubelet's driver, empty as long as it is not known."""
        self._clock = SystemClock()
        self._policies = policies
        self._generation = policies.registry.generation
        self._lock = _lock(settings.state_dir)
        groups, known = detect_control_groups(
            settings.roots, settings.kubepods, kubelet_driver=lambda: settings.driver)
        if not known:
            _LOG.warning("neither kubelet nor its control groups were found: until they are its driver is taken for "
                         "`%s`", groups.driver)
        roots = settings.roots
        self.tree = FileTree(groups, resctrl=roots.resctrl, proc=roots.proc, sys=roots.sys)
        self.executor = ResourceExecutor(
            self.tree, ResourceJournal(settings.state_dir / JOURNAL, read_boot(Path("/proc"))),
            dry_run=settings.agent.dry_run)
        if metric is not None:
            self.executor.metric = metric
        self.host = _read_host(roots, groups.version, mounts=not settings.agent.dry_run)
        interval = int(settings.interval * _SECOND)
        self.cache = MetricCache(settings.node, interval)
        self.advisor = MetricsAdvisor(
            Sources(self.cache, groups, self.tree.reader, proc=roots.proc, sys=roots.sys,
                    resctrl=roots.resctrl),
            AdvisorSettings.of(interval, settings.gates, settings.collect), lambda: self.host.processors,
            lambda: self.host.storage)
        self.io = IoThread()
        connection = connect()
        self._transport = Transport(connection, rate=settings.qps, burst=settings.burst, observer=requests)
        self._event_transport = Transport(connection, rate=settings.qps, burst=settings.burst, observer=requests)
        self.recorder = EventRecorder(self._event_transport, host=settings.node)
        self.states = StatesInformer(
            self.io, self._transport,
            replace(settings.states, follow=frozenset({DEVICE} if settings.reported_devices else ())),
            effective_spec=lambda spec: effective_spec(spec) or {},
            reads=_reads_of(policies.registry), store=StateStore(settings.state_dir, settings.node),
            wake=self.wake, kubelet_observer=kubelet_requests)
        self.evictor = PodEvictor(
            self.io, ClusterWriter(self._transport), pods=lambda: self.states.pods,
            pods_age_s=lambda: self.states.pods_age, events=self.recorder, on_attempt=on_attempt,
            options=EvictorOptions(dry_run=settings.agent.dry_run, pods_age_s=self.states.pods_max_age))
        self.manager = Manager(settings.gates, settings.enable, settings.args, on_node=True, only=settings.only)
        self.agent = Agent(
            AgentParts(
                node=settings.node, host=self.host, states=self.states, usage=self.cache, files=self.tree.view,
                executor=self.executor, evictor=self.evictor,
                collectors=(*self.advisor.periodic(), *self._recording(recorder), *self._looking(known),
                            *self._guarding()),
                is_synced=lambda: self.states.synced and self.advisor.synced,
                run_callbacks=self._run_callbacks, claims=lambda: self.states.claims,
                journaled=lambda: self.executor.journaled, clock=self._clock,
            ), policies, self.manager, settings.agent, observers=observers, counts=counts)
        writer, server_time = ClusterWriter(self._transport), self._transport.server_clock.nanoseconds
        self._usage_reporter = NodeMetricReporter(
            self.states, writer, self.cache, server_time=server_time,
            predictor=settings.prediction) if settings.reports else None
        self._topology_reporter = NodeTopologyReporter(
            self.states, writer, lambda: self.host, self._topology_settings()) if settings.reports else None
        self._device_reporter = DeviceReporter(
            self.states, writer, lambda: self.advisor.devices.devices if self.advisor.devices.started else None,
            lambda: self.host.processors, settings.reported_devices) if settings.reported_devices else None
        self._ended = threading.Event()
        self._listen()

    def _recording(self, recorder: NodeRecorder | None) -> tuple[PeriodicCollector, ...]:
        """Return the collector that records what those before it have measured, as long as strategies run."""
        if recorder is None:
            return ()

        def record(now: int) -> None:
            if self.agent.ready:
                recorder.sample(now, self.states, self.cache.at(now), lambda: self.cache.names("application"))

        return (PeriodicCollector("recording", self.settings.interval, record),)

    def _looking(self, known: bool) -> tuple[PeriodicCollector, ...]:
        """Return the part that looks for kubelet's driver until it is known."""
        if known:
            return ()
        settings = self.settings
        ask = DriverQuestion(self._ask_kubelet) if settings.states.pods_from == FROM_KUBELET else None

        def look(_now: int) -> None:
            if self._driver_known:
                return
            found, self._driver_known = detect_control_groups(settings.roots, settings.kubepods, kubelet_driver=ask)
            if self._driver_known and found.driver != self.tree.groups.driver:
                _LOG.warning("kubelet's driver is `%s`: the agent begins anew with it", found.driver)
                self.driver, self.outdated = found.driver, True
                self.stop()

        return (PeriodicCollector("kubeletDriver", _LOOK_S, look),)

    def _guarding(self) -> tuple[PeriodicCollector, ...]:
        """Return the part that looks for a koordlet, which may start later, unless strategies are divided with it."""
        if self.settings.only is not None or self.settings.agent.dry_run:
            return ()

        def look(_now: int) -> None:
            # The port of metrics may be this agent's own.
            self.rival = find_koordlet(Path(self.settings.roots.proc), port=0)
            if self.rival:
                _LOG.error("%s: this agent gives back what it has changed, and ends", self.rival)
                self.stop()

        return (PeriodicCollector("koordlet", _GUARD_S, look),)

    def _ask_kubelet(self) -> Future[dict[str, Any]] | None:
        node = self.states.node
        return None if node is None else self.io.submit(self.states.kubelet_configuration(node))

    def _topology_settings(self) -> TopologySettings:
        return TopologySettings(numa_nodes=Path(self.settings.roots.sys) / "devices/system/node",
                                query_kubelet=self.settings.states.pods_from == FROM_KUBELET)

    @property
    def reported_usage(self) -> Mapping[str, Any]:
        """`nodeMetric` of the last status of the NodeMetric that was written; empty without one."""
        return {} if self._usage_reporter is None else self._usage_reporter.usage

    @property
    def prediction(self) -> Prediction:
        """The prediction of the last report; empty without one."""
        return Prediction() if self._usage_reporter is None else self._usage_reporter.prediction

    def _run_callbacks(self) -> None:
        registry = self._policies.registry
        if registry.generation != self._generation:
            self._generation = registry.generation
            self.states.require(_reads_of(registry))
        self.states.run_callbacks()

    def wake(self) -> None:
        """Let the next pass begin now; for any thread."""
        agent = getattr(self, "agent", None)  # states are restored before there is an agent
        if agent is not None:
            agent.wake()

    def start(self) -> None:
        """Begin to follow the node; the executor takes over what a former process has left."""
        self.executor.start(int(self._clock.monotonic() * 1e9), give_back=False)
        self.io.start()
        self.io.on_close(self._transport.close)
        self.io.on_close(self._event_transport.close)
        self._recorded = self.io.spawn(self.recorder.run(), "to record events")
        self.states.start()
        if self._usage_reporter is not None:
            self.io.spawn(self._usage_reporter.run(), "to report usage")
        if self._topology_reporter is not None:
            self.io.spawn(self._topology_reporter.run(), "to report the topology")
        if self._device_reporter is not None:
            self.io.spawn(self._device_reporter.run(), "to report the devices")
        if self.settings.states.pods_from == FROM_KUBELET:
            threading.Thread(target=self._watch_pods, name="pleg", daemon=True).start()

    def _watch_pods(self) -> None:
        """List the pods of the kubelet as soon as a pod's control group appears."""
        def note(event: LifecycleEvent) -> None:
            if event.created and not event.container:
                self.states.pod_started()

        watcher = LifecycleWatcher(self.tree.groups, note)
        try:
            watcher.start()
        except OSError as error:
            _LOG.warning("new pods are seen at the kubelet's next list only, without inotify: %s", error.strerror)
            return
        try:
            while not self._ended.is_set():
                if watcher.wait(_LONGEST_WAIT_S):
                    watcher.dispatch()
        except Exception:
            _LOG.exception("new pods are seen at the kubelet's next list only")
        finally:
            watcher.close()

    def run(self, ready: Callable[[], object] = lambda: None, *, seconds: float = math.inf) -> None:
        """Run until `stop`, or for so many seconds; then give back what was changed."""
        self.agent.run(ready, until=self._clock.monotonic() + seconds)

    def stop(self) -> None:
        """Let `run` end; for any thread and for signal handlers."""
        self.agent.stop()

    def close(self) -> None:
        """Write the last events, end the I/O thread, and close the files."""
        self._ended.set()
        if self._recorded is not None:
            end_recording(self.io, self.recorder, self._recorded)
        self.io.close()
        self.executor.close()
        os.close(self._lock)

    def faults(self) -> str:
        """Return why strategies do not run, or what is not followed; empty if all is well."""
        if self.agent.ready:
            return "; ".join(f"{kind}: {fault}" for kind, fault in self.states.faults.items())
        lacks = [] if self.states.node is not None else [f"the Node `{self.settings.node}` is not known"]
        if self.states.pods_age == math.inf:
            lacks.append("the pods are not known")
        lacks += [f"the collector {name} has not measured yet" for name in self.advisor.waiting]
        lacks += [f"{kind}: {fault}" for kind, fault in self.states.faults.items()]
        return "; ".join(lacks) or "the first pass is not over"

    def _listen(self) -> None:
        def pods(_type: StateType, _state: Mapping[str, Any] | None, target: CallbackTarget) -> None:
            self.tree.directories.use_pods(target.pods)
            self.advisor.use_pods(target.pods)

        def applications(_type: StateType, _state: Mapping[str, Any] | None, target: CallbackTarget) -> None:
            for complaint in self.tree.directories.use_applications(target.host_applications):
                _LOG.warning("a host application of the NodeSLO is left out: %s", complaint)
            self.advisor.use_applications(target.host_applications)

        self.states.register_callback(StateType.PODS, "agent", "measures these pods, and finds their files", pods)
        self.states.register_callback(
            StateType.NODE_SLO, "agent", "measures the host applications, and finds their files", applications)


def _read_host(roots: HostRoots, version: int, *, mounts: bool) -> Host:
    """Return the facts of the machine; mount resctrl first, where the processors have what it divides."""
    host = read_host(roots, version)
    if mounts and has_resctrl(host) and not host.cbm_mask:
        if reason := mount_resctrl(roots.resctrl):
            _LOG.warning("caches and memory bandwidth are not divided: %s", reason)
        else:
            host = read_host(roots, version)
    return host


def _reads_of(registry: Registry) -> FieldSets:
    """Return the fields of Nodes and Pods that QoS plugins read; whole ones if a plugin does not name these kinds."""
    found: dict[str, frozenset[FieldPath] | None] = {"Node": frozenset(), "Pod": frozenset()}
    for plugin in registry.of_framework(Framework.QOS):
        named = {read.kind: read.fields for read in plugin.reads}
        for kind, known in found.items():
            fields = named.get(kind)
            found[kind] = None if known is None or fields is None else known | fields
    return found


def _lock(directory: Path) -> int:
    """Return the descriptor of the locked file of a state directory, which is made."""
    try:
        make_own_directory(directory)
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PolicyError([Problem(f"the state directory `{directory}` cannot be used: {error.strerror}",
                                   help="name another one with `--state-dir`", code="state-dir")]) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise PolicyError([Problem(f"another agent uses the state directory `{directory}`", code="state-dir",
                                   help="let one agent run on a node")]) from None
    return descriptor

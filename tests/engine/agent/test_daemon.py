from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from koordpolicy.engine.agent.daemon import Agent, AgentSettings, Conclusion
from koordpolicy.engine.agent.parts import AgentParts, PeriodicCollector
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.discovery import python_plugin
from koordpolicy.engine.framework.points import Enforcement, Framework, Point
from koordpolicy.engine.framework.qos import Adjustment, Evictions, Host, Readings, StrategyContext
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.testing.agent import FakeExecutor, FakeMetricCache
from koordpolicy.engine.testing.states import FakeStates

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
QUOTA = "besteffort/cpu.cfs_quota_us"
NODE = {"kind": "Node", "metadata": {"name": "n"},
        "status": {"capacity": {"cpu": "10"}, "allocatable": {"cpu": "10", "memory": "10Gi"}}}


def pod(name: str, **labels: str) -> PodInfo:
    metadata = {"name": name, "namespace": "d", "uid": f"u-{name}", "labels": labels}
    return PodInfo.of({"kind": "Pod", "metadata": metadata,
                       "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": "Running"}})


@dataclass
class VirtualClock:
    seconds: float = 0.0
    jump: int = 0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> int:
        return START + int(self.seconds * SECOND) + self.jump


@dataclass
class RecordingEvictor:
    requested: list[tuple[str, str]] = field(default_factory=list)

    @property
    def evictions(self) -> Evictions:
        return Evictions(leaving=frozenset(f"u-{key.partition('/')[2]}" for key, _ in self.requested))

    def evict(self, pod: PodInfo, adjustment: Adjustment) -> None:
        self.requested.append((pod.key, adjustment.reason))


class Squeeze:
    """Limits best-effort pods while the node uses more than 4 cores."""

    interval = SECOND

    def __init__(self, args: Any = None, handle: Any = None) -> None: ...

    def adjust(self, readings: Readings) -> list[Adjustment]:
        quota = "100000" if readings.node_usage("cpu") > 4000 else "-1"
        if readings.files.get(QUOTA) == quota:
            return []
        return [Adjustment("suppressCPU", "n", f"quota {quota}", writes=((QUOTA, quota),))]

    def recover(self, readings: Readings) -> list[Adjustment]:
        if readings.files.get(QUOTA, "-1") == "-1":
            return []
        return [Adjustment("suppressCPU", "n", "off", writes=((QUOTA, "-1"),), recovers=True)]


class EvictsAll(Squeeze):
    def adjust(self, readings: Readings) -> list[Adjustment]:
        return [Adjustment("evict", each.key, "no room") for each in readings.pods]


@dataclass
class World:
    """A node in virtual time."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    states: FakeStates = field(default_factory=lambda: FakeStates(node=NODE))
    metrics: FakeMetricCache = field(default_factory=lambda: FakeMetricCache("n"))
    executor: FakeExecutor = field(default_factory=lambda: FakeExecutor({QUOTA: "-1"}))
    evictor: RecordingEvictor = field(default_factory=RecordingEvictor)
    cpu: str = "2"
    synced: bool = True
    log: list[str] = field(default_factory=list)
    live: Live = field(default_factory=Live)
    concluded: list[Conclusion] = field(default_factory=list)

    def agent(self, *plugins: Plugin, gates: Mapping[str, bool] | None = None, **settings: Any) -> Agent:
        self.change(*plugins)
        parts = AgentParts(
            "n", Host(), self.states, self.metrics, lambda: dict(self.executor.files), self.executor, self.evictor,
            collectors=(PeriodicCollector("usage", 1.0, self.collect),), is_synced=lambda: self.synced,
            journaled=self.executor.journaled, clock=self.clock)
        manager = Manager(gates or {}, on_node=True)
        return Agent(parts, self.live, manager, AgentSettings(**settings),
                     observers=[lambda conclusion, _: self.concluded.append(conclusion)])

    def change(self, *plugins: Plugin) -> None:
        self.live.activate(Registry.of(plugins, generation=0))

    def collect(self, now: int) -> None:
        self.log.append("collect")
        self.metrics.measure("node", "n", now, cpu=self.cpu)

    def run(self, agent: Agent, seconds: float) -> None:
        """Make the passes of some seconds."""
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            self.clock.seconds = min(max(agent.step(), self.clock.seconds + 0.001), end)


@pytest.fixture
def world() -> World:
    return World()


def plugin(name: str = "Squeeze", make: Any = Squeeze, enforcement: Enforcement = Enforcement.ENFORCE,
           version: str = "1") -> Plugin:

    made = python_plugin(name, Framework.QOS, make, enabled=True, version=version, points=None)
    return replace(made, enforcement=enforcement, digest=f"{made.digest}{enforcement.value}")


def test_suppression_follows_the_load(world):
    agent = world.agent(plugin())
    world.run(agent, 3)
    assert world.executor.files[QUOTA] == "-1"
    world.cpu = "6"
    world.run(agent, 2)
    assert world.executor.files[QUOTA] == "100000"
    world.cpu = "1"
    world.run(agent, 2)
    assert world.executor.files[QUOTA] == "-1"


def test_a_collector_comes_before_strategies_in_each_second(world):
    seen = []

    class Watching(Squeeze):
        def adjust(self, readings: Readings) -> list[Adjustment]:
            seen.append(len(world.log))
            return []

    agent = world.agent(plugin(make=Watching))
    world.run(agent, 4)
    assert seen == [1, 2, 3, 4]


def test_nothing_is_decided_before_node_and_pods_are_known(world):
    world.synced, world.cpu = False, "6"
    agent = world.agent(plugin())
    world.run(agent, 3)
    assert (agent.ready, world.executor.applied, len(world.log)) == (False, [], 3)
    world.synced = True
    world.run(agent, 1)
    assert (agent.ready, world.executor.files[QUOTA]) == (True, "100000")


def test_a_jump_of_the_wall_clock_does_not_stop_rounds(world):
    agent = world.agent(plugin())
    world.run(agent, 2)
    world.clock.jump, world.cpu = -3600 * SECOND, "6"
    world.run(agent, 2)
    assert world.executor.files[QUOTA] == "100000"
    assert world.log.count("collect") == 4


def test_a_strategy_that_is_removed_gives_back_what_it_changed(world):
    world.cpu = "6"
    agent = world.agent(plugin())
    world.run(agent, 2)
    assert world.executor.files[QUOTA] == "100000"
    world.change()
    world.run(agent, 1)
    assert (world.executor.files[QUOTA], agent.manager.running) == ("-1", {})


def test_what_a_removed_strategy_could_not_give_back_is_given_back_later(world):
    world.cpu = "6"
    agent = world.agent(plugin())
    world.run(agent, 2)
    world.executor.refusing = {QUOTA: "Device or resource busy"}
    world.change()
    world.run(agent, 2)
    assert world.executor.files[QUOTA] == "100000"
    world.executor.refusing = {}
    world.run(agent, 2)
    assert (world.executor.files[QUOTA], world.executor.originals) == ("-1", {})


def test_a_strategy_that_comes_later_runs_at_once(world):
    world.cpu = "6"
    agent = world.agent()
    world.run(agent, 1.5)
    world.change(plugin())
    world.run(agent, 1)
    assert world.executor.files[QUOTA] == "100000"


def test_a_strategy_with_its_gate_off_does_not_run(world):
    world.cpu = "6"
    agent = world.agent(plugin(), gates={"Squeeze": False})
    world.run(agent, 2)
    assert world.executor.applied == []


def test_the_end_gives_back_all(world):
    world.cpu = "6"
    world.executor.files["besteffort/cpu.shares"] = "2"

    class NeverBack(Squeeze):
        def adjust(self, readings: Readings) -> list[Adjustment]:
            return [Adjustment("cgroup", "n", "more", writes=(("besteffort/cpu.shares", "1024"),))]

    agent = world.agent(plugin(), plugin("NeverBack", NeverBack))
    world.run(agent, 2)
    assert world.executor.files == {QUOTA: "100000", "besteffort/cpu.shares": "1024"}
    agent.close()
    assert world.executor.files == {QUOTA: "-1", "besteffort/cpu.shares": "2"}


def test_the_end_gives_nothing_back_if_values_are_to_stay(world):
    world.cpu = "6"
    agent = world.agent(plugin(), restore_on_exit=False)
    world.run(agent, 2)
    agent.close()
    assert world.executor.files[QUOTA] == "100000"


def test_what_a_dead_process_left_is_given_back_before_the_first_rounds_decide_anew(world):
    shares = "besteffort/cpu.shares"
    world.executor = FakeExecutor({QUOTA: "100000", shares: "1024"}, originals={QUOTA: "-1", shares: "2"})
    world.cpu, world.synced = "6", False
    agent = world.agent(plugin())
    world.run(agent, 2)
    assert world.executor.files == {QUOTA: "100000", shares: "1024"}
    world.synced = True
    agent.step()
    assert world.executor.files == {QUOTA: "100000", shares: "2"}
    assert [each.reason for each in world.executor.applied] == ["quota 100000"]


def test_what_a_dead_process_left_is_given_back_if_nothing_runs(world):
    world.executor = FakeExecutor({QUOTA: "100000"}, originals={QUOTA: "-1"})
    agent = world.agent()
    world.run(agent, 1)
    assert world.executor.files == {QUOTA: "-1"}


def test_a_dry_run_changes_nothing_and_says_each_change_once(world, caplog):
    world.cpu = "6"
    world.states.pods = (pod("a"),)
    with caplog.at_level(logging.INFO, "koordpolicy"):
        agent = world.agent(plugin(), plugin("EvictsAll", EvictsAll), dry_run=True)
        world.run(agent, 4)
        agent.close()
    assert (world.executor.applied, world.evictor.requested) == ([], [])
    assert [each.message for each in caplog.records if "dry run" in each.message] == [
        "dry run: `EvictsAll` would evict d/a: no room",
        f"dry run: `Squeeze` would suppressCPU n: quota 100000, {QUOTA}=100000",
    ]


def test_a_strategy_that_only_warns_changes_nothing(world, caplog):
    world.cpu = "6"
    agent = world.agent(plugin(enforcement=Enforcement.WARN))
    world.run(agent, 3)
    agent.close()
    assert world.executor.applied == []
    assert [each.message for each in caplog.records] == [
        f"`Squeeze` is not enforced; it would: suppressCPU n: quota 100000, {QUOTA}=100000"]


def test_evictions_are_requested(world):
    world.states.pods = (pod("a"), pod("b"))
    agent = world.agent(plugin("EvictsAll", EvictsAll))
    world.run(agent, 1)
    assert world.evictor.requested == [("d/a", "no room"), ("d/b", "no room")]


def test_a_cause_is_logged_once_in_ten_minutes(world, caplog):
    class Unknown(Squeeze):
        def adjust(self, readings: Readings) -> list[Adjustment]:
            raise EvaluationError(f"at {readings.now}", reason="NoMetric")

    agent = world.agent(plugin(make=Unknown))
    world.run(agent, 599)
    assert len(caplog.records) == 1
    world.run(agent, 2)
    assert len(caplog.records) == 2
    assert agent.counts.read("errors") == {("Squeeze", "NoMetric"): 601}


def test_a_failing_collector_stops_nothing(world, caplog):
    world.cpu = "six"
    agent = world.agent(plugin())
    world.run(agent, 3)
    assert [each.message for each in caplog.records][:1] == [
        "collector usage failed; this is logged once in ten minutes"]
    world.cpu = "6"
    world.run(agent, 1)
    assert world.executor.files[QUOTA] == "100000"


def test_refused_writes_are_counted(world):
    world.cpu, world.executor.refusing = "6", {QUOTA: "EINVAL"}
    agent = world.agent(plugin())
    world.run(agent, 3)
    assert agent.counts.read("writes") == {("failed",): 3}


def test_two_strategies_that_write_one_file_are_reported_once(world, caplog):
    class Opposite(Squeeze):
        def adjust(self, readings: Readings) -> list[Adjustment]:
            return [Adjustment("suppressCPU", "n", "less", writes=((QUOTA, "50000"),))]

    world.cpu = "6"
    agent = world.agent(plugin(), plugin("Opposite", Opposite))
    world.run(agent, 4)
    assert [each.message for each in caplog.records] == [
        f"`Squeeze` of n: `Opposite` writes `{QUOTA}` too, and each undoes what the other does: turn one of them off"]


def test_observers_get_each_round_with_its_results(world):
    world.cpu = "6"
    agent = world.agent(plugin())
    world.run(agent, 1)
    (found,) = world.concluded
    assert (found.plugin, found.time, found.enforced) == ("Squeeze", START, True)
    assert [(write.file, write.status.value) for result in found.results for write in result.writes] == [
        (QUOTA, "written")]


class Living:
    """A living strategy that writes once when it is told to."""

    made: Any = None

    def __init__(self, args: Any = None, handle: Any = None) -> None:
        type(self).made = self
        self.go, self.done = threading.Event(), threading.Event()

    def enabled(self) -> bool:
        return True

    def setup(self, context: StrategyContext) -> None:
        self.context = context

    def run(self, stop: threading.Event) -> None:
        self.go.wait(60)
        used = self.context.readings().node_usage("cpu")
        self.context.executor.apply([Adjustment("suppressCPU", "n", f"{used:g}", writes=((QUOTA, "7000"),))])
        for each in self.context.readings().pods:
            self.context.evictor.evict(each, "memory")
        self.done.set()

    def recover(self, readings: Readings) -> list[Adjustment]:
        return [Adjustment("suppressCPU", "n", "off", writes=((QUOTA, "-1"),), recovers=True)]


def test_a_living_strategy_starts_when_the_node_is_known(world):
    world.synced = False
    Living.made = None
    agent = world.agent(plugin("Living", Living))
    world.run(agent, 1)
    assert not hasattr(Living.made, "context")
    world.synced = True
    world.run(agent, 1)
    assert Living.made.context.node == "n"
    Living.made.go.set()
    agent.close()


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_living_strategy_writes_and_evicts_by_its_context(world, dry_run):
    world.states.pods = (pod("a"),)
    agent = world.agent(plugin("Living", Living), dry_run=dry_run)
    world.run(agent, 1)
    Living.made.go.set()
    assert Living.made.done.wait(60)
    assert world.executor.files[QUOTA] == ("-1" if dry_run else "7000")
    assert world.evictor.requested == ([] if dry_run else [("d/a", "memory")])
    agent.close()
    assert world.executor.files[QUOTA] == "-1"


def test_an_extension_runs_by_its_gate_and_grey_control_gives_pods_policies(world):
    ran = threading.Event()

    class Extension:
        def init_flags(self, parser: Any) -> None: ...

        def setup(self, context: StrategyContext) -> None: ...

        def run(self, stop: threading.Event) -> None:
            ran.set()

    class Grey(Extension):
        def inject_pod_policy(self, pod: PodInfo, policy: str) -> Any:
            return {"policy": "auto"} if policy == "CPUBurst" else None

    def of(name: str, make: Callable[[], Any], point: Point) -> Plugin:
        return python_plugin(name, Framework.QOS, lambda args, handle: make(), points=[point])

    seen = []

    class Reading(Squeeze):
        def adjust(self, readings: Readings) -> list[Adjustment]:
            seen.append([each.object["metadata"].get("annotations") for each in readings.pods])
            return []

    world.states.pods = (pod("a"),)
    others = [of("Off", lambda: pytest.fail("its gate is off"), Point.EXTENSION), of("On", Extension, Point.EXTENSION),
              of("Grey", Grey, Point.GREY_CONTROL)]
    agent = world.agent(plugin(make=Reading), *others, extension_gates={"On": True})
    world.run(agent, 1)
    assert ran.wait(60)
    assert seen == [[{"koordinator.sh/cpuBurst": '{"policy": "auto"}'}]]
    agent.close()


def test_run_ends_at_stop_and_gives_back(world):
    world.cpu = "6"
    agent = world.agent(plugin())
    ready = threading.Event()
    # The virtual clock stands still: one pass, and then the loop waits until it is woken.
    thread = threading.Thread(target=agent.run, args=(ready.set,))
    thread.start()
    assert ready.wait(60)
    agent.stop()
    thread.join(60)
    assert (thread.is_alive(), agent.stopped, world.executor.files[QUOTA]) == (False, True, "-1")


class Marks(Squeeze):
    """Writes a file of each pod."""

    def adjust(self, readings: Readings) -> list[Adjustment]:
        return [Adjustment("cgroup", each.key, "of the pod", writes=((f"{readings.directory(each)}/cpu.shares", "2"),))
                for each in readings.pods]


@pytest.mark.parametrize("dry_run", [False, True])
def test_memory_does_not_grow_while_pods_come_and_go(dry_run: bool):
    world = World()
    agent = world.agent(plugin("marks", Marks), dry_run=dry_run)
    sizes = []
    for minute in range(12):
        pods = tuple(pod(f"{minute}-{number}") for number in range(20))
        world.states.pods = pods
        world.executor.files = {QUOTA: "-1"} | {
            f"besteffort/pod{each.uid}/cpu.shares": "1024" for each in pods}
        world.run(agent, 61)
        dry = agent._dry
        sizes.append((len(agent._writers._owners), len(dry._would) if dry is not None else 0))
    assert max(sizes) <= (40, 40)
    assert sizes[2:] == sizes[1:-1]

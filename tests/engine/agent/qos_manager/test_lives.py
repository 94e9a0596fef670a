from __future__ import annotations

import argparse
import logging
import threading
from typing import Any, ClassVar

import pytest

from koordpolicy.engine.agent.qos_manager.lives import (
    InjectedPolicies,
    PluginThreads,
    check_extension_gates,
    follow_strategies,
    plugins_at,
)
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.discovery import points_of, python_plugin
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.qos import PodPolicy, StrategyContext
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError
from koordpolicy.engine.testing.states import FakeStates


class Living:
    """A strategy with koordlet's life."""

    made: ClassVar[list[Living]] = []

    def __init__(self, args: Any = None, handle: Any = None, *, on: bool = True, failing: bool = False) -> None:
        self.on, self.failing = on, failing
        self.log: list[str] = []
        self.started, self.ended = threading.Event(), threading.Event()
        self.made.append(self)

    def enabled(self) -> bool:
        self.log.append("enabled")
        return self.on

    def setup(self, context: StrategyContext) -> None:
        self.log.append("setup")
        if self.failing:
            raise RuntimeError("no device")

    def run(self, stop: threading.Event) -> None:
        self.log.append("run")
        self.started.set()
        stop.wait()
        self.ended.set()


class Extension:
    def init_flags(self, parser: Any) -> None:
        parser.add_argument("--depth")

    def setup(self, context: StrategyContext) -> None: ...

    def run(self, stop: threading.Event) -> None: ...


class Grey:
    def __init__(self, given: dict[str, Any] | None = None, error: str = "") -> None:
        self.given, self.error = given, error

    def setup(self, context: StrategyContext) -> None: ...

    def run(self, stop: threading.Event) -> None: ...

    def inject_pod_policy(self, pod: PodInfo, policy: PodPolicy) -> Any:
        if self.error:
            raise RuntimeError(self.error)
        return self.given if policy is PodPolicy.CPU_BURST else None


class Pure:
    interval = 1_000_000_000

    def __init__(self, args: Any = None, handle: Any = None) -> None: ...

    def adjust(self, readings: Any) -> tuple[()]:
        return ()

    def recover(self, readings: Any) -> tuple[()]:
        return ()


def plugin(name: str, make: Any = Living, **options: Any):
    return python_plugin(name, Framework.QOS, make, enabled=True, **options)


def context(_: object = None) -> StrategyContext:
    nothing: Any = None
    return StrategyContext("n", nothing, nothing, nothing, {}, logging.getLogger("test"), argparse.Namespace(),
                           FakeStates())


def pod(name: str, **annotations: str) -> PodInfo:
    return PodInfo.of({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "annotations": annotations},
                       "spec": {"nodeName": "n", "containers": [{"name": "c"}]}})


@pytest.fixture
def threads():
    made = PluginThreads()
    yield made
    made.stop(made.names)


def test_each_kind_of_plugin_is_known_by_its_methods():
    assert points_of(Pure, Framework.QOS) == points_of(Living, Framework.QOS) == (Point.STRATEGY,)
    assert points_of(Extension, Framework.QOS) == (Point.EXTENSION,)
    assert points_of(Grey, Framework.QOS) == (Point.GREY_CONTROL,)


def test_a_living_strategy_is_asked_set_up_run_and_stopped(threads):
    strategy = Living()
    assert threads.start("One", strategy, context())
    assert strategy.started.wait(60)
    assert (strategy.log, threads.names) == (["enabled", "setup", "run"], ("One",))
    assert threads.stop(["One"]) == ()
    assert (strategy.ended.is_set(), threads.names) == (True, ())


def test_a_strategy_that_says_no_is_not_set_up(threads):
    strategy = Living(on=False)
    assert not threads.start("One", strategy, context())
    assert strategy.log == ["enabled"]


def test_a_failing_set_up_is_logged_and_stops_no_other_plugin(threads, caplog):
    broken, sound = Living(failing=True), Living()
    assert [threads.start("Broken", broken, context()), threads.start("Sound", sound, context())] == [False, True]
    assert "`Broken` does not run, as its set-up failed: RuntimeError: no device" in caplog.text


def test_a_failing_run_is_logged(threads, caplog):
    class Failing(Living):
        def run(self, stop: threading.Event) -> None:
            raise SystemExit(3)

    threads.start("One", Failing(), context())
    threads.stop(["One"])
    assert "`One` has ended, as it failed: SystemExit: 3" in caplog.text


def test_a_thread_that_does_not_end_is_reported_and_left_alone(threads, caplog):
    release = threading.Event()

    class Deaf(Living):
        def run(self, stop: threading.Event) -> None:
            release.wait()

    threads.start("Deaf", Deaf(), context())
    assert threads.stop(["Deaf"], seconds=0.05) == ("Deaf",)
    assert "`Deaf` did not stop within 0.05 s" in caplog.text
    release.set()


def test_the_active_set_is_followed(threads):
    Living.made.clear()
    manager = Manager(on_node=True)
    manager.use(Registry.of([plugin("One"), plugin("Two"), plugin("Round", Pure)], generation=1))
    assert manager.intervals == {"Round": 1_000_000_000}
    follow_strategies(threads, manager.running, context)
    follow_strategies(threads, manager.running, context)
    assert threads.names == ("One", "Two")
    one, two = Living.made
    manager.use(Registry.of([plugin("Two", version="2")], generation=2))
    follow_strategies(threads, manager.running, context)
    assert (threads.names, one.ended.is_set(), two.ended.is_set()) == (("Two",), True, True)
    assert len(Living.made) == 3


def test_only_a_node_runs_living_strategies():
    manager = Manager()
    manager.use(Registry.of([plugin("One")], generation=1))
    assert manager.running == {}
    assert manager.idle == {"One": "it has a life of its own, and runs only on a node"}


def test_extensions_and_grey_control_are_no_strategies_of_the_manager():
    registry = Registry.of([
        plugin("B", lambda args, handle: Grey(), points=[Point.GREY_CONTROL]),
        plugin("A", lambda args, handle: Grey(), points=[Point.GREY_CONTROL]),
        plugin("First", lambda args, handle: Grey(), points=[Point.GREY_CONTROL], order=-1),
        plugin("Ext", lambda args, handle: Extension(), points=[Point.EXTENSION]),
    ], generation=1)
    manager = Manager(on_node=True)
    manager.use(registry)
    assert (manager.running, manager.idle) == ({}, {})
    assert [each.name for each in plugins_at(registry, Point.GREY_CONTROL)] == ["First", "A", "B"]
    assert [each.name for each in plugins_at(registry, Point.EXTENSION)] == ["Ext"]


def test_a_gate_of_no_extension_is_refused():
    check_extension_gates({"Depth": True}, ["Depth"])
    with pytest.raises(PolicyError, match="there is no extension `Dept` of the QoS manager"):
        check_extension_gates({"Dept": True}, ["Depth"])


def test_two_plugins_of_one_name_are_refused():
    with pytest.raises(PolicyError, match="qos plugin `One`"):
        Registry.of([plugin("One"), plugin("One")], generation=1)


def test_a_policy_is_injected_into_pods_that_declare_none():
    pods = (pod("free"), pod("own", **{"koordinator.sh/cpuBurst": "{}"}))
    injected = InjectedPolicies([("Burst", Grey({"policy": "auto"}))])
    free, own = injected.pods(pods)
    assert free.object["metadata"]["annotations"] == {"koordinator.sh/cpuBurst": '{"policy": "auto"}'}
    assert (free.key, own) == ("d/free", pods[1])
    assert injected.pods(pods)[0] is free  # made once for a pod and a policy
    assert pods[0].object["metadata"]["annotations"] == {}


def test_the_first_that_injects_decides_and_one_that_raises_is_logged_once_and_skipped(caplog):
    injected = InjectedPolicies([
        ("Broken", Grey(error="no quorum")), ("Silent", Grey()), ("First", Grey({"policy": "auto"})),
        ("Second", Grey({"policy": "none"})),
    ])
    pods = (pod("a"),)
    for _ in range(3):
        (found,) = injected.pods(pods)
        assert found.object["metadata"]["annotations"]["koordinator.sh/cpuBurst"] == '{"policy": "auto"}'
    assert [record.message for record in caplog.records] == [
        "`Broken` failed and is skipped, for the policy CPUBurst of `d/a`: RuntimeError: no quorum"]


def test_without_grey_control_the_pods_are_the_same():
    pods = (pod("a"),)
    assert InjectedPolicies([]).pods(pods) is pods
